"""An adapter's topic becomes the rows that its Prometheus has sent, through the bridge and through the program."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from fleet.errors import Unavailable
from pipeline.bus.bridge_kafka import AdapterBridge
from pipeline.bus.dead_letters_kafka import KafkaDeadLetters
from pipeline.warehouse.warehouse_duckdb import DuckdbWarehouse
from tests.engines.kafka_parts import kafka_settings
from tests.pipeline.builders import (
    USAGE_TABLES,
    expected_rows,
    file_bus,
    intake_of,
    labels_of,
    roll_up,
    small_fleet,
    stored_rows,
)
from tests.scraping import OWN_PORT, scraped
from tests.waiting import until

pytestmark = pytest.mark.engines


def written_by_an_adapter(settings, samples, bad=()):
    producer = KafkaProducer(bootstrap_servers=list(settings.servers))
    for place, sample in enumerate(samples):
        labels = labels_of(sample)
        told = {"timestamp": sample.ts_ms / 1000, "value": repr(sample.value), "name": labels["__name__"]}
        producer.send(settings.topic, json.dumps({**told, "labels": labels}).encode(), key=b"%d" % (place % 7))
    for message in bad:
        producer.send(settings.topic, message)
    producer.flush(30)
    producer.close()


def bridge_of(settings, bus):
    letters = KafkaDeadLetters(settings, settings.topic)
    return AdapterBridge(settings, settings.topic, intake_of(bus), letters), letters


def never(_seconds):
    return False


def drained(bridge, messages):
    taken = 0
    for _ in range(100):
        taken += bridge.step(never)
        if taken >= messages:
            return
    raise AssertionError(f"{taken} of {messages} messages came")


def check(bus, folder, samples):
    warehouse = DuckdbWarehouse(folder / "warehouse")
    roll_up(bus, warehouse)
    for table in USAGE_TABLES:
        assert stored_rows(warehouse, table) == expected_rows(samples, table)


def test_samples_of_an_adapter_are_counted_once_and_bad_messages_are_dead_letters(kafka, fresh_topic, tmp_path):
    settings = kafka_settings(kafka, fresh_topic(partitions=3))
    samples = small_fleet(pods=2, hours=6)
    written_by_an_adapter(settings, samples, bad=[b"no JSON", b'{"labels":{}}'])
    bus = file_bus(tmp_path / "bus")
    bridge, letters = bridge_of(settings, bus)
    drained(bridge, len(samples) + 2)
    assert letters.count == bridge.counts["messages_unreadable"] == 2
    bridge.close()
    letters.close()
    check(bus, tmp_path, samples)
    consumer = KafkaConsumer(
        f"{settings.topic}.dead", bootstrap_servers=list(settings.servers), auto_offset_reset="earliest",
        consumer_timeout_ms=1500,
    )  # fmt: skip
    assert {record.value for record in consumer} == {b"no JSON", b'{"labels":{}}'}
    consumer.close()


def test_bridge_that_dies_before_its_commit_brings_the_same_again_and_it_counts_once(kafka, fresh_topic, tmp_path):
    settings = kafka_settings(kafka, fresh_topic())
    samples = small_fleet(pods=1, hours=3)
    written_by_an_adapter(settings, samples, bad=[b"no JSON"])

    class Unreachable:
        def put(self, payload, **_where):
            raise Unavailable("no broker")

    bus = file_bus(tmp_path / "bus")
    first = AdapterBridge(settings, settings.topic, intake_of(bus), Unreachable())
    with pytest.raises(Unavailable):
        drained(first, len(samples) + 1)
    first.close()
    assert bus.read(0, bytes_max=1 << 30) is not None
    again, letters = bridge_of(settings, bus)
    drained(again, 1)
    assert again.counts["messages"] == len(samples) + 1
    again.close()
    letters.close()
    check(bus, tmp_path, samples)


def test_bus_that_is_full_keeps_messages_on_their_topic(kafka, fresh_topic, tmp_path):
    settings = kafka_settings(kafka, fresh_topic())
    samples = small_fleet(pods=1, hours=3)
    written_by_an_adapter(settings, samples)
    full = file_bus(tmp_path / "full", bytes_max=10, segment_bytes=5)
    bridge, _ = bridge_of(settings, full)
    waits: list[float] = []

    def third_time(seconds):
        waits.append(seconds)
        return len(waits) == 3

    while not waits:
        assert bridge.step(third_time) == 0
    assert len(waits) == 3
    bus = file_bus(tmp_path / "bus")
    bridge.close()
    bridge, _ = bridge_of(settings, bus)
    drained(bridge, len(samples))
    bridge.close()
    check(bus, tmp_path, samples)


def test_program_takes_an_adapters_topic_and_stops_when_told(kafka, fresh_topic, tmp_path, repository):
    settings = kafka_settings(kafka, fresh_topic())
    samples = small_fleet(pods=1, hours=3)
    written_by_an_adapter(settings, samples)
    program = [sys.executable, "-m", "gputide.cli", "--data-dir", str(tmp_path / "data")]
    environ = {**os.environ, "PYTHONPATH": str(repository), "GPUTIDE_KAFKA__SERVERS": kafka.bootstrap}
    receiving = subprocess.Popen(
        [*program, *OWN_PORT, "run", "receive", "--from-kafka", settings.topic], cwd=repository, env=environ,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert receiving.stderr is not None
    url = receiving.stderr.readline().rpartition(" ")[2].strip()
    admin = KafkaConsumer(bootstrap_servers=kafka.bootstrap, group_id=f"gputide-rollup-of-{settings.topic}")
    place = TopicPartition(settings.topic, 0)
    while (admin.committed(place) or 0) < len(samples):
        assert receiving.poll() is None
    admin.close()
    until(lambda: scraped(url)["gputide_bridge_messages_total"] == len(samples))
    assert scraped(url)["gputide_bridge_messages_unreadable_total"] == 0
    assert scraped(url)["gputide_bridge_poll_seconds_count"] > 0
    receiving.send_signal(signal.SIGTERM)
    _, told = receiving.communicate(timeout=60)
    assert receiving.returncode == 0
    assert f"stopped; {len(samples)} messages taken, 0 of them could not be read" in told
    subprocess.run(
        [*program, "run", "rollup", "--drain"], cwd=repository, env=environ, check=True, stdout=subprocess.DEVNULL
    )
    warehouse = DuckdbWarehouse(tmp_path / "data" / "warehouse")
    for table in USAGE_TABLES:
        assert stored_rows(warehouse, table) == expected_rows(samples, table)
