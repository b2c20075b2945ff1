"""Records turned into what a table, a headline or a search result shows; pure functions, no Dash.

Called by the pages and the report. Rows are plain dicts because that is what a grid takes: numbers stay numbers, so
that sorting is right, and the grid formats them.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from dashboards.tokens import STATE_LETTERS
from dashboards.view_models.grid_rows import GridColumn, GridRows
from dashboards.view_models.made_once import MADE
from dashboards.words.reading import reader_words, say, say_code
from fleet.decisions import Need, Plan, Recommendation, Refusal, Saving, Stage
from fleet.inventory import Card
from fleet.money.prices import Prices
from fleet.profiles import CardProfile, CardState, Profile, Profiles, WorkloadState
from fleet.sentences import Value
from fleet.units import GIB, Money, format_money_short

Row = dict[str, Any]

_RESULTS_PER_KIND = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class StateShare:
    """One segment of the state bar."""

    state: CardState
    cards: int
    ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """One hit of the search box; `query` is the address's query without its question mark, as pairs."""

    kind: str
    text: str
    path: str
    query: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusalGroup:
    """Workloads that are left alone for one reason.

    Attributes:
        values: what is in the message of the first.
        detail: that message, where a language was chosen.
    """

    reason: str
    kind: str
    workloads: tuple[str, ...]
    values: tuple[tuple[str, Value], ...] = ()
    detail: str = ""


def state_shares(profiles: Profiles) -> tuple[StateShare, ...]:
    """Cards by state, in the order of the state bar; states without a card are left out."""
    counts = Counter(card.state for card in profiles.cards)
    total = len(profiles.cards)
    return tuple(
        StateShare(state=state, cards=counts[state], ratio=counts[state] / total)
        for state in (CardState.BUSY, CardState.IDLE_HELD, CardState.LOW_USE, CardState.FREE, CardState.UNTRUSTED)
        if counts[state]
    )


def price_per_week(card: CardProfile, profiles: Profiles, prices: Prices) -> Decimal | None:
    """Amortised price of a week of a card at the price of now; None where it has none."""
    return prices.per_week(
        Card(
            card=card.card, card_model=card.card_model, framebuffer_bytes=card.framebuffer_bytes, node=card.node,
            cluster=profiles.cluster,
        )
    )  # fmt: skip


def idle_nodes(profiles: Profiles, count: int = 10) -> tuple[tuple[str, int, int], ...]:
    """Nodes with most cards that are idle or unallocated now: name, these cards, all of its cards."""
    idle = Counter(card.node for card in profiles.cards if card.state in (CardState.IDLE_HELD, CardState.FREE))
    total = Counter(card.node for card in profiles.cards)
    worst = sorted(idle, key=lambda name: (-idle[name], name))[:count]
    return tuple((name, idle[name], total[name]) for name in worst)


def card_table(profiles: Profiles, prices: Prices) -> GridRows[CardProfile]:
    """The fleet table: one row per card, wasted cards of the dearest models first."""
    order = {CardState.IDLE_HELD: 0, CardState.FREE: 1, CardState.LOW_USE: 2, CardState.UNTRUSTED: 3, CardState.BUSY: 4}
    week = {card.card: _float(price_per_week(card, profiles, prices)) for card in profiles.cards}
    cards = sorted(profiles.cards, key=lambda card: (order[card.state], -(week[card.card] or 0), card.node))
    return GridRows(
        cards,
        (
            GridColumn(field="card", value=lambda card: card.card),
            GridColumn(field="node", value=lambda card: card.node),
            GridColumn(field="model", value=lambda card: card.card_model),
            GridColumn(field="state", value=lambda card: card.state.value),
            GridColumn(field="state_word", value=lambda card: say_code("state", card.state)),
            GridColumn(field="letter", value=lambda card: STATE_LETTERS[card.state]),
            GridColumn(field="compute_p95", value=lambda card: card.compute_p95, is_ratio=True),
            GridColumn(field="held_gib", value=lambda card: _gib(card.framebuffer_used_max), is_number=True),
            GridColumn(field="framebuffer_gib", value=lambda card: card.framebuffer_bytes / GIB, is_number=True),
            GridColumn(field="idle_since", value=lambda card: _day(card.idle_since)),
            GridColumn(field="owner", value=_owners),
            GridColumn(field="workload", value=lambda card: ", ".join(card.workloads) or None),
            GridColumn(field="coverage_ratio", value=lambda card: card.coverage_ratio, is_ratio=True),
            GridColumn(field="price_per_week", value=lambda card: week[card.card], is_number=True),
        ),
    )


