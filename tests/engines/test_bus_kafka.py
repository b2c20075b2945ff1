"""A Kafka topic keeps the bus's contract and feeds the rollup, against a real broker."""

from __future__ import annotations

import os
import secrets
import subprocess
from functools import partial
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.admin import ConfigResource, ConfigResourceType, ScramMechanism, UserScramCredentialUpsertion

from fleet.errors import Corrupt, Misconfigured, Unavailable
from fleet.settings.pipeline import KafkaCompression, KafkaMechanism, KafkaSecurity
from gputide.operate.engines import free_port
from pipeline.bus.bus import RecordTooLarge
from pipeline.bus.bus_kafka import KafkaLane, KafkaWriter
from pipeline.bus.dead_letters_kafka import KafkaDeadLetters
from pipeline.bus.kafka_topic import open_topic
from pipeline.remote_write.decode import Version
from pipeline.warehouse.warehouse_duckdb import DuckdbWarehouse
from tests.contracts.bus import BusContract
from tests.contracts.rollup import RollupContract
from tests.engines.kafka_parts import everything_in, kafka_settings, roll_up_topic
from tests.pipeline.builders import (
    USAGE_TABLES,
    body_limits,
    body_of,
    expected_rows,
    intake_of,
    small_fleet,
    stored_rows,
)

pytestmark = pytest.mark.engines


def lane_of(settings):
    writer = KafkaWriter(settings, refresh_seconds=0)
    return KafkaLane(settings, writer.topic, 0, writer=writer), writer


class TestKafkaLane(BusContract):
    @pytest.fixture
    def kafka_opened(self):
        opened: list[Any] = []
        yield opened
        for part in opened:
            part.close()

    @pytest.fixture
    def settings(self, kafka, fresh_topic):
        return kafka_settings(kafka, fresh_topic())

    @pytest.fixture
    def bus(self, settings, kafka_opened):
        kafka_opened += lane_of(settings)
        return kafka_opened[-2]

    @pytest.fixture
    def reopened(self, bus, settings, kafka_opened):
        def reopen():
            bus.close()
            kafka_opened.extend(lane_of(settings))
            return kafka_opened[-2]

        return reopen

    @pytest.fixture
    def small_bus(self, kafka, fresh_topic, kafka_opened):
        kafka_opened += lane_of(kafka_settings(kafka, fresh_topic(), lag_bytes_max=4000))
        return kafka_opened[-2]


class TestRollupFromKafka(RollupContract):
    @pytest.fixture
    def settings(self, kafka, fresh_topic):
        return kafka_settings(kafka, fresh_topic(partitions=2))

    @pytest.fixture
    def bus(self, settings):
        writer = KafkaWriter(settings)
        yield writer
        writer.close()

    @pytest.fixture
    def warehouse(self, tmp_path):
        return DuckdbWarehouse(tmp_path / "warehouse")

    @pytest.fixture
    def rollup(self, settings, warehouse):
        return lambda: roll_up_topic(settings, warehouse, chunk_bytes=2000)


def test_missing_topic_is_made_with_settings_that_keep_records(kafka, fresh_topic):
    settings = kafka_settings(kafka, f"{fresh_topic()}-made", partitions=3, retention_seconds=3600)
    topic = open_topic(settings, settings.topic, partitions=settings.partitions)
    assert (topic.partitions, topic.warnings) == (3, ())
    assert topic.record_bytes_max == settings.record_bytes_max
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    found = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, settings.topic)], config_filter="all")
    admin.close()
    configs = {name: entry["value"] for name, entry in found["topic"][settings.topic].items()}
    assert configs["retention.ms"] == "3600000"
    assert configs["cleanup.policy"] == "delete"
    assert configs["unclean.leader.election.enable"] == "false"


def test_missing_topic_that_may_not_be_made_is_named(kafka, fresh_topic):
    settings = kafka_settings(kafka, f"{fresh_topic()}-absent", create_topic=False)
    with pytest.raises(Misconfigured, match=r"cannot find topic .*-absent.*kafka\.create_topic"):
        KafkaWriter(settings)


def test_topic_that_would_drop_unread_records_is_refused(kafka, fresh_topic):
    settings = kafka_settings(kafka, fresh_topic(**{"cleanup.policy": "compact"}))
    with pytest.raises(Misconfigured, match=r"cleanup\.policy=compact"):
        KafkaWriter(settings)


def test_topic_that_keeps_less_than_asked_for_is_named_with_the_difference(kafka, fresh_topic):
    configs = {"retention.ms": "60000", "retention.bytes": "5000000", "max.message.bytes": "100000"}
    settings = kafka_settings(kafka, fresh_topic(**configs))
    warnings = open_topic(settings, settings.topic, partitions=1).warnings
    named = [warning.partition("=")[0] for warning in warnings]
    assert named == ["retention.ms", "retention.bytes", "max.message.bytes"]
    assert "retention.ms=60000" in warnings[0]
    assert "kafka.retention_seconds=604800" in warnings[0]


