"""When is a slice in use, and when was it last: the one place that says which steps count as idle.

A step is *used* when any engine of the slice (SM, duty cycle, memory, encoder, decoder) peaks above the limit, or its
server answered a request or had one in work; so a transcoder that never touches an SM is not idle, and neither is a
standby that answers one request an hour. Where a server says that it answers nobody and has nothing in work, what its
engines do is no use: ranks that poll each other and empty batches fill a duty cycle without a request. Only SM
activity that polling can't explain still counts then, for something else may work in that container. Peaks count, not
means: data loading and checkpoints look idle for minutes on average. A step is *known* only where compute itself (SM
active or duty cycle) was collected: a gap is never idleness.

Called by `analyzer.profile` and `analyzer.cards`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analyzer.presence import Bools, Timeline
from fleet.schema import Measure
from fleet.settings.settings import AnalyzerSettings
from fleet.trust_thresholds import SPIN_SM_MAX
from fleet.usage import Float32, UsageGrid

ENGINES = (Measure.SM_ACTIVE, Measure.DUTY_CYCLE, Measure.MEMORY_ACTIVE, Measure.ENCODER, Measure.DECODER)
"""Measures of which any one above the limit means that the card works."""
COMPUTE = (Measure.SM_ACTIVE, Measure.DUTY_CYCLE)
"""Measures of which one must have been collected before anything can be called idle; the better one first."""
SERVING = (
    Measure.REQUESTS_RUNNING, Measure.REQUEST_RATE, Measure.GENERATED_TOKEN_RATE, Measure.PROMPT_TOKEN_RATE,
)  # fmt: skip
"""Measures of a pod's server of which any one above zero means that it works."""
POLLING_MAX = {Measure.SM_ACTIVE: SPIN_SM_MAX, Measure.ENCODER: 0.0, Measure.DECODER: 0.0}
"""What engines do at most for nobody; above it something else works beside the server."""
NEAR_USE_SHARE = 0.5
"""Share of the idle limit from which a silent step is nearly a used one."""
DAY_SEEN_MIN = 0.8
"""Share of a day that must have been seen before the day counts."""
_CELLS_PER_CHUNK = 4_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """What was seen and used; arrays of shape (rows, steps).

    Attributes:
        seen: a row exists.
        known: compute was collected.
        used: an engine peaked above the limit, or a request was answered or in work.
        spins: an engine peaked above the limit, and its server had nobody to serve; not used.
        level: largest engine activity, mean of the step, 0-1, NaN where none was collected.
    """

    seen: Bools
    known: Bools
    used: Bools
    spins: Bools
    level: Float32


