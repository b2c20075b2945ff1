"""The big red switch on the plan page: stop every change at once, and let changes go on. Called by `pages.plan`.

Both answer only to a click from a page of the person who asks; the ports refuse who may not.
"""

from __future__ import annotations

from typing import Any

from dash import Dash, Input, Output, State, ctx, html, no_update

from dashboards.access.door import Door
from dashboards.pages.frame import english
from dashboards.queries import Views
from dashboards.words.pages import say
from fleet.errors import GputideError, Refused


def freeze_bar(views: Views, cluster: str) -> Any:
    """The switch as it stands, its button, and a place for the answer to a click."""
    return html.Div(
        [html.Div(_switch(views, cluster), id="freeze-state"), html.Div(id="freeze-message", role="status")],
        className="freeze",
    )


def register(app: Dash, views: Views, door: Door) -> None:
    """Callbacks of the switch.

    Args:
        app: the app.
        views: what they read and change.
        door: knows who asks, and whether a click comes from a page of theirs.
    """

    @app.callback(
        Output("freeze-state", "children"),
        Output("freeze-message", "children"),
        Output("freeze-message", "className"),
        Output("plan-bump", "data", allow_duplicate=True),
        Input("freeze", "n_clicks"),
        Input("thaw", "n_clicks"),
        State("freeze-cluster", "children"),
        State("token", "data"),
        State("plan-bump", "data"),
        prevent_initial_call=True,
    )
    def _throw(freeze: int | None, thaw: int | None, cluster: str, given: str, bump: int) -> Any:
        what = str(ctx.triggered_id)
        if not {"freeze": freeze, "thaw": thaw}.get(what):
            return no_update, no_update, no_update, no_update
        try:
            if not door.is_page_token(given):
                raise Refused("cannot change anything: this page is of another process or session; reload it")
            by = door.who().name
            (views.freezes.freeze if what == "freeze" else views.freezes.thaw)(cluster, by)
        except GputideError as exc:
            return no_update, english(str(exc)), "message failed", no_update
        words = say("Every change is stopped.") if what == "freeze" else say("Changes are allowed again.")
        return _switch(views, cluster), words, "message", bump + 1


def _switch(views: Views, cluster: str) -> Any:
    """Both buttons are always there, so that a click finds the callback; the one that does nothing is hidden."""
    frozen = views.freezes.frozen_by(cluster)
    is_frozen = frozen is not None
    words = say("Frozen by {who}: nothing is applied or undone.", who=frozen) if is_frozen else ""
    return [
        html.Span(cluster, id="freeze-cluster", hidden=True),
        html.Strong(words, className="reason") if words else None,
        html.Button(
            say("Freeze every change"), id="freeze", className="button danger", style=_seen(not is_frozen),
            title=say("Stops what is being applied before its next batch; nothing is changed until it is lifted."),
        ),
        html.Button(say("Lift the freeze"), id="thaw", className="button", style=_seen(is_frozen)),
    ]  # fmt: skip


def _seen(is_seen: bool) -> dict[str, str]:
    """A button that is not there for now; the attribute `hidden` would yield to the button's own style."""
    return {} if is_seen else {"display": "none"}
