"""KAI's own decisions about cards and shares of them, by its published rules: which node a pod gets, and which cards.

Pure, and written apart from everything that gputide ships. All of kai-scheduler/KAI-Scheduler at d5bc503 (v0.17), with
its default configuration; `kai_decisions.jsonl` holds what its scheduler decided, case by case. Queues, gangs and MIG
are left out, and so is what it does when nothing fits: it may move or evict pods that it may pre-empt. What
`NvFractions` of 0.18 adds (who is capped, on which nodes, which turns may meet on a card) is by its page alone: none of
its decisions was recorded.

KAI knows no card by its UUID. Pods that share one are of a group with a name of KAI's own, and the group's card is the
one that the kubelet gave the group's reservation pod.

Source: pkg/scheduler/api/node_info (node_info.go, gpu_sharing_node_info.go) where nothing else is named.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

SCHEDULER, RESERVATIONS = "kai-scheduler", "kai-resource-reservation"
WHOLE = "nvidia.com/gpu"
PORTION, FRAMEBUFFER = "gpu-fraction", "gpu-memory"
DEVICES = "gpu-fraction-num-devices"
GROUP = "runai-gpu-group"
RECEIVED, RESERVED_CARD = "received-resource-type", "run.ai/reserve_for_gpu_index"
NODE_FRAMEBUFFER = "nvidia.com/gpu.memory"

READY = "gpu-fractioning.nvidia.com/Ready"
_CONTAINER, _UNITS = "nvidia.com/container.", {"Mi": 1 << 20, "Gi": 1 << 30, "M": 10**6, "G": 10**9}

# pkg/scheduler/plugins/scores: a node with a shared card that fits, one where the pod fits now, and binpack.
_SHARED_SCORE, _FITS_SCORE, _BINPACK_SCORE = 10_000.0, 1_000.0, 9.0


class Unfit(Exception):
    """No node takes the pod now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a pod asks for: whole cards, or the same part of each of several, in MiB or as a portion.

    Attributes:
        container: the one that `NvFractions` caps; empty for none.
    """

    whole: int = 0
    devices: int = 1
    portion: float | None = None
    mib: int | None = None
    container: str = ""


@dataclass(slots=True, kw_only=True)
class Group:
    """Pods on one card: MiB of those that hold it, and of those of them that are about to go; mutable."""

    held: int = 0
    going: int = 0


@dataclass(slots=True, kw_only=True)
class Node:
    """A node and what is held on it; mutable."""

    name: str
    cards: int
    mib: int
    whole: int = 0
    whole_going: int = 0
    groups: dict[str, Group] = field(default_factory=dict)

    @property
    def idle(self) -> int:
        """Cards that no pod holds."""
        return self.cards - self.whole - len(self.groups)

    @property
    def going(self) -> int:
        """Cards of which every pod is about to go."""
        return self.whole_going + sum(group.held == group.going for group in self.groups.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a pod comes to: the node, and the groups that it joins; None for one that is new."""

    node: str
    groups: tuple[str | None, ...]


def card_mib(label: str) -> int:
    """getNodeGpuMemory: MiB of each card of a node by its label, floored to hundreds; 100 without a label."""
    return int(label) // 100 * 100 if label.isdigit() else 100


def asked_by_name(annotations: Mapping[str, str]) -> dict[str, tuple[int, int]]:
    """docs/gpu-sharing/nv-fraction: request and limit of containers in MiB; one alone stands for both."""
    found: dict[str, dict[str, int]] = {}
    for key, value in annotations.items():
        head, _, bound = key.rpartition(".gpu-memory.")
        if head.startswith(_CONTAINER) and bound in ("request", "limit"):
            unit = next((unit for unit in _UNITS if value.endswith(unit)), "")
            mib = int(value.removesuffix(unit)) * _UNITS.get(unit, 1) >> 20
            found.setdefault(head.removeprefix(_CONTAINER), {})[bound] = mib
    return {
        name: (bounds.get("request", bounds.get("limit", 0)), bounds.get("limit", bounds.get("request", 0)))
        for name, bounds in found.items()
    }


def devices_key(container: str) -> str:
    """Annotation by which the scheduler says which cards a container sees; nobody else may write it."""
    return f"{_CONTAINER}{container}.gpus.devices"


