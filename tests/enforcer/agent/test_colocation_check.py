"""The three situations of co-location: held, broken, or not seen."""

from __future__ import annotations

from collections.abc import Sequence

from enforcer.agent.colocation_check import ColocationCheck, Situation, Verdict, check_colocation
from enforcer.agent.node_view import NodeView
from fleet.inventory import Priority
from tests.enforcer.agent.nodes import slice_of, view_of


def looks(*duties: tuple[float | None, float | None], step: float = 0.5) -> list[NodeView]:
    """Looks at one card: duty cycle of high and of low priority; None of low priority: it is not there."""
    return [
        view_of(
            slice_of(1, Priority.HIGH, duty_cycle_ratio=high),
            *(() if low is None else (slice_of(2, Priority.LOW, duty_cycle_ratio=low),)),
            at=number * step,
        )
        for number, (high, low) in enumerate(duties)
    ]


def check(views: Sequence[NodeView], settle: float = 1.0) -> ColocationCheck:
    return check_colocation(views, working_ratio=0.01, settle_seconds=settle)


def verdicts(found: ColocationCheck) -> dict[Situation, tuple[Verdict, int]]:
    return {entry.situation: (entry.verdict, entry.looks) for entry in found.situations}


def test_low_priority_that_does_nothing_beside_high_holds() -> None:
    found = check(looks((0.0, 0.9), (0.0, 0.9), (0.3, 0.9), (0.3, 0.2), (0.3, 0.0), (0.9, 0.0), (0.5, None)))
    assert verdicts(found) == {
        Situation.HIGH_ALONE: (Verdict.HOLDS, 1),
        Situation.LOW_ALONE: (Verdict.HOLDS, 2),
        Situation.BOTH: (Verdict.HOLDS, 2),
    }
    assert found.resolution_seconds == 0.5


def test_low_priority_that_works_beside_high_is_broken_even_where_the_card_is_not_full() -> None:
    found = check(looks(*[(0.2, 0.3)] * 5))
    assert verdicts(found)[Situation.BOTH] == (Verdict.BROKEN, 3)
    (both,) = [entry for entry in found.situations if entry.situation is Situation.BOTH]
    assert both.low_duty_max == 0.3


def test_what_did_not_occur_is_not_seen() -> None:
    assert {verdict for verdict, _ in verdicts(check(looks((0.0, 0.0)))).values()} == {Verdict.NOT_SEEN}
    assert check([]).situations == ()
    assert check([]).resolution_seconds is None


def test_each_burst_of_high_priority_has_its_time_to_settle() -> None:
    found = check(looks((0.5, 0.5), (0.5, 0.4), (0.0, 0.9), (0.5, 0.5), (0.5, 0.4), (0.5, 0.0)))
    assert verdicts(found)[Situation.BOTH] == (Verdict.HOLDS, 1)


def test_who_was_not_measured_proves_nothing() -> None:
    views = [
        view_of(
            slice_of(1, Priority.HIGH, duty_cycle_ratio=None),
            slice_of(2, Priority.LOW, duty_cycle_ratio=0.0),
            at=float(number),
        )
        for number in range(4)
    ]
    found = check(views)
    assert found.unmeasured_looks == 4
    assert {entry.verdict for entry in found.situations} == {Verdict.NOT_SEEN}


def test_card_that_nobody_shares_is_not_judged() -> None:
    assert check([view_of(slice_of(1, Priority.HIGH, duty_cycle_ratio=0.5))]).situations == ()
