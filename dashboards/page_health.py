"""Health of the data: which numbers can't be trusted, where windows are missing, and what that keeps us from saying."""

from __future__ import annotations

from typing import Any

from dash import Dash, dcc, html

from dashboards.address import Address
from dashboards.health import COVERAGE_GOOD, FailedCheck, NodeCoverage, failed_checks, node_coverage
from dashboards.page_frame import card, figure_number, table
from dashboards.queries import Freshness, Views
from dashboards.rows import age_words, moment_words, percent_words
from fleet.profiles import Profiles
from fleet.units import format_count

KEYS = ("cluster",)
"""Values of the address that build the page anew."""

NODES_MAX = 200
WORKLOADS_MAX = 20


def layout(views: Views, address: Address, profiles: Profiles) -> Any:
    """The page for one cluster."""
    freshness = views.fleet.freshness(profiles.cluster)
    nodes, checks = node_coverage(profiles), failed_checks(profiles)
    return html.Div(
        [
            _headline(freshness, nodes, checks),
            html.Div(
                [
                    card("Counters that are not believed", _checks(address, checks),
                         note="a counter that fails a cross-check frees no card"),
                    card("Coverage by node", _nodes(address, nodes), note="windows with a row / windows expected"),
                ],
                className="halves",
            ),
            card("Advice that is withheld", _withheld(profiles), note="and what it would take"),
        ],
        className="page health",
    )  # fmt: skip


def register(app: Dash, views: Views) -> None:
    """The page has no callbacks of its own: its links carry all of its state."""
    del app, views


def _headline(freshness: Freshness, nodes: tuple[NodeCoverage, ...], checks: tuple[FailedCheck, ...]) -> Any:
    age = freshness.age_seconds
    thin = sum(entry.coverage_ratio is not None and entry.coverage_ratio < COVERAGE_GOOD for entry in nodes)
    distrusted = {name for entry in checks if entry.distrusts for name in entry.workloads}
    return html.Div(
        [
            figure_number(
                percent_words(freshness.coverage_ratio, 1),
                "coverage",
                note="of the last day",
                tone="warn" if freshness.is_doubtful else "",
            ),
            figure_number(
                "none" if age is None else age_words(age),
                "since the newest window",
                note=f"one is expected every {age_words(freshness.interval_seconds)}",
            ),
            figure_number(format_count(thin), "nodes are thinly covered", note=f"below {COVERAGE_GOOD:.0%}"),
            figure_number(format_count(len(distrusted)), "workloads with counters that are not believed"),
            figure_number(format_count(sum(entry.untrusted for entry in nodes)), "cards untrusted"),
        ],
        className="headline",
    )


def _checks(address: Address, checks: tuple[FailedCheck, ...]) -> Any:
    if not checks:
        return html.P("Every cross-check holds.", className="soft")
    rows = [
        (
            html.Span(
                [
                    html.Span(("▲ " if entry.distrusts else "") + entry.check.replace("_", " ")),
                    html.Small(f"{entry.counter} · {_since(entry)}"),
                ]
            ),
            html.Span([entry.first.detail, html.Small("frees nothing" if entry.distrusts else "a remark")]),
            html.Details(
                [
                    html.Summary(format_count(len(entry.workloads))),
                    html.Ul(
                        [
                            html.Li(dcc.Link(name, href=address.href("/workloads", w=name)))
                            for name in entry.workloads[:WORKLOADS_MAX]
                        ]
                        + (
                            [html.Li(f"and {format_count(len(entry.workloads) - WORKLOADS_MAX)} more")]
                            if len(entry.workloads) > WORKLOADS_MAX
                            else []
                        )
                    ),
                ]
            ),
        )
        for entry in checks
    ]
    return html.Div(table((("check", "t"), ("what was seen", "t"), ("workloads", "t")), rows), className="scroll")


def _since(entry: FailedCheck) -> str:
    return "all the time" if entry.first.since is None else f"since {moment_words(entry.first.since)}"


def _nodes(address: Address, nodes: tuple[NodeCoverage, ...]) -> Any:
    if not nodes:
        return html.P("No card was seen.", className="soft")
    rows = [
        (
            dcc.Link(entry.node, href=address.href("/", node=entry.node)),
            format_count(entry.cards),
            _strip(entry),
            percent_words(entry.coverage_ratio, 1),
            percent_words(entry.worst_ratio, 1),
            f"× {entry.untrusted}" if entry.untrusted else "",
        )
        for entry in nodes[:NODES_MAX]
    ]
    columns = (("node", "t"), ("cards", "n"), ("", "t"), ("coverage", "n"), ("worst card", "n"), ("untrusted", "n"))
    rest = len(nodes) - NODES_MAX
    return html.Div(
        [
            table(columns, rows),
            html.P(f"and {format_count(rest)} nodes that are covered better", className="soft") if rest > 0 else None,
        ],
        className="scroll",
    )


def _strip(entry: NodeCoverage) -> Any:
    if entry.coverage_ratio is None:
        return html.Small("nothing is granted")
    tone = "bar" if entry.coverage_ratio >= COVERAGE_GOOD else "bar over"
    return html.Span(
        html.Span(className=tone, style={"width": f"{100 * entry.coverage_ratio:.1f}%"}), className="track thin"
    )


def _withheld(profiles: Profiles) -> Any:
    if not profiles.withheld:
        return html.P("Nothing: there is data for every kind of advice.", className="soft")
    rows = [
        (item.kind.value.replace("_", " "), item.reason.replace("_", " "), item.detail) for item in profiles.withheld
    ]
    return table((("advice", "t"), ("reason", "t"), ("detail", "t")), rows)
