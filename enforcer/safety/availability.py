"""Refuses a stage that would leave fewer pods ready than their owners allow: strategies and disruption budgets.

Disruption budgets bind evictions alone, and our holds replace an owner's strategy while it rolls, so Kubernetes would
let both be broken. Two things are compared with how many pods of a workload our own rollout has unavailable at once:

- what the workload's own strategy allows (`strategy_limit`), and
- what every disruption budget that selects its pods allows now; of several the strictest.

A workload that surges has none unavailable: its new pods get ready before any old one leaves. Both this and the rollout
ask `planned_waves` whether there is room for that.

A pod that must be evicted waits for its budget, so of budgets only those count that never let it go. Scaling in is no
disruption to Kubernetes, and percentages and `maxUnavailable` fall with the number of replicas; but a budget whose
`minAvailable` is a number says "never fewer than this", and is kept. The guard calls this before anything is written;
a preview shows it beside the objects.

Source: as `enforcer.disruption` and `enforcer.rollout.holding`; kubernetes:pkg/registry/core/pod/storage/eviction.go
(a pod of several budgets can't be evicted).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce

from enforcer.cluster import ClusterReader
from enforcer.disruption import disruptions_allowed, is_healthy, least_healthy, selects
from enforcer.manifest import Manifest, workload_parts
from enforcer.node_loss import homes_elsewhere
from enforcer.ownership import workload_of_pod
from enforcer.record.journal import ObjectIntent, StageRecord
from enforcer.rollout.holding import can_surge, strategy_limit, unavailable_at_once, values_before
from enforcer.rollout.intents import planned_waves, rolling_owners
from enforcer.rollout.move_order import Order, OrderedUnit
from enforcer.seat import is_over, same_slices
from enforcer.snapshot import Snapshot
from fleet.inventory import LATENCY_CRITICAL_LABEL, OPT_OUT_LABEL, WorkloadId
from fleet.sentences import Sentence, listed, sentence

_NAMED_MAX = 5


@dataclass(slots=True, kw_only=True)
class _Toll:
    """What a stage takes from one workload; mutable: it is counted wave by wave.

    Attributes:
        rolling: most pods that are unavailable at once because their owner rolls.
        evicted: most pods that are evicted at once.
        leaving: pods that go for good.
        missing: pods that are not ready now because the stage was begun.
        is_emptied: pods leave a node, and the stage gives them no other place.
    """

    rolling: int = 0
    evicted: int = 0
    leaving: int = 0
    missing: int = 0
    is_emptied: bool = False

    @property
    def unavailable(self) -> int:
        return max(self.rolling, self.evicted)


@dataclass(slots=True)
class _Pods:
    """Pods and budgets of namespaces, each listed once; mutable: it remembers."""

    reader: ClusterReader
    snapshot: Snapshot
    _pods: dict[str, list[tuple[WorkloadId, Manifest]]] = field(default_factory=dict)

    def of(self, namespace: str) -> list[tuple[WorkloadId, Manifest]]:
        """Pods that are not over, with their workloads."""
        if namespace not in self._pods:
            self._pods[namespace] = [
                (workload_of_pod(pod, self.snapshot.parents), pod)
                for pod in self.reader.list_objects("Pod", namespace)
                if not is_over(pod)
            ]
        return self._pods[namespace]


def availability_refusal(record: StageRecord, breaches: Mapping[WorkloadId, Sentence]) -> Sentence | None:
    """What breaches of a stage are refused with; None where there are none."""
    if not breaches:
        return None
    why = listed(lowered_workloads(breaches), _NAMED_MAX, clauses=True)
    return sentence("availability.refused", stage=str(record.stage), plan=record.plan_id, why=why, label=OPT_OUT_LABEL)


def lowered_workloads(breaches: Mapping[WorkloadId, Sentence]) -> tuple[Sentence, ...]:
    """Workloads that would have fewer pods ready than they allow, each with why."""
    return tuple(sentence("mark.because", what=workload, why=why) for workload, why in breaches.items())


def availability_breaches(
    record: StageRecord, snapshot: Snapshot, reader: ClusterReader, wave_max: int, *, gaps_allowed: bool
) -> dict[WorkloadId, Sentence]:
    """Workloads of which a stage would leave fewer pods ready than their owners allow, and why, sorted.

    Args:
        record: what the stage is going to do, also one that was begun: of an owner that is held, what its users set
            counts, and of a budget, what our own roll took of it already is no breach.
        gaps_allowed: whether services of one replica and latency-critical ones may lose a pod for a while.
    """
    pods = _Pods(reader, snapshot)
    rolling = rolling_owners(record.objects, snapshot)
    waves = planned_waves(record.moves, rolling, snapshot, wave_max)
    tolls = _tolls(record, rolling, waves, pods)
    at_once = max([wave_max, *map(len, waves)])
    found: dict[WorkloadId, list[Sentence]] = {}
    stranded = Counter(snapshot.seats[f"{namespace}/{name}"].workload for namespace, name in _stranded(record, pods))
    for workload, count in stranded.items():
        found.setdefault(workload, []).append(sentence("availability.stranded", pods=str(count)))
    holds = {intent.workload: intent.holds for intent in record.objects}
    for workload, toll in tolls.items():
        owner, count = snapshot.owners.get(workload), len(snapshot.pods.get(workload, ()))
        limit = None if owner is None else strategy_limit(owner, count, values_before(owner, holds.get(workload, ())))
        # A workload that was scaled to none has no pod to lose.
        if limit is None or not toll.unavailable or not count:
            if toll.is_emptied and not gaps_allowed:
                found.setdefault(workload, []).append(sentence("availability.gap_unsaid"))
            continue
        if not gaps_allowed and (count < 2 or snapshot.is_flagged(LATENCY_CRITICAL_LABEL, workload)):
            why = sentence("availability.gap_critical" if count > 1 else "availability.gap_single")
            found.setdefault(workload, []).append(why)
        if toll.unavailable > limit.pods:
            what, by = _share(toll.unavailable, count), f"{limit.field}={limit.value}"
            why = sentence("availability.strategy", what=what, by=by, allowed=str(limit.pods))
            is_moved = any(move.workload == workload for move in record.moves)
            rest = [_why_no_surge(workload, record, snapshot)] if is_moved else []
            found.setdefault(workload, []).extend((why, *rest))
    changed = {workload_parts(workload)[0] for workload in tolls}
    budgets: dict[str, list[Manifest]] = {}
    for budget in reader.list_objects("PodDisruptionBudget") if changed else ():
        if budget["metadata"]["namespace"] in changed:
            budgets.setdefault(budget["metadata"]["namespace"], []).append(budget)
    for namespace, own in budgets.items():
        for workload, why in _broken(own, tolls, pods.of(namespace), at_once):
            found.setdefault(workload, []).append(why)
    return {workload: _joined(found[workload]) for workload in sorted(found)}


def _joined(parts: Sequence[Sentence]) -> Sentence:
    return reduce(lambda first, second: sentence("mark.next_clause", first=first, second=second), parts)


def _why_no_surge(workload: WorkloadId, record: StageRecord, snapshot: Snapshot) -> Sentence:
    """Why a workload does not surge, and what would let it."""
    owner = snapshot.owners[workload]
    if not can_surge(owner):
        return sentence("availability.no_surge_kind", kind=str(owner["kind"]))
    cards = {part.card for move in record.moves if move.workload == workload for part in move.new}
    standing = [snapshot.cards[card] for card in cards if card in snapshot.cards]
    if len(standing) < len(cards) or not cards:
        return sentence("availability.no_surge_counted")
    model = standing[0].device_type.removeprefix("NVIDIA-")
    return sentence("availability.no_surge_room", card_model=model)


def _tolls(
    record: StageRecord, rolling: Mapping[WorkloadId, ObjectIntent], waves: Sequence[Sequence[OrderedUnit]], pods: _Pods
) -> dict[WorkloadId, _Toll]:
    """What a stage takes from each of its workloads."""
    snapshot = pods.snapshot
    found: dict[WorkloadId, _Toll] = {}
    for wave in waves:
        evicted: Counter[WorkloadId] = Counter()
        for unit in wave:
            workload = unit.moves[0].workload
            if workload not in snapshot.owners:
                continue
            toll = found.setdefault(workload, _Toll())
            toll.leaving += sum(bool(move.old) and not move.new for move in unit.moves)
            if workload in rolling:
                toll.rolling = _unavailable(unit, rolling[workload], snapshot)
                toll.missing = sum(not seat.is_ready for seat in snapshot.pods.get(workload, ()))
            elif any(move.new and not same_slices(move.old, move.new) for move in unit.moves):
                evicted[workload] += 1
        for workload, count in evicted.items():
            found[workload].evicted = max(found[workload].evicted, count)
    for workload, count in _emptied(record, pods).items():
        if workload in snapshot.owners:
            toll = found.setdefault(workload, _Toll())
            toll.evicted = max(toll.evicted, count)
    for namespace, name in _unplaced(record, snapshot):
        toll = found.setdefault(snapshot.seats[f"{namespace}/{name}"].workload, _Toll())
        # One of each maker goes at a time.
        toll.evicted, toll.is_emptied = max(toll.evicted, 1), True
    return found


def _unavailable(unit: OrderedUnit, intent: ObjectIntent, snapshot: Snapshot) -> int:
    """How many pods of an owner that rolls are unavailable at once."""
    workload = intent.workload
    count = len(snapshot.pods.get(workload, ()))
    if intent.kind == "StatefulSet" and unit.order is not Order.FREE:
        # One that waits for another's place makes us evict that one too, and so on.
        return count
    return unavailable_at_once(snapshot.owners[workload], count, intent.holds)


def _emptied(record: StageRecord, pods: _Pods) -> Counter[WorkloadId]:
    """Pods that leave nodes which are emptied: they find no place before their nodes are ready again."""
    leaving = {pod for step in record.node_steps for pod in step.leaving} - {*_unplaced(record, pods.snapshot)}
    return Counter(
        workload
        for namespace in {namespace for namespace, _ in leaving}
        for workload, pod in pods.of(namespace)
        if (namespace, pod["metadata"]["name"]) in leaving
    )


def _unplaced(record: StageRecord, snapshot: Snapshot) -> dict[tuple[str, str], str]:
    """Pods that leave nodes which are given another mode, and so have no place by the stage, and their nodes."""
    return {
        pod: step.node
        for step in record.node_steps
        if step.back
        for pod in step.leaving
        # One of the same name may have come up elsewhere already.
        if (seat := snapshot.seats.get("/".join(pod))) is not None and seat.node == step.node
    }


def stranded_pods(record: StageRecord, snapshot: Snapshot, reader: ClusterReader) -> frozenset[tuple[str, str]]:
    """Pods (`namespace`, `name`) that leave nodes which are given another mode, and that no other node has room for."""
    return frozenset(_stranded(record, _Pods(reader, snapshot)))


def _stranded(record: StageRecord, pods: _Pods) -> list[tuple[str, str]]:
    snapshot, unplaced = pods.snapshot, _unplaced(record, pods.snapshot)
    manifests = {
        f"{namespace}/{pod['metadata']['name']}": pod
        for namespace in {namespace for namespace, _ in unplaced}
        for _, pod in pods.of(namespace)
    }
    found: list[tuple[str, str]] = []
    for node in sorted(set(unplaced.values())):
        own = {name: snapshot.seats["/".join(name)] for name, there in unplaced.items() if there == node}
        homes = homes_elsewhere(node, own.values(), snapshot, manifests)
        found += [name for name, seat in own.items() if homes[seat.pod_id] is None]
    return found


def _broken(
    budgets: Sequence[Manifest],
    tolls: Mapping[WorkloadId, _Toll],
    pods: Sequence[tuple[WorkloadId, Manifest]],
    at_once: int,
) -> list[tuple[WorkloadId, Sentence]]:
    """Workloads whose budgets a stage would break, and why; budgets and pods of one namespace."""
    found = []
    named: dict[WorkloadId, list[str]] = {}
    for budget in budgets:
        selected = [(workload, pod) for workload, pod in pods if selects(budget, pod)]
        counts = Counter(workload for workload, _ in selected if workload in tolls)
        for workload in counts:
            named.setdefault(workload, []).append(_name(budget))
        found += _rolled_below(budget, [pod for _, pod in selected], tolls, counts, at_once)
        found += _never_evicted(budget, len(selected), tolls, counts)
        found += _scaled_below(budget, [pod for _, pod in selected], tolls, counts)
    for workload, names in named.items():
        if tolls[workload].evicted and len(names) > 1:
            found.append((workload, sentence("availability.several_budgets", names=", ".join(names))))
    return found


def _rolled_below(
    budget: Manifest, selected: Sequence[Manifest], tolls: Mapping[WorkloadId, _Toll], counts: Counter[WorkloadId],
    at_once: int,
) -> list[tuple[WorkloadId, Sentence]]:  # fmt: skip
    taken = {name: min(count, tolls[name].unavailable) for name, count in counts.items() if tolls[name].unavailable}
    rolling = [workload for workload in taken if tolls[workload].rolling]
    if not rolling:
        return []
    # Which of them go at the same time is decided on the way.
    together = sum(sorted(taken.values(), reverse=True)[:at_once])
    allowed = disruptions_allowed(budget, selected) + sum(tolls[name].missing for name in rolling)
    if together <= allowed:
        return []
    what = _share(together, len(selected))
    if len(taken) > 1:
        what = sentence("availability.together", what=what, workloads=str(min(len(taken), at_once)))
    why = sentence("availability.budget", what=what, budget=_bound(budget), allowed=str(allowed))
    return [(workload, why) for workload in rolling]


def _never_evicted(
    budget: Manifest, expected: int, tolls: Mapping[WorkloadId, _Toll], counts: Counter[WorkloadId]
) -> list[tuple[WorkloadId, Sentence]]:
    if expected > least_healthy(budget, expected):
        return []
    why = sentence("availability.never_evicted", budget=_bound(budget))
    return [(workload, why) for workload in counts if tolls[workload].evicted]


def _scaled_below(
    budget: Manifest, selected: Sequence[Manifest], tolls: Mapping[WorkloadId, _Toll], counts: Counter[WorkloadId]
) -> list[tuple[WorkloadId, Sentence]]:
    leaving = {name: min(count, tolls[name].leaving) for name, count in counts.items() if tolls[name].leaving}
    why = scaled_below(budget, selected, sum(leaving.values()))
    return [] if why is None else [(workload, why) for workload in leaving]


def scaled_below(budget: Manifest, selected: Sequence[Manifest], leaving: int) -> Sentence | None:
    """Why scaling in breaks a budget; None where it does not.

    Args:
        leaving: how many of them go for good.
    """
    least = budget.get("spec", {}).get("minAvailable")
    left = sum(map(is_healthy, selected)) - leaving
    if not leaving or not isinstance(least, int) or left >= least:
        return None
    return sentence("availability.scaled_below", left=str(max(0, left)), budget=_bound(budget), least=str(least))


def _share(count: int, pods: int) -> Sentence:
    return sentence("availability.unavailable", some=str(count), pods=str(pods))


def _name(budget: Manifest) -> str:
    return f"{budget['metadata'].get('namespace', '')}/{budget['metadata']['name']}"


def _bound(budget: Manifest) -> str:
    spec = budget.get("spec", {})
    name = "maxUnavailable" if "maxUnavailable" in spec else "minAvailable"
    return f"PodDisruptionBudget {_name(budget)} ({name}={spec.get(name)})"
