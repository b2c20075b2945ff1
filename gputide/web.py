"""Puts the pages' four ports together over one data folder."""

from __future__ import annotations

from decimal import Decimal

from dashboards.queries import Event, Prices, Views
from fleet.catalogue import catalogue
from gputide.data_folder import DataFolder
from gputide.fleet_view import Analysed, WarehouseFleetView
from gputide.outcome_shelf import StoredOutcomes
from gputide.plan_desk import StoredPlanDesk
from gputide.rollout_desk import BackgroundRollouts
from gputide.session import Session
from gputide.wiring import journal, load_history, profiled
from gputide.wiring_warehouse import warehouse, warehouse_folder
from recommender.prices import price_book


def views_of(session: Session) -> Views:
    """The four ports over the session's data folder."""
    folder, settings = session.folder(), session.settings

    def analyse(cluster: str) -> Analysed:
        history = load_history(folder, settings, session.now(), cluster=cluster)
        return Analysed(history=history, profiles=profiled(history, settings, session.now()))

    return Views(
        fleet=WarehouseFleetView(
            clusters=lambda: warehouse(folder, settings).clusters(),
            version=lambda: _version(folder, session),
            analyse=analyse,
            now=session.now,
            events=lambda workload: _events(folder, workload),
        ),
        plans=StoredPlanDesk(folder, settings, session.now),
        rollouts=BackgroundRollouts(folder, settings, session.now),
        outcomes=StoredOutcomes(folder),
        prices=_prices(session),
    )


def _version(folder: DataFolder, session: Session) -> str:
    """Changes when the warehouse has something new or the clock moved on."""
    files = warehouse_folder(folder, session.settings).glob("*")
    manifest = sorted((path.name, path.stat().st_mtime_ns) for path in files if path.is_file())
    return f"{session.now().isoformat(timespec='minutes')} {manifest}"


def _events(folder: DataFolder, workload: str) -> tuple[Event, ...]:
    found = []
    for run in journal(folder).runs():
        for record in run.records.values():
            kinds = {move.recommendation for move in record.moves if move.workload == workload}
            if kinds and record.applied_at is not None:
                text = f"plan {run.plan_id}: {', '.join(sorted(kinds))}"
                found.append(Event(at=record.applied_at, kind="change", text=text))
    return tuple(found)


def _prices(session: Session) -> Prices:
    book = price_book(session.settings, at=session.now())
    per_hour: dict[str, Decimal] = {}
    own_names = [*book.settings.overrides, *(rule.card_model for rule in book.settings.rules if rule.card_model)]
    for name in (*(model.name for model in catalogue()), *own_names):
        price = book.amortised_per_hour(name)
        if price is not None:
            per_hour[name] = price
    has_own = session.settings.prices.overrides or session.settings.prices.rules
    own = "your prices first, then " if has_own else ""
    return Prices(
        currency=book.currency, per_card_hour=per_hour, source=f"{own}public list prices (gputide prices list)"
    )
