"""The schema of `fleet.schema` as the embedded engine's types: Arrow schemas and DuckDB's DDL.

Called by the rollup and the warehouse; other engines' dialects belong here as well.
"""

from __future__ import annotations

import pyarrow as pa

from fleet.schema import Column, ColumnKind, Table

_ARROW_TYPES = {
    ColumnKind.TEXT: pa.dictionary(pa.int32(), pa.string()),
    ColumnKind.INTEGER: pa.int64(),
    ColumnKind.REAL: pa.float64(),
    ColumnKind.TIME_MS: pa.int64(),
    ColumnKind.HISTOGRAM: pa.map_(pa.int32(), pa.int64()),
}
_DUCKDB_TYPES = {
    ColumnKind.TEXT: "VARCHAR",
    ColumnKind.INTEGER: "BIGINT",
    ColumnKind.REAL: "DOUBLE",
    ColumnKind.TIME_MS: "BIGINT",
    ColumnKind.HISTOGRAM: "MAP(INTEGER, BIGINT)",
}


def arrow_schema(table: Table) -> pa.Schema:
    """The Arrow schema of a table's files; text columns are dictionary-coded."""
    return pa.schema(
        [pa.field(column.name, _ARROW_TYPES[column.kind], nullable=column.is_optional) for column in table.columns]
    )


def duckdb_columns(table: Table) -> str:
    """The column list of a DuckDB `CREATE TABLE`."""
    return ", ".join(_duckdb_column(column) for column in table.columns)


def create_table(table: Table) -> str:
    """DuckDB's `CREATE TABLE` for a table."""
    return f"CREATE TABLE {quoted(table.name)} ({duckdb_columns(table)})"


def quoted(name: str) -> str:
    """A name as an SQL identifier."""
    escaped = name.replace('"', '""')
    return f'"{escaped}"'


def _duckdb_column(column: Column) -> str:
    null = "" if column.is_optional else " NOT NULL"
    return f"{quoted(column.name)} {_DUCKDB_TYPES[column.kind]}{null}"
