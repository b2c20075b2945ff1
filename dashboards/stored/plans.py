"""Plans, their approvals and what they would change; rollouts and undos in the background, one at a time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime

from dashboards.queries import (
    ObjectProgress,
    PlanEntry,
    RolloutPhase,
    RolloutProgress,
    UndoPreview,
)
from dashboards.view_models.stage_diffs import stage_diffs
from enforcer.preview import ObjectDiff, StagePreview
from enforcer.record.journal import Journal, StageRecord, StageState
from enforcer.record.ledger import ledger_at
from enforcer.record.plan_cache import PlanCache
from enforcer.record.plan_status import unrelieved_harm
from enforcer.record.plan_store import PlanStore
from enforcer.record.request_log import RequestLog
from enforcer.record.savings import stages_in_place
from enforcer.rollout.abort import open_run
from enforcer.rollout.progress import Progress, ProgressPhase
from enforcer.rollout.reconciler import Reconciler, end_of
from enforcer.rollout.undo import Undo
from enforcer.safety.abort_wish import stopped
from enforcer.safety.freeze import frozen_by
from enforcer.safety.guard import Guard
from fleet.data_folder import DataFolder, writing
from fleet.decisions import Plan
from fleet.errors import Corrupt, GputideError, Misconfigured, Refused
from fleet.inventory import WorkloadId
from fleet.logs import logger
from fleet.outcomes import ChangePhase
from fleet.sentences import Sentence, listed, sentence
from fleet.units import format_percent

_log = logger(__name__)
_PHASES = {
    ProgressPhase.CHANGING: RolloutPhase.APPLYING,
    ProgressPhase.MOVING: RolloutPhase.APPLYING,
    ProgressPhase.WATCHING: RolloutPhase.WATCHING,
    ProgressPhase.PROMOTED: RolloutPhase.APPLYING,
    ProgressPhase.RESTORING: RolloutPhase.RESTORING,
    ProgressPhase.RESTORED: RolloutPhase.RESTORING,
}
_STATES = {
    StageState.PROMOTED: ChangePhase.PROMOTED,
    StageState.RESTORED: ChangePhase.RESTORED,
    StageState.UNDONE: ChangePhase.RESTORED,
}
_ENDED = frozenset({ChangePhase.PROMOTED, ChangePhase.RESTORED, ChangePhase.REFUSED})
"""Phases after which nothing happens to a workload."""
_COPY_SECONDS = 30.0
"""How old the folder's copy of a cluster's plans may be."""
_IDLE = RolloutProgress(phase=RolloutPhase.NOT_STARTED, done=0, total=0)


class StoredPlans:
    """`Plans` over the plan store and the ledger of a data folder.

    Args:
        preview: what stages of a plan would change in the cluster as it is.
        open_plans: opens the plans as their cluster keeps them, and copies them to the folder.
        signs_in: people sign in, so that a real cluster is asked in their names; else in that of who runs the app.
    """

    def __init__(
        self,
        folder: DataFolder,
        plans: PlanCache,
        now: Callable[[], datetime],
        *,
        guard: Callable[[], Guard],
        preview: Callable[[Plan, tuple[int, ...]], tuple[StagePreview, ...]],
        open_plans: Callable[[], AbstractContextManager[PlanStore]],
        signs_in: bool = False,
    ) -> None:
        self._folder = folder
        self._plans = plans
        self._now = now
        self._guard = guard
        self._preview = preview
        self._open_plans = open_plans
        self._signs_in = signs_in
        self._store = PlanStore(folder.plans)
        self._lock = threading.Lock()
        self._copied_at: float | None = None

    def plans(self, cluster: str) -> tuple[PlanEntry, ...]:
        """All plans of a cluster, newest first, switches of nodes after all others.

        Those that its cluster got lately come with a later call.
        """
        self._copy()
        newest_first = self._plans.plans(cluster)[::-1]
        return tuple(map(self._entry, sorted(newest_first, key=lambda plan: plan.is_of_node)))

    def plan(self, plan_id: str) -> PlanEntry | None:
        """One plan; None where there is none of this id."""
        try:
            return self._entry(self._plans.get(plan_id))
        except (Misconfigured, Refused, Corrupt):
            return None

    def approve(self, plan_id: str, stages: tuple[int, ...], by: str) -> PlanEntry:
        """Approve stages in a person's name."""
        plan = self._store.get(plan_id)
        with self._lock, writing(self._folder), self._open_plans() as plans:
            is_named = self._signs_in or not plans.signs_as_user(plan)
            plans.approve(plan, stages, by=by if is_named else "", at=self._now())
        return self._entry(plan)

    def preview(self, plan_id: str, stages: tuple[int, ...]) -> tuple[ObjectDiff, ...]:
        """What the stages would change, asked of the cluster without changing anything."""
        found = self._preview(self._store.get(plan_id), stages)
        return tuple(diff for stage in found for diff in stage_diffs(stage))

    def _copy(self) -> None:
        """Copy what the cluster has, in the background and not too often."""
        now = time.monotonic()
        with self._lock:
            if self._copied_at is not None and now - self._copied_at < _COPY_SECONDS:
                return
            self._copied_at = now

        def copy() -> None:
            try:
                with self._open_plans():
                    pass
            except GputideError as exc:
                _log.warning("plans of the cluster are not read; the folder's are shown", why=str(exc))

        threading.Thread(target=copy, name="copying plans", daemon=True).start()

    def _entry(self, plan: Plan) -> PlanEntry:
        approvals = self._store.approvals(plan.plan_id)
        approved = tuple(sorted({stage for approval in approvals for stage in approval.stages}))
        kept = Journal(ledger_at(self._folder, self._folder.ledger))
        records = [record for run in kept.runs(plan.plan_id) for record in run.records.values()]
        placed = self._plans.planned_cards(plan) if records else {}
        applied = _in_place(plan, placed, [record for record in records if record.state is StageState.PROMOTED])
        once_applied = [record for record in records if record.applied_at is not None]
        moments = [record.applied_at for record in records if record.applied_at is not None]
        undone = [record.undone_at for record in records if record.undone_at is not None]
        return PlanEntry(
            plan=plan,
            approved_stages=approved,
            approved_by=tuple(dict.fromkeys(approval.by for approval in approvals)),
            applied_stages=applied,
            once_applied_stages=_in_place(plan, placed, once_applied),
            undone_recommendations=frozenset(item for _, item in kept.undone_recommendations(plan.plan_id)),
            applied_at=min(moments, default=None),
            undone_at=max(undone, default=None) if not applied else None,
            apply_refusal=self._refusal(plan, approved, applied),
            request=RequestLog(self._folder).newest(plan.plan_id),
        )

    def _refusal(self, plan: Plan, approved: tuple[int, ...], applied: tuple[int, ...]) -> Sentence | str | None:
        """Why the approved stages can't be applied now; None where they can."""
        frozen = frozen_by(self._folder.freeze)
        if frozen is not None:
            return sentence("plan.frozen_by_who", who=frozen)
        tides = plan.tide_stages
        left = [stage for stage in approved if stage not in applied and stage not in tides]
        if not left and not applied and tides.intersection(approved):
            return sentence("plan.left_to_tide")
        harm = unrelieved_harm(plan, self._folder.relief_lock) if applied else None
        if not left and harm is not None:
            return sentence("guard.relief_missing", harm=format_percent(harm, digits=1))
        if not left:
            return sentence("plan.every_approved_stage_is_applied" if applied else "plan.approve_a_stage_first")
        try:
            self._guard().check_plan(plan, left, self._store.approvals(plan.plan_id), self._now())
        except Refused as exc:
            return exc.said
        return None


