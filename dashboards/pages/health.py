"""Health of the data: which numbers can't be trusted, where windows are missing, and what that keeps us from saying.

The chain from the exporter to the warehouse shows how far behind each step is, and which step delays the others.
"""

from __future__ import annotations

from typing import Any

from dash import dcc, html

from dashboards.address import Address
from dashboards.long_list import FROM_KEY, part_of
from dashboards.pages.frame import card, div, figure_number, page, scrolled, shown, span, table
from dashboards.queries import Freshness, NotMadeYet, Views
from dashboards.view_models.health import (
    COVERAGE_GOOD,
    FailedCheck,
    LagCause,
    LagChain,
    NodeCoverage,
    failed_checks,
    node_coverage,
)
from dashboards.view_models.made_once import MADE
from dashboards.view_models.rows import age_words, moment_words, percent_words
from dashboards.words.advice import finding_words, refusal_words
from dashboards.words.reading import READING, reader_words, say
from fleet.contradictions import Contradiction, Statement
from fleet.errors import GputideError
from fleet.profiles import Profiles
from fleet.units import format_bytes_short, format_count

KEYS = ("cluster", FROM_KEY)
"""Values of the address that build the page anew."""

WORKLOADS_MAX = 20
SOURCES_MAX = 20
"""Cards of which the page shows that sources contradict each other, before it counts the rest."""


def layout(views: Views, address: Address, profiles: Profiles) -> Any:
    """The page for one cluster."""
    freshness = views.fleet.freshness(profiles.cluster)
    nodes = MADE.of((profiles,), "node coverage", lambda: node_coverage(profiles))
    checks = MADE.of((profiles,), "failed checks", lambda: failed_checks(profiles))
    return page(
        "health",
        say("health.health_data"),
        _headline(freshness, nodes, checks),
        div(
            "halves",
            card(say("health.counters_not_believed"), _checks(address, checks), export="checks",
                 note=say("health.counter_fails_cross_check_frees_no")),
            card(say("health.coverage_by_node"), _nodes(address, nodes), export="coverage",
                 note=say("health.windows_with_row_windows_expected")),
        ),
        card(say("health.sources_contradict"), _sources(views, profiles.cluster), export="sources",
             note=say("health.one_source_counts")),
        lag_chain(views.flow.lags(profiles.cluster)),
        card(say("health.advice_withheld"), _withheld(profiles), export="withheld", note=say("health.what_would_take")),
    )  # fmt: skip


def _headline(freshness: Freshness, nodes: tuple[NodeCoverage, ...], checks: tuple[FailedCheck, ...]) -> Any:
    age = freshness.age_seconds
    thin = sum(entry.coverage_ratio is not None and entry.coverage_ratio < COVERAGE_GOOD for entry in nodes)
    distrusted = {name for entry in checks if entry.distrusts for name in entry.workloads}
    tone = "warn" if freshness.is_doubtful else ""
    ago = say("health.none") if age is None else age_words(age)
    every = say("health.one_expected_every_age", age=age_words(freshness.interval_seconds))
    below = say("health.below_ratio", ratio=f"{COVERAGE_GOOD:.0%}")
    covered = percent_words(freshness.coverage_ratio, 1)
    return div(
        "headline",
        figure_number(covered, say("health.coverage"), note=say("health.last_day"), tone=tone),
        figure_number(ago, say("health.since_newest_window"), note=every),
        figure_number(format_count(thin), say("health.nodes_thinly_covered"), note=below),
        figure_number(format_count(len(distrusted)), say("health.workloads_with_counters_not_believed")),
        figure_number(format_count(sum(entry.untrusted for entry in nodes)), say("health.cards_untrusted")),
    )


def _checks(address: Address, checks: tuple[FailedCheck, ...]) -> Any:
    if not checks:
        return html.P(say("health.every_cross_check_holds"), className="soft")
    columns = ((say("health.check"), "t"), (say("health.what_was_seen"), "t"), (say("health.workloads"), "t"))
    rows = [_check(address, entry) for entry in checks]
    return scrolled(table(columns, rows), name=say("health.counters_not_believed"))


def _check(address: Address, entry: FailedCheck) -> tuple[Any, ...]:
    words = reader_words()
    name = ("▲ " if entry.distrusts else "") + words.code("check", entry.check)
    counter = html.Small([html.Code(entry.counter), f" · {_since(entry)}"])
    effect = html.Small(say("health.frees_nothing" if entry.distrusts else "health.remark"))
    links = [dcc.Link(name, href=address.href("/workloads", w=name)) for name in entry.workloads[:WORKLOADS_MAX]]
    rest = len(entry.workloads) - WORKLOADS_MAX
    lines: list[Any] = [*links, say("health.count_more", count=rest)] if rest > 0 else links
    return (
        html.Span([html.Span(name), counter]),
        html.Span([finding_words(entry.first, words.language), effect]),
        html.Details([html.Summary(format_count(len(entry.workloads))), html.Ul([html.Li(line) for line in lines])]),
    )


