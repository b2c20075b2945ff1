"""Opens the enforcer on the cluster that the settings choose, with the guard and the harm budgets that they ask for.

Called by the verbs and pages that change a cluster; `gputide.container.relief` asks for the same guard.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from zoneinfo import ZoneInfo

from enforcer.record.journal import Journal, RunRecord
from enforcer.record.ledger import Ledger, anchor_of, ledger_at
from enforcer.record.plan_status import PlanStatus
from enforcer.record.plan_store import PlanStore
from enforcer.record.shared_ledger import SharedLedger
from enforcer.record.shared_plans import SharedPlans
from enforcer.rollout.abort import open_run
from enforcer.rollout.pod_mover import MovePolicy
from enforcer.rollout.progress import Progress
from enforcer.rollout.reconciler import Delegated, Reconciler, end_of
from enforcer.rollout.run_context import RolloutPolicy, RunContext
from enforcer.rollout.stages import Rollout
from enforcer.rollout.watch import ClusterSignals, MeasuredSignals, Signals, WatchPolicy
from enforcer.safety.abort_wish import SeldomAsked
from enforcer.safety.change_window import ChangeWindow
from enforcer.safety.guard import Guard, GuardPolicy
from enforcer.safety.harm_budget import Harm, HarmBudgets
from fleet.data_folder import DataFolder, writing
from fleet.errors import Misconfigured, Unavailable
from fleet.inventory import WorkloadId
from fleet.logs import logger
from fleet.settings.guard import WEEKDAYS, hours_of
from fleet.settings.settings import Settings
from gputide.container.cluster import (
    LiveCluster,
    backend,
    is_known,
    moment_of_change,
    open_cluster,
    open_cluster_to_change,
    own_cluster,
)
from gputide.container.ledgers import AnchoredFolder, name_of
from gputide.container.plans import plans_of
from gputide.container.prometheus import instant_query

_log = logger("gputide.enforcer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Enforcer:
    """The enforcer on one cluster.

    Attributes:
        tools: what rollout and undo work with.
        reconciler: makes what is wanted of a plan what is in force.
    """

    cluster: LiveCluster
    tools: RunContext
    plans: PlanStore
    reconciler: Reconciler


@contextmanager
def open_enforcer(
    folder: DataFolder,
    settings: Settings,
    now: datetime,
    *,
    on_progress: Callable[[Progress], None],
    ledger: Path | None = None,
) -> Iterator[Enforcer]:
    """The enforcer on the cluster that the settings choose.

    Args:
        ledger: the copy of what is changed, for a controller, which acts by itself and not on the folder; None for
            that of the folder, and to let a controller act that runs.

    Raises:
        Misconfigured: there is no way into the cluster, or nothing renders for the backend.
        Unavailable: it can't be reached.
    """
    own = own_cluster(folder, settings)
    with (
        open_cluster_to_change(folder, settings, now) as cluster,
        _own_ledger(folder, cluster) if ledger is None else nullcontext(ledger) as place,
    ):
        plans = plans_of(folder, cluster, own)
        tools = RunContext(
            reader=cluster,
            writer=cluster,
            lease=cluster,
            pause=cluster.pause,
            journal=_journal(folder, cluster, own, place, is_lean=ledger is not None),
            guard=guard(folder, settings),
            signals=_signals(cluster, settings),
            policy=RolloutPolicy(
                canary_workloads=settings.enforcer.canary_workloads,
                watch_seconds=float(settings.enforcer.watch_seconds),
                lease_seconds=float(settings.enforcer.lease_seconds),
                empty_seconds_max=float(settings.enforcer.node_empty_seconds_max),
                leave_seconds_max=float(settings.enforcer.node_leave_seconds_max),
                watch=WatchPolicy(restarts_max=settings.enforcer.watch_restarts_max),
                moving=MovePolicy(
                    parallel_pods_max=settings.enforcer.parallel_workloads_max,
                    poll_seconds=settings.enforcer.poll_seconds,
                ),
            ),
            harm=harm_budgets(folder, settings, is_apart=ledger is not None),
            # A controller shares its pod's folder with other processes and does not lock it.
            holder=lease_holder(folder) if ledger is None else f"{lease_holder(folder)} for controller",
            on_progress=on_progress,
            wishes=plans if cluster.plans is None else SeldomAsked(plans),
        )
        rollout = Rollout(tools, backend(settings, moment_of_change(cluster, now), cluster, folder))
        report = plans.report if isinstance(plans, SharedPlans) else _unread
        yield Enforcer(
            cluster=cluster,
            tools=tools,
            plans=plans,
            reconciler=(
                Reconciler(rollout, plans, report)
                if ledger is not None or cluster.controller is None or cluster.controller.holder() is None
                else Delegated(rollout, plans, report, cluster.controller.holder)
            ),
        )


def run_under_way(folder: DataFolder, settings: Settings, plan_id: str | None = None) -> RunRecord | None:
    """The run that was begun and not ended, on this machine or another one; of one plan where it is given.

    Raises:
        Misconfigured: there is no way into the cluster.
        Unavailable: it can't be reached.
    """
    if not is_known(folder, settings):
        return None
    with _looked_at(folder, settings) as (_, kept):
        return open_run(kept, plan_id)


def no_longer_want(folder: DataFolder, settings: Settings, run: RunRecord, *, by: str) -> None:
    """Say that what a run has not promoted yet is no longer wanted: whoever carries it out takes its stage back.

    Raises:
        Misconfigured: there is no way into the cluster, or a right is missing.
        Unavailable: it can't be reached.
    """
    with _looked_at(folder, settings) as (cluster, kept):
        change = end_of(run, kept.runs(run.plan_id), by=by)
        plans_of(folder, cluster, own_cluster(folder, settings)).change_wish(run.plan_id, change)


@contextmanager
def _looked_at(folder: DataFolder, settings: Settings) -> Iterator[tuple[LiveCluster, Journal]]:
    """The cluster, and what was changed in it, for who has not locked the folder."""
    # Of its own: the process that applies may be writing the folder's.
    with open_cluster(folder, settings) as cluster, TemporaryDirectory() as place:
        ledger = folder.ledger if cluster.changes is None else Path(place) / folder.ledger.name
        yield cluster, _journal(folder, cluster, own_cluster(folder, settings), ledger)


def _unread(_plan_id: str, _status: PlanStatus) -> None:
    """A plan of a folder has no status of its own: it is made from the ledger when somebody looks."""


@contextmanager
def _own_ledger(folder: DataFolder, cluster: LiveCluster) -> Iterator[Path]:
    """The folder's copy of what was changed, its head anchored in the cluster afterwards.

    Where it does not hold what was anchored, or its chain is broken, what the cluster keeps is followed alone, so that
    everything can be undone; the folder's is left as it is.

    Raises:
        Corrupt: it is so, and the cluster keeps no record.
    """
    anchored = AnchoredFolder(folder, cluster.anchor(name_of(folder)))
    broken = anchored.broken()
    if folder.ledger.name in broken and cluster.changes is None:
        raise broken[folder.ledger.name]
    for why in broken.values():
        _log.warning("a ledger of the data folder can't be trusted", why=str(why))
    try:
        if folder.ledger.name not in broken:
            yield folder.ledger
        else:
            with TemporaryDirectory() as place:
                yield Path(place) / folder.ledger.name
    finally:
        anchored.keep()


def _journal(
    folder: DataFolder, cluster: LiveCluster, own: str | None, ledger: Path, *, is_lean: bool = False
) -> Journal:
    """What was changed: of a real cluster the record lies there, and a ledger file follows it."""
    of_folder = ledger == folder.ledger
    if cluster.changes is None:
        return Journal(ledger_at(folder, ledger) if of_folder else Ledger(ledger), cluster=own)
    kept = SharedLedger(
        ledger, cluster.changes, own, is_lean=is_lean, key=folder.ledger_key if of_folder else None,
        anchor=anchor_of(folder) if of_folder else None,
    )  # fmt: skip
    return Journal(kept, cluster=own)


def copy_changes(folder: DataFolder, cluster: LiveCluster, own: str | None) -> None:
    """Bring the folder's copy of what was changed up to date; where another process writes it, that one does."""
    if cluster.changes is not None:
        with suppress(Unavailable), writing(folder):
            SharedLedger(folder.ledger, cluster.changes, own, key=folder.ledger_key, anchor=anchor_of(folder)).pull()


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
    return MeasuredSignals(own, metrics, watch.watch_queries, provenance=settings.provenance.rule)


