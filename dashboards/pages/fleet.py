"""Fleet: where are the cards idle?

Headline, state bar, card map, table; a click on a square or a row opens the card's panel. Of a very large fleet a
square is a group of nodes, and a click on it shows its cards. The address holds state, group, node and card.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from dash import Dash, Input, Output, State, ctx, dcc, html, no_update

from dashboards.address import Address, read_address
from dashboards.figures.card_map import (
    SMALL_FLEET_CARDS,
    SquareKind,
    card_map_drawing,
    fleet_groups,
    fleet_squares,
    lay_out,
    square_kind,
)
from dashboards.figures.cost_days import hours_drawing
from dashboards.pages.card import holders
from dashboards.pages.downloads import downloads, register_rows
from dashboards.pages.frame import (
    card,
    div,
    drawn,
    figure_number,
    grid,
    missing,
    number_column,
    page,
    shown,
    span,
    spoken,
    text_column,
)
from dashboards.pages.measures import known_week, measures_card
from dashboards.queries import NotMadeYet, PlanEntry, Views
from dashboards.tokens import STATE_LETTERS
from dashboards.view_models.grid_rows import GridRows, Places
from dashboards.view_models.made_once import MADE
from dashboards.view_models.node_groups import NodeGroup, group_with
from dashboards.view_models.rows import (
    age_words,
    card_table,
    idle_nodes,
    moment_words,
    money_words,
    percent_words,
    price_per_week,
    state_shares,
)
from dashboards.words.advice import refusal_words
from dashboards.words.reading import READING, reader_words, say, say_code
from fleet.errors import Corrupt, Misconfigured, Unavailable
from fleet.money.week_hours import IDLE, WASTED, WeekHours, part_of
from fleet.profiles import CardProfile, CardState, HourMeasure, Profiles
from fleet.units import format_bytes_short, format_count

KEYS = ("cluster", "group")
"""Values of the address that build the page anew; the others change it in place."""

FILE_COLUMNS = (
    "card", "node", "model", "state", "compute_p95", "held_gib", "framebuffer_gib", "idle_since", "owner", "workload",
    "coverage_ratio", "price_per_week",
)  # fmt: skip
AGAIN_MS = 3_000
"""Pause between two questions for a figure that could not be made yet."""
HOURLY_DAYS = 7
"""Days that the figure over time shows, by the hour."""
MAP_COLUMNS = 85
SMALL_MAP_COLUMNS = 48
"""Up to this many cards squares are drawn larger."""
SQUARE_PX = 12.6


def layout(views: Views, address: Address, profiles: Profiles) -> Any:
    """The page for one cluster."""
    if not profiles.cards:
        why = say("fleet.no_card_cluster_sent_anything_yet", cluster=profiles.cluster)
        return missing(say("fleet.no_cards"), why, "gputide doctor")
    group = _group(address, profiles)
    week = known_week(views, profiles.cluster)
    return page(
        "fleet",
        say("page.fleet"),
        _headline(views, address, profiles, week),
        _state_bar(address, profiles),
        div("over-time", *_over_time(views, address, profiles), id="over-time"),
        div(
            "split",
            card(
                say("fleet.cards_by_model_node"),
                _way_up(address, group),
                drawn(_card_map(profiles, group), id="card-map", name=say("fleet.every_card_by_model_node")),
                dcc.Store(id="map-chosen"),
                note=say("fleet.bar_compute_p95_notch_framebuffer"),
                export="card-map",
                has_figure=True,
                class_name="map",
            ),
            html.Aside(id="side", className="card side", **spoken(say("fleet.chosen_card"))),
        ),
        measures_card(week),
        card(
            say("fleet.cards"),
            grid(
                "cards",
                say("fleet.cards"),
                _columns(views),
                row_key="card",
                height_px=420,
                of=[(key, address.get(key)) for key in KEYS],
                filters=_filter(address)[0],
            ),
            note=[html.Span(id="cards-filter"), *downloads("cards")],
        ),
    )


def _over_time(views: Views, address: Address, profiles: Profiles) -> tuple[Any, ...]:
    """What became of every hour of the last days, whole days of the newest among them; asked again while it is summed.

    Nothing for who sees some namespaces alone: hours are known of the whole cluster.
    """
    title = say("fleet.cards_over_time")
    try:
        found = views.money.cost_days(profiles.cluster, is_quarter=False)
    except NotMadeYet as exc:
        again = dcc.Interval(id="over-time-again", interval=AGAIN_MS)
        return card(title, html.P(str(exc), className="soft")), again
    except (Misconfigured, Unavailable, Corrupt) as exc:
        return (card(title, html.P(str(exc), className="soft")),)
    if found is None or not len(found.hourly):
        return ()
    week = found.between(found.until - timedelta(days=HOURLY_DAYS), found.until)
    shown = card(
        title,
        drawn(hours_drawing(week, height_px=150), name=title),
        note=dcc.Link(say("fleet.cost_of_it"), href=address.href("/cost")),
        export="cards-over-time",
        has_figure=True,
    )
    return (shown,)


def _group(address: Address, profiles: Profiles) -> NodeGroup | None:
    """The group of nodes that the address looks into, where the map is one of groups."""
    node = address.get("group")
    if node is None or square_kind(profiles, None) is not SquareKind.GROUP:
        return None
    return group_with(fleet_groups(profiles), node)


def _way_up(address: Address, group: NodeGroup | None) -> Any:
    if group is None:
        return None
    nodes = f"{group.card_model}: {group.nodes[0]} – {group.nodes[-1]}"
    back = dcc.Link(say("fleet.all_nodes"), href=address.href(group=None, node=None, card=None), className="back")
    return html.P([back, f" {nodes}"], className="soft")


def _card_map(profiles: Profiles, group: NodeGroup | None) -> dict[str, Any]:
    return MADE.of(
        (profiles,), ("card map", READING.get(), None if group is None else group.name), lambda: _drawn(profiles, group)
    )


def _drawn(profiles: Profiles, group: NodeGroup | None) -> dict[str, Any]:
    squares = fleet_squares(profiles, group)
    columns = MAP_COLUMNS if len(squares) > SMALL_FLEET_CARDS else SMALL_MAP_COLUMNS
    drawing = card_map_drawing(lay_out(squares, columns), square_px=SQUARE_PX * MAP_COLUMNS / columns)
    return {**drawing, "chosen": "map-chosen"}


def _asked(views: Views, address: Address) -> tuple[GridRows[CardProfile], Places | None]:
    """The table that an address means, and the rows of its group of nodes, where it names one."""
    profiles = views.fleet.profiles(address.get("cluster") or views.fleet.clusters()[0])
    prices = views.money.prices(profiles.cluster)
    rows = MADE.of((profiles, prices), ("card table", READING.get()), lambda: card_table(profiles, prices))
    group = _group(address, profiles)
    return rows, None if group is None else rows.where("node", group.nodes)


def register(app: Dash, views: Views) -> None:
    """Callbacks of the page."""
    register_rows(app, "cards", FILE_COLUMNS, lambda address: _asked(views, address))

    @app.callback(
        Output("address", "search", allow_duplicate=True),
        Input("map-chosen", "data"),
        Input("cards-chosen", "data"),
        State("address", "pathname"),
        State("address", "search"),
        prevent_initial_call=True,
    )
    def _choose(square: dict[str, Any] | None, row: dict[str, Any] | None, path: str, search: str) -> Any:
        address = read_address(path, search)
        is_square = ctx.triggered_id == "map-chosen"
        key = ((square if is_square else row) or {}).get("key")
        if not isinstance(key, str):
            return no_update
        profiles = views.fleet.profiles(address.get("cluster") or views.fleet.clusters()[0])
        kind = SquareKind.CARD
        if is_square:
            kind = square_kind(profiles, _group(address, profiles))
        return address.href(**{kind.value: key}).removeprefix(address.path)

    @app.callback(
        Output("over-time", "children"),
        Input("over-time-again", "n_intervals"),
        State("address", "pathname"),
        State("address", "search"),
        prevent_initial_call=True,
    )
    def _again(asked: int | None, path: str, search: str) -> Any:
        address = read_address(path, search)
        profiles = views.fleet.profiles(address.get("cluster") or views.fleet.clusters()[0])
        found = _over_time(views, address, profiles)
        return no_update if len(found) > 1 and asked else list(found)

    @app.callback(
        Output("side", "children"),
        Output("cards-grid", "data-filters"),
        Output("cards-filter", "children"),
        Input("address", "search"),
        State("address", "pathname"),
    )
    def _show(search: str, path: str) -> Any:
        address = read_address(path, search)
        if address.path != "/":
            return no_update, no_update, no_update
        profiles = views.fleet.profiles(address.get("cluster") or views.fleet.clusters()[0])
        filters, words = _filter(address)
        clear = dcc.Link(say("fleet.clear"), href=address.href(state=None, node=None, card=None)) if words else None
        return _side(views, address, profiles), json.dumps(filters), [words, " " if words else None, clear]


def _headline(views: Views, address: Address, profiles: Profiles, week: WeekHours | str) -> Any:
    entries = views.plans.plans(profiles.cluster)
    totals = entries[0].plan.totals if entries else None
    is_applied = bool(entries) and _is_applied(entries[0])
    on_nodes = say("fleet.on_count_nodes", count=len({item.node for item in profiles.cards}))
    freed, note = "–", say("fleet.no_plan_yet")
    following: Any = html.Code("gputide plan make")
    if totals is not None:
        freed = format_count(0 if is_applied else totals.cards_freed)
        whole = say("plan.count_whole_nodes", count=totals.nodes_freed)
        note = say("fleet.newest_plan_applied") if is_applied else whole
        href, style = address.href("/plan"), "button primary"
        following = dcc.Link(say("fleet.review_plan"), href=href, className=style, id="review-plan")
    return div(
        "headline",
        figure_number(format_count(len(profiles.cards)), say("health.cards_counted"), note=on_nodes),
        *_wasted(week),
        figure_number(freed, say("fleet.would_be_free_by_plan"), note=note),
        following,
    )


def _wasted(week: WeekHours | str) -> tuple[Any, Any]:
    """Share of the card hours that were unallocated or idle, and what they cost."""
    share, cost = say("fleet.of_card_hours_unallocated_or_idle"), say("fleet.unallocated_or_idle_week")
    if isinstance(week, str):
        nothing = say("fleet.not_known_yet")
        return figure_number("–", share, note=nothing), figure_number("–", cost, note=nothing)
    total = week.total
    wasted, hours = part_of(total, WASTED), sum(one.card_hours for one in total.values())
    parts = [money_words(part_of(total, chosen).cost, week.currency) for chosen in ((HourMeasure.UNALLOCATED,), IDLE)]
    ratio, in_week = wasted.card_hours / hours if hours else None, round(wasted.card_hours)
    both = say("fleet.unallocated_and_idle", unallocated=parts[0], idle=parts[1])
    return (
        figure_number(percent_words(ratio, 0), share, note=say("fleet.card_hours_in_week", count=in_week)),
        figure_number(money_words(wasted.cost, week.currency), cost, note=both),
    )


def _is_applied(entry: PlanEntry) -> bool:
    """Whether nothing of a plan is left to apply: what it frees is then free already."""
    stages = set(entry.plan.rollout_stages)
    return bool(stages) and entry.undone_at is None and stages <= set(entry.applied_stages)


def _state_bar(address: Address, profiles: Profiles) -> Any:
    """The cards' states in proportion, and below them what each is, how much of the fleet, and a link to its cards."""
    shares = MADE.of((profiles,), "state shares", lambda: state_shares(profiles))
    chosen = address.get("state")
    hidden: Any = {"aria-hidden": "true"}
    drawn = [
        span(f"share {_css(share.state)}", html.B(STATE_LETTERS[share.state]), style={"flexGrow": share.cards})
        for share in shares
    ]
    links = [
        dcc.Link(
            html.Span(
                [
                    html.B(STATE_LETTERS[share.state], className="letter"),
                    html.Span(f" {say_code('state', share.state)} "),
                    html.B(percent_words(share.ratio, 0 if share.ratio >= 0.01 else 1)),
                ]
            ),
            href=address.href(state=None if chosen == share.state.value else share.state.value, card=None, node=None),
            className=f"segment {_css(share.state)}",
            title=f"{say_code('state', share.state)}: {say('count.cards', count=share.cards)}",
        )
        for share in shares
    ]
    return html.Div([html.Div(drawn, id="state-shares", **hidden), html.Div(links, id="state-bar")])


