"""Every port of ours that can speak TLS, as its own server on loopback, for tests of what all of them must do."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from dashboards.app import open_server
from enforcer.agent.view_server import ViewServer
from enforcer.kubernetes.admission_review import PodAdmission
from enforcer.kubernetes.admission_server import AdmissionMetrics, AdmissionServer
from enforcer.router.model_router import RoutedModel, routing
from enforcer.router.shared_card import RouterMetrics
from exporter.collector import Collector
from exporter.server import MetricsServer
from fleet.listener_files import ListenerFiles
from fleet.units import GIB
from tests.enforcer.agent.nodes import view_of
from tests.enforcer.plugin_cluster import StandingCluster
from tests.exporter.test_exposition_server import OneReading
from tests.pipeline.builders import file_bus, intake_of
from tests.pipeline.receiving import served
from tests.sleeping_servers import sleeping_servers
from wire.listener_tls import ListenerContexts
from wire.own_metrics import OwnMetrics, own_port
from wire.port_guard import PortGuard

Clock = Callable[[], float]
Port = tuple[int, str]
"""Port, and a path on it that tells something."""


@contextmanager
def exporter(files: ListenerFiles, clock: Clock, folder: Path) -> Iterator[Port]:
    """`gputide run export node`."""
    del folder
    collector = Collector(OneReading(), interval_seconds=60.0, deadline_seconds=1.0)
    collector.collect()
    server = MetricsServer(
        collector, host="127.0.0.1", port=0, age_seconds_max=60.0, tls=_contexts(files, clock), guard=_guard(files)
    )
    with _running(server.serve, server.stop):
        yield server.address[1], "/metrics"


@contextmanager
def receiver(files: ListenerFiles, clock: Clock, folder: Path) -> Iterator[Port]:
    """`gputide run receive`, what it tells of itself."""
    bus = file_bus(folder / "bus")
    with served(lambda _: intake_of(bus), tls=_contexts(files, clock), guard=_guard(files)) as server:
        yield server.address[1], "/metrics"


@contextmanager
def agent(files: ListenerFiles, clock: Clock, folder: Path) -> Iterator[Port]:
    """`gputide run agent`, where it tells relief what it sees."""
    del folder
    server = ViewServer(
        "n1", host="127.0.0.1", port=0, full_ratio=0.9, free_ratio_min=0.1, tls=_contexts(files, clock),
        guard=_guard(files),
    )  # fmt: skip
    server.start()
    server.show(replace(view_of(duty=0.1), at_seconds=time.time()))
    try:
        yield server.address[1], "/view"
    finally:
        server.stop()


@contextmanager
def admission(files: ListenerFiles, clock: Clock, folder: Path) -> Iterator[Port]:
    """`gputide run admission`; it looks at its files for every connection, by a clock of its own."""
    del clock, folder
    server = AdmissionServer(
        PodAdmission(StandingCluster([])), AdmissionMetrics(OwnMetrics("admission")), host="127.0.0.1", port=0,
        certificate_file=Path(str(files.certificate_file)),
        key_file=Path(str(files.key_file)),
        client_ca_file=None if files.client_ca_file is None else Path(files.client_ca_file),
    )  # fmt: skip
    with _running(server.serve, server.stop):
        yield server.address[1], "/healthz"


@contextmanager
def dashboard(files: ListenerFiles, clock: Clock, folder: Path) -> Iterator[Port]:
    """`gputide serve`: its server and connections, with a small application behind them."""
    del folder

    def application(environ: dict[str, Any], start: Callable[..., Any]) -> list[bytes]:
        body = environ["wsgi.input"].read()
        told = [environ["wsgi.url_scheme"].encode(), b"x" * 300_000, body]
        start("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(sum(map(len, told))))])
        return told

    server = open_server(
        SimpleNamespace(server=application),  # type: ignore[arg-type]
        host="127.0.0.1", port=0, tls=_contexts(files, clock, needs_client=files.client_ca_file is not None),
    )  # fmt: skip
    with _running(server.run, server.close):
        yield int(server.address.rstrip("/").rpartition(":")[2]), "/"


@contextmanager
def own_metrics(files: ListenerFiles, clock: Clock, folder: Path) -> Iterator[Port]:
    """What roll-up, agent, admission, relief and tide count of themselves."""
    del folder
    how = {"tls": _contexts(files, clock), "guard": _guard(files)}
    with own_port(OwnMetrics("relief").text, "127.0.0.1", 0, setting="exporter.own_listen", **how) as address:
        yield address[1], "/metrics"


@contextmanager
def router(files: ListenerFiles, clock: Clock, folder: Path) -> Iterator[Port]:
    """`gputide run router`, in front of a model that sleeps."""
    del folder
    stopped, bound = threading.Event(), queue.Queue[int]()

    async def serve() -> None:
        model = RoutedModel(name="a", host="127.0.0.1", port=0, server=servers["a"].origin, limit_bytes=8 * GIB)
        async with routing(
            (model,), card_bytes=8 * GIB, wait_seconds=5.0, metrics=RouterMetrics(OwnMetrics("router")),
            tls=_contexts(files, clock, needs_client=True),
        ) as ports:  # fmt: skip
            bound.put(ports["a"])
            while not stopped.is_set():
                await asyncio.sleep(0.05)

    with (
        sleeping_servers({"a": 8 * GIB}, 8 * GIB) as (servers, _),
        _running(lambda: asyncio.run(serve()), stopped.set),
    ):
        yield bound.get(timeout=30), "/health"


LISTENERS = {found.__name__: found for found in (exporter, receiver, agent, admission, dashboard, own_metrics, router)}


def _contexts(files: ListenerFiles, clock: Clock, *, needs_client: bool = False) -> Any:
    if files.certificate_file is None:
        return None
    return ListenerContexts(files, needs_client=needs_client, now_seconds=clock).context


def _guard(files: ListenerFiles) -> PortGuard:
    return PortGuard(files, tokens_setting="tokens_file", now_seconds=time.monotonic)


@contextmanager
def _running(serve: Callable[[], None], stop: Callable[[], None]) -> Iterator[None]:
    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop()
        thread.join(2.0)
