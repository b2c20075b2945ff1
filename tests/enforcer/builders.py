"""Small fleets and plans, built by hand for the enforcer's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

from bench.faulty_cluster import Faults, MisbehavingCluster
from enforcer.backends.hami import HamiBackend
from enforcer.cluster import FieldChange
from enforcer.record.journal import Journal
from enforcer.record.ledger import Ledger
from enforcer.record.plan_store import Approval, PlanStore
from enforcer.rollout.holding import hold_seconds, strategy_limit
from enforcer.rollout.patience import Patience, PatientCluster
from enforcer.rollout.pod_mover import MovePolicy
from enforcer.rollout.reconciler import Reconciler
from enforcer.rollout.run_context import RolloutPolicy, RunContext
from enforcer.rollout.stages import Rollout
from enforcer.rollout.undo import Undo, UndoResult
from enforcer.rollout.watch import ClusterSignals
from enforcer.safety.guard import Guard, GuardPolicy
from enforcer.simulated.cluster import SimulatedCluster
from fleet.capabilities.register import CorePolicy
from fleet.decisions import (
    CardPlacement,
    Evidence,
    FreedCard,
    HistorySpan,
    Need,
    PlacedSlice,
    Plan,
    Recommendation,
    RecommendationKind,
    RiskLevel,
    Saving,
    ScheduledReplicas,
    Stage,
    Totals,
)
from fleet.documents import seal_plan
from fleet.inventory import Card, CardId, CardModelName, Grant, Inventory, Node, Priority, WorkloadId
from fleet.sentences import sentence

NOW = datetime(2026, 1, 12, tzinfo=UTC)
CARD_BYTES = 24 * 2**30
HALF = CARD_BYTES // 2
WATCH_SECONDS = 120.0
"""How long a batch is watched here: twelve looks show what the sixty of ten minutes show."""
HOLD_SECONDS = hold_seconds(WATCH_SECONDS)
SAVING = Saving(amortised=Decimal(100), marginal=Decimal(20))


def card_id(number: int) -> CardId:
    return CardId(f"GPU-00000000-0000-0000-0000-{number:012d}")


def a_grant(
    workload: str,
    number: int,
    card: int,
    *,
    kind: str = "Deployment",
    priority: Priority = Priority.NORMAL,
    labels: tuple[tuple[str, str], ...] = (),
    framebuffer_bytes: int = CARD_BYTES,
    started_at: datetime = NOW - timedelta(days=7),
    ended_at: datetime | None = None,
) -> Grant:
    return Grant(
        cluster="c1",
        namespace="team",
        pod=f"{workload}-{number}",
        container="server",
        workload=workload,
        workload_kind=kind,
        node=f"node-{card // 4}",
        card=card_id(card),
        card_model=CardModelName("NVIDIA A10"),
        framebuffer_bytes=CARD_BYTES,
        framebuffer_granted_bytes=framebuffer_bytes,
        compute_granted_ratio=1.0,
        priority=priority,
        labels=labels,
        started_at=started_at,
        ended_at=ended_at,
    )


def an_inventory(grants: Iterable[Grant], cards: int = 8, as_of: datetime = NOW) -> Inventory:
    return Inventory(
        cluster="c1",
        as_of=as_of,
        cards=tuple(
            Card(
                card=card_id(number),
                card_model=CardModelName("NVIDIA A10"),
                framebuffer_bytes=CARD_BYTES,
                node=f"node-{number // 4}",
                cluster="c1",
            )
            for number in range(cards)
        ),
        nodes=tuple(
            Node(node=f"node-{number}", cluster="c1", cpu_cores=64.0, memory_bytes=2**39)
            for number in range((cards + 3) // 4)
        ),
        grants=tuple(grants),
    )


def standard_grants() -> list[Grant]:
    """Three services of two pods each on cards 0-5, a notebook on card 6, a job on card 7."""
    return [
        *(a_grant("a", number, number) for number in range(2)),
        *(a_grant("b", number, 2 + number, priority=Priority.HIGH) for number in range(2)),
        *(a_grant("c", number, 4 + number, priority=Priority.LOW) for number in range(2)),
        a_grant("book", 0, 6, kind="Notebook"),
        a_grant("train", 0, 7, kind="Job", priority=Priority.LOW),
    ]


def a_slice(
    pod: str,
    *,
    kind: str = "Deployment",
    framebuffer_bytes: int = HALF,
    compute_ratio: float | None = 0.5,
    core_policy: CorePolicy = CorePolicy.BURST,
    priority: Priority = Priority.NORMAL,
    oversubscribed: bool = False,
) -> PlacedSlice:
    return PlacedSlice(
        namespace="team",
        pod=pod,
        container="server",
        workload=WorkloadId(f"team/{kind}/{pod.rsplit('-', 1)[0]}"),
        framebuffer_bytes=framebuffer_bytes,
        compute_ratio=compute_ratio,
        core_policy=core_policy,
        priority=priority,
        oversubscribed=oversubscribed,
    )


def whole(pod: str, **how: object) -> PlacedSlice:
    return a_slice(pod, **{"framebuffer_bytes": CARD_BYTES, "compute_ratio": 1.0, **how})  # type: ignore[arg-type]


def a_recommendation(
    name: str,
    kind: RecommendationKind,
    pods: Sequence[str],
    workloads: Sequence[str],
    cards_freed: int,
    needs: tuple[Need, ...] = (),
    freed: Sequence[int] = (),
) -> Recommendation:
    return Recommendation(
        id=name,
        kind=kind,
        workloads=tuple(WorkloadId(f"team/{entry}") for entry in workloads),
        pods=tuple(f"team/{pod}" for pod in pods),
        cards_freed=cards_freed,
        saving_per_week=SAVING,
        risk_level=RiskLevel.LOW,
        confidence=0.9,
        why=(sentence("reclaim", cards=cards_freed),),
        evidence=Evidence(
            since=NOW - timedelta(days=7), until=NOW, samples=1008, coverage_ratio=0.99, counters=(), numbers=()
        ),
        needs=needs,
        freed=tuple(a_freed_card(number) for number in freed),
    )


def a_freed_card(number: int) -> FreedCard:
    """One card, worth 25 a week as planned."""
    return FreedCard(card=card_id(number), saving_per_week=Saving(amortised=Decimal(25), marginal=Decimal(5)))


def a_plan(
    placement: Mapping[int, Sequence[PlacedSlice]],
    stages: Sequence[Sequence[Recommendation]],
    *,
    cards_before: int = 8,
    coverage_ratio: float = 0.99,
    expires_at: datetime = NOW + timedelta(days=1),
) -> Plan:
    cards = tuple(
        CardPlacement(
            card=card_id(number),
            card_model=CardModelName("NVIDIA A10"),
            node=f"node-{number // 4}",
            framebuffer_bytes=CARD_BYTES,
            framebuffer_oversubscription_ratio=sum(part.framebuffer_bytes for part in slices) / CARD_BYTES,
            slices=tuple(slices),
        )
        for number, slices in placement.items()
    )
    recommendations = tuple(entry for stage in stages for entry in stage)
    freed = cards_before - len(cards)
    return seal_plan(
        Plan(
            plan_id="",
            created_at=NOW,
            expires_at=expires_at,
            cluster="c1",
            history=HistorySpan(since=NOW - timedelta(days=7), until=NOW, coverage_ratio=coverage_ratio),
            inputs_sha256="0" * 64,
            settings=(),
            risk=RiskLevel.MEDIUM,
            backend="hami",
            currency="USD",
            totals=Totals(
                cards_before=cards_before,
                cards_after=len(cards),
                cards_freed=freed,
                spare_cards=0,
                nodes_freed=0,
                framebuffer_bytes_freed=freed * CARD_BYTES,
                low_priority_gpu_hours_per_week=0.0,
                saving_per_week=SAVING,
                predicted_violation_ratio=0.001,
                moves=sum(len(entry.pods) for entry in recommendations),
            ),
            recommendations=recommendations,
            refused=(),
            withheld=(),
            placement=cards,
            stages=tuple(
                Stage(
                    stage=number,
                    title=sentence("share", number=number, all=len(stages)),
                    recommendations=tuple(entry.id for entry in stage),
                    cards_freed=sum(entry.cards_freed for entry in stage),
                    moves=sum(len(entry.pods) for entry in stage),
                )
                for number, stage in enumerate(stages, start=1)
            ),
        )
    )


def standard_plan() -> Plan:
    """Stage 1 stops the notebook, stage 2 puts a, b and c on three cards: five cards are left, with the job's."""
    return a_plan(
        {
            0: [a_slice("a-0"), a_slice("b-0", priority=Priority.HIGH)],
            1: [a_slice("a-1"), a_slice("b-1", priority=Priority.HIGH)],
            4: [a_slice("c-0", priority=Priority.LOW), a_slice("c-1", priority=Priority.LOW)],
            7: [whole("train-0", kind="Job", priority=Priority.LOW)],
        },
        [
            [a_recommendation("reclaim-1", RecommendationKind.RECLAIM, ["book-0"], ["Notebook/book"], 1, freed=[6])],
            [
                a_recommendation(
                    "colocate-1",
                    RecommendationKind.COLOCATE,
                    ["a-0", "a-1", "b-0", "b-1"],
                    ["Deployment/a", "Deployment/b"],
                    2,
                    freed=[2, 3],
                ),
                a_recommendation("slice-1", RecommendationKind.SLICE, ["c-0", "c-1"], ["Deployment/c"], 1, freed=[5]),
            ],
        ],
    )


