"""`gputide export`: the node exporter; here it serves a recorded fleet, so that any Prometheus can scrape it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from exporter.collector import Collector
from exporter.reader_replay import ReplayReader
from exporter.server import MetricsServer
from exporter.trace import open_trace
from fleet.units import parse_time
from gputide.addresses import host_and_port

app = typer.Typer()

STALE_INTERVALS = 5
"""Intervals without a reading after which `/healthz` says so."""


@app.command(epilog="Example: gputide export --replay traces/fleet --interval 15")
def export(
    replay: Annotated[Path, typer.Option(metavar="DIR", help="Folder in the neutral trace format to read from.")],
    since: Annotated[str | None, typer.Option("--from", metavar="TIME", help="Where in the trace to begin.")] = None,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Address to listen on.")] = "127.0.0.1:9400",
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two steps of the trace.")] = 15.0,
) -> None:
    """Serve /metrics: every card and slice, one step of the trace per interval; a scrape never waits for a reading."""
    host, port = host_and_port(listen)
    reader = ReplayReader(open_trace(replay), since=parse_time(since) if since is not None else None)
    collector = Collector(reader, interval_seconds=interval, deadline_seconds=interval)
    server = MetricsServer(collector, host=host, port=port, age_seconds_max=STALE_INTERVALS * interval)
    collector.start()
    typer.echo(f"serving http://{server.address[0]}:{server.address[1]}/metrics; Ctrl-C stops", err=True)
    try:
        server.serve()
    except KeyboardInterrupt:
        typer.echo("stopped", err=True)
    finally:
        collector.stop()
