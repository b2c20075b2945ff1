"""`gputide plan make`: one consistent plan for the cluster, kept in the data folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated

import typer

from dashboards.stored.arrivals import silent_since
from dashboards.stored.changes import StoredOutcomes
from enforcer.probe.stored_results import measured_capability
from fleet.capabilities.register import Capabilities, check_experimental
from fleet.data_folder import writing
from fleet.decisions import Plan, RecommendationKind
from fleet.documents import seal_plan
from fleet.errors import Misconfigured, Unavailable
from fleet.inventory import Card
from fleet.money.prices import PriceBook
from fleet.profiles import Profiles
from fleet.usage import History
from gputide.answers.fleet import longer_steps_note, silence_note
from gputide.answers.plan import plan_answer
from gputide.answers.tiers import tiers_promised
from gputide.answers.what_if import Side, assumptions, what_if_answer
from gputide.container.cluster import backend_version, own_cluster, seen_holders
from gputide.container.history import (
    Analysed,
    for_plan,
    load_history,
    load_inventory,
    load_planned,
    profiled,
)
from gputide.container.live_nodes import with_live_nodes
from gputide.container.measured_pairs import load_interference
from gputide.container.plans import keep_plan
from gputide.container.relief import relief_counted_on
from gputide.container.tide import tide_journal
from gputide.container.warehouse import warehouse
from gputide.options import ClusterOption, RiskOption, answering
from gputide.output import Answer
from gputide.scanning.remembered import as_scanned
from gputide.session import Session
from recommender.backtest import own_past, past_settings
from recommender.hypothetical_cards import on_other_cards
from recommender.past_outcomes import OwnPast, calibration_of
from recommender.planner import make_plan
from recommender.problem import PlanScope
from wire.telemetry import span

_OF_HISTORY = ("cluster", "hive", "warehouse")
"""Sections of the settings by which a history is read."""

app = typer.Typer()


@app.command(epilog="Example: gputide plan make --risk low --max-moves 200")
@answering
def make(
    session: Session,
    risk: RiskOption = None,
    only: Annotated[RecommendationKind | None, typer.Option(help="Only this kind of advice.")] = None,
    max_moves: Annotated[int | None, typer.Option(min=0, help="Most pods that the plan may move.")] = None,
    namespace: Annotated[str | None, typer.Option(help="Only workloads of this namespace.")] = None,
    what_if: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ASSUMPTION",
            help="Show what would follow, beside the plan as things are; kept by nobody. NAME=VALUE: a setting; "
            "cards.MODEL=OTHER: another model; cards+MODEL=N, cards-MODEL=N: more or fewer; nodes-NAME: a node gone.",
        ),
    ] = None,
    cluster: ClusterOption = None,
) -> Answer:
    """Make a plan: what to reclaim, slice and put together, what that saves, what it may harm, and what was refused."""
    session = session.with_overrides([f"risk.preset={risk}"] if risk is not None else [])
    scope = PlanScope(only=only, namespace=namespace, moves_max=max_moves)
    if what_if:
        return supposed(session, what_if, scope, cluster)
    return plan_answer(*kept_plan(session, scope, cluster))


def kept_plan(
    session: Session, scope: PlanScope, cluster: str | None, *, needs_policies: bool = False
) -> tuple[Plan, tuple[str, ...]]:
    """Make a plan, seal and keep it; with notes for who asked.

    Args:
        needs_policies: as in `with_live_nodes`.

    Raises:
        NotEnoughData: there is no history.
        Misconfigured: nothing is known of that cluster.
    """
    session, as_planned = as_scanned(session, cluster)
    planner = _Planner(scope=scope, cluster=cluster)
    with span("gputide.plan.history"):
        found = load_planned(session, cluster)
    folder = session.folder()
    since = silent_since(warehouse(folder, session.settings), session.settings, found.profiles.cluster, session.now())
    history, unread = with_live_nodes(found.history, folder, session.settings, needs_policies=needs_policies)
    with span("gputide.plan.decide"):
        plan = planner.plan(session, history, found.profiles)
    if since is not None:
        # The guard goes by where the history ends: with the last sample, not with the silence after it.
        plan = replace(plan, history=replace(plan.history, until=min(plan.history.until, since)))
    plan = seal_plan(plan)
    with writing(folder):
        keep_plan(folder, session.settings, plan)
    return plan, (
        *as_planned,
        *unread,
        *silence_note(plan.cluster, since),
        *longer_steps_note(found.history.slices.step_seconds, found.source_seconds),
        *tiers_promised(plan, session.settings.guarantees),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planner:
    """What is asked of every plan of one call."""

    scope: PlanScope
    cluster: str | None
    pasts: list[tuple[tuple[object, ...], OwnPast]] = field(default_factory=list)
    """What histories teach, by what that follows from: the same for plans that differ in their preset alone."""

    def own_past(self, session: Session, history: History, capability: Capabilities) -> OwnPast:
        """See `recommender.backtest.own_past`; found out once."""
        settings = past_settings(session.settings)
        relief = relief_counted_on(session.folder(), session.settings, session.now())
        of = (settings, capability, relief)
        known = next((past for whose, past in self.pasts if whose[0] is history and whose[1:] == of), None)
        if known is None:
            known = own_past(history, settings=settings, capability=capability, relief=relief)
            self.pasts.append(((history, *of), known))
        return known

    def plan(self, session: Session, history: History, profiles: Profiles) -> Plan:
        """The plan for a history, not sealed."""
        outcomes = StoredOutcomes(session.folder()).outcomes(history.inventory.cluster)
        version = _version(session)
        own = own_cluster(session.folder(), session.settings)
        is_own = own in (None, history.inventory.cluster)
        capability = measured_capability(
            session.folder(), session.settings, session.now(), is_own=is_own, version=version
        )
        check_experimental(capability, allowed=session.settings.enforcer.experimental)
        nights = tide_journal(session.folder())
        with session.progress("planning") as _:
            plan = make_plan(
                history,
                profiles,
                settings=session.settings,
                capability=capability,
                now=session.now(),
                scope=self.scope,
                past=replace(
                    self.own_past(session, history, capability),
                    calibration_ratio=calibration_of(outcomes),
                    scalings=nights.scalings(),
                    absences=nights.absences(),
                    night_evictions_per_hour=nights.evictions_per_hour(session.now()),
                    interference=load_interference(session.settings),
                    holders=seen_holders(session.folder(), session.settings, history.inventory.cluster, session.now()),
                ),
            )
        return replace(plan, backend_version=version)

    def side(self, session: Session, history: History, profiles: Profiles, cards: Sequence[Card]) -> Side:
        """The plan for a history, with the cards that count and their prices."""
        inventory = history.inventory
        return Side(
            plan=self.plan(session, history, profiles),
            cards=tuple(cards),
            known={card.card: card for card in inventory.cards},
            prices=PriceBook(session.settings, inventory.nodes).at(session.now()),
        )


def _version(session: Session) -> str | None:
    """The backend's version; where the cluster can't be asked, apply finds out whether the plan fits it."""
    try:
        return backend_version(session.settings)
    except (Misconfigured, Unavailable):
        return None


def supposed(session: Session, texts: Sequence[str], scope: PlanScope, cluster: str | None) -> Answer:
    """The plan as things are and the one that would follow from assumptions, of one moment; keeps neither.

    Raises:
        Misconfigured: an assumption is none (`gputide.answers.what_if`).
    """
    session, as_planned = as_scanned(session, cluster)
    planner = _Planner(scope=scope, cluster=cluster)
    session = replace(session, now_override=session.now())
    assumed = assumptions(texts, lambda: load_inventory(session, planner.cluster))
    other = session.with_overrides(assumed.settings)
    is_read_alike = all(getattr(other.settings, name) == getattr(session.settings, name) for name in _OF_HISTORY)
    if not assumed.changes:
        found, unread = _analysed(session, planner)
        is_same = is_read_alike and all(
            getattr(other.settings, name) == getattr(session.settings, name) for name in ("analyzer", "enforcer")
        )
        other_found = found if is_same else _analysed(other, planner)[0]
        present, other_side = (
            planner.side(asked, one.history, one.profiles, one.history.inventory.cards)
            for asked, one in ((session, found), (other, other_found))
        )
        return what_if_answer(assumed, present, other_side, None, notes=(*as_planned, *unread))
    # Other cards change what every step shows, so all of them are read.
    history, unread = _all_steps(session, planner)
    hypothesis = on_other_cards(
        history if is_read_alike else _all_steps(other, planner)[0],
        assumed.changes,
        headroom_ratio=other.settings.recommender.framebuffer_headroom_ratio,
        video_ratio_max=other.settings.analyzer.idle_ratio_max,
    )
    other_side, present = (
        planner.side(asked, for_plan(one), profiled(one, asked.settings, asked.now()), cards)
        for asked, one, cards in (
            (other, hypothesis.history, hypothesis.cards),
            (session, history, history.inventory.cards),
        )
    )
    return what_if_answer(assumed, present, other_side, hypothesis, notes=(*as_planned, *unread))


def _all_steps(session: Session, planner: _Planner) -> tuple[History, tuple[str, ...]]:
    """The history in the source's own steps, and what could not be read of the cluster as it is."""
    history = load_history(session.folder(), session.settings, session.now(), cluster=planner.cluster)
    return with_live_nodes(history, session.folder(), session.settings)


def _analysed(session: Session, planner: _Planner) -> tuple[Analysed, tuple[str, ...]]:
    """What a plan is made from, of the cluster as it is, and what could not be read of that."""
    found = load_planned(session, planner.cluster)
    history, unread = with_live_nodes(found.history, session.folder(), session.settings)
    return replace(found, history=history), unread
