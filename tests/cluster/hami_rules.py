"""HAMi's own decisions, by its published rules: what its webhook does to a pod, and where its scheduler puts it.

Pure, and written apart from the simulated cluster, so that the two can be held against each other; nothing here knows
of gputide. Each rule names the function that it comes from. All of Project-HAMi/HAMi v2.10.0, with the defaults of its
chart (`charts/hami/values.yaml`); `hami_decisions.jsonl` holds what that release decided, case by case. Cards in MIG
mode and other vendors' devices are left out, and so is the order of ties on a node of more than twelve cards: there
Go's sort is not stable.
"""

from __future__ import annotations

import copy
import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import combinations
from typing import Any

import numpy as np

Manifest = dict[str, Any]

SCHEDULER = "hami-scheduler"
COUNT, FRAMEBUFFER, CORES = "nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpucores"
PERCENT, PRIORITY = "nvidia.com/gpumem-percentage", "nvidia.com/priority"
MANAGED = (COUNT, FRAMEBUFFER, PERCENT, CORES, PRIORITY)
REGISTER, HANDSHAKE = "hami.io/node-nvidia-register", "hami.io/node-handshake"
CORDON, PAIR_SCORES = "hami.io/device-cordon", "hami.io/node-nvidia-score"
NODE, TIME = "hami.io/vgpu-node", "hami.io/vgpu-time"
ALLOCATED, TO_ALLOCATE = "hami.io/vgpu-devices-allocated", "hami.io/vgpu-devices-to-allocate"
LOCK = "hami.io/mutex.lock"
LOCK_EXPIRES, HANDSHAKE_EXPIRES = timedelta(minutes=5), timedelta(seconds=60)
_VENDOR = "NVIDIA"
_SUFFIXES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
_UNSET_PERCENT = 101
_INT32_MAX = 2**31 - 1


class Denied(Exception):
    """The webhook denies a pod; the text is HAMi's."""


class Unfit(Exception):
    """A container finds no cards on a node; the text is HAMi's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """One card's share for one container."""

    card: str
    mib: int
    cores: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What one container asks for: cards, MiB or percent of each, and percent of each one's cores."""

    count: int
    mib: int
    percent: int
    cores: int


@dataclass(slots=True, kw_only=True)
class Card:
    """One card as its node registers it, and what is granted on it; mutable."""

    card: str
    index: int
    slices_max: int
    mib: int
    cores: int
    device_type: str
    numa: int
    is_healthy: bool
    mode: str
    slices: int = 0
    used_mib: int = 0
    used_cores: int = 0
    score: np.float32 = field(default_factory=np.float32)

    def take(self, mib: int, cores: int, slices: int = 1) -> None:
        """Book a grant."""
        self.slices += slices
        self.used_mib += mib
        self.used_cores += cores


@dataclass(slots=True, kw_only=True)
class Node:
    """One node as the scheduler knows it: its cards in the register's order, the cordoned ones, and links' scores."""

    name: str
    cards: list[Card]
    cordoned: frozenset[str] = frozenset()
    links: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A node that takes the pod: its score, as floats of 32 bits give it, and the cards of each container."""

    score: np.float32
    containers: tuple[tuple[Grant, ...], ...]

    @property
    def text(self) -> str:
        """The annotation: `UUID,NVIDIA,MiB,cores:` per card, `;` after each container that has one.

        A container without a card leaves no mark: scoreNode files it under the card's model, not under the vendor
        (pkg/scheduler/score.go, nodeDeviceBaseTypes; up to v2.9 it left an empty part).
        """
        parts = ("".join(f"{g.card},{_VENDOR},{g.mib},{g.cores}:" for g in grants) for grants in self.containers)
        return "".join(f"{part};" for part in parts if part)


# --- the webhook: pkg/scheduler/webhook.go (Handle), pkg/device/nvidia/device.go (MutateAdmission)


def admit(pod: Manifest, quota: Mapping[str, int] | None = None) -> Manifest:
    """The pod as the webhook lets it in.

    Args:
        pod: as it was sent.
        quota: what of `FRAMEBUFFER` and `CORES` is left to its namespace, where it has a quota.

    Raises:
        Denied: with HAMi's words.
    """
    if pod["spec"].get("schedulerName", "default-scheduler") not in ("", "default-scheduler", SCHEDULER):
        return pod
    made = copy.deepcopy(pod)
    spec = made["spec"]
    every = [*spec.get("initContainers", ()), *spec["containers"]]
    wants = [_mutate(container) for container in every]
    if any(wants):
        privileged = [one["name"] for one in every if (one.get("securityContext") or {}).get("privileged")]
        if privileged:
            raise Denied(f"container {privileged[0]} is privileged")
        spec["schedulerName"] = SCHEDULER
        if spec.get("nodeName"):
            raise Denied("pod has node assigned")
    if not _fits_quota_at_admission(spec, quota or {}):
        raise Denied("exceeding resource quota")
    return made


def _mutate(container: Manifest) -> bool:
    """MutateAdmission: the priority's variable, the count, and all cores of a whole card; says if it wants a card."""
    resources = container.get("resources") or {}
    limits = resources.get("limits") or {}
    asked = {**(resources.get("requests") or {}), **limits}
    percent = amount(asked.get(PERCENT))
    if percent is not None and not 0 <= percent <= 100:
        where = f"in container {container['name']}: must be an integer between 0 and 100"
        raise Denied(f"invalid {PERCENT} value {percent} {where}")
    if PRIORITY in limits:
        variable = {"name": "CUDA_TASK_PRIORITY", "value": str(amount(limits[PRIORITY]))}
        container["env"] = [*container.get("env", ()), variable]
    if COUNT not in limits:
        if not limits.keys() & {CORES, FRAMEBUFFER, PERCENT}:
            return False
        limits[COUNT] = "1"
    is_whole = percent == 100 if percent is not None else FRAMEBUFFER not in asked
    if CORES not in asked and is_whole:  # defaultExclusiveCoreIfNeeded
        limits[CORES] = "100"
    return True


