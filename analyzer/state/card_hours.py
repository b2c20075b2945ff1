"""What becomes of a card hour: unallocated, stranded, idle, idle but holding framebuffer, unused, or used.

The one definition behind every total: the fleet and tenants pages, `gputide cost`, the report, the API and the
exporter sum these parts. The parts of a card hour sum to the card hour, so that totals of cards, tenants, workloads
and days add up. Pure arrays; called by `dashboards.money.charged_days`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analyzer.state.idleness import gives_way
from fleet.profiles import HourMeasure
from fleet.settings.settings import AnalyzerSettings

HOUR_SECONDS = 3600

Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenHours:
    """What was seen of slices or cards, hour by hour.

    Attributes:
        known: compute was collected, shape (rows, hours).
        used: an engine peaked above `analyzer.idle_ratio_max`, or a request was served, shape (rows, hours).
        spins: what its engines did was nobody's request (`analyzer.state.idleness.serves_nobody`), and so is no use,
            shape (rows, hours).
    """

    known: Bools
    used: Bools
    spins: Bools


def window_hours(settings: AnalyzerSettings) -> int:
    """Length of the idle window (`analyzer.idle_seconds`) in whole hours, at least 1."""
    return max(1, -(-settings.idle_seconds // HOUR_SECONDS))


def idle_hours(
    slices: SeenHours,
    cards: SeenHours,
    card_of: NDArray[np.int64],
    *,
    held: Bools,
    is_low: Bools,
    settings: AnalyzerSettings,
) -> Bools:
    """Hours in which each slice was idle: they belong to an idle window, (slices, hours).

    An idle window is `analyzer.idle_seconds` long; the slice was allocated all through it, used nothing, and was seen
    in at least `analyzer.idle_coverage_min` of its hours. So an hour's answer depends on the window's length before
    and after it alone: parts of a week that are counted one by one add up to the week, where the arrays reach that far
    beyond each part. An hour within the window's length of the newest data can still become idle.

    A silent slice is seen where its card is. Its own zero is no evidence while its card works and no slice of the card
    says so, nor, at low priority, while a neighbour of higher priority works.

    Args:
        cards: what was seen of each card, shape (cards, hours).
        card_of: card of each slice, shape (slices,).
        held: the slice was allocated to somebody in the hour, shape (slices, hours).
        is_low: the slice is of low priority, shape (slices,).
    """
    used = slices.used & held
    by_slices = np.zeros_like(cards.used)
    np.logical_or.at(by_slices, card_of, used | (slices.spins & held))
    by_others = np.zeros_like(cards.used)
    np.logical_or.at(by_others, card_of, used & ~is_low[:, None])
    card_works = cards.used[card_of]
    known = slices.known | (cards.known[card_of] & ~card_works)
    known &= ~(card_works & ~by_slices[card_of])
    known &= ~(is_low[:, None] & gives_way(used, by_others[card_of]))
    quiet, window = held & ~used, window_hours(settings)
    is_window = (_sums(quiet, window) == window) & (_sums(known & quiet, window) >= settings.idle_coverage_min * window)
    return _sums(np.pad(is_window, ((0, 0), (window - 1, window - 1))), window) > 0


def measured_parts(
    allocated: NDArray[np.int64], used: NDArray[np.int64], *, is_idle: Bools, is_held: Bools
) -> dict[HourMeasure, NDArray[np.int64]]:
    """The allocated parts of card hours by measure; they sum to what was allocated.

    Args:
        allocated: part that each tenant was allocated, millionths of a card hour, shape (rows,).
        used: part that it used, in the same unit; more than was allocated counts as all of it.
        is_held: more framebuffer than `analyzer.idle_held_bytes_min` was held meanwhile.
    """
    unused = np.where(is_idle, 0, np.maximum(0, allocated - used))
    return {
        HourMeasure.IDLE: np.where(is_idle & ~is_held, allocated, 0),
        HourMeasure.IDLE_HELD: np.where(is_idle & is_held, allocated, 0),
        HourMeasure.UNUSED: unused,
        HourMeasure.USED: np.where(is_idle, 0, allocated - unused),
    }


def _sums(values: Bools, window: int) -> NDArray[np.int64]:
    """Sums over every window of consecutive hours, shape (rows, hours - window + 1)."""
    total = np.cumsum(np.pad(values, ((0, 0), (1, 0))), axis=1, dtype=np.int64)
    return total[:, window:] - total[:, :-window]
