"""KAI as a simulated cluster plays it: fractions of cards by an annotation, which card is its scheduler's choice.

The rules are those of kai-scheduler/KAI-Scheduler v0.17 with its default configuration: pkg/scheduler/api/node_info
(node_info.go, gpu_sharing_node_info.go), pkg/scheduler/plugins/gpusharingorder, nodeavailability, nodeplacement and
gpupack, pkg/scheduler/gpu_sharing. A node with a shared card that fits comes first, then binpack by free cards; on it
the fullest card that fits. Queues, gangs, eviction, MIG, and the reservation pods that hold shared cards are not
simulated.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

from enforcer.backends.device_plugin import CARD_RESOURCE, devices_of
from enforcer.backends.kai import QUEUE_LABEL, SCHEDULER
from enforcer.dialect import WHOLE_CORE_PERCENT
from enforcer.manifest import Manifest
from enforcer.simulated.books import Allocation, CardBook, ContainerAsk, NodeBook, PodAsk, Unplaced
from enforcer.simulated.device_plugin import card_labels, card_limits, model_selector
from enforcer.simulated.placing import host_fits
from enforcer.simulated.system import NodeWords, SharingSystem, TenantWords, by_container, host_request
from fleet.capabilities.register import KAI
from fleet.errors import Corrupt
from fleet.grammars.kai import (
    CARDS_ANNOTATION,
    CONTAINER_ANNOTATION,
    FRAMEBUFFER_ANNOTATION,
    GROUP_LABEL,
    GROUP_LABEL_PREFIX,
    parse_kai_share,
)
from fleet.inventory import Grant
from fleet.units import MIB

_RECEIVED = "received-resource-type"
_STEP_MIB = KAI.card_step_bytes // MIB

# pkg/scheduler/plugins/scores: a node with a shared card that fits, one where the pod fits now, and binpack.
_SHARED_SCORE, _FITS_SCORE, _BINPACK_SCORE = 10_000.0, 1_000.0, 9.0


class KaiSystem(SharingSystem):
    """KAI without its add-on for isolation (a `SharingSystem`)."""

    capabilities = KAI

    def tenant(self, grants: Sequence[Grant], models: Sequence[str]) -> TenantWords:
        """See `SharingSystem`; a team's queue is called as its namespace."""
        del models
        first = grants[0]
        spec = {"schedulerName": SCHEDULER, **model_selector(first)}
        labels = {QUEUE_LABEL: first.namespace}
        containers = by_container(grants)
        if first.framebuffer_granted_bytes >= first.framebuffer_bytes:
            limits = {name: {"resources": {"limits": card_limits(own)}} for name, own in containers.items()}
            return TenantWords(labels=labels, spec=spec, containers=limits)
        cards = len({grant.card for grant in grants})
        annotations = {
            FRAMEBUFFER_ANNOTATION: str(max(1, first.framebuffer_granted_bytes // MIB)),
            CONTAINER_ANNOTATION: first.container,
            **({CARDS_ANNOTATION: str(cards)} if cards > 1 else {}),
        }
        # One container of a pod shares cards; KAI asks the plugin for it.
        bare: dict[str, Manifest] = {name: {"resources": {}} for name in containers}
        return TenantWords(annotations=annotations, labels=labels, spec=spec, containers=bare)

    def ask_of(self, pod: Manifest) -> PodAsk:
        """See `SharingSystem`; a share that can't be read asks for nothing."""
        metadata, containers = pod["metadata"], pod["spec"]["containers"]
        cpu_cores, memory_bytes = host_request(pod)
        try:
            share = parse_kai_share(metadata.get("annotations", {}), metadata.get("labels", {}))
        except Corrupt:
            return PodAsk(containers=(), cpu_cores=cpu_cores, memory_bytes=memory_bytes)
        if share is None:
            asks = [
                ContainerAsk(container=one["name"], count=count, framebuffer_mib=None, resource=CARD_RESOURCE)
                for one in containers
                if (count := devices_of(one).get(CARD_RESOURCE, 0))
            ]
        else:
            asks = [
                ContainerAsk(
                    container=share.container or containers[0]["name"],
                    count=share.cards,
                    framebuffer_mib=share.framebuffer_mib,
                    framebuffer_percent=round(100 * (share.ratio or 1.0)),
                )
            ]
        return PodAsk(containers=tuple(asks), cpu_cores=cpu_cores, memory_bytes=memory_bytes)

    def place(
        self,
        ask: PodAsk,
        cards: Iterable[CardBook],
        nodes: dict[str, NodeBook],
        closed: Collection[str] = (),
        allowed: Collection[str] | None = None,
    ) -> tuple[Allocation, ...] | Unplaced:
        """See `SharingSystem`; binpack compares a node with all others, also those where the pod may not go."""
        del closed
        by_node: dict[str, list[CardBook]] = {}
        for card in cards:
            by_node.setdefault(card.node, []).append(card)
        idle = [sum(not card.slices for card in own) for own in by_node.values()]
        order = sorted(by_node, key=lambda name: (-_score(ask, by_node[name], idle), name))
        for name in order:
            if (allowed is None or name in allowed) and host_fits(ask, nodes[name]) and _fits(ask, by_node[name]):
                return _taken(ask, by_node[name])
        return Unplaced(reason="no card fits: no node has room")

    def marks(self, pod: Manifest, allocations: Sequence[Allocation], cards: Sequence[CardBook]) -> Manifest:
        """See `SharingSystem`; a group is called as its card, where KAI draws a name."""
        del pod, cards
        if all(part.core_percent == WHOLE_CORE_PERCENT for part in allocations):
            return {"annotations": {_RECEIVED: "Regular"}}
        groups = [part.card.removeprefix("GPU-") for part in allocations]
        labels = {GROUP_LABEL: groups[0]}
        if len(groups) > 1:
            labels = {f"{GROUP_LABEL_PREFIX}{group}": group for group in groups}
        return {"annotations": {_RECEIVED: "Fraction"}, "labels": labels}

    def node(self, cards: Sequence[CardBook]) -> NodeWords:
        """See `SharingSystem`."""
        return NodeWords(labels=card_labels(cards), allocatable={CARD_RESOURCE: str(len(cards))})


def _node_mib(cards: Sequence[CardBook]) -> int:
    """MiB of each card of a node, floored to hundreds; 100 where there is less (getNodeGpuMemory)."""
    return max(1, cards[0].framebuffer_mib // _STEP_MIB) * _STEP_MIB


def _mib(part: ContainerAsk, cards: Sequence[CardBook]) -> int:
    return part.framebuffer_mib or int(part.framebuffer_percent / 100 * _node_mib(cards))


def _joins(part: ContainerAsk, cards: Sequence[CardBook]) -> list[CardBook]:
    """Shared cards of a node that have room for a share, the fullest first; of those alike KAI takes any."""
    room = _node_mib(cards) - _mib(part, cards)
    found = [card for card in cards if card.slices > 0 and not card.used_cores and card.used_mib <= room]
    return sorted(found, key=lambda card: (-card.used_mib, card.card))


def _is_whole(ask: PodAsk) -> bool:
    return ask.containers[0].resource == CARD_RESOURCE


def _fits(ask: PodAsk, cards: Sequence[CardBook]) -> bool:
    idle = sum(not card.slices for card in cards)
    if _is_whole(ask):
        return sum(part.count for part in ask.containers) <= idle
    part = ask.containers[0]
    portion = math.ceil((part.framebuffer_mib or 0) / _node_mib(cards) * 100) / 100
    if portion > 1 and portion != int(portion):
        return False
    return idle + len(_joins(part, cards)) >= part.count


def _score(ask: PodAsk, cards: Sequence[CardBook], idle_of_nodes: Sequence[int]) -> float:
    shared = _SHARED_SCORE if not _is_whole(ask) and _joins(ask.containers[0], cards) else 0.0
    now = _FITS_SCORE if _fits(ask, cards) else 0.0
    least, most = min(idle_of_nodes), max(idle_of_nodes)
    idle = sum(not card.slices for card in cards)
    part = 0.0 if least == most else (idle - least) / (most - least)
    return shared + now + (_BINPACK_SCORE * (1 - part) if most else 0.0)


def _taken(ask: PodAsk, cards: Sequence[CardBook]) -> tuple[Allocation, ...]:
    """Cards of a node where a pod fits: shared ones first, then those that the kubelet has, the first of them."""
    idle = [card for card in cards if not card.slices]
    if not _is_whole(ask):
        part = ask.containers[0]
        chosen, mib = [*_joins(part, cards), *idle][: part.count], _mib(part, cards)
        return tuple(
            Allocation(container=part.container, card=card.card, framebuffer_mib=mib, core_percent=0) for card in chosen
        )
    parts = [part.container for part in ask.containers for _ in range(part.count)]
    return tuple(
        Allocation(
            container=container, card=card.card, framebuffer_mib=card.framebuffer_mib, core_percent=WHOLE_CORE_PERCENT
        )
        for container, card in zip(parts, idle, strict=False)
    )


KAI_SYSTEM = KaiSystem()
