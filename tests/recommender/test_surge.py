"""Services change cards without a gap: each goes to a card that is free then, and leaves its own to the next."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from fleet.capabilities.register import MGPU
from fleet.decisions import Plan, RecommendationKind
from fleet.inventory import LATENCY_CRITICAL_LABEL
from fleet.units import GIB
from fleet.usage import History
from tests.recommender.builders import ANY_CONFIDENCE, Service, check_plan, cluster, plan_of

SINGLES = tuple(Service(name=f"s{number}", level=0.1, used_gib=3.0) for number in range(6))
IDLE = Service(name="idle", kind="Notebook", level=0.0)


def careful(history: History, **settings: Any) -> Plan:
    """The plan of a history where nobody said yes to a gap."""
    return plan_of(history, settings={"guard": {"gaps_allowed": False}, **settings})


def sources(history: History) -> dict[str, str]:
    return {grant.pod_id: str(grant.card) for grant in history.inventory.grants}


def roomed(history: History, **cores: float) -> History:
    """The same on nodes with so many cores each."""
    nodes = tuple(replace(node, cpu_cores=cores.get(node.node.replace("-", "_"))) for node in history.inventory.nodes)
    return replace(history, inventory=replace(history.inventory, nodes=nodes))


def gapless(history: History, plan: Plan, spared: str = "") -> bool:
    """Whether every pod finds room in its seat while its workload's pods still run, workload by workload, by stages.

    Room is framebuffer of the card and, where it is known, CPU of the node. A pod goes in the last stage that names it.
    Those whose names begin with `spared` may leave their card before.
    """
    cores = {node.node: node.cpu_cores for node in history.inventory.nodes if node.cpu_cores is not None}
    asks = {grant.pod_id: grant.cpu_request_cores or 0.0 for grant in history.inventory.grants}
    node_of = {str(card.card): card.node for card in history.inventory.cards}
    size = {card.card: card.framebuffer_bytes for card in plan.placement}
    target = {part.pod_id: (str(card.card), part) for card in plan.placement for part in card.slices}
    held: dict[str, Counter[str]] = {}
    for grant in history.inventory.grants:
        held.setdefault(str(grant.card), Counter())[grant.pod_id] = grant.framebuffer_granted_bytes
    before = sources(history)
    named = {item.id: item for item in plan.recommendations}
    of_stage = [[named[name] for name in stage.recommendations] for stage in plan.stages]
    last = {pod: number for number, items in enumerate(of_stage) for item in items for pod in item.pods}
    for number, items in enumerate(of_stage):
        for item in items:
            if item.kind is RecommendationKind.RECLAIM:
                for pod in item.pods:
                    held[before[pod]].pop(pod)
        moved = {pod for item in items for pod in item.pods if item.kind is not RecommendationKind.RECLAIM}
        left = {pod for pod in moved if last[pod] == number}
        while left:
            able = None
            for pod in sorted(left):
                card, part = target[pod]
                there = held.get(card, Counter())
                is_spared = bool(spared) and pod.startswith(spared)
                used = sum(there.values()) - (there[pod] if is_spared else 0)
                busy = sum(asks[p] for c, pods in held.items() if node_of[c] == node_of[card] for p in pods)
                busy -= asks[pod] if is_spared and node_of[before[pod]] == node_of[card] else 0.0
                has_cores = busy + asks[pod] <= cores.get(node_of[card], busy + asks[pod])
                if has_cores and used + part.framebuffer_bytes <= size[card]:  # type: ignore[index]
                    able = pod
                    break
            if able is None:
                return False
            card, part = target[able]
            held[before[able]].pop(able)
            held.setdefault(card, Counter())[able] = part.framebuffer_bytes
            left.discard(able)
    return True


def test_with_one_free_card_every_service_changes_cards_without_a_gap() -> None:
    history = cluster(*SINGLES, spare_cards=1)
    plan = careful(history)
    assert plan.totals.cards_freed == plan_of(cluster(*SINGLES)).totals.cards_freed > 0
    assert plan.totals.surge_cards == 1
    assert not [item for item in plan.refused if item.reason == "no_surge_card"]
    assert gapless(history, plan)
    assert sum(stage.cards_freed for stage in plan.stages) == plan.totals.cards_freed


def test_without_a_free_card_nothing_is_staged_and_the_card_that_would_help_is_named() -> None:
    plan = careful(cluster(*SINGLES))
    assert plan.stages == ()
    assert (plan.totals.cards_freed, plan.totals.surge_cards) == (0, 0)
    stuck = [item for item in plan.refused if item.reason == "no_surge_card"]
    assert len(stuck) == len(SINGLES)
    assert dict(stuck[0].values)["card_model"] == "NVIDIA A10"
    assert plan_of(cluster(*SINGLES)).totals.cards_freed > 0, "somebody who says yes to gaps gets the whole plan"
    presets = {point.label: point for point in plan.frontier if point.label in ("low", "medium", "high")}
    assert {point.cards_freed for point in presets.values()} == {0}
    assert {point.cards_beyond_max for point in presets.values()} == {None}, "nothing is proven of what stays"


def test_nothing_moves_where_no_card_is_freed_beyond_the_spares() -> None:
    history = cluster(*SINGLES[:2], spare_cards=1)
    assert careful(history).totals.moves == 2
    plan = careful(history, plan={"spare_card_ratio": 1.0})
    assert (plan.recommendations, plan.totals.spare_cards, plan.totals.moves) == ((), 0, 0)
    assert [item.reason for item in plan.refused] == ["frees_no_card"] * 2


def test_card_of_an_idle_workload_is_given_back_first_and_is_the_first_target() -> None:
    history = cluster(*SINGLES, IDLE)
    plan = careful(history, **ANY_CONFIDENCE)
    assert plan.totals.surge_cards == 0
    assert plan.totals.cards_freed == plan_of(history, settings=ANY_CONFIDENCE).totals.cards_freed > 1
    assert gapless(history, plan)


@pytest.mark.parametrize("replicas", [2, 3, 5])
def test_replicas_follow_each_other_over_one_free_card(replicas: int) -> None:
    services = [Service(name=name, replicas=replicas, level=0.1, used_gib=3.0) for name in "ab"]
    history = cluster(*services, spare_cards=1)
    plan = careful(history)
    assert plan.totals.cards_freed > 0
    assert plan.totals.surge_cards == 1
    assert gapless(history, plan)


def test_lone_pod_of_a_stateful_set_and_a_latency_critical_one_stay_without_an_explicit_yes() -> None:
    calm = [Service(name=f"s{number}", level=0.1, used_gib=3.0, kind="StatefulSet") for number in range(2)]
    critical = Service(
        name="fast", replicas=2, level=0.1, used_gib=3.0, kind="StatefulSet", labels=((LATENCY_CRITICAL_LABEL, "true"),)
    )
    web = Service(name="web", replicas=2, level=0.1, used_gib=3.0)
    plan = careful(cluster(*calm, critical, web, spare_cards=2))
    reasons = {
        str(item.workload).rpartition("/")[2]: item.reason for item in plan.refused if item.reason == "gap_needs_yes"
    }
    assert set(reasons) == {"s0", "s1", "fast"}
    moved = {str(name) for item in plan.recommendations for name in item.workloads}
    assert moved <= {"team/Deployment/web"}


def test_pods_that_share_a_card_already_as_they_should_stay_there() -> None:
    history = cluster(*SINGLES, spare_cards=1)
    plan = careful(history)
    seat = {part.pod_id: (card, part) for card in plan.placement for part in card.slices}
    grants = tuple(
        replace(
            grant, card=seat[grant.pod_id][0].card, node=seat[grant.pod_id][0].node or grant.node,
            framebuffer_granted_bytes=seat[grant.pod_id][1].framebuffer_bytes,
        )
        for grant in history.inventory.grants
    )  # fmt: skip
    keys = tuple(
        replace(
            key, card=seat[f"{key.namespace}/{key.pod}"][0].card, node=seat[f"{key.namespace}/{key.pod}"][0].node or ""
        )
        for key in history.slices.keys
    )
    after = replace(
        history, inventory=replace(history.inventory, grants=grants), slices=replace(history.slices, keys=keys)
    )
    again = careful(after)
    assert {part.pod_id: str(card.card) for card in again.placement for part in card.slices} == {
        pod: str(card.card) for pod, (card, _) in seat.items()
    }
    assert again.totals.surge_cards == 0


def test_where_no_card_is_free_a_service_of_four_begins_and_leaves_cards_to_the_others() -> None:
    four = Service(name="four", replicas=4, level=0.1, used_gib=3.0)
    history = cluster(*SINGLES, four)
    plan = careful(history)
    assert plan.totals.cards_freed == plan_of(history).totals.cards_freed > 0
    assert not [item for item in plan.refused if item.reason == "no_surge_card"]
    assert gapless(history, plan, spared="team/four")
    assert not gapless(history, plan)
    critical = replace(four, labels=((LATENCY_CRITICAL_LABEL, "true"),))
    assert careful(cluster(*SINGLES, critical)).totals.cards_freed == 0
    assert careful(cluster(*SINGLES, replace(four, replicas=3))).totals.cards_freed == 0


def shared_by(history: History, card: int, *pods: str, gib: float) -> History:
    """The same with these pods on one card of the cluster, each with so much framebuffer."""
    taken = history.inventory.cards[card]
    known = {f"team/{pod}" for pod in pods}
    grants = tuple(
        replace(grant, card=taken.card, node=taken.node, framebuffer_granted_bytes=int(gib * GIB))
        if grant.pod_id in known else grant
        for grant in history.inventory.grants
    )  # fmt: skip
    keys = tuple(
        replace(key, card=taken.card, node=taken.node) if f"{key.namespace}/{key.pod}" in known else key
        for key in history.slices.keys
    )
    return replace(
        history, inventory=replace(history.inventory, grants=grants), slices=replace(history.slices, keys=keys)
    )


@pytest.mark.parametrize("count", [2, 3])
def test_notebooks_take_their_turn_so_that_no_service_waits_for_the_card_of_a_later_stage(count: int) -> None:
    notebooks = [Service(name=f"nb{number}", kind="Notebook", level=0.1, used_gib=3.0) for number in range(count)]
    history = cluster(*notebooks, *SINGLES)
    plan = careful(history)
    assert plan.totals.cards_freed > 0
    assert gapless(history, plan, spared="team/nb")


def test_workload_beside_one_that_stays_stays_too_and_no_card_is_named_twice() -> None:
    names = (Service(name="a", level=0.1, used_gib=3.0), Service(name="s", kind="StatefulSet", level=0.1, used_gib=3.0))
    others = [Service(name=name, level=0.1, used_gib=3.0) for name in "bd"]
    history = shared_by(cluster(*names, *others, spare_cards=1), 0, "a-0", "s-0", gib=6.0)
    plan = careful(history)
    cards = [card.card for card in plan.placement]
    assert len(cards) == len(set(cards))
    for card in plan.placement:
        assert sum(part.framebuffer_bytes for part in card.slices) <= card.framebuffer_bytes
    reasons = {str(item.workload).rpartition("/")[2]: item.reason for item in plan.refused}
    assert {name: reasons.get(name) for name in "as"} == {"a": "neighbour_stays", "s": "gap_needs_yes"}


def test_free_card_in_mig_mode_is_no_target() -> None:
    history = cluster(*SINGLES, spare_cards=1)
    *cards, spare = history.inventory.cards
    cut = replace(history, inventory=replace(history.inventory, cards=(*cards, replace(spare, mig_mode=True))))
    plan = careful(cut)
    assert (plan.stages, plan.totals.surge_cards) == ((), 0)


def test_new_share_of_compute_needs_room_like_a_move() -> None:
    pair = [Service(name=name, level=0.1, used_gib=8.0, changes={"compute_granted_ratio": 0.5}) for name in "ab"]
    history = cluster(*pair, *(Service(name=name, level=0.1, used_gib=8.0) for name in "cd"), spare_cards=1)
    slices = {part.pod_id: part for card in plan_of(history).placement for part in card.slices}
    size = slices["team/a-0"].framebuffer_bytes
    assert size is not None
    assert 2 * size <= 24 * GIB < 3 * size
    history = shared_by(history, 0, "a-0", "b-0", gib=size / GIB)
    plan = careful(history)
    assert plan.totals.cards_freed > 0
    assert gapless(history, plan)


def test_backend_that_names_no_cards_changes_no_service_that_can_spare_no_pod() -> None:
    history = cluster(*SINGLES, Service(name="many", replicas=4, level=0.1, used_gib=3.0), spare_cards=2)
    plan = plan_of(history, capability=MGPU, settings={"guard": {"gaps_allowed": False}})
    assert {item.reason for item in plan.refused} == {"gap_of_backend"}
    assert len(plan.refused) == len(SINGLES)
    assert plan_of(history, capability=MGPU).totals.cards_freed > 0


@pytest.mark.parametrize("cores", [24.0, 32.0])
def test_first_pod_of_a_seat_goes_where_the_others_find_cpu_too(cores: float) -> None:
    history = cluster(*(replace(one, changes={"cpu_request_cores": 8.0}) for one in SINGLES), spare_cards=3)
    # One or two more pods find room on the first node with a free card, all six on the second.
    history = roomed(history, node_0=48.0, node_1=cores, node_2=64.0)
    plan = careful(history)
    assert plan.refused == ()
    assert plan.totals.cards_freed == 5
    assert gapless(history, plan)


def test_service_that_lacks_cpu_for_one_pod_more_does_not_hear_that_a_card_is_missing() -> None:
    history = cluster(*(replace(one, changes={"cpu_request_cores": 8.0}) for one in SINGLES), spare_cards=3)
    plan = careful(roomed(history, node_0=32.0, node_1=16.0, node_2=4.0))
    assert plan.totals.cards_freed == 0
    reasons = {item.reason for item in plan.refused}
    assert reasons
    assert reasons <= {"no_surge_room", "no_node_room", "frees_no_card"}


@pytest.mark.parametrize("level", [0.1, 0.3])
@pytest.mark.parametrize("free", [8.0, 12.0, 16.0])
def test_on_nodes_without_cpu_for_others_neighbours_share_cards(free: float, level: float) -> None:
    """Every node has CPU for one or two pods more; without any limit all pods of a node's four would share as well."""
    services = [
        Service(
            name=f"s{number}", level=level, used_gib=5.0, changes={"cpu_request_cores": 8.0 * (1 + (number % 4 < 1))}
        )
        for number in range(12)
    ]
    cores = 40.0 + free
    history = roomed(cluster(*services, spare_cards=4), node_0=cores, node_1=cores, node_2=cores)
    plan = careful(history)
    assert plan.totals.cards_freed >= (9 if level < 0.2 else 6)
    assert gapless(history, plan)


