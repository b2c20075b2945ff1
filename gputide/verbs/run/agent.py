"""`gputide run agent`: the node side of the enforcer, and a check of what co-location really does on this node."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from enforcer.agent.colocation_check import ColocationCheck, Verdict, check_colocation
from enforcer.agent.loop import AgentMetrics, stop_on_signals
from enforcer.agent.node_view import NodeReader, NodeView
from fleet.documents import document
from fleet.errors import EXIT_FINDINGS, EXIT_FINE, NotEnoughData
from fleet.settings.settings import Settings
from fleet.units import format_percent
from gputide.container.agent import open_agent, open_node_reader
from gputide.container.own_metrics import open_own_metrics
from gputide.node_exporter import node_name
from gputide.options import answering
from gputide.output import Answer, Listing
from gputide.session import Session, session_of

app = typer.Typer(
    help="Run the agent of this node: low priority gives way, framebuffer stays free, limits change while pods run.",
)

SETTLE_SECONDS = 2.0
"""How long after a burst began low priority may still be seen working: the driver's figures are means over a second."""


@app.callback(invoke_without_command=True, epilog="Example: gputide --set agent.give_way=strict run agent")
def agent(context: typer.Context) -> None:
    """Look at this node twice a second and act; on SIGTERM everybody who was put to sleep wakes."""
    if context.invoked_subcommand is not None:
        return
    session = session_of(context)
    with (
        open_own_metrics(session.settings, "agent", AgentMetrics) as metrics,
        open_agent(session.folder(create=True), session.settings, metrics) as loop,
    ):
        stop_on_signals(loop)
        typer.echo(f"agent of {node_name(session.settings.exporter.node)} runs; Ctrl-C stops", err=True)
        loop.run()
    typer.echo("stopped; everybody that was put to sleep is awake", err=True)


@app.command(epilog="Example: gputide run agent check --seconds 120")
@answering
def check(
    session: Session,
    seconds: Annotated[float, typer.Option(min=1.0, max=86400.0, help="How long to look.")] = 120.0,
) -> Answer:
    """Look at shared cards, change nothing, and say whether low priority really does nothing beside high priority.

    Exit status 1 where it does, 3 where no card was shared.
    """
    settings = session.settings
    with open_node_reader(settings) as reader:
        views = _watched(reader, settings, seconds)
    found = check_colocation(views, working_ratio=settings.agent.working_ratio, settle_seconds=SETTLE_SECONDS)
    if not found.situations:
        node = node_name(settings.exporter.node)
        raise NotEnoughData(f"no card of {node} was shared by high and low priority in {seconds:g} s")
    return _answer(found)


def _watched(reader: NodeReader, settings: Settings, seconds: float) -> list[NodeView]:
    interval = settings.agent.interval_seconds
    until = time.monotonic() + seconds
    views = []
    while time.monotonic() < until:
        began = time.monotonic()
        # The API server's word on the pods may be still on its way at the first looks.
        views.append(reader.read(max(interval, 1.0)))
        time.sleep(max(0.0, interval - (time.monotonic() - began)))
    return views


def _answer(found: ColocationCheck) -> Answer:
    listing = Listing.of(
        "High and low priority on one card",
        found.situations,
        {
            "card": lambda entry: entry.card,
            "situation": lambda entry: entry.situation.value.replace("_", " "),
            "looks": lambda entry: entry.looks,
            "high": lambda entry: _percent(entry.high_duty_ratio),
            "low": lambda entry: _percent(entry.low_duty_ratio),
            "low at most": lambda entry: _percent(entry.low_duty_max),
            "verdict": lambda entry: entry.verdict.value.replace("_", " "),
        },
    )
    resolution = "unknown" if found.resolution_seconds is None else f"{found.resolution_seconds:.2f} s"
    return Answer(
        document={
            "resolution_seconds": found.resolution_seconds,
            "unmeasured_looks": found.unmeasured_looks,
            "situations": document(found.situations),
        },
        listings=(listing,),
        footnotes=(
            f"looked every {resolution}: what happens between two looks is not seen",
            f"{found.unmeasured_looks} looks without a measured duty cycle were left out",
        ),
        status=EXIT_FINDINGS if any(one.verdict is Verdict.BROKEN for one in found.situations) else EXIT_FINE,
    )


def _percent(ratio: float | None) -> str:
    return "" if ratio is None else format_percent(ratio, digits=1)
