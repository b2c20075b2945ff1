"""The tide of a plan: who steps back in which hours, and what falls free; a part of the plan page."""

from __future__ import annotations

from typing import Any

from dash import html

from dashboards.pages.frame import table
from dashboards.words.pages import say
from fleet.decisions import Plan, RecommendationKind
from fleet.units import format_count

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