def _css(state: CardState) -> str:
    return state.value.replace("_", "-")


def _filter(address: Address) -> tuple[dict[str, str], str]:
    """The grid's filters, and what they say, for the state or node that the address names."""
    state, node = address.get("state"), address.get("node")
    if node is not None:
        return {"node": f"={node}"}, say("fleet.node_node", node=node)
    if state in set(CardState):
        words = say_code("state", state)
        return {"state_word": f"={words}"}, words
    return {}, ""


def _side(views: Views, address: Address, profiles: Profiles) -> Any:
    wanted, node = address.get("card"), address.get("node")
    if wanted is not None:
        found = next((item for item in profiles.cards if item.card == wanted), None)
        if found is None:
            return [
                html.H2(say("fleet.no_such_card")),
                html.P([html.Code(wanted), " ", say("fleet.no_card_cluster", cluster=profiles.cluster)]),
            ]
        return _card_panel(views, address, profiles, found)
    if node is not None:
        return _node_panel(address, profiles, node)
    return _waste_panel(address, profiles)


def _card_panel(views: Views, address: Address, profiles: Profiles, found: CardProfile) -> Any:
    used = found.framebuffer_used_max
    held = say("savings.not_collected") if used is None else format_bytes_short(used)
    idle = found.idle_since
    price = price_per_week(found, profiles, views.money.prices(profiles.cluster))
    facts: list[tuple[str, Any]] = [
        (say("fleet.model"), found.card_model),
        (say("term.node"), dcc.Link(found.node, href=address.href(node=found.node, card=None))),
        (say("fleet.compute_p95"), percent_words(found.compute_p95, 1)),
        (say("fleet.framebuffer"), say("fleet.used_all", used=held, all=format_bytes_short(found.framebuffer_bytes))),
        (
            say("fleet.idle_since"),
            "–" if idle is None else f"{moment_words(idle)}, {age_words((profiles.as_of - idle).total_seconds())}",
        ),
        (say("health.coverage"), percent_words(found.coverage_ratio, 1)),
        (say("fleet.price"), say("fleet.money_week", money=money_words(price, views.money.currency))),
    ]
    return [
        html.Header([_chip(found.state), _close(address.href(card=None))]),
        html.Code(found.card, className="uuid"),
        html.P(shown(found.reason)),
        html.Dl([part for name, value in facts for part in (html.Dt(name), html.Dd(value))]),
        *holders(address, profiles, found),
        html.P(dcc.Link(say("card.over_time_link"), href=address.href("/card", card=found.card))),
    ]


