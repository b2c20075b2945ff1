"""Which counters lie: cross-checks between a slice, its card and its own other counters.

A zero is not idleness when the card works and nobody else is on it (HAMi#2015: containers read 0 % under full load). A
counter that fails a check frees nothing: its pod's replicas speak for it, or nobody does. Remarks do not distrust: a
duty cycle of 100 % at low SM activity is how ranks that wait in a collective look, and says that the work is
inefficient, not that the number is wrong.

Called by `analyzer.profile` once per fleet; `CHECKS` names every check.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from analyzer.presence import Bools, Tenure, Timeline
from analyzer.state.idleness import ENGINES
from analyzer.still_counters import drawing_while_still, moving_while_still, still_beside_replicas
from fleet.inventory import CardId, WorkloadId
from fleet.profiles import Finding
from fleet.schema import Measure
from fleet.sentences import Value
from fleet.trust_thresholds import (
    ABOVE_ONE_MIN,
    CARD_BUSY_RATIO_MIN,
    FRAMEBUFFER_BYTES_MIN,
    FROZEN_BAND,
    FROZEN_STEPS_MIN,
    REPEATS_MIN,
    SHARE_MIN,
    SM_OVER_DUTY_MIN,
    SPIN_DUTY_MIN,
    SPIN_SHARE_MIN,
    SPIN_SM_MAX,
    ZERO_RATIO_MAX,
)
from fleet.usage import CardGrid, Float32, History, SliceGrid

FROZEN_SECONDS_MIN = 6 * 3600
"""How long a value must repeat to the last bit before it is frozen."""
SCALE_RATIO_BAND = (0.008, 0.0125)
"""A ratio between two counters of one thing near 1/100: one of them is a percentage that was divided twice."""

CHECKS = (
    "container_zero_while_card_busy",
    "zero_while_serving",
    "zero_while_moving",
    "zero_while_drawing",
    "zero_beside_replicas",
    "zero_beside_distrusted",
    "sm_active_above_duty_cycle",
    "frozen",
    "scale_off_by_100",
    "above_one",
    "out_of_range",
    "framebuffer_above_card",
    "framebuffer_scale",
    "framebuffer_zero_while_working",
    "spinning",
)
"""Names of the checks, as `Finding.check` carries them."""
_STUCK = ("zero_while_drawing", "zero_beside_replicas")
"""Checks that bear on neighbours: what a tenant's server says of its cache and tokens speaks for that tenant alone."""

Values = tuple[tuple[str, Value], ...]
_CELLS_PER_CHUNK = 4_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CardView:
    """What cards say of themselves, for comparison.

    Attributes:
        activity: per card, its activity, 0-1, (steps,), NaN where not seen.
        accounted: per card, activity of its tenants together, (steps,).
        fully_known: per card, steps in which every tenant was seen, (steps,).
        crowd: per card, number of tenants, (steps,).
        video: per card, activity of the busier one of encoder and decoder, 0-1, (steps,), NaN where not seen.
    """

    activity: Mapping[CardId, Float32]
    accounted: Mapping[CardId, Float32]
    fully_known: Mapping[CardId, Bools]
    crowd: Mapping[CardId, NDArray[np.int16]]
    video: Mapping[CardId, Float32]