def _since(entry: FailedCheck) -> str:
    if entry.first.since is None:
        return say("health.all_time")
    return say("health.since_moment", moment=moment_words(entry.first.since))


def _sources(views: Views, cluster: str) -> Any:
    """Who contradicts whom about which card, since when, and what shows who is wrong."""
    try:
        seen = views.sources.seen(cluster)
    except NotMadeYet:
        return html.P(say("health.sources_are_asked"), className="soft")
    except GputideError as exc:
        return html.P(shown(exc.said), className="message failed")
    if seen is None:
        return html.P(say("health.nobody_asked_for_sources"), className="soft")
    if not seen.contradictions:
        return html.P(say("health.sources_agree"), className="soft")
    rows = [
        (
            html.Span([html.Code(one.card), html.Small(f"{one.node or _UNKNOWN} · {_lasting(one)}")]),
            _said(one.least),
            _said(one.most),
        )
        for one in seen.contradictions[:SOURCES_MAX]
    ]
    columns = ((say("health.card"), "t"), (say("health.says_least"), "t"), (say("health.says_most"), "t"))
    rest = len(seen.contradictions) - SOURCES_MAX
    return html.Div([
        html.P(say("health.sources_contradict_about", count=len(seen.contradictions)), className="message failed"),
        scrolled(table(columns, rows), name=say("health.sources_contradict")),
        html.P(say("health.count_more", count=rest), className="soft") if rest > 0 else None,
        html.P([say("health.sources_mend"), " ", html.Code(seen.mend)]),
    ])  # fmt: skip


def _lasting(found: Contradiction) -> str:
    if found.since is None:
        return say("health.week_or_longer")
    return say("health.since_moment", moment=moment_words(found.since))


def _said(said: Statement) -> Any:
    return html.Span(
        [format_bytes_short(said.used_bytes), html.Small([html.Code(said.metric), " · ", html.Code(said.job)])]
    )


def _nodes(address: Address, nodes: tuple[NodeCoverage, ...]) -> Any:
    if not nodes:
        return html.P(say("health.no_card_was_seen"), className="soft")
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
        (say("term.node"), "t"), (say("health.cards"), "n"), (say("health.them_covered"), "t"),
        (say("health.coverage"), "n"), (say("health.worst_card"), "n"), (say("state.untrusted"), "n"),
    )  # fmt: skip
    return scrolled(table(columns, rows), around, name=say("health.coverage_by_node"))


def _strip(entry: NodeCoverage) -> Any:
    if entry.coverage_ratio is None:
        return html.Small(say("health.nothing_granted"))
    tone = "bar" if entry.coverage_ratio >= COVERAGE_GOOD else "bar over"
    return span("track thin", span(tone, style={"width": f"{100 * entry.coverage_ratio:.1f}%"}))


def _withheld(profiles: Profiles) -> Any:
    if not profiles.withheld:
        return html.P(say("health.nothing_data_for_every_kind_advice"), className="soft")
    words = reader_words()
    rows = [
        (words.code("kind", item.kind.value), words.code("reason", item.reason), refusal_words(item, READING.get()))
        for item in profiles.withheld
    ]
    return table(((say("health.advice"), "t"), (say("health.reason"), "t"), (say("health.detail"), "t")), rows)


_UNKNOWN = "–"


def lag_chain(found: LagChain) -> Any:
    """One line per step, and a sentence that names the one that is behind."""
    waiting = _UNKNOWN if found.waiting_bytes is None else format_bytes_short(found.waiting_bytes)
    rows = (
        (say("lag.newest_sample_by_its_own_time"), _age(found.sample_age_seconds), say("lag.exporter_prometheus")),
        (say("lag.receiver_wrote_bus"), _age(found.received_age_seconds), say("lag.receiver")),
        (say("lag.waits_on_bus"), waiting, say("lag.bus")),
        (say("lag.rollup_stored_something"), _age(found.stored_age_seconds), say("lag.rollup_warehouse")),
    )
    is_behind = found.cause is not LagCause.NONE
    return card(
        say("lag.from_exporter_warehouse"),
        html.P(_sentence(found.cause), className="message failed" if is_behind else "soft"),
        table(((say("lag.step"), "t"), (say("lag.ago"), "n"), (say("lag.whose"), "t")), rows),
        note=say("lag.behind_more_than_age", age=age_words(found.limit_seconds)),
        export="lag",
    )


def _sentence(cause: LagCause) -> str:
    return {
        LagCause.NONE: say("lag.every_step_keeps_up"),
        LagCause.SENDER: say("lag.nothing_arrives_look_at_exporter_its"),
        LagCause.LATE_SAMPLES: say("lag.what_arrives_old_exporters_prometheus_behind"),
        LagCause.SENDER_OR_LATE: say("lag.other_clusters_send_one_nothing_new"),
        LagCause.ROLLUP: say("lag.what_arrived_waits_on_bus_rollup"),
        LagCause.UNKNOWN: say("lag.newest_sample_old_bus_lies_elsewhere"),
    }[cause]


def _age(seconds: float | None) -> str:
    return _UNKNOWN if seconds is None else age_words(seconds)
