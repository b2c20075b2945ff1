"""`gputide receive`: the remote-write receiver that a Prometheus sends to."""

from __future__ import annotations

import threading
from typing import Annotated

import typer

from gputide.addresses import host_and_port
from gputide.session import session_of
from gputide.wiring import open_receiver

app = typer.Typer()


@app.command(epilog="Example: gputide receive --listen 0.0.0.0:9009")
def receive(
    context: typer.Context,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Address to listen on.")] = "127.0.0.1:9009",
) -> None:
    """Take remote-write bodies at /api/v1/write and put them on the bus; `gputide rollup` takes them from there."""
    session = session_of(context)
    host, port = host_and_port(listen)
    with open_receiver(session.folder(create=True), session.settings, host=host, port=port) as address:
        typer.echo(f"listening on http://{address[0]}:{address[1]}/api/v1/write; Ctrl-C stops", err=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            typer.echo("stopped; everything acknowledged is on the bus", err=True)
