"""The back-test as a picture that opens in any browser: what each rule saved against the harm it did.

Called by `gputide plan backtest --picture`; one HTML file that loads nothing from elsewhere.
"""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from plotly.offline import get_plotlyjs

from dashboards.figures.figures import PRESETS, Figure
from dashboards.tokens import ACCENT, GRID_LINE, MID_GREY, figure_layout

INK = "#1f2933"
_HEIGHT_PX = 560
_HARM_SHOWN_MIN = 0.002
"""The axis of harm reaches at least as far, so that next to nothing looks like it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedRule:
    """One rule over all folds.

    Attributes:
        rule: preset or naive rule.
        saved_ratio: cards saved / cards, mean over the folds, 0-1.
        violation_ratio: realised, likewise.
        predicted_violation_ratio: what was said before; None for naive rules.
    """

    rule: str
    saved_ratio: float
    violation_ratio: float
    predicted_violation_ratio: float | None


def backtest_figure(rules: Sequence[JudgedRule]) -> Figure:
    """Saved against realised harm; a thin line leads from each preset to the harm that it had predicted."""
    presets = sorted((rule for rule in rules if rule.rule in PRESETS), key=lambda rule: rule.violation_ratio)
    naive = [rule for rule in rules if rule.rule not in PRESETS]
    predictions = [
        {
            "type": "scatter",
            "mode": "lines+markers",
            "x": [rule.predicted_violation_ratio, rule.violation_ratio],
            "y": [rule.saved_ratio, rule.saved_ratio],
            "line": {"color": MID_GREY, "width": 1},
            "marker": {"symbol": ["circle-open", "circle"], "color": ACCENT, "size": [10, 1]},
            "hovertemplate": f"{html.escape(rule.rule)}: predicted %{{x:.2%}}<extra></extra>",
            "showlegend": False,
        }
        for rule in presets
        if rule.predicted_violation_ratio is not None
    ]
    data = [*predictions, _dots(naive, "naive rules", MID_GREY, "diamond"), _dots(presets, "presets", ACCENT, "circle")]
    predicted = [rule.predicted_violation_ratio or 0.0 for rule in rules]
    worst = max([_HARM_SHOWN_MIN, *predicted, *(rule.violation_ratio for rule in rules)])
    layout = figure_layout(
        xaxis={"title": {"text": "harm: violated share of the active time"}, "tickformat": ".2~%",
               "range": [-0.05 * worst, 1.25 * worst], "gridcolor": GRID_LINE},
        yaxis={"title": {"text": "saved: freed cards"}, "tickformat": ".0%", "rangemode": "tozero",
               "gridcolor": GRID_LINE},
        margin={"l": 72, "r": 16, "t": 16, "b": 56},
        height=_HEIGHT_PX,
        font={"color": INK},
    )  # fmt: skip
    return {"data": data, "layout": layout}


def backtest_page(rules: Sequence[JudgedRule], caption: str) -> str:
    """The figure as one HTML document."""
    figure = json.dumps(backtest_figure(rules)).replace("<", "\\u003c")
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>gputide back-test</title>'
        f'<body style="font:15px system-ui,sans-serif;color:{INK};max-width:60rem;margin:2rem auto;padding:0 1rem">'
        "<h1>What the advice would have been worth</h1>"
        f'<div id="picture"></div><p>{html.escape(caption)}. Dots: what was realised; rings: what our plans had '
        "predicted; diamonds: naive rules, which ask nobody whether he may be moved.</p>"
        f"<script>{get_plotlyjs()}</script>"
        f"<script>const f={figure};Plotly.newPlot('picture',f.data,f.layout,{{responsive:true}})</script></body></html>"
    )


def _dots(rules: Sequence[JudgedRule], name: str, colour: str, symbol: str) -> dict[str, Any]:
    # Rules that did the same are one point with all their names.
    names: dict[tuple[float, float], list[str]] = {}
    for rule in rules:
        names.setdefault((rule.violation_ratio, rule.saved_ratio), []).append(rule.rule)
    return {
        "type": "scatter",
        "mode": "markers+text",
        "name": name,
        "x": [harm for harm, _ in names],
        "y": [saved for _, saved in names],
        "text": [html.escape(", ".join(together)) for together in names.values()],
        "textposition": "top right",
        "marker": {"symbol": symbol, "size": 11, "color": colour},
        "hovertemplate": "%{text}: saved %{y:.1%}, harm %{x:.2%}<extra></extra>",
    }
