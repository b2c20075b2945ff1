"""What every page shares: the bar on top, the designed empty and error states, tables, and the grid.

Text of tenants goes into the page as text nodes alone; nothing here, or in any page, sets HTML.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import dash_ag_grid as dag
from dash import dcc, html

from dashboards.address import Address
from dashboards.queries import Freshness
from dashboards.rows import age_words, percent_words
from dashboards.tokens import GRID_THEME
from fleet.profiles import Profiles

PAGES = (("/", "Fleet"), ("/workloads", "Workloads"), ("/plan", "Plan"), ("/savings", "Savings"),
         ("/tenants", "Tenants"), ("/health", "Health"))  # fmt: skip
"""Path and title of every page, in the order in which people ask."""

RANGE_PAGES = {
    "/workloads": {"24h": "24 h", "7d": "7 d", "all": "all"},
    "/savings": {"24h": "4 weeks", "7d": "8 weeks", "all": "26 weeks"},
}
"""Pages whose figures follow the time range, and what they call it; the others say which history they stand on."""

GRAPH_CONFIG: Any = {"displayModeBar": False, "responsive": True, "scrollZoom": False, "doubleClick": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Who reads a page.

    Attributes:
        name: name.
        role: their highest role.
        can_sign_out: whether there is a session to end.
    """

    name: str
    role: str
    can_sign_out: bool


def top_bar(
    address: Address,
    clusters: Sequence[str],
    profiles: Profiles | None,
    freshness: Freshness | None,
    reader: Reader,
) -> Any:
    """Cluster and time range on the left, coverage and age of data beside them, pages, search, the reader."""
    cluster = profiles.cluster if profiles is not None else (clusters[0] if clusters else "no cluster")
    return [
        dcc.Link([html.Span("◒", className="mark"), "gputide"], href=address.href("/"), className="brand"),
        html.Details(
            [html.Summary([cluster, html.Span(" ▾", className="soft")], title="cluster"), _clusters(address, clusters)],
            className="menu",
            id="cluster",
        ),
        _range(address, profiles),
        freshness_badge(freshness) if freshness is not None else None,
        html.Nav(
            [
                dcc.Link(
                    title, href=address.href(path), className="page-tab on" if path == address.path else "page-tab"
                )
                for path, title in PAGES
            ]
        ),
        html.Div(
            [
                dcc.Input(
                    id="search",
                    type="search",
                    placeholder="Search card, node, team, workload   /",
                    autoComplete="off",
                    debounce=False,
                    value="",
                ),
                html.Div(id="search-results", className="results"),
            ],
            className="search",
        ),
        html.Button("◐", id="theme", className="quiet", title="Switch between light and dark"),
        _reader(reader) if reader.can_sign_out else None,
    ]


def _reader(reader: Reader) -> Any:
    leave = html.Form(html.Button("Sign out", className="quiet"), action="/sign-out", method="POST")
    return html.Details(
        [
            html.Summary([reader.name, html.Span(" ▾", className="soft")], title=reader.role),
            html.Div([html.P(reader.role, className="soft"), leave], className="drop"),
        ],
        className="menu reader",
        id="reader",
    )


def freshness_badge(freshness: Freshness) -> Any:
    """Coverage and age of the data; amber, with a sign, where they are doubtful."""
    age = "no data" if freshness.age_seconds is None else f"{age_words(freshness.age_seconds)} old"
    sign = "▲ " if freshness.is_doubtful else "● "
    text = f"coverage {percent_words(freshness.coverage_ratio, 1)} · {age}"
    title = (
        "Amber: under 90 % coverage, or over two intervals without data. `gputide doctor` says what is missing."
        if freshness.is_doubtful
        else "Windows with a row / windows expected over the last day, and age of the newest window."
    )
    return html.Span(
        [sign, text], id="freshness", className="badge warn" if freshness.is_doubtful else "badge", title=title
    )


def missing(title: str, why: str, command: str) -> Any:
    """An empty state: what is missing, why, and the one command that mends it."""
    return html.Div(
        [
            html.Div("◌", className="missing-mark"),
            html.H2(title),
            html.P(why),
            html.Div(
                [html.Code(command), dcc.Clipboard(content=command, title="copy", className="copy")],
                className="command",
            ),
        ],
        className="missing",
    )


