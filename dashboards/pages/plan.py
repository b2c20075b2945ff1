"""Plan: a pull request for the cluster, to be read, approved, applied, watched and, if need be, taken back.

Buttons that change anything answer only to a request from a page of this person (see `access/sign_in`); apply is
disabled with the reason beside it, never hidden, and undo shows what it restores and keeps before it is pressed.
"""

from __future__ import annotations

from statistics import fmean
from typing import Any

from dash import ALL, MATCH, Dash, Input, Output, State, ctx, dcc, html, no_update

from dashboards.access.sign_in import Access
from dashboards.address import Address, read_address
from dashboards.figures.card_map import SMALL_FLEET_CARDS, Square, card_map_drawing, lay_out, plan_squares
from dashboards.figures.figures import frontier_figure
from dashboards.pages.frame import (
    LIVE,
    card,
    div,
    drawn,
    figure_number,
    graph,
    menu,
    missing,
    scrolled,
    shown,
    verdict_banner,
)
from dashboards.pages.plan_diff import KeptPreviews
from dashboards.pages.plan_diff import register as register_diffs
from dashboards.pages.plan_relief import relief, tide
from dashboards.pages.plan_rollout import (
    apply_reason,
    freeze_bar,
    progress_panel,
    stage_statuses,
    stage_words,
    standing_words,
    undo_reason,
    undo_words,
)
from dashboards.pages.plan_rollout import register as register_freeze
from dashboards.pages.plan_stages import evidence, refused, stage_row
from dashboards.queries import PlanEntry, RolloutPhase, RolloutProgress, Views
from dashboards.view_models.rows import age_words, money_words, percent_words
from dashboards.words.advice import remark_words
from dashboards.words.reading import reader_words, say, say_code
from enforcer.record.harm import leading_verdict
from enforcer.record.verdict import verdict_of
from fleet.capabilities.register import capabilities_of
from fleet.confidence import CONFIDENT_MIN, confident_stages
from fleet.decisions import Plan
from fleet.errors import GputideError, NotEnoughData, Refused
from fleet.outcomes import Outcome
from fleet.profiles import Profiles
from fleet.sentences import sentence
from fleet.units import format_count

KEYS = ("cluster", "plan")
"""Values of the address that build the page anew; the chosen stages change it in place."""

MAP_COLUMNS = 68
SMALL_MAP_COLUMNS = 34
SQUARE_PX = 6.6
LABEL_HEIGHT = 2.8
POLL_MS = 1000


