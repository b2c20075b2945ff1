"""Applies a plan, stage by stage: canary first, watched, then the rest, watched, then kept or taken back.

The front door and the plan page call it. What a stage means to do stands in the ledger before the first write, and
every step looks before it acts, so after a crash at any moment `resume` ends with each stage either fully applied or
fully restored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from enforcer.backend import Backend, Move, RenderedStage
from enforcer.carry import Carrier, CarryPolicy, backwards
from enforcer.cluster import ClusterReader, ClusterWriter, Lease, Pause
from enforcer.fingerprint import Fingerprint
from enforcer.guard import Guard
from enforcer.journal import FieldIntent, Journal, ObjectIntent, RunRecord, StageRecord, StageState
from enforcer.move_order import can_go_alone
from enforcer.progress import Progress, ProgressPhase
from enforcer.snapshot import Snapshot, take_snapshot
from enforcer.watch import Signals, WatchPolicy, complaints
from fleet.decisions import Plan
from fleet.errors import Refused
from fleet.inventory import WorkloadId

__all__ = [
    "Progress",
    "ProgressPhase",
    "Rollout",
    "RolloutPolicy",
    "StageResult",
    "Tools",
    "object_intents",
    "take_back",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutPolicy:
    """How carefully to go.

    Attributes:
        canary_workloads: workloads that are changed and watched before the rest of a stage.
        watch_seconds: how long a change is watched.
        lease_seconds: how long the lease is held without being renewed.
        watch: what is too much.
        carry: how patient to be with pods.
    """

    canary_workloads: int = 1
    watch_seconds: float = 600.0
    lease_seconds: float = 30.0
    watch: WatchPolicy = field(default_factory=WatchPolicy)
    carry: CarryPolicy = field(default_factory=CarryPolicy)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageResult:
    """How one stage ended.

    Attributes:
        stage: number.
        state: promoted or restored.
        reason: why it was restored.
        kept: what the restoration left as it was, and why.
    """

    stage: int
    state: StageState
    reason: str | None
    kept: tuple[str, ...]


def _unseen(_: Progress) -> None:
    """News that nobody reads."""


def _unstopped(_: str) -> None:
    """A step that nobody stops."""


@dataclass(slots=True, kw_only=True)
class Tools:
    """What rollout and undo work with; mutable: a test swaps the step at which it stops.

    Attributes:
        reader: the cluster.
        writer: the cluster.
        lease: the right to change it.
        pause: lets the cluster's time pass.
        journal: the ledger.
        guard: who may say no.
        signals: who says how pods are.
        policy: how carefully to go.
        holder: name under which the lease is held; the same after a restart, so that a crash does not lock us out.
        on_progress: who hears the news.
        step: called before every write with what it is, for tests that stop there.
    """

    reader: ClusterReader
    writer: ClusterWriter
    lease: Lease
    pause: Pause
    journal: Journal
    guard: Guard
    signals: Signals
    policy: RolloutPolicy = field(default_factory=RolloutPolicy)
    holder: str = "gputide"
    on_progress: Callable[[Progress], None] = _unseen
    step: Callable[[str], None] = _unstopped

    def carrier(self) -> Carrier:
        """Hands for these tools."""
        return Carrier(self.reader, self.writer, self.pause, self.policy.carry, self.step)

    def take_lease(self) -> None:
        """Take or renew the lease, waiting for one that a crash left behind.

        Raises:
            Refused: somebody else holds it.
        """
        waited = 0.0
        while not self.lease.acquire(self.holder, self.policy.lease_seconds):
            if waited > 2 * self.policy.lease_seconds:
                raise Refused(
                    "cannot change the cluster: somebody else holds the lease gputide/enforcer; try again later"
                )
            self.pause(self.policy.carry.poll_seconds)
            waited += self.policy.carry.poll_seconds

    def tell(self, plan_id: str, stage: int, phase: ProgressPhase, text: str, done: int = 0, total: int = 0) -> None:
        """Tell the news."""
        self.on_progress(
            Progress(at=self.reader.now(), plan_id=plan_id, stage=stage, phase=phase, text=text, done=done, total=total)
        )


class Rollout:
    """Applies plans.

    Args:
        tools: what to work with.
        backend: renders stages.
    """

    def __init__(self, tools: Tools, backend: Backend) -> None:
        self._tools = tools
        self._backend = backend

    def apply(
        self,
        plan: Plan,
        stages: Sequence[int] | None = None,
        *,
        by: str,
        approved: Sequence[int] = (),
        fingerprint: Fingerprint | None = None,
    ) -> tuple[StageResult, ...]:
        """Apply stages of a plan; one that is restored ends the run.

        A run of the same plan that a crash left open is gone on with.

        Args:
            plan: the plan.
            stages: numbers; all where None.
            by: who asked, for the ledger.
            approved: stages that were approved.
            fingerprint: what the plan was made for, None where it was not kept.

        Returns:
            One result per stage that was begun; a stage that was promoted before counts as promoted.

        Raises:
            Refused: a guard said no; what had been promoted before stays.
            Unavailable: the cluster can't be reached; call again to go on.
        """
        tools = self._tools
        chosen = tuple(sorted(set(stages))) if stages is not None else tuple(entry.stage for entry in plan.stages)
        tools.guard.check_frozen(tools.reader)
        run = next((found for found in tools.journal.runs(plan.plan_id) if found.is_open), None)
        if run is None:
            tools.guard.check_plan(plan, chosen, approved, tools.reader.now())
        tools.take_lease()
        try:
            if run is None:
                snapshot = take_snapshot(tools.reader)
                tools.guard.check_cluster(plan, chosen, snapshot, fingerprint, tools.journal.runs())
                self._begin(plan, chosen, by, snapshot)
            return self._run(plan)
        finally:
            tools.lease.release(tools.holder)

    def resume(self, plan: Plan) -> tuple[StageResult, ...]:
        """Go on with the run of a plan that a crash left open; nothing is done where there is none.

        Raises:
            Refused: the cluster is frozen.
            Unavailable: the cluster can't be reached; call again to go on.
        """
        tools = self._tools
        if not any(run.is_open for run in tools.journal.runs(plan.plan_id)):
            return ()
        tools.guard.check_frozen(tools.reader)
        tools.take_lease()
        try:
            return self._run(plan)
        finally:
            tools.lease.release(tools.holder)

    def _begin(self, plan: Plan, stages: Sequence[int], by: str, snapshot: Snapshot) -> None:
        granted = sorted({part.card for seat in snapshot.seats.values() for part in seat.slices})
        self._tools.step("begin")
        self._tools.journal.write(
            plan.plan_id, self._tools.reader.now(), "begin", stages=list(stages), by=by, cards_granted=granted
        )

    def _run(self, plan: Plan) -> tuple[StageResult, ...]:
        tools = self._tools
        run = _open_run(tools.journal, plan)
        results: list[StageResult] = []
        promoted = _promoted(tools.journal, plan)
        for stage in run.stages:
            record = run.records.get(stage)
            if stage in promoted:
                results.append(StageResult(stage=stage, state=StageState.PROMOTED, reason=None, kept=()))
                continue
            if record is None:
                record = self._intend(plan, stage)
            results.append(self._stage(plan, record))
            if results[-1].state is not StageState.PROMOTED:
                break
        tools.step("end")
        tools.journal.write(plan.plan_id, tools.reader.now(), "end")
        return tuple(results)

    def _intend(self, plan: Plan, stage: int) -> StageRecord:
        tools = self._tools
        snapshot = take_snapshot(tools.reader)
        try:
            rendered = self._backend.render(plan, stage, snapshot)
        except Refused:
            # Nothing of this stage was begun; the run is over, what earlier stages did stays.
            tools.journal.write(plan.plan_id, tools.reader.now(), "end")
            raise
        record = StageRecord(
            plan_id=plan.plan_id,
            stage=stage,
            canary=_canary(rendered, snapshot, tools.policy.canary_workloads),
            objects=object_intents(rendered),
            moves=list(rendered.moves),
        )
        tools.step(f"intend {stage}")
        tools.journal.begin_stage(record, tools.reader.now())
        return record

    def _stage(self, plan: Plan, record: StageRecord) -> StageResult:
        tools = self._tools
        if record.state is StageState.RESTORED:
            return StageResult(stage=record.stage, state=record.state, reason=record.reason, kept=record.kept)
        if record.state is StageState.RESTORING:
            return self._restore(plan, record, record.reason or "")
        canary = set(record.canary)
        batches = [("canary", canary)] if canary else []
        batches.append(("rest", {str(entry.workload) for entry in record.moves} - canary))
        for name, workloads in batches:
            tools.guard.check_frozen(tools.reader)
            try:
                reasons = self._batch(record, name, workloads, is_first=name == batches[0][0])
            except Refused as exc:
                reasons = [str(exc)]
            if reasons:
                more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
                return self._restore(plan, record, reasons[0] + more)
        tools.step(f"promote {record.stage}")
        tools.journal.write(plan.plan_id, tools.reader.now(), "promoted", stage=record.stage)
        tools.tell(plan.plan_id, record.stage, ProgressPhase.PROMOTED, f"stage {record.stage} is kept")
        for workload in dict.fromkeys(move.workload for move in record.moves):
            namespace, kind, object_name = workload.split("/")
            tools.writer.record_event(kind, namespace, object_name, "GputideApplied", f"plan {plan.plan_id}")
        return StageResult(stage=record.stage, state=StageState.PROMOTED, reason=None, kept=())

    def _batch(self, record: StageRecord, name: str, workloads: set[str], *, is_first: bool) -> list[str]:
        """Change and watch some workloads; returns what speaks against keeping them."""
        tools, carrier = self._tools, self._tools.carrier()
        moves = [move for move in record.moves if move.workload in workloads]
        if not moves:
            return []
        owners = {(move.namespace, move.pod): str(move.workload) for move in record.moves}
        total = len(record.moves)
        tools.tell(
            record.plan_id, record.stage, ProgressPhase.CHANGING, f"{name}: {len(workloads)} workloads", 0, total
        )
        for intent in record.objects:
            owner = owners.get((intent.namespace, intent.name)) if intent.kind == "Pod" else str(intent.workload)
            # Objects of no workload (node configuration) are what the others stand on: they go first.
            is_shared = owner not in set(owners.values())
            if owner in workloads or (is_shared and is_first):
                tools.take_lease()
                carrier.patch(intent)
        earlier = 0 if is_first else total - len(moves)

        def on_wave(wave: list[Move], done: int) -> None:
            tools.take_lease()
            text = f"{name}: {done} of {len(moves)} pods in place"
            tools.tell(record.plan_id, record.stage, ProgressPhase.MOVING, text, earlier + done, total)
            pods = [move.pod_id for move in wave]
            tools.journal.write(record.plan_id, tools.reader.now(), "evict", stage=record.stage, pods=pods)

        failures = carrier.move(moves, on_wave, strictly=True)
        if failures:
            return failures
        return self._watch(record, name, moves, earlier + len(moves))

    def _watch(self, record: StageRecord, name: str, moves: Sequence[Move], done: int) -> list[str]:
        tools, policy = self._tools, self._tools.policy
        pods = [move.pod_id for move in moves if move.new]
        if not pods:
            return []
        text = f"{name}: watching {len(pods)} pods for {policy.watch_seconds:.0f} s"
        tools.tell(record.plan_id, record.stage, ProgressPhase.WATCHING, text, done, len(record.moves))
        waited, found = 0.0, complaints(tools.signals.health(pods), pods, policy.watch)
        while not found and waited < policy.watch_seconds:
            tools.take_lease()
            pause = min(policy.watch_seconds - waited, max(policy.carry.poll_seconds, policy.watch_seconds / 5))
            tools.pause(pause)
            waited += pause
            found = complaints(tools.signals.health(pods), pods, policy.watch)
        tools.step(f"watched {name}")
        tools.journal.write(
            record.plan_id, tools.reader.now(), "watched", stage=record.stage, batch=name, complaints=list(found[:20])
        )
        return list(found)

    def _restore(self, plan: Plan, record: StageRecord, reason: str) -> StageResult:
        tools = self._tools
        if record.state is not StageState.RESTORING:
            tools.step(f"restoring {record.stage}")
            tools.journal.write(plan.plan_id, tools.reader.now(), "restoring", stage=record.stage, reason=reason)
        tools.tell(plan.plan_id, record.stage, ProgressPhase.RESTORING, reason, 0, len(record.moves))
        kept = take_back(tools, plan.plan_id, record.stage, record.objects, record.moves)
        tools.step(f"restored {record.stage}")
        tools.journal.write(plan.plan_id, tools.reader.now(), "restored", stage=record.stage, kept=list(kept))
        tools.tell(plan.plan_id, record.stage, ProgressPhase.RESTORED, f"stage {record.stage} is taken back: {reason}")
        return StageResult(stage=record.stage, state=StageState.RESTORED, reason=reason, kept=kept)


def take_back(
    tools: Tools, plan_id: str, stage: int, objects: Sequence[ObjectIntent], moves: Sequence[Move]
) -> tuple[str, ...]:
    """Restore objects and bring pods back to their old seats where they still are; may be repeated.

    Returns:
        What was kept and what could not go back to its old place, one sentence each.
    """
    carrier = tools.carrier()
    kept: list[str] = []
    for intent in reversed(objects):
        tools.take_lease()
        kept += carrier.restore(intent)

    def on_wave(wave: list[Move], done: int) -> None:
        tools.take_lease()
        text = f"{done} of {len(moves)} pods are back"
        tools.tell(plan_id, stage, ProgressPhase.RESTORING, text, done, len(moves))
        tools.journal.write(plan_id, tools.reader.now(), "evict_back", stage=stage, pods=[move.pod_id for move in wave])

    snapshot = take_snapshot(tools.reader)
    # A pod that somebody ended since, or whose owner was kept as it is, has no way back.
    left = {sentence.split(" ", 1)[0] for sentence in kept}
    back = [
        move
        for move in backwards(moves)
        if move.new and move.workload in snapshot.owners and move.workload not in left and move.pod_id in snapshot.seats
    ]
    failures = carrier.move(back, on_wave, strictly=False)
    return (*kept, *failures, *_elsewhere(back, take_snapshot(tools.reader)))


def _elsewhere(back: Sequence[Move], snapshot: Snapshot) -> tuple[str, ...]:
    """Pods that have their old grant again but, by the scheduler's choice, not on their old cards; in one sentence."""
    other = sorted(
        move.pod_id
        for move in back
        if (seat := snapshot.seats.get(move.pod_id)) is not None
        and seat.slices
        and set(seat.cards) != {part.card for part in move.new}
    )
    if not other:
        return ()
    more = f" and {len(other) - 1} more" if len(other) > 1 else ""
    return (f"{other[0]}{more} run with their old grant on other cards than before: the scheduler chose them",)


