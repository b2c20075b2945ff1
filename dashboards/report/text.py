"""The weekly report as text: HTML for paper and mail, Markdown for chat and wiki, and JSON for programs.

Names come from tenants: HTML is escaped by the template engine, Markdown here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from dashboards.address import search_text
from dashboards.report.pictures import days_svg, promise_svg, state_bar_svg
from dashboards.report.report import REPORT_SCHEMA, PlanForecast, Report, ReportFigure, TeamLine
from dashboards.tokens import report_css
from dashboards.view_models.rows import money_words
from dashboards.view_models.tenants import Tenant
from enforcer.record.harm import HarmBudget
from enforcer.record.verdict import Standing
from fleet.documents import document
from fleet.money.charges import MeasuredHours
from fleet.money.unit_costs import UnitCost
from fleet.profiles import HourMeasure
from fleet.units import format_count, format_plan_id
from fleet.words import Words

_MEASURES = (HourMeasure.USED, HourMeasure.UNUSED, HourMeasure.IDLE, HourMeasure.IDLE_HELD)
UNITS_MAX = 20
"""Workloads whose unit cost is shown, the dearest first; JSON holds all."""
BUDGETS_MAX = 20
"""Services whose budget is shown, the most burnt first; JSON holds all."""
_MARKDOWN_SPECIAL = re.compile(r"([\\`*_{}\[\]<>()#+!|~&])")
_ABSENT = "–"


def report_html(report: Report) -> str:
    """One A4 page and the detail behind it; a whole document that loads nothing."""
    environment = Environment(
        loader=PackageLoader("dashboards", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    words = Words(language=report.language)
    return environment.get_template(
        "report.html.j2"
    ).render(
        report=report,
        say=words.say,
        words=words,
        css=Markup(report_css()),  # our own style sheet, no foreign text in it
        pictures=[(heading, Markup(svg)) for heading, svg in _pictures(report, words)],  # numbers and our own words
        figure_value=figure_value,
        worth=_worth(report, words),
        short_id=format_plan_id,
        money=lambda amount: money_words(amount, report.currency),
        count=format_count,
        decimal=_one_digit,
        workload_link=lambda name: _link(report, "/workloads", w=name),
        plan_link=lambda name: _link(report, "/plan", plan=name),
        span=_span(report, words),
        scope=_scope(report, words),
        stands=lambda forecast: _stands(forecast, words),
        budgets=report.harm_budgets[:BUDGETS_MAX],
        observed=lambda forecast: _observed(forecast, words),
        burnt=lambda budget: _burnt(budget, words),
        budgets_left=max(0, len(report.harm_budgets) - BUDGETS_MAX),
        kwh=_kwh,
        small_print=_small_print(report, words),
        has_quota=_has_quotas(report),
        measures=_MEASURES,
        measured=_measured,
        quota=lambda line: _one_digit(_quota(line)),
        quota_left=lambda line: _one_digit(_quota_left(line)),
        units=report.units[:UNITS_MAX],
        units_left=max(0, len(report.units) - UNITS_MAX),
        unit_count=lambda one: _unit_count(one, words),
        per_million=lambda one: _per_million(one, report),
    )


def _pictures(report: Report, words: Words) -> list[tuple[str, str]]:
    """Heading and drawing of each: the fleet over time, and what was promised against what came true."""
    weeks = (*report.past_weeks, report.week)
    over_time = (
        (words.say("report.days.heading"), days_svg(report.days, words))
        if report.days
        else (words.say("report.bar.heading"), state_bar_svg(weeks, words))
    )
    if not report.forecasts:
        return [over_time]
    return [over_time, (words.say("report.forecast.heading"), promise_svg(report.forecasts, words))]


def _worth(report: Report, words: Words) -> str:
    """What the cards that were freed and stayed free are worth; empty where there are none, or none has a price."""
    realised = report.funnel[-1] if report.funnel and report.funnel[-1].is_measured else None
    if realised is None or not realised.cards or realised.amortised_per_week is None:
        return ""
    return words.say("report.worth", money=money_words(realised.amortised_per_week, report.currency))


def report_markdown(report: Report) -> str:
    """The same for chat and wiki; the first five lines stand alone in a chat."""
    words = Words(language=report.language)
    say = words.say
    done = [f"- `{format_plan_id(item.plan_id)}` {_escaped(item.done)} {_escaped(item.went)}" for item in report.done]
    refused = [
        f"- {len(group.workloads)} × {_escaped(words.code('reason', group.reason))}"
        f"{say('mark.open')}{_escaped(words.code('kind', group.kind))}{say('mark.close')}"
        f"{say('mark.between')}{_escaped(group.detail)}"
        for group in report.refused
    ]
    notes = [f"- {_escaped(note)}" for note in report.data_notes]
    scope = _escaped(_scope(report, words))
    lines = [
        f"# {_escaped(report.title)}{say('mark.between')}{scope}{say('mark.comma')}{_span(report, words)}",
        "",
        f"**{_escaped(report.headline)}**",
        "",
        " · ".join(_figure_line(figure, words) for figure in report.figures),
        "",
        *(line for text in (_worth(report, words), report.bill) if text for line in (_escaped(text), "")),
        *_top_table(report, words),
        "",
        *_section(words, "report.next.heading", _next_lines(report, words)),
        *_section(words, "report.done.heading", done or [f"- {say('report.done.none')}"]),
        *_section(words, "report.detail.heading", _figures_table(report, words)),
        *_section(words, "report.funnel.heading", _funnel_table(report, words)),
        *(_section(words, "report.teams.heading", _teams_table(report, words)) if report.teams else []),
        *(_section(words, "report.unit.heading", _units_table(report, words)) if report.units else []),
        *(_section(words, "report.forecast.heading", _forecast_table(report, words)) if report.team is None else []),
        *_section(words, "report.budget.heading", _budget_table(report, words)),
        *_section(words, "report.refused.heading", refused or [f"- {say('report.refused.none')}"]),
        *(_section(words, "report.data.heading", notes) if notes else []),
        f"_{_escaped(_small_print(report, words))}_",
    ]
    return "\n".join(lines) + "\n"


def report_lines(report: Report) -> tuple[str, ...]:
    """The report in five or six lines of plain text for mail and chat: title, headline, figures, and what is next."""
    plan, words = report.next_plan, Words(language=report.language)
    lines = [_title(report, words), report.headline, *(_figure_line(figure, words) for figure in report.figures)]
    if plan is not None and not plan.is_expired:
        text = words.say(
            "report.next.waits", plan=plan.plan_id, moment=words.moment(plan.expires_at),
            cards=words.cards(plan.cards_freed), saving=plan.saving, harm=words.percent(plan.predicted_violation_ratio),
        )  # fmt: skip
        lines.append(text)
    return (*lines, report.bill) if report.bill else tuple(lines)


def report_json(report: Report) -> str:
    """The record as JSON (`gputide.report/v1`): snake_case, base units, UTC, absent = null."""
    return json.dumps(report_document(report), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def report_document(report: Report) -> dict[str, Any]:
    """The record as plain JSON values."""
    content: dict[str, Any] = {"schema": REPORT_SCHEMA, **document(report)}
    weeks = [content["week"], *content["past_weeks"]]
    for week, facts in zip(weeks, (report.week, *report.past_weeks), strict=True):
        week["cards_by_state"] = {state.value: cards for state, cards in facts.cards_by_state}
    return content


def figure_value(figure: ReportFigure, value: Decimal | None, words: Words) -> str:
    """A figure's value in its unit; an en dash, or `unknown` in the detail, where it is absent."""
    if value is None:
        return words.say("report.unknown") if figure.basis else _ABSENT
    if figure.unit == "ratio":
        return words.percent(float(value))
    if figure.unit in ("kwh", "kg"):
        return _one_digit(float(value))
    return format_count(round(value)) if figure.unit in ("cards", "hours") else money_words(value, figure.unit)


