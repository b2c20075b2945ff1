"""Low priority goes before a card's framebuffer runs out."""

from __future__ import annotations

from dataclasses import replace

from enforcer.agent.node_view import SliceView
from enforcer.agent.watermark import Watermark
from fleet.inventory import Priority
from fleet.settings.agent import AgentSettings
from tests.enforcer.agent.nodes import CARD, GIB, START, slice_of, view_of

RULES = AgentSettings(framebuffer_free_ratio_min=0.05, settle_seconds=30, closed_seconds=600)
"""4 GiB of the card's 80 must stay free."""


def low(number: int, used_gib: float | None) -> SliceView:
    used = None if used_gib is None else int(used_gib * GIB)
    return slice_of(number, Priority.LOW, framebuffer_used_bytes=used)


HIGH = slice_of(9, Priority.HIGH)
"""Somebody for whom others go."""


def test_nobody_goes_while_enough_is_free() -> None:
    guard = Watermark(RULES)
    view = view_of(low(1, 4), HIGH, free=4 * GIB)
    assert (guard.evictions(view), guard.short_cards(view)) == ((), frozenset())


def test_smallest_pod_that_frees_enough_goes() -> None:
    guard = Watermark(RULES)
    view = view_of(low(1, 30), low(2, 3), low(3, 1), slice_of(4, Priority.HIGH), free=2 * GIB)
    (eviction,) = guard.evictions(view)
    assert (eviction.pod, eviction.card, eviction.frees_bytes) == ("pod-2", CARD, 3 * GIB)
    assert eviction.closed_until == START + 600.0
    assert "agent.framebuffer_free_ratio_min=0.05" in eviction.reason
    assert guard.short_cards(view) == frozenset({CARD})


def test_largest_goes_where_none_is_enough() -> None:
    (eviction,) = Watermark(RULES).evictions(view_of(low(1, 1), low(2, 2), HIGH, free=0))
    assert eviction.pod == "pod-2"


def test_one_pod_with_several_containers_goes_as_one() -> None:
    first = slice_of(1, Priority.LOW, framebuffer_used_bytes=GIB)
    second = slice_of(1, Priority.LOW, container="side", framebuffer_used_bytes=GIB)
    (eviction,) = Watermark(RULES).evictions(view_of(first, second, low(2, 1), HIGH, free=2 * GIB))
    assert eviction.pod == "pod-1"


def test_next_one_waits_until_the_first_had_time_to_leave() -> None:
    guard = Watermark(RULES)
    gone = [
        bool(guard.evictions(view_of(low(1, 1), low(2, 2), HIGH, free=GIB, at=float(at))))
        for at in (0, 10, 29, 30, 31, 60)
    ]
    assert gone == [True, False, False, True, False, True]


def test_card_that_recovered_and_falls_again_is_helped_at_once() -> None:
    guard = Watermark(RULES)
    assert guard.evictions(view_of(low(1, 4), HIGH, free=GIB))
    assert not guard.evictions(view_of(low(1, 4), HIGH, free=20 * GIB, at=1.0))
    assert guard.evictions(view_of(low(1, 4), HIGH, free=GIB, at=2.0))


def test_card_without_low_priority_or_without_a_reading_is_left_alone() -> None:
    guard = Watermark(RULES)
    assert guard.evictions(view_of(slice_of(1, Priority.HIGH), slice_of(2, Priority.NORMAL), free=0)) == ()
    assert guard.evictions(view_of(low(1, 4), HIGH, free=None)) == ()
    assert guard.evictions(view_of(low(1, None), HIGH, free=0)) == ()


def test_guard_that_is_switched_off_lets_everybody_stay() -> None:
    assert Watermark(AgentSettings(framebuffer_free_ratio_min=0.0)).evictions(view_of(low(1, 4), HIGH, free=0)) == ()


def test_low_priority_that_has_a_card_to_itself_may_fill_it() -> None:
    guard = Watermark(RULES)
    view = view_of(low(1, 70), low(2, 9), free=GIB)
    assert (guard.evictions(view), guard.short_cards(view)) == ((), frozenset())


def test_pod_that_does_not_go_is_passed_over_for_the_next() -> None:
    guard = Watermark(RULES)
    view = view_of(low(1, 5), low(2, 6), HIGH, free=GIB)
    gone = [guard.evictions(replace(view, at_seconds=START + at))[0].pod for at in (0.0, 30.0, 60.0)]
    assert gone == ["pod-1", "pod-2", "pod-1"]


def test_clock_that_is_set_back_stops_nothing() -> None:
    guard = Watermark(RULES)
    assert guard.evictions(view_of(low(1, 5), HIGH, free=GIB, at=7200.0))
    assert guard.evictions(view_of(low(1, 5), HIGH, free=GIB, at=0.0))
