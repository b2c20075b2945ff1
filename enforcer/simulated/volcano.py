"""Volcano's vGPU as a simulated cluster plays it: its scheduler's plugin deviceshare, and its device plugin.

The rules are those of volcano-sh/volcano v1.16.0-alpha.1, pkg/scheduler/api/devices/nvidia/vgpu (device_info.go,
utils.go, hamicore.go), with `deviceshare.VGPUEnable` and no `deviceshare.SchedulePolicy`: a node's last card that fits
is taken. Of several nodes the one with most CPU and memory left is taken, by its plugin nodeorder. Gangs, queues, other
policies and modes are not simulated.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from enforcer.backends.volcano import NODE_CONFIG, SCHEDULER, VOLCANO_WORDS
from enforcer.dialect import WHOLE_CORE_PERCENT, ObjectKey
from enforcer.manifest import Manifest
from enforcer.simulated.books import Allocation, CardBook, ContainerAsk, PodAsk
from enforcer.simulated.kin import (
    LEVELS,
    PRIORITY_TEXT,
    KinSystem,
    amount,
    asked_mib,
    grant,
    grants_by_container,
    limits_of,
    registered,
)
from enforcer.simulated.placing import Rules, least_allocated
from enforcer.simulated.system import NodeSharing, NodeWords, TenantWords, is_limited
from fleet.capabilities.register import VOLCANO
from fleet.grammars.hami import PRIORITY_ENV, render_container_devices
from fleet.grammars.volcano import (
    CORES_RESOURCE,
    COUNT_RESOURCE,
    FRAMEBUFFER_RESOURCE,
    IDS_ANNOTATION,
    REGISTER_ANNOTATION,
)
from fleet.inventory import Grant, Priority

_NODE_ANNOTATION = "volcano.sh/vgpu-node"


def _misfit(pod: PodAsk, ask: ContainerAsk, card: CardBook) -> str | None:
    is_whole = ask.core_percent == WHOLE_CORE_PERCENT
    misfits = (
        (bool(pod.use_cards) and card.card not in pod.use_cards, "card is not in vgpu-use-gpuuuid"),
        (card.card in pod.avoid_cards, "card is in vgpu-nouse-gpuuuid"),
        (not _is_model(pod, card), "card is of another type"),
        (card.slices >= card.slices_max, f"card is split into {card.slices_max} slices already"),
        (card.framebuffer_mib - card.used_mib < asked_mib(ask, card), "card has too little framebuffer left"),
        (card.used_cores + ask.core_percent > WHOLE_CORE_PERCENT, "card has too few cores left"),
        (is_whole and card.slices > 0, "card is not free for an exclusive pod"),
        (not ask.core_percent and card.used_cores == WHOLE_CORE_PERCENT, "card is held exclusively"),
    )
    return next((why for is_misfit, why in misfits if is_misfit), None)


def _is_model(pod: PodAsk, card: CardBook) -> bool:
    """A choice of models wins over those to be avoided."""
    words = pod.use_models or pod.avoid_models
    has_any = any(word.upper() in card.device_type.upper() for word in words)
    return not words or has_any == bool(pod.use_models)


def _order(pod: PodAsk, order: list[CardBook]) -> list[CardBook]:
    del pod
    return order


_RULES = Rules(misfit=_misfit, order=_order, grant=grant, node_score=least_allocated)


class VolcanoSystem(KinSystem):
    """Volcano's vGPU (a `SharingSystem`)."""

    rules = _RULES
    capabilities = VOLCANO
    words = VOLCANO_WORDS
    scheduler = SCHEDULER
    config = (NODE_CONFIG, "config.json", json.dumps({"nodeconfig": []}))
    wish_path = "$.spec.containers[0].env"

    def tenant(self, grants: Sequence[Grant], models: Sequence[str]) -> TenantWords:
        """See `SharingSystem`; priority has no resource, so a tenant sets the library's variable."""
        words = super().tenant(grants, models)
        # With a choice of models its scheduler does not read which ones are to be avoided.
        annotations = {str(VOLCANO_WORDS.use_model): str(grants[0].card_model)}
        level = PRIORITY_TEXT.get(grants[0].priority)
        env = {} if level is None else {"env": [{"name": PRIORITY_ENV, "value": level}]}
        containers = {name: {**entry, **env} for name, entry in words.containers.items()}
        return replace(words, annotations=annotations, containers=containers)

    def ask_of(self, pod: Manifest) -> PodAsk:
        """See `SharingSystem`; a percentage and cores alone ask for nothing."""
        asks = [
            ContainerAsk(
                container=container["name"],
                count=amount(limits, COUNT_RESOURCE) if COUNT_RESOURCE in limits else 1,
                framebuffer_mib=amount(limits, FRAMEBUFFER_RESOURCE) or None,
                core_percent=amount(limits, CORES_RESOURCE),
            )
            for container in pod["spec"]["containers"]
            if (limits := limits_of(container)).keys() & {COUNT_RESOURCE, FRAMEBUFFER_RESOURCE}
        ]
        return self.pod_ask(pod, asks)

    def marks(self, pod: Manifest, allocations: Sequence[Allocation], cards: Sequence[CardBook]) -> Manifest:
        """See `SharingSystem`."""
        granted = grants_by_container(pod, allocations)
        asking = [part.container for part in self.ask_of(pod).containers]
        ids = ";".join(render_container_devices(granted[name]) for name in asking)
        return {"annotations": {_NODE_ANNOTATION: cards[0].node, IDS_ANNOTATION: ids}}

    def held(self, wish: str | None, core_percent: int) -> tuple[bool, Priority | None]:
        """See `SharingSystem`."""
        values = {str(entry.get("name")): str(entry.get("value")) for entry in json.loads(wish or "[]")}
        return is_limited(core_percent), LEVELS.get(values.get(PRIORITY_ENV, ""), Priority.NORMAL)

    def sharing(self, configs: Mapping[ObjectKey, Manifest], node: Manifest) -> NodeSharing:
        """See `SharingSystem`; its plugin reads `devicememoryscaling` and does not apply it to what it registers."""
        return replace(super().sharing(configs, node), scaling=1.0)

    def node(self, cards: Sequence[CardBook]) -> NodeWords:
        """See `SharingSystem`."""
        register = "".join(
            f"{one.card},{one.slices_max},{one.framebuffer_mib},{one.device_type},true,{one.mode}:"
            for one in registered(cards)
        )
        amounts = {
            COUNT_RESOURCE: sum(card.slices_max for card in cards),
            FRAMEBUFFER_RESOURCE: sum(card.framebuffer_mib for card in cards),
            CORES_RESOURCE: WHOLE_CORE_PERCENT * len(cards),
        }
        return NodeWords(
            annotations={REGISTER_ANNOTATION: register},
            allocatable={name: str(value) for name, value in amounts.items()},
        )


VOLCANO_SYSTEM = VolcanoSystem()
