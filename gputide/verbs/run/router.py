"""`gputide run router`: requests of models that share a card asleep wake them."""

from __future__ import annotations

import asyncio
import resource
import signal
import time
from importlib.util import find_spec

import typer

from enforcer.router.shared_card import RouterMetrics
from fleet.addresses import host_and_port
from fleet.errors import Misconfigured
from fleet.settings.relief import RouterSettings
from gputide.container.own_metrics import open_own_metrics
from gputide.session import session_of

app = typer.Typer()


@app.command(epilog="Example: gputide --config router.toml run router")
def router(context: typer.Context) -> None:
    """Pass requests on to the models of one card, and wake those that sleep.

    A model has a port of its own (`router.models`): give its Service the router's pods and that port. A request wakes
    its model; where it does not fit beside those that are awake (`router.card_bytes`), models without a request fall
    asleep, the one that rested longest first. Servers are vLLM with sleep mode, and only the router should reach them.
    One router a card: it alone knows who has a request.
    """
    settings = session_of(context).settings
    if find_spec("aiohttp") is None:
        raise Misconfigured("cannot route without aiohttp: pip install 'gputide[router]' brings it")
    if not settings.router.models or settings.router.card_bytes is None:
        raise Misconfigured("cannot route without models: set router.card_bytes and router.models")
    with open_own_metrics(settings, "router", RouterMetrics) as metrics:
        asyncio.run(_route(settings.router, settings.router.card_bytes, metrics))
    typer.echo("stopped; models stay as they are", err=True)


async def _route(settings: RouterSettings, card_bytes: int, metrics: RouterMetrics) -> None:
    from enforcer.router.model_router import RoutedModel, routing
    from wire.listener_tls import ListenerContexts

    models = []
    for one in settings.models:
        host, port = host_and_port(one.listen)
        models.append(RoutedModel(name=one.name, host=host, port=port, server=one.server, limit_bytes=one.limit))
    files = settings.files("router", None)
    is_plain = files.certificate_file is None
    tls = None if is_plain else ListenerContexts(files, needs_client=True, now_seconds=time.monotonic).context
    # Each waiting client is an open file, and containers often begin with 1,024.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    stopped, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    async with routing(
        models, card_bytes=card_bytes, wait_seconds=settings.wait_seconds, metrics=metrics, tls=tls
    ) as ports:
        for one in settings.models:
            typer.echo(f"{one.name} at port {ports[one.name]}, served by {one.server}", err=True)
        typer.echo("routing; Ctrl-C stops", err=True)
        await stopped.wait()
