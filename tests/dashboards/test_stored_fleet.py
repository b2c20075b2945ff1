"""The newest analysis for whoever waits, the last one for whoever looks, and the use of one workload."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest
from structlog.testing import capture_logs

import dashboards.stored.fleet as module
from dashboards.stored.fleet import Analysed, WarehouseFleet
from dashboards.stored.workload_series import STEPS_MAX, WorkloadSeries
from dashboards.view_models.card_history import CardHistory
from fleet.coarse_grid import coarse_grid
from fleet.errors import Corrupt, NotEnoughData, Unavailable
from fleet.schema import Measure
from tests.dashboards.embedded import NOW, make_profiles
from tests.recommender.second_fleet import second_fleet
from tests.waiting import until

PROFILES = make_profiles()
HISTORY = second_fleet(1, 12, 2)
SERIES = WorkloadSeries.of(HISTORY)
CARD = CardHistory(
    times=(), compute=(), framebuffer_used_bytes=(), power_watts=(), temperature_celsius=(), held=(),
)  # fmt: skip


class Warehouse:
    """What an analysis is made of: a version, and a gate that holds the analysis up."""

    def __init__(self) -> None:
        self.version, self.made = "1", 0
        self.gate = threading.Event()
        self.gate.set()
        self.fault: Exception | None = None

    def analyse(self, cluster: str) -> Analysed:
        self.gate.wait(60)
        if self.fault is not None:
            raise self.fault
        self.made += 1
        found = replace(PROFILES, cluster=cluster, coverage_ratio=self.made / 100)
        return Analysed(profiles=found, nodes=(), series=SERIES, interval_seconds=600.0)

    def view(self, *, is_patient: bool) -> WarehouseFleet:
        return WarehouseFleet(
            clusters=lambda: ("a", "b"), version=lambda: self.version, analyse=self.analyse, now=lambda: NOW,
            newest=lambda _: NOW, events=lambda _cluster, _workload: (), of_card=lambda *_: CARD, is_patient=is_patient,
        )  # fmt: skip


@pytest.mark.parametrize("is_patient", [True, False])
def test_analysis_is_made_once_while_nothing_changes(is_patient: bool) -> None:
    warehouse = Warehouse()
    view = warehouse.view(is_patient=is_patient)
    assert view.profiles("a") is view.profiles("a")
    assert view.profiles("b").cluster == "b"
    assert warehouse.made == 2
    with pytest.raises(NotEnoughData, match="nothing is known"):
        view.profiles("c")


def test_patient_reader_is_given_the_newest() -> None:
    warehouse = Warehouse()
    view = warehouse.view(is_patient=True)
    view.profiles("a")
    warehouse.version = "2"
    assert view.profiles("a").coverage_ratio == 0.02


def test_impatient_reader_is_shown_the_last_while_the_next_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", replace(module.PATIENCE, rest_ratio=0.0, quick_seconds=0.0))
    warehouse = Warehouse()
    view = warehouse.view(is_patient=False)
    assert view.profiles("a").coverage_ratio == 0.01
    warehouse.gate.clear()
    warehouse.version = "2"
    assert view.profiles("a").coverage_ratio == 0.01
    warehouse.gate.set()
    until(lambda: view.profiles("a").coverage_ratio == 0.02)


def test_after_an_analysis_it_rests_as_a_multiple_of_what_that_took(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", replace(module.PATIENCE, rest_ratio=1e9))
    warehouse = Warehouse()
    view = warehouse.view(is_patient=False)
    view.profiles("a")
    for version in ("2", "3", "4"):
        warehouse.version = version
        view.profiles("a")
    assert warehouse.made == 1


def test_first_reader_is_told_that_it_takes_long_and_why_it_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", replace(module.PATIENCE, first_seconds=0.05))
    warehouse = Warehouse()
    warehouse.gate.clear()
    view = warehouse.view(is_patient=False)
    with pytest.raises(Unavailable, match=r"being read and analysed since \d+ s"):
        view.profiles("a")
    warehouse.fault = Corrupt("cannot read the warehouse: it is damaged")
    warehouse.gate.set()

    def fails_for_good() -> bool:
        with pytest.raises((Unavailable, Corrupt)) as caught:
            view.profiles("a")
        return isinstance(caught.value, Corrupt)

    until(fails_for_good)


def test_first_reader_sees_a_bug_of_the_analysis_and_the_log_has_its_traceback() -> None:
    warehouse = Warehouse()
    warehouse.fault = ZeroDivisionError("no step")
    view = warehouse.view(is_patient=False)
    with capture_logs() as logged, pytest.raises(ZeroDivisionError, match="no step"):
        view.profiles("a")
    assert [(one["event"], one["exc_info"]) for one in logged] == [("a bug ended an answer", True)]


def test_use_of_a_workload_is_that_of_its_own_slices() -> None:
    grants = HISTORY.inventory.grants
    workload = grants[0].workload_id
    rows = [
        row
        for row, key in enumerate(HISTORY.slices.keys)
        if key.card in {g.card for g in grants if g.workload_id == workload}
    ]
    found = SERIES.history(workload, None, ())
    assert found is not None
    used = HISTORY.slices.mean[Measure.FRAMEBUFFER_USED][rows].max(axis=0)
    assert [value for value in found.framebuffer_used_bytes if value is not None] == pytest.approx(
        [float(value) for value in used if np.isfinite(value)]
    )
    assert SERIES.history("team/Deployment/none", None, ()) is None
    last_day = SERIES.history(workload, 24, ())
    assert last_day is not None
    assert len(last_day.times) == 144


def test_peaks_survive_where_steps_are_folded() -> None:
    long = second_fleet(1, 4, 30)
    assert long.slices.steps > STEPS_MAX
    peak = long.slices.peak[Measure.SM_ACTIVE]
    peak[:] = 0.1
    peak[:, 1234] = 0.9
    workload = long.inventory.grants[0].workload_id
    for history in (long, replace(long, slices=coarse_grid(long.slices, 3600))):
        series = WorkloadSeries.of(history)
        found = series.history(workload, None, ())
        assert found is not None
        assert len(found.times) <= STEPS_MAX
        assert max(value for value in found.compute_max if value is not None) == pytest.approx(0.9)


@pytest.mark.parametrize("step_seconds", [HISTORY.slices.step_seconds, 3600 * 24, 3600 * 48])
def test_use_of_the_last_day_is_that_of_its_steps(step_seconds: int) -> None:
    """A step that is longer than a day is the last day."""
    grid = replace(HISTORY.slices, step_seconds=step_seconds)
    series = replace(SERIES, grid=grid)
    grants = [grant for found in SERIES.grants.values() for grant in found]
    steps = max(1, 24 * 3600 // step_seconds)
    keys = [(key.namespace, key.pod, key.container, key.card) for key in grid.keys]
    found = series.lately(grants, 24)
    judged = 0
    for grant, (mean, peak, used) in zip(grants, found.tolist(), strict=True):
        name = (grant.namespace, grant.pod, grant.container, grant.card)
        if name not in keys:
            assert np.isnan([mean, peak, used]).all()
            continue
        row = keys.index(name)
        use = grid.mean[Measure.SM_ACTIVE][row, -steps:].astype(float)
        if np.isnan(use).all():
            continue
        judged += 1
        assert mean == pytest.approx(np.nanmean(use), rel=1e-5)
        assert peak == pytest.approx(np.nanmax(grid.peak[Measure.SM_ACTIVE][row, -steps:]))
        assert used == pytest.approx(np.nanmax(grid.mean[Measure.FRAMEBUFFER_USED][row, -steps:]))
    assert judged
    assert np.isnan(replace(SERIES, grid=replace(grid, steps=0)).lately(grants, 24)).all()


def test_a_card_is_read_with_its_grants_and_no_card_is_read_that_is_not_there() -> None:
    asked: list[tuple[object, ...]] = []

    def read(*call: object) -> CardHistory:
        asked.append(call)
        return CARD

    fleet = Warehouse()
    view = WarehouseFleet(
        clusters=lambda: ("a",), version=lambda: "1", analyse=fleet.analyse, now=lambda: NOW, newest=lambda _: NOW,
        events=lambda _cluster, _workload: (), of_card=read,
    )  # fmt: skip
    card = PROFILES.cards[0].card
    assert view.card_history("a", card, 24) is CARD
    assert asked == [("a", card, SERIES.grants_of(card), 24)]
    assert view.card_history("a", "GPU-of-nobody", 24) is None
    assert len(asked) == 1
