"""From stored windows to a grid of one row per slice (or card) and one column per step. Called by the warehouse.

Files are read twice, a few columns at a time: first who and when, then one measure after the other, so that the memory
needed is that of the grid itself and of one measure's sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fleet.errors import Corrupt
from fleet.schema import Measure, MeasureColumn
from fleet.usage import Float32, UsageGrid
from pipeline.rollup import kernels
from pipeline.warehouse.row_store import row_group_levels

MINUTE_MS = 60_000
STEP_IDENTITIES = 256
"""How many identities the step is found from."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The finest windows of one table and cluster: who and when.

    Attributes:
        identities: texts of each identity, in order of first occurrence.
        groups: per file and row group that was read: path, number of the row group.
        identity: per group, place in `identities` of each window.
        window_start: per group, epoch milliseconds of each window.
        level_seconds: length of the windows; the longest where it differs.
    """

    identities: tuple[tuple[str, ...], ...]
    groups: tuple[tuple[Path, int], ...]
    opened: Callable[[Path], pq.ParquetFile]
    identity: tuple[NDArray[np.int32], ...]
    window_start: tuple[NDArray[np.int64], ...]
    level_seconds: int

    @property
    def first_ms(self) -> int | None:
        """Start of the first window; None where there is none."""
        return min((int(starts.min()) for starts in self.window_start if len(starts)), default=None)

    @property
    def last_ms(self) -> int | None:
        """End of the last window; None where there is none."""
        ends = [int(starts.max()) for starts in self.window_start if len(starts)]
        return max(ends) + self.level_seconds * 1000 if ends else None


def read_span(
    paths: Sequence[Path],
    names: tuple[str, ...],
    *,
    opened: Callable[[Path], pq.ParquetFile],
    since_ms: int | None,
    until_ms: int | None,
) -> Span:
    """Who and when, of the finest windows in some files.

    Args:
        paths: row files of one usage table.
        opened: opens one of them (`RowStore.opened`).
        since_ms: windows before it are left out; None for all.
        until_ms: windows that start at it or later are left out; None for all.

    Raises:
        Corrupt: a file can't be read.
    """
    numbers: dict[tuple[str, ...], int] = {}
    groups, identities, starts = [], [], []
    coarsest = 0
    for path in paths:
        file = opened(path)
        # Each file's own finest level: the length of the windows may have been set anew since.
        levels = list(row_group_levels(file))
        coarsest = max(coarsest, min(levels))
        for group in [group for group, level in enumerate(levels) if level == min(levels)]:
            table = file.read_row_group(group, columns=["window_start", *names])
            start = table.column("window_start").to_numpy()
            identity = _numbered(table, names, numbers)
            is_outside = np.zeros(len(start), dtype=np.bool_)
            if since_ms is not None:
                is_outside |= start < since_ms
            if until_ms is not None:
                is_outside |= start >= until_ms
            if is_outside.all():
                continue
            identity[is_outside] = -1
            groups.append((path, group))
            identities.append(identity)
            starts.append(start)
    return Span(
        identities=tuple(numbers),
        groups=tuple(groups),
        opened=opened,
        identity=tuple(identities),
        window_start=tuple(starts),
        level_seconds=coarsest or MINUTE_MS // 1000,
    )


def step_seconds_of(span: Span) -> int:
    """The source's own step: the gap between windows of one identity that most of the time is made of.

    Each gap weighs as much as it lasts; among equals the longest wins, since finer samples still fit into it and
    coarser ones would leave holes. Of many identities a few hundred, evenly chosen, are looked at.
    """
    asked = np.zeros(len(span.identities) + 1, dtype=np.bool_)
    asked[: -1 : max(1, len(span.identities) // STEP_IDENTITIES)] = True
    picked = [asked[identity] for identity in span.identity]
    if not picked:
        return span.level_seconds
    identity = np.concatenate([column[mask] for column, mask in zip(span.identity, picked, strict=True)])
    starts = np.concatenate([column[mask] for column, mask in zip(span.window_start, picked, strict=True)])
    order = np.lexsort((starts, identity))
    identity, starts = identity[order], starts[order]
    gaps = np.diff(starts)[np.diff(identity) == 0]
    values, counts = np.unique(gaps[gaps > 0], return_counts=True)
    if not len(values):
        return span.level_seconds
    weights = values * counts
    return max(int(values[weights == weights.max()].max()) // 1000, span.level_seconds)


def fill_grid(
    span: Span,
    keys: tuple[Any, ...],
    measures: Sequence[MeasureColumn],
    rows: Sequence[tuple[int, ...]],
    period: tuple[datetime, datetime],
) -> UsageGrid[Any]:
    """Adds the windows of a span into steps of the source's own length.

    Args:
        keys: one per grid row.
        measures: measures to look for; one without any sample is left out of the grid.
        rows: per identity of the span the grid rows that it counts for.
        period: start of the first step, a whole minute, and end of the last step at the latest.
    """
    (since, until), step_seconds = period, step_seconds_of(span)
    since_ms, until_ms = epoch_ms(since), epoch_ms(until)
    steps = max(0, -((since_ms - until_ms) // (step_seconds * 1000)))
    places = [((starts - since_ms) // (step_seconds * 1000)).astype(np.int32) for starts in span.window_start]
    targets = _targets(span, rows, places, steps)
    mean: dict[Measure, Float32] = {}
    peak: dict[Measure, Float32] = {}
    for column in measures:
        filled = _fill_measure(span, column, targets, places, (len(keys), steps))
        if filled is not None:
            mean[column.measure], peak[column.measure] = filled
    return UsageGrid(keys=keys, since=since, step_seconds=step_seconds, steps=steps, mean=mean, peak=peak)


def _targets(
    span: Span, rows: Sequence[tuple[int, ...]], places: Sequence[NDArray[np.int32]], steps: int
) -> list[list[NDArray[np.int32]]]:
    """Per group the grid row of each window; once more for identities that count for several rows."""
    depth = max((len(targets) for targets in rows), default=0)
    layers = [
        np.array([targets[layer] if layer < len(targets) else -1 for targets in rows] + [-1], dtype=np.int32)
        for layer in range(depth)
    ]
    found = []
    for identity, place in zip(span.identity, places, strict=True):
        inside = (place >= 0) & (place < steps)
        found.append([np.where(inside, layer[identity], np.int32(-1)) for layer in layers])
    return found


def _fill_measure(
    span: Span,
    column: MeasureColumn,
    targets: list[list[NDArray[np.int32]]],
    places: Sequence[NDArray[np.int32]],
    shape: tuple[int, int],
) -> tuple[Float32, Float32] | None:
    name = column.measure.value
    grid: kernels.Sums | None = None
    for (path, group), layers, place in zip(span.groups, targets, places, strict=True):
        file = span.opened(path)
        if f"{name}_count" not in file.schema_arrow.names:
            continue  # the file is older than the measure
        try:
            seen = file.read_row_group(group, columns=[f"{name}_count"]).column(0).to_numpy()
            if not seen.any():
                continue
            table = file.read_row_group(group, columns=[f"{name}_sum", f"{name}_max"])
        except (OSError, pa.ArrowException) as exc:
            raise Corrupt(f"cannot read {path}: {exc}") from exc
        if grid is None:
            grid = kernels.Sums(
                counts=np.zeros(shape, dtype=np.int32), totals=np.zeros(shape), maxima=np.full(shape, -np.inf)
            )
        windows = kernels.Sums(
            counts=seen, totals=table.column(0).fill_null(0).to_numpy(), maxima=table.column(1).fill_null(0).to_numpy()
        )
        for layer in layers:
            kernels.add_to_grid(layer, place, windows, grid)
    if grid is None or not grid.counts.any():
        return None
    counts, sums, maxima = grid
    is_missing = counts == 0
    counts[is_missing] = 1
    sums /= counts
    sums /= column.scale
    maxima /= column.scale
    sums[is_missing] = np.nan
    maxima[is_missing] = np.nan
    return sums.astype(np.float32), maxima.astype(np.float32)


def _numbered(table: pa.Table, names: tuple[str, ...], numbers: dict[tuple[str, ...], int]) -> NDArray[np.int32]:
    """The number of each row's identity; rows of one identity stand together, so only changes are looked up."""
    codes, texts = [], []
    for name in names:
        column = table.column(name).combine_chunks()
        column = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        codes.append(column.indices.to_numpy())
        texts.append(column.dictionary.to_pylist())
    changed = np.zeros(table.num_rows, dtype=np.bool_)
    changed[:1] = True
    for code in codes:
        changed[1:] |= np.diff(code) != 0
    starts = np.flatnonzero(changed)
    found = [
        numbers.setdefault(tuple(text[code] for text, code in zip(texts, row, strict=True)), len(numbers))
        for row in zip(*(code[starts].tolist() for code in codes), strict=True)
    ]
    return np.repeat(np.array(found, dtype=np.int32), np.diff(np.append(starts, table.num_rows)))


def epoch_ms(moment: datetime) -> int:
    """Epoch milliseconds of an aware time."""
    return round((moment - _EPOCH) / timedelta(milliseconds=1))


def moment_of(milliseconds: int) -> datetime:
    """The UTC time of epoch milliseconds."""
    return _EPOCH + timedelta(milliseconds=milliseconds)
