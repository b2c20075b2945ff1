"""vgpu-manager's own decisions, by its published rules: what its webhook fills in, and which cards it takes.

Pure, and written apart from everything that gputide ships. All of coldzerofear/vgpu-manager 1.0.0 (94f5c7e), scheduler
extender and webhook with their defaults; `vgpu_manager_decisions.jsonl` holds what its filter decided, case by case.
Link topology, gangs and its pre-emption are left out.

Source: pkg/device/allocator (allocator.go, request.go, profile.go, priority.go) where nothing else is named.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

Manifest = dict[str, Any]

SCHEDULER = "vgpu-scheduler"
COUNT, FRAMEBUFFER, CORES = "nvidia.com/vgpu-number", "nvidia.com/vgpu-memory", "nvidia.com/vgpu-cores"
REGISTER, CONFIG = "nvidia.com/node-device-register", "nvidia.com/node-config-info"
PRE_ALLOCATED, REAL_ALLOCATED = "nvidia.com/pre-allocated", "nvidia.com/real-allocated"
PREDICATE_NODE, PHASE = "nvidia.com/predicate-node", "nvidia.com/assigned-phase"
NODE_POLICY, CARD_POLICY = "nvidia.com/node-scheduler-policy", "nvidia.com/device-scheduler-policy"
MEMORY_POLICY, TOPOLOGY = "nvidia.com/memory-scheduler-policy", "nvidia.com/device-topology-mode"
_INCLUDE_CARD, _EXCLUDE_CARD = "nvidia.com/include-gpu-uuid", "nvidia.com/exclude-gpu-uuid"
_INCLUDE_TYPE, _EXCLUDE_TYPE = "nvidia.com/include-gpu-type", "nvidia.com/exclude-gpu-type"

# pkg/scheduler/reason/reason.go
_UNHEALTHY, _MIG = "GPU unhealthy", "GPU has MIG enabled"
_SLOTS, _MEMORY, _CORES = "Insufficient vGPU slots", "Insufficient vGPU memory", "Insufficient vGPU cores"
_TYPE, _UUID = "GPU type mismatch", "GPU UUID mismatch"
_ELSEWHERE = "pod already scheduled to another node"


class Unfit(Exception):
    """The whole question is answered with an error."""


@dataclass(slots=True, kw_only=True)
class Card:
    """One card as its node registers it, and what is granted on it; mutable."""

    card: str
    index: int
    slices_max: int
    core_max: int
    mib: int
    device_type: str
    numa: int
    is_mig: bool
    is_healthy: bool
    slices: int = 0
    cores: int = 0
    used_mib: int = 0

    @property
    def is_usable(self) -> bool:
        """Whether it counts at all."""
        return self.is_healthy and not self.is_mig

    @property
    def free(self) -> tuple[int, int, int]:
        """Slices, cores and MiB that are left."""
        left = self.slices_max - self.slices, self.core_max - self.cores, self.mib - self.used_mib
        return max(0, left[0]), max(0, left[1]), max(0, left[2])

    def take(self, cores: int, mib: int) -> None:
        """Book a grant."""
        self.slices += 1
        self.cores += cores
        self.used_mib += mib


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What one container asks for: cards, and of each one percent of the cores and MiB; 0 for all of it."""

    container: str
    count: int
    cores: int
    mib: int
    is_init: bool = False


@dataclass(slots=True, kw_only=True)
class Node:
    """A node, its cards and the unit in which it counts MiB; mutable."""

    name: str
    cards: list[Card]
    factor: int = 1
    refusal: str | None = None
    usable: list[Card] = field(init=False)

    def __post_init__(self) -> None:
        self.usable = [card for card in self.cards if card.is_usable]

    @property
    def is_uniform(self) -> bool:
        """Whether all its cards are of one size."""
        return len({card.mib for card in self.usable}) <= 1

    @property
    def card_mib_max(self) -> int:
        """MiB of its largest card."""
        return max((card.mib for card in self.usable), default=0)


