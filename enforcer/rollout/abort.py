"""Ends what is being applied: the open stage is taken back, what was promoted before stays, the run is over.

Called by `gputide apply --abort` and by undo, with the data folder in hand: no process applies from it any more.
"""

from __future__ import annotations

from dataclasses import dataclass

from enforcer.record.journal import Journal, RunRecord, StageRecord, StageState
from enforcer.rollout.restore import StageResult, restore_stage
from enforcer.rollout.run_context import RunContext
from enforcer.safety.abort_wish import aborted_by


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortResult:
    """What an abort did.

    Attributes:
        promoted: stages of the run that had been promoted before, and stay.
    """

    plan_id: str
    restored: tuple[StageResult, ...]
    promoted: tuple[int, ...]
    workloads: tuple[str, ...]


def open_run(journal: Journal, plan_id: str | None = None) -> RunRecord | None:
    """The run that was begun and not ended, of one plan where it is given; None where there is none."""
    return next((run for run in journal.runs(plan_id) if run.is_open), None)


def open_stages(run: RunRecord) -> tuple[StageRecord, ...]:
    """Stages of a run that are neither promoted nor taken back yet."""
    return tuple(record for record in run.records.values() if record.state in (StageState.OPEN, StageState.RESTORING))


def abort(tools: RunContext, run: RunRecord, *, by: str) -> AbortResult:
    """End a run that a process left open; one that has ended meanwhile is only reported.

    Args:
        run: as it was when somebody asked.

    Raises:
        Refused: the cluster is frozen, or somebody else holds the lease.
        Unavailable: the cluster can't be reached, or a former pod does not get ready; call again to go on.
    """
    tools.guard.check_frozen(tools.reader)
    with tools.acting():
        now = open_run(tools.journal, run.plan_id)
        if now is not None:
            for record in open_stages(now):
                restore_stage(tools, record, aborted_by(by))
            tools.step("end")
            tools.journal.write(run.plan_id, tools.now(), "end")
    return how_ended(tools.journal, run)


def how_ended(journal: Journal, run: RunRecord) -> AbortResult:
    """How a run ended."""
    records = next(found for found in journal.runs(run.plan_id) if found.began_at == run.began_at).records.values()
    before = {number for number, record in run.records.items() if record.state is StageState.RESTORED}
    restored = [record for record in records if record.state is StageState.RESTORED and record.stage not in before]
    return AbortResult(
        plan_id=run.plan_id,
        restored=tuple(map(StageResult.of, restored)),
        promoted=tuple(sorted(record.stage for record in records if record.state is StageState.PROMOTED)),
        workloads=tuple(sorted({str(move.workload) for record in restored for move in record.moves})),
    )
