"""A recorded fleet as histories: what was known when a plan had to be made, and the days it is judged on.

A simulation reads a trace straight into arrays, without receiver, bus and warehouse: those are measured elsewhere, and
a leaderboard plays the same days dozens of times. Called by `verbs.simulate`, the leaderboard and the bars.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import numpy as np

from exporter.trace import Trace, epoch_ms
from fleet.errors import NotEnoughData
from fleet.schema import Measure
from fleet.usage import Float32, History, SliceGrid, SliceKey, UsageGrid

WINDOW_STEPS = 144
"""Steps that are read at once."""


def part_of(history: History, since: datetime, until: datetime) -> History:
    """The steps of a history between two moments; its inventory as it is."""
    grid = history.slices
    first, last = (round((moment - grid.since).total_seconds() / grid.step_seconds) for moment in (since, until))
    part: SliceGrid = UsageGrid(
        keys=grid.keys,
        since=grid.since + timedelta(seconds=first * grid.step_seconds),
        step_seconds=grid.step_seconds,
        steps=last - first,
        mean={measure: values[:, first:last] for measure, values in grid.mean.items()},
        peak={measure: values[:, first:last] for measure, values in grid.peak.items()},
    )
    return History(inventory=history.inventory, slices=part)


def read_history(trace: Trace, *, since: datetime, until: datetime, time_zone: str = "UTC") -> History:
    """Everything that was known of a trace at one moment.

    Args:
        trace: the trace.
        since: start of the first step.
        until: the moment; nothing later is in the history.
        time_zone: zone in which hours of the week are counted.

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
