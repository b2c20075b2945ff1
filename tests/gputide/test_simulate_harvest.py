"""Low priority gets what others leave, and every eviction costs what was not saved."""

import numpy as np

from gputide.simulate_harvest import Harvest, HarvestRules, harvest

HOUR = 3600


def got(
    left: list[float], free: list[float] | None = None, idle: list[int] | None = None, wanted: list[int] | None = None
) -> Harvest:
    """One card, steps of an hour, a checkpoint every two."""
    steps = len(left)
    return harvest(
        np.array([left], np.float32),
        np.array([free or [1.0] * steps], np.float32),
        np.ones((1, steps), bool),
        np.array(idle or [0] * steps, np.int64),
        None if wanted is None else np.array(wanted, np.int64),
        step_seconds=HOUR,
        rules=HarvestRules(checkpoint_seconds=2 * HOUR, rest_seconds=HOUR),
    )


def test_worker_gets_what_is_left() -> None:
    assert got([0.5, 0.25, 1.0, 0.25]).gpu_hours == 2.0


def test_online_work_that_fills_the_card_leaves_it_nothing() -> None:
    assert got([0.0, 0.0]).gpu_hours == 0.0


def test_eviction_loses_what_was_done_since_the_checkpoint() -> None:
    done = got([1.0] * 6, free=[1.0, 1.0, 1.0, 0.1, 1.0, 1.0])
    # Two hours are saved, the third is lost, one is rested, and the last counts.
    assert (done.evictions, done.lost_gpu_hours) == (1, 1.0)
    assert done.gpu_hours == 4.0


def test_worker_does_not_start_where_framebuffer_is_short() -> None:
    assert got([1.0] * 3, free=[0.25] * 3).worker_hours == 0.0


def test_empty_queue_leaves_cards_alone() -> None:
    assert got([1.0] * 4, wanted=[0, 1, 1, 0]).gpu_hours == 2.0


def test_empty_cards_that_are_paid_for_work_whole() -> None:
    done = got([0.0] * 3, idle=[2, 2, 0])
    assert done.evictions == 2
    assert done.gpu_hours + done.lost_gpu_hours == 4.0
