"""Plan: a pull request for the cluster, to be read, approved, applied, watched and, if need be, taken back.

Buttons that change anything answer only to a request from a page of the person who asks (see `access/door`); apply is
disabled with the reason beside it, never hidden, and undo shows what it restores and keeps before it is pressed.
"""

from __future__ import annotations

from typing import Any

from dash import ALL, Dash, Input, Output, State, ctx, dcc, html, no_update

from dashboards.access.door import Door
from dashboards.address import Address, read_address
from dashboards.card_map import SMALL_FLEET_CARDS, Square, lay_out, plan_squares
from dashboards.figures import card_map_figure, frontier_figure
from dashboards.page_frame import card, figure_number, graph, missing, table
from dashboards.page_plan_diff import diffs
from dashboards.page_plan_rollout import (
    apply_reason,
    approver_words,
    progress_panel,
    stage_status,
    stage_words,
    undo_reason,
    undo_words,
)
from dashboards.page_plan_tide import tide
from dashboards.queries import PlanEntry, Views
from dashboards.rows import (
    age_words,
    money_words,
    percent_words,
    recommendation_rows,
    refusal_groups,
    saving_words,
    stage_needs,
    stage_owners,
    stage_risk,
)
from fleet.decisions import Plan, Stage
from fleet.errors import GputideError, Refused
from fleet.outcomes import Outcome
from fleet.profiles import Profiles
from fleet.units import format_count

KEYS = ("cluster", "plan")
"""Values of the address that build the page anew; the chosen stages change it in place."""

MAP_COLUMNS = 68
SMALL_MAP_COLUMNS = 34
SQUARE_PX = 6.6
LABEL_HEIGHT = 2.8
ROWS_MAX = 60
POLL_MS = 1000


def layout(views: Views, address: Address, profiles: Profiles) -> Any:
    """One plan: the one that the address names, else the newest."""
    entries = views.plans.plans(profiles.cluster)
    wanted = address.get("plan")
    entry = views.plans.plan(wanted) if wanted is not None else (entries[0] if entries else None)
    if entry is None:
        if wanted is not None:
            return missing("No such plan", f"There is no plan {wanted} for {profiles.cluster}.", "gputide plan list")
        return missing("No plan yet", "A plan is made from at least a day of history.", "gputide recommend")
    plan = entry.plan
    outcomes = views.outcomes.outcomes(profiles.cluster)
    chosen = chosen_stages(address, entry)
    before, after = plan_squares(profiles, plan)
    return html.Div(
        [
            dcc.Store(id="plan-id", data=plan.plan_id),
            dcc.Store(id="plan-bump", data=0),
            dcc.Interval(id="plan-poll", interval=POLL_MS, disabled=True),
            _title(entry, entries, address, profiles, outcomes),
            _totals(plan),
            _action_bar(plan),
            html.Div(id="plan-message", role="status"),
            html.Div(id="progress"),
            html.Div(id="preview-answer"),
            html.Div(
                [
                    card("Saved against harm", graph(frontier_figure(plan.frontier, height_px=330), id="frontier")
                         if plan.frontier else html.P("Drawn for whole clusters only.", className="soft"),
                         note="ring: chosen · grey: naive rules"),
                    card("Before", _map(before, "before"),
                         note="bar: SM active p95", class_name="map"),
                    card("After", _map(after, "after"),
                         note="bar: compute granted · frame: receives a pod", class_name="map"),
                ],
                className="thirds",
            ),
            card("Stages", *[_stage(plan, stage, chosen, address) for stage in plan.stages],
                 note="each is safe if the plan stops after it"),
            card("Tide", tide(plan), note="a schedule: Apply leaves replicas as they are") if plan.schedule else None,
            _refused(plan),
        ],
        className="page plan",
    )  # fmt: skip


def register(app: Dash, views: Views, door: Door) -> None:
    """Callbacks of the page.

    Args:
        app: the app.
        views: what they read and change.
        door: knows who asks, and whether a click comes from a page of theirs.
    """
    _register_selection(app)
    _register_actions(app, views, door)
    _register_progress(app, views)
    _register_diffs(app, views)


