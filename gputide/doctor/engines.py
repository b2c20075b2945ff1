"""The areas kafka, flink and hive: whether the engines answer, let us in, and keep what they are given."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Any

from fleet.errors import Corrupt, Misconfigured, Unavailable
from fleet.schema import TABLES
from fleet.sentences import Sentence, sentence
from fleet.settings.pipeline import BusKind
from fleet.settings.settings import Settings
from gputide.doctor.finding import Area, Check, Diagnosis, Look, codes_of, finding, otherwise, some, unchecked
from pipeline.flink.rest import FlinkRest
from pipeline.warehouse import hive_ddl
from wire.tls import Tls

LAG_RECORDS_MAX = 100_000
"""At a record per request of a sender, more than a day of a small fleet, and minutes of a large one."""
CHECKPOINTS_MISSED_MAX = 5
FLINK_VERSION = "2.2"
"""What the job's connectors are made for (docs/engines.md)."""
JOB_NAME = "gputide run rollup"
_FAILING = ("RESTARTING", "FAILING")
_TOPIC_RIGHTS = {"READ": "rollup", "WRITE": "receiver", "DESCRIBE": "both", "DESCRIBE_CONFIGS": "look"}
_GROUP_RIGHTS = {"READ": "rollup", "DESCRIBE": "bound"}
"""What each right is for, `doctor.for.*`."""


def kafka_checks(settings: Settings) -> tuple[Check, ...]:
    """What is looked at of the brokers and the topic."""
    return (_check(Area.KAFKA, "topic", partial(_kafka, settings)),)


def flink_checks(settings: Settings) -> tuple[Check, ...]:
    """What is looked at of the JobManager."""
    return (_check(Area.FLINK, "job", partial(_flink, settings)),)


def hive_checks(settings: Settings) -> tuple[Check, ...]:
    """What is looked at of HiveServer2 and its metastore; its first query may take long."""
    return (_check(Area.HIVE, "tables", partial(_hive, settings), seconds_max=90.0),)


def _check(area: Area, name: str, look: Look, seconds_max: float = 20.0) -> Check:
    return Check(area=area, name=name, look=look, codes=codes_of(area), seconds_max=seconds_max)


def _kafka(settings: Settings) -> Iterator[Diagnosis]:
    kafka = settings.kafka
    try:
        from pipeline.bus.kafka_survey import survey_topic
        from pipeline.bus.kafka_topic import open_topic
    except ImportError as exc:
        yield unchecked(sentence("doctor.found.install_kafka", name=str(exc.name)))
        return
    server, user = kafka.servers[0], kafka.username or "ANONYMOUS"
    of_topic = partial(finding, subject=kafka.topic, server=server, topic=kafka.topic)
    try:
        survey = survey_topic(kafka, kafka.topic)
        if survey.partitions is None:
            create, partitions = str(kafka.create_topic).lower(), str(kafka.partitions)
            text = sentence("doctor.found.topic_created", create=create, brokers=survey.brokers)
            yield of_topic("kafka-topic-missing", text, partitions=partitions)
            return
        # Looked at as the receiver does, and never made.
        topic = open_topic(kafka.model_copy(update={"create_topic": False}), kafka.topic, partitions=kafka.partitions)
    except Unavailable as exc:
        yield finding("kafka-unreachable", exc.said, subject=server)
        return
    except Misconfigured as exc:
        yield finding(
            "kafka-refuses", exc.said, subject=server, server=server, user=user, topic=kafka.topic, group=kafka.group
        )
        return
    for warning in topic.warnings:
        yield of_topic("kafka-topic-unsafe", warning, config=_config_of(warning, settings))
    yield from _kafka_rights(settings, survey, server, user)
    yield from _kafka_state(settings, survey, server)
    sizes = {"brokers": survey.brokers, "partitions": survey.partitions, "copies": survey.copies}
    yield otherwise(sentence("doctor.found.kafka", topic=kafka.topic, **sizes))


def _config_of(warning: str, settings: Settings) -> str:
    """The setting of a topic that would still a warning, which begins with its name."""
    name = warning.partition("=")[0]
    wanted = {
        "retention.ms": settings.kafka.retention_seconds * 1000,
        "retention.bytes": -1,
        "min.insync.replicas": 2,
        "unclean.leader.election.enable": "false",
        "max.message.bytes": settings.kafka.record_bytes_max + 512,
    }
    return f"{name}={wanted.get(name, '')}"


