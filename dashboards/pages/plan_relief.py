"""Two parts of the plan page: the pods that relief moved or put to sleep, and the services that the tide scales in."""

from __future__ import annotations

from typing import Any

from dash import dcc, html

from dashboards.address import Address
from dashboards.pages.frame import card, div, scrolled, table
from dashboards.view_models.relief_acts import ReliefActs, ReliefMove, ReliefSleep
from dashboards.view_models.rows import age_words, moment_words
from dashboards.words.reading import reader_words, say, say_code
from fleet.decisions import Plan, RecommendationKind

MOVES_MAX = 50
_ABSENT = "–"


def relief(found: ReliefActs, address: Address) -> Any:
    """Sleepers and the newest moves; None where relief did nothing."""
    if not found.sleeps and not found.moves:
        return None
    columns = (
        ("UTC", "t"), (say("term.workload"), "t"), (say("plan.way_move"), "t"), (say("tenants.state"), "t"),
        (say("plan.took"), "n"), (say("plan.why"), "t"),
    )  # fmt: skip
    title, moves = say("plan.relief"), None
    if found.moves:
        rows = table(columns, [_row(move, address) for move in found.moves[:MOVES_MAX]])
        moves = scrolled(rows, _more(len(found.moves) - MOVES_MAX, "gputide run relief show"), name=title)
    sleeps = html.Ul([html.Li(_sleep(one, address)) for one in found.sleeps], className="holders")
    return card(title, sleeps, moves, note=say("plan.pods_were_moved_off_overloaded_cards"), export="relief")


def _more(count: int, command: str) -> Any:
    """That there is more than is shown, and the command that shows it."""
    return html.P(say("plan.count_more_command", count=count, command=command), className="soft") if count > 0 else None


def _sleep(one: ReliefSleep, address: Address) -> list[Any]:
    words = say("plan.count_containers_low_priority_sleep", count=one.containers)
    return [
        dcc.Link(f"{one.node} · {one.card}", href=address.href("/", card=one.card)),
        html.Small([words, " · ", say("health.since_moment", moment=moment_words(one.since))]),
    ]


def _row(move: ReliefMove, address: Address) -> tuple[Any, ...]:
    why = move.why or move.reason
    way = say("plan.restart_move" if move.is_restart else "plan.second_replica_first")
    if move.is_home:
        way = say("plan.moved_home")
    return (
        moment_words(move.begun_at).removesuffix(" UTC"),
        html.Span([dcc.Link(move.workload, href=address.href("/workloads", w=move.workload)), html.Small(move.pod)]),
        html.Span([way, html.Small(f"{move.from_card[:18]} → {move.to_card[:18]}")]),
        say_code("move", move.state),
        _ABSENT if move.seconds is None else age_words(move.seconds),
        _ABSENT if why is None else reader_words().said(why),
    )


ROWS_MAX = 40
"""Workloads shown on the page; the command line shows all."""


def tide(plan: Plan) -> Any:
    """The window, what is freed in it, and one line per workload; None where no service scales in."""
    if not plan.schedule:
        return None
    window = plan.schedule[0]
    cards = {card for item in plan.schedule for card in item.frees}
    hours = sum(
        item.low_priority_gpu_hours_per_week for item in plan.recommendations if item.kind is RecommendationKind.TIDE
    )
    text = say(
        "plan.start_end_zone_cards_cards_workloads", start=window.start, end=window.end, zone=window.time_zone,
        cards=len(cards), workloads=len(plan.schedule), hours=round(hours),
    )  # fmt: skip
    columns = ((say("term.workload"), "t"), (say("plan.replicas_then"), "n"), (say("plan.cards_free"), "n"))
    rows = [(item.workload, item.replicas, len(item.frees)) for item in plan.schedule[:ROWS_MAX]]
    return div("tide", html.P(text), table(columns, rows), _more(len(plan.schedule) - ROWS_MAX, "gputide plan show"))
