"""vgpu-manager as a simulated cluster plays it: its webhook, its scheduler extender and its device plugin.

The rules are those of coldzerofear/vgpu-manager 1.0.0: pkg/webhook/pod/mutate/pod_mutate.go (MutateCreate),
pkg/device/allocator (allocator.go, request.go, profile.go, priority.go) and pkg/scheduler/filter. Without a policy the
first node, and on it the first cards, are taken. NUMA nodes, link topology, gangs, units of framebuffer larger than a
MiB and the wish for a kind of memory are not simulated.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence

from enforcer.backends.vgpumanager import NODE_CONFIG, POLICY_ANNOTATION, SCHEDULER, VGPU_MANAGER_WORDS
from enforcer.dialect import WHOLE_CORE_PERCENT
from enforcer.manifest import Manifest
from enforcer.simulated.books import Allocation, CardBook, ContainerAsk, NodeBook, PodAsk
from enforcer.simulated.kin import KinSystem, amount, asked_mib, grant, grants_by_container, limits_of, registered
from enforcer.simulated.placing import Rules
from enforcer.simulated.system import NodeWords, is_limited
from fleet.capabilities.register import VGPU_MANAGER
from fleet.grammars.vgpumanager import REAL_ALLOCATED_ANNOTATION, REGISTER_ANNOTATION
from fleet.inventory import Priority

_WORDS = VGPU_MANAGER_WORDS
_MEANT_ANNOTATION = "nvidia.com/pre-allocated"
_NODE_ANNOTATION = "nvidia.com/predicate-node"
_PHASE_LABEL = "nvidia.com/assigned-phase"

_Amounts = tuple[float, float, float]
"""Slices, percent of cores, MiB."""


def _filled(container: Manifest) -> Manifest:
    limits = dict(limits_of(container))
    count, mib, cores = (amount(limits, name) for name in (_WORDS.count, _WORDS.framebuffer, _WORDS.cores))
    if not count and not mib and not cores:
        return container
    if not count:
        limits[_WORDS.count] = "1"
    if not mib and not cores:
        limits[_WORDS.cores] = str(WHOLE_CORE_PERCENT)
    return {**container, "resources": {**container["resources"], "limits": limits}}


def _misfit(pod: PodAsk, ask: ContainerAsk, card: CardBook) -> str | None:
    cores_left = WHOLE_CORE_PERCENT - card.used_cores
    misfits = (
        (card.slices >= card.slices_max, "Insufficient vGPU slots"),
        (asked_mib(ask, card) > card.framebuffer_mib - card.used_mib, "Insufficient vGPU memory"),
        (ask.core_percent > cores_left or cores_left <= 0, "Insufficient vGPU cores"),
        (not _is_named(card.card_model, pod.use_models, pod.avoid_models), "GPU type mismatch"),
        (not _is_named(card.card, pod.use_cards, pod.avoid_cards), "GPU UUID mismatch"),
    )
    return next((why for is_misfit, why in misfits if is_misfit), None)


def _is_named(name: str, use: Iterable[str], avoid: Iterable[str]) -> bool:
    """Words are parts of the name, whatever their case, and both lists count."""
    wanted = [word.upper() in name.upper() for word in use]
    return (not wanted or any(wanted)) and not any(word.upper() in name.upper() for word in avoid)


def _order(pod: PodAsk, order: list[CardBook]) -> list[CardBook]:
    tried = sorted(order, key=lambda card: card.card)
    policy = pod.card_policy.lower()
    if policy in ("binpack", "spread"):
        sign = 1 if policy == "binpack" else -1
        tried.sort(key=lambda card: sign * sum(left / size for left, size in zip(*_room([card]), strict=True)))
    return tried[::-1]


def _node_score(pod: PodAsk, node: NodeBook, cards: Sequence[CardBook]) -> float:
    """Binpack by how full a node would be afterwards, spread by how free it is.

    Slices, cores and framebuffer count by how much of them the pod asks for.
    """
    del node
    policy = pod.node_policy.lower()
    if policy not in ("binpack", "spread"):
        return 0.0
    slices, cores, mib = _need(pod, 0)
    weights = (slices, cores / WHOLE_CORE_PERCENT, max(math.ceil(mib / 1024), slices) if mib else slices)
    sizes = {card.framebuffer_mib for card in cards}
    need = _need(pod, max(sizes) if len(sizes) == 1 else 0) if policy == "binpack" else (0, 0, 0)
    free, total = _room(cards)
    left = [(have - part) / size for have, part, size in zip(free, need, total, strict=True)]
    score = sum(weight * part for weight, part in zip(weights, left, strict=True)) / sum(weights)
    return 1 - score if policy == "binpack" else score


def _need(pod: PodAsk, whole_mib: int) -> _Amounts:
    """What all containers ask for together; a card whole has so many MiB."""
    return (
        sum(ask.count for ask in pod.containers),
        sum(ask.count * ask.core_percent for ask in pod.containers),
        sum(ask.count * (ask.framebuffer_mib or whole_mib) for ask in pod.containers),
    )


def _room(cards: Sequence[CardBook]) -> tuple[_Amounts, _Amounts]:
    """What is left on cards together, and what they have."""
    free = (
        sum(max(0, card.slices_max - card.slices) for card in cards),
        sum(max(0, WHOLE_CORE_PERCENT - card.used_cores) for card in cards),
        sum(max(0, card.framebuffer_mib - card.used_mib) for card in cards),
    )
    total = (
        sum(card.slices_max for card in cards),
        WHOLE_CORE_PERCENT * len(cards),
        sum(card.framebuffer_mib for card in cards),
    )
    return free, total


_RULES = Rules(misfit=_misfit, order=_order, grant=grant, node_score=_node_score)


class VgpuManagerSystem(KinSystem):
    """vgpu-manager (a `SharingSystem`)."""

    rules = _RULES
    capabilities = VGPU_MANAGER
    words = _WORDS
    scheduler = SCHEDULER
    config = (NODE_CONFIG, "nodeConfig.json", "[]")
    entry_words = ("nodeName", "deviceMemoryScaling", "deviceSplitCount")
    wish_path = f'$.metadata.annotations."{POLICY_ANNOTATION}"'

    def mutate(self, pod: Manifest) -> Manifest:
        """See `SharingSystem`: counts and cores that are left out, and the scheduler."""
        spec = {**pod["spec"], "containers": [_filled(container) for container in pod["spec"]["containers"]]}
        is_asking = any(amount(limits_of(container), _WORDS.count) for container in spec["containers"])
        if is_asking and spec.get("schedulerName", "default-scheduler") == "default-scheduler":
            spec["schedulerName"] = SCHEDULER
        return {**pod, "spec": spec}

    def ask_of(self, pod: Manifest) -> PodAsk:
        """See `SharingSystem`."""
        asks = []
        for container in pod["spec"]["containers"]:
            limits = limits_of(container)
            count, mib, cores = (amount(limits, name) for name in (_WORDS.count, _WORDS.framebuffer, _WORDS.cores))
            if count:
                asks.append(
                    ContainerAsk(
                        container=container["name"],
                        count=count,
                        framebuffer_mib=mib or None,
                        core_percent=cores if cores or mib else WHOLE_CORE_PERCENT,
                    )
                )
        return self.pod_ask(pod, asks)

    def marks(self, pod: Manifest, allocations: Sequence[Allocation], cards: Sequence[CardBook]) -> Manifest:
        """See `SharingSystem`; the device plugin hands out what the scheduler meant."""
        number = {card.card: index for index, card in enumerate(cards)}
        parts = []
        for name, grants in grants_by_container(pod, allocations).items():
            ordered = sorted(grants, key=lambda grant: number[grant.card])
            devices = [f"{number[one.card]}_{one.card}_{one.core_percent}_{one.framebuffer_mib}" for one in ordered]
            parts += [f"{name}[{','.join(devices)}]"] if devices else []
        text = ";".join(parts)
        annotations = {
            _NODE_ANNOTATION: cards[0].node, _MEANT_ANNOTATION: text, REAL_ALLOCATED_ANNOTATION: text,
        }  # fmt: skip
        return {"annotations": annotations, "labels": {_PHASE_LABEL: "succeed"}}

    def held(self, wish: str | None, core_percent: int) -> tuple[bool, Priority | None]:
        """See `SharingSystem`: `fixed`, also where nothing is said, is a limit; `balance` lends what others leave."""
        return is_limited(core_percent) and wish in (None, "fixed"), None

    def kept_mib(self, granted_mib: int, scaling: float) -> float | None:
        """See `SharingSystem`: the part that is plain framebuffer; the rest is unified memory."""
        return granted_mib / scaling

    def node(self, cards: Sequence[CardBook]) -> NodeWords:
        """See `SharingSystem`."""
        entries = [
            {
                "id": one.index, "type": card.card_model, "uuid": one.card, "core": one.core_percent,
                "memory": one.framebuffer_mib, "number": one.slices_max, "numa": one.numa, "mig": False,
                "healthy": one.is_healthy,
            }
            for one, card in zip(registered(cards), cards, strict=True)
        ]  # fmt: skip
        return NodeWords(
            annotations={REGISTER_ANNOTATION: json.dumps(entries)},
            allocatable={_WORDS.count: str(sum(card.slices_max for card in cards))},
        )


VGPU_MANAGER_SYSTEM = VgpuManagerSystem()
