"""The weekly report as text: HTML for paper and mail, Markdown for chat and wiki, CSV, and JSON for programs.

Names come from tenants: HTML is escaped by the template engine, Markdown here, and CSV cells can't be formulas.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from dashboards.report import REPORT_SCHEMA, Report, ReportFigure, WeekFacts
from dashboards.rows import csv_text, moment_words, money_words, percent_words, workload_state_words
from dashboards.tokens import STATE_COLOURS, STATE_INK, STATE_LETTERS, STATE_WORDS, report_css
from fleet.documents import document
from fleet.profiles import CardState
from fleet.units import format_count

CSV_COLUMNS = (
    "workload", "owner", "state", "cards", "unused_cards", "unused_per_week", "currency", "advice", "reason",
)  # fmt: skip

BAR_ORDER = (CardState.BUSY, CardState.LOW_USE, CardState.IDLE_HELD, CardState.FREE, CardState.UNTRUSTED)
_MARKDOWN_SPECIAL = re.compile(r"([\\`*_{}\[\]<>()#+!|~&])")
_FIGURE_WORDS = {"freed": "cards freed", "wasted": "a week stands idle", "harm": "harm of changed services"}


def report_html(report: Report) -> str:
    """One A4 page and the detail behind it; a whole document that loads nothing."""
    environment = Environment(
        loader=PackageLoader("dashboards", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2").render(
        report=report,
        css=Markup(report_css()),  # our own style sheet, no foreign text in it
        bar=Markup(state_bar_svg((*report.past_weeks, report.week))),  # numbers and our own words only
        figure_value=figure_value,
        figure_words=_FIGURE_WORDS,
        money=lambda amount: money_words(amount, report.currency),
        percent=percent_words,
        moment=moment_words,
        count=format_count,
        state_words=workload_state_words,
    )


def report_markdown(report: Report) -> str:
    """The same for chat and wiki; the first five lines stand alone in a chat."""
    week = f"{report.since:%Y-%m-%d} to {report.until:%Y-%m-%d}"
    done = [f"- `{item.plan_id}` {_escaped(item.done)} {_escaped(item.went)}" for item in report.done]
    refused = [
        f"- {len(group.workloads)} × {_escaped(group.reason)} ({_escaped(group.kind)}): {_escaped(group.detail)}"
        for group in report.refused
    ]
    notes = [f"- {_escaped(note)}" for note in report.data_notes]
    print_small = f"{report.method} Prices: {report.price_source}. Coverage {percent_words(report.coverage_ratio, 1)}."
    lines = [
        f"# {_escaped(report.title)}: {_escaped(report.cluster)}, {week}",
        "",
        f"**{_escaped(report.headline)}**",
        "",
        " · ".join(_figure_line(figure) for figure in report.figures),
        "",
        *_top_table(report),
        "",
        "## Done",
        "",
        *(done or ["- nothing"]),
        "",
        "## Refused",
        "",
        *(refused or ["- nobody"]),
        "",
        "## Next",
        "",
        *_next_lines(report),
        "",
        *([*notes, ""] if notes else []),
        f"_{_escaped(print_small)}_",
    ]
    return "\n".join(lines) + "\n"


def report_csv(report: Report) -> str:
    """The top list as CSV; money in full, in the report's currency."""
    rows = [
        {
            "workload": row.workload,
            "owner": row.owner,
            "state": row.state.value,
            "cards": row.cards,
            "unused_cards": row.unused_cards,
            "unused_per_week": None if row.unused_per_week is None else row.unused_per_week.quantize(Decimal("0.01")),
            "currency": report.currency,
            "advice": row.advice,
            "reason": row.reason,
        }
        for row in report.top
    ]
    return csv_text(CSV_COLUMNS, rows)


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


def figure_value(figure: ReportFigure, value: Decimal | None) -> str:
    """A figure's value in its unit; an en dash where it is absent."""
    if value is None:
        return "–"
    if figure.unit == "ratio":
        return percent_words(float(value))
    return format_count(round(value)) if figure.unit == "cards" else money_words(value, figure.unit)


def state_bar_svg(weeks: Sequence[WeekFacts]) -> str:
    """Cards by state, one bar per week; letters and lines between segments let it be read in grey."""
    shown = list(weeks)[-8:]
    height = 26 * len(shown) + 22
    parts = []
    for row, week in enumerate(shown):
        total = sum(cards for _, cards in week.cards_by_state)
        counts = dict(week.cards_by_state)
        x, y = 60.0, 26 * row
        parts.append(f'<text x="0" y="{y + 15}" font-size="11" fill="#17212B">{week.week_start:%d %b}</text>')
        for state in BAR_ORDER:
            width = 640 * counts.get(state, 0) / total if total else 0.0
            if width <= 0:
                continue
            parts.append(
                f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="21" fill="{STATE_COLOURS[state]}" '
                'stroke="#fff" stroke-width="1.5"/>'
            )
            label = f"{STATE_LETTERS[state]} {counts[state] / total:.0%}"
            if width > 44:
                parts.append(
                    f'<text x="{x + 6:.1f}" y="{y + 15}" font-size="11" fill="{STATE_INK[state]}">{label}</text>'
                )
            x += width
    legend = " · ".join(f"{STATE_LETTERS[state]} {STATE_WORDS[state]}" for state in BAR_ORDER)
    parts.append(f'<text x="60" y="{height - 6}" font-size="11" fill="#52606D">{legend}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 704 {height}" role="img" '
        f'aria-label="cards by state and week">{"".join(parts)}</svg>'
    )


def _figure_line(figure: ReportFigure) -> str:
    name = _FIGURE_WORDS[figure.name]
    return (
        f"{figure_value(figure, figure.value)} {name} (last week {figure_value(figure, figure.last_week)}, "
        f"4-week mean {figure_value(figure, figure.mean_four_weeks)})"
    )


def _next_lines(report: Report) -> list[str]:
    plan = report.next_plan
    if plan is None:
        return ["No plan waits: `gputide recommend`"]
    state = "expired" if plan.is_expired else f"expires {moment_words(plan.expires_at)}"
    harm = percent_words(plan.predicted_violation_ratio)
    first = f"Plan `{plan.plan_id}` frees {format_count(plan.cards_freed)} cards, {_escaped(plan.saving)} a week"
    stages = [f"- {_escaped(stage)}" for stage in plan.stages]
    return [f"{first}, predicted harm {harm}, {state}.", "", *stages, "", f"    {plan.command}"]


def _top_table(report: Report) -> list[str]:
    if not report.top:
        return ["Nobody leaves a card unused."]
    lines = ["| workload | owner | state | cards | unused / week | advice |", "|---|---|---|---:|---:|---|"]
    for row in report.top:
        money = money_words(row.unused_per_week, report.currency)
        cells = (row.workload, row.owner, workload_state_words(row.state), str(row.cards), money, row.advice or "–")
        lines.append(f"| {' | '.join(_escaped(cell) for cell in cells)} |")
    return lines


def _escaped(text: str) -> str:
    """Text that Markdown shows as it stands, in one line."""
    return _MARKDOWN_SPECIAL.sub(r"\\\1", " ".join(text.split()))
