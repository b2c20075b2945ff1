"""The schema of `fleet.schema` as Arrow schemas, which files and DuckDB go by. Called by rollup and warehouse."""

from __future__ import annotations

import pyarrow as pa

from fleet.schema import ColumnKind, Table

_ARROW_TYPES = {
    ColumnKind.TEXT: pa.dictionary(pa.int32(), pa.string()),
    ColumnKind.INTEGER: pa.int64(),
    ColumnKind.REAL: pa.float64(),
    ColumnKind.TIME_MS: pa.int64(),
    ColumnKind.HISTOGRAM: pa.map_(pa.int32(), pa.int64()),
}


def arrow_schema(table: Table) -> pa.Schema:
    """The Arrow schema of a table's files; text columns are dictionary-coded."""
    return pa.schema(
        [pa.field(column.name, _ARROW_TYPES[column.kind], nullable=column.is_optional) for column in table.columns]
    )


def quoted(name: str) -> str:
    """A name as an SQL identifier."""
    escaped = name.replace('"', '""')
    return f'"{escaped}"'
