"""The job on a real Flink reads a broker that wants TLS, a client's certificate and a password, and shows neither."""

from __future__ import annotations

import json
import secrets
import socket
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient
from kafka.admin import ScramMechanism, UserScramCredentialUpsertion

from fleet.data_folder import DataFolder, open_data_folder
from fleet.settings.pipeline import KafkaMechanism, KafkaSecurity, KafkaSettings
from fleet.settings.settings import Settings
from gputide.container.flink import job_description, open_flink_rollup
from gputide.operate.engine_flink import FlinkStock
from pipeline.remote_write.decode import Version
from pipeline.rollup.rollup_flink import FlinkRollup
from pipeline.warehouse.warehouse_duckdb import DuckdbWarehouse
from tests.engines.flink_parts import JAVA_OPTIONS, TopicBus, assert_oracle, drain
from tests.engines.running import Kafka
from tests.engines.test_bus_kafka import made_certificates
from tests.pipeline.builders import body_of, intake_of, small_fleet

pytestmark = pytest.mark.engines


def test_job_reads_a_broker_with_tls_certificate_and_password_and_shows_no_secret(
    own_kafka: Callable[[dict[str, str]], Kafka], flink: FlinkStock, engines_cache: Path, tmp_path: Path
) -> None:
    kafka, password = secured(own_kafka({}), tmp_path)
    key = (tmp_path / "client.key").read_text().splitlines()[1:-1]
    folder = open_data_folder(tmp_path / "data", create=True)
    settings = Settings.model_validate(
        {
            "bus": {"kind": "kafka"},
            "kafka": kafka,
            "flink": {
                "home": flink.home, "jars": flink.jars, "java_options": JAVA_OPTIONS, "checkpoint_seconds": 600,
                "configuration": {"restart-strategy.type": "none"},
            },
        }
    )  # fmt: skip
    samples = small_fleet(pods=2, hours=2)
    with open_flink_rollup(folder, settings, engines_cache) as (_, rollup):
        bus = TopicBus(kafka)
        intake_of(bus).take(body_of(samples), Version.V2)
        bus.close()
        assert drain(rollup) == 0
        told = everything_told_by(rollup)
        rollup.stop()
    warehouse = DuckdbWarehouse(folder.warehouse)
    assert_oracle(warehouse, samples)
    warehouse.close()
    said = {path: path.read_text(errors="replace") for path in (folder.path / "flink" / "logs").rglob("*.log")}
    assert any("SASL_SSL" in text for text in said.values())
    shown = {"explain": explained(folder, settings, with_secrets=False), **told, **{str(p): t for p, t in said.items()}}
    assert shown["plan"].count("rollup")
    for place, text in shown.items():
        assert password not in text, place
        assert not any(line in text for line in key), place
    # The same text with secrets, so that looking for them is known to find them.
    whole = explained(folder, settings, with_secrets=True)
    assert password in whole
    assert all(line in whole for line in key)


def secured(broker: Kafka, folder: Path) -> tuple[KafkaSettings, str]:
    """Makes a broker listen with SASL_SSL too; gives the way in, and the password that it asks for."""
    made_certificates(folder)
    password = secrets.token_hex(16)
    admin = KafkaAdminClient(bootstrap_servers=broker.bootstrap)
    admin.alter_user_scram_credentials(
        [UserScramCredentialUpsertion("gputide", ScramMechanism.SCRAM_SHA_512, password)]
    )
    admin.close()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    own, controller = broker.bootstrap.rpartition(":")[2], broker._port("controller_port")
    broker.stop()
    login = "org.apache.kafka.common.security.scram.ScramLoginModule"
    lines = [
        f"listeners=PLAINTEXT://127.0.0.1:{own},CONTROLLER://127.0.0.1:{controller},SAFE://127.0.0.1:{port}",
        f"advertised.listeners=PLAINTEXT://127.0.0.1:{own},SAFE://127.0.0.1:{port}",
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SAFE:SASL_SSL",
        "listener.name.safe.ssl.keystore.type=PEM",
        f"listener.name.safe.ssl.keystore.location={folder / 'broker.pem'}",
        "listener.name.safe.ssl.truststore.type=PEM",
        f"listener.name.safe.ssl.truststore.location={folder / 'ca.pem'}",
        "listener.name.safe.ssl.client.auth=required",
        "listener.name.safe.sasl.enabled.mechanisms=SCRAM-SHA-512",
        f"listener.name.safe.scram-sha-512.sasl.jaas.config={login} required;",
    ]
    (broker.folder / "kafka" / "extra.properties").write_text("\n".join(lines))
    broker.start()
    (folder / "password").write_text(f"{password}\n")
    settings = KafkaSettings(
        servers=(f"localhost:{port}",), topic="safe", group="safe", partitions=2, record_bytes_max=1 << 20,
        security=KafkaSecurity.SASL_SSL, ca_file=folder / "ca.pem", certificate_file=folder / "client.crt",
        key_file=folder / "client.key", mechanism=KafkaMechanism.SCRAM_SHA_512, username="gputide",
        password_file=folder / "password",
    )  # fmt: skip
    return settings, password


def everything_told_by(rollup: FlinkRollup) -> dict[str, str]:
    """What the JobManager of a running rollup tells about its job and itself, by question."""
    rest, job = rollup.address, rollup.job
    questions = {
        "job": f"/jobs/{job}", "plan": f"/jobs/{job}/plan", "config": f"/jobs/{job}/config",
        "checkpoints": f"/jobs/{job}/checkpoints/config", "jobmanager": "/jobmanager/config",
        "environment": "/jobmanager/environment", "exceptions": f"/jobs/{job}/exceptions",
    }  # fmt: skip
    return {name: asked(f"{rest}{path}") for name, path in questions.items()}


def asked(address: str) -> str:
    """One answer, as text."""
    with urllib.request.urlopen(address, timeout=10) as answer:
        found: Any = json.load(answer)
    return json.dumps(found, ensure_ascii=False)


def explained(folder: DataFolder, settings: Settings, *, with_secrets: bool) -> str:
    """What the job does, as `--explain` shows it."""
    return json.dumps(job_description(folder, settings, with_secrets=with_secrets).document())