def _kafka_rights(settings: Settings, survey: Any, server: str, user: str) -> Iterator[Diagnosis]:
    kafka = settings.kafka
    for resource, name, needed, told in (
        ("topic", kafka.topic, _TOPIC_RIGHTS, survey.topic_operations),
        ("group", kafka.group, _GROUP_RIGHTS, survey.group_operations),
    ):
        for operation, whom in needed.items() if told is not None and "ALL" not in told else ():
            if operation not in told:
                text = sentence(
                    "doctor.found.kafka_right", operation=operation, resource=resource, name=name, whom=whom,
                    allowed=some(told, 10) or sentence("mark.none"),
                )  # fmt: skip
                asked = {"operation": operation, "resource": resource, "name": name}
                yield finding(
                    "kafka-right-missing", text, subject=name, check="rights", server=server, user=user, **asked
                )


def _kafka_state(settings: Settings, survey: Any, server: str) -> Iterator[Diagnosis]:
    kafka = settings.kafka
    if survey.partitions < kafka.partitions:
        text: Sentence | str = f"{survey.partitions}, kafka.partitions={kafka.partitions}"
        where = {"server": server, "topic": kafka.topic, "partitions": str(kafka.partitions)}
        yield finding("kafka-partitions-few", text, subject=kafka.topic, **where)
    if survey.copies < 2 <= survey.brokers:
        text = sentence("doctor.found.brokers", brokers=survey.brokers)
        yield finding("kafka-one-copy", text, subject=kafka.topic, server=server)
    if survey.leaderless or survey.behind:
        text = sentence(
            "doctor.found.partitions_down", leaderless=str(list(survey.leaderless)), behind=str(list(survey.behind))
        )
        yield finding("kafka-partition-down", text, subject=kafka.topic, server=server)
    kept = {lane: end - survey.begins.get(lane, 0) for lane, end in survey.ends.items()}
    if not survey.committed and sum(kept.values()):
        text = sentence("doctor.found.no_offset", records=sum(kept.values()), group=kafka.group)
        yield finding("kafka-group-silent", text, subject=kafka.group, check="lag")
    elif survey.committed:
        lag = sum(
            end - max(survey.committed.get(lane, 0), survey.begins.get(lane, 0)) for lane, end in survey.ends.items()
        )
        if lag > LAG_RECORDS_MAX:
            text = sentence("doctor.found.lag", records=lag, group=kafka.group)
            yield finding("kafka-lag", text, subject=kafka.group, check="lag")


def _flink(settings: Settings) -> Iterator[Diagnosis]:
    flink = settings.flink
    if settings.bus.kind is not BusKind.KAFKA:
        yield finding("flink-bus", f"bus.kind={settings.bus.kind.value}", check="bus")
    if flink.rest is None:
        yield unchecked(sentence("doctor.found.flink_within"))
        return
    rest = FlinkRest(
        flink.rest,
        Tls(authority_file=flink.ca_file, certificate_file=flink.certificate_file, key_file=flink.key_file),
    )
    try:
        overview, jobs = rest.overview(), rest.jobs()
    except Unavailable as exc:
        yield finding("flink-unreachable", exc.said, subject=flink.rest)
        return
    version = str(overview.get("flink-version", ""))
    if not version.startswith(f"{FLINK_VERSION}."):
        text = sentence("doctor.found.version", version=version or sentence("doctor.found.untold"))
        yield finding("flink-version", text, subject=flink.rest)
    ours = [job for job in jobs if job.get("name") == JOB_NAME and job.get("state") in ("RUNNING", *_FAILING)]
    if not ours:
        states = some(f"{job.get('name')} {job.get('state')}" for job in jobs) or sentence("doctor.found.no_jobs")
        there = sentence("doctor.found.there_are", names=states)
        yield finding("flink-no-job", there, subject=flink.rest)
        slots = int(overview.get("slots-available", 0))
        if slots < flink.parallelism:
            text = sentence("doctor.found.slots", slots=slots, parallelism=flink.parallelism)
            yield finding("flink-slots", text, subject=flink.rest)
    for job in ours:
        yield from _job(rest, job, settings)
    yield otherwise(sentence("doctor.found.flink_fine", version=version, jobs=len(ours)))


