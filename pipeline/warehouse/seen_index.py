"""Which samples a warehouse has counted: an index beside each append's rows, those of an hour merged by upkeep.

An append looks its samples up in the indexes of their partition, and once more, before its line is written, in those
that other processes have added meanwhile. A day is closed some days after it ended: its indexes go, and what comes
later of it is late, because nobody could say any more whether it was counted. Called by `warehouse.files`.
"""

from __future__ import annotations

import uuid
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fleet.errors import Corrupt
from pipeline.warehouse.manifest import Manifest, PartFile
from pipeline.warehouse.part_writing import SEEN_SCHEMA
from pipeline.warehouse.partition_names import first_folder
from pipeline.warehouse.warehouse import Overtaken, Part, SeenRows

SEEN_FOLDER = "seen"
"""Folder of all indexes, below the warehouse's."""
_CACHED_ROWS_MAX = 4_000_000
_HOUR_MS = 3_600_000


class SeenIndex:
    """The indexes of one warehouse. Mutable: keeps those that it read last, and what an append was compared with.

    Args:
        folder: the warehouse's.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self._folder = folder
        self._manifest = manifest
        self._cache: OrderedDict[str, SeenRows] = OrderedDict()
        self._cached_rows = 0
        self._compared: set[str] = set()

    def begin(self) -> None:
        """An append begins: nothing is compared yet."""
        self._compared.clear()

    def seen(self, table: str, date: str, cluster: str, *, since_ms: int, until_ms: int) -> Iterator[SeenRows]:
        """Samples counted by earlier appends; see `SeenStore.seen`."""
        for file in self._indexes(table, date, cluster):
            self._compared.add(file.path)
            if file.first_ms <= until_ms and file.last_ms >= since_ms:
                yield self._read(file.path)

    def check_uncounted(self, parts: Sequence[Part]) -> None:
        """Compares what an append counts with the indexes that it was not compared with yet.

        Raises:
            Overtaken: another process has counted one of its samples meanwhile, or closed its partition.
        """
        for part in parts:
            if part.seen is None:
                continue
            name = part.table.name, part.date, part.cluster
            first_ms, last_ms = _span(part.seen)
            new = [file for file in self._indexes(*name) if file.path not in self._compared]
            self._compared.update(file.path for file in new)
            near = [file for file in new if file.first_ms <= last_ms and file.last_ms >= first_ms]
            if self._manifest.is_closed(*name) or any(_share(part.seen, self._read(file.path)) for file in near):
                raise Overtaken(
                    f"cannot add rows of {part.table.name} of {part.date}: another process has counted some of their "
                    "samples meanwhile"
                )

    def unsettled(self, table: str, date: str, cluster: str) -> list[PartFile]:
        """The indexes of a partition but those that are alone in their hour."""
        files = self._indexes(table, date, cluster)
        in_hour = Counter(hour for file in files for hour in _hours(file))
        return [file for file in files if any(in_hour[hour] > 1 for hour in _hours(file)) or len(_hours(file)) > 1]

    def by_hour(self, files: Sequence[PartFile]) -> Iterator[SeenRows]:
        """What is in some indexes, an hour at a time.

        Raises:
            Corrupt: one can't be read.
        """
        for hour in sorted({hour for file in files for hour in _hours(file)}):
            found = [self._read(file.path) for file in files if hour in _hours(file)]
            chosen = [(rows.ts_ms - 1) // _HOUR_MS == hour for rows in found]
            hashes, ts_ms, measures = (
                np.concatenate([getattr(rows, name)[mine] for rows, mine in zip(found, chosen, strict=True)])
                for name in ("hashes", "ts_ms", "measures")
            )
            if not len(hashes):
                continue
            order = np.lexsort((ts_ms, hashes))
            hashes, ts_ms, measures = hashes[order], ts_ms[order], measures[order]
            firsts = np.flatnonzero(np.append(True, (np.diff(hashes) != 0) | (np.diff(ts_ms) != 0)))
            yield SeenRows(
                hashes=hashes[firsts], ts_ms=ts_ms[firsts], measures=np.bitwise_or.reduceat(measures, firsts)
            )

    def _indexes(self, table: str, date: str, cluster: str) -> list[PartFile]:
        return [file for file in self._manifest.files_of(table, date, cluster) if file.is_index]

    def _read(self, path: str) -> SeenRows:
        rows = self._cache.get(path)
        if rows is None:
            try:
                table = pq.ParquetFile(self._folder / path).read(use_threads=False)
            except (OSError, pa.ArrowException) as exc:
                raise Corrupt(f"cannot read {self._folder / path}: {exc}") from exc
            rows = SeenRows(
                hashes=table.column("hash").to_numpy(),
                ts_ms=table.column("ts_ms").to_numpy(),
                measures=table.column("measures").to_numpy(),
            )
            self._cache[path] = rows
            self._cached_rows += len(rows.ts_ms)
            while self._cached_rows > _CACHED_ROWS_MAX and len(self._cache) > 1:
                self._cached_rows -= len(self._cache.popitem(last=False)[1].ts_ms)
        self._cache.move_to_end(path)
        return rows


def index_file(part: Part, file_name: str, seen: SeenRows) -> PartFile:
    """How the manifest names an index of a partition."""
    return _named(part.table.name, part.date, part.cluster, file_name, seen)


def hour_file(files: Sequence[PartFile], seen: SeenRows) -> PartFile:
    """How the manifest names the index of an hour that takes some files' place."""
    hour = (_span(seen)[0] - 1) // _HOUR_MS
    return _named(*files[0].partition, f"merged-{hour}-{uuid.uuid4().hex}.parquet", seen)


def seen_pieces(seen: SeenRows) -> Iterable[pa.Table]:
    """An index as it is written."""
    return (
        pa.Table.from_arrays(
            [pa.array(seen.hashes), pa.array(seen.ts_ms), pa.array(seen.measures)], schema=SEEN_SCHEMA
        ),
    )


def _share(own: SeenRows, others: SeenRows) -> bool:
    """Whether a sample is counted by both, be it with other measures: it would count as two."""
    from pipeline.rollup.kernels import drop_seen  # noqa: PLC0415 - loads numba, which a reader does without

    was_seen = np.zeros(len(own.ts_ms), dtype=np.bool_)
    drop_seen(own.hashes, own.ts_ms, own.measures.copy(), was_seen, others.hashes, others.ts_ms, others.measures)
    return bool(was_seen.any())


def _named(table: str, date: str, cluster: str, file_name: str, seen: SeenRows) -> PartFile:
    first_ms, last_ms = _span(seen)
    return PartFile(
        table=table,
        date=date,
        cluster=cluster,
        path=str(Path(SEEN_FOLDER, first_folder(table, date, cluster), file_name)),
        rows=len(seen.ts_ms),
        is_index=True,
        first_ms=first_ms,
        last_ms=last_ms,
    )


def _span(seen: SeenRows) -> tuple[int, int]:
    return int(seen.ts_ms.min()), int(seen.ts_ms.max())


def _hours(file: PartFile) -> range:
    return range((file.first_ms - 1) // _HOUR_MS, (file.last_ms - 1) // _HOUR_MS + 1)
