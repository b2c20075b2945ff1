"""The catalogue in Hive's metastore: external tables made from `fleet.schema`, one partition per day and cluster.

Tables, columns that the schema has gained and partitions that are missing are made; a table or partition that somebody
has altered is refused with the difference before anything of an append counts. `hive_ddl` has the words, `hive_session`
sends them. Called by `warehouse_hive`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from fleet.errors import Corrupt, Misconfigured
from fleet.schema import TABLES, Table
from pipeline.warehouse import hive_ddl as ddl
from pipeline.warehouse.catalogue import PartitionFolder
from pipeline.warehouse.hive_ddl import HivePartition, HiveTable
from pipeline.warehouse.hive_session import HiveSession
from pipeline.warehouse.partition_names import safe_name

_TABLES = {table.name: table for table in TABLES}
_LOCATION = re.compile(r"[a-z][a-z0-9+.-]*:/[A-Za-z0-9._~!&()*+,=:@/-]*")
_PARTITIONS_PER_STATEMENT = 500


class HiveCatalogue:
    """The tables of one database.

    Args:
        database: its name; made where it is missing.
        location: what Hive calls the warehouse's folder.
        crash_point: called with a name at every moment at which a crash would matter; tests raise or kill there.

    Raises:
        Misconfigured: the location can't be used.
    """

    def __init__(
        self,
        session: HiveSession,
        *,
        database: str,
        location: str,
        crash_point: Callable[[str], None] = lambda _name: None,
    ) -> None:
        # SET LOCATION parses what it is given as a URI and keeps it as a path: only what is the same in both will do.
        if not _LOCATION.fullmatch(location):
            raise Misconfigured(
                f"cannot use hive.location={location!r}: expected a URI such as file:/srv/gputide, of letters, digits "
                "and ._~!&()*+,=:@/- only"
            )
        self._session = session
        self._database = database
        self._location = location.rstrip("/")
        self._crash_point = crash_point
        self._shown: dict[str, set[str]] = {}
        self._added: set[PartitionFolder] = set()

    def add(self, partitions: Sequence[PartitionFolder]) -> None:
        """Makes partitions where they are missing; see `Catalogue.add`.

        Raises:
            Corrupt: a table or partition was altered; the message names the difference.
            Misconfigured: Hive does not let us.
        """
        self.prepare()
        fresh = [partition for partition in partitions if partition not in self._added]
        for table, items in _by_table(fresh):
            self._refuse_differences(table)
            shown = self._shown[table.name]
            named = [(item, self._named(item)) for item in items]
            for _, partition in named:
                if ddl.partition_name(partition) in shown:
                    self._refuse_other_folder(table, partition)
            missing = [partition for _, partition in named if ddl.partition_name(partition) not in shown]
            for first in range(0, len(missing), _PARTITIONS_PER_STATEMENT):
                some = missing[first : first + _PARTITIONS_PER_STATEMENT]
                self._crash_point("before partitions")
                self._session.execute(ddl.add_partitions(self._database, table, some))
                self._crash_point("after partitions")
                shown.update(map(ddl.partition_name, some))
            self._added.update(items)

    def add_missing(self, partitions: Sequence[PartitionFolder]) -> int:
        """Makes those partitions that Hive does not list, without a look at the others; how many there were."""
        self.prepare()
        missing = [item for item in partitions if ddl.partition_name(self._named(item)) not in self._shown[item.table]]
        self.add(missing)
        return len(missing)

    def follow(self, partitions: Sequence[PartitionFolder]) -> None:
        """Switches partitions to other folders, or drops them; see `Catalogue.follow`."""
        self.prepare()
        for table, items in _by_table(partitions):
            shown = self._shown[table.name]
            gone = [self._named(item) for item in items if item.folder is None]
            kept = [self._named(item) for item in items if item.folder is not None]
            if gone:
                self._crash_point("before drop")
                self._session.execute(ddl.drop_partitions(self._database, table, gone))
                shown.difference_update(map(ddl.partition_name, gone))
            for partition in kept:
                self._crash_point("before switch")
                if ddl.partition_name(partition) in shown:
                    self._session.execute(ddl.set_location(self._database, table, partition))
                else:
                    self._session.execute(ddl.add_partitions(self._database, table, [partition]))
                    shown.add(ddl.partition_name(partition))

    def prepare(self) -> None:
        """Makes database, tables and columns that are missing, and checks those that are there; once.

        Raises:
            Corrupt: a table was altered.
        """
        if self._shown:
            return
        known = {row[0] for row in self._session.rows("SHOW DATABASES")}
        if self._database not in known:
            self._session.execute(ddl.create_database(self._database))
        tables = {row[0] for row in self._session.rows(ddl.show_tables(self._database))}
        # All are looked at before any is changed.
        found = {table.name: self._refuse_differences(table) for table in TABLES if table.name in tables}
        for table in TABLES:
            if table.name in found:
                self._gain_columns(table, found[table.name])
            else:
                self._session.execute(ddl.create_table(self._database, table, self._folder_of(table)))
        self._shown = {
            table.name: {row[0] for row in self._session.rows(ddl.show_partitions(self._database, table))}
            for table in TABLES
        }

    def close(self) -> None:
        """Ends the session."""
        self._session.close()
        self._shown, self._added = {}, set()

    def _refuse_differences(self, table: Table) -> HiveTable:
        found = ddl.table_of(self._session.rows(ddl.describe_table(self._database, table)))
        told = ddl.differences(table, found, self._folder_of(table))
        if told:
            raise Corrupt(
                f"cannot use Hive's table {self._database}.{table.name}: somebody has altered it: {'; '.join(told)}; "
                "put it back, or drop it (its files stay) and let it be made anew"
            )
        return found

    def _refuse_other_folder(self, table: Table, partition: HivePartition) -> None:
        found = ddl.location_of(self._session.rows(ddl.describe_partition(self._database, table, partition)))
        if not ddl.is_same_location(found, partition.location):
            raise Corrupt(
                f"cannot use partition {ddl.partition_name(partition)} of Hive's table {self._database}.{table.name}: "
                f"somebody has altered it: its files lie in {found}, not in {partition.location}; set its location "
                "back, or drop it (its files stay) and let it be made anew"
            )

    def _gain_columns(self, table: Table, found: HiveTable) -> None:
        gained = ddl.new_columns(table, found)
        if gained or set(found.recorded) != set(ddl.hive_columns(table)):
            for statement in ddl.add_columns(self._database, table, gained):
                self._session.execute(statement)

    def _folder_of(self, table: Table) -> str:
        return f"{self._location}/{table.name}"

    def _named(self, item: PartitionFolder) -> HivePartition:
        folder = item.folder or Path(item.table)
        return HivePartition(
            date=item.date, cluster=safe_name(item.cluster), location=f"{self._location}/{folder.as_posix()}"
        )


def _by_table(partitions: Iterable[PartitionFolder]) -> list[tuple[Table, list[PartitionFolder]]]:
    found: dict[str, list[PartitionFolder]] = {}
    for partition in partitions:
        found.setdefault(partition.table, []).append(partition)
    return [(_TABLES[name], items) for name, items in found.items()]