def findings(
    lives: Sequence[Tenure],
    grid: SliceGrid,
    cards: CardGrid | None,
    level: Float32,
    view: CardView | None,
    line: Timeline,
) -> dict[int, tuple[Finding, ...]]:
    """Runs every check on every slice that has a row.

    Args:
        cards: what was collected of cards; None where no source measures them.
        level: largest engine activity of every row of the grid, (rows, steps).
        view: what the cards say; None where no source measures cards.

    Returns:
        Per row of the grid with findings, its findings in the order of `CHECKS`.
    """
    found: dict[int, list[Finding]] = defaultdict(list)
    with_row = [life for life in lives if life.row is not None]
    size = max(1, _CELLS_PER_CHUNK // max(1, line.steps))
    slices = _slices_of_pods(grid)
    for start in range(0, len(with_row), size):
        chunk = with_row[start : start + size]
        for row, finding in _of_chunk(chunk, grid, level, slices, view, line):
            found[row].append(finding)
    mean = {measure: values[:, : line.steps] for measure, values in grid.mean.items()}
    for check, still in (
        ("zero_while_drawing", () if cards is None else drawing_while_still(lives, level, cards, line.step_seconds)),
        ("zero_beside_replicas", still_beside_replicas(lives, level, mean, line.step_seconds)),
    ):
        for row, hit in still:
            found[row].append(_seen(check, Measure.DUTY_CYCLE, hit, line))
    for row, finding in _beside_stuck(with_row, found, level, line):
        found[row].append(finding)
    return {row: tuple(sorted(items, key=lambda item: CHECKS.index(item.check))) for row, items in found.items()}


def _beside_stuck(
    lives: Sequence[Tenure], found: Mapping[int, list[Finding]], level: Float32, line: Timeline
) -> list[tuple[int, Finding]]:
    """Tenants that never moved on a card where another's engines are known to stand still without being at rest."""
    of_row = {life.row: life.latest.card for life in lives if life.row is not None}
    stuck = {of_row[row] for row, items in found.items() if any(one.check in _STUCK for one in items)}
    beside = []
    for row, card in of_row.items():
        known = ~np.isnan(level[row])
        if card in stuck and row not in found and known.sum() >= FROZEN_STEPS_MIN and not (level[row] > 0).any():
            beside.append((row, _seen("zero_beside_distrusted", Measure.DUTY_CYCLE, known, line)))
    return beside


def _slices_of_pods(grid: SliceGrid) -> dict[int, list[int]]:
    """All rows of a row's pod, where it has several: its server speaks for them together."""
    pods: dict[str, list[int]] = defaultdict(list)
    for row, key in enumerate(grid.keys):
        pods[key.pod_id].append(row)
    return {row: rows for rows in pods.values() if len(rows) > 1 for row in rows}


def _of_chunk(
    chunk: Sequence[Tenure],
    grid: SliceGrid,
    level: Float32,
    slices: Mapping[int, list[int]],
    view: CardView | None,
    line: Timeline,
) -> Iterator[tuple[int, Finding]]:
    rows = np.array([life.row for life in chunk], np.int64)
    mean = {measure: values[rows, : line.steps] for measure, values in grid.mean.items()}
    engines = level[rows]
    video = _video_beside(chunk, mean, view, engines)
    if view is not None:
        yield from _against_cards(chunk, rows, engines, video, view, line)
    pods = engines.copy()
    for number, row in enumerate(rows.tolist()):
        if row in slices:
            pods[number] = np.fmax.reduce(level[slices[row]])
    yield from _against_serving(rows, mean, pods, video, line)
    moving, comparable = moving_while_still(mean, pods, line.step_seconds)
    for place in np.flatnonzero(_common(moving, comparable)):
        yield int(rows[place]), _seen("zero_while_moving", Measure.DUTY_CYCLE, moving[place], line)
    yield from _sm_against_duty(rows, mean, line)
    yield from _frozen(rows, mean, line)
    yield from _impossible(rows, mean, line)
    yield from _framebuffer(chunk, rows, mean, line)


def _video_beside(
    chunk: Sequence[Tenure], mean: Mapping[Measure, Float32], view: CardView | None, engines: Float32
) -> Float32:
    """Video engines of each slice's card, (rows, steps), NaN where the slice's own are collected and count instead.

    A transcoder works by them alone, and drivers report them per card more often than per container.
    """
    beside = np.full_like(engines, np.nan)
    for number, life in enumerate(chunk):
        of_card = None if view is None else view.video.get(life.latest.card)
        if of_card is not None:
            beside[number] = of_card
    for measure in (Measure.ENCODER, Measure.DECODER):
        if measure in mean:
            beside[~np.isnan(mean[measure])] = np.nan
    return beside


def _against_cards(
    chunk: Sequence[Tenure], rows: NDArray[np.int64], engines: Float32, video: Float32, view: CardView, line: Timeline
) -> Iterator[tuple[int, Finding]]:
    for number, life in enumerate(chunk):
        card = life.latest.card
        busy = view.activity.get(card)
        if busy is None:
            continue
        own = engines[number]
        comparable = (busy > CARD_BUSY_RATIO_MIN) & view.fully_known[card] & ~np.isnan(own)
        # Where the card is busy with video, the container's counters show nothing of it.
        comparable &= ~(video[number] >= busy)
        lies = comparable & (own <= ZERO_RATIO_MAX) & (view.accounted[card] <= ZERO_RATIO_MAX)
        if _is_common(lies.sum(), comparable.sum()):
            card_ratio = float(busy[lies].mean())
            yield (
                int(rows[number]),
                _seen("container_zero_while_card_busy", Measure.DUTY_CYCLE, lies, line, card_ratio=card_ratio),
            )
        sole = (view.crowd[card] == 1) & (busy > CARD_BUSY_RATIO_MIN) & (own > 0)
        if sole.sum() >= FROZEN_STEPS_MIN:
            ratio = float(np.median(own[sole] / busy[sole]))
            if SCALE_RATIO_BAND[0] <= ratio <= SCALE_RATIO_BAND[1]:
                yield int(rows[number]), _scale(Measure.DUTY_CYCLE, ratio, "of_card", line, sole)


def _against_serving(
    rows: NDArray[np.int64], mean: Mapping[Measure, Float32], engines: Float32, video: Float32, line: Timeline
) -> Iterator[tuple[int, Finding]]:
    """Nothing answers requests at full rate without a single engine of its pod moving."""
    if Measure.REQUEST_RATE not in mean:
        return
    serving = (mean[Measure.REQUEST_RATE] >= 1.0) & ~np.isnan(engines) & ~(video > ZERO_RATIO_MAX)
    lies = serving & (engines <= 0)
    for number in np.flatnonzero(_common(lies, serving)):
        yield int(rows[number]), _seen("zero_while_serving", Measure.DUTY_CYCLE, lies[number], line)


def _sm_against_duty(
    rows: NDArray[np.int64], mean: Mapping[Measure, Float32], line: Timeline
) -> Iterator[tuple[int, Finding]]:
    if Measure.SM_ACTIVE not in mean or Measure.DUTY_CYCLE not in mean:
        return
    sm, duty = mean[Measure.SM_ACTIVE], mean[Measure.DUTY_CYCLE]
    both = ~np.isnan(sm) & ~np.isnan(duty)
    above = both & (sm > duty + SM_OVER_DUTY_MIN)
    for number in np.flatnonzero(_common(above, both)):
        hit = above[number]
        ratios = _activity(sm[number], duty[number], hit)
        yield int(rows[number]), _seen("sm_active_above_duty_cycle", Measure.SM_ACTIVE, hit, line, **ratios)
    busy = both & (duty >= SPIN_DUTY_MIN)
    spins = busy & (sm < SPIN_SM_MAX)
    hundredth = both & (sm > 0) & (sm <= 0.0101) & (duty > CARD_BUSY_RATIO_MIN)
    works = (both & (duty > CARD_BUSY_RATIO_MIN)).sum(axis=1)
    for number in np.flatnonzero(hundredth.sum(axis=1) >= np.maximum(FROZEN_STEPS_MIN, 0.9 * works)):
        if _moves_together(sm[number], duty[number], hundredth[number]):
            ratio = float(np.median(sm[number][hundredth[number]] / duty[number][hundredth[number]]))
            spins[number] = False
            yield int(rows[number]), _scale(Measure.SM_ACTIVE, ratio, "of_duty_cycle", line, hundredth[number])
    counts, of = spins.sum(axis=1), busy.sum(axis=1)
    for number in np.flatnonzero((counts >= REPEATS_MIN) & (counts >= SPIN_SHARE_MIN * of)):
        hit = spins[number]
        found = _seen("spinning", Measure.DUTY_CYCLE, hit, line, **_activity(sm[number], duty[number], hit))
        yield int(rows[number]), replace(found, distrusts=False)


def _moves_together(first: Float32, second: Float32, where: Bools) -> bool:
    """A counter of the wrong scale still follows the other; tiny kernels at a full duty cycle do not."""
    one, two = first[where].astype(np.float64), second[where].astype(np.float64)
    if one.std() < 1e-6 or two.std() < 1e-3:
        return False
    return float(np.corrcoef(one, two)[0, 1]) > 0.9


def _scale(counter: Measure, ratio: float, other: str, line: Timeline, hit: Bools) -> Finding:
    return Finding(
        check="scale_off_by_100",
        counter=counter.value,
        values=_values(ratio=round(ratio, 6), other=other, windows=int(hit.sum())),
        since=line.end_of(int(np.argmax(hit)) - 1),
    )


def _frozen(rows: NDArray[np.int64], mean: Mapping[Measure, Float32], line: Timeline) -> Iterator[tuple[int, Finding]]:
    """A measured ratio or power that repeats to the last bit for hours is a value nobody refreshes."""
    at_least = max(FROZEN_STEPS_MIN, -(-FROZEN_SECONDS_MIN // line.step_seconds))
    if line.steps <= at_least:
        return
    compute = [measure for measure in (Measure.SM_ACTIVE, Measure.DUTY_CYCLE) if measure in mean]
    for measures, (low, high) in ((compute, FROZEN_BAND), ([Measure.POWER], (0.0, np.inf))):
        if not measures or measures[0] not in mean:
            continue
        # One compute counter may well stand still while the other moves; only together they prove that nobody looks.
        together = np.stack([mean[measure] for measure in measures])
        natural = np.asarray(~((together > low) & (together < high)).any(axis=0), bool)
        changed = ((together[:, :, 1:] != together[:, :, :-1]) & ~np.isnan(together[:, :, 1:])).any(axis=0)
        length, last = longest_runs(changed, natural)
        for number in np.flatnonzero(length >= at_least).tolist():
            at = int(last[number])
            shown = next(
                (one for place, one in enumerate(measures) if low < together[place, number, at] < high), measures[0]
            )
            yield (
                int(rows[number]),
                Finding(
                    check="frozen",
                    counter=shown.value,
                    values=_values(value=float(f"{mean[shown][number, at]:.6g}"), windows=int(length[number])),
                    since=line.end_of(at - int(length[number])),
                ),
            )


def longest_runs(changed: Bools, excluded: Bools) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Longest run of steps without a change in every row.

    Args:
        changed: True where a step differs from the one before, (rows, steps - 1).
        excluded: steps that belong to no run, (rows, steps), at least one step.

    Returns:
        Length of the longest run (0 where every step is excluded) and the step at its end, both (rows,).
    """
    steps = np.arange(excluded.shape[1], dtype=np.int32)
    begins = excluded.copy()
    begins[:, 0] = True
    begins[:, 1:] |= changed | excluded[:, :-1]
    begun = np.maximum.accumulate(np.where(begins, steps, 0), axis=1)
    length = np.where(excluded, 0, steps - begun + 1)
    last = length.argmax(axis=1).astype(np.int64)
    return length[np.arange(len(excluded)), last].astype(np.int64), last


def _impossible(
    rows: NDArray[np.int64], mean: Mapping[Measure, Float32], line: Timeline
) -> Iterator[tuple[int, Finding]]:
    for measure in (Measure.DUTY_CYCLE, Measure.SM_ACTIVE, Measure.MEMORY_ACTIVE, Measure.ENCODER, Measure.DECODER):
        if measure not in mean:
            continue
        for check, hit in (("above_one", mean[measure] > ABOVE_ONE_MIN), ("out_of_range", mean[measure] < 0)):
            for number in np.flatnonzero(hit.any(axis=1)):
                yield int(rows[number]), _seen(check, measure, hit[number], line)


def _framebuffer(
    chunk: Sequence[Tenure], rows: NDArray[np.int64], mean: Mapping[Measure, Float32], line: Timeline
) -> Iterator[tuple[int, Finding]]:
    if Measure.FRAMEBUFFER_USED not in mean:
        return
    used = mean[Measure.FRAMEBUFFER_USED]
    capacity = np.array([life.latest.framebuffer_bytes for life in chunk], np.float64)[:, None]
    above = used > 1.01 * capacity
    tiny = (used > 0) & (used < FRAMEBUFFER_BYTES_MIN)
    working = np.zeros(used.shape, bool)
    for measure in (Measure.SM_ACTIVE, Measure.DUTY_CYCLE):
        if measure in mean:
            working |= mean[measure] > CARD_BUSY_RATIO_MIN
    for check, hit in (
        ("framebuffer_above_card", above),
        ("framebuffer_scale", tiny),
        ("framebuffer_zero_while_working", working & (used <= 0)),
    ):
        for number in np.flatnonzero(_common(hit, ~np.isnan(used))):
            yield int(rows[number]), _seen(check, Measure.FRAMEBUFFER_USED, hit[number], line)


def _seen(check: str, counter: Measure, hit: Bools, line: Timeline, **values: float) -> Finding:
    """A check that failed in some steps, since the first of them."""
    return Finding(
        check=check,
        counter=counter.value,
        values=_values(windows=int(hit.sum()), **values),
        since=line.end_of(int(np.argmax(hit)) - 1),
    )


def _activity(sm: Float32, duty: Float32, hit: Bools) -> dict[str, float]:
    return {"sm_ratio": float(sm[hit].mean()), "duty_ratio": float(duty[hit].mean())}


def _values(**values: str | float) -> Values:
    """Values of a finding; ratios to four digits."""
    return tuple((n, round(v, 4) if n.endswith("_ratio") and isinstance(v, float) else v) for n, v in values.items())


def _common(hit: Bools, comparable: Bools) -> Bools:
    counts, of = hit.sum(axis=1), comparable.sum(axis=1)
    common: Bools = (counts >= REPEATS_MIN) & (counts >= SHARE_MIN * of)
    return common


def _is_common(count: int, of: int) -> bool:
    return bool(count >= REPEATS_MIN and count >= SHARE_MIN * of)


def on_compute(finding: Finding) -> bool:
    """Whether a finding is on what its slice computes, and not on its framebuffer."""
    return finding.counter != Measure.FRAMEBUFFER_USED.value


def disbelieved_pods(
    lives: Sequence[Tenure],
    members: Mapping[WorkloadId, Sequence[int]],
    distrust: Mapping[int, Sequence[Finding]],
) -> frozenset[str]:
    """Pods (`namespace/pod`) whose compute is better taken as not collected than held against their whole workload.

    Replicas do the same work: where at least as many live ones have counters that pass every check, these speak for
    the rest.

    Args:
        members: numbers of each live workload's slices in `lives`.
        distrust: findings of each slice, by its number.
    """
    found: set[str] = set()
    for numbers in members.values():
        lying = {lives[n].latest.pod_id for n in numbers if any(map(lies_on_compute, distrust.get(n, ())))}
        live = {lives[n].latest.pod_id for n in numbers if lives[n].is_live}
        if lying and 2 * len(live & lying) <= len(live):
            found |= lying
    return frozenset(found)


def lies_on_compute(finding: Finding) -> bool:
    """Whether a finding says that nothing its slice computes is known."""
    return finding.distrusts and on_compute(finding)


def without_compute(history: History, pods: Collection[str] | Mapping[str, datetime]) -> History:
    """A history as if the compute of some pods (`namespace/pod`) had not been collected, since a moment or at all."""
    grid = history.slices
    moments = pods if isinstance(pods, Mapping) else dict.fromkeys(pods, grid.since)
    first = {
        row: max(0, int((moments[key.pod_id] - grid.since).total_seconds() // grid.step_seconds))
        for row, key in enumerate(grid.keys)
        if key.pod_id in moments
    }
    return replace(history, slices=grid.without(ENGINES, first)) if first else history


def of_workload(per_slice: Sequence[tuple[Finding, ...]]) -> tuple[Finding, ...]:
    """One finding per check and counter for a whole workload: the first seen, saying how many slices share it.

    Args:
        per_slice: findings of each of its slices; an empty tuple where all checks passed.
    """
    groups: dict[tuple[str, str], list[Finding]] = defaultdict(list)
    for items in per_slice:
        for item in items:
            groups[item.check, item.counter].append(item)
    merged = []
    for (check, counter), alike in sorted(groups.items(), key=lambda group: CHECKS.index(group[0][0])):
        dated = [(item.since, item.values, item) for item in alike if item.since is not None]
        first = min(dated, key=lambda entry: entry[:2])[2] if dated else alike[0]
        several = _values(slices_found=len(alike), slices=len(per_slice)) if len(per_slice) > 1 else ()
        merged.append(
            Finding(
                check=check,
                counter=counter,
                values=first.values + several,
                since=first.since,
                distrusts=any(item.distrusts for item in alike),
            )
        )
    return tuple(merged)
