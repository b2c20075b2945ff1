"""Kill -9 at the moments at which something is made durable, and the same command again: as if nothing had happened."""

from __future__ import annotations

import shutil
import sqlite3
from datetime import timedelta
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from enforcer.record.ledger import Ledger
from enforcer.simulated.cluster import SimulatedCluster, SimulatedSeat
from exporter.synthetic.writer import SINCE, write_synthetic_fleet
from fleet.inventory import Inventory
from fleet.schema import CARD_USAGE, POD_USAGE
from pipeline.warehouse.warehouse_duckdb import DuckdbWarehouse
from tests.gputide.conftest import Program

KILLED = -9
UNTIL = "2026-01-07T12:00"
APPLY = ("apply", "--yes", "--by", "ada", "--set", "enforcer.watch_seconds=120")
Moment = tuple[str, int, str]


@pytest.fixture(scope="module")
def short_fleet(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("short-fleet")
    write_synthetic_fleet(folder, cards=60, days=3)
    return str(folder)


@pytest.fixture(scope="module")
def unharmed(short_fleet: str, program: Program, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder that nobody was killed in."""
    data = tmp_path_factory.mktemp("unharmed") / "data"
    said = program(data, "admin", "replay", short_fleet, "--until", UNTIL)
    assert said.status == 0, said.err
    return data


@pytest.fixture(scope="module")
def fed(short_fleet: str, program: Program, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with samples on the bus that were not rolled up."""
    data = tmp_path_factory.mktemp("fed") / "data"
    assert (
        program(data, "admin", "replay", short_fleet, "--until", UNTIL, dies_at=("fsync", 8, "after")).status == KILLED
    )
    return data


@pytest.fixture(scope="module")
def approved(unharmed: Path, program: Program, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with an approved plan."""
    data = tmp_path_factory.mktemp("approved") / "data"
    shutil.copytree(unharmed, data)
    for arguments in (("plan", "make", "--risk", "high"), ("plan", "approve")):
        said = program(data, *arguments)
        assert said.status == 0, said.err
    return data


@pytest.fixture(scope="module")
def applied(approved: Path, program: Program, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with a plan that was applied in one go."""
    data = tmp_path_factory.mktemp("applied") / "data"
    shutil.copytree(approved, data)
    said = program(data, *APPLY)
    assert said.status == 0, said.err
    return data


@pytest.fixture(scope="module")
def played_on(applied: Path, short_fleet: str, program: Program, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder in which a plan was applied and the rest of the trace played after it."""
    data = tmp_path_factory.mktemp("played-on") / "data"
    shutil.copytree(applied, data)
    said = program(data, "admin", "replay", short_fleet)
    assert said.status == 0, said.err
    return data


@pytest.fixture(scope="module")
def rolled_up(fed: Path, program: Program, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder whose samples were rolled up in one go."""
    data = tmp_path_factory.mktemp("rolled-up") / "data"
    shutil.copytree(fed, data)
    said = program(data, "run", "rollup", "--drain")
    assert said.status == 0, said.err
    assert not said.out.startswith("0 samples")
    return data


def seats(data: Path) -> tuple[SimulatedSeat, ...]:
    cluster = SimulatedCluster.open(data / "cluster.sqlite")
    try:
        return cluster.seats()
    finally:
        cluster.close()


def objects(data: Path) -> list[tuple[Any, ...]]:
    """Every object of the cluster but the lease, whose holder is another process each time."""
    connection = sqlite3.connect(data / "cluster.sqlite")
    try:
        return connection.execute(
            "SELECT kind, namespace, name, body FROM objects WHERE kind != 'Lease' ORDER BY 1, 2, 3"
        ).fetchall()
    finally:
        connection.close()


@pytest.mark.parametrize(
    "moment",
    [
        ("fsync", 1, "after"),
        ("rename", 1, "before"),
        ("sqlite", 3, "after"),
        ("fsync", 5, "before"),
        ("rename", 3, "after"),
        ("fsync", 8, "after"),
        ("rename", 6, "before"),
        ("rename", 10, "before"),
        ("fsync", 89, "after"),
    ],
)
def test_replay_goes_on_where_it_was_killed(
    moment: Moment, short_fleet: str, unharmed: Path, tmp_path: Path, program: Program
) -> None:
    data = tmp_path / "data"
    killed = program(data, "admin", "replay", short_fleet, "--until", UNTIL, dies_at=moment)
    assert killed.status == KILLED
    again = program(data, "admin", "replay", short_fleet, "--until", UNTIL)
    assert again.status == 0, again.err
    assert seats(data) == seats(unharmed)
    assert rows(data) == rows(unharmed)
    assert (data / "clock.json").read_bytes() == (unharmed / "clock.json").read_bytes()


def test_no_slice_is_granted_twice_at_a_time(unharmed: Path) -> None:
    _, inventory = rows(unharmed)
    for first, second in combinations(inventory.grants, 2):
        if (first.pod_id, first.container, first.card) == (second.pod_id, second.container, second.card):
            later = max(first.started_at, second.started_at)
            assert not (first.lives_at(later) and second.lives_at(later)), (first, second)


@pytest.mark.parametrize("moment", [("fsync", 4, "before"), ("rename", 3, "before"), ("fsync", 12, "after")])
def test_replay_killed_after_apply_plays_the_moved_pods_alike(
    moment: Moment, short_fleet: str, applied: Path, played_on: Path, tmp_path: Path, program: Program
) -> None:
    data = tmp_path / "data"
    shutil.copytree(applied, data)
    assert program(data, "admin", "replay", short_fleet, dies_at=moment).status == KILLED
    again = program(data, "admin", "replay", short_fleet)
    assert again.status == 0, again.err
    assert seats(data) == seats(played_on)
    assert rows(data) == rows(played_on)


@pytest.mark.parametrize(
    "moment", [("fsync", 1, "before"), ("rename", 1, "after"), ("fsync", 20, "after"), ("rename", 4, "before")]
)
def test_rollup_counts_every_sample_once(
    moment: Moment, fed: Path, rolled_up: Path, tmp_path: Path, program: Program
) -> None:
    data = tmp_path / "data"
    shutil.copytree(fed, data)
    killed = program(data, "run", "rollup", "--drain", dies_at=moment)
    assert killed.status == KILLED
    again = program(data, "run", "rollup", "--drain")
    assert again.status == 0, again.err
    assert rows(data) == rows(rolled_up)


@pytest.mark.parametrize(
    "moment",
    [
        ("fsync", 1, "before"),
        ("fsync", 2, "after"),
        ("fsync", 7, "before"),
        ("sqlite", 40, "after"),
        ("sqlite", 400, "before"),
        ("fsync", 30, "after"),
    ],
)
def test_apply_ends_where_it_would_have(
    moment: Moment, approved: Path, applied: Path, tmp_path: Path, program: Program
) -> None:
    data = tmp_path / "data"
    shutil.copytree(approved, data)
    killed = program(data, *APPLY, dies_at=moment)
    assert killed.status == KILLED
    again = program(data, *APPLY)
    assert again.status == 0, again.err
    assert seats(data) == seats(applied)
    assert objects(data) == objects(applied)
    assert promoted(data) == promoted(applied)


@pytest.mark.parametrize(
    "moment", [("fsync", 1, "before"), ("fsync", 2, "after"), ("sqlite", 60, "after"), ("fsync", 4, "before")]
)
def test_undo_ends_where_it_would_have(
    moment: Moment, approved: Path, applied: Path, tmp_path: Path, program: Program
) -> None:
    data = tmp_path / "data"
    shutil.copytree(applied, data)
    killed = program(data, "undo", "--yes", dies_at=moment)
    assert killed.status == KILLED
    again = program(data, "undo", "--yes")
    assert again.status == 0 or "it was undone already" in again.err
    assert [seat for seat in seats(data) if seat.is_oversubscribed] == []
    before = {(seat.namespace, seat.pod, seat.container): seat.framebuffer_granted_bytes for seat in seats(approved)}
    after = {(seat.namespace, seat.pod, seat.container): seat.framebuffer_granted_bytes for seat in seats(data)}
    assert after == before
    promoted(data)


def promoted(data: Path) -> list[int]:
    """Stages that the ledger says are kept, each as often as it says so; reading it checks the chain."""
    return [
        int(entry.content["stage"]) for entry in Ledger(data / "ledger.jsonl").entries() if entry.event == "promoted"
    ]


@cache
def rows(data: Path) -> tuple[list[pa.Table], Inventory]:
    """Every sample's count, sum and maximum by quarter of an hour, and the inventory."""
    warehouse = DuckdbWarehouse(data / "warehouse")
    (cluster,) = warehouse.clusters()
    since, until = SINCE, SINCE + timedelta(days=4)
    counted = [
        warehouse.windows(table, cluster=cluster, level_seconds=900, since=since, until=until)
        for table in (POD_USAGE, CARD_USAGE)
    ]
    assert min(table.num_rows for table in counted) > 0
    return counted, warehouse.inventory(cluster, as_of=until)
