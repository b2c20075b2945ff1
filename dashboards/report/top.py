"""Who holds cards and does not use them: the top list of the weekly report. Called by `report`."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from dashboards.queries import Prices
from dashboards.words.advice import reason_words, state_words
from dashboards.words.report import Language
from fleet.decisions import Plan, Recommendation
from fleet.inventory import CardId, CardModelName, WorkloadId
from fleet.profiles import Profile, Profiles, WorkloadState

_QUIET = frozenset({WorkloadState.IDLE, WorkloadState.IDLE_HELD, WorkloadState.PARTLY_IDLE, WorkloadState.OVERSIZED})


@dataclass(frozen=True, slots=True, kw_only=True)
class TopWorkload:
    """One line of the top list: who holds cards that it does not use.

    Attributes:
        workload: who.
        owner: its namespace.
        state: state word.
        cards: cards that it holds.
        unused_cards: of those, compute that it leaves unused at its p95, in cards.
        unused_per_week: price of that; None where a model has no price.
        advice: id of the recommendation that would mend it; None where there is none.
        reason: one sentence.
    """

    workload: WorkloadId
    owner: str
    state: WorkloadState
    cards: int
    unused_cards: float
    unused_per_week: Decimal | None
    advice: str | None
    reason: str


def top_workloads(
    profiles: Profiles, plan: Plan | None, prices: Prices, language: Language = Language.EN
) -> tuple[TopWorkload, ...]:
    """Every trusted workload that leaves something unused, the dearest first.

    Args:
        profiles: newest analysis.
        plan: newest plan, whose advice is named; None where there is none.
        prices: prices.
        language: language of the reasons.
    """
    models = {card.card: card.card_model for card in profiles.cards}
    advice: dict[WorkloadId, Recommendation] = {}
    for item in plan.recommendations if plan is not None else ():
        for workload in item.workloads:
            advice.setdefault(workload, item)
    rows = [
        _top_row(profile, models, advice.get(profile.workload), prices, language)
        for profile in profiles.workloads
        if profile.state in _QUIET and profile.is_trusted
    ]
    return tuple(sorted(rows, key=lambda row: (-(row.unused_per_week or 0), -row.unused_cards, row.workload)))


def _top_row(
    profile: Profile,
    models: dict[CardId, CardModelName],
    item: Recommendation | None,
    prices: Prices,
    language: Language,
) -> TopWorkload:
    used = profile.compute.p95 if profile.compute.p95 is not None else 1.0
    share = len(profile.idle_pods) / len(profile.pods) if profile.state is WorkloadState.PARTLY_IDLE else 1 - used
    weekly = [prices.per_card_week(models[card]) if card in models else None for card in profile.cards]
    known = [price for price in weekly if price is not None]
    return TopWorkload(
        workload=profile.workload,
        owner=profile.namespace,
        state=profile.state,
        cards=len(profile.cards),
        unused_cards=round(len(profile.cards) * share, 2),
        unused_per_week=sum(known, Decimal(0)) * Decimal(str(round(share, 4)))
        if known and len(known) == len(weekly)
        else None,
        advice=None if item is None else item.id,
        reason=state_words(profile, language) if item is None else reason_words(item, language),
    )
