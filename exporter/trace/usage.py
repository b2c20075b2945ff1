"""One file of samples of a trace, streamed in order of time in bounded memory.

Called by `exporter.trace.trace` for `usage.parquet` (rows of a pod on a card) and `card_usage.parquet` (rows of a
card). The file is read twice: `check` looks at every row before anything is passed on, so that a bad row at the end
leaves nothing half done; `windows` then hands the rows out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from exporter.trace.columns import Shape, TraceColumn, check_present, check_schema, measure_of, numbers, times_ms
from fleet.errors import Corrupt
from fleet.schema import Measure

BATCH_ROWS = 1 << 18
"""Rows that are decoded at once."""

ROWS_SORTED_MAX = 10_000_000
"""Rows up to which a file that is not in order of time is sorted in memory."""

STEP_SAMPLE_ROWS = 400_000
"""Rows from the start of the file in which the source's step is looked for."""

STEP_SECONDS_DEFAULT = 60
"""Step of a file in which no key has two samples."""

_RATIO_DECIMALS = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Consecutive rows of a sample file.

    Attributes:
        keys: number of the key that each row belongs to, shape `(rows,)`.
        ts_ms: end of the sampling step, epoch milliseconds, shape `(rows,)`.
        values: per measure that the file carries, shape `(rows,)`; NaN where a row holds none.
    """

    keys: npt.NDArray[np.int32]
    ts_ms: npt.NDArray[np.int64]
    values: Mapping[Measure, npt.NDArray[np.float64]]

    def part(self, rows: slice | npt.NDArray[np.int64]) -> Piece:
        """The rows chosen, in that order."""
        values = {measure: column[rows] for measure, column in self.values.items()}
        return Piece(keys=self.keys[rows], ts_ms=self.ts_ms[rows], values=values)


def joined(pieces: list[Piece], measures: tuple[Measure, ...]) -> Piece:
    """Pieces of one file, one after the other; `measures` name the columns where there is no piece."""
    if len(pieces) == 1:
        return pieces[0]
    if not pieces:
        empty = {measure: np.empty(0) for measure in measures}
        return Piece(keys=np.empty(0, np.int32), ts_ms=np.empty(0, np.int64), values=empty)
    return Piece(
        keys=np.concatenate([piece.keys for piece in pieces]),
        ts_ms=np.concatenate([piece.ts_ms for piece in pieces]),
        values={measure: np.concatenate([piece.values[measure] for piece in pieces]) for measure in measures},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """What the check of a file found.

    Attributes:
        first_ms: earliest time, None in an empty file.
        last_ms: latest time, None in an empty file.
        step_seconds: the source's own step, from the gaps between samples of one key.
        is_ordered: True where times never decrease.
    """

    rows: int
    first_ms: int | None
    last_ms: int | None
    step_seconds: int
    is_ordered: bool


KeyNumbers = Callable[[pa.RecordBatch, int], npt.NDArray[np.int32]]
"""Finds the key of every row of a batch; the second argument is the number of its first row, for messages."""


class SampleFile:
    """One Parquet file of samples.

    Args:
        columns: its columns; those that are text name the key.
        key_numbers: finds the key of every row, or raises `Corrupt`.

    Attributes:
        is_key_seen: per key, True where it has a row, shape `(key_count,)`.

    Raises:
        Corrupt: a column is missing or of the wrong type.
    """

    def __init__(self, path: Path, columns: tuple[TraceColumn, ...], key_numbers: KeyNumbers, key_count: int) -> None:
        self._path = path
        self._key_numbers = key_numbers
        self._key_count = max(1, key_count)
        with opened(path) as file:
            check_schema(path, file.schema_arrow, columns)
            names = set(file.schema_arrow.names)
            self._floats32 = {name for name in names if file.schema_arrow.field(name).type == pa.float32()}
        self._columns = tuple(column for column in columns if column.name in names)
        self.measures = tuple(found for column in self._columns if (found := measure_of(column.name)) is not None)
        self.is_key_seen = np.zeros(self._key_count, bool)
        self.extent = self._check()

    def windows(self, since_ms: int | None, until_ms: int, window_ms: int) -> Iterator[tuple[int, Piece]]:
        """The rows with since < ts ≤ until, window by window, also empty ones, each sorted by time.

        Args:
            since_ms: nothing up to here; None for everything from the first sample's step on.
            until_ms: nothing after here.

        Yields:
            The end of the window (never after `until_ms`) and its rows.
        """
        first = self.extent.first_ms if self.extent.first_ms is not None else until_ms
        begin = since_ms if since_ms is not None else first - self.extent.step_seconds * 1000
        end = min(begin + window_ms, until_ms)
        held: list[Piece] = []
        for piece in self._pieces_in_order():
            rest = self._between(piece, begin, until_ms)
            while len(rest.ts_ms) and rest.ts_ms[-1] > end:
                cut = int(np.searchsorted(rest.ts_ms, end, side="right"))
                held.append(rest.part(slice(0, cut)))
                yield end, joined(held, self.measures)
                held, rest = [], rest.part(slice(cut, None))
                end = min(end + window_ms, until_ms)
            if len(rest.ts_ms):
                held.append(rest)
            if len(piece.ts_ms) and piece.ts_ms[0] > until_ms:
                break
        while begin < end:
            yield end, joined(held, self.measures)
            if end == until_ms:
                return
            held, end = [], min(end + window_ms, until_ms)

    def _between(self, piece: Piece, since_ms: int, until_ms: int) -> Piece:
        low, high = np.searchsorted(piece.ts_ms, [since_ms, until_ms], side="right")
        return piece.part(slice(int(low), int(high)))

    def _pieces_in_order(self) -> Iterator[Piece]:
        if self.extent.is_ordered:
            for _, piece in self._pieces():
                yield piece
            return
        whole = joined([piece for _, piece in self._pieces()], self.measures)
        yield whole.part(np.argsort(whole.ts_ms, kind="stable"))

    def _pieces(self) -> Iterator[tuple[int, Piece]]:
        keys = [column for column in self._columns if column.shape is Shape.TEXT]
        with opened(self._path, dictionary=[column.name for column in keys]) as file:
            row = 0
            for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=[column.name for column in self._columns]):
                for column in keys:
                    check_present(self._path, column, batch.column(column.name), row)
                yield row, self._piece(batch, row)
                row += batch.num_rows

    def _piece(self, batch: pa.RecordBatch, row: int) -> Piece:
        ts_ms = np.empty(0, np.int64)
        values: dict[Measure, npt.NDArray[np.float64]] = {}
        for column in self._columns:
            measure = measure_of(column.name)
            if column.shape is Shape.TIME:
                ts_ms = times_ms(self._path, column, batch.column(column.name), row)
            elif measure is not None:
                floats = numbers(self._path, column, batch.column(column.name), row)
                if column.name in self._floats32 and column.name.endswith("_ratio"):
                    # 0.29 written as a 32-bit float reads as 0.28999999: the digits that it can hold are restored, or
                    # it would fall into the bin below.
                    floats = np.round(floats, _RATIO_DECIMALS)
                values[measure] = floats
        return Piece(keys=self._key_numbers(batch, row), ts_ms=ts_ms, values=values)

    def _check(self) -> Extent:
        rows, is_ordered, step = 0, True, STEP_SECONDS_DEFAULT
        first: int | None = None
        last: int | None = None
        head: list[Piece] = []
        # In order of time, repeats lie in one batch or across the border of two: the latest instant is carried over.
        recent, recent_rows = np.empty(0, np.int64), np.empty(0, np.int64)
        for row, piece in self._pieces():
            if not len(piece.ts_ms):
                continue
            is_ordered &= (last is None or piece.ts_ms[0] >= last) and bool((np.diff(piece.ts_ms) >= 0).all())
            self.is_key_seen[piece.keys] = True
            codes = self._codes(piece)
            row_numbers = np.arange(row, row + len(codes), dtype=np.int64)
            if is_ordered:
                self._refuse_repeats(np.r_[recent, codes], np.r_[recent_rows, row_numbers])
                is_recent = piece.ts_ms == piece.ts_ms[-1]
                recent, recent_rows = codes[is_recent], row_numbers[is_recent]
            elif row + len(codes) > ROWS_SORTED_MAX:
                raise Corrupt(
                    f"cannot read {self._path}: more than {ROWS_SORTED_MAX} rows and times that go back; sort it by ts"
                )
            low, high = int(piece.ts_ms.min()), int(piece.ts_ms.max())
            first = low if first is None else min(first, low)
            last = high if last is None else max(last, high)
            if rows < STEP_SAMPLE_ROWS:
                head.append(Piece(keys=piece.keys, ts_ms=piece.ts_ms, values={}))
                step = _step_seconds(joined(head, ()))
            rows += len(piece.ts_ms)
        if not is_ordered:
            codes = np.concatenate([self._codes(piece) for _, piece in self._pieces()])
            self._refuse_repeats(codes, np.arange(rows, dtype=np.int64))
        return Extent(rows=rows, first_ms=first, last_ms=last, step_seconds=step, is_ordered=is_ordered)

    def _codes(self, piece: Piece) -> npt.NDArray[np.int64]:
        codes: npt.NDArray[np.int64] = piece.ts_ms * self._key_count + piece.keys
        return codes

    def _refuse_repeats(self, codes: npt.NDArray[np.int64], row_numbers: npt.NDArray[np.int64]) -> None:
        ordered = np.sort(codes)
        if not (ordered[1:] == ordered[:-1]).any():
            return
        by_code = np.argsort(codes, kind="stable")
        second = by_code[1:][codes[by_code[1:]] == codes[by_code[:-1]]]
        raise Corrupt(
            f"cannot read {self._path}: row {int(row_numbers[second].min())} repeats the key and the ts of an earlier "
            "row; one row per key and time is allowed"
        )


@contextmanager
def opened(path: Path, dictionary: list[str] | None = None) -> Iterator[pq.ParquetFile]:
    """A Parquet file while it is read; `dictionary` names the text columns to be read as numbers into a dictionary.

    Raises:
        Corrupt: the file is absent, no Parquet file, or damaged where it is read.
    """
    try:
        with pq.ParquetFile(path, read_dictionary=dictionary or []) as file:
            yield file
    except FileNotFoundError as exc:
        raise Corrupt(f"cannot read {path}: no such file; a trace holds usage, pods and cards.parquet") from exc
    except (pa.ArrowException, OSError, UnicodeDecodeError) as exc:
        raise Corrupt(f"cannot read {path}: {' '.join(str(exc).split())[:300]}") from exc


def _step_seconds(piece: Piece) -> int:
    order = np.lexsort((piece.ts_ms, piece.keys))
    keys, ts_ms = piece.keys[order], piece.ts_ms[order]
    gaps = np.diff(ts_ms)[keys[1:] == keys[:-1]]
    gaps = gaps[gaps > 0]
    return max(1, round(float(np.median(gaps)) / 1000)) if len(gaps) else STEP_SECONDS_DEFAULT
