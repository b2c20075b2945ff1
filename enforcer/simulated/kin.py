"""What the systems of HAMi's kin have in common: pods ask by `Words`, name their card, and nodes register cards.

Pure. Called by `hami`, `volcano` and `vgpumanager`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from enforcer.dialect import WHOLE_CORE_PERCENT, ObjectKey
from enforcer.manifest import Manifest
from enforcer.resource_names import Words, listed_words
from enforcer.simulated.books import Allocation, CardBook, ContainerAsk, PodAsk
from enforcer.simulated.system import NodeSharing, SharingSystem, TenantWords, by_container, host_request, is_limited
from fleet.errors import Misconfigured, Refused
from fleet.grammars.hami import DeviceGrant, RegisteredDevice
from fleet.inventory import Grant, Priority
from fleet.units import MIB, parse_quantity

SCALING_MAX = 4.0
"""Largest oversubscription factor of framebuffer that a node takes."""

PRIORITY_TEXT = {Priority.HIGH: "0", Priority.LOW: "1"}
"""How HAMi-core's library calls the levels that are not normal."""

LEVELS = {text: level for level, text in PRIORITY_TEXT.items()}


class KinSystem(SharingSystem):
    """What sets one of the kin apart.

    Attributes:
        words: how its pods ask.
        scheduler: whom a tenant's pods name.
        config: its plugin's configuration of nodes: the ConfigMap, its field, and the field's text at first.
        entry_words: in an entry of that: the node's name, the factor of framebuffer, slices of a card.
    """

    words: Words
    scheduler: str
    config: tuple[ObjectKey, str, str]
    entry_words: tuple[str, str, str] = ("name", "devicememoryscaling", "devicesplitcount")
    names_cards = True

    def __init__(self) -> None:
        key, field, text = self.config
        self.configs = (config_map(key, {field: text}),)

    def tenant(self, grants: Sequence[Grant], models: Sequence[str]) -> TenantWords:
        """See `SharingSystem`.

        The schedulers look for the text inside a card's type, so "NVIDIA A10" alone would also mean "NVIDIA A100".
        """
        model: str = grants[0].card_model
        longer = [other for other in models if other != model and model.lower() in other.lower()]
        avoided = {str(self.words.avoid_model): ",".join(longer)} if longer else {}
        return TenantWords(
            annotations={str(self.words.use_model): model, **avoided},
            spec={"schedulerName": self.scheduler},
            containers={
                name: {"resources": {"limits": _limits(self.words, own)}} for name, own in by_container(grants).items()
            },
        )

    def pod_ask(self, pod: Manifest, containers: Sequence[ContainerAsk]) -> PodAsk:
        """What a pod asks for, with its choices of cards, models and policies."""
        annotations, words = pod["metadata"].get("annotations", {}), self.words
        cpu_cores, memory_bytes = host_request(pod)
        return PodAsk(
            containers=tuple(containers),
            use_cards=frozenset(listed_words(annotations.get(words.use_card))),
            avoid_cards=frozenset(listed_words(annotations.get(words.avoid_card))),
            use_models=listed_words(annotations.get(words.use_model)),
            avoid_models=listed_words(annotations.get(words.avoid_model)),
            node_policy=annotations.get(words.node_policy, ""),
            card_policy=annotations.get(words.card_policy, ""),
            cpu_cores=cpu_cores,
            memory_bytes=memory_bytes,
        )

    def sharing(self, configs: Mapping[ObjectKey, Manifest], node: Manifest) -> NodeSharing:
        """See `SharingSystem`."""
        key, field, text = self.config
        name_word, scaling_word, split_word = self.entry_words
        content = json.loads((configs[key].get("data") or {}).get(field) or text)
        entries: Iterable[Mapping[str, object]] = content["nodeconfig"] if isinstance(content, dict) else content
        entry = next((one for one in entries if one.get(name_word) == node["metadata"]["name"]), {})
        factor = float(str(entry.get(scaling_word, 1.0)))
        if not 0 < factor <= SCALING_MAX:
            raise Refused(f"cannot register the cards of a node: {scaling_word}={factor}, limit {SCALING_MAX}")
        slices_max = int(str(entry.get(split_word, self.capabilities.slices_per_card_max)))
        return NodeSharing(scaling=factor, slices_max=slices_max)


def limits_of(container: Manifest) -> Manifest:
    """What a container may use at most."""
    found: Manifest = container.get("resources", {}).get("limits", {})
    return found


def amount(limits: Manifest, name: str) -> int:
    """A limit as a whole number; 0 where there is none.

    Raises:
        Refused: it is no quantity.
    """
    if name not in limits:
        return 0
    try:
        return int(parse_quantity(str(limits[name])))
    except Misconfigured as exc:
        raise Refused(f"cannot admit a pod with {name}={limits[name]!r}: no quantity") from exc


def asked_mib(ask: ContainerAsk, card: CardBook) -> int:
    """Framebuffer that a container asks for on a card, MiB."""
    if ask.framebuffer_mib is not None:
        return ask.framebuffer_mib
    return card.framebuffer_mib * ask.framebuffer_percent // 100


def grant(ask: ContainerAsk, card: CardBook) -> Allocation:
    """What a container is granted on a card that fits."""
    mib = asked_mib(ask, card)
    return Allocation(container=ask.container, card=card.card, framebuffer_mib=mib, core_percent=ask.core_percent)


def grants_by_container(pod: Manifest, allocations: Sequence[Allocation]) -> dict[str, list[DeviceGrant]]:
    """What each container of a pod was granted, in the pod's order."""
    found: dict[str, list[DeviceGrant]] = {container["name"]: [] for container in pod["spec"]["containers"]}
    for part in allocations:
        found[part.container].append(
            DeviceGrant(
                card=part.card,
                device_type="NVIDIA",
                framebuffer_mib=part.framebuffer_mib,
                core_percent=min(part.core_percent, WHOLE_CORE_PERCENT),
            )
        )
    return found


def registered(cards: Iterable[CardBook], mode: str | None = "hami-core") -> list[RegisteredDevice]:
    """The cards of a node as its plugin registers them."""
    return [
        RegisteredDevice(
            card=card.card,
            slices_max=card.slices_max,
            framebuffer_mib=card.framebuffer_mib,
            core_percent=WHOLE_CORE_PERCENT,
            device_type=card.device_type,
            numa=0,
            is_healthy=True,
            index=number,
            mode=mode,
        )
        for number, card in enumerate(cards)
    ]


def config_map(key: ObjectKey, data: Mapping[str, str]) -> Manifest:
    """A ConfigMap of an installation."""
    return {"apiVersion": "v1", "kind": key[0], "metadata": {"namespace": key[1], "name": key[2]}, "data": dict(data)}


def _limits(words: Words, grants: Sequence[Grant]) -> dict[str, str]:
    first = grants[0]
    limits = {words.count: str(len({grant.card for grant in grants}))}
    if first.framebuffer_granted_bytes < first.framebuffer_bytes:
        limits[words.framebuffer] = str(max(1, first.framebuffer_granted_bytes // MIB))
    percent = round(first.compute_granted_ratio * 100)
    if is_limited(percent):
        limits[words.cores] = str(percent)
    if words.priority is not None and first.priority in PRIORITY_TEXT:
        limits[words.priority] = PRIORITY_TEXT[first.priority]
    return limits
