"""Health of the data: which numbers can't be trusted, where windows are missing, and what that keeps us from saying.

The health page's chain from the exporter to the warehouse: how far behind each step is, and which holds it up.

Called by `pages.health`.
"""

from __future__ import annotations

from typing import Any

from dash import Dash, dcc, html

from dashboards.address import Address
from dashboards.long_list import FROM_KEY, part_of
from dashboards.pages.advice import detail
from dashboards.pages.frame import card, english, figure_number, heading, reader_words, scrolled, table
from dashboards.queries import Freshness, Views
from dashboards.shown.health import COVERAGE_GOOD, FailedCheck, NodeCoverage, failed_checks, node_coverage
from dashboards.shown.lag_chain import LagCause, LagChain
from dashboards.shown.made_once import MADE
from dashboards.shown.rows import age_words, moment_words, percent_words
from dashboards.words.pages import say
from fleet.profiles import Profiles
from fleet.units import format_bytes_short, format_count

KEYS = ("cluster", FROM_KEY)
"""Values of the address that build the page anew."""

WORKLOADS_MAX = 20


def layout(views: Views, address: Address, profiles: Profiles) -> Any:
    """The page for one cluster."""
    freshness = views.fleet.freshness(profiles.cluster)
    nodes = MADE.of((profiles,), "node coverage", lambda: node_coverage(profiles))
    checks = MADE.of((profiles,), "failed checks", lambda: failed_checks(profiles))
    return html.Div(
        [
            heading(say("Health of the data")),
            _headline(freshness, nodes, checks),
            html.Div(
                [
                    card(say("Counters that are not believed"), _checks(address, checks), export="checks",
                         note=say("a counter that fails a cross-check frees no card")),
                    card(say("Coverage by node"), _nodes(address, nodes), export="coverage",
                         note=say("windows with a row / windows expected")),
                ],
                className="halves",
            ),
            lag_chain(views.flow.lags(profiles.cluster)),
            card(
                say("Advice that is withheld"), _withheld(profiles), export="withheld",
                note=say("and what it would take"),
            ),
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
                say("coverage"),
                note=say("of the last day"),
                tone="warn" if freshness.is_doubtful else "",
            ),
            figure_number(
                say("none") if age is None else age_words(age),
                say("since the newest window"),
                note=say("one is expected every {age}", age=age_words(freshness.interval_seconds)),
            ),
            figure_number(
                format_count(thin),
                say("nodes are thinly covered"),
                note=say("below {ratio}", ratio=f"{COVERAGE_GOOD:.0%}"),
            ),
            figure_number(format_count(len(distrusted)), say("workloads with counters that are not believed")),
            figure_number(format_count(sum(entry.untrusted for entry in nodes)), say("cards untrusted")),
        ],
        className="headline",
    )


def _checks(address: Address, checks: tuple[FailedCheck, ...]) -> Any:
    if not checks:
        return html.P(say("Every cross-check holds."), className="soft")
    words = reader_words()
    rows = [
        (
            html.Span(
                [
                    html.Span(("▲ " if entry.distrusts else "") + words.code("check", entry.check)),
                    html.Small([html.Code(entry.counter), f" · {_since(entry)}"]),
                ]
            ),
            html.Span(
                [english(entry.first.detail), html.Small(say("frees nothing") if entry.distrusts else say("a remark"))]
            ),
            html.Details(
                [
                    html.Summary(format_count(len(entry.workloads))),
                    html.Ul(
                        [
                            html.Li(dcc.Link(name, href=address.href("/workloads", w=name)))
                            for name in entry.workloads[:WORKLOADS_MAX]
                        ]
                        + (
                            [html.Li(say("and {count} more", count=format_count(len(entry.workloads) - WORKLOADS_MAX)))]
                            if len(entry.workloads) > WORKLOADS_MAX
                            else []
                        )
                    ),
                ]
            ),
        )
        for entry in checks
    ]
    columns = ((say("check"), "t"), (say("what was seen"), "t"), (say("workloads"), "t"))
    return scrolled(table(columns, rows), name=say("Counters that are not believed"))


