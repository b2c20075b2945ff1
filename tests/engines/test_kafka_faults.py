"""Brokers, writers and rollups that die: nothing acknowledged is missing, nothing is twice in the warehouse."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing
from datetime import UTC, datetime

import numpy as np
import pytest
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.structs import OffsetAndMetadata

from fleet.data_folder import DataFolder, open_data_folder
from fleet.errors import Unavailable
from gputide.operate.backup_create import create_backup, restore_backup
from pipeline.bus.bus_kafka import KafkaLane, KafkaWriter
from pipeline.bus.kafka_topic import open_topic
from pipeline.receiver.record_writer import RecordWriter
from pipeline.remote_write.decode import Version
from pipeline.rollup.rollup_duckdb import EmbeddedRollup
from pipeline.warehouse.warehouse_duckdb import DuckdbWarehouse
from tests.crashes import Fuse, Killed
from tests.engines.kafka_parts import everything_in, kafka_settings, roll_up_topic
from tests.pipeline.builders import USAGE_TABLES, body_of, expected_rows, intake_of, read_all, small_fleet, stored_rows
from tests.waiting import until

pytestmark = pytest.mark.engines

DEADLINE_SECONDS = 90


def bodies_of(samples, count):
    """The samples in `count` bodies, in order."""
    return [body_of([samples[place] for place in piece]) for piece in np.array_split(np.arange(len(samples)), count)]


def sent_until_taken(intake, body, refusals):
    """What a sender does: the same body again and again until it is acknowledged."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while (answer := intake.take(body, Version.V2)).status != 204:
        assert answer.status in (429, 503), answer
        assert answer.retry_after_seconds is not None
        assert time.monotonic() < deadline, answer.text
        refusals.append(answer.status)
        time.sleep(0.05)


def check(settings, warehouse, samples):
    """The warehouse holds the oracle's rows, once all of the topic is rolled up."""
    assert roll_up_topic(settings, warehouse) == 0
    for table in USAGE_TABLES:
        assert stored_rows(warehouse, table) == expected_rows(samples, table)


def test_stopped_broker_is_said_in_time_to_writer_and_reader_and_both_go_on_when_it_is_back(kafka, fresh_topic):
    settings = kafka_settings(kafka, fresh_topic(), delivery_seconds=2, request_seconds=2)
    writer = KafkaWriter(settings)
    writer.append_all({0: b"before"})
    lane = KafkaLane(settings, writer.topic, 0)
    at = read_all(lane).end
    kafka.stop()
    started = time.monotonic()
    with pytest.raises(Unavailable, match=f"cannot append to topic {settings.topic}"):
        writer.append_all({0: b"meanwhile"})
    assert time.monotonic() - started < 15
    threads = threading.active_count()
    for _ in range(3):
        with pytest.raises(Unavailable):
            writer.append_all({0: b"meanwhile"})
    assert threading.active_count() <= threads
    assert intake_of(writer).take(body_of(small_fleet(pods=1, hours=1)), Version.V2).status == 503
    with pytest.raises(Unavailable, match="cannot open topic"):
        KafkaWriter(settings)
    with pytest.raises(Unavailable, match=f"partition 0 of topic {settings.topic}"):
        lane.read(at, bytes_max=100)
    kafka.start()
    writer.append_all({0: b"after"})
    writer.close()
    assert read_all(lane, at).records[-1] == b"after"
    lane.commit(at)
    lane.close()
    found = everything_in(settings)
    assert found[0] == b"before"
    assert found[-1] == b"after"


def test_broker_killed_and_restarted_under_load_keeps_all_and_counts_once(kafka, fresh_topic, tmp_path):
    settings = kafka_settings(kafka, fresh_topic(partitions=2), delivery_seconds=4)
    samples = small_fleet(pods=2, hours=12)
    bodies = bodies_of(samples, 60)
    writer, refusals, taken = KafkaWriter(settings), list[int](), list[int]()
    records = RecordWriter(writer, linger_seconds=0.05, appends_at_once=2)
    intakes = [intake_of(writer, records=records) for _ in range(3)]

    def work(place):
        for body in bodies[place::3]:
            sent_until_taken(intakes[place], body, refusals)
            taken.append(1)
            time.sleep(0.1)

    threads = [threading.Thread(target=work, args=(place,)) for place in range(3)]
    for thread in threads:
        thread.start()

    def wait_until_taken(enough: int) -> None:
        until(lambda: len(taken) >= enough, seconds_max=DEADLINE_SECONDS)

    for enough in (15, 30):
        wait_until_taken(enough)
        kafka.kill()
        kafka.start()
    for thread in threads:
        thread.join()
    writer.close()
    assert len(taken) == 60
    assert len(everything_in(settings)) < 100  # 120, if every body had one of its own on each partition
    check(settings, DuckdbWarehouse(tmp_path / "warehouse"), samples)


