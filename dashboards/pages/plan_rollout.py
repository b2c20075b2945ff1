"""Where a plan's rollout stands, why a button can't be pressed, and what an undo would do; a part of the plan page.

The big red switch on the plan page: stop every change at once, and let changes go on. Called by `pages.plan`.

Both answer only to a click from a page of the person who asks; the ports refuse who may not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dash import Dash, Input, Output, State, ctx, html, no_update

from dashboards.access.sign_in import Access
from dashboards.figures.figures import signal_figure
from dashboards.pages.frame import LIVE, card, div, graph, shown, span, spoken
from dashboards.queries import ObjectProgress, PlanEntry, RolloutPhase, RolloutProgress, Views
from dashboards.view_models.rows import age_words
from dashboards.words.reading import reader_words, say, say_code
from fleet.errors import GputideError
from fleet.sentences import sentence

OBJECTS_MAX = 60
"""Objects shown on the page."""


def apply_reason(entry: PlanEntry, chosen: tuple[int, ...], progress: RolloutProgress) -> str | None:
    """Why apply can't be pressed, in words; None where it can."""
    if progress.is_running:
        return say("plan.rollout_running")
    if not chosen:
        return say("plan.no_stage_chosen")
    if not set(chosen) & set(entry.approved_stages):
        return reader_words().said(entry.approve_refusal or sentence("plan.chosen_stages_not_approved_yet"))
    tides = entry.plan.tide_stages
    if tides.issuperset(chosen):
        return say("plan.left_to_tide")
    if entry.approvals_missing:
        return say("plan.still_needs_approval_who", who=", ".join(entry.approvals_missing))
    if entry.apply_refusal is not None:
        return reader_words().said(entry.apply_refusal)
    if set(chosen) & set(entry.approved_stages) <= set(entry.applied_stages) | tides:
        return say("plan.these_stages_applied")
    return None


def stage_statuses(entry: PlanEntry, stages: Sequence[int]) -> list[str]:
    """Where each of some stages stands, with a sign."""
    tides, found = entry.plan.tide_stages, []
    for stage in stages:
        sign = say("plan.sign_approved") if stage in entry.approved_stages else say("plan.sign_proposed")
        if stage in entry.applied_stages:
            sign = say("plan.sign_applied")
        elif stage in tides:
            sign = say("plan.sign_tide", sign=sign)
        found.append(sign)
    return found


def approver_words(entry: PlanEntry) -> str:
    """Who approved."""
    return say("plan.approved_by_who", who=", ".join(entry.approved_by)) if entry.approved_by else ""


def standing_words(entry: PlanEntry, reason: str | None) -> str:
    """Why apply can't be pressed, else who approved; then the plan's pull request, as it was seen last."""
    parts = [f"◂ {reason}" if reason is not None else approver_words(entry)]
    if entry.request is not None:
        parts.append(say("plan.request", url=entry.request.url, state=say(f"plan.request_{entry.request.state}")))
    return " · ".join(filter(None, parts))


def undo_words(views: Views, entry: PlanEntry) -> Any:
    """What an undo would restore and keep; an open list behind one line."""
    try:
        preview = views.rollouts.undo_preview(entry.plan.plan_id)
    except GputideError as exc:
        return shown(exc.said)
    restores, cards = len(preview.restores), preview.cards_taken
    summary = say("plan.undo_restores_count_objects_takes_cards", count=restores, cards=cards)
    keeps = say("plan.keeps_count_changed_since", count=len(preview.keeps)) if preview.keeps else ""
    lines = [*(f"↩ {line}" for line in preview.restores), *(f"= {reader_words().said(line)}" for line in preview.keeps)]
    items = [html.Li(shown(line)) for line in lines[:OBJECTS_MAX]]
    return html.Details([html.Summary(summary + keeps), html.Ul(items, className="drop")])


def undo_reason(entry: PlanEntry, progress: RolloutProgress) -> str:
    """Why undo can't be pressed, or what it does to what is being applied."""
    if entry.undo_refusal is not None:
        return reader_words().said(entry.undo_refusal)
    if progress.is_running and progress.phase is not RolloutPhase.RESTORING:
        return say("plan.undo_ends_what_being_applied")
    if progress.is_running:
        return say("plan.undo_waits_for_running_step")
    return say("plan.undone") if entry.undone_at is not None else say("plan.nothing_undo")