def chosen_stages(address: Address, entry: PlanEntry) -> tuple[int, ...]:
    """Stages that the address names, else all of the plan."""
    known = [stage.stage for stage in entry.plan.stages]
    text = address.get("stages")
    if text is None:
        return tuple(known)
    named = {int(part) for part in text.split(",") if part.isascii() and part.isdigit()}
    return tuple(stage for stage in known if stage in named)


def _register_selection(app: Dash) -> None:
    @app.callback(
        Output("address", "search", allow_duplicate=True),
        Input({"type": "stage", "stage": ALL}, "value"),
        State("address", "pathname"),
        State("address", "search"),
        prevent_initial_call=True,
    )
    def _select(values: list[list[int]], path: str, search: str) -> Any:
        address = read_address(path, search)
        if address.path != "/plan" or not values:
            return no_update
        chosen = sorted(stage for value in values for stage in value or ())
        text = None if len(chosen) == len(values) else ",".join(map(str, chosen)) or "0"
        found = address.href(stages=text).removeprefix(address.path)
        return no_update if address.get("stages") == text else found


def _register_actions(app: Dash, views: Views, door: Door) -> None:
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
            if not door.is_page_token(given):
                raise Refused("cannot change anything: this page is of another process or session; reload it")
            words = _carry_out(views, str(ctx.triggered_id), plan_id, stages, door.who().name)
        except GputideError as exc:
            return str(exc), "message failed", bump + 1
        return words, "message", bump + 1


def _carry_out(views: Views, action: str, plan_id: str, stages: tuple[int, ...], operator: str) -> str:
    if action == "approve":
        entry = views.plans.approve(plan_id, stages, operator)
        also = f"; still needed: {', '.join(entry.approvals_missing)}" if entry.approvals_missing else ""
        return f"Approved by {operator}: {stage_words(entry.approved_stages)}{also}"
    if action == "undo":
        views.rollouts.undo(plan_id, operator)
        return "Undo has started; it restores what the plan changed, unless somebody changed it since."
    entry_or_none = views.plans.plan(plan_id)
    approved = entry_or_none.approved_stages if entry_or_none is not None else ()
    chosen = tuple(stage for stage in stages if stage in approved)
    if not chosen:
        raise Refused("cannot apply: none of the chosen stages is approved")
    views.rollouts.apply(plan_id, chosen, operator)
    return f"Apply has started with {stage_words(chosen)}, canary first."


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
        # Progress first: a rollout that ends between the two questions is then seen as ended by both.
        progress = views.rollouts.progress(plan_id)
        entry = views.plans.plan(plan_id)
        statuses = ctx.outputs_list[-1]
        if entry is None:
            return "Approve", True, True, "this plan is gone", True, None, None, True, [None] * len(statuses)
        chosen = tuple(sorted(stage for value in values for stage in value or ()))
        fresh = tuple(stage for stage in chosen if stage not in entry.approved_stages)
        reason = apply_reason(entry, chosen, progress)
        can_undo = bool(entry.applied_stages) and not progress.is_running and entry.undo_refusal is None
        return (
            f"Approve {len(fresh)} stage{'' if len(fresh) == 1 else 's'}" if fresh else "Approved",
            not fresh or progress.is_running or entry.approve_refusal is not None,
            reason is not None,
            f"◂ {reason}" if reason is not None else approver_words(entry),
            not can_undo,
            undo_words(views, entry) if can_undo else undo_reason(entry, progress),
            progress_panel(progress),
            not progress.is_running,
            [stage_status(entry, item["id"]["stage"]) for item in statuses],
        )


def _register_diffs(app: Dash, views: Views) -> None:
    @app.callback(
        Output({"type": "diff", "stage": ALL}, "children"),
        Input({"type": "show-diff", "stage": ALL}, "n_clicks"),
        State({"type": "diff", "stage": ALL}, "children"),
        State("plan-id", "data"),
        prevent_initial_call=True,
    )
    def _show(clicks: list[int | None], shown: list[Any], plan_id: str) -> Any:
        wanted = ctx.triggered_id["stage"] if ctx.triggered_id else None
        outputs = ctx.outputs_list
        answers: list[Any] = [no_update] * len(shown)
        for place, output in enumerate(outputs):
            if output["id"]["stage"] == wanted and clicks[place]:
                is_open = (clicks[place] or 0) % 2 == 1
                answers[place] = _answered(views, plan_id, (wanted,)) if is_open else None
        return answers

    @app.callback(
        Output("preview-answer", "children"),
        Input("preview", "n_clicks"),
        State("plan-id", "data"),
        State({"type": "stage", "stage": ALL}, "value"),
        prevent_initial_call=True,
    )
    def _preview(clicks: int | None, plan_id: str, values: list[list[int]]) -> Any:
        if not clicks:
            return no_update
        stages = tuple(sorted(stage for value in values for stage in value or ()))
        return card("Preview on the API server", _answered(views, plan_id, stages), note="nothing was changed")


