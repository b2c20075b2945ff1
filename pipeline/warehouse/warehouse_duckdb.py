"""The embedded warehouse: DuckDB over dated Parquet.

`warehouse.files` keeps the files, `parquet_reads` answers questions. Chosen by
`gputide.container.warehouse`; the contract is that of `pipeline.warehouse.warehouse`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from pipeline.warehouse.files import WarehouseFiles
from pipeline.warehouse.parquet_reads import ParquetReads
from pipeline.warehouse.warehouse import AppendName, Part


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

    def append(self, names: Sequence[AppendName], parts: Iterable[Part]) -> bool:
        """Adds rows as a whole, once; see `Warehouse.append`."""
        return self.files.append(names, parts)

    def close(self) -> None:
        """Lets another process write."""
        self.files.close()
