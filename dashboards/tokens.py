"""Design tokens: every colour, size and font of the pages, the figures, the grid and the report, and nothing else.

The pages read them as CSS variables (`css_variables`), Plotly as a layout (`figure_layout`), the weekly report as a
small style sheet of its own (`report_css`). State colours are the same in light and dark and survive colour blindness
(Okabe and Ito, Color Universal Design, 2008); they fill marks and never carry text.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from fleet.profiles import CardState, HourMeasure

STATE_COLOURS: Mapping[CardState, str] = MappingProxyType(
    {
        CardState.BUSY: "#0072B2",
        CardState.LOW_USE: "#56B4E9",
        CardState.IDLE_HELD: "#E69F00",
        CardState.FREE: "#009E73",
        CardState.UNTRUSTED: "#CC79A7",
    }
)
"""Fill of a mark by state of the card."""

MEASURE_COLOURS: Mapping[HourMeasure, str] = MappingProxyType(
    {
        HourMeasure.USED: STATE_COLOURS[CardState.BUSY],
        HourMeasure.UNUSED: STATE_COLOURS[CardState.LOW_USE],
        HourMeasure.IDLE_HELD: STATE_COLOURS[CardState.IDLE_HELD],
        HourMeasure.IDLE: "#F2CE7E",
        HourMeasure.STRANDED: "#9AA5B1",
        HourMeasure.UNALLOCATED: STATE_COLOURS[CardState.FREE],
    }
)
"""Fill of card hours by what became of them: the colours of the states that they come from."""

STATE_INK: Mapping[CardState, str] = MappingProxyType(
    {
        CardState.BUSY: "#FFFFFF",
        CardState.LOW_USE: "#0B1220",
        CardState.IDLE_HELD: "#0B1220",
        CardState.FREE: "#0B1220",
        CardState.UNTRUSTED: "#0B1220",
    }
)
"""Text upon a state colour, contrast of 4.5 and more."""

STATE_LETTERS: Mapping[CardState, str] = MappingProxyType(
    {
        CardState.BUSY: "B",
        CardState.LOW_USE: "L",
        CardState.IDLE_HELD: "H",
        CardState.FREE: "F",
        CardState.UNTRUSTED: "?",
    }
)
"""The letter that says the state where colour can't."""

DANGER = "#D55E00"
"""Harm and nothing else."""
ACCENT = "#0F8B8D"
"""Marks of what can be clicked; text takes the theme's own accent, whose contrast is higher."""
MID_GREY = "#7B8794"
"""A mark that must be seen on light and on dark paper."""
GRID_LINE = "rgba(123,135,148,0.25)"
CLEAR = "rgba(0,0,0,0)"

LIGHT: Mapping[str, str] = MappingProxyType(
    {
        "paper": "#F6F8FA",
        "sheet": "#FFFFFF",
        "raised": "#FFFFFF",
        "ink": "#17212B",
        "ink-soft": "#52606D",
        "line": "#D9E0E6",
        "line-soft": "#E9EDF1",
        "hover": "#EEF3F6",
        "accent": "#0B6E70",
        "accent-ink": "#FFFFFF",
        "accent-soft": "#DFF1F0",
        "warn": "#8A5300",
        "warn-soft": "#FDF0D5",
        "danger": "#A84300",
        "danger-soft": "#FBE6DA",
        "good": "#00664A",
    }
)
"""Neutral scale and text colours on light paper; every text colour has a contrast of 4.5 or more on its ground."""

DARK: Mapping[str, str] = MappingProxyType(
    {
        "paper": "#10161D",
        "sheet": "#171F28",
        "raised": "#1F2933",
        "ink": "#E6EBF0",
        "ink-soft": "#A3B0BD",
        "line": "#323F4B",
        "line-soft": "#26313C",
        "hover": "#212C37",
        "accent": "#4FC6C3",
        "accent-ink": "#0B1A1A",
        "accent-soft": "#17393A",
        "warn": "#F0B849",
        "warn-soft": "#3A2E14",
        "danger": "#FF9A5C",
        "danger-soft": "#41261A",
        "good": "#4FD1A5",
    }
)

FONT_STACK = 'system-ui, -apple-system, "Segoe UI", "Noto Sans", "PingFang SC", "Microsoft YaHei", sans-serif'
MONO_STACK = 'ui-monospace, "SF Mono", "Cascadia Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace'
FONT_SIZE_PX = 14
SMALL_SIZE_PX = 12
GRID_PX = 8