def failure(message: str) -> Any:
    """An error state: the message as the house words it, and where to look."""
    return html.Div(
        [
            html.Div("▲", className="missing-mark"),
            html.H2("This could not be shown"),
            html.P(message),
            html.Div([html.Code("gputide doctor")], className="command"),
        ],
        className="missing failed",
        role="alert",
    )


def not_allowed(message: str, reader: Reader) -> Any:
    """A page that is not for this reader: why, and who can change that."""
    return html.Div(
        [
            html.Div("◌", className="missing-mark"),
            html.H2("This is not for you to see"),
            html.P(message),
            html.P(f"You are {reader.name}, {reader.role}. Whoever keeps the file of rights can give you more."),
        ],
        className="missing",
        role="alert",
    )


def figure_number(number: str, words: str, *, note: str = "", tone: str = "") -> Any:
    """One headline number with its unit and window."""
    return html.Div(
        [html.B(number, className=tone), html.Span(words), html.Small(note) if note else None], className="number"
    )


def card(title: str, *children: Any, note: Any = None, class_name: str = "") -> Any:
    """A sheet with a heading; `note` stands right of it."""
    return html.Section(
        [html.Header([html.H3(title), html.Span(note, className="note") if note is not None else None]), *children],
        className=f"card {class_name}".strip(),
    )


def graph(figure: dict[str, Any], **props: Any) -> Any:
    """A figure as tall as it says and as wide as its place."""
    return dcc.Graph(
        figure=figure, config=GRAPH_CONFIG, style={"height": f"{figure['layout'].get('height', 240)}px"}, **props
    )


def table(columns: Sequence[tuple[str, str]], rows: Sequence[Sequence[Any]], *, class_name: str = "") -> Any:
    """A small table; a column is its heading and `n` for numbers, `t` for text."""
    return html.Table(
        [
            html.Thead(html.Tr([html.Th(name, className=kind) for name, kind in columns])),
            html.Tbody(
                [
                    html.Tr([html.Td(cell, className=kind) for cell, (_, kind) in zip(row, columns, strict=True)])
                    for row in rows
                ]
            ),
        ],
        className=f"plain {class_name}".strip(),
    )


def grid(
    grid_id: str, columns: list[dict[str, Any]], rows: list[dict[str, Any]], *, row_key: str, height_px: int
) -> Any:
    """A large table: sort, filter, choose; cells are text, never HTML."""
    return dag.AgGrid(
        id=grid_id,
        columnDefs=columns,
        rowData=rows,
        getRowId=f"params.data.{row_key}",
        defaultColDef={
            "sortable": True,
            "filter": True,
            "resizable": True,
            "cellDataType": False,
            "minWidth": 70,
            "suppressMovable": True,
            "floatingFilter": True,
            "suppressHeaderFilterButton": True,
            "suppressFloatingFilterButton": True,
            "suppressHeaderMenuButton": True,
        },
        columnSize="responsiveSizeToFit",
        dashGridOptions={
            "theme": dict(GRID_THEME),
            "animateRows": False,
            "enableCellTextSelection": True,
            "suppressColumnVirtualisation": False,
        },
        dangerously_allow_code=False,
        style={"height": f"{height_px}px", "width": "100%"},
    )


def number_column(field: str, title: str, spec: str, **more: Any) -> dict[str, Any]:
    """A right-aligned column of numbers; `spec` is a d3 format, an absent value an en dash."""
    return {
        "field": field,
        "headerName": title,
        "type": "rightAligned",
        "filter": "agNumberColumnFilter",
        "valueFormatter": {"function": f"params.value == null ? '–' : d3.format('{spec}')(params.value)"},
        **more,
    }


def _clusters(address: Address, clusters: Sequence[str]) -> Any:
    return html.Div([dcc.Link(name, href=address.href(cluster=name)) for name in clusters], className="drop")


def _range(address: Address, profiles: Profiles | None) -> Any:
    if address.path in RANGE_PAGES:
        return html.Div(
            [
                dcc.Link(words, href=address.href(range=name), className="on" if name == address.time_range else "")
                for name, words in RANGE_PAGES[address.path].items()
            ],
            className="segments",
            id="range",
        )
    if profiles is None:
        return None
    days = (profiles.until - profiles.since).total_seconds() / 86400
    text = f"{days:.0f} d: {profiles.since:%d %b} – {profiles.until:%d %b %Y}"
    return html.Span(text, className="soft range", id="range", title="History that these figures stand on, UTC")