def activity(grid: UsageGrid[Any], steps: int, settings: AnalyzerSettings) -> Activity:
    """Activity of every row of a grid of slices or cards, worked off in chunks of rows.

    Returns:
        Arrays (rows, steps).
    """
    rows = len(grid.keys)
    seen = np.zeros((rows, steps), bool)
    known = np.zeros((rows, steps), bool)
    used = np.zeros((rows, steps), bool)
    spins = np.zeros((rows, steps), bool)
    level = np.full((rows, steps), np.nan, np.float32)
    alone = _alone(grid, np.arange(rows))
    size = max(1, _CELLS_PER_CHUNK // max(1, steps))
    for start in range(0, rows, size):
        part = slice(start, start + size)
        for measure, values in grid.mean.items():
            chunk = values[part, :steps]
            there = ~np.isnan(chunk)
            seen[part] |= there
            if measure in COMPUTE:
                known[part] |= there
            if measure in ENGINES:
                np.fmax(level[part], chunk, out=level[part])
                # A comparison with NaN is False, as it must be: what was not collected was not used either.
                used[part] |= grid.peak.get(measure, values)[part, :steps] > settings.idle_ratio_max
        spins[part] = used[part] & serves_nobody(grid, np.arange(rows)[part], steps, alone[part])
        used[part] &= ~spins[part]
        for measure in SERVING:
            if measure in grid.mean:
                used[part] |= grid.mean[measure][part, :steps] > 0
    return Activity(seen=seen, known=known, used=used, spins=spins, level=level)


def serves_nobody(grid: UsageGrid[Any], rows: NDArray[np.int64], steps: int, alone: Bools) -> Bools:
    """Where a server answered nobody and had nothing in work, and its engines do no more than polling does.

    A server speaks for its pod: of a pod whose containers share the cards, which of them works is not known.

    Args:
        alone: `alone_in_pod` of these rows.

    Returns:
        Mask (len(rows), steps); False wherever the server did not say both (`says_nobody`).
    """
    peaks = {measure: grid.peak.get(measure, values)[rows, :steps] for measure, values in grid.mean.items()}
    told = {measure: peaks[measure] <= 0 for measure in SERVING if measure in peaks}
    nobody = says_nobody(told, alone[:, None] & np.zeros((1, steps), bool)) & alone[:, None]
    for measure, limit in {**dict.fromkeys(SERVING, 0.0), **POLLING_MAX}.items():
        if measure in peaks:
            nobody &= ~(peaks[measure] > limit)
    return nobody


def says_nobody(told: Mapping[Measure, Bools], nothing: Bools) -> Bools:
    """Where a server speaks of what it has in work, and of what it answered: in requests, or in tokens alone.

    Args:
        nothing: False everywhere, of the shape of these.
    """
    answers = told.get(Measure.REQUEST_RATE, nothing) | told.get(Measure.GENERATED_TOKEN_RATE, nothing)
    return told.get(Measure.REQUESTS_RUNNING, nothing) & answers


def _alone(grid: UsageGrid[Any], rows: NDArray[np.int64]) -> Bools:
    """`alone_in_pod` of rows that hold all containers of their pods; of cards, and where no server speaks, False."""
    if Measure.REQUESTS_RUNNING not in grid.mean:
        return np.zeros(len(rows), bool)
    keys = [grid.keys[row] for row in rows.tolist()]
    return alone_in_pod([(key.namespace, key.pod, key.container) for key in keys])


def alone_in_pod(slices: Sequence[tuple[str, str, str]]) -> Bools:
    """Whether no other container of its pod is on a card, of slices by namespace, pod and container, (slices,)."""
    containers: dict[tuple[str, str], set[str]] = defaultdict(set)
    for namespace, pod, container in slices:
        containers[namespace, pod].add(container)
    return np.array([len(containers[namespace, pod]) == 1 for namespace, pod, _ in slices], bool)


def nearly_used(
    grid: UsageGrid[Any], rows: NDArray[np.int64], steps: int, settings: AnalyzerSettings
) -> NDArray[np.bool_]:
    """Steps in which any engine of some rows came near the limit of idleness or passed it, (steps,).

    What trickles along just below the limit crosses it by chance sooner or later.
    """
    near, nobody = np.zeros(steps, bool), serves_nobody(grid, rows, steps, _alone(grid, rows))
    for measure in ENGINES:
        if measure in grid.mean:
            peaks = grid.peak.get(measure, grid.mean[measure])[rows, :steps]
            near |= ((peaks > NEAR_USE_SHARE * settings.idle_ratio_max) & ~nobody).any(axis=0)
    return near


@dataclass(frozen=True, slots=True, kw_only=True)
class Idleness:
    """Whether a set of slices of one owner is idle.

    Attributes:
        is_idle: nothing was used in the whole window, and the window was seen well enough.
        idle_since: end of the last used step; where none is in the record, its first known step; None if not idle.
        coverage_ratio: known windows / windows lived in the window, 0-1.
    """

    is_idle: bool
    idle_since: datetime | None
    coverage_ratio: float


def idleness(
    known: Bools,
    used: Bools,
    lived: Bools,
    stride: NDArray[np.int64],
    line: Timeline,
    settings: AnalyzerSettings,
    *,
    is_live: bool,
) -> Idleness:
    """Whether slices of one owner were idle through the whole window that ends now.

    They are judged together, so pods that crash and start again are seen by their owner's record. Windows that passed
    after the end of the history count as lived and unseen: a dead exporter makes nothing idle.

    Args:
        known: compute was collected, (rows, steps).
        used: something was used, (rows, steps).
        lived: lived through the step, (rows, steps).
        stride: own step of each row's source, (rows,).
        is_live: True where a slice still lives.

    Returns:
        The verdict. The owner must have lived for the whole window's length.
    """
    window = max(1, settings.idle_seconds // line.step_seconds)
    first = max(0, line.steps + line.missing_steps - window)
    recent = slice(first, line.steps)
    anybody = lived.any(axis=0)
    born = int(np.argmax(anybody)) if anybody.any() else line.steps
    age_seconds = (line.steps + line.missing_steps - born) * line.step_seconds
    missing = min(window, line.missing_steps) * int(is_live)
    windows = float((lived[:, recent].sum(axis=1) / stride).sum()) + missing
    with_row = float(
        np.minimum((known & lived)[:, recent].sum(axis=1), np.ceil(lived[:, recent].sum(axis=1) / stride)).sum()
    )
    ratio = min(1.0, with_row / windows) if windows else 0.0
    is_idle = (
        ratio >= settings.idle_coverage_min
        and not used[:, recent].any()
        and age_seconds >= settings.idle_seconds - line.slack_seconds
    )
    if not is_idle:
        return Idleness(is_idle=False, idle_since=None, coverage_ratio=ratio)
    ever = np.flatnonzero(used.any(axis=0))
    begun = int(ever[-1]) if len(ever) else int(np.argmax(known.any(axis=0))) - 1
    return Idleness(is_idle=True, idle_since=line.end_of(begun), coverage_ratio=ratio)


@dataclass(frozen=True, slots=True, kw_only=True)
class Weekdays:
    """Days of the week on which an owner's slices worked or rested; 0 is Monday.

    Attributes:
        active: something was used on one of them, as far as the record goes.
        silent: seen within the last seven days, and nothing was used.
    """

    active: tuple[int, ...]
    silent: tuple[int, ...]


def weekdays(
    known: Bools, used: Bools, lived: Bools, stride: NDArray[np.int64], line: Timeline, day_of_step: NDArray[np.int64]
) -> Weekdays:
    """On which days of the week slices of one owner worked, and which of them passed in silence since.

    A day of the week comes once in seven days, at either end of them in two parts, so a day on which the owner worked
    is silent only when all of its hours came again.

    Args:
        known: compute was collected, (rows, steps).
        used: something was used, (rows, steps).
        lived: lived through the step, (rows, steps).
        stride: own step of each row's source, (rows,).
        line: the steps; those that passed after the end of the history were not seen.
        day_of_step: local day of the week of every step, 0-6, (steps,).
    """
    per_day = 86400 / line.step_seconds
    week = slice(max(0, round(line.steps + line.missing_steps - 7 * per_day)), line.steps)
    days = day_of_step[week]
    windows = np.bincount(days, weights=lived[:, week].sum(axis=0), minlength=7)
    with_row = np.bincount(days, weights=stride @ (known & lived)[:, week], minlength=7)
    # Rows of many slices do not stand for hours: however many there are, a day is seen only if it was lived through.
    passed = np.bincount(days[lived[:, week].any(axis=0)], minlength=7)
    is_seen = (with_row >= DAY_SEEN_MIN * windows) & (passed >= DAY_SEEN_MIN * per_day)
    works: Bools = np.asarray(used.any(axis=0), bool)
    worked = np.bincount(days[works[week]], minlength=7) > 0
    return Weekdays(
        active=tuple(np.unique(day_of_step[works]).tolist()), silent=tuple(np.flatnonzero(is_seen & ~worked).tolist())
    )


def gives_way(low: Bools, neighbours_used: Bools) -> Bools:
    """Steps in which low priority work did nothing because a neighbour on its card worked: no sign of idleness.

    Args:
        low: used by the low priority slice, (steps,).
        neighbours_used: used by any high or normal priority neighbour, (steps,).

    Returns:
        True where silence proves nothing, (steps,).
    """
    return neighbours_used & ~low