def css_variables() -> str:
    """The tokens as CSS: light by default, dark where the system or the reader asks for it."""
    names = {state: f"--state-{state.value.replace('_', '-')}" for state in STATE_COLOURS}
    states = "".join(f"{name}:{STATE_COLOURS[state]};{name}-ink:{STATE_INK[state]};" for state, name in names.items())
    fixed = (
        f"--font:{FONT_STACK};--mono:{MONO_STACK};--text-px:{FONT_SIZE_PX}px;--small-px:{SMALL_SIZE_PX}px;"
        f"--step:{GRID_PX}px;--harm:{DANGER};{states}"
    )
    dark = _declarations(DARK)
    return (
        f":root{{color-scheme:light;{fixed}{_declarations(LIGHT)}}}\n"
        f"@media (prefers-color-scheme:dark){{:root:not([data-theme=light]){{color-scheme:dark;{dark}}}}}\n"
        f":root[data-theme=dark]{{color-scheme:dark;{dark}}}\n"
    )


def figure_layout(**changes: Any) -> dict[str, Any]:
    """Plotly's template as a layout: no frame, no toolbar space, ink taken from the page's CSS.

    Args:
        **changes: keys of Plotly's layout that one figure sets for itself.
    """
    axis = {
        "gridcolor": GRID_LINE,
        "linecolor": GRID_LINE,
        "zerolinecolor": GRID_LINE,
        "ticks": "",
        "automargin": False,
        "fixedrange": True,
        "title": {"font": {"size": SMALL_SIZE_PX}, "standoff": 4},
    }
    layout: dict[str, Any] = {
        "paper_bgcolor": CLEAR,
        "plot_bgcolor": CLEAR,
        "font": {"family": FONT_STACK, "size": SMALL_SIZE_PX, "color": MID_GREY},
        "margin": {"l": 44, "r": 8, "t": 8, "b": 28},
        "hoverlabel": {"font": {"family": FONT_STACK, "size": SMALL_SIZE_PX}, "align": "left"},
        "hovermode": "closest",
        "dragmode": False,
        "showlegend": False,
        "colorway": [*STATE_COLOURS.values(), MID_GREY],
        "bargap": 0.35,
    }
    for name, value in changes.items():
        layout[name] = {**axis, **value} if name.startswith(("xaxis", "yaxis")) else value
    layout.setdefault("xaxis", axis)
    layout.setdefault("yaxis", axis)
    return layout


def report_css() -> str:
    """Style of the weekly report: one A4 page, readable in grey, nothing loaded from anywhere."""
    ink, soft, line = LIGHT["ink"], LIGHT["ink-soft"], LIGHT["line"]
    return (
        f"body{{font:13px/1.45 {FONT_STACK};color:{ink};background:#fff;max-width:190mm;margin:12mm auto;"
        "font-variant-numeric:tabular-nums}"
        f"h1{{font-size:21px;line-height:1.25;margin:0 0 4px}}h2{{font-size:14px;margin:18px 0 6px;"
        f"border-bottom:1px solid {line};padding-bottom:2px}}"
        f".soft,small{{color:{soft}}}small{{font-size:11px;display:block}}"
        ".figures{display:flex;gap:16px;margin:14px 0}.figures>div{flex:1;border-top:3px solid;padding-top:6px}"
        ".figures b{font-size:24px;display:block;line-height:1.15}"
        "table{border-collapse:collapse;width:100%;font-size:12px}th{text-align:left;font-weight:600}"
        f"th,td{{padding:3px 8px 3px 0;border-bottom:1px solid {line};vertical-align:top}}"
        "td.n,th.n{text-align:right;white-space:nowrap}code{font-family:" + MONO_STACK + ";font-size:11px;"
        "overflow-wrap:anywhere}"
        "svg{width:100%;height:auto;display:block}"
        f"a{{color:{LIGHT['accent']}}}.name{{overflow-wrap:anywhere}}.over{{color:{LIGHT['danger']};font-weight:700}}"
        ".wide{overflow-x:auto}td.w{min-width:7em}td.n+td:not(.n),th.n+th:not(.n){padding-left:12px}"
        "@media (max-width:640px){body{margin:16px;max-width:none}.figures{flex-direction:column;gap:10px}"
        ".wide table,.wide svg{min-width:680px}}"
        "@media print{@page{size:A4;margin:14mm}body{margin:0;max-width:none}.detail{break-before:page}"
        ".wide{overflow:visible}h2{break-after:avoid}a{color:inherit}tr{break-inside:avoid}"
        "body{-webkit-print-color-adjust:exact;print-color-adjust:exact}}"
    )


def _declarations(tokens: Mapping[str, str]) -> str:
    return "".join(f"--{name}:{value};" for name, value in tokens.items())
