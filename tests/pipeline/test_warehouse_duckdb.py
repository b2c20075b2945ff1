"""The DuckDB warehouse keeps the warehouse's contract; histories come out as they went in."""

from __future__ import annotations

import errno
import json
import os
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from fleet.errors import Corrupt
from fleet.schema import Measure
from fleet.usage import SliceKey
from pipeline.records.sightings import SILENT_SECONDS
from pipeline.remote_write.decode import Version
from pipeline.remote_write.encode import LabelSets
from pipeline.warehouse.partition_names import safe_name
from pipeline.warehouse.warehouse_duckdb import DuckdbWarehouse
from tests.contracts.warehouse import NOON, WarehouseContract, name_of, node_part
from tests.pipeline.builders import START_MS, Sample, body_of, encoded, file_bus, intake_of, roll_up

START = datetime.fromtimestamp(START_MS / 1000, UTC)
STEP_MS = 600_000


class TestDuckdbWarehouse(WarehouseContract):
    @pytest.fixture
    def warehouse(self, tmp_path):
        return DuckdbWarehouse(tmp_path / "warehouse")

    @pytest.fixture
    def reopened(self, warehouse, tmp_path):
        def reopen():
            warehouse.close()
            return DuckdbWarehouse(tmp_path / "warehouse")

        return reopen


@pytest.fixture
def chain(tmp_path):
    bus, warehouse = file_bus(tmp_path / "bus"), DuckdbWarehouse(tmp_path / "warehouse")

    def send(*bodies: bytes) -> DuckdbWarehouse:
        intake = intake_of(bus)
        for body in bodies:
            assert intake.take(body, Version.V2).status == 204
        roll_up(bus, warehouse)
        return warehouse

    return send


def duty(step: int, value: float, pod: int = 0) -> Sample:
    return Sample(pod, Measure.DUTY_CYCLE, START_MS + step * STEP_MS, value)


def test_history_has_the_sources_own_step_and_nan_where_nothing_was_collected(chain):
    warehouse = chain(body_of([duty(step, step / 10) for step in (1, 2, 3, 5, 6)]))
    grid = warehouse.history("c1").slices
    assert (grid.since, grid.step_seconds, grid.steps) == (START, 600, 6)
    expected = np.array([[0.1, 0.2, 0.3, np.nan, 0.5, 0.6]], dtype=np.float32)
    np.testing.assert_allclose(grid.mean[Measure.DUTY_CYCLE], expected, atol=1e-6)
    np.testing.assert_allclose(grid.peak[Measure.DUTY_CYCLE], expected, atol=1e-6)
    assert set(grid.mean) == {Measure.DUTY_CYCLE}
    assert grid.keys[0].pod == "pod-0"


def test_history_means_and_peaks_over_samples_finer_than_a_minute(chain):
    samples = [Sample(0, Measure.SM_ACTIVE, START_MS + 15_000 * number, number / 100) for number in range(1, 13)]
    grid = chain(body_of(samples)).history("c1").slices
    assert (grid.step_seconds, grid.steps) == (60, 3)
    np.testing.assert_allclose(grid.mean[Measure.SM_ACTIVE], [[0.025, 0.065, 0.105]], atol=1e-6)
    np.testing.assert_allclose(grid.peak[Measure.SM_ACTIVE], [[0.04, 0.08, 0.12]], atol=1e-6)


def test_history_between_two_moments_holds_those_steps_only(chain):
    warehouse = chain(body_of([duty(step, step / 100) for step in range(1, 30)]))
    since, until = START + timedelta(minutes=50), START + timedelta(minutes=80)
    grid = warehouse.history("c1", since=since, until=until).slices
    assert (grid.since, grid.until) == (since, until)
    np.testing.assert_allclose(grid.mean[Measure.DUTY_CYCLE], [[0.06, 0.07, 0.08]], atol=1e-6)


def test_history_merges_late_rows_of_later_appends(chain):
    chain(body_of([duty(step, 0.5) for step in (1, 3)]))
    warehouse = chain(body_of([duty(2, 0.25)]), body_of([duty(1, 0.5, pod=1)]))
    grid = warehouse.history("c1").slices
    rows = {key.pod: row for key, row in zip(grid.keys, grid.mean[Measure.DUTY_CYCLE], strict=True)}
    np.testing.assert_allclose(rows["pod-0"], [0.5, 0.25, 0.5], atol=1e-6)
    np.testing.assert_array_equal(np.isfinite(rows["pod-1"]), [True, False, False])


def test_cards_have_a_grid_of_their_own(chain):
    samples = [Sample(0, Measure.POWER, START_MS + step * STEP_MS, 100.5, of_card=True) for step in (1, 2)]
    history = chain(body_of(samples)).history("c1")
    assert history.slices.keys == ()
    assert history.cards is not None
    assert history.cards.keys[0].card == "GPU-0"
    np.testing.assert_array_equal(history.cards.mean[Measure.POWER], np.array([[100.5, 100.5]], dtype=np.float32))


