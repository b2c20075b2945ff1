"""What the job on a real Flink can't read is kept and counted, and the rest counts."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from fleet.errors import Corrupt
from pipeline.records.rows import unpack
from pipeline.remote_write.decode import Version
from pipeline.warehouse.warehouse_duckdb import DuckdbWarehouse
from tests.engines.flink_parts import (
    SharedProcess,
    TopicBus,
    assert_oracle,
    drain,
    rollup_of,
)
from tests.pipeline.builders import body_of, intake_of, small_fleet

pytestmark = pytest.mark.engines


def test_what_cannot_be_read_goes_to_the_dead_letter_topic_and_the_rest_counts(
    bus: TopicBus, warehouse: DuckdbWarehouse, shared: SharedProcess, tmp_path: Path
) -> None:
    samples = small_fleet(pods=1, hours=2)
    written = Written()
    intake_of(written).take(body_of(samples), Version.V2)
    (good,) = written.payloads
    bad = [
        (b"no record", b"it does not begin with GTR2"),
        (b"", b"it does not begin with GTR2"),
        (good[:-1], b"its blocks are no LZ4"),
        (good[:40], b"it is cut"),
        (changed(good, 4, b"\xff\xff"), b"it is of schema version 65535"),
        (changed(good, 32, b"\x63"), b"it has a section of kind 99"),
        (changed(good, 24, bytes(7) + b"\x7f"), b"bytes: more than"),
        (changed(good, good.index(b"\x28\xb5\x2f\xfd"), bytes(8)), b"its identities are no zstd"),
    ]
    for payload, _ in bad:
        with pytest.raises(Corrupt):
            unpack(payload)
        send(bus, payload)
    intake_of(bus).take(body_of(samples), Version.V2)
    running = rollup_of(bus, warehouse, tmp_path / "flink", lambda _token: shared)
    running.start()
    assert drain(running) == len(bad)
    running.stop()
    assert_oracle(warehouse, samples)
    found = dead_letters_of(bus)
    assert sorted(value for value, _ in found) == sorted(payload for payload, _ in bad)
    reasons = [(value, headers["reason"], headers["source-offset"]) for value, headers in found]
    for number, (payload, reason) in enumerate(bad):
        assert any(value == payload and reason in said and at == str(number).encode() for value, said, at in reasons)


@dataclass
class Written:
    """A bus that keeps what the intake would send."""

    payloads: list[bytes] = field(default_factory=list)
    lanes = 1

    def append_all(self, payloads: Any) -> None:
        self.payloads += payloads.values()


def changed(record: bytes, at: int, to: bytes) -> bytes:
    """A record with other bytes in one place."""
    return record[:at] + to + record[at + len(to) :]


def send(bus: TopicBus, payload: bytes) -> None:
    """Puts one record on the topic's first partition as somebody else would."""
    producer = KafkaProducer(bootstrap_servers=bus.settings.servers[0])
    producer.send(bus.settings.topic, payload, partition=0)
    producer.close()


def dead_letters_of(bus: TopicBus) -> list[tuple[bytes, dict[str, bytes]]]:
    """All dead letters of a topic with their headers."""
    place = TopicPartition(f"{bus.settings.topic}.dead", 0)
    consumer = KafkaConsumer(bootstrap_servers=bus.settings.servers[0])
    consumer.assign([place])
    consumer.seek_to_beginning(place)
    found: list[tuple[bytes, dict[str, bytes]]] = []
    deadline = time.monotonic() + 60
    while consumer.position(place) < consumer.end_offsets([place])[place] and time.monotonic() < deadline:
        for records in consumer.poll(500).values():
            found += [(record.value, dict(record.headers)) for record in records]
    consumer.close()
    return found
