"""What relief did: who sleeps, who was moved, why, for how long, and who is home again; a part of the plan page.

The tide of a plan: who steps back in which hours, and what falls free; a part of the plan page.
"""

from __future__ import annotations

from typing import Any

from dash import dcc, html

from dashboards.address import Address
from dashboards.pages.frame import card, english, scrolled, table
from dashboards.shown.relief_acts import ReliefActs, ReliefMove, ReliefSleep
from dashboards.shown.rows import age_words, moment_words
from dashboards.words.pages import counted, say
from fleet.decisions import Plan, RecommendationKind
from fleet.units import format_count

MOVES_MAX = 50
_ABSENT = "–"


def relief(found: ReliefActs, address: Address) -> Any:
    """Sleepers and the newest moves; None where relief did nothing."""
    if not found.sleeps and not found.moves:
        return None
    columns = (
        ("UTC", "t"), (say("workload"), "t"), (say("way of the move"), "t"), (say("state"), "t"), (say("took"), "n"),
        (say("why"), "t"),
    )  # fmt: skip
    rest = len(found.moves) - MOVES_MAX
    return card(
        say("Relief"),
        html.Ul([html.Li(_sleep(one, address)) for one in found.sleeps], className="holders"),
        scrolled(
            table(columns, [_row(move, address) for move in found.moves[:MOVES_MAX]]),
            html.P(
                say("… and {count} more: `{command}`", count=format_count(rest), command="gputide run relief show"),
                className="soft",
            )
            if rest > 0
            else None,
            name=say("Relief"),
        )
        if found.moves
        else None,
        note=say("pods that were moved off overloaded cards, newest first"),
        export="relief",
    )


def _sleep(one: ReliefSleep, address: Address) -> list[Any]:
    words = counted(
        one.containers, "{count} container of low priority sleeps", "{count} containers of low priority sleep"
    )
    return [
        dcc.Link(f"{one.node} · {one.card}", href=address.href("/", card=one.card)),
        html.Small([words, " · ", say("since {moment}", moment=moment_words(one.since))]),
    ]


def _row(move: ReliefMove, address: Address) -> tuple[Any, ...]:
    way = say("home") if move.is_home else say("restart|move") if move.is_restart else say("second replica first")
    return (
        moment_words(move.begun_at).removesuffix(" UTC"),
        html.Span([dcc.Link(move.workload, href=address.href("/workloads", w=move.workload)), html.Small(move.pod)]),
        html.Span([way, html.Small(f"{move.from_card[:18]} → {move.to_card[:18]}")]),
        say(move.state.value),
        _ABSENT if move.seconds is None else age_words(move.seconds),
        english(move.why or move.reason) or _ABSENT,
    )


ROWS_MAX = 40
"""Workloads shown on the page; the command line shows all."""


def tide(plan: Plan) -> Any:
    """The window, what falls free in it, and one line per workload; None where nobody steps back."""
    if not plan.schedule:
        return None
    window = plan.schedule[0]
    cards = {card for item in plan.schedule for card in item.frees}
    hours = sum(
        item.low_priority_gpu_hours_per_week for item in plan.recommendations if item.kind is RecommendationKind.TIDE
    )
    more = len(plan.schedule) - ROWS_MAX
    return html.Div(
        [
            html.P(
                say(
                    "{start} – {end} ({zone}): {cards} cards of {workloads} workloads fall free, "
                    "{hours} GPU-h a week for other work.",
                    start=window.start,
                    end=window.end,
                    zone=window.time_zone,
                    cards=format_count(len(cards)),
                    workloads=format_count(len(plan.schedule)),
                    hours=format_count(round(hours)),
                )
            ),
            table(
                ((say("workload"), "t"), (say("replicas then"), "n"), (say("cards free"), "n")),
                [(item.workload, item.replicas, len(item.frees)) for item in plan.schedule[:ROWS_MAX]],
            ),
            html.P(
                say("… and {count} more: `{command}`", count=format_count(more), command="gputide plan show"),
                className="soft",
            )
            if more > 0
            else None,
        ],
        className="tide",
    )