def _fits_quota_at_admission(spec: Manifest, quota: Mapping[str, int]) -> bool:
    """fitResourceQuota: by what the pod's text says, so a percentage counts nothing yet."""
    asks = [[ask_of(one) for one in spec.get(key, ())] for key in ("initContainers", "containers")]
    for resource, value in ((FRAMEBUFFER, "mib"), (CORES, "cores")):
        inits, apps = ([getattr(ask, value) * ask.count for ask in some if ask is not None] for some in asks)
        wanted = max(sum(apps), max(inits, default=0))
        if any(ask is not None for some in asks for ask in some) and wanted > quota.get(resource, wanted):
            return False
    return True


def amount(quantity: object) -> int | None:
    """A whole quantity; None where there is none."""
    if quantity is None:
        return None
    found = re.fullmatch(r"(-?\d+)([kMG]i?|Ki)?", str(quantity))
    assert found is not None, f"no whole quantity: {quantity!r}"
    return int(found[1]) * _SUFFIXES[found[2] or ""]


def ask_of(container: Manifest) -> Ask | None:
    """GenerateResourceRequests: what a container that passed the webhook asks for; None for nothing."""
    resources = container.get("resources") or {}
    asked = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    count, mib, percent, cores = (amount(asked.get(name)) for name in (COUNT, FRAMEBUFFER, PERCENT, CORES))
    if not count or (mib is not None and not 0 <= mib <= _INT32_MAX):
        return None
    if percent is None or percent <= 0:
        percent = _UNSET_PERCENT
    if percent == _UNSET_PERCENT and not mib:
        percent = 100
    return Ask(count=count, mib=mib or 0, percent=min(percent, _UNSET_PERCENT), cores=cores or 0)


# --- what nodes and pods say: pkg/device/devices.go (UnMarshalNodeDevices, DecodePodDevices)


def read_node(name: str, annotations: Mapping[str, str]) -> Node | None:
    """A node by what stands on it; None where no card is registered (GetNodeDevices, cordonedDevices)."""
    devices = json.loads(annotations.get(REGISTER, "[]")) or []
    scores = json.loads(annotations.get(PAIR_SCORES, "[]"))
    cards = [
        Card(
            card=device["id"], index=device.get("index", 0), slices_max=device.get("count", 0),
            mib=device.get("devmem", 0), cores=device.get("devcore", 0), device_type=device.get("type", ""),
            numa=device.get("numa", 0), is_healthy=device.get("health", False), mode=device.get("mode", ""),
        )
        for device in devices
    ]  # fmt: skip
    cordoned = frozenset(_listed(annotations, CORDON))
    links = {entry["uuid"]: entry.get("score", {}) for entry in scores}
    return Node(name=name, cards=cards, cordoned=cordoned, links=links) if cards else None


