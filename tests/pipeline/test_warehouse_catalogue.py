"""What others are told of a warehouse's folders: all that counts, nothing else, also after nobody could be told."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from fleet.errors import Corrupt, Unavailable
from fleet.schema import INVENTORY_NODES, Measure
from pipeline.remote_write.decode import Version
from pipeline.rollup.rollup_duckdb import EmbeddedRollup
from pipeline.warehouse.catalogue import PartitionFolder
from pipeline.warehouse.compact import compact
from pipeline.warehouse.files import WarehouseFiles
from pipeline.warehouse.parquet_reads import ParquetReads
from pipeline.warehouse.usage_grid import epoch_ms
from pipeline.warehouse.warehouse_duckdb import DuckdbWarehouse
from tests.contracts.warehouse import NOON, name_of, node_part
from tests.pipeline.builders import START_MS, Sample, body_of, file_bus, intake_of

NOW = NOON + timedelta(days=30)


class Board:
    """A catalogue in memory, which can be away for a while; like Hive's, it refuses folders not switched to."""

    def __init__(self) -> None:
        self.folders: dict[tuple[str, str, str], Path] = {}
        self.is_away = False

    def add(self, partitions: Sequence[PartitionFolder]) -> None:
        self._answer()
        for item in partitions:
            assert item.folder is not None
            if self.folders.setdefault((item.table, item.date, item.cluster), item.folder) != item.folder:
                raise Corrupt(f"cannot use {item}: somebody has altered it")

    def follow(self, partitions: Sequence[PartitionFolder]) -> None:
        self._answer()
        for item in partitions:
            self.folders.pop((item.table, item.date, item.cluster), None)
            if item.folder is not None:
                self.folders[item.table, item.date, item.cluster] = item.folder

    def _answer(self) -> None:
        if self.is_away:
            raise Unavailable("cannot reach the board")

    def files(self, folder: Path) -> set[Path]:
        """What readers see who know the folders and no manifest."""
        return {path for below in self.folders.values() for path in (folder / below).glob("[!.]*")}


def test_catalogue_that_was_away_amid_a_replacement_is_told_before_the_same_process_writes_again(tmp_path):
    board = Board()
    files = WarehouseFiles(tmp_path, catalogue=board)
    for start, node in enumerate("abc"):
        files.append(name_of(start, start + 1), (node_part(node, NOON),))
    board.is_away = True
    with pytest.raises(Unavailable, match="board"):
        list(compact(ParquetReads(files), now=NOW, files_max=2))
    # The rows count already; those who ask the board see the old folder, which is whole as well.
    (merged,) = files.files(INVENTORY_NODES, "c1")
    assert merged.rows == 3
    assert len(board.files(tmp_path)) == 3
    with pytest.raises(Unavailable, match="board"):
        files.append(name_of(3, 4), (node_part("d", NOON),))
    board.is_away = False
    assert files.append(name_of(3, 4), (node_part("d", NOON),))
    assert board.files(tmp_path) == {tmp_path / file.path for file in files.files(INVENTORY_NODES, "c1")}
    assert len(board.files(tmp_path)) == 2


def test_append_that_the_manifest_does_not_take_shows_nobody_a_file(tmp_path, monkeypatch):
    board = Board()
    files = WarehouseFiles(tmp_path, catalogue=board)
    files.append(name_of(0, 1), (node_part("a", NOON),))
    shown = board.files(tmp_path)
    sync = os.fsync

    def full(handle: int) -> None:
        if os.readlink(f"/proc/self/fd/{handle}").endswith("MANIFEST"):
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Corrupt, match="storage is full"):
        files.append(name_of(1, 3), (node_part("b", NOON),))
    monkeypatch.setattr(os, "fsync", sync)
    assert files.applied_offset("bus") == 1
    assert board.files(tmp_path) == shown
    assert files.append(name_of(1, 9), (node_part("b", NOON),))
    assert len(board.files(tmp_path)) == 2


def test_day_with_windows_of_two_lengths_keeps_its_history_through_a_compaction(tmp_path):
    bus, warehouse = file_bus(tmp_path / "bus"), DuckdbWarehouse(tmp_path / "warehouse")
    for first, last, window_seconds in ((1, 60, 60), (60, 120, 300), (120, 150, 60)):
        samples = [
            Sample(0, Measure.DUTY_CYCLE, START_MS + 60_000 * minute, minute / 1000)
            for minute in range(first, last, window_seconds // 60)
        ]
        intake_of(bus).take(body_of(samples), Version.V2)
        rollup = EmbeddedRollup(lambda: (bus,), warehouse, chunk_bytes=1 << 24, window_seconds=window_seconds)
        while rollup.step() is not None:
            pass
    before = warehouse.history("c1").slices
    assert before.step_seconds == 300
    list(compact(warehouse, now=NOW, files_max=1))
    after = warehouse.history("c1").slices
    assert (after.since, after.step_seconds, after.steps) == (before.since, before.step_seconds, before.steps)
    assert after.mean[Measure.DUTY_CYCLE].tobytes() == before.mean[Measure.DUTY_CYCLE].tobytes()
    assert epoch_ms(after.since) == START_MS


def test_rows_that_came_between_two_pieces_of_upkeep_are_merged_too(tmp_path):
    board = Board()
    files = WarehouseFiles(tmp_path, catalogue=board)
    days = (NOON, NOON + timedelta(days=1))
    for start, node in enumerate("abcd"):
        files.append(name_of(start, start + 1), (node_part(node, days[start % 2]),))
    pieces = compact(ParquetReads(files), now=NOW, files_max=1)
    next(pieces)
    files.append(name_of(4, 5), (node_part("late", days[1]),))
    next(pieces)
    assert next(pieces, None) is None
    for start, node in enumerate("efg", start=5):
        files.append(name_of(start, start + 1), (node_part(node, days[1]),))
    list(compact(ParquetReads(files), now=NOW, files_max=1))
    nodes = {node.node for node in ParquetReads(files).inventory("c1").nodes}
    assert nodes == {"a", "b", "c", "d", "late", "e", "f", "g"}
    assert board.files(tmp_path) == {tmp_path / file.path for file in files.files(INVENTORY_NODES, "c1")}


def test_partition_whose_rows_lie_in_two_folders_is_merged_into_a_third(tmp_path):
    board = Board()
    files = WarehouseFiles(tmp_path, catalogue=board)
    for start, node in enumerate("ab"):
        files.append(name_of(start, start + 1), (node_part(node, NOON),))
    (folder,), stale = files.partitions(), files.live()
    files.append(name_of(2, 3), (node_part("late", NOON),))
    reads = ParquetReads(files)
    merged = reads.merged_rows(
        INVENTORY_NODES, [file.path for file in stale], level_seconds=None, spill_folder=tmp_path / "spill"
    )
    files.replace(folder, stale, merged, epoch_ms(NOW))
    assert len({Path(file.path).parent for file in files.live()}) == 2
    assert [(item.files_before, item.files_after) for item in compact(reads, now=NOW, files_max=1)] == [(2, 1)]
    assert {node.node for node in reads.inventory("c1").nodes} == {"a", "b", "late"}
    assert board.files(tmp_path) == {tmp_path / file.path for file in files.live()}
