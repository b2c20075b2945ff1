"""What the job on a real Flink can't read is kept and counted, to the single row, and the rest counts."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from fleet.schema import INVENTORY_NODES
from pipeline.flink.sql_words import DEAD_SUFFIX
from pipeline.records.json_rows import pack_rows
from pipeline.remote_write.decode import Version
from pipeline.warehouse.warehouse_duckdb import DuckdbWarehouse
from tests.engines.flink_parts import (
    RowsBus,
    SharedProcess,
    assert_oracle,
    drain,
    rollup_of,
)
from tests.pipeline.builders import body_of, intake_of, small_fleet

pytestmark = pytest.mark.engines


def test_what_cannot_be_read_goes_to_the_dead_letter_topic_and_the_rest_counts(
    bus: RowsBus, warehouse: DuckdbWarehouse, shared: SharedProcess, tmp_path: Path
) -> None:
    good = pack_rows((), b"\0" * 16)
    bad = [
        (b"no JSON", [("schema", b"1")], b"it does not begin as"),
        (b"\xff\xfe", [("schema", b"1")], b"it does not begin as"),
        (good[:-1], [("schema", b"1")], b"it is no JSON object"),
        (good, [("schema", b"2")], b"its header"),
        (good, [], b"its header"),
        (b"[1]", [("schema", b"1")], b"it does not begin as"),
    ]
    for payload, headers, _ in bad:
        send(bus, payload, headers)
    samples = small_fleet(pods=1, hours=2)
    intake_of(bus).take(body_of(samples), Version.V2)
    running = rollup_of(bus, warehouse, tmp_path / "flink", lambda _token: shared)
    running.start()
    assert drain(running) == len(bad)
    running.stop()
    assert_oracle(warehouse, samples)
    found = dead_letters_of(bus)
    assert sorted(value for value, _ in found) == sorted(payload for payload, _, _ in bad)
    reasons = [(value, headers["reason"], headers["source-offset"]) for value, headers in found]
    for number, (payload, _, reason) in enumerate(bad):
        assert any(value == payload and reason in said and at == str(number).encode() for value, said, at in reasons)


@dataclass
class Written:
    """A bus that keeps what the intake would send."""

    payloads: list[bytes] = field(default_factory=list)
    lanes = 1
    pack_record = staticmethod(pack_rows)

    def append_all(self, payloads: Any) -> None:
        self.payloads += payloads.values()


def test_damaged_rows_of_a_readable_record_are_dead_letters_and_its_others_count_once(
    bus: RowsBus, warehouse: DuckdbWarehouse, shared: SharedProcess, tmp_path: Path
) -> None:
    written, samples = Written(), small_fleet(pods=2, hours=2)
    intake_of(written).take(body_of(samples), Version.V2)
    (payload,) = written.payloads
    record = json.loads(payload)
    damages: list[dict[str, Any]] = [
        {"hash": None}, {"hash": "nine"}, {"ts_ms": None}, {"ts_ms": "noon"}, {"ts_ms": {}}, {"cluster": None},
        {"card": None},
    ]  # fmt: skip
    whole = record["pod_usage"][0]
    damaged = [{**whole, **damage} for damage in damages]
    without = [{name: value for name, value in whole.items() if name != left_out} for left_out in ("hash", "ts_ms")]
    sighting = {**dict.fromkeys(INVENTORY_NODES.keys, "n"), "hash": 5, "first_seen": 1, "last_seen": None}
    record["pod_usage"] = [*damaged, *record["pod_usage"], *without]
    record["inventory_nodes"] = [sighting]
    expected = len(damaged) + len(without) + 1
    send(bus, json.dumps(record, separators=(",", ":")).encode(), [("schema", b"1")])
    running = rollup_of(bus, warehouse, tmp_path / "flink", lambda _token: shared)
    running.start()
    counted = drain(running)
    running.stop()
    assert_oracle(warehouse, samples)
    assert counted == expected
    found = dead_letters_of(bus)
    assert len(found) == expected
    by_reason = Counter(headers["reason"].decode().rpartition(": ")[2] for _, headers in found)
    assert by_reason == {"hash": 3, "ts_ms": 4, "cluster": 1, "card": 1, "last_seen": 1}
    assert {headers["source-offset"] for _, headers in found} == {b"0"}
    kept = next(json.loads(value) for value, headers in found if headers["reason"].endswith(b": ts_ms"))
    assert (kept["hash"], kept["ts_ms"], kept["pod"]) == (whole["hash"], None, whole["pod"])


def send(bus: RowsBus, payload: bytes, headers: list[tuple[str, bytes]]) -> None:
    """Puts one record on the topic's first partition as somebody else would."""
    producer = KafkaProducer(bootstrap_servers=bus.settings.servers[0])
    producer.send(bus.settings.topic, payload, headers=headers, partition=0)
    producer.close()


def dead_letters_of(bus: RowsBus) -> list[tuple[bytes, dict[str, bytes]]]:
    """All dead letters of a topic with their headers."""
    place = TopicPartition(bus.settings.topic + DEAD_SUFFIX, 0)
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
