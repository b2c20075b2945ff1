"""Apache Flink: a Python environment of its own and jars, and, where asked for, a cluster of two processes.

A job of ours needs no cluster: it brings a small one inside its own process. Called by `gputide.operate.engines` and by
who starts such a job (`flink_stock`). Versions: `engines_data/flink.pom.xml` and `flink.requirements.lock`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import yaml

from fleet.durable import write_durably
from gputide.operate.engine_answers import flink_answers
from gputide.operate.engine_parts import Engine, EngineKind, Part, Question
from gputide.operate.engine_stock import flink_environment, jars
from gputide.operate.engine_tools import Tell, find_java


@dataclass(frozen=True, slots=True, kw_only=True)
class FlinkStock:
    """What a Flink job is run with.

    Attributes:
        jars: folder with the connector's, Parquet's and Hadoop's jars.
        home: folder of Flink itself (`bin`, `lib`, `conf`), inside the environment.
    """

    python: Path
    jars: Path
    home: Path

    def environ(self, outer: Mapping[str, str]) -> dict[str, str]:
        """Variables that let mini-cluster and scripts find Java, the jars and the interpreter."""
        return {
            **outer,
            "FLINK_HOME": str(self.home),
            "HADOOP_CLASSPATH": f"{self.jars}/*",
            "JAVA_HOME": str(Path(find_java(outer)).resolve().parent.parent),
        }


def prepare_flink(cache: Path, *, tell: Tell) -> FlinkStock:
    """Fetch what Flink is made of.

    Raises:
        Unavailable, Corrupt: as `engine_stock.jars` and `engine_stock.flink_environment`.
    """
    find_java()
    libraries = jars(cache, "flink", tell=tell)
    environment = flink_environment(cache, tell=tell)
    (home,) = environment.glob("lib/python3.*/site-packages/pyflink")
    return FlinkStock(python=environment / "bin" / "python", jars=libraries, home=home)


def lay_out_flink(cache: Path, folder: Path, ports: Mapping[str, int], *, tell: Tell) -> tuple[Part, ...]:
    """Write the settings of a cluster of one JobManager and one TaskManager, and say how both are started.

    Raises:
        Unavailable: Java, Python or a jar is missing.
    """
    stock = prepare_flink(cache, tell=tell)
    conf = folder / "conf"
    shutil.copytree(stock.home / "conf", conf, dirs_exist_ok=True)
    write_durably(conf / "config.yaml", _settings(stock.home / "conf" / "config.yaml", folder, ports).encode())
    (folder / "logs").mkdir(exist_ok=True)
    environ = {
        **stock.environ(os.environ),
        "FLINK_CONF_DIR": str(conf),
        "FLINK_LOG_DIR": str(folder / "logs"),
        "FLINK_PID_DIR": str(folder),
    }
    scripts = stock.home / "bin"
    return tuple(
        Part(name=name, command=["bash", str(scripts / f"{name}.sh"), "start-foreground"], environ=environ)
        for name in ("jobmanager", "taskmanager")
    )


def _settings(shipped: Path, folder: Path, ports: Mapping[str, int]) -> str:
    """`config.yaml`: what Flink ships with, but everything on loopback, small memories and two slots."""
    document = yaml.safe_load(shipped.read_text(encoding="utf-8"))
    ours: dict[str, object] = {
        "jobmanager.rpc.address": "127.0.0.1",
        "jobmanager.rpc.port": ports["rpc_port"],
        "jobmanager.bind-host": "127.0.0.1",
        "jobmanager.memory.process.size": "1024m",
        "taskmanager.host": "127.0.0.1",
        "taskmanager.bind-host": "127.0.0.1",
        "taskmanager.memory.process.size": "1280m",
        "taskmanager.numberOfTaskSlots": 2,
        "rest.address": "127.0.0.1",
        "rest.bind-address": "127.0.0.1",
        "rest.port": ports["rest_port"],
        "rest.bind-port": ports["rest_port"],
        "io.tmp.dirs": str(folder / "tmp"),
    }
    for name, value in ours.items():
        *above, last = name.split(".")
        place = document
        for word in above:
            place = place.setdefault(word, {})
        place[last] = value
    # A line per value: Flink's scripts read the long list of Java options only unfolded.
    return str(yaml.safe_dump(document, width=float("inf")))


FLINK = EngineKind(
    engine=Engine.FLINK,
    port_names=("rest_port", "rpc_port"),
    questions={
        "jobmanager": Question(port_name="rest_port", ask=partial(flink_answers, taskmanagers_min=0)),
        "taskmanager": Question(port_name="rest_port", ask=partial(flink_answers, taskmanagers_min=1)),
    },
    prepare=prepare_flink,
    lay_out=lay_out_flink,
)
"""Flink, for the verb."""
