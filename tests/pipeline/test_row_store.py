"""Row files on a file system of Arrow's keep the warehouse's contract, and give the answers that local ones give."""

from __future__ import annotations

import errno
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from fleet.errors import Corrupt, Misconfigured, Unavailable
from fleet.schema import Measure
from pipeline.remote_write.decode import Version
from pipeline.warehouse.catalogue import NoCatalogue
from pipeline.warehouse.compact import compact, remove_replaced, retain
from pipeline.warehouse.files import WarehouseFiles
from pipeline.warehouse.parquet_reads import ParquetReads
from pipeline.warehouse.row_store import ArrowRows, arrow_rows
from pipeline.warehouse.usage_grid import epoch_ms
from pipeline.warehouse.warehouse_duckdb import DuckdbWarehouse
from tests.contracts.warehouse import NOON, WarehouseContract, name_of, node_part
from tests.pipeline.builders import (
    USAGE_TABLES,
    body_of,
    expected_rows,
    file_bus,
    intake_of,
    roll_up,
    small_fleet,
    stored_rows,
)


class ElsewhereWarehouse(DuckdbWarehouse):
    """State in one folder, rows on another file system."""

    def __init__(self, folder: Path, file_system: pafs.FileSystem) -> None:
        ParquetReads.__init__(self, WarehouseFiles(folder, rows=ArrowRows(file_system, "some/base")))