def admit(pod: Manifest) -> Manifest:
    """pkg/webhook/pod/mutate/pod_mutate.go (MutateCreate): counts and cores that are left out, and its scheduler."""
    made = deepcopy(pod)
    is_asking = False
    for container in (*made["spec"].get("initContainers", ()), *made["spec"]["containers"]):
        limits = container.get("resources", {}).get("limits", {})
        amounts = {name: int(limits.get(name, 0)) for name in (COUNT, CORES, FRAMEBUFFER)}
        if not amounts[COUNT] and (amounts[CORES] or amounts[FRAMEBUFFER]):
            limits[COUNT], amounts[COUNT] = "1", 1
        if amounts[COUNT] and not amounts[CORES] and not amounts[FRAMEBUFFER]:
            limits[CORES] = "100"
        is_asking |= amounts[COUNT] > 0
    if is_asking and made["spec"].get("schedulerName", "default-scheduler") == "default-scheduler":
        made["spec"]["schedulerName"] = SCHEDULER
    return made


def read_node(name: str, annotations: Mapping[str, str], offered: int, memory_policy: str = "") -> Node:
    """pkg/scheduler/filter/filter_predicate.go (CheckNode): a node by what its device plugin wrote on it.

    Args:
        offered: vgpu-number that it has to give.
        memory_policy: annotation of the pod that asks.
    """
    node = Node(name=name, cards=[])
    if not offered:
        node.refusal = "node not vGPU-enabled"
    elif not annotations.get(REGISTER):
        node.refusal = "node has no vGPU registered"
    elif not annotations.get(CONFIG):
        node.refusal = "node has no vGPU configuration"
    if node.refusal is not None:
        return node
    config = json.loads(annotations[CONFIG])
    if config["deviceSplit"] <= 0:
        node.refusal = "node not vGPU-enabled"
    elif config["memoryFactor"] <= 0:
        node.refusal = "node memory factor invalid"
    elif _wants_other_memory(memory_policy.strip().lower(), config["memoryScaling"]):
        node.refusal = "node memory type mismatch"
    entries = sorted(json.loads(annotations[REGISTER]), key=lambda entry: int(entry["id"]))
    cards = [
        Card(
            card=entry["uuid"], index=entry["id"], slices_max=entry["number"], core_max=entry["core"],
            mib=entry["memory"], device_type=entry["type"], numa=entry["numa"], is_mig=entry["mig"],
            is_healthy=entry["healthy"],
        )
        for entry in entries
    ]  # fmt: skip
    return Node(name=name, cards=cards, factor=config["memoryFactor"], refusal=node.refusal)


def book(node: Node, annotations: Mapping[str, str]) -> None:
    """pkg/device/types.go (AddPodUsedResources): what a pod holds, as handed out where all its containers were."""
    real, meant = _grants(annotations.get(REAL_ALLOCATED, "")), _grants(annotations.get(PRE_ALLOCATED, ""))
    by_uuid = {card.card: card for card in node.cards}
    for _, grants in real if len(real) >= len(meant) else meant:
        for card, cores, mib in grants:
            if card in by_uuid:
                by_uuid[card].take(cores, mib)


def asks_of(pod: Manifest) -> list[Ask]:
    """BuildAllocationRequest: one per container that asks for cards, those of init containers first."""
    asks = []
    for key, is_init in (("initContainers", True), ("containers", False)):
        for container in pod["spec"].get(key, ()):
            limits = container.get("resources", {}).get("limits", {})
            count, cores, mib = (int(limits.get(name, 0)) for name in (COUNT, CORES, FRAMEBUFFER))
            if count:
                asks.append(Ask(container=container["name"], count=count, cores=cores, mib=mib, is_init=is_init))
    return asks


