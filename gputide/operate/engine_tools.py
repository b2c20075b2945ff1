"""Tools of other makers that the engines need: Java, Maven, a Python that Flink takes; found, or named as missing.

Called by `gputide.operate.engine_stock` and the engines' own modules; every absence is an error that says what to
install.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from fleet.errors import Unavailable

Tell = Callable[[str], None]
"""Is told in a sentence what is being done; for people who wait."""

JAVA_OLDEST = 17
"""Kafka 4 asks for it."""
JAVA_NEWEST = 22
"""Later ones have taken out `Subject.getSubject`, which Hadoop 3.3 calls (JEP 486; HADOOP-19212)."""
FLINK_PYTHONS = ("3.12", "3.11")
"""Versions of Python for which all locked packages of Flink's environment exist."""
_TOLD_LINES = 30


def find_java(environ: Mapping[str, str] = os.environ) -> str:
    """Path of a Java that all engines run on: `JAVA_HOME`'s, else the one on PATH.

    Raises:
        Unavailable: there is none, or it is too old or too new.
    """
    home = environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java", path=environ.get("PATH", ""))
    if java is None or not Path(java).is_file():
        where = f"JAVA_HOME={home} holds no bin/java" if home else "no `java` is on PATH"
        raise Unavailable(f"cannot run the engines: {where}; install a Java 17 (Debian: apt install openjdk-17-jre)")
    version = java_version(java)
    if not JAVA_OLDEST <= version <= JAVA_NEWEST:
        raise Unavailable(
            f"cannot run the engines on Java {version} ({java}): Kafka wants {JAVA_OLDEST} or newer and Hadoop at most "
            f"{JAVA_NEWEST}; set JAVA_HOME to a Java 17"
        )
    return java


def java_version(java: str) -> int:
    """Feature version of a Java, such as 17.

    Raises:
        Unavailable: it does not run, or does not say.
    """
    said = run_tool([java, "-version"], purpose="ask Java for its version")
    found = re.search(r'version "(\d+)', said)
    if found is None:
        raise Unavailable(f"cannot tell the version of {java}: it said {said.strip()!r}")
    return int(found[1])


def find_maven(environ: Mapping[str, str] = os.environ) -> str:
    """Path of Maven.

    Raises:
        Unavailable: there is none on PATH.
    """
    maven = shutil.which("mvn", path=environ.get("PATH", ""))
    if maven is None:
        raise Unavailable(
            "cannot fetch the engines' jars: no `mvn` is on PATH; "
            "install Maven 3.8 or newer (Debian: apt install maven)"
        )
    return maven


def find_flink_python(environ: Mapping[str, str] = os.environ) -> str:
    """Path of a Python for Flink's own environment: this one where it fits, else one on PATH.

    Raises:
        Unavailable: there is none.
    """
    running = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if running in FLINK_PYTHONS:
        return str(getattr(sys, "_base_executable", sys.executable))
    for version in FLINK_PYTHONS:
        if found := shutil.which(f"python{version}", path=environ.get("PATH", "")):
            return found
    raise Unavailable(
        f"cannot set up Flink on Python {running}: its packages exist for {' and '.join(FLINK_PYTHONS)}; "
        f"put a python{FLINK_PYTHONS[0]} on PATH"
    )


def run_tool(
    command: list[str], *, purpose: str, folder: Path | None = None, environ: Mapping[str, str] | None = None
) -> str:
    """Run a tool to its end and return what it said, both streams together.

    Args:
        purpose: what it is to do, for the error: `cannot <purpose>`.
        environ: its whole environment; this process's own where None.

    Raises:
        Unavailable: it ended with an error or could not be started; the message ends with its last lines.
    """
    try:
        done = subprocess.run(
            command, cwd=folder, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", check=False,
        )  # fmt: skip
    except OSError as exc:
        raise Unavailable(f"cannot {purpose}: {command[0]} does not start: {exc.strerror}") from exc
    if done.returncode != 0:
        last = "\n".join(f"  | {line}" for line in done.stdout.splitlines()[-_TOLD_LINES:])
        raise Unavailable(f"cannot {purpose}: `{' '.join(command)}` ended with status {done.returncode}\n{last}")
    return done.stdout
