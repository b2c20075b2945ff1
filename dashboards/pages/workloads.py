"""Workloads: what is this service, and what may I do with it?

Without a choice, a table of all workloads; with one (`?w=namespace/Kind/name`) its state in words, four strips on one
time axis, its week as a heat map, what gputide proposes for it, what it refused, and what a request or a token costs.
"""

from __future__ import annotations

from collections import Counter
from shlex import quote
from typing import Any

from dash import Dash, Input, Output, State, dcc, html, no_update

from dashboards.address import RANGES, Address, read_address
from dashboards.figures.figures import hour_of_week_figure, strips_figure
from dashboards.pages.downloads import downloads, register_rows
from dashboards.pages.frame import (
    card,
    div,
    figure_number,
    graph,
    grid,
    missing,
    number_column,
    page,
    scrolled,
    shown,
    table,
    text_column,
)
from dashboards.queries import PlanEntry, Views
from dashboards.view_models.grid_rows import GridRows, Places
from dashboards.view_models.made_once import MADE
from dashboards.view_models.rows import (
    percent_words,
    saving_words,
    state_sentence,
    workload_state_words,
    workload_table,
)
from dashboards.words.advice import change_words, finding_words, reason_words, refusal_words, state_words
from dashboards.words.reading import READING, reader_words, say, say_code
from fleet.decisions import Plan, Recommendation
from fleet.errors import Corrupt, Misconfigured, Unavailable
from fleet.inventory import LATENCY_CRITICAL_LABEL, OPT_OUT_LABEL
from fleet.money.unit_costs import UnitCost
from fleet.profiles import Profile, Profiles, WorkloadState
from fleet.units import format_bytes_short, format_count

KEYS = ("cluster", "w", "team", "range")
"""Values of the address that build the page anew."""

FILE_COLUMNS = (
    "workload", "namespace", "class", "state", "cards", "pods", "compute_p95", "framebuffer_granted_gib",
    "framebuffer_need_gib", "idle_since", "off_peak_hours", "coverage_ratio", "confidence",
)  # fmt: skip


def layout(views: Views, address: Address, profiles: Profiles) -> Any:
    """The page for one cluster, or for one workload of it."""
    wanted = address.get("w")
    if wanted is None:
        return _all(address, profiles)
    profile = next((item for item in profiles.workloads if item.workload == wanted), None)
    if profile is None:
        why = say("workloads.workload_has_no_live_pod_cluster", workload=wanted, cluster=profiles.cluster)
        return missing(say("workloads.no_such_workload"), why, "gputide workloads")
    entries = views.plans.plans(profiles.cluster)
    return _one(views, address, profiles, profile, entries[0] if entries else None)


def register(app: Dash, views: Views) -> None:
    """Callbacks of the page."""

    @app.callback(
        Output("address", "href", allow_duplicate=True),
        Input("workloads-chosen", "data"),
        State("address", "pathname"),
        State("address", "search"),
        prevent_initial_call=True,
    )
    def _choose(row: dict[str, Any] | None, path: str, search: str) -> Any:
        if not row or not isinstance(row.get("key"), str):
            return no_update
        return read_address(path, search).href("/workloads", w=row["key"], team=None)

    register_rows(app, "workloads", FILE_COLUMNS, lambda address: _asked(views, address))


def _table(profiles: Profiles) -> GridRows[Profile]:
    return MADE.of((profiles,), ("workload table", READING.get()), lambda: workload_table(profiles))


def _asked(views: Views, address: Address) -> tuple[GridRows[Profile], Places | None]:
    """The table that an address means, and the rows of its team, where it names one."""
    rows = _table(views.fleet.profiles(address.get("cluster") or views.fleet.clusters()[0]))
    team = address.get("team")
    return rows, None if team is None else rows.where("namespace", (team,))


def _all(address: Address, profiles: Profiles) -> Any:
    team = address.get("team")
    counts = Counter(profile.state for profile in profiles.workloads if team in (None, profile.namespace))
    if not counts:
        why = say("tenants.nobody_holds_card_place", place=team or profiles.cluster)
        return missing(say("workloads.no_workloads"), why, "gputide workloads")
    what = say("workloads.of_team", team=team) if team else say("workloads.workloads_counted")
    numbers = [figure_number(format_count(counts.total()), what)]
    held = [state for state in WorkloadState if counts[state]]
    numbers += [figure_number(format_count(counts[state]), workload_state_words(state)) for state in held]
    columns = [
        text_column("workload", say("term.workload"), 280),
        text_column("class", say("workloads.class"), 100),
        text_column("state", say("tenants.state"), 100),
        number_column("cards", say("health.cards"), 0, 90),
        number_column("pods", say("plan.pods"), 0, 90),
        number_column("compute_p95", say("fleet.compute_p95_short"), 0, 100, is_ratio=True),
        number_column("framebuffer_granted_gib", say("workloads.granted_gib"), 1, 120, min_px=90),
        number_column("framebuffer_need_gib", say("workloads.needed_gib"), 1, 120, min_px=90),
        text_column("idle_since", say("fleet.idle_since_utc"), 140),
        number_column("off_peak_hours", say("workloads.off_peak_h"), 0, 110, min_px=100),
        number_column("coverage_ratio", say("health.coverage"), 0, 115, min_px=105, is_ratio=True),
        number_column("confidence", say("plan.confidence"), 0, 125, min_px=115, is_ratio=True),
    ]
    title = say("workloads.heading_of_team", team=team) if team else say("page.workloads")
    all_teams = dcc.Link(say("workloads.all_teams"), href=address.href(team=None)) if team else None
    of = [(key, address.get(key)) for key in ("cluster", "team")]
    rows = grid("workloads", title, columns, row_key="workload", height_px=680, of=of)
    listed = card(title, rows, note=[all_teams, *downloads("workloads")])
    return page("workloads", say("page.workloads"), div("headline small", *numbers), listed)


