"""A running `gputide run receive`, as the bars send to it: started, asked, ended as a service manager does."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.measured_run import GPUTIDE
from gputide.operate.engines import free_port

WRITE_PATH = "/api/v1/write"
HEADERS = {
    "Content-Type": "application/x-protobuf;proto=io.prometheus.write.v2.Request",
    "Content-Encoding": "snappy",
    "X-Prometheus-Remote-Write-Version": "2.0.0",
}
_START_SECONDS_MAX = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A program that takes remote write.

    Attributes:
        address: host and port that it listens on.
        path: where bodies go.
        pid: its process.
    """

    address: tuple[str, int]
    path: str = WRITE_PATH
    pid: int

    def cpu_seconds(self) -> float:
        """User and system time that it has taken."""
        fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def answers(self) -> bool:
        """Whether it takes connections."""
        try:
            with socket.create_connection(self.address, timeout=5):
                return True
        except OSError:
            return False

    def await_answer(self, process: subprocess.Popen[bytes], seconds_max: float) -> None:
        """Waits until it takes connections; ends the bar where it does not."""
        end = time.monotonic() + seconds_max
        while not self.answers():
            if process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"nothing answers at {self.address[0]}:{self.address[1]}")
            time.sleep(0.1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningReceiver(Peer):
    """A receiver that runs."""

    def answers(self) -> bool:
        """Whether it takes requests."""
        try:
            return _answer_of(self._url("/healthz")) != ""
        except (urllib.error.URLError, OSError):
            return False

    def metric(self, name: str) -> float:
        """One of its own metrics."""
        lines = _answer_of(self._url("/metrics")).splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith(f"gputide_receiver_{name} "))

    def rss_bytes(self, what: str = "VmRSS") -> int:
        """Its resident memory, now or (`VmHWM`) at its most."""
        text = Path(f"/proc/{self.pid}/status").read_text(encoding="utf-8")
        found = re.search(rf"{what}:\s+(\d+) kB", text)
        return int(found[1]) * 1024 if found else 0

    def _url(self, path: str) -> str:
        return f"http://{self.address[0]}:{self.address[1]}{path}"


@contextmanager
def receiving(data: Path, *settings: str) -> Iterator[RunningReceiver]:
    """A receiver into a data folder, with settings as `--set` takes them."""
    options = [part for setting in settings for part in ("--set", setting)]
    port = free_port()
    process = subprocess.Popen(
        [str(GPUTIDE), "--data-dir", str(data), *options, "run", "receive", "--listen", f"127.0.0.1:{port}"]
    )
    receiver = RunningReceiver(address=("127.0.0.1", port), pid=process.pid)
    try:
        receiver.await_answer(process, _START_SECONDS_MAX)
        yield receiver
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def _answer_of(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return str(answer.read().decode())
