"""Orders to sleep, beside what others ordered, and what the journal keeps of moves."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from bench.faulty_cluster import Faults
from enforcer.agent.live_limits import WantedLimit
from enforcer.agent.node_view import ContainerKey
from enforcer.agent.orders import Orders, orders_text, parse_orders
from enforcer.record.ledger import Ledger
from enforcer.relief.relief_journal import Manner, MoveOrder, MovePhase, ReliefJournal
from enforcer.relief.squeeze import OrdersWriter
from enforcer.simulated.cluster import SimulatedCluster
from fleet.inventory import WorkloadId
from fleet.relief.moves import away, why_held
from fleet.relief.rules import ReliefRules
from fleet.sentences import sentence
from fleet.units import GIB
from tests.enforcer.builders import NOW, a_cluster, card_id

KEY = ContainerKey(pod_uid="00000000-0000-0000-0000-000000000001", container="main")
OTHER = ContainerKey(pod_uid="00000000-0000-0000-0000-000000000002", container="main")
PLACE = ("ConfigMap", "gputide", "gputide-orders")


def writer_on(cluster: SimulatedCluster) -> OrdersWriter:
    return OrdersWriter(cluster, cluster, namespace="gputide", name="gputide-orders")


def orders_of(cluster: SimulatedCluster, node: str) -> Orders:
    found = cluster.get(*PLACE)
    assert found is not None
    return parse_orders(found["data"][node])


def test_order_to_sleep_ends_by_itself_and_is_taken_back_by_an_empty_one(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path)
    writer_on(cluster).pause({"node-0": frozenset({KEY})}, 60.0)
    orders = orders_of(cluster, "node-0")
    assert (orders.paused, orders.expires_at - orders.issued_at) == ((KEY,), timedelta(seconds=60))
    writer_on(cluster).pause({"node-0": frozenset()}, 60.0)
    assert orders_of(cluster, "node-0").paused == ()


def test_limits_that_others_ordered_stay_and_so_do_other_nodes(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path)
    limit = WantedLimit(container=OTHER, card=card_id(0), framebuffer_bytes=GIB)
    later = cluster.now() + timedelta(hours=1)
    standing = Orders(issued_at=cluster.now(), expires_at=later, limits=(limit,), paused=(OTHER,))
    data = {"node-0": orders_text(standing), "node-1": "not ours to read"}
    cluster.make(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "gputide", "name": PLACE[2]}, "data": data}
    )
    writer_on(cluster).pause({"node-0": frozenset({KEY})}, 60.0)
    orders = orders_of(cluster, "node-0")
    assert (orders.limits, orders.paused, orders.expires_at) == ((limit,), (KEY,), later)
    found = cluster.get(*PLACE)
    assert found is not None
    assert found["data"]["node-1"] == "not ours to read"


def test_order_that_lost_a_race_is_written_over_what_is_there_now(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path, faults=Faults(conflict_on_writes=frozenset({2})))
    writer_on(cluster).pause({"node-0": frozenset()}, 60.0)
    writer_on(cluster).pause({"node-0": frozenset({KEY})}, 60.0)
    assert orders_of(cluster, "node-0").paused == (KEY,)


def an_order(number: int, *, pod: str = "a-0", replica: str = "", is_home: bool = False, to: int = 1) -> MoveOrder:
    return MoveOrder(
        move_id=f"move-{number}", namespace="team", pod=pod, pod_uid=f"uid-{number}",
        workload=WorkloadId("team/Deployment/a"), maker="a-1", replica=replica or f"a-1-{number}", from_node="node-0",
        from_card=card_id(0), to_card=card_id(to), framebuffer_mib=1024, manner=Manner.WARM, is_home=is_home,
        reason=sentence("relief.home", seconds=60.0, home_ratio=0.5), overloaded_at=NOW - timedelta(seconds=4),
    )  # fmt: skip


def carry_out(journal: ReliefJournal, order: MoveOrder, *, seconds: float = 8.0) -> None:
    journal.begin(NOW, order)
    journal.note(NOW + timedelta(seconds=seconds), order.move_id, MovePhase.READY)
    journal.note(NOW + timedelta(seconds=seconds), order.move_id, MovePhase.LEAVING)
    journal.note(NOW + timedelta(seconds=seconds + 1), order.move_id, MovePhase.DONE)


def test_times_are_believed_once_enough_moves_were_made(tmp_path: Path) -> None:
    journal = ReliefJournal(Ledger(tmp_path / "relief.jsonl"))
    for number in range(4):
        carry_out(journal, an_order(number))
    assert journal.measured() is None
    carry_out(journal, an_order(4), seconds=1000.0)
    measured = ReliefJournal(Ledger(tmp_path / "relief.jsonl")).measured()
    assert measured is not None
    assert (measured.reaction_seconds, measured.ready_seconds) == (4.0, 8.0)
    assert measured.load_bytes_per_second == pytest.approx(GIB / 8)


def test_pod_that_was_moved_on_goes_home_to_where_it_first_was_and_then_stays(tmp_path: Path) -> None:
    journal = ReliefJournal(Ledger(tmp_path / "relief.jsonl"))
    carry_out(journal, an_order(1, replica="a-1-x"))
    carry_out(journal, an_order(2, pod="a-1-x", replica="a-1-y", to=2))
    (move,) = away(journal.past_moves())
    assert (move.arrived_as, move.from_card, move.to_card) == ("team/a-1-y", card_id(0), card_id(2))
    carry_out(journal, an_order(3, pod="a-1-y", replica="a-1-z", is_home=True, to=0))
    assert away(journal.past_moves()) == ()


def test_workload_moves_so_many_times_a_day_for_each_of_its_pods(tmp_path: Path) -> None:
    journal = ReliefJournal(Ledger(tmp_path / "relief.jsonl"))
    workload, rules = WorkloadId("team/Deployment/a"), ReliefRules(moves_per_day_max=1)
    for number in (1, 2):
        carry_out(journal, an_order(number))
    held = [why_held(journal.past_moves(), workload, NOW.timestamp(), rules, pods=pods) for pods in (1, 2, 3)]
    assert "2 times in a day, relief.moves_per_day_max=1 for each of its pods (2)" in held[1]
    assert (bool(held[0]), held[2]) == (True, "")


def test_pause_after_a_move_that_came_to_nothing_doubles_and_ends_with_one_that_was_made(tmp_path: Path) -> None:
    journal = ReliefJournal(Ledger(tmp_path / "relief.jsonl"))
    workload = WorkloadId("team/Deployment/a")

    def is_held(minutes: float) -> bool:
        return bool(why_held(journal.past_moves(), workload, NOW.timestamp() + 60 * minutes, ReliefRules()))

    assert not is_held(0)
    for number, minutes in ((1, 5), (2, 10)):
        journal.begin(NOW, an_order(number))
        journal.note(NOW, f"move-{number}", MovePhase.TAKEN_BACK, sentence("relief.not_ready", seconds=30.0))
        assert (is_held(minutes - 0.1), is_held(minutes)) == (True, False)
    carry_out(journal, an_order(3))
    assert not is_held(0)