def _one(views: Views, address: Address, profiles: Profiles, profile: Profile, entry: PlanEntry | None) -> Any:
    history = views.fleet.history(profiles.cluster, profile.workload, RANGES[address.time_range])
    why = say("workloads.no_window_workload_arrived")
    strips = missing(say("workloads.no_history_range"), why, "gputide run rollup --drain")
    if history is not None and history.times:
        strips = graph(strips_figure(history), id="strips", name=say("workloads.use_over_time"))
    has_rate = history is None or history.request_rate is not None
    rate = "" if has_rate else say("workloads.no_request_rate_is_known")
    week = hour_of_week_figure(profile.hour_of_week, profile.off_peak_hours)
    drawn = [
        card(say("workloads.use_over_time"), strips, note=say("workloads.p50_p95_band_max_dots_dashed") + rate,
             export="use", has_figure=True),
        card(say("workloads.week_zone", zone=profile.time_zone),
             graph(week, id="week", name=say("workloads.compute_p95_by_hour_week")),
             note=say("workloads.compute_p95_outlined_hours_promised"), export="week", has_figure=True),
    ]  # fmt: skip
    said = [
        card(say("workloads.what_gputide_proposes"), *_proposals(address, profile, entry)),
        card(say("workloads.what_refused"), *_refusals(profile, entry)),
        *_beside(profile, address),
        unit_cost(views, profiles.cluster, profile.workload),
        card(say("workloads.what_you_may_do"), *_actions(profile)),
    ]
    split = div("split wide", html.Div(drawn), html.Div(said))
    return div("page workload", _header(address, profile, profiles), split)


def _header(address: Address, profile: Profile, profiles: Profiles) -> Any:
    name = profile.workload.split("/", 2)[-1]
    kind = say_code("class", profile.workload_class)
    level = say("fleet.level_priority", level=say_code("level", profile.priority))
    need = profile.framebuffer.need_max
    needed = say("workloads.need_hidden_by_pre_allocation")
    if need is not None:
        needed = say("workloads.needs_size", size=format_bytes_short(need))
    team = dcc.Link(profile.namespace, href=address.href(w=None, team=profile.namespace))
    counted = say("workloads.pod_counted" if len(profile.pods) == 1 else "workloads.pods_counted")
    on_cards = say("workloads.on_count_cards", count=len(profile.cards))
    granted = say("workloads.ratio_granted", ratio=percent_words(profile.compute.granted_ratio, 0))
    return div(
        "headline",
        div(
            "who",
            dcc.Link(say("workloads.all_workloads"), href=address.href(w=None), className="back"),
            html.H1(name),
            html.P([team, f" · {profile.workload_kind} · {kind} · {level}"], className="soft"),
            html.P(state_sentence(profile, profiles.as_of), className="sentence"),
            html.P(state_words(profile, READING.get()), className="soft"),
        ),
        figure_number(format_count(len(profile.pods)), counted, note=on_cards),
        figure_number(percent_words(profile.compute.p95, 0), say("fleet.compute_p95"), note=granted),
        figure_number(format_bytes_short(profile.framebuffer.granted), say("workloads.granted_per_slice"), note=needed),
        figure_number(percent_words(profile.coverage_ratio, 1), say("health.coverage"), note=_trust(profile)),
    )


def _trust(profile: Profile) -> str:
    if profile.is_trusted:
        return say("workloads.counters_trusted")
    return f"▲ {say_code('check', profile.trust[0].check)}"


def _proposals(address: Address, profile: Profile, entry: PlanEntry | None) -> list[Any]:
    if entry is None:
        return [html.P([say("workloads.no_plan_yet"), html.Code("gputide plan make")])]
    plan = entry.plan
    found = [item for item in plan.recommendations if profile.workload in item.workloads]
    if not found:
        return [html.P(say("workloads.nothing_stays_as"))]
    return [_proposal(address, plan, item) for item in found]