def workload_table(profiles: Profiles) -> GridRows[Profile]:
    """One row per workload, most unused compute first."""
    return GridRows(
        sorted(profiles.workloads, key=most_unused_first),
        (
            GridColumn(field="workload", value=lambda profile: profile.workload),
            GridColumn(field="namespace", value=lambda profile: profile.namespace),
            GridColumn(field="class", value=lambda profile: say_code("class", profile.workload_class)),
            GridColumn(field="state", value=lambda profile: workload_state_words(profile.state)),
            GridColumn(field="cards", value=lambda profile: len(profile.cards), is_number=True),
            GridColumn(field="pods", value=lambda profile: len(profile.pods), is_number=True),
            GridColumn(field="compute_p95", value=lambda profile: profile.compute.p95, is_ratio=True),
            GridColumn(
                field="framebuffer_granted_gib", value=lambda profile: profile.framebuffer.granted / GIB, is_number=True
            ),
            GridColumn(
                field="framebuffer_need_gib", value=lambda profile: _gib(profile.framebuffer.need_max), is_number=True
            ),
            GridColumn(field="idle_since", value=lambda profile: _day(profile.idle_since)),
            GridColumn(field="off_peak_hours", value=lambda profile: len(profile.off_peak_hours), is_number=True),
            GridColumn(field="coverage_ratio", value=lambda profile: profile.coverage_ratio, is_ratio=True),
            GridColumn(field="confidence", value=lambda profile: profile.confidence, is_ratio=True),
        ),
    )


def unused_cards(profile: Profile) -> float | None:
    """Whole cards' worth of compute that a workload leaves unused at its p95; None where its compute is not known."""
    used = profile.compute.p95
    return None if used is None else round(len(profile.cards) * (1 - used), 4)


def most_unused_first(profile: Profile) -> tuple[bool, float, str]:
    """Key by which workloads are listed; those of which too little is known are no waste, and come last."""
    unused = unused_cards(profile)
    return profile.state is WorkloadState.UNKNOWN or unused is None, -(unused or 0.0), profile.workload


def recommendation_rows(plan: Plan, stage: Stage | None, *, rows_max: int | None = None) -> list[Row]:
    """One row per recommendation of a stage, in order of application, or by hand; the first `rows_max` of them."""
    items = plan.by_hand if stage is None else _of_stage(plan, stage)
    return [_recommendation_row(item, plan.currency) for item in items[:rows_max]]


def stage_risk(plan: Plan, stage: Stage) -> str:
    """The highest risk level among a stage's recommendations."""
    levels = {item.risk_level.value for item in _of_stage(plan, stage)}
    return next((level for level in ("high", "medium", "low") if level in levels), "low")


def stage_needs(plan: Plan, stage: Stage) -> tuple[Need, ...]:
    """What the backend must enforce for a stage, sorted."""
    return tuple(sorted({need for item in _of_stage(plan, stage) for need in item.needs}))


def stage_owners(plan: Plan, stage: Stage) -> tuple[tuple[str, int], ...]:
    """Who is asked: namespaces that a stage touches with the number of their workloads, most first."""
    workloads = {name for item in _of_stage(plan, stage) for name in item.workloads}
    return tuple(Counter(name.split("/", 1)[0] for name in workloads).most_common())


def refusal_groups(refused: Iterable[Refusal]) -> tuple[RefusalGroup, ...]:
    """Refusals by reason and kind of advice, largest group first."""
    groups: dict[tuple[str, str], list[Refusal]] = {}
    for refusal in refused:
        kind = "all advice" if refusal.kind is None else refusal.kind.value.replace("_", " ")
        groups.setdefault((refusal.reason, kind), []).append(refusal)
    return tuple(
        RefusalGroup(reason=reason, kind=kind, workloads=tuple(item.workload for item in items), values=items[0].values)
        for (reason, kind), items in sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))
    )


def search(profiles: Profiles, text: str) -> tuple[SearchResult, ...]:
    """Cards, nodes, teams and workloads whose name contains the text, the nearest first, a few of each kind."""
    wanted = text.strip().lower()
    if not wanted:
        return ()
    names = MADE.of((profiles,), "search names", lambda: _search_names(profiles))
    found: list[tuple[int, int, SearchResult]] = []
    for order, (kind, path, key) in enumerate(_SEARCHED):
        # A team's own name must not drown in those of its workloads: a few of each kind.
        near = ((_rank(low, wanted), place, name) for place, (low, name) in enumerate(names[kind]) if wanted in low)
        found += [
            (rank, order, SearchResult(kind=kind, text=name, path=path, query=((key, name),)))
            for rank, _, name in heapq.nsmallest(_RESULTS_PER_KIND, near)
        ]
    return tuple(hit for _, _, hit in sorted(found, key=lambda entry: entry[:2]))


