"""A card's hours as strips on one axis: who held it, compute, framebuffer, power, temperature."""

from __future__ import annotations

from typing import Any

from dashboards.tokens import ACCENT, MEASURE_COLOURS, MID_GREY, figure_layout
from dashboards.view_models.card_history import CardHistory, Series
from dashboards.words.reading import say
from fleet.profiles import HourMeasure
from fleet.units import GIB

LANES_MAX = 8
"""Lanes in which holders lie beside each other; who finds none free is drawn over the last."""
_GAP = 0.04


def card_history_figure(history: CardHistory) -> dict[str, Any]:
    """The strips that were measured; the first says who held the card."""
    times = [moment.strftime("%Y-%m-%dT%H:%M") for moment in history.times]
    gib = tuple(None if value is None else value / GIB for value in history.framebuffer_used_bytes)
    strips: list[tuple[str, Series, str, str]] = [
        (say("figure.compute"), history.compute, MEASURE_COLOURS[HourMeasure.USED], ".0%"),
        (say("figure.framebuffer_gib"), gib, ACCENT, ".1f"),
        (say("card.watts"), history.power_watts, MEASURE_COLOURS[HourMeasure.IDLE_HELD], ".0f"),
        (say("card.celsius"), history.temperature_celsius, MID_GREY, ".0f"),
    ]
    shown = [strip for strip in strips if any(value is not None for value in strip[1])]
    count = len(shown) + 1
    height = (1 - _GAP * (count - 1)) / count
    axes: dict[str, Any] = {}
    data: list[dict[str, Any]] = [_holders(history)]
    for number in range(count):
        top = 1 - number * (height + _GAP)
        name = "yaxis" if number == 0 else f"yaxis{number + 1}"
        axes[name] = {"domain": [max(0.0, round(top - height, 4)), round(top, 4)], "anchor": "x", "nticks": 4}
    lanes = max([1, *(lane or 0 for lane in data[0]["y"])])
    axes["yaxis"] |= {
        "showticklabels": False, "showgrid": False, "range": [-0.8, lanes + 0.8],
        "title": {"text": say("card.who_held_it"), "font": {"size": 11}, "standoff": 4},
    }  # fmt: skip
    for number, (title, values, colour, form) in enumerate(shown, start=2):
        axes[f"yaxis{number}"] |= {
            "rangemode": "tozero", "tickformat": form, "title": {"text": title, "font": {"size": 11}, "standoff": 4},
        }  # fmt: skip
        data.append(
            {
                "type": "scatter", "mode": "lines", "x": times, "y": list(values), "yaxis": f"y{number}", "name": title,
                "line": {"color": colour, "width": 1.5, "shape": "hv"}, "connectgaps": False,
                "hovertemplate": f"%{{x|%d %b %H:%M}}<br>%{{y:{form}}} {title}<extra></extra>",
            }
        )  # fmt: skip
    layout = figure_layout(
        **axes,
        xaxis={"type": "date", "anchor": f"y{count}" if count > 1 else "y", "showgrid": True},
        hovermode="closest",
        height=110 * count + 40,
        margin={"l": 58, "r": 10, "t": 6, "b": 36},
    )
    return {"data": data, "layout": layout}


def _holders(history: CardHistory) -> dict[str, Any]:
    """A line for each holder from its beginning to its end, in the first lane that is free then."""
    ends: list[Any] = []
    x: list[str | None] = []
    y: list[int | None] = []
    text: list[str | None] = []
    for one in history.held:
        lane = next((number for number, end in enumerate(ends) if end <= one.since), len(ends))
        lane = min(lane, LANES_MAX - 1)
        ends[lane : lane + 1] = [one.until]
        x += [one.since.strftime("%Y-%m-%dT%H:%M"), one.until.strftime("%Y-%m-%dT%H:%M"), None]
        y += [lane, lane, None]
        text += [f"{one.workload}<br>{one.pod}"] * 2 + [None]
    return {
        "type": "scatter", "mode": "lines", "x": x, "y": y, "text": text, "hovertemplate": "%{text}<extra></extra>",
        "line": {"color": ACCENT, "width": 9}, "name": say("card.who_held_it"),
    }  # fmt: skip