def _figure_line(figure: ReportFigure, words: Words) -> str:
    last = words.say("report.last_week", value=figure_value(figure, figure.last_week, words))
    mean = words.say("report.mean", value=figure_value(figure, figure.mean_four_weeks, words))
    value, name = figure_value(figure, figure.value, words), words.say(f"report.figure.{figure.name}")
    return words.say("report.figure_line", value=value, name=name, last=last, mean=mean)


def _span(report: Report, words: Words) -> str:
    return words.say("report.span", since=f"{report.since:%Y-%m-%d}", until=f"{report.until:%Y-%m-%d}")


def _title(report: Report, words: Words) -> str:
    between, comma = words.say("mark.between"), words.say("mark.comma")
    return f"{report.title}{between}{_scope(report, words)}{comma}{_span(report, words)}"


def _scope(report: Report, words: Words) -> str:
    """The cluster, and the team where the report is cut to one."""
    team = "" if report.team is None else words.say("mark.comma") + words.say("report.of_team", team=report.team)
    return report.cluster + team


def _small_print(report: Report, words: Words) -> str:
    return words.sentences(
        report.method,
        words.say("report.small.prices", source=report.price_source, version=report.price_version),
        words.say("report.small.coverage", ratio=words.percent(report.coverage_ratio, 1)),
        words.say("report.small.made", moment=words.moment(report.created_at)),
    )


