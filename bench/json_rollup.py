"""The baselines of the rollup's bar: consumers of per-sample JSON that add windows up in a dictionary.

What a team writes first: `orjson` for the message, one dictionary entry per series and minute, one level, no histogram.
And what it writes then to get the same rows as ours: all levels, and bucket counts of the measures that have them. No
care for repeats in either.
"""

from __future__ import annotations

from collections.abc import Iterable

import orjson

from fleet.schema import SLICE_MEASURES, WINDOW_SECONDS
from fleet.series import slice_series

_LEVELS_MS = tuple(seconds * 1000 for seconds in WINDOW_SECONDS)
_WITH_HISTOGRAM = frozenset(slice_series(column.measure) for column in SLICE_MEASURES if column.has_histogram)


def roll_up(messages: Iterable[bytes], window_ms: int) -> dict[tuple[object, ...], list[float]]:
    """Count, sum and maximum per series and window of messages as `standin_receiver` writes them."""
    windows: dict[tuple[object, ...], list[float]] = {}
    for message in messages:
        sample = orjson.loads(message)
        labels, value = sample["labels"], sample["value"]
        key = (
            sample["name"],
            labels.get("cluster"),
            labels.get("namespace"),
            labels.get("pod"),
            labels.get("container"),
            labels.get("node"),
            labels.get("card"),
            (sample["timestamp"] - 1) // window_ms,
        )
        window = windows.get(key)
        if window is None:
            windows[key] = [1, value, value]
        else:
            window[0] += 1
            window[1] += value
            window[2] = max(window[2], value)
    return windows


def roll_up_all_levels(messages: Iterable[bytes]) -> dict[tuple[object, ...], list[float]]:
    """The same for every level, with 101 bucket counts behind count, sum and maximum where a measure has them."""
    windows: dict[tuple[object, ...], list[float]] = {}
    for message in messages:
        sample = orjson.loads(message)
        labels, value, name, ended = sample["labels"], sample["value"], sample["name"], sample["timestamp"] - 1
        series = (
            name,
            labels.get("cluster"),
            labels.get("namespace"),
            labels.get("pod"),
            labels.get("container"),
            labels.get("node"),
            labels.get("card"),
        )
        has_histogram = name in _WITH_HISTOGRAM
        for level_ms in _LEVELS_MS:
            key = (series, level_ms, ended // level_ms)
            window = windows.get(key)
            if window is None:
                window = windows[key] = [0, 0.0, value, *([0] * 101 if has_histogram else ())]
            window[0] += 1
            window[1] += value
            window[2] = max(window[2], value)
            if has_histogram:
                window[3 + min(100, int(100 * value))] += 1
    return windows
