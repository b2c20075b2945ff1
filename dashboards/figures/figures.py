"""Figures with axes, as Plotly figures in their JSON form (building them as such costs no validation).

Colours come from `tokens`; text takes its ink from the page's CSS, so one figure serves light and dark.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from dashboards.queries import Signal, WorkloadHistory
from dashboards.tokens import ACCENT, CLEAR, DANGER, GRID_LINE, MID_GREY, STATE_COLOURS, figure_layout
from dashboards.view_models.card_history import Series
from dashboards.words.reading import reader_words, say, say_code
from enforcer.record.savings import WeekRealised
from fleet.decisions import FrontierPoint
from fleet.outcomes import Outcome
from fleet.profiles import CardState, HourOfWeek
from fleet.units import GIB, format_plan_id

Figure = dict[str, Any]

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
PRESETS = frozenset({"low", "medium", "high"})


def hour_of_week_figure(hours: HourOfWeek, off_peak_hours: Iterable[int]) -> Figure:
    """Compute p95 by hour of the week, 7 × 24 in local time, promised off-peak hours outlined."""
    values = [[_ratio(hours.p95, day * 24 + hour) for hour in range(24)] for day in range(7)]
    texts = [
        [
            f"{say_code('weekday', DAYS[day])} {hour:02d}:00 · p50 {_percent(_ratio(hours.p50, day * 24 + hour))}"
            f" · p95 {_percent(values[day][hour])} · max {_percent(_ratio(hours.max, day * 24 + hour))}"
            for hour in range(24)
        ]
        for day in range(7)
    ]
    heat = {
        "type": "heatmap",
        "z": values,
        "x": list(range(24)),
        "y": list(range(7)),
        "text": texts,
        "hovertemplate": "%{text}<extra></extra>",
        "zmin": 0,
        "zmax": 1,
        "xgap": 1,
        "ygap": 1,
        "colorscale": [[0, "rgba(0,114,178,0.06)"], [0.05, "rgba(0,114,178,0.18)"], [1, "rgba(0,114,178,1)"]],
        "colorbar": {
            "thickness": 8,
            "len": 1.0,
            "outlinewidth": 0,
            "tickformat": ".0%",
            "tickvals": [0, 0.5, 1],
            "tickfont": {"size": 11},
        },
    }
    layout = figure_layout(
        xaxis={"tickvals": list(range(0, 24, 3)), "ticktext": [f"{h:02d}" for h in range(0, 24, 3)], "showgrid": False,
               "zeroline": False},
        yaxis={"tickvals": list(range(7)), "ticktext": [say_code("weekday", day) for day in DAYS],
               "autorange": "reversed",
               "showgrid": False, "zeroline": False},
        margin={"l": 36, "r": 8, "t": 6, "b": 22},
        height=190,
    )  # fmt: skip
    return {
        "data": [heat, _lines(_outline(frozenset(off_peak_hours)), "#009E73", 2, name=say("workload_state.off_peak"))],
        "layout": layout,
    }


def strips_figure(history: WorkloadHistory) -> Figure:
    """SM active, framebuffer, request rate where known, and events, on one time axis."""
    rate = [] if history.request_rate is None else [say("figure.requests_s")]
    names = [say("figure.compute"), say("figure.framebuffer_gib"), *rate, say("figure.events")]
    weights = [3.0, 2.4, 1.8, 0.8] if len(names) == 4 else [3.0, 2.6, 0.8]
    tops = _domains(weights)
    times = [moment.isoformat() for moment in history.times]
    data = _compute_traces(times, history) + _framebuffer_traces(times, history)
    if history.request_rate is not None:
        data.append(_line(times, history.request_rate, MID_GREY, "y3", rate[0], "%{y:.1f} / s"))
    events_axis = f"y{len(names)}"
    data.append(
        {
            "type": "scatter",
            "mode": "markers",
            "x": [event.at.isoformat() for event in history.events],
            "y": [0] * len(history.events),
            "yaxis": events_axis,
            "text": [f"{say_code('event', event.kind)}: {event.text}" for event in history.events],
            "hovertemplate": "%{x|%d %b %H:%M}<br>%{text}<extra></extra>",
            "marker": {
                "symbol": [_event_symbol(event.kind) for event in history.events],
                "color": [_event_colour(event.kind) for event in history.events],
                "size": 9,
            },
        }
    )
    axes: dict[str, Any] = {}
    for place, (name, domain) in enumerate(zip(names, tops, strict=True), start=1):
        axis = {"domain": domain, "rangemode": "tozero", "nticks": 4, "anchor": "x"}
        if place == len(names):
            axis |= {"showticklabels": False, "range": [-1, 1], "showgrid": False}
        else:
            axis |= _title(name, standoff=4)
        if place == 1:
            axis |= {"tickformat": ".0%"}
        axes["yaxis" if place == 1 else f"yaxis{place}"] = axis
    layout = figure_layout(
        **axes,
        xaxis={"type": "date", "anchor": events_axis, "showgrid": True},
        hovermode="closest",
        height=372,
        margin={"l": 58, "r": 10, "t": 6, "b": 36},
    )
    return {"data": data, "layout": layout}


def frontier_figure(points: Sequence[FrontierPoint], *, height_px: int = 250) -> Figure:
    """Cards saved against predicted harm: dots are presets, the ring is chosen, grey diamonds are naive rules."""
    by_harm = sorted(points, key=lambda point: point.violation_ratio)
    presets = [point for point in by_harm if point.label in PRESETS or point.is_chosen]
    naive = [point for point in by_harm if point not in presets]
    chosen = [point for point in points if point.is_chosen]
    worst = max((point.violation_ratio for point in points), default=0.0) or 0.001
    # Names stand towards the middle; naive rules are near one another, so theirs are above and below in turn.
    sides = ["left" if point.violation_ratio > worst / 2 else "right" for point in naive]
    beside = [f"{'top' if place % 2 else 'bottom'} {side}" for place, side in enumerate(sides)]
    # Presets may stand on one spot: the least and the most say their names below and above it.
    heights = ["middle"] * len(presets)
    if len(presets) > 1 and presets[-1].violation_ratio - presets[0].violation_ratio < worst / 3:
        heights = ["bottom", *["middle"] * (len(presets) - 2), "top"]
    towards = [
        f"{height} {'left' if point.violation_ratio > worst / 2 else 'right'}"
        for height, point in zip(heights, presets, strict=True)
    ]
    data = [
        _points(naive, beside, MID_GREY, "diamond", 8, "markers+text"),
        {**_points(presets, towards, ACCENT, "circle", 9, "lines+markers+text"),
         "line": {"color": ACCENT, "width": 1, "dash": "dot"}},
        _points(chosen, (), ACCENT, "circle-open", 18, "markers", width=2),
    ]  # fmt: skip
    best = max((point.cards_freed for point in points), default=0) or 1
    layout = figure_layout(
        xaxis={
            **_title(say("figure.predicted_harm_share_active_time")),
            "tickformat": ".2~%",
            "range": [-0.08 * worst, worst * 1.28],
        },
        yaxis={**_title(say("clusters.cards_freed"), standoff=6), "range": [0, best * 1.18]},
        margin={"l": 52, "r": 8, "t": 6, "b": 40},
        height=height_px,
    )
    return {"data": data, "layout": layout}


def weekly_bars_figure(weeks: Sequence[WeekRealised], currency: str) -> Figure:
    """Realised saving per week: marginal (solid) inside amortised (pale); cards where nothing is priced."""
    x = [reader_words().day(week.start).replace(" ", "<br>").replace("月", "月<br>") for week in weeks]
    green = STATE_COLOURS[CardState.FREE]
    has_money = any(week.amortised is not None for week in weeks)
    if has_money:
        data = [
            _bar(x, [_float(week.amortised) for week in weeks], _rgba(green, 0.35), say("figure.amortised")),
            _bar(x, [_float(week.marginal) for week in weeks], green, say("figure.marginal")),
        ]
    else:
        data = [_bar(x, [week.cards for week in weeks], green, say("health.cards"))]
    axis = say("figure.currency_week", currency=currency) if has_money else say("health.cards")
    layout = figure_layout(
        barmode="overlay",
        xaxis={"type": "category", "showgrid": False},
        yaxis={**_title(axis, standoff=6), "rangemode": "tozero", "tickformat": "~s", "nticks": 5},
        margin={"l": 56, "r": 8, "t": 26, "b": 38},
        height=220,
        showlegend=has_money,
        legend={"orientation": "h", "x": 1, "xanchor": "right", "y": 1.0, "yanchor": "bottom", "font": {"size": 11}},
    )  # fmt: skip
    return {"data": data, "layout": layout}


def promise_figure(outcomes: Sequence[Outcome]) -> Figure:
    """Cards promised against cards realised, one dot per plan; below the line less came true than was said."""
    top = max([1, *(max(o.promised_cards_freed, o.realised_cards_freed) for o in outcomes)]) * 1.12
    line = {"type": "scatter", "mode": "lines", "x": [0, top], "y": [0, top], "hoverinfo": "skip",
            "line": {"color": GRID_LINE, "width": 2}}  # fmt: skip
    dots = {
        "type": "scatter",
        "mode": "markers+text",
        "x": [o.promised_cards_freed for o in outcomes],
        "y": [o.realised_cards_freed for o in outcomes],
        "text": [f"{format_plan_id(o.plan_id)}  " for o in outcomes],
        "textposition": "middle left",
        "cliponaxis": False,
        "textfont": {"size": 11},
        "hovertemplate": f"{say('figure.plan')} %{{text}}<br>{say('figure.promised')} %{{x}}, "
        f"{say('savings.freed')} %{{y}}<extra></extra>",
        "marker": {
            "size": 10,
            "color": STATE_COLOURS[CardState.FREE],
            "symbol": ["circle" if o.is_final else "circle-open" for o in outcomes],
            "line": {"width": 2},
        },
    }
    layout = figure_layout(
        xaxis={**_title(say("figure.cards_promised")), "range": [0, top]},
        yaxis={**_title(say("figure.cards_realised_axis"), standoff=6), "range": [0, top]},
        margin={"l": 48, "r": 8, "t": 8, "b": 38},
        height=220,
    )
    return {"data": [line, dots], "layout": layout}


def signal_figure(signal: Signal) -> Figure:
    """One watched signal as a small multiple, its threshold as a line."""
    steps = list(range(len(signal.values)))
    known = [value for value in signal.values if value is not None]
    top = max([signal.threshold * 1.25, *known, 1e-9])
    data = [
        _line(steps, signal.values, ACCENT, "y", say_code("event", signal.name), "%{y:.4g} " + signal.unit),
        {"type": "scatter", "mode": "lines", "x": [0, max(1, len(steps) - 1)], "y": [signal.threshold] * 2,
         "line": {"color": DANGER, "width": 1, "dash": "dash"}, "hoverinfo": "skip"},
    ]  # fmt: skip
    layout = figure_layout(
        xaxis={"visible": False},
        yaxis={"range": [0, top * 1.05], "nticks": 3},
        margin={"l": 40, "r": 4, "t": 4, "b": 6},
        height=84,
    )
    return {"data": data, "layout": layout}


def _compute_traces(times: list[str], history: WorkloadHistory) -> list[Figure]:
    blue = STATE_COLOURS[CardState.BUSY]
    low = {**_line(times, history.compute_p50, blue, "y", "p50", "p50 %{y:.1%}"), "line": {"color": blue, "width": 1}}
    high = {**_line(times, history.compute_p95, blue, "y", "p95", "p95 %{y:.1%}")}
    high["line"] = {"color": blue, "width": 0.5}
    peaks = {
        "type": "scatter",
        "mode": "markers",
        "x": times,
        "y": list(history.compute_max),
        "marker": {"size": 2.5, "color": _rgba(blue, 0.75)},
        "hovertemplate": "max %{y:.1%}<extra></extra>",
    }
    return [_band(times, history.compute_p50, history.compute_p95, _rgba(blue, 0.3)), low, high, peaks]


def _band(times: list[str], low: Series, high: Series, fill: str) -> Figure:
    """The area between two lines as closed shapes, one per stretch without a gap."""
    xs: list[str | None] = []
    ys: list[float | None] = []
    stretch: list[int] = []
    for place in range(len(times) + 1):
        if place < len(times) and low[place] is not None and high[place] is not None:
            stretch.append(place)
            continue
        if stretch:
            back = stretch[::-1]
            xs += [*(times[i] for i in stretch), *(times[i] for i in back), times[stretch[0]], None]
            ys += [*(low[i] for i in stretch), *(high[i] for i in back), low[stretch[0]], None]
            stretch = []
    return {"type": "scatter", "mode": "lines", "x": xs, "y": ys, "fill": "toself", "fillcolor": fill,
            "line": {"width": 0}, "hoverinfo": "skip"}  # fmt: skip


def _framebuffer_traces(times: list[str], history: WorkloadHistory) -> list[Figure]:
    def gib(values: Series) -> Series:
        return tuple(None if value is None else value / GIB for value in values)

    def line(values: Series, colour: str, name: str) -> Figure:
        return _line(times, gib(values), colour, "y2", name, name + " %{y:.1f} GiB")

    traces = [
        {**line(history.framebuffer_used_bytes, CLEAR, say("figure.used")),
         "fill": "tozeroy", "fillcolor": "rgba(230,159,0,0.35)"},
        {**line(history.framebuffer_granted_bytes, MID_GREY, say("tenants.granted")),
         "line": {"color": MID_GREY, "width": 1.5, "dash": "dash", "shape": "hv"}},
    ]  # fmt: skip
    if history.framebuffer_need_bytes is not None:
        traces.append(line(history.framebuffer_need_bytes, STATE_COLOURS[CardState.BUSY], say("figure.needed")))
    return traces


def _outline(hours: frozenset[int]) -> tuple[list[float | None], list[float | None]]:
    """Edges between hours that are in the set and neighbours that are not."""
    xs: list[float | None] = []
    ys: list[float | None] = []
    for hour in sorted(hours):
        day, x = divmod(hour, 24)
        for is_open, start, end in (
            (x == 0 or hour - 1 not in hours, (x - 0.5, day - 0.5), (x - 0.5, day + 0.5)),
            (x == 23 or hour + 1 not in hours, (x + 0.5, day - 0.5), (x + 0.5, day + 0.5)),
            (hour - 24 not in hours, (x - 0.5, day - 0.5), (x + 0.5, day - 0.5)),
            (hour + 24 not in hours, (x - 0.5, day + 0.5), (x + 0.5, day + 0.5)),
        ):
            if is_open:
                xs += [start[0], end[0], None]
                ys += [start[1], end[1], None]
    return xs, ys


def _lines(points: tuple[list[float | None], list[float | None]], colour: str, width: float, name: str) -> Figure:
    return {"type": "scatter", "mode": "lines", "x": points[0], "y": points[1], "fill": "none", "fillcolor": CLEAR,
            "line": {"color": colour, "width": width}, "hoverinfo": "skip", "name": name}  # fmt: skip


def _line(x: Sequence[object], y: Series, colour: str, axis: str, name: str, hover: str) -> Figure:
    return {
        "type": "scatter",
        "mode": "lines",
        "x": list(x),
        "y": list(y),
        "yaxis": axis,
        "name": name,
        "line": {"color": colour, "width": 1.5},
        "hovertemplate": hover + "<extra></extra>",
    }


def _points(
    points: Sequence[FrontierPoint], places: Sequence[str], colour: str, symbol: str, size: int, mode: str,
    width: int = 0,
) -> Figure:  # fmt: skip
    return {
        "type": "scatter",
        "mode": mode,
        "x": [point.violation_ratio for point in points],
        "y": [point.cards_freed for point in points],
        "text": [f"  {reader_words().in_english('recorded.', point.label)}  " for point in points],
        "textposition": list(places),
        "textfont": {"size": 11},
        "hovertemplate": f"%{{text}}: %{{y}} {say('health.cards_counted')}, {say('figure.harm')} %{{x:.3~%}}"
        "<extra></extra>",
        "marker": {"color": colour, "symbol": symbol, "size": size, "line": {"width": width, "color": colour}},
    }


def _bar(x: list[str], y: Sequence[float | None], colour: str, name: str) -> Figure:
    return {"type": "bar", "x": x, "y": list(y), "name": name, "marker": {"color": colour}, "width": 0.6,
            "hovertemplate": f"{name} %{{y:,.0f}}<extra></extra>"}  # fmt: skip


def _title(words: str, **more: int) -> Figure:
    return {"title": {"text": words, "font": {"size": 11}, **more}}


def _domains(weights: Sequence[float]) -> list[tuple[float, float]]:
    """Vertical domains from the top down, with a gap between two."""
    gap = 0.05
    usable = 1 - gap * (len(weights) - 1)
    domains: list[tuple[float, float]] = []
    top = 1.0
    for weight in weights:
        bottom = top - usable * weight / sum(weights)
        domains.append((max(0.0, round(bottom, 4)), round(top, 4)))
        top = bottom - gap
    return domains


def _event_symbol(kind: str) -> str:
    return {"oom": "x", "restart": "triangle-up", "change": "diamond"}.get(kind, "circle")


def _event_colour(kind: str) -> str:
    return {"oom": DANGER, "change": ACCENT}.get(kind, MID_GREY)


def _rgba(colour: str, alpha: float) -> str:
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha})"


def _ratio(values: Sequence[float | None], place: int) -> float | None:
    return values[place] if place < len(values) else None


def _percent(value: float | None) -> str:
    return say("figure.not_seen_hour") if value is None else f"{value:.0%}"


def _float(value: object) -> float | None:
    return None if value is None else float(str(value))
