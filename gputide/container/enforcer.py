"""Opens the enforcer on the cluster that the settings choose, with the guard and the harm budgets that they ask for.

Called by the verbs and pages that change a cluster; `gputide.container.relief` asks for the same guard.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

from enforcer.record.journal import Journal
from enforcer.record.shared_ledger import SharedLedger
from enforcer.rollout.carry import CarryPolicy
from enforcer.rollout.progress import Progress
from enforcer.rollout.stages import Rollout
from enforcer.rollout.tools import RolloutPolicy, Tools
from enforcer.rollout.watch import ClusterSignals, MeasuredSignals, Signals, WatchPolicy
from enforcer.safety.change_window import ChangeWindow
from enforcer.safety.guard import Guard, GuardPolicy
from enforcer.safety.harm_budget import Harm, HarmBudgets, HarmPolicy
from enforcer.verify import Measurements, harm_by_workload, verify
from fleet.data_folder import DataFolder
from fleet.decisions import Plan
from fleet.errors import Misconfigured, NotEnoughData
from fleet.inventory import WorkloadId
from fleet.outcomes import Outcome
from fleet.settings.guard import WEEKDAYS, hours_of
from fleet.settings.settings import Settings
from gputide.container.cluster import LiveCluster, backend, moment_of_change, open_cluster_to_change, own_cluster
from gputide.container.plans import journal
from gputide.container.prometheus import instant_query
from gputide.container.warehouse import WarehouseMeasurements


@dataclass(frozen=True, slots=True, kw_only=True)
class Enforcer:
    """The enforcer on one cluster.

    Attributes:
        cluster: the cluster.
        tools: what rollout and undo work with.
        rollout: applies plans.
    """

    cluster: LiveCluster
    tools: Tools
    rollout: Rollout


@contextmanager
def open_enforcer(
    folder: DataFolder, settings: Settings, now: datetime, *, on_progress: Callable[[Progress], None]
) -> Iterator[Enforcer]:
    """The enforcer on the cluster that the settings choose.

    Raises:
        Misconfigured: there is no way into the cluster, or nothing renders for the backend.
        Unavailable: it can't be reached.
    """
    own = own_cluster(folder, settings)
    with open_cluster_to_change(folder, settings, now) as cluster:
        tools = Tools(
            reader=cluster,
            writer=cluster,
            lease=cluster,
            pause=cluster.pause,
            journal=_journal(folder, cluster, own),
            guard=guard(folder, settings),
            signals=_signals(cluster, settings),
            policy=RolloutPolicy(
                canary_workloads=settings.enforcer.canary_workloads,
                watch_seconds=float(settings.enforcer.watch_seconds),
                lease_seconds=float(settings.enforcer.lease_seconds),
                watch=WatchPolicy(
                    restarts_max=settings.enforcer.watch_restarts_max,
                    violation_ratio_max=settings.enforcer.watch_violation_ratio_max,
                ),
                carry=CarryPolicy(
                    parallel_pods_max=settings.enforcer.parallel_workloads_max,
                    poll_seconds=settings.enforcer.poll_seconds,
                ),
            ),
            harm=harm_budgets(folder, settings),
            holder=lease_holder(folder),
            on_progress=on_progress,
            abort_file=folder.abort,
        )
        rollout = Rollout(tools, backend(settings, moment_of_change(cluster, now), cluster))
        yield Enforcer(cluster=cluster, tools=tools, rollout=rollout)


def _journal(folder: DataFolder, cluster: LiveCluster, own: str | None) -> Journal:
    """What was changed: of a real cluster the record lies there, and the folder follows it."""
    if cluster.changes is None:
        return journal(folder, cluster=own)
    return Journal(SharedLedger(folder.ledger, cluster.changes, own), cluster=own)


def _signals(cluster: LiveCluster, settings: Settings) -> Signals:
    """Who says how pods are that were just changed."""
    own, watch = ClusterSignals(cluster), settings.enforcer
    if watch.watch_prometheus_url is None:
        if watch.watch_queries:
            raise Misconfigured(
                "cannot ask enforcer.watch_queries: enforcer.watch_prometheus_url=none; name your Prometheus"
            )
        return own
    metrics = instant_query(watch.watch_prometheus_url, "enforcer.watch_prometheus_url", settings.prometheus)
    return MeasuredSignals(own, metrics, watch.watch_queries)


def lease_holder(folder: DataFolder) -> str:
    """Under which name the lease is held: the same after a restart, and another for another machine or folder."""
    return f"gputide on {socket.gethostname()} in {folder.path.resolve()}"


def guard(folder: DataFolder, settings: Settings) -> Guard:
    """What every change of the enforcer's cluster must pass."""
    begin, end = hours_of(settings.guard.change_hours)
    return Guard(
        GuardPolicy(
            freeze_config_map=settings.enforcer.freeze_config_map,
            freeze_file=folder.freeze,
            coverage_ratio_min=settings.guard.history_coverage_min,
            history_age_max=timedelta(seconds=settings.guard.history_age_max_seconds),
            cluster=own_cluster(folder, settings),
            cards_max=settings.guard.cards_per_apply_max,
            saving_max=settings.guard.saving_per_apply_max,
            two_approvals_cards_min=settings.guard.two_approvals_cards_min,
            gaps_allowed=settings.guard.gaps_allowed,
            window=ChangeWindow(
                days=frozenset(WEEKDAYS.index(day) for day in settings.guard.change_days),
                begin=begin,
                end=end,
                holidays=frozenset(date.fromisoformat(day) for day in settings.guard.change_holidays),
                time_zone=ZoneInfo(settings.cluster.time_zone),
            ),
        )
    )


def harm_budgets(folder: DataFolder, settings: Settings) -> HarmBudgets:
    """What is left of the harm budgets of the enforcer's cluster."""
    measured = WarehouseMeasurements(folder, settings, cluster=own_cluster(folder, settings))
    return HarmBudgets(MeasuredHarm(measured), _harm_policy(settings))


def verified(folder: DataFolder, settings: Settings, plan: Plan, now: datetime) -> Outcome:
    """What an applied plan saved and harmed until now, beside what was predicted; nothing is kept."""
    kept = journal(folder)
    return verify(
        plan,
        kept.runs(plan.plan_id),
        WarehouseMeasurements(folder, settings, cluster=plan.cluster),
        now=now,
        settings=settings,
        harm_policy=_harm_policy(settings),
        undone=kept.undone_recommendations(plan.plan_id),
    )


def _harm_policy(settings: Settings) -> HarmPolicy:
    """What a harm budget is."""
    return HarmPolicy(
        ratio_max=settings.guard.harm_ratio_max,
        days=settings.guard.harm_budget_days,
        slow_burn=settings.guard.harm_slow_burn,
        freeze_burn=settings.guard.harm_freeze_burn,
        restore_burn=settings.guard.harm_restore_burn,
    )


class MeasuredHarm:
    """What the warehouse knows of harm (the enforcer's port `HarmRecords`).

    Args:
        measurements: what was measured.
    """

    def __init__(self, measurements: Measurements) -> None:
        self._measurements = measurements

    def harm(self, since: datetime, until: datetime) -> Mapping[WorkloadId, Harm]:
        """Harm per workload; see the port. A span in which nothing was collected reports nothing."""
        try:
            return harm_by_workload(self._measurements.history(since, until))
        except NotEnoughData:
            return {}
