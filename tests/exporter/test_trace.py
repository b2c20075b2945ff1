"""Bad input is refused with the place named; good input, in whatever variant, is read."""

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from exporter.replay.reader import ReplayReader
from exporter.trace import usage as trace_usage
from exporter.trace.trace import Trace, epoch_ms, open_trace
from fleet.errors import Corrupt
from fleet.schema import Measure
from fleet.units import GIB
from tests.exporter.builders import T0, TIME, TraceFiles, at, card, pod, row


def refused(folder: Path, *parts: str) -> None:
    with pytest.raises(Corrupt) as caught:
        open_trace(folder)
    for part in parts:
        assert part in str(caught.value)


def times(trace: Trace, steps: int = 2) -> list[int]:
    return [int(ts) for _, piece, _ in trace.usage_windows(None, trace.until, steps) for ts in piece.ts_ms]


@pytest.mark.parametrize(
    "column", ["ts", "pod", "card", "duty_cycle_ratio", "sm_active_ratio", "framebuffer_used_bytes"]
)
def test_a_missing_usage_column_is_named(tmp_path: Path, column: str) -> None:
    files = TraceFiles(cards=[card("GPU-a")], pods=[pod("web-0", "GPU-a")], usage=[row(10, "web-0", "GPU-a")])
    files.write(tmp_path)
    files._write(tmp_path / "usage.parquet", files.usage, (column,), 10)
    refused(tmp_path, "usage.parquet", f"column {column} is missing")


@pytest.mark.parametrize(("name", "column"), [("cards", "card_model"), ("pods", "priority"), ("pods", "started_at")])
def test_a_missing_inventory_column_is_named(tmp_path: Path, name: str, column: str) -> None:
    files = TraceFiles()
    files.write(tmp_path)
    files._write(tmp_path / f"{name}.parquet", getattr(files, name), (column,), 10)
    refused(tmp_path, f"{name}.parquet", f"column {column} is missing")