def grants_of(text: str, init_containers: int = 0) -> dict[str, tuple[int, int, int]]:
    """MiB, cores and slices that a pod holds, by card (pkg/device/initContainer.go, CollapseInitContainerUsage).

    Init containers run one after the other and before the others: of theirs, the most counts, and only where it is
    more than what all others hold together.
    """
    containers = []
    for container in text.split(";"):
        parts = [part.split(",") for part in container.split(":") if part]
        containers.append([(card, int(mib), int(cores)) for card, _, mib, cores in parts])
    return _collapsed(containers, init_containers)


def _collapsed(containers: Sequence[Sequence[tuple[str, int, int]]], inits: int) -> dict[str, tuple[int, int, int]]:
    first: dict[str, tuple[int, int, int]] = {}
    rest: dict[str, tuple[int, int, int]] = {}
    for number, grants in enumerate(containers):
        for card, mib, cores in grants:
            if number < inits:
                most_mib, most_cores, _ = first.get(card, (0, 0, 0))
                first[card] = max(mib, most_mib), max(cores, most_cores), 1
            else:
                sum_mib, sum_cores, slices = rest.get(card, (0, 0, 0))
                rest[card] = sum_mib + mib, sum_cores + cores, slices + 1
    none = (0, 0, 0)
    return {
        card: (
            max(first.get(card, none)[0], rest.get(card, none)[0]),
            max(first.get(card, none)[1], rest.get(card, none)[1]),
            max(first.get(card, none)[2], rest.get(card, none)[2]),
        )
        for card in first | rest
    }


def book(node: Node, text: str, init_containers: int = 0) -> None:
    """Enter what a pod of this node holds, by its annotation (pkg/scheduler/scheduler.go, getNodesUsage)."""
    held = grants_of(text, init_containers)
    for card in node.cards:
        if card.card in held:
            card.take(*held[card.card])


# --- the filter: pkg/scheduler/scheduler.go (Filter), pkg/scheduler/score.go (scoreNode)


def place(
    pod: Manifest, nodes: Iterable[Node], quota: Mapping[str, int] | None = None
) -> tuple[dict[str, Found], dict[str, str]]:
    """Nodes that take a pod, the chosen one first, and why the others do not; nodes are left as they are.

    Of nodes with the same score HAMi takes any; here it is the first.

    Args:
        pod: as the webhook let it in.
        nodes: with what others hold.
        quota: what of `FRAMEBUFFER` and `CORES` is left to its namespace, where it has a quota.

    Raises:
        Unfit: an annotation of the pod is wrong.
    """
    annotations = pod["metadata"].get("annotations") or {}
    weights = _weights(annotations)
    fits: dict[str, Found] = {}
    failed: dict[str, str] = {}
    for node in nodes:
        try:
            fits[node.name] = _found(pod, node, weights, quota or {})
        except Unfit as why:
            failed[node.name] = str(why)
    is_spread = annotations.get("hami.io/node-scheduler-policy") == "spread"  # policy/node_policy.go (Less)
    best = sorted(fits, key=lambda name: fits[name].score if is_spread else -fits[name].score)
    return {name: fits[name] for name in best}, failed


def asks_of(pod: Manifest) -> list[Ask | None]:
    """Resourcereqs: what each container asks for, init containers first."""
    return [ask_of(container) for key in ("initContainers", "containers") for container in pod["spec"].get(key, ())]


def _found(pod: Manifest, node: Node, weights: Sequence[int], quota: Mapping[str, int]) -> Found:
    asks = asks_of(pod)
    inits = len(pod["spec"].get("initContainers", ()))
    score = _node_score(node.cards)
    chosen: list[tuple[Grant, ...]] = []
    for ask in asks[:inits]:  # allocateInitContainers: each sees the node as it is without the others
        alone = [copy.copy(card) for card in node.cards]
        chosen.append(() if ask is None else _fit(pod, node, alone, ask, weights, chosen, quota))
    cards = [copy.copy(card) for card in node.cards]
    apps: list[tuple[Grant, ...]] = []
    for ask in asks[inits:]:
        apps.append(() if ask is None else _fit(pod, node, cards, ask, weights, apps, quota))
    return Found(score=score, containers=(*chosen, *apps))


def _node_score(cards: Sequence[Card]) -> np.float32:
    """ComputeDefaultScore: 10 × (used slices, cores and framebuffer, each as a share of the node), before the pod."""
    used = [sum(getattr(card, name) for card in cards) for name in ("slices", "used_cores", "used_mib")]
    whole = [sum(getattr(card, name) for card in cards) for name in ("slices_max", "cores", "mib")]
    if not all(whole):
        return np.float32(0)
    slots, cores, mib = (np.float32(part) / np.float32(total) for part, total in zip(used, whole, strict=True))
    return np.float32(10) * (slots + cores + mib)


