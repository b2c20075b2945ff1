"""Savings: did it come true?

Funnel in whole cards and money, weeks, promise against outcome, harm per service, and the ledger, in which undos and
give-backs stand as plainly as gains.
"""

from __future__ import annotations

import re
from typing import Any

from dash import dcc, html

from dashboards.address import Address
from dashboards.figures.figures import promise_figure, weekly_bars_figure
from dashboards.pages.frame import (
    card,
    div,
    figure_number,
    graph,
    missing,
    page,
    scrolled,
    shown,
    span,
    table,
    verdict_banner,
)
from dashboards.pages.plan_rollout import stage_words
from dashboards.queries import LedgerEntry, Views
from dashboards.view_models.rows import moment_words, money_words, percent_words
from dashboards.words.reading import reader_words, say, say_code
from enforcer.record.harm import HarmBudget, harm_budgets, leading_verdict
from enforcer.record.savings import SavingsStep, realised_weeks, savings_steps
from enforcer.record.verdict import Level, Standing, Verdict
from fleet.outcomes import Outcome
from fleet.profiles import Profiles
from fleet.units import format_count, format_plan_id

KEYS = ("cluster", "range", "step")
"""Values of the address that build the page anew."""

WEEKS = {"24h": 4, "7d": 8, "all": 26}
"""Weeks shown by time range; a saving of less than a week is no saving yet."""
LEDGER_MAX = 200
_STAGES = re.compile(r"stages? (\d{1,6}(?:, \d{1,6})*)", re.ASCII)
HARM_MAX = 40
_UNJUDGED = {
    Standing.UNDECIDED: "standing.undecided",
    Standing.UNMEASURED: "standing.unmeasured",
    Standing.RESTORED: "standing.restored",
}


def layout(views: Views, address: Address, profiles: Profiles) -> Any:
    """The page for one cluster."""
    entries = views.plans.plans(profiles.cluster)
    if not entries:
        why = say("savings.savings_start_with_plan_counted_once")
        return missing(say("plan.no_plan_yet"), why, "gputide plan make")
    outcomes = views.outcomes.outcomes(profiles.cluster)
    steps, verdict = savings_steps(entries, outcomes), leading_verdict(entries, outcomes)
    currency = views.money.currency
    ledger = views.outcomes.ledger(profiles.cluster)
    weeks = realised_weeks(outcomes, now=profiles.as_of, weeks=WEEKS.get(address.time_range, WEEKS["7d"]))
    return page(
        "savings",
        say("page.savings"),
        verdict_banner(verdict, address),
        _headline(steps, verdict, outcomes, ledger, currency),
        div(
            "thirds",
            card(say("savings.from_found_realised"), _funnel(address, steps, currency),
                 note=say("savings.whole_freed_cards"), class_name="grow", export="funnel"),
            card(say("savings.realised_per_week"), *_weeks(outcomes, weeks, currency),
                 note=say("savings.measured_spans_only"), export="weeks", has_figure=True),
            card(say("savings.promised_realised"), *_promise(outcomes),
                 note=say("savings.one_dot_per_plan_ring_interim"), export="outcomes", has_figure=True),
        ),
        div(
            "halves",
            card(say("savings.harm_per_service"), _harm(harm_budgets(entries, outcomes)),
                 note=say("savings.share_active_time_against_services_harm"), export="harm"),
            card(say("savings.ledger"), _ledger(ledger), export="ledger",
                 note=say("savings.newest_first_count_entries", count=len(ledger))),
        ),
    )  # fmt: skip


def _headline(
    steps: tuple[SavingsStep, ...],
    verdict: Verdict | None,
    outcomes: tuple[Outcome, ...],
    ledger: tuple[LedgerEntry, ...],
    currency: str,
) -> Any:
    realised = steps[-1]
    undone = [entry for entry in ledger if entry.action in ("undone", "restored")]
    found = say("savings.count_found", count=steps[0].cards)
    observed, judged = "–", say("savings.not_verified_yet")
    if verdict is not None:
        observed = percent_words(verdict.observed_ratio)
        judged = say("savings.predicted_ratio", ratio=percent_words(verdict.predicted_ratio))
        if verdict.level is Level.UNDECIDED:
            judged = say("savings.undecided")
    return div(
        "headline",
        figure_number(format_count(realised.cards), say("savings.cards_realised"), note=found),
        figure_number(money_words(realised.amortised_per_week, currency), say("savings.week_amortised")),
        figure_number(observed, say("savings.harm_changed_services"), note=judged),
        figure_number(format_count(sum(o.given_back for o in outcomes)), say("savings.cards_given_back")),
        figure_number(format_count(len(undone)), say("savings.undone_or_restored")),
    )


