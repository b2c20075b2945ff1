"""Makes of a plan what is wanted what is in force: stages are applied, taken back, gone on with, or ended.

The wish stands with the plan (`spec.apply` of its `GpuPlan`). `gputide apply` and `undo` change it and do at once what
it asks for; a controller looks at every plan again and again. Both run this code, so whatever one leaves
half done the other ends. Nothing is concluded from how a difference arose, only from what is wanted, what is approved
and what the ledger says is in force.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from enforcer.reconcile import departures
from enforcer.record.journal import RunRecord, StageRecord, StageState
from enforcer.record.plan_status import PlanStatus, in_force, newest_records, plan_status, standing
from enforcer.record.plan_store import Approval, DamagedPlan, PlanStore, Wish, WishChange
from enforcer.rollout.abort import AbortResult, abort, how_ended, open_run, open_stages
from enforcer.rollout.progress import Progress, ProgressPhase
from enforcer.rollout.restore import StageResult, Stuck
from enforcer.rollout.stages import Rollout
from enforcer.rollout.undo import Undo, UndoResult, undone_by
from enforcer.safety.abort_wish import Aborted, aborted_by
from fleet.decisions import Plan
from fleet.errors import Corrupt, GputideError, Misconfigured, Refused
from fleet.inventory import WorkloadId
from fleet.logs import logger
from fleet.sentences import sentence
from wire.telemetry import span

_WATCH_SECONDS = 2.0
_UNDER_WAY = (ProgressPhase.CHANGING, ProgressPhase.MOVING, ProgressPhase.WATCHING)

_log = logger("enforcer.rollout.reconciler")

Report = Callable[[str, PlanStatus], None]
"""Takes where a plan stands, by its id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """What differs between what is wanted of a plan and what is in force.

    Attributes:
        remove: stages in force that are no longer wanted.
        add: stages that are wanted, approved and not in force.
    """

    open_undo: bool
    unwanted_run: bool
    open_run: bool
    remove: tuple[int, ...]
    add: tuple[int, ...]

    @property
    def is_nothing(self) -> bool:
        """Whether everything is as it is wanted."""
        return not (self.open_undo or self.unwanted_run or self.open_run or self.remove or self.add)


def due(
    wish: Wish,
    runs: Sequence[RunRecord],
    approved: frozenset[int],
    *,
    is_undoing: bool,
    tides: Callable[[], frozenset[int]] = frozenset,
) -> Due:
    """What there is to do for a plan.

    A stage that was taken back is not tried again before the wish changes: what spoke against it would do so again.

    Args:
        tides: says which stages are left to `gputide run tide`; asked only where a stage is to be applied.
    """
    applied = in_force(runs)
    wanted = wish.wanted(applied)
    run = next((found for found in runs if found.is_open), None)
    left = () if run is None else tuple(record.stage for record in open_stages(run))
    add = () if wish.has_failed else tuple(sorted((wanted & approved) - applied))
    is_unwanted = run is not None and wish.stages is not None and not set(left or run.stages) & wish.stages
    return Due(
        open_undo=is_undoing,
        unwanted_run=is_unwanted,
        open_run=run is not None and not is_unwanted,
        remove=tuple(sorted(applied - wanted)),
        add=tuple(stage for stage in add if stage not in tides()) if add else (),
    )


