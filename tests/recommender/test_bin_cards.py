"""Seats: pods go where a scheduler would let them."""

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from fleet.inventory import KEPT_APART_LABEL, NODE_MODE_LABEL, Grant, Node, WorkloadId
from fleet.units import GIB
from fleet.usage import History
from recommender.bin_cards import NodeRoom, seat_bins
from tests.recommender.builders import Service, check_plan, cluster, plan_of

PAIR = (Service(name="left", level=0.1), Service(name="fill", replicas=3, level=0.9, used_gib=20.0),
        Service(name="right", level=0.1))  # fmt: skip
"""Two small services on two nodes of four cards."""


def with_nodes(history: History, **changes: Mapping[str, Any]) -> History:
    nodes = tuple(replace(node, **changes.get(node.node.replace("-", "_"), {})) for node in history.inventory.nodes)
    return replace(history, inventory=replace(history.inventory, nodes=nodes))


def nodes_shared(history: History) -> list[str | None]:
    return [card.node for card in plan_of(history).placement if len(card.slices) > 1]


def test_two_small_services_share_a_card() -> None:
    assert len(nodes_shared(cluster(*PAIR))) == 1


def test_a_tainted_node_takes_nobody_who_is_not_on_such_a_one() -> None:
    taint = {"taints": ("team=vision:NoSchedule",)}
    assert nodes_shared(with_nodes(cluster(*PAIR), node_1=taint)) == ["node-0"]
    assert nodes_shared(with_nodes(cluster(*PAIR), node_0=taint)) == ["node-1"]
    assert nodes_shared(with_nodes(cluster(*PAIR), node_0=taint, node_1={"taints": ("team=ads:NoSchedule",)})) == []


def test_taints_that_both_nodes_have_part_nobody() -> None:
    taint = {"taints": ("nvidia.com/gpu=present:NoSchedule",)}
    assert len(nodes_shared(with_nodes(cluster(*PAIR), node_0=taint, node_1=taint))) == 1


def pools(*names: str, key: str = "pool") -> dict[str, Any]:
    return {f"node_{number}": {"labels": ((key, name),)} for number, name in enumerate(names)}


THREE_NODES = (*PAIR, Service(name="more", replicas=7, level=0.9, used_gib=20.0))


def test_a_pod_does_not_leave_the_pool_of_nodes_in_which_its_workload_runs() -> None:
    history = cluster(*THREE_NODES)
    assert len(nodes_shared(with_nodes(history, **pools("a", "a", "b")))) == 1
    assert nodes_shared(with_nodes(history, **pools("a", "b", "b"))) == []


@pytest.mark.parametrize("key", [NODE_MODE_LABEL, "vke.volcengine.com/mgpu-compute-policy", "nvidia.com/gpu.product"])
def test_what_describes_a_node_and_its_cards_is_no_pool(key: str) -> None:
    assert len(nodes_shared(with_nodes(cluster(*THREE_NODES), node_0={"labels": ((key, "a"),)}))) == 1


def test_a_node_that_lacks_the_label_is_another_pool() -> None:
    assert nodes_shared(with_nodes(cluster(*THREE_NODES), node_0={"labels": (("pool", "a"),)})) == []


def test_a_pool_in_which_a_replica_once_ran_is_selected() -> None:
    history = with_nodes(cluster(*THREE_NODES), **pools("a", "b", "b"))
    left = next(grant for grant in history.inventory.grants if grant.workload == "left")
    before = replace(
        left, pod="left-before", node="node-1", started_at=left.started_at - timedelta(days=2),
        ended_at=left.started_at - timedelta(days=1),
    )  # fmt: skip
    inventory = replace(history.inventory, grants=(*history.inventory.grants, before))
    assert nodes_shared(replace(history, inventory=inventory)) == ["node-1"]


def test_a_pod_comes_to_no_node_that_its_template_leaves_out_and_stays_where_it_runs() -> None:
    def shared(**left_out: str) -> list[str | None]:
        history = cluster(*PAIR)
        kept_off = {WorkloadId(f"team/Deployment/{name}"): frozenset({node}) for name, node in left_out.items()}
        return nodes_shared(replace(history, inventory=replace(history.inventory, kept_off=kept_off)))

    assert len(shared()) == 1
    assert shared(left="node-1") == ["node-0"]
    assert shared(right="node-0") == ["node-1"]
    assert shared(left="node-1", right="node-0") == []
    assert len(shared(left="node-0", right="node-1")) == 1, "who runs where its template would not go now is not lost"


