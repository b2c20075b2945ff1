"""Relief on the simulated cluster: sleep, a warm replica, home; what forbids it; and what a crash leaves."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from enforcer.relief.demand_feed import BrokenObjective
from enforcer.relief.relief_journal import Manner, MovePhase
from enforcer.relief.runner import ReliefMetrics
from enforcer.relief.warm_replica import RELIEF_LABEL
from enforcer.safety.harm_budget import Harm, HarmBudgets
from fleet.errors import Unavailable
from fleet.inventory import Priority, WorkloadId
from fleet.sentences import Sentence, sentence
from fleet.settings.guard import GuardSettings
from tests.enforcer.builders import CARD_BYTES, HALF, a_grant, card_id
from tests.enforcer.relief.builders import POLICY, World, a_world, two_on_a_card
from tests.scraping import scraped
from wire.own_metrics import OwnMetrics, own_port

FULL = {"a": 0.7, "b": 0.6, "c": 0.2, "d": 0.1}
CALM = {"a": 0.2, "b": 0.1, "c": 0.2, "d": 0.1}


def names(world: World) -> list[str]:
    return [pod["metadata"]["name"] for pod in world.cluster.list_objects("Pod")]


def loose(world: World) -> list[str]:
    """Pods that relief made and nobody controls."""
    return [
        pod["metadata"]["name"]
        for pod in world.cluster.list_objects("Pod")
        if RELIEF_LABEL in pod["metadata"].get("labels", {}) and not pod["metadata"].get("ownerReferences")
    ]


def test_low_priority_sleeps_at_the_first_look_and_a_pod_moves_within_ten_seconds(tmp_path: Path) -> None:
    world = a_world(tmp_path, use=dict(FULL))
    began = world.cluster.now()
    world.look()
    orders = world.orders()
    assert orders is not None
    assert len(orders.paused) == 1
    world.run(10)
    (move,) = world.journal.moves()
    assert move.begun_at - began <= timedelta(seconds=10)
    assert {"a": 0, "b": 0}.items() <= world.cards().items()
    world.run(30)
    assert move.phase is MovePhase.DONE
    assert sorted(world.cards()[name] for name in "ab") == [0, 1]
    # As many pods as before, and the new one is its owner's.
    assert len(names(world)) == 4
    assert loose(world) == []


def test_who_moved_is_home_again_once_there_was_room_for_a_while(tmp_path: Path) -> None:
    world = a_world(tmp_path, use=dict(FULL))
    world.run(40)
    world.use = dict(CALM)
    world.run(200, 10)
    assert len(world.journal.moves()) == 1
    world.run(400, 10)
    away, home = world.journal.moves()
    assert (home.order.is_home, home.phase, away.is_home_again) == (True, MovePhase.DONE, True)
    assert {world.cards()[name] for name in "abc"} == {0}
    orders = world.orders()
    assert orders is not None
    assert orders.paused == ()
    assert world.journal.open_squeezes() == ()


def test_nothing_is_asked_of_the_cluster_while_nothing_is_wrong(tmp_path: Path) -> None:
    world = a_world(tmp_path, use=dict(CALM))
    world.run(5)
    assert world.orders() is None
    assert world.cluster.get("Lease", "gputide", "enforcer") is None
    assert not (tmp_path / "relief.jsonl").exists()


def test_freeze_stops_relief(tmp_path: Path) -> None:
    world = a_world(tmp_path, use=dict(FULL))
    freeze = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "gputide", "name": "gputide-freeze"}}
    world.cluster.make(freeze)
    world.run(20)
    assert (world.orders(), world.journal.moves()) == (None, ())
    assert any("freezes it" in text for text in world.said)
    world.cluster.delete("ConfigMap", "gputide", "gputide-freeze")
    world.run(10)
    assert len(world.journal.moves()) == 1


def test_enforcer_that_holds_the_lease_keeps_relief_waiting(tmp_path: Path) -> None:
    world = a_world(tmp_path, use=dict(FULL))
    assert world.cluster.acquire("apply", 15.0)
    world.run(10)
    assert (world.orders(), world.journal.moves()) == (None, ())
    world.run(20)
    assert len(world.journal.moves()) == 1


def test_who_opted_out_is_neither_moved_nor_put_to_sleep(tmp_path: Path) -> None:
    world = a_world(tmp_path, use=dict(FULL))
    for name in "abc":
        world.change_owner(name, opt_out="true")
    world.run(40)
    assert (world.orders(), world.journal.moves()) == (None, ())
    assert any("gputide.io/opt-out=true" in text for text in world.said)


def test_whose_policy_opts_out_is_neither_moved_nor_put_to_sleep(tmp_path: Path) -> None:
    world = a_world(tmp_path, use=dict(FULL))
    pod = world.cluster.list_objects("Pod")[0]["metadata"]
    policy = {"metadata": {"namespace": pod["namespace"], "name": "alone"}, "spec": {"optOut": True}}
    world.cluster.create({"kind": "GpuPolicy", **policy})
    world.run(40)
    assert (world.orders(), world.journal.moves()) == (None, ())


def test_somebody_moves_where_low_priority_does_not_sleep(tmp_path: Path) -> None:
    world = a_world(tmp_path, use=dict(FULL))
    world.change_owner("c", opt_out="true")
    world.run(40)
    assert world.orders() is None
    (move,) = world.journal.moves()
    assert move.order.pod in ("a-0", "b-0")
    assert str(move.order.reason).endswith("; low priority did not end it")


def test_card_of_somebody_who_shares_with_nobody_takes_no_newcomer(tmp_path: Path) -> None:
    world = a_world(tmp_path, use=dict(FULL))
    world.change_owner("d", isolation="hard")
    world.run(40)
    (move,) = world.journal.moves()
    assert move.order.to_card != card_id(1)


@pytest.mark.parametrize("is_card_known", [True, False])
def test_card_with_a_pod_whose_use_nobody_knows_is_no_calm_one(tmp_path: Path, *, is_card_known: bool) -> None:
    world = a_world(tmp_path, use={**FULL, "d": 0.5}, blind=frozenset({"d"}), is_card_known=is_card_known)
    world.run(40)
    (move,) = world.journal.moves()
    assert move.order.to_card != card_id(1)


def test_workload_that_was_moved_often_today_stays(tmp_path: Path) -> None:
    world = a_world(tmp_path, use=dict(FULL), policy=replace(POLICY, rules=replace(POLICY.rules, moves_per_day_max=1)))
    world.run(40)
    moved = world.journal.moves()[0].order.workload
    # Wherever it went, the same trouble comes again.
    world.use = {**FULL, "d": 0.9}
    world.run(60)
    assert [record.order.workload for record in world.journal.moves()].count(moved) == 1


def test_service_that_was_harmed_since_its_move_is_not_moved_again(tmp_path: Path) -> None:
    class Records:
        def harm(self, since: object, until: object) -> dict[WorkloadId, Harm]:
            del since, until
            spent = Harm(active_steps=100, violated_steps=90)
            return {WorkloadId(f"team/Deployment/{name}"): spent for name in "abd"}

    harm = HarmBudgets(Records(), GuardSettings())
    world = a_world(tmp_path, use=dict(FULL), tool_changes={"harm": harm})
    world.run(40)
    moved = world.journal.moves()[0].order.workload
    world.use = {**FULL, "d": 0.9}
    world.run(60)
    assert [record.order.workload for record in world.journal.moves()].count(moved) == 1


def test_replica_that_is_never_ready_is_taken_back_and_its_workload_left_alone(tmp_path: Path) -> None:
    world = a_world(
        tmp_path, use=dict(FULL), policy=replace(POLICY, patience=replace(POLICY.patience, ready_seconds_max=5))
    )
    before = names(world)
    world.run(15)
    first = world.journal.moves()[0]
    assert (first.phase, first.why and first.why.code) == (MovePhase.TAKEN_BACK, "relief.not_ready")
    world.run(60)
    workloads = [record.order.workload for record in world.journal.moves()]
    assert len(workloads) == len(set(workloads)) == 2
    assert names(world) == before


def test_disruption_budget_that_lets_nobody_go_is_obeyed(tmp_path: Path) -> None:
    world = a_world(tmp_path, use=dict(FULL))
    budget = {
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"namespace": "team", "name": "all"},
        "spec": {"minAvailable": "100%", "selector": {"matchLabels": {}}},
    }  # fmt: skip
    world.cluster.make(budget)
    before = set(names(world))
    world.run(90)
    assert before <= set(names(world))
    assert world.journal.moves()[0].phase is MovePhase.BACK
    world.cluster.delete("PodDisruptionBudget", "team", "all")
    world.run(5)
    assert world.journal.moves()[0].phase is MovePhase.TAKEN_BACK
    assert world.journal.moves()[0].why == sentence("relief.kept_by_budget", seconds=60.0)


def test_pod_that_goes_by_itself_needs_no_replica_any_more(tmp_path: Path) -> None:
    world = a_world(tmp_path, use=dict(FULL))
    world.run(8)
    (move,) = world.journal.open_moves()
    world.cluster.evict("team", move.order.pod)
    world.use = dict(CALM)
    world.run(5)
    assert (move.phase, move.why) == (MovePhase.TAKEN_BACK, sentence("relief.went_by_itself"))
    assert len(names(world)) == 4
    assert loose(world) == []


@pytest.mark.parametrize("moment", ["make ", "evict ", "adopt ", "note ready", "note leaving", "note done"])
def test_relief_that_is_killed_at_any_moment_goes_on_with_the_move(tmp_path: Path, moment: str) -> None:
    world = a_world(tmp_path, use=dict(FULL))

    class Killed(Exception):
        """The process ended here."""

    def die(step: str) -> None:
        if step.startswith(moment):
            raise Killed

    world.runner.mover._step = die
    note = world.journal.note

    def noted(at: object, move_id: str, phase: MovePhase, why: Sentence | None = None) -> None:
        die(f"note {phase.value}")
        note(at, move_id, phase, why)  # type: ignore[arg-type]

    world.journal.note = noted  # type: ignore[method-assign]
    with pytest.raises(Killed):
        world.run(60)
    world.restart()
    world.run(90)
    (move,) = world.journal.moves()
    assert move.phase is MovePhase.DONE
    assert len(names(world)) == 4
    assert loose(world) == []
    assert sorted(world.cards()[name] for name in "ab") == [0, 1]
    assert move.order.replica in names(world)


def test_order_of_a_relief_that_was_killed_is_taken_back_by_the_next(tmp_path: Path) -> None:
    world = a_world(tmp_path, use=dict(FULL))
    world.look()
    world.restart()
    world.use = dict(CALM)
    world.run(20)
    orders = world.orders()
    assert orders is not None
    assert orders.paused == ()


def test_pod_that_can_not_have_a_second_one_is_stopped_and_started_elsewhere(tmp_path: Path) -> None:
    third = HALF // 2
    grants = [
        a_grant("a", 0, 0, kind="StatefulSet", framebuffer_bytes=third),
        a_grant("b", 0, 0, kind="StatefulSet", framebuffer_bytes=third),
    ]
    use = {"a": 0.7, "b": 0.6}
    world = a_world(tmp_path, grants, use=use)
    world.run(60)
    (move,) = world.journal.moves()
    assert (move.order.manner, move.phase) == (Manner.RESTART, MovePhase.DONE)
    assert len(set(world.cards().values())) == 2
    node = world.cluster.get("Node", "", "node-0")
    assert node is not None
    assert "hami.io/device-cordon" not in node["metadata"]["annotations"]
    stays = a_world(
        tmp_path / "other", grants, use=use, policy=replace(POLICY, rules=replace(POLICY.rules, restarts=False))
    )
    stays.run(20)
    assert stays.journal.moves() == ()
    assert any("relief.restarts_pods=false" in text for text in stays.said)


def test_latency_critical_pod_is_never_stopped(tmp_path: Path) -> None:
    third = HALF // 2
    critical = (("gputide.io/latency-critical", "true"),)
    grants = [a_grant(name, 0, 0, kind="StatefulSet", framebuffer_bytes=third, labels=critical) for name in ("a", "b")]
    world = a_world(tmp_path, grants, use={"a": 0.7, "b": 0.6})
    world.run(20)
    assert world.journal.moves() == ()


def test_framebuffer_that_runs_out_moves_somebody_where_low_priority_holds_too_little(tmp_path: Path) -> None:
    third = HALF // 2
    grants = [a_grant(name, 0, 0, framebuffer_bytes=third) for name in ("a", "b")]
    world = a_world(tmp_path, grants, use={"a": 0.1, "b": 0.1}, free_ratio=0.0)
    world.run(6)
    (move,) = world.journal.moves()
    assert "of framebuffer free" in str(move.order.reason)


class Broken:
    """Objectives that are broken, or nobody to ask."""

    def __init__(self, *pods: str) -> None:
        self.pods: tuple[str, ...] | None = pods

    def broken(self) -> tuple[BrokenObjective, ...]:
        if self.pods is None:
            raise Unavailable("cannot ask Prometheus")
        return tuple(BrokenObjective(namespace="team", pod=pod, query="p99 > 2") for pod in self.pods)


def test_broken_latency_objective_is_relieved_though_no_card_is_full(tmp_path: Path) -> None:
    objectives = Broken("a-0")
    world = a_world(tmp_path, use=dict(CALM), tool_changes={"objectives": objectives})
    world.run(10)
    assert "p99 > 2" in str(world.journal.moves()[0].order.reason)
    objectives.pods = None
    world.run(2)
    # Who can't be asked keeps nobody from what nodes see.
    assert "cannot ask Prometheus" in world.said


def test_card_that_nobody_can_leave_is_said_once_and_not_asked_about_every_second(tmp_path: Path) -> None:
    grants = [*two_on_a_card(), *(a_grant("e", number, 2 + number) for number in range(2))]
    world = a_world(tmp_path, grants, use={**FULL, "d": 0.9, "e": 0.9})
    world.run(60)
    assert world.journal.moves() == ()
    told = [text for text in world.said if "stays overloaded" in text]
    assert 1 <= len(told) <= 6
    assert "no card has room" in told[0]


def test_second_replica_of_the_same_workload_is_no_place_to_go(tmp_path: Path) -> None:
    grants = [
        a_grant("a", 0, 0, framebuffer_bytes=HALF // 2),
        a_grant("a", 1, 1, framebuffer_bytes=HALF // 2),
        a_grant("b", 0, 0, framebuffer_bytes=HALF),
        a_grant("x", 0, 2, framebuffer_bytes=CARD_BYTES, priority=Priority.HIGH),
        a_grant("y", 0, 3, framebuffer_bytes=CARD_BYTES, priority=Priority.HIGH),
    ]
    world = a_world(tmp_path, grants, use={"a": 0.45, "b": 0.9, "x": 0.5, "y": 0.5})
    world.run(40)
    assert [(record.order.workload, record.order.to_card) for record in world.journal.moves()] in (
        [],
        [(WorkloadId("team/Deployment/b"), card_id(1))],
    )


def test_others_may_change_the_cluster_while_low_priority_only_sleeps(tmp_path: Path) -> None:
    grants = [
        a_grant("a", 0, 0, framebuffer_bytes=HALF),
        a_grant("c", 0, 0, framebuffer_bytes=HALF, priority=Priority.LOW),
    ]
    world = a_world(tmp_path, grants, use={"a": 0.95, "c": 0.2})
    world.run(5)
    orders = world.orders()
    assert orders is not None
    assert orders.paused
    assert world.cluster.acquire("apply", 5.0)
    world.run(4)
    world.cluster.release("apply")
    world.run(40)
    # Renewed all the time, though nothing changed.
    renewed = world.orders()
    assert renewed is not None
    assert renewed.paused == orders.paused
    assert renewed.expires_at > world.cluster.now()


def test_a_scraper_sees_what_relief_found_moved_and_could_not_do(tmp_path: Path) -> None:
    own = OwnMetrics("relief")
    world = a_world(tmp_path, use=dict(FULL), metrics=ReliefMetrics(own))

    def follow(seconds: int) -> dict[str, float]:
        world.run(seconds)
        return scraped(url)

    with own_port(own.text, "127.0.0.1", 0, setting="exporter.own_listen") as (host, port):
        url = f"http://{host}:{port}/metrics"
        assert world.cluster.acquire("apply", 5.0)
        held = follow(3)
        assert held['gputide_relief_blocked_looks_total{by="lease"}'] == 3
        assert (held["gputide_relief_overloaded_cards"], held["gputide_relief_nodes"]) == (1, 1)
        moving = follow(8)
        assert (moving["gputide_relief_open_moves"], moving["gputide_relief_is_leader"]) == (1, 1)
        assert moving["gputide_relief_paused_cards"] == 1
        done = follow(40)
    assert done['gputide_relief_moves_total{result="done"}'] == 1
    assert (done["gputide_relief_open_moves"], done["gputide_relief_is_leader"]) == (0, 0)
    assert done["gputide_relief_look_seconds_count"] == 51
