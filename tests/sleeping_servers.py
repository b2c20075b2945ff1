"""Stand-ins for servers of vLLM with sleep mode that share a card: real HTTP, on one book of framebuffer.

Written from vllm-project/vllm:docs/features/sleep_mode.md: `POST /sleep`, `POST /wake_up` and `GET /is_sleeping`; a
server that sleeps keeps some framebuffer, and one that does not find room on waking answers 500. A request to a server
that sleeps is a fault of whoever sent it, and is counted.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from fleet.sleeping import ASLEEP_BYTES


class CardBook:
    """What the servers of a card hold of it; `most` is the most at any time, `faults` what should not have been."""

    def __init__(self, card_bytes: int) -> None:
        self._card_bytes, self._lock = card_bytes, threading.Lock()
        self._held: dict[str, int] = {}
        self.most, self.faults = 0, list[str]()

    def holds(self, name: str, held_bytes: int) -> bool:
        """Lets a server hold so much instead of what it held; false where the card has no room."""
        with self._lock:
            held = {**self._held, name: held_bytes}
            if sum(held.values()) > self._card_bytes:
                self.faults.append(f"{name}: out of memory")
                return False
            self._held = held
            self.most = max(self.most, sum(held.values()))
            return True


class SleepingServer:
    """One server; `asked` is what it was asked for but reads, in order, and `bodies` the bytes that came with that.

    It `breaks` at paths, `hangs` where it should move, answers a move with `redirect`, and says `said` of its sleep.
    """

    def __init__(self, name: str, limit_bytes: int, book: CardBook, *, move_seconds: float, is_asleep: bool) -> None:
        self.name, self.limit_bytes, self.book, self.move_seconds = name, limit_bytes, book, move_seconds
        self.is_asleep, self.breaks = is_asleep, frozenset[str]()
        self.asked: list[str] = []
        self.bodies: list[bytes] = []
        self.hangs, self.redirect, self.said = False, "", ""
        self.running = 0
        self._lock = threading.Lock()
        assert book.holds(name, ASLEEP_BYTES if is_asleep else limit_bytes)
        self._port = 0
        self.start()
        self.origin = f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Answer, at the same port as before."""
        owner = self

        class Handler(_Handler):
            server_of = owner

        self._http = _Server(("127.0.0.1", self._port), Handler)
        self._port, self.is_up = self._http.server_port, True
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def stop(self) -> None:
        """Answer no more, on open connections either."""
        self.is_up = False
        self._http.shutdown()
        self._http.server_close()

    def work(self, seconds: float) -> bool:
        """Serve a request; false where it sleeps."""
        with self._lock:
            if self.is_asleep:
                self.book.faults.append(f"{self.name}: asked asleep")
                return False
            self.running += 1
        time.sleep(seconds)
        with self._lock:
            self.running -= 1
        return True

    def move(self, *, to_sleep: bool) -> bool:
        """Fall asleep or wake; false where that can't be."""
        time.sleep(self.move_seconds)
        with self._lock:
            if to_sleep and self.running:
                self.book.faults.append(f"{self.name}: put to sleep with {self.running} requests")
            if not self.book.holds(self.name, ASLEEP_BYTES if to_sleep else self.limit_bytes):
                return False
            self.is_asleep = to_sleep
        return True


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024  # with five, a burst of connections waits a second for the kernel


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_of: SleepingServer

    def parse_request(self) -> bool:
        self.close_connection = not self.server_of.is_up
        return self.server_of.is_up and super().parse_request()

    def do_GET(self) -> None:
        if self.path == "/is_sleeping":
            self._answer(200, self.server_of.said or {"is_sleeping": self.server_of.is_asleep})
        else:
            self._answer(200, {"path": self.path})

    def do_POST(self) -> None:
        owner = self.server_of
        given = self._body()
        owner.asked.append(self.path)
        if self.path in ("/sleep?level=1", "/wake_up") and owner.hangs:
            time.sleep(2.0)
        if self.path in ("/sleep?level=1", "/wake_up") and owner.redirect:
            self.send_response(307)
            self.send_header("Location", owner.redirect)
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif self.path in owner.breaks:
            self._answer(500, {"error": "CUDA error"})
        elif self.path in ("/sleep?level=1", "/wake_up"):
            self._answer(200 if owner.move(to_sleep=self.path != "/wake_up") else 500, {})
        elif not owner.work(given.get("seconds", 0.0)):
            self._answer(500, {"error": "asleep"})
        elif given.get("stream"):
            self._stream(given["stream"], " " * given.get("width", 0))
        else:
            said = {"model": owner.name, "given": given, "headers": dict(self.headers)}
            self._answer(200, said, given.get("header", ""))

    def _body(self) -> dict[str, Any]:
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server_of.bodies.append(body)
        found: dict[str, Any] = json.loads(body) if body[:1] == b"{" else {}
        return found

    def _stream(self, parts: int, filling: str) -> None:
        """Stream; it takes half a second to notice that the client left."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.server_of.running += 1
        try:
            for number in range(parts):
                text = f"data: {number}{filling}\n\n".encode()
                self.wfile.write(f"{len(text):x}\r\n".encode() + text + b"\r\n")
                self.wfile.flush()
                time.sleep(0.05)
        except OSError:
            time.sleep(0.5)
            self.close_connection = True
        self.server_of.running -= 1
        if not self.close_connection:
            self.wfile.write(b"0\r\n\r\n")

    def _answer(self, status: int, document: Mapping[str, object] | str, header: str = "") -> None:
        text = (document if isinstance(document, str) else json.dumps(document)).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("X-Given", header)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *args: object) -> None:
        del args


@contextmanager
def sleeping_servers(
    limits: Mapping[str, int], card_bytes: int, *, move_seconds: float = 0.05
) -> Iterator[tuple[dict[str, SleepingServer], CardBook]]:
    """Run a server per model meanwhile, all asleep at first."""
    book = CardBook(card_bytes)
    servers = {
        name: SleepingServer(name, limit, book, move_seconds=move_seconds, is_asleep=True)
        for name, limit in limits.items()
    }
    try:
        yield servers, book
    finally:
        for server in servers.values():
            server.stop()


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterRun:
    """A router that runs: the port of each model, where it shows its metrics, and its process."""

    ports: Mapping[str, int]
    metrics_url: str
    process: subprocess.Popen[str]


@contextmanager
def router_process(servers: Mapping[str, SleepingServer], card_bytes: int, folder: Path) -> Iterator[RouterRun]:
    """Run `gputide run router` in front of servers meanwhile."""
    tables = (
        f'[[router.models]]\nname = "{one.name}"\nlisten = "127.0.0.1:0"\nserver = "{one.origin}"\n'
        f"limit = {one.limit_bytes}\n"
        for one in servers.values()
    )
    config = folder / "router.toml"
    config.write_text(
        f"[router]\ncard_bytes = {card_bytes}\nwait_seconds = 60\n{''.join(tables)}"
        '[exporter]\nown_listen = "127.0.0.1:0"\n'
    )
    program = str(Path(sys.executable).with_name("gputide"))
    command = [program, "--config", str(config), "run", "router"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = ""
        for line in process.stderr:
            said += line
            if line.startswith("routing"):
                break
        ports = {name: int(port) for name, port in re.findall(r"^(\S+) at port (\d+)", said, re.MULTILINE)}
        assert ports.keys() == servers.keys(), said
        (metrics_url,) = re.findall(r"http://\S+/metrics", said)
        try:
            yield RouterRun(ports=ports, metrics_url=metrics_url, process=process)
        finally:
            process.terminate()
            process.communicate()