def _link(report: Report, page: str, **query: str) -> str | None:
    """A page of the web app; names go in quoted, so that none becomes part of the address."""
    if report.base_url is None:
        return None
    return f"{report.base_url.rstrip('/')}{page}{search_text([('cluster', report.cluster), *query.items()])}"


def _section(words: Words, heading: str, lines: list[str]) -> list[str]:
    return [f"## {words.say(heading)}", "", *lines, ""]


def _next_lines(report: Report, words: Words) -> list[str]:
    plan, say = report.next_plan, words.say
    if plan is None:
        return [f"{say('report.next.none')} `gputide plan make`"]
    state = say(
        "report.next.expired" if plan.is_expired else "report.next.expires", moment=words.moment(plan.expires_at)
    )
    room = say("report.next.room", hours=round(plan.low_priority_gpu_hours_per_week))
    harm = words.percent(plan.predicted_violation_ratio)
    frees = say("report.next.frees", cards=words.cards(plan.cards_freed), saving=_escaped(plan.saving), harm=harm)
    stages = [f"- {_escaped(stage)}" for stage in plan.stages]
    link = _link(report, "/plan", plan=plan.plan_id)
    review = [f"[{say('report.next.review')}](<{link}>)", ""] if link is not None and not plan.is_expired else []
    clauses = (f"{say('report.next.plan')} `{format_plan_id(plan.plan_id)}` {frees}", room, state)
    text = say("mark.clause").join(clauses) + say("mark.stop")
    surge = [line for said in plan.surge for line in (_escaped(said), "")]
    return [text, "", *surge, *stages, "", *review, f"    {plan.command}"]


def _top_table(report: Report, words: Words) -> list[str]:
    if not report.top:
        return [words.say("report.top.none")]
    rows = []
    for row in report.top:
        link = _link(report, "/workloads", w=row.workload)
        name = _escaped(row.workload) if link is None else f"[{_escaped(row.workload)}](<{link}>)"
        cells = (
            row.owner,
            words.code("workload_state", row.state.value),
            str(row.cards),
            money_words(row.unused_cost, report.currency),
            row.advice or _ABSENT,
        )
        rows.append((name, *map(_escaped, cells)))
    return _table(words, ("workload", "owner", "state", ">cards", ">unused_cost", "advice"), rows)


def _figures_table(report: Report, words: Words) -> list[str]:
    rows = [
        (
            words.say(f"report.figure.{figure.name}"),
            *(figure_value(figure, v, words) for v in (figure.value, figure.last_week, figure.mean_four_weeks)),
            _escaped(figure.basis),
        )
        for figure in report.detail_figures
    ]
    return _table(words, ("figure", ">week", ">last_week", ">mean", "basis"), rows)


def _teams_table(report: Report, words: Words) -> list[str]:
    rows, has_quota = [], _has_quotas(report)
    for line in report.teams:
        one = line.tenant
        cells = (
            one.name,
            *(_one_digit(hours.card_hours) for hours in (one.granted, *_measured(one))),
            money_words(one.idle.cost, report.currency),
            *((_one_digit(_quota(line)), _one_digit(_quota_left(line))) if has_quota else ()),
            _kwh(line, words),
        )
        rows.append(tuple(map(_escaped, cells)))
    of_quota = (">quota", ">quota_left") if has_quota else ()
    head = ("team", ">granted_hours", *(f">{one}" for one in _MEASURES), ">idle_cost", *of_quota)
    return _table(words, head, rows, last=words.say("report.figure.energy"))


def _units_table(report: Report, words: Words) -> list[str]:
    rows = [
        (
            _escaped(one.workload),
            _escaped(words.code("unit", one.unit)),
            _unit_count(one, words),
            _per_million(one, report),
        )
        for one in report.units[:UNITS_MAX]
    ]
    left = len(report.units) - len(rows)
    more = ["", words.say("report.unit.more", count=left)] if left > 0 else []
    return [*_table(words, ("workload", "unit", ">count", ">per_million"), rows), *more]