class Reconciler:
    """Does for one plan at a time what is wanted of it.

    Each call raises `Unavailable` where the cluster can't be reached.

    Args:
        rollout: applies stages; its tools take them back.
        report: called with where a plan stands after each change, and at each step of a stage.
    """

    def __init__(self, rollout: Rollout, plans: PlanStore, report: Report) -> None:
        self._rollout = rollout
        self.tools = rollout.tools
        self._plans = plans
        self._report = report
        self._departed: Mapping[str, Mapping[WorkloadId, str]] | None = None
        self._stages: dict[str, tuple[tuple[int, ...], frozenset[int]]] = {}
        self._heard: tuple[str, int, str] | None = None
        self._pass_on, self.tools.on_progress = self.tools.on_progress, self._on_progress

    def want(self, plan_id: str, *, add: Iterable[int] = (), remove: Iterable[int] = (), by: str) -> Wish:
        """Change which stages of a plan are wanted in force."""
        applied = in_force(self.tools.journal.runs(plan_id))
        change = WishChange(add=frozenset(add), remove=frozenset(remove), by=by, in_force=applied)
        return self._plans.change_wish(plan_id, change)

    def apply(self, plan: Plan, stages: Sequence[int], *, by: str) -> tuple[StageResult, ...]:
        """Want stages in force, and apply them now. Those that were not kept are no longer wanted afterwards.

        Returns:
            One result per stage that was begun, none of the tide's: these are neither wanted in force nor applied.

        Raises:
            As `Rollout.apply`. A run that is left open is still wanted: call again, or let a controller go on.
        """
        rolled = _rolled(plan, stages)
        if stages and not rolled:
            return ()
        stages = rolled
        approvals = self._plans.approvals(plan.plan_id)
        wish = self.want(plan.plan_id, add=stages, by=by)
        failed: int | None = None
        try:
            results = self._applied(plan, stages, by)
            failed = _failure(results, wish, failed)
            return results
        finally:
            runs = self.tools.journal.runs(plan.plan_id)
            if not any(run.is_open for run in runs):
                self.want(plan.plan_id, remove=frozenset(stages) - in_force(runs), by=by)
            self._say(plan.plan_id, approvals, failed=failed)

    def undo(
        self,
        plan_id: str,
        stages: Sequence[int] | None = None,
        *,
        by: str,
        recommendation: str | None = None,
        ending: RunRecord | None = None,
    ) -> UndoResult:
        """No longer want stages of a plan, all where None, and take them back now.

        Args:
            recommendation: only this one, of stages that stay wanted; all where None.

        Raises:
            As `Undo.undo`.
        """
        if recommendation is None:
            applied = in_force(self.tools.journal.runs(plan_id))
            self.want(plan_id, remove=applied if stages is None else stages, by=by)
        try:
            with span("gputide.undo.plan"):
                return Undo(self.tools).undo(plan_id, stages=stages, recommendation=recommendation, ending=ending)
        finally:
            self.say(plan_id)

    def undo_all(self, *, by: str) -> tuple[UndoResult, ...]:
        """No longer want anything that is in force, and take it back now, the last plan first.

        Raises:
            Refused: nothing is applied, or as `undo`.
        """
        plans = Undo(self.tools).applied_plans()
        if not plans:
            raise Refused(sentence("guard.nothing_applied"))
        return tuple(self.undo(plan_id, by=by) for plan_id in plans)

    def abort(self, run: RunRecord, *, by: str) -> AbortResult:
        """No longer want what a run has not promoted yet, and end it now.

        Raises:
            As `enforcer.rollout.abort.abort`.
        """
        self._plans.change_wish(run.plan_id, end_of(run, self.tools.journal.runs(run.plan_id), by=by))
        try:
            return abort(self.tools, run, by=by)
        finally:
            self.say(run.plan_id)

    def say(self, plan_id: str) -> None:
        """Report where a plan stands, if there still is one."""
        if plan_id in self._plans.wishes():
            self._say(plan_id, self._plans.approvals(plan_id))

    def look_for_departures(self) -> None:
        """Find out which services of plans in force have pods elsewhere than planned; what is reported says so."""
        self._departed = departures(self.tools.journal, self.tools.reader)

    def departed(self, plan_id: str) -> Mapping[WorkloadId, str] | None:
        """Services of a plan with pods elsewhere than planned, and why; None where nobody has looked."""
        return None if self._departed is None else self._departed.get(plan_id, {})

    def say_damaged(self, plan_id: str, damaged: DamagedPlan) -> None:
        """Report that a plan can't be read, so that nothing is done for it."""
        wish, runs = damaged.wish, self.tools.journal.runs(plan_id)
        approved = {stage for approval in damaged.approvals for stage in approval.stages}
        stages = sorted(approved | (wish.stages or frozenset()) | newest_records(runs).keys())
        status = plan_status(
            stages, damaged.approvals, runs, wish, refusal=damaged.why, failed_generation=wish.failed_generation,
            departed=self.departed(plan_id),
        )  # fmt: skip
        self._report(plan_id, status)

    def end_orphan(self, plan_id: str) -> bool:
        """End what a dead process left open of a plan that is not listed: its undo; its run, where the plan is gone.

        Returns:
            Whether there was something.

        Raises:
            As `Undo.resume` and `enforcer.rollout.abort.abort`.
        """
        tools = self.tools
        if Undo(tools).resume(plan_id) is not None:
            return True
        run = open_run(tools.journal, plan_id)
        # It may have been stored since plans were listed, or be damaged.
        if run is None or not self._plans.wish(plan_id).is_gone:
            return False
        abort(tools, run, by="")
        return True

    def reconcile(self, plan: Plan) -> bool:
        """Do what is due for a plan; returns whether anything was due.

        Raises:
            Refused: a guard says no, or somebody else holds the lease.
            Corrupt: an object that a stage would change can't be read.
            Misconfigured: a right is missing.
            Unavailable: the cluster can't be reached; call again to go on.
            Stuck: what is taken back waits for pods that don't get ready; call again to go on.
        """
        tools, plan_id = self.tools, plan.plan_id
        approvals, wish = self._plans.approvals(plan_id), self._plans.wish(plan_id)
        by = wish.by or "controller"
        try:
            runs = tools.journal.runs(plan_id)
        except Corrupt:
            self._say(plan_id, approvals)
            raise
        approved = frozenset(stage for approval in approvals for stage in approval.stages)
        found = due(
            wish, runs, approved, is_undoing=plan_id in tools.journal.open_undos(), tides=lambda: plan.tide_stages
        )  # fmt: skip
        if found.is_nothing:
            self._say(plan_id, approvals)
            return False
        refusal: str | None = None
        failed = wish.failed_generation
        try:
            if found.open_undo:
                Undo(tools).resume(plan_id)
            elif found.unwanted_run:
                run = open_run(tools.journal, plan_id)
                if run is not None:
                    abort(tools, run, by=by)
            elif found.open_run:
                results = self._rollout.resume(plan, approved=lambda: self._plans.approvals(plan_id))
                failed = _failure(results, wish, failed)
            elif found.remove:
                Undo(tools).undo(plan_id, stages=found.remove)
            else:
                failed = _failure(self._applied(plan, found.add, by), wish, failed)
        except Aborted:
            pass  # between two stages: what is wanted now is seen when it is called again
        except (Refused, Corrupt, Misconfigured, Stuck) as exc:
            refusal = str(exc)
            raise
        finally:
            self._say(plan_id, approvals, refusal=refusal, failed=failed)
        return True

    def _applied(self, plan: Plan, stages: Sequence[int], by: str) -> tuple[StageResult, ...]:
        plans, plan_id = self._plans, plan.plan_id
        return self._rollout.apply(
            plan, stages, by=by, approved=lambda: plans.approvals(plan_id), fingerprint=plans.fingerprint(plan_id)
        )

    def _on_progress(self, news: Progress) -> None:
        """Pass news on, and report where the plan stands once for each step that one of its stages takes."""
        self._pass_on(news)
        step = "open" if news.phase in _UNDER_WAY else news.phase.value
        if self._heard == (news.plan_id, news.stage, step):
            return
        self._heard = news.plan_id, news.stage, step
        try:
            self._say(news.plan_id, self._plans.copied_approvals(news.plan_id))
        except GputideError as exc:
            # Nobody waits for a report; what is wrong with the cluster, the run finds out by itself.
            _log.warning("where a plan stands can't be reported now", plan=news.plan_id, why=str(exc))

    def _say(
        self, plan_id: str, approvals: Sequence[Approval], *, refusal: str | None = None, failed: int | None = None
    ) -> None:
        wish = self._plans.wish(plan_id)
        try:
            runs = self.tools.journal.runs(plan_id)
        except Corrupt as exc:  # then what the folder holds of it is shown, and why nothing is done
            runs, refusal = [run for run in self.tools.journal.runs() if run.plan_id == plan_id], str(exc)
        generation = wish.failed_generation if failed is None else failed
        every, tides = self._known_stages(plan_id)
        status = plan_status(
            every, approvals, runs, wish, refusal=refusal, failed_generation=generation,
            departed=self.departed(plan_id), tides=tides,
        )  # fmt: skip
        self._report(plan_id, status)

    def tide_stages(self, plan_id: str) -> frozenset[int]:
        """Stages of a plan that are left to `gputide run tide`."""
        return self._known_stages(plan_id)[1]

    def _known_stages(self, plan_id: str) -> tuple[tuple[int, ...], frozenset[int]]:
        """All stages of a plan, and those of the tide; a large plan takes seconds to read."""
        if plan_id not in self._stages:
            plan = self._plans.get(plan_id)
            self._stages[plan_id] = tuple(entry.stage for entry in plan.stages), plan.tide_stages
        return self._stages[plan_id]


