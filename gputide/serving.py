"""Serves the web page until somebody stops it. Called by `gputide serve` and `gputide demo`."""

from __future__ import annotations

import typer

from dashboards.app import Server


def serve_until_stopped(server: Server, *, as_what: str = "") -> None:
    """Say where the page is, serve it until Ctrl-C, and let go of its port.

    Args:
        server: listens already.
        as_what: what is said before the address.
    """
    typer.echo(f"{as_what}{server.address} (Ctrl-C stops)")
    try:
        server.run()
    except KeyboardInterrupt:
        typer.echo("stopped", err=True)
    finally:
        server.close()
