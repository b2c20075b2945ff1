"""One node: how it hands out its cards, into which other mode it could be put, and what that would do.

Whoever chose a mode sees its dry run first. It is then kept as a plan of one stage, which the plan page shows for
approval, applies, follows and takes back as it does any other.
"""

from __future__ import annotations

from typing import Any

from dash import ALL, Dash, Input, Output, State, ctx, dcc, html, no_update

from dashboards.access.people import LEAST_ROLES, Deed
from dashboards.access.sign_in import Access
from dashboards.address import Address, read_address
from dashboards.pages.frame import LIVE, card, div, figure_number, missing, shown, span
from dashboards.pages.plan_diff import KeptPreviews, switch_answer
from dashboards.pages.plan_rollout import stage_statuses
from dashboards.queries import PlanEntry, Views
from dashboards.view_models.rows import moment_words
from dashboards.words.reading import reader_words, say, say_code
from enforcer.switch_preview import NodeStanding
from fleet.errors import GputideError, Misconfigured
from fleet.node_changes import NodeMode, NodeSwitch
from fleet.profiles import Profiles

KEYS = ("cluster", "node")
"""Values of the address that build the page anew."""

SLICES_MODES = (NodeMode.VGPU, NodeMode.TIME_SLICING, NodeMode.MPS)
"""Modes that share each card into a number of parts."""


COUNT_DIGITS_MAX = 4
"""Digits of a number of parts."""


def layout(views: Views, address: Address, profiles: Profiles) -> Any:
    """The node that the address names."""
    node = address.get("node")
    cards = [item for item in profiles.cards if item.node == node]
    if node is None or not cards:
        why = say("fleet.no_card_node_name_cluster", cluster=profiles.cluster)
        return missing(say("node.no_such_node"), why, "gputide admin node mode NODE")
    found = views.nodes.standing(profiles.cluster, node)
    entries = [entry for entry in views.plans.plans(profiles.cluster) if _is_of(entry, node)]
    models = say("mark.list").join(sorted({str(item.card_model) for item in cards}))
    offers = say("mark.list").join(f"{name}: {count}" for name, count in found.offers)
    mode = say("node.unknown") if found.mode is None else html.Code(found.mode.value)
    return div(
        "page node",
        div("plan-title", html.H1([f"{say('term.node')} ", html.Code(node)]),
            dcc.Link(say("node.cards_on_map"), href=address.href("/", node=node), className="back")),
        div("headline",
            figure_number(mode, say("node.mode"), note=say("node.offers", offers=offers or "–")),
            figure_number(str(len(cards)), say("health.cards_counted"), note=models)),
        card(say("node.other_mode"), *_form(found)),
        html.Div(id="switch-message", role="status"),
        html.Div(id="switch-answer", **LIVE),
        card(say("node.switches"), html.Ul([_line(entry, address) for entry in entries], className="holders"),
             note=say("node.last_one_first")) if entries else None,
    )  # fmt: skip


def register(app: Dash, views: Views, access: Access, kept: KeptPreviews) -> None:
    """Callbacks of the page.

    Args:
        kept: previews whose objects a browser asks for one by one.
    """

    @app.callback(
        Output("switch-answer", "children"),
        Input({"type": "switch-preview", "mode": ALL}, "n_clicks"),
        State("switch-slices", "value", allow_optional=True),
        State({"type": "cut", "profile": ALL}, "value"),
        State({"type": "cut", "profile": ALL}, "id"),
        State("address", "pathname"),
        State("address", "search"),
        prevent_initial_call=True,
    )
    def _preview(
        clicks: list[int | None],
        slices: str | None,
        counts: list[Any],
        ids: list[dict[str, str]],
        path: str,
        search: str,
    ) -> Any:
        if not any(clicks) or ctx.triggered_id is None:
            return no_update
        mode = ctx.triggered_id["mode"]
        is_cut = mode == NodeMode.MIG
        asked = {
            "mode": mode,
            "slices": slices if mode in SLICES_MODES else None,
            "profiles": {one["profile"]: count for one, count in zip(ids, counts, strict=True)} if is_cut else {},
        }
        address = read_address(path, search)
        cluster = _cluster(views, address)
        try:
            switch = _switch(address.get("node"), asked)
            found = views.nodes.preview(cluster, switch)
        except GputideError as exc:
            return html.P(shown(exc.said), className="message failed")
        title = reader_words().say("stage.node_switch", node=switch.node, mode=switch.mode.value)
        who_may = say("access.takes_role", role=LEAST_ROLES[Deed.APPROVE].value)
        why_not = None if access.who().may(Deed.APPROVE, cluster, None) else who_may
        return card(
            title,
            *switch_answer(found, access, kept),
            dcc.Store(id="switch-asked", data=asked),
            html.Button(say("node.review"), id="switch-keep", className="button primary",
                        disabled=why_not is not None or found.stage.refusal is not None),
            html.P(why_not, className="soft") if why_not is not None else None,
            note=say("plan.nothing_was_changed"),
        )  # fmt: skip

    @app.callback(
        Output("switch-message", "children"),
        Output("switch-message", "className"),
        Output("address", "href", allow_duplicate=True),
        Input("switch-keep", "n_clicks", allow_optional=True),
        State("switch-asked", "data", allow_optional=True),
        State("token", "data"),
        State("address", "pathname"),
        State("address", "search"),
        prevent_initial_call=True,
    )
    def _keep(clicks: int | None, asked: Any, given: str, path: str, search: str) -> Any:
        if not clicks or ctx.triggered_id != "switch-keep":
            return no_update, no_update, no_update
        address = read_address(path, search)
        try:
            access.check_page_token(given)
            plan_id = views.nodes.keep(_cluster(views, address), _switch(address.get("node"), asked))
        except GputideError as exc:
            return shown(exc.said), "message failed", no_update
        return None, "", address.href("/plan", plan=plan_id)


