"""From stored windows to a grid of one row per slice (or card) and one column per step. Called by the warehouse.

Files are read twice, a few columns at a time: first who and when, then one measure after the other, so that the memory
needed is that of the grid itself and of one measure's sums.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
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
STEP_IDENTITIES = 128
"""How many identities the step is found from at most."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The finest windows of one table and cluster: who and when.

    Attributes:
        identities: texts of each identity, in order of first occurrence.
        groups: per file and row group that was read: path, number of the row group.
        identity: per group, place in `identities` of each window, -1 for one outside; None where there are too many.
        window_start: per group, epoch milliseconds of each window; None likewise.
        level_seconds: length of the windows; the longest where it differs.
        step_seconds: the source's own step, see `_StepSample`.
        first_ms: start of the first window; None where there is none.
        last_ms: end of the last window; None where there is none.
    """

    identities: tuple[tuple[str, ...], ...]
    groups: tuple[tuple[Path, int], ...]
    opened: Callable[[Path], pq.ParquetFile]
    identity: tuple[NDArray[np.int32], ...] | None
    window_start: tuple[NDArray[np.int64], ...] | None
    level_seconds: int
    step_seconds: int
    first_ms: int | None
    last_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageFiles:
    """Row files of one usage table, and what of them is asked for.

    Attributes:
        names: columns that make an identity.
        opened: opens a file (`RowStore.opened`).
        since_ms: windows before it are left out; None for all.
        until_ms: windows that start at it or later are left out; None for all.
    """

    paths: tuple[Path, ...]
    names: tuple[str, ...]
    opened: Callable[[Path], pq.ParquetFile]
    since_ms: int | None = None
    until_ms: int | None = None

    def windows(
        self, numbers: dict[tuple[str, ...], int]
    ) -> Iterator[tuple[Path, int, int, NDArray[np.int32], NDArray[np.int64]]]:
        """Who and when, of the finest windows, row group by row group.

        Args:
            numbers: number of each identity; new ones are added.

        Yields:
            Path, row group, length of its windows in seconds, and per window the identity's number (-1 for a window
            that nobody asks for) and its start in epoch milliseconds.

        Raises:
            Corrupt: a file can't be read.
        """
        for path in self.paths:
            file = self.opened(path)
            # Each file's own finest level: the length of the windows may have been set anew since.
            levels = list(row_group_levels(file))
            for group in [group for group, level in enumerate(levels) if level == min(levels)]:
                table = file.read_row_group(group, columns=["window_start", *self.names])
                start = table.column("window_start").to_numpy()
                identity = _numbered(table, self.names, numbers)
                is_outside = np.zeros(len(start), dtype=np.bool_)
                if self.since_ms is not None:
                    is_outside |= start < self.since_ms
                if self.until_ms is not None:
                    is_outside |= start >= self.until_ms
                identity[is_outside] = -1
                yield path, group, min(levels), identity, start


def read_span(files: UsageFiles, rows_max: int | None = None) -> Span:
    """Who and when, of the finest windows in some files.

    Args:
        rows_max: windows up to which each one's identity and start is kept; None for all.

    Raises:
        Corrupt: a file can't be read.
    """
    numbers: dict[tuple[str, ...], int] = {}
    groups: list[tuple[Path, int]] = []
    identities: list[NDArray[np.int32]] = []
    starts: list[NDArray[np.int64]] = []
    coarsest, rows, is_kept = 0, 0, True
    first_ms: int | None = None
    last_ms: int | None = None
    sample = _StepSample()
    for path, group, level, identity, start in files.windows(numbers):
        coarsest = max(coarsest, level)
        inside = start[identity >= 0]
        if not len(inside):
            continue
        groups.append((path, group))
        first, last = int(start.min()), int(start.max())
        first_ms = first if first_ms is None else min(first_ms, first)
        last_ms = last if last_ms is None else max(last_ms, last)
        sample.add(identity, start, len(numbers))
        rows += len(start)
        if rows_max is not None and rows > rows_max:
            is_kept = False
            identities, starts = [], []
        if is_kept:
            identities.append(identity)
            starts.append(start)
    level_seconds = coarsest or MINUTE_MS // 1000
    return Span(
        identities=tuple(numbers),
        groups=tuple(groups),
        opened=files.opened,
        identity=tuple(identities) if is_kept else None,
        window_start=tuple(starts) if is_kept else None,
        level_seconds=level_seconds,
        step_seconds=sample.step_seconds(level_seconds),
        first_ms=first_ms,
        last_ms=None if last_ms is None else last_ms + level_seconds * 1000,
    )


class _StepSample:
    """The source's own step, from the windows of a hundred identities or so, evenly chosen; mutable: fed by groups.

    It is the gap between windows of one identity that most of the time is made of. Each gap weighs as much as it lasts;
    among equals the longest wins, since finer samples still fit into it and coarser ones would leave holes.
    """

    def __init__(self) -> None:
        self._stride = 1
        self._identity: list[NDArray[np.int32]] = []
        self._starts: list[NDArray[np.int64]] = []

    def add(self, identity: NDArray[np.int32], starts: NDArray[np.int64], identities: int) -> None:
        """Takes the windows of one row group; `identities` is how many are known by now."""
        while identities > STEP_IDENTITIES * self._stride:
            self._stride *= 2
            kept = [self._picked(column) for column in self._identity]
            self._identity = [column[mask] for column, mask in zip(self._identity, kept, strict=True)]
            self._starts = [column[mask] for column, mask in zip(self._starts, kept, strict=True)]
        picked = self._picked(identity)
        self._identity.append(identity[picked])
        self._starts.append(starts[picked])

    def step_seconds(self, level_seconds: int) -> int:
        """The step; that of the windows where no identity has two."""
        if not self._identity:
            return level_seconds
        identity, starts = np.concatenate(self._identity), np.concatenate(self._starts)
        order = np.lexsort((starts, identity))
        identity, starts = identity[order], starts[order]
        gaps = np.diff(starts)[np.diff(identity) == 0]
        values, counts = np.unique(gaps[gaps > 0], return_counts=True)
        if not len(values):
            return level_seconds
        weights = values * counts
        return max(int(values[weights == weights.max()].max()) // 1000, level_seconds)

    def _picked(self, identity: NDArray[np.int32]) -> NDArray[np.bool_]:
        return np.asarray((identity >= 0) & (identity % self._stride == 0), np.bool_)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """What a grid is made of.

    Attributes:
        keys: one per grid row.
        measures: measures to look for.
        rows: per identity of the span the grid rows that it counts for.
        since: start of the first step, a whole minute.
        steps: number of steps.
    """

    keys: tuple[Any, ...]
    measures: tuple[MeasureColumn, ...]
    rows: Sequence[tuple[int, ...]]
    since: datetime
    step_seconds: int
    steps: int

    def places(self, starts: NDArray[np.int64]) -> NDArray[np.int32]:
        """The step that each window lies in; before the first or after the last where it lies outside."""
        return ((starts - epoch_ms(self.since)) // (self.step_seconds * 1000)).astype(np.int32)


def fill_grid(span: Span, layout: Layout, *, is_kept: Collection[Measure] = ()) -> UsageGrid[Any]:
    """Adds the windows of a span, which holds them, into steps of the source's own length.

    Args:
        is_kept: measures that the grid has in any case; of the others one without any sample is left out.
    """
    places = [layout.places(starts) for starts in span.window_start or ()]
    targets = _targets(span, layout.rows, places, layout.steps)
    shape = (len(layout.keys), layout.steps)
    mean: dict[Measure, Float32] = {}
    peak: dict[Measure, Float32] = {}
    for column in layout.measures:
        filled = _fill_measure(span, column, targets, places, shape)
        if filled is None and column.measure in is_kept:
            nothing = np.full(shape, np.nan, np.float32)
            filled = nothing, nothing
        if filled is not None:
            mean[column.measure], peak[column.measure] = filled
    return UsageGrid(
        keys=layout.keys, since=layout.since, step_seconds=layout.step_seconds, steps=layout.steps, mean=mean, peak=peak
    )


def layers_of(rows: Sequence[tuple[int, ...]]) -> list[NDArray[np.int32]]:
    """What each identity counts for, one array per layer; -1 for nothing, and at the end for identity -1."""
    depth = max((len(targets) for targets in rows), default=0)
    return [
        np.array([targets[layer] if layer < len(targets) else -1 for targets in rows] + [-1], dtype=np.int32)
        for layer in range(depth)
    ]


def _targets(
    span: Span, rows: Sequence[tuple[int, ...]], places: Sequence[NDArray[np.int32]], steps: int
) -> list[list[NDArray[np.int32]]]:
    """Per group the grid row of each window; once more for identities that count for several rows."""
    layers = layers_of(rows)
    found = []
    for identity, place in zip(span.identity or (), places, strict=True):
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
    file: pq.ParquetFile | None = None
    of: Path | None = None
    for (path, group), layers, place in zip(span.groups, targets, places, strict=True):
        if file is None or path != of:
            file, of = span.opened(path), path
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