def test_topic_that_is_made_anew_is_another_source(kafka, fresh_topic):
    settings = kafka_settings(kafka, fresh_topic())
    first = open_topic(settings, settings.topic, partitions=1)
    assert open_topic(settings, settings.topic, partitions=1).source(0) == first.source(0)
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    admin.delete_topics([settings.topic])
    admin.close()
    second = None
    for _ in range(50):  # a deletion takes a moment to be known
        second = open_topic(settings, settings.topic, partitions=1)
        if second.source(0) != first.source(0):
            break
    assert second is not None
    assert second.source(0) != first.source(0)


def test_record_larger_than_the_topic_takes_is_refused_with_limit_and_setting(kafka, fresh_topic):
    settings = kafka_settings(kafka, fresh_topic(**{"max.message.bytes": "50000"}))
    writer = KafkaWriter(settings)
    with pytest.raises(Corrupt, match=r"60000 bytes.*kafka\.record_bytes_max=1048576.*max\.message\.bytes"):
        writer.append_all({0: os.urandom(60_000)})
    writer.append_all({0: os.urandom(writer.topic.record_bytes_max)})
    # Rows of a body can go in smaller ones.
    intake = intake_of(writer, limits=body_limits(1 << 24))
    assert intake.take(body_of(small_fleet(pods=20, hours=30)), Version.V2).status == 204
    writer.close()
    assert len(everything_in(settings)) > 2


def test_topic_whose_limit_was_lowered_meanwhile_refuses_and_goes_on(kafka, fresh_topic):
    settings = kafka_settings(kafka, fresh_topic())
    writer = KafkaWriter(settings)
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, settings.topic, {"max.message.bytes": "50000"})])
    admin.close()
    with pytest.raises(Corrupt, match=r"larger than the topic's max\.message\.bytes"):
        writer.append_all({0: os.urandom(60_000)})
    writer.append_all({0: b"small"})
    writer.close()
    assert everything_in(settings) == [b"small"]


@pytest.mark.parametrize("compression", [KafkaCompression.GZIP, KafkaCompression.LZ4, KafkaCompression.ZSTD])
def test_compressed_records_come_back_as_they_were(kafka, fresh_topic, compression):
    settings = kafka_settings(kafka, fresh_topic(), compression=compression)
    writer = KafkaWriter(settings)
    payload = b'{"pod_usage":[]}' * 4000
    writer.append_all({0: payload})
    writer.close()
    assert everything_in(settings) == [payload]


def test_more_bytes_than_may_ever_be_under_way_are_too_large_and_nothing_of_them_is_kept(kafka, fresh_topic):
    settings = kafka_settings(kafka, fresh_topic(), pending_bytes_max=2000, record_bytes_max=1500)
    settings = settings.model_copy(update={"pending_bytes_max": 1000})
    writer = KafkaWriter(settings)
    with pytest.raises(RecordTooLarge, match=r"1200 bytes.*kafka\.pending_bytes_max=1000"):
        writer.append_all({0: b"x" * 1200})
    writer.append_all({0: b"y"})
    writer.close()
    assert everything_in(settings) == [b"y"]


def test_transactions_markers_leave_no_gap_and_aborted_records_are_not_read(kafka, fresh_topic):
    settings = kafka_settings(kafka, fresh_topic())
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap, transactional_id=settings.topic)
    producer.init_transactions()
    for payload in (b"kept", b"aborted", b"kept too"):
        producer.begin_transaction()
        producer.send(settings.topic, payload, partition=0, headers=[("schema", b"1")]).get(10)
        producer.abort_transaction() if payload == b"aborted" else producer.commit_transaction()
    producer.close()
    lane = KafkaLane(settings, open_topic(settings, settings.topic, partitions=1), 0)
    chunks, at = [], 0
    while (chunk := lane.read(at, bytes_max=4)) is not None:
        assert chunk.start == at
        chunks.append(chunk)
        at = chunk.end
    assert [record for chunk in chunks for record in chunk.records] == [b"kept", b"kept too"]
    assert at == 6
    lane.close()


def test_part_of_a_chunk_may_be_taken_and_the_rest_is_read_again(kafka, fresh_topic):
    lane, writer = lane_of(kafka_settings(kafka, fresh_topic()))
    for number in range(6):
        lane.append(b"%d" % number)
    chunk = lane.read(0, bytes_max=100)
    assert chunk.records == (b"0", b"1", b"2", b"3", b"4", b"5")
    assert lane.read(chunk.ends[1], bytes_max=2).records == (b"2", b"3")
    assert lane.read(chunk.ends[3], bytes_max=100).records == (b"4", b"5")
    assert lane.read(chunk.ends[0], bytes_max=1).records == (b"1",)
    assert lane.read(chunk.end, bytes_max=1) is None
    lane.close()
    writer.close()


