"""Apache Kafka as one process, broker and controller at once (KRaft), with its data in the run's folder.

Called by `gputide.operate.engines`. Versions: `engines_data/kafka.pom.xml`; settings: `engines_data/kafka.properties`.
"""

from __future__ import annotations

import os
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from pathlib import Path
from string import Template

from fleet.durable import write_durably
from gputide.operate.engine_answers import kafka_answers
from gputide.operate.engine_parts import Engine, EngineKind, Part, Question
from gputide.operate.engine_stock import DATA, jars
from gputide.operate.engine_tools import Tell, find_java, run_tool


def prepare_kafka(cache: Path, *, tell: Tell) -> None:
    """Fetch what the broker is made of.

    Raises:
        Unavailable, Corrupt: as `engine_stock.jars`.
    """
    find_java()
    jars(cache, "kafka", tell=tell)


def lay_out_kafka(cache: Path, folder: Path, ports: Mapping[str, int], *, tell: Tell) -> tuple[Part, ...]:
    """Write the broker's settings, format its storage where it is new, and say how it is started.

    Lines that somebody has put into `extra.properties` of the folder replace or follow ours.

    Args:
        folder: the run's folder for this engine; its data stay there between runs.

    Raises:
        Unavailable: Java or a jar is missing.
    """
    java = find_java()
    classes = str(jars(cache, "kafka", tell=tell) / "*")
    settings = folder / "server.properties"
    _write_settings(settings, folder / "extra.properties", {**ports, "data": str(folder / "data")})
    logging = f"-Dlog4j2.configurationFile={DATA / 'log4j2.properties'}"
    command = [java, "-Xms64m", "-Xmx256m", "-XX:+UseSerialGC", logging, "-cp", classes]
    if not (folder / "data" / "meta.properties").exists():
        cluster = urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        run_tool(
            [*command, "kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", "-c", str(settings)],
            purpose="format the broker's storage",
            folder=folder,
        )
    return (Part(name="broker", command=[*command, "kafka.Kafka", str(settings)], environ=os.environ),)


def _write_settings(path: Path, extra: Path, places: Mapping[str, object]) -> None:
    added = extra.read_text(encoding="utf-8").splitlines() if extra.exists() else []
    replaced = {_name(line) for line in added} - {""}
    ours = Template((DATA / "kafka.properties").read_text(encoding="utf-8")).substitute(places).splitlines()
    lines = [*(line for line in ours if _name(line) not in replaced), *added, ""]
    write_durably(path, "\n".join(lines).encode())


def _name(line: str) -> str:
    return "" if line.startswith("#") else line.partition("=")[0].strip()


KAFKA = EngineKind(
    engine=Engine.KAFKA,
    port_names=("port", "controller_port"),
    questions={"broker": Question(port_name="port", ask=kafka_answers)},
    prepare=prepare_kafka,
    lay_out=lay_out_kafka,
)
"""Kafka, for the verb."""
