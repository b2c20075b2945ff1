"""Applies a plan, stage by stage: canary first, watched, then the rest, watched, then kept or taken back.

The front door and the plan page call it. What a stage means to do stands in the ledger before the first write, and
every step looks before it acts, so after a crash at any moment `resume` ends with each stage either fully applied or
fully restored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from enforcer.backend import Backend, Move
from enforcer.cluster import renew
from enforcer.plan_names import as_planned, with_real_names, with_top_owners
from enforcer.record.fingerprint import Fingerprint
from enforcer.record.journal import Journal, RunRecord, StageRecord, StageState
from enforcer.record.plan_store import Approval
from enforcer.rollout.carry import Load
from enforcer.rollout.holding import Phase
from enforcer.rollout.intents import intended_stage
from enforcer.rollout.progress import ProgressPhase
from enforcer.rollout.taking_back import Parts, take_back
from enforcer.rollout.tools import Tools
from enforcer.rollout.watch import complaints
from enforcer.safety.harm_budget import Brake, Judgement
from enforcer.snapshot import Snapshot
from fleet.decisions import Plan
from fleet.errors import Corrupt, Misconfigured, Refused


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


class Rollout:
    """Applies plans.

    Args:
        tools: what to work with.
        backend: renders stages.
    """

    def __init__(self, tools: Tools, backend: Backend) -> None:
        tools.dialect = backend.dialect
        self._tools = tools
        self._backend = backend

    @property
    def tools(self) -> Tools:
        """What it works with; an undo on the same cluster takes it as well."""
        return self._tools

    def apply(
        self,
        plan: Plan,
        stages: Sequence[int] | None = None,
        *,
        by: str,
        approved: Sequence[Approval] | Sequence[int] = (),
        fingerprint: Fingerprint | None = None,
    ) -> tuple[StageResult, ...]:
        """Apply stages of a plan; one that is restored ends the run.

        A run of the same plan that a crash left open is gone on with.

        Args:
            stages: numbers; all where None.
            by: who asked, for the ledger.
            approved: who approved which stages, or the stages alone.
            fingerprint: what the plan was made for, None where it was not kept.

        Returns:
            One result per stage that was begun; a stage that was promoted before counts as promoted.

        Raises:
            Refused: a guard said no; what had been promoted before stays.
            Corrupt: an object that a stage would change can't be read; what had been promoted before stays.
            Misconfigured: a right is missing; what had been promoted before stays.
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
            tools.journal.fence()
            with tools.following():
                # What was read before the lease was ours may be old.
                if run is None and not any(found.is_open for found in tools.journal.runs(plan.plan_id)):
                    runs = tools.journal.runs()
                    own = [found for found in runs if found.plan_id == plan.plan_id]
                    snapshot, _ = as_planned(tools.snapshot(), own)
                    tools.guard.check_cluster(with_top_owners(plan, snapshot), chosen, snapshot, fingerprint, runs)
                    self._begin(plan, chosen, by, snapshot)
                return self._run(plan)
        finally:
            tools.let_go()

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
            tools.journal.fence()
            with tools.following():
                return self._run(plan)
        finally:
            tools.let_go()

    def _begin(self, plan: Plan, stages: Sequence[int], by: str, snapshot: Snapshot) -> None:
        granted = sorted({card for seat in snapshot.seats.values() for card in seat.cards})
        self._tools.step("begin")
        self._tools.journal.write(
            plan.plan_id,
            self._tools.reader.now(),
            "begin",
            stages=list(stages),
            by=by,
            cards_granted=granted,
            cluster=plan.cluster,
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
            results.append(
                self._begun(plan, record) if record is not None else self._stage(plan, self._intend(plan, stage))
            )
            if results[-1].state is not StageState.PROMOTED:
                break
        tools.step("end")
        tools.journal.write(plan.plan_id, tools.reader.now(), "end")
        return tuple(results)

    def _begun(self, plan: Plan, record: StageRecord) -> StageResult:
        """Go on with a stage, if its owners and budgets still allow it."""
        tools = self._tools
        if record.state is StageState.OPEN:
            try:
                wave_max = tools.policy.carry.parallel_pods_max
                tools.guard.check_availability(record, tools.snapshot(), tools.reader, wave_max)
            except Refused as exc:
                return self._restore(plan, record, str(exc))
        return self._stage(plan, record)

    def _intend(self, plan: Plan, stage: int) -> StageRecord:
        tools = self._tools
        renew(tools.reader)
        snapshot, real = as_planned(tools.snapshot(), tools.journal.runs(plan.plan_id))
        try:
            rendered = with_real_names(self._backend.render(with_top_owners(plan, snapshot), stage, snapshot), real)
            record = intended_stage(
                plan.plan_id,
                rendered,
                snapshot,
                real,
                canary_workloads=tools.policy.canary_workloads,
                wave_max=tools.policy.carry.parallel_pods_max,
            )
            tools.guard.check_stage(record, snapshot, tools.reader, tools.policy.carry.parallel_pods_max)
        except (Refused, Corrupt, Misconfigured):
            # Nothing of this stage was begun; the run is over, what earlier stages did stays.
            tools.journal.write(plan.plan_id, tools.reader.now(), "end")
            raise
        for manifest in rendered.objects:
            # Nobody names them yet, and their names tell their content: one that a crash leaves behind does nothing.
            tools.before_write(f"make {manifest['kind']} {manifest['metadata']['name']}")
            tools.writer.make(manifest)
        tools.step(f"intend {stage}")
        tools.journal.begin_stage(record, tools.reader.now())
        return record

    def _stage(self, plan: Plan, record: StageRecord) -> StageResult:
        tools = self._tools
        if record.state is StageState.RESTORED:
            return StageResult(stage=record.stage, state=record.state, reason=record.reason, kept=record.kept)
        if record.state is StageState.RESTORING:
            return self._restore(plan, record, record.reason or "")
        for name, phase, workloads in _batches(record):
            tools.guard.check_frozen(tools.reader)
            found = self._judged(record)
            if found.brake is Brake.FREEZE:
                raise Refused(f"cannot go on with plan {plan.plan_id} for now: {found.reason}; undo it, or apply again")
            try:
                reasons = [found.reason] if found.brake is Brake.RESTORE else []
                reasons = reasons or self._batch(record, name, phase, workloads, is_slow=found.brake is Brake.SLOW)
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

    def _judged(self, record: StageRecord) -> Judgement:
        """What the harm budgets of everybody whom this plan has moved say now."""
        tools = self._tools
        if tools.harm is None:
            return Judgement(brake=Brake.NONE)
        runs = tools.journal.runs(record.plan_id)
        moved = {move.workload for run in runs for own in run.records.values() for move in own.moves}
        began_at = min((run.began_at for run in runs), default=tools.reader.now())
        found = tools.harm.judge(moved, began_at, tools.reader.now())
        if found.brake is not Brake.NONE:
            tools.journal.write(
                record.plan_id, tools.reader.now(), "harm", stage=record.stage, brake=found.brake.value,
                reason=found.reason,
            )  # fmt: skip
        return found

    def _batch(
        self, record: StageRecord, name: str, phase: Phase, workloads: frozenset[str], *, is_slow: bool
    ) -> list[str]:
        """Change and watch some workloads; returns what speaks against keeping them."""
        tools, carrier = self._tools, self._tools.carrier(is_slow=is_slow)
        moves = [move for move in record.moves if move.workload in workloads]
        parts = Parts.of(record.objects, record.moves)
        total = len(record.moves)
        tools.tell(
            record.plan_id, record.stage, ProgressPhase.CHANGING, f"{name}: {len(workloads)} workloads", 0, total
        )
        # Objects of no workload (node configuration) are what the others stand on: they go first.
        failures = tools.node_steps().empty(record.node_steps, record.plan_id)
        if failures:
            return failures
        for intent in (*parts.shared, *(pod for owner, pod in parts.pods if owner in workloads)):
            tools.keep_lease()
            carrier.objects.patch(intent, phase)
        failures = tools.node_steps().settle(record.node_steps, record.plan_id)
        if failures:
            return failures
        owners = {owner: intent for owner, intent in parts.owners.items() if owner in workloads}

        def on_wave(wave: Sequence[Move], done: int) -> None:
            tools.keep_lease()
            text = f"{name}: {done} of {len(moves)} pods in place"
            tools.tell(record.plan_id, record.stage, ProgressPhase.MOVING, text, done, total)
            pods = [move.live_id for move in wave]
            tools.journal.write(
                record.plan_id, tools.reader.now(), "evict", stage=record.stage, pods=pods, phase=phase.value
            )

        failures = carrier.carry(Load(moves=tuple(moves), intents=owners, phase=phase, is_strict=True), on_wave)
        if not failures:
            failures = self._watch(record, name, carrier.in_place(moves), len(moves))
        if not failures and phase is Phase.REST:
            carrier.look_at(owners)
            for intent in owners.values():
                tools.keep_lease()
                carrier.objects.hold(intent, Phase.SETTLED)
        return failures

    def _watch(self, record: StageRecord, name: str, pods: Sequence[str], done: int) -> list[str]:
        tools, policy = self._tools, self._tools.policy
        text = f"{name}: watching {len(pods)} pods for {policy.watch_seconds:.0f} s"
        tools.tell(record.plan_id, record.stage, ProgressPhase.WATCHING, text, done, len(record.moves))
        waited, found = 0.0, complaints(tools.signals.health(pods), pods, policy.watch)
        while pods and not found and waited < policy.watch_seconds:
            tools.keep_lease()
            pause = min(policy.watch_seconds - waited, max(policy.carry.poll_seconds, policy.watch_seconds / 5))
            tools.rest(pause)
            waited += pause
            if waited >= policy.watch_seconds:
                renew(tools.reader)
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
        kept = take_back(tools, plan.plan_id, record.stage, record.objects, record.moves, record.node_steps)
        tools.step(f"restored {record.stage}")
        tools.journal.write(plan.plan_id, tools.reader.now(), "restored", stage=record.stage, kept=list(kept))
        tools.tell(plan.plan_id, record.stage, ProgressPhase.RESTORED, f"stage {record.stage} is taken back: {reason}")
        return StageResult(stage=record.stage, state=StageState.RESTORED, reason=reason, kept=kept)


def _batches(record: StageRecord) -> list[tuple[str, Phase, frozenset[str]]]:
    """What is changed and watched one after the other: a pod of the canary, then everything."""
    every = frozenset(str(move.workload) for move in record.moves)
    canary = frozenset(record.canary)
    found = [("rest", Phase.REST, every)]
    if canary and "canary" not in record.watched:
        found.insert(0, ("canary", Phase.CANARY, canary))
    return found


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