def lease_holder(folder: DataFolder) -> str:
    """Under which name the lease is held: the same after a restart, and another for another machine or folder."""
    return f"gputide on {socket.gethostname()} in {folder.path.resolve()}"


def guard(folder: DataFolder, settings: Settings) -> Guard:
    """What every change of the enforcer's cluster must pass."""
    begin, end = hours_of(settings.guard.change_hours)
    return Guard(
        GuardPolicy(
            freeze_file=folder.freeze,
            coverage_ratio_min=settings.guard.history_coverage_min,
            history_age_max=timedelta(seconds=settings.guard.history_age_max_seconds),
            cluster=own_cluster(folder, settings),
            relief_lock=folder.relief_lock,
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


def harm_budgets(folder: DataFolder, settings: Settings, *, is_apart: bool = False) -> HarmBudgets:
    """What is left of the harm budgets of the enforcer's cluster.

    Args:
        is_apart: the warehouse is read by a process of its own, for one that must stay small.
    """
    records = _HarmOfWarehouse(folder=folder, settings=settings, is_apart=is_apart)
    return HarmBudgets(records, settings.guard)


@dataclass(frozen=True, slots=True, kw_only=True)
class _HarmOfWarehouse:
    """What the folder's warehouse knows of harm (the enforcer's port `HarmRecords`).

    Attributes:
        is_apart: it is read by a process of its own: what reads it, and days of a large fleet, take more memory than
            all that a controller keeps.
    """

    folder: DataFolder
    settings: Settings
    is_apart: bool

    def harm(self, since: datetime, until: datetime) -> Mapping[WorkloadId, Harm]:
        """See the port."""
        asked = self.folder, self.settings, own_cluster(self.folder, self.settings), since, until
        if not self.is_apart:
            return _harm_between(*asked)
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as apart:
            return apart.submit(_harm_between, *asked).result()


def _harm_between(
    folder: DataFolder, settings: Settings, cluster: str | None, since: datetime, until: datetime
) -> Mapping[WorkloadId, Harm]:
    from gputide.container.measured_harm import harm_between  # loads Arrow and DuckDB, which a controller does without

    return harm_between(folder, settings, cluster, since, until)
