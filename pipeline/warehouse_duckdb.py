"""The embedded warehouse: DuckDB over dated Parquet.

`warehouse_files` keeps the files, `parquet_reads` answers questions. Chosen by `gputide.wiring`; the contract is that
of `pipeline.warehouse`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from pipeline.parquet_reads import ParquetReads
from pipeline.warehouse import AppendName, Part
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

    def close(self) -> None:
        """Lets another process write."""
        self.files.close()
