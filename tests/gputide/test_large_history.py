"""Very large fleets: read and analysed in parts and planned by the hour, with the same profiles."""

import json
import os
import shutil
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analyzer.profile import profile_fleet
from bench.stored_fleet import CLUSTER, store_fleet, store_minutes
from enforcer.suffered import HarmQuestion, joined
from fleet.coarse_grid import coarse_grid
from fleet.data_folder import open_data_folder
from fleet.documents import profiles_document
from fleet.durable import FolderLock
from fleet.errors import Corrupt
from fleet.schema import ALLOCATIONS, INVENTORY_CARDS, INVENTORY_NODES, POD_USAGE, Measure
from fleet.settings.settings import Settings
from fleet.usage import History, UsageGrid
from gputide.answers.fleet import longer_steps_note
from gputide.container import history
from gputide.container.planes import StoredPlanes
from gputide.scanning.record import record, shown
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
    return Session(data_path=path, settings=by_processes(1), now_override=None, is_quiet=True)


def by_processes(count: int) -> Settings:
    """Settings by which so many processes analyse."""
    settings = Settings()
    return settings.model_copy(update={"analyzer": settings.analyzer.model_copy(update={"processes": count})})


@pytest.fixture
def small_parts(monkeypatch) -> None:
    """Parts of seven slices; plans by the hour."""
    monkeypatch.setattr(history, "WHOLE_CELLS_MAX", 0)
    monkeypatch.setattr(history, "PLAN_CELLS_MAX", 0)
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


