"""`gputide report`: the weekly savings report, and what runs it every week."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from dashboards.report.focus_file import export_focus
from dashboards.report.report import Edition, Report, make_report
from dashboards.report.schedule import cron_job, crontab_line
from dashboards.report.table import report_csv, report_excel
from dashboards.report.text import report_html, report_json, report_markdown
from dashboards.report.week_measured import MeasuredWeek, measured_week
from dashboards.report.weeks import keep_week, read_weeks
from dashboards.view_models.clusters import cluster_lines
from fleet.data_folder import writing
from fleet.durable import write_durably
from fleet.errors import Misconfigured, NotEnoughData
from fleet.money.unit_costs import UnitCost, unit_costs
from fleet.profiles import Profiles
from fleet.words import Language
from gputide.answers.fleet import clusters_answer
from gputide.container.bill import bills_of
from gputide.container.cost import cost_period, newest_advice, period_unit_counts
from gputide.container.pages import views_of
from gputide.container.warehouse import cluster_name, warehouse
from gputide.options import ClusterOption, FormatOption, OutputOption
from gputide.output import Format, form_for, print_answer
from gputide.session import Session, session_of
from gputide.verbs.admin.notify import send_report

app = typer.Typer()

ROWS_OF_TEAMS_MAX = 1000
"""Rows of the top list that teams' messages are picked from: a team's own may stand far below the fleet's ten."""
_NAMES_SHOWN = 5


class ReportFormat(StrEnum):
    """Forms of the report."""

    HTML = "html"
    MARKDOWN = "md"
    CSV = "csv"
    EXCEL = "xlsx"
    JSON = "json"
    PDF = "pdf"
    """The HTML on A4."""
    FOCUS = "focus"
    """Every charge of the week in the columns of FOCUS, as `gputide cost export` writes it."""


_RENDERERS: dict[ReportFormat, Callable[[Report], str | bytes]] = {
    ReportFormat.HTML: report_html,
    ReportFormat.MARKDOWN: report_markdown,
    ReportFormat.CSV: report_csv,
    ReportFormat.EXCEL: report_excel,
    ReportFormat.JSON: report_json,
}

_ENDINGS = {
    ".html": (ReportFormat.HTML,),
    ".md": (ReportFormat.MARKDOWN,),
    ".csv": (ReportFormat.CSV, ReportFormat.FOCUS),
    ".json": (ReportFormat.JSON,),
    ".pdf": (ReportFormat.PDF,),
    ".xlsx": (ReportFormat.EXCEL, ReportFormat.FOCUS),
    ".parquet": (ReportFormat.FOCUS,),
}


@app.callback(invoke_without_command=True, epilog="Example: gputide report --lang zh -o report.html")
def report(
    context: typer.Context,
    form: Annotated[
        ReportFormat | None,
        typer.Option("--format", "-f", help="html, md, csv, xlsx, json, pdf or focus; by the file's ending, else md."),
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write to this file.")] = None,
    language: Annotated[
        Language | None, typer.Option("--lang", help="Language, en or zh; report.language unless given.")
    ] = None,
    team: Annotated[str | None, typer.Option("--team", metavar="NAME", help="Of this team (namespace) alone.")] = None,
    cluster: ClusterOption = None,
    send: Annotated[
        bool, typer.Option("--send", help="Send it to those of notify.everything and notify.teams.")
    ] = False,
    to_file: Annotated[
        Path | None,
        typer.Option("--to-file", metavar="DIR", help="With --send: write the messages there, send none."),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="With --send: also to those who have this week's.")] = False,
) -> None:
    """Write the weekly report: what was freed, what is idle, what was harmed, what is next."""
    if context.invoked_subcommand is not None:
        return
    session = session_of(context)
    form = form_for(output, form, _ENDINGS) or ReportFormat.MARKDOWN
    _check(form, output, team=team, send=send, is_detailed=to_file is not None or again)
    if form is ReportFormat.FOCUS:
        period = cost_period(session, None, None, cluster=cluster)
        written = export_focus(period, newest_advice(session, period.cluster), output=output)
        typer.echo(written.words(period.book.currency), err=True)
        return
    settings = session.settings.report
    made = _made(session, language, team, cluster, top=ROWS_OF_TEAMS_MAX if send else settings.top_workloads)
    with writing(session.folder()):
        keep_week(
            session.folder(), made.week, team, cluster=made.cluster, is_apart=_is_kept_apart(session, made.cluster)
        )
    if send:
        send_report(session, made, to_file=to_file, is_again=again)
        if output is None:
            return
        made = replace(made, top=made.top[: settings.top_workloads])
    content: str | bytes = _pdf(made) if form is ReportFormat.PDF else _RENDERERS[form](made)
    if output is None:
        typer.echo(content, nl=False)
    else:
        write_durably(output, content.encode() if isinstance(content, str) else content)


