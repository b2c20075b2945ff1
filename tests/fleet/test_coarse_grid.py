"""Longer steps: means of what was collected, largest peaks, gaps that stay gaps."""

from datetime import UTC, datetime

import numpy as np
import pytest

from fleet.coarse_grid import coarse_grid
from fleet.errors import Misconfigured
from fleet.inventory import CardId, CardModelName
from fleet.schema import Measure
from fleet.usage import CardKey, UsageGrid

NAN = float("nan")


def grid(*levels: float) -> UsageGrid[CardKey]:
    values = np.array([levels], np.float32)
    key = CardKey(cluster="c", node="n", card=CardId("GPU-1"), card_model=CardModelName("A10"))
    return UsageGrid(
        keys=(key,),
        since=datetime(2026, 5, 4, tzinfo=UTC),
        step_seconds=600,
        steps=len(levels),
        mean={Measure.SM_ACTIVE: values},
        peak={Measure.SM_ACTIVE: values + np.float32(0.1)},
    )


def test_a_long_step_holds_the_mean_and_the_largest_peak_of_what_was_collected() -> None:
    found = coarse_grid(grid(0.2, 0.4, NAN, 0.6, NAN, NAN, 0.9), 1200)
    assert (found.step_seconds, found.steps) == (1200, 3)
    np.testing.assert_allclose(found.mean[Measure.SM_ACTIVE], [[0.3, 0.6, NAN]], rtol=1e-6)
    np.testing.assert_allclose(found.peak[Measure.SM_ACTIVE], [[0.5, 0.7, NAN]], rtol=1e-6)


def test_steps_of_the_same_length_change_nothing() -> None:
    given = grid(0.2, NAN, 0.5)
    found = coarse_grid(given, 600)
    np.testing.assert_array_equal(found.mean[Measure.SM_ACTIVE], given.mean[Measure.SM_ACTIVE])
    assert found.until == given.until


@pytest.mark.parametrize("step_seconds", [300, 900, 0])
def test_lengths_that_do_not_fit_are_refused(step_seconds: int) -> None:
    with pytest.raises(Misconfigured, match="not a whole multiple"):
        coarse_grid(grid(0.1, 0.2), step_seconds)
