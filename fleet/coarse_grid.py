"""A usage grid with longer steps, for what asks of hours and not of minutes: a fleet's plan needs no finer ones.

Called by the command line before it plans for a very large fleet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fleet.errors import Misconfigured
from fleet.schema import Measure
from fleet.usage import Float32, Key, UsageGrid


def coarse_grid(grid: UsageGrid[Key], step_seconds: int) -> UsageGrid[Key]:
    """The grid in longer steps: means over what was collected, and largest peaks; NaN where nothing was.

    Args:
        grid: usage; its last steps are left out where they fill no long one.
        step_seconds: length of the new steps, a multiple of the grid's.

    Raises:
        Misconfigured: the lengths don't fit.
    """
    factor, rest = divmod(step_seconds, grid.step_seconds)
    if rest or factor < 1:
        raise Misconfigured(
            f"cannot make steps of {step_seconds} s out of steps of {grid.step_seconds} s: not a whole multiple"
        )
    steps = grid.steps // factor
    return replace(
        grid,
        step_seconds=step_seconds,
        steps=steps,
        mean=_folded(grid.mean, steps, factor, is_peak=False),
        peak=_folded(grid.peak, steps, factor, is_peak=True),
    )


def _folded(planes: Mapping[Measure, Float32], steps: int, factor: int, *, is_peak: bool) -> dict[Measure, Float32]:
    folded: dict[Measure, Float32] = {}
    for measure, values in planes.items():
        blocks = values[:, : steps * factor].reshape(len(values), steps, factor)
        if is_peak:
            folded[measure] = np.fmax.reduce(blocks, axis=2)
            continue
        there = np.isfinite(blocks)
        count = there.sum(axis=2)
        total = np.where(there, blocks, 0.0).sum(axis=2, dtype=np.float64)
        folded[measure] = np.where(count > 0, total / np.maximum(1, count), np.nan).astype(np.float32)
    return folded
