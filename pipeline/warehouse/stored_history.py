"""A cluster's history before its values are read: whole, or in parts of which one at a time is in memory.

For parts the rows are read once and written again below a folder, each part's into files of its own; a part is then
read as a small history is. To read each part out of the warehouse's files would need no second copy, but a file holds
pods by name and cards by node, and a part holds whole workloads with their cards: every part would read nearly every
row of `card_usage`. Called by `parquet_reads` and, for parts, by `gputide.container.history`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fleet.durable import unwritable
from fleet.errors import Corrupt
from fleet.inventory import CardId, CardModelName, Inventory
from fleet.schema import CARD_MEASURES, SLICE_MEASURES, Measure, MeasureColumn
from fleet.usage import CardKey, History, SliceKey, UsageGrid
from pipeline.warehouse.usage_grid import Layout, Span, UsageFiles, fill_grid, layers_of, moment_of, read_span

_BUFFERED_ROWS = 1_000_000
"""Rows that are sorted by part at a time: some 100 MB; with fewer a part's rows lie in thousands of pieces."""
_GROUPS_PER_FILE = 16
"""Row groups of a file that is being written: what it knows of each of them stays in memory until it is closed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredGrid:
    """One usage table of a history: its files, who and when, and the grid that it makes."""

    files: UsageFiles
    span: Span
    layout: Layout

    def whole(self) -> UsageGrid[Any]:
        """The grid, in memory."""
        return fill_grid(self.span if self.span.identity is not None else read_span(self.files), self.layout)

    def parts(self, spilled: _Spilled) -> Iterator[UsageGrid[Any]]:
        """The grid in parts, as if rows were taken from the whole; a part's files go when it was read."""
        for number, rows in enumerate(spilled.rows_of):
            span = spilled.span(number)
            local = {row: place for place, row in enumerate(rows)}
            layout = replace(
                self.layout,
                keys=tuple(self.layout.keys[row] for row in rows),
                rows=[tuple(local[row] for row in targets if row in local) for targets in self.layout.rows],
            )
            grid = fill_grid(span, layout, is_kept=spilled.found)
            for path in dict.fromkeys(path for path, _ in span.groups):
                path.unlink()
            yield grid


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredHistory:
    """What a cluster's history holds; `cards` is None where no source measures cards."""

    inventory: Inventory
    slices: StoredGrid
    cards: StoredGrid | None

    @property
    def is_small(self) -> bool:
        """Whether it has no more rows than may be read as a whole."""
        return all(grid.span.identity is not None for grid in (self.slices, self.cards) if grid is not None)

    def whole(self) -> History:
        """All of it, in memory."""
        return History(
            inventory=self.inventory,
            slices=self.slices.whole(),
            cards=None if self.cards is None else self.cards.whole(),
        )

    def parts(self, cuts: Sequence[tuple[Inventory, Sequence[int], Sequence[int]]], folder: Path) -> Iterator[History]:
        """One history after the other.

        Args:
            cuts: per part its inventory and its rows in the grids of slices and of cards.
            folder: an empty folder on a disk with room for as much as the warehouse has of these four weeks.

        Raises:
            Corrupt: a file can't be read, or the folder can't be written.
        """
        tables = [(self.slices, [rows for _, rows, _ in cuts])]
        if self.cards is not None:
            tables.append((self.cards, [rows for _, _, rows in cuts]))
        folders = [folder / str(number) for number in range(len(tables))]
        try:
            for path in folders:
                path.mkdir()
            spilled = [_Spilled(*table, path) for table, path in zip(tables, folders, strict=True)]
            grids = [stored.parts(found) for (stored, _), found in zip(tables, spilled, strict=True)]
            for (inventory, _, _), slices, *cards in zip(cuts, *grids, strict=True):
                yield History(inventory=inventory, slices=slices, cards=cards[0] if cards else None)
        except OSError as exc:
            raise unwritable(folder, exc) from exc


@dataclass(slots=True)
class _Buffer:
    """Rows that wait to be sorted by part; mutable: filled by row groups.

    Attributes:
        columns: per piece its columns by name, of which counts, sums and maxima may be absent.
    """

    parts: list[NDArray[np.int16]] = field(default_factory=list)
    columns: list[dict[str, NDArray[Any]]] = field(default_factory=list)
    rows: int = 0


