"""Puts adapters behind ports, as the settings say: the only place that knows which one stands where.

Every verb asks here for what it needs, and gets it opened on the data folder of its session.
"""

from __future__ import annotations

import getpass
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from analyzer.profile import profile_fleet
from enforcer.backend import Backend
from enforcer.backend_hami import HamiBackend
from enforcer.carry import CarryPolicy
from enforcer.cluster_simulated import SimulatedCluster
from enforcer.fingerprint import fingerprint_of
from enforcer.guard import Guard, GuardPolicy
from enforcer.journal import Journal
from enforcer.ledger import Ledger
from enforcer.plan_store import PlanStore
from enforcer.rollout import Progress, Rollout, RolloutPolicy, Tools
from enforcer.snapshot import take_snapshot
from enforcer.watch import ClusterSignals, WatchPolicy
from fleet.capabilities import CAPABILITIES
from fleet.decisions import Plan
from fleet.errors import Misconfigured, NotEnoughData
from fleet.profiles import Profiles
from fleet.settings import Settings, load_settings
from fleet.usage import History
from gputide.data_folder import DataFolder
from gputide.measured_pairs import read_measured_pairs
from gputide.session import Session
from gputide.wiring_warehouse import warehouse
from recommender.interference import Interference, learn_interference

BACKENDS: tuple[tuple[str, Callable[[datetime], Backend]], ...] = (("hami", HamiBackend),)
"""Backends that can render changes, by name (see `fleet.capabilities`); each is made with the moment of the change."""

HISTORY_DAYS = 28
"""How far back a history goes: four weeks hold four of every hour of the week."""


def cluster_name(folder: DataFolder, settings: Settings) -> str:
    """The cluster that is meant: the only one with data, else the one that the settings name.

    Raises:
        NotEnoughData: nothing is known of any cluster.
        Misconfigured: there are several, and the settings name none of them.
    """
    known = warehouse(folder, settings).clusters()
    if not known:
        raise NotEnoughData("nothing was recorded yet; feed the folder with `gputide replay DIR` or `gputide receive`")
    if settings.cluster.name in known:
        return settings.cluster.name
    if len(known) > 1:
        raise Misconfigured(
            f"cannot choose a cluster: cluster.name={settings.cluster.name!r} is not among {', '.join(known)}"
        )
    return known[0]


def load_history(folder: DataFolder, settings: Settings, now: datetime) -> History:
    """The newest four weeks of the cluster's history.

    Raises:
        NotEnoughData: there is none.
    """
    return warehouse(folder, settings).history(
        cluster_name(folder, settings),
        since=now - timedelta(days=HISTORY_DAYS),
        until=now,
        time_zone=settings.cluster.time_zone,
    )


def load_profiles(session: Session) -> tuple[History, Profiles]:
    """The history and what the analyzer makes of it, as of the session's now."""
    folder, now = session.folder(), session.now()
    history = load_history(folder, session.settings, now)
    return history, profile_fleet(history, settings=session.settings.analyzer, now=now)


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
    fresh = load_settings(None, flat, {})
    merged = session.settings.model_dump()
    for name in flat:
        section, _, leaf = name.partition(".")
        leaf = leaf.partition(".")[0]
        merged[section][leaf] = getattr(getattr(fresh, section), leaf)
    return replace(session, settings=Settings.model_validate(merged))


def plan_store(folder: DataFolder) -> PlanStore:
    """The plans."""
    return PlanStore(folder.plans)


def keep_plan(folder: DataFolder, plan: Plan) -> None:
    """Keep a sealed plan, with the fingerprint of the cluster that it was made for."""
    fingerprint = None
    if folder.cluster.exists():
        cluster = SimulatedCluster.open(folder.cluster)
        try:
            fingerprint = fingerprint_of(take_snapshot(cluster))
        finally:
            cluster.close()
    plan_store(folder).add(plan, fingerprint)


def chosen_plan(folder: DataFolder, plan_id: str | None) -> Plan:
    """The plan of an id (or its start), else the newest.

    Raises:
        Misconfigured: no such plan.
        Refused: it was edited.
        NotEnoughData: there is no plan at all.
    """
    if plan_id is not None:
        return plan_store(folder).get(plan_id)
    newest = plan_store(folder).newest()
    if newest is None:
        raise NotEnoughData("there is no plan yet; make one with `gputide recommend`")
    return newest


def journal(folder: DataFolder) -> Journal:
    """What was changed, from the ledger."""
    return Journal(Ledger(folder.ledger))


@dataclass(frozen=True, slots=True, kw_only=True)
class Enforcer:
    """The enforcer on one cluster.

    Attributes:
        cluster: the simulated cluster.
        tools: what rollout and undo work with.
        rollout: applies plans.
    """

    cluster: SimulatedCluster
    tools: Tools
    rollout: Rollout


@contextmanager
def open_enforcer(
    folder: DataFolder, settings: Settings, now: datetime, *, on_progress: Callable[[Progress], None]
) -> Iterator[Enforcer]:
    """The enforcer on the simulated cluster of the data folder.

    A replay's clock stands still while a plan is applied: what the simulated rollout took is taken back at the end.
    """
    cluster = SimulatedCluster.open(folder.cluster)
    try:
        cluster.settle(now)
        cluster.advance(now)
        tools = Tools(
            reader=cluster,
            writer=cluster,
            lease=cluster,
            pause=cluster.pause,
            journal=journal(folder),
            guard=Guard(GuardPolicy(freeze_config_map=settings.enforcer.freeze_config_map, freeze_file=folder.freeze)),
            signals=ClusterSignals(cluster),
            policy=RolloutPolicy(
                canary_workloads=settings.enforcer.canary_workloads,
                watch_seconds=float(settings.enforcer.watch_seconds),
                lease_seconds=float(settings.enforcer.lease_seconds),
                watch=WatchPolicy(
                    restarts_max=settings.enforcer.watch_restarts_max,
                    violation_ratio_max=settings.enforcer.watch_violation_ratio_max,
                ),
                carry=CarryPolicy(parallel_pods_max=settings.enforcer.parallel_workloads_max),
            ),
            on_progress=on_progress,
        )
        yield Enforcer(cluster=cluster, tools=tools, rollout=Rollout(tools, backend(settings, now)))
        cluster.settle(now)
    finally:
        cluster.close()


def backend(settings: Settings, now: datetime) -> Backend:
    """The backend that renders changes.

    Raises:
        Misconfigured: the settings name one that renders nothing.
    """
    chosen = dict(BACKENDS).get(settings.enforcer.backend)
    if chosen is None:
        known = ", ".join(name for name, _ in BACKENDS)
        named = settings.enforcer.backend
        only_plans = any(record.backend == named for record in CAPABILITIES)
        why = "plans can be made for it and not applied yet; applied is" if only_plans else "expected one of"
        raise Misconfigured(f"cannot render for enforcer.backend={named!r}: {why} {known}")
    return chosen(now)


def who() -> str:
    """Login name of the person at the keyboard, for approvals and the ledger."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"
