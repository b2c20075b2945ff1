"""Fulfils the pages' `Rollouts`: applies and undoes plans in the background, one at a time, and tells how far it is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from dashboards.queries import ObjectProgress, RolloutPhase, RolloutProgress, UndoPreview
from enforcer.record.journal import StageRecord, StageState
from enforcer.rollout.progress import Progress, ProgressPhase
from enforcer.rollout.undo import Undo
from fleet.data_folder import DataFolder, writing
from fleet.errors import GputideError, Refused
from fleet.outcomes import ChangePhase
from fleet.settings.settings import Settings
from gputide.container.cluster import check_own
from gputide.container.enforcer import open_enforcer
from gputide.container.plans import journal, plan_store

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
_IDLE = RolloutProgress(phase=RolloutPhase.NOT_STARTED, done=0, total=0)


class BackgroundRollouts:
    """`Rollouts` over the enforcer of a data folder.

    Args:
        folder: data folder.
        settings: all settings.
        now: the clock of the data.
    """

    def __init__(self, folder: DataFolder, settings: Settings, now: Callable[[], datetime]) -> None:
        self._folder = folder
        self._settings = settings
        self._now = now
        self._lock = threading.Lock()
        self._worker: threading.Thread | None = None
        self._running = ""
        self._news: dict[str, RolloutProgress] = {}

    def apply(self, plan_id: str, stages: tuple[int, ...], by: str) -> None:
        """Start the approved stages, canary first."""
        store = plan_store(self._folder)
        plan = store.get(plan_id)
        approved = store.approvals(plan.plan_id)

        def work() -> None:
            with (
                writing(self._folder),
                open_enforcer(self._folder, self._settings, self._now(), on_progress=self._hear) as enforcer,
            ):
                results = enforcer.rollout.apply(
                    plan, stages, by=by, approved=approved, fingerprint=store.fingerprint(plan.plan_id)
                )
            back = [result for result in results if result.state is not StageState.PROMOTED]
            message = f"stage {back[0].stage} was taken back: {back[0].reason}" if back else "every stage is kept"
            self._end(plan.plan_id, RolloutPhase.RESTORED if back else RolloutPhase.DONE, message)

        self._start(plan.plan_id, work, RolloutPhase.CANARY, "starting with the canary")

    def progress(self, plan_id: str) -> RolloutProgress:
        """Where the rollout or the undo of a plan stands; after a restart, what the ledger says."""
        with self._lock:
            news = self._news.get(plan_id)
        records = [record for run in journal(self._folder).runs(plan_id) for record in run.records.values()]
        objects = tuple(item for record in records for item in _objects(record))
        if news is not None:
            if news.total or news.is_running:
                return replace(news, objects=objects)
            # The last word of a rollout counts nothing; what it came to stands in the journal.
            done = sum(item.phase in _ENDED for item in objects)
            return replace(news, objects=objects, done=done, total=len(objects))
        if not records:
            return _IDLE
        total = sum(len(record.moves) for record in records)
        undone = all(record.state is StageState.UNDONE for record in records)
        return RolloutProgress(
            phase=RolloutPhase.RESTORED if undone else RolloutPhase.DONE, done=total, total=total, objects=objects
        )

    def undo_preview(self, plan_id: str) -> UndoPreview:
        """What an undo would restore and keep."""
        check_own(plan_store(self._folder).get(plan_id), self._folder, self._settings)
        with open_enforcer(self._folder, self._settings, self._now(), on_progress=_unheard) as enforcer:
            hands = Undo(enforcer.tools)
            record = hands.preview(plan_id)
            keeps = hands.kept_now(record)
        taken = {part.card for move in record.moves for part in move.old}
        held = {part.card for move in record.moves for part in move.new}
        return UndoPreview(
            restores=tuple(f"{intent.kind} {intent.namespace}/{intent.name}" for intent in record.objects),
            keeps=keeps,
            cards_taken=len(taken - held),
        )

    def undo(self, plan_id: str, by: str) -> None:
        """Start to restore everything that the plan changed."""
        check_own(plan_store(self._folder).get(plan_id), self._folder, self._settings)

        def work() -> None:
            with (
                writing(self._folder),
                open_enforcer(self._folder, self._settings, self._now(), on_progress=self._hear) as enforcer,
            ):
                result = Undo(enforcer.tools).undo(plan_id)
            kept = f"; kept: {'; '.join(result.kept[:3])}" if result.kept else ""
            message = f"{len(result.workloads)} workloads are as they were, asked by {by}{kept}"
            self._end(plan_id, RolloutPhase.RESTORED, message)

        self._start(plan_id, work, RolloutPhase.RESTORING, "restoring")

    def _start(self, plan_id: str, work: Callable[[], None], phase: RolloutPhase, message: str) -> None:
        with self._lock:
            if self._worker is not None and self._worker.is_alive():
                raise Refused(f"cannot start: plan {self._running} is being changed; wait until it is done")
            self._running = plan_id
            self._news[plan_id] = RolloutProgress(phase=phase, done=0, total=0, message=message)

            def guarded() -> None:
                try:
                    work()
                except GputideError as exc:
                    self._end(plan_id, RolloutPhase.FAILED, str(exc))

            self._worker = threading.Thread(target=guarded, name=f"rollout {plan_id}")
            self._worker.start()

    def _hear(self, news: Progress) -> None:
        with self._lock:
            self._news[news.plan_id] = RolloutProgress(
                phase=_PHASES[news.phase], done=news.done, total=news.total, message=news.text
            )

    def _end(self, plan_id: str, phase: RolloutPhase, message: str) -> None:
        with self._lock:
            before = self._news.get(plan_id, _IDLE)
            done = before.total if phase is not RolloutPhase.FAILED else before.done
            self._news[plan_id] = replace(before, phase=phase, message=message, done=done)


def _objects(record: StageRecord) -> tuple[ObjectProgress, ...]:
    phase = _STATES.get(record.state, ChangePhase.APPLIED)
    workloads = dict.fromkeys(move.workload for move in record.moves)
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
