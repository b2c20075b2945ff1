"""Makes of a plan what is wanted what is in force: stages are applied, taken back, gone on with, or ended.

The wish stands with the plan (`spec.apply` of its `GpuPlan`). `gputide apply` and `undo` change it and do at once what
it asks for; a controller looks at every plan again and again. Both run this code, so whatever one leaves
half done the other ends. Nothing is concluded from how a difference arose, only from what is wanted, what is approved
and what the ledger says is in force.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from enforcer.record.journal import RunRecord, StageRecord, StageState
from enforcer.record.plan_status import PlanStatus, in_force, newest_records, plan_status
from enforcer.record.plan_store import Approval, PlanStore, Wish, WishChange
from enforcer.rollout.abort import abort, open_run, open_stages
from enforcer.rollout.stages import Rollout
from enforcer.rollout.taking_back import StageResult
from enforcer.rollout.tools import Tools
from enforcer.rollout.undo import Undo, UndoResult
from enforcer.safety.abort import Aborted, aborted_by
from fleet.decisions import Plan
from fleet.errors import Corrupt, Misconfigured, Refused

_WATCH_SECONDS = 2.0

Report = Callable[[str, PlanStatus], None]
"""Takes where a plan stands, by its id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """What differs between what is wanted of a plan and what is in force.

    Attributes:
        unwanted_run: a run is open whose stage is no longer wanted.
        open_run: a run is open whose stage is wanted.
        remove: stages in force that are no longer wanted.
        add: stages that are wanted, approved and not in force.
    """

    unwanted_run: bool
    open_run: bool
    remove: tuple[int, ...]
    add: tuple[int, ...]

    @property
    def is_nothing(self) -> bool:
        """Whether everything is as it is wanted."""
        return not (self.unwanted_run or self.open_run or self.remove or self.add)


def due(wish: Wish, runs: Sequence[RunRecord], approved: frozenset[int]) -> Due:
    """What there is to do for a plan.

    A stage that was taken back is not tried again before the wish changes: what spoke against it would do so again.

    Args:
        runs: of the plan, oldest first.
        approved: stages that somebody approved.
    """
    applied = in_force(runs)
    wanted = applied if wish.stages is None else wish.stages
    run = next((found for found in runs if found.is_open), None)
    left = () if run is None else tuple(record.stage for record in open_stages(run))
    is_unwanted = run is not None and wish.stages is not None and not set(left or run.stages) & wish.stages
    has_failed = wish.failed_generation is not None and wish.failed_generation >= wish.generation
    return Due(
        unwanted_run=is_unwanted,
        open_run=run is not None and not is_unwanted,
        remove=tuple(sorted(applied - wanted)),
        add=() if has_failed else tuple(sorted((wanted & approved) - applied)),
    )


