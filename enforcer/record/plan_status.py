"""Where a plan stands, in the words that `kubectl get gpuplans` shows: state, conditions, and how each stage went.

From approvals, the ledger and the wish; `unrelieved_harm` alone looks whether a process runs.
Called by everything that changes one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from enforcer.record.journal import RunRecord, StageRecord, StageState
from enforcer.record.plan_store import Approval, Wish
from fleet.decisions import Plan
from fleet.durable import lock_holder
from fleet.inventory import WorkloadId
from fleet.sentences import sentence

REFUSED = "Refused"
"""Reason of a condition `Applied` of what a guard, a right or another holder of the lease is in the way of."""


_DEPARTED_NAMED_MAX = 10
"""Most services that a condition names."""


STANDING = (StageState.OPEN, StageState.RESTORING, StageState.PROMOTED, StageState.UNDOING)
"""States of stages of which something may stand in the cluster."""


class ConditionType(StrEnum):
    """What a condition is about; the values are the API's words."""

    APPROVED = "Approved"
    APPLIED = "Applied"
    FAILED = "Failed"
    """A stage was taken back; it is not tried again before the wish changes."""
    DEPARTED = "Departed"
    """Pods of services in force are not in their planned seats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One condition of a plan (kubernetes/apimachinery:pkg/apis/meta/v1/types.go, Condition).

    Attributes:
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
        state: its state in the ledger; `proposed` where it was never begun, `tide` where apply never begins it.
    """

    stage: int
    state: str
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanStatus:
    """Where a plan stands.

    Attributes:
        state: one word for lists.
        progress: how many stages are in force, of how many that can be.
        conditions: one of each type; none of type `Departed` where nobody has looked for it.
        generation: of the object whose wish this was made from.
    """

    state: str
    approved: tuple[int, ...]
    applied: tuple[int, ...]
    progress: str
    under_way: str
    conditions: tuple[Condition, ...]
    stages: tuple[StageStatus, ...]
    generation: int


def newest_records(runs: Sequence[RunRecord]) -> dict[int, StageRecord]:
    """How each stage of a plan went last, by number."""
    return {number: record for run in runs for number, record in run.records.items()}


def in_force(runs: Sequence[RunRecord]) -> frozenset[int]:
    """Stages of a plan that are in force, by its runs."""
    return frozenset(number for number, record in newest_records(runs).items() if record.state is StageState.PROMOTED)


def standing(runs: Sequence[RunRecord], stages: Iterable[int] | None = None) -> frozenset[int]:
    """Stages of a plan of which something may stand in the cluster.

    Args:
        stages: only of these; of all where None.
    """
    found = {number for run in runs for number, record in run.records.items() if record.state in STANDING}
    return frozenset(found if stages is None else found & set(stages))


def unrelieved_harm(plan: Plan, lock: Path) -> float | None:
    """Harm, 0-1, of a plan that counts on relief while none runs; None where one runs, or the plan counts on none.

    Args:
        lock: file that a running relief holds.
    """
    return plan.totals.unrelieved_violation_ratio if lock_holder(lock) is None else None


def changes_state(runs: Sequence[RunRecord]) -> str:
    """What became of the changes of a plan, in one word; empty where it has none.

    Args:
        runs: of the plan, oldest first.
    """
    states = {record.state for record in newest_records(runs).values()}
    if StageState.UNDOING in states:
        return "Undoing"
    if StageState.RESTORING in states:
        return "Restoring"
    if any(run.is_open for run in runs):
        return "Applying"
    if StageState.PROMOTED in states:
        return "Applied"
    # What was undone says more than a stage of the same run that had been taken back before.
    was_undone = StageState.UNDONE in {record.state for run in runs[-1:] for record in run.records.values()}
    if StageState.RESTORED in states and not was_undone:
        return "Failed"
    return "Undone" if states else ""


