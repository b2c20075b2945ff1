"""Tenants: who holds how much, what of it is used, and what the idle rest costs; the most wasteful team first."""

from __future__ import annotations

from typing import Any

from dash import Dash, dcc, html

from dashboards.address import Address
from dashboards.long_list import FROM_KEY, part_of
from dashboards.pages.frame import card, figure_number, heading, missing, scrolled, table
from dashboards.pages.tenants_quota import budgets_of, quotas
from dashboards.queries import Views
from dashboards.shown.made_once import MADE
from dashboards.shown.rows import money_words
from dashboards.shown.tenants import Tenant, tenants
from dashboards.words.pages import percent_sign, say
from fleet.profiles import Profiles
from fleet.units import format_count, format_percent

KEYS = ("cluster", FROM_KEY)
"""Values of the address that build the page anew."""


def layout(views: Views, address: Address, profiles: Profiles) -> Any:
    """The page for one cluster."""
    prices = views.prices
    found = MADE.of((profiles, prices), "tenants", lambda: tenants(profiles, prices))
    if not found:
        return missing(
            say("No teams"), say("Nobody holds a card in {place}.", place=profiles.cluster), "gputide analyze"
        )
    currency = views.prices.currency
    return html.Div(
        [
            heading(say("Tenants")),
            _headline(found, currency),
            card(
                say("Teams"), _table(found, address, currency),
                note=say("bar: of the granted cards, typically in use · idle · the rest; shared cards count in parts"),
                export="teams",
            ),
            quotas(views.money.quotas(profiles.cluster), found, address),
            budgets_of(views, profiles.cluster),
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
            figure_number(format_count(len(found)), say("teams")),
            figure_number(_cards(cards), say("cards granted")),
            figure_number(
                percent_sign(format_percent(idle / cards if cards else 0.0)),
                say("of them idle"),
                note=say("{count} cards", count=_cards(idle)),
            ),
            figure_number(
                money_words(sum(priced, start=priced[0] * 0) if priced else None, currency), say("a week idle")
            ),
            figure_number(
                first.name,
                say("holds most of that") if first.idle_per_week is not None else say("holds most idle cards"),
                note=say(
                    "{count} cards, {money} a week",
                    count=_cards(first.cards_idle),
                    money=money_words(first.idle_per_week, currency),
                ),
            )
            if first.cards_idle
            else None,
        ],
        className="headline",
    )


def _table(found: tuple[Tenant, ...], address: Address, currency: str) -> Any:
    most = max(team.cards for team in found)
    shown, around = part_of(found, address)
    rows = [
        (
            dcc.Link(team.name, href=address.href("/workloads", team=team.name)),
            format_count(team.workloads),
            _cards(team.cards),
            _bar(team, most),
            "–" if team.cards_used is None else _cards(team.cards_used),
            _cards(team.cards_idle),
            percent_sign(format_percent(team.idle_ratio)),
            money_words(team.cost_per_week, currency),
            money_words(team.idle_per_week, currency),
            f"▲ {team.distrusted}" if team.distrusted else "",
        )
        for team in shown
    ]
    columns = (
        (say("team"), "t"), (say("workloads"), "n"), (say("cards"), "n"), (say("granted, used, idle"), "t"),
        (say("in use"), "n"), (say("idle"), "n"), (say("idle share"), "n"), (say("a week"), "n"),
        (say("idle a week"), "n"), (say("untrusted"), "n"),
    )  # fmt: skip
    return scrolled(
        table(columns, rows),
        around,
        name=say("Teams"),
        class_name="teams",
    )


def _bar(team: Tenant, most: float) -> Any:
    """A bar as long as the team's cards, filled by what is in use and what is idle."""
    used = 0.0 if team.cards_used is None else team.cards_used
    words = say(
        "{granted} granted, {used} in use, {idle} idle",
        granted=_cards(team.cards), used=_cards(used), idle=_cards(team.cards_idle),
    )  # fmt: skip
    segments = [
        html.Span(className=f"part {name}", style={"width": f"{100 * value / team.cards:.2f}%"})
        for name, value in (("used", used), ("idle", min(team.cards_idle, team.cards - used)))
        if team.cards and value > 0
    ]
    width = f"{100 * team.cards / most:.2f}%"
    spoken: Any = {"aria-label": words}
    return html.Span(segments, className="bullet-bar", style={"width": width}, title=words, role="img", **spoken)


def _cards(value: float) -> str:
    """Whole where it is, else one digit."""
    return format_count(round(value)) if abs(value - round(value)) < 0.05 else f"{value:,.1f}"