def _cluster(views: Views, address: Address) -> str:
    return address.get("cluster") or views.fleet.clusters()[0]


def _is_of(entry: PlanEntry, node: str) -> bool:
    return entry.plan.node_switch is not None and entry.plan.node_switch.node == node


def _form(found: NodeStanding) -> list[Any]:
    """Modes to choose from, what else each needs to know, and the button that asks what it would do."""
    if not found.modes:
        return [html.P(say("node.not_the_nodes_choice"), className="soft")]
    fields: list[Any] = []
    modes = {mode for mode, _ in found.modes}
    if modes & {*SLICES_MODES}:
        # NVIDIA's plugin has no number of its own.
        hint = say("node.as_backend_says") if NodeMode.VGPU in modes else say("node.parts_at_least")
        box = dcc.Input(id="switch-slices", inputMode="numeric", placeholder=hint)
        fields.append(html.Label([html.Span(say("node.parts_of_each_card")), box], className="field"))
    for profile, most in found.cuts:
        box = dcc.Input(id={"type": "cut", "profile": profile}, inputMode="numeric", placeholder="0")
        words = [html.Span(say("node.instances_of_profile", profile=profile)), box,
                 html.Small(say("node.at_most", count=most), className="soft")]  # fmt: skip
        fields.append(html.Label(words, className="field"))
    return [*fields, html.Ul([_choice(found, mode, why) for mode, why in found.modes], className="holders modes")]


def _choice(found: NodeStanding, mode: NodeMode, why: str | None) -> Any:
    """A mode, what it is, and the button that asks what it would do."""
    is_present = mode is found.mode
    # Into the present one with other parts of each card, where it has any.
    is_possible = why is None or (is_present and mode is not NodeMode.WHOLE)
    note = say("node.present") if is_present else None if why is None else shown(why)
    ask = html.Button(say("node.show_what_would_change"), id={"type": "switch-preview", "mode": mode.value},
                      className="button", disabled=not is_possible)  # fmt: skip
    return html.Li([html.Code(mode.value), span("words", say_code("node_mode", mode)), ask, html.Small(note)])


def _switch(node: str | None, asked: Any) -> NodeSwitch:
    """The switch that a browser asks for.

    Raises:
        Misconfigured: it is none.
    """
    known: dict[str, Any] = asked if isinstance(asked, dict) else {}
    mode, cuts = known.get("mode"), known.get("profiles")
    counts = {str(profile): _count(count) for profile, count in (cuts if isinstance(cuts, dict) else {}).items()}
    if node is None or mode not in set(NodeMode):
        raise Misconfigured(f"cannot put node {node} into mode {mode}: expected one of {', '.join(NodeMode)}")
    return NodeSwitch(
        node=node,
        mode=NodeMode(mode),
        slices=_count(known.get("slices")),
        profiles=tuple(sorted((profile, count) for profile, count in counts.items() if count)),
    )


def _count(text: Any) -> int | None:
    """A number that somebody typed; None where nobody typed any.

    Raises:
        Misconfigured: it is none.
    """
    if text is None or text == "":
        return None
    if not (isinstance(text, str) and text.isascii() and text.isdigit() and len(text) <= COUNT_DIGITS_MAX):
        raise Misconfigured(f"cannot read {str(text)[:COUNT_DIGITS_MAX]!r}: expected a whole number of parts")
    return int(text)


def _line(entry: PlanEntry, address: Address) -> Any:
    """A plan that switches the node, and where it stands."""
    plan = entry.plan
    state = say("plan.undone") if entry.undone_at is not None else stage_statuses(entry, (1,))[0]
    link = dcc.Link(reader_words().stage(plan.stages[0].title), href=address.href("/plan", plan=plan.plan_id))
    return html.Li([link, span("soft", moment_words(plan.created_at)), span("status", state)])
