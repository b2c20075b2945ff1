"""How one Parquet file of a warehouse is written: rows of a table, or an index of counted samples.

Called by `warehouse.files` and `warehouse.seen_index`.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.warehouse.row_store import RowStore

SEEN_SCHEMA = pa.schema([("hash", pa.uint64()), ("ts_ms", pa.int64()), ("measures", pa.uint32())])
"""Columns of an index."""
_STATISTICS = ("window_start", "window_seconds", "last_seen", "first_seen")


def write_parquet(store: RowStore, below: Path, first: pa.Table, further: Iterable[pa.Table]) -> int:
    """Writes one file, a row group or more per piece, and returns its number of rows."""
    schema, rows = first.schema, 0
    texts = [field.name for field in schema if pa.types.is_dictionary(field.type)]
    is_index = schema.equals(SEEN_SCHEMA)

    def fill(file: Any) -> None:
        nonlocal rows
        with pq.ParquetWriter(
            file,
            schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=["hash", "measures"] if is_index else [*texts, "window_seconds", "samples"],
            column_encoding={"ts_ms": "DELTA_BINARY_PACKED"} if is_index else None,
            write_statistics=[] if is_index else [name for name in _STATISTICS if name in schema.names],
        ) as writer:
            for piece in chain((first,), further):
                writer.write_table(piece)
                rows += piece.num_rows

    store.write(below, fill)
    return rows
