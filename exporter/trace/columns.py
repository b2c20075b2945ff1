"""Checks of a trace's columns: every value that the rest of the house would choke on is named by file, column and row.

Called by `exporter.trace.trace` on each piece of a file that it reads. All checks work on whole columns; the row number
in a message counts from 0 in the file, so that `table.slice(row, 1)` shows it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fleet.errors import Corrupt
from fleet.schema import MEASURES, Measure, MeasureColumn


class Shape(StrEnum):
    """What a column of a trace may hold."""

    TEXT = "text"
    NUMBER = "number"
    TIME = "time"
    TRUTH = "bool"
    LABELS = "map of text to text"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceColumn:
    """One column of a trace file.

    Attributes:
        is_required: True where a file without this column is refused.
        is_nullable: True where a row may leave it out.
        value_max: highest valid number, None where there is none.
    """

    name: str
    shape: Shape
    is_required: bool = True
    is_nullable: bool = False
    value_min: float = 0.0
    value_max: float | None = None


def measure_column(column: MeasureColumn, *, is_required: bool = False) -> TraceColumn:
    """The trace column that carries a measure, with the measure's own range."""
    return TraceColumn(
        name=column.measure.value,
        shape=Shape.NUMBER,
        is_required=is_required,
        is_nullable=True,
        value_min=column.value_min,
        value_max=column.value_max,
    )


RANGES = {column.measure: column for column in MEASURES}
"""Valid range per measure, from the one schema."""


def check_schema(path: Path, schema: pa.Schema, columns: tuple[TraceColumn, ...]) -> None:
    """Refuses a file that lacks a required column or holds one of another type.

    Raises:
        Corrupt: names the file, the column, the type found and the type expected.
    """
    for column in columns:
        index = schema.get_field_index(column.name)
        if index < 0:
            if column.is_required:
                raise Corrupt(
                    f"cannot read {path}: column {column.name} is missing; it has {', '.join(schema.names) or 'none'}"
                )
            continue
        found = schema.field(index).type
        if not _fits(found, column.shape):
            raise Corrupt(f"cannot read {path}: column {column.name} is {found}, expected {column.shape.value}")


def check_present(path: Path, column: TraceColumn, values: pa.Array | pa.ChunkedArray, row_offset: int) -> None:
    """Refuses a null where a value is needed.

    Raises:
        Corrupt: names the first row without a value.
    """
    if column.is_nullable or values.null_count == 0:
        return
    row = int(np.flatnonzero(np.asarray(pc.is_null(values)))[0]) + row_offset
    raise Corrupt(f"cannot read {path}: column {column.name} is null in row {row}; a value is required there")


def numbers(
    path: Path, column: TraceColumn, values: pa.Array | pa.ChunkedArray, row_offset: int
) -> npt.NDArray[np.float64]:
    """A number column as floats, NaN where a nullable row is null (a NaN in the file itself is refused).

    Returns:
        Shape `(rows,)`; every number that is there lies within the column's range.

    Raises:
        Corrupt: a number is NaN, infinite, or out of range.
    """
    check_present(path, column, values, row_offset)
    floats: npt.NDArray[np.float64] = pc.cast(values, pa.float64(), safe=False).to_numpy(zero_copy_only=False)
    # A bound of infinity refuses infinite values, which are nobody's measurement.
    above = floats > column.value_max if column.value_max is not None else floats == np.inf
    wrong, limit = floats < column.value_min, f"at least {column.value_min:g}"
    if above.any():
        wrong, limit = above, f"at most {column.value_max:g}" if column.value_max is not None else "finite"
    elif not wrong.any() and np.isnan(floats).sum() > values.null_count:
        wrong = np.isnan(floats) & ~np.asarray(pc.is_null(values))
        limit = "a number, or null where nothing was collected" if column.is_nullable else "a number"
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise Corrupt(
            f"cannot read {path}: column {column.name} is {floats[row]:.17g} in row {row + row_offset}; must be {limit}"
        )
    return floats


def times_ms(
    path: Path, column: TraceColumn, values: pa.Array | pa.ChunkedArray, row_offset: int
) -> npt.NDArray[np.int64]:
    """A time column as epoch milliseconds (rounded down); a time without a zone is UTC, as the format says.

    Returns:
        Shape `(rows,)`; `NO_TIME` where a nullable row holds none.

    Raises:
        Corrupt: a required time is null.
    """
    check_present(path, column, values, row_offset)
    # Casting to a coarser unit truncates, which a safe cast would refuse.
    whole = pc.cast(pc.cast(values, pa.timestamp("ms", tz="UTC"), safe=False), pa.int64())
    result: npt.NDArray[np.int64] = pc.fill_null(whole, NO_TIME).to_numpy().astype(np.int64, copy=False)
    return result


NO_TIME = np.iinfo(np.int64).max
"""Stands for "no end known" in arrays of epoch milliseconds."""


def measure_of(name: str) -> Measure | None:
    """The measure whose column has this name, None where it is no measure's."""
    return _MEASURE_BY_NAME.get(name)


_MEASURE_BY_NAME = {measure.value: measure for measure in Measure}


def _fits(found: Any, shape: Shape) -> bool:
    plain = found.value_type if pa.types.is_dictionary(found) else found
    if shape is Shape.TEXT:
        return bool(pa.types.is_string(plain) or pa.types.is_large_string(plain))
    if shape is Shape.NUMBER:
        # A column of nothing but nulls has no type of its own.
        return bool(pa.types.is_floating(plain) or pa.types.is_integer(plain) or pa.types.is_null(plain))
    if shape is Shape.TIME:
        return bool(pa.types.is_timestamp(plain))
    if shape is Shape.TRUTH:
        return bool(pa.types.is_boolean(plain) or pa.types.is_null(plain))
    return bool(pa.types.is_map(plain) or pa.types.is_null(plain))
