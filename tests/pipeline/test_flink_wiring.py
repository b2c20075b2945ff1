"""How the Flink job is told to reach a Kafka with sign-on, and what of it may be shown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fleet.data_folder import open_data_folder
from fleet.durable import FolderLock, Held
from fleet.errors import Misconfigured
from fleet.settings.pipeline import BusKind, BusSettings, KafkaMechanism, KafkaSecurity, KafkaSettings
from fleet.settings.settings import Settings
from gputide.container.flink import job_description, kafka_properties, open_flink_rollup

PASSWORD = "pass\"word\\of 'mine"


@pytest.fixture
def kafka(tmp_path: Path) -> KafkaSettings:
    for name in ("ca", "chain", "key"):
        (tmp_path / name).write_text(f"-----BEGIN {name}-----\nbody of {name}\n", encoding="utf-8")
    (tmp_path / "password").write_text(f"{PASSWORD}\nanother line\n", encoding="utf-8")
    return KafkaSettings(
        security=KafkaSecurity.SASL_SSL, ca_file=tmp_path / "ca", certificate_file=tmp_path / "chain",
        key_file=tmp_path / "key", mechanism=KafkaMechanism.SCRAM_SHA_512, username="gputide",
        password_file=tmp_path / "password",
    )  # fmt: skip


def test_settings_become_properties_of_flinks_kafka_client(kafka: KafkaSettings) -> None:
    properties = dict(kafka_properties(kafka))
    module, _, rest = properties.pop("sasl.jaas.config").partition(" ")
    # The connector's jar holds the Kafka client under this name.
    assert module == "org.apache.flink.kafka.shaded.org.apache.kafka.common.security.scram.ScramLoginModule"
    assert rest == 'required username="gputide" password="pass\\"word\\\\of \'mine";'
    assert properties == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.certificates": "-----BEGIN ca-----\nbody of ca\n",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": "-----BEGIN chain-----\nbody of chain\n",
        "ssl.keystore.key": "-----BEGIN key-----\nbody of key\n",
    }


def test_plain_text_needs_no_properties() -> None:
    assert not kafka_properties(KafkaSettings())


def test_explained_job_has_neither_password_nor_key(kafka: KafkaSettings, tmp_path: Path) -> None:
    folder = open_data_folder(tmp_path / "data", create=True)
    settings = Settings(kafka=kafka)
    shown, whole = (
        json.dumps(job_description(folder, settings, with_secrets=is_whole).document()) for is_whole in (False, True)
    )
    for secret in ("of 'mine", "body of key"):
        assert secret not in shown
        assert secret in whole
    assert "body of ca" in shown


def test_a_file_that_cannot_be_read_is_named(kafka: KafkaSettings, tmp_path: Path) -> None:
    (tmp_path / "ca").unlink()
    with pytest.raises(Misconfigured, match=str(tmp_path / "ca")):
        kafka_properties(kafka)


def test_a_second_rollup_with_the_same_state_is_refused_before_it_ends_the_job_of_the_first(tmp_path: Path) -> None:
    folder = open_data_folder(tmp_path / "data", create=True)
    settings = Settings(bus=BusSettings(kind=BusKind.KAFKA), kafka=KafkaSettings(servers=("127.0.0.1:1",)))
    with (
        FolderLock(folder.path / "flink", "rollup"),
        pytest.raises(Held, match="rollup"),
        open_flink_rollup(folder, settings, tmp_path),
    ):
        pass


def test_flink_is_given_paths_as_it_takes_them(tmp_path: Path) -> None:
    folder = open_data_folder(tmp_path / "a 50% folder", create=True)
    staging = json.loads(json.dumps(job_description(folder, Settings()).document()))["staging"]
    assert staging == f"file://{folder.path.resolve()}/flink/staging"
