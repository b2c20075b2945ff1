"""NVIDIA's device plugin under Kubernetes' own scheduler as a simulated cluster plays it: whole cards, replicas, MPS.

The scheduler counts what a node offers and what its pods ask for; of nodes it takes the one with most CPU and memory
left. Which card it is, is the kubelet's choice: any that is free of whole ones, here the first, and of replicas one of
the least used card, as the plugin proposes (internal/rm, distributedAlloc). A container that asks for two replicas is
refused (`failRequestsGreaterThanOne`). What still runs on a node when it is shared in another way keeps its card to
itself here, where a real plugin would hand the card out twice: nodes are to be emptied before.

Sources: NVIDIA/k8s-device-plugin:README.md, api/config/v1/sharing.go, cmd/config-manager/main.go,
cmd/mps-control-daemon/mps/daemon.go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from enforcer.backends.device_plugin import (
    CARD_RESOURCE,
    CARDS_LABEL,
    FRAMEBUFFER_LABEL,
    PLUGIN_CONFIGS,
    PRODUCT_LABEL,
    REPLICAS_LABEL,
    SHARED_RESOURCE,
    STRATEGY_LABEL,
    devices_of,
)
from enforcer.backends.nvidia_sharing import CONFIG_LABEL
from enforcer.dialect import WHOLE_CORE_PERCENT, ObjectKey
from enforcer.manifest import Manifest
from enforcer.simulated.books import Allocation, CardBook, ContainerAsk, PodAsk
from enforcer.simulated.kin import config_map
from enforcer.simulated.placing import Rules, least_allocated
from enforcer.simulated.system import NodeSharing, NodeWords, SharingSystem, TenantWords, by_container, host_request
from fleet.capabilities.capability import Capabilities, equal_part_bytes, equal_part_percent
from fleet.capabilities.register import MPS, TIME_SLICING, WHOLE_CARDS
from fleet.errors import Refused
from fleet.inventory import Grant
from fleet.units import MIB
from fleet.yaml_text import load_yaml

_CONFIG = PLUGIN_CONFIGS[0]


def model_selector(grant: Grant) -> Manifest:
    """How a tenant asks for its card model where no annotation says it."""
    return {"nodeSelector": {PRODUCT_LABEL: _product(grant.card_model)}}


def card_limits(grants: Sequence[Grant]) -> dict[str, str]:
    """As many whole cards as a container was granted."""
    return {CARD_RESOURCE: str(len({grant.card for grant in grants}))}


def card_labels(cards: Sequence[CardBook]) -> dict[str, str]:
    """What gpu-feature-discovery writes of the cards of a node."""
    if not cards:
        return {}
    mib, model = cards[0].framebuffer_mib, cards[0].card_model
    return {CARDS_LABEL: str(len(cards)), FRAMEBUFFER_LABEL: str(mib), PRODUCT_LABEL: _product(model)}


def _product(model: str) -> str:
    return model.replace(" ", "-")


def _misfit(pod: PodAsk, ask: ContainerAsk, card: CardBook) -> str | None:
    del pod
    is_replica = ask.resource == SHARED_RESOURCE
    misfits = (
        (is_replica != (card.slices_max > 1), f"card is not offered as {ask.resource}"),
        (is_replica and ask.count > 1, "the plugin gives a container one replica"),
        (not is_replica and card.slices > 0, "card is taken"),
        (card.slices >= card.slices_max or card.used_cores >= WHOLE_CORE_PERCENT, "card is full"),
    )
    return next((why for is_misfit, why in misfits if is_misfit), None)


def _order(pod: PodAsk, order: list[CardBook]) -> list[CardBook]:
    """The least used card first; of whole ones, which are all unused, the first."""
    del pod
    return sorted(order, key=lambda card: (card.slices, card.card))[::-1]


def _grant(ask: ContainerAsk, card: CardBook) -> Allocation:
    parts = card.slices_max
    return Allocation(
        container=ask.container,
        card=card.card,
        framebuffer_mib=equal_part_bytes(card.framebuffer_mib * MIB, parts) // MIB,
        core_percent=equal_part_percent(parts),
    )


_RULES = Rules(misfit=_misfit, order=_order, grant=_grant, node_score=least_allocated)


class DevicePluginSystem(SharingSystem):
    """One way in which NVIDIA's device plugin hands out cards (a `SharingSystem`).

    Args:
        section: what the way is called in the plugin's configuration; None where it shares no cards.
        strategy: what gpu-feature-discovery calls it.
    """

    rules = _RULES
    wish_path = None

    def __init__(self, capabilities: Capabilities, section: str | None = None, strategy: str = "none") -> None:
        self.capabilities = capabilities
        self._section = section
        self._strategy = strategy
        self.configs = () if section is None else (config_map(_CONFIG, {"default": "version: v1\n"}),)

    def tenant(self, grants: Sequence[Grant], models: Sequence[str]) -> TenantWords:
        """See `SharingSystem`; a slice is asked for as a whole card, since nobody shares by default."""
        del models
        return TenantWords(
            spec=model_selector(grants[0]),
            containers={
                name: {"resources": {"limits": card_limits(own)}} for name, own in by_container(grants).items()
            },
        )

    def ask_of(self, pod: Manifest) -> PodAsk:
        """See `SharingSystem`."""
        cpu_cores, memory_bytes = host_request(pod)
        asks = [
            ContainerAsk(container=container["name"], count=count, framebuffer_mib=None, resource=resource)
            for container in pod["spec"]["containers"]
            for resource, count in devices_of(container).items()
        ]
        return PodAsk(containers=tuple(asks), cpu_cores=cpu_cores, memory_bytes=memory_bytes)

    def sharing(self, configs: Mapping[ObjectKey, Manifest], node: Manifest) -> NodeSharing:
        """See `SharingSystem`: the configuration that the node's label names, else the default."""
        if self._section is None:
            return NodeSharing(slices_max=1)
        data = configs[_CONFIG].get("data") or {}
        labels = node["metadata"].get("labels") or {}
        content = load_yaml(data.get(labels.get(CONFIG_LABEL), data.get("default", ""))) or {}
        listed = ((content.get("sharing") or {}).get(self._section) or {}).get("resources") or ()
        replicas = next((int(entry["replicas"]) for entry in listed if entry["name"] == CARD_RESOURCE), 1)
        if self._section == "mps" and replicas > self.capabilities.slices_per_card_max:
            raise Refused(f"cannot share by MPS: {replicas} replicas, at most {self.capabilities.slices_per_card_max}")
        return NodeSharing(slices_max=replicas)

    def node(self, cards: Sequence[CardBook]) -> NodeWords:
        """See `SharingSystem`."""
        replicas = max((card.slices_max for card in cards), default=1)
        is_shared = replicas > 1
        strategy = self._strategy if is_shared else "none"
        labels = {**card_labels(cards), REPLICAS_LABEL: str(replicas), STRATEGY_LABEL: strategy}
        allocatable = {CARD_RESOURCE: str(0 if is_shared else len(cards))}
        if is_shared:
            allocatable[SHARED_RESOURCE] = str(replicas * len(cards))
        return NodeWords(labels=labels, allocatable=allocatable)


WHOLE_CARDS_SYSTEM = DevicePluginSystem(WHOLE_CARDS)
TIME_SLICING_SYSTEM = DevicePluginSystem(TIME_SLICING, "timeSlicing", "time-slicing")
MPS_SYSTEM = DevicePluginSystem(MPS, "mps", "mps")