def _in_place(plan: Plan, placed: Mapping[str, frozenset[str]], records: Sequence[StageRecord]) -> tuple[int, ...]:
    return tuple(sorted(stages_in_place(plan, placed, records)))


class BackgroundRollouts:
    """`Rollouts` over the enforcer of a data folder.

    Args:
        check: refuses a plan of another cluster than the enforcer's.
        open_reconciler: opens the enforcer on its cluster; reports progress to what it is given.
        open_plans: as `StoredPlans` has it.
    """

    def __init__(
        self,
        folder: DataFolder,
        *,
        check: Callable[[Plan], None],
        open_reconciler: Callable[[Callable[[Progress], None]], AbstractContextManager[Reconciler]],
        open_plans: Callable[[], AbstractContextManager[PlanStore]],
    ) -> None:
        self._folder = folder
        self._check = check
        self._open = open_reconciler
        self._open_plans = open_plans
        self._store = PlanStore(folder.plans)
        self._lock = threading.Lock()
        self._worker: threading.Thread | None = None
        self._running = ""
        self._news: dict[str, RolloutProgress] = {}

    def apply(self, plan_id: str, stages: tuple[int, ...], by: str) -> None:
        """Start the approved stages, canary first."""
        plan = self._store.get(plan_id)

        def work() -> None:
            with writing(self._folder), self._open(self._hear) as reconciler:
                results = reconciler.apply(plan, stages, by=by)
            back = [result for result in results if result.state is not StageState.PROMOTED]
            if back:
                said = sentence("progress.stage_restored", stage=back[0].stage, reason=back[0].reason or "")
                self._end(plan.plan_id, RolloutPhase.RESTORED, said)
            else:
                self._end(plan.plan_id, RolloutPhase.DONE, sentence("progress.all_kept"))

        self._start(plan.plan_id, work, RolloutPhase.CANARY, sentence("progress.starting"))

    def progress(self, plan_id: str) -> RolloutProgress:
        """Where the rollout or the undo of a plan stands; after a restart, what the ledger says."""
        with self._lock:
            news = self._news.get(plan_id)
        kept = Journal(ledger_at(self._folder, self._folder.ledger))
        records = [record for run in kept.runs(plan_id) for record in run.records.values()]
        objects = tuple(item for record in records for item in _objects(record))
        if news is not None:
            if news.total or news.is_running:
                return replace(news, objects=objects)
            # The last word of a rollout counts nothing; what it came to stands in the journal.
            done = sum(item.phase in _ENDED for item in objects)
            return replace(news, objects=objects, done=done, total=len(objects))
        if not records:
            return _IDLE
        total = sum(len(record.moves) for record in records) or len(objects)
        undone = all(record.state is StageState.UNDONE for record in records)
        return RolloutProgress(
            phase=RolloutPhase.RESTORED if undone else RolloutPhase.DONE, done=total, total=total, objects=objects
        )

    def undo_preview(self, plan_id: str) -> UndoPreview:
        """What an undo would restore and keep."""
        self._check(self._store.get(plan_id))
        with self._open(_unheard) as reconciler:
            undo = Undo(reconciler.tools)
            record = undo.preview(plan_id)
            keeps = undo.kept_now(record)
        taken = {part.card for move in record.moves for part in move.old}
        held = {part.card for move in record.moves for part in move.new}
        return UndoPreview(
            restores=tuple(f"{intent.kind} {intent.namespace}/{intent.name}" for intent in record.objects),
            keeps=keeps,
            cards_taken=len(taken - held),
        )

    def undo(self, plan_id: str, by: str) -> None:
        """Start to restore everything that the plan changed."""
        plan = self._store.get(plan_id)
        self._check(plan)
        journal = Journal(ledger_at(self._folder, self._folder.ledger))
        run = open_run(journal, plan_id)

        def work() -> None:
            if run is not None:
                with self._open_plans() as plans:
                    plans.change_wish(plan_id, end_of(run, journal.runs(plan_id), by=by))
            held = writing(self._folder) if run is None else stopped(self._folder, plan_id)
            with held, self._open(self._hear) as reconciler:
                result = reconciler.undo(plan_id, by=by, ending=run)
            restored, kept = len(result.workloads), listed(result.kept, 3, clauses=True)
            switch = plan.node_switch
            if result.kept:
                said = sentence("progress.undone_but_kept", workloads=restored, by=by, kept=kept)
            elif switch is not None:
                said = sentence("progress.node_undone", node=switch.node, by=by)
            else:
                said = sentence("progress.undone", workloads=restored, by=by)
            self._end(plan_id, RolloutPhase.RESTORED, said)

        self._start(plan_id, work, RolloutPhase.RESTORING, sentence("progress.undoing"), ends=run is not None)

    def _start(
        self, plan_id: str, work: Callable[[], None], phase: RolloutPhase, said: Sentence, *, ends: bool = False
    ) -> None:
        """Let work go on in the background; one change at a time, but that an undo ends the change of its own plan."""
        with self._lock:
            is_ending = ends and self._running == plan_id
            if self._worker is not None and self._worker.is_alive() and not is_ending:
                raise Refused(sentence("plan.other_is_being_changed", plan=self._running))
            self._running = plan_id
            self._news[plan_id] = RolloutProgress(phase=phase, done=0, total=0, said=said)

            def guarded() -> None:
                try:
                    work()
                except GputideError as exc:
                    self._end(plan_id, RolloutPhase.FAILED, sentence("progress.fault", fault=exc.said))
                except Exception as exc:  # noqa: BLE001 - a bug of ours: without an end the page would wait for ever
                    _log.exception("rollout ended by a bug", plan=plan_id)
                    said = sentence("progress.bug", fault=f"{type(exc).__name__}: {exc}")
                    self._end(plan_id, RolloutPhase.FAILED, said)

            self._worker = threading.Thread(target=guarded, name=f"rollout {plan_id}")
            self._worker.start()

    def _hear(self, news: Progress) -> None:
        with self._lock:
            self._news[news.plan_id] = RolloutProgress(
                phase=_PHASES[news.phase], done=news.done, total=news.total, said=news.said
            )

    def _end(self, plan_id: str, phase: RolloutPhase, said: Sentence) -> None:
        with self._lock:
            before = self._news.get(plan_id, _IDLE)
            done = before.total if phase is not RolloutPhase.FAILED else before.done
            self._news[plan_id] = replace(before, phase=phase, said=said, done=done)


def _objects(record: StageRecord) -> tuple[ObjectProgress, ...]:
    phase = _STATES.get(record.state, ChangePhase.APPLIED)
    named = dict.fromkeys(move.workload for move in record.moves)
    # A node that is put into another mode places no pod by itself.
    workloads = named or [WorkloadId(f"Node/{step.node}") for step in record.node_steps]
    return tuple(
        ObjectProgress(
            workload=workload,
            stage=record.stage,
            phase=phase.value,
            is_canary=str(workload) in record.canary,
            detail=record.reason or "",
        )
        for workload in workloads
    )


def _unheard(_: Progress) -> None:
    """News of a preview."""