def _job(rest: FlinkRest, job: dict[str, Any], settings: Settings) -> Iterator[Diagnosis]:
    name, url = str(job.get("jid", "")), rest.address
    if job.get("state") in _FAILING:
        failed = f"{job.get('state')}: {rest.failure(name)}"
        yield finding("flink-restarting", failed, subject=name, url=url, job=name)
        return
    newest = rest.newest_checkpoint(name)
    began = float(job.get("start-time", 0)) / 1000
    allowed = CHECKPOINTS_MISSED_MAX * settings.flink.checkpoint_seconds
    age = time.time() - (began if newest is None else newest)
    if age > allowed:
        said = "doctor.found.no_checkpoint" if newest is None else "doctor.found.old_checkpoint"
        what = sentence(said, seconds=f"{age:.0f}")
        text = sentence("doctor.found.checkpoint", what=what, seconds=str(settings.flink.checkpoint_seconds))
        yield finding("flink-checkpoint-old", text, subject=name, url=url, job=name)


def _hive(settings: Settings) -> Iterator[Diagnosis]:
    hive = settings.hive
    host = f"{hive.host}:{hive.port}"
    try:
        from pipeline.warehouse.hive_session import HiveSession
    except ImportError as exc:
        yield unchecked(sentence("doctor.found.install_hive", name=str(exc.name)))
        return
    try:
        patient = hive.model_copy(update={"request_seconds": min(hive.request_seconds, 60)})
        with closing(HiveSession(patient)) as session:
            yield from _hive_tables(session, settings)
            yield from _hive_modes(session)
    except Unavailable as exc:
        yield finding("hive-unreachable", exc.said, subject=host)
        return
    except (Misconfigured, Corrupt) as exc:
        yield finding("hive-refuses", exc.said, subject=host, host=host, user=hive.username, database=hive.database)
        return
    folder = hive.folder
    if folder is not None and not (folder.is_dir() and os.access(folder, os.W_OK)):
        yield finding("hive-folder", f"hive.folder={folder}", folder=str(folder))
    yield otherwise(sentence("doctor.found.hive_fine", host=host, tables=len(TABLES)))
    yield unchecked(sentence("doctor.found.hive_rights", user=str(hive.username)), check="rights")


def _hive_tables(session: Any, settings: Settings) -> Iterator[Diagnosis]:
    """What of the tables is missing or was altered; nothing is made."""
    database = settings.hive.database
    known = {row[0] for row in session.rows("SHOW DATABASES")}
    names = {row[0] for row in session.rows(hive_ddl.show_tables(database))} if database in known else set()
    missing = [table.name for table in TABLES if table.name not in names]
    if missing:
        text = sentence(
            "doctor.found.tables_missing", missing=len(missing), all=len(TABLES), database=database, names=some(missing)
        )
        yield finding("hive-database-missing", text, subject=database)
    for table in TABLES:
        if table.name not in names:
            continue
        told = hive_ddl.table_of(session.rows(hive_ddl.describe_table(database, table)))
        location = settings.hive.location
        # Where the tables lie without a location of the settings is known to the warehouse alone: what is told holds.
        expected = told.location if location is None else f"{location.rstrip('/')}/{table.name}"
        differences = hive_ddl.differences(table, told, expected)
        full = f"{database}.{table.name}"
        if differences:
            yield finding("hive-table-altered", "; ".join(differences), subject=full, table=full)
        elif gained := hive_ddl.new_columns(table, told):
            yield finding("hive-table-older", sentence("doctor.found.lacks", names=some(gained)), subject=full)


def _hive_modes(session: Any) -> Iterator[Diagnosis]:
    """Modes of HiveServer2 that give wrong answers."""
    told = {}
    for name in ("hive.execution.engine", "tez.local.mode", "hive.vectorized.execution.enabled"):
        rows = session.rows(f"SET {name}")
        text = str(rows[0][0]) if rows else ""
        told[name] = text.partition("=")[2].strip().lower() if "=" in text else ""
    if told["hive.execution.engine"] == "tez" and told["tez.local.mode"] == "true":
        yield finding("hive-engine", "hive.execution.engine=tez, tez.local.mode=true", check="modes")
    if told["hive.vectorized.execution.enabled"] == "true":
        yield finding("hive-vectorised", "hive.vectorized.execution.enabled=true", check="modes")
