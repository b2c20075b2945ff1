"""Card hours over time by what became of them, stacked: by the hour as an area, by the day as bars.

The page of the cost draws them with Plotly, where a span is dragged over them; the fleet's without (`assets/drawn.js`).
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from dashboards.tokens import MEASURE_COLOURS, figure_layout
from dashboards.words.reading import reader_words, say, say_code
from fleet.money.cost_days import MEASURES, CostDays
from fleet.profiles import HourMeasure

ORDER = (
    HourMeasure.USED, HourMeasure.UNUSED, HourMeasure.IDLE_HELD, HourMeasure.IDLE, HourMeasure.STRANDED,
    HourMeasure.UNALLOCATED,
)  # fmt: skip
"""From the bottom up."""

HEIGHT_PX = 274


def hours_drawing(days: CostDays, *, height_px: int) -> dict[str, Any]:
    """Cards in each hour of the whole cluster, as areas."""
    moments, values = _hours(days)
    words = reader_words()
    series = [
        {
            "name": say_code("hour_measure", measure),
            "colour": MEASURE_COLOURS[measure],
            "values": [round(value, 2) for value in values[measure]],
        }
        for measure in ORDER
    ]
    return {
        "height_px": height_px,
        "unit": say("health.cards"),
        "series": series,
        "days": [[24 * number, words.day(day)] for number, day in enumerate(days.starts)],
        "moments": [f"{words.day(moment)} {moment:%H:%M}" for moment in moments],
    }


def _hours(days: CostDays) -> tuple[list[datetime], dict[HourMeasure, list[float]]]:
    moments = [days.starts[0] + timedelta(hours=number) for number in range(len(days.hourly))]
    return moments, {measure: (days.hourly[:, place] / 1_000_000).tolist() for place, measure in enumerate(MEASURES)}


def cost_days_figure(days: CostDays, *, is_hourly: bool) -> dict[str, Any]:
    """Cards in each hour, or card hours of each day, to drag a span over.

    Args:
        is_hourly: by the hour, of the whole cluster.
    """
    if is_hourly:
        moments, values = _hours(days)
        unit = say("health.cards")
    else:
        per_day = days.per_day()
        moments = list(days.starts)
        values = {measure: [one[measure].card_hours for one in per_day] for measure in MEASURES}
        unit = say("measure.card_hours")
    x = [moment.strftime("%Y-%m-%dT%H:%M") for moment in moments]
    data = [_trace(x, [round(value, 2) for value in values[measure]], measure, is_hourly) for measure in ORDER]
    layout = figure_layout(
        barmode="stack",
        bargap=0.15,
        dragmode="zoom",
        xaxis={"type": "date", "showgrid": False, "fixedrange": False},
        yaxis={"title": {"text": unit, "font": {"size": 11}, "standoff": 6}, "rangemode": "tozero", "nticks": 5},
        margin={"l": 56, "r": 8, "t": 30, "b": 44},
        height=HEIGHT_PX,
        showlegend=True,
        hovermode="x unified",
        legend={
            "orientation": "h",
            "x": 0,
            "y": 1.0,
            "yanchor": "bottom",
            "font": {"size": 11},
            "traceorder": "normal",
        },
    )
    return {"data": data, "layout": layout}


def _trace(x: list[str], y: list[float], measure: HourMeasure, is_hourly: bool) -> dict[str, Any]:
    name, colour = say_code("hour_measure", measure), MEASURE_COLOURS[measure]
    shared = {"x": x, "y": y, "name": name, "hovertemplate": f"%{{y:,.1f}} {name}<extra></extra>"}
    if is_hourly:
        line = {"width": 0, "color": colour, "shape": "hv"}
        return {**shared, "type": "scatter", "mode": "lines", "stackgroup": "all", "fillcolor": colour, "line": line}
    return {**shared, "type": "bar", "marker": {"color": colour}}
