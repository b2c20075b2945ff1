"""Fleet: where do the cards stand idle?

Headline, state bar, card map, table; a click on a square or a row opens the card's panel. The address holds state,
node and card.
"""

from __future__ import annotations

from typing import Any

from dash import Dash, Input, Output, State, ctx, dcc, html, no_update

from dashboards.address import Address, read_address
from dashboards.card_map import CARDS_MAX, SMALL_FLEET_CARDS, fleet_squares, lay_out
from dashboards.figures import card_map_figure
from dashboards.page_frame import card, figure_number, graph, grid, missing, number_column
from dashboards.queries import Views
from dashboards.rows import (
    age_words,
    card_rows,
    csv_text,
    fleet_headline,
    moment_words,
    money_words,
    percent_words,
    state_shares,
)
from dashboards.tokens import STATE_LETTERS, STATE_WORDS
from fleet.profiles import CardProfile, CardState, Profiles
from fleet.units import format_bytes_short, format_count

KEYS = ("cluster",)
"""Values of the address that build the page anew; the others change it in place."""

CSV_COLUMNS = (
    "card", "node", "model", "state", "compute_p95", "held_gib", "framebuffer_gib", "idle_since", "owner", "workload",
    "coverage_ratio", "price_per_week",
)  # fmt: skip
MAP_COLUMNS = 85
SMALL_MAP_COLUMNS = 48
"""Up to this many cards squares are drawn larger."""
SQUARE_PX = 12.6


def layout(views: Views, address: Address, profiles: Profiles) -> Any:
    """The page for one cluster."""
    if not profiles.cards:
        return missing("No cards", f"No card of {profiles.cluster} sent anything yet.", "gputide doctor")
    return html.Div(
        [
            _headline(views, address, profiles),
            _state_bar(address, profiles),
            html.Div(
                [
                    card(
                        "Cards by model and node",
                        graph(_card_map(profiles), id="card-map"),
                        note="bar: SM active p95 · notch: framebuffer used · empty frame: unallocated · ×: untrusted",
                        class_name="map",
                    ),
                    html.Aside(id="side", className="card side"),
                ],
                className="split",
            ),
            card(
                "Cards",
                grid("cards-grid", _columns(views), card_rows(profiles, views.prices), row_key="card", height_px=420),
                note=[
                    html.Span(id="cards-filter"),
                    html.Button("CSV", id="cards-csv", className="quiet"),
                    dcc.Download(id="cards-download"),
                ],
            ),
        ],
        className="page fleet",
    )


def _card_map(profiles: Profiles) -> dict[str, Any]:
    columns = MAP_COLUMNS if len(profiles.cards) > SMALL_FLEET_CARDS else SMALL_MAP_COLUMNS
    placed = lay_out(fleet_squares(profiles), columns)
    return card_map_figure(placed, square_px=SQUARE_PX * MAP_COLUMNS / columns)


def register(app: Dash, views: Views) -> None:
    """Callbacks of the page."""

    @app.callback(
        Output("address", "search", allow_duplicate=True),
        Input("card-map", "clickData"),
        Input("cards-grid", "cellClicked"),
        State("address", "pathname"),
        State("address", "search"),
        prevent_initial_call=True,
    )
    def _choose(click: dict[str, Any] | None, cell: dict[str, Any] | None, path: str, search: str) -> Any:
        address = read_address(path, search)
        key: object = None
        if ctx.triggered_id == "card-map" and click:
            key = click["points"][0].get("customdata")
        elif cell:
            key = cell.get("rowId")
        if not isinstance(key, str):
            return no_update
        profiles = views.fleet.profiles(address.get("cluster") or views.fleet.clusters()[0])
        name = "card" if len(profiles.cards) <= CARDS_MAX or ctx.triggered_id != "card-map" else "node"
        return address.href(**{name: key}).removeprefix(address.path)

    @app.callback(
        Output("side", "children"),
        Output("cards-grid", "filterModel"),
        Output("cards-filter", "children"),
        Input("address", "search"),
        State("address", "pathname"),
    )
    def _show(search: str, path: str) -> Any:
        address = read_address(path, search)
        if address.path != "/":
            return no_update, no_update, no_update
        profiles = views.fleet.profiles(address.get("cluster") or views.fleet.clusters()[0])
        model, words = _filter(address)
        clear = dcc.Link("clear", href=address.href(state=None, node=None, card=None)) if words else None
        return _side(views, address, profiles), model, [words, " " if words else None, clear]

    @app.callback(
        Output("cards-download", "data"),
        Input("cards-csv", "n_clicks"),
        State("cards-grid", "virtualRowData"),
        prevent_initial_call=True,
    )
    def _csv(clicks: int | None, rows: list[dict[str, Any]] | None) -> Any:
        if not clicks:
            return no_update
        return {"content": csv_text(CSV_COLUMNS, rows or []), "filename": "cards.csv", "type": "text/csv"}


