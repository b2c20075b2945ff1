"""A stored history in parts: its rows are sorted by part into files of a folder, from which each part is then read.

To read each part out of the warehouse's files would need no second copy, but a file holds pods by name and cards by
node, and a part holds whole workloads with their cards: every part would read nearly every row of `card_usage`.

Both steps are made of jobs that know all they need and go to any process: sorting some files, and reading one part.
Called by `gputide.container.history`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fleet.durable import unwritable
from fleet.errors import Corrupt
from fleet.inventory import Inventory
from fleet.schema import Measure
from fleet.usage import History, UsageGrid
from pipeline.warehouse.stored_history import StoredGrid, StoredHistory
from pipeline.warehouse.usage_grid import Layout, Span, UsageFiles, fill_grid, layers_of

Cut = tuple[Inventory, Sequence[int], Sequence[int]]
"""One part: its inventory, and its rows in the grids of slices and of cards."""

Runner = Callable[[Callable[["SortJob"], "Sorted"], Sequence["SortJob"]], Iterator["Sorted"]]
"""Runs jobs, here (`map`) or in other processes, and gives their answers in order."""

_BUFFERED_ROWS = 1_000_000
"""Rows that are sorted by part at a time, by all processes: some 100 MB; of fewer a part's lie in more pieces."""
_BUFFERED_ROWS_MIN = 250_000
"""Rows that each of them holds in any case."""
_JOBS_PER_PROCESS = 4
"""Sorting jobs of one table: more of them than processes, since files differ in size."""
_GROUPS_PER_FILE = 16
"""Row groups of a file that is being written: what it knows of each of them stays in memory until it is closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Table:
    """One table of a history and where its rows belong.

    Attributes:
        layout: of the whole, without its keys and rows.
        has_row: whether an identity counts for any grid row; False at the end, for a row that is left out.
        layers: for which part each identity counts, -1 for none, and its number there; more than one layer where an
            identity counts for several parts. The last place is for a row that is left out.
    """

    files: UsageFiles
    identities: tuple[tuple[str, ...], ...]
    layout: Layout
    has_row: NDArray[np.bool_]
    layers: tuple[tuple[NDArray[np.int32], NDArray[np.int32]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sorted:
    """What one job has written.

    Attributes:
        measures: those of which a grid row has a sample.
        paths: files by part.
    """

    measures: frozenset[Measure]
    paths: dict[int, tuple[Path, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SortJob:
    """Rows of some files of one table, to be sorted by part.

    Attributes:
        folder: an empty folder.
        rows: rows that are held at a time, at least 1.
    """

    table: _Table
    folder: Path
    rows: int

    def run(self) -> Sorted:
        """Do it.

        Raises:
            Corrupt: a file can't be read, or the folder can't be written.
        """
        try:
            self.folder.mkdir(parents=True)
            return _Sorting(self).done()
        except OSError as exc:
            raise unwritable(self.folder, exc) from exc


@dataclass(frozen=True, slots=True, kw_only=True)
class _PartTable:
    """The files of one part of a table, and the grid that they make."""

    paths: tuple[Path, ...]
    span: Span
    layout: Layout
    measures: frozenset[Measure]

    def read(self) -> UsageGrid[Any]:
        """The grid, as if rows were taken from the whole; the files go."""
        groups, identities, starts = [], [], []
        for path in self.paths:
            file = _opened(path)
            for group in range(file.num_row_groups):
                table = file.read_row_group(group, columns=["identity", "window_start"])
                groups.append((path, group))
                identities.append(table.column(0).to_numpy())
                starts.append(table.column(1).to_numpy())
        span = replace(self.span, groups=tuple(groups), identity=tuple(identities), window_start=tuple(starts))
        grid = fill_grid(span, self.layout, is_kept=self.measures)
        for path in self.paths:
            path.unlink()
        return grid

    def collected(self, measures: Collection[Measure]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Where the grid has anything, and where it has any of these measures, (rows, steps) both; the files stay."""
        seen, known = np.zeros((2, len(self.layout.keys), self.layout.steps), np.bool_)
        layers = layers_of(self.layout.rows)
        counts = [f"{measure.value}_count" for measure in measures]
        for path in self.paths:
            file = _opened(path)
            names = [name for name in counts if name in file.schema_arrow.names]
            for group in range(file.num_row_groups):
                table = file.read_row_group(group, columns=["identity", "window_start", *names])
                place = self.layout.places(table.column("window_start").to_numpy())
                has_any = np.zeros(len(place), np.bool_)
                for name in names:
                    has_any |= table.column(name).to_numpy() > 0
                for layer in layers:
                    row = layer[table.column("identity").to_numpy()]
                    inside = (row >= 0) & (place >= 0) & (place < self.layout.steps)
                    seen[row[inside], place[inside]] = True
                    known[row[inside & has_any], place[inside & has_any]] = True
        return seen, known


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPart:
    """One part of a stored history, on disk.

    Attributes:
        slice_rows: its rows in the grid of slices of the whole.
        card_rows: its rows in the grid of cards of the whole.
    """

    inventory: Inventory
    slices: _PartTable
    cards: _PartTable | None
    slice_rows: Sequence[int]
    card_rows: Sequence[int]

    def read(self) -> History:
        """The part, in memory; once, since its files go.

        Raises:
            Corrupt: a file can't be read or removed.
        """
        with _readable():
            cards = None if self.cards is None else self.cards.read()
            return History(inventory=self.inventory, slices=self.slices.read(), cards=cards)

    def collected(self, measures: Collection[Measure]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Where slices have a row, and where they have any of these measures, (rows, steps) both; as often as asked.

        Raises:
            Corrupt: a file can't be read.
        """
        with _readable():
            return self.slices.collected(measures)


@contextmanager
def _readable() -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as exc:
        raise Corrupt(f"cannot read a part of the history: {exc}") from exc


def sorted_parts(
    stored: StoredHistory,
    cuts: Sequence[Cut],
    folder: Path,
    *,
    run: Runner,
    processes: int = 1,
) -> Iterator[StoredPart]:
    """The parts of a history, sorted and still to be read.

    Args:
        cuts: per part its inventory and its rows in the grids of slices and of cards.
        folder: an empty folder on a disk with room for as much as the warehouse has of these four weeks.
        run: what runs the sorting jobs.
        processes: how many of them run at a time.

    Raises:
        Corrupt: a file can't be read, or the folder can't be written.
    """
    grids = [(stored.slices, [rows for _, rows, _ in cuts])]
    if stored.cards is not None:
        grids.append((stored.cards, [rows for _, _, rows in cuts]))
    members = [_members(grid.layout, rows_of) for grid, rows_of in grids]
    jobs = [
        _jobs(grid, found, folder / str(number), processes)
        for number, ((grid, _), found) in enumerate(zip(grids, members, strict=True))
    ]
    answers = run(SortJob.run, [job for of_table in jobs for job in of_table])
    tables = [
        _part_tables(grid, rows_of, found, list(islice(answers, len(of_table))))
        for (grid, rows_of), found, of_table in zip(grids, members, jobs, strict=True)
    ]
    for (inventory, slice_rows, card_rows), slices, *cards in zip(cuts, *tables, strict=True):
        yield StoredPart(
            inventory=inventory,
            slices=slices,
            cards=cards[0] if cards else None,
            slice_rows=slice_rows,
            card_rows=card_rows,
        )


def _members(layout: Layout, rows_of: Sequence[Sequence[int]]) -> list[list[int]]:
    """The identities that count for each part."""
    parts_of: dict[int, list[int]] = {}
    for number, rows in enumerate(rows_of):
        for row in rows:
            parts_of.setdefault(row, []).append(number)
    members: list[list[int]] = [[] for _ in rows_of]
    for identity, targets in enumerate(layout.rows):
        for part in {part for row in targets for part in parts_of.get(row, ())}:
            members[part].append(identity)
    return members


def _jobs(grid: StoredGrid, members: Sequence[Sequence[int]], folder: Path, processes: int) -> list[SortJob]:
    parts: list[tuple[int, ...]] = [()] * len(grid.layout.rows)
    numbers: list[tuple[int, ...]] = [()] * len(grid.layout.rows)
    for part, identities in enumerate(members):
        for number, identity in enumerate(identities):
            parts[identity] += (part,)
            numbers[identity] += (number,)
    table = _Table(
        files=grid.files,
        identities=grid.span.identities,
        layout=replace(grid.layout, keys=(), rows=()),
        has_row=np.array([bool(targets) for targets in grid.layout.rows] + [False], np.bool_),
        layers=tuple(zip(layers_of(parts), layers_of(numbers), strict=True)),
    )
    has_windows = {path for path, _ in grid.span.groups}
    paths = [path for path in grid.files.paths if path in has_windows]
    count = max(1, min(len(paths), 1 if processes == 1 else _JOBS_PER_PROCESS * processes))
    return [
        SortJob(
            table=replace(table, files=replace(grid.files, paths=tuple(paths[number::count]))),
            folder=folder / str(number),
            rows=max(_BUFFERED_ROWS_MIN, _BUFFERED_ROWS // processes),
        )
        for number in range(count)
    ]


def _part_tables(
    grid: StoredGrid, rows_of: Sequence[Sequence[int]], members: Sequence[Sequence[int]], answers: Sequence[Sorted]
) -> Iterator[_PartTable]:
    measures = frozenset[Measure]().union(*(answer.measures for answer in answers))
    span = replace(grid.span, identities=(), groups=(), opened=_opened, identity=None, window_start=None)
    for number, (rows, identities) in enumerate(zip(rows_of, members, strict=True)):
        place = {row: place for place, row in enumerate(rows)}
        yield _PartTable(
            paths=tuple(path for answer in answers for path in answer.paths.get(number, ())),
            span=span,
            layout=replace(
                grid.layout,
                keys=tuple(grid.layout.keys[row] for row in rows),
                rows=[
                    tuple(place[row] for row in grid.layout.rows[identity] if row in place) for identity in identities
                ],
            ),
            measures=measures,
        )


def _opened(path: Path) -> pq.ParquetFile:
    return pq.ParquetFile(path)


@dataclass(slots=True)
class _Buffer:
    """Rows that wait to be sorted by part; mutable: filled by row groups.

    Attributes:
        columns: per piece its columns by name, of which counts, sums and maxima may be absent.
    """

    parts: list[NDArray[np.int32]] = field(default_factory=list)
    columns: list[dict[str, NDArray[Any]]] = field(default_factory=list)
    rows: int = 0


class _Sorting:
    """One job under way; mutable: writes as it reads."""

    def __init__(self, job: SortJob) -> None:
        self._job = job
        self._table = job.table
        self._measures: set[Measure] = set()
        self._writers: dict[tuple[int, tuple[str, ...]], pq.ParquetWriter] = {}
        self._groups: Counter[tuple[int, tuple[str, ...]]] = Counter()
        self._paths: dict[int, tuple[Path, ...]] = {}
        self._files = 0

    def done(self) -> Sorted:
        """What was written, once all of it is.

        Raises:
            Corrupt: a file can't be read.
            OSError: the folder can't be written.
        """
        try:
            self._fill()
        finally:
            for writer in self._writers.values():
                writer.close()
            self._writers.clear()
        return Sorted(measures=frozenset(self._measures), paths=self._paths)

    def _fill(self) -> None:
        table, layout, buffer = self._table, self._table.layout, _Buffer()
        numbers = {identity: number for number, identity in enumerate(table.identities)}
        for path, group, _, identity, start in table.files.windows(numbers):
            place = layout.places(start)
            known = np.where((place >= 0) & (place < layout.steps), identity, -1)
            if not (known >= 0).any():
                continue
            columns: dict[str, NDArray[Any]] = {"window_start": start}
            columns |= self._values(path, group, table.has_row[known])
            for part_of, number_of in table.layers:
                part = part_of[known]
                mine = np.flatnonzero(part >= 0)
                if not len(mine):
                    continue
                columns["identity"] = number_of[known]
                is_all = len(mine) == len(part)
                buffer.parts.append(part if is_all else part[mine])
                buffer.columns.append({name: values if is_all else values[mine] for name, values in columns.items()})
                buffer.rows += len(mine)
            if buffer.rows >= self._job.rows:
                self._flush(buffer)
                buffer = _Buffer()
        if buffer.rows:
            self._flush(buffer)

    def _values(self, path: Path, group: int, has_row: NDArray[np.bool_]) -> dict[str, NDArray[Any]]:
        """Counts, sums and maxima of the measures that a row group has; remembers those that count for the grid."""
        file = self._table.files.opened(path)
        found: dict[str, NDArray[Any]] = {}
        for column in self._table.layout.measures:
            count, total, most = (f"{column.measure.value}_{word}" for word in ("count", "sum", "max"))
            if count not in file.schema_arrow.names:
                continue  # the file is older than the measure
            try:
                seen = file.read_row_group(group, columns=[count]).column(0).to_numpy()
                if not seen[has_row].any():
                    continue
                table = file.read_row_group(group, columns=[total, most])
            except (OSError, pa.ArrowException) as exc:
                raise Corrupt(f"cannot read {path}: {exc}") from exc
            self._measures.add(column.measure)
            found[count] = seen
            found[total], found[most] = (table.column(place).fill_null(0).to_numpy() for place in (0, 1))
        return found

    def _flush(self, buffer: _Buffer) -> None:
        names = tuple(dict.fromkeys(name for columns in buffer.columns for name in columns))
        parts = np.concatenate(buffer.parts)
        order = np.argsort(parts, kind="stable")
        arrays = []
        for name in names:
            # Taken out of the buffer one by one, so that what is sorted does not lie in memory twice.
            pieces = [columns.pop(name, None) for columns in buffer.columns]
            filled = [
                np.zeros(len(part), np.int64) if piece is None else piece
                for part, piece in zip(buffer.parts, pieces, strict=True)
            ]
            arrays.append(pa.array(np.concatenate(filled)[order]))
        table = pa.table(arrays, names=list(names))
        numbers, firsts = np.unique(parts[order], return_index=True)
        for number, first, stop in zip(numbers, firsts, [*firsts[1:], len(order)], strict=True):
            self._writer(int(number), names, table.schema).write_table(table.slice(first, stop - first))

    def _writer(self, number: int, names: tuple[str, ...], schema: pa.Schema) -> pq.ParquetWriter:
        """The file of one part for a row group with these columns."""
        self._groups[number, names] += 1
        writer = self._writers.get((number, names))
        if writer is not None and self._groups[number, names] % _GROUPS_PER_FILE == 0:
            writer.close()
            writer = None
        if writer is None:
            path = self._job.folder / f"{self._files}.parquet"
            counts = [name for name in names if name.endswith("_count")]
            writer = self._writers[number, names] = pq.ParquetWriter(
                path,
                schema,
                compression="none",
                use_dictionary=counts,
                column_encoding={name: "DELTA_BINARY_PACKED" for name in names if name not in counts},
                write_statistics=False,
            )
            self._files += 1
            self._paths[number] = (*self._paths.get(number, ()), path)
        return writer
