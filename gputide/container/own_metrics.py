"""Opens the port where a process shows what it counts of itself, as `exporter.own_listen` says."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from fleet.addresses import host_and_port
from fleet.settings.settings import Settings
from gputide.container.telemetry import open_telemetry
from wire.http_server import tls_contexts
from wire.own_metrics import PATH, OwnMetrics, own_port
from wire.port_guard import PortGuard
from wire.telemetry import show

_Own = TypeVar("_Own")


@contextmanager
def open_own_metrics(settings: Settings, process: str, register: Callable[[OwnMetrics], _Own]) -> Iterator[_Own]:
    """The metrics of a process, served until the end, and sent where `telemetry.endpoint` says so.

    Args:
        process: what names begin with, such as `relief`.
        register: makes them; all are there before the first scrape.

    Raises:
        Misconfigured: the address, a certificate or a file of tokens can't be used.
        Unavailable: another process listens there.
    """
    with open_telemetry(settings, process):
        own = OwnMetrics(process)
        metrics = register(own)
        show(own)
        with _served(settings, own, process):
            yield metrics


@contextmanager
def _served(settings: Settings, own: OwnMetrics, process: str) -> Iterator[None]:
    exporter = settings.exporter
    if exporter.own_listen is None:
        yield
        return
    host, port = host_and_port(exporter.own_listen)
    files = exporter.files("exporter", exporter.scrape_tokens_file)
    guard = PortGuard(files, tokens_setting="scrape_tokens_file", now_seconds=time.monotonic)
    tls = tls_contexts(files)
    with own_port(own.text, host, port, setting="exporter.own_listen", tls=tls, guard=guard) as (shown, bound):
        scheme, name = "http" if tls is None else "https", f"[{shown}]" if ":" in shown else shown
        sys.stderr.write(f"metrics of {process} at {scheme}://{name}:{bound}{PATH}\n")
        sys.stderr.flush()
        yield
