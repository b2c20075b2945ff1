"""Relief takes the cheapest way out of an overload, and never makes another card worse."""

from dataclasses import replace

import numpy as np
import pytest

from fleet.relief import Relief, ReliefRules, Watch
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
        is_resting=np.zeros(rows, bool),
        model=np.zeros(total, np.int64),
        capacity_bytes=np.full(total, capacity_gib * GIB),
        is_open=np.ones(total, bool),
        is_spare=np.arange(total) >= cards,
        step_seconds=600,
        violation_ratio=0.01,
    )


def moves(seen: Watch, *cards: int, rules: ReliefRules | None = None) -> list[tuple[int, int]]:
    return [(move.row, move.target) for move in Relief(seen, rules or ReliefRules()).relieve(cards)]


def test_smaller_of_two_pods_that_suffice_moves_to_the_card_with_room() -> None:
    seen = watch((0, 0.6, 12), (0, 0.6, 6), (1, 0.1, 6), cards=2)
    assert moves(seen, 0) == [(1, 1)]


def test_card_within_its_limit_is_left_alone() -> None:
    seen = watch((0, 0.5, 6), (0, 0.5, 6), (1, 0.1, 6), cards=2)
    assert moves(seen, 0) == []


def test_lone_pod_stays_where_it_is() -> None:
    seen = watch((0, 1.4, 6), (1, 0.1, 6), cards=2)
    assert moves(seen, 0) == []


def test_several_pods_leave_where_one_does_not_suffice() -> None:
    seen = watch((0, 0.6, 4), (0, 0.6, 4), (0, 0.6, 4), (1, 0.0, 4), (2, 0.0, 4), cards=3)
    assert len(moves(seen, 0)) == 2


def test_busy_pod_changes_places_with_an_idle_one_where_framebuffer_leaves_no_room() -> None:
    seen = watch((0, 0.7, 12), (0, 0.7, 12), (1, 0.0, 12), (1, 0.1, 12), cards=2, spares=0)
    found = list(Relief(seen, ReliefRules()).relieve([0]))
    assert [(move.row, move.target, move.is_swapped) for move in found] == [(0, 1, False), (2, 0, True)]


def test_pod_that_works_is_never_stopped_for_another() -> None:
    seen = watch((0, 0.7, 12), (0, 0.7, 12), (1, 0.2, 12), (1, 0.1, 12), cards=2, spares=1)
    assert moves(seen, 0) == [(0, 2)]


def test_fresh_spare_serves_only_where_no_card_in_use_has_room() -> None:
    full = watch((0, 0.7, 12), (0, 0.7, 12), (1, 0.9, 12), cards=2, spares=1)
    assert moves(full, 0) == [(0, 2)]
    roomy = watch((0, 0.7, 12), (0, 0.7, 12), (1, 0.1, 12), cards=2, spares=1)
    assert moves(roomy, 0) == [(0, 1)]


def test_two_overloaded_cards_do_not_take_the_same_room_twice() -> None:
    seen = watch((0, 0.6, 8), (0, 0.6, 8), (1, 0.6, 8), (1, 0.6, 8), (2, 0.1, 8), cards=3, spares=2)
    targets = [target for _, target in moves(seen, 0, 1)]
    assert targets.count(2) == 1
    assert len(targets) == 2


def test_replica_does_not_join_its_own_kind() -> None:
    seen = watch((0, 0.7, 8), (0, 0.7, 8), (1, 0.0, 8), cards=2, spares=1)
    same = replace(seen, workload=np.array([7, 8, 7], np.int32))
    assert (0, 1) not in moves(same, 0)


@pytest.mark.parametrize("closed", ["may_move", "is_open"])
def test_what_is_closed_stays_as_it_is(closed: str) -> None:
    seen = watch((0, 0.7, 8), (0, 0.7, 8), (1, 0.0, 8), cards=2, spares=0)
    assert moves(replace(seen, **{closed: np.zeros_like(getattr(seen, closed))}), 0) == []


def test_other_card_model_is_no_room() -> None:
    seen = watch((0, 0.7, 8), (0, 0.7, 8), (1, 0.0, 8), cards=2, spares=0)
    assert moves(replace(seen, model=np.array([0, 1], np.int64)), 0) == []


def test_card_that_was_full_at_other_hours_is_passed_over() -> None:
    seen = watch((0, 0.6, 6), (0, 0.6, 6), (1, 0.1, 6), (2, 0.1, 6), cards=3, spares=0)
    load = seen.load.copy()
    load[2, :4] = 0.9
    assert moves(replace(seen, load=load), 0) == [(0, 2)]


def test_slice_grows_where_it_is_and_neighbours_give_back_what_they_do_not_need() -> None:
    seen = watch((0, 0.1, 10), (0, 0.1, 14), cards=1, spares=0)
    seen = replace(seen, need_bytes=np.array([10.5, 8.0]) * GIB)
    found = Relief(seen, ReliefRules()).grow(0, 10.5 * GIB)
    granted = {move.row: move.granted_bytes / GIB for move in found}
    assert all(move.target == 0 for move in found)
    assert granted[0] >= 10.5
    assert 8.0 <= granted[1] < 14
    assert granted[0] + granted[1] <= 24


def test_slice_that_cannot_grow_here_moves_with_a_larger_grant() -> None:
    seen = watch((0, 0.1, 10), (0, 0.1, 14), (1, 0.1, 4), cards=2)
    (move,) = Relief(seen, ReliefRules()).grow(0, 12 * GIB)
    assert (move.row, move.target) == (0, 1)
    assert move.granted_bytes >= 12 * GIB
    assert Relief(seen, ReliefRules()).grow(0, 12 * GIB, may_leave=False) == ()


def test_rising_card_is_told_beforehand_only_on_days_of_harm() -> None:
    seen = watch((0, 0.4, 6), (0, 0.4, 6), cards=1)
    load = seen.load.copy()
    load[:, -1] = 0.48
    rising = replace(seen, load=load)
    assert Relief(rising, ReliefRules(alarm_ratio=None)).alarmed().tolist() == []
    assert Relief(rising, ReliefRules(alarm_ratio=0.9)).alarmed().tolist() == [0]
    assert Relief(replace(rising, violation_ratio=0.0), ReliefRules(alarm_ratio=0.9)).alarmed().tolist() == []
    assert Relief(seen, ReliefRules(alarm_ratio=0.7)).alarmed().tolist() == []


def test_pods_leave_spares_within_the_budget_when_others_have_room() -> None:
    seen = watch((0, 0.1, 6), (1, 0.1, 6), (2, 0.2, 6), (3, 0.2, 6), cards=2, spares=2)
    back = [move.row for move in Relief(seen, ReliefRules()).leave_spares(10)]
    assert back == [2, 3]
    assert len(list(Relief(seen, ReliefRules()).leave_spares(1))) == 1


def test_deciding_leaves_what_was_seen_as_it_was() -> None:
    seen = watch((0, 0.7, 12), (0, 0.7, 12), (1, 0.0, 12), (1, 0.1, 12), cards=2)
    before = [getattr(seen, name).copy() for name in ("target", "granted_bytes", "load", "card")]
    list(Relief(seen, ReliefRules()).relieve([0]))
    for name, then in zip(("target", "granted_bytes", "load", "card"), before, strict=True):
        np.testing.assert_array_equal(getattr(seen, name), then)