@pytest.fixture
def file_system(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    return pafs.SubTreeFileSystem(str(tmp_path / "elsewhere"), pafs.LocalFileSystem())


@pytest.fixture
def warehouse(tmp_path, file_system):
    with closing(ElsewhereWarehouse(tmp_path / "state", file_system)) as opened:
        yield opened


class TestWarehouseElsewhere(WarehouseContract):
    @pytest.fixture
    def reopened(self, warehouse, tmp_path, file_system):
        def reopen():
            warehouse.close()
            return ElsewhereWarehouse(tmp_path / "state", file_system)

        return reopen


def rows_of(folder: Path) -> list[Path]:
    """All row files below a folder."""
    return sorted(path for path in folder.rglob("*.parquet*") if "seen" not in path.parts)


def test_rows_lie_elsewhere_and_give_the_same_windows_and_grids(tmp_path, warehouse):
    samples = small_fleet(pods=2, hours=5)
    local = DuckdbWarehouse(tmp_path / "local")
    for target, bus in ((warehouse, file_bus(tmp_path / "bus")), (local, file_bus(tmp_path / "bus-2"))):
        for piece in range(3):
            intake_of(bus).take(body_of(samples[piece::3]), Version.V2)
            roll_up(bus, target)
    assert rows_of(tmp_path / "state") == []
    merged = []
    for _ in range(2):
        for table in USAGE_TABLES:
            assert stored_rows(warehouse, table) == expected_rows(samples, table)
        here, there = local.history("c1").slices, warehouse.history("c1").slices
        assert (here.since, here.steps, set(here.mean)) == (there.since, there.steps, set(there.mean))
        merged.append(len(list(compact(warehouse, now=NOON, files_max=2))))
    assert merged == [2, 0]


@pytest.mark.parametrize("is_elsewhere", [False, True])
@pytest.mark.parametrize("older", [0, -1])
def test_files_that_are_older_than_a_measure_are_read_and_merged(tmp_path, warehouse, older, is_elsewhere):
    opened = warehouse if is_elsewhere else DuckdbWarehouse(tmp_path / "local")
    samples, bus = small_fleet(pods=2, hours=5), file_bus(tmp_path / "bus")
    for piece in range(2):
        intake_of(bus).take(body_of(samples[piece::2]), Version.V2)
        roll_up(bus, opened)
    expected = {table.name: stored_rows(opened, table) for table in USAGE_TABLES}
    measures = set(opened.history("c1").slices.mean)
    place = tmp_path / "elsewhere" if is_elsewhere else tmp_path / "local"
    for table in USAGE_TABLES:
        path = rows_of(place / ("some/base" if is_elsewhere else ".") / table.name)[older]
        rows = pq.read_table(path, partitioning=None)
        gone = [name for name in rows.column_names if name.startswith(Measure.ENCODER.value)]
        pq.write_table(rows.drop_columns(gone), path)
    for _ in range(2):
        assert {table.name: stored_rows(opened, table) for table in USAGE_TABLES} == expected
        assert set(opened.history("c1").slices.mean) == measures
        list(compact(opened, now=NOON, files_max=1))


def test_merged_dropped_and_replaced_files_go_as_they_do_at_home(tmp_path, warehouse):
    place = tmp_path / "elsewhere" / "some" / "base"
    for number, node in enumerate("abc"):
        warehouse.append(name_of(number, number + 1), (node_part(node, NOON),))
    assert len(list(compact(warehouse, now=NOON, files_max=1))) == 1
    assert len(rows_of(place)) == 4
    assert remove_replaced(warehouse, now=NOON + timedelta(hours=1), keep_seconds=60) == 3
    assert [path.name.partition("-")[0] for path in rows_of(place)] == ["merged"]
    assert [node.node for node in warehouse.inventory("c1").nodes] == ["a", "b", "c"]
    assert len(list(retain(warehouse, now=NOON + timedelta(days=3), days=1, finest_days=None))) == 1
    remove_replaced(warehouse, now=NOON + timedelta(days=4), keep_seconds=60)
    assert rows_of(place) == []
    assert list((place / "inventory_nodes" / "dt=2026-01-05").iterdir()) == []


def test_what_a_killed_append_has_left_is_swept(tmp_path, warehouse, file_system):
    warehouse.append(name_of(0, 1), (node_part("a", NOON),))
    (known,) = rows_of(tmp_path / "elsewhere")
    for name in ("bus-7-8.parquet", ".bus-8-9.parquet.new"):
        known.with_name(name).write_bytes(b"half")
    warehouse.close()
    with closing(ElsewhereWarehouse(tmp_path / "state", file_system)) as again:
        again.append(name_of(1, 2), (node_part("b", NOON),))
    assert len(rows_of(tmp_path / "elsewhere")) == 2


def test_lost_file_is_corrupt(tmp_path, warehouse):
    warehouse.append(name_of(0, 1), (node_part("a", NOON),))
    rows_of(tmp_path / "elsewhere")[0].unlink()
    with pytest.raises(Corrupt, match="cannot read"):
        warehouse.inventory("c1")


class Leaving:
    """A file system that can be away, as one behind a network; counts the questions about single files."""

    def __init__(self, file_system: pafs.FileSystem) -> None:
        self._file_system = file_system
        self.is_away = False
        self.questions = 0

    def __getattr__(self, name: str) -> Any:
        if self.is_away:
            raise OSError(errno.EHOSTUNREACH, "No route to host")
        self.questions += name == "get_file_info"
        return getattr(self._file_system, name)


def test_file_system_that_is_away_is_unavailable_and_the_next_append_finds_it_clean(tmp_path, file_system):
    there = Leaving(file_system)

    class Board(NoCatalogue):
        is_away = False

        def add(self, partitions):
            if self.is_away:
                there.is_away = True
                raise Unavailable("cannot reach the board")

    board = Board()
    files = WarehouseFiles(tmp_path / "state", rows=ArrowRows(there, "some/base"), catalogue=board)
    files.append(name_of(0, 1), (node_part("a", NOON),))
    board.is_away = True
    with pytest.raises(Unavailable, match="board"):
        files.append(name_of(1, 2), (node_part("b", NOON),))
    board.is_away = False
    for _ in range(2):
        with pytest.raises(Unavailable, match="some/base: No route to host"):
            files.append(name_of(1, 3), (node_part("b", NOON), node_part("c", NOON)))
    there.is_away = False
    assert files.append(name_of(1, 3), (node_part("b", NOON), node_part("c", NOON)))
    assert {str(path.relative_to(tmp_path / "elsewhere/some/base")) for path in rows_of(tmp_path / "elsewhere")} == {
        file.path for file in files.live()
    }
    files.close()


def test_file_that_was_to_go_and_came_again_after_a_close_stays(tmp_path, file_system, monkeypatch):
    there = Leaving(file_system)

    class Board(NoCatalogue):
        def add(self, partitions):
            there.is_away = True
            raise Unavailable("cannot reach the board")

    files = WarehouseFiles(tmp_path / "state", rows=ArrowRows(there, "some/base"), catalogue=Board())
    with pytest.raises(Unavailable, match="board"):
        files.append(name_of(0, 1), (node_part("a", NOON),))
    files.close()
    there.is_away = False
    monkeypatch.setattr(Board, "add", NoCatalogue.add)
    for start, node in enumerate("ab"):
        assert files.append(name_of(start, start + 1), (node_part(node, NOON),))
    assert len(rows_of(tmp_path / "elsewhere")) == 2
    files.close()


def test_files_that_were_removed_are_not_asked_for_again(tmp_path, file_system):
    there = Leaving(file_system)
    files = WarehouseFiles(tmp_path / "state", rows=ArrowRows(there, "some/base"))
    for number, node in enumerate("abc"):
        files.append(name_of(number, number + 1), (node_part(node, NOON),))
    (folder,) = files.partitions()
    files.replace(folder, files.live(), node_part("d", NOON).rows, epoch_ms(NOON))
    hour_later = epoch_ms(NOON + timedelta(hours=1))
    assert files.remove_replaced(hour_later) == 3
    there.questions = 0
    assert files.remove_replaced(hour_later) == 0
    assert there.questions == 0
    files.close()


def test_location_that_arrow_does_not_know_is_misconfigured():
    with pytest.raises(Misconfigured, match=r"hive\.location=adl://x/y"):
        arrow_rows("adl://x/y")
