"""Files of a Flink job reach the warehouse once each, merged, whatever is killed."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fleet.errors import Corrupt, Unavailable
from fleet.schema import INVENTORY_NODES, POD_USAGE, ColumnKind, Table
from pipeline.bus.bus_file import FileDeadLetters
from pipeline.flink.merge import merged_parts
from pipeline.flink.publish import FlinkPublisher
from pipeline.flink.state import FlinkRun, FlinkState
from pipeline.warehouse.warehouse_duckdb import DuckdbWarehouse
from tests.pipeline.builders import DAY_MS, START_MS, stored_rows

SOURCE = "flink-samples"
TYPES = {ColumnKind.TEXT: pa.string(), ColumnKind.HISTOGRAM: pa.map_(pa.int32(), pa.int32())}


def write(state: FlinkState, name: str, rows: list[dict[str, Any]], table: Table = POD_USAGE) -> Path:
    """One finished file as the job writes it; fields that are not given are null."""
    schema = pa.schema([(column.name, TYPES.get(column.kind, pa.int64())) for column in table.columns])
    path = state.staging / table.name / name
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = [pa.array([row.get(field.name) for row in rows], field.type) for field in schema]
    pq.write_table(pa.Table.from_arrays(arrays, schema=schema), path)
    return path


def window(
    start_ms: int, value: int, *, card: str = "GPU-0", cluster: str = "c1", is_bare: bool = False
) -> dict[str, Any]:
    """A row of one sample."""
    measured = {} if is_bare else {
        "duty_cycle_ratio_sum": value, "duty_cycle_ratio_max": value,
        "duty_cycle_ratio_histogram": [(value // 10_000, 1)],
    }  # fmt: skip
    texts = dict.fromkeys(POD_USAGE.keys[2:], "x") | {"cluster": cluster, "card": card}
    counts = {column.name: 0 for column in POD_USAGE.columns if column.name.endswith("_count")}
    return {
        "window_start": start_ms, "window_seconds": 60, "samples": 1, **texts, **counts,
        "duty_cycle_ratio_count": 0 if is_bare else 1, **measured,
    }  # fmt: skip


def checkpoint(state: FlinkState, number: int, job: str = "j") -> None:
    """A whole checkpoint."""
    folder = state.checkpoints / job / f"chk-{number}"
    folder.mkdir(parents=True)
    (folder / "_metadata").write_bytes(struct.pack(">IiQ", 0x4960672D, 4, number))


def publish_all(state: FlinkState, warehouse: DuckdbWarehouse) -> int:
    publisher = FlinkPublisher(state, warehouse, source=SOURCE)
    batches = 0
    while publisher.publish() is not None:
        batches += 1
    return batches


def test_rows_of_one_window_become_one_and_coarser_levels_are_their_merges(tmp_path: Path) -> None:
    state, warehouse = FlinkState(tmp_path / "state"), DuckdbWarehouse(tmp_path / "warehouse")
    minute = START_MS + 3_600_000
    write(state, "part-a-0", [window(minute, 250_000), window(minute + 60_000, 990_000), window(minute, 10_000)])
    write(
        state, "part-b-0", [window(minute, 250_000), window(minute, 0, is_bare=True), window(minute, 5, cluster="c2")]
    )
    write(state, ".part-b-1.inprogress.x", [window(minute, 999_999)])
    assert publish_all(state, warehouse) == 1
    rows = stored_rows(warehouse, POD_USAGE)
    assert rows[60, minute, "GPU-0"] == {
        "samples": 4, "duty_cycle_ratio_count": 3, "duty_cycle_ratio_sum": 510_000, "duty_cycle_ratio_max": 250_000,
        "duty_cycle_ratio_histogram": {1: 1, 25: 2},
    }  # fmt: skip
    whole = {
        "samples": 5, "duty_cycle_ratio_count": 4, "duty_cycle_ratio_sum": 1_500_000, "duty_cycle_ratio_max": 990_000,
        "duty_cycle_ratio_histogram": {1: 1, 25: 2, 99: 1},
    }  # fmt: skip
    assert rows[900, minute, "GPU-0"] == rows[3600, minute, "GPU-0"] == rows[86400, START_MS, "GPU-0"] == whole
    assert len(rows) == 5
    assert stored_rows(warehouse, POD_USAGE, "c2")[60, minute, "GPU-0"]["duty_cycle_ratio_sum"] == 5


def test_merged_sightings_have_their_first_and_last_time_per_day(tmp_path: Path) -> None:
    state = FlinkState(tmp_path)
    texts = dict.fromkeys(INVENTORY_NODES.keys, "x")
    seen = [(10, 20, None), (5, 30, 25), (40, DAY_MS + 1, None)]
    path = write(
        state, "p",
        [texts | {"first_seen": first, "last_seen": last, "ended_at": ended} for first, last, ended in seen],
        INVENTORY_NODES,
    )  # fmt: skip
    days = {part.date: part.rows[0].to_pylist() for part in merged_parts(INVENTORY_NODES, [path])}
    assert days == {
        "1970-01-01": [texts | {"first_seen": 5, "last_seen": 30, "ended_at": 25}],
        "1970-01-02": [texts | {"first_seen": 40, "last_seen": DAY_MS + 1, "ended_at": None}],
    }


class Killed(Exception):
    """Stands for the death of the process."""


POINTS = (
    "after intent",
    "after dead letters",
    "before rename",
    "before manifest",
    "after manifest",
    "after append",
    "before intent is removed",
)


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_at_any_point_neither_loses_nor_doubles_a_file(tmp_path: Path, point: str) -> None:
    state = FlinkState(tmp_path / "state")
    reached = 0

    def crash_point(name: str) -> None:
        nonlocal reached
        if name == point:
            reached += 1
            raise Killed

    for number in range(3):
        write(state, f"part-{number}", [window(START_MS, 1000 * (number + 1))])
        checkpoint(state, 3 * number + 1)
        warehouse = DuckdbWarehouse(tmp_path / "warehouse", crash_point=crash_point)
        publisher = FlinkPublisher(state, warehouse, source=SOURCE, crash_point=crash_point)
        try:
            while publisher.publish() is not None:
                pass
        except Killed:
            pass
        warehouse.close()
    checkpoint(state, 100)
    warehouse = DuckdbWarehouse(tmp_path / "warehouse")
    publish_all(state, warehouse)
    checkpoint(state, 102)
    publish_all(state, warehouse)
    row = stored_rows(warehouse, POD_USAGE)[60, START_MS, "GPU-0"]
    assert (row["samples"], row["duty_cycle_ratio_sum"]) == (3, 6000)
    assert reached
    assert not state.finished_files()
    assert not list(state.batches.iterdir())


UNREAD = pa.schema(
    [
        ("payload", pa.binary()), ("kind", pa.string()), ("reason", pa.string()), ("from_partition", pa.int32()),
        ("from_offset", pa.int64()),
    ]
)  # fmt: skip


def write_unread(state: FlinkState, rows: list[dict[str, Any]]) -> None:
    """One finished file with what the job could not read."""
    (state.staging / "unread").mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=UNREAD), state.staging / "unread" / "part-0")


def test_what_a_job_could_not_read_is_counted_and_kept_with_its_place_and_reason(tmp_path: Path) -> None:
    state, warehouse = FlinkState(tmp_path / "state"), DuckdbWarehouse(tmp_path / "warehouse")
    letters = FileDeadLetters(tmp_path / "dead")
    of_row = {"kind": "pod_usage", "reason": "a row lacks: hash", "from_partition": 1}
    write_unread(
        state,
        [
            {"payload": b"\xff", "kind": "record", "reason": "no JSON", "from_partition": 0, "from_offset": 7},
            {"payload": None, "kind": "record", "reason": "no JSON", "from_partition": 0, "from_offset": 8},
            of_row | {"payload": b"{}", "from_offset": 9},
        ],
    )
    write(state, "part-0", [window(START_MS, 1)])
    publisher = FlinkPublisher(
        state, warehouse, source=SOURCE, dead_letters=letters, source_of=lambda number: f"topic-{number}"
    )
    step = publisher.publish()
    assert step is not None
    assert (step.corrupt, step.samples) == (3, 1)
    assert publisher.publish() is None
    kept = {path.name: path.read_bytes() for path in (tmp_path / "dead").glob("*.record")}
    assert kept == {
        "topic-0-00000000000000000007.record": b"\xff",
        "topic-0-00000000000000000008.record": b"",
        "topic-1-00000000000000000009.record": b"{}",
    }
    reason = json.loads((tmp_path / "dead" / "topic-1-00000000000000000009.json").read_bytes())["reason"]
    assert reason == "cannot read bus record: pod_usage: a row lacks: hash"


def test_dead_letters_that_cannot_be_kept_now_keep_their_batch_from_being_published(tmp_path: Path) -> None:
    state, warehouse = FlinkState(tmp_path / "state"), DuckdbWarehouse(tmp_path / "warehouse")
    write_unread(
        state, [{"payload": b"x", "kind": "record", "reason": "no JSON", "from_partition": 0, "from_offset": 7}]
    )
    write(state, "part-0", [window(START_MS, 1)])

    class Away:
        def put(self, payload: bytes, *, reason: str, source: str, offset: int) -> None:
            raise Unavailable("brokers are away")

    with pytest.raises(Unavailable):
        FlinkPublisher(state, warehouse, source=SOURCE, dead_letters=Away()).publish()
    letters = FileDeadLetters(tmp_path / "dead")
    step = FlinkPublisher(state, warehouse, source=SOURCE, dead_letters=letters).publish()
    assert step is not None
    assert (step.corrupt, len(letters)) == (1, 1)
    assert stored_rows(warehouse, POD_USAGE)[60, START_MS, "GPU-0"]["samples"] == 1


def test_files_stay_until_two_further_checkpoints_stand(tmp_path: Path) -> None:
    state, warehouse = FlinkState(tmp_path / "state"), DuckdbWarehouse(tmp_path / "warehouse")
    checkpoint(state, 7)
    write(state, "part-0", [window(START_MS, 1)])
    for number, stay in ((8, True), (9, False)):
        publish_all(state, warehouse)
        checkpoint(state, number)
        publish_all(state, warehouse)
        assert bool(state.finished_files()) is stay
    assert stored_rows(warehouse, POD_USAGE)[60, START_MS, "GPU-0"]["samples"] == 1


def test_batches_of_another_warehouse_are_refused(tmp_path: Path) -> None:
    state, warehouse = FlinkState(tmp_path / "state"), DuckdbWarehouse(tmp_path / "warehouse")
    for number in range(2):
        write(state, f"part-{number}", [window(START_MS, 1)])
        publish_all(state, warehouse)
    with pytest.raises(Corrupt, match="older copy"):
        publish_all(state, DuckdbWarehouse(tmp_path / "empty"))


def test_a_file_of_another_schema_is_refused_by_its_name(tmp_path: Path) -> None:
    state, warehouse = FlinkState(tmp_path / "state"), DuckdbWarehouse(tmp_path / "warehouse")
    (state.staging / POD_USAGE.name).mkdir()
    pq.write_table(pa.table({"a": [1]}), state.staging / POD_USAGE.name / "part-odd")
    with pytest.raises(Corrupt, match="part-odd"):
        publish_all(state, warehouse)


def test_newest_restore_point_is_the_whole_one_with_the_largest_number(tmp_path: Path) -> None:
    state = FlinkState(tmp_path)
    assert state.newest() is None
    checkpoint(state, 9, "a")
    checkpoint(state, 10, "b")
    (state.checkpoints / "b" / "chk-11").mkdir()
    savepoint = state.savepoints / "savepoint-b-1"
    savepoint.mkdir()
    (savepoint / "_metadata").write_bytes(struct.pack(">IiQ", 0x4960672D, 4, 12))
    newest = state.newest()
    assert newest is not None
    assert (newest.number, newest.folder) == (12, savepoint)
    (savepoint / "_metadata").write_bytes(b"something else altogether")
    with pytest.raises(Corrupt, match="no metadata"):
        state.newest()


def test_tidying_removes_former_jobs_only_once_the_new_one_has_a_checkpoint(tmp_path: Path) -> None:
    state = FlinkState(tmp_path)
    checkpoint(state, 3, "old")
    state.remember(FlinkRun(job="new", token="", statements=""))
    state.tidy()
    assert (state.checkpoints / "old").exists()
    checkpoint(state, 4, "new")
    state.tidy()
    assert not (state.checkpoints / "old").exists()
    newest = state.newest()
    assert newest is not None
    assert newest.number == 4


def test_random_rows_merge_to_what_a_dictionary_gives(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    state = FlinkState(tmp_path)
    rows = [
        window(START_MS + int(random.integers(0, 200)) * 60_000, int(random.integers(0, 1_000_001)), card=f"GPU-{card}")
        for card in random.integers(0, 5, 2000)
    ]
    paths = [write(state, f"p{place}", rows[place::3]) for place in range(3)]
    found = {}
    for part in merged_parts(POD_USAGE, paths):
        for piece in part.rows:
            for row in piece.to_pylist():
                found[row["window_seconds"], row["window_start"], row["card"]] = row
    for level in (60, 900, 3600, 86400):
        wanted: dict[tuple[int, int, str], list[int]] = {}
        for row in rows:
            start = row["window_start"] // (level * 1000) * level * 1000
            wanted.setdefault((level, start, row["card"]), []).append(row["duty_cycle_ratio_sum"])
        assert {key for key in found if key[0] == level} == set(wanted)
        for key, values in wanted.items():
            assert found[key]["duty_cycle_ratio_sum"] == sum(values)
            assert found[key]["duty_cycle_ratio_max"] == max(values)
            bins, counts = np.unique([value // 10_000 for value in values], return_counts=True)
            assert found[key]["duty_cycle_ratio_histogram"] == list(zip(bins.tolist(), counts.tolist(), strict=True))