def place(pod: Manifest, nodes: Sequence[Node]) -> tuple[str | None, str, dict[str, str]]:
    """pkg/scheduler/filter/filter_predicate.go (deviceFilter): node, text of `nvidia.com/pre-allocated`, refusals.

    Args:
        nodes: those that the scheduler offers, in its order, which are left as they are.

    Raises:
        Unfit: a container asks for more than any card has.
    """
    asks, annotations = asks_of(pod), pod["metadata"].get("annotations") or {}
    failed = {node.name: node.refusal for node in nodes if node.refusal is not None}
    if len(failed) < len(nodes):
        for ask in asks:
            if ask.cores > 100:
                raise Unfit(f"container {ask.container} requests vGPU core exceeding limit")
    fitting = []
    for node in (one for one in nodes if one.refusal is None):
        refusal = _lacks(asks, node, annotations)
        if refusal is None:
            fitting.append(node)
        else:
            failed[node.name] = refusal
    chosen, text = None, ""
    for node in _ordered(fitting, asks, annotations):
        if chosen is not None:
            failed[node.name] = _ELSEWHERE
            continue
        found = _allocate(asks, deepcopy(node), annotations)
        if isinstance(found, _Refused):
            failed[node.name] = found.reason
        else:
            chosen, text = node.name, found
    return chosen, text, failed


@dataclass(frozen=True, slots=True)
class _Refused:
    reason: str


def _resolved(ask: Ask, node: Node) -> tuple[int, int]:
    """resolveContainerNeeds: cores and MiB of each card; without both, a whole card with all its cores."""
    cores, mib = ask.cores, ask.mib * node.factor
    if not cores and not mib:
        cores = 100
    return cores, mib or (node.card_mib_max if node.is_uniform else 0)


def _peak(asks: Sequence[Ask], node: Node) -> tuple[int, int, int]:
    """ResetStatistics: slices, cores and MiB of all containers at once, or of the largest init container."""
    peaks = {True: [0, 0, 0], False: [0, 0, 0]}
    for ask in asks:
        cores, mib = _resolved(ask, node)
        need = (ask.count, cores * ask.count, mib * ask.count)
        for place_, amount in enumerate(need):
            own = peaks[ask.is_init]
            own[place_] = max(own[place_], amount) if ask.is_init else own[place_] + amount
    slices, cores, mib = (max(pair) for pair in zip(peaks[True], peaks[False], strict=True))
    return slices, cores, mib


def _lacks(asks: Sequence[Ask], node: Node, annotations: Mapping[str, str]) -> str | None:
    """pkg/scheduler/filter/filter_predicate.go (preFilterNodeInfos): why a node is not looked at any closer."""
    needs = [_resolved(ask, node) for ask in asks]
    count = max(ask.count for ask in asks)
    free = [sum(part) for part in zip(*(card.free for card in node.usable), strict=True)] or [0, 0, 0]
    slices, cores, mib = _peak(asks, node)
    allowed = [card for card in node.cards if _is_allowed(card, annotations)]
    by_card = _INCLUDE_CARD in annotations or _EXCLUDE_CARD in annotations
    found = (
        (count > len(node.usable), "Insufficient GPU cards"),
        (max(need[0] for need in needs) > max((card.core_max for card in node.usable), default=0), _CORES),
        (max(need[1] for need in needs) > node.card_mib_max, _MEMORY),
        (slices > free[0], "Insufficient GPU resources"),
        (cores > free[1], _CORES),
        (mib > free[2], _MEMORY),
        (len(allowed) < count, _UUID if by_card else _TYPE),
    )
    return next((reason for is_lacking, reason in found if is_lacking), None)


def _ordered(nodes: Sequence[Node], asks: Sequence[Ask], annotations: Mapping[str, str]) -> list[Node]:
    """sortNodeInfos; without a policy the order of the scheduler's question stays."""
    policy = annotations.get(NODE_POLICY, "").lower()
    fitness = (
        {node.name: _numa_fitness(node, max(ask.count for ask in asks)) for node in nodes}
        if annotations.get(TOPOLOGY, "").lower().startswith("numa")
        else dict.fromkeys((node.name for node in nodes), 0)
    )
    if policy not in ("binpack", "spread"):
        return sorted(nodes, key=lambda node: -fitness[node.name])
    return sorted(nodes, key=lambda node: (-fitness[node.name], -_node_score(node, asks, policy), node.name))


