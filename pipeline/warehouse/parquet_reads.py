"""Questions to a warehouse of Parquet files: grids, merged windows, inventory, what was counted already.

`warehouse.files` says which files count, `usage_grid` makes grids of them, DuckDB merges rows. The adapters of the
warehouse that keep such files (`warehouse_duckdb`, `warehouse_hive`) answer with this.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from shutil import rmtree
from typing import Any

import duckdb
import pyarrow as pa

from fleet.errors import Corrupt, NotEnoughData
from fleet.inventory import CardId, Inventory, NodeLife, Quota
from fleet.schema import (
    CARD_IDENTITY,
    CARD_USAGE,
    INVENTORY_CARDS,
    INVENTORY_NODES,
    POD_USAGE,
    QUOTAS,
    SLICE_IDENTITY,
    Column,
    ColumnKind,
    Measure,
    Merge,
    Table,
)
from fleet.usage import History
from pipeline.records.sightings import INVENTORY_TABLES, inventory_of
from pipeline.warehouse.ddl import arrow_schema, quoted
from pipeline.warehouse.files import WarehouseFiles
from pipeline.warehouse.stored_history import StoredHistory, stored_cards, stored_slices
from pipeline.warehouse.usage_grid import UsageFiles, epoch_ms, moment_of, read_span
from pipeline.warehouse.warehouse import SeenRows

_MEMORY = "1GiB"
"""What one question may take; DuckDB spills beyond it."""
_INTERRUPTED = "Query interrupted"
"""What DuckDB makes of whatever a signal's handler raises during a question (a RuntimeError)."""
_PIECE_ROWS = 500_000
"""Rows that are merged into one row group."""