def test_pods_that_lived_briefly_count_by_the_steps_that_they_would_fill(session: Session, monkeypatch) -> None:
    """A part's folder is made for a history of few rows, too, if its grid is large."""
    whole = whole_of(session)
    cells = max(len(grid.keys) * grid.steps for grid in (whole.slices, whole.cards) if grid is not None)
    stored = DuckdbWarehouse(session.data_path / "warehouse").stored_history(CLUSTER, rows_max=cells * 9)
    assert stored.is_small
    monkeypatch.setattr(history, "WHOLE_CELLS_MAX", cells * 9)
    assert history._is_small(stored)
    monkeypatch.setattr(history, "WHOLE_CELLS_MAX", cells // 9)
    assert not history._is_small(stored)


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
def test_two_processes_find_what_one_finds(session: Session) -> None:
    before = names_in(session.data_path)
    two = replace(session, settings=by_processes(2))
    assert history.load_profiles(two) == history.load_profiles(session)
    planned, alone = (history.load_planned(asked).history for asked in (two, session))
    assert_same(planned.slices, alone.slices)
    assert names_in(session.data_path) == before


@pytest.mark.usefixtures("small_parts")
def test_a_file_that_a_worker_cannot_read_is_named(session: Session, tmp_path: Path) -> None:
    copy = tmp_path / "data"
    shutil.copytree(session.data_path, copy)
    damaged = max((copy / "warehouse" / POD_USAGE.name).rglob("*.parquet"), key=lambda path: path.stat().st_size)
    size = damaged.stat().st_size
    with damaged.open("r+b") as file:
        file.seek(size // 3)
        file.write(b"\xff" * (size // 3))
    with pytest.raises(Corrupt, match=damaged.name):
        history.load_profiles(replace(session, data_path=copy, settings=by_processes(2)))
    assert not list(copy.glob(".parts-*"))


@pytest.mark.usefixtures("small_parts")
def test_what_a_killed_analysis_left_goes_with_the_next_and_what_another_uses_stays(session: Session) -> None:
    left, used, new = (session.data_path / f".parts-{name}" for name in ("left", "used", "new"))
    for path in (left, used, new):
        path.mkdir()
    FolderLock(left, "parts").release()
    os.utime(left / "parts.lock", (0, 0))
    with FolderLock(used, "parts"):
        history.load_profiles(session)
        assert (left.exists(), used.exists(), new.exists()) == (False, True, True)
    os.utime(used / "parts.lock", (0, 0))
    history.load_profiles(session)
    assert not used.exists()
    new.rmdir()


@pytest.mark.usefixtures("small_parts")
def test_hours_that_are_kept_part_by_part_are_those_of_the_whole(session: Session) -> None:
    found = history.load_planned(session)
    planned, profiles = found.history, found.profiles
    coarse = history.for_plan(whole_of(session))
    assert (coarse.slices.step_seconds, coarse.slices.steps) == (3600, DAYS * 24)
    assert coarse.slices.until == whole_of(session).slices.until
    assert planned.inventory == coarse.inventory
    assert "stray" in {key.pod for key in planned.slices.keys}
    assert_same(planned.slices, coarse.slices)
    assert planned.cards is not None
    assert coarse.cards is not None
    assert_same(planned.cards, coarse.cards)
    assert profiles == history.load_profiles(session)
    judged = history.load_judged(session)
    assert judged.inventory == planned.inventory
    assert_same(judged.slices, planned.slices)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize(("cells_max", "step_seconds"), [(10**9, 60), (0, 3600)])
def test_pages_keep_of_a_large_fleet_what_they_draw(session: Session, cells_max: int, step_seconds: int) -> None:
    mean, peak = {Measure.SM_ACTIVE, Measure.FRAMEBUFFER_USED}, {Measure.SM_ACTIVE}
    found = history.load_drawn(session, CLUSTER, cells_max=cells_max, mean=mean, peak=peak)
    drawn, profiles = found.history, found.profiles
    assert found.source_seconds == 60
    whole = whole_of(session).slices
    expected = whole if step_seconds == 60 else coarse_grid(whole, 3600)
    assert drawn.cards is None
    assert_same(
        drawn.slices,
        replace(
            expected,
            mean={measure: values for measure, values in expected.mean.items() if measure in mean},
            peak={measure: values for measure, values in expected.peak.items() if measure in peak},
        ),
    )
    assert profiles == history.load_profiles(session)


@pytest.mark.usefixtures("small_parts")
def test_a_plan_in_longer_steps_says_so(session: Session) -> None:
    (said,) = longer_steps_note(history.load_planned(session).history.slices.step_seconds, 60)
    assert said.startswith("made in steps of 3600 s, since the fleet is large, where its source has 60 s: ")
    assert longer_steps_note(60, 60) == ()


def test_a_small_fleet_is_planned_for_in_its_own_steps(session: Session) -> None:
    found = history.load_planned(session)
    planned, profiles = found.history, found.profiles
    assert_same(planned.slices, whole_of(session).slices)
    assert profiles == history.load_profiles(session)


def test_steps_of_a_plan_are_the_shortest_that_fit(session: Session, monkeypatch) -> None:
    whole = whole_of(session)
    grid = whole.slices
    cells = len(grid.keys) * grid.steps
    for cells_max, seconds in (
        (cells, 60),
        (cells - 1, 600),
        (cells // 10, 600),
        (cells // 10 - 1, 1800),
        (cells // 30 - 1, 3600),
        (0, 3600),
    ):
        monkeypatch.setattr(history, "WHOLE_CELLS_MAX", cells_max)
        monkeypatch.setattr(history, "PLAN_CELLS_MAX", cells_max)
        assert history.plan_step_seconds(grid) == seconds, cells_max
        planned = history.for_plan(whole)
        assert (planned is whole) == (seconds == 60)
        assert planned.slices.step_seconds == seconds
    odd = replace(grid, step_seconds=90)
    assert history.plan_step_seconds(odd) == 3600, "1,800 s are 20 of it, and still too many"
    assert history.plan_step_seconds(replace(grid, step_seconds=7)) == 7


def thinned(source: Path, target: Path) -> None:
    """A copy of a stored fleet whose every other node reports only every third hour, and some of whose pods never."""
    with closing(DuckdbWarehouse(open_data_folder(target, create=True).warehouse)) as warehouse:
        for number, table in enumerate((POD_USAGE, ALLOCATIONS, INVENTORY_CARDS, INVENTORY_NODES)):
            parts = []
            for file in sorted((source / "warehouse" / table.name).rglob("*.parquet")):
                rows = pq.read_table(file, partitioning=None)
                if table is POD_USAGE:
                    hour = rows["window_start"].to_numpy() // 3_600_000
                    is_slow = np.array([int(node[-1]) % 2 == 1 for node in rows["node"].to_pylist()])
                    is_silent = np.array([int(card[-1]) == 3 for card in rows["card"].to_pylist()])
                    rows = rows.filter(pa.array(~is_silent & (~is_slow | (hour % 3 == 0))))
                date = file.relative_to(source / "warehouse" / table.name).parts[0].removeprefix("dt=")
                parts.append(Part(table=table, date=date, cluster=CLUSTER, rows=(rows.cast(arrow_schema(table)),)))
            warehouse.append((AppendName(source="thinned", start=number, end=number + 1),), parts)


def with_a_stranger(path: Path) -> None:
    """Hours of a pod on a card of a slow node that was granted to somebody else: its rows belong to two parts."""
    (file, *_) = sorted((path / "warehouse" / POD_USAGE.name).rglob("*.parquet"))
    rows = pq.read_table(file, partitioning=None)
    nodes, cards = (rows[name].to_pylist() for name in ("node", "card"))
    slow = next(place for place, node in enumerate(nodes) if int(node[-1]) % 2 == 1)
    own = next(place for place, node in enumerate(nodes) if node[:3] != nodes[slow][:3])
    hours = [rows.slice(own, 1)] * 25
    made = pa.concat_tables(hours)
    starts = pa.array(made["window_start"].to_numpy() + np.arange(25) * 3_600_000)
    for name, values in (("window_start", starts), ("node", [nodes[slow]] * 25), ("card", [cards[slow]] * 25)):
        made = made.set_column(made.column_names.index(name), name, pa.array(values))
    with closing(DuckdbWarehouse(path / "warehouse")) as warehouse:
        part = Part(
            table=POD_USAGE, date=SINCE.date().isoformat(), cluster=CLUSTER, rows=(made.cast(arrow_schema(POD_USAGE)),)
        )
        warehouse.append((AppendName(source="stranger", start=0, end=1),), [part])


@pytest.mark.parametrize("has_stranger", [False, True])
def test_findings_are_the_same_however_a_fleet_without_measured_cards_is_cut(
    tmp_path, monkeypatch, has_stranger: bool
) -> None:
    """How nodes report is asked of all parts before any is described."""
    store_fleet(tmp_path / "full", 64)
    thinned(tmp_path / "full", tmp_path / "data")
    if has_stranger:
        with_a_stranger(tmp_path / "data")
    now = SINCE + timedelta(days=7)
    session = Session(data_path=tmp_path / "data", settings=by_processes(1), now_override=now, is_quiet=True)
    whole = json.dumps(profiles_document(history.load_profiles(session)))
    assert whole_of(session).cards is None
    assert "silent_by_node" in whole
    monkeypatch.setattr(history, "WHOLE_CELLS_MAX", 0)
    for slices in (1, 9, 20):
        monkeypatch.setattr(history, "CELLS_PER_PART", slices * 7 * 24)
        assert json.dumps(profiles_document(history.load_profiles(session))) == whole


def test_harm_of_a_large_fleet_is_that_of_the_whole_also_beside_rows_that_nobody_was_granted(
    session: Session, monkeypatch
) -> None:
    folder, settings, now = session.folder(), session.settings, session.now()
    asked = folder, settings, None, (now - timedelta(days=DAYS), now), HarmQuestion()
    inventory, (whole,) = history.ask_believed(*asked)
    assert any(one.steps.active for one in whole.by_sm.values())
    monkeypatch.setattr(history, "WHOLE_CELLS_MAX", 0)
    for slices in (1, 7):
        monkeypatch.setattr(history, "CELLS_PER_PART", slices * DAYS * 1440)
        of_parts, parts = history.ask_believed(*asked)
        assert of_parts == inventory
        assert len(parts) > 1
        assert joined(parts) == joined([whole])


@pytest.mark.usefixtures("small_parts")
def test_a_trace_of_a_large_fleet_is_that_of_the_whole_to_the_byte(session: Session, tmp_path: Path) -> None:
    record(whole_of(session), tmp_path / "whole", hide=shown)
    found = history.load_recorded(session)
    assert isinstance(found.slices.mean, StoredPlanes)
    record(found, tmp_path / "parts", hide=shown)
    names = names_in(tmp_path / "whole")
    assert names == names_in(tmp_path / "parts")
    for name in names:
        assert (tmp_path / "parts" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