def _headline(views: Views, address: Address, profiles: Profiles) -> Any:
    numbers = fleet_headline(profiles, views.prices)
    entries = views.plans.plans(profiles.cluster)
    totals = entries[0].plan.totals if entries else None
    idle = "–" if numbers.idle_ratio is None else percent_words(numbers.idle_ratio, 0)
    unpriced = f"{format_count(numbers.unpriced_cards)} cards without a price" if numbers.unpriced_cards else ""
    return html.Div(
        [
            figure_number(format_count(numbers.cards), "cards", note=f"on {format_count(numbers.nodes)} nodes"),
            figure_number(idle, "granted but quiet", note="idle, held or p95 ≤ 20 %"),
            figure_number(
                "–" if totals is None else format_count(totals.cards_freed),
                "would be free by the plan",
                note="no plan yet" if totals is None else f"{format_count(totals.nodes_freed)} whole nodes",
            ),
            figure_number(
                money_words(numbers.wasted_per_week, views.prices.currency),
                "a week stands idle",
                note=unpriced or "idle-held and unallocated",
            ),
            dcc.Link("Review plan →", href=address.href("/plan"), className="button primary", id="review-plan")
            if totals is not None
            else html.Code("gputide recommend"),
        ],
        className="headline",
    )


def _state_bar(address: Address, profiles: Profiles) -> Any:
    chosen = address.get("state")
    return html.Div(
        [
            dcc.Link(
                html.Span(
                    [
                        html.B(STATE_LETTERS[share.state], className="letter"),
                        html.Span(f" {STATE_WORDS[share.state]} "),
                        html.B(percent_words(share.ratio, 0 if share.ratio >= 0.01 else 1)),
                    ]
                ),
                href=address.href(
                    state=None if chosen == share.state.value else share.state.value, card=None, node=None
                ),
                className=f"segment {share.state.value.replace('_', '-')}",
                style={"flexGrow": max(share.ratio, 0.01)},
                title=f"{STATE_WORDS[share.state]}: {share.cards:,} cards",
            )
            for share in state_shares(profiles)
        ],
        className="state-bar",
        id="state-bar",
    )


def _filter(address: Address) -> tuple[dict[str, Any], str]:
    """The grid's filter, and what it says, for the state or node that the address names."""
    state, node = address.get("state"), address.get("node")
    if node is not None:
        return {"node": {"filterType": "text", "type": "equals", "filter": node}}, f"node {node}"
    if state in set(CardState):
        words = STATE_WORDS[CardState(state)]
        return {"state_word": {"filterType": "text", "type": "equals", "filter": words}}, words
    return {}, ""


def _side(views: Views, address: Address, profiles: Profiles) -> Any:
    wanted, node = address.get("card"), address.get("node")
    if wanted is not None:
        found = next((item for item in profiles.cards if item.card == wanted), None)
        if found is None:
            return [html.H3("No such card"), html.P(["No card ", html.Code(wanted), f" in {profiles.cluster}."])]
        return _card_panel(views, address, profiles, found)
    if node is not None:
        return _node_panel(address, profiles, node)
    return _waste_panel(address, profiles)


