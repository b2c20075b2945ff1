"""Opens the warehouse that the settings name, and says which cluster's history in it is meant.

What reads and writes tables (Arrow, numba, DuckDB) takes seconds to load, so it is imported where a warehouse is
opened: `gputide apply --abort` and other verbs that open none start without it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from fleet.data_folder import DataFolder
from fleet.durable import Held
from fleet.errors import Corrupt, Misconfigured, NotEnoughData, Unavailable
from fleet.logs import logger
from fleet.settings.pipeline import WarehouseKind
from fleet.settings.settings import Settings
from fleet.usage import History
from gputide.container.arrow import load_arrow

if TYPE_CHECKING:
    from pipeline.rollup.rollup import Rollup
    from pipeline.warehouse.iceberg_tables import IcebergTables
    from pipeline.warehouse.parquet_reads import ParquetReads
    from pipeline.warehouse.warehouse_duckdb import DuckdbWarehouse
    from pipeline.warehouse.warehouse_hive import HiveWarehouse


def warehouse_folder(folder: DataFolder, settings: Settings) -> Path:
    """Where the warehouse's manifest lies, and its files where they are on this machine."""
    if settings.warehouse.kind is WarehouseKind.HIVE and settings.hive.folder is not None:
        return settings.hive.folder
    return folder.warehouse


def warehouse(folder: DataFolder, settings: Settings) -> ParquetReads:
    """The warehouse, for reading: straight from the files, of whichever kind it is.

    Raises:
        Misconfigured: they lie on a file system that can't be used.
    """
    load_arrow()
    from pipeline.warehouse.files import WarehouseFiles
    from pipeline.warehouse.parquet_reads import ParquetReads
    from pipeline.warehouse.row_store import arrow_rows

    path, hive = warehouse_folder(folder, settings), settings.hive
    if settings.warehouse.kind is WarehouseKind.HIVE and hive.is_elsewhere and hive.location is not None:
        return ParquetReads(WarehouseFiles(path, rows=arrow_rows(hive.location)))
    return ParquetReads(WarehouseFiles(path))


@contextmanager
def open_warehouse(folder: DataFolder, settings: Settings) -> Iterator[DuckdbWarehouse | HiveWarehouse]:
    """The warehouse, for writing.

    Raises:
        Misconfigured: the driver of Hive is not installed, or Hive can't have tables in that folder.
    """
    load_arrow()
    path = warehouse_folder(folder, settings)
    if settings.warehouse.kind is WarehouseKind.DUCKDB:
        from pipeline.warehouse.warehouse_duckdb import DuckdbWarehouse

        with closing(DuckdbWarehouse(path)) as embedded:
            yield embedded
        return
    try:
        from pipeline.warehouse.warehouse_hive import HiveWarehouse
    except ImportError as exc:
        raise Misconfigured(
            f"cannot use warehouse.kind=hive: {exc.name} is not installed; install gputide[hive]"
        ) from exc
    with closing(HiveWarehouse(path, settings.hive)) as shared:
        yield shared


_log = logger(__name__)

Reached = Callable[[], int | None]
"""Says how far the bus was taken in, epoch milliseconds; None where nothing waits on it."""


def upkeep_round(
    target: ParquetReads, settings: Settings, now: datetime, reached_ms: Reached = lambda: None
) -> Iterator[object]:
    """Merges, closes and drops partitions and what was replaced, as the settings say, one piece per step.

    A round that finds another process at it ends: the other one does it.
    """
    from pipeline.warehouse.compact import compact, remove_replaced, retain, tidy_indexes

    policy, late_days = settings.warehouse, settings.rollup.late_days
    try:
        yield from compact(target, now=now, files_max=policy.files_max)
        yield from tidy_indexes(
            target, now=now, files_max=policy.files_max, late_days=late_days, reached_ms=reached_ms()
        )
        yield from retain(target, now=now, days=policy.retain_days, finest_days=policy.retain_finest_days)
        named = named_by_tables(target, settings)
        if named is not None:
            remove_replaced(target, now=now, keep_seconds=policy.keep_replaced_seconds, named=named)
    except Held:
        return


@contextmanager
def open_iceberg_tables(target: ParquetReads, settings: Settings) -> Iterator[IcebergTables]:
    """The warehouse's Iceberg tables, for publishing to them.

    Raises:
        Misconfigured: no catalogue is named, its driver is not installed, or its address can't be used.
        Unavailable: its database does not answer.
    """
    if settings.iceberg.database is None:
        raise Misconfigured("cannot publish tables: no catalogue is named; set iceberg.database")
    try:
        from pipeline.warehouse.iceberg_tables import IcebergTables
    except ImportError as exc:
        raise Misconfigured(
            f"cannot use iceberg.database: {exc.name} is not installed; install gputide[iceberg]"
        ) from exc
    location = settings.iceberg.location
    if location is None and settings.warehouse.kind is WarehouseKind.HIVE:
        location = settings.hive.location
    place = f"file://{target.files.folder.absolute()}" if location is None else location
    with closing(IcebergTables(target.files, settings.iceberg, place)) as tables:
        yield tables