def _funnel_table(report: Report, words: Words) -> list[str]:
    steps = report.funnel
    rows = (
        [words.code("step", step.name) for step in steps],
        ["---:" for _ in steps],
        [words.cards(step.cards) for step in steps],
        [_escaped(money_words(step.amortised_per_week, report.currency)) for step in steps],
    )
    return [f"| {' | '.join(cells)} |" for cells in rows]


def _forecast_table(report: Report, words: Words) -> list[str]:
    if not report.forecasts:
        return [words.say("report.forecast.none")]
    rows = [
        (
            f"`{format_plan_id(one.plan_id)}`",
            format_count(one.cards_promised),
            format_count(one.cards_freed),
            words.percent(one.harm_predicted),
            _observed(one, words),
            _stands(one, words),
        )
        for one in report.forecasts
    ]
    return _table(words, ("plan", ">promised", ">freed", ">harm_predicted", ">harm_observed", "stands"), rows)


def _budget_table(report: Report, words: Words) -> list[str]:
    if not report.harm_budgets:
        return [words.say("report.budget.none")]
    rows = [
        (
            _escaped(one.workload),
            words.percent(one.budget_ratio),
            words.percent(one.predicted_ratio),
            words.percent(one.violation_ratio),
            _burnt(one, words),
            _ABSENT if one.cause is None else _escaped(words.code("cause", one.cause)),
        )
        for one in report.harm_budgets[:BUDGETS_MAX]
    ]
    left = len(report.harm_budgets) - len(rows)
    more = ["", words.say("report.budget.more", count=left)] if left else []
    head = ("workload", ">budget", ">harm_predicted", ">harm_observed", ">burnt", "cause")
    return [*_table(words, head, rows), *more]


def _table(words: Words, head: Sequence[str], rows: Sequence[Sequence[str]], *, last: str | None = None) -> list[str]:
    """A table; columns are keys, those with `>` are numbers; `last` heads one number more."""
    titles = [words.say(f"report.column.{name.removeprefix('>')}") for name in head]
    rule = ["---:" if name.startswith(">") else "---" for name in head]
    if last is not None:
        titles.append(last)
        rule.append("---:")
    return [f"| {' | '.join(cells)} |" for cells in (titles, rule, *rows)]


def _stands(forecast: PlanForecast, words: Words) -> str:
    return words.say(f"stands.{forecast.stands}")


def _observed(forecast: PlanForecast, words: Words) -> str:
    """Harm as it was observed, or why it is not judged."""
    if forecast.harm_observed is not None:
        return words.percent(forecast.harm_observed)
    return words.code("standing", forecast.level.value)


def _burnt(budget: HarmBudget, words: Words) -> str:
    """How much of a harm budget is spent, or why that is not judged."""
    if budget.burn_ratio is not None:
        return words.percent(budget.burn_ratio, 0)
    is_judged = budget.standing is Standing.WITHIN_BUDGET
    return _ABSENT if is_judged else words.code("standing", budget.standing.value)


def _kwh(line: TeamLine, words: Words) -> str:
    return words.say("report.unknown") if line.kwh is None else _one_digit(line.kwh)


def _measured(one: Tenant) -> list[MeasuredHours]:
    """Its used, unused and idle card hours, and those that are idle while framebuffer is held."""
    return [one.measures[measure] for measure in _MEASURES]


def _has_quotas(report: Report) -> bool:
    return any(line.quota is not None for line in report.teams)


def _quota(line: TeamLine) -> float | None:
    return None if line.quota is None else line.quota.quota


def _quota_left(line: TeamLine) -> float | None:
    """Cards of the quota that nobody holds, 0 or more."""
    if line.quota is None or line.quota.quota is None or line.quota.granted is None:
        return None
    return max(0.0, line.quota.quota - line.quota.granted)


def _unit_count(one: UnitCost, words: Words) -> str:
    return words.say("report.unknown") if one.count is None else format_count(round(one.count))


def _per_million(one: UnitCost, report: Report) -> str:
    """To four digits: a token costs little. With some card hours unpriced it is a lower bound, and said so."""
    if one.per_million is None:
        return _ABSENT
    return f"{'≥ ' if one.is_partly_priced else ''}{one.per_million:,.4f} {report.currency}"


def _one_digit(value: float | None) -> str:
    """A number grouped by thousands with one digit at most; an en dash where it is absent."""
    if value is None:
        return _ABSENT
    return f"{value:,.1f}".removesuffix(".0")


def _escaped(text: str) -> str:
    """Text that Markdown shows as it stands, in one line."""
    return _MARKDOWN_SPECIAL.sub(r"\\\1", " ".join(text.split()))
