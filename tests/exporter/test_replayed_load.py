"""Replicas that stay carry what those that are away would have."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.replay.reader import ReplayReader
from exporter.replay.seats import NO_SERVICE, Enforced, Seat, carried
from exporter.trace.trace import open_trace
from fleet.schema import Measure
from tests.exporter.builders import TraceFiles, at, card, pod, row


def test_sibling_carries_the_load_and_no_framebuffer() -> None:
    values = {Measure.SM_ACTIVE: np.array([0.2, 0.3, 0.4]), Measure.FRAMEBUFFER_USED: np.array([1.0, 2.0, 3.0])}
    found = carried(values, np.zeros(3, np.int64), np.zeros(3, np.int64), np.array([True, True, False]))
    assert found[Measure.SM_ACTIVE][:2] == pytest.approx([0.4, 0.5])
    assert found[Measure.FRAMEBUFFER_USED].tolist() == [1.0, 2.0, 3.0]


def test_load_that_nobody_can_carry_is_a_full_card() -> None:
    values = {Measure.SM_ACTIVE: np.array([0.7, 0.7])}
    found = carried(values, np.zeros(2, np.int64), np.zeros(2, np.int64), np.array([True, False]))
    assert found[Measure.SM_ACTIVE][0] == 1.0


def test_pods_that_are_no_replicas_carry_nothing_for_each_other() -> None:
    values = {Measure.SM_ACTIVE: np.array([0.2, 0.7, np.nan])}
    services = np.array([NO_SERVICE, NO_SERVICE, 0])
    found = carried(values, np.zeros(3, np.int64), services, np.array([True, False, True]))
    assert found[Measure.SM_ACTIVE][0] == 0.2
    assert np.isnan(found[Measure.SM_ACTIVE][2])


@given(
    load=st.lists(
        st.tuples(st.floats(0.0, 0.01), st.integers(0, 2), st.integers(0, 1), st.booleans()), min_size=1, max_size=50
    ),
)
def test_no_load_is_lost_or_made_while_somebody_of_the_service_runs(
    load: list[tuple[float, int, int, bool]],
) -> None:
    ratio, cells, services, runs = (np.array(column) for column in zip(*load, strict=True))
    found = carried({Measure.SM_ACTIVE: ratio}, cells, services, runs)[Measure.SM_ACTIVE]
    for cell, service in {(entry[1], entry[2]) for entry in load}:
        own = (cells == cell) & (services == service)
        if (own & runs).any():
            assert found[own & runs].sum() == pytest.approx(ratio[own].sum())


class Gone:
    """A seating in which one pod is away."""

    enforced = Enforced()

    def seats(self, moment: object) -> dict[str, tuple[Seat, ...]]:
        return {"team/web-2": (Seat(card=None, since=at(0)),)}


def test_replay_shows_the_load_on_the_replica_that_stays(tmp_path: Path) -> None:
    files = TraceFiles(
        cards=[card("GPU-a"), card("GPU-b")],
        pods=[pod("web-1", "GPU-a"), pod("web-2", "GPU-b")],
        usage=[row(10, "web-1", "GPU-a"), row(10, "web-2", "GPU-b", sm_active_ratio=0.3)],
    )
    trace = open_trace(files.write(tmp_path / "trace"))
    alone = next(ReplayReader(trace, seating=Gone()).blocks(1)).slice_samples
    assert alone.values[Measure.SM_ACTIVE].tolist() == pytest.approx([0.5])