def test_broker_that_holds_its_breath_is_waited_for_or_refused_and_counted_once(kafka, fresh_topic, tmp_path):
    settings = kafka_settings(kafka, fresh_topic(), delivery_seconds=2, request_seconds=2)
    samples = small_fleet(pods=1, hours=6)
    bodies = bodies_of(samples, 6)
    writer, refusals = KafkaWriter(settings), list[int]()
    intake = intake_of(writer)
    sent_until_taken(intake, bodies[0], refusals)
    kafka.pause()
    waker = threading.Timer(4.0, kafka.resume)
    waker.start()
    for body in bodies[1:]:
        sent_until_taken(intake, body, refusals)
    waker.join()
    writer.close()
    assert 503 in refusals
    check(settings, DuckdbWarehouse(tmp_path / "warehouse"), samples)


def test_lag_beyond_the_bound_is_429_and_over_once_the_rollup_has_caught_up(kafka, fresh_topic, tmp_path):
    settings = kafka_settings(kafka, fresh_topic(), lag_bytes_max=8_000)
    samples = small_fleet(pods=1, hours=24)
    writer = KafkaWriter(settings, refresh_seconds=0)
    intake, warehouse = intake_of(writer), DuckdbWarehouse(tmp_path / "warehouse")
    statuses = []
    for body in bodies_of(samples, 60):
        statuses.append(intake.take(body, Version.V2).status)
        if statuses[-1] == 429:
            roll_up_topic(settings, warehouse)
            assert intake.take(body, Version.V2).status == 204
    writer.close()
    assert statuses.count(429) >= 2
    assert set(statuses) == {204, 429}
    check(settings, warehouse, samples)


def test_rollup_killed_at_any_moment_between_append_and_commit_counts_once(kafka, fresh_topic, tmp_path):
    settings = kafka_settings(kafka, fresh_topic())
    samples = small_fleet(pods=1, hours=6)
    writer = KafkaWriter(settings)
    for body in bodies_of(samples, 4):
        intake_of(writer).take(body, Version.V2)
    writer.close()
    topic = open_topic(settings, settings.topic, partitions=1)
    moments = 0
    while True:
        moments += 1
        fuse = Fuse(moments)
        # A group of its own each time: the topic is as no rollup had ever read it.
        fresh = settings.model_copy(update={"group": f"{settings.group}-{moments}"})
        lane = KafkaLane(fresh, topic, 0, crash_point=fuse)
        warehouse = DuckdbWarehouse(tmp_path / str(moments), crash_point=fuse)
        rollup = EmbeddedRollup([lane].copy, warehouse, chunk_bytes=1)
        try:
            while rollup.step() is not None:
                pass
            break
        except Killed:
            lane.close()
            warehouse.close()
        again = DuckdbWarehouse(tmp_path / str(moments))
        roll_up_topic(fresh, again)
        table = USAGE_TABLES[moments % 2]
        assert stored_rows(again, table, levels=[3600]) == expected_rows(samples, table, levels=[3600]), moments
        again.close()
    lane.close()
    assert moments > 10


def test_restored_warehouse_misses_nothing_that_waited_once_the_group_is_set_to_the_beginning(
    kafka, fresh_topic, tmp_path
):
    settings = kafka_settings(kafka, fresh_topic())
    samples = small_fleet(pods=1, hours=6)
    bodies = bodies_of(samples, 3)
    folder, again = open_data_folder(tmp_path / "data", create=True), DataFolder(path=tmp_path / "again")
    writer = KafkaWriter(settings)
    for number, body in enumerate(bodies):
        intake_of(writer).take(body, Version.V2)
        if number != 1:  # the second waits on the topic while the back-up is made
            with closing(DuckdbWarehouse(folder.warehouse)) as warehouse:
                roll_up_topic(settings, warehouse)
        else:
            create_backup(folder, folder.warehouse, tmp_path / "backup", datetime.now(UTC))
    writer.close()
    restore_backup(tmp_path / "backup", again.path, again.warehouse)
    consumer = KafkaConsumer(bootstrap_servers=kafka.bootstrap, group_id=settings.group)
    consumer.commit({TopicPartition(settings.topic, 0): OffsetAndMetadata(0, "", -1)})
    consumer.close()
    with closing(DuckdbWarehouse(again.warehouse)) as warehouse:
        check(settings, warehouse, samples)