@pytest.mark.parametrize("name", ["usage", "pods", "cards"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    TraceFiles().write(tmp_path)
    (tmp_path / f"{name}.parquet").unlink()
    refused(tmp_path, f"{name}.parquet")


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", "nowhere")


def test_a_file_that_is_no_parquet_is_refused(tmp_path: Path) -> None:
    TraceFiles().write(tmp_path)
    (tmp_path / "usage.parquet").write_bytes(b"ts,pod,card\n")
    refused(tmp_path, "usage.parquet")


def test_a_cut_file_is_refused(tmp_path: Path) -> None:
    TraceFiles().write(tmp_path)
    path = tmp_path / "usage.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    refused(tmp_path, "usage.parquet")


@pytest.mark.parametrize(
    ("column", "kind", "value"),
    [
        ("duty_cycle_ratio", pa.string(), "half"),
        ("ts", pa.string(), "2026-01-05"),
        ("ts", pa.int64(), 1767571200),
        ("pod", pa.int64(), 7),
    ],
)
def test_a_wrong_type_is_named(tmp_path: Path, column: str, kind: pa.DataType, value: Any) -> None:
    files = TraceFiles(types={column: kind})
    for entry in files.usage:
        entry[column] = value
    files._write(tmp_path / "unused.parquet", files.usage, (), 10)
    TraceFiles().write(tmp_path)
    (tmp_path / "unused.parquet").rename(tmp_path / "usage.parquet")
    refused(tmp_path, "usage.parquet", f"column {column} is {kind}", "expected")


@pytest.mark.parametrize(
    ("column", "value", "limit"),
    [
        ("duty_cycle_ratio", -0.1, "at least 0"),
        ("duty_cycle_ratio", 1.01, "at most 1"),
        ("sm_active_ratio", 55.0, "at most 1"),
        ("sm_active_ratio", math.nan, "a number"),
        ("duty_cycle_ratio", math.inf, "at most 1"),
        ("framebuffer_used_bytes", -1, "at least 0"),
        ("kv_cache_usage_ratio", 1.5, "at most 1"),
    ],
)
def test_a_bad_value_is_named_with_row_and_limit(tmp_path: Path, column: str, value: float, limit: str) -> None:
    files = TraceFiles()
    files.usage[7][column] = value
    files.write(tmp_path)
    refused(tmp_path, "usage.parquet", column, "row 7", limit)


def test_a_bad_value_far_into_the_file_is_found_before_anything_is_read(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(trace_usage, "BATCH_ROWS", 4)
    files = TraceFiles()
    files.usage[11]["duty_cycle_ratio"] = 2.0
    refused(files.write(tmp_path, row_group_rows=3), "row 11")


@pytest.mark.parametrize("column", ["ts", "pod", "card"])
def test_a_null_where_a_value_is_needed_is_named(tmp_path: Path, column: str) -> None:
    files = TraceFiles()
    files.usage[3][column] = None
    refused(files.write(tmp_path), f"column {column} is null in row 3")


def test_a_card_that_the_inventory_does_not_list_is_named(tmp_path: Path) -> None:
    files = TraceFiles()
    files.usage[5]["card"] = "GPU-z"
    refused(files.write(tmp_path), "'GPU-z'", "row 5", "cards.parquet")


def test_a_grant_on_an_unknown_card_is_named(tmp_path: Path) -> None:
    refused(TraceFiles(pods=[pod("web-0", "GPU-z")]).write(tmp_path), "pods.parquet", "'GPU-z'", "row 0")


def test_a_pod_that_nobody_granted_the_card_is_named(tmp_path: Path) -> None:
    files = TraceFiles()
    files.usage[2]["pod"] = "ghost-0"
    refused(files.write(tmp_path), "'ghost-0'", "row 2", "pods.parquet")


def test_a_pod_on_the_card_of_another_is_named(tmp_path: Path) -> None:
    files = TraceFiles()
    files.usage[2]["card"] = "GPU-b"
    refused(files.write(tmp_path), "'web-0'", "row 2", "'GPU-b'")


@pytest.mark.parametrize("batch", [2, 4, 1000])
def test_a_repeated_row_is_named_wherever_batches_end(tmp_path: Path, batch: int, monkeypatch: Any) -> None:
    monkeypatch.setattr(trace_usage, "BATCH_ROWS", batch)
    files = TraceFiles()
    files.usage.insert(5, dict(files.usage[4]))
    refused(files.write(tmp_path, row_group_rows=batch), "row 5 repeats")


@pytest.mark.parametrize("batch", [2, 1000])
def test_a_repeated_row_is_named_where_times_go_back(tmp_path: Path, batch: int, monkeypatch: Any) -> None:
    monkeypatch.setattr(trace_usage, "BATCH_ROWS", batch)
    files = TraceFiles()
    files.usage = [*files.usage[6:], *files.usage[:6], dict(files.usage[6])]
    refused(files.write(tmp_path), "row 12 repeats")


@pytest.mark.parametrize("batch", [3, 1000])
def test_times_that_go_back_are_put_in_order(tmp_path: Path, batch: int, monkeypatch: Any) -> None:
    monkeypatch.setattr(trace_usage, "BATCH_ROWS", batch)
    files = TraceFiles()
    expected = sorted(epoch_ms(entry["ts"]) for entry in files.usage)
    files.usage.reverse()
    assert times(open_trace(files.write(tmp_path))) == expected


def test_too_many_unordered_rows_are_refused_with_the_limit(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(trace_usage, "ROWS_SORTED_MAX", 5)
    files = TraceFiles()
    files.usage.reverse()
    refused(files.write(tmp_path), "more than 5 rows", "sort it by ts")


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"priority": "urgent"}, ("priority", "'urgent'", "high, normal, low")),
        ({"compute_granted_ratio": 1.5}, ("compute_granted_ratio", "at most 1")),
        ({"framebuffer_granted_bytes": -1}, ("framebuffer_granted_bytes", "at least 0")),
        ({"ended_at": at(-5)}, ("ended_at", "must not lie before")),
        ({"namespace": ""}, ("namespace", "is empty")),
        ({"kv_cache_pool_bytes": -4.0}, ("kv_cache_pool_bytes", "at least 0")),
    ],
)
def test_a_bad_grant_is_named(tmp_path: Path, changes: dict[str, Any], parts: tuple[str, ...]) -> None:
    files = TraceFiles(pods=[pod("web-0", "GPU-a", **changes), pod("web-1", "GPU-b")])
    refused(files.write(tmp_path), "pods.parquet", "row 0", *parts)