def layout(views: Views, address: Address, profiles: Profiles) -> Any:
    """One plan: the one that the address names, else the newest."""
    entries = views.plans.plans(profiles.cluster)
    wanted = address.get("plan")
    entry = views.plans.plan(wanted) if wanted is not None else (entries[0] if entries else None)
    if entry is None or entry.plan.cluster != profiles.cluster:
        if wanted is not None:
            why = say("plan.no_plan_plan_for_cluster", plan=wanted, cluster=profiles.cluster)
            return missing(say("plan.no_such_plan"), why, "gputide plan list")
        return missing(say("plan.no_plan_yet"), say("plan.plan_made_from_at_least_day"), "gputide plan make")
    plan = entry.plan
    outcomes = views.outcomes.outcomes(profiles.cluster)
    confident, tides = confident_stages(plan), plan.tide_stages
    chosen = chosen_stages(address, plan, confident)
    rows = [stage_row(plan, stage, chosen, address, is_tide=stage.stage in tides) for stage in plan.stages]
    before, after = plan_squares(profiles, plan)
    is_switch = plan.is_of_node
    frontier = html.P(say("plan.drawn_for_whole_clusters_only"), className="soft")
    if plan.frontier:
        name = say("plan.cards_freed_against_predicted_harm_plan")
        frontier = graph(frontier_figure(plan.frontier, height_px=330), id="frontier", name=name)
    return div(
        "page plan",
        dcc.Store(id="plan-id", data=plan.plan_id),
        dcc.Store(id="plan-bump", data=0),
        dcc.Store(id="confident-stages", data=confident),
        dcc.Interval(id="plan-poll", interval=POLL_MS, disabled=True),
        verdict_banner(leading_verdict(entries, outcomes), address, plan.plan_id),
        _title(entry, entries, address, profiles, outcomes),
        None if is_switch else _totals(plan),
        *(html.P(said, className="soft") for said in remark_words(plan, reader_words().language)),
        _action_bar(chosen),
        freeze_bar(views, profiles.cluster),
        html.Div(id="plan-message", role="status"),
        html.Div(id="progress"),
        html.Div(id="preview-answer", **LIVE),
        None if is_switch else div(
            "thirds",
            card(say("plan.saved_against_harm"), frontier, note=say("plan.ring_chosen_grey_naive_rules"),
                 export="frontier", has_figure=True),
            card(say("plan.before"), _map(before, "before", say("plan.every_card_before_plan")),
                 note=say("plan.bar_compute_p95"), class_name="map", export="before", has_figure=True),
            card(say("plan.after"), _map(after, "after", say("plan.every_card_after_plan")),
                 note=say("plan.bar_compute_granted_frame_receives_pod"), class_name="map", export="after",
                 has_figure=True),
        ),
        card(say("plan.stages"), *(rows or [html.P(say("plan.no_stages"), className="soft")]),
             note=_stages_note(plan, confident), export="stages"),
        card(say("plan.by_hand"), scrolled(*evidence(plan, None), name=say("plan.by_hand")), export="by-hand")
        if plan.by_hand else None,
        card(say("plan.tide"), tide(plan), note=say("plan.left_to_tide"), export="tide")
        if plan.schedule else None,
        None if is_switch else relief(views.relief.acts(profiles.cluster), address),
        None if is_switch else refused(plan),
    )  # fmt: skip


def register(app: Dash, views: Views, access: Access) -> KeptPreviews:
    """Callbacks of the page.

    Args:
        access: knows who asks, and whether a click comes from a page of theirs.

    Returns:
        The previews whose objects a browser may ask for.
    """
    _register_selection(app)
    _register_actions(app, views, access)
    _register_progress(app, views)
    _register_evidence(app, views)
    register_freeze(app, views, access)
    return register_diffs(app, views, access)


def chosen_stages(address: Address, plan: Plan, confident: tuple[int, ...]) -> tuple[int, ...]:
    """Stages that the address names, else those that are sure enough to be chosen beforehand."""
    text = address.get("stages")
    if text is None:
        return confident
    named = {int(part) for part in text.split(",") if part.isascii() and part.isdigit()}
    return tuple(stage.stage for stage in plan.stages if stage.stage in named)


def _stages_note(plan: Plan, confident: tuple[int, ...]) -> str:
    safe = say("plan.each_safe_if_plan_stops_after") if plan.stages else ""
    if len(confident) == len(plan.rollout_stages):
        return safe
    least = percent_words(CONFIDENT_MIN, 0)
    return safe + say("plan.not_chosen_for_you_confidence_below", least=least)


def _register_selection(app: Dash) -> None:
    @app.callback(
        Output("address", "search", allow_duplicate=True),
        Input({"type": "stage", "stage": ALL}, "value"),
        State("address", "pathname"),
        State("address", "search"),
        # On the way to another page the stages are gone already, and this with them.
        State("confident-stages", "data", allow_optional=True),
        prevent_initial_call=True,
    )
    def _select(values: list[list[int]], path: str, search: str, confident: list[int] | None) -> Any:
        address = read_address(path, search)
        if address.path != "/plan" or not values:
            return no_update
        chosen = sorted(stage for value in values for stage in value or ())
        text = None if chosen == confident else ",".join(map(str, chosen)) or "0"
        found = address.href(stages=text).removeprefix(address.path)
        return no_update if address.get("stages") == text else found