def _numa_fitness(node: Node, count: int) -> int:
    groups = Counter(card.numa for card in node.usable if card.numa >= 0)
    return 0 if not groups else 2 if max(groups.values()) >= count else 1


def _node_score(node: Node, asks: Sequence[Ask], policy: str) -> float:
    """Score: binpack by how full a node would be afterwards, spread by how free it is now."""
    weights = _weights(asks)
    need = _peak(asks, node) if policy == "binpack" else (0, 0, 0)
    score = 0.0
    for weight, left, all_, part in zip(
        weights,
        (sum(card.free[place_] for card in node.usable) for place_ in range(3)),
        (sum(card.slices_max for card in node.usable), sum(card.core_max for card in node.usable),
         sum(card.mib for card in node.usable)),
        need,
        strict=True,
    ):  # fmt: skip
        used = 1 - ((left - part) / all_ if all_ else 0.0)
        score += weight * (used if policy == "binpack" else 1 - used)
    return score * 100


def _weights(asks: Sequence[Ask]) -> tuple[float, float, float]:
    """NewRequestProfile: how much slices, cores and framebuffer count, by what the pod asks for on any node."""
    slices, cores, mib = _peak(asks, Node(name="", cards=[], factor=1))
    parts = float(slices), cores / 100, float(max(math.ceil(mib / 1024), slices)) if mib else float(slices)
    return parts[0] / sum(parts), parts[1] / sum(parts), parts[2] / sum(parts)


def _allocate(asks: Sequence[Ask], node: Node, annotations: Mapping[str, str]) -> str | _Refused:
    """Allocate: containers in their order; init containers find the cards of the others free, and prefer them."""
    before = {card.card: (card.slices, card.cores, card.used_mib) for card in node.cards}
    grants: dict[str, str] = {}
    preferred: set[str] = set()
    for ask in (one for one in asks if not one.is_init):
        found = _cards(ask, node, annotations, None)
        if isinstance(found, _Refused):
            return found
        for card, cores, mib in found:
            card.take(cores, mib)
            preferred.add(card.card)
        grants[ask.container] = _text(ask, found)
    for card in node.cards:
        card.slices, card.cores, card.used_mib = before[card.card]
    for ask in (one for one in asks if one.is_init):
        found = _cards(ask, node, annotations, preferred) if preferred else _Refused("")
        if isinstance(found, _Refused):
            found = _cards(ask, node, annotations, None)
        if isinstance(found, _Refused):
            return found
        grants[ask.container] = _text(ask, found)
    return ";".join(grants[ask.container] for ask in asks)


def _cards(
    ask: Ask, node: Node, annotations: Mapping[str, str], only: set[str] | None
) -> list[tuple[Card, int, int]] | _Refused:
    """allocateOne: the cards of one container, with cores and MiB."""
    cores, mib = _resolved(ask, node)
    counts: Counter[str] = Counter()
    fitting = []
    for card in node.cards:
        if only is None or card.card in only:
            refusal = _refusal(card, cores, mib or card.mib, annotations)
            if refusal is None:
                fitting.append(card)
            else:
                counts[refusal] += 1
    if ask.count > len(fitting):
        return _Refused(_dominant(counts))
    policy, mode = annotations.get(CARD_POLICY, "").lower(), annotations.get(TOPOLOGY, "").lower()
    if policy in ("binpack", "spread"):
        sign = 1 if policy == "binpack" else -1
        fitting.sort(key=lambda card: (sign * _freedom(card), card.index))
    else:
        fitting.sort(key=lambda card: (card.numa < 0, max(card.numa, 0), card.index))
    if mode.startswith("numa"):
        together = _on_one_numa(fitting, ask.count, policy)
        if together is None and mode.endswith("strict"):
            return _Refused("NUMA topology unsatisfied")
        fitting = together or fitting
    chosen = sorted(fitting[: ask.count], key=lambda card: card.index)
    return [(card, cores, mib or card.mib) for card in chosen]


