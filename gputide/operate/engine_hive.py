"""Apache Hive as two processes, metastore and HiveServer2, with tables, files and scratch space in the run's folder.

Queries run inside HiveServer2. Called by `gputide.operate.engines`. Versions: `engines_data/hive.pom.xml`; settings:
`engines_data/hive-site.xml`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from string import Template
from xml.sax.saxutils import escape

from fleet.durable import sync_folder, write_durably
from gputide.operate.engine_answers import hive_answers, metastore_answers
from gputide.operate.engine_cache import key_of, stocked
from gputide.operate.engine_parts import Engine, EngineKind, Part, Question
from gputide.operate.engine_stock import DATA, hive_schema_scripts, jars
from gputide.operate.engine_tools import Tell, find_java, java_version, run_tool

_PORT_NAMES = ("metastore_port", "server_port")
# Hadoop and DataNucleus look into classes that Java keeps closed since version 17.
_OPENED = (
    "java.lang", "java.lang.reflect", "java.lang.invoke", "java.io", "java.net", "java.nio", "java.util",
    "java.util.concurrent", "java.util.concurrent.atomic", "java.util.regex", "java.time", "java.text", "sun.nio.ch",
)  # fmt: skip


def prepare_hive(cache: Path, *, tell: Tell) -> None:
    """Fetch what Hive is made of, and make the tables of an empty metastore.

    Raises:
        Unavailable, Corrupt: as `engine_stock.jars`.
    """
    _empty_metastore(cache, find_java(), tell=tell)


def lay_out_hive(cache: Path, folder: Path, ports: Mapping[str, int], *, tell: Tell) -> tuple[Part, ...]:
    """Write Hive's settings, give it an empty metastore where the run is new, and say how both processes are started.

    Args:
        folder: the run's folder for this engine; tables and files stay there between runs.

    Raises:
        Unavailable: Java or a jar is missing.
    """
    java = find_java()
    libraries = jars(cache, "hive", tell=tell)
    empty = _empty_metastore(cache, java, tell=tell)
    _write_settings(folder, ports)
    if not (folder / "metastore_db").exists():
        # Aside first: a half copied database would be taken for a whole one by the next start.
        shutil.copytree(empty / "metastore_db", folder / "metastore_db.new", dirs_exist_ok=True)
        (folder / "metastore_db.new").rename(folder / "metastore_db")
        sync_folder(folder)
    command = _java_command(java, libraries, folder)
    metastore = ["org.apache.hadoop.hive.metastore.HiveMetaStore", "-p", str(ports["metastore_port"])]
    server = ["org.apache.hive.service.server.HiveServer2"]
    # In this order: a server that is started before its metastore answers waits for it more than a minute.
    return (
        Part(name="metastore", command=[*command("384m"), *metastore], environ=os.environ),
        Part(name="server", command=[*command("768m"), *server], environ=os.environ),
    )


def _empty_metastore(cache: Path, java: str, *, tell: Tell) -> Path:
    """Folder of the cache with `metastore_db`, a Derby database that holds Hive's tables and nothing in them."""
    libraries = jars(cache, "hive", tell=tell)
    scripts = hive_schema_scripts(cache, tell=tell)

    def fill(folder: Path) -> None:
        tell("making the tables of an empty Hive metastore")
        _write_settings(folder, dict.fromkeys(_PORT_NAMES, 0))
        command = _java_command(java, libraries, folder)("384m")
        tool = "org.apache.hadoop.hive.metastore.tools.schematool.MetastoreSchemaTool"
        run_tool(
            [*command, tool, "-dbType", "derby", "-initSchema"],
            purpose="make the tables of Hive's metastore",
            folder=folder,
            environ={**os.environ, "METASTORE_HOME": str(scripts), "HIVE_HOME": str(scripts)},
        )

    key = key_of(scripts.name.encode(), str(java_version(java)).encode(), (DATA / "hive-site.xml").read_bytes())
    return stocked(cache, "hive-metastore", key, fill, tell=tell)


def _java_command(java: str, libraries: Path, folder: Path) -> Callable[[str], list[str]]:
    def command(heap: str) -> list[str]:
        opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED]
        return [
            java, f"-Xmx{heap}", "-XX:+UseSerialGC",
            # The quick compiler alone: two fifths less processor time until both answer, and questions here are small.
            "-XX:TieredStopAtLevel=1", *opened, "--add-opens=java.sql/java.sql=ALL-UNNAMED",
            f"-Dderby.system.home={folder}", f"-Djava.io.tmpdir={folder / 'tmp'}",
            # Timestamps in Parquet shift with the server's time zone.
            "-Duser.timezone=UTC",
            f"-Dlog4j2.configurationFile={DATA / 'log4j2.properties'}", "-cp", f"{folder / 'conf'}:{libraries}/*",
        ]  # fmt: skip

    return command


def _write_settings(folder: Path, ports: Mapping[str, int]) -> None:
    for name in ("conf", "tmp", "warehouse", "external", "scratch"):
        (folder / name).mkdir(exist_ok=True)
    template = Template((DATA / "hive-site.xml").read_text(encoding="utf-8"))
    text = template.substitute({"folder": escape(str(folder))}, **{name: str(port) for name, port in ports.items()})
    # Hadoop reads its own half of the settings from a file of another name.
    for name in ("hive-site.xml", "core-site.xml"):
        write_durably(folder / "conf" / name, text.encode())
    # Hive looks for its own names before it heeds the system property.
    logging = (DATA / "log4j2.properties").read_bytes()
    for name in ("hive-log4j2.properties", "metastore-log4j2.properties"):
        write_durably(folder / "conf" / name, logging)


HIVE = EngineKind(
    engine=Engine.HIVE,
    port_names=_PORT_NAMES,
    questions={
        "metastore": Question(port_name="metastore_port", ask=metastore_answers),
        "server": Question(port_name="server_port", ask=hive_answers),
    },
    prepare=prepare_hive,
    lay_out=lay_out_hive,
)
"""Hive, for the verb."""