def workload_state_words(state: WorkloadState) -> str:
    """A workload state as people read it."""
    return say_code("workload_state", state)


def state_sentence(profile: Profile, now: datetime) -> str:
    """The state of a workload in words, with confidence: `idle since 12 days; the state held in 97 % of such cases`."""
    words = workload_state_words(profile.state)
    if profile.idle_since is not None and profile.state in (WorkloadState.IDLE, WorkloadState.IDLE_HELD):
        words += say("word.since_age", age=age_words((now - profile.idle_since).total_seconds()))
    if profile.state is WorkloadState.PARTLY_IDLE:
        words += say("word.count_all_pods_idle", count=len(profile.idle_pods), all=len(profile.pods))
    if profile.state is WorkloadState.OFF_PEAK:
        words += say("word.count_hours_week", count=len(profile.off_peak_hours))
    doubt = reader_words().percent(1 - profile.confidence, 0)
    return say("word.state_would_change_within_week_with", state=words, ratio=doubt)


def saving_words(saving: Saving, currency: str) -> str:
    """`¥ 214k marginal, ¥ 390k amortised`; says so where nothing has a price."""
    return reader_words().saving(saving, currency)


def money_words(amount: Decimal | None, currency: str) -> str:
    """An amount for the eye; an en dash where there is none."""
    return "–" if amount is None else format_money_short(Money(amount=amount, currency=currency))


def percent_words(ratio: float | None, digits: int = 2) -> str:
    """A ratio as a percentage; an en dash where nothing was collected."""
    return reader_words().percent(ratio, digits)


def age_words(seconds: float) -> str:
    """A duration for the eye: `12 days`, `3 h`, `4 min`, `30 s`."""
    for length, message_id in ((86400, "age.days"), (3600, "age.hours"), (60, "age.minutes")):
        if seconds >= 2 * length or (seconds >= length and length < 86400):
            return say(message_id, count=round(seconds / length))
    return say("age.seconds", count=round(max(0.0, seconds)))


def moment_words(moment: datetime) -> str:
    """A moment for the eye, in UTC and said so: `2026-01-12 08:30 UTC`."""
    return reader_words().moment(moment)


_SEARCHED = (
    ("workload", "/workloads", "w"),
    ("node", "/", "node"),
    ("team", "/workloads", "team"),
    ("card", "/", "card"),
)
"""What the search box knows: kind, page, and the value of the address that it sets."""


def _search_names(profiles: Profiles) -> dict[str, list[tuple[str, str]]]:
    """Every name by kind, in lower case and as it is."""
    kinds: dict[str, list[str]] = {
        "workload": [profile.workload for profile in profiles.workloads],
        "node": sorted({card.node for card in profiles.cards}),
        "team": sorted({profile.namespace for profile in profiles.workloads}),
        "card": [card.card for card in profiles.cards],
    }
    return {kind: [(name.lower(), name) for name in names] for kind, names in kinds.items()}


def _of_stage(plan: Plan, stage: Stage) -> list[Recommendation]:
    """The recommendations of a stage, in order of application."""
    by_id = MADE.of((plan,), "recommendations", lambda: {item.id: item for item in plan.recommendations})
    return [by_id[name] for name in stage.recommendations if name in by_id]


def _rank(name: str, wanted: str) -> int:
    """0 the name itself, 1 its beginning, 2 the beginning of a part of it, 3 anywhere else in it."""
    if name == wanted:
        return 0
    if name.startswith(wanted):
        return 1
    return 2 if any(part.startswith(wanted) for part in name.split("/")) else 3


def _owners(card: CardProfile) -> str | None:
    return ", ".join(sorted({name.split("/", 1)[0] for name in card.workloads})) or None


def _float(amount: Decimal | None) -> float | None:
    return None if amount is None else float(amount)


def _recommendation_row(item: Recommendation, currency: str) -> Row:
    return {
        "id": item.id,
        "kind": item.kind.value.replace("_", " "),
        "workload": item.workloads[0]
        if len(item.workloads) == 1
        else f"{item.workloads[0]} + {len(item.workloads) - 1}",
        "pods": len(item.pods),
        "cards_freed": item.cards_freed,
        "saving": money_words(item.saving_per_week.amortised, currency),
        "risk": item.risk_level.value,
        "confidence": item.confidence,
    }


def _gib(size_bytes: int | None) -> float | None:
    return None if size_bytes is None else size_bytes / GIB


def _day(moment: datetime | None) -> str | None:
    return None if moment is None else f"{moment:%Y-%m-%d %H:%M}"
