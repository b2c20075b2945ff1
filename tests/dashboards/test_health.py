"""Health: nodes by coverage, failed checks by weight, and pages that show them."""

from __future__ import annotations

import json
from dataclasses import replace

from dashboards.address import read_address
from dashboards.pages.health import layout as health_layout
from dashboards.pages.tenants import layout as tenants_layout
from dashboards.queries import Views
from dashboards.stored.sources import AskedSources
from dashboards.view_models.health import SourcesSeen, failed_checks, node_coverage
from fleet.errors import Unavailable
from fleet.inventory import CardId
from fleet.profiles import CardState, Finding
from tests.dashboards.embedded import CLUSTER, EmbeddedMoney, EmbeddedSources, make_views

VIEWS, _ = make_views()
PROFILES = VIEWS.fleet.profiles(CLUSTER)


def test_worst_covered_node_comes_first_and_every_card_is_counted_once() -> None:
    thin = replace(PROFILES.cards[5], coverage_ratio=0.01, state=CardState.UNTRUSTED)
    cards = (*PROFILES.cards[:5], thin, *PROFILES.cards[6:])
    nodes = node_coverage(replace(PROFILES, cards=cards))
    assert (nodes[0].node, nodes[0].worst_ratio) == (thin.node, 0.01)
    assert nodes[0].untrusted >= 1
    assert sum(entry.cards for entry in nodes) == len(cards)
    known = [entry.coverage_ratio for entry in nodes if entry.coverage_ratio is not None]
    assert known == sorted(known)


def test_card_that_nobody_was_granted_is_not_badly_covered() -> None:
    free = replace(PROFILES.cards[0], state=CardState.FREE, coverage_ratio=0.0)
    (alone,) = node_coverage(replace(PROFILES, cards=(free,)))
    assert (alone.coverage_ratio, alone.worst_ratio, alone.cards) == (None, None, 1)
    busy = replace(PROFILES.cards[1], node=free.node, state=CardState.BUSY, coverage_ratio=0.9)
    (both,) = node_coverage(replace(PROFILES, cards=(free, busy)))
    assert (both.coverage_ratio, both.worst_ratio, both.cards) == (0.9, 0.9, 2)


def test_checks_that_distrust_come_before_remarks_and_are_counted_by_workload() -> None:
    lie = Finding(check="frozen", counter="sm_active", values=(("value", 0.31), ("windows", 540)))
    remark = replace(lie, check="spinning", distrusts=False)
    own = [(remark,), (remark,), (lie, lie), (remark,)]
    workloads = tuple(replace(entry, trust=trust) for entry, trust in zip(PROFILES.workloads, own, strict=False))
    first, second = failed_checks(replace(PROFILES, workloads=workloads))
    assert (first.check, first.workloads) == ("frozen", (workloads[2].workload,))
    assert (second.check, len(second.workloads)) == ("spinning", 3)


def test_pages_show_every_state_of_the_data() -> None:
    address = read_address("/health", "")
    for profiles in (PROFILES, replace(PROFILES, workloads=(), cards=(), withheld=())):
        text = json.dumps(
            health_layout(VIEWS, address, profiles).to_plotly_json(), default=lambda part: part.to_plotly_json()
        )
        assert "coverage" in text
        assert ("Every cross-check holds." in text) is (not any(entry.trust for entry in profiles.workloads))
    empty = json.dumps(
        tenants_layout(_without_week(VIEWS), address, replace(PROFILES, workloads=())).to_plotly_json(),
        default=lambda part: part.to_plotly_json(),
    )
    assert "Nobody holds a card" in empty


def test_sources_that_contradict_each_other_are_named_with_card_time_and_command() -> None:
    text = shown_health(VIEWS)
    one, other = (found.card for found in EmbeddedSources().seen(CLUSTER).contradictions)
    for word in (one, other, "4 GiB", "14 GiB", "dcgm-exporter", "hami-monitor", "for a week or longer", "nvidia-smi"):
        assert word in text
    assert "since 2026-01-21 09:00 UTC" in text


def test_page_says_why_it_names_no_sources() -> None:
    def failing() -> SourcesSeen:
        raise Unavailable("cannot reach http://prometheus")

    def of_another_cluster() -> SourcesSeen:
        return EmbeddedSources().seen(CLUSTER)

    for ask, said in ((None, "scan.url"), (failing, "cannot reach http://prometheus"), (of_another_cluster, "agree")):
        sources = AskedSources(ask, cards=lambda _: frozenset({CardId("GPU-of-another")}), is_patient=True)
        assert said in shown_health(replace(VIEWS, sources=sources))


def shown_health(views: Views) -> str:
    page = health_layout(views, read_address("/health", ""), PROFILES).to_plotly_json()
    return json.dumps(page, default=lambda part: part.to_plotly_json())


def _without_week(views: Views) -> Views:
    """The same ports of a cluster of which no card was known over the last seven days."""
    return replace(views, money=EmbeddedMoney(has_week=False))
