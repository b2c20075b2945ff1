"""Records turned into what a table, a headline or a search result shows; pure functions, no Dash.

Called by the pages and the report. Rows are plain dicts because that is what a grid takes: numbers stay numbers, so
that sorting is right, and the grid formats them.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from dashboards.queries import Prices
from dashboards.tokens import STATE_LETTERS, STATE_WORDS
from fleet.decisions import Plan, Recommendation, Refusal, Saving, Stage
from fleet.profiles import CardProfile, CardState, Profile, Profiles, WorkloadState
from fleet.units import GIB, Money, format_money_short, format_percent

Row = dict[str, Any]

_FORMULA_START = re.compile(r"^\s*[=+\-@\t\r]|^[\t\r\n]")
_RESULTS_PER_KIND = 5
_NO_HIT = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class StateShare:
    """One segment of the state bar."""

    state: CardState
    cards: int
    ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetHeadline:
    """The figures on top of the fleet page.

    Attributes:
        cards: all cards.
        nodes: all nodes.
        idle_ratio: granted cards that stand idle or in low use / granted cards, None where none is granted.
        wasted_per_week: price of idle-held and unallocated cards; None where no such card has a price.
        unpriced_cards: of those, cards without a price.
    """

    cards: int
    nodes: int
    idle_ratio: float | None
    wasted_per_week: Decimal | None
    unpriced_cards: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """One hit of the search box; `query` is the address's query without its question mark, as pairs."""

    kind: str
    text: str
    path: str
    query: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusalGroup:
    """Workloads that are left alone for one reason."""

    reason: str
    kind: str
    workloads: tuple[str, ...]
    detail: str


def state_shares(profiles: Profiles) -> tuple[StateShare, ...]:
    """Cards by state, in the order of the state bar; states without a card are left out."""
    counts = Counter(card.state for card in profiles.cards)
    total = len(profiles.cards)
    return tuple(
        StateShare(state=state, cards=counts[state], ratio=counts[state] / total)
        for state in (CardState.BUSY, CardState.IDLE_HELD, CardState.LOW_USE, CardState.FREE, CardState.UNTRUSTED)
        if counts[state]
    )


def fleet_headline(profiles: Profiles, prices: Prices) -> FleetHeadline:
    """The figures on top of the fleet page."""
    granted = [card for card in profiles.cards if card.state is not CardState.FREE]
    quiet = [card for card in granted if card.state in (CardState.IDLE_HELD, CardState.LOW_USE)]
    wasted = [card for card in profiles.cards if card.state in (CardState.IDLE_HELD, CardState.FREE)]
    money = [price for card in wasted if (price := prices.per_card_week(card.card_model)) is not None]
    return FleetHeadline(
        cards=len(profiles.cards),
        nodes=len({card.node for card in profiles.cards}),
        idle_ratio=len(quiet) / len(granted) if granted else None,
        wasted_per_week=sum(money, Decimal(0)) if money else None,
        unpriced_cards=len(wasted) - len(money),
    )


def card_rows(profiles: Profiles, prices: Prices) -> list[Row]:
    """One row per card for the fleet table, wasted cards of the dearest models first."""
    rows = [_card_row(card, prices) for card in profiles.cards]
    order = {CardState.IDLE_HELD: 0, CardState.FREE: 1, CardState.LOW_USE: 2, CardState.UNTRUSTED: 3, CardState.BUSY: 4}
    rank = {STATE_WORDS[state]: place for state, place in order.items()}
    return sorted(rows, key=lambda row: (rank[row["state_word"]], -(row["price_per_week"] or 0), row["node"]))


