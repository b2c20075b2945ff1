"""`gputide report`: the weekly savings report."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from dashboards.report import Report, make_report
from dashboards.report_text import report_csv, report_html, report_json, report_markdown
from fleet.durable import write_durably
from gputide.data_folder import writing
from gputide.session import session_of
from gputide.web import views_of
from gputide.week_shelf import keep_week, read_weeks

app = typer.Typer()


class ReportFormat(StrEnum):
    """Forms of the report."""

    HTML = "html"
    MARKDOWN = "md"
    CSV = "csv"
    JSON = "json"


_RENDERERS = {
    ReportFormat.HTML: report_html,
    ReportFormat.MARKDOWN: report_markdown,
    ReportFormat.CSV: report_csv,
    ReportFormat.JSON: report_json,
}


@app.command(epilog="Example: gputide report --format html -o report.html")
def report(
    context: typer.Context,
    form: Annotated[
        ReportFormat, typer.Option("--format", "-f", help="html, md, csv or json.")
    ] = ReportFormat.MARKDOWN,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write to this file.")] = None,
) -> None:
    """Write the weekly report: what was freed, what stands idle, what was harmed, what is next."""
    session = session_of(context)
    folder, settings = session.folder(), session.settings.report
    views = views_of(session)
    cluster = views.fleet.clusters()[0] if views.fleet.clusters() else ""
    made: Report = make_report(
        views.fleet.profiles(cluster),
        views.plans.plans(cluster),
        views.outcomes.outcomes(cluster),
        views.outcomes.ledger(cluster),
        now=session.now(),
        prices=views.prices,
        past_weeks=read_weeks(folder),
        title=settings.title,
        top=settings.top_workloads,
    )
    with writing(folder):
        keep_week(folder, made.week)
    text = _RENDERERS[form](made)
    if output is None:
        typer.echo(text, nl=False)
    else:
        write_durably(output, text.encode())