class ParquetReads:
    """Answers from the files that count at the moment of the question."""

    def __init__(self, files: WarehouseFiles) -> None:
        self.files = files

    def clusters(self) -> tuple[str, ...]:
        """Every cluster that has any row, sorted."""
        return self.files.clusters()

    def applied_offset(self, source: str) -> int:
        """The offset after the last append from a lane, 0 where there is none."""
        return self.files.applied_offset(source)

    def seen(self, table: Table, date: str, cluster: str, *, since_ms: int, until_ms: int) -> Iterator[SeenRows]:
        """Samples counted by earlier appends; see `SeenStore.seen`."""
        return self.files.seen(table, date, cluster, since_ms=since_ms, until_ms=until_ms)

    def is_closed(self, table: Table, date: str, cluster: str) -> bool:
        """Whether a partition takes in no further samples; see `SeenStore.is_closed`."""
        return self.files.is_closed(table, date, cluster)

    def history(
        self, cluster: str, *, since: datetime | None = None, until: datetime | None = None, time_zone: str = "UTC"
    ) -> History:
        """The usage grids and the inventory of one cluster; see `Warehouse.history`."""
        return self.stored_history(cluster, since=since, until=until, time_zone=time_zone).whole()

    def stored_history(
        self,
        cluster: str,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        time_zone: str = "UTC",
        rows_max: int | None = None,
    ) -> StoredHistory:
        """The same before any value is read, so that a large one can be read in parts; see `Warehouse.history`.

        Args:
            rows_max: rows of a table up to which the whole is meant to be read.
        """
        files = [
            self._usage_files(table, names, cluster, since, until)
            for table, names in ((POD_USAGE, SLICE_IDENTITY), (CARD_USAGE, CARD_IDENTITY))
        ]
        slices, cards = (read_span(found, rows_max) for found in files)
        spans = [span for span in (slices, cards) if span.first_ms is not None]
        if not spans:
            period = f"{since or 'the beginning'} and {until or 'now'}"
            raise NotEnoughData(f"cannot read history of cluster {cluster!r}: no sample between {period}")
        inventory = self.inventory(cluster, as_of=until, time_zone=time_zone)
        step = max(span.step_seconds for span in spans)
        since_ms = _floor(min(span.first_ms or 0 for span in spans), step)
        if since is not None:
            since_ms = max(since_ms, epoch_ms(since))
        until_ms = -_floor(-max(span.last_ms or 0 for span in spans), step) if until is None else epoch_ms(until)
        since_ms -= since_ms % 60_000
        return StoredHistory(
            inventory=inventory,
            slices=stored_slices(files[0], slices, inventory, since_ms, until_ms),
            cards=stored_cards(files[1], cards, since_ms, until_ms) if cards.groups else None,
        )

    def windows(
        self,
        table: Table,
        *,
        cluster: str,
        level_seconds: int,
        since: datetime,
        until: datetime,
        with_histograms: bool = True,
        measures: Collection[Measure] | None = None,
        card: CardId | None = None,
    ) -> pa.Table:
        """Merged rows of one level; see `Warehouse.windows`.

        Args:
            card: card whose rows alone are read, of a table of cards or slices.
        """
        paths = self._paths(table, cluster, since, until)
        names = [column.name for column in table.columns if column.merge is not Merge.HISTOGRAM or with_histograms]
        if measures is not None:
            left_out = tuple(f"{measure.value}_" for measure in Measure if measure not in measures)
            names = [name for name in names if not name.startswith(left_out)]
        bounds = (
            f"window_seconds = {int(level_seconds)} AND window_start >= {epoch_ms(since)} "
            f"AND window_start < {epoch_ms(until)}"
        )
        if card is not None:
            bounds += " AND card = '{}'".format(card.replace("'", "''"))
        query = _merging(table, names, bounds) + f" ORDER BY {_listed(table.keys)}"
        return self._query(query, paths, table) if paths else arrow_schema(table).empty_table().select(names)

    def inventory(self, cluster: str, *, as_of: datetime | None = None, time_zone: str = "UTC") -> Inventory:
        """What stood in a cluster at a moment; see `Warehouse.inventory`."""
        rows = {table.name: self._sightings(table, cluster, as_of) for table in INVENTORY_TABLES}
        return inventory_of(rows, cluster=cluster, as_of=as_of, time_zone=time_zone)

    def quotas(self, cluster: str, *, as_of: datetime) -> tuple[Quota, ...]:
        """Quotas and queues that stood in a cluster at a moment, without reading the rest of its inventory."""
        rows = {QUOTAS.name: self._sightings(QUOTAS, cluster, as_of)}
        return inventory_of(rows, cluster=cluster, as_of=as_of, time_zone="UTC").quotas

    def card_lives(self, cluster: str, *, as_of: datetime | None = None) -> dict[CardId, tuple[datetime, datetime]]:
        """When each card of a cluster was first and last seen, up to a moment; None for the newest."""
        paths = self._paths(INVENTORY_CARDS, cluster, None, as_of)
        if not paths:
            return {}
        found = self._query(
            "SELECT card, min(first_seen) AS first_seen, max(last_seen) AS last_seen FROM stored_rows "
            "GROUP BY card ORDER BY card",
            paths,
            INVENTORY_CARDS,
        )
        return {
            CardId(row["card"]): (moment_of(row["first_seen"]), moment_of(row["last_seen"]))
            for row in found.to_pylist()
        }

    def node_lives(self, cluster: str, *, as_of: datetime | None = None) -> dict[str, NodeLife]:
        """When each node of a cluster was seen, up to a moment; None for the newest."""
        paths = self._paths(INVENTORY_NODES, cluster, None, as_of)
        if not paths:
            return {}
        query = (
            "SELECT node, min(first_seen) AS first_seen, max(last_seen) AS last_seen, "
            "list(DISTINCT provider_id) AS provider_ids FROM stored_rows GROUP BY node ORDER BY node"
        )
        return {
            row["node"]: NodeLife(
                first_seen=moment_of(row["first_seen"]),
                last_seen=moment_of(row["last_seen"]),
                provider_ids=tuple(sorted(filter(None, row["provider_ids"]))),
            )
            for row in self._query(query, paths, INVENTORY_NODES).to_pylist()
        }

    def merged_rows(
        self, table: Table, paths: Sequence[str], *, level_seconds: int | None, spill_folder: Path
    ) -> Iterator[pa.Table]:
        """The merged rows of some files in pieces of the table's Arrow schema, those of one identity in one run.

        Args:
            paths: its files, below the warehouse's folder.
            level_seconds: level of the rows; None for a table without levels.
            spill_folder: where rows go that memory has no place for; made, and removed when all pieces were taken.

        Raises:
            Corrupt: a file can't be read.
        """
        bounds = "true" if level_seconds is None else f"window_seconds = {int(level_seconds)}"
        order = [name for name in table.keys if name != "window_start"]
        order += ["window_start"] if "window_start" in table.keys else []
        query = _merging(table, [column.name for column in table.columns], bounds) + f" ORDER BY {_listed(order)}"
        try:
            with _asked(f"cannot merge {len(paths)} files of {self.files.folder}", spill_folder) as connection:
                answer = self._answer(connection, query, paths, table, of_any_age=True)
                for batch in answer.to_arrow_reader(_PIECE_ROWS):
                    if batch.num_rows:
                        yield pa.Table.from_batches([batch]).cast(arrow_schema(table))
        finally:
            rmtree(spill_folder, ignore_errors=True)

    def _sightings(self, table: Table, cluster: str, as_of: datetime | None) -> list[dict[str, Any]]:
        paths, keys = self._paths(table, cluster, None, as_of), _listed(table.keys)
        query = (
            f"SELECT {keys}, min(first_seen) AS first_seen, max(last_seen) AS last_seen, max(ended_at) AS ended_at "
            f"FROM stored_rows GROUP BY {keys} ORDER BY {keys}"
        )
        return self._query(query, paths, table).to_pylist() if paths else []

    def _usage_files(
        self, table: Table, names: tuple[str, ...], cluster: str, since: datetime | None, until: datetime | None
    ) -> UsageFiles:
        return UsageFiles(
            paths=tuple(Path(path) for path in self._paths(table, cluster, since, until)),
            names=names,
            opened=self.files.rows.opened,
            since_ms=None if since is None else epoch_ms(since) // 60_000 * 60_000,
            until_ms=None if until is None else epoch_ms(until),
        )

    def _paths(self, table: Table, cluster: str, since: datetime | None, until: datetime | None) -> list[str]:
        first = "" if since is None else since.astimezone(UTC).date().isoformat()
        last = "9999" if until is None else until.astimezone(UTC).date().isoformat()
        return [file.path for file in self.files.files(table, cluster, first_date=first, last_date=last)]

    def _query(self, query: str, paths: Sequence[str], table: Table) -> pa.Table:
        with _asked(f"cannot read {len(paths)} files of {self.files.folder}") as connection:
            try:
                return self._answer(connection, query, paths, table).to_arrow_table()
            except (duckdb.BinderException, duckdb.InvalidInputException):
                # Some file is older than a measure. To look at every file for that takes four times as long.
                return self._answer(connection, query, paths, table, of_any_age=True).to_arrow_table()

    def _answer(
        self,
        connection: duckdb.DuckDBPyConnection,
        query: str,
        paths: Sequence[str],
        table: Table,
        *,
        of_any_age: bool = False,
    ) -> duckdb.DuckDBPyRelation:
        """Asks a query whose table `stored_rows` is what lies in some files of a table.

        A file that is older than a measure lacks its columns, for nothing was collected of it then: with `of_any_age`
        it reads as null, and a text that it lacks as empty, which is absent too.
        """
        stored = self.files.rows.relation(paths)
        if not isinstance(stored, list):
            of_the_table = pa.schema([column.with_nullable(True) for column in arrow_schema(table)])
            connection.register("all_rows", stored.replace_schema(of_the_table))
            rows = connection.table("all_rows")
        else:
            rows = connection.read_parquet(stored, hive_partitioning=False, union_by_name=of_any_age)
            if of_any_age:
                connection.register("all_columns", arrow_schema(table).empty_table())
                rows.create_view("found_rows", replace=True)
                rows = connection.sql("SELECT * FROM found_rows UNION ALL BY NAME SELECT * FROM all_columns")
        if of_any_age:
            rows.create_view("sparse_rows", replace=True)
            texts = [
                quoted(column.name)
                for column in table.columns
                if column.kind is ColumnKind.TEXT and not column.is_optional
            ]
            filled = ", ".join(f"coalesce({name}, '') AS {name}" for name in texts)
            rows = connection.sql(f"SELECT * REPLACE ({filled}) FROM sparse_rows")
        rows.create_view("stored_rows", replace=True)
        return connection.sql(query)


