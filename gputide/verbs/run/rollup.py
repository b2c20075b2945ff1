"""`gputide run rollup`: from the bus to windows in the warehouse."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from fleet.errors import Unavailable
from fleet.settings.pipeline import BusKind
from fleet.units import format_count
from gputide.container.bus import waiting_bytes
from gputide.container.own_metrics import open_own_metrics
from gputide.container.rollup import open_rollup
from gputide.session import Session, session_of
from pipeline.rollup.rollup import CountedRollup, Rollup, RollupMetrics, RollupStep

if TYPE_CHECKING:
    from pipeline.rollup.rollup_flink import FlinkRollup

app = typer.Typer()

LITTLE_ROWS = 100_000
"""A step that takes in fewer partial rows is followed by a pause (`rollup.pause_seconds`)."""
IDLE_SECONDS = 1.0
"""Pause between looks at an empty bus."""
RETRY_SECONDS_MAX = 30.0
"""Longest pause before what could not be reached is tried again."""


class RollupEngine(StrEnum):
    """What adds samples up."""

    DUCKDB = "duckdb"
    FLINK = "flink"


@app.command(epilog="Example: gputide run rollup --drain")
def rollup(
    context: typer.Context,
    drain: Annotated[bool, typer.Option(help="End when the bus is empty instead of waiting for more.")] = False,
    engine: Annotated[RollupEngine, typer.Option(help="What adds up: this process, or Flink.")] = RollupEngine.DUCKDB,
    explain: Annotated[bool, typer.Option(help="Print what the Flink job does, without secrets, and end.")] = False,
    cache: Annotated[Path | None, typer.Option(help="Folder for what is fetched of Flink.", show_default=False)] = None,
) -> None:
    """Take samples from the bus and add their windows to the warehouse, exactly once.

    Several processes may run on one data folder: they share the lanes of the bus.
    """
    session = session_of(context)
    if explain:
        from gputide.container.flink import job_description

        description = job_description(session.folder(create=True), session.settings, with_secrets=False)
        typer.echo(json.dumps(description.document(), indent=2))
        return
    rows = samples = corrupt = 0
    is_under_way = False
    with ExitStack() as opened:
        metrics = opened.enter_context(open_own_metrics(session.settings, "rollup", RollupMetrics))
        worker, is_drained, flink = _opened(engine, session, opened, metrics, cache)
        signal.signal(signal.SIGTERM, _interrupt)
        try:
            if flink is not None and drain:
                flink.settle(seconds_max=session.settings.flink.drain_seconds)
            while True:
                # What can't be reached from the start is likely wrong in the settings; later it is away for a while.
                began = time.monotonic()
                step = _step_or_wait(worker) if is_under_way and not drain else worker.step()
                is_under_way = True
                if step is not None:
                    rows, samples, corrupt = rows + step.rows, samples + step.samples, corrupt + step.corrupt
                    if step.samples < LITTLE_ROWS and not drain and flink is None:
                        time.sleep(max(0.0, began + session.settings.rollup.pause_seconds - time.monotonic()))
                elif drain and is_drained():
                    break
                else:
                    time.sleep(IDLE_SECONDS)
            if flink is not None:
                flink.stop()
        except KeyboardInterrupt:
            typer.echo("stopped between two steps; nothing is lost", err=True)
    typer.echo(f"{format_count(samples)} samples rolled up into {format_count(rows)} rows")
    if corrupt:
        typer.echo(f"{format_count(corrupt)} records could not be read and were passed over", err=True)


def _step_or_wait(worker: Rollup) -> RollupStep | None:
    """The next step; what can't be reached now is waited for, since nothing is lost meanwhile."""
    pause_seconds = IDLE_SECONDS
    while True:
        try:
            return worker.step()
        except Unavailable as exc:
            typer.echo(f"gputide: {exc}; trying again in {pause_seconds:.0f} s", err=True)
            time.sleep(pause_seconds)
            pause_seconds = min(2 * pause_seconds, RETRY_SECONDS_MAX)


def _opened(
    engine: RollupEngine, session: Session, opened: ExitStack, metrics: RollupMetrics, cache: Path | None
) -> tuple[Rollup, Callable[[], bool], FlinkRollup | None]:
    folder, settings = session.folder(create=True), session.settings
    if engine is RollupEngine.DUCKDB:
        embedded = opened.enter_context(open_rollup(folder, settings))
        if settings.bus.kind is BusKind.FILE:
            opened.enter_context(metrics.waiting_bytes.following(lambda: waiting_bytes(folder, settings)))
        return CountedRollup(embedded.rollup, metrics), embedded.is_drained, None
    from gputide.container.flink import open_flink_rollup
    from gputide.operate.engine_cache import default_cache_path

    place = cache or default_cache_path()
    flink_rollup, flink = opened.enter_context(open_flink_rollup(folder, settings, place))
    return CountedRollup(flink_rollup, metrics), lambda: True, flink


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