def _funnel(address: Address, steps: tuple[SavingsStep, ...], currency: str) -> Any:
    most = max(1, *(step.cards for step in steps))
    chosen = address.get("step")
    words = reader_words()
    rows: list[Any] = []
    for step in steps:
        line = [
            span("name", words.code("step", step.name)),
            span("track", html.Span(className="bar", style={"width": f"{100 * step.cards / most:.1f}%"})),
            html.B(format_count(step.cards)),
            span("money", money_words(step.amortised_per_week, currency)),
        ]
        href = address.href(step=None if chosen == step.name else step.name)
        rows.append(dcc.Link(line, href=href, className=f"step {step.name}"))
        if chosen == step.name:
            plans = [html.Li(dcc.Link(name, href=address.href("/plan", plan=name))) for name in step.plans]
            rows.append(html.Ul(plans or [html.Li(say("savings.no_plan_got_here_yet"))], className="holders"))
    return div("funnel", *rows, id="funnel")


def _weeks(outcomes: tuple[Outcome, ...], weeks: Any, currency: str) -> list[Any]:
    if not outcomes:
        return [html.P([say("savings.nothing_was_verified_yet"), html.Code("gputide verify")], className="soft")]
    return [graph(weekly_bars_figure(weeks, currency), id="weeks", name=say("savings.realised_saving_per_week"))]


def _promise(outcomes: tuple[Outcome, ...]) -> list[Any]:
    if not outcomes:
        return [html.P(say("savings.dot_appears_for_each_plan_was"), className="soft")]
    name = say("savings.cards_realised_against_cards_promised_one")
    return [graph(promise_figure(outcomes), id="promise", name=name)]


def _harm(budgets: tuple[HarmBudget, ...]) -> Any:
    if not budgets:
        return html.P(say("savings.no_service_was_changed_measured_yet"), className="soft")
    rows = [
        (
            _service(budget.workload),
            percent_words(budget.predicted_ratio),
            percent_words(budget.violation_ratio),
            percent_words(budget.budget_ratio, 1),
            _bullet(budget),
            say_code("cause", budget.cause) if budget.cause else "–",
        )
        for budget in budgets[:HARM_MAX]
    ]
    columns = (
        (say("savings.service"), "t"),
        (say("savings.predicted"), "n"),
        (say("savings.observed"), "n"),
        (say("savings.harm_budget"), "n"),
        (say("savings.budget_spent"), "t"),
        (say("savings.cause"), "t"),
    )
    return scrolled(table(columns, rows), name=say("savings.harm_per_service"), class_name="harm")


def _service(workload: str) -> Any:
    """Name first: of `namespace/Kind/name` it is what people look for."""
    namespace, kind, name = workload.split("/", 2)
    return html.Span([html.Span(name), html.Small(f"{namespace} · {kind}")])


def _bullet(budget: HarmBudget) -> Any:
    burn, is_over = budget.burn_ratio, budget.standing is Standing.OVER_BUDGET
    if burn is None:
        return say(_UNJUDGED[budget.standing]) if budget.standing in _UNJUDGED else "–"
    bar = html.Span(className="bar over" if is_over else "bar", style={"width": f"{min(100.0, 100 * burn):.0f}%"})
    return span("bullet", span("track", bar), f"{'▲ ' if is_over else ''}{burn:.0%}")


def _ledger(entries: tuple[LedgerEntry, ...]) -> Any:
    if not entries:
        return html.P(say("savings.nothing_was_done_yet"), className="soft")
    words = reader_words()
    rows = [
        (
            moment_words(entry.at).removesuffix(" UTC"),
            span(f"action {entry.action.replace('_', '-')}", f"{_sign(entry)} {words.code('action', entry.action)}"),
            f"{entry.cards:+d}" if entry.cards else "",
            html.Span(
                [
                    html.Span(_subject(entry.subject)),
                    html.Small([shown(entry.detail), f" · {entry.actor} · {format_plan_id(entry.plan_id)}"]),
                ]
            ),
        )
        for entry in entries[:LEDGER_MAX]
    ]
    columns = (("UTC", "t"), (say("savings.what"), "t"), (say("health.cards"), "n"), (say("savings.whom"), "t"))
    return scrolled(table(columns, rows), name=say("savings.ledger"), class_name="ledger")


def _subject(subject: str) -> Any:
    """What was changed; stages are recorded in English words."""
    match = _STAGES.fullmatch(subject)
    return shown(subject) if match is None else stage_words(tuple(map(int, match[1].split(", "))))


def _sign(entry: LedgerEntry) -> str:
    if entry.action in ("undone", "restored", "given_back"):
        return "↩"
    return "✕" if entry.action == "refused" else "✓"
