"""Relief takes the cheapest way out of an overload, and never makes another card worse."""

from dataclasses import replace

import numpy as np
import pytest

from fleet.relief.choice import Relief, Watch
from fleet.relief.overload import Cause
from fleet.relief.rules import ReliefRules
from fleet.units import GIB

STEPS = 6


def watch(
    *pods: tuple[int, float, float], cards: int, capacity_gib: float = 24.0, spares: int = 1, steps: int = STEPS
) -> Watch:
    """Pods as (card, demand all the time, granted GiB) on cards that may all take a newcomer; spares come last."""
    rows = len(pods)
    total = cards + spares
    return Watch(
        card=np.array([card for card, _, _ in pods], np.int64),
        target=np.full(rows, -1, np.int64),
        load=np.repeat(np.array([load for _, load, _ in pods], np.float32)[:, None], steps, axis=1),
        granted_bytes=np.array([size * GIB for _, _, size in pods]),
        need_bytes=np.array([size * GIB for _, _, size in pods]),
        workload=np.arange(rows, dtype=np.int32),
        may_move=np.ones(rows, bool),
        is_single=np.zeros(rows, bool),
        is_resting=np.zeros(rows, bool),
        area=np.zeros(rows, np.int64),
        reach=np.ones((1, total), bool),
        model=np.zeros(total, np.int64),
        capacity_bytes=np.full(total, capacity_gib * GIB),
        is_open=np.ones(total, bool),
        step_seconds=600,
    )


def move(seen: Watch, card: int = 0, cause: Cause = Cause.DEMAND, missing: int = 0) -> tuple[int, int] | None:
    found = Relief(seen, ReliefRules()).way_out(card, cause, missing)
    return None if found is None else (found.row, found.target)


def test_smaller_of_two_pods_that_suffice_moves_to_the_card_with_room() -> None:
    seen = watch((0, 0.6, 12), (0, 0.6, 6), (1, 0.1, 6), cards=2)
    assert move(seen) == (1, 1)


def test_pod_that_works_is_never_stopped_for_another() -> None:
    seen = watch((0, 0.7, 12), (0, 0.7, 12), (1, 0.2, 12), (1, 0.1, 12), cards=2, spares=1)
    assert move(seen) == (0, 2)


def test_fresh_spare_serves_only_where_no_card_in_use_has_room() -> None:
    full = watch((0, 0.7, 12), (0, 0.7, 12), (1, 0.9, 12), cards=2, spares=1)
    assert move(full) == (0, 2)
    roomy = watch((0, 0.7, 12), (0, 0.7, 12), (1, 0.1, 12), cards=2, spares=1)
    assert move(roomy) == (0, 1)


def test_replica_does_not_join_its_own_kind() -> None:
    seen = watch((0, 0.7, 8), (0, 0.7, 8), (1, 0.0, 8), cards=2, spares=1)
    same = replace(seen, workload=np.array([7, 8, 7], np.int32))
    assert move(same) != (0, 1)


@pytest.mark.parametrize("closed", ["may_move", "is_open"])
def test_what_is_closed_stays_as_it_is(closed: str) -> None:
    seen = watch((0, 0.7, 8), (0, 0.7, 8), (1, 0.0, 8), cards=2, spares=0)
    assert move(replace(seen, **{closed: np.zeros_like(getattr(seen, closed))})) is None


def test_other_card_model_is_no_room() -> None:
    seen = watch((0, 0.7, 8), (0, 0.7, 8), (1, 0.0, 8), cards=2, spares=0)
    assert move(replace(seen, model=np.array([0, 1], np.int64))) is None


def test_card_that_was_full_at_other_hours_is_passed_over() -> None:
    seen = watch((0, 0.6, 6), (0, 0.6, 6), (1, 0.1, 6), (2, 0.1, 6), cards=3, spares=0)
    load = seen.load.copy()
    load[2, :4] = 0.9
    assert move(replace(seen, load=load)) == (0, 2)


def test_deciding_leaves_what_was_seen_as_it_was() -> None:
    seen = watch((0, 0.7, 12), (0, 0.7, 12), (1, 0.0, 12), (1, 0.1, 12), cards=2)
    before = [getattr(seen, name).copy() for name in ("target", "load", "card")]
    move(seen)
    for name, then in zip(("target", "load", "card"), before, strict=True):
        np.testing.assert_array_equal(getattr(seen, name), then)


def test_room_that_a_moving_pod_will_take_is_not_taken_twice() -> None:
    seen = watch((0, 0.6, 8), (0, 0.6, 8), (1, 0.6, 8), (1, 0.6, 8), (2, 0.1, 8), cards=3, spares=1)
    assert move(seen, 1) == (2, 2)
    moving = replace(seen, target=np.array([2, -1, -1, -1, -1], np.int64))
    assert move(moving, 1) == (2, 3)


def test_pod_that_can_have_a_second_replica_goes_before_one_that_must_be_stopped() -> None:
    seen = watch((0, 0.6, 6), (0, 0.6, 12), (1, 0.1, 6), cards=2)
    assert move(seen) == (0, 1)
    assert move(replace(seen, is_single=np.array([True, False, False]))) == (1, 1)


def test_pod_goes_only_to_cards_that_its_area_reaches() -> None:
    seen = watch((0, 0.6, 6), (0, 0.6, 6), (1, 0.1, 6), cards=2)
    near = replace(seen, reach=np.array([[True, False, True]]))
    assert move(near) == (0, 2)


def test_pod_that_holds_what_is_missing_leaves_where_framebuffer_is_short() -> None:
    seen = watch((0, 0.1, 6), (0, 0.1, 12), (1, 0.1, 6), cards=2)
    assert move(seen, cause=Cause.FRAMEBUFFER, missing=int(8 * GIB)) == (1, 1)
    assert move(seen, cause=Cause.FRAMEBUFFER, missing=int(GIB)) == (0, 1)


def test_pod_returns_only_where_its_old_card_had_room_with_it_for_all_of_the_hour() -> None:
    seen = watch((0, 0.4, 6), (1, 0.3, 6), cards=2, steps=6)
    assert Relief(seen, ReliefRules()).may_return(1, 0)
    load = seen.load.copy()
    load[0, 0] = 0.6
    assert not Relief(replace(seen, load=load), ReliefRules()).may_return(1, 0)
    assert not Relief(replace(seen, load=seen.load[:, :5]), ReliefRules()).may_return(1, 0)