def with_tide(plan: Plan, schedule: Sequence[ScheduledReplicas]) -> Plan:
    """The plan with a tide in a stage of its own, the last one, that shows what the schedule says."""
    tides = [
        replace(
            a_recommendation(
                f"tide-{number}", RecommendationKind.TIDE, [], [str(entry.workload).removeprefix("team/")], 0
            ),
            why=(
                sentence(
                    "tide", start=entry.start, end=entry.end, time_zone=entry.time_zone, replicas_all=2,
                    replicas=entry.replicas, load_max_cards=0.5, cards=len(entry.frees), hours=9,
                ),
            ),
        )
        for number, entry in enumerate(schedule, start=1)
    ]  # fmt: skip
    names = tuple(tide.id for tide in tides)
    last = Stage(stage=len(plan.stages) + 1, title=sentence("tide"), recommendations=names, cards_freed=0, moves=0)
    return seal_plan(
        replace(
            plan, schedule=tuple(schedule), recommendations=(*plan.recommendations, *tides), stages=(*plan.stages, last)
        )
    )


class OpenGuard(Guard):
    """A guard for tests that are about something else: nobody need have approved anything."""

    def check_approvals(self, plan: Plan, stages: Sequence[int], approvals: Iterable[Approval], freed: int) -> None:
        del plan, stages, approvals, freed


