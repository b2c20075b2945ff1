"""`gputide serve`: the web app."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from dashboards.app import Server
from fleet.addresses import host_and_port
from fleet.errors import Misconfigured
from gputide.assistant import offer
from gputide.container.access import open_web_app, usage_api
from gputide.container.pages import views_of
from gputide.container.telemetry import open_telemetry
from gputide.container.warehouse import cluster_name
from gputide.session import session_of, who

app = typer.Typer()

_SWITCH_SECONDS = 0.0005
"""How long one thread may let the others wait: with Python's 5 ms, newcomers wait for pages that are being made."""


@app.command(epilog="Example: gputide serve --port 8050")
def serve(
    context: typer.Context,
    port: Annotated[int | None, typer.Option(min=0, max=65535, help="Port; the setting dashboard.port else.")] = None,
) -> None:
    """Serve the pages: where cards are idle, what to do, one click to apply, one to undo."""
    session = session_of(context)
    folder, settings = session.folder(), session.settings
    web_port, usage_address = settings.dashboard.port if port is None else port, settings.usage_api.listen
    if usage_address is not None and 0 != web_port == host_and_port(usage_address)[1]:
        raise Misconfigured(
            f"cannot listen twice on port {web_port}: dashboard.port (or --port) and usage_api.listen={usage_address} "
            "must differ"
        )
    views = views_of(session, is_patient=False)
    with (
        open_telemetry(settings, "web"),
        usage_api(views, settings.usage_api, cluster=lambda: cluster_name(folder, settings)) as served,
    ):
        if served is not None:
            host, bound = served.address
            typer.echo(f"answering the Kubernetes API server on https://{host}:{bound}", err=True)
        app = open_web_app(views, settings.dashboard, operator=who(), assistant=offer(session), port=port)
        serve_until_stopped(app)


def serve_until_stopped(server: Server, *, as_what: str = "") -> None:
    """Say where the page is, after `as_what`, serve it until Ctrl-C, and give back its port."""
    typer.echo(f"{as_what}{server.address} (Ctrl-C stops)")
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        server.run()
    except KeyboardInterrupt:
        typer.echo("stopped", err=True)
    finally:
        server.close()