def workload_rows(profiles: Profiles) -> list[Row]:
    """One row per workload, most unused compute first."""
    rows = [
        {
            "workload": profile.workload,
            "namespace": profile.namespace,
            "class": profile.workload_class.value.replace("_", " "),
            "state": workload_state_words(profile.state),
            "cards": len(profile.cards),
            "pods": len(profile.pods),
            "compute_p95": profile.compute.p95,
            "framebuffer_granted_gib": profile.framebuffer.granted / GIB,
            "framebuffer_need_gib": _gib(profile.framebuffer.need_max),
            "idle_since": _day(profile.idle_since),
            "off_peak_hours": len(profile.off_peak_hours),
            "coverage_ratio": profile.coverage_ratio,
            "confidence": profile.confidence,
        }
        for profile in profiles.workloads
    ]
    return sorted(rows, key=lambda row: row["cards"] * (1 - (row["compute_p95"] or 0.0)), reverse=True)


def recommendation_rows(plan: Plan, stage: Stage) -> list[Row]:
    """One row per recommendation of a stage, in order of application."""
    by_id = {item.id: item for item in plan.recommendations}
    return [_recommendation_row(by_id[name], plan.currency) for name in stage.recommendations if name in by_id]


def stage_risk(plan: Plan, stage: Stage) -> str:
    """The highest risk level among a stage's recommendations."""
    levels = {item.risk_level.value for item in plan.recommendations if item.id in set(stage.recommendations)}
    return next((level for level in ("high", "medium", "low") if level in levels), "low")


def stage_needs(plan: Plan, stage: Stage) -> tuple[str, ...]:
    """What the backend must enforce for a stage, in words, sorted."""
    chosen = set(stage.recommendations)
    return tuple(
        sorted(
            {need.value.replace("_", " ") for item in plan.recommendations if item.id in chosen for need in item.needs}
        )
    )


def stage_owners(plan: Plan, stage: Stage) -> tuple[tuple[str, int], ...]:
    """Who is asked: namespaces that a stage touches with the number of their workloads, most first."""
    chosen = set(stage.recommendations)
    workloads = {name for item in plan.recommendations if item.id in chosen for name in item.workloads}
    return tuple(Counter(name.split("/", 1)[0] for name in workloads).most_common())


def refusal_groups(refused: Iterable[Refusal]) -> tuple[RefusalGroup, ...]:
    """Refusals by reason and kind of advice, largest group first."""
    groups: dict[tuple[str, str], list[Refusal]] = {}
    for refusal in refused:
        kind = "all advice" if refusal.kind is None else refusal.kind.value.replace("_", " ")
        groups.setdefault((refusal.reason, kind), []).append(refusal)
    return tuple(
        RefusalGroup(
            reason=reason.replace("_", " "),
            kind=kind,
            workloads=tuple(item.workload for item in items),
            detail=items[0].detail,
        )
        for (reason, kind), items in sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))
    )