def _register_actions(app: Dash, views: Views, access: Access) -> None:
    @app.callback(
        Output("plan-message", "children"),
        Output("plan-message", "className"),
        Output("plan-bump", "data"),
        Input("approve", "n_clicks"),
        Input("apply", "n_clicks"),
        Input("undo", "n_clicks"),
        State("plan-id", "data"),
        State({"type": "stage", "stage": ALL}, "value"),
        State("token", "data"),
        State("plan-bump", "data"),
        prevent_initial_call=True,
    )
    def _act(
        approve: int | None,
        apply: int | None,
        undo: int | None,
        plan_id: str,
        values: list[list[int]],
        given: str,
        bump: int,
    ) -> Any:
        clicked = {"approve": approve, "apply": apply, "undo": undo}.get(str(ctx.triggered_id))
        if not clicked:
            return no_update, no_update, no_update
        stages = tuple(sorted(stage for value in values for stage in value or ()))
        try:
            access.check_page_token(given)
            words = _carry_out(views, str(ctx.triggered_id), plan_id, stages, access.who().name)
        except GputideError as exc:
            return shown(exc.said), "message failed", bump + 1
        return words, "message", bump + 1


def _carry_out(views: Views, action: str, plan_id: str, stages: tuple[int, ...], operator: str) -> str:
    if action == "approve":
        entry = views.plans.approve(plan_id, stages, operator)
        said = say("plan.approved_by_who_stages", who=operator, stages=stage_words(entry.approved_stages))
        missing_words = ", ".join(entry.approvals_missing)
        return said + (say("plan.still_needed_who", who=missing_words) if entry.approvals_missing else "")
    if action == "undo":
        views.rollouts.undo(plan_id, operator)
        return say("plan.undo_has_started_restores_what_plan")
    entry_or_none = views.plans.plan(plan_id)
    approved = entry_or_none.approved_stages if entry_or_none is not None else ()
    chosen = tuple(stage for stage in stages if stage in approved)
    if entry_or_none is None or not chosen:
        raise Refused(sentence("plan.no_chosen_stage_approved"))
    tides = entry_or_none.plan.tide_stages
    rolled = tuple(stage for stage in chosen if stage not in tides)
    left = say("plan.left_to_tide") if len(rolled) < len(chosen) else ""
    if not rolled:
        return left
    views.rollouts.apply(plan_id, rolled, operator)
    started = say("plan.apply_has_started_with_stages_canary", stages=stage_words(rolled))
    return f"{started} {left}".rstrip()


def _register_progress(app: Dash, views: Views) -> None:
    @app.callback(
        Output("approve", "children"),
        Output("approve", "disabled"),
        Output("apply", "disabled"),
        Output("apply-reason", "children"),
        Output("undo", "disabled"),
        Output("undo-preview", "children"),
        Output("progress", "children"),
        Output("plan-poll", "disabled"),
        Output({"type": "stage-status", "stage": ALL}, "children"),
        Input("plan-bump", "data"),
        Input("plan-poll", "n_intervals"),
        Input({"type": "stage", "stage": ALL}, "value"),
        State("plan-id", "data"),
    )
    def _refresh(_bump: int, _ticks: int | None, values: list[list[int]], plan_id: str) -> Any:
        progress, entry = _standing(views, plan_id)
        statuses = ctx.outputs_list[-1]
        if entry is None:
            gone = say("plan.plan_gone")
            return say("plan.approve"), True, True, gone, True, None, None, True, [None] * len(statuses)
        chosen = tuple(sorted(stage for value in values for stage in value or ()))
        fresh = tuple(stage for stage in chosen if stage not in entry.approved_stages)
        reason = apply_reason(entry, chosen, progress)
        may_undo = progress.phase is not RolloutPhase.RESTORING and entry.undo_refusal is None
        is_applied = bool(entry.applied_stages) and not progress.is_running
        return (
            say("plan.approve_count_stages", count=len(fresh)) if fresh else say("plan.approved"),
            not fresh or progress.is_running or entry.approve_refusal is not None,
            reason is not None,
            standing_words(entry, reason),
            not (may_undo and (is_applied or progress.is_running)),
            undo_words(views, entry) if may_undo and is_applied else undo_reason(entry, progress),
            progress_panel(progress),
            not progress.is_running,
            stage_statuses(entry, [item["id"]["stage"] for item in statuses]),
        )


