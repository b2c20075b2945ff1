"""Seats that are counted by node: who was made from an old template, what pods are called, how many cards there are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from enforcer.backend import Move, NodeStep, RenderedStage
from enforcer.backends.device_plugin import counted_slice
from enforcer.backends.whole_cards import WholeCardsBackend
from enforcer.plan_names import with_real_names
from enforcer.rollout.landing import landing_of
from enforcer.safety.guard import GuardPolicy
from enforcer.seat import PodSeat
from enforcer.snapshot import take_snapshot
from fleet.decisions import RecommendationKind
from fleet.errors import Refused
from fleet.inventory import WorkloadId
from tests.enforcer.builders import NOW, OpenGuard, a_plan, a_recommendation, whole
from tests.enforcer.plugin_cluster import StandingCluster, a_node, a_pod, an_owner

WORKLOAD = WorkloadId("team/Deployment/a")


def a_seat(pod: str, node: str, resource: str) -> PodSeat:
    return PodSeat(
        namespace="team", pod=pod, workload=WORKLOAD, node=node, slices=(counted_slice("server", node, resource),),
        is_ready=True, restarts=0, is_oom_killed=False, resource_version="1", deletion_cost=None,
    )  # fmt: skip


def a_move(pod: str, old: PodSeat, new: PodSeat) -> Move:
    return Move(namespace="team", pod=pod, workload=WORKLOAD, old=old.slices, new=new.slices, recommendation="x")


def test_pod_that_its_owner_made_from_the_old_template_is_waited_for() -> None:
    old, new = a_seat("a-0", "node-1", "nvidia.com/gpu"), a_seat("a-0", "node-0", "nvidia.com/gpu.shared")
    between = a_seat("a-between", "node-2", "nvidia.com/gpu")
    landing = landing_of([a_move("a-0", old, new)], [between])
    assert (landing.outdated, landing.waiting, landing.elsewhere) == ((between,), (), ())
    # It serves meanwhile, so the canary beside it need not wait.
    assert (landing.is_waiting, landing.is_starting) == (True, False)
    astray = a_seat("a-new", "node-2", "nvidia.com/gpu.shared")
    assert landing_of([a_move("a-0", old, new)], [astray]).elsewhere == (astray,)


def test_pods_that_must_leave_a_node_are_called_as_the_cluster_calls_them() -> None:
    step = NodeStep(node="node-0", leaving=(("team", "a-0"), ("team", "b-0")))
    rendered = RenderedStage(stage=1, changes=(), moves=(), warnings=(), node_steps=(step,))
    (real,) = with_real_names(rendered, {"team/a-0": "team/a-5f7c-xyz"}).node_steps
    assert real.leaving == (("team", "a-5f7c-xyz"), ("team", "b-0"))


@pytest.mark.parametrize(("cards", "is_refused"), [(2, False), (1, True)])
def test_node_that_counts_its_cards_must_have_as_many_as_the_plan_uses(cards: int, is_refused: bool) -> None:
    owner = an_owner("a")
    owner["spec"]["selector"] = {}
    pods = [a_pod("a", number, "node-0") for number in range(2)]
    cluster = StandingCluster([a_node("node-0", cards), owner, *pods])
    plan = a_plan(
        {0: [whole("a-0")], 1: [whole("a-1")]},
        [[a_recommendation("x", RecommendationKind.REHOME, ["a-0", "a-1"], ["Deployment/a"], 0)]],
    )
    snapshot = take_snapshot(cluster, WholeCardsBackend(NOW).dialect)
    guard = OpenGuard(GuardPolicy(gaps_allowed=True))
    if is_refused:
        with pytest.raises(Refused, match="the cards changed since it was made"):
            guard.check_cluster(replace(plan, backend="whole_cards"), (1,), snapshot, None, ())
    else:
        guard.check_cluster(replace(plan, backend="whole_cards"), (1,), snapshot, None, ())
