"""From when to when somebody was there, by the windows that hold samples of it.

Called by `seats`. What a scan could not see of a time (the source was down) is nobody's absence: a gap counts by the
time in which others were seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pipeline.records.sightings import SILENT_SECONDS
from pipeline.warehouse.usage_grid import Span

_QUARTER_MS = 900_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """A time in which somebody was there.

    Attributes:
        first_ms: start of its first window, epoch milliseconds.
        last_ms: end of its last window.
    """

    first_ms: int
    last_ms: int


def seen_quarters(spans: Sequence[Span]) -> NDArray[np.int64]:
    """The quarters of an hour in which anybody was seen, ascending, counted from 1970."""
    starts = [column[identity >= 0] for span in spans for identity, column in _columns(span)]
    return np.unique(np.concatenate([np.empty(0, dtype=np.int64), *starts]) // _QUARTER_MS)


def periods_of(span: Span, seen: NDArray[np.int64], *, until_ms: int) -> Mapping[tuple[str, ...], tuple[Period, ...]]:
    """The periods of every identity, in order of time.

    A pod that was gone for longer than `SILENT_SECONDS` while others were seen, and came back by the same name (as
    those of a StatefulSet do), has two.

    Args:
        seen: when anybody was seen (`seen_quarters`).
        until_ms: nothing ends after it.
    """
    if not span.identity:
        return {}
    found_identities, found_starts = zip(*_columns(span), strict=True)
    identity, starts = np.concatenate(found_identities), np.concatenate(found_starts)
    is_inside = identity >= 0
    identity, starts = identity[is_inside], starts[is_inside]
    order = np.lexsort((starts, identity))
    identity, starts = identity[order], starts[order]
    ends = starts + span.level_seconds * 1000
    # Between two windows of one identity: how many quarters of an hour were seen of anybody.
    between = np.searchsorted(seen, starts[1:] // _QUARTER_MS) - np.searchsorted(
        seen, (ends[:-1] - 1) // _QUARTER_MS, side="right"
    )
    is_new = np.ones(len(identity), dtype=np.bool_)
    is_new[1:] = (np.diff(identity) != 0) | (between * _QUARTER_MS > SILENT_SECONDS * 1000)
    firsts = np.flatnonzero(is_new)
    lasts = np.append(firsts[1:], len(identity)) - 1
    found: dict[tuple[str, ...], list[Period]] = {}
    for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True):
        period = Period(first_ms=int(starts[first]), last_ms=min(int(ends[last]), until_ms))
        found.setdefault(span.identities[int(identity[first])], []).append(period)
    return {texts: tuple(periods) for texts, periods in found.items()}


def _columns(span: Span) -> Iterator[tuple[NDArray[np.int32], NDArray[np.int64]]]:
    yield from zip(span.identity or (), span.window_start or (), strict=True)
