"""Writes the FOCUS export where it is wanted. Called by `gputide cost export` and `gputide report --format focus`."""

from __future__ import annotations

import io
import sys
from enum import StrEnum
from pathlib import Path

import typer

from dashboards.report.focus_file import FocusWritten, write_focus_csv, write_focus_excel, write_focus_parquet
from fleet.durable import write_durably
from fleet.errors import Misconfigured
from fleet.money.focus import Basis, ChargePeriod
from gputide.container.cost import CostPeriod, newest_advice
from gputide.session import Session


class ExportFormat(StrEnum):
    """Forms of the export; all are FOCUS."""

    FOCUS = "focus"
    """As the file's name says: Parquet for `.parquet`, Excel for `.xlsx`, else CSV."""
    PARQUET = "parquet"
    CSV = "csv"
    EXCEL = "xlsx"


_BY_ENDING = {".parquet": ExportFormat.PARQUET, ".xlsx": ExportFormat.EXCEL}
_WRITERS = {ExportFormat.PARQUET: write_focus_parquet, ExportFormat.EXCEL: write_focus_excel}


def export_focus(
    session: Session,
    period: CostPeriod,
    basis: Basis = Basis.ALLOCATION,
    charge_period: ChargePeriod = ChargePeriod.DAY,
    form: ExportFormat = ExportFormat.FOCUS,
    output: Path | None = None,
) -> None:
    """Writes the FOCUS export to a file or to standard output, and says on standard error what it holds.

    Raises:
        Misconfigured: Parquet or Excel was asked for without a file.
        Corrupt: the file can't be written.
    """
    if form is ExportFormat.FOCUS and output is not None and output.suffix.lower() in _BY_ENDING:
        form = _BY_ENDING[output.suffix.lower()]
    focus = period.focus_context(basis, charge_period, newest_advice(session, period.cluster))
    if form in _WRITERS:
        if output is None:
            raise Misconfigured(f"cannot write {form.value} to standard output: name a file with -o")
        written = _WRITERS[form](period.days(), focus, output)
    elif output is None:
        written = write_focus_csv(period.days(), focus, sys.stdout)
    else:
        text = io.StringIO(newline="")
        written = write_focus_csv(period.days(), focus, text)
        write_durably(output, text.getvalue().encode())
    typer.echo(_summary(written, period.book.currency), err=True)


def _summary(written: FocusWritten, currency: str) -> str:
    left = (
        f"; {written.unpriced_card_hours:,} card hours without a price were left out (gputide cost prices set)"
        if written.unpriced_card_hours
        else ""
    )
    return f"{written.rows:,} rows, {written.cost:,.2f} {currency}{left}"