def test_kv_cache_of_a_pod_without_card_counts_for_the_pods_slices(chain):
    kv_cache = {"__name__": "vllm:kv_cache_usage_perc", "cluster": "c1", "namespace": "team", "pod": "pod-0"}
    samples = [duty(step, 0.5) for step in (1, 2)]
    warehouse = chain(body_of(samples), encoded([kv_cache], [duty(2, 0.75)], Version.V2))
    grid = warehouse.history("c1").slices
    assert len(grid.keys) == 1
    np.testing.assert_array_equal(grid.mean[Measure.KV_CACHE_USAGE], np.array([[np.nan, 0.75]], dtype=np.float32))


def grant(pod: str, **labels: str) -> dict[str, str]:
    return {
        "__name__": "gputide_slice_info", "cluster": "c1", "namespace": "team", "pod": pod, "container": "server",
        "node": "n1", "card": "GPU-0", "card_model": "NVIDIA A10", "workload": "svc", "workload_kind": "Deployment",
        "framebuffer_bytes": "24000000000", "framebuffer_granted_bytes": "12000000000",
        "compute_granted_ratio": "0.5", "priority": "high", "started_at": "2026-01-01T00:00:00+00:00",
        "labels": '{"gputide.io/opt-out":"true"}', **labels,
    }  # fmt: skip


def seen(labels: dict[str, str], *hours: float, stale_at: float | None = None) -> bytes:
    times = [START_MS + round(hour * 3_600_000) for hour in hours]
    values = [1.0] * len(times)
    if stale_at is not None:
        times.append(START_MS + round(stale_at * 3_600_000))
        values.append(float(np.array([0x7FF0000000000002], dtype=np.uint64).view(np.float64)[0]))
    return LabelSets([labels]).encode(
        Version.V2, np.zeros(len(times), dtype=np.int64), np.array(times), np.array(values)
    )


def test_grant_comes_back_as_it_was_seen(chain):
    (found,) = chain(seen(grant("a"), 1, 2)).inventory("c1").grants
    assert (found.workload_id, found.framebuffer_granted_bytes, found.compute_granted_ratio) == (
        "team/Deployment/svc",
        12_000_000_000,
        0.5,
    )
    assert found.started_at == datetime(2026, 1, 1, tzinfo=UTC)
    assert found.label("gputide.io/opt-out") == "true"
    assert (found.ended_at, found.kv_cache_pool_bytes) == (None, None)


@pytest.mark.parametrize(
    ("others", "joined"),
    [
        ([], True),
        ([grant("pod-0", container="sidecar")], False),
        ([grant("pod-0", card="GPU-9", container="sidecar"), grant("pod-1")], True),
    ],
)
def test_use_of_a_pod_without_a_container_is_its_only_grants_on_the_card(chain, others, joined):
    kai = {"__name__": "gpu_fractioning_gpu_sm_utilization_percent", "cluster": "c1", "exported_namespace": "team",
           "exported_pod": "pod-0", "namespace": "kai-scheduler", "pod": "fractiond", "container": "metricsd",
           "gpu_uuid": "GPU-0"}  # fmt: skip
    moved = {**kai, "node": "n1"}
    grants = [seen(labels, 0, 1) for labels in (grant("pod-0"), *others)]
    history = chain(*grants, encoded([kai, moved], [duty(1, 40.0), duty(2, 60.0)], Version.V2)).history("c1")
    mine = ("pod-0", "GPU-0", "server")
    only = next(one for one in history.inventory.grants if (one.pod, one.card, one.container) == mine)
    if joined:
        assert history.slices.keys == (SliceKey.of(only),)
        np.testing.assert_allclose(history.slices.mean[Measure.DUTY_CYCLE][:, [0, -1]], [[0.4, 0.6]], atol=1e-6)
    else:
        assert SliceKey.of(only) not in history.slices.keys


def test_use_that_another_source_gives_of_the_container_stays_apart(chain):
    kai = {"__name__": "gpu_sharing_gpu_sm_utilization_percent", "cluster": "c1", "namespace": "team", "pod": "pod-0",
           "gpu_uuid": "GPU-0"}  # fmt: skip
    own = encoded([kai], [duty(1, 90.0)], Version.V2)
    grid = chain(seen(grant("pod-0"), 0, 1), body_of([duty(1, 0.5)]), own).history("c1").slices
    rows = {key.container: row for key, row in zip(grid.keys, grid.mean[Measure.DUTY_CYCLE].tolist(), strict=True)}
    assert rows["server"] == [0.5]