def mode(pod: Mapping[str, Any]) -> str:
    """How a pod's share takes turns with others on a card."""
    annotations = pod["metadata"].get("annotations", {})
    return next((value for key, value in annotations.items() if key.endswith(".gpu-compute.mode")), "time-slicing")


def mib_of(ask: Ask, node: Node) -> int:
    """GetResourceGpuMemory: MiB of each card."""
    return ask.mib if ask.mib else int((ask.portion or 1.0) * node.mib)


def book(node: Node, ask: Ask, groups: Collection[str], *, is_going: bool = False) -> None:
    """Book a pod that holds something (addTaskResources)."""
    if ask.whole:
        node.whole += ask.whole
        node.whole_going += ask.whole if is_going else 0
    for name in groups:
        group = node.groups.setdefault(name, Group())
        group.held += mib_of(ask, node)
        group.going += mib_of(ask, node) if is_going else 0


def place(ask: Ask, nodes: Sequence[Node], allowed: Collection[str]) -> Place:
    """pkg/scheduler/actions/common/allocate.go (allocateTask): the first node in the order of scores that takes a pod.

    Args:
        nodes: all; binpack compares each with the emptiest and the fullest.
        allowed: nodes that the pod's selectors and affinities let it go to.

    Raises:
        Unfit: no node does, or the first that does waits for pods to go.
    """
    for node in sorted(nodes, key=lambda node: (-score(ask, node, nodes), node.name)):
        if node.name not in allowed or not _fits(ask, node, node.idle + node.going):
            continue
        if ask.whole:
            if _fits(ask, node, node.idle):
                return Place(node=node.name, groups=())
            raise Unfit(f"waits for pods of {node.name} to go")
        chosen = _cards(ask, node)
        if chosen is not None:
            return Place(node=node.name, groups=chosen)
    raise Unfit("no node has room")


def score(ask: Ask, node: Node, nodes: Sequence[Node]) -> float:
    """pkg/scheduler/plugins/gpusharingorder, nodeavailability and nodeplacement, by which nodes are ordered."""
    shared = _SHARED_SCORE if any(_joins(ask, node, group) for group in node.groups.values()) else 0.0
    now = _FITS_SCORE if _fits(ask, node, node.idle) else 0.0
    free = [one.idle + one.going for one in nodes if one.cards]
    if not node.cards or not max(free, default=0):
        return shared + now
    if min(free) == max(free):
        return shared + now + _BINPACK_SCORE
    part = (node.idle + node.going - min(free)) / (max(free) - min(free))
    return shared + now + _BINPACK_SCORE * (1 - part)


def _fits(ask: Ask, node: Node, free: int) -> bool:
    """isTaskAllocatableOnNonAllocatedResources: whole cards that are free and shared ones together are enough."""
    if ask.whole:
        return ask.whole <= free
    portion = math.ceil(ask.mib / node.mib * 100) / 100 if ask.mib else ask.portion or 1.0
    if portion > 1 and portion != int(portion):
        return False
    return free + sum(_joins(ask, node, group) for group in node.groups.values()) >= ask.devices


def _joins(ask: Ask, node: Node, group: Group) -> bool:
    """IsTaskFitOnGpuGroup: what goes counts as free, but no pod joins a card that everybody leaves."""
    return node.mib - group.held + group.going - mib_of(ask, node) >= 0 and group.held != group.going


def _cards(ask: Ask, node: Node) -> tuple[str | None, ...] | None:
    """pkg/scheduler/gpu_sharing (GetNodePreferableGpuForSharing): the fullest that fit, then new ones.

    Raises:
        Unfit: one of the chosen is there only once a pod has gone.
    """
    mib = mib_of(ask, node)
    fitting = [name for name, group in node.groups.items() if _joins(ask, node, group)]
    # pkg/scheduler/plugins/gpupack: by what is used; of cards that are alike KAI takes any.
    fitting.sort(key=lambda name: (-node.groups[name].held, name))
    chosen: list[str | None] = [*fitting, *[None] * (node.idle + node.going)][: ask.devices]
    if len(chosen) < ask.devices:
        return None
    held = [node.groups[name].held for name in chosen if name is not None]
    if any(node.mib - one - mib < 0 for one in held) or not _fits(ask, node, node.idle):
        raise Unfit(f"waits for pods of {node.name} to go")
    return tuple(chosen)
