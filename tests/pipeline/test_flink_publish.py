"""Files of a Flink job reach the warehouse once each, whatever is killed."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fleet.errors import Corrupt, Unavailable
from fleet.schema import INVENTORY_NODES, POD_USAGE, ColumnKind, Table
from pipeline.bus.bus_file import FileDeadLetters
from pipeline.flink.publish import FlinkPublisher
from pipeline.flink.state import FlinkRun, FlinkState
from pipeline.rollup.rollup import RollupStep
from pipeline.warehouse.row_store import row_group_levels
from pipeline.warehouse.warehouse_duckdb import DuckdbWarehouse
from tests.pipeline.builders import START_MS, stored_rows

SOURCE = "flink-samples"
FINEST = "dt=2026-01-05/cluster=c1/window_seconds=60"


def write(
    state: FlinkState, name: str, rows: list[dict[str, Any]], table: Table = POD_USAGE, folder: str = FINEST
) -> Path:
    """One finished file as the job writes it; fields that are not given are null."""
    types = {ColumnKind.TEXT: pa.string(), ColumnKind.HISTOGRAM: pa.map_(pa.int32(), pa.int64())}
    schema = pa.schema([(column.name, types.get(column.kind, pa.int64())) for column in table.columns])
    path = state.staging / table.name / folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = [pa.array([row.get(field.name) for row in rows], field.type) for field in schema]
    pq.write_table(pa.Table.from_arrays(arrays, schema=schema), path)
    return path


def window(start_ms: int, value: int, *, seconds: int = 60, cluster: str = "c1") -> dict[str, Any]:
    """A row of one sample."""
    texts = dict.fromkeys(POD_USAGE.keys[2:], "x") | {"cluster": cluster, "card": "GPU-0"}
    counts = {column.name: 0 for column in POD_USAGE.columns if column.name.endswith("_count")}
    return {
        "window_start": start_ms, "window_seconds": seconds, "samples": 1, **texts, **counts,
        "duty_cycle_ratio_count": 1, "duty_cycle_ratio_sum": value, "duty_cycle_ratio_max": value,
        "duty_cycle_ratio_histogram": [(value // 10_000, 1)],
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


def test_files_of_one_day_and_cluster_are_one_file_with_a_row_group_per_level(tmp_path: Path) -> None:
    state, warehouse = FlinkState(tmp_path / "state"), DuckdbWarehouse(tmp_path / "warehouse")
    hour = START_MS + 3_600_000
    above = FINEST.replace("=60", "=86400")
    write(state, "part-b-0", [window(START_MS, 260_000, seconds=86_400)], folder=above)
    write(state, "part-a-0", [window(hour, 250_000)])
    write(state, "part-a-1", [window(hour, 10_000)])
    write(
        state, "part-a-1", [window(hour, 5, cluster="a/b c")], folder="dt=2026-01-05/cluster=a%2Fb+c/window_seconds=60"
    )
    write(state, ".part-b-1.inprogress.x", [window(hour, 999_999)])
    assert publish_all(state, warehouse) == 1
    (path,) = (tmp_path / "warehouse" / "pod_usage" / "dt=2026-01-05" / "cluster=c1").iterdir()
    assert list(row_group_levels(pq.ParquetFile(path))) == [60, 86_400]
    rows = stored_rows(warehouse, POD_USAGE)
    assert rows[60, hour, "GPU-0"] == {
        "samples": 2, "duty_cycle_ratio_count": 2, "duty_cycle_ratio_sum": 260_000, "duty_cycle_ratio_max": 250_000,
        "duty_cycle_ratio_histogram": {1: 1, 25: 1},
    }  # fmt: skip
    assert rows[86400, START_MS, "GPU-0"]["duty_cycle_ratio_sum"] == 260_000
    assert len(rows) == 2
    assert stored_rows(warehouse, POD_USAGE, "a/b c")[60, hour, "GPU-0"]["duty_cycle_ratio_sum"] == 5


def test_sightings_are_taken_as_they_are(tmp_path: Path) -> None:
    state, warehouse = FlinkState(tmp_path / "state"), DuckdbWarehouse(tmp_path / "warehouse")
    texts = dict.fromkeys(INVENTORY_NODES.keys, "") | {"cluster": "c1", "node": "n"}
    seen = [texts | {"first_seen": START_MS + 5, "last_seen": START_MS + 30}]
    write(state, "part-0", seen, INVENTORY_NODES, "dt=2026-01-05/cluster=c1")
    assert publish_all(state, warehouse) == 1
    assert [node.node for node in warehouse.inventory("c1").nodes] == ["n"]


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
    [("payload", pa.binary()), ("reason", pa.string()), ("from_partition", pa.int32()), ("from_offset", pa.int64())]
)


def write_unread(state: FlinkState, rows: list[dict[str, Any]]) -> None:
    """One finished file with what the job could not read."""
    (state.staging / "unread").mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=UNREAD), state.staging / "unread" / "part-0")


def test_what_a_job_has_counted_and_what_it_could_not_read_is_said_and_kept(tmp_path: Path) -> None:
    state, warehouse = FlinkState(tmp_path / "state"), DuckdbWarehouse(tmp_path / "warehouse")
    letters = FileDeadLetters(tmp_path / "dead")
    write_unread(
        state,
        [
            {"payload": b"\xff", "reason": "it is cut", "from_partition": 0, "from_offset": 7},
            {"payload": b"", "reason": "it does not begin with GTR2", "from_partition": 1, "from_offset": 8},
        ],
    )
    (state.staging / "tally").mkdir()
    flushes = [
        {"records": 1, "samples": 5, "repeats": 2, "late": 1},
        {"records": 2, "samples": 7, "repeats": 0, "late": 0},
    ]
    pq.write_table(pa.Table.from_pylist(flushes), state.staging / "tally" / "part-0")
    write(state, "part-0", [window(START_MS, 1)])
    publisher = FlinkPublisher(
        state, warehouse, source=SOURCE, dead_letters=letters, source_of=lambda number: f"topic-{number}"
    )
    step = publisher.publish()
    assert step == RollupStep(records=3, corrupt=2, samples=12, repeats=2, late=1, rows=1)
    assert publisher.publish() is None
    kept = {path.name: path.read_bytes() for path in (tmp_path / "dead").glob("*.record")}
    assert kept == {"topic-0-00000000000000000007.record": b"\xff", "topic-1-00000000000000000008.record": b""}
    reason = json.loads((tmp_path / "dead" / "topic-0-00000000000000000007.json").read_bytes())["reason"]
    assert reason == "cannot read bus record: it is cut"


def test_dead_letters_that_cannot_be_kept_now_keep_their_batch_from_being_published(tmp_path: Path) -> None:
    state, warehouse = FlinkState(tmp_path / "state"), DuckdbWarehouse(tmp_path / "warehouse")
    write_unread(state, [{"payload": b"x", "reason": "it is cut", "from_partition": 0, "from_offset": 7}])
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


def test_folders_without_files_go_after_a_day(tmp_path: Path) -> None:
    state = FlinkState(tmp_path / "state")
    empty, young, full = (state.staging / "pod_usage" / f"dt=2026-01-0{day}" / "cluster=c1" for day in (1, 2, 3))
    for folder in (empty, young, full):
        folder.mkdir(parents=True)
    (full / "part-0").touch()
    for folder in (empty, full):
        os.utime(folder, (1, 1))
        os.utime(folder.parent, (1, 1))
    for _ in range(2):  # what is emptied is young again
        state.tidy()
        if empty.parent.exists():
            os.utime(empty.parent, (1, 1))
    assert not empty.parent.exists()
    assert young.exists()
    assert (full / "part-0").exists()


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
    state.remember(FlinkRun(job="new", token="", fingerprint=""))
    state.tidy()
    assert (state.checkpoints / "old").exists()
    checkpoint(state, 4, "new")
    state.tidy()
    assert not (state.checkpoints / "old").exists()
    newest = state.newest()
    assert newest is not None
    assert newest.number == 4
