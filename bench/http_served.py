"""One server's process of `bench.http_servers`: SERVER `receive` or `scrape` PORT."""

# ruff: noqa: PLC0415 - what one server imports must not count as another's memory
from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

REQUEST_SECONDS = 5
CONNECTIONS_MAX = 512
BODY_BYTES_MAX = 32 << 20


def serve(name: str, what: str, port: int) -> None:
    """What a server's process does."""
    if name == "gputide":
        _serve_ours(what, port)
    elif name == "uvicorn":
        import uvicorn

        uvicorn.run(
            f"bench.http_served:{what}", host="127.0.0.1", port=port, http="h11", log_level="critical",
            timeout_keep_alive=REQUEST_SECONDS, limit_concurrency=CONNECTIONS_MAX if what == "receive" else 32,
        )  # fmt: skip
    elif name == "hypercorn":
        from hypercorn.asyncio import serve as run
        from hypercorn.config import Config

        config = Config()
        config.bind = [f"127.0.0.1:{port}"]
        config.read_timeout = config.keep_alive_timeout = REQUEST_SECONDS
        asyncio.run(run(globals()[what], config))
    else:
        from granian.constants import Interfaces
        from granian.http import HTTP1Settings
        from granian.server import Server

        Server(
            f"bench.http_served:{what}", address="127.0.0.1", port=port, interface=Interfaces.ASGI, log_enabled=False,
            http1_settings=HTTP1Settings(header_read_timeout=1000 * REQUEST_SECONDS), backpressure=CONNECTIONS_MAX,
        ).serve()  # fmt: skip


def _serve_ours(what: str, port: int) -> None:
    if what == "scrape":
        _metrics_server(port).serve()
        return
    from fleet.settings.pipeline import ReceiverSettings
    from gputide.verbs.run.receive import SWITCH_SECONDS
    from pipeline.receiver.receiver import Receiver
    from wire.http_server import listen

    sys.setswitchinterval(SWITCH_SECONDS)
    limits = ReceiverSettings(connections_max=CONNECTIONS_MAX, request_seconds=REQUEST_SECONDS)
    Receiver(
        lambda _sender: _intake(), listener=listen("127.0.0.1", port, setting="--listen"), limits=limits
    ).start()  # fmt: skip
    signal.pause()


def _intake() -> Any:
    from fleet.settings.settings import Settings
    from gputide.container.bus import intakes_of
    from pipeline.bus.bus_file import FileBus

    bus = FileBus(Path(os.environ["GPUTIDE_BENCH_FOLDER"]) / "bus", segment_bytes=1 << 26, bytes_max=1 << 34)
    return intakes_of(bus, Settings())(None)


def _metrics_server(port: int) -> Any:
    import numpy as np

    from exporter.collector import Collector
    from exporter.reader import Reading
    from exporter.server import MetricsServer
    from fleet.inventory import CardId, CardModelName
    from fleet.schema import Measure
    from fleet.usage import CardKey

    card = CardKey(cluster="c", node="n", card=CardId("GPU-a"), card_model=CardModelName("NVIDIA A10"))

    class OneReading:
        def read(self, deadline_seconds: float) -> Reading | None:
            return Reading(at=datetime.now(UTC), cards=(card,), card_values={Measure.DUTY_CYCLE: np.array([0.5])})

        def close(self) -> None:
            """Nothing is held."""

    collector = Collector(OneReading(), interval_seconds=15.0, deadline_seconds=1.0)
    collector.collect()
    return MetricsServer(collector, host="127.0.0.1", port=port, age_seconds_max=3600.0)


_POOL = ThreadPoolExecutor(8)
_MADE: list[Any] = []
_MADE_LOCK = threading.Lock()


async def receive(scope: dict[str, Any], take: Any, send: Any) -> None:
    """The receiver as an ASGI application."""
    if await _is_not_http(scope, take, send):
        return
    if scope["path"] == "/healthz":
        await _answer(send, 200, b"ok\n")
        return
    body = bytearray()
    while True:
        event = await take()
        if event["type"] == "http.disconnect":
            return
        body += event.get("body", b"")
        if len(body) > BODY_BYTES_MAX:
            await _answer(send, 413, b"")
            return
        if not event.get("more_body"):
            break
    found = await asyncio.get_running_loop().run_in_executor(_POOL, _take, bytes(body))
    await _answer(send, found.status, found.text.encode() if found.text else b"")


def _take(body: bytes) -> Any:
    from pipeline.remote_write.decode import Version

    with _MADE_LOCK:
        if not _MADE:
            _MADE.append(_intake())
    return _MADE[0].take(body, Version.V2)


async def scrape(scope: dict[str, Any], take: Any, send: Any) -> None:
    """The node exporter as an ASGI application."""
    from exporter.exposition.rendering import TextFormat

    if await _is_not_http(scope, take, send):
        return
    if not _MADE:
        _MADE.append(_metrics_server(0))
    await _answer(send, 200, b"".join(_MADE[0].metrics(TextFormat.PROMETHEUS)))


async def _is_not_http(scope: dict[str, Any], take: Any, send: Any) -> bool:
    if scope["type"] == "lifespan":
        while (await take())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})
    return bool(scope["type"] != "http")


async def _answer(send: Any, status: int, body: bytes) -> None:
    fields = [] if status == 204 else [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    await send({"type": "http.response.body", "body": b"" if status == 204 else body})


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2], int(sys.argv[3]))
