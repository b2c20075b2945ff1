"""What the warehouse has is what readers of its Iceberg tables find, after appends, merges, drops and every fault."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table as IcebergTable
from pyiceberg.table.statistics import StatisticsFile

from fleet.errors import Corrupt, Misconfigured, Unavailable
from fleet.schema import POD_USAGE, TABLES
from fleet.settings.pipeline import IcebergSettings, WarehouseSettings
from fleet.settings.settings import Settings
from gputide.container.warehouse import upkeep_round
from pipeline.bus.bus_file import FileBus
from pipeline.remote_write.decode import Version
from pipeline.warehouse.compact import compact, remove_replaced, retain
from pipeline.warehouse.iceberg_tables import IcebergTables, Published
from pipeline.warehouse.warehouse_duckdb import DuckdbWarehouse
from tests.pipeline.builders import (
    START_MS,
    USAGE_TABLES,
    Sample,
    body_of,
    expected_rows,
    file_bus,
    intake_of,
    roll_up,
    small_fleet,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:Delete operation did not match any records"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:pyiceberg"),
]

KEEP_SECONDS = 3600.0


class Shop:
    """A bus, a warehouse and its tables."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bus: FileBus = file_bus(folder / "bus")
        self.warehouse = DuckdbWarehouse(folder / "warehouse")
        self.settings = IcebergSettings(database=f"sqlite:///{folder}/tables.db")

    def send(self, samples: list[Sample], cluster: str = "c1") -> None:
        assert intake_of(self.bus).take(body_of(samples, cluster=cluster), Version.V2).status == 204
        roll_up(self.bus, self.warehouse)

    def publish(self, keep_seconds: float = KEEP_SECONDS) -> Published:
        with self.tables() as tables:
            return tables.publish(keep_seconds=keep_seconds)

    @contextmanager
    def tables(self) -> Iterator[IcebergTables]:
        location = f"file://{self.warehouse.files.folder}"
        with closing(IcebergTables(self.warehouse.files, self.settings, location)) as tables:
            yield tables

    def read(self, name: str) -> IcebergTable:
        """A table as somebody else opens it: by the catalogue alone."""
        return SqlCatalog("gputide", uri=str(self.settings.database), warehouse="file:///nowhere").load_table(
            f"gputide.{name}"
        )


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def merged(rows: pa.Table) -> dict[tuple[int, int, str], dict[str, Any]]:
    """Additive rows of usage, added the plain way, as `expected_rows` has them."""
    found: dict[tuple[int, int, str], dict[str, Any]] = {}
    for row in rows.to_pylist():
        into = found.setdefault((row["window_seconds"], row["window_start"], row["card"]), {})
        for name, value in row.items():
            if name == "samples" or name.endswith(("_count", "_sum")):
                into[name] = into.get(name, 0) + (value or 0)
            elif name.endswith("_max") and value is not None:
                into[name] = max(into.get(name, value), value)
            elif name.endswith("_histogram"):
                bins = into.setdefault(name, {})
                for place, count in value or ():
                    bins[place] = bins.get(place, 0) + count
    return {
        key: {name: value for name, value in row.items() if value or name == "samples"} for key, row in found.items()
    }


def check(shop: Shop, samples: list[Sample]) -> None:
    for table in USAGE_TABLES:
        assert merged(shop.read(table.name).scan().to_arrow()) == expected_rows(samples, table)


def test_a_reader_finds_what_was_sent_and_merges_change_nothing_for_him(shop: Shop) -> None:
    samples = small_fleet(pods=2, hours=26)
    for piece in range(3):
        shop.send(samples[piece::3])
        assert shop.publish().added > 0
    check(shop, samples)
    now = datetime.fromtimestamp(START_MS / 1000, UTC) + timedelta(days=2)
    before = shop.read(POD_USAGE.name)
    assert list(compact(shop.warehouse, now=now, files_max=2))
    assert merged(before.scan().to_arrow()) == expected_rows(samples, POD_USAGE), "a reader under way was cut off"
    assert shop.publish().removed > 0
    check(shop, samples)
    remove_replaced(shop.warehouse, now=now, keep_seconds=0)
    check(shop, samples)
    assert shop.publish() == Published(added=0, removed=0)


def test_days_that_were_dropped_leave_the_tables_and_a_part_of_a_day_can_be_asked_for(shop: Shop) -> None:
    samples = small_fleet(pods=2, hours=40)
    shop.send(samples)
    shop.publish()
    first = datetime.fromtimestamp(START_MS / 1000, UTC).date()
    rows = shop.read(POD_USAGE.name).scan(row_filter=f"dt = '{first}' and cluster = 'c1'").to_arrow()
    assert set(rows.column("dt").to_pylist()) == {first}
    list(retain(shop.warehouse, now=datetime.fromtimestamp(START_MS / 1000, UTC) + timedelta(days=2), days=1,
                finest_days=None))  # fmt: skip
    assert shop.publish().removed > 0
    assert first not in shop.read(POD_USAGE.name).scan().to_arrow().column("dt").to_pylist()


