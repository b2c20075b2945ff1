"""Planes of a usage grid in files: what was written is read, and what a reader writes stays with it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fleet.errors import Corrupt
from fleet.schema import Measure
from gputide.container.planes import StoredPlanes
from tests.recommender.second_fleet import second_fleet

FLEET = second_fleet(8, 12, 2, step_seconds=3600)
ROWS, STEPS = len(FLEET.slices.keys), FLEET.slices.steps


@pytest.fixture
def planes(tmp_path: Path) -> StoredPlanes:
    """The fleet's means, row by row, the last of them in another order; nothing of the first row."""
    found = StoredPlanes(tmp_path, ROWS, STEPS)
    for measure, values in FLEET.slices.mean.items():
        found.put(measure, [1, 2], values[[1, 2]])
        rest = [*range(ROWS - 1, 2, -1)]
        found.put(measure, rest, values[rest])
    return found


def test_what_was_put_is_read_and_a_row_without_is_not_collected(planes: StoredPlanes, tmp_path: Path) -> None:
    assert list(planes) == list(FLEET.slices.mean)
    for measure, values in FLEET.slices.mean.items():
        assert np.isnan(planes[measure][0]).all()
        np.testing.assert_array_equal(planes[measure][1:], values[1:])
    assert not list(tmp_path.iterdir())
    assert planes.get(Measure.POWER) is None


def test_what_a_reader_writes_nobody_else_reads(planes: StoredPlanes) -> None:
    own = planes[Measure.SM_ACTIVE]
    own[:] = 0.5
    np.testing.assert_array_equal(planes[Measure.SM_ACTIVE][1:], FLEET.slices.mean[Measure.SM_ACTIVE][1:])


def test_rows_are_left_out_of_files_as_of_memory(planes: StoredPlanes) -> None:
    in_files = replace(FLEET.slices, mean=planes, peak=planes)
    in_memory = replace(FLEET.slices, mean=dict(planes), peak=dict(planes))
    first, again = {2: 0, 5: 7}, {3: 1}
    measures = (Measure.SM_ACTIVE, Measure.DUTY_CYCLE)
    found, expected = (
        grid.without(measures, first).without((Measure.SM_ACTIVE,), again) for grid in (in_files, in_memory)
    )
    assert list(found.mean) == list(expected.mean)
    for measure in expected.mean:
        np.testing.assert_array_equal(found.mean[measure], expected.mean[measure])
        np.testing.assert_array_equal(found.peak[measure], expected.peak[measure])
    assert not np.array_equal(found.mean[Measure.SM_ACTIVE], planes[Measure.SM_ACTIVE], equal_nan=True)


def test_a_folder_that_is_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(Corrupt, match="gone"):
        StoredPlanes(tmp_path / "gone", 1, 1).put(Measure.POWER, [0], np.zeros((1, 1), np.float32))
