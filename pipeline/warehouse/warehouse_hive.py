"""The warehouse that Hive reads too: the same dated Parquet, known to the metastore as external tables.

`warehouse.files` keeps the files and their manifest, `catalogue_hive` the tables, `parquet_reads` answers questions
straight from the files: Hive is asked for nothing that a file can say, and has no part in reading. Chosen by
`gputide.container.warehouse`; the contract is that of `pipeline.warehouse.warehouse`.

What a reader through SQL sees: a partition (`dt`, `cluster`) of each table is a folder that only gains whole files, one
per append. The files of one append appear one after the other, so for a moment a table may have rows whose
counterparts in another are still to come. If the writer is killed just then, the files of the append that it did not
finish stay visible until the next writer starts and takes them away, before it adds anything; rows are never counted
twice. A compaction shows the old folder or the new one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from fleet.settings.pipeline import HiveSettings
from pipeline.warehouse.catalogue_hive import HiveCatalogue
from pipeline.warehouse.files import WarehouseFiles
from pipeline.warehouse.hive_session import HiveSession
from pipeline.warehouse.parquet_reads import ParquetReads
from pipeline.warehouse.row_store import arrow_rows
from pipeline.warehouse.warehouse import AppendName, Part


class HiveWarehouse(ParquetReads):
    """A warehouse in one folder and one database of Hive.

    Args:
        folder: where the files lie, or, with a location on another file system and no folder in the settings, only
            the manifest and the indexes; made by the first append.
        crash_point: called with a name at every moment at which a crash would matter; tests raise or kill there.

    Raises:
        Corrupt: the folder is of a newer schema.
        Misconfigured: Hive can't have tables in this folder.
    """

    def __init__(
        self, folder: Path, settings: HiveSettings, *, crash_point: Callable[[str], None] = lambda _name: None
    ) -> None:
        location = f"file:{folder.absolute()}" if settings.location is None else settings.location
        self._catalogue = HiveCatalogue(
            HiveSession(settings), database=settings.database, location=location, crash_point=crash_point
        )
        self._is_checked = False
        rows = arrow_rows(location, crash_point=crash_point) if settings.is_elsewhere else None
        super().__init__(WarehouseFiles(folder, crash_point=crash_point, catalogue=self._catalogue, rows=rows))

    def append(self, names: Sequence[AppendName], parts: Iterable[Part]) -> bool:
        """Adds rows as a whole, once; see `Warehouse.append`.

        Raises:
            Unavailable: another process writes, or Hive does not answer; nothing was added.
            Corrupt: the storage can't take it, or somebody has altered a table of Hive; nothing was added.
        """
        self.migrate()
        return self.files.append(names, parts)

    def migrate(self) -> int:
        """Makes tables, columns and partitions that Hive lacks, once per process; how many partitions were missing.

        Raises:
            Unavailable: another process writes, or Hive does not answer.
            Corrupt: somebody has altered a table; nothing was changed.
        """
        if self._is_checked:
            return 0
        self.files.take_writing()
        added = self._catalogue.add_missing(self.files.partitions())
        self._is_checked = True
        return added

    def close(self) -> None:
        """Lets another process write, and ends the session with Hive."""
        self.files.close()
        self._catalogue.close()
        self._is_checked = False
