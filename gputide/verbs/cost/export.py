"""`gputide cost export`: every charge in the columns of FOCUS."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dashboards.report.focus_file import ExportFormat, export_focus
from fleet.money.focus import Basis, ChargePeriod
from gputide.container.cost import cost_period, newest_advice
from gputide.options import SinceOption, UntilOption
from gputide.output import form_for
from gputide.session import session_of

app = typer.Typer()

_ENDINGS = {
    ".parquet": (ExportFormat.FOCUS, ExportFormat.PARQUET),
    ".csv": (ExportFormat.FOCUS, ExportFormat.CSV),
    ".xlsx": (ExportFormat.FOCUS, ExportFormat.EXCEL),
}


@app.command(epilog="Example: gputide cost export -o focus.parquet --since 2026-01-01 --until 2026-02-01")
def export(
    context: typer.Context,
    since: SinceOption = None,
    until: UntilOption = None,
    basis: Annotated[Basis, typer.Option(help="By what the cost of a shared card is split.")] = Basis.ALLOCATION,
    charge_period: Annotated[ChargePeriod, typer.Option(help="Length of a row: hour or day.")] = ChargePeriod.DAY,
    form: Annotated[
        ExportFormat, typer.Option("--format", "-f", help="focus (by the file's name), parquet, csv or xlsx.")
    ] = ExportFormat.FOCUS,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Write to this file.", show_default=False)
    ] = None,
) -> None:
    """Write every charge in the columns of FOCUS 1.3, as Parquet, CSV or Excel."""
    form_for(output, form, _ENDINGS)
    session = session_of(context)
    period = cost_period(session, since, until)
    written = export_focus(period, newest_advice(session, period.cluster), basis, charge_period, form, output)
    typer.echo(written.words(period.book.currency), err=True)
