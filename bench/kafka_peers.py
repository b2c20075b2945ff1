"""Programs that take remote write, as bars send to them: started, sent to, asked for their processor time, ended.

`gputide run receive` is one (`bench.receiving`); here are others', which a bar runs where they are at hand:
prometheus-kafka-adapter (`$GPUTIDE_KAFKA_ADAPTER`, github.com/Telefonica/prometheus-kafka-adapter, `go build .` of a
clone) and vmagent (`$GPUTIDE_VMAGENT`, `go install github.com/VictoriaMetrics/VictoriaMetrics/app/vmagent@v1.136.23`).
"""

from __future__ import annotations

import http.client
import http.server
import os
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.receiving import Peer
from gputide.operate.engines import free_port
from pipeline.remote_write.decode import Version

_START_SECONDS_MAX = 30.0
_HEADERS = {
    Version.V1: {"Content-Type": "application/x-protobuf", "X-Prometheus-Remote-Write-Version": "0.1.0"},
    Version.V2: {
        "Content-Type": "application/x-protobuf;proto=io.prometheus.write.v2.Request",
        "X-Prometheus-Remote-Write-Version": "2.0.0",
    },
}


def send_shards(peer: Peer, shards: Sequence[Sequence[bytes]], version: Version) -> list[float]:
    """Sends bodies, all shards at once, each the next one when the last one is answered; seconds until each answer.

    A body that a full queue refuses (a status of 429 or above) is sent again, as senders do; other refusals end it.
    """
    waits: list[float] = []
    faults: Counter[int] = Counter()

    def send(bodies: Sequence[bytes]) -> None:
        connection = http.client.HTTPConnection(*peer.address, timeout=60)
        for body in bodies:
            started = time.monotonic()
            while (status := _posted(connection, peer.path, body, version)) >= 429:
                time.sleep(0.05)
            faults[status] += status not in (200, 204)
            waits.append(time.monotonic() - started)
        connection.close()

    threads = [threading.Thread(target=send, args=(bodies,)) for bodies in shards]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults.total():
        raise SystemExit(f"bodies were answered {dict(faults)}")
    return waits


def _posted(connection: http.client.HTTPConnection, path: str, body: bytes, version: Version) -> int:
    connection.request("POST", path, body, {**_HEADERS[version], "Content-Encoding": "snappy"})
    answer = connection.getresponse()
    answer.read()
    return answer.status


@contextmanager
def adapter(servers: str, topic: str) -> Iterator[Peer | None]:
    """The Go adapter into a topic, JSON compressed with zstd as ours is; None where it is not at hand."""
    program = _program("GPUTIDE_KAFKA_ADAPTER", "prometheus-kafka-adapter")
    if program is None:
        yield None
        return
    port = free_port()
    environ = {
        "KAFKA_BROKER_LIST": servers, "KAFKA_TOPIC": topic, "SERIALIZATION_FORMAT": "json", "KAFKA_COMPRESSION": "zstd",
        "PORT": str(port), "GIN_MODE": "release", "LOG_LEVEL": "error",
    }  # fmt: skip
    with _running([program], port, "/receive", environ) as peer:
        yield peer


@contextmanager
def vmagent(folder: Path) -> Iterator[Peer | None]:
    """VictoriaMetrics' agent in front of a server that takes all and keeps nothing; None where it is not at hand."""
    program = _program("GPUTIDE_VMAGENT", "vmagent")
    if program is None:
        yield None
        return
    port = free_port()
    with _sink() as url:
        command = [
            program, f"-httpListenAddr=127.0.0.1:{port}", f"-remoteWrite.url={url}",
            f"-remoteWrite.tmpDataPath={folder}",
        ]  # fmt: skip
        with _running(command, port, "/api/v1/write", {}) as peer:
            yield peer


def _program(variable: str, name: str) -> str | None:
    return os.environ.get(variable) or shutil.which(name)


@contextmanager
def _running(command: Sequence[str], port: int, path: str, environ: Mapping[str, str]) -> Iterator[Peer]:
    process = subprocess.Popen(
        command, env={**os.environ, **environ}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    peer = Peer(address=("127.0.0.1", port), path=path, pid=process.pid)
    try:
        peer.await_answer(process, _START_SECONDS_MAX)
        yield peer
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


class _Taken(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_response(204)
        self.end_headers()

    def do_GET(self) -> None:
        self.send_response(404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


@contextmanager
def _sink() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Taken)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/api/v1/write"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
