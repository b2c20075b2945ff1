#!/usr/bin/env python3
"""Our HTTP server beside uvicorn, hypercorn and granian, each in a process of its own, over the same intake.

    python bench/http_servers.py            # needs granian, hypercorn, uvicorn and h11, which nothing of ours ships

Throughput of remote-write bodies; latency of a good sender beside 700 sockets that send nothing or half a head, beside
bodies of 6 MB that decompress to 127 MiB of empty series; half-sent requests that are still open three seconds after
their time; resident memory of a process that serves the node exporter's `/metrics`. Libraries get the limits that they
have a setting for, and the ASGI application bounds bodies and decodes in eight threads.
"""

from __future__ import annotations

import os
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import cramjam

from bench.http_served import REQUEST_SECONDS
from bench.receiver_load import Answers, Bodies, send_all
from gputide.operate.engines import free_port

NAMES = ("gputide", "uvicorn", "hypercorn", "granian")
ROOT = Path(__file__).resolve().parents[1]
SILENT = 700
SAMPLES = 2000
BODIES = 300
GOOD_PER_SECOND = 10.0
EMPTY_SERIES = b"\x22\x00" + b"\x2a\x00" * (127 << 19)
"""Of remote write 2.0, before compression."""
_HALF_HEAD = b"POST /api/v1/write HTTP/1.1\r\nHost: x\r\nX-Slow: "
_HALF_BODY = b"POST /api/v1/write HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nabc"


def main() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (8192, 8192))
    made = Bodies(SAMPLES)
    bodies = made.make(BODIES)
    hostile = bytes(cramjam.snappy.compress_raw(EMPTY_SERIES))
    columns = (
        "server", "bodies/s", "CPU ms/body", "p99 beside 700 silent", "answered well", "half-sent still open of 40",
        "p99 beside hostile bodies", "hostile answered", "peak MiB more", "exporter MiB",
    )  # fmt: skip
    print(" | ".join(columns))
    for name in NAMES:
        if name != "gputide":
            try:
                version(name)
            except PackageNotFoundError:
                print(f"{name} is not installed")
                continue
        print(" | ".join([_title(name), *_measured(name, made, bodies, hostile)]), flush=True)


def _title(name: str) -> str:
    return name if name == "gputide" else f"{name} {version(name)}"


def _measured(name: str, made: Bodies, bodies: list[bytes], hostile: bytes) -> list[str]:
    with running(name, "receive") as server:
        send_all(server.address, bodies[:20], connections=1)
        cpu, started = server.cpu_seconds(), time.perf_counter()
        send_all(server.address, bodies[20:], connections=8)
        many = len(bodies) - 20
        seconds, cpu = time.perf_counter() - started, server.cpu_seconds() - cpu
        with ExitStack() as stack:
            for number in range(SILENT):
                opened = stack.enter_context(socket.create_connection(server.address, timeout=10))
                if number % 2:
                    opened.sendall(_HALF_HEAD)
            beside_silent = _good(server, made.make(80))
        still_open = _still_open(server)
        before = server.rss_bytes()
        worst: list[Answers] = []
        attack = threading.Thread(target=lambda: worst.append(_attack(server, hostile)))
        attack.start()
        beside_hostile = _good(server, made.make(150))
        attack.join()
        more = server.rss_bytes("VmHWM") - before
    with running(name, "scrape") as server:
        for _ in range(20):
            with urllib.request.urlopen(f"http://127.0.0.1:{server.address[1]}/metrics", timeout=10) as answer:
                answer.read()
        scraped = server.rss_bytes()
    return [
        f"{many / seconds:.0f}", f"{1000 * cpu / many:.1f}", f"{1000 * beside_silent.percentile(99):.0f} ms",
        f"{beside_silent.statuses[204]}/{beside_silent.statuses.total()}", str(still_open),
        f"{1000 * beside_hostile.percentile(99):.0f} ms ({dict(beside_hostile.statuses)})",
        str(dict(worst[0].statuses)), f"{more / 2**20:.0f}", f"{scraped / 2**20:.1f}",
    ]  # fmt: skip


def _good(server: Running, bodies: list[bytes]) -> Answers:
    """A sender that is never late."""
    return send_all(server.address, bodies, connections=2, per_second=GOOD_PER_SECOND)


def _attack(server: Running, hostile: bytes) -> Answers:
    return send_all(server.address, [hostile] * 6, connections=3)


def _still_open(server: Running) -> int:
    """Of 40 half-sent requests, those that the server still waits for."""
    with ExitStack() as stack:
        half = [stack.enter_context(socket.create_connection(server.address, timeout=10)) for _ in range(40)]
        for number, opened in enumerate(half):
            opened.sendall(_HALF_BODY if number % 2 else _HALF_HEAD)
        time.sleep(REQUEST_SECONDS + 3)
        return sum(map(_is_open, half))


def _is_open(opened: socket.socket) -> bool:
    opened.setblocking(False)
    try:
        return bool(opened.recv(4096)) and _is_open(opened)
    except BlockingIOError:
        return True
    except OSError:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A server that runs, with the processes that it started."""

    address: tuple[str, int]
    pid: int

    def rss_bytes(self, what: str = "VmRSS") -> int:
        """Resident memory of all its processes, now or (`VmHWM`) at its most."""
        return sum(
            int(found[1]) * 1024
            for pid in self._pids()
            if (found := re.search(rf"{what}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text()))
        )

    def cpu_seconds(self) -> float:
        """User and system time of all its processes."""
        ticks = 0
        for pid in self._pids():
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def _pids(self) -> list[int]:
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return [self.pid, *map(int, children)]


@contextmanager
def running(name: str, what: str) -> Iterator[Running]:
    """One server in a process of its own."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        environ = {
            **os.environ, "PYTHONPATH": str(ROOT), "GPUTIDE_BENCH_FOLDER": folder, "MALLOC_ARENA_MAX": "1",
        }  # fmt: skip
        process = subprocess.Popen(
            [sys.executable, "-OO", "-m", "bench.http_served", name, what, str(port)], env=environ,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            _wait_for(port)
            yield Running(address=("127.0.0.1", port), pid=process.pid)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait_for(port: int) -> None:
    end = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5):
                return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


if __name__ == "__main__":
    main()
