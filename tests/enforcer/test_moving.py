"""Who owns a pod, whether it has landed, in which order pods go, and what a plan calls them: small pure parts."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from enforcer.backend import Move
from enforcer.dialect import SeatSlice, StandingCard
from enforcer.kinds.register import is_rolled_out
from enforcer.ownership import parents_of, workload_of_pod
from enforcer.rollout.holding import Phase
from enforcer.rollout.landing import landing_of, made_anew, wanted_pods
from enforcer.rollout.load import Load, units_of
from enforcer.rollout.move_order import Order, can_go_alone, waves
from enforcer.seat import PodSeat
from enforcer.snapshot import Snapshot
from fleet.inventory import WorkloadId

W = WorkloadId("team/Deployment/w")
MIB = 24576


def cards(*names: str) -> dict[str, StandingCard]:
    return {
        name: StandingCard(card=name, device_type="NVIDIA-A10", node="n", framebuffer_mib=MIB, slices_max=10)
        for name in names
    }


def share(card: str, mib: int = MIB // 2, cores: int = 0) -> tuple[SeatSlice, ...]:
    return (SeatSlice(container="server", card=card, framebuffer_mib=mib, core_percent=cores, priority=None),)


def all_of(card: str) -> tuple[SeatSlice, ...]:
    return share(card, MIB, 100)


def seat(pod: str, slices: tuple[SeatSlice, ...], *, workload: WorkloadId = W, is_ready: bool = True) -> PodSeat:
    return PodSeat(
        namespace="team", pod=pod, workload=workload, node="n", slices=slices, is_ready=is_ready, restarts=0,
        is_oom_killed=False, resource_version="1", deletion_cost=None,
    )  # fmt: skip


def move(pod: str, old: tuple[SeatSlice, ...], new: tuple[SeatSlice, ...], *, workload: WorkloadId = W) -> Move:
    return Move(namespace="team", pod=pod, workload=workload, old=old, new=new, recommendation="r")


# --- ownership ---


def an_object(kind: str, name: str, *owners: tuple[str, str, bool], labels: dict[str, str] | None = None) -> Any:
    references = [{"kind": kind, "name": name, "controller": is_controller} for kind, name, is_controller in owners]
    return {
        "kind": kind,
        "metadata": {"namespace": "team", "name": name, "ownerReferences": references, "labels": labels or {}},
    }


@pytest.mark.parametrize(
    ("chain", "workload"),
    [
        ([("ReplicaSet", "w-5d"), ("Deployment", "w")], "Deployment/w"),
        ([("ReplicaSet", "w-5d"), ("Deployment", "w"), ("InferenceService", "llm")], "InferenceService/llm"),
        ([("ReplicaSet", "w-5d"), ("Rollout", "w")], "Rollout/w"),
        ([("StatefulSet", "book"), ("Notebook", "book")], "Notebook/book"),
        ([("StatefulSet", "lws-1"), ("LeaderWorkerSet", "lws")], "LeaderWorkerSet/lws"),
        ([("Job", "n-1"), ("CronJob", "n")], "CronJob/n"),
        ([("RayCluster", "ray")], "RayCluster/ray"),
        ([("PyTorchJob", "train")], "PyTorchJob/train"),
        ([], "Pod/p"),
        ([("Node", "n1")], "Pod/p"),
    ],
)
def test_workload_is_the_topmost_controller(chain: list[tuple[str, str]], workload: str) -> None:
    pod = an_object("Pod", "p", *((kind, name, True) for kind, name in chain[:1]))
    above = [an_object(*below, (*up, True)) for below, up in pairwise(chain)]
    assert workload_of_pod(pod, parents_of(above)) == f"team/{workload}"


def test_owner_that_controls_nothing_is_passed_over() -> None:
    pod = an_object("Pod", "p", ("ConfigMap", "c", False), ("Job", "j", True))
    assert workload_of_pod(pod, {}) == "team/Job/j"


@pytest.mark.parametrize(
    ("label", "workload"),
    [
        ("pod-template-hash", "Deployment/w"),
        ("rollouts-pod-template-hash", "Rollout/w"),
        ("app", "ReplicaSet/w-5d"),
    ],
)
def test_replica_set_that_is_not_known_tells_its_maker_by_its_name(label: str, workload: str) -> None:
    pod = an_object("Pod", "w-5d-x", ("ReplicaSet", "w-5d", True), labels={label: "5d"})
    assert workload_of_pod(pod, {}) == f"team/{workload}"


def test_owners_in_a_circle_end() -> None:
    pod = an_object("Pod", "p", ("Job", "a", True))
    circle = [an_object("Job", "a", ("Job", "b", True)), an_object("Job", "b", ("Job", "a", True))]
    assert workload_of_pod(pod, parents_of(circle)) in ("team/Job/a", "team/Job/b")


# --- landing ---

MOVES = [move("w-0", all_of("c0"), share("c0")), move("w-1", all_of("c1"), share("c0"))]


def test_replicas_that_sit_as_planned_have_landed_whatever_they_are_called() -> None:
    landing = landing_of(MOVES, [seat("w-a", share("c0")), seat("w-b", share("c0"))])
    assert landing.is_whole
    assert len(made_anew(MOVES, landing.in_place)) == 2


@pytest.mark.parametrize(
    ("pods", "counts"),
    [
        ([seat("w-a", share("c0")), seat("w-1", all_of("c1"))], (1, 1, 0, 0)),
        ([seat("w-a", share("c0")), seat("w-b", share("c9"))], (1, 0, 1, 0)),
        ([seat("w-a", share("c0")), seat("w-b", share("c0"), is_ready=False)], (1, 0, 0, 1)),
        ([seat("w-a", share("c0")), seat("w-b", ())], (1, 0, 0, 1)),
        ([seat("w-a", share("c0")), seat("w-b", share("c0")), seat("w-c", share("c0"))], (2, 0, 1, 0)),
    ],
)
def test_pods_are_in_place_unmoved_elsewhere_or_waiting(pods: list[PodSeat], counts: tuple[int, ...]) -> None:
    found = landing_of(MOVES, pods)
    assert (len(found.in_place), len(found.unmoved), len(found.elsewhere), len(found.waiting)) == counts
    assert not found.is_whole
    assert found.pods == len(pods)


def test_pod_that_had_no_seat_before_may_find_one_anywhere() -> None:
    moves = [*MOVES, move("w-2", (), ())]
    pods = [seat("w-a", share("c0")), seat("w-b", share("c0"))]
    assert landing_of(moves, [*pods, seat("w-c", ())]).is_whole
    found = landing_of(moves, [*pods, seat("w-c", all_of("c7"))])
    assert found.is_whole
    assert not found.is_astray


@pytest.mark.parametrize(
    ("status", "is_over"),
    [
        ({"observedGeneration": 2, "replicas": 2, "updatedReplicas": 2}, True),
        ({"observedGeneration": 1, "replicas": 2, "updatedReplicas": 2}, False),
        ({"observedGeneration": 2, "replicas": 2, "updatedReplicas": 1}, False),
        ({"observedGeneration": 2, "replicas": 1}, False),
        ({"observedGeneration": 2}, True),
    ],
)
def test_rollout_is_over_when_the_controller_has_looked_and_no_old_pod_is_left(
    status: dict[str, int], is_over: bool
) -> None:
    owner = {"kind": "Deployment", "metadata": {"name": "w", "generation": 2}, "status": status}
    assert is_rolled_out(owner) is is_over


def test_owner_that_is_stopped_or_scaled_in_wants_fewer_pods() -> None:
    assert wanted_pods({"kind": "Deployment", "metadata": {}, "spec": {"replicas": 1}}, 3) == 1
    assert wanted_pods({"kind": "Job", "metadata": {}, "spec": {"suspend": True}}, 3) == 0
    stopped = {"annotations": {"kubeflow-resource-stopped": "2026-01-12T00:00:00Z"}}
    assert wanted_pods({"kind": "Notebook", "metadata": stopped, "spec": {}}, 3) == 0
    assert wanted_pods({"kind": "DaemonSet", "metadata": {}, "spec": {}}, 3) == 3
    assert wanted_pods(None, 3) == 0


# --- order ---

CARDS = cards(*(f"c{number}" for number in range(4)))


def sitting(*moves: Move) -> dict[str, PodSeat]:
    return {entry.pod_id: seat(entry.pod, entry.old, workload=entry.workload) for entry in moves}


def test_pods_of_a_unit_follow_each_other_as_places_become_free() -> None:
    first, second = MOVES
    ((unit,),) = waves([(second, first)], sitting(first, second), CARDS, 10)
    assert unit.moves == (first, second)
    assert unit.order is Order.FIXED


def test_pods_that_shrink_on_their_own_cards_may_go_in_any_order() -> None:
    moves = (move("w-0", all_of("c0"), share("c0")), move("w-1", all_of("c1"), share("c1")))
    ((unit,),) = waves([moves], sitting(*moves), CARDS, 10)
    assert unit.order is Order.FREE


def test_unit_that_needs_anothers_place_goes_in_a_later_wave() -> None:
    other = WorkloadId("team/Deployment/v")
    leaves = move("v-0", all_of("c0"), share("c1"), workload=other)
    comes = move("w-0", all_of("c2"), all_of("c0"))
    found = waves([(comes,), (leaves,)], sitting(comes, leaves), CARDS, 10)
    assert [[unit.moves[0].pod for unit in wave] for wave in found] == [["v-0"], ["w-0"]]


def test_of_two_owners_that_exchange_places_one_pod_each_waits_at_a_time() -> None:
    other = WorkloadId("team/Deployment/v")
    ones = tuple(move(f"v-{n}", all_of(f"c{n}"), all_of(f"c{n + 2}"), workload=other) for n in range(2))
    twos = tuple(move(f"w-{n}", all_of(f"c{n + 2}"), all_of(f"c{n}")) for n in range(2))
    (wave,) = waves([ones, twos], sitting(*ones, *twos), CARDS, 1)
    assert [unit.order for unit in wave] == [Order.FIXED, Order.FIXED]
    assert [[entry.pod for entry in unit.moves] for unit in wave] == [["v-0", "v-1"], ["w-0", "w-1"]]


def test_single_pods_that_exchange_places_go_in_one_wave() -> None:
    other = WorkloadId("team/Deployment/v")
    one = move("v-0", all_of("c0"), all_of("c1"), workload=other)
    two = move("w-0", all_of("c1"), all_of("c0"))
    (wave,) = waves([(one,), (two,)], sitting(one, two), cards("c0", "c1"), 1)
    assert [unit.order for unit in wave] == [Order.FREE, Order.FREE]
    assert not can_go_alone([one], sitting(one, two), cards("c0", "c1"), surges=False)


def test_replicas_that_want_each_others_cards_go_at_once() -> None:
    one = move("w-0", share("c0"), all_of("c1"))
    two = move("w-1", share("c1"), all_of("c0"))
    (wave,) = waves([(one, two)], sitting(one, two), cards("c0", "c1"), 1)
    assert [unit.order for unit in wave] == [Order.AT_ONCE]
    assert {entry.pod for entry in wave[0].moves} == {"w-0", "w-1"}


def test_new_seat_beside_the_old_one_lets_its_owner_surge_and_no_surge_is_found_without_room() -> None:
    away, within = move("w-0", all_of("c0"), all_of("c1")), move("w-0", all_of("c0"), share("c0"))
    ((unit,),) = waves([(away,)], sitting(away), CARDS, 1, {W})
    assert unit.surges
    ((unit,),) = waves([(within,)], sitting(within), CARDS, 1, {W})
    assert not unit.surges
    ((unit,),) = waves([(away,)], sitting(away), CARDS, 1)
    assert not unit.surges, "an owner that can't surge does not"


def test_pods_that_can_sit_in_one_place_alone_go_before_those_that_the_scheduler_may_put_there() -> None:
    anywhere = move("a-0", share("c0"), share("c1"), workload=WorkloadId("team/Deployment/a"))
    pinned = move("w-0", share("c0"), share("c2"))
    found = waves([(anywhere,), (pinned,)], sitting(anywhere, pinned), cards("c0", "c1", "c2"), 10, (), {W})
    assert [[unit.moves for unit in wave] for wave in found] == [[(pinned,)], [(anywhere,)]]
    swap = move("a-0", share("c2", MIB), share("c1"), workload=WorkloadId("team/Deployment/a"))
    found = waves([(pinned,), (swap,)], sitting(swap, pinned), cards("c0", "c1", "c2"), 10, (), {W})
    assert [[unit.moves for unit in wave] for wave in found] == [[(swap,)], [(pinned,)]], "its place is taken"


def test_pods_that_can_sit_in_one_place_alone_wait_where_others_would_go_with_a_gap_for_it() -> None:
    names = [WorkloadId(f"team/Deployment/{name}") for name in "hnf"]
    h, n, f = (
        move(f"{name[-1]}-0", old, new, workload=name)
        for name, (old, new) in zip(
            names,
            [(share("c0"), all_of("c1")), (all_of("c1"), share("c0")), (all_of("c2"), share("c0"))],
            strict=True,
        )
    )
    found = waves([(n,), (h,), (f,)], sitting(h, n, f), cards("c0", "c1", "c2"), 10, set(names), {names[2]})
    assert [[(unit.moves, unit.surges) for unit in wave] for wave in found] == [
        [((n,), True)],
        [((h,), True)],
        [((f,), True)],
    ]


def test_card_that_an_earlier_wave_leaves_is_room_for_a_surge() -> None:
    other = WorkloadId("team/Deployment/v")
    first = move("w-0", all_of("c0"), all_of("c2"))
    second = move("v-0", all_of("c1"), all_of("c0"), workload=other)
    found = waves([(second,), (first,)], sitting(first, second), CARDS, 10, {W, other})
    assert [[(unit.moves[0].pod, unit.surges) for unit in wave] for wave in found] == [[("w-0", True)], [("v-0", True)]]


def test_replicas_surge_one_at_a_time_where_one_takes_the_card_that_another_leaves() -> None:
    one, two = move("w-0", all_of("c0"), all_of("c1")), move("w-1", all_of("c1"), all_of("c2"))
    ((unit,),) = waves([(one, two)], sitting(one, two), CARDS, 1, {W})
    assert (unit.surges, unit.order, [entry.pod for entry in unit.moves]) == (True, Order.FIXED, ["w-1", "w-0"])


def test_replicas_surge_all_at_once_where_every_new_seat_has_room_beside_every_old_one() -> None:
    one, two = move("w-0", all_of("c0"), share("c2")), move("w-1", all_of("c1"), share("c2"))
    ((unit,),) = waves([(one, two)], sitting(one, two), CARDS, 1, {W})
    assert (unit.surges, unit.order) == (True, Order.FREE)


def test_share_of_a_card_that_the_api_does_not_name_is_no_room_for_a_surge() -> None:
    counted = SeatSlice(
        container="server", card=None, framebuffer_mib=0, core_percent=0, priority=None, node="n", resource="x/gpu"
    )
    going = move("w-0", (counted,), (counted,))
    ((unit,),) = waves([(going,)], sitting(going), CARDS, 1, {W})
    assert not unit.surges


def counted(node: str, cards: int) -> dict[str, StandingCard]:
    names = (f"{node}/nvidia.com/gpu/{number}" for number in range(cards))
    found = (StandingCard(card=n, device_type="A10", node=node, framebuffer_mib=MIB, slices_max=1) for n in names)
    return {card.card: card for card in found}


def on_node(node: str, mib: int = 0) -> tuple[SeatSlice, ...]:
    return (SeatSlice(container="server", card=None, node=node, framebuffer_mib=mib, resource="some"),)


def test_share_of_a_node_whose_cards_are_all_held_waits_until_one_that_shrinks_there_has_made_room() -> None:
    stays, comes, shrinks = (WorkloadId(f"team/Deployment/{name}") for name in ("stays", "comes", "shrinks"))
    sitting = (
        seat("s", on_node("n"), workload=stays),
        seat("c", on_node("m"), workload=comes),
        seat("h", on_node("n"), workload=shrinks),
    )
    seats = {pod.pod_id: pod for pod in sitting}
    cards = {**counted("n", 2), **counted("m", 1)}
    coming = move("c", on_node("m"), on_node("n", MIB // 2), workload=comes)
    shrinking = move("h", on_node("n"), on_node("n", MIB // 2), workload=shrinks)
    assert not can_go_alone((coming,), seats, cards, surges=False)
    assert can_go_alone((shrinking,), seats, cards, surges=False)
    order = waves([(coming,), (shrinking,)], seats, cards, 10)
    assert [[unit.moves[0].workload for unit in wave] for wave in order] == [[shrinks], [comes]]
    too_large = replace(coming, new=on_node("n", MIB // 2 + 1))
    (ring,) = waves([(too_large,), (replace(shrinking, new=on_node("n", MIB // 2)),)], seats, cards, 10)[1:]
    assert ring[0].moves[0].workload == comes


def test_share_by_portion_and_one_without_numbers_are_counted_and_only_framebuffer_is_judged() -> None:
    by_portion = (SeatSlice(container="server", card=None, node="n", core_percent=60, resource="fraction"),)
    seats = {pod.pod_id: pod for pod in (seat("p", by_portion), seat("w", on_node("n")))}
    coming = move("c", (), on_node("n", MIB * 4 // 10))
    assert can_go_alone((coming,), seats, counted("n", 2), surges=False)
    assert not can_go_alone((replace(coming, new=on_node("n", MIB // 2)),), seats, counted("n", 2), surges=False)
    assert can_go_alone((replace(coming, new=on_node("n") * 3),), seats, counted("n", 2), surges=False)
    two = replace(coming, new=on_node("n", MIB * 4 // 10) * 2)
    assert not can_go_alone((two,), seats, counted("n", 2), surges=False)
    reserved = replace(seat("r", on_node("n")), namespace="kai-resource-reservation")
    assert can_go_alone((coming,), seats | {reserved.pod_id: reserved}, counted("n", 2), surges=False)


def test_card_without_a_free_slice_takes_nobody_more() -> None:
    full = {"c0": StandingCard(card="c0", device_type="A10", node="n", framebuffer_mib=MIB, slices_max=1)}
    there, comes = move("w-0", share("c0"), share("c0")), move("v-0", share("c1"), share("c0"))
    assert not can_go_alone([comes], sitting(there, comes), {**CARDS, **full}, surges=True)


def test_pod_whose_seat_another_took_beside_it_has_not_left_yet_and_is_nowhere_else() -> None:
    stays, goes = move("w-0", share("c0"), share("c0")), move("w-1", share("c1"), share("c2"))
    found = landing_of([stays, goes], [seat("w-0", share("c0")), seat("w-1", share("c1")), seat("new", share("c0"))])
    assert [pod.pod for pod in found.in_place] == ["new"]
    assert [pod.pod for pod in found.unmoved] == ["w-0", "w-1"]
    assert not found.is_astray


# --- claims ---


def claimed(card: str, claim: str | None = None) -> tuple[SeatSlice, ...]:
    """A whole device, or one that the pods of a claim share."""
    return (SeatSlice(container="server", card=card, framebuffer_mib=0, core_percent=0, priority=None, resource=claim),)


def test_pod_comes_to_a_claimed_card_once_the_pod_that_claims_it_alone_has_left() -> None:
    leaves = move("a", claimed("A"), claimed("C", "gputide-c"), workload=WorkloadId("team/Deployment/a"))
    comes = move("b", claimed("B"), claimed("A", "gputide-a"))
    there = {f"team/{one.pod}": seat(one.pod, one.old, workload=one.workload) for one in (leaves, comes)}
    found = waves([(comes,), (leaves,)], there, cards("A", "B", "C"), 10)
    assert [[unit.moves for unit in wave] for wave in found] == [[(leaves,)], [(comes,)]]


def test_pods_of_one_claim_and_instances_of_a_cut_card_share_it() -> None:
    shared = [move(pod, claimed(card), claimed("C", "gputide-c")) for pod, card in (("a", "A"), ("b", "B"))]
    there = {f"team/{one.pod}": seat(one.pod, one.old) for one in shared}
    assert len(waves([tuple(shared)], there, cards("A", "B", "C"), 10)) == 1
    cut = [move(pod, claimed(card), claimed("C", "3g.20gb")) for pod, card in (("a", "A"), ("b", "B"))]
    assert len(waves([tuple(cut)], there, cards("A", "B", "C"), 10)) == 1


# --- pods that are evicted one by one ---


def evicted(*pods: tuple[str, str]) -> tuple[Load, Snapshot]:
    """A workload whose pods, each with a card of its own, all shrink to a part of card B; one of them is tried."""
    ray = WorkloadId("team/RayCluster/w")
    moves = tuple(move(pod, all_of(card), share("B", MIB // 4), workload=ray) for pod, card in pods)
    seats = {f"team/{pod}": seat(pod, all_of(card), workload=ray) for pod, card in pods}
    snapshot = Snapshot(owners={}, seats=seats, pods={ray: list(seats.values())}, cards=cards("A", "B", "C"))
    return Load(moves=moves, intents={}, phase=Phase.CANARY, is_strict=True), snapshot


def test_first_pod_that_is_evicted_is_one_that_finds_room_while_its_siblings_still_sit() -> None:
    load, snapshot = evicted(("w-0", "A"), ("w-1", "B"), ("w-2", "C"))
    assert units_of(load, snapshot) == [(load.moves[1],)]


def test_pod_that_was_tried_stays_the_one_that_is_tried() -> None:
    load, snapshot = evicted(("w-0", "A"), ("w-1", "B"))
    left = {"team/w-0": snapshot.seats["team/w-0"]}
    assert units_of(load, replace(snapshot, seats=left)) == [(load.moves[1],)]
