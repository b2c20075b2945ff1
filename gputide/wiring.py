"""Puts adapters behind ports, as the settings say: the only place that knows which one stands where.

Every verb asks here for what it needs, and gets it opened on the data folder of its session.
"""

from __future__ import annotations

import getpass
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from analyzer.profile import history_part, inventory_parts, profile_parts
from enforcer.record.fingerprint import fingerprint_of
from enforcer.record.journal import Journal
from enforcer.record.ledger import Ledger
from enforcer.record.plan_store import PlanStore
from enforcer.rollout.carry import CarryPolicy
from enforcer.rollout.progress import Progress
from enforcer.rollout.stages import Rollout
from enforcer.rollout.tools import RolloutPolicy, Tools
from enforcer.rollout.watch import ClusterSignals, MeasuredSignals, Signals, WatchPolicy
from enforcer.safety.guard import Guard
from enforcer.safety.harm_budget import HarmBudgets
from enforcer.snapshot import take_snapshot
from fleet.coarse_grid import coarse_grid
from fleet.data_folder import DataFolder
from fleet.decisions import Plan
from fleet.errors import Misconfigured, NotEnoughData
from fleet.profiles import Profiles
from fleet.settings.settings import Settings, changed_settings
from fleet.usage import History
from gputide.guard_policy import MeasuredHarm, guard_policy, harm_policy
from gputide.measured_pairs import read_measured_pairs
from gputide.measurements import WarehouseMeasurements, cluster_name
from gputide.own_cluster import own_cluster
from gputide.session import Session
from gputide.wiring_backend import backend
from gputide.wiring_cluster import LiveCluster, is_known, moment_of_change, open_cluster, open_cluster_to_change
from gputide.wiring_prometheus import instant_query
from gputide.wiring_warehouse import warehouse
from recommender.harm.interference import Interference, learn_interference

HISTORY_DAYS = 28
"""How far back a history goes: four weeks hold four of every hour of the week."""

PLAN_CELLS_MAX = 400_000_000
"""Steps of slices that a plan is made from at most: ten thousand cards over four weeks of minutes; beyond, of hours."""

CELLS_PER_PART = 40_000_000
"""Steps of slices that are analysed at a time: a thousand cards over four weeks of minutes."""


def load_history(folder: DataFolder, settings: Settings, now: datetime, *, cluster: str | None = None) -> History:
    """The newest four weeks of a cluster's history.

    Args:
        folder: data folder.
        settings: all settings.
        now: end of the history, UTC.
        cluster: whose; None for the one that the settings mean.

    Raises:
        NotEnoughData: there is none.
        Misconfigured: nothing is known of that cluster.
    """
    return warehouse(folder, settings).history(
        cluster_name(folder, settings, cluster),
        since=now - timedelta(days=HISTORY_DAYS),
        until=now,
        time_zone=settings.cluster.time_zone,
    )


def load_profiles(session: Session, cluster: str | None = None) -> tuple[History, Profiles]:
    """The history and what the analyzer makes of it, as of the session's now.

    Args:
        session: the session.
        cluster: whose; None for the one that the settings mean.
    """
    folder, now = session.folder(), session.now()
    history = load_history(folder, session.settings, now, cluster=cluster)
    profiles = profiled(history, session.settings, now)
    return for_plan(history), profiles


def for_plan(history: History, cells_max: int = PLAN_CELLS_MAX) -> History:
    """The history that a plan is made from: of a very large fleet in steps of an hour, so that it fits memory.

    Args:
        history: of the fleet.
        cells_max: slices times steps up to which the history stays as it is.
    """
    grid = history.slices
    if len(grid.keys) * grid.steps <= cells_max or 3600 % grid.step_seconds:
        return history
    return replace(history, slices=coarse_grid(grid, 3600))


def profiled(history: History, settings: Settings, now: datetime) -> Profiles:
    """What the analyzer makes of a history; of a large fleet part by part, so that its own tables stay small."""
    parts = inventory_parts(history.inventory, max(1, CELLS_PER_PART // max(1, history.slices.steps)))
    return profile_parts((history_part(history, part) for part in parts), settings=settings.analyzer, now=now)


def load_interference(settings: Settings) -> Interference | None:
    """What measured pairs teach; None where the settings name none."""
    path = settings.recommender.measured_pairs
    return None if path is None else learn_interference(read_measured_pairs(path))


def with_overrides(session: Session, assignments: Sequence[str]) -> Session:
    """The session with some settings changed for one call.

    Args:
        session: the session.
        assignments: `name=value` texts.

    Raises:
        Misconfigured: unknown name or bad value.
    """
    if not assignments:
        return session
    flat: dict[str, str] = {}
    for text in assignments:
        name, sign, value = text.partition("=")
        if not sign:
            raise Misconfigured(f"cannot use {text!r}: expected NAME=VALUE, such as risk.preset=low")
        flat[name.strip()] = value
    return replace(session, settings=changed_settings(session.settings, flat))


def plan_store(folder: DataFolder) -> PlanStore:
    """The plans."""
    return PlanStore(folder.plans)


def keep_plan(folder: DataFolder, settings: Settings, plan: Plan) -> None:
    """Keep a sealed plan, with the fingerprint of the cluster that it was made for where that is the enforcer's."""
    fingerprint = None
    if is_known(folder, settings) and own_cluster(folder, settings) in (None, plan.cluster):
        with open_cluster(folder, settings) as cluster:
            dialect = backend(settings, plan.created_at).dialect
            fingerprint = fingerprint_of(take_snapshot(cluster, dialect))
    plan_store(folder).add(plan, fingerprint)


def chosen_plan(folder: DataFolder, plan_id: str | None, *, cluster: str | None = None) -> Plan:
    """The plan of an id (or its start), else the newest.

    Args:
        folder: data folder.
        plan_id: the id; None for the newest.
        cluster: the newest of this cluster; None for that of any.

    Raises:
        Misconfigured: no such plan.
        Refused: it was edited.
        NotEnoughData: there is no plan at all.
    """
    if plan_id is not None:
        return plan_store(folder).get(plan_id)
    newest = plan_store(folder).newest(cluster)
    if newest is None:
        of = "" if cluster is None else f" for cluster {cluster!r}"
        raise NotEnoughData(f"there is no plan yet{of}; make one with `gputide plan make`")
    return newest


def journal(folder: DataFolder, *, cluster: str | None = None) -> Journal:
    """What was changed, from the ledger; in one cluster where it is given."""
    return Journal(Ledger(folder.ledger), cluster=cluster)


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
            journal=journal(folder, cluster=own),
            guard=Guard(guard_policy(settings, folder)),
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
            harm=HarmBudgets(MeasuredHarm(WarehouseMeasurements(folder, settings, cluster=own)), harm_policy(settings)),
            holder=lease_holder(folder),
            on_progress=on_progress,
        )
        rollout = Rollout(tools, backend(settings, moment_of_change(cluster, now)))
        yield Enforcer(cluster=cluster, tools=tools, rollout=rollout)


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


def who() -> str:
    """Login name of the person at the keyboard, for approvals and the ledger."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"