def _card_panel(views: Views, address: Address, profiles: Profiles, found: CardProfile) -> Any:
    used = found.framebuffer_used_max
    held = "not collected" if used is None else format_bytes_short(used)
    idle = found.idle_since
    price = views.prices.per_card_week(found.card_model)
    facts: list[tuple[str, Any]] = [
        ("model", found.card_model),
        ("node", dcc.Link(found.node, href=address.href(node=found.node, card=None))),
        ("SM active p95", percent_words(found.compute_p95, 1)),
        (
            "framebuffer",
            f"{held} of {format_bytes_short(found.framebuffer_bytes)}",
        ),
        (
            "idle since",
            "–" if idle is None else f"{moment_words(idle)}, {age_words((profiles.as_of - idle).total_seconds())}",
        ),
        ("coverage", percent_words(found.coverage_ratio, 1)),
        ("price", f"{money_words(price, views.prices.currency)} / week"),
    ]
    return [
        html.Header(
            [_chip(found.state), dcc.Link("×", href=address.href(card=None), className="close", title="close")]
        ),
        html.Code(found.card, className="uuid"),
        html.P(found.reason),
        html.Dl([part for name, value in facts for part in (html.Dt(name), html.Dd(value))]),
        html.H4(f"Held by {len(found.workloads)}" if found.workloads else "Granted to nobody"),
        html.Ul(
            [
                html.Li([dcc.Link(name, href=address.href("/workloads", w=name)), *_held_words(profiles, name)])
                for name in found.workloads
            ],
            className="holders",
        ),
    ]


def _held_words(profiles: Profiles, workload: str) -> list[Any]:
    profile = next((item for item in profiles.workloads if item.workload == workload), None)
    if profile is None:
        return []
    words = f"{profile.state.value.replace('_', ' ')} · granted {format_bytes_short(profile.framebuffer.granted)}"
    return [html.Small(words)]


def _node_panel(address: Address, profiles: Profiles, node: str) -> Any:
    cards = [item for item in profiles.cards if item.node == node]
    return [
        html.Header([html.H3(node), dcc.Link("×", href=address.href(node=None), className="close", title="close")]),
        html.P(f"{len(cards)} cards" if cards else f"No card in a node of this name in {profiles.cluster}."),
        html.Ul(
            [
                html.Li([_chip(item.state), dcc.Link(item.card[:18], href=address.href(card=item.card)),
                         html.Small(f"p95 {percent_words(item.compute_p95, 0)}")])
                for item in cards
            ],
            className="holders cards",
        ),
    ]  # fmt: skip


def _waste_panel(address: Address, profiles: Profiles) -> Any:
    """Without a choice, the panel names the nodes with most idle cards: the place to click next."""
    idle: dict[str, int] = {}
    total: dict[str, int] = {}
    for item in profiles.cards:
        total[item.node] = total.get(item.node, 0) + 1
        if item.state in (CardState.IDLE_HELD, CardState.FREE):
            idle[item.node] = idle.get(item.node, 0) + 1
    worst = sorted(idle, key=lambda name: (-idle[name], name))[:10]
    return [
        html.Header([html.H3("Most idle nodes")]),
        html.Ul(
            [
                html.Li(
                    [
                        dcc.Link(name, href=address.href(node=name)),
                        html.Span(f"{idle[name]} of {total[name]}", className="right"),
                    ]
                )
                for name in worst
            ],
            className="holders",
        )
        if worst
        else html.P("No card stands idle."),
        html.P("Click a square to see its card, who shares it and since when it is idle.", className="soft"),
        *([html.H4("Withheld")] if profiles.withheld else []),
        html.Ul([html.Li(f"{item.kind.value.replace('_', ' ')}: {item.detail}") for item in profiles.withheld]),
    ]


def _chip(state: CardState) -> Any:
    return html.Span(
        [html.B(STATE_LETTERS[state], className="letter"), f" {STATE_WORDS[state]}"],
        className=f"chip {state.value.replace('_', '-')}",
    )


def _columns(views: Views) -> list[dict[str, Any]]:
    return [
        {"field": "node", "headerName": "node", "minWidth": 130},
        {"field": "card", "headerName": "card", "minWidth": 150},
        {"field": "model", "headerName": "model", "minWidth": 140},
        {"field": "letter", "headerName": "", "maxWidth": 44, "filter": False, "sortable": False, "minWidth": 44},
        {"field": "state_word", "headerName": "state", "minWidth": 100},
        number_column("compute_p95", "SM p95", ".0%", maxWidth=100),
        number_column("held_gib", "held GiB", ".1f", maxWidth=110),
        number_column("framebuffer_gib", "of GiB", ".0f", maxWidth=90),
        {"field": "idle_since", "headerName": "idle since (UTC)", "minWidth": 140},
        {"field": "owner", "headerName": "owner", "minWidth": 120},
        number_column("coverage_ratio", "coverage", ".0%", maxWidth=110),
        number_column("price_per_week", f"{views.prices.currency}/week", ",.0f", minWidth=104, maxWidth=120),
    ]
