"""`gputide rollup`: from the bus to windows in the warehouse."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from fleet.units import format_count
from gputide.session import session_of
from gputide.wiring import open_rollup

app = typer.Typer()

IDLE_SECONDS = 1.0
"""Pause between looks at an empty bus."""


@app.command(epilog="Example: gputide rollup --drain")
def rollup(
    context: typer.Context,
    drain: Annotated[bool, typer.Option(help="End when the bus is empty instead of waiting for more.")] = False,
) -> None:
    """Take samples from the bus and add their windows to the warehouse, exactly once."""
    session = session_of(context)
    rows = samples = corrupt = 0
    with open_rollup(session.folder(create=True), session.settings) as worker:
        try:
            while True:
                step = worker.step()
                if step is not None:
                    rows, samples, corrupt = rows + step.rows, samples + step.samples, corrupt + step.corrupt
                elif drain:
                    break
                else:
                    time.sleep(IDLE_SECONDS)
        except KeyboardInterrupt:
            typer.echo("stopped between two steps; nothing is lost", err=True)
    typer.echo(f"{format_count(samples)} samples rolled up into {format_count(rows)} rows")
    if corrupt:
        typer.echo(f"{format_count(corrupt)} records could not be read and were passed over", err=True)