def a_yes(plan: Plan, *stages: int, by: str = "ann") -> list[Approval]:
    """Somebody's approval of stages."""
    return [Approval(plan_id=plan.plan_id, stages=stages, by=by, at=NOW)]


def a_cluster(
    folder: Path, grants: Iterable[Grant] | None = None, *, faults: Faults | None = None, cards: int = 8
) -> SimulatedCluster:
    file = folder / "cluster.sqlite"
    cluster = SimulatedCluster(file) if faults is None else MisbehavingCluster(file, faults)
    cluster.sync(an_inventory(standard_grants() if grants is None else grants, cards), NOW)
    return cluster


def some_tools(cluster: SimulatedCluster, folder: Path, **changes: object) -> RunContext:
    tools = RunContext(
        reader=cluster,
        writer=cluster,
        lease=cluster,
        pause=cluster.pause,
        journal=Journal(Ledger(folder / "ledger.jsonl")),
        guard=OpenGuard(GuardPolicy(gaps_allowed=True)),
        signals=ClusterSignals(cluster),
        policy=RolloutPolicy(watch_seconds=WATCH_SECONDS, moving=MovePolicy(placement_seconds_max=120.0)),
    )
    for name, value in changes.items():
        setattr(tools, name, value)
    return tools


def a_rollout(tools: RunContext) -> Rollout:
    return Rollout(tools, HamiBackend(NOW))


def let_all_go(cluster: SimulatedCluster, *owners: str) -> SimulatedCluster:
    """The cluster, in which workloads (`Kind/name`) now say that all their pods may be unavailable at once."""
    for owner in owners:
        kind, name = owner.split("/")
        found = cluster.get(kind, "team", name)
        assert found is not None
        limit = strategy_limit(found, 1)
        if limit is not None:
            change = FieldChange(field=limit.field, value="100%")
            cluster.patch(kind, "team", name, [change], found["metadata"]["resourceVersion"])
    return cluster


def an_undo(tools: RunContext) -> Undo:
    return Undo(tools)


def undo_all(tools: RunContext, folder: Path) -> tuple[UndoResult, ...]:
    return Reconciler(a_rollout(tools), PlanStore(folder / "plans"), lambda *_: None).undo_all(by="ann")


def where(cluster: SimulatedCluster) -> dict[str, tuple[int, int] | str]:
    """Where each pod is: number of its card and GiB granted, or its state."""
    return {
        seat.pod: (int(seat.card[-12:]), seat.framebuffer_granted_bytes // 2**30) if seat.card else seat.state.value
        for seat in cluster.seats()
    }


def patient(cluster: Any, step: Callable[[str], None] = lambda _step: None) -> PatientCluster:
    """A cluster as a run uses it, without a lease."""
    return PatientCluster(
        reader=cluster, writer=cluster, pause=cluster.pause, patiently=Patience(cluster.pause), step=step
    )