def _answered(views: Views, plan_id: str, stages: tuple[int, ...]) -> Any:
    try:
        return diffs(views.plans.preview(plan_id, stages))
    except GputideError as exc:
        return html.P(str(exc), className="message failed")


def _map(squares: tuple[Square, ...], graph_id: str) -> Any:
    columns = MAP_COLUMNS if len(squares) > SMALL_FLEET_CARDS else SMALL_MAP_COLUMNS
    scale = MAP_COLUMNS / columns
    placed = lay_out(squares, columns, label_height=LABEL_HEIGHT / scale)
    return graph(card_map_figure(placed, square_px=SQUARE_PX * scale), id=graph_id)


def _title(
    entry: PlanEntry,
    entries: tuple[PlanEntry, ...],
    address: Address,
    profiles: Profiles,
    outcomes: tuple[Outcome, ...],
) -> Any:
    plan, now = entry.plan, profiles.as_of
    left = (plan.expires_at - now).total_seconds()
    days = (plan.history.until - plan.history.since).total_seconds() / 86400
    return html.Div(
        [
            html.H1(["Plan ", html.Code(plan.plan_id)]),
            html.P(
                f"made {age_words((now - plan.created_at).total_seconds())} ago from {days:.0f} days (coverage "
                f"{percent_words(plan.history.coverage_ratio, 1)}) · "
                f"{f'expires in {age_words(left)}' if left > 0 else 'expired'} · predicted harm "
                f"{percent_words(plan.totals.predicted_violation_ratio)}{_track_record(outcomes)} · "
                f"risk {plan.risk.value} · {plan.backend}"
            ),
            html.Details(
                [
                    html.Summary(["other plans", html.Span(" ▾", className="soft")]),
                    html.Div(
                        [
                            dcc.Link(
                                f"{other.plan.plan_id} · {other.plan.created_at:%d %b %H:%M} · "
                                f"{other.plan.totals.cards_freed} cards",
                                href=address.href(plan=other.plan.plan_id, stages=None, open=None),
                            )
                            for other in entries[:20]
                        ],
                        className="drop",
                    ),
                ],
                className="menu",
            )
            if len(entries) > 1
            else None,
        ],
        className="plan-title",
    )


def _track_record(outcomes: tuple[Outcome, ...]) -> str:
    judged = [outcome for outcome in outcomes if outcome.realised_violation_ratio is not None][:4]
    if not judged:
        return " (no plan was verified yet)"
    foretold = sum(outcome.promised_violation_ratio for outcome in judged) / len(judged)
    came = sum(outcome.realised_violation_ratio or 0.0 for outcome in judged) / len(judged)
    plans = "last plan" if len(judged) == 1 else f"last {len(judged)} plans"
    return f" ({plans}: foretold {percent_words(foretold)}, came {percent_words(came)})"


def _totals(plan: Plan) -> Any:
    totals = plan.totals
    hours = totals.low_priority_gpu_hours_per_week
    in_use = f"{format_count(totals.cards_before)} → {format_count(totals.cards_after)} cards in use"
    return html.Div(
        [
            figure_number(format_count(totals.cards_freed), "cards free",
                          note=f"{format_count(totals.nodes_freed)} whole nodes"),
            figure_number(format_count(totals.spare_cards), "kept spare", note="not counted as freed"),
            figure_number(format_count(totals.moves), "pods move",
                          note=in_use),
            figure_number(money_words(totals.saving_per_week.marginal, plan.currency), "a week, marginal",
                          note=f"{money_words(totals.saving_per_week.amortised, plan.currency)} amortised"),
            figure_number(f"+{hours / 1000:.1f}k" if hours >= 1000 else f"+{hours:.0f}", "GPU-h for low priority",
                          note="each week"),
        ],
        className="headline",
    )  # fmt: skip