@app.command("schedule", epilog='Example: gputide report schedule --cron "0 8 * * 1" --lang zh')
def schedule(
    context: typer.Context,
    cron: Annotated[str, typer.Option(help="When: minute hour day month weekday.")] = "0 8 * * 1",
    namespace: Annotated[str, typer.Option(help="Namespace of the CronJob.")] = "gputide",
    image: Annotated[str, typer.Option(help="Image of gputide.")] = "registry.example.com/gputide:0.1.0",
    claim: Annotated[str, typer.Option(help="PersistentVolumeClaim that holds the data folder.")] = "gputide-data",
    config_map: Annotated[
        str | None, typer.Option("--config-map", help="ConfigMap with the settings as gputide.toml.")
    ] = None,
    language: Annotated[Language | None, typer.Option("--lang", help="Language of the report.")] = None,
) -> None:
    """Print a Kubernetes CronJob and a crontab line that send the report every week; changes nothing."""
    session = session_of(context)
    arguments = ("report", *(("--lang", language.value) if language is not None else ()), "--send")
    zone = session.settings.cluster.time_zone
    job = cron_job(
        arguments, cron=cron, time_zone=zone, namespace=namespace, image=image, claim=claim, config_map=config_map
    )
    line = crontab_line(arguments, cron=cron, before=("--data-dir", str(session.data_path.absolute())))
    typer.echo("# kubectl apply -f - (time zone: cluster.time_zone; who gets it: notify.*, docs/notify.md)")
    typer.echo(job, nl=False)
    typer.echo("---\n# or, on one machine, a line of crontab (in the machine's time zone):")
    typer.echo(f"# {line}")


@app.command("clusters", epilog="Example: gputide report clusters --format json")
def clusters(context: typer.Context, form: FormatOption = Format.TABLE, output: OutputOption = None) -> None:
    """Show every cluster of the warehouse: cards, what its newest plan frees and saves, silent since when."""
    lines = cluster_lines(views_of(session_of(context)))
    if not lines:
        raise NotEnoughData(
            "no cluster sent anything yet; feed the folder with `gputide run receive`, or `gputide demo`"
        )
    print_answer(clusters_answer(lines), form=form, target=output)


def _check(form: ReportFormat, output: Path | None, *, team: str | None, send: bool, is_detailed: bool) -> None:
    """Refuse options that do not go together before anything is computed."""
    if is_detailed and not send:
        raise Misconfigured("cannot use --to-file or --again without --send: they say how messages are sent")
    if team is not None and send:
        raise Misconfigured("cannot use --team with --send: notify.teams says what each team is sent (docs/notify.md)")
    if team is not None and form is ReportFormat.FOCUS:
        raise Misconfigured("cannot use --team with --format focus: FOCUS holds every charge; filter its SubAccountId")
    if form in (ReportFormat.PDF, ReportFormat.EXCEL) and output is None:
        raise Misconfigured(f"cannot write {form.value} to standard output: name a file with -o")


def _pdf(made: Report) -> bytes:
    try:
        from dashboards.report.pdf import report_pdf
    except ModuleNotFoundError as exc:
        raise Misconfigured(
            f"cannot write PDF without {exc.name}: pip install 'gputide[dashboards]' brings it"
        ) from exc
    return report_pdf(report_html(made), created_at=made.created_at)


def _is_kept_apart(session: Session, cluster: str) -> bool:
    """Whether a cluster is one of several and not that of the settings, whose weeks lie in the common folder."""
    known = warehouse(session.folder(), session.settings).clusters()
    return len(known) > 1 and cluster != session.settings.cluster.name


def _made(session: Session, language: Language | None, team: str | None, cluster: str | None, *, top: int) -> Report:
    settings, views, now = session.settings, views_of(session), session.now()
    cluster = cluster_name(session.folder(), settings, cluster)
    profiles = views.fleet.profiles(cluster)
    if team is not None:
        _check_team(team, profiles)
    measured, units = _measured(session, cluster, team)
    return make_report(
        profiles,
        views.plans.plans(cluster),
        views.outcomes.outcomes(cluster),
        views.outcomes.ledger(cluster),
        now=now,
        prices=views.money.prices(cluster),
        past_weeks=read_weeks(session.folder(), team, cluster=cluster),
        title=settings.report.title,
        top=top,
        edition=Edition(
            language=language if language is not None else Language(settings.report.language),
            team=team,
            measured=measured,
            base_url=settings.notify.base_url,
            quotas=views.money.quotas(cluster),
            units=units,
            bills=() if team is not None else bills_of(session, cluster, views=views),
            days=views.money.cost_days(cluster, is_quarter=False),
        ),
    )


def _measured(session: Session, cluster: str, team: str | None) -> tuple[MeasuredWeek | None, tuple[UnitCost, ...]]:
    """Hours, electricity and unit costs of the last seven days; none where no card stood there in that time."""
    try:
        period = cost_period(session, session.now() - timedelta(days=7), None, cluster=cluster)
    except NotEnoughData:
        return None, ()
    energy = session.settings.energy
    week = measured_week(
        period.days(),
        period.who,
        period.billed,
        known_since=period.known_since,
        pue=energy.pue,
        grid_kg_co2_per_kwh=energy.grid_kg_co2_per_kwh,
        team=team,
    )
    return week, unit_costs(week.workloads, period_unit_counts(period))


def _check_team(team: str, profiles: Profiles) -> None:
    names = sorted({profile.namespace for profile in profiles.workloads})
    if team in names:
        return
    near = difflib.get_close_matches(team, names, n=_NAMES_SHOWN, cutoff=0.4) or names[:_NAMES_SHOWN]
    raise Misconfigured(
        f"cannot report on team {team[:63]!r}: no workload of cluster {profiles.cluster!r} is in that namespace; "
        f"there are {', '.join(near) or 'none'}{' …' if len(names) > len(near) else ''}"
    )