def _proposal(address: Address, plan: Plan, item: Recommendation) -> Any:
    kind, freed = say_code("kind", item.kind), say("workloads.count_cards_freed", count=item.cards_freed)
    href = address.href("/plan", plan=plan.plan_id, open=_stage_of(plan, item.id))
    balance = say(
        "workloads.saving_week_risk_level_confidence_ratio", saving=saving_words(item.saving_per_week, plan.currency),
        level=say_code("level", item.risk_level), ratio=percent_words(item.confidence, 0),
    )  # fmt: skip
    return div(
        "proposal",
        html.H3([f"{kind} ", html.Code(item.id), " · ", freed]),
        html.P(reason_words(item, READING.get())),
        html.P([html.B(say("workloads.would_change")), change_words(item, READING.get())], className="soft"),
        html.P(balance, className="soft"),
        _evidence(item.evidence.numbers),
        dcc.Link(say("workloads.see_plan"), href=href, className="button"),
    )


def _evidence(numbers: tuple[tuple[str, float], ...]) -> Any:
    rows = [(shown(name.replace("_", " ")), f"{value:,.4g}") for name, value in numbers]
    return table(((say("workloads.evidence"), "t"), (say("workloads.value"), "n")), rows)


def _stage_of(plan: Plan, name: str) -> str | None:
    return next((str(stage.stage) for stage in plan.stages if name in stage.recommendations), None)


def _refusals(profile: Profile, entry: PlanEntry | None) -> list[Any]:
    refused = [] if entry is None else [item for item in entry.plan.refused if item.workload == profile.workload]
    words = reader_words()
    lines: list[Any] = []
    for item in refused:
        kind = words.code("kind", item.kind.value if item.kind else "all_advice")
        reason = html.B(words.code("reason", item.reason))
        lines.append(html.Li([reason, f" ({kind}): ", refusal_words(item, READING.get())]))
    lines += [
        html.Li([html.B(words.code("check", found.check)), ": ", finding_words(found, words.language)])
        for found in profile.trust
    ]
    return [html.Ul(lines)] if lines else [html.P(say("workloads.nothing"), className="soft")]


def _beside(profile: Profile, address: Address) -> list[Any]:
    """How fast it was beside its neighbours, where that was measured."""
    columns = (
        (say("workloads.neighbour"), "t"),
        (say("workloads.speed_beside"), "n"),
        (say("workloads.interval"), "n"),
    )
    rows = [
        (
            [
                dcc.Link(one.neighbour, href=address.href(w=one.neighbour)),
                html.Small(f"{say_code('speed_by', one.measured_by)}, {say('workloads.days', count=one.days)}"),
            ],
            percent_words(one.speed_ratio, 0),
            f"{percent_words(one.speed_ratio_min, 0)} – {percent_words(one.speed_ratio_max, 0)}",
        )
        for one in profile.beside
    ]
    title = say("workloads.beside_neighbours")
    return [card(title, scrolled(table(columns, rows), name=title))] if rows else []


def _actions(profile: Profile) -> list[Any]:
    kind = profile.workload_kind.lower()
    # Anybody who copies a command runs it: a name stays one word of it, and turns nothing around it.
    name = quote(profile.workload.split("/", 2)[-1])
    annotate = f"kubectl -n {quote(profile.namespace)} annotate {quote(kind)} "
    commands = (
        (say("workloads.leave_alone"), annotate, name, f" {OPT_OUT_LABEL}=true"),
        (say("workloads.latency_critical"), annotate, name, f" {LATENCY_CRITICAL_LABEL}=true"),
        (say("workloads.what_proposed"), "gputide plan show", "", ""),
    )
    return [
        div(
            "command",
            html.Span(words),
            html.Code([before, html.Bdi(told), after]),
            dcc.Clipboard(content=f"{before}{told}{after}", title=say("frame.copy"), className="copy"),
        )
        for words, before, told, after in commands
    ]


def unit_cost(views: Views, cluster: str, workload: str) -> Any:
    """Its units over the last week, with what a million of them cost, or why not; None where nobody counts any."""
    title = say("unit_cost.unit_cost")
    try:
        found = [one for one in views.money.unit_costs(cluster) if one.workload == workload]
    except (Misconfigured, Unavailable, Corrupt) as exc:
        return card(title, html.P(str(exc), className="soft"))
    if not found:
        return None
    columns = ((say("unit_cost.unit"), "t"), (say("unit_cost.last_week"), "n"), (say("unit_cost.million_costs"), "n"))
    rows = table(columns, [_row(one, views.money.currency) for one in found])
    return card(title, scrolled(rows, name=title), note=say("unit_cost.cost_by_allocation_over_what_was"))


def _row(one: UnitCost, currency: str) -> tuple[Any, ...]:
    count = format_count(round(one.count)) if one.count is not None else html.Span("–", title=one.fault)
    price: Any = "–" if one.per_million is None else f"{one.per_million:,.4f} {currency}"
    if one.per_million is not None and one.is_partly_priced:
        price = html.Span(f"≥ {price}", title=say("unit_cost.some_its_card_hours_have_no"))
    return say_code("unit", one.unit), count, price