def _action_bar(plan: Plan) -> Any:
    return html.Div(
        [
            html.Button("Preview on the API server", id="preview", className="button"),
            html.Button(f"Approve {len(plan.stages)} stages", id="approve", className="button primary"),
            html.Button("Apply ▸ canary first", id="apply", className="button primary", disabled=True),
            html.Span(id="apply-reason", className="reason"),
            html.Span(className="space"),
            html.Div(id="undo-preview", className="reason undo-words"),
            html.Button("Undo", id="undo", className="button danger", disabled=True),
        ],
        className="action-bar",
    )


def _stage(plan: Plan, stage: Stage, chosen: tuple[int, ...], address: Address) -> Any:
    rows = recommendation_rows(plan, stage)
    needs = stage_needs(plan, stage)
    owners = stage_owners(plan, stage)
    columns = (("id", "t"), ("kind", "t"), ("workload", "t"), ("pods", "n"), ("cards", "n"), ("per week", "n"),
               ("confidence", "n"), ("why", "t"))  # fmt: skip
    evidence = table(
        columns,
        [
            (row["id"], row["kind"], row["workload"], row["pods"], row["cards_freed"], row["saving"],
             percent_words(row["confidence"], 0), row["reason"])
            for row in rows[:ROWS_MAX]
        ],
        class_name="evidence",
    )  # fmt: skip
    more = len(rows) - ROWS_MAX
    return html.Div(
        [
            html.Div(
                [
                    dcc.Checklist(
                        id={"type": "stage", "stage": stage.stage},
                        options=[{"label": f"stage {stage.stage}", "value": stage.stage}],
                        value=[stage.stage] if stage.stage in chosen else [],
                        className="tick",
                    ),
                    html.Span(stage.title, className="title"),
                    html.Span([html.B(format_count(stage.cards_freed)), " cards"], className="n"),
                    html.Span([html.B(format_count(stage.moves)), " moves"], className="n"),
                    html.Span(f"risk {stage_risk(plan, stage)}", className=f"risk {stage_risk(plan, stage)}"),
                    html.Span(f"needs {', '.join(needs)}" if needs else "needs nothing new", className="soft needs"),
                    html.Span(id={"type": "stage-status", "stage": stage.stage}, className="status"),
                    html.Button("Diff", id={"type": "show-diff", "stage": stage.stage}, className="quiet"),
                ],
                className="stage-line",
            ),
            html.Div(id={"type": "diff", "stage": stage.stage}),
            html.Details(
                [
                    html.Summary(f"evidence: {format_count(len(rows))} recommendations"),
                    html.Div(evidence, className="evidence-rows"),
                    html.P(f"… and {format_count(more)} more: `gputide plan show`", className="soft")
                    if more > 0
                    else None,
                ],
                open=address.get("open") == str(stage.stage),
            ),
            html.Details(
                [
                    html.Summary(f"who is asked: {len(owners)} teams"),
                    html.P(", ".join(f"{team} ({count})" for team, count in owners)),
                ]
            ),
        ],
        className="stage",
    )


def _refused(plan: Plan) -> Any:
    groups = refusal_groups(plan.refused)
    lines = [
        html.Details(
            [
                html.Summary([html.B(format_count(len(group.workloads))), f" {group.reason} ", html.Small(group.kind)]),
                html.P(f"{group.workloads[0]}: {group.detail}"),
                html.P(", ".join(group.workloads[1:ROWS_MAX]), className="soft"),
            ]
        )
        for group in groups
    ]
    lines += [
        html.Details([html.Summary([html.B("withheld"), f" {item.kind.value.replace('_', ' ')}"]), html.P(item.detail)])
        for item in plan.withheld
    ]
    return card(
        f"Refused {format_count(len(plan.refused))}",
        html.Div(lines or [html.P("Nobody was refused.", className="soft")], className="refused"),
        note=f"saving if all came true: {saving_words(plan.totals.saving_per_week, plan.currency)} a week",
    )
