"""Compute counters that stand at zero while other counters say that work was done; asked by `analyzer.trust`.

An idle pod holds its framebuffer to the byte, its cache does not fill, its card rests at a few dozen watts, and its
replicas behind one service are as idle as it. Where one of these moves hour after hour and all engines read zero, it is
the engines' counters that stand still.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from analyzer.presence import Bools, Tenure
from analyzer.state.idleness import ENGINES
from fleet.catalogue import find_model
from fleet.inventory import CardId, WorkloadId
from fleet.schema import Measure
from fleet.trust_thresholds import (
    CARD_BUSY_RATIO_MIN,
    FRAMEBUFFER_BYTES_MIN,
    FROZEN_STEPS_MIN,
    REPEATS_MIN,
    SHARE_MIN,
)
from fleet.usage import CardGrid, Float32

STILL_SECONDS_MIN = 86_400
"""For how long engines must stand still: a night of work below a counter's resolution is no lie."""
CACHE_MOVES_MIN = 0.002
"""How far the share of a KV cache in use must move from step to step."""
POWER_SHARE_MIN = 0.6
"""Share of its power limit that a card must draw: small ones rest at nearly half of it while a context is open."""

Still = tuple[int, Bools]
"""Row of a slice, and the steps in which its engines can't have stood still, (steps,)."""

_SERVING = (Measure.PROMPT_TOKEN_RATE, Measure.GENERATED_TOKEN_RATE, Measure.REQUESTS_RUNNING)
_MOVING = ((Measure.KV_CACHE_USAGE, CACHE_MOVES_MIN), (Measure.FRAMEBUFFER_USED, float(FRAMEBUFFER_BYTES_MIN)))


def moving_while_still(mean: Mapping[Measure, Float32], pods: Float32, step_seconds: int) -> tuple[Bools, Bools]:
    """Where cache or framebuffer move, or tokens flow, while every engine stands still for `STILL_SECONDS_MIN`.

    Args:
        mean: measures of rows, (rows, steps).
        pods: largest engine activity of each row's pod, (rows, steps), NaN unknown.

    Returns:
        Steps that contradict, and those that could have, both (rows, steps).
    """
    amid = _within_runs(np.asarray(pods <= 0, bool), _steps_min(step_seconds))
    moves = np.zeros_like(amid)
    for measure, least in _MOVING:
        if measure in mean:
            moves[:, 1:] |= _moves(mean[measure], least)
    for measure in _SERVING:
        if measure in mean:
            moves |= mean[measure] >= 1.0
    return amid & moves, amid


def _moves(values: Float32, least: float) -> Bools:
    return np.asarray(np.abs(np.diff(values, axis=1)) >= least, bool)


def _rests(mean: Mapping[Measure, Float32], row: int, others: Sequence[int]) -> bool:
    """Whether a measure that moves with the work of most other replicas stands still in a row."""
    for measure, least in _MOVING:
        values = mean.get(measure)
        if values is None or np.isnan(values[row]).all():
            continue
        shares = _moves(values[others], least).mean(axis=1)
        if np.median(shares) >= SHARE_MIN and not _moves(values[[row]], least).any():
            return True
    return False


def _steps_min(step_seconds: int) -> int:
    return max(FROZEN_STEPS_MIN, -(-STILL_SECONDS_MIN // step_seconds))


def _within_runs(still: Bools, steps_min: int) -> Bools:
    """Steps inside runs of at least so many, without the ends: there moves what was taken or given back for work."""
    found = np.zeros_like(still)
    edges = np.diff(np.pad(still.astype(np.int8), ((0, 0), (1, 1))), axis=1)
    (row, begin), (_, end) = np.nonzero(edges > 0), np.nonzero(edges < 0)
    for number in np.flatnonzero(end - begin >= steps_min).tolist():
        found[row[number], begin[number] + 2 : end[number] - 1] = True
    return found


def drawing_while_still(lives: Sequence[Tenure], level: Float32, cards: CardGrid, step_seconds: int) -> Iterator[Still]:
    """Slices whose card draws the power of work though all engines read zero: its own, and those of its tenants.

    Args:
        lives: every slice.
        level: largest engine activity of every row of the grid of slices, (rows, steps).

    Yields:
        Slices with a row, and the steps that contradict; those of cards without power or of unknown models never.
    """
    if Measure.POWER not in cards.mean:
        return
    tenants: dict[CardId, dict[int, Tenure]] = defaultdict(dict)
    for life in lives:
        if life.row is not None:
            tenants[life.latest.card][life.row] = life
    steps, of_cards = level.shape[1], {key.card: row for row, key in enumerate(cards.keys)}
    for card, own in tenants.items():
        model, row = find_model(next(iter(own.values())).latest.card_model), of_cards.get(card)
        if model is None or row is None:
            continue
        levels = [level[slice_row] for slice_row in own]
        levels += [cards.mean[measure][row, :steps] for measure in ENGINES if measure in cards.mean]
        with np.errstate(invalid="ignore"):
            still = np.asarray(np.fmax.reduce(levels) <= 0, bool)
        drawn = cards.mean[Measure.POWER][row, :steps]
        amid = _within_runs(still[None, :], _steps_min(step_seconds))[0]
        hit = np.asarray(amid & (drawn >= POWER_SHARE_MIN * model.watts_max), bool)
        if hit.sum() >= max(REPEATS_MIN, SHARE_MIN * (amid & ~np.isnan(drawn)).sum()):
            yield from ((slice_row, hit) for slice_row, life in own.items() if life.is_live)


def still_beside_replicas(
    lives: Sequence[Tenure], level: Float32, mean: Mapping[Measure, Float32], step_seconds: int
) -> Iterator[Still]:
    """Slices of live pods whose engines never moved while at least two other replicas of their workload were at work.

    A pod that leaves some of its cards idle moves. One that is really at rest is so in all its counters: where cache or
    framebuffer move with the others' work and stand still here, the engines are believed.

    Args:
        lives: every slice.
        level: largest engine activity of every row of the grid, (rows, steps).
        mean: measures of the same rows.

    Yields:
        Slices with a row, and the steps in which the median of the others was busy.
    """
    pods: dict[WorkloadId, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for life in lives:
        if life.is_live and life.row is not None:
            pods[life.workload_id][life.latest.pod_id].append(life.row)
    for replicas in pods.values():
        moved = {pod for pod, rows in replicas.items() if (level[rows] > 0).any()}
        if len(moved) == len(replicas) or len(moved) < 2:
            continue
        with np.errstate(invalid="ignore"), warnings.catch_warnings():
            # Steps in which nobody was seen.
            warnings.simplefilter("ignore", RuntimeWarning)
            usual = np.nanmedian([np.fmax.reduce(level[replicas[pod]]) for pod in sorted(moved)], axis=0)
        others = [row for pod in sorted(moved) for row in replicas[pod]]
        for row in (row for pod, rows in replicas.items() if pod not in moved for row in rows):
            if _rests(mean, row, others):
                continue
            busy = np.asarray((usual >= CARD_BUSY_RATIO_MIN) & ~np.isnan(level[row]), bool)
            if busy.sum() >= _steps_min(step_seconds) / 4:
                yield row, busy