@pytest.mark.parametrize("seed", [7, 16, 23, 25, 34, 53])
def test_no_node_is_asked_for_more_cpu_than_it_has_at_any_moment(seed: int) -> None:
    draw = random.Random(seed)
    services = [
        Service(
            name=f"s{number}",
            replicas=draw.choice([1, 1, 2, 3, 4, 5]),
            level=draw.choice([0.05, 0.1, 0.2, 0.3]),
            used_gib=draw.choice([3.0, 5.0, 7.0]),
            kind=draw.choice(["Deployment", "Deployment", "Deployment", "Notebook"]),
            changes={"cpu_request_cores": draw.choice([4.0, 8.0, 12.0])},
        )
        for number in range(draw.randint(5, 14))
    ]
    history = cluster(*services, spare_cards=draw.choice([0, 1, 3, 5]))
    used: Counter[str] = Counter()
    for grant in history.inventory.grants:
        used[grant.node] += int(grant.cpu_request_cores or 0)
    nodes = [node.node for node in history.inventory.nodes]
    room = {node.replace("-", "_"): used[node] + draw.choice([0.0, 4.0, 8.0, 12.0, 16.0, 30.0]) for node in nodes}
    history = roomed(history, **room)
    plan = careful(history)
    check_plan(plan, history)
    assert plan.totals.cards_freed > 0
    assert gapless(history, plan, spared="team/")


