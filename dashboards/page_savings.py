"""Savings: did it come true?

Funnel in whole cards and money, weeks, promise against outcome, harm per service, and the ledger, in which undos and
give-backs stand as plainly as gains.
"""

from __future__ import annotations

from typing import Any

from dash import Dash, dcc, html

from dashboards.address import Address
from dashboards.figures import promise_figure, weekly_bars_figure
from dashboards.page_frame import card, figure_number, graph, missing, table
from dashboards.queries import LedgerEntry, Views
from dashboards.realised import FunnelStep, HarmBudget, funnel, harm_budgets, realised_weeks
from dashboards.rows import moment_words, money_words, percent_words
from fleet.outcomes import Outcome
from fleet.profiles import Profiles
from fleet.units import format_count

KEYS = ("cluster", "range", "step")
"""Values of the address that build the page anew."""

WEEKS = {"24h": 4, "7d": 8, "all": 26}
"""Weeks shown by time range; a saving of less than a week is no saving yet."""
LEDGER_MAX = 200
HARM_MAX = 40


def layout(views: Views, address: Address, profiles: Profiles) -> Any:
    """The page for one cluster."""
    entries = views.plans.plans(profiles.cluster)
    if not entries:
        return missing(
            "No plan yet", "Savings start with a plan, and are counted once it is applied.", "gputide recommend"
        )
    outcomes = views.outcomes.outcomes(profiles.cluster)
    steps = funnel(entries, outcomes)
    currency = views.prices.currency
    ledger = views.outcomes.ledger(profiles.cluster)
    weeks = realised_weeks(outcomes, now=profiles.as_of, weeks=WEEKS[address.time_range])
    return html.Div(
        [
            _headline(steps, outcomes, ledger, currency),
            html.Div(
                [
                    card("From found to realised", _funnel(address, steps, currency),
                         note="whole freed cards", class_name="grow"),
                    card("Realised per week", *_weeks(outcomes, weeks, currency), note="measured spans only"),
                    card("Promised and realised", *_promise(outcomes), note="one dot per plan; ring: interim"),
                ],
                className="thirds",
            ),
            html.Div(
                [
                    card("Harm per service", _harm(harm_budgets(entries, outcomes)),
                         note="share of active time, against the plan's limit"),
                    card("Ledger", _ledger(ledger), note=f"newest first; {format_count(len(ledger))} entries"),
                ],
                className="halves",
            ),
        ],
        className="page savings",
    )  # fmt: skip


def register(app: Dash, views: Views) -> None:
    """The page has no callbacks of its own: its links carry all of its state."""
    del app, views


def _headline(
    steps: tuple[FunnelStep, ...], outcomes: tuple[Outcome, ...], ledger: tuple[LedgerEntry, ...], currency: str
) -> Any:
    realised = steps[-1]
    undone = [entry for entry in ledger if entry.action in ("undone", "restored")]
    newest = outcomes[0] if outcomes else None
    return html.Div(
        [
            figure_number(
                format_count(realised.cards), "cards realised", note=f"of {format_count(steps[0].cards)} found"
            ),
            figure_number(money_words(realised.amortised_per_week, currency), "a week, amortised"),
            figure_number(
                "–" if newest is None else percent_words(newest.realised_violation_ratio),
                "harm of the newest plan",
                note="not verified yet"
                if newest is None
                else f"foretold {percent_words(newest.promised_violation_ratio)}",
            ),
            figure_number(format_count(sum(o.given_back for o in outcomes)), "cards given back"),
            figure_number(format_count(len(undone)), "undone or restored"),
        ],
        className="headline",
    )


def _funnel(address: Address, steps: tuple[FunnelStep, ...], currency: str) -> Any:
    most = max(1, *(step.cards for step in steps))
    chosen = address.get("step")
    rows: list[Any] = []
    for step in steps:
        rows.append(
            dcc.Link(
                [
                    html.Span(step.name, className="name"),
                    html.Span(
                        html.Span(className="bar", style={"width": f"{100 * step.cards / most:.1f}%"}),
                        className="track",
                    ),
                    html.B(format_count(step.cards)),
                    html.Span(money_words(step.amortised_per_week, currency), className="money"),
                ],
                href=address.href(step=None if chosen == step.name else step.name),
                className=f"step {step.name}",
            )
        )
        if chosen == step.name:
            rows.append(
                html.Ul(
                    [html.Li(dcc.Link(plan_id, href=address.href("/plan", plan=plan_id))) for plan_id in step.plans]
                    or [html.Li("no plan got here yet")],
                    className="holders",
                )
            )
    return html.Div(rows, className="funnel", id="funnel")


def _weeks(outcomes: tuple[Outcome, ...], weeks: Any, currency: str) -> list[Any]:
    if not outcomes:
        return [html.P(["Nothing was verified yet: ", html.Code("gputide verify")], className="soft")]
    return [graph(weekly_bars_figure(weeks, currency), id="weeks")]


def _promise(outcomes: tuple[Outcome, ...]) -> list[Any]:
    if not outcomes:
        return [html.P("A dot appears for each plan that was applied and verified.", className="soft")]
    return [graph(promise_figure(outcomes), id="promise"), html.P(outcomes[0].verdict, className="verdict")]


def _harm(budgets: tuple[HarmBudget, ...]) -> Any:
    if not budgets:
        return html.P("No service was changed and measured yet.", className="soft")
    rows = [
        (
            _service(budget.workload),
            percent_words(budget.predicted_ratio),
            percent_words(budget.violation_ratio),
            percent_words(budget.budget_ratio, 1),
            _bullet(budget),
            budget.cause or "–",
        )
        for budget in budgets[:HARM_MAX]
    ]
    columns = (
        ("service", "t"),
        ("foretold", "n"),
        ("came", "n"),
        ("limit", "n"),
        ("budget spent", "t"),
        ("cause", "t"),
    )
    return html.Div(table(columns, rows), className="scroll harm")


def _service(workload: str) -> Any:
    """Name first: of `namespace/Kind/name` it is what people look for."""
    namespace, kind, name = workload.split("/", 2)
    return html.Span([html.Span(name), html.Small(f"{namespace} · {kind}")])


def _bullet(budget: HarmBudget) -> Any:
    burn = budget.burn_ratio
    if burn is None:
        return "not collected"
    return html.Span(
        [
            html.Span(
                html.Span(
                    className="bar over" if burn > 1 else "bar", style={"width": f"{min(100.0, 100 * burn):.0f}%"}
                ),
                className="track",
            ),
            f"{'▲ ' if burn > 1 else ''}{burn:.0%}",
        ],
        className="bullet",
    )


def _ledger(entries: tuple[LedgerEntry, ...]) -> Any:
    if not entries:
        return html.P("Nothing was done yet.", className="soft")
    rows = [
        (
            moment_words(entry.at).removesuffix(" UTC"),
            html.Span(
                f"{_sign(entry)} {entry.action.replace('_', ' ')}", className=f"action {entry.action.replace('_', '-')}"
            ),
            f"{entry.cards:+d}" if entry.cards else "",
            html.Span([html.Span(entry.subject), html.Small(f"{entry.detail} · {entry.actor} · {entry.plan_id[:6]}")]),
        )
        for entry in entries[:LEDGER_MAX]
    ]
    return html.Div(table((("UTC", "t"), ("", "t"), ("cards", "n"), ("what", "t")), rows), className="scroll ledger")


def _sign(entry: LedgerEntry) -> str:
    if entry.action in ("undone", "restored", "given_back"):
        return "↩"
    return "✕" if entry.action == "refused" else "✓"
