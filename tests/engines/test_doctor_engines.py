"""The doctor looks at a real broker and a real Hive: names what is wrong there, is silent else, and makes nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from kafka import KafkaAdminClient
from kafka.admin import (
    ACL,
    ACLOperation,
    ACLPermissionType,
    NewTopic,
    ResourcePattern,
    ResourceType,
)

from fleet.settings.pipeline import BusSettings, HiveSettings, WarehouseKind, WarehouseSettings
from fleet.settings.settings import Settings
from gputide.doctor.checks import run_checks
from gputide.doctor.engines import flink_checks, hive_checks, kafka_checks
from gputide.doctor.finding import Diagnosis, State
from gputide.operate.engines import free_port
from pipeline.bus.bus_kafka import KafkaWriter
from pipeline.bus.kafka_survey import survey_topic
from pipeline.warehouse.catalogue_hive import HiveCatalogue
from pipeline.warehouse.hive_session import HiveSession
from tests.engines.kafka_parts import kafka_settings
from tests.engines.running import Hive, Kafka

pytestmark = pytest.mark.engines


def codes(found: tuple[Diagnosis, ...]) -> set[str]:
    return {one.kind.code for one in found if one.kind is not None}


def look_at_topic(kafka: Kafka, topic: str, **changes: Any) -> tuple[Diagnosis, ...]:
    return run_checks(kafka_checks(Settings(kafka=kafka_settings(kafka, topic, **changes))))


def test_sound_topic_has_no_finding_and_each_weak_setting_has_one(
    kafka: Kafka, fresh_topic: Callable[..., str]
) -> None:
    sound = {
        "retention.ms": str(30 * 86_400_000), "retention.bytes": "-1", "max.message.bytes": str(4 << 20),
        "unclean.leader.election.enable": "false",
    }  # fmt: skip
    found = look_at_topic(kafka, fresh_topic(**sound))
    assert codes(found) == set()
    assert [one.state for one in found] == [State.OK]
    for name, value in (("retention.ms", "3600000"), ("max.message.bytes", "2048"),
                        ("unclean.leader.election.enable", "true")):  # fmt: skip
        weak = look_at_topic(kafka, fresh_topic(**{**sound, name: value}))
        assert codes(weak) == {"kafka-topic-unsafe"}, name
        (unsafe,) = weak
        assert str(unsafe.said).startswith(f"{name}={value}")
        assert f"--add-config {name}=" in unsafe.mend
    assert codes(look_at_topic(kafka, fresh_topic(**sound), partitions=4)) == {"kafka-partitions-few"}


def test_missing_topic_is_named_and_not_made(kafka: Kafka) -> None:
    found = look_at_topic(kafka, "doctor-none", create_topic=True)
    assert codes(found) == {"kafka-topic-missing"}
    assert survey_topic(kafka_settings(kafka, "doctor-none"), "doctor-none").partitions is None


def test_lag_and_rights_are_told_by_the_broker(kafka: Kafka, fresh_topic: Callable[..., str]) -> None:
    topic = fresh_topic(**{"retention.ms": str(30 * 86_400_000), "max.message.bytes": str(4 << 20)})
    writer = KafkaWriter(kafka_settings(kafka, topic))
    writer.append_all({0: b"record"})
    writer.close()
    assert "kafka-group-silent" in codes(look_at_topic(kafka, topic))
    survey = survey_topic(kafka_settings(kafka, topic), topic)
    assert (survey.ends, survey.committed) == ({0: 1}, {})
    assert survey.group_operations is None or "READ" in survey.group_operations


def test_right_that_is_missing_is_named_with_the_command(own_kafka: Callable[[dict[str, str]], Kafka]) -> None:
    broker = own_kafka(
        {
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "allow.everyone.if.no.acl.found": "true",
        }
    )
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    admin.create_topics([NewTopic("rights", 1, 1, topic_configs={"max.message.bytes": str(4 << 20)})])
    admin.create_acls(
        [
            ACL(
                "User:ANONYMOUS", "*", operation, ACLPermissionType.ALLOW, ResourcePattern(ResourceType.TOPIC, "rights")
            )
            for operation in (ACLOperation.READ, ACLOperation.DESCRIBE, ACLOperation.DESCRIBE_CONFIGS)
        ]
    )
    admin.close()
    deadline = time.monotonic() + 30.0
    # The broker answers before it goes by the new rules.
    while not (
        found := [
            one
            for one in look_at_topic(broker, "rights")
            if one.kind is not None and one.kind.code == "kafka-right-missing"
        ]
    ):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    (missing,) = found
    assert str(missing.said).startswith("WRITE on topic rights, for the receiver")
    assert "--operation WRITE --topic rights" in missing.mend
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    admin.create_acls(
        [
            ACL(
                "User:nobody-else",
                "*",
                ACLOperation.READ,
                ACLPermissionType.ALLOW,
                ResourcePattern(ResourceType.TOPIC, "r2"),
            )
        ]
    )
    admin.close()
    deadline = time.monotonic() + 30.0
    while (said := codes(look_at_topic(broker, "r2"))) != {"kafka-refuses"}:
        assert time.monotonic() < deadline, said
        time.sleep(0.2)


def test_broker_that_is_away_is_unreachable() -> None:
    settings = Settings.model_validate({"kafka": {"servers": [f"127.0.0.1:{free_port()}"], "request_seconds": 2}})
    (found,) = run_checks(kafka_checks(settings))
    assert found.kind is not None
    assert (found.kind.code, found.kind.is_unreachable) == ("kafka-unreachable", True)


def test_hive_tables_are_compared_and_never_made(hive: Hive, fresh_database: str) -> None:
    def look() -> tuple[Diagnosis, ...]:
        return run_checks(hive_checks(settings))

    place = HiveSettings(host=hive.host, port=hive.port, database=fresh_database, location=f"file:{hive.files}/doctor")
    settings = Settings(hive=place, warehouse=WarehouseSettings(kind=WarehouseKind.HIVE))
    assert "hive-database-missing" in codes(look())
    session = HiveSession(place)
    assert fresh_database not in {row[0] for row in session.rows("SHOW DATABASES")}
    catalogue = HiveCatalogue(session, database=fresh_database, location=f"file:{hive.files}/doctor")
    catalogue.prepare()
    sound = look()
    assert not codes(sound) & {"hive-database-missing", "hive-table-altered", "hive-table-older"}
    session.execute(f"ALTER TABLE {fresh_database}.card_usage SET LOCATION 'file:{hive.files}/elsewhere'")
    altered = [one for one in look() if one.kind is not None and one.kind.code == "hive-table-altered"]
    assert [one.subject for one in altered] == [f"{fresh_database}.card_usage"]
    session.close()


def test_hive_and_flink_that_are_away_are_unreachable() -> None:
    port = free_port()
    settings = Settings.model_validate(
        {
            "hive": {"port": port, "request_seconds": 2},
            "flink": {"rest": f"http://127.0.0.1:{port}"},
            "bus": BusSettings().model_dump(),
        }
    )
    assert codes(run_checks(hive_checks(settings))) == {"hive-unreachable"}
    assert codes(run_checks(flink_checks(settings))) == {"flink-unreachable", "flink-bus"}
