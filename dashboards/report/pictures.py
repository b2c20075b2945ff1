"""The pictures of the weekly report, as SVG of numbers and our own words: they load nothing and print in grey."""

from __future__ import annotations

from collections.abc import Sequence

from dashboards.report.report import DayHours, PlanForecast
from dashboards.report.weeks import WeekFacts
from dashboards.tokens import LIGHT, MEASURE_COLOURS, MID_GREY, STATE_COLOURS, STATE_INK, STATE_LETTERS
from fleet.profiles import CardState, HourMeasure
from fleet.units import format_count, format_plan_id
from fleet.words import Words

BAR_ORDER = (CardState.BUSY, CardState.LOW_USE, CardState.IDLE_HELD, CardState.FREE, CardState.UNTRUSTED)
_BAR_LEFT, _BAR_WIDTH = 60.0, 640.0
_SEGMENT_MIN, _SEGMENT_GAP = 2.5, 0.75
"""Width of the smallest segment that can be seen, and of the gap after each, in the picture's units."""
_INK, _SOFT = LIGHT["ink"], LIGHT["ink-soft"]
_FROM_BELOW = (
    HourMeasure.USED, HourMeasure.UNUSED, HourMeasure.IDLE_HELD, HourMeasure.IDLE, HourMeasure.STRANDED,
    HourMeasure.UNALLOCATED,
)  # fmt: skip
_DAYS_HEIGHT, _PLANS_MAX = 120.0, 6


def days_svg(days: Sequence[DayHours], words: Words) -> str:
    """Cards of each day by what became of them, a stacked bar a day, in proportion; below what the colours mean."""
    cards = [{measure: hours / day.hours_of_day for measure, hours in day.card_hours} for day in days]
    top = max((sum(one.values()) for one in cards), default=0.0) or 1.0
    width = _BAR_WIDTH / len(days)
    parts = [_text(0, 12, format_count(round(top)), _SOFT), _text(0, 26, words.say("report.days.cards"), _SOFT)]
    for number, one in enumerate(cards):
        y = _DAYS_HEIGHT
        for measure in _FROM_BELOW:
            height = _DAYS_HEIGHT * one.get(measure, 0.0) / top
            y -= height
            if height > 0:
                parts.append(
                    _rect(_BAR_LEFT + number * width, y, max(1.0, width - 2), height, MEASURE_COLOURS[measure])
                )
    every = max(1, -(-len(days) // 7))
    parts += [
        _text(_BAR_LEFT + number * width, _DAYS_HEIGHT + 14, words.day(day.start), _SOFT)
        for number, day in enumerate(days)
        if number % every == 0 and number * width < _BAR_WIDTH - 40
    ]
    held = {measure for one in cards for measure, value in one.items() if value > 0}
    shown = [measure for measure in _FROM_BELOW if measure in held]
    for number, measure in enumerate(shown):
        x, y = _BAR_LEFT + (number % 3) * _BAR_WIDTH / 3, _DAYS_HEIGHT + 34 + 16 * (number // 3)
        parts += [_rect(x, y - 9, 10, 10, MEASURE_COLOURS[measure]),
                  _text(x + 15, y, words.code("hour_measure", measure.value), _SOFT)]  # fmt: skip
    return _svg(_DAYS_HEIGHT + 28 + 16 * -(-len(shown) // 3), words.say("report.days.label"), parts)


def promise_svg(forecasts: Sequence[PlanForecast], words: Words) -> str:
    """Of the newest plans cards promised (grey) and cards freed (green), in proportion."""
    shown = forecasts[:_PLANS_MAX]
    top = max(1, *(max(one.cards_promised, one.cards_freed) for one in shown))
    parts = []
    for row, one in enumerate(shown):
        y, scale = 34.0 * row, (_BAR_WIDTH - 150) / top
        parts += [
            _text(0, y + 18, format_plan_id(one.plan_id)[:8], _INK, kind="name"),
            _rect(_BAR_LEFT, y + 2, max(1.0, scale * one.cards_promised), 11, MID_GREY),
            _text(_BAR_LEFT + scale * one.cards_promised + 6, y + 12,
                  words.say("report.promise.promised", cards=words.cards(one.cards_promised)), _SOFT),
            _rect(_BAR_LEFT, y + 15, max(1.0, scale * one.cards_freed), 11, STATE_COLOURS[CardState.FREE]),
            _text(_BAR_LEFT + scale * one.cards_freed + 6, y + 25,
                  words.say("report.promise.freed", cards=words.cards(one.cards_freed)), _INK),
        ]  # fmt: skip
    return _svg(34.0 * len(shown), words.say("report.promise.label"), parts)


def state_bar_svg(weeks: Sequence[WeekFacts], words: Words) -> str:
    """Cards by state, one bar per week, in proportion; letters and gaps between segments let it be read in grey.

    A label stands in its segment where it fits; below stand all of the newest week.
    """
    shown = list(weeks)[-8:]
    height = 26 * len(shown) + 22
    parts = []
    for row, week in enumerate(shown):
        x, y = _BAR_LEFT, 26 * row
        parts.append(f'<text x="0" y="{y + 15}" font-size="11" fill="{_INK}">{words.day(week.week_start)}</text>')
        shares = _state_shares(week)
        widths = {state: max(_SEGMENT_MIN, _BAR_WIDTH * share) for state, share in shares.items()}
        scale = _BAR_WIDTH / sum(widths.values()) if widths else 1.0
        for state, share in shares.items():
            width = scale * widths[state]
            parts.append(
                f'<rect x="{x:.1f}" y="{y}" width="{width - _SEGMENT_GAP:.1f}" height="20" '
                f'fill="{STATE_COLOURS[state]}"/>'
            )
            if width > 44:
                label = f"{STATE_LETTERS[state]} {share:.0%}"
                parts.append(
                    f'<text x="{x + 6:.1f}" y="{y + 15}" font-size="11" fill="{STATE_INK[state]}">{label}</text>'
                )
            x += width
    newest = _state_shares(shown[-1]) if shown else {}
    legend = " · ".join(
        f"{STATE_LETTERS[state]} {words.code('state', state.value)}"
        + (f" {words.percent(newest[state], 0 if newest[state] >= 0.01 else 1)}" if state in newest else "")
        for state in BAR_ORDER
    )
    parts += [
        f'<text x="{x:.0f}" y="{height - 6}" font-size="11" fill="{_SOFT}">{text}</text>'
        for x, text in ((0, words.day(shown[-1].week_start) if shown else ""), (_BAR_LEFT, legend))
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 704 {height}" role="img" '
        f'aria-label="{words.say("report.bar.label")}">{"".join(parts)}</svg>'
    )


def _state_shares(week: WeekFacts) -> dict[CardState, float]:
    """Share of the cards by state, in the order of the bar; states without a card are left out."""
    counts = dict(week.cards_by_state)
    total = sum(counts.values())
    return {state: counts[state] / total for state in BAR_ORDER if counts.get(state)}


def _text(x: float, y: float, words: str, colour: str, *, kind: str = "words") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" font-size="11" fill="{colour}">{words}</text>'


def _rect(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>'


def _svg(height: float, label: str, parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 704 {height:.0f}" role="img" '
        f'aria-label="{label}">{"".join(parts)}</svg>'
    )
