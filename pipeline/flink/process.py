"""The Java process that submits jobs to Flink and, without a remote cluster, runs them (`java/gputide/Job.java`).

It leads a process group of its own and carries a token in its environment, so that whatever a killed rollup has left
running is found and ended before the job is started again: two of a kind would count everything twice. Called by
`rollup_flink`.
"""

from __future__ import annotations

import json
import os
import queue
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from fleet.errors import Unavailable

_TOKEN_VARIABLE = "GPUTIDE_FLINK_TOKEN"
_MAIN = "gputide.Job"
_OPENED = ("java.lang", "java.net", "java.io", "java.nio", "java.time", "java.util", "java.util.concurrent")
"""Packages that Flink's serializers look into: `env.java.opts.all` of apache/flink:flink-dist/conf/config.yaml."""
_END_SECONDS = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FlinkEnvironment:
    """What the process is started with.

    Attributes:
        java: the Java machine.
        class_path: Flink, its connectors and the program, as Java writes it.
        program: the Java program, a jar.
        log_configuration: Log4j's file, such as `conf/log4j-cli.properties` of Flink; None for Log4j's own.
        environ: variables.
        java_options: options of the Java machine, such as `-Xmx1g`.
    """

    java: Path
    class_path: str
    program: Path
    log_configuration: Path | None
    environ: Mapping[str, str]
    java_options: str

    def command(self, log: Path) -> list[str]:
        """How the process is started.

        Args:
            log: file that Flink writes to.
        """
        opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED]
        logged = [f"-Dlog.file={log}"]
        if self.log_configuration is not None:
            logged.append(f"-Dlog4j2.configurationFile={self.log_configuration.as_uri()}")
        own = [*opened, *logged, *shlex.split(self.java_options)]
        return [str(self.java), *own, "-cp", self.class_path, _MAIN]


class FlinkProcess:
    """A running process.

    Args:
        token: word by which its processes are found.
        log: file that takes what it says besides answers.

    Raises:
        Unavailable: it can't be started.
    """

    def __init__(self, environment: FlinkEnvironment, token: str, log: Path) -> None:
        self.token = token
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        try:
            with log.open("ab") as said:
                self._process = subprocess.Popen(
                    environment.command(log.with_suffix(".java.log")),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=said,
                    env={**environment.environ, _TOKEN_VARIABLE: token},
                    start_new_session=True,
                )
        except OSError as exc:
            raise Unavailable(f"cannot start Flink with {environment.java}: {exc}") from exc
        self._answers: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def pid(self) -> int:
        """Leader of the process group."""
        return self._process.pid

    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def submit(self, description: Mapping[str, Any], *, seconds_max: float) -> str:
        """Starts a job; gives its id.

        Raises:
            Unavailable: Flink refuses it or does not answer in time.
        """
        entry = cast("IO[bytes]", self._process.stdin)
        try:
            entry.write(json.dumps(dict(description)).encode() + b"\n")
            entry.flush()
        except OSError as exc:
            raise Unavailable(f"cannot start Flink job: its process has ended; see {self.log}") from exc
        deadline = time.monotonic() + seconds_max
        while (left := deadline - time.monotonic()) > 0:
            try:
                answer = self._answers.get(timeout=left)
            except queue.Empty:
                break
            if answer is None:
                raise Unavailable(f"cannot start Flink job: its process has ended; see {self.log}")
            if "job" in answer:
                return str(answer["job"])
            if "failed" in answer:
                raise Unavailable(f"cannot start Flink job: {answer['failed']}")
        raise Unavailable(f"cannot start Flink job: no answer within {seconds_max:.0f} s; see {self.log}")

    def failure(self) -> str:
        """Why the job that ended last failed; empty where nothing was said."""
        said = ""
        while True:
            try:
                answer = self._answers.get_nowait()
            except queue.Empty:
                return said
            said = said if answer is None else str(answer.get("failed", said))

    def end(self) -> None:
        """Ends the process and all that it started."""
        cast("IO[bytes]", self._process.stdin).close()
        try:
            self._process.wait(timeout=_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        end_left_over(self.token)

    def _listen(self) -> None:
        for line in cast("IO[bytes]", self._process.stdout):
            try:
                self._answers.put(json.loads(line))
            except ValueError:
                continue  # not an answer of ours
        self._answers.put(None)


def end_left_over(token: str) -> None:
    """Kills every process that carries a token, and waits until they are gone.

    Raises:
        Unavailable: one does not end.
    """
    if not token:
        return
    mark = f"{_TOKEN_VARIABLE}={token}".encode()
    deadline = time.monotonic() + _END_SECONDS
    while found := _carriers(mark):
        if time.monotonic() > deadline:
            raise Unavailable(f"cannot end processes {found} of a former Flink job")
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.05)


def _carriers(mark: bytes) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            # A process that has ended and was not fetched yet has no environment any more.
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
        except OSError:
            continue  # it has ended meanwhile, or is somebody else's
    return found
