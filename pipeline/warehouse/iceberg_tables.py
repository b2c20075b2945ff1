"""The warehouse as Apache Iceberg tables: what Spark, Trino, Flink, Hive and PyIceberg read, whole appends alone.

The manifest says which files count; a table of each name in `fleet.schema.TABLES` is made to say the same. To publish
is to compare: files that count and that a table lacks are added to it, files that it has and that count no longer leave
it, both in one commit, so a reader meets a merge before or after it and never between. Nothing is copied, and what was
interrupted is put right the next time. Tables are partitioned by `dt` and `cluster`. `dt` stands in no file: readers
take it from the partition (iceberg.apache.org/spec, column projection); names are mapped to fields, since the files
carry no field ids. Catalogue: the two SQL tables that PyIceberg and Iceberg's JdbcCatalog share. Called by
`gputide.container.warehouse`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.fs as pafs
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, ValidationException
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table as IcebergTable
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import DateType, DoubleType, IntegerType, LongType, MapType, NestedField, StringType
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

from fleet.durable import FolderLock
from fleet.errors import Corrupt, Misconfigured, Unavailable
from fleet.logs import logger
from fleet.schema import TABLES, ColumnKind, Table
from fleet.settings.pipeline import IcebergSettings
from pipeline.password_file import read_password
from pipeline.warehouse.files import WarehouseFiles
from pipeline.warehouse.manifest import PartFile

DATE_COLUMN = "dt"
"""UTC date of a row, the first part of its partition."""
METADATA_FOLDER = "iceberg"
"""Folder below the warehouse's that the tables' metadata lie in."""
_LOCK = "iceberg"
_CUT_BY = frozenset("#?\t\n\r")
"""What readers take for the end of a path, or leave out of it, where a location holds it."""
_TRIES = 20
_PAUSE_SECONDS = 0.1
_SQLITE_WAIT_SECONDS = 30
_EPOCH = date(1970, 1, 1)
_log = logger(__name__)
_TYPES = {
    ColumnKind.TEXT: StringType,
    ColumnKind.INTEGER: LongType,
    ColumnKind.REAL: DoubleType,
    ColumnKind.TIME_MS: LongType,
}
_PROPERTIES = {
    "format-version": "2",
    # Else each commit keeps all metadata before it, and each append has a manifest for ever.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "3",
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "20",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What the tables were short of.

    Attributes:
        added: files that they did not have.
        removed: files that they had and that count no longer.
    """

    added: int
    removed: int


