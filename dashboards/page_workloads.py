"""Workloads: what is this service, and what may I do with it?

Without a choice, a table of all workloads; with one (`?w=namespace/Kind/name`) its state in words, four strips on one
time axis, its week as a heat map, what gputide proposes for it and what it refused.
"""

from __future__ import annotations

from typing import Any

from dash import Dash, Input, Output, State, dcc, html, no_update

from dashboards.address import RANGES, Address, read_address
from dashboards.figures import hour_of_week_figure, strips_figure
from dashboards.page_frame import card, figure_number, graph, grid, missing, number_column, table
from dashboards.queries import PlanEntry, Views
from dashboards.rows import csv_text, percent_words, saving_words, state_sentence, workload_rows, workload_state_words
from fleet.decisions import Plan
from fleet.inventory import LATENCY_CRITICAL_LABEL, OPT_OUT_LABEL
from fleet.profiles import Profile, Profiles, WorkloadState
from fleet.units import format_bytes_short, format_count

KEYS = ("cluster", "w", "team", "range")
"""Values of the address that build the page anew."""

CSV_COLUMNS = (
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
        return missing("No such workload", f"{wanted} has no live pod in {profiles.cluster}.", "gputide analyze")
    entries = views.plans.plans(profiles.cluster)
    return _one(views, address, profiles, profile, entries[0] if entries else None)


def register(app: Dash, views: Views) -> None:
    """Callbacks of the page; `views` serves none of them, the rows are on the page."""
    del views

    @app.callback(
        Output("address", "href", allow_duplicate=True),
        Input("workloads-grid", "cellClicked"),
        State("address", "pathname"),
        State("address", "search"),
        prevent_initial_call=True,
    )
    def _choose(cell: dict[str, Any] | None, path: str, search: str) -> Any:
        if not cell or not isinstance(cell.get("rowId"), str):
            return no_update
        return read_address(path, search).href("/workloads", w=cell["rowId"], team=None)

    @app.callback(
        Output("workloads-download", "data"),
        Input("workloads-csv", "n_clicks"),
        State("workloads-grid", "virtualRowData"),
        prevent_initial_call=True,
    )
    def _csv(clicks: int | None, rows: list[dict[str, Any]] | None) -> Any:
        if not clicks:
            return no_update
        return {"content": csv_text(CSV_COLUMNS, rows or []), "filename": "workloads.csv", "type": "text/csv"}


def _all(address: Address, profiles: Profiles) -> Any:
    team = address.get("team")
    rows = [row for row in workload_rows(profiles) if team in (None, row["namespace"])]
    if not rows:
        return missing("No workloads", f"Nobody holds a card in {team or profiles.cluster}.", "gputide analyze")
    counts = {state: sum(1 for row in rows if row["state"] == workload_state_words(state)) for state in WorkloadState}
    numbers = [figure_number(format_count(len(rows)), f"workloads of {team}" if team else "workloads")]
    numbers += [
        figure_number(format_count(count), workload_state_words(state)) for state, count in counts.items() if count
    ]
    columns: list[dict[str, Any]] = [
        {"field": "workload", "headerName": "workload", "minWidth": 280},
        {"field": "class", "headerName": "class", "minWidth": 100},
        {"field": "state", "headerName": "state", "minWidth": 100},
        number_column("cards", "cards", ",d", maxWidth=90),
        number_column("pods", "pods", ",d", maxWidth=90),
        number_column("compute_p95", "SM p95", ".0%", maxWidth=100),
        number_column("framebuffer_granted_gib", "granted GiB", ".1f", maxWidth=120),
        number_column("framebuffer_need_gib", "needed GiB", ".1f", maxWidth=120),
        {"field": "idle_since", "headerName": "idle since (UTC)", "minWidth": 140},
        number_column("off_peak_hours", "off-peak h", ",d", maxWidth=110),
        number_column("coverage_ratio", "coverage", ".0%", maxWidth=105),
        number_column("confidence", "confidence", ".0%", maxWidth=115),
    ]
    return html.Div(
        [
            html.Div(numbers, className="headline small"),
            card(
                f"Workloads of {team}" if team else "Workloads",
                grid("workloads-grid", columns, rows, row_key="workload", height_px=680),
                note=[
                    dcc.Link("all teams", href=address.href(team=None)) if team else None,
                    html.Button("CSV", id="workloads-csv", className="quiet"),
                    dcc.Download(id="workloads-download"),
                ],
            ),
        ],
        className="page workloads",
    )


def _one(views: Views, address: Address, profiles: Profiles, profile: Profile, entry: PlanEntry | None) -> Any:
    history = views.fleet.history(profiles.cluster, profile.workload, RANGES[address.time_range])
    strips = (
        graph(strips_figure(history), id="strips")
        if history is not None and history.times
        else missing("No history in this range", "No window of this workload arrived in it.", "gputide rollup --drain")
    )
    rate = "" if history is None or history.request_rate is not None else " · no server exports a request rate"
    return html.Div(
        [
            _header(address, profile, profiles),
            html.Div(
                [
                    html.Div(
                        [
                            card("Use over time", strips, note=f"p50–p95 band, max dots · dashed: granted{rate}"),
                            card(
                                f"Week in {profile.time_zone}",
                                graph(hour_of_week_figure(profile.hour_of_week, profile.off_peak_hours), id="week"),
                                note="SM active p95 · outlined: hours promised off-peak",
                            ),
                        ]
                    ),
                    html.Div(
                        [
                            card("What gputide proposes", *_proposals(address, profile, entry)),
                            card("What it refused", *_refusals(profile, entry)),
                            card("What you may do", *_actions(profile)),
                        ]
                    ),
                ],
                className="split wide",
            ),
        ],
        className="page workload",
    )


def _header(address: Address, profile: Profile, profiles: Profiles) -> Any:
    name = profile.workload.split("/", 2)[-1]
    kind = profile.workload_class.value.replace("_", " ")
    need = profile.framebuffer.need_max
    needed = "need hidden by pre-allocation" if need is None else f"needs {format_bytes_short(need)}"
    return html.Div(
        [
            html.Div(
                [
                    dcc.Link("← all workloads", href=address.href(w=None), className="back"),
                    html.H1(name),
                    html.P(
                        [
                            dcc.Link(profile.namespace, href=address.href(w=None, team=profile.namespace)),
                            f" · {profile.workload_kind} · {kind} · {profile.priority.value} priority",
                        ],
                        className="soft",
                    ),
                    html.P(state_sentence(profile, profiles.as_of), className="sentence"),
                    html.P(profile.reason, className="soft"),
                ],
                className="who",
            ),
            figure_number(
                format_count(len(profile.pods)),
                "pod" if len(profile.pods) == 1 else "pods",
                note="on 1 card" if len(profile.cards) == 1 else f"on {format_count(len(profile.cards))} cards",
            ),
            figure_number(
                percent_words(profile.compute.p95, 0),
                "SM active p95",
                note=f"of {percent_words(profile.compute.granted_ratio, 0)} granted",
            ),
            figure_number(format_bytes_short(profile.framebuffer.granted), "granted per slice", note=needed),
            figure_number(percent_words(profile.coverage_ratio, 1), "coverage", note=_trust(profile)),
        ],
        className="headline",
    )


def _trust(profile: Profile) -> str:
    return "counters trusted" if profile.is_trusted else f"▲ {profile.trust[0].check.replace('_', ' ')}"


def _proposals(address: Address, profile: Profile, entry: PlanEntry | None) -> list[Any]:
    if entry is None:
        return [html.P(["No plan yet: ", html.Code("gputide recommend")])]
    plan = entry.plan
    found = [item for item in plan.recommendations if profile.workload in item.workloads]
    if not found:
        return [html.P("Nothing: it stays as it is.")]
    return [
        html.Div(
            [
                html.H4(
                    [f"{item.kind.value.replace('_', ' ')} ", html.Code(item.id), f" · {item.cards_freed} cards freed"]
                ),
                html.P(item.reason),
                html.P([html.B("Would change this: "), item.change_of_mind], className="soft"),
                html.P(
                    f"{saving_words(item.saving_per_week, plan.currency)} a week · risk {item.risk_level.value} · "
                    f"confidence {percent_words(item.confidence, 0)}",
                    className="soft",
                ),
                _evidence(item.evidence.numbers),
                dcc.Link(
                    "See in plan →",
                    href=address.href("/plan", plan=plan.plan_id, open=_stage_of(plan, item.id)),
                    className="button",
                ),
            ],
            className="proposal",
        )
        for item in found
    ]


def _evidence(numbers: tuple[tuple[str, float], ...]) -> Any:
    return table((("evidence", "t"), ("", "n")), [(name.replace("_", " "), f"{value:,.4g}") for name, value in numbers])


def _stage_of(plan: Plan, name: str) -> str | None:
    return next((str(stage.stage) for stage in plan.stages if name in stage.recommendations), None)


def _refusals(profile: Profile, entry: PlanEntry | None) -> list[Any]:
    refused = [] if entry is None else [item for item in entry.plan.refused if item.workload == profile.workload]
    lines: list[Any] = []
    for item in refused:
        kind = item.kind.value.replace("_", " ") if item.kind else "all advice"
        lines.append(html.Li([html.B(item.reason.replace("_", " ")), f" ({kind}): {item.detail}"]))
    lines += [html.Li([html.B(found.check.replace("_", " ")), f": {found.detail}"]) for found in profile.trust]
    return [html.Ul(lines)] if lines else [html.P("Nothing.", className="soft")]


def _actions(profile: Profile) -> list[Any]:
    kind = profile.workload_kind.lower()
    name = profile.workload.split("/", 2)[-1]
    commands = (
        ("Leave it alone", f"kubectl -n {profile.namespace} annotate {kind} {name} {OPT_OUT_LABEL}=true"),
        ("Latency-critical", f"kubectl -n {profile.namespace} annotate {kind} {name} {LATENCY_CRITICAL_LABEL}=true"),
        ("What is proposed", "gputide plan show"),
    )
    return [
        html.Div(
            [html.Span(words), html.Code(command), dcc.Clipboard(content=command, title="copy", className="copy")],
            className="command",
        )
        for words, command in commands
    ]
