"""Bounds of what goes to brokers at once: what can never fit is cut, what has no room now is refused for now."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import zstandard
from kafka.errors import MessageSizeTooLargeError
from kafka.producer.record_accumulator import RecordAccumulator
from kafka.producer.sender import Sender
from kafka.record import default_records

from fleet.schema import Measure
from fleet.settings.pipeline import KafkaSettings
from pipeline.bus import bus_kafka
from pipeline.bus.bus import BusFull, RecordTooLarge
from pipeline.bus.bus_kafka import KafkaWriter
from pipeline.bus.kafka_client import ZSTD_LEVEL, keep_compressors
from pipeline.bus.kafka_topic import Topic
from pipeline.bus.lanes import lane_records
from pipeline.receiver.record_writer import RecordWriter
from pipeline.records.rows import Section, pack, rows_of, unpack
from pipeline.remote_write.decode import Decoder, Version
from tests.pipeline.builders import START_MS, Sample, body_limits, body_of, series_table, small_fleet
from tests.waiting import until

SECONDS = 20.0
LANES = 3


def sections_of(samples: Sequence[Sample]) -> tuple[Section, ...]:
    return rows_of(Decoder(body_limits()).decode(body_of(list(samples)), Version.V2), series_table())[0]


SECTIONS = sections_of(small_fleet(pods=6, hours=4))


class Delivery:
    """What the driver promises of one record."""

    def __init__(self, offset: int, failure: Exception | None, may_end: threading.Event) -> None:
        self.offset = offset
        self._failure = failure
        self._may_end = may_end

    def get(self, timeout: float) -> Delivery:
        assert self._may_end.wait(timeout)
        if self._failure is not None:
            raise self._failure
        return self


class Brokers:
    """The driver's producer, and a topic whose limit may change under it."""

    def __init__(self) -> None:
        self.record_bytes_max = 1 << 20
        self.records: list[tuple[int, bytes]] = []
        self.refused = 0
        self.may_end = threading.Event()
        self.may_end.set()
        self._sender = self._accumulator = self

    def topic(self, *_: Any, **__: Any) -> Topic:
        return Topic(name="t", partitions=LANES, record_bytes_max=self.record_bytes_max, identity="0" * 32)

    def partitions_for(self, _topic: str) -> set[int]:
        return set(range(LANES))

    def append(self, place: Any, _now_ms: int, _key: None, payload: bytes, _headers: Any) -> tuple[Delivery]:
        if len(payload) > self.record_bytes_max:
            self.refused += 1
            return (Delivery(-1, MessageSizeTooLargeError("too large"), self.may_end),)
        self.records.append((place.partition, payload))
        return (Delivery(len(self.records), None, self.may_end),)

    def wakeup(self) -> None:
        pass

    def force_close(self) -> None:
        pass

    def close(self, timeout: float) -> None:
        pass


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    found = Brokers()
    monkeypatch.setattr(bus_kafka, "open_topic", found.topic)
    monkeypatch.setattr(bus_kafka, "open_client", lambda *_: found)
    return found


@pytest.fixture
def writer_of(brokers: Brokers) -> Callable[..., KafkaWriter]:
    return lambda **options: KafkaWriter(KafkaSettings(topic="t", **options))


def rows_in(brokers: Brokers) -> int:
    return sum(len(section.ts_ms) for _, record in brokers.records for section in unpack(record))


def test_records_of_all_lanes_that_can_never_be_under_way_together_become_smaller_ones(
    brokers: Brokers, writer_of: Callable[..., KafkaWriter]
) -> None:
    writer = writer_of(record_bytes_max=1500, pending_bytes_max=1500)
    assert RecordWriter(writer).write(SECTIONS, bytes(16), 10).appends > 1
    assert {lane for lane, _ in brokers.records} == set(range(LANES))
    assert rows_in(brokers) == sum(len(section.ts_ms) for section in SECTIONS)


def test_rows_that_are_one_record_per_lane_already_go_lane_by_lane_where_all_are_too_much(
    brokers: Brokers, writer_of: Callable[..., KafkaWriter]
) -> None:
    by_lane: dict[int, Sample] = {}
    for pod in range(20):
        sample = Sample(pod, Measure.DUTY_CYCLE, START_MS + 1, 0.5)
        (lane,) = lane_records(sections_of([sample]), LANES, bytes(16))
        by_lane.setdefault(lane, sample)
    assert len(by_lane) == LANES
    largest = max(len(pack(sections_of([sample]), bytes(16))) for sample in by_lane.values())
    writer = writer_of(record_bytes_max=largest, pending_bytes_max=largest)
    RecordWriter(writer).write(sections_of(list(by_lane.values())), bytes(16), 10)
    assert {lane for lane, _ in brokers.records} == set(range(LANES))
    assert rows_in(brokers) == LANES


def test_what_fits_alone_is_refused_only_while_others_are_under_way(
    brokers: Brokers, writer_of: Callable[..., KafkaWriter]
) -> None:
    writer = writer_of(record_bytes_max=1000, pending_bytes_max=1000)
    brokers.may_end.clear()
    first = threading.Thread(target=writer.append_all, args=({0: bytes(600)},))
    first.start()
    until(lambda: len(brokers.records) == 1, seconds_max=SECONDS)
    with pytest.raises(BusFull, match=r"600 of kafka\.pending_bytes_max=1000"):
        writer.append_all({1: bytes(600)})
    brokers.may_end.set()
    first.join()
    writer.append_all({1: bytes(600)})
    with pytest.raises(RecordTooLarge, match=r"1200 bytes.*kafka\.pending_bytes_max=1000"):
        writer.append_all({0: bytes(600), 1: bytes(600)})


def test_a_topic_whose_limit_was_lowered_meanwhile_gets_smaller_records_and_is_asked_once(
    brokers: Brokers, writer_of: Callable[..., KafkaWriter]
) -> None:
    writer = writer_of()
    brokers.record_bytes_max = 2000
    records = RecordWriter(writer)
    records.write(SECTIONS, bytes(16), 10)
    refused = brokers.refused
    assert 1 <= refused <= LANES
    brokers.records.clear()
    records.write(SECTIONS, bytes(16), 10)
    assert brokers.refused == refused
    assert rows_in(brokers) == sum(len(section.ts_ms) for section in SECTIONS)


def test_the_driver_has_the_parts_that_are_used_beside_its_api() -> None:
    """Who lifts the driver's upper bound in pyproject.toml looks at these."""
    named = list(inspect.signature(RecordAccumulator.append).parameters)
    assert named[:6] == ["self", "tp", "timestamp_ms", "key", "value", "headers"]
    assert callable(Sender.wakeup)
    records = default_records.DefaultRecordBatchBuilder(
        magic=2, compression_type=default_records.DefaultRecordBatch.CODEC_ZSTD, is_transactional=False, producer_id=-1,
        producer_epoch=-1, base_sequence=-1, batch_size=1 << 20,
    )  # fmt: skip
    keep_compressors()
    records.append(0, timestamp=0, key=None, value=b"x" * 10_000, headers=[])
    built = bytes(records.build())
    assert zstandard.compress(b"x" * 10_000, ZSTD_LEVEL)[:4] in built
    (read,) = default_records.DefaultRecordBatch(built)
    assert read.value == b"x" * 10_000
