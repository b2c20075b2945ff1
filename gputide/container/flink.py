"""Opens the rollup on Flink as the settings say, for `gputide run rollup --engine flink`; needs the extra `kafka`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path

from fleet.data_folder import DataFolder
from fleet.durable import FolderLock
from fleet.errors import Misconfigured
from fleet.settings.pipeline import BusKind, KafkaSecurity, KafkaSettings
from fleet.settings.settings import Settings
from gputide.container.warehouse import open_warehouse, tended_rollup
from gputide.operate.engine_flink import prepare_flink
from pipeline.flink.configuration import FlinkJobOptions
from pipeline.flink.description import FlinkDescription, FlinkTopic
from pipeline.flink.process import FlinkEnvironment, FlinkProcess
from pipeline.flink.publish import FlinkPublisher
from pipeline.flink.state import FlinkState, uri_of
from pipeline.rollup.rollup import Rollup
from pipeline.rollup.rollup_flink import FlinkRollup
from wire.tls import Tls

_SASL = (KafkaSecurity.SASL_PLAINTEXT, KafkaSecurity.SASL_SSL)


@contextmanager
def open_flink_rollup(folder: DataFolder, settings: Settings, cache: Path) -> Iterator[tuple[Rollup, FlinkRollup]]:
    """The rollup on Flink, with its job started; a job in a process of ours is stopped with a savepoint at the end.

    Yields what takes steps, upkeep of the warehouse included, and the rollup itself.

    Args:
        cache: where fetched engines lie, and the compiled program.

    Raises:
        Misconfigured: the bus does not carry what Flink reads, or the job's state does not fit.
        Held: another process rolls up with this state.
        Unavailable: brokers or Flink can't be reached, or another process writes to the warehouse.
    """
    if settings.bus.kind is not BusKind.KAFKA:
        raise Misconfigured(
            f"cannot roll up with Flink from bus.kind={settings.bus.kind.value}: it reads a topic; set bus.kind=kafka"
        )
    from pipeline.bus.dead_letters_kafka import KafkaDeadLetters
    from pipeline.bus.kafka_survey import KafkaProgress
    from pipeline.bus.kafka_topic import open_topic

    kafka = settings.kafka
    state = FlinkState(_state_folder(folder, settings))
    options = settings.flink
    with (
        # Two who publish would take each other's files for published.
        FolderLock(state.folder, "rollup"),
        open_warehouse(folder, settings) as warehouse,
        nullcontext(open_topic(kafka, kafka.topic, partitions=kafka.partitions)) as topic,
        closing(KafkaProgress(kafka, kafka.topic, kafka.group)) as progress,
        closing(KafkaDeadLetters(kafka, kafka.topic)) as dead_letters,
    ):
        publisher = FlinkPublisher(
            state, warehouse, source=f"flink-{kafka.topic}", dead_letters=dead_letters, source_of=topic.source
        )
        taken = any(warehouse.applied_offset(topic.source(number)) for number in range(topic.partitions))
        if taken and not publisher.published:
            raise Misconfigured(
                f"cannot roll up topic {kafka.topic} with Flink: `run rollup --engine duckdb` has put records of it "
                "into this warehouse, and they would count twice; use another topic, such as kafka.topic="
                f"{kafka.topic}-rows"
            )
        stock = prepare_flink(cache, tell=lambda _text: None, home=options.home, libraries=options.jars)
        environment = FlinkEnvironment(
            java=stock.java,
            class_path=stock.class_path,
            program=stock.program,
            log_configuration=stock.home / "conf" / "log4j-cli.properties",
            environ=os.environ,
            java_options=options.java_options,
        )
        rollup = FlinkRollup(
            state,
            job_description(folder, settings),
            FlinkJobOptions(
                parallelism=options.parallelism,
                checkpoint_milliseconds=options.checkpoint_seconds * 1000,
                rest=options.rest,
                rest_tls=Tls(
                    authority_file=options.ca_file,
                    certificate_file=options.certificate_file,
                    key_file=options.key_file,
                ),
                configuration=options.configuration,
            ),
            program=stock.program,
            publisher=publisher,
            progress=progress,
            process_of=lambda token: FlinkProcess(environment, token, state.folder / "logs" / "flink.log"),
        )
        try:
            rollup.start()
            with tended_rollup(rollup, warehouse, settings) as tended:
                yield tended, rollup
                rollup.leave()  # before the tables are published to for the last time
        finally:
            rollup.leave()


def job_description(folder: DataFolder, settings: Settings, *, with_secrets: bool = True) -> FlinkDescription:
    """What the job does.

    Args:
        with_secrets: False leaves passwords and keys out, for showing it.
    """
    kafka = settings.kafka
    return FlinkDescription(
        topic=FlinkTopic(
            servers=",".join(kafka.servers),
            topic=kafka.topic,
            group=kafka.group,
            properties=kafka_properties(kafka, with_secrets=with_secrets),
        ),
        staging=uri_of(_state_folder(folder, settings).resolve() / "staging"),
        window_seconds=settings.rollup.window_seconds,
        late_days=settings.rollup.late_days,
    )


def kafka_properties(kafka: KafkaSettings, *, with_secrets: bool = True) -> Mapping[str, str]:
    """How Flink's Kafka client reaches the brokers (kafka.apache.org/documentation: security_ssl, security_sasl).

    Raises:
        Misconfigured: a file that the settings name can't be read.
    """
    properties = {}
    if kafka.security is not KafkaSecurity.PLAINTEXT:
        properties["security.protocol"] = kafka.security.value.upper()
    if kafka.ca_file is not None:
        properties |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": _text_of(kafka.ca_file)}
    if kafka.certificate_file is not None and kafka.key_file is not None:
        properties |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": _text_of(kafka.certificate_file),
            "ssl.keystore.key": _text_of(kafka.key_file) if with_secrets else "…",
        }
    if kafka.security in _SASL and kafka.password_file is not None:
        password = _text_of(kafka.password_file).partition("\n")[0].strip() if with_secrets else "…"
        mechanism = kafka.mechanism.value.upper()
        module = "org.apache.flink.kafka.shaded.org.apache.kafka.common.security." + (
            "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
        )
        properties |= {
            "sasl.mechanism": mechanism,
            "sasl.jaas.config": (
                f"{module} required username={_quoted(kafka.username or '')} password={_quoted(password)};"
            ),
        }
    return properties


def _state_folder(folder: DataFolder, settings: Settings) -> Path:
    return settings.flink.state_folder or folder.path / "flink"


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise Misconfigured(f"cannot read {path}: {exc}") from exc


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