def plan_status(
    every: Sequence[int],
    approvals: Sequence[Approval],
    runs: Sequence[RunRecord],
    wish: Wish,
    *,
    refusal: str | None = None,
    failed_generation: int | None = None,
    departed: Mapping[WorkloadId, str] | None = None,
    tides: frozenset[int] = frozenset(),
) -> PlanStatus:
    """Where a plan stands.

    Args:
        refusal: why what is wanted, or under way, can't be done now; None where nothing is in the way.
        failed_generation: of the wish when a stage was last taken back; None where nobody knows: then before `wish`.
        departed: services with pods that are not in their planned seats, and why; None where nobody has looked.
        tides: stages that apply leaves to `gputide run tide`; nobody waits for them to be in force.
    """
    records = newest_records(runs)
    rolled = [number for number in every if number not in tides]
    approved = frozenset(stage for approval in approvals for stage in approval.stages)
    applied = in_force(runs)
    failed = [record for _, record in sorted(records.items()) if record.state is StageState.RESTORED]
    stages = tuple(
        StageStatus(
            stage=number,
            state="proposed" if record is None else record.state.value,
            reason="" if record is None or record.reason is None else str(record.reason),
        )
        if record is not None or number not in tides
        else StageStatus(stage=number, state="tide", reason=str(sentence("plan.left_to_tide")))
        for number in every
        for record in (records.get(number),)
    )
    return PlanStatus(
        state=_state(rolled, runs, approved, applied),
        approved=tuple(sorted(approved)),
        applied=tuple(sorted(applied)),
        progress=f"{len(applied)}/{len(rolled)}",
        under_way=", ".join(
            f"{number}" if record.state is StageState.OPEN else f"{number} ({record.state})"
            for number, record in sorted(records.items())
            if record.state in STANDING and record.state is not StageState.PROMOTED
        ),
        conditions=(
            _approved(every, approved, approvals, wish.generation),
            _applied(wish.wanted(applied) - tides, applied, refusal, wish.generation),
            _failed(failed, wish.generation, failed_generation or 0),
            *_departed(departed if applied else {}, wish.generation),
        ),
        stages=stages,
        generation=wish.generation,
    )


def _state(every: Sequence[int], runs: Sequence[RunRecord], approved: frozenset[int], applied: frozenset[int]) -> str:
    state = changes_state(runs)
    if state == "Applied" and applied != set(every):
        return "PartlyApplied"
    return state or ("Approved" if approved else "Proposed")


def _approved(
    every: Sequence[int], approved: frozenset[int], approvals: Sequence[Approval], generation: int
) -> Condition:
    missing = [number for number in every if number not in approved]
    people = ", ".join(dict.fromkeys(approval.by for approval in approvals))
    reason = "NotApproved" if not approved else "PartlyApproved" if missing else "Approved"
    message = f"stages {_numbers(approved)} by {people}" if approved else "nobody has approved a stage"
    return Condition(
        type=ConditionType.APPROVED,
        is_true=not missing and bool(approved),
        reason=reason,
        message=message,
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
    message = f"stage {first.stage} was taken back: {first.reason or 'no reason was kept'}"
    return Condition(
        type=ConditionType.FAILED, is_true=True, reason="TakenBack", message=message, generation=failed_generation
    )


def _departed(departed: Mapping[WorkloadId, str] | None, generation: int) -> Iterator[Condition]:
    if departed is None:
        return
    named = [f"{workload}: {why}" for workload, why in sorted(departed.items())]
    more = len(named) - _DEPARTED_NAMED_MAX
    shown = "; ".join((*named[:_DEPARTED_NAMED_MAX], *((f"and {more} more services",) if more > 0 else ())))
    reason = "PlacedElsewhere" if departed else "AsPlanned"
    message = f"pods go wherever a card fits: {shown}" if departed else "no pod is elsewhere than planned"
    yield Condition(
        type=ConditionType.DEPARTED, is_true=bool(departed), reason=reason, message=message, generation=generation
    )


def _numbers(stages: frozenset[int]) -> str:
    return ", ".join(map(str, sorted(stages)))
