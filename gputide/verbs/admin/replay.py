"""`gputide admin replay DIR`: a recorded fleet through the whole pipeline, and its users in the simulated cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from exporter.replay.paging import Lent
from fleet.data_folder import writing
from fleet.units import format_bytes_short, format_count, format_percent, format_time, parse_time
from gputide.replay.play import Playback
from gputide.replay.play import replay as replay_trace
from gputide.session import session_of

app = typer.Typer()


@app.command(epilog="Example: gputide admin replay traces/fleet --until 2026-01-12")
def replay(
    context: typer.Context,
    trace: Annotated[Path, typer.Argument(metavar="DIR", help="Folder in the neutral trace format.")],
    since: Annotated[str | None, typer.Option("--from", metavar="TIME", help="First moment that is sent.")] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="First moment that is not sent any more.")] = None,
    speed: Annotated[float | None, typer.Option(min=0.001, help="Trace seconds per second; else unbounded.")] = None,
    write_url: Annotated[
        str | None,
        typer.Option("--to", metavar="URL", help="Send to a receiver that runs; roll nothing up."),
    ] = None,
) -> None:
    """Feed a recorded fleet through receiver, bus, rollup and warehouse; the clock of the data folder follows it."""
    session = session_of(context)
    folder = session.folder(create=True)
    with writing(folder), session.progress("replaying (minutes of the trace)") as tick:
        playback = Playback(
            trace=trace,
            since=parse_time(since) if since is not None else None,
            until=parse_time(until) if until is not None else None,
            speed=speed,
            write_url=write_url,
        )
        done = replay_trace(folder, session.settings, playback, tick=tick)
    if done.samples == 0:
        typer.echo(f"nothing to send: the replay stands at {format_time(done.until)}")
        return
    typer.echo(
        f"replayed {format_time(done.since)} to {format_time(done.until)}: {format_count(done.samples)} samples in "
        f"{format_count(done.requests)} requests ({format_bytes_short(done.bytes_sent)}), "
        + (f"{format_count(done.rows)} rows in the warehouse" if write_url is None else f"taken by {write_url}")
    )
    if done.lent.cards:
        typer.echo(_lending(done.lent))
    if done.unplayed_pods:
        typer.echo(
            f"{format_count(done.unplayed_pods)} pods that plans moved or stopped in this data folder's simulated "
            "cluster are played as recorded, because of enforcer.cluster=kubernetes",
            err=True,
        )
    if done.pending_pods:
        typer.echo(f"{format_count(done.pending_pods)} pods wait for a card", err=True)


def _lending(lent: Lent) -> str:
    days = lent.played_seconds / 86400
    each = lent.switch_seconds / lent.switches if lent.switches else 0.0
    ratio = lent.switch_seconds / lent.work_seconds if lent.work_seconds else 0.0
    return (
        f"framebuffer was lent on {format_count(len(lent.cards))} cards: it came back {lent.switches / days:.2f} times "
        f"a day and card, for {each:.2f} s each, {format_percent(ratio, digits=3)} of the time in which pods work; at "
        f"most {format_bytes_short(round(lent.host_bytes))} lay in host memory"
    )