def _standing(views: Views, plan_id: str) -> tuple[RolloutProgress, PlanEntry | None]:
    """Where a rollout and its plan stand; no plan where it is gone, or no longer for the person who asks."""
    try:
        # Progress first: a rollout that ends between the two questions is then seen as ended by both.
        return views.rollouts.progress(plan_id), views.plans.plan(plan_id)
    except NotEnoughData:
        return RolloutProgress(phase=RolloutPhase.NOT_STARTED, done=0, total=0), None


def _register_evidence(app: Dash, views: Views) -> None:
    @app.callback(
        Output({"type": "evidence-rows", "stage": MATCH}, "children"),
        Input({"type": "evidence", "stage": MATCH}, "n_clicks"),
        State({"type": "evidence-rows", "stage": MATCH}, "children"),
        State("plan-id", "data"),
        prevent_initial_call=True,
    )
    def _open(clicks: int | None, shown: Any, plan_id: str) -> Any:
        entry = views.plans.plan(plan_id) if clicks and not shown else None
        if entry is None or ctx.triggered_id is None:
            return no_update
        wanted = ctx.triggered_id["stage"]
        return next((evidence(entry.plan, stage) for stage in entry.plan.stages if stage.stage == wanted), no_update)


def _map(squares: tuple[Square, ...], graph_id: str, name: str) -> Any:
    columns = MAP_COLUMNS if len(squares) > SMALL_FLEET_CARDS else SMALL_MAP_COLUMNS
    scale = MAP_COLUMNS / columns
    placed = lay_out(squares, columns, label_height=LABEL_HEIGHT / scale)
    return drawn(card_map_drawing(placed, square_px=SQUARE_PX * scale), id=graph_id, name=name)


def _interval_words(plan: Plan) -> str:
    """How far off harm may be, what was tried, whether it counts on relief, and what days of a busier fleet bring."""
    totals, tried, words = plan.totals, plan.backtested, ""
    if totals.predicted_violation_interval is not None and tried is not None:
        least, most = map(percent_words, totals.predicted_violation_interval)
        words += say("plan.harm_interval", least=least, most=most, within=tried.within_limit, trials=tried.trials)
    if totals.unrelieved_violation_ratio is not None:
        words += say("plan.harm_counts_on_relief", unrelieved=percent_words(totals.unrelieved_violation_ratio))
    if totals.shifted_violation_ratio is not None:
        shifted, times = percent_words(totals.shifted_violation_ratio), f"{totals.shift_ratio:.1f}"
        words += say("plan.harm_shifted", ratio=shifted, times=times)
    return words


def _title(
    entry: PlanEntry,
    entries: tuple[PlanEntry, ...],
    address: Address,
    profiles: Profiles,
    outcomes: tuple[Outcome, ...],
) -> Any:
    plan, now = entry.plan, profiles.as_of
    left = (plan.expires_at - now).total_seconds()
    age, coverage = age_words((now - plan.created_at).total_seconds()), percent_words(plan.history.coverage_ratio, 1)
    days = f"{(plan.history.until - plan.history.since).total_seconds() / 86400:.0f}"
    harm = say("plan.predicted_harm_ratio", ratio=percent_words(plan.totals.predicted_violation_ratio))
    expires = say("plan.expires_age", age=age_words(left)) if left > 0 else _expired(entry)
    facts: tuple[str, ...] = (
        say("plan.made_age_ago_from_days_days", age=age, days=days, ratio=coverage),
        expires,
        harm + _interval_words(plan) + _track_record(outcomes),
        say("plan.risk_level", level=say_code("level", plan.risk)),
        _backend_words(plan),
    )
    if plan.is_of_node:
        # It is made from no history, and nothing is predicted of it.
        made = say("node.made_by_hand", age=age, cards=say("count.cards", count=plan.totals.cards_before))
        facts = made, expires, _backend_words(plan)
    return div(
        "plan-title",
        html.H1([say("page.plan"), " ", html.Code(plan.short_id, title=plan.plan_id)]),
        html.P(" · ".join(facts)),
        menu(say("plan.other_plans"), *[_link_to(other.plan, address) for other in entries[:20]])
        if len(entries) > 1
        else None,
    )