class IcebergTables:
    """The tables of one warehouse.

    Args:
        files: what counts.
        settings: catalogue and names; `database` is set.
        location: URI of the warehouse's folder, as readers reach it.

    Raises:
        Misconfigured: the catalogue's address can't be used, or nobody is let in by it; or the location can't be one.
        Unavailable: the catalogue's database does not answer.
    """

    def __init__(self, files: WarehouseFiles, settings: IcebergSettings, location: str) -> None:
        self._files = files
        self._namespace = settings.namespace
        self._location = location.rstrip("/")
        if _CUT_BY & set(location):
            raise Misconfigured(
                f"cannot publish tables of {location!r}: readers cut an address at # and ?; set iceberg.location to "
                "another path of the same folder"
            )
        with _answering(settings):
            self._catalogue = SqlCatalog(settings.catalogue, uri=_address(settings), warehouse=self._location)
            if self._catalogue.engine.dialect.name == "sqlite":
                with self._catalogue.engine.connect() as connection:
                    # Readers in a Java machine keep statements open; without this they would keep writers out.
                    connection.exec_driver_sql("PRAGMA journal_mode=WAL")
            self._catalogue.create_namespace_if_not_exists(settings.namespace)
        self._settings = settings

    def publish(self, *, keep_seconds: float) -> Published:
        """Makes the tables say what counts now.

        Args:
            keep_seconds: how long a reader may go on with what a table said, at least; what was said longer ago is
                forgotten, and metadata that nothing refers to any more is removed.

        Raises:
            Held: another process is at it.
            Unavailable: the catalogue's database, or the file system, does not answer.
            Corrupt: somebody has altered a table.
        """
        added = removed = 0
        with FolderLock(self._files.folder, _LOCK), _answering(self._settings):
            # Asked for within the lock: who was at it before has published no more than this.
            counting: dict[str, dict[str, PartFile]] = {table.name: {} for table in TABLES}
            for file in self._files.live():
                if not file.is_index:
                    counting[file.table][f"{self._location}/{file.path}"] = file
            for table in TABLES:
                try:
                    more, fewer = self._published(table, counting[table.name], keep_seconds)
                except FileNotFoundError as exc:
                    _log.warning("iceberg table lacks metadata; making it anew", table=table.name, why=str(exc))
                    self._catalogue.drop_table(f"{self._namespace}.{table.name}")
                    more, fewer = self._published(table, counting[table.name], keep_seconds)
                added, removed = added + more, removed + fewer
        return Published(added=added, removed=removed)

    def named(self) -> frozenset[str]:
        """Files, below the warehouse's folder, that a reader of any snapshot that a table still has may open.

        Raises:
            Unavailable: as `publish`.
        """
        found: set[str] = set()
        with _answering(self._settings):
            for table in TABLES:
                opened = self._table(table)
                snapshots = opened.metadata.snapshots
                manifests = {one.manifest_path: one for each in snapshots for one in each.manifests(opened.io)}
                for manifest in manifests.values():
                    found |= {entry.data_file.file_path for entry in manifest.fetch_manifest_entry(opened.io)}
        return frozenset(path.removeprefix(f"{self._location}/") for path in found)

    def close(self) -> None:
        """Lets go of the catalogue."""
        self._catalogue.close()

    def _published(self, table: Table, counting: dict[str, PartFile], keep_seconds: float) -> tuple[int, int]:
        """How many files were added to a table and removed from it.

        Raises:
            FileNotFoundError: metadata that the catalogue names is not there, as where it is of a back-up.
        """
        found = self._table(table)
        done = self._followed(found, counting)
        _forget(found, keep_seconds)
        return done

    def _table(self, table: Table) -> IcebergTable:
        """A table as the schema has it; made, or given the columns that it lacks."""
        name, wanted = f"{self._namespace}.{table.name}", _schema(table)
        location = f"{self._location}/{METADATA_FOLDER}/{table.name}"
        try:
            found = self._catalogue.load_table(name)
        except NoSuchTableError:
            return self._catalogue.create_table_if_not_exists(
                name,
                schema=wanted,
                location=location,
                partition_spec=_partitions(wanted),
                properties={**_PROPERTIES, "schema.name-mapping.default": wanted.name_mapping.model_dump_json()},
            )
        if found.location() != location:
            raise Corrupt(
                f"cannot publish to {name}: it is of another warehouse, at {found.location()} instead of "
                f"{location}; set iceberg.namespace to a name of its own, or drop the table"
            )
        fields = {field.name: field.field_type for field in found.schema().fields}
        if [field.name for field in found.spec().fields] != [DATE_COLUMN, "cluster"] or any(
            str(fields.get(field.name, field.field_type)).partition("<")[0] != str(field.field_type).partition("<")[0]
            for field in wanted.fields
        ):
            raise Corrupt(f"cannot publish to {name}: somebody has altered its columns or partitions; drop the table")
        if any(field.name not in fields for field in wanted.fields):
            with found.update_schema() as change:
                change.union_by_name(wanted)
        return found

    def _followed(self, table: IcebergTable, counting: dict[str, PartFile]) -> tuple[int, int]:
        for _ in range(_TRIES):
            known = {task.file.file_path: task.file for task in table.scan().plan_files()}
            missing = [path for path in counting if path not in known]
            gone = [file for path, file in known.items() if path not in counting]
            if not missing and not gone:
                return 0, 0
            with suppress(CommitFailedException):
                with table.transaction() as change:
                    update = change.update_snapshot()
                    with update.overwrite() if gone else update.merge_append() as commit:
                        for file in gone:
                            commit.delete_data_file(file)
                        for path in missing:
                            commit.append_data_file(self._data_file(table, path, counting[path]))
                return len(missing), len(gone)
            # Somebody else, such as an engine's own upkeep, was faster.
            time.sleep(_PAUSE_SECONDS)
            table.refresh()
        raise Unavailable(f"cannot publish to {'.'.join(table.name())}: others change it all the time")

    def _data_file(self, table: IcebergTable, path: str, file: PartFile) -> DataFile:
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=path,
            file_format=FileFormat.PARQUET,
            partition=Record((date.fromisoformat(file.date) - _EPOCH).days, file.cluster),
            record_count=file.rows,
            file_size_in_bytes=self._files.rows.size_bytes(Path(file.path)),
            spec_id=table.spec().spec_id,
        )


