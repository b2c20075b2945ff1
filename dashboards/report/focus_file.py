"""The FOCUS export as Parquet, CSV or Excel. Called by `gputide cost export` and `gputide report --format focus`."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa
import pyarrow.parquet as pq

from dashboards.money.charged_days import CostPeriod
from dashboards.spreadsheet import excel, write_csv
from fleet.durable import unwritable, write_durably
from fleet.errors import Misconfigured
from fleet.money.charged_day import ChargedDay
from fleet.money.focus import Basis, ChargePeriod, FocusContext, focus_table
from fleet.money.focus_columns import FOCUS_COLUMNS, FocusKind, focus_faults, focus_schema

_NAMES = [column.name for column in FOCUS_COLUMNS]


class ExportFormat(StrEnum):
    """Forms of the export; all are FOCUS."""

    FOCUS = "focus"
    """As the file's name says: Parquet for `.parquet`, Excel for `.xlsx`, else CSV."""
    PARQUET = "parquet"
    CSV = "csv"
    EXCEL = "xlsx"


_BY_ENDING = {".parquet": ExportFormat.PARQUET, ".xlsx": ExportFormat.EXCEL}


@dataclass(frozen=True, slots=True, kw_only=True)
class FocusWritten:
    """What an export holds.

    Attributes:
        unpriced_card_hours: card hours that were left out, because their cards have no price.
    """

    rows: int
    cost: Decimal
    unpriced_card_hours: int

    def words(self, currency: str) -> str:
        """What was written, in one line."""
        left = (
            f"; {self.unpriced_card_hours:,} card hours without a price were left out (gputide cost prices set)"
            if self.unpriced_card_hours
            else ""
        )
        return f"{self.rows:,} rows, {self.cost:,.2f} {currency}{left}"


def export_focus(
    period: CostPeriod,
    advice: dict[str, str],
    basis: Basis = Basis.ALLOCATION,
    charge_period: ChargePeriod = ChargePeriod.DAY,
    form: ExportFormat = ExportFormat.FOCUS,
    output: Path | None = None,
) -> FocusWritten:
    """Writes the FOCUS export of a period to a file or to standard output.

    Args:
        advice: id of the recommendation for each workload that has one.
        basis: how the cost of a shared card is split.
        output: the file; None for standard output.

    Raises:
        Misconfigured: Parquet or Excel was asked for without a file, or has more rows than a sheet takes.
        Corrupt: the file can't be written.
    """
    if form is ExportFormat.FOCUS and output is not None and output.suffix.lower() in _BY_ENDING:
        form = _BY_ENDING[output.suffix.lower()]
    focus = period.focus_context(basis, charge_period, advice)
    if form in (ExportFormat.PARQUET, ExportFormat.EXCEL):
        if output is None:
            raise Misconfigured(f"cannot write {form.value} to standard output: name a file with -o")
        write = write_focus_parquet if form is ExportFormat.PARQUET else write_focus_excel
        return write(period.days(), focus, output)
    if output is None:
        return write_focus_csv(period.days(), focus, sys.stdout)
    text = io.StringIO(newline="")
    written = write_focus_csv(period.days(), focus, text)
    write_durably(output, text.getvalue().encode())
    return written


def write_focus_parquet(days: Iterable[ChargedDay], context: FocusContext, path: Path) -> FocusWritten:
    """Writes an export as Parquet, a row group per day; a file stands under its name only when it is whole.

    Raises:
        Corrupt: the storage can't take it.
    """
    aside = path.with_name(f".{path.name}.new")
    total = _Total()
    try:
        with pq.ParquetWriter(aside, focus_schema(), compression="zstd") as writer:
            for table in total.counted(days, context):
                writer.write_table(table)
        aside.replace(path)
    except OSError as exc:
        raise unwritable(path, exc) from exc
    finally:
        aside.unlink(missing_ok=True)
    return total.written()


def write_focus_csv(days: Iterable[ChargedDay], context: FocusContext, stream: TextIO) -> FocusWritten:
    """Writes an export as CSV (RFC 4180): empty is null, numbers are plain decimals, times ISO 8601 in UTC.

    Text that a spreadsheet would run as a formula is led by an apostrophe; Parquet keeps it as it is.
    """
    total = _Total()
    write_csv(stream, _NAMES, ())
    for table in total.counted(days, context):
        write_csv(stream, _NAMES, _rows(table), heading=False)
    return total.written()


def write_focus_excel(days: Iterable[ChargedDay], context: FocusContext, path: Path) -> FocusWritten:
    """Writes an export as an Excel workbook, whose numbers have 15 digits.

    Raises:
        Misconfigured: it has more rows than a sheet takes.
        Corrupt: the storage can't take it.
    """
    total = _Total()
    rows = (row for table in total.counted(days, context) for row in _rows(table))
    write_durably(path, excel(_NAMES, rows))
    return total.written()


class _Total:
    """Counts what passes (mutable: it counts in place)."""

    def __init__(self) -> None:
        self._rows = 0
        self._cost = Decimal(0)
        self._unpriced = 0

    def counted(self, days: Iterable[ChargedDay], context: FocusContext) -> Iterator[pa.Table]:
        """Tables of the days, each checked against the specification."""
        for day in days:
            table = focus_table(day, context)
            faults = focus_faults(table)
            if faults:
                raise RuntimeError(f"the export of {day.start} breaks FOCUS: {'; '.join(faults)}")
            self._rows += table.num_rows
            self._cost += sum(table.column("EffectiveCost").to_pylist(), Decimal(0))
            self._unpriced += int(day.is_unpriced[day.card].sum())
            yield table

    def written(self) -> FocusWritten:
        """What was counted."""
        return FocusWritten(rows=self._rows, cost=self._cost, unpriced_card_hours=self._unpriced)


def _rows(table: pa.Table) -> Iterator[tuple[object, ...]]:
    return zip(*(_column(table.column(column.name), column.kind) for column in FOCUS_COLUMNS), strict=True)


def _column(values: pa.ChunkedArray, kind: FocusKind) -> list[object]:
    items: list[Any] = values.to_pylist()
    if kind is FocusKind.DECIMAL:
        return [None if item is None else item.normalize() for item in items]
    return [f"{item:%Y-%m-%dT%H:%M:%SZ}" for item in items] if kind is FocusKind.TIME else items
