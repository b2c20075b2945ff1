"""The rollup on a real Flink: it says what the embedded one says, and goes on saying it when it is killed."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fleet.errors import Misconfigured, Unavailable
from fleet.schema import Measure
from fleet.settings_pipeline import KafkaSettings
from gputide.engine_flink import FlinkStock
from pipeline.bus_kafka import KafkaWriter
from pipeline.flink_process import FlinkEnvironment, FlinkProcess
from pipeline.flink_publish import FlinkPublisher
from pipeline.flink_sql import DEAD_SUFFIX, FlinkTopic, fingerprint, flink_statements
from pipeline.flink_state import FlinkState
from pipeline.kafka_progress import KafkaProgress
from pipeline.kafka_topic import open_topic
from pipeline.remote_write import Version
from pipeline.rollup_flink import FlinkJobOptions, FlinkRollup
from pipeline.row_records import pack_rows
from pipeline.warehouse import AppendName
from pipeline.warehouse_duckdb import DuckdbWarehouse
from tests.contracts.rollup import RollupContract
from tests.engines.running import Kafka
from tests.pipeline.builders import (
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

SETTLE_SECONDS = 240.0
JAVA_OPTIONS = "-Xmx640m -Xms128m -XX:+UseSerialGC -XX:TieredStopAtLevel=1"


class RowsBus:
    """A Kafka topic as the intake writes it for Flink; the format of its records says so to `intake_of`."""

    pack_record = staticmethod(pack_rows)

    def __init__(self, settings: KafkaSettings) -> None:
        self.settings = settings
        self._writer = KafkaWriter(settings)

    @property
    def lanes(self) -> int:
        return self._writer.lanes

    def append_all(self, payloads: Any) -> None:
        self._writer.append_all(payloads)

    def close(self) -> None:
        self._writer.close()


class SharedProcess(FlinkProcess):
    """One Java machine for the jobs of many tests."""

    def end(self) -> None:
        """Leave it running."""

    def finish(self) -> None:
        super().end()


@pytest.fixture(scope="module")
def environment(flink: FlinkStock) -> FlinkEnvironment:
    return FlinkEnvironment(python=flink.python, environ=flink.environ(os.environ), java_options=JAVA_OPTIONS)


@pytest.fixture(scope="module")
def shared(environment: FlinkEnvironment, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedProcess]:
    process = SharedProcess(environment, "shared-by-tests", tmp_path_factory.mktemp("flink") / "flink.log")
    yield process
    process.finish()


@pytest.fixture
def bus(kafka: Kafka, fresh_topic: Callable[..., str]) -> Iterator[RowsBus]:
    topic = fresh_topic(2)
    settings = KafkaSettings(
        servers=(kafka.bootstrap,), topic=topic, group=topic, partitions=2, record_bytes_max=1 << 20
    )
    open_topic(settings, topic + DEAD_SUFFIX, partitions=1)
    opened = RowsBus(settings)
    yield opened
    opened.close()


@pytest.fixture
def warehouse(tmp_path: Path) -> Iterator[DuckdbWarehouse]:
    opened = DuckdbWarehouse(tmp_path / "warehouse")
    yield opened
    opened.close()


def rollup_of(
    bus: RowsBus,
    warehouse: DuckdbWarehouse,
    folder: Path,
    process_of: Callable[[str], FlinkProcess],
    *,
    window_seconds: int = 60,
    crash_point: Callable[[str], None] = lambda _name: None,
    **options: Any,
) -> FlinkRollup:
    """A rollup with short intervals."""
    state = FlinkState(folder)
    topic = bus.settings.topic

    def statements(is_resumed_by_group: bool) -> Any:
        source = FlinkTopic(
            servers=",".join(bus.settings.servers), topic=topic, group=topic, is_resumed_by_group=is_resumed_by_group
        )
        return flink_statements(source, staging=state.staging.as_uri(), window_seconds=window_seconds, flush_seconds=1)

    return FlinkRollup(
        state,
        statements,
        FlinkJobOptions(
            **{
                "parallelism": 1,
                "checkpoint_milliseconds": 300,
                "flush_seconds": 1,
                "memory_seconds": 3600,
                "restarts": "none",
                **options,
            }
        ),
        publisher=FlinkPublisher(state, warehouse, source=f"flink-{topic}", crash_point=crash_point),
        progress=KafkaProgress(bus.settings, topic, topic),
        process_of=process_of,
        fingerprint=fingerprint(window_seconds=window_seconds, flush_seconds=1),
    )


def drain(rollup: FlinkRollup) -> None:
    """Takes in everything that is on the topic now."""
    rollup.settle(seconds_max=SETTLE_SECONDS)
    while rollup.step() is not None:
        pass


class TestFlinkRollup(RollupContract):
    EARLIER_VALUE_MAY_COUNT = True

    @pytest.fixture
    def rollup(
        self, bus: RowsBus, warehouse: DuckdbWarehouse, shared: SharedProcess, tmp_path: Path
    ) -> Iterator[Callable[[], None]]:
        running = rollup_of(bus, warehouse, tmp_path / "flink", lambda _token: shared)
        running.start()
        yield lambda: drain(running)
        running.stop()


def test_stopped_job_goes_on_from_its_savepoint_and_counts_repeats_once(
    bus: RowsBus, warehouse: DuckdbWarehouse, shared: SharedProcess, tmp_path: Path
) -> None:
    samples = small_fleet(pods=2, hours=3)
    first, second = samples[: len(samples) // 2], samples[len(samples) // 2 :]
    intake_of(bus).take(body_of(first), Version.V2)
    # The first job is stopped in the middle, with sums under way that only the savepoint holds.
    for sent in (second, first):
        running = rollup_of(bus, warehouse, tmp_path / "flink", lambda _token: shared)
        running.start()
        intake_of(bus).take(body_of(sent), Version.V2)
        if sent is first:
            drain(running)
        running.stop()
    assert_oracle(warehouse, samples)


def test_job_of_other_sql_is_refused_until_the_former_one_is_drained(
    bus: RowsBus, warehouse: DuckdbWarehouse, shared: SharedProcess, tmp_path: Path
) -> None:
    early, late = (Sample(0, Measure.DUTY_CYCLE, START_MS + shift, 0.5) for shift in (60_000, 180_000))
    former = rollup_of(bus, warehouse, tmp_path / "flink", lambda _token: shared)
    former.start()
    intake_of(bus).take(body_of([early]), Version.V2)
    former.settle(seconds_max=SETTLE_SECONDS)
    intake_of(bus).take(body_of([late]), Version.V2)
    former.stop()
    changed = rollup_of(bus, warehouse, tmp_path / "flink", lambda _token: shared, window_seconds=300)
    with pytest.raises(Misconfigured, match="--drain"):
        changed.start()

    former = rollup_of(bus, warehouse, tmp_path / "flink", lambda _token: shared)
    former.start()
    drain(former)
    former.stop()
    latest = Sample(0, Measure.DUTY_CYCLE, START_MS + 600_000, 0.25)
    intake_of(bus).take(body_of([latest]), Version.V2)
    changed = rollup_of(bus, warehouse, tmp_path / "flink", lambda _token: shared, window_seconds=300)
    changed.start()
    drain(changed)
    changed.stop()
    hours = stored_rows(warehouse, USAGE_TABLES[0], levels=[3600])
    assert hours == expected_rows([early, late, latest], USAGE_TABLES[0], levels=[3600])


def test_lost_state_is_refused_instead_of_counting_everything_again(
    bus: RowsBus, warehouse: DuckdbWarehouse, shared: SharedProcess, tmp_path: Path
) -> None:
    warehouse.append(AppendName(source=f"flink-{bus.settings.topic}", start=0, end=1), [])
    with pytest.raises(Misconfigured, match="state_folder"):
        rollup_of(bus, warehouse, tmp_path / "flink", lambda _token: shared).start()


def test_what_cannot_be_read_goes_to_the_dead_letter_topic_and_the_rest_counts(
    bus: RowsBus, warehouse: DuckdbWarehouse, shared: SharedProcess, tmp_path: Path
) -> None:
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition  # noqa: PLC0415 - only who runs engines has it

    good = pack_rows((), b"\0" * 16)
    bad = [
        (b"no JSON", [("schema", b"1")]),
        (good[:-1], [("schema", b"1")]),
        (good, [("schema", b"2")]),
        (good, []),
        (b"[1]", [("schema", b"1")]),
    ]
    producer = KafkaProducer(bootstrap_servers=bus.settings.servers[0])
    for payload, headers in bad:
        producer.send(bus.settings.topic, payload, headers=headers, partition=0)
    producer.close()
    samples = small_fleet(pods=1, hours=2)
    intake_of(bus).take(body_of(samples), Version.V2)
    running = rollup_of(bus, warehouse, tmp_path / "flink", lambda _token: shared)
    running.start()
    drain(running)
    running.stop()
    assert_oracle(warehouse, samples)
    place = TopicPartition(bus.settings.topic + DEAD_SUFFIX, 0)
    consumer = KafkaConsumer(bootstrap_servers=bus.settings.servers[0])
    consumer.assign([place])
    consumer.seek_to_beginning(place)
    found: list[bytes] = []
    deadline = time.monotonic() + 60
    while consumer.position(place) < consumer.end_offsets([place])[place] and time.monotonic() < deadline:
        found += [record.value for records in consumer.poll(500).values() for record in records]
    consumer.close()
    assert sorted(set(found)) == sorted({payload for payload, _ in bad})


class Killed(Exception):
    """Stands for the death of the publishing process."""


KILLS = 20


def test_job_and_publisher_killed_at_random_points_give_the_oracles_rows(
    bus: RowsBus, warehouse: DuckdbWarehouse, environment: FlinkEnvironment, tmp_path: Path
) -> None:
    random = np.random.default_rng(4)
    samples = small_fleet(pods=3, hours=10, seed=9)
    sent = [samples[place] for place in random.permutation(len(samples))]
    sent += [samples[place] for place in random.integers(0, len(samples), len(samples) // 10)]
    pieces = [piece.tolist() for piece in np.array_split(np.arange(len(sent)), KILLS)]
    started: list[FlinkProcess] = []
    kills = crashes = 0

    def process_of(token: str) -> FlinkProcess:
        started.append(FlinkProcess(environment, token, tmp_path / "flink.log"))
        return started[-1]

    def crash_point(_name: str) -> None:
        nonlocal crashes
        if crashes < kills and random.random() < 0.3:
            crashes += 1
            raise Killed

    def kill() -> None:
        os.killpg(started[-1].pid, signal.SIGKILL)

    intake, state = intake_of(bus), FlinkState(tmp_path / "flink")
    for number, piece in enumerate(pieces):
        assert intake.take(body_of([sent[place] for place in piece]), Version.V2).status == 204
        rollup = rollup_of(bus, warehouse, tmp_path / "flink", process_of, crash_point=crash_point)
        starting = threading.Timer(float(random.uniform(0.2, 6.0)), kill)
        if number % 5 == 4:
            starting.start()
        try:
            rollup.start()
            # By checkpoints, so that a slow machine kills at the same stages as a fast one.
            last = newest_number(state) + int(random.integers(0, 5))
            deadline = time.monotonic() + SETTLE_SECONDS
            while newest_number(state) < last and time.monotonic() < deadline:
                if rollup.step() is None:
                    time.sleep(0.02)
            time.sleep(float(random.uniform(0, 0.4)))  # anywhere between two checkpoints
            kill()
        except Unavailable:
            assert starting.finished.is_set()
        except Killed:
            kill()
        starting.cancel()
        kills += 1
    running = rollup_of(bus, warehouse, tmp_path / "flink", process_of)
    running.start()
    drain(running)
    running.stop()
    print(f"{kills} kills of the job, {crashes} of the publisher, {len(started)} starts")
    assert kills >= KILLS
    assert_oracle(warehouse, samples)


def test_job_outlives_a_killed_broker(
    bus: RowsBus, kafka: Kafka, warehouse: DuckdbWarehouse, shared: SharedProcess, tmp_path: Path
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


def newest_number(state: FlinkState) -> int:
    """Number of the newest whole checkpoint."""
    newest = state.newest()
    return 0 if newest is None else newest.number


def assert_oracle(warehouse: DuckdbWarehouse, samples: list[Sample]) -> None:
    """Stored rows of both tables and all levels are those of a dictionary."""
    for table in USAGE_TABLES:
        assert stored_rows(warehouse, table) == expected_rows(samples, table)