def test_grant_ends_with_its_stale_marker(chain):
    inventory = chain(seen(grant("a"), 1, 2, stale_at=2.5), seen(grant("b"), 1, 2, 3)).inventory("c1")
    assert [found.ended_at for found in inventory.grants] == [START + timedelta(hours=2.5), None]
    assert [found.pod for found in inventory.live_grants()] == ["b"]


def test_grant_that_is_seen_again_after_its_marker_lives(chain):
    chain(seen(grant("a"), 1, stale_at=2))
    assert chain(seen(grant("a"), 3)).inventory("c1").grants[0].ended_at is None


def test_grant_that_fell_silent_has_ended_when_it_was_last_seen(chain):
    silent = SILENT_SECONDS / 3600 + 1.01
    inventory = chain(seen(grant("a"), 1), seen(grant("b"), 1, silent), seen(grant("c"), 1.02)).inventory("c1")
    assert [found.ended_at for found in inventory.grants] == [START + timedelta(hours=1), None, None]


def test_inventory_of_a_moment_does_not_know_a_later_end(chain):
    warehouse = chain(seen(grant("a"), 1, 2, stale_at=3), seen(grant("later"), 3))
    (found,) = warehouse.inventory("c1", as_of=START + timedelta(hours=2)).grants
    assert (found.pod, found.ended_at) == ("a", None)


def test_newer_schema_is_refused_in_clear_words(tmp_path):
    DuckdbWarehouse(tmp_path).append(name_of(0, 1), (node_part("a", NOON),))
    (tmp_path / "FORMAT.json").write_text(json.dumps({"schema_version": 99}))
    with pytest.raises(Corrupt, match="its schema version is 99"):
        DuckdbWarehouse(tmp_path)


@pytest.mark.parametrize("point", ["before rename", "before manifest"])
def test_full_storage_adds_nothing_and_the_append_can_be_tried_again(tmp_path, point):
    is_full = [True]

    def crash_point(name):
        if is_full[0] and name == point:
            raise OSError(errno.ENOSPC, "no space")

    warehouse = DuckdbWarehouse(tmp_path, crash_point=crash_point)
    with pytest.raises(Corrupt, match="storage is full"):
        warehouse.append(name_of(0, 1), (node_part("a", NOON),))
    assert warehouse.clusters() == ()
    assert not [path for path in tmp_path.rglob("*") if ".parquet" in path.name]
    is_full[0] = False
    assert warehouse.append(name_of(0, 1), (node_part("a", NOON),))


def test_folder_that_cannot_be_written_is_said_so(tmp_path):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(Corrupt, match="--data-dir"):
        DuckdbWarehouse(tmp_path / "file" / "below").append(name_of(0, 1), ())


def test_torn_line_of_the_manifest_does_not_count_and_is_cut_by_the_next_writer(tmp_path):
    warehouse = DuckdbWarehouse(tmp_path)
    warehouse.append(name_of(0, 1), (node_part("a", NOON),))
    warehouse.append(name_of(1, 2), (node_part("b", NOON),))
    warehouse.close()
    manifest = tmp_path / "MANIFEST"
    os.truncate(manifest, manifest.stat().st_size - 5)
    again = DuckdbWarehouse(tmp_path)
    assert again.applied_offset("bus") == 1
    again.append(name_of(1, 3), (node_part("c", NOON),))
    assert [node.node for node in DuckdbWarehouse(tmp_path).inventory("c1").nodes] == ["a", "c"]
    assert len(list(tmp_path.rglob("*.parquet"))) == 2


def test_damaged_line_of_the_manifest_is_corrupt_and_not_forgotten(tmp_path):
    warehouse = DuckdbWarehouse(tmp_path)
    warehouse.append(name_of(0, 1), (node_part("a", NOON),))
    manifest = tmp_path / "MANIFEST"
    manifest.write_bytes(manifest.read_bytes().replace(b'"end":1', b'"end":2'))
    with pytest.raises(Corrupt, match="damaged"):
        DuckdbWarehouse(tmp_path).clusters()


def test_lost_file_is_corrupt(tmp_path, chain):
    warehouse = chain(body_of([duty(1, 0.5)]))
    for path in (tmp_path / "warehouse" / "pod_usage").rglob("*.parquet"):
        path.unlink()
    with pytest.raises(Corrupt, match="cannot read"):
        warehouse.history("c1")


def test_partition_names_stay_one_part_of_a_path():
    names = ["", ".", "..", "...", "a/b", "a%2Fb", "x" * 300, "x" * 301, "c1", ".c1", "%"]
    names += ["__HIVE_DEFAULT_PARTITION__", "%5F%5FHIVE%5FDEFAULT%5FPARTITION%5F%5F", "a_INTERMEDIATE_ORIGINAL", "a_b"]
    safe = [safe_name(name) for name in names]
    assert len(set(safe)) == len(names)
    assert all("/" not in name and not name.startswith(".") and 0 < len(name) <= 200 for name in safe)
