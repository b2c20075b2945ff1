"""Low priority sleeps while high priority works, and wakes when nobody wants it asleep any more."""

from __future__ import annotations

import pytest

from enforcer.agent.give_way import GiveWay, GiveWayRules
from fleet.inventory import Priority
from fleet.settings.agent import GiveWayManner
from tests.enforcer.agent.nodes import CARD, OTHER_CARD, key_of, slice_of, view_of

LOW = slice_of(1, Priority.LOW, duty_cycle_ratio=0.4)


def high(duty: float | None) -> object:
    return slice_of(2, Priority.HIGH, duty_cycle_ratio=duty)


@pytest.mark.parametrize(
    ("manner", "duty_of_high", "duty_of_card", "sleeps"),
    [
        (GiveWayManner.STRICT, 0.02, 0.3, True),
        (GiveWayManner.STRICT, 0.0, 1.0, False),
        (GiveWayManner.PRESSURE, 0.5, 0.9, False),
        (GiveWayManner.PRESSURE, 0.5, 0.97, True),
        (GiveWayManner.PRESSURE, 0.0, 1.0, False),
        (GiveWayManner.OFF, 1.0, 1.0, False),
        # Who is not measured counts as working.
        (GiveWayManner.STRICT, None, 0.3, True),
        (GiveWayManner.PRESSURE, 0.5, None, True),
    ],
)
def test_who_sleeps(
    manner: GiveWayManner, duty_of_high: float | None, duty_of_card: float | None, sleeps: bool
) -> None:
    guard = GiveWay(GiveWayRules(manner=manner))
    wanted = guard.wanted(view_of(LOW, high(duty_of_high), duty=duty_of_card))  # type: ignore[arg-type]
    assert wanted == (frozenset({key_of(1)}) if sleeps else frozenset())


def test_normal_priority_is_above_low_and_never_sleeps() -> None:
    guard = GiveWay(GiveWayRules(manner=GiveWayManner.STRICT))
    normal = slice_of(2, Priority.NORMAL, duty_cycle_ratio=0.5)
    assert guard.wanted(view_of(LOW, normal)) == frozenset({key_of(1)})


def test_work_on_another_card_puts_nobody_to_sleep() -> None:
    guard = GiveWay(GiveWayRules(manner=GiveWayManner.STRICT))
    assert guard.wanted(view_of(LOW, slice_of(2, Priority.HIGH, duty_cycle_ratio=1.0, card=OTHER_CARD))) == frozenset()


def test_low_priority_alone_runs_at_full_speed() -> None:
    guard = GiveWay(GiveWayRules(manner=GiveWayManner.STRICT))
    assert guard.wanted(view_of(LOW, duty=1.0)) == frozenset()


def test_it_wakes_when_nobody_worked_for_a_while_and_not_between_two_requests() -> None:
    guard = GiveWay(GiveWayRules(manner=GiveWayManner.STRICT, quiet_seconds=5.0))
    works, rests = high(0.5), high(0.0)
    asleep = [
        bool(guard.wanted(view_of(LOW, works if at in (0, 4) else rests, at=float(at))))  # type: ignore[arg-type]
        for at in range(12)
    ]
    assert asleep == [True] * 9 + [False] * 3


def test_clock_that_is_set_back_leaves_nobody_asleep() -> None:
    guard = GiveWay(GiveWayRules(manner=GiveWayManner.STRICT, quiet_seconds=5.0))
    assert guard.wanted(view_of(LOW, high(0.5), at=7200.0))  # type: ignore[arg-type]
    assert guard.wanted(view_of(LOW, high(0.0), at=0.0)) == frozenset()  # type: ignore[arg-type]


def test_who_is_gone_is_forgotten_at_once() -> None:
    guard = GiveWay(GiveWayRules(manner=GiveWayManner.STRICT))
    assert guard.wanted(view_of(LOW, high(0.5)))  # type: ignore[arg-type]
    assert guard.wanted(view_of(high(0.5), at=1.0)) == frozenset()  # type: ignore[arg-type]


def test_framebuffer_that_runs_out_puts_low_priority_to_sleep_whatever_else_is_so() -> None:
    guard = GiveWay(GiveWayRules(manner=GiveWayManner.OFF))
    assert guard.wanted(view_of(LOW, high(0.0)), frozenset({CARD})) == frozenset({key_of(1)})  # type: ignore[arg-type]


def test_container_whose_uid_is_not_known_is_left_awake() -> None:
    guard = GiveWay(GiveWayRules(manner=GiveWayManner.STRICT))
    unknown = slice_of(1, Priority.LOW, pod_uid=None)
    assert guard.wanted(view_of(unknown, high(0.5))) == frozenset()  # type: ignore[arg-type]
