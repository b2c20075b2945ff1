"""The DDL of every table takes the rows that the Arrow schema of the same table describes."""

from __future__ import annotations

import duckdb
import pytest

from fleet.schema import TABLES, Table
from pipeline.warehouse.ddl import arrow_schema, create_table, quoted


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_ddl_and_arrow_schema_agree_on_names_order_and_types(table: Table) -> None:
    with duckdb.connect() as connection:
        connection.execute(create_table(table))
        rows = arrow_schema(table).empty_table()
        connection.register("rows", rows)
        connection.execute(f"INSERT INTO {quoted(table.name)} SELECT * FROM rows")
        declared = connection.execute(f"DESCRIBE {quoted(table.name)}").fetchall()
        given = connection.execute("DESCRIBE rows").fetchall()
    assert [column[0] for column in declared] == [column.name for column in table.columns]
    # DuckDB reads dictionary-coded text as an enumeration or as plain text.
    assert [column[1] for column in declared] == [
        "VARCHAR" if column[1].startswith("ENUM") else column[1] for column in given
    ]