def progress_panel(progress: RolloutProgress) -> Any:
    """A rollout as it stands: phases, bar, watched signals against their thresholds, objects."""
    if progress.phase is RolloutPhase.NOT_STARTED:
        return None
    share = progress.done / progress.total if progress.total else 0.0
    left = progress.watch_seconds_left
    path = (RolloutPhase.CANARY, RolloutPhase.WATCHING, RolloutPhase.APPLYING, RolloutPhase.DONE)
    is_back = progress.phase in (RolloutPhase.RESTORING, RolloutPhase.RESTORED, RolloutPhase.FAILED)
    phases = (progress.phase,) if is_back else path
    named = [span("phase on" if one is progress.phase else "phase", say_code("phase", one)) for one in phases]
    said = span("soft", reader_words().said(progress.said or ""))
    signals = [
        div("signal", html.Small(name := say_code("event", signal.name)), graph(signal_figure(signal), name=name))
        for signal in progress.signals
    ]
    return card(
        say("plan.progress"),
        div(f"phases {progress.phase.value}", *named, said, id="progress-phase", **LIVE),
        div(
            "track wide",
            html.Div(className="bar", style={"width": f"{100 * share:.0f}%"}),
            role="progressbar",
            **spoken(say("plan.progress")),
            **_bounds(share),
        ),
        div("signals", *signals) if signals else None,
        html.Ul([_object(item) for item in progress.objects[:OBJECTS_MAX]], className="objects"),
        note=say("list.done_all", done=progress.done, all=progress.total)
        + (say("plan.watching_age_more", age=age_words(left)) if left is not None else ""),
        class_name="progress",
    )


def _object(item: ObjectProgress) -> Any:
    facts = (
        say("phase.canary") if item.is_canary else "",
        say("plan.stage_number", number=item.stage),
        reader_words().said(item.detail),
    )
    phase = span(f"phase-word {item.phase}", f"{_phase_sign(item.phase)} {say_code('phase', item.phase)}")
    return html.Li([phase, html.Span(item.workload), html.Small(" · ".join(filter(None, facts)))])


def _bounds(share: float) -> Any:
    """How far a progress bar stands, in percent, for who hears it."""
    return {"aria-valuenow": f"{100 * share:.0f}", "aria-valuemin": "0", "aria-valuemax": "100"}


def _phase_sign(phase: str) -> str:
    return {"intended": "○", "applied": "◐", "watched": "◑", "promoted": "●", "restored": "↩", "refused": "✕"}.get(
        phase, "·"
    )


def stage_words(stages: tuple[int, ...]) -> str:
    """Stages by their numbers."""
    if len(stages) == 1:
        return say("plan.stage_number", number=stages[0])
    return say("plan.stages_numbers", numbers=", ".join(map(str, stages)))


def freeze_bar(views: Views, cluster: str) -> Any:
    """The switch as it stands, its button, and a place for the answer to a click."""
    return div(
        "freeze", html.Div(_switch(views, cluster), id="freeze-state"), html.Div(id="freeze-message", role="status")
    )


def register(app: Dash, views: Views, access: Access) -> None:
    """Callbacks of the switch.

    Args:
        access: knows who asks, and whether a click comes from a page of theirs.
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
            access.check_page_token(given)
            by = access.who().name
            (views.freezes.freeze if what == "freeze" else views.freezes.thaw)(cluster, by)
        except GputideError as exc:
            return no_update, shown(exc.said), "message failed", no_update
        words = say("plan.every_change_stopped") if what == "freeze" else say("plan.changes_allowed_again")
        return _switch(views, cluster), words, "message", bump + 1


def _switch(views: Views, cluster: str) -> Any:
    """Both buttons are always there, so that a click finds the callback; the one that does nothing is hidden."""
    frozen = views.freezes.frozen_by(cluster)
    is_frozen = frozen is not None
    words = say("plan.frozen_by_who_nothing_applied_or", who=frozen) if is_frozen else ""
    return [
        html.Span(cluster, id="freeze-cluster", hidden=True),
        html.Strong(words, className="reason") if words else None,
        html.Button(
            say("plan.freeze_every_change"), id="freeze", className="button danger", style=_seen(not is_frozen),
            title=say("plan.stops_what_being_applied_before_its"),
        ),
        html.Button(say("plan.lift_freeze"), id="thaw", className="button", style=_seen(is_frozen)),
    ]  # fmt: skip


def _seen(is_seen: bool) -> dict[str, str]:
    """A button that is not there for now; the attribute `hidden` would yield to the button's own style."""
    return {} if is_seen else {"display": "none"}
