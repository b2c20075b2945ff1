"""`gputide scan URL`: the first answer, from the history that a Prometheus holds already; nothing is installed."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from enforcer.probe.stored_results import measured_capability
from fleet.capabilities.register import capabilities_of
from fleet.data_folder import DataFolder, writing
from fleet.decisions import Plan
from fleet.documents import seal_plan
from fleet.errors import Misconfigured
from fleet.profiles import Profiles
from fleet.settings.settings import Settings
from fleet.units import format_count, parse_time
from fleet.usage import History
from gputide.container.cluster import own_cluster, seen_holders
from gputide.container.history import load_planned, load_recorded
from gputide.container.measured_pairs import load_interference
from gputide.container.plans import keep_plan
from gputide.container.relief import relief_counted_on
from gputide.options import RiskOption, answering
from gputide.output import Answer
from gputide.scanning.answer import misses_of, scan_answer, unpriced_models
from gputide.scanning.backend import assumed_backend
from gputide.scanning.record import Hide, hasher, record, shown
from gputide.scanning.remembered import remember_backend
from gputide.scanning.scan import scan as read_history
from gputide.session import Session, session_of
from recommender.backtest import own_past
from recommender.planner import make_plan

app = typer.Typer()


@app.command(
    epilog="Example: gputide scan https://prometheus.example:9090 --since 7d "
    "--bearer-token-file /run/secrets/token. Certificates, basic authentication and limits are settings: --set scan.…"
)
@answering
def scan(  # noqa: PLR0913, PLR0917 - one argument per option
    context: typer.Context,
    url: Annotated[
        str | None,
        typer.Argument(metavar="URL", help="Prometheus, Thanos, Mimir or VictoriaMetrics: up to before /api/v1."),
    ] = None,
    since: Annotated[str | None, typer.Option(metavar="TIME", help="How much history, such as 7d or 36h.")] = None,
    until: Annotated[
        str | None, typer.Option(metavar="TIME", help="Moment up to which it is read (ISO 8601); now unless given.")
    ] = None,
    step: Annotated[str | None, typer.Option(metavar="TIME", help="Windows that are kept: 1m, 5m or 15m.")] = None,
    cluster: Annotated[str | None, typer.Option(help="Which of several clusters that the server holds.")] = None,
    cluster_label: Annotated[
        str | None, typer.Option(help="Label that tells them apart; cluster unless given.")
    ] = None,
    match: Annotated[
        list[str] | None, typer.Option(metavar="MATCHER", help='Only such series: job="dcgm"; may be repeated.')
    ] = None,
    bearer_token_file: Annotated[Path | None, typer.Option(help="File with a bearer token.")] = None,
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME:VALUE", help="Header, such as X-Scope-OrgID:team; no secrets.")
    ] = None,
    backend: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="GPU-sharing backend to plan for; the one that the server shows unless given."
        ),
    ] = None,
    risk: RiskOption = None,
    record_to: Annotated[
        Path | None, typer.Option("--record", metavar="DIR", help="Also write the history as a neutral trace.")
    ] = None,
    hash_names: Annotated[bool, typer.Option(help="Hash all names in that trace.")] = False,
) -> Answer:
    """Read what is there already, and say what is idle, what could be freed, and what was missed."""
    if hash_names and record_to is None:
        raise Misconfigured("cannot use --hash-names without --record DIR: it is about the trace")
    if record_to is not None and record_to.exists() and (not record_to.is_dir() or any(record_to.iterdir())):
        raise Misconfigured(f"cannot write trace {record_to}: it holds something already; name an empty or new folder")
    is_backend_set = backend is not None or "backend" in session_of(context).settings.enforcer.model_fields_set
    session = session_of(context).with_overrides(
        [
            f"{name}={value}"
            for name, value in (
                ("scan.url", url),
                ("scan.since_seconds", since),
                ("scan.step_seconds", step),
                ("scan.cluster", cluster),
                ("scan.cluster_label", cluster_label),
                ("scan.bearer_token_file", bearer_token_file),
                ("risk.preset", risk),
                ("enforcer.backend", backend),
            )
            if value is not None
        ],
    )
    session = _with_lists(session, match or [], header or [])
    # A backend that nobody knows is an error before hours are read.
    capabilities_of(session.settings.enforcer.backend)
    now = _now(session, until)
    folder = session.folder(create=True)
    with writing(folder):
        with session.progress("reading (minutes of history)") as tick:
            scanned = read_history(folder, session.settings, now=now, tick=tick)
        assumed = assumed_backend(scanned, session.settings.enforcer.backend, is_set=is_backend_set)
        settings = _as_found(session.settings, scanned.cluster, assumed.name)
        as_found = replace(session, settings=settings, now_override=now)
        if record_to is not None:
            _record(load_recorded(as_found), record_to, hide=hasher(folder) if hash_names else shown)
        with session.progress("planning") as _:
            found = load_planned(as_found)
            history, profiles = found.history, found.profiles
            missed = misses_of(scanned, history, profiles, settings)
            plans = [
                _plan(folder, history, profiles, _as_found(settings, scanned.cluster, name), now)
                for name in assumed.compared
            ]
        plans[0] = seal_plan(plans[0])
        keep_plan(folder, settings, plans[0])
        remember_backend(folder, scanned.cluster, assumed.name)
    unpriced = unpriced_models(history, settings)
    return scan_answer(scanned, assumed, profiles, plans, missed, unpriced)


def _plan(folder: DataFolder, history: History, profiles: Profiles, settings: Settings, now: datetime) -> Plan:
    is_own = own_cluster(folder, settings) in (None, history.inventory.cluster)
    capability = measured_capability(folder, settings, now, is_own=is_own)
    relief = relief_counted_on(folder, settings, now)
    return make_plan(
        history,
        profiles,
        settings=settings,
        capability=capability,
        now=now,
        past=replace(
            own_past(history, settings=settings, capability=capability, relief=relief),
            interference=load_interference(settings),
            holders=seen_holders(folder, settings, history.inventory.cluster, now),
        ),
    )


def _with_lists(session: Session, matchers: list[str], headers: list[str]) -> Session:
    """The session with further matchers and headers, which as settings would be one text."""
    asked = session.settings.scan
    pairs = {}
    for text in headers:
        name, sign, value = text.partition(":")
        if not sign:
            raise Misconfigured(f"cannot use --header {text!r}: expected NAME:VALUE, such as X-Scope-OrgID:team")
        pairs[name.strip()] = value.strip()
    changed = asked.model_copy(update={"matchers": (*asked.matchers, *matchers), "headers": {**asked.headers, **pairs}})
    return replace(session, settings=session.settings.model_copy(update={"scan": changed}))


def _record(history: History, target: Path, *, hide: Hide) -> None:
    cards, grants = record(history, target, hide=hide)
    typer.echo(f"recorded {format_count(cards)} cards and {format_count(grants)} grants in {target}", err=True)


def _as_found(settings: Settings, cluster: str, backend: str) -> Settings:
    """The settings with what the server showed."""
    return settings.model_copy(
        update={
            "cluster": settings.cluster.model_copy(update={"name": cluster}),
            "enforcer": settings.enforcer.model_copy(update={"backend": backend}),
        }
    )


def _now(session: Session, until: str | None) -> datetime:
    if until is not None:
        return parse_time(until)
    return session.now_override if session.now_override is not None else datetime.now(UTC)
