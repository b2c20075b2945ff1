"""The stages of a plan with their evidence, and what it refused; a part of the plan page."""

from __future__ import annotations

from typing import Any

from dash import dcc, html

from dashboards.address import Address
from dashboards.pages.frame import card, div, span, spoken, table
from dashboards.view_models.made_once import MADE
from dashboards.view_models.rows import (
    percent_words,
    recommendation_rows,
    refusal_groups,
    saving_words,
    stage_needs,
    stage_owners,
    stage_risk,
)
from dashboards.words.advice import reason_words, refusal_words
from dashboards.words.reading import READING, reader_words, say, say_code
from fleet.confidence import CONFIDENT_MIN, stage_confidence
from fleet.decisions import Plan, Stage
from fleet.units import format_count

ROWS_MAX = 60
"""Recommendations of a stage, and workloads of a refusal, shown on the page; the command line shows all."""
_CLOSED: Any = {"aria-expanded": "false"}


def stage_row(plan: Plan, stage: Stage, chosen: tuple[int, ...], address: Address, *, is_tide: bool) -> Any:
    """One stage: whether it is chosen, what it frees, risks and needs, and behind it its evidence and who is asked."""
    needs = stage_needs(plan, stage)
    owners = stage_owners(plan, stage)
    words = reader_words()
    risk, confidence = stage_risk(plan, stage), stage_confidence(plan, stage)
    sure = "confidence soft" if confidence >= CONFIDENT_MIN else "confidence low"
    needed = say("plan.needs_nothing_new")
    if needs:
        needed = say("plan.needs_needs", needs=say("mark.list").join(say_code("need", need) for need in needs))
    if is_tide:
        needed = say("plan.left_to_tide")
    is_open = address.get("open") == str(stage.stage)
    # A switch of a node stands on no advice: nothing of it is predicted.
    is_switch = plan.is_of_node
    foreseen = [] if is_switch else [
        span("n", html.B(format_count(stage.cards_freed)), " ", say("health.cards_counted")),
        span("n", html.B(format_count(stage.moves)), " ", say("plan.moves")),
        span(
            "sureness",
            span(f"risk {risk}", say("plan.risk_level", level=say_code("level", risk))),
            span(sure, say("plan.confidence_ratio", ratio=percent_words(confidence, 0))),
        ),
        span("soft needs", needed),
    ]  # fmt: skip
    return div(
        "stage",
        div(
            "stage-line switch" if is_switch else "stage-line",
            dcc.Checklist(
                id={"type": "stage", "stage": stage.stage},
                options=[{"label": say("plan.stage_number", number=stage.stage), "value": stage.stage}],
                value=[stage.stage] if stage.stage in chosen else [],
                className="tick",
            ),
            html.Span(words.stage(stage.title), className="title"),
            *foreseen,
            html.Span(id={"type": "stage-status", "stage": stage.stage}, className="status"),
            html.Button(say("plan.diff"), id={"type": "show-diff", "stage": stage.stage}, className="quiet", **_CLOSED),
        ),
        html.Div(id={"type": "diff", "stage": stage.stage}),
        None
        if is_switch
        else html.Details(
            [
                html.Summary(say("plan.evidence_count_recommendations", count=len(stage.recommendations))),
                html.Div(
                    evidence(plan, stage) if is_open else None,
                    id={"type": "evidence-rows", "stage": stage.stage},
                    className="evidence-rows",
                    tabIndex="0",
                    role="region",
                    **spoken(words.stage(stage.title)),
                ),
            ],
            id={"type": "evidence", "stage": stage.stage},
            open=is_open,
        ),
        None
        if is_switch
        else _behind(
            html.Summary(say("plan.who_asked_count_teams", count=len(owners))),
            ", ".join(f"{team} ({count})" for team, count in owners),
        ),
    )


def evidence(plan: Plan, stage: Stage | None) -> Any:
    """Why, recommendation by recommendation, of a stage or, without one, of what is done by hand.

    That of a stage is made when somebody opens it, for it is most of what a page could hold.
    """
    words = reader_words()
    reason_of = {item.id: reason_words(item, READING.get()) for item in plan.recommendations}
    columns = ((say("plan.id"), "t"), (say("plan.kind"), "t"), (say("term.workload"), "t"), (say("plan.pods"), "n"),
               (say("health.cards"), "n"), (say("plan.per_week"), "n"), (say("plan.confidence"), "n"),
               (say("plan.why"), "t"))  # fmt: skip
    lines = [
        (row["id"], words.code("kind", row["kind"]), row["workload"], row["pods"], row["cards_freed"],
         row["saving"], percent_words(row["confidence"], 0), reason_of[row["id"]])
        for row in recommendation_rows(plan, stage, rows_max=ROWS_MAX)
    ]  # fmt: skip
    # No total counts what is done by hand, so it frees and saves nothing here.
    shown = range(len(columns)) if stage is not None else (0, 2, 6, 7)
    rows = table(
        [columns[place] for place in shown], [[line[place] for place in shown] for line in lines], class_name="evidence"
    )
    more = len(plan.by_hand if stage is None else stage.recommendations) - ROWS_MAX
    rest = say("plan.count_more_command", count=more, command="gputide plan show")
    return [rows, html.P(rest, className="soft") if more > 0 else None]


def refused(plan: Plan) -> Any:
    """Who is left alone and which advice is withheld, by reason."""
    groups = MADE.of((plan,), "refusal groups", lambda: refusal_groups(plan.refused))
    words, saving = reader_words(), saving_words(plan.totals.saving_per_week, plan.currency)
    lines: list[Any] = []
    for group in groups:
        kind = html.Small(words.code("kind", group.kind))
        head: list[Any] = [html.B(format_count(len(group.workloads))), f" {words.code('reason', group.reason)} ", kind]
        first = html.P([f"{group.workloads[0]}: ", refusal_words(group, READING.get())])
        others = html.P(", ".join(group.workloads[1:ROWS_MAX]), className="soft")
        lines.append(html.Details([html.Summary(head), first, others]))
    lines += [
        _behind(
            html.Summary([html.B(say("plan.withheld")), f" {words.code('kind', item.kind.value)}"]),
            refusal_words(item, words.language),
        )
        for item in plan.withheld
    ]
    return card(
        say("plan.refused_count", count=len(plan.refused)),
        html.Div(lines or [html.P(say("plan.nobody_was_refused"), className="soft")], className="refused"),
        note=say("plan.saving_if_all_came_true_saving", saving=saving),
    )


def _behind(summary: Any, text: str) -> Any:
    return html.Details([summary, html.P(text)])