class _Spilled:
    """The rows of a table by part, on disk; mutable: filled when it is made.

    Attributes:
        found: the measures that the whole has.
        rows_of: grid rows of each part.

    Raises:
        Corrupt: a file can't be read.
        OSError: the folder can't be written.
    """

    def __init__(self, stored: StoredGrid, rows_of: Sequence[Sequence[int]], folder: Path) -> None:
        self.found: set[Measure] = set()
        self.rows_of = rows_of
        self._stored = stored
        self._folder = folder
        self._writers: dict[tuple[int, tuple[str, ...]], pq.ParquetWriter] = {}
        self._groups: Counter[tuple[int, tuple[str, ...]]] = Counter()
        self._paths: list[list[Path]] = [[] for _ in rows_of]
        parts_of: dict[int, list[int]] = {}
        for number, rows in enumerate(rows_of):
            for row in rows:
                parts_of.setdefault(row, []).append(number)
        # An identity counts for rows of several parts where a pod is no workload's; -2 is for rows of no part.
        self._layers = layers_of(
            [
                tuple(dict.fromkeys(part for row in targets for part in parts_of.get(row, (-2,))))
                for targets in stored.layout.rows
            ]
        )
        try:
            self._fill()
        finally:
            for writer in self._writers.values():
                writer.close()
            self._writers.clear()

    def span(self, number: int) -> Span:
        """Who and when of one part."""
        groups, identities, starts = [], [], []
        for path in self._paths[number]:
            file = self._opened(path)
            for group in range(file.num_row_groups):
                table = file.read_row_group(group, columns=["identity", "window_start"])
                groups.append((path, group))
                identities.append(table.column(0).to_numpy())
                starts.append(table.column(1).to_numpy())
        return replace(
            self._stored.span,
            groups=tuple(groups),
            opened=self._opened,
            identity=tuple(identities),
            window_start=tuple(starts),
        )

    def _opened(self, path: Path) -> pq.ParquetFile:
        return pq.ParquetFile(path)

    def _fill(self) -> None:
        span, layout = self._stored.span, self._stored.layout
        numbers = {identity: number for number, identity in enumerate(span.identities)}
        has_row = np.array([bool(targets) for targets in layout.rows] + [False], np.bool_)
        wanted, buffer = set(span.groups), _Buffer()
        for path, group, _, identity, start in self._stored.files.windows(numbers):
            if (path, group) not in wanted:
                continue
            place = layout.places(start)
            known = np.where((place >= 0) & (place < layout.steps), identity, -1)
            columns: dict[str, NDArray[Any]] = {"identity": identity, "window_start": start}
            columns |= self._values(path, group, has_row[known])
            for layer in self._layers:
                part = layer[known].astype(np.int16)
                mine = np.flatnonzero(part >= 0)
                if len(mine):
                    is_all = len(mine) == len(part)
                    buffer.parts.append(part if is_all else part[mine])
                    buffer.columns.append(
                        {name: values if is_all else values[mine] for name, values in columns.items()}
                    )
                    buffer.rows += len(mine)
            if buffer.rows >= _BUFFERED_ROWS:
                self._flush(buffer)
                buffer = _Buffer()
        if buffer.rows:
            self._flush(buffer)

    def _values(self, path: Path, group: int, has_row: NDArray[np.bool_]) -> dict[str, NDArray[Any]]:
        """Counts, sums and maxima of the measures that a row group has; remembers those that count for the grid."""
        file = self._stored.span.opened(path)
        found: dict[str, NDArray[Any]] = {}
        for column in self._stored.layout.measures:
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
            self.found.add(column.measure)
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
            path = self._folder / f"{number}-{len(self._paths[number])}.parquet"
            counts = [name for name in names if name.endswith("_count")]
            writer = self._writers[number, names] = pq.ParquetWriter(
                path,
                schema,
                compression="none",
                use_dictionary=counts,
                column_encoding={name: "DELTA_BINARY_PACKED" for name in names if name not in counts},
                write_statistics=False,
            )
            self._paths[number].append(path)
        return writer


def stored_slices(files: UsageFiles, span: Span, inventory: Inventory, since_ms: int, until_ms: int) -> StoredGrid:
    """The slices of a history; grid rows are the identities that name a card.

    A series that names a pod and no card (an inference server's own) counts for every slice of its pod. One that names
    pod and card and no container (KAI's GPU fractioning) is of the only container that was granted a part of the card,
    unless another source says what that one does.
    """
    named = [_slice_key(texts) for texts in span.identities]
    bare = {(key.namespace, key.pod, key.card) for key in named if key.card and not key.container}
    granted: dict[tuple[str, str, str], set[SliceKey]] = {}
    for grant in inventory.grants if bare else ():
        if (grant.namespace, grant.pod, grant.card) in bare:
            granted.setdefault((grant.namespace, grant.pod, grant.card), set()).add(SliceKey.of(grant))
    only = {place: next(iter(keys)) for place, keys in granted.items() if len(keys) == 1 and keys.isdisjoint(named)}
    own = [key if key.container else only.get((key.namespace, key.pod, key.card), key) for key in named]
    places: dict[SliceKey, int] = {}
    slices_of_pod: dict[tuple[str, str], list[int]] = {}
    for key in own:
        if key.card and key not in places:
            places[key] = len(places)
            slices_of_pod.setdefault((key.namespace, key.pod), []).append(places[key])
    rows = [(places[key],) if key.card else tuple(slices_of_pod.get((key.namespace, key.pod), ())) for key in own]
    return _stored(files, span, (tuple(places), SLICE_MEASURES, rows), since_ms, until_ms)


def stored_cards(files: UsageFiles, span: Span, since_ms: int, until_ms: int) -> StoredGrid:
    """The cards of a history, each identity a row."""
    keys = tuple(_card_key(texts) for texts in span.identities)
    return _stored(files, span, (keys, CARD_MEASURES, [(place,) for place in range(len(keys))]), since_ms, until_ms)


def _stored(
    files: UsageFiles,
    span: Span,
    made_of: tuple[tuple[Any, ...], tuple[MeasureColumn, ...], Sequence[tuple[int, ...]]],
    since_ms: int,
    until_ms: int,
) -> StoredGrid:
    keys, measures, rows = made_of
    steps = max(0, -((since_ms - until_ms) // (span.step_seconds * 1000)))
    layout = Layout(
        keys=keys, measures=measures, rows=rows, since=moment_of(since_ms), step_seconds=span.step_seconds, steps=steps
    )
    return StoredGrid(files=files, span=span, layout=layout)


def _slice_key(texts: tuple[str, ...]) -> SliceKey:
    cluster, namespace, pod, container, node, card, card_model = texts
    return SliceKey(
        cluster=cluster,
        namespace=namespace,
        pod=pod,
        container=container,
        node=node,
        card=CardId(card),
        card_model=CardModelName(card_model),
    )


def _card_key(texts: tuple[str, ...]) -> CardKey:
    cluster, node, card, card_model = texts
    return CardKey(cluster=cluster, node=node, card=CardId(card), card_model=CardModelName(card_model))