@pytest.mark.parametrize("key", ["kubernetes.io/hostname", "nvidia.com/gpu.count", "rack-slot"])
def test_what_describes_one_machine_parts_nobody(key: str) -> None:
    assert len(nodes_shared(with_nodes(cluster(*PAIR), **pools("x", "y", key=key)))) == 1


@pytest.mark.parametrize("left", ["cpu_cores", "memory_bytes"])
def test_a_node_without_room_takes_nobody(left: str) -> None:
    asks: dict[str, Any] = {"cpu_request_cores": 4.0, "memory_request_bytes": 16 * GIB}
    services = [replace(service, changes=asks) for service in PAIR]
    history = cluster(*services)
    full = {"cpu_cores": 16.0, "memory_bytes": 64 * GIB}
    room = {"cpu_cores": 64.0, "memory_bytes": 256 * GIB}
    assert nodes_shared(with_nodes(history, node_0={**room, left: full[left]}, node_1=room)) == ["node-1"]


def test_of_a_bin_without_room_as_many_share_a_card_as_find_some() -> None:
    """One that may not come to any node leaves the others to share, and three who fit nowhere together are two."""
    services = [Service(name=f"s{number}", level=0.1, changes={"cpu_request_cores": 4.0}) for number in range(9)]
    room = {"cpu_cores": 20.0}
    history = with_nodes(cluster(*services), node_0=room, node_1=room, node_2={"cpu_cores": 4.0})
    grants = history.inventory.grants
    found = seat_bins([[0, 4, 5, 8]], grants, history.inventory, [])
    assert sorted(seat.rows for seat in found.seats) == [(0, 4, 5), (8,)]
    assert (found.roomless, found.cardless) == ((), ())
    alone = seat_bins([[0, 4, 5, 8]], grants, history.inventory, [], may_share=lambda rows: len(rows) < 2)
    assert sorted(seat.rows for seat in alone.seats) == [(0,), (4,), (5,), (8,)]


def test_what_is_tried_is_not_booked() -> None:
    history = cluster(Service(name="web", changes={"cpu_request_cores": 4.0}))
    nodes = (Node(node="node-0", cluster="c", cpu_cores=8.0), Node(node="other", cluster="c", cpu_cores=4.0))
    room = NodeRoom(replace(history.inventory, nodes=nodes), history.inventory.grants)
    tried = room.copy()
    assert tried.admit("other", history.inventory.grants)
    assert not tried.admit("other", history.inventory.grants)
    assert room.admit("other", history.inventory.grants)


def kept_apart(key: str, **changes: Mapping[str, Any]) -> NodeRoom:
    """Two replicas that keep apart, on the first two of three nodes of four cards."""
    web = Service(name="web", replicas=2, labels=((KEPT_APART_LABEL, key),))
    history = with_nodes(cluster(web, *THREE_NODES), **changes)
    at = {"web-0": "node-0", "web-1": "node-1"}
    grants = tuple(replace(grant, node=at.get(grant.pod, grant.node)) for grant in history.inventory.grants)
    return NodeRoom(replace(history.inventory, grants=grants), grants)


def replica(number: int) -> Grant:
    return replace(
        cluster(
            Service(name="web", replicas=3, labels=((KEPT_APART_LABEL, "kubernetes.io/hostname"),))
        ).inventory.grants[number],
        cpu_request_cores=None,
    )


def test_replicas_that_keep_apart_do_not_meet_on_a_node() -> None:
    room = kept_apart("kubernetes.io/hostname")
    assert not room.admit("node-1", [replica(0)])
    assert room.copy().admit("node-2", [replica(0)])
    assert not room.copy().admit("node-2", [replica(0), replica(1)])
    assert room.admit("node-2", [replica(0)])
    assert not room.admit("node-2", [replica(1)])
    # Whoever leaves gives its place back with the next plan alone, and whoever comes back to its own meets nobody.
    assert room.admit("node-1", [replica(1)])


def test_replicas_that_keep_to_zones_of_their_own_do_not_meet_in_one() -> None:
    def third(zone: str) -> NodeRoom:
        zones = zip(("a", "b", zone), range(3), strict=True)
        changes = {f"node_{number}": {"labels": (("zone", name),)} for name, number in zones}
        return kept_apart("zone", **changes)

    moved = replace(replica(0), labels=((KEPT_APART_LABEL, "zone"),))
    assert third("a").admit("node-2", [moved])
    assert not third("b").admit("node-2", [moved])
    # Who only tries another node of its zone, or moves within it, is in that zone as before.
    room, other = third("b"), replace(replica(1), labels=((KEPT_APART_LABEL, "zone"),), node="node-1")
    assert room.taken_by("node-2", [other]) == [other]
    assert not room.admit("node-2", [moved])
    room.give_back(other, "node-2")
    assert not room.admit("node-1", [moved])


