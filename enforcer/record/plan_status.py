"""Where a plan stands, in the words that `kubectl get gpuplans` shows: state, conditions, and how each stage went.

Pure: from approvals, the ledger and the wish. Called by everything that changes one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from enforcer.record.journal import RunRecord, StageRecord, StageState
from enforcer.record.plan_store import Approval, Wish
from fleet.decisions import Plan

REFUSED = "Refused"
"""Reason of a condition `Applied` of what a guard, a right or another holder of the lease is in the way of."""


class ConditionType(StrEnum):
    """What a condition is about; the values are the API's words."""

    APPROVED = "Approved"
    APPLIED = "Applied"
    FAILED = "Failed"
    """A stage was taken back; it is not tried again before the wish changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One condition of a plan (kubernetes/apimachinery:pkg/apis/meta/v1/types.go, Condition).

    Attributes:
        type: what it is about.
        is_true: whether it holds.
        reason: why, one word.
        message: why, in a sentence.
        generation: of the wish that it is about.
    """

    type: ConditionType
    is_true: bool
    reason: str
    message: str
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StageStatus:
    """How one stage stands.

    Attributes:
        stage: number.
        state: its state in the ledger; `proposed` where it was never begun.
        reason: why it was taken back; empty where it was not.
    """

    stage: int
    state: str
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanStatus:
    """Where a plan stands.

    Attributes:
        state: one word for lists.
        approved: stages that somebody approved.
        applied: stages in force.
        conditions: one of each type.
        stages: every stage.
        generation: of the object whose wish this was made from.
    """

    state: str
    approved: tuple[int, ...]
    applied: tuple[int, ...]
    conditions: tuple[Condition, ...]
    stages: tuple[StageStatus, ...]
    generation: int


def newest_records(runs: Sequence[RunRecord]) -> dict[int, StageRecord]:
    """How each stage of a plan went last, by number."""
    return {number: record for run in runs for number, record in run.records.items()}


def in_force(runs: Sequence[RunRecord]) -> frozenset[int]:
    """Stages of a plan that are in force, by its runs."""
    return frozenset(number for number, record in newest_records(runs).items() if record.state is StageState.PROMOTED)


def plan_status(
    plan: Plan,
    approvals: Sequence[Approval],
    runs: Sequence[RunRecord],
    wish: Wish,
    *,
    refusal: str | None = None,
    failed_generation: int | None = None,
) -> PlanStatus:
    """Where a plan stands.

    Args:
        runs: its runs, oldest first.
        refusal: why what is wanted, or under way, can't be done now; None where nothing is in the way.
        failed_generation: of the wish when a stage was last taken back; None where nobody knows: then before `wish`.
    """
    records = newest_records(runs)
    approved = frozenset(stage for approval in approvals for stage in approval.stages)
    applied = in_force(runs)
    wanted = applied if wish.stages is None else wish.stages
    failed = [record for _, record in sorted(records.items()) if record.state is StageState.RESTORED]
    stages = tuple(
        StageStatus(
            stage=entry.stage,
            state="proposed" if record is None else record.state.value,
            reason="" if record is None or record.reason is None else str(record.reason),
        )
        for entry in plan.stages
        for record in (records.get(entry.stage),)
    )
    return PlanStatus(
        state=_state(plan, runs, records, approved, applied, has_failed=bool(failed)),
        approved=tuple(sorted(approved)),
        applied=tuple(sorted(applied)),
        conditions=(
            _approved(plan, approved, approvals, wish.generation),
            _applied(wanted, applied, refusal, wish.generation),
            _failed(failed, wish.generation, failed_generation or 0),
        ),
        stages=stages,
        generation=wish.generation,
    )


def _state(
    plan: Plan,
    runs: Sequence[RunRecord],
    records: dict[int, StageRecord],
    approved: frozenset[int],
    applied: frozenset[int],
    *,
    has_failed: bool,
) -> str:
    states = {record.state for record in records.values()}
    every = {entry.stage for entry in plan.stages}
    if StageState.UNDOING in states:
        return "Undoing"
    if StageState.RESTORING in states:
        return "Restoring"
    if any(run.is_open for run in runs):
        return "Applying"
    if has_failed:
        return "Failed"
    if applied:
        return "Applied" if applied == every else "PartlyApplied"
    if StageState.UNDONE in states:
        return "Undone"
    return "Approved" if approved else "Proposed"


def _approved(plan: Plan, approved: frozenset[int], approvals: Sequence[Approval], generation: int) -> Condition:
    missing = [entry.stage for entry in plan.stages if entry.stage not in approved]
    people = ", ".join(dict.fromkeys(approval.by for approval in approvals))
    return Condition(
        type=ConditionType.APPROVED,
        is_true=not missing and bool(approved),
        reason="NotApproved" if not approved else "PartlyApproved" if missing else "Approved",
        message=f"stages {_numbers(approved)} by {people}" if approved else "nobody has approved a stage",
        generation=generation,
    )


def _applied(wanted: frozenset[int], applied: frozenset[int], refusal: str | None, generation: int) -> Condition:
    missing, extra = wanted - applied, applied - wanted
    is_done = not missing and not extra and refusal is None
    if refusal is not None:
        reason, message = REFUSED, refusal
    elif missing:
        reason, message = "Waiting", f"stages {_numbers(missing)} are wanted and not in force yet"
    elif extra:
        reason, message = "Unwanted", f"stages {_numbers(extra)} are in force and no longer wanted"
    elif applied:
        reason, message = "Applied", f"stages {_numbers(applied)} are in force"
    else:
        reason, message = "NothingWanted", "no stage is wanted"
    return Condition(
        type=ConditionType.APPLIED,
        is_true=is_done and bool(applied),
        reason=reason,
        message=message,
        generation=generation,
    )


def _failed(failed: Sequence[StageRecord], generation: int, failed_generation: int) -> Condition:
    if not failed:
        return Condition(
            type=ConditionType.FAILED,
            is_true=False,
            reason="NoFailure",
            message="no stage was taken back",
            generation=generation,
        )
    first = failed[0]
    return Condition(
        type=ConditionType.FAILED,
        is_true=True,
        reason="TakenBack",
        message=f"stage {first.stage} was taken back: {first.reason or 'no reason was kept'}",
        generation=failed_generation,
    )


def _numbers(stages: frozenset[int]) -> str:
    return ", ".join(map(str, sorted(stages)))
