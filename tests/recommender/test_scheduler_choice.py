"""Where the scheduler chooses cards, a plan comes true whatever it chooses.

The judge is what the double of KAI's scheduler decides by KAI's own rules, with pods in every order that is tried.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.capabilities.capability import slices_that_meet
from fleet.capabilities.kai import KAI
from fleet.decisions import CardPlacement, PlacedSlice, Plan
from fleet.units import MIB
from tests.cluster import kai_rules
from tests.cluster.placed_fleet import permitted, services_of
from tests.recommender.builders import Service, cluster, plan_of

ORDERS = 30
ANY_RISK = {"risk": {"preset": "high"}, "plan": {"spare_card_ratio": 0.0}, "guard": {"gaps_allowed": True}}


def planned(*services: Service, spare_cards: int = 0) -> Plan:
    return plan_of(cluster(*services, spare_cards=spare_cards), capability=KAI, settings=ANY_RISK)


def by_node(plan: Plan) -> Mapping[str, Sequence[CardPlacement]]:
    found: dict[str, list[CardPlacement]] = defaultdict(list)
    for card in plan.placement:
        found[str(card.node)].append(card)
    return found


def is_whole(card: CardPlacement, part: PlacedSlice) -> bool:
    return part.framebuffer_bytes == card.framebuffer_bytes


def chosen_by_kai(cards: Sequence[CardPlacement], order: Sequence[PlacedSlice]) -> list[list[PlacedSlice]]:
    """Which slices of a node KAI puts on a card together, if they come in this order."""
    mib = kai_rules.card_mib(str(cards[0].framebuffer_bytes // MIB))
    node = kai_rules.Node(name="node", cards=len(order), mib=mib)
    groups: dict[str, list[PlacedSlice]] = {}
    for part in order:
        ask = kai_rules.Ask(mib=part.framebuffer_bytes // MIB)
        (joined,) = kai_rules.place(ask, [node], {"node"}).groups
        name = joined or f"group-{len(groups)}"
        kai_rules.book(node, ask, [name])
        groups.setdefault(name, []).append(part)
    return list(groups.values())


def check_every_order(plan: Plan) -> int:
    """How many slices meet others than planned, of all orders; the cards are as many as planned in each."""
    random = np.random.default_rng(1)
    others = 0
    for cards in by_node(plan).values():
        slices = [part for card in cards for part in card.slices if not is_whole(card, part)]
        shared = [card for card in cards if any(not is_whole(card, part) for part in card.slices)]
        for card in shared:
            assert sum(part.framebuffer_bytes for part in card.slices) <= KAI.shareable_bytes(card.framebuffer_bytes)
        neighbours = [Counter(part.workload for part in card.slices) for card in shared]
        for _ in range(ORDERS if slices else 0):
            groups = chosen_by_kai(cards, [slices[number] for number in random.permutation(len(slices))])
            assert len(groups) == len(shared), "as many cards as planned"
            for group in groups:
                met = Counter(part.workload for part in group)
                assert max(met.values()) == 1, "replicas keep apart"
                assert len(group) <= max(map(len, neighbours))
                others += met not in neighbours
    return others


@pytest.mark.parametrize("seed", range(10))
def test_kai_needs_as_many_cards_as_planned_in_whatever_order_pods_come(seed: int) -> None:
    services, spare_cards = services_of(seed)
    plan = planned(*services, spare_cards=spare_cards)
    assert plan.totals.cards_freed >= 2
    check_every_order(plan)


def test_slices_fill_their_card_so_that_no_other_pod_joins() -> None:
    plan = planned(Service(name="a", level=0.3, used_gib=6.0), Service(name="b", level=0.2, used_gib=4.0))
    (card,) = [card for card in plan.placement if len(card.slices) > 1]
    left = KAI.shareable_bytes(card.framebuffer_bytes) - sum(part.framebuffer_bytes for part in card.slices)
    assert 0 <= left < len(card.slices) * MIB


def test_day_and_night_pods_do_not_meet_their_like() -> None:
    """Any two of four pods would fit a card by framebuffer; two that work by day would slow each other."""
    day = Service(name="day", level=0.8, used_gib=9.0, hours=(8, 18))
    night = replace(day, name="night", hours=(20, 24))
    plan = planned(*(replace(one, name=f"{one.name}-{number}") for one in (day, night) for number in range(2)))
    assert check_every_order(plan) == 0


@pytest.mark.parametrize("seed", [0, 6, 11])
def test_plan_that_came_true_is_not_changed_by_the_next(seed: int) -> None:
    services, spare_cards = services_of(seed)
    history = cluster(*services, spare_cards=spare_cards)
    first = plan_of(history, capability=KAI, settings=ANY_RISK)
    assert first.totals.cards_freed > 0
    seats = {part.pod_id: (card, part) for card in first.placement for part in card.slices}
    grants = tuple(
        replace(grant, card=card.card, node=str(card.node), framebuffer_granted_bytes=part.framebuffer_bytes)
        for grant in history.inventory.grants
        for card, part in [seats[grant.pod_id]]
    )
    place = {(grant.namespace, grant.pod): grant for grant in grants}
    keys = tuple(
        replace(key, card=place[key.namespace, key.pod].card, node=place[key.namespace, key.pod].node)
        for key in history.slices.keys
    )
    later = replace(
        history, inventory=replace(history.inventory, grants=grants), slices=replace(history.slices, keys=keys)
    )
    again = plan_of(later, capability=KAI, settings=ANY_RISK)
    assert (again.totals.moves, again.totals.cards_freed) == (0, 0)


@given(
    sizes=st.lists(st.integers(1, 100), min_size=1, max_size=7),
    random=st.randoms(use_true_random=False),
)
def test_cards_are_as_many_as_follow_from_how_many_meet(sizes: list[int], random: Random) -> None:
    """KAI's double counts a card in hundreds of MiB, so a card of one hundred has room for sizes up to that."""
    most = slices_that_meet(sizes, 100)
    if most is None:
        return
    for _ in range(3):
        came = random.sample(sizes, len(sizes))
        node = kai_rules.Node(name="node", cards=len(came), mib=100)
        for number, size in enumerate(came):
            ask = kai_rules.Ask(mib=size)
            (joined,) = kai_rules.place(ask, [node], {"node"}).groups
            kai_rules.book(node, ask, [joined or str(number)])
        assert len(node.groups) == -(-len(came) // most)


@pytest.mark.parametrize(
    ("sizes", "met"),
    [((40, 60), 2), ((50, 50, 50), 2), ((34, 50, 40), 2), ((30, 50, 40), 2), ((20, 50, 30, 60), None), ((60, 70), 1)],
)
def test_slices_that_meet(sizes: Sequence[int], met: int | None) -> None:
    assert slices_that_meet(sizes, 100) == met


def test_pod_beside_one_that_the_plan_keeps_from_it_did_not_arrive() -> None:
    day = Service(name="day", level=0.8, used_gib=9.0, hours=(8, 18))
    services = [replace(day, name=f"day-{number}") for number in range(2)]
    services += [replace(day, name=f"night-{number}", hours=(20, 24)) for number in range(2)]
    history = cluster(*services)
    plan = plan_of(history, capability=KAI, settings=ANY_RISK)
    assert any(len(card.slices) == 2 for card in plan.placement)
    as_planned = {
        part.pod_id: (str(part.workload), (str(card.card),)) for card in plan.placement for part in card.slices
    }
    assert permitted(plan, as_planned, history) == len(as_planned)
    shared = next(card for card in plan.placement if len(card.slices) == 2)
    joined = {
        pod: (workload, (str(shared.card),)) if "day" in pod else (workload, cards)
        for pod, (workload, cards) in as_planned.items()
    }
    assert permitted(plan, joined, history) < len(as_planned)
