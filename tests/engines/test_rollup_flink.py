"""The rollup on a real Flink: it says what the embedded one says, and goes on where it was."""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fleet.data_folder import DataFolder, open_data_folder
from fleet.errors import Misconfigured
from fleet.schema import Measure
from fleet.settings.pipeline import FlinkSettings
from gputide.operate.backup_create import STATE_OF_FLINK, create_backup, restore_backup
from pipeline.remote_write.decode import Version
from pipeline.warehouse.warehouse import AppendName
from pipeline.warehouse.warehouse_duckdb import DuckdbWarehouse
from tests.contracts.rollup import RollupContract
from tests.engines.flink_parts import (
    LATE_DAYS,
    SETTLE_SECONDS,
    SharedProcess,
    TopicBus,
    assert_oracle,
    drain,
    rollup_of,
)
from tests.engines.running import Kafka
from tests.pipeline.builders import (
    DAY_MS,
    START_MS,
    USAGE_TABLES,
    Sample,
    body_of,
    expected_rows,
    intake_of,
    small_fleet,
    stored_rows,
)

pytestmark = pytest.mark.engines


class TestFlinkRollup(RollupContract):
    EARLIER_VALUE_MAY_COUNT = True

    @pytest.fixture
    def rollup(
        self, bus: TopicBus, warehouse: DuckdbWarehouse, shared: SharedProcess, tmp_path: Path
    ) -> Iterator[Callable[[], int]]:
        running = rollup_of(bus, warehouse, tmp_path / "a 50%20 flink", lambda _token: shared)
        running.start()
        yield lambda: drain(running)
        running.stop()


def test_drain_waits_for_no_checkpoint_that_comes_by_the_clock(
    bus: TopicBus, warehouse: DuckdbWarehouse, shared: SharedProcess, tmp_path: Path
) -> None:
    samples = small_fleet(pods=2, hours=3)
    intake_of(bus).take(body_of(samples), Version.V2)
    running = rollup_of(
        bus, warehouse, tmp_path / "flink", lambda _token: shared,
        checkpoint_milliseconds=FlinkSettings().checkpoint_seconds * 1000,
    )  # fmt: skip
    running.start()
    begun = time.monotonic()
    drain(running)
    took_seconds = time.monotonic() - begun
    # Before the stop, whose savepoint would write what the drain has missed.
    assert_oracle(warehouse, samples)
    running.stop()
    print(f"drained in {took_seconds:.1f} s")
    assert took_seconds < 2 * FlinkSettings().checkpoint_seconds


