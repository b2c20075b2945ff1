"""Puts the pages' ports together over one data folder."""

from __future__ import annotations

import threading
from contextlib import suppress

from dashboards.queries import Event, Views
from dashboards.stored.workload_series import WorkloadSeries
from enforcer.record.plan_cache import PlanCache
from fleet.data_folder import DataFolder
from fleet.errors import GputideError
from gputide.cluster_sightings import WarehouseSightings, newest_windows
from gputide.fleet_view import Analysed, StoredFlow, StoredRelief, WarehouseFleetView
from gputide.freeze_desk import StoredFreezes
from gputide.money_view import StoredMoney
from gputide.outcome_shelf import StoredOutcomes
from gputide.plan_desk import StoredPlanDesk
from gputide.rollout_desk import BackgroundRollouts
from gputide.session import Session
from gputide.wiring import journal, load_history, profiled
from gputide.wiring_warehouse import warehouse, warehouse_folder


def views_of(session: Session, *, is_patient: bool = True) -> Views:
    """The ports over the session's data folder.

    Args:
        session: the session.
        is_patient: True to wait for what takes long; a web app shows the last answer meanwhile.
    """
    folder, settings = session.folder(), session.settings
    plans = PlanCache(folder.plans, is_patient=is_patient)

    def analyse(cluster: str) -> Analysed:
        history = load_history(folder, settings, session.now(), cluster=cluster)
        return Analysed(
            profiles=profiled(history, settings, session.now()),
            nodes=history.inventory.nodes,
            series=WorkloadSeries.of(history),
            interval_seconds=float(history.slices.step_seconds),
        )

    fleet = WarehouseFleetView(
        clusters=lambda: warehouse(folder, settings).clusters(),
        version=lambda: _version(folder, session),
        analyse=analyse,
        now=session.now,
        newest=lambda cluster: newest_windows(warehouse(folder, settings), settings).get(cluster),
        events=lambda cluster, workload: _events(folder, cluster, workload),
        is_patient=is_patient,
    )
    if not is_patient:
        _begin(fleet, plans)
    return Views(
        fleet=fleet,
        plans=StoredPlanDesk(folder, settings, session.now, plans),
        rollouts=BackgroundRollouts(folder, settings, session.now),
        outcomes=StoredOutcomes(folder, plans),
        freezes=StoredFreezes(folder, session.now),
        sightings=WarehouseSightings(folder, settings, session.now),
        flow=StoredFlow(folder, settings, fleet),
        money=StoredMoney(
            session,
            quotas=lambda cluster: warehouse(folder, settings).quotas(cluster, as_of=session.now()),
            nodes=fleet.nodes,
            is_patient=is_patient,
        ),
        relief=StoredRelief(folder, fleet),
    )


def _begin(fleet: WarehouseFleetView, plans: PlanCache) -> None:
    """Read and analyse before the first reader comes; what fails is told to whoever asks for it."""

    def begin() -> None:
        with suppress(GputideError):
            for cluster in fleet.clusters():
                plans.plans(cluster)
                fleet.profiles(cluster)

    threading.Thread(target=begin, name="first analysis", daemon=True).start()


def _version(folder: DataFolder, session: Session) -> str:
    """Changes when the warehouse has something new or the clock moved on."""
    files = warehouse_folder(folder, session.settings).glob("*")
    manifest = sorted((path.name, path.stat().st_mtime_ns) for path in files if path.is_file())
    return f"{session.now().isoformat(timespec='minutes')} {manifest}"


def _events(folder: DataFolder, cluster: str, workload: str) -> tuple[Event, ...]:
    """Changes of a workload; another cluster may have one of the same name."""
    found = []
    for run in journal(folder, cluster=cluster).runs():
        for record in run.records.values():
            kinds = {move.recommendation for move in record.moves if move.workload == workload}
            if kinds and record.applied_at is not None:
                text = f"plan {run.plan_id}: {', '.join(sorted(kinds))}"
                found.append(Event(at=record.applied_at, kind="change", text=text))
    return tuple(found)