def named_by_tables(target: ParquetReads, settings: Settings) -> frozenset[str] | None:
    """Publishes to the Iceberg tables, where there are any; the files that their readers may open, None if not known.

    Tables that can't be reached or were altered keep nobody from rolling up; replaced files stay while they are named.

    Raises:
        Misconfigured: as `open_iceberg_tables`.
    """
    if settings.iceberg.database is None:
        return frozenset()
    found = list(_published(target, settings, lambda tables: tables.named()))
    return found[0] if found else None


def _published(
    target: ParquetReads, settings: Settings, then: Callable[[IcebergTables], frozenset[str]]
) -> Iterator[frozenset[str]]:
    """Publishes once, then asks the tables; nothing where somebody else is at it, or they can't be reached."""
    try:
        with open_iceberg_tables(target, settings) as tables:
            tables.publish(keep_seconds=settings.warehouse.keep_replaced_seconds)
            yield then(tables)
    except Held:
        return
    except (Corrupt, Unavailable) as exc:
        _log.warning("iceberg tables are behind the warehouse", why=str(exc))


def _publishing_round(target: ParquetReads, settings: Settings) -> Iterator[object]:
    return _published(target, settings, lambda _tables: frozenset())


@contextmanager
def tended_rollup(
    rollup: Rollup, target: ParquetReads, settings: Settings, reached_ms: Reached = lambda: None
) -> Iterator[Rollup]:
    """The rollup, with upkeep of its warehouse while its bus is empty, as often as the settings say.

    Iceberg tables are published to at the beginning and at an orderly end as well.

    Raises:
        Misconfigured: the catalogue of Iceberg tables can't be used.
    """
    if settings.iceberg.database is None:
        yield _tended(rollup, target, settings, reached_ms)
        return
    from pipeline.rollup.rollup import TendingRollup

    deque(_publishing_round(target, settings), maxlen=0)
    publishing = TendingRollup(
        rollup,
        lambda: _publishing_round(target, settings),
        every_seconds=settings.iceberg.publish_seconds,
        now_seconds=time.monotonic,
    )
    yield _tended(publishing, target, settings, reached_ms)
    deque(_publishing_round(target, settings), maxlen=0)


def _tended(rollup: Rollup, target: ParquetReads, settings: Settings, reached_ms: Reached) -> Rollup:
    from pipeline.rollup.rollup import TendingRollup

    every_seconds = settings.warehouse.upkeep_seconds
    if every_seconds is None:
        return rollup
    return TendingRollup(
        rollup,
        lambda: upkeep_round(target, settings, datetime.now(UTC), reached_ms),
        every_seconds=every_seconds,
        now_seconds=time.monotonic,
    )


_CLUSTERS_NAMED_MAX = 10
NOTHING_YET = "nothing was recorded yet; feed the folder with `gputide admin replay DIR` or `gputide run receive`"


def cluster_name(folder: DataFolder, settings: Settings, asked: str | None = None) -> str:
    """The cluster that is meant: the one that is asked for, else the only one with data, else that of the settings.

    Raises:
        NotEnoughData: nothing is known of any cluster.
        Misconfigured: nothing is known of the one that is asked for; or there are several, and neither a word nor the
            settings name one of them.
    """
    known = warehouse(folder, settings).clusters()
    if not known:
        raise NotEnoughData(NOTHING_YET)
    if asked is not None:
        if asked not in known:
            raise Misconfigured(f"cannot use --cluster {asked[:253]!r}: data came of {_listed(known)}")
        return asked
    if settings.cluster.name in known:
        return settings.cluster.name
    if len(known) > 1:
        raise Misconfigured(
            f"cannot choose a cluster: cluster.name={settings.cluster.name!r} is not among {_listed(known)}; say "
            "--cluster NAME, or --set cluster.name=NAME"
        )
    return known[0]


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_CLUSTERS_NAMED_MAX])
    return shown if len(names) <= _CLUSTERS_NAMED_MAX else f"{shown} and {len(names) - _CLUSTERS_NAMED_MAX} more"


class WarehouseMeasurements:
    """`Measurements` over the warehouse."""

    def __init__(self, folder: DataFolder, settings: Settings, *, cluster: str | None = None) -> None:
        self._folder = folder
        self._settings = settings
        self._cluster = cluster

    def history(self, since: datetime, until: datetime) -> History:
        """Usage and grants between two moments; see the port."""
        if not warehouse_folder(self._folder, self._settings).exists():
            raise NotEnoughData(NOTHING_YET)
        cluster = self._cluster if self._cluster is not None else cluster_name(self._folder, self._settings)
        return warehouse(self._folder, self._settings).history(
            cluster, since=since, until=until, time_zone=self._settings.cluster.time_zone
        )