@contextmanager
def _asked(what_failed: str, spill_folder: Path | None = None) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection for one question.

    Raises:
        Corrupt: a file can't be read.
        KeyboardInterrupt: as a signal's handler raised it while DuckDB was at work, which makes another error of it.
    """
    options: dict[str, str | bool | int | float | list[str]] = {"memory_limit": _MEMORY, "threads": 2}
    if spill_folder is not None:
        options["temp_directory"] = str(spill_folder)
    try:
        with duckdb.connect(config=options) as connection:
            yield connection
    except (duckdb.Error, pa.ArrowException, OSError) as exc:
        raise Corrupt(f"{what_failed}: {exc}") from exc
    except RuntimeError as exc:
        if str(exc) != _INTERRUPTED:
            raise
        raise KeyboardInterrupt from exc


def _merging(table: Table, names: Sequence[str], bounds: str) -> str:
    """A query for some columns of `$paths`, one row per key."""
    columns = [column for column in table.columns if column.name in names and column.name not in table.keys]
    histograms = [column for column in columns if column.merge is Merge.HISTOGRAM]
    keys = _listed(table.keys)
    merged = ", ".join(
        f"{_merged(column)}::BIGINT AS {quoted(column.name)}"
        for column in columns
        if column.merge is not Merge.HISTOGRAM
    )
    joins = "".join(
        f" LEFT JOIN ({_histogram_query(keys, column.name)}) AS h{place} USING ({keys})"
        for place, column in enumerate(histograms)
    )
    return (
        f"WITH found AS (SELECT * FROM stored_rows WHERE {bounds}), "
        f"merged AS (SELECT {keys}, {merged} FROM found GROUP BY {keys}) SELECT {_listed(names)} FROM merged{joins}"
    )


def _merged(column: Column) -> str:
    merged = f"{column.merge.value}({quoted(column.name)})"
    # What older files lack was not counted.
    return merged if column.is_optional else f"coalesce({merged}, 0)"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(quoted, names))


def _histogram_query(keys: str, name: str) -> str:
    column = quoted(name)
    return (
        f"SELECT {keys}, map(list(bin ORDER BY bin), list(total::BIGINT ORDER BY bin)) AS {column} FROM ("
        f"SELECT {keys}, entry.key AS bin, sum(entry.value) AS total FROM ("
        f"SELECT {keys}, unnest(map_entries({column})) AS entry FROM found WHERE {column} IS NOT NULL) "
        f"GROUP BY {keys}, bin) GROUP BY {keys}"
    )


def _floor(milliseconds: int, step_seconds: int) -> int:
    return milliseconds // (step_seconds * 1000) * (step_seconds * 1000)
