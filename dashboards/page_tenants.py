"""Tenants: who holds how much, what of it is used, and what the idle rest costs; the most wasteful team first."""

from __future__ import annotations

from typing import Any

from dash import Dash, dcc, html

from dashboards.address import Address
from dashboards.page_frame import card, figure_number, missing, table
from dashboards.queries import Views
from dashboards.rows import money_words
from dashboards.tenants import Tenant, tenants
from fleet.profiles import Profiles
from fleet.units import format_count, format_percent

KEYS = ("cluster",)
"""Values of the address that build the page anew."""

TEAMS_MAX = 500


def layout(views: Views, address: Address, profiles: Profiles) -> Any:
    """The page for one cluster."""
    found = tenants(profiles, views.prices)
    if not found:
        return missing("No teams", f"Nobody holds a card in {profiles.cluster}.", "gputide analyze")
    currency = views.prices.currency
    return html.Div(
        [
            _headline(found, currency),
            card(
                "Teams", _table(found, address, currency),
                note="bar: of the granted cards, typically in use · idle · the rest; shared cards count in parts",
            ),
        ],
        className="page tenants",
    )  # fmt: skip


def register(app: Dash, views: Views) -> None:
    """The page has no callbacks of its own: its links carry all of its state."""
    del app, views


def _headline(found: tuple[Tenant, ...], currency: str) -> Any:
    cards = sum(team.cards for team in found)
    idle = sum(team.cards_idle for team in found)
    first = found[0]
    priced = [team.idle_per_week for team in found if team.idle_per_week is not None]
    return html.Div(
        [
            figure_number(format_count(len(found)), "teams"),
            figure_number(_cards(cards), "cards granted"),
            figure_number(format_percent(idle / cards if cards else 0.0), "of them idle", note=f"{_cards(idle)} cards"),
            figure_number(money_words(sum(priced, start=priced[0] * 0) if priced else None, currency), "a week idle"),
            figure_number(
                first.name,
                "holds most of that" if first.idle_per_week is not None else "holds most idle cards",
                note=f"{_cards(first.cards_idle)} cards, {money_words(first.idle_per_week, currency)} a week",
            )
            if first.cards_idle
            else None,
        ],
        className="headline",
    )


def _table(found: tuple[Tenant, ...], address: Address, currency: str) -> Any:
    most = max(team.cards for team in found)
    rows = [
        (
            dcc.Link(team.name, href=address.href("/workloads", team=team.name)),
            format_count(team.workloads),
            _cards(team.cards),
            _bar(team, most),
            "–" if team.cards_used is None else _cards(team.cards_used),
            _cards(team.cards_idle),
            format_percent(team.idle_ratio),
            money_words(team.cost_per_week, currency),
            money_words(team.idle_per_week, currency),
            f"▲ {team.distrusted}" if team.distrusted else "",
        )
        for team in found[:TEAMS_MAX]
    ]
    columns = (
        ("team", "t"), ("workloads", "n"), ("cards", "n"), ("granted, used, idle", "t"), ("in use", "n"), ("idle", "n"),
        ("idle share", "n"), ("a week", "n"), ("idle a week", "n"), ("untrusted", "n"),
    )  # fmt: skip
    rest = len(found) - TEAMS_MAX
    return html.Div(
        [table(columns, rows), html.P(f"and {format_count(rest)} more", className="soft") if rest > 0 else None],
        className="scroll teams",
    )


def _bar(team: Tenant, most: float) -> Any:
    """A bar as long as the team's cards, filled by what is in use and what is idle."""
    used = 0.0 if team.cards_used is None else team.cards_used
    words = f"{_cards(team.cards)} granted, {_cards(used)} in use, {_cards(team.cards_idle)} idle"
    segments = [
        html.Span(className=f"part {name}", style={"width": f"{100 * value / team.cards:.1f}%"})
        for name, value in (("used", used), ("idle", min(team.cards_idle, team.cards - used)))
        if team.cards and value > 0
    ]
    width = f"{max(2.0, 100 * team.cards / most):.1f}%"
    spoken: Any = {"aria-label": words}
    return html.Span(segments, className="bullet-bar", style={"width": width}, title=words, role="img", **spoken)


def _cards(value: float) -> str:
    """Whole where it is, else one digit."""
    return format_count(round(value)) if abs(value - round(value)) < 0.05 else f"{value:,.1f}"
