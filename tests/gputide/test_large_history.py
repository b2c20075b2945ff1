"""Very large fleets: read and analysed in parts and planned by the hour, with the same profiles."""

from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analyzer.profile import profile_fleet
from bench.stored_fleet import CLUSTER, store_minutes
from fleet.schema import POD_USAGE, Measure
from fleet.settings.settings import Settings
from fleet.usage import History, UsageGrid
from gputide.container import history
from gputide.session import Session
from pipeline.warehouse.ddl import arrow_schema
from pipeline.warehouse.warehouse import AppendName, Part
from pipeline.warehouse.warehouse_duckdb import DuckdbWarehouse
from tests.recommender.second_fleet import SINCE, second_fleet

FLEET = second_fleet(6, 40, 5)
CARDS, DAYS = 30, 2


@pytest.fixture(scope="module")
def session(tmp_path_factory) -> Session:
    """A stored fleet of which one pod's rows name no pod that was granted anything, nor its card."""
    path = tmp_path_factory.mktemp("large") / "data"
    store_minutes(path, CARDS, DAYS)
    (file, *_) = sorted((path / "warehouse" / POD_USAGE.name).rglob("*.parquet"))
    rows = pq.read_table(file, partitioning=None).slice(0, 500)
    for name in ("pod", "card"):
        rows = rows.set_column(rows.column_names.index(name), name, pa.array(["stray"] * len(rows)))
    rows = rows.cast(arrow_schema(POD_USAGE))
    with closing(DuckdbWarehouse(path / "warehouse")) as warehouse:
        part = Part(table=POD_USAGE, date=SINCE.date().isoformat(), cluster=CLUSTER, rows=(rows,))
        warehouse.append((AppendName(source="stray", start=0, end=1),), [part])
    return Session(data_path=path, settings=Settings(), now_override=None, is_quiet=True)


@pytest.fixture
def small_parts(monkeypatch) -> None:
    """Parts of seven slices."""
    monkeypatch.setattr(history, "WHOLE_CELLS_MAX", 0)
    monkeypatch.setattr(history, "CELLS_PER_PART", 7 * DAYS * 1440)


def whole_of(session: Session) -> History:
    """The stored fleet, read as a whole."""
    return history.load_history(session.folder(), session.settings, session.now())


def names_in(folder: Path) -> list[str]:
    """What lies in a folder."""
    return sorted(path.name for path in folder.iterdir())


def assert_same(one: UsageGrid, other: UsageGrid) -> None:
    """Two grids are the same in every bit."""
    assert (one.keys, one.since, one.step_seconds, one.steps) == (
        other.keys,
        other.since,
        other.step_seconds,
        other.steps,
    )
    for planes, others in ((one.mean, other.mean), (one.peak, other.peak)):
        assert list(planes) == list(others)
        for measure, values in planes.items():
            np.testing.assert_array_equal(values, others[measure])


def test_a_fleet_in_parts_has_the_profiles_of_the_whole(monkeypatch) -> None:
    now, settings = FLEET.inventory.as_of, Settings()
    monkeypatch.setattr(history, "WHOLE_CELLS_MAX", 0)
    monkeypatch.setattr(history, "CELLS_PER_PART", 10 * FLEET.slices.steps)
    found = history.profiled(FLEET, settings, now)
    assert found == profile_fleet(FLEET, settings=settings.analyzer, now=now)


@pytest.mark.usefixtures("small_parts")
def test_a_fleet_that_is_read_in_parts_has_the_profiles_of_the_whole(session: Session) -> None:
    before = names_in(session.data_path)
    found = history.load_profiles(session)
    assert len(found.workloads) > 3
    assert found == profile_fleet(whole_of(session), settings=session.settings.analyzer, now=session.now())
    assert names_in(session.data_path) == before


@pytest.mark.usefixtures("small_parts")
def test_hours_that_are_kept_part_by_part_are_those_of_the_whole(session: Session) -> None:
    whole = whole_of(session)
    planned, profiles = history.load_planned(session, cells_max=0)
    coarse = history.for_plan(whole, cells_max=0)
    assert planned.inventory == coarse.inventory
    assert "stray" in {key.pod for key in planned.slices.keys}
    assert_same(planned.slices, coarse.slices)
    assert planned.cards is not None
    assert coarse.cards is not None
    assert_same(planned.cards, coarse.cards)
    assert profiles == history.load_profiles(session)


@pytest.mark.usefixtures("small_parts")
def test_a_plan_is_made_from_minutes_where_they_fit(session: Session) -> None:
    planned, profiles = history.load_planned(session)
    assert_same(planned.slices, whole_of(session).slices)
    assert profiles == history.load_profiles(session)


def test_only_a_history_beyond_the_limit_is_planned_by_the_hour() -> None:
    cells = len(FLEET.slices.keys) * FLEET.slices.steps
    assert history.for_plan(FLEET, cells) is FLEET
    coarse = history.for_plan(FLEET, cells - 1)
    assert (coarse.slices.step_seconds, coarse.slices.steps) == (3600, 5 * 24)
    assert coarse.slices.mean[Measure.SM_ACTIVE].shape == (40, 5 * 24)
    assert coarse.slices.until == FLEET.slices.until
