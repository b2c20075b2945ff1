"""`gputide admin warehouse`: few files per partition, no older rows than wanted, Hive's tables up to date."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Annotated

import typer

from fleet.documents import document
from fleet.errors import Misconfigured
from fleet.units import format_count
from gputide.container.rollup import bus_reached_ms
from gputide.container.warehouse import named_by_tables, open_iceberg_tables, open_warehouse, warehouse
from gputide.options import answering
from gputide.output import Answer, Listing
from gputide.session import Session, session_of
from pipeline.warehouse.compact import Upkeep, compact, remove_replaced, retain, tidy_indexes
from pipeline.warehouse.parquet_reads import ParquetReads
from pipeline.warehouse.warehouse_duckdb import DuckdbWarehouse

app = typer.Typer(no_args_is_help=True, help="Upkeep of the warehouse. Example: gputide admin warehouse compact")

KeepOption = Annotated[
    int | None,
    typer.Option(min=0, help="Keep replaced files for this long instead of warehouse.keep_replaced_seconds."),
]


@app.command("compact", epilog="Example: gputide admin warehouse compact")
@answering
def compact_files(
    session: Session,
    keep_seconds: KeepOption = None,
) -> Answer:
    """Merge the files of partitions that have more than warehouse.files_max, and close days (rollup.late_days)."""
    policy, now = session.settings.warehouse, session.now()
    late_days = session.settings.rollup.late_days
    with open_warehouse(session.folder(), session.settings) as warehouse:
        done = list(compact(warehouse, now=now, files_max=policy.files_max))
        removed = _removed(session, warehouse, keep_seconds)
        reached_ms = bus_reached_ms(session.folder(), session.settings)
        tidied = tidy_indexes(
            warehouse, now=now, files_max=policy.files_max, late_days=late_days, reached_ms=reached_ms
        )
        deque(tidied, maxlen=0)
    return _answer_of(done, removed, "merged")


@app.command("retain", epilog="Example: gputide --set warehouse.retain_days=90 admin warehouse retain")
@answering
def retain_days(
    session: Session,
    keep_seconds: KeepOption = None,
) -> Answer:
    """Drop what is older than warehouse.retain_days, and finest windows older than warehouse.retain_finest_days."""
    policy, now = session.settings.warehouse, session.now()
    if policy.retain_days is None and policy.retain_finest_days is None:
        raise Misconfigured(
            "cannot drop anything: neither warehouse.retain_days nor warehouse.retain_finest_days is set"
        )
    with open_warehouse(session.folder(), session.settings) as warehouse:
        done = list(retain(warehouse, now=now, days=policy.retain_days, finest_days=policy.retain_finest_days))
        removed = _removed(session, warehouse, keep_seconds)
    return _answer_of(done, removed, "thinned or dropped")


@app.command("migrate", epilog="Example: gputide --set warehouse.kind=hive admin warehouse migrate")
def migrate_tables(context: typer.Context) -> None:
    """Make the tables, columns and partitions that Hive lacks; refuse tables that somebody has altered."""
    session = session_of(context)
    with open_warehouse(session.folder(create=True), session.settings) as warehouse:
        if isinstance(warehouse, DuckdbWarehouse):
            raise Misconfigured("cannot migrate tables: warehouse.kind=duckdb has none; set warehouse.kind=hive")
        added = warehouse.migrate()
    database = session.settings.hive.database
    typer.echo(f"tables of {database} are as the schema has them; {format_count(added)} partitions were missing")


@app.command("publish", epilog="Example: gputide admin warehouse publish")
def publish_tables(context: typer.Context) -> None:
    """Make the Iceberg tables say what the warehouse has; a running roll-up does it every iceberg.publish_seconds."""
    session = session_of(context)
    settings = session.settings
    with open_iceberg_tables(warehouse(session.folder(), settings), settings) as tables:
        done = tables.publish(keep_seconds=settings.warehouse.keep_replaced_seconds)
    typer.echo(
        f"tables of {settings.iceberg.namespace} are as the warehouse: {format_count(done.added)} files added, "
        f"{format_count(done.removed)} removed"
    )


def _removed(session: Session, target: ParquetReads, keep_seconds: int | None) -> int:
    """Removes replaced files that no table names any more; returns how many."""
    named = named_by_tables(target, session.settings)
    if named is None:
        return 0
    kept_seconds = session.settings.warehouse.keep_replaced_seconds if keep_seconds is None else keep_seconds
    return remove_replaced(target, now=session.now(), keep_seconds=kept_seconds, named=named)


def _answer_of(done: Iterable[Upkeep], removed: int, word: str) -> Answer:
    done = list(done)
    columns = ("table", "date", "cluster", "files before", "files after", "rows before", "rows after")
    rows = [[getattr(item, name.replace(" ", "_")) for name in columns] for item in done]
    return Answer(
        document={"partitions": document(done), "files_removed": removed},
        headline=(f"{format_count(len(done))} partitions {word}, {format_count(removed)} replaced files removed",),
        listings=(Listing(title="Partitions", columns=columns, rows=rows),) if rows else (),
    )