def _on_one_numa(cards: Sequence[Card], count: int, policy: str) -> list[Card] | None:
    """allocateNUMA: the first NUMA node with enough cards; by a policy the fullest or the emptiest of them."""
    groups: dict[int, list[Card]] = {}
    for card in cards:
        if card.numa >= 0:
            groups.setdefault(card.numa, []).append(card)
    sign = {"binpack": 1, "spread": -1}.get(policy, 0)
    order = sorted(groups, key=lambda numa: (sign * sum(map(_freedom, groups[numa])) / len(groups[numa]), numa))
    return next((groups[numa] for numa in order if len(groups[numa]) >= count), None)


def _refusal(card: Card, cores: int, mib: int, annotations: Mapping[str, str]) -> str | None:
    """filterDevices. A card whose cores are all granted takes no pod, also none that asks for no cores."""
    slices, core_left, mib_left = card.free
    found = (
        (not card.is_healthy, _UNHEALTHY),
        (card.is_mig, _MIG),
        (not slices, _SLOTS),
        (mib > mib_left, _MEMORY),
        (cores > core_left or not core_left, _CORES),
        (not _is_named(card.device_type, annotations, _INCLUDE_TYPE, _EXCLUDE_TYPE), _TYPE),
        (not _is_named(card.card, annotations, _INCLUDE_CARD, _EXCLUDE_CARD), _UUID),
    )
    return next((reason for is_refused, reason in found if is_refused), None)


def _dominant(counts: Counter[str]) -> str:
    """pkg/scheduler/reason (FromCounts): the most frequent reason; of several the first by the name of its code."""
    if not counts:
        return "Insufficient GPU resources"
    order = (_MIG, _TYPE, _UUID, _UNHEALTHY, _CORES, _MEMORY, _SLOTS)
    return min(counts, key=lambda reason: (-counts[reason], order.index(reason)))


def _freedom(card: Card) -> float:
    """pkg/device/types.go (Score): how free a card is, by slices, framebuffer and cores alike."""
    sizes = card.slices_max, card.core_max, card.mib
    return sum(left / size if size else 0.0 for left, size in zip(card.free, sizes, strict=True)) / 3


def _is_allowed(card: Card, annotations: Mapping[str, str]) -> bool:
    return _is_named(card.card, annotations, _INCLUDE_CARD, _EXCLUDE_CARD) and _is_named(
        card.device_type, annotations, _INCLUDE_TYPE, _EXCLUDE_TYPE
    )


def _is_named(text: str, annotations: Mapping[str, str], include: str, exclude: str) -> bool:
    """pkg/util/util.go (CheckDeviceUuid, CheckDeviceType): words are parts of the name, and both lists count."""
    for name, is_wanted in ((include, True), (exclude, False)):
        words = [word.strip() for word in annotations.get(name, "").upper().split(",") if word.strip()]
        if words and any(word in text.strip().upper() for word in words) != is_wanted:
            return False
    return True


def _wants_other_memory(policy: str, scaling: float) -> bool:
    """GetMemoryPolicyFunc: unified memory on scaled nodes alone, or framebuffer on all others."""
    return (policy.startswith("virt") and scaling <= 1) or (policy.startswith("phy") and scaling > 1)


def _text(ask: Ask, found: Sequence[tuple[Card, int, int]]) -> str:
    return f"{ask.container}[{','.join(f'{card.index}_{card.card}_{cores}_{mib}' for card, cores, mib in found)}]"


def _grants(text: str) -> list[tuple[str, list[tuple[str, int, int]]]]:
    """PodDeviceClaim: `container[index_UUID_cores_MiB,…]`, `;` between containers."""
    found = []
    for part in filter(None, text.split(";")):
        name, _, rest = part.partition("[")
        claims = [claim.split("_") for claim in filter(None, rest.rstrip("]").split(","))]
        found.append((name, [(card, int(cores), int(mib)) for _, card, cores, mib in claims]))
    return found