def test_stopped_job_goes_on_from_its_savepoint_in_a_restored_backup_and_counts_repeats_once(
    bus: TopicBus, shared: SharedProcess, tmp_path: Path
) -> None:
    samples = small_fleet(pods=2, hours=3)
    first, second = samples[: len(samples) // 2], samples[len(samples) // 2 :]
    intake_of(bus).take(body_of(first), Version.V2)
    # The first job is stopped in the middle, with sums under way that only the savepoint holds.
    folder, again = open_data_folder(tmp_path / "data", create=True), DataFolder(path=tmp_path / "again")
    _run(bus, folder, shared, second)
    create_backup(folder, folder.warehouse, tmp_path / "backup", datetime.now(UTC))
    shutil.rmtree(folder.path)
    restore_backup(tmp_path / "backup", again.path, again.warehouse)
    _run(bus, again, shared, first, is_drained=True)
    with closing(DuckdbWarehouse(again.warehouse)) as warehouse:
        assert_oracle(warehouse, samples)


def _run(
    bus: TopicBus, folder: DataFolder, shared: SharedProcess, sent: list[Sample], *, is_drained: bool = False
) -> None:
    """Runs a job while samples come, and stops it in order."""
    with closing(DuckdbWarehouse(folder.warehouse)) as warehouse:
        running = rollup_of(bus, warehouse, folder.path / STATE_OF_FLINK, lambda _token: shared)
        running.start()
        intake_of(bus).take(body_of(sent), Version.V2)
        if is_drained:
            drain(running)
        running.stop()


def test_job_with_another_length_of_windows_goes_on_where_the_former_was_stopped(
    bus: TopicBus, warehouse: DuckdbWarehouse, shared: SharedProcess, tmp_path: Path
) -> None:
    early, late = (Sample(0, Measure.DUTY_CYCLE, START_MS + shift, 0.5) for shift in (60_000, 180_000))
    former = rollup_of(bus, warehouse, tmp_path / "flink", lambda _token: shared)
    former.start()
    intake_of(bus).take(body_of([early]), Version.V2)
    former.settle(seconds_max=SETTLE_SECONDS)
    intake_of(bus).take(body_of([late]), Version.V2)
    former.stop()
    latest = Sample(0, Measure.DUTY_CYCLE, START_MS + 600_000, 0.25)
    intake_of(bus).take(body_of([early, latest]), Version.V2)
    changed = rollup_of(bus, warehouse, tmp_path / "flink", lambda _token: shared, window_seconds=300)
    changed.start()
    drain(changed)
    changed.stop()
    hours = stored_rows(warehouse, USAGE_TABLES[0], levels=[3600])
    assert hours == expected_rows([early, late, latest], USAGE_TABLES[0], levels=[3600])


def test_day_is_closed_days_after_it_had_samples_and_a_day_that_had_none_is_open(
    bus: TopicBus, warehouse: DuckdbWarehouse, shared: SharedProcess, tmp_path: Path
) -> None:
    days = [Sample(0, Measure.DUTY_CYCLE, START_MS + 60_000 + day * DAY_MS, 0.5) for day in range(-9, LATE_DAYS + 2)]
    live, kept = days[9:], days[0]
    late = Sample(0, Measure.DUTY_CYCLE, START_MS + 120_000, 0.25)
    running = rollup_of(bus, warehouse, tmp_path / "flink", lambda _token: shared)
    running.start()
    for sample in (*live, kept, late):
        intake_of(bus).take(body_of([sample]), Version.V2)
    running.settle(seconds_max=SETTLE_SECONDS)
    steps = []
    while (step := running.step()) is not None:
        steps.append(step)
    running.stop()
    assert_oracle(warehouse, [*live, kept])
    assert sum(step.late for step in steps) == 1
    assert sum(step.samples for step in steps) == len(live) + 2
    assert sum(step.records for step in steps) == len(live) + 2


def test_what_was_counted_is_forgotten_with_its_day_and_not_before(
    bus: TopicBus, warehouse: DuckdbWarehouse, shared: SharedProcess, tmp_path: Path
) -> None:
    # At midnight a day ends: its last sample is of an hour that goes with the next one.
    days = [Sample(0, Measure.DUTY_CYCLE, START_MS + day * DAY_MS, 0.5) for day in range(LATE_DAYS + 3)]
    running = rollup_of(bus, warehouse, tmp_path / "flink", lambda _token: shared)
    running.start()
    for sent in ([days[0]], days[1:], days[1:]):
        intake_of(bus).take(body_of(sent), Version.V2)
        drain(running)
    running.stop()
    assert_oracle(warehouse, days)
    said = shared.log.with_suffix(".java.log").read_text(encoding="utf-8")
    assert re.findall(r"forgot (\d+) hours of days", said)[-1] != "0"


def test_jobs_of_another_parallelism_know_what_the_former_counted_and_closed(
    bus: TopicBus, warehouse: DuckdbWarehouse, shared: SharedProcess, tmp_path: Path
) -> None:
    samples = small_fleet(pods=6, hours=2)
    later = [Sample(0, Measure.DUTY_CYCLE, START_MS + day * DAY_MS + 60_000, 0.5) for day in range(1, LATE_DAYS + 2)]
    late = 0
    for parallelism, sent in ((1, samples[::2]), (3, samples), (2, [*samples, *later]), (3, [*samples, *later])):
        running = rollup_of(bus, warehouse, tmp_path / "flink", lambda _token: shared, parallelism=parallelism)
        running.start()
        intake_of(bus).take(body_of(sent), Version.V2)
        running.settle(seconds_max=SETTLE_SECONDS)
        while (step := running.step()) is not None:
            late += step.late
        running.stop()
    assert_oracle(warehouse, [*samples, *later])
    assert late > 0


def test_lost_state_is_refused_instead_of_counting_everything_again(
    bus: TopicBus, warehouse: DuckdbWarehouse, shared: SharedProcess, tmp_path: Path
) -> None:
    warehouse.append((AppendName(source=f"flink-{bus.settings.topic}", start=0, end=1),), [])
    with pytest.raises(Misconfigured, match="state_folder"):
        rollup_of(bus, warehouse, tmp_path / "flink", lambda _token: shared).start()


def test_job_outlives_a_killed_broker(
    bus: TopicBus, kafka: Kafka, warehouse: DuckdbWarehouse, shared: SharedProcess, tmp_path: Path
) -> None:
    samples = small_fleet(pods=2, hours=4)
    half = len(samples) // 2
    running = rollup_of(bus, warehouse, tmp_path / "flink", lambda _token: shared, restarts="exponential-delay")
    running.start()
    intake_of(bus).take(body_of(samples[:half]), Version.V2)
    running.settle(seconds_max=SETTLE_SECONDS)
    kafka.kill()
    kafka.start()
    deadline = time.monotonic() + 120
    while intake_of(bus).take(body_of(samples[half:]), Version.V2).status != 204:
        assert time.monotonic() < deadline
    drain(running)
    running.stop()
    assert_oracle(warehouse, samples)