@pytest.mark.parametrize("seed", range(4))
def test_no_node_is_asked_for_more_in_the_end_where_gaps_are_allowed_and_nodes_are_full_to_the_last_tenth(
    seed: int,
) -> None:
    draw = random.Random(seed)
    services = [
        Service(
            name=f"s{number}",
            replicas=draw.choice([1, 2, 3]),
            level=draw.choice([0.05, 0.1]),
            used_gib=draw.choice([3.0, 5.0, 7.0]),
            changes={"cpu_request_cores": draw.choice([0.1, 0.7, 1.3])},
        )
        for number in range(10)
    ]
    history = cluster(*services, spare_cards=2)
    used: Counter[str] = Counter()
    for grant in history.inventory.grants:
        used[grant.node] += grant.cpu_request_cores or 0.0  # type: ignore[assignment]
    room = {node.node: used[node.node] + draw.choice([0.0, 0.1, 0.7]) for node in history.inventory.nodes}
    plan = careful(
        roomed(history, **{node.replace("-", "_"): cores for node, cores in room.items()}), guard={"gaps_allowed": True}
    )
    asks = {grant.pod_id: grant.cpu_request_cores or 0.0 for grant in history.inventory.grants}
    after: Counter[str] = Counter()
    for card in plan.placement:
        for part in card.slices:
            after[str(card.node)] += asks[part.pod_id]  # type: ignore[assignment]
    assert plan.totals.moves > 0
    assert [node for node, cores in after.items() if cores > room[node] + 1e-9] == []