def _schema(table: Table) -> Schema:
    """Columns of a table and the date of its partition; fields are numbered in order, those inside of maps last."""
    inside = len(table.columns) + 2
    fields = []
    for number, column in enumerate(table.columns, start=1):
        if column.kind is ColumnKind.HISTOGRAM:
            kind: Any = MapType(
                key_id=inside, key_type=IntegerType(), value_id=inside + 1, value_type=LongType(), value_required=False
            )
            inside += 2
        else:
            kind = _TYPES[column.kind]()
        fields.append(NestedField(number, column.name, kind, required=False))
    return Schema(*fields, NestedField(len(table.columns) + 1, DATE_COLUMN, DateType(), required=False))


def _partitions(schema: Schema) -> PartitionSpec:
    return PartitionSpec(
        *(
            PartitionField(schema.find_field(name).field_id, 1000 + place, IdentityTransform(), name)
            for place, name in enumerate((DATE_COLUMN, "cluster"))
        )
    )


def _forget(table: IcebergTable, keep_seconds: float) -> None:
    """Forgets what a table said long ago, where there is so much of it that it pays, and removes what that leaves."""
    before = time.time() - keep_seconds
    # A snapshot is what the table says until the next one comes, however long that takes.
    ends = {one.snapshot_id: later.timestamp_ms / 1000 for one, later in pairwise(table.metadata.snapshots)}
    if not ends or min(ends.values()) > before - keep_seconds:
        return
    named = {ref.snapshot_id for ref in table.metadata.refs.values()}
    over = [number for number, end in ends.items() if end < before and number not in named]
    with suppress(CommitFailedException):  # somebody else was faster: the next time does it
        table.maintenance.expire_snapshots().by_ids(over).commit()
    table.refresh()
    kept = {table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)}
    kept |= {file.statistics_path for file in (*table.metadata.statistics, *table.metadata.partition_statistics)}
    for snapshot in table.metadata.snapshots:
        kept |= {snapshot.manifest_list, *(manifest.manifest_path for manifest in snapshot.manifests(table.io))}
    names = {path.rpartition("/")[2] for path in kept}
    # As those who wrote them take the address, which is no URI to pyarrow where it holds a blank.
    files = cast("PyArrowFileIO", table.io)
    scheme, host, folder = files.parse_location(f"{table.location()}/metadata", files.properties)
    system = files.fs_by_scheme(scheme, host)
    for info in system.get_file_info(pafs.FileSelector(folder)):
        # What is newer may belong to a commit under way.
        if info.base_name not in names and info.mtime is not None and info.mtime.timestamp() < before:
            system.delete_file(info.path)


def _address(settings: IcebergSettings) -> str:
    url = make_url(settings.database or "")
    if settings.password_file is not None:
        url = url.set(password=read_password(settings.password_file, setting="iceberg.password_file"))
    if url.drivername.startswith("sqlite"):
        url = url.update_query_dict({"timeout": str(_SQLITE_WAIT_SECONDS)})
    return url.render_as_string(hide_password=False)


@contextmanager
def _answering(settings: IcebergSettings) -> Iterator[None]:
    shown = f"iceberg.database={settings.database}"
    try:
        yield
    except (ArgumentError, NoSuchModuleError) as exc:
        raise Misconfigured(f"cannot use {shown}: {' '.join(str(exc).split())[:300]}") from exc
    except SQLAlchemyError as exc:
        reason = getattr(exc, "orig", None) or exc
        raise Unavailable(f"cannot reach {shown}: {' '.join(str(reason).split())[:300]}") from exc
    except (CommitFailedException, ValidationException) as exc:
        raise Unavailable(f"cannot publish tables: others change them meanwhile: {exc}") from exc
    except (OSError, pa.ArrowException) as exc:
        raise Unavailable(f"cannot write the tables' metadata: {getattr(exc, 'strerror', None) or exc}") from exc