WRITER = """
import sys
from fleet.settings.pipeline import KafkaSettings
from pipeline.bus.bus_kafka import KafkaWriter
from pipeline.receiver.record_writer import RecordWriter
from pipeline.remote_write.decode import Version
from tests.engines.test_kafka_faults import bodies_of
from tests.pipeline.builders import intake_of, small_fleet
intake = intake_of(KafkaWriter(KafkaSettings.model_validate_json(sys.argv[1])))
for number, body in enumerate(bodies_of(small_fleet(pods=2, hours=24), 400)):
    assert intake.take(body, Version.V2).status == 204
    print(number, flush=True)
"""


@pytest.mark.parametrize("acknowledged", [1, 37])
def test_writer_killed_between_send_and_acknowledgement_loses_nothing_acknowledged(
    kafka, fresh_topic, tmp_path, repository, acknowledged
):
    settings = kafka_settings(kafka, fresh_topic(partitions=2))
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, settings.model_dump_json()], cwd=repository, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(repository)},
    )  # fmt: skip
    assert writer.stdout is not None
    taken = [int(next(writer.stdout)) for _ in range(acknowledged)]
    writer.send_signal(signal.SIGKILL)
    taken += [int(line) for line in writer.stdout if line.endswith("\n")]  # the last line may be cut
    writer.wait()
    samples = small_fleet(pods=2, hours=24)
    pieces = np.array_split(np.arange(len(samples)), 400)
    assert acknowledged <= len(taken) < 400
    records = len(everything_in(settings))
    assert records >= len(taken)
    # The sender sends everything again that it has no answer for, among it the body that was under way.
    again = KafkaWriter(settings)
    for body in bodies_of(samples, 400)[len(taken) : len(taken) + 20]:
        assert intake_of(again).take(body, Version.V2).status == 204
    again.close()
    sent = [samples[place] for piece in pieces[: len(taken) + 20] for place in piece]
    check(settings, DuckdbWarehouse(tmp_path / "warehouse"), sent)


def test_records_that_retention_took_are_passed_over_and_said(kafka, fresh_topic, capsys):
    settings = kafka_settings(kafka, fresh_topic())
    writer = KafkaWriter(settings)
    lane = KafkaLane(settings, writer.topic, 0, writer=writer)
    ends = [lane.append(b"%d" % number) for number in range(4)]
    lane.commit(ends[0])
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    admin.delete_records({TopicPartition(settings.topic, 0): ends[2]})
    admin.close()
    chunk = read_all(lane, ends[0])
    assert (chunk.start, chunk.records) == (ends[2], (b"3",))
    assert "retention dropped records that were not rolled up" in "".join(capsys.readouterr())
    lane.close()
    writer.close()


def test_read_that_broke_off_between_two_answers_gives_all_records_when_it_comes_again(kafka, fresh_topic, monkeypatch):
    settings = kafka_settings(kafka, fresh_topic(), request_seconds=2)
    writer = KafkaWriter(settings)
    payloads = [b"%03d" % number + bytes(900_000) for number in range(60)]  # more than any answer of a broker holds
    for payload in payloads:
        writer.append_all({0: payload})
    writer.close()
    lane = KafkaLane(settings, writer.topic, 0)
    fetch = lane._fetch

    def fetch_and_pause():
        place = fetch()
        kafka.pause()
        return place

    with monkeypatch.context() as broken:
        broken.setattr(lane, "_fetch", fetch_and_pause)
        with pytest.raises(Unavailable):
            lane.read(0, bytes_max=1 << 30)
    kafka.resume()
    chunk = read_all(lane)
    assert chunk.start == 0
    assert [record[:3] for record in chunk.records] == [payload[:3] for payload in payloads]
    lane.close()