def test_periods_that_overlap_are_refused(tmp_path: Path) -> None:
    pods = [pod("web-0", "GPU-a", ended_at=at(30)), pod("web-0", "GPU-a", started_at=at(20)), pod("web-1", "GPU-b")]
    refused(TraceFiles(pods=pods).write(tmp_path), "row 1", "overlap")


def test_a_card_that_is_listed_twice_is_refused(tmp_path: Path) -> None:
    refused(TraceFiles(cards=[card("GPU-a"), card("GPU-b"), card("GPU-a")]).write(tmp_path), "'GPU-a' again in row 2")


def test_cards_of_two_clusters_are_refused(tmp_path: Path) -> None:
    refused(TraceFiles(cards=[card("GPU-a"), card("GPU-b", cluster="c2")]).write(tmp_path), "c1, c2")


def test_windows_partition_the_rows_and_hold_no_later_time(tmp_path: Path) -> None:
    trace = open_trace(TraceFiles().write(tmp_path))
    ends: list[int] = []
    rows = 0
    for end, piece, _ in trace.usage_windows(at(15), at(50), 1):
        ends.append(epoch_ms(end))
        rows += len(piece.ts_ms)
        assert (piece.ts_ms <= epoch_ms(end)).all()
        assert (piece.ts_ms > epoch_ms(end) - 600_000).all()
    assert ends == [epoch_ms(at(minutes)) for minutes in (25, 35, 45, 50)]
    assert rows == 2 * 4


def test_since_is_left_out_and_until_is_let_in(tmp_path: Path) -> None:
    trace = open_trace(TraceFiles().write(tmp_path))
    found = [int(ts) for _, piece, _ in trace.usage_windows(at(20), at(40), 10) for ts in piece.ts_ms]
    assert sorted(set(found)) == [epoch_ms(at(30)), epoch_ms(at(40))]


def test_the_step_is_found_from_the_gaps(tmp_path: Path) -> None:
    trace = open_trace(TraceFiles().write(tmp_path))
    assert trace.step_seconds == 600
    assert trace.since == T0
    assert trace.until == at(60)


def test_an_end_is_not_known_before_its_time(tmp_path: Path) -> None:
    files = TraceFiles(pods=[pod("web-0", "GPU-a", ended_at=at(30)), pod("web-1", "GPU-b", ended_at=at(60))])
    trace = open_trace(files.write(tmp_path))
    assert [grant.ended_at for grant in trace.grants_at(at(29))] == [None, None]
    assert [grant.ended_at for grant in trace.grants_at(at(30))] == [at(30), None]


def test_the_end_of_the_recording_is_nobodys_end(tmp_path: Path) -> None:
    files = TraceFiles(pods=[pod("web-0", "GPU-a", ended_at=at(60)), pod("web-1", "GPU-b", ended_at=at(500))])
    trace = open_trace(files.write(tmp_path))
    assert [grant.ended_at for grant in trace.grants_at(at(600))] == [None, None]


def test_a_grant_is_not_known_before_it_begins(tmp_path: Path) -> None:
    files = TraceFiles(pods=[pod("web-0", "GPU-a"), pod("web-1", "GPU-b", started_at=at(40))])
    trace = open_trace(files.write(tmp_path))
    assert [grant.pod for grant in trace.inventory_at(at(39)).grants] == ["web-0"]
    assert [grant.pod for grant in trace.inventory_at(at(40)).grants] == ["web-0", "web-1"]


