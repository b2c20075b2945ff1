"""A recorded fleet as histories: what was known when a plan had to be made, and the days it is judged on.

A simulation reads a trace straight into arrays, without receiver, bus and warehouse: those are measured elsewhere, and
a leaderboard plays the same days dozens of times. Called by `verbs.simulate`, the leaderboard and the bars.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import numpy as np

from exporter.trace.trace import Trace, epoch_ms
from fleet.errors import NotEnoughData
from fleet.schema import Measure
from fleet.usage import Float32, History, SliceGrid, SliceKey, UsageGrid
from recommender.simulate.stage import Stage, stage_of

WINDOW_STEPS = 144
"""Steps that are read at once."""


def read_history(trace: Trace, *, since: datetime, until: datetime, time_zone: str = "UTC") -> History:
    """Everything that was known of a trace at one moment.

    Args:
        until: the moment; nothing later is in the history.

    Returns:
        Inventory as of `until`, usage with since < ts ≤ until. One row per pod and card that was ever granted.

    Raises:
        NotEnoughData: the trace holds no step in that span.
    """
    step = trace.step_seconds
    steps = int((until - since).total_seconds() // step)
    if steps < 1:
        raise NotEnoughData(
            f"cannot read {trace.folder} from {since:%F %R} to {until:%F %R}: no step of {step} s in it"
        )
    start_ms = epoch_ms(since)
    values: dict[Measure, Float32] = {
        measure: np.full((len(trace.pairs), steps), np.nan, np.float32) for measure in trace.measures
    }
    for _, piece, _ in trace.usage_windows(since, since + timedelta(seconds=step * steps), WINDOW_STEPS):
        columns = (piece.ts_ms - start_ms - 1) // (step * 1000)
        for measure, column in piece.values.items():
            values[measure][piece.keys, columns] = column
    grid: SliceGrid = UsageGrid(
        keys=tuple(SliceKey.of(pair.grants[0]) for pair in trace.pairs),
        since=since,
        step_seconds=step,
        steps=steps,
        mean=values,
        peak=values,
    )
    return History(inventory=trace.inventory_at(until, time_zone=time_zone), slices=grid)


def set_stage(trace: Trace, *, cut: datetime, until: datetime, since: datetime | None = None) -> Stage:
    """One fold of a trace.

    Args:
        cut: when the plan is made; what lies before is known, what lies after is played.
        until: end of the last day that is played.
        since: start of what is known; the start of the trace unless given.

    Raises:
        NotEnoughData: no step before or after the cut.
    """
    begin = trace.since if since is None else since
    if not begin < cut < until <= trace.until:
        raise NotEnoughData(
            f"cannot play {cut:%F %R} to {until:%F %R} after learning from {begin:%F %R}: the trace holds "
            f"{trace.since:%F %R} to {trace.until:%F %R}"
        )
    known = read_history(trace, since=begin, until=cut)
    coming = read_history(trace, since=begin, until=until)
    # Pods that begin after the cut have cards of their own under every policy.
    return stage_of(known, replace(coming, inventory=known.inventory))