def test_records_that_cannot_be_read_go_to_the_dead_topic_and_the_others_are_counted(kafka, fresh_topic, tmp_path):
    settings = kafka_settings(kafka, fresh_topic())
    samples = small_fleet(pods=1, hours=1)
    writer = KafkaWriter(settings)
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap)
    foreign = [
        (b"of the future", [("schema", b"999")]),
        (b"without a header", []),
        (None, [("schema", b"1")]),
        (b"GTR1 but damaged", [("schema", b"1")]),
    ]
    for value, headers in foreign:
        producer.send(settings.topic, value, key=b"key", partition=0, headers=headers).get(10)
    intake_of(writer).take(body_of(samples), Version.V2)
    producer.close()
    writer.close()
    letters = KafkaDeadLetters(settings, settings.topic)
    warehouse = DuckdbWarehouse(tmp_path / "warehouse")
    assert roll_up_topic(settings, warehouse, letters) == letters.count == 4
    letters.close()
    for table in USAGE_TABLES:
        assert stored_rows(warehouse, table) == expected_rows(samples, table)
    found = dead_letters_of(settings)
    assert {value for value, _ in found} == {value or b"" for value, _ in foreign}
    by_value = dict(found)
    assert by_value[b"of the future"]["source-offset"] == b"0"
    assert by_value[b"of the future"]["source-topic"] == settings.topic.encode()
    assert by_value[b"of the future"]["source-partition"] == b"0"
    assert b"999" in by_value[b"of the future"]["reason"]
    assert by_value[b"GTR1 but damaged"]["source-offset"] == b"3"


def dead_letters_of(settings):
    consumer = KafkaConsumer(
        f"{settings.topic}.dead", bootstrap_servers=list(settings.servers), auto_offset_reset="earliest",
        consumer_timeout_ms=1500,
    )  # fmt: skip
    found = [(record.value, dict(record.headers)) for record in consumer]
    consumer.close()
    return found


def test_tls_certificates_and_a_scram_password_open_a_broker_that_asks_for_them(own_kafka, tmp_path):
    broker = own_kafka({})
    port = free_port()
    made_certificates(tmp_path)
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    password = secrets.token_hex(16)
    admin.alter_user_scram_credentials(
        [UserScramCredentialUpsertion("gputide", ScramMechanism.SCRAM_SHA_512, password)]
    )
    admin.close()
    own, controller = broker.bootstrap.rpartition(":")[2], broker._port("controller_port")
    broker.stop()
    login = "org.apache.kafka.common.security.scram.ScramLoginModule"
    lines = [
        f"listeners=PLAINTEXT://127.0.0.1:{own},CONTROLLER://127.0.0.1:{controller},SAFE://127.0.0.1:{port}",
        f"advertised.listeners=PLAINTEXT://127.0.0.1:{own},SAFE://127.0.0.1:{port}",
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SAFE:SASL_SSL",
        "listener.name.safe.ssl.keystore.type=PEM",
        f"listener.name.safe.ssl.keystore.location={tmp_path / 'broker.pem'}",
        "listener.name.safe.ssl.truststore.type=PEM",
        f"listener.name.safe.ssl.truststore.location={tmp_path / 'ca.pem'}",
        "listener.name.safe.ssl.client.auth=required",
        "listener.name.safe.sasl.enabled.mechanisms=SCRAM-SHA-512",
        f"listener.name.safe.scram-sha-512.sasl.jaas.config={login} required;",
    ]
    (broker.folder / "kafka" / "extra.properties").write_text("\n".join(lines))
    broker.start()
    (tmp_path / "password").write_text(f"{password}\n")
    (tmp_path / "wrong").write_text("guessed\n")
    settings = kafka_settings(
        broker, "safe", servers=(f"localhost:{port}",), security=KafkaSecurity.SASL_SSL, ca_file=tmp_path / "ca.pem",
        certificate_file=tmp_path / "client.crt", key_file=tmp_path / "client.key",
        mechanism=KafkaMechanism.SCRAM_SHA_512, username="gputide", password_file=tmp_path / "password",
    )  # fmt: skip
    lane, writer = lane_of(settings)
    end = lane.append(b"safe")
    lane.commit(end)
    assert lane.read(0, bytes_max=100).records == (b"safe",)
    lane.close()
    writer.close()
    wrong = settings.model_copy(update={"password_file": tmp_path / "wrong", "request_seconds": 2})
    with pytest.raises((Misconfigured, Unavailable), match=r"kafka\.username") as refused:
        KafkaWriter(wrong)
    assert password not in str(refused.value)
    assert "guessed" not in str(refused.value)
    assert password not in repr(settings)
    with pytest.raises((Misconfigured, Unavailable), match="certificate verify failed"):
        KafkaWriter(settings.model_copy(update={"ca_file": None, "request_seconds": 2}))


def made_certificates(folder):
    """An authority, and a broker's and a client's certificate of it, as PEM files."""
    run = partial(subprocess.run, cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    new = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout"]
    run([*new, "ca.key", "-out", "ca.pem", "-subj", "/CN=authority"])
    for name in ("broker", "client"):
        run([
            *new, f"{name}.key", "-out", f"{name}.crt", "-subj", f"/CN={name}", "-CA", "ca.pem", "-CAkey", "ca.key",
            "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE",
        ])  # fmt: skip
    (folder / "broker.pem").write_text((folder / "broker.key").read_text() + (folder / "broker.crt").read_text())