def test_optional_columns_reach_the_records(tmp_path: Path) -> None:
    extra = {
        "mig_profile": "3g.40gb",
        "cpu_request_cores": 7.5,
        "memory_request_bytes": 16 * GIB,
        "labels": {"b": "2", "a": "1"},
        "replicas_min": 3,
    }
    files = TraceFiles(
        cards=[card("GPU-a", mig_mode=True, owned=False, node_cpu_cores=64.0, node_memory_bytes=GIB)],
        pods=[pod("web-0", "GPU-a", **extra)],
        usage=[row(10, "web-0", "GPU-a", power_watts=88.0, encoder_ratio=0.25, latency_p99_seconds=0.3)],
    )
    trace = open_trace(files.write(tmp_path))
    grant = trace.grants_at(trace.until)[0]
    assert (grant.mig_profile, grant.cpu_request_cores, grant.memory_request_bytes) == ("3g.40gb", 7.5, 16 * GIB)
    assert (grant.labels, grant.replicas_min) == ((("a", "1"), ("b", "2")), 3)
    assert (trace.cards[0].mig_mode, trace.cards[0].is_owned) == (True, False)
    assert (trace.nodes[0].cpu_cores, trace.nodes[0].memory_bytes) == (64.0, GIB)
    assert {Measure.POWER, Measure.ENCODER, Measure.LATENCY_P99} <= set(trace.measures)


def test_a_ratio_of_32_bits_keeps_the_digits_that_were_written(tmp_path: Path) -> None:
    files = TraceFiles(types={"duty_cycle_ratio": pa.float32()})
    for entry in files.usage:
        entry["duty_cycle_ratio"] = 0.29
    trace = open_trace(files.write(tmp_path))
    _, piece, _ = next(trace.usage_windows(None, trace.until, 100))
    assert (piece.values[Measure.DUTY_CYCLE] == 0.29).all()


def test_times_without_a_zone_are_utc(tmp_path: Path) -> None:
    files = TraceFiles(types={"ts": pa.timestamp("ns"), "started_at": pa.timestamp("s"), "ended_at": TIME})
    for entry in files.usage:
        entry["ts"] = entry["ts"].replace(tzinfo=None)
    for entry in files.pods:
        entry["started_at"] = entry["started_at"].replace(tzinfo=None)
    trace = open_trace(files.write(tmp_path))
    assert trace.until == at(60)
    assert trace.grants_at(T0)[0].started_at == T0


def test_a_pod_without_usage_is_still_in_the_inventory(tmp_path: Path) -> None:
    files = TraceFiles(cards=[card("GPU-a"), card("GPU-b"), card("GPU-c")])
    files.pods.append(pod("silent-0", "GPU-c"))
    trace = open_trace(files.write(tmp_path))
    assert "silent-0" in {grant.pod for grant in trace.grants_at(trace.until)}


def test_the_image_service_of_24_hours_is_read_whole(shared_traces: Path) -> None:
    trace = open_trace(shared_traces / "fleet-gentd26")
    blocks = list(ReplayReader(trace).blocks())
    assert sum(len(block.slice_samples.ts_ms) for block in blocks) == 105_300
    assert trace.step_seconds == 60
    assert all(Measure.SM_ACTIVE not in block.slice_samples.values for block in blocks)
    assert all(grant.kv_cache_pool_bytes is None for grant in trace.grants_at(trace.until))


def test_the_cluster_of_ten_days_is_read_whole(shared_traces: Path) -> None:
    trace = open_trace(shared_traces / "fleet-servegen")
    rows = sum(len(block.slice_samples.ts_ms) for block in ReplayReader(trace).blocks())
    assert rows == 2_126_238
    assert len(trace.cards) == 1481
    living = [grant for grant in trace.grants_at(trace.until) if grant.ended_at is None]
    assert sum(grant.workload_kind == "Deployment" for grant in living) == 1409
    assert re.fullmatch(r"c1", trace.cluster)


def test_missing_values_stay_missing(tmp_path: Path) -> None:
    files = TraceFiles()
    files.usage[0]["sm_active_ratio"] = None
    trace = open_trace(files.write(tmp_path))
    _, piece, _ = next(trace.usage_windows(None, trace.until, 100))
    assert np.isnan(piece.values[Measure.SM_ACTIVE]).sum() == 1