def test_shared_cards_of_replicas_that_keep_apart_are_on_nodes_of_their_own() -> None:
    def nodes(*labels: tuple[str, str]) -> list[str]:
        services = (
            Service(name="web", replicas=2, labels=labels),
            Service(name="api", replicas=2),
            Service(name="x", replicas=4),
        )
        inventory = cluster(*services).inventory
        by_pod = {grant.pod: grant for grant in inventory.grants}
        # The second replica alone is on the other node; filling nodes one by one would bring it to the first.
        places = {"web-0": 0, "api-0": 1, "api-1": 2, "web-1": 4}
        cards = inventory.cards
        grants = [replace(by_pod[pod], card=cards[at].card, node=cards[at].node) for pod, at in places.items()]
        seats = seat_bins([[0, 1], [3, 2]], grants, replace(inventory, grants=tuple(grants)), ())
        assert not (*seats.cardless, *seats.roomless)
        return [seat.node for seat in seats.seats if {0, 3} & set(seat.rows)]

    assert nodes() == ["node-0", "node-0"]
    assert nodes((KEPT_APART_LABEL, "kubernetes.io/hostname")) == ["node-0", "node-1"]


def crowded(seed: int) -> History:
    """A fleet in which pods of some services share cards today, and nodes have little CPU left."""
    draw = random.Random(seed)
    services = [
        Service(
            name=f"s{number}", level=draw.choice([0.05, 0.1, 0.2, 0.4, 0.7]), used_gib=draw.choice([2, 4, 8, 14]),
            replicas=draw.choice([1, 1, 2]), changes={"cpu_request_cores": 8.0},
        )
        for number in range(draw.randint(6, 12))
    ]  # fmt: skip
    history = cluster(*services)
    grants, keys = list(history.inventory.grants), list(history.slices.keys)
    rows = {
        name: [row for row, grant in enumerate(grants) if grant.workload == name]
        for name in [service.name for service in services]
    }
    for first, second in zip(services[::2], services[1::2], strict=False):
        if draw.random() < 0.5 and first.replicas == second.replicas:
            for kept, moved in zip(rows[first.name], rows[second.name], strict=True):
                card, node = grants[kept].card, grants[kept].node
                for row in (kept, moved):
                    grants[row] = replace(grants[row], card=card, node=node, framebuffer_granted_bytes=11 * GIB)
                    keys[row] = replace(keys[row], card=card, node=node)
    used = Counter(grant.node for grant in grants)
    nodes = tuple(
        replace(node, cpu_cores=8.0 * used[node.node] + draw.choice([0.0, 0.0, 8.0, 16.0]))
        for node in history.inventory.nodes
    )
    inventory = replace(history.inventory, grants=tuple(grants), nodes=nodes)
    return replace(history, inventory=inventory, slices=replace(history.slices, keys=tuple(keys)))


@pytest.mark.parametrize(("seed", "freed"), [(2, 5), (5, 5), (13, 6), (24, 5)])
def test_bin_that_finds_no_room_takes_nobody_elses_advice_with_it(seed: int, freed: int) -> None:
    history = crowded(seed)
    plan = plan_of(history, risk="high")
    check_plan(plan, history)
    assert plan.totals.cards_freed >= freed


@pytest.mark.parametrize(("seed", "freed"), [(1, 1), (11, 2), (53, 6)])
def test_pods_that_find_no_card_stay_and_take_nobody_elses_advice_with_them(seed: int, freed: int) -> None:
    history = crowded(seed)
    plan = plan_of(history, risk="high")
    check_plan(plan, history)
    assert plan.totals.cards_freed >= freed
    staying = {refusal.workload for refusal in plan.refused if refusal.reason in {"no_node_room", "shares_already"}}
    assert staying
    # All pods of a template change together, and a pod that stays keeps its slice.
    before = {(grant.pod, grant.container): grant for grant in history.inventory.grants}
    for card in plan.placement:
        for part in card.slices:
            grant = before[part.pod, part.container]
            if grant.workload_id in staying:
                assert (card.card, part.framebuffer_bytes) == (grant.card, grant.framebuffer_granted_bytes)