class Delegated(Reconciler):
    """Says what is wanted, and watches how a controller does it; where that one is gone, does it itself.

    Each call raises `Unavailable` where the cluster can't be reached.

    Args:
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
        """
        tools, plan_id, rolled = self.tools, plan.plan_id, _rolled(plan, stages)
        if stages and not rolled:
            return ()
        stages = rolled
        tools.guard.check_frozen(tools.reader)
        tools.guard.check_plan(plan, stages, self._plans.approvals(plan_id), tools.reader.now())
        runs = tools.journal.runs(plan_id)
        known = sum(not run.is_open for run in runs)
        before = self._plans.wish(plan_id)
        if before.has_failed or before.refusal:
            # It is tried again by a wish that is new; what is under way stays wanted.
            under_way = {stage for run in runs if run.is_open for stage in run.stages}
            self.want(plan_id, remove=frozenset(stages) - in_force(runs) - under_way, by=by)
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
        self,
        plan_id: str,
        stages: Sequence[int] | None = None,
        *,
        by: str,
        recommendation: str | None = None,
        ending: RunRecord | None = None,
    ) -> UndoResult:
        """See `Reconciler`. One recommendation is taken back here: a wish is of whole stages.

        Raises:
            Refused: nothing of it is applied, or a guard says no there.
        """
        tools = self.tools
        if recommendation is not None:
            return super().undo(plan_id, stages, by=by, recommendation=recommendation, ending=ending)
        ended = None if ending is None else self.abort(ending, by=by)
        asked = standing(tools.journal.runs(plan_id), stages)
        if ended is not None and not asked:
            return undone_by(ended)
        record = Undo(tools).preview(plan_id, stages=stages)
        self.want(plan_id, remove=asked, by=by)

        def is_done() -> bool:
            runs = tools.journal.runs(plan_id)
            is_open = any(run.is_open for run in runs) or plan_id in tools.journal.open_undos()
            return not is_open and not standing(runs, asked)

        if not self._watched(plan_id, is_done):
            return super().undo(plan_id, stages, by=by)
        records = newest_records(tools.journal.runs(plan_id))
        return UndoResult(
            plan_id=plan_id,
            stages=record.stages,
            recommendation=None,
            workloads=tuple(sorted({str(move.workload) for move in record.moves})),
            kept=tuple(dict.fromkeys(item for stage in record.stages for item in records[stage].kept)),
        )

    def abort(self, run: RunRecord, *, by: str) -> AbortResult:
        """See `Reconciler`.

        Raises:
            Refused: a guard says no there.
        """
        journal = self.tools.journal
        self._plans.change_wish(run.plan_id, end_of(run, journal.runs(run.plan_id), by=by))
        is_ended = self._watched(run.plan_id, lambda: open_run(journal, run.plan_id) is None)
        return how_ended(journal, run) if is_ended else super().abort(run, by=by)

    def _watched(self, plan_id: str, is_done: Callable[[], bool]) -> bool:
        """Wait until the controller has done something; False where it, or the plan, is gone before.

        Raises:
            Refused: it can't, and why.
        """
        while self._controller() is not None:
            if is_done():
                return True
            wish = self._plans.wish(plan_id)
            if wish.refusal:
                raise Refused(wish.refusal)
            if not wish.generation:
                return False  # its GpuPlan is gone, so nobody can be asked
            self.tools.pause(_WATCH_SECONDS)
        return False


def _rolled(plan: Plan, stages: Sequence[int]) -> tuple[int, ...]:
    """Those of some stages that apply carries out."""
    tides = plan.tide_stages
    return tuple(stage for stage in stages if stage not in tides)


def _result(stage: int, applied: frozenset[int], records: Mapping[int, StageRecord]) -> StageResult:
    if stage in applied:
        return StageResult(stage=stage, state=StageState.PROMOTED)
    return StageResult.of(records[stage])


def end_of(run: RunRecord, runs: Sequence[RunRecord], *, by: str) -> WishChange:
    """The wish that ends a run: what of it is not in force yet is no longer wanted."""
    kept = in_force(runs)
    return WishChange(remove=frozenset(run.stages) - kept, by=by, in_force=kept)


def _failure(results: Sequence[StageResult], wish: Wish, before: int | None) -> int | None:
    """The generation of the wish at which a stage was last taken back."""
    return wish.generation if any(result.state is not StageState.PROMOTED for result in results) else before