def test_clusters_with_odd_names_are_partitions_of_their_own(shop: Shop) -> None:
    names = ["a/b", "50% off", "ü", "c=1"]
    for name in names:
        shop.send(small_fleet(pods=1, hours=1), cluster=name)
    shop.publish()
    for name in names:
        found = shop.read(POD_USAGE.name).scan(row_filter=f"cluster = '{name}'").to_arrow()
        assert set(found.column("cluster").to_pylist()) == {name}


def test_two_who_publish_in_turn_and_somebody_elses_commit_leave_each_file_once(shop: Shop) -> None:
    samples = small_fleet(pods=1, hours=3)
    with shop.tables() as one:
        for piece in range(4):
            shop.send(samples[piece::4])
            if piece % 2:
                one.publish(keep_seconds=KEEP_SECONDS)
            else:
                shop.publish()
    with shop.read(POD_USAGE.name).transaction() as change:
        change.set_properties(owner="somebody")
    assert shop.publish() == Published(added=0, removed=0)
    check(shop, samples)


def test_metadata_stays_as_small_however_often_is_published(shop: Shop) -> None:
    metadata = shop.folder / "warehouse" / "iceberg" / POD_USAGE.name / "metadata"
    sizes = []
    samples = small_fleet(pods=1, hours=8)
    for piece in range(40):
        shop.send(samples[piece::40])
        shop.publish(keep_seconds=0.0)
        if piece in (9, 39):
            sizes.append(len(list(metadata.iterdir())))
    assert sizes[1] <= sizes[0] * 1.5
    check(shop, samples)


def test_an_older_table_gains_the_columns_that_it_lacks_and_an_altered_one_is_left_alone(shop: Shop) -> None:
    shop.send(small_fleet(pods=1, hours=1))
    shop.publish()
    last = POD_USAGE.columns[-1].name
    with shop.read(POD_USAGE.name).update_schema() as change:
        change.delete_column(last)
    shop.send(small_fleet(pods=2, hours=1, seed=2))
    shop.publish()
    assert last in shop.read(POD_USAGE.name).schema().column_names
    with shop.read(POD_USAGE.name).update_spec() as spec:
        spec.remove_field("cluster")
    with pytest.raises(Corrupt, match=r"gputide\.pod_usage: somebody has altered"):
        shop.publish()


def test_all_tables_are_there_before_the_first_row(shop: Shop) -> None:
    (shop.folder / "warehouse").mkdir()
    assert shop.publish() == Published(added=0, removed=0)
    for table in TABLES:
        assert shop.read(table.name).scan().to_arrow().num_rows == 0


def test_what_is_wrong_with_the_catalogue_is_said(shop: Shop) -> None:
    for database, error, words in (
        ("nonsense", Misconfigured, "cannot use iceberg.database=nonsense"),
        ("oracle+none://here", Misconfigured, "cannot use iceberg.database"),
        ("sqlite:////proc/none/tables.db", Unavailable, "cannot reach iceberg.database=sqlite:////proc/none/tables.db"),
        ("postgresql+pg8000://me@127.0.0.1:1/none", Unavailable, "cannot reach iceberg.database=postgresql"),
    ):
        shop.settings = IcebergSettings(database=database)
        with pytest.raises(error, match=words):
            shop.publish()
    with pytest.raises(ValueError, match=r"iceberg\.password_file"):
        IcebergSettings(database="postgresql+pg8000://me:secret@127.0.0.1/none")


def test_readers_of_the_catalogue_keep_nobody_from_publishing(shop: Shop) -> None:
    shop.send(small_fleet(pods=1, hours=1))
    shop.publish()
    with closing(sqlite3.connect(shop.folder / "tables.db")) as reader:
        # As a server in a Java machine does, which keeps its statement open.
        assert reader.execute("BEGIN").execute("SELECT * FROM iceberg_tables").fetchone() is not None
        shop.send(small_fleet(pods=2, hours=1, seed=2))
        assert shop.publish().added > 0


