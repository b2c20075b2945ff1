"""All clusters of one warehouse in one table: cards, what plans free and save, and since when a silent one is silent.

Pure; called by the page Clusters and by `gputide report clusters`. A cluster that sends nothing keeps the figures
that it had when it was last heard, marked by that moment: it never counts as one without cards, use or waste.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from dashboards.queries import PlanEntry, Views
from dashboards.view_models.cluster_sighting import ClusterSighting


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterLine:
    """One cluster.

    Attributes:
        sighting: when it was last heard, and its cards.
        plan_id: its newest plan; None where there is none.
        saving_per_week: amortised, in `currency`; None where cards have no price.
        stages: those that apply carries out.
        tide_stages: numbers of those that `gputide run tide` plays.
    """

    sighting: ClusterSighting
    plan_id: str | None = None
    cards_freed: int | None = None
    saving_per_week: Decimal | None = None
    currency: str | None = None
    approved_stages: int = 0
    applied_stages: int = 0
    stages: int = 0
    tide_stages: tuple[int, ...] = ()
    is_tide_approved: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetTotals:
    """All clusters together.

    Attributes:
        silent: how many of them are silent; their cards are in no total.
        cards: cards of those that send.
        cards_freed: what the newest plans of those that send free.
        saving_per_week: amortised, by currency: sums of two currencies are never mixed.
    """

    clusters: int
    silent: int
    cards: int
    cards_freed: int
    saving_per_week: tuple[tuple[str, Decimal], ...]


def cluster_lines(views: Views) -> tuple[ClusterLine, ...]:
    """Every cluster that may be seen: silent ones first, longest silent on top, then by cards."""
    seen = set(views.fleet.clusters())
    lines = [
        _line(sighting, views.plans.plans(sighting.cluster))
        for sighting in views.sightings.sightings()
        if sighting.cluster in seen
    ]
    return tuple(sorted(lines, key=_order))


def fleet_totals(lines: Sequence[ClusterLine]) -> FleetTotals:
    """The sums over clusters that send."""
    heard = [line for line in lines if line.sighting.silent_since is None]
    savings: dict[str, Decimal] = defaultdict(Decimal)
    for line in heard:
        if line.saving_per_week is not None and line.currency is not None:
            savings[line.currency] += line.saving_per_week
    return FleetTotals(
        clusters=len(lines),
        silent=len(lines) - len(heard),
        cards=sum(line.sighting.cards for line in heard),
        cards_freed=sum(line.cards_freed or 0 for line in heard),
        saving_per_week=tuple(sorted(savings.items())),
    )


def _line(sighting: ClusterSighting, entries: Sequence[PlanEntry]) -> ClusterLine:
    newest = next((entry for entry in entries if not entry.plan.is_of_node), None)
    if newest is None:
        return ClusterLine(sighting=sighting)
    totals, rolled = newest.plan.totals, newest.plan.rollout_stages
    return ClusterLine(
        sighting=sighting,
        plan_id=newest.plan.plan_id,
        cards_freed=totals.cards_freed,
        saving_per_week=totals.saving_per_week.amortised,
        currency=newest.plan.currency,
        approved_stages=len(set(newest.approved_stages).intersection(rolled)),
        applied_stages=len(newest.applied_stages),
        stages=len(rolled),
        tide_stages=tuple(sorted(newest.plan.tide_stages)),
        is_tide_approved=newest.plan.tide_stages.issubset(newest.approved_stages),
    )


def _order(line: ClusterLine) -> tuple[bool, float, int, str]:
    sighting = line.sighting
    is_heard = sighting.silent_since is None
    return is_heard, 0.0 if is_heard else -sighting.age_seconds, -sighting.cards, sighting.cluster
