"""Serves a reader's figures until SIGINT or SIGTERM: every form of `gputide run export` ends here.

The node exporter's process loads this module, so it reads no settings and draws no tables.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from types import FrameType

from exporter.collector import Collector, Derivation
from exporter.compat.translation import Compat
from exporter.reader import DeviceReader
from exporter.server import MetricsServer
from fleet.errors import GputideError
from fleet.listener_files import ListenerFiles
from wire.http_server import tls_contexts
from wire.port_guard import PortGuard

STALE_INTERVALS = 5
"""Intervals without a reading after which `/healthz` says so."""
PLAIN = ListenerFiles(section="exporter")
"""A port without TLS, open to anybody who reaches it."""


def serve(
    reader: DeviceReader,
    *,
    host: str,
    port: int,
    interval_seconds: float,
    compat: Iterable[Compat] = (),
    derivations: Sequence[Derivation] = (),
    files: ListenerFiles = PLAIN,
) -> None:
    """Collects in the background and answers scrapes, until SIGINT or SIGTERM.

    Args:
        reader: what is read; closed at the end.
        port: port; 0 picks a free one.
        interval_seconds: time between two readings, and longest time that one may take.
        compat: other exporters under whose names the figures are shown too.
        files: TLS of the port, and who may see figures.

    Raises:
        Misconfigured: the address, a certificate or a file of tokens can't be used.
        Unavailable: another process listens there.
    """
    collector = Collector(
        reader, interval_seconds=interval_seconds, deadline_seconds=interval_seconds, derivations=derivations
    )
    try:
        server = MetricsServer(
            collector,
            host=host,
            port=port,
            age_seconds_max=STALE_INTERVALS * interval_seconds,
            compat=compat,
            tls=tls_contexts(files),
            guard=PortGuard(files, tokens_setting="scrape_tokens_file", now_seconds=time.monotonic),
        )
    except GputideError:
        reader.close()
        raise

    def stop(_number: int, _frame: FrameType | None) -> None:
        # The thread that serves is this one: it can't wait for its own end.
        threading.Thread(target=server.stop, name="stop", daemon=True).start()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    collector.start(on_crash=server.stop)
    scheme = "http" if files.certificate_file is None else "https"
    _say(f"serving {scheme}://{_shown(server.address)}/metrics; Ctrl-C stops")
    try:
        server.serve()
    finally:
        collector.stop()
        for number, handler in before.items():
            signal.signal(number, handler)
    _say("stopped")


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _shown(address: tuple[str, int]) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