@pytest.mark.parametrize("zone", ["UTC", "Asia/Shanghai", "America/Lima"])
def test_what_a_table_said_until_just_now_is_kept_however_old_it_is(
    shop: Shop, zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        samples = small_fleet(pods=1, hours=4)
        for piece in range(3):
            shop.send(samples[piece::3])
            before = shop.read(POD_USAGE.name) if piece else None
            shop.publish(keep_seconds=0.5)
            if before is not None:
                assert before.scan().to_arrow().num_rows > 0, "a reader under way was cut off"
                assert before.metadata.current_snapshot_id in {
                    snapshot.snapshot_id for snapshot in shop.read(POD_USAGE.name).snapshots()
                }
            time.sleep(1.2)
        shop.publish(keep_seconds=0.5)
        assert len(shop.read(POD_USAGE.name).snapshots()) == 1
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("name", ["with blanks", "50%20", "ü"])
def test_a_folder_of_any_name_has_tables_and_one_that_readers_would_cut_is_refused(tmp_path: Path, name: str) -> None:
    shop = Shop(tmp_path / name)
    shop.settings = IcebergSettings(database=f"sqlite:///{tmp_path}/tables.db")
    samples = small_fleet(pods=1, hours=2)
    for piece in range(3):
        shop.send(samples[piece::3], cluster="c1")
        shop.publish(keep_seconds=0.0)
    check(shop, samples)
    assert len(shop.read(POD_USAGE.name).snapshots()) == 1
    with pytest.raises(Misconfigured, match=r"iceberg\.location"):
        Shop(tmp_path / f"{name}#1").publish()


def test_statistics_of_another_engine_stay_with_their_table(shop: Shop) -> None:
    shop.send(small_fleet(pods=1, hours=1))
    shop.publish()
    table = shop.read(POD_USAGE.name)
    current = table.metadata.current_snapshot_id
    assert current is not None
    path = shop.folder / "warehouse" / "iceberg" / POD_USAGE.name / "metadata" / "some.stats"
    path.write_bytes(b"PFA1")
    os.utime(path, (1, 1))
    with table.update_statistics() as change:
        change.set_statistics(
            StatisticsFile.model_validate(
                {
                    "snapshot-id": current,
                    "statistics-path": f"file://{path}",
                    "file-size-in-bytes": 4,
                    "file-footer-size-in-bytes": 0,
                    "blob-metadata": [],
                }
            )
        )
    with table.manage_snapshots() as tags:
        tags.create_tag(current, "kept")
    for seed in range(2, 5):
        shop.send(small_fleet(pods=1, hours=1, seed=seed))
        shop.publish(keep_seconds=0.0)
    assert path.exists()
    assert shop.read(POD_USAGE.name).scan(snapshot_id=current).to_arrow().num_rows > 0


def test_no_replaced_file_goes_while_a_table_names_it(shop: Shop) -> None:
    samples = small_fleet(pods=2, hours=3)
    for piece in range(3):
        shop.send(samples[piece::3])
    shop.publish()
    now = datetime.fromtimestamp(START_MS / 1000, UTC) + timedelta(hours=9)
    assert list(compact(shop.warehouse, now=now, files_max=2))
    later = now + timedelta(days=1)
    policy = WarehouseSettings(keep_replaced_seconds=1)
    away = IcebergSettings(database="sqlite:////proc/none/tables.db")
    list(upkeep_round(shop.warehouse, Settings(iceberg=away, warehouse=policy), later))
    check(shop, samples)
    before = shop.read(POD_USAGE.name)
    list(upkeep_round(shop.warehouse, Settings(iceberg=shop.settings, warehouse=policy), later))
    check(shop, samples)
    assert before.scan().to_arrow().num_rows > 0, "published late, and a reader under way was cut off"
    time.sleep(2.5)
    list(upkeep_round(shop.warehouse, Settings(iceberg=shop.settings, warehouse=policy), later))
    check(shop, samples)
    assert not list((shop.folder / "warehouse" / POD_USAGE.name).rglob("w0-*.parquet"))


def test_a_catalogue_of_a_back_up_is_put_right(shop: Shop) -> None:
    samples = small_fleet(pods=1, hours=4)
    for piece in range(8):
        shop.send(samples[piece::8])
        shop.publish(keep_seconds=0.0)
        if piece == 0:
            with (
                closing(sqlite3.connect(shop.folder / "tables.db")) as catalogue,
                closing(sqlite3.connect(shop.folder / "old.db")) as copy,
            ):
                catalogue.backup(copy)
    shop.settings = IcebergSettings(database=f"sqlite:///{shop.folder}/old.db")
    assert shop.publish().added > 0
    check(shop, samples)


def test_two_warehouses_do_not_take_each_others_tables(shop: Shop, tmp_path: Path) -> None:
    samples = small_fleet(pods=1, hours=1)
    shop.send(samples)
    shop.publish()
    other = Shop(tmp_path / "other")
    other.settings = shop.settings
    other.send(small_fleet(pods=2, hours=1, seed=2))
    with pytest.raises(Corrupt, match=r"it is of another warehouse.*iceberg\.namespace"):
        other.publish()
    check(shop, samples)
