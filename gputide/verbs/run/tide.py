"""`gputide run tide`: the cluster-wide schedule of the plan: shown, checked, run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Annotated

import typer

from enforcer.tide.calendar import TideMoment, TidePhase
from enforcer.tide.homecoming import Homecoming, TideResult, TideStep
from enforcer.tide.runner import TideMetrics, TideRunner
from enforcer.tide.scaling import NightScale
from enforcer.tide.tide_journal import Night
from fleet.errors import EXIT_FINDINGS, EXIT_FINE, GputideError, NotEnoughData, Refused
from fleet.inventory import WorkloadId
from fleet.units import format_duration, format_time
from gputide.answers.plan import tide_listing
from gputide.answers.tiers import tiers_kept
from gputide.container.own_metrics import open_own_metrics
from gputide.container.plans import chosen_plan
from gputide.container.tide import (
    followed_plan,
    is_homeward,
    open_homecoming,
    open_tide,
    playing,
    tide_calendar,
    tide_journal,
)
from gputide.options import ByOption, PlanOption, YesOption, answering
from gputide.output import Answer, Listing
from gputide.session import Session, session_of, who
from wire.own_metrics import OwnMetrics

app = typer.Typer(
    no_args_is_help=True,
    help="Services scale in at night, other work uses the freed cards, and services get them back by morning.",
)


@app.command("show", epilog="Example: gputide run tide show")
@answering
def show(session: Session, plan: PlanOption = None) -> Answer:
    """Show which services scale in when, what that frees, and how the nights so far went."""
    folder = session.folder()
    chosen = followed_plan(folder, session.settings, None, session.now()) if plan is None else chosen_plan(folder, plan)
    calendar = tide_calendar(chosen, session.settings)
    nights = tide_journal(folder).nights()
    return Answer(
        document={
            "plan_id": chosen.plan_id,
            "start": f"{calendar.start:%H:%M}",
            "end": f"{calendar.end:%H:%M}",
            "time_zone": calendar.time_zone.key,
            "workloads": [
                {"workload": entry.workload, "replicas": entry.replicas, "frees": list(entry.frees)}
                for entry in chosen.schedule
            ],
            "nights": [_night(entry) for entry in nights],
        },
        listings=(
            tide_listing(chosen),
            Listing(
                title="Nights",
                columns=("night", "cards free", "whole machines", "home early", "gave back after", "in time"),
                rows=[
                    (
                        entry.night.isoformat(),
                        len(entry.freed),
                        len(entry.machines),
                        len(entry.home_early),
                        "" if entry.gave_back_after_seconds is None else format_duration(entry.gave_back_after_seconds),
                        "under way" if entry.is_open else "late" if entry.is_late else "yes",
                    )
                    for entry in nights[-14:]
                ],
            ),
            tiers_kept(nights, session.settings.guarantees),
        ),
    )


@app.command("check", epilog="Example: gputide run tide check")
@answering
def check(session: Session, plan: PlanOption = None) -> Answer:
    """Say what is due now, without doing it; exit status 1 where a night is under way and services are short."""
    with _opened(session, plan) as (tide, trouble):
        moment, short, scale, why_not = tide.moment(), tide.short(), NightScale(), trouble
        needs, unknown = dict[WorkloadId, str](), tuple[str, ...]()
        if isinstance(tide, TideRunner):
            scale, why_not = tide.would_scale(), tide.why_not()
            needs, unknown = tide.needs()
    return Answer(
        document={
            "phase": moment.phase.value,
            "night": None if moment.night is None else moment.night.isoformat(),
            "ends_at": None if moment.ends_at is None else format_time(moment.ends_at),
            "why_not": why_not,
            "would_change": [
                {"object": intent.workload, "field": part.field, "from": part.old, "to": part.new}
                for intent in scale.intents
                for part in intent.fields
            ],
            "left": [{"workload": workload, "why": why} for workload, why in scale.left],
            "short": [{"workload": workload, "why": why} for workload, why in short.items()],
            "in_need": [{"workload": workload, "why": why} for workload, why in needs.items()],
        },
        headline=(f"it is {_phase(moment)}",),
        listings=(
            Listing(
                title="Would scale in",
                columns=("object", "field", "from", "to"),
                rows=[
                    (intent.workload, part.field, part.old or "", part.new or "")
                    for intent in scale.intents
                    for part in intent.fields
                ],
            ),
        ),
        footnotes=(
            *(() if why_not is None else (f"no night would begin: {why_not}",)),
            *(f"{workload} stays as it is: {why}" for workload, why in scale.left),
            *(f"{workload}: {why}" for workload, why in short.items()),
            *(f"{workload} needs its replicas back: {why}" for workload, why in needs.items()),
            *unknown,
        ),
        status=EXIT_FINDINGS if short and moment.phase is TidePhase.DAY else EXIT_FINE,
    )


@app.command("run", epilog="Example: gputide run tide run --yes")
def run(
    context: typer.Context,
    plan: PlanOption = None,
    yes: YesOption = False,
    once: Annotated[bool, typer.Option("--once", help="Do what is due now and end.")] = False,
) -> None:
    """Move the tide until it is stopped; a night that is under way goes on with the next start."""
    if not yes:
        raise Refused("cannot move the tide without --yes; see what is due with `gputide run tide check`")
    session = session_of(context)
    if plan is not None and tide_journal(session.folder()).open_night() is None:
        chosen_plan(session.folder(), plan)  # a plan that there is none of is the caller's mistake

    def step(metrics: TideMetrics) -> None:
        with metrics.steps.one():
            result = _step(session, plan, metrics)
        if result is not None:
            metrics.take(result)
            _say(result)

    if once:
        step(TideMetrics(OwnMetrics("tide")))
        return
    with open_own_metrics(session.settings, "tide", TideMetrics) as metrics:
        while True:
            try:
                step(metrics)
            except GputideError as exc:
                # Whatever it is, services must come home once it is over.
                typer.echo(f"not now: {exc}", err=True)
            time.sleep(session.settings.tide.interval_seconds)


@app.command("abort", epilog="Example: gputide run tide abort --yes")
def abort(context: typer.Context, plan: PlanOption = None, yes: YesOption = False, by: ByOption = None) -> None:
    """End the night that is under way: stop low priority and give everything back now."""
    if not yes:
        raise Refused("cannot end the night without --yes")
    session = session_of(context)
    with playing(session.folder()), _opened(session, plan, is_aborted=True) as (tide, trouble):
        _say_homeward(trouble)
        _say(tide.abort(by if by is not None else who()))


def _step(session: Session, plan: str | None, metrics: TideMetrics) -> TideResult | None:
    """Do what is due now; None where there is no tide to follow, which is said."""
    with playing(session.folder()), ExitStack() as opened:
        try:
            tide, trouble = opened.enter_context(_opened(session, plan, metrics))
        except NotEnoughData as exc:
            typer.echo(f"nothing is due: {exc}", err=True)
            return None
        _say_homeward(trouble)
        return tide.step()


@contextmanager
def _opened(
    session: Session, plan: str | None, metrics: TideMetrics | None = None, *, is_aborted: bool = False
) -> Iterator[tuple[Homecoming, str | None]]:
    """The tide; where it can't be opened while a night is under way, what brings services home, and why that is.

    A plan that can't be read ends the night at once. What else is missing, such as the history, does not keep services
    from coming home once that is due.
    """
    folder, settings, now = session.folder(), session.settings, session.now()
    night = tide_journal(folder).open_night()
    is_due = night is not None and (is_aborted or is_homeward(night, folder, settings, now))
    trouble, is_readable = None, False
    with ExitStack() as opened:
        tide: Homecoming
        try:
            chosen = followed_plan(folder, settings, plan, now)
            calendar = tide_calendar(chosen, settings)
            is_readable = True
            tide = opened.enter_context(open_tide(folder, settings, chosen, calendar, now, metrics))
        except GputideError as exc:
            if night is None or (is_readable and not is_due):
                raise
            trouble = str(exc)
            tide = opened.enter_context(open_homecoming(folder, settings, now, metrics))
        yield tide, trouble


def _say_homeward(trouble: str | None) -> None:
    if trouble is not None:
        typer.echo(f"services come home now, by the record of this night alone: {trouble}", err=True)


def _say(result: TideResult) -> None:
    for text in result.said:
        typer.echo(text)
    if result.step is TideStep.NOTHING and not result.said:
        typer.echo(f"nothing is due: it is {_phase(result.moment)}", err=True)


def _phase(moment: TideMoment) -> str:
    return moment.phase.value.replace("_", " ")


def _night(night: Night) -> dict[str, object]:
    return {
        "night": night.night.isoformat(),
        "plan_id": night.plan_id,
        "freed": list(night.freed),
        "machines": list(night.machines),
        "runs_until": None if night.runs_until is None else format_time(night.runs_until),
        "tiers": list(night.tiers),
        "is_cut_short": night.is_cut_short,
        "home_early": [{"workload": name, "at": format_time(at)} for name, at in night.home_early.items()],
        "taken_back": list(night.taken_back),
        "gave_back_after_seconds": night.gave_back_after_seconds,
        "is_late": night.is_late,
        "is_aborted": night.is_aborted,
        "is_open": night.is_open,
    }
