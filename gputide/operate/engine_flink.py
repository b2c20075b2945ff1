"""Apache Flink: its jars, the program that rolls up in it, and, where asked for, a cluster of two processes.

A job of ours needs no cluster: it brings a small one inside its own process. The program is Java
(`pipeline/flink/java`), compiled here against the jars that it runs with. Called by `gputide.operate.engines` and by
who starts such a job (`FlinkStock`). Versions: `engines_data/flink.pom.xml` and `flink.requirements.lock`.
"""

from __future__ import annotations

import os
import shutil
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from fleet.durable import write_durably
from fleet.errors import Misconfigured
from gputide.operate.engine_answers import flink_answers
from gputide.operate.engine_cache import key_of, stocked
from gputide.operate.engine_parts import Engine, EngineKind, Part, Question
from gputide.operate.engine_stock import flink_environment, jars
from gputide.operate.engine_tools import Tell, find_java, run_tool

SOURCES = Path(__file__).parents[2] / "pipeline" / "flink" / "java"
"""The Java program, which lies beside this package wherever it is installed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlinkStock:
    """What a Flink job is run with.

    Attributes:
        java: the Java machine.
        jars: folder with the connector's, Parquet's and Hadoop's jars.
        home: folder of Flink itself (`bin`, `lib`, `conf`).
        program: the compiled program, a jar.
    """

    java: Path
    jars: Path
    home: Path
    program: Path

    @property
    def class_path(self) -> str:
        """All of it, as Java writes it; the program first: former ones may lie among the jars."""
        return os.pathsep.join((str(self.program), *_libraries(self.home, self.jars)))

    def environ(self, outer: Mapping[str, str]) -> dict[str, str]:
        """Variables that let Flink's scripts find Java and the jars."""
        return {
            **outer,
            "FLINK_HOME": str(self.home),
            "HADOOP_CLASSPATH": f"{self.jars}/*",
            "JAVA_HOME": str(self.java.resolve().parent.parent),
        }


def prepare_flink(cache: Path, *, tell: Tell, home: Path | None = None, libraries: Path | None = None) -> FlinkStock:
    """Fetches what Flink is made of, and compiles the program.

    Args:
        home: Flink's folder; None for the one that is fetched.
        libraries: folder with the jars of Kafka connector, Parquet and Hadoop; None for those that are fetched.

    Raises:
        Misconfigured: the program has to be compiled, and there is no compiler.
        Unavailable, Corrupt: as `engine_stock.jars` and `engine_stock.flink_environment`.
    """
    java = Path(find_java())
    libraries = libraries or jars(cache, "flink", tell=tell)
    if home is None:
        (home,) = flink_environment(cache, tell=tell).glob("lib/python3.*/site-packages/pyflink")
    return FlinkStock(java=java, jars=libraries, home=home, program=_program(cache, home, libraries, tell=tell))


def _program(cache: Path, home: Path, libraries: Path, *, tell: Tell) -> Path:
    """The compiled program: the one beside the jars where it was put there, as into an image; else made once.

    Its name carries the hash of its sources, so that one of another gputide is never taken.
    """
    sources = sorted(SOURCES.rglob("*.java"))
    key = key_of(*(path.read_bytes() for path in sources))
    name = f"gputide-flink-{key}.jar"
    if (libraries / name).is_file():
        return libraries / name
    compiled_with = sorted(path.name for path in (*(home / "lib").glob("*.jar"), *libraries.glob("*.jar")))

    def fill(folder: Path) -> None:
        tell("compiling the program that rolls up in Flink")
        with TemporaryDirectory(dir=folder) as scratch:
            command = [_find_compiler(name), "-g", "--release", "17", "-proc:none", "-d", scratch]
            command += ["-cp", os.pathsep.join(_libraries(home, libraries)), *map(str, sources)]
            run_tool(command, purpose="compile the program that rolls up in Flink")
            with zipfile.ZipFile(folder / name, "w", zipfile.ZIP_DEFLATED) as jar:
                for path in sorted(Path(scratch).rglob("*.class")):
                    jar.write(path, path.relative_to(scratch))

    whole_key = key_of(key.encode(), *map(str.encode, compiled_with))
    return stocked(cache, "flink-program", whole_key, fill, tell=tell) / name


def _find_compiler(name: str, environ: Mapping[str, str] = os.environ) -> str:
    java = Path(find_java(environ))
    beside = next((path for path in (java, java.resolve()) if path.with_name("javac").is_file()), None)
    found = shutil.which("javac", path=environ.get("PATH", "")) if beside is None else str(beside.with_name("javac"))
    if found is None:
        raise Misconfigured(
            f"cannot compile the program that rolls up in Flink: there is no javac beside {java}, which is of a Java "
            f"without a compiler; install a JDK 17 (Debian: apt install openjdk-17-jdk-headless), or put {name} of a "
            "machine that has one (`gputide admin engines fetch flink`) into flink.jars"
        )
    return found


def _libraries(home: Path, libraries: Path) -> tuple[str, str]:
    return f"{home / 'lib'}/*", f"{libraries}/*"


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