class Reconciler:
    """Does for one plan at a time what is wanted of it.

    Args:
        rollout: applies stages; its tools take them back.
        plans: the plans, who approved them, what is wanted of them.
        report: called with where a plan stands after each change.
    """

    def __init__(self, rollout: Rollout, plans: PlanStore, report: Report) -> None:
        self._rollout = rollout
        self._tools = rollout.tools
        self._plans = plans
        self._report = report

    @property
    def tools(self) -> Tools:
        """What it works with."""
        return self._tools

    def want(self, plan_id: str, *, add: Iterable[int] = (), remove: Iterable[int] = (), by: str) -> Wish:
        """Change which stages of a plan are wanted in force.

        Raises:
            Unavailable: the cluster can't be reached.
        """
        applied = in_force(self._tools.journal.runs(plan_id))
        change = WishChange(add=frozenset(add), remove=frozenset(remove), by=by, in_force=applied)
        return self._plans.change_wish(plan_id, change)

    def apply(self, plan: Plan, stages: Sequence[int], *, by: str) -> tuple[StageResult, ...]:
        """Want stages in force, and apply them now. Those that were not kept are no longer wanted afterwards.

        Raises:
            As `Rollout.apply`. A run that is left open is still wanted: call again, or let a controller go on.
        """
        approvals = self._plans.approvals(plan.plan_id)
        self.want(plan.plan_id, add=stages, by=by)
        try:
            return self._applied(plan, stages, by, approvals)
        finally:
            runs = self._tools.journal.runs(plan.plan_id)
            if not any(run.is_open for run in runs):
                self.want(plan.plan_id, remove=frozenset(stages) - in_force(runs), by=by)
            self._say(plan, approvals)

    def undo(
        self, plan_id: str, stages: Sequence[int] | None = None, *, by: str, ending: RunRecord | None = None
    ) -> UndoResult:
        """No longer want stages of a plan, all where None, and take them back now.

        Args:
            by: who asks.
            ending: as `Undo.undo` has it.

        Raises:
            As `Undo.undo`.
        """
        applied = in_force(self._tools.journal.runs(plan_id))
        self.want(plan_id, remove=applied if stages is None else stages, by=by)
        return Undo(self._tools).undo(plan_id, stages=stages, ending=ending)

    def undo_all(self, *, by: str) -> tuple[UndoResult, ...]:
        """No longer want anything that is in force, and take it back now, the last plan first.

        Raises:
            As `Undo.undo_all`.
        """
        undo = Undo(self._tools)
        for plan_id in undo.applied_plans():
            self.want(plan_id, remove=in_force(self._tools.journal.runs(plan_id)), by=by)
        return undo.undo_all()

    def resume_undo(self) -> bool:
        """Go on with an undo that a dead process left open; whether there was one.

        Raises:
            As `Undo.resume`.
        """
        return self._tools.journal.open_undo() is not None and Undo(self._tools).resume() is not None

    def reconcile(self, plan: Plan) -> bool:
        """Do what is due for a plan.

        Returns:
            Whether anything was due.

        Raises:
            Refused: a guard says no, or somebody else holds the lease.
            Corrupt: an object that a stage would change can't be read.
            Misconfigured: a right is missing.
            Unavailable: the cluster can't be reached; call again to go on.
        """
        tools, plan_id = self._tools, plan.plan_id
        approvals, wish = self._plans.approvals(plan_id), self._plans.wish(plan_id)
        by = wish.by or "controller"
        runs = tools.journal.runs(plan_id)
        found = due(wish, runs, frozenset(stage for approval in approvals for stage in approval.stages))
        if found.is_nothing:
            self._say(plan, approvals)
            return False
        refusal: str | None = None
        failed = wish.failed_generation
        try:
            if found.unwanted_run:
                run = open_run(tools.journal, plan_id)
                if run is not None:
                    abort(tools, run, by=by)
            elif found.open_run:
                failed = _failure(self._rollout.resume(plan), wish, failed)
            elif found.remove:
                Undo(tools).undo(plan_id, stages=found.remove)
            else:
                failed = _failure(self._applied(plan, found.add, by, approvals), wish, failed)
        except Aborted:
            pass  # between two stages: what is wanted now is seen when it is called again
        except (Refused, Corrupt, Misconfigured) as exc:
            refusal = str(exc)
            raise
        finally:
            self._say(plan, approvals, refusal=refusal, failed=failed)
        return True

    def _applied(
        self, plan: Plan, stages: Sequence[int], by: str, approvals: Sequence[Approval]
    ) -> tuple[StageResult, ...]:
        return self._rollout.apply(
            plan, stages, by=by, approved=approvals, fingerprint=self._plans.fingerprint(plan.plan_id)
        )

    def _say(
        self, plan: Plan, approvals: Sequence[Approval], *, refusal: str | None = None, failed: int | None = None
    ) -> None:
        wish = self._plans.wish(plan.plan_id)
        runs = self._tools.journal.runs(plan.plan_id)
        generation = wish.failed_generation if failed is None else failed
        self._report(
            plan.plan_id, plan_status(plan, approvals, runs, wish, refusal=refusal, failed_generation=generation)
        )