def search(profiles: Profiles, text: str) -> tuple[SearchResult, ...]:
    """Cards, nodes, teams and workloads whose name contains the text, the nearest first, a few of each kind."""
    wanted = text.strip().lower()
    if not wanted:
        return ()
    candidates = (
        *(("workload", name.workload, "/workloads", (("w", name.workload),)) for name in profiles.workloads),
        *(("node", node, "/", (("node", node),)) for node in sorted({card.node for card in profiles.cards})),
        *(
            ("team", team, "/workloads", (("team", team),))
            for team in sorted({w.namespace for w in profiles.workloads})
        ),
        *(("card", card.card, "/", (("card", card.card),)) for card in profiles.cards),
    )
    hits = sorted((_rank(name.lower(), wanted), place) for place, (_, name, _, _) in enumerate(candidates))
    found: list[SearchResult] = []
    for rank, place in hits:
        kind, name, path, query = candidates[place]
        # A team's own name must not drown in those of its workloads.
        if rank < _NO_HIT and sum(hit.kind == kind for hit in found) < _RESULTS_PER_KIND:
            found.append(SearchResult(kind=kind, text=name, path=path, query=query))
    return tuple(found)


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Rows as CSV (RFC 4180); a text cell that a spreadsheet would run as a formula is quoted with an apostrophe.

    Source: owasp.org, CSV injection.
    """
    stream = io.StringIO()
    writer = csv.writer(stream)
    writer.writerow(columns)
    for row in rows:
        writer.writerow([csv_cell(row.get(column)) for column in columns])
    return stream.getvalue()


def csv_cell(value: object) -> object:
    """A value as a CSV cell; names come from tenants and may be formulas."""
    if value is None:
        return ""
    if isinstance(value, str) and _FORMULA_START.search(value):
        return "'" + value
    return value


def workload_state_words(state: WorkloadState) -> str:
    """A workload state as people read it."""
    return {"idle_held": "idle, held", "partly_idle": "partly idle", "off_peak": "off-peak"}.get(
        state.value, state.value
    )


def state_sentence(profile: Profile, now: datetime) -> str:
    """The state of a workload in words, with confidence: `idle since 12 days; the state held in 97 % of such cases`."""
    words = workload_state_words(profile.state)
    if profile.idle_since is not None and profile.state in (WorkloadState.IDLE, WorkloadState.IDLE_HELD):
        words += f" since {age_words((now - profile.idle_since).total_seconds())}"
    if profile.state is WorkloadState.PARTLY_IDLE:
        words += f": {len(profile.idle_pods)} of {len(profile.pods)} pods idle"
    if profile.state is WorkloadState.OFF_PEAK:
        words += f" in {len(profile.off_peak_hours)} hours of the week"
    return f"{words}; would change within a week with {format_percent(1 - profile.confidence)}"


def saving_words(saving: Saving, currency: str) -> str:
    """`¥ 214k marginal, ¥ 390k amortised`; says so where nothing has a price."""
    parts = [
        f"{format_money_short(Money(amount=amount, currency=currency))} {name}"
        for amount, name in ((saving.marginal, "marginal"), (saving.amortised, "amortised"))
        if amount is not None
    ]
    return ", ".join(parts) or "no price set"


def money_words(amount: Decimal | None, currency: str) -> str:
    """An amount for the eye; an en dash where there is none."""
    return "–" if amount is None else format_money_short(Money(amount=amount, currency=currency))


def percent_words(ratio: float | None, digits: int = 2) -> str:
    """A ratio as a percentage; an en dash where nothing was collected."""
    return "–" if ratio is None else format_percent(ratio, digits=digits)


def age_words(seconds: float) -> str:
    """A duration for the eye: `12 days`, `3 h`, `4 min`, `30 s`."""
    for length, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * length or (seconds >= length and unit != "days"):
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def moment_words(moment: datetime) -> str:
    """A moment for the eye, in UTC and said so: `2026-01-12 08:30 UTC`."""
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def _rank(name: str, wanted: str) -> int:
    """0 the name itself, 1 its beginning, 2 the beginning of a part of it, 3 anywhere in it, `_NO_HIT` not at all."""
    if wanted not in name:
        return _NO_HIT
    if name == wanted:
        return 0
    if name.startswith(wanted):
        return 1
    return 2 if any(part.startswith(wanted) for part in name.split("/")) else 3


def _card_row(card: CardProfile, prices: Prices) -> Row:
    used = card.framebuffer_used_max
    price = prices.per_card_week(card.card_model)
    return {
        "card": card.card,
        "node": card.node,
        "model": card.card_model,
        "state": card.state.value,
        "state_word": STATE_WORDS[card.state],
        "letter": STATE_LETTERS[card.state],
        "compute_p95": card.compute_p95,
        "held_gib": _gib(used),
        "framebuffer_gib": card.framebuffer_bytes / GIB,
        "idle_since": _day(card.idle_since),
        "owner": ", ".join(sorted({name.split("/", 1)[0] for name in card.workloads})) or None,
        "workload": ", ".join(card.workloads) or None,
        "coverage_ratio": card.coverage_ratio,
        "price_per_week": None if price is None else float(price),
    }


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
        "reason": item.reason,
    }


def _gib(size_bytes: int | None) -> float | None:
    return None if size_bytes is None else size_bytes / GIB


def _day(moment: datetime | None) -> str | None:
    return None if moment is None else f"{moment:%Y-%m-%d %H:%M}"
