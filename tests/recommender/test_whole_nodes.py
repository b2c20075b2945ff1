"""What is freed is gathered on whole nodes where nodes are what is paid, and nothing changes where they are not."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from fleet.decisions import Plan, RecommendationKind
from fleet.documents import plan_document
from fleet.inventory import Node
from fleet.usage import History
from tests.recommender.builders import A10, Service, check_plan, cluster, full_services_of, plan_of

PRICES: dict[str, Any] = {"prices": {"overrides": {A10: 1}}}
NODE_WEEK = Decimal("672.00")
"""Four cards for 168 hours at 1."""


def priced(history: History, **options: Any) -> Plan:
    return plan_of(history, settings={**PRICES, **options.pop("settings", {})}, **options)


def rented(history: History, *, is_owned: bool | None = False) -> History:
    cards = tuple(replace(card, is_owned=is_owned) for card in history.inventory.cards)
    return replace(history, inventory=replace(history.inventory, cards=cards))


def scattered() -> History:
    """Four services too busy to share on a node of their own each, beside three cards that nobody holds."""
    services = [Service(name=f"s{number}", level=0.9, used_gib=20.0) for number in range(4)]
    history = cluster(*services, spare_cards=12)
    cards = {card.card: card for card in history.inventory.cards}
    held = [grant.card for grant in history.inventory.grants]
    free = [card for card in cards if card not in held]
    for number, card in enumerate(held):
        cards[card] = replace(cards[card], node=f"node-{number}")
    for number, card in enumerate(free):
        cards[card] = replace(cards[card], node=f"node-{number // 3}")
    grants = tuple(replace(grant, node=cards[grant.card].node) for grant in history.inventory.grants)
    keys = tuple(replace(key, node=cards[key.card].node) for key in history.slices.keys)
    return replace(
        history,
        inventory=replace(history.inventory, cards=tuple(cards.values()), grants=grants),
        slices=replace(history.slices, keys=keys),
    )


def test_scattered_services_leave_all_nodes_but_one() -> None:
    plan = priced(rented(scattered()))
    assert len(plan.freed_nodes) == 3
    assert {one.per_week for one in plan.freed_nodes} == {NODE_WEEK}
    (kept,) = {card.node for card in plan.placement}
    assert kept not in {one.node for one in plan.freed_nodes}
    assert plan.totals.cards_freed == 0
    assert plan.totals.moves == 3
    assert {item.kind for item in plan.recommendations} == {RecommendationKind.REHOME}
    assert {dict(item.why[0].values)["node"] for item in plan.recommendations} == {one.node for one in plan.freed_nodes}


@pytest.mark.parametrize("is_owned", [None, True])
def test_nodes_that_are_paid_anyway_are_left_as_they_are(is_owned: bool | None) -> None:
    plan = priced(rented(scattered(), is_owned=is_owned))
    assert plan.freed_nodes == ()
    assert plan.recommendations == ()
    assert "freed_nodes" not in plan_document(plan)


def test_rule_of_the_price_book_says_which_pool_is_paid_by_the_node() -> None:
    history = scattered()
    nodes = tuple(
        replace(node, labels=(("pool", "rent" if number < 2 else "own"),))
        for number, node in enumerate(nodes_of(history))
    )
    history = replace(history, inventory=replace(history.inventory, nodes=nodes))
    rule = {
        "node_labels": {"pool": "rent"},
        "per_card_hour": 1,
        "basis": "rented",
        "source": "contract",
        "date": "2026-01",
    }
    plan = plan_of(history, settings={"prices": {"rules": [rule], "overrides": {A10: 1}}})
    assert plan.freed_nodes
    assert {one.node for one in plan.freed_nodes} <= {"node-0", "node-1"}


def nodes_of(history: History) -> Any:
    return [Node(node=name, cluster="c") for name in sorted({card.node for card in history.inventory.cards})]


def test_node_that_a_provider_has_an_id_of_is_paid_by_the_node() -> None:
    history = scattered()
    nodes = tuple(replace(node, provider_id=f"aws:///z/i-{node.node}") for node in nodes_of(history))
    plan = priced(replace(history, inventory=replace(history.inventory, nodes=nodes)))
    assert len(plan.freed_nodes) == 3


@pytest.mark.parametrize("own", ["k3s://", "kind://docker/kind/", "metal3://gpu/", "vsphere://"])
def test_own_machine_that_a_provider_has_an_id_of_is_paid_with_or_without_its_node(own: str) -> None:
    history = scattered()
    nodes = tuple(replace(node, provider_id=f"{own}{node.node}") for node in nodes_of(history))
    plan = priced(replace(history, inventory=replace(history.inventory, nodes=nodes)))
    assert plan.freed_nodes == ()


def test_setting_bounds_what_a_node_may_cost_in_moves() -> None:
    none = priced(rented(scattered()), settings={"recommender": {"moves_per_freed_node_max": 0}})
    assert none.freed_nodes == ()
    two = priced(rented(scattered()), moves_max=2)
    assert two.totals.moves == 2
    assert len(two.freed_nodes) == 2


@pytest.mark.parametrize("seed", range(6))
def test_gathering_frees_no_card_fewer_and_harms_no_more(seed: int) -> None:
    history = cluster(*full_services_of(seed), spare_cards=9)
    base, plan = priced(history), priced(rented(history))
    check_plan(plan, history)
    assert plan.totals.cards_freed == base.totals.cards_freed
    assert plan.totals.predicted_violation_ratio == base.totals.predicted_violation_ratio
    assert plan.totals.nodes_freed >= base.totals.nodes_freed
    more = plan.totals.nodes_freed - base.totals.nodes_freed
    assert plan.totals.moves - base.totals.moves <= 4 * max(more, 0)
    assert partners(plan) == partners(base), "who shares with whom stays"


def partners(plan: Plan) -> set[frozenset[str]]:
    return {frozenset(part.pod_id for part in card.slices) for card in plan.placement}
