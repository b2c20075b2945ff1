"""Teams' parts sum to the cards, whoever shares them with whom."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboards.shown.tenants import tenants
from fleet.inventory import WorkloadId
from fleet.profiles import CardState, Finding, Profiles, WorkloadState
from tests.dashboards.embedded import CLUSTER, make_views, prices_of

VIEWS, _ = make_views()
PROFILES = VIEWS.fleet.profiles(CLUSTER)
CARDS = PROFILES.cards[:3]
PRICES = prices_of({CARDS[0].card_model: "2"})


def a_fleet(*holders: tuple[int, int, WorkloadState]) -> Profiles:
    """Workloads as (team, bits of the cards that they are on, state) on three cards of one model."""
    workloads = []
    for place, (team, bits, state) in enumerate(holders):
        on = tuple(card.card for number, card in enumerate(CARDS) if bits >> number & 1)
        base = PROFILES.workloads[place]
        name = WorkloadId(f"team-{team}/Deployment/w{place}")
        workloads.append(
            replace(
                base, namespace=f"team-{team}", workload=name, cards=on, state=state, trust=(),
                compute=replace(base.compute, p50=0.5), idle_pods=(),
            )
        )  # fmt: skip
    cards = tuple(
        replace(
            card, card_model=CARDS[0].card_model, state=CardState.BUSY,
            workloads=tuple(profile.workload for profile in workloads if card.card in profile.cards),
        )
        for card in CARDS
    )  # fmt: skip
    return replace(PROFILES, workloads=tuple(workloads), cards=cards)


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, 7), st.sampled_from((WorkloadState.BUSY, WorkloadState.IDLE))),
        min_size=1, max_size=8,
    )
)  # fmt: skip
def test_parts_sum_to_the_cards_and_idle_and_used_stay_within(holders: list[tuple[int, int, WorkloadState]]) -> None:
    fleet = a_fleet(*holders)
    found = tenants(fleet, PRICES)
    held = [card for card in fleet.cards if card.workloads]
    assert sum(team.cards for team in found) == pytest.approx(len(held))
    assert float(sum((team.cost_per_week or Decimal(0)) for team in found)) == pytest.approx(len(held) * 2 * 168)
    for team in found:
        assert 0 <= team.cards_idle <= team.cards + 1e-9
        assert team.cards_used == pytest.approx(team.cards / 2)


def test_most_wasteful_team_comes_first() -> None:
    fleet = a_fleet((0, 1, WorkloadState.BUSY), (1, 2, WorkloadState.IDLE), (1, 4, WorkloadState.BUSY))
    first, second = tenants(fleet, PRICES)
    assert (first.name, first.cards, first.cards_idle, first.idle_per_week) == ("team-1", 2, 1, Decimal(336))
    assert (second.cards_idle, second.idle_per_week) == (0, None)


def test_counter_that_is_not_believed_is_no_use() -> None:
    fleet = a_fleet((0, 1, WorkloadState.BUSY))
    lie = Finding(check="frozen", counter="sm_active", detail="0.31 for 9 h")
    (team,) = tenants(replace(fleet, workloads=(replace(fleet.workloads[0], trust=(lie,)),)), PRICES)
    assert (team.cards_used, team.cards_measured, team.distrusted) == (None, 0, 1)


def test_card_without_a_price_costs_nothing_that_is_known() -> None:
    fleet = a_fleet((0, 1, WorkloadState.IDLE))
    (team,) = tenants(fleet, prices_of({}))
    assert (team.cost_per_week, team.idle_per_week, team.cards_idle) == (None, None, 1)