def _expired(entry: PlanEntry) -> str:
    """An approved tide outlives its plan."""
    is_played = not entry.plan.tide_stages.isdisjoint(entry.approved_stages)
    return say("plan.expired_but_nights") if is_played else say("plan.expired")


def _link_to(plan: Plan, address: Address) -> Any:
    made = f"{reader_words().day(plan.created_at)} {plan.created_at:%H:%M}"
    is_switch = plan.is_of_node
    what = (
        reader_words().stage(plan.stages[0].title) if is_switch else say("count.cards", count=plan.totals.cards_freed)
    )
    words = f"{plan.short_id} · {made} · {what}"
    return dcc.Link(words, href=address.href(plan=plan.plan_id, stages=None, open=None))


def _backend_words(plan: Plan) -> str:
    """The backend that the plan is for, its version where one was seen, and whether anything real has accepted it."""
    name = " ".join(part for part in (plan.backend, plan.backend_version) if part)
    if not capabilities_of(plan.backend, plan.backend_version).is_experimental:
        return name
    return say("plan.backend_experimental", backend=name)


def _track_record(outcomes: tuple[Outcome, ...]) -> str:
    judged = [one for one in map(verdict_of, outcomes) if one.observed_ratio is not None][:4]
    if not judged:
        return say("plan.no_plan_was_verified_yet")
    return say(
        "plan.plans_predicted_predicted_observed_observed",
        plans=say("plan.last_count_plans", count=len(judged)),
        predicted=percent_words(fmean(one.predicted_ratio for one in judged)),
        observed=percent_words(fmean(one.observed_ratio or 0.0 for one in judged)),
    )


def _totals(plan: Plan) -> Any:
    totals = plan.totals
    hours = totals.low_priority_gpu_hours_per_week
    in_use = say("plan.before_after_cards_use", before=totals.cards_before, after=totals.cards_after)
    amortised = money_words(totals.saving_per_week.amortised, plan.currency)
    return div(
        "headline",
        figure_number(format_count(totals.cards_freed), say("plan.cards_free_counted"),
                      note=say("plan.count_whole_nodes", count=totals.nodes_freed)),
        figure_number(format_count(totals.spare_cards), say("plan.kept_spare"), note=say("plan.not_counted_as_freed")),
        figure_number(format_count(totals.moves), say("plan.pods_move"), note=in_use),
        figure_number(money_words(totals.saving_per_week.marginal, plan.currency), say("plan.week_marginal"),
                      note=say("saving.amortised", money=amortised)),
        figure_number(f"+{hours / 1000:.1f}k" if hours >= 1000 else f"+{hours:.0f}", say("plan.gpu_h_for_low_priority"),
                      note=say("plan.each_week")),
    )  # fmt: skip


def _action_bar(chosen: tuple[int, ...]) -> Any:
    return div(
        "action-bar",
        html.Button(say("plan.preview_on_api_server"), id="preview", className="button"),
        html.Button(say("plan.approve_count_stages", count=len(chosen)), id="approve", className="button primary"),
        html.Button(say("plan.apply_canary_first"), id="apply", className="button primary", disabled=True),
        html.Span(id="apply-reason", className="reason", **LIVE),
        html.Span(className="space"),
        html.Div(id="undo-preview", className="reason undo-words"),
        html.Button(say("plan.undo"), id="undo", className="button danger", disabled=True),
    )