def _node_panel(address: Address, profiles: Profiles, node: str) -> Any:
    cards = [item for item in profiles.cards if item.node == node]
    return [
        html.Header([html.H2(node), _close(address.href(node=None))]),
        html.P(
            say("count.cards", count=len(cards))
            if cards
            else say("fleet.no_card_node_name_cluster", cluster=profiles.cluster)
        ),
        html.P(dcc.Link(say("node.how_it_hands_out"), href=address.href("/node", node=node), id="node-mode"))
        if cards
        else None,
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
    """Without a choice, the panel names the nodes with most idle or unallocated cards: the place to click next."""
    words = reader_words()
    worst = MADE.of((profiles,), "idle nodes", lambda: idle_nodes(profiles))
    lines = [
        html.Li(
            [dcc.Link(name, href=address.href(node=name)), span("right", say("list.done_all", done=idle, all=all_))]
        )
        for name, idle, all_ in worst
    ]
    return [
        html.Header([html.H2(say("fleet.most_idle_nodes_now"))]),
        html.Ul(lines, className="holders") if lines else html.P(say("fleet.no_card_idle_or_unallocated_now")),
        html.P(say("fleet.click_square_see_its_card_who"), className="soft"),
        *([html.H3(say("fleet.withheld"))] if profiles.withheld else []),
        html.Ul(
            [
                html.Li([f"{words.code('kind', item.kind.value)}: ", refusal_words(item, words.language)])
                for item in profiles.withheld
            ]
        ),
    ]


def _close(href: str) -> Any:
    """Back to the panel without a choice."""
    return dcc.Link([html.Span("×"), html.Span(say("fleet.close"), className="unseen")], href=href, className="close")


def _chip(state: CardState) -> Any:
    letter = html.B(STATE_LETTERS[state], className="letter")
    return span(f"chip {_css(state)}", letter, f" {say_code('state', state)}")


def _columns(views: Views) -> list[dict[str, Any]]:
    price = say("fleet.currency_week", currency=views.money.currency)
    return [
        text_column("node", say("term.node"), 130),
        text_column("card", say("term.card"), 150),
        text_column("model", say("fleet.model"), 140),
        text_column("letter", "", 32, is_still=True),
        text_column("state_word", say("tenants.state"), 100),
        number_column("compute_p95", say("fleet.compute_p95_short"), 0, 100, is_ratio=True),
        number_column("held_gib", say("fleet.held_gib"), 1, 110),
        number_column("framebuffer_gib", say("fleet.of_gib"), 0, 90),
        text_column("idle_since", say("fleet.idle_since_utc"), 140),
        text_column("owner", say("fleet.owner"), 120),
        number_column("coverage_ratio", say("health.coverage"), 0, 110, is_ratio=True),
        number_column("price_per_week", price, 0, 120, min_px=104),
    ]