class Delegated(Reconciler):
    """Says what is wanted, and watches how a controller does it; where that one is gone, does it itself.

    Args:
        rollout: as `Reconciler` has it.
        plans: as `Reconciler` has it.
        report: as `Reconciler` has it.
        controller: says who is the controller now; None for nobody.
    """

    def __init__(
        self, rollout: Rollout, plans: PlanStore, report: Report, controller: Callable[[], str | None]
    ) -> None:
        super().__init__(rollout, plans, report)
        self._controller = controller

    def apply(self, plan: Plan, stages: Sequence[int], *, by: str) -> tuple[StageResult, ...]:
        """See `Reconciler`.

        Raises:
            Refused: a guard says no, here or there; somebody no longer wants a stage.
            Unavailable: the cluster can't be reached.
        """
        tools, plan_id = self._tools, plan.plan_id
        tools.guard.check_frozen(tools.reader)
        tools.guard.check_plan(plan, stages, self._plans.approvals(plan_id), tools.reader.now())
        known = len(tools.journal.runs(plan_id))
        # What was tried before and taken back is tried again by a wish that is new.
        self.want(plan_id, remove=frozenset(stages) - in_force(tools.journal.runs(plan_id)), by=by)
        self.want(plan_id, add=stages, by=by)
        while self._controller() is not None:
            runs = tools.journal.runs(plan_id)
            records = newest_records(runs[known:])
            is_open, applied, wish = any(run.is_open for run in runs), in_force(runs), self._plans.wish(plan_id)
            left = frozenset(stages) - applied
            ended = {number for number in left & records.keys() if records[number].state is StageState.RESTORED}
            if not left or (ended and not is_open):
                self.want(plan_id, remove=left, by=by)
                shown = sorted((frozenset(stages) & applied) | ended)
                return tuple(_result(stage, applied, records) for stage in shown)
            if wish.refusal and not is_open:
                self.want(plan_id, remove=left, by=by)
                raise Refused(wish.refusal)
            if not is_open and wish.stages is not None and not left <= wish.stages:
                raise Aborted(aborted_by(wish.by))
            tools.pause(_WATCH_SECONDS)
        return super().apply(plan, stages, by=by)

    def undo(
        self, plan_id: str, stages: Sequence[int] | None = None, *, by: str, ending: RunRecord | None = None
    ) -> UndoResult:
        """See `Reconciler`.

        Raises:
            Refused: nothing of it is applied, or a guard says no there.
            Unavailable: the cluster can't be reached.
        """
        tools = self._tools
        applied = in_force(tools.journal.runs(plan_id))
        asked = applied if stages is None else frozenset(stages) & applied
        if not asked:
            return super().undo(plan_id, stages, by=by, ending=ending)
        record = Undo(tools).preview(plan_id, stages=sorted(asked))
        self.want(plan_id, remove=asked, by=by)
        while self._controller() is not None:
            if not asked & in_force(tools.journal.runs(plan_id)) and tools.journal.open_undo() is None:
                return UndoResult(
                    plan_id=plan_id,
                    stages=record.stages,
                    recommendation=None,
                    workloads=tuple(sorted({str(move.workload) for move in record.moves})),
                    kept=(),
                )
            refusal = self._plans.wish(plan_id).refusal
            if refusal:
                raise Refused(refusal)
            tools.pause(_WATCH_SECONDS)
        return super().undo(plan_id, stages, by=by, ending=ending)


def _result(stage: int, applied: frozenset[int], records: Mapping[int, StageRecord]) -> StageResult:
    if stage in applied:
        return StageResult(stage=stage, state=StageState.PROMOTED, reason=None, kept=())
    record = records[stage]
    return StageResult(stage=stage, state=record.state, reason=record.reason, kept=record.kept)


def end_of(run: RunRecord, *, by: str) -> WishChange:
    """The wish that ends a run: what it has not promoted yet is no longer wanted.

    Args:
        by: who says so.
    """
    promoted = frozenset(number for number, record in run.records.items() if record.state is StageState.PROMOTED)
    return WishChange(remove=frozenset(run.stages) - promoted, by=by, in_force=frozenset(run.stages))


def _failure(results: Sequence[StageResult], wish: Wish, before: int | None) -> int | None:
    """The generation of the wish at which a stage was last taken back."""
    return wish.generation if any(result.state is not StageState.PROMOTED for result in results) else before
