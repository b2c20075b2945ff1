"""When a card counts as overloaded, by what, and whether sleep is enough."""

from __future__ import annotations

import pytest

from enforcer.agent.node_view import trouble_digest, troubled_cards
from enforcer.relief.overload import Overload, demand_above_low, overloads
from fleet.inventory import Priority
from fleet.relief.overload import Cause
from fleet.relief.rules import ReliefRules
from fleet.sentences import sentence
from tests.enforcer.agent.nodes import CARD, CARD_BYTES, GIB, slice_of, view_of

RULES = ReliefRules()


def judged(view: object, broken: dict[str, str] | None = None) -> list[Overload]:
    return list(overloads({"n": view}, RULES, broken))  # type: ignore[dict-item]


def high(number: int, duty: float | None) -> object:
    return slice_of(number, Priority.HIGH, duty_cycle_ratio=duty)


def low(number: int, duty: float | None) -> object:
    return slice_of(number, Priority.LOW, duty_cycle_ratio=duty)


def test_two_who_need_the_whole_card_are_too_many() -> None:
    (found,) = judged(view_of(high(1, 0.6), high(2, 0.4), duty=1.0))  # type: ignore[arg-type]
    assert (found.cause, found.needs_move) == (Cause.DEMAND, True)


def test_one_who_fills_a_card_alone_can_not_be_relieved() -> None:
    (found,) = judged(view_of(high(1, 1.0), duty=1.0))  # type: ignore[arg-type]
    assert not found.needs_move


@pytest.mark.parametrize(("above", "below", "is_found"), [(0.87, 0.13, True), (0.5, 0.5, False), (0.3, 0.2, False)])
def test_low_priority_sleeps_where_those_above_it_may_want_the_whole_card(
    above: float, below: float, is_found: bool
) -> None:
    found = judged(view_of(high(1, above), high(2, 0.0), low(3, below), duty=above + below))  # type: ignore[arg-type]
    assert bool(found) is is_found
    # Whether somebody must move is seen once it sleeps.
    assert not any(entry.needs_move for entry in found)


def test_card_of_low_priority_alone_is_nobodys_business() -> None:
    assert judged(view_of(low(1, 1.0), duty=1.0, free=0)) == []  # type: ignore[arg-type]


@pytest.mark.parametrize(("held", "needs_move"), [(4 * GIB, False), (0, True)])
def test_short_framebuffer_moves_somebody_only_where_low_priority_holds_too_little(held: int, needs_move: bool) -> None:
    sleeper = slice_of(3, Priority.LOW, framebuffer_used_bytes=held)
    (found,) = judged(view_of(high(1, 0.1), high(2, 0.1), sleeper, free=GIB))  # type: ignore[arg-type]
    assert (found.cause, found.needs_move) == (Cause.FRAMEBUFFER, needs_move)
    assert found.missing_bytes == int(0.03 * CARD_BYTES) - GIB


def test_broken_objective_puts_low_priority_to_sleep_before_anybody_moves() -> None:
    broken = {"team/pod-1": "latency > 2"}
    (first,) = judged(view_of(high(1, 0.2), high(2, 0.2), low(3, 0.4)), broken)  # type: ignore[arg-type]
    (then,) = judged(view_of(high(1, 0.2), high(2, 0.2), low(3, 0.0)), broken)  # type: ignore[arg-type]
    assert (first.cause, first.needs_move, then.needs_move) == (Cause.OBJECTIVE, False, True)
    assert first.reason == sentence("relief.objective", pod="team/pod-1", query="latency > 2")


def test_use_that_nobody_knows_counts_as_what_low_priority_leaves() -> None:
    view = view_of(high(1, None), low(2, 0.3), duty=1.0)  # type: ignore[arg-type]
    assert demand_above_low(view.cards[0], view.slices) == pytest.approx(0.7)
    unmeasured = view_of(high(1, None), high(2, None), duty=None, free=None)  # type: ignore[arg-type]
    assert judged(unmeasured) == []


def test_agent_tells_trouble_of_cards_that_somebody_above_low_priority_shares() -> None:
    told = {"full_ratio": 0.97, "free_ratio_min": 0.03}
    assert troubled_cards(view_of(high(1, 0.9), duty=0.98), **told) == {CARD}  # type: ignore[arg-type]
    assert troubled_cards(view_of(high(1, 0.9), duty=0.5, free=GIB), **told) == {CARD}  # type: ignore[arg-type]
    assert troubled_cards(view_of(low(1, 0.9), duty=1.0, free=0), **told) == frozenset()  # type: ignore[arg-type]
    assert trouble_digest([]) == ""
    assert trouble_digest(["a", "b"]) == trouble_digest(["b", "a"]) != trouble_digest(["a"])
