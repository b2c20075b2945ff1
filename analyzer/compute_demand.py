"""How much of a card's computing a slice demands, from whichever counters there are: the one place that says so.

SM active says how much of the card was filled. The duty cycle says how often any kernel ran: no SM works without a
kernel, so it is an upper bound of SM active, and two slices whose duty cycles add up to less than a card's time hardly
slow each other down (Hu et al., Lucid, ASPLOS 2023: 801 measured pairs below 100 % together run at 0.97 to 1.00 of
their speed on average). Where a workload's SM active was collected for a while, or on some of its pods, the rest of its
history is read through what it showed at each duty cycle: turning the counter on does not throw the past away.

Called by `analyzer.survey`, `analyzer.cards`, `analyzer.succession` and `recommender.demand`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzer.presence import Bools, Tenure
from fleet.inventory import WorkloadId
from fleet.schema import Measure
from fleet.usage import Float32, UsageGrid

LEARNED_SECONDS_MIN = 86_400
"""How much time of a workload's slices must have both counters: what a day's load does to them."""
_BINS = 20
_QUANTILE = 0.95
"""Of SM active at a duty cycle: work that takes more of the card at the same duty cycle must be foreseen."""
_CELLS_MAX = 50_000
"""Most steps that one curve is learned from, evenly spread over all."""
_ROWS_AT_ONCE = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class DutyCurves:
    """How much SM active workloads show at most at each duty cycle.

    Attributes:
        of_row: number of the curve of each row of a grid, (rows,), -1 for none.
        limits: SM active, 0-1, rising with the duty cycle's twentieth, (curves, 20).
    """

    of_row: NDArray[np.int64]
    limits: Float32


def duty_curves(grid: UsageGrid[Any], owners: NDArray[np.int64], steps: int) -> DutyCurves | None:
    """Learns of every owner that has rows or steps with the duty cycle alone what its others say of them.

    Args:
        owners: number of each row's owner, whose rows do the same work, (rows,), -1 for nobody.

    Returns:
        Curves of the owners that need one and have `LEARNED_SECONDS_MIN` of both counters; None where nobody does.
    """
    if Measure.SM_ACTIVE not in grid.mean or Measure.DUTY_CYCLE not in grid.mean:
        return None
    sm, duty = grid.mean[Measure.SM_ACTIVE][:, :steps], grid.mean[Measure.DUTY_CYCLE][:, :steps]
    both, lacking = np.zeros(len(owners), np.int64), np.zeros(len(owners), bool)
    for part in _parts(len(owners)):
        has_sm, has_duty = ~np.isnan(sm[part]), ~np.isnan(duty[part])
        both[part], lacking[part] = (has_sm & has_duty).sum(axis=1), (has_duty & ~has_sm).any(axis=1)
    of_row = np.full(len(owners), -1, np.int64)
    limits: list[Float32] = []
    for owner in np.unique(owners[lacking & (owners >= 0)]).tolist():
        rows = np.flatnonzero(owners == owner)
        if both[rows].sum() * grid.step_seconds >= LEARNED_SECONDS_MIN:
            of_row[rows] = len(limits)
            limits.append(_curve(sm[rows], duty[rows]))
    return DutyCurves(of_row=of_row, limits=np.stack(limits)) if limits else None


def owners_of(lives: Sequence[Tenure], rows: int) -> NDArray[np.int64]:
    """Number of the workload of each row of a grid of slices, (rows,), -1 for a row that no grant explains."""
    number: dict[WorkloadId, int] = {}
    owners = np.full(rows, -1, np.int64)
    for life in lives:
        if life.row is not None:
            owners[life.row] = number.setdefault(life.workload_id, len(number))
    return owners


def _curve(sm: Float32, duty: Float32) -> Float32:
    """Limits of one owner; a duty cycle that was never seen has that of the next larger one that was, else its own."""
    known = ~np.isnan(sm) & ~np.isnan(duty)
    every = -(-int(known.sum()) // _CELLS_MAX)
    values, places = sm[known][::every], _bins(duty[known][::every])
    limits = np.full(_BINS, np.nan, np.float32)
    for place in np.unique(places).tolist():
        limits[place] = np.quantile(values[places == place], _QUANTILE)
    seen = ~np.isnan(limits)
    limits[seen] = np.maximum.accumulate(limits[seen])
    last = np.float32(1.0)
    for place in range(_BINS - 1, -1, -1):
        last = limits[place] = limits[place] if seen[place] else last
    return limits


def _bins(duty: Float32) -> NDArray[np.int64]:
    return np.clip(duty * _BINS, 0, _BINS - 1).astype(np.int64)


def demand(
    grid: UsageGrid[Any], rows: NDArray[np.int64], steps: int, curves: DutyCurves | None = None
) -> tuple[Float32, Bools]:
    """Compute that rows demand: SM active where it is collected, else what the duty cycle says of it.

    Returns:
        Demand 0-1, (len(rows), steps), NaN where not collected; and True per row where it stands on SM active. A row
        that no curve is known of has one counter throughout, that which was collected more often: a series never mixes
        a level with its upper bound.
    """
    found = np.full((len(rows), steps), np.nan, np.float32)
    by_sm = np.zeros(len(rows), bool)
    all_sm, all_duty = grid.mean.get(Measure.SM_ACTIVE), grid.mean.get(Measure.DUTY_CYCLE)
    for part in _parts(len(rows)):
        here = rows[part]
        sm, duty = _rows(all_sm, here, steps), _rows(all_duty, here, steps)
        curve = np.full(len(here), -1, np.int64) if curves is None else curves.of_row[here]
        found[part], by_sm[part] = better_of(sm, duty)
        for place in np.flatnonzero(curve >= 0).tolist():
            assert curves is not None
            limit = curves.limits[curve[place]]
            found[part][place] = np.where(np.isnan(sm[place]), _read(duty[place], limit), sm[place])
            by_sm[part][place] = True
    return found, by_sm


def better_of(sm: NDArray[Any], duty: NDArray[Any]) -> tuple[NDArray[Any], Bools]:
    """SM active or the duty cycle, row by row: SM active, unless the duty cycle was collected twice as often.

    Args:
        sm: SM active, (rows, steps), NaN where not collected.
        duty: the duty cycle, likewise.

    Returns:
        The chosen rows, and True where it is SM active.
    """
    has_sm, has_duty = (~np.isnan(sm)).sum(axis=1), (~np.isnan(duty)).sum(axis=1)
    by_sm = np.asarray((has_sm > 0) & (2 * has_sm >= has_duty), bool)
    return np.where(by_sm[:, None], sm, duty), by_sm


def _read(duty: Float32, limit: Float32) -> Float32:
    """The duty cycle as SM active: what was seen at it, and never more than itself."""
    known = ~np.isnan(duty)
    found = np.full(len(duty), np.nan, np.float32)
    found[known] = np.minimum(duty[known], limit[_bins(duty[known])])
    return found


def _rows(values: Float32 | None, rows: NDArray[np.int64], steps: int) -> Float32:
    return np.full((len(rows), steps), np.nan, np.float32) if values is None else values[rows, :steps]


def _parts(count: int) -> Iterator[slice]:
    """Part by part: of a very large fleet a second copy would be what fills the memory."""
    for start in range(0, count, _ROWS_AT_ONCE):
        yield slice(start, start + _ROWS_AT_ONCE)