def _since(entry: FailedCheck) -> str:
    if entry.first.since is None:
        return say("all the time")
    return say("since {moment}", moment=moment_words(entry.first.since))


def _nodes(address: Address, nodes: tuple[NodeCoverage, ...]) -> Any:
    if not nodes:
        return html.P(say("No card was seen."), className="soft")
    shown, around = part_of(nodes, address)
    rows = [
        (
            dcc.Link(entry.node, href=address.href("/", node=entry.node)),
            format_count(entry.cards),
            _strip(entry),
            percent_words(entry.coverage_ratio, 1),
            percent_words(entry.worst_ratio, 1),
            f"× {entry.untrusted}" if entry.untrusted else "",
        )
        for entry in shown
    ]
    columns = (
        (say("node"), "t"), (say("cards"), "n"), (say("of them covered"), "t"), (say("coverage"), "n"),
        (say("worst card"), "n"), (say("untrusted"), "n"),
    )  # fmt: skip
    return scrolled(table(columns, rows), around, name=say("Coverage by node"))


def _strip(entry: NodeCoverage) -> Any:
    if entry.coverage_ratio is None:
        return html.Small(say("nothing is granted"))
    tone = "bar" if entry.coverage_ratio >= COVERAGE_GOOD else "bar over"
    return html.Span(
        html.Span(className=tone, style={"width": f"{100 * entry.coverage_ratio:.1f}%"}), className="track thin"
    )


def _withheld(profiles: Profiles) -> Any:
    if not profiles.withheld:
        return html.P(say("Nothing: there is data for every kind of advice."), className="soft")
    words = reader_words()
    rows = [
        (words.code("kind", item.kind.value), words.code("reason", item.reason), detail(item))
        for item in profiles.withheld
    ]
    return table(((say("advice"), "t"), (say("reason"), "t"), (say("detail"), "t")), rows)


_UNKNOWN = "–"


def lag_chain(found: LagChain) -> Any:
    """One line per step, and a sentence that names the one that is behind."""
    waiting = _UNKNOWN if found.waiting_bytes is None else format_bytes_short(found.waiting_bytes)
    rows = (
        (say("newest sample, by its own time"), _age(found.sample_age_seconds), say("exporter and Prometheus")),
        (say("receiver wrote to the bus"), _age(found.received_age_seconds), say("receiver")),
        (say("waits on the bus"), waiting, say("bus")),
        (say("rollup stored something"), _age(found.stored_age_seconds), say("rollup and warehouse")),
    )
    is_behind = found.cause is not LagCause.NONE
    return card(
        say("From exporter to warehouse"),
        html.P(_sentence(found.cause), className="message failed" if is_behind else "soft"),
        table(((say("step"), "t"), (say("ago"), "n"), (say("whose"), "t")), rows),
        note=say("behind: more than {age}", age=age_words(found.limit_seconds)),
        export="lag",
    )


def _sentence(cause: LagCause) -> str:
    return {
        LagCause.NONE: say("Every step keeps up."),
        LagCause.SENDER: say("Nothing arrives: look at the exporter, its Prometheus and the way from there."),
        LagCause.LATE_SAMPLES: say("What arrives is old: the exporter's Prometheus is behind with its remote write."),
        LagCause.SENDER_OR_LATE: say(
            "Other clusters send, and of this one nothing new arrives: look at its exporter and its Prometheus."
        ),
        LagCause.ROLLUP: say("What arrived waits on the bus: the rollup stands still or is too slow."),
        LagCause.UNKNOWN: say("The newest sample is old, and the bus lies elsewhere: gputide doctor asks it."),
    }[cause]


def _age(seconds: float | None) -> str:
    return _UNKNOWN if seconds is None else age_words(seconds)
