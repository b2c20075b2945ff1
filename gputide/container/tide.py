"""Opens the tide of a plan on the cluster that the settings choose."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import date, datetime, time, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from enforcer.record.ledger import ledger_at
from enforcer.tide.calendar import TideCalendar
from enforcer.tide.homecoming import Homecoming, TidePolicy
from enforcer.tide.runner import TideMetrics, TideRunner
from enforcer.tide.tide_journal import Night, TideJournal
from fleet.data_folder import DataFolder, writing
from fleet.decisions import Plan
from fleet.durable import FolderLock
from fleet.errors import GputideError, Misconfigured, NotEnoughData
from fleet.settings.settings import Settings
from gputide.container.cluster import LiveCluster, open_cluster_to_change, own_cluster
from gputide.container.enforcer import guard, open_enforcer
from gputide.container.plans import chosen_plan, copied_plans
from gputide.container.relief import busy_pods


def tide_calendar(plan: Plan, settings: Settings) -> TideCalendar:
    """When the tide of a plan goes out and comes in.

    Raises:
        NotEnoughData: the plan has no tide.
        Misconfigured: it names a time zone or a time of day that there is none.
    """
    if not plan.schedule:
        raise NotEnoughData(
            f"plan {plan.plan_id} has no tide: no service is predicted to need fewer replicas at some hours of "
            "every day"
        )
    # One window for the whole cluster: freed cards are used together.
    first = plan.schedule[0]
    try:
        start, end, time_zone = time.fromisoformat(first.start), _end(first.end), ZoneInfo(first.time_zone)
    except (ValueError, ZoneInfoNotFoundError, OSError) as exc:
        raise Misconfigured(
            f"cannot read the tide of plan {plan.plan_id}: {first.start!r} to {first.end!r} in {first.time_zone!r}"
        ) from exc
    return TideCalendar(
        start=start,
        end=end,
        time_zone=time_zone,
        holidays=frozenset(date.fromisoformat(day) for day in settings.tide.holidays),
    )


def tide_journal(folder: DataFolder) -> TideJournal:
    """The nights that were."""
    return TideJournal(ledger_at(folder, folder.tide))


@contextmanager
def playing(folder: DataFolder) -> Iterator[None]:
    """Play the tide of a folder; one process at a time. Those that apply plans hold another role, and don't wait.

    Raises:
        Unavailable: another process holds it, with its process id.
        Corrupt: the folder is read-only.
    """
    with FolderLock(folder.path, "tide"):
        yield


def followed_plan(folder: DataFolder, settings: Settings, plan_id: str | None, now: datetime) -> Plan:
    """The plan that the tide follows: that of the night under way, so that it comes home by what it went out by.

    By day it is the newest whose tide is approved as it must be, by two people where two must; where none is, the
    newest.

    Args:
        plan_id: the plan that is asked for by day; None for one of the cluster.

    Raises:
        Misconfigured: no such plan.
        Refused: it was edited.
        NotEnoughData: there is no plan at all.
    """
    night = tide_journal(folder).open_night()
    if night is not None or plan_id is not None:
        return chosen_plan(folder, plan_id if night is None else night.plan_id)
    plans, own, checks = copied_plans(folder, settings), own_cluster(folder, settings), guard(folder, settings)
    oldest = now - timedelta(days=settings.tide.plan_age_days_max)
    for known in reversed(plans.ids()):
        try:
            # A large plan takes long to read; one whose last approval is older than that expired before.
            if all(given.at < oldest for given in plans.approvals(known)):
                continue
            plan = plans.get(known)
            checks.check_tide_approved(plan, plans.approvals(known))
        except GputideError:
            continue
        if own in (None, plan.cluster):
            return plan
    return chosen_plan(folder, None, cluster=own)


@contextmanager
def open_tide(
    folder: DataFolder,
    settings: Settings,
    plan: Plan,
    calendar: TideCalendar,
    now: datetime,
    metrics: TideMetrics | None = None,
) -> Iterator[TideRunner]:
    """The tide of a plan, ready to be moved.

    Args:
        metrics: count the requests to the API server.

    Raises:
        Misconfigured: there is no way into the cluster.
        Unavailable: the cluster can't be reached.
    """
    with ExitStack() as opened:
        enforcer = opened.enter_context(open_enforcer(folder, settings, now, on_progress=lambda _: None))
        _count(opened, enforcer.cluster, metrics)
        yield TideRunner(
            enforcer.tools, tide_journal(folder), plan, calendar, _policy(settings),
            lambda: enforcer.plans.approvals(plan.plan_id), alone=lambda: writing(folder),
            busy=lambda: busy_pods(folder, settings, enforcer.cluster, enforcer.tools.dialect),
        )  # fmt: skip


@contextmanager
def open_homecoming(
    folder: DataFolder, settings: Settings, now: datetime, metrics: TideMetrics | None = None
) -> Iterator[Homecoming]:
    """What ends the night under way by its record alone: it asks for no plan, no history and no metrics.

    Args:
        metrics: count the requests to the API server.

    Raises:
        Misconfigured: there is no way into the cluster.
        Unavailable: the cluster can't be reached.
    """
    with ExitStack() as opened:
        cluster = opened.enter_context(open_cluster_to_change(folder, settings, now))
        _count(opened, cluster, metrics)
        yield Homecoming(cluster, cluster, cluster.pause, tide_journal(folder), _policy(settings))


def is_homeward(night: Night, folder: DataFolder, settings: Settings, now: datetime) -> bool:
    """Whether what a night took is due to be given back, by its record alone."""
    return night.stops_at is not None or now >= night.ends_at - tide_journal(folder).lead(_policy(settings).lead_min)


def _count(opened: ExitStack, cluster: LiveCluster, metrics: TideMetrics | None) -> None:
    if metrics is not None:
        opened.enter_context(metrics.api_requests.following(lambda: cluster.requests))


def _policy(settings: Settings) -> TidePolicy:
    tide = settings.tide
    return TidePolicy(
        lead_min=timedelta(seconds=tide.lead_seconds_min),
        plan_age_max=timedelta(days=tide.plan_age_days_max),
        release_seconds_max=float(tide.release_seconds_max),
        guarantees=settings.guarantees,
        home_seconds_max=float(tide.home_seconds_max),
        queues=tide.queues,
    )


def _end(text: str) -> time:
    """A window may end with the day, which no clock shows."""
    return time(0) if text == "24:00" else time.fromisoformat(text)
