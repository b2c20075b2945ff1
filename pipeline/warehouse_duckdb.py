"""The embedded warehouse: DuckDB over dated Parquet.

`warehouse_files` keeps the files, `parquet_reads` answers questions. Chosen by `gputide.wiring`; the contract is that
of `pipeline.warehouse`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from fleet.schema import Table
from pipeline.parquet_reads import ParquetReads
from pipeline.warehouse import AppendName, Part, SeenRows
from pipeline.warehouse_files import WarehouseFiles


class DuckdbWarehouse(ParquetReads):
    """A warehouse in one folder.

    Args:
        folder: where it lies; made by the first append.
        crash_point: called with a name at every moment at which a crash would matter; tests raise or kill there.

    Raises:
        Corrupt: the folder is of a newer schema.
    """

    def __init__(self, folder: Path, *, crash_point: Callable[[str], None] = lambda _name: None) -> None:
        super().__init__(WarehouseFiles(folder, crash_point=crash_point))

    def append(self, name: AppendName, parts: Iterable[Part]) -> bool:
        """Adds rows as a whole, once; see `Warehouse.append`."""
        return self.files.append(name, parts)

    def applied_offset(self, source: str) -> int:
        """The offset after the last append from a bus, 0 where there is none."""
        return self.files.applied_offset(source)

    def seen(self, table: Table, date: str, cluster: str, *, since_ms: int, until_ms: int) -> tuple[SeenRows, ...]:
        """Samples counted by earlier appends; see `SeenStore.seen`."""
        return self.files.seen(table, date, cluster, since_ms=since_ms, until_ms=until_ms)

    def close(self) -> None:
        """Lets another process write."""
        self.files.close()
