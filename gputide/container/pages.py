"""Opens the ports of the pages over one data folder."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial

from dashboards.queries import Views
from dashboards.stored.arrivals import StoredFlow, WarehouseSightings, newest_windows
from dashboards.stored.card_series import card_history
from dashboards.stored.changes import StoredFreezes, StoredOutcomes, StoredRelief, change_events
from dashboards.stored.fleet import Analysed, StoredSlices, WarehouseFleet
from dashboards.stored.money import StoredMoney
from dashboards.stored.node_modes import LiveNodeModes
from dashboards.stored.plans import BackgroundRollouts, StoredPlans
from dashboards.stored.workload_series import CELLS_MAX, DRAWN, DRAWN_PEAKS, WorkloadSeries
from dashboards.view_models.card_history import CardHistory
from enforcer.preview import StagePreview
from enforcer.record.plan_cache import PlanCache
from enforcer.rollout.progress import Progress
from enforcer.rollout.reconciler import Reconciler
from fleet.data_folder import DataFolder
from fleet.decisions import Plan
from fleet.errors import GputideError
from fleet.inventory import CardId, Grant
from fleet.settings.dashboard import Access
from fleet.settings.settings import Settings
from gputide.container.bus import file_bus
from gputide.container.cluster import check_own, own_cluster
from gputide.container.cost import cost_period, period_unit_counts
from gputide.container.enforcer import guard, open_enforcer
from gputide.container.history import load_drawn
from gputide.container.node_modes import keep_switch, standing_of, switch_preview
from gputide.container.plans import chosen_stages, journal, open_plans, previewed
from gputide.container.sources import asked_sources
from gputide.container.warehouse import warehouse, warehouse_folder
from gputide.session import Session
from pipeline.warehouse.parquet_reads import ParquetReads


def views_of(session: Session, *, is_patient: bool = True) -> Views:
    """The ports over the session's data folder.

    Args:
        is_patient: True to wait for what takes long; a web app shows the last answer meanwhile.
    """
    folder, settings = session.folder(), session.settings
    plans = PlanCache(folder.plans, is_patient=is_patient)

    source = partial(warehouse, folder, settings)

    def preview(plan: Plan, stages: Sequence[int]) -> tuple[StagePreview, ...]:
        chosen = chosen_stages(plan, stages)
        return previewed(folder, settings, session.now(), plan, chosen, rehearses=False)

    @contextmanager
    def open_reconciler(on_progress: Callable[[Progress], None]) -> Iterator[Reconciler]:
        with open_enforcer(folder, settings, session.now(), on_progress=on_progress) as enforcer:
            yield enforcer.reconciler

    fleet = WarehouseFleet(
        clusters=lambda: source().clusters(),
        version=lambda: _version(folder, session),
        analyse=partial(_analysed, session),
        now=session.now,
        newest=lambda cluster: newest_windows(source(), settings).get(cluster),
        events=lambda cluster, workload: change_events(journal(folder, cluster=cluster), workload),
        of_card=partial(_of_card, source, settings),
        is_patient=is_patient,
    )
    if not is_patient:
        _begin(fleet, plans)
    return Views(
        fleet=fleet,
        slices=StoredSlices(fleet.analysed, compute_ratio=settings.prices.compute_ratio),
        plans=StoredPlans(
            folder,
            plans,
            session.now,
            guard=lambda: guard(folder, settings),
            preview=preview,
            open_plans=lambda: open_plans(folder, settings),
            signs_in=settings.dashboard.access is not Access.NONE,
        ),
        rollouts=BackgroundRollouts(
            folder,
            check=lambda plan: check_own(plan, folder, settings),
            open_reconciler=open_reconciler,
            open_plans=lambda: open_plans(folder, settings),
        ),
        outcomes=StoredOutcomes(folder, plans),
        freezes=StoredFreezes(folder, session.now),
        sightings=WarehouseSightings(source, settings, session.now),
        flow=StoredFlow(
            folder,
            settings,
            fleet,
            bus=lambda lane: file_bus(folder, settings, lane),
            manifest=warehouse_folder(folder, settings) / "MANIFEST",
        ),
        money=StoredMoney(
            folder,
            settings if session.bare_settings is None else session.bare_settings,
            session.now,
            period=lambda priced, cluster, since: cost_period(
                replace(session, settings=priced), since, None, cluster=cluster
            ),
            unit_counts=period_unit_counts,
            quotas=lambda cluster: source().quotas(cluster, as_of=session.now()),
            nodes=fleet.nodes,
            is_patient=is_patient,
        ),
        relief=StoredRelief(folder, fleet),
        nodes=LiveNodeModes(
            folder,
            own=lambda: own_cluster(folder, settings),
            standing=lambda node: standing_of(folder, settings, session.now(), node),
            preview=lambda switch: switch_preview(folder, settings, session.now(), switch),
            keep=lambda switch: keep_switch(folder, settings, session.now(), switch),
        ),
        sources=asked_sources(settings, fleet, is_patient=is_patient),
    )


def _begin(fleet: WarehouseFleet, plans: PlanCache) -> None:
    """Read and analyse before the first reader comes; a failure is reported to the reader who asks again."""

    def begin() -> None:
        with suppress(GputideError):
            for cluster in fleet.clusters():
                plans.plans(cluster)
                fleet.profiles(cluster)

    threading.Thread(target=begin, name="first analysis", daemon=True).start()


def _analysed(session: Session, cluster: str) -> Analysed:
    found = load_drawn(session, cluster, cells_max=CELLS_MAX, mean=DRAWN, peak=DRAWN_PEAKS)
    return Analysed(
        profiles=found.profiles,
        nodes=found.history.inventory.nodes,
        series=WorkloadSeries.of(found.history),
        interval_seconds=float(found.source_seconds),
    )


def _of_card(
    source: Callable[[], ParquetReads],
    settings: Settings,
    cluster: str,
    card: CardId,
    grants: tuple[Grant, ...],
    hours: int | None,
) -> CardHistory:
    """A card up to the newest window that its cluster sent."""
    until = newest_windows(source(), settings)[cluster]
    return card_history(source(), cluster, card, grants, hours=hours, until=until)


def _version(folder: DataFolder, session: Session) -> str:
    """Changes when the warehouse has something new or the clock moved on."""
    files = warehouse_folder(folder, session.settings).glob("*")
    manifest = sorted((path.name, path.stat().st_mtime_ns) for path in files if path.is_file())
    return f"{session.now().isoformat(timespec='minutes')} {manifest}"