def object_intents(rendered: RenderedStage) -> list[ObjectIntent]:
    """The changes of a stage, one intent per object, in order."""
    grouped: dict[tuple[str, str, str], list[FieldIntent]] = {}
    first: dict[tuple[str, str, str], tuple[str, str]] = {}
    for change in rendered.changes:
        key = (change.kind, change.namespace, change.name)
        grouped.setdefault(key, []).append(FieldIntent(field=change.field, old=change.old, new=change.new))
        first.setdefault(key, (change.resource_version, change.recommendation))
    return [
        ObjectIntent(
            kind=key[0],
            namespace=key[1],
            name=key[2],
            resource_version=first[key][0],
            recommendation=first[key][1],
            fields=tuple(fields),
        )
        for key, fields in grouped.items()
    ]


def _canary(rendered: RenderedStage, snapshot: Snapshot, count: int) -> tuple[str, ...]:
    """The first workloads whose pods find room by themselves; none where the stage is one workload only."""
    by_workload: dict[WorkloadId, list[Move]] = {}
    for move in rendered.moves:
        by_workload.setdefault(move.workload, []).append(move)
    if len(by_workload) <= count:
        return ()
    card_mib = {card.card: card.framebuffer_mib for card in snapshot.cards.values()}
    found: list[str] = []
    # The smallest first: a canary should cost little.
    for workload, moves in sorted(by_workload.items(), key=lambda item: len(item[1])):
        if len(found) < count and can_go_alone(moves, snapshot.seats, card_mib):
            found.append(str(workload))
    return tuple(found)


def _open_run(journal: Journal, plan: Plan) -> RunRecord:
    for run in journal.runs(plan.plan_id):
        if run.is_open:
            return run
    raise Refused(f"cannot go on with plan {plan.plan_id}: no run of it is open")


def _promoted(journal: Journal, plan: Plan) -> frozenset[int]:
    return frozenset(
        number
        for run in journal.runs(plan.plan_id)
        for number, record in run.records.items()
        if record.state is StageState.PROMOTED
    )