def _fit(
    pod: Manifest, node: Node, cards: list[Card], ask: Ask, weights: Sequence[int],
    chosen: Sequence[tuple[Grant, ...]], quota: Mapping[str, int],
) -> tuple[Grant, ...]:  # fmt: skip
    """fitInDevices: score, sort, choose and book cards for one container; `cards` keeps the new order."""
    annotations = pod["metadata"].get("annotations") or {}
    for card in cards:
        card.score = _card_score(card, ask, weights)
    cards.sort(key=lambda card: _order(card, annotations))
    vendors = [card for card in cards if _VENDOR.lower() in card.device_type.lower()]
    if ask.count > len(vendors):
        raise Unfit("NodeInsufficientDevice")
    taken = _choose(pod, node, vendors, ask, chosen, quota)
    by_name = {card.card: card for card in cards}
    for grant in taken:
        by_name[grant.card].take(grant.mib, grant.cores)
    return tuple(taken)


def _card_score(card: Card, ask: Ask, weights: Sequence[int]) -> np.float32:
    """policy/gpu_policy.go (ComputeScore): 10 × the weighted sum of used slices, cores and framebuffer, as shares.

    What is asked for counts only where the register calls the card by the bare vendor, which NVIDIA's plugin never
    does: it writes the model too.
    """
    if not (card.slices_max and card.cores and card.mib):
        return np.float32(0)
    extra = (0, 0, 0)
    if card.device_type == _VENDOR:
        is_share = ask.percent not in (0, _UNSET_PERCENT)
        extra = (1, ask.cores, card.mib * ask.percent // 100 if is_share else ask.mib)
    used = (extra[0] + card.slices, extra[1] + card.used_cores, extra[2] + card.used_mib)
    shares = [np.float32(a) / np.float32(b) for a, b in zip(used, (card.slices_max, card.cores, card.mib), strict=True)]
    slots, cores, mib = (np.float32(weight) * share for weight, share in zip(weights, shares, strict=True))
    return np.float32(10) * (slots + cores + mib)


def _order(card: Card, annotations: Mapping[str, str]) -> tuple[float, ...]:
    """policy/gpu_policy.go (Less): the cards are tried from the last one of this order on."""
    policy = _policy(annotations)
    score, numa = float(card.score), card.numa
    is_bound = _is_numa_bound(annotations)
    if "," in policy or policy == "numa":
        keys = list(dict.fromkeys(part for part in _parts(policy) if part in ("binpack", "spread", "numa")))
        keys = keys or ["spread"]
        if is_bound and keys[0] != "numa":
            keys = ["numa", *(key for key in keys if key != "numa")]
        values = {"binpack": score, "spread": -score, "numa": numa}
        return (*(values[key] for key in keys), card.index)
    if policy == "mutex":
        return (-card.slices, numa)
    if is_bound:
        return (-numa, score) if policy == "binpack" else (numa, -score)
    return (score, numa) if policy == "binpack" else (-score, numa)


def _choose(
    pod: Manifest, node: Node, cards: Sequence[Card], ask: Ask, chosen: Sequence[tuple[Grant, ...]],
    quota: Mapping[str, int],
) -> list[Grant]:  # fmt: skip
    """pkg/device/nvidia/device.go (Fit)."""
    annotations = pod["metadata"].get("annotations") or {}
    policies = _parts(_policy(annotations))
    by_links, is_mutex, is_bound = "topology-aware" in policies, "mutex" in policies, _is_numa_bound(annotations)
    inits = len(pod["spec"].get("initContainers", ()))
    reasons: Counter[str] = Counter()
    taken: list[Grant] = []
    numa: int | None = None
    for card in reversed(cards):
        why = _unusable(card, node, annotations)
        if why is not None:
            reasons[why] += 1
            continue
        if is_bound and numa != card.numa:
            if taken and not by_links:
                reasons["NumaNotFit"] += len(taken)
            taken, numa = [], card.numa
        mib = ask.mib or (card.mib * ask.percent // 100 if ask.percent != _UNSET_PERCENT else 0)
        grant = Grant(card=card.card, mib=mib, cores=min(ask.cores, 100))
        is_within = _fits_quota([*chosen, (*taken, grant)], inits, quota)
        why = _misfit(card, grant, annotations, is_mutex=is_mutex, is_within_quota=is_within)
        if why is not None:
            reasons[why] += 1
            continue
        taken.append(grant)
        if len(taken) == ask.count and not by_links:
            return taken
    if by_links and len(taken) >= ask.count:
        return _linked(taken, ask.count, node.links)
    if taken:
        reasons["AllocatedCardsInsufficientRequest"] = len(taken)
    raise Unfit(", ".join(sorted(f"{count}/{len(cards)} {why}" for why, count in reasons.items())))


def _unusable(card: Card, node: Node, annotations: Mapping[str, str]) -> str | None:
    """Fit, its first rules: health, cordon, then type and mode (CheckType, checkType)."""
    if not card.is_healthy:
        return "CardNotHealth"
    if card.card in node.cordoned:
        return "CardCordoned"
    kind = card.device_type.upper()
    use, avoid = (
        [part.upper() for part in _listed(annotations, f"nvidia.com/{key}")] for key in ("use-gputype", "nouse-gputype")
    )
    is_wanted = not annotations.get("nvidia.com/use-gputype", "").strip() or any(part in kind for part in use)
    is_mode = card.mode in annotations.get("nvidia.com/vgpu-mode", card.mode)
    if not is_wanted or any(part in kind for part in avoid) or not is_mode:
        return "CardTypeMismatch"
    return None


def _misfit(
    card: Card, grant: Grant, annotations: Mapping[str, str], *, is_mutex: bool, is_within_quota: bool
) -> str | None:
    """Fit, its further rules, in its order (CheckUUID first)."""
    use, avoid = (_listed(annotations, f"nvidia.com/{key}") for key in ("use-gpuuuid", "nouse-gpuuuid"))
    is_named = not annotations.get("nvidia.com/use-gpuuuid", "").strip() or card.card in use
    rules = {
        "CardUuidMismatch": not is_named or card.card in avoid,
        "CardTimeSlicingExhausted": card.slices_max <= card.slices,
        "ExclusiveDeviceAllocateConflict": is_mutex and card.slices > 0,
        "ResourceQuotaNotFit": not is_within_quota,
        "CardInsufficientMemory": card.mib - card.used_mib < grant.mib,
        "CardInsufficientCore": card.cores - card.used_cores < grant.cores,
    }
    broken = next((rule for rule, is_broken in rules.items() if is_broken), None)
    if broken is None and card.cores == 100 and grant.cores == 100 and card.slices:
        return "ExclusiveDeviceAllocateConflict"
    if broken is None and card.cores and card.used_cores == card.cores and not grant.cores:
        return "CardComputeUnitsExhausted"
    return broken


def _fits_quota(containers: Sequence[Sequence[Grant]], inits: int, quota: Mapping[str, int]) -> bool:
    """fitQuota: the pod's cards so far and this one, against what is left."""
    held = _collapsed([[(g.card, g.mib, g.cores) for g in grants] for grants in containers], inits).values()
    mib, cores = sum(part[0] for part in held), sum(part[1] for part in held)
    return mib <= quota.get(FRAMEBUFFER, mib) and cores <= quota.get(CORES, cores)


def _linked(taken: Sequence[Grant], count: int, links: Mapping[str, Mapping[str, int]]) -> list[Grant]:
    """computeWorstSingleCard and computeBestCombination: one card with the poorest links, or the best linked ones."""

    def score(one: Grant, other: Grant) -> int:
        return links.get(one.card, {}).get(other.card, 0)

    if len(taken) == count:
        return list(taken)
    if count == 1:
        return [min(taken, key=lambda one: sum(score(one, other) for other in taken if other is not one))]
    sets = combinations(taken, count)
    return list(max(sets, key=lambda some: sum(score(one, other) for one, other in combinations(some, 2))))


# --- words on pods: pkg/util/util.go, pkg/util/device_scoring_weights.go


def _policy(annotations: Mapping[str, str]) -> str:
    return annotations.get("hami.io/gpu-scheduler-policy", "spread")


def _parts(policy: str) -> list[str]:
    return [part.strip() for part in policy.split(",")]


def _listed(annotations: Mapping[str, str], name: str) -> list[str]:
    return [part for part in _parts(annotations.get(name, "")) if part]


def _is_numa_bound(annotations: Mapping[str, str]) -> bool:
    return annotations.get("nvidia.com/numa-bind") in ("1", "t", "T", "true", "TRUE", "True")


def _weights(annotations: Mapping[str, str]) -> Sequence[int]:
    name = "hami.io/device-scoring-weights"
    if name not in annotations:
        return (1, 1, 1)
    value = annotations[name]
    if value.count(",") != 2:
        raise Unfit(f'invalid {name} annotation "{value}": expected slot, core, and memory weights')
    given = dict(part.strip().split("=") for part in value.split(","))
    return tuple(int(given[key]) for key in ("slot", "core", "memory"))


# --- the bind: pkg/util/nodelock/nodelock.go


def needs_lock(pod: Manifest) -> bool:
    """LockNode: a node is locked for pods of which a container asks for a card; init containers do not count."""
    return any(ask_of(container) is not None for container in pod["spec"]["containers"])


def locked(
    value: str | None, node: str, pod: tuple[str, str], now: datetime, is_there: Callable[[str, str], bool]
) -> str:
    """A node's lock once a pod has it.

    Args:
        value: the lock that stands on the node: `time,namespace,pod`, or a time alone.
        pod: namespace and name.
        is_there: says whether the pod of this namespace and name still is.

    Raises:
        Unfit: another pod has it; or it says no time, or not three parts.
    """
    mine = f"{now.isoformat(timespec='seconds').replace('+00:00', 'Z')},{pod[0]},{pod[1]}"
    if value is None:
        return mine
    at, *owner = value.split(",")
    if len(owner) not in (0, 2):
        raise Unfit(f"malformed lock annotation: expected 3 parts, got {len(owner) + 1} from {value}")
    try:
        locked_at = datetime.fromisoformat(at)
    except ValueError as wrong:
        layout = "2006-01-02T15:04:05Z07:00"
        raise Unfit(f'parsing time "{at}" as "{layout}": cannot parse "{at}" as "2006"') from wrong
    if now - locked_at > LOCK_EXPIRES:
        return mine
    if tuple(owner) == pod:
        return value
    if owner and all(owner) and not is_there(*owner):
        return mine
    raise Unfit(f"node {node} has been locked within 5m0s: node lock contention")


def released(value: str | None, pod: tuple[str, str]) -> str | None:
    """The lock after a bind that failed: gone where it was the pod's own, or names nobody."""
    is_own = value is None or "," not in value or value.endswith(f",{pod[0]},{pod[1]}")
    return None if is_own else value


# --- which nodes it knows: pkg/scheduler/scheduler.go (register), pkg/device/nvidia/device.go (CheckHealth)


class Registry:
    """Nodes as the scheduler keeps them: read anew only when the count, the register or the handshake says so.

    So what else stands on a node, such as its cordon, acts once one of these changes.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self._counts: dict[str, int] = {}
        self._registers: dict[str, str | None] = {}

    def look(self, name: str, annotations: Mapping[str, str], count: int, now: datetime) -> str | None:
        """Take note of a node.

        Args:
            annotations: what stands on it.
            count: what it can allocate of `COUNT`.
            now: aware; the handshake has the local time of the scheduler, without a zone.

        Returns:
            The handshake to write on it, None for none.
        """
        node = read_node(name, annotations)
        answer = annotations.get(HANDSHAKE, "")
        stamp = now.strftime("%Y-%m-%d %H:%M:%S")
        is_asked = "Requesting" in answer
        written = None if is_asked else f"Requesting_{stamp}"
        is_healthy, is_news = not is_asked or count > 0 or not _is_expired(answer, now), not is_asked
        register = annotations.get(REGISTER)
        if count != self._counts.get(name, 0):
            self._counts[name], self._registers[name] = count, register
            is_healthy, is_news = count > 0, is_news or count > 0
        elif count and register != self._registers.get(name):
            self._registers[name] = register
            is_news = True
        if not is_healthy:
            if self.nodes.pop(name, None) is not None:
                self._counts.pop(name, None)
                self._registers.pop(name, None)
                written = f"Deleted_{stamp}"
        elif node is not None and is_news:
            self.nodes[name] = node
        return written

    def keep(self, names: Collection[str]) -> None:
        """Forget all other nodes: they were deleted."""
        for kept in (self.nodes, self._counts, self._registers):
            for name in kept.keys() - set(names):
                del kept[name]


def _is_expired(handshake: str, now: datetime) -> bool:
    try:
        asked_at = datetime.fromisoformat(handshake.partition("_")[2]).replace(tzinfo=now.tzinfo)
    except ValueError:
        return False
    return now >= asked_at + HANDSHAKE_EXPIRES
