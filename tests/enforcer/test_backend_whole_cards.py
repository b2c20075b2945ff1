"""Whole cards: pods come, go and move, and nobody shares."""

from __future__ import annotations

import pytest

from enforcer.backends.whole_cards import WholeCardsBackend
from enforcer.manifest import Manifest, set_field
from enforcer.snapshot import take_snapshot
from fleet.decisions import Plan, RecommendationKind
from fleet.errors import Refused
from tests.contracts.gpu_backend import BackendContract
from tests.enforcer.builders import NOW, a_plan, a_recommendation, a_slice, whole
from tests.enforcer.plugin_cluster import StandingCluster, a_node, a_pod, an_owner, nodes_of_seats, standard_objects

BACKEND = WholeCardsBackend(NOW)
NEW = ["a-0", "a-1"]
OWNERS = ["Deployment/a"]


def elsewhere() -> Plan:
    """a, which sits on node-0, with one pod on each of two other nodes."""
    return a_plan(
        {8: [whole("a-0")], 12: [whole("a-1")]},
        [[a_recommendation("rehome-1", RecommendationKind.REHOME, NEW, OWNERS, 0)]],
    )


def objects() -> list[Manifest]:
    return [*standard_objects(), a_node("node-2"), a_node("node-3")]


@pytest.fixture
def cluster() -> StandingCluster:
    return StandingCluster(objects())


@pytest.fixture
def backend() -> WholeCardsBackend:
    return BACKEND


@pytest.fixture
def plan() -> Plan:
    return elsewhere()


class TestWholeCards(BackendContract):
    pass


def test_each_pod_has_its_node_on_the_owner_and_nothing_is_written_on_nodes(cluster: StandingCluster) -> None:
    stage = BACKEND.render(elsewhere(), 1, take_snapshot(cluster, BACKEND.dialect))
    told = {(change.kind, change.name, change.field): change.new for change in stage.changes}
    assert nodes_of_seats(told["Deployment", "a", "metadata.annotations[gputide.io/seats]"]) == ["node-2", "node-3"]
    assert {kind for kind, _, _ in told} == {"Deployment"}
    assert not any(".resources." in field for _, _, field in told)


def test_stage_that_is_applied_renders_empty_whichever_pod_sits_where(cluster: StandingCluster) -> None:
    for change in BACKEND.render(elsewhere(), 1, take_snapshot(cluster, BACKEND.dialect)).changes:
        found = cluster.get(change.kind, change.namespace, change.name)
        assert found is not None
        set_field(found, change.field, change.new)
    cluster.put(a_pod("a", 0, "node-3"))
    cluster.put(a_pod("a", 1, "node-2"))
    again = BACKEND.render(elsewhere(), 1, take_snapshot(cluster, BACKEND.dialect))
    assert (again.moves, again.changes) == ((), ())


def test_two_pods_on_one_card_are_refused_though_they_would_not_move(cluster: StandingCluster) -> None:
    plan = a_plan(
        {0: [a_slice("a-0"), a_slice("a-1")]},
        [[a_recommendation("x", RecommendationKind.REHOME, NEW, OWNERS, 1)]],
    )
    with pytest.raises(Refused, match=r"2 pods on card .*: whole_cards shares none"):
        BACKEND.render(plan, 1, take_snapshot(cluster, BACKEND.dialect))


@pytest.mark.parametrize("kind", ["slice", "oversubscribe", "colocate", "offpeak_pair", "mig"])
def test_advice_to_share_is_refused_by_the_record(kind: str, cluster: StandingCluster) -> None:
    plan = a_plan(
        {0: [whole("a-0")], 1: [whole("a-1")]}, [[a_recommendation("x", RecommendationKind(kind), NEW, OWNERS, 0)]]
    )
    with pytest.raises(Refused, match=dict(BACKEND.capabilities.refuses)[kind]):
        BACKEND.render(plan, 1, take_snapshot(cluster, BACKEND.dialect))


def test_node_that_is_gone_is_refused() -> None:
    cluster = StandingCluster([*standard_objects(), an_owner("z")])
    with pytest.raises(Refused, match="there is no node node-2"):
        BACKEND.render(elsewhere(), 1, take_snapshot(cluster, BACKEND.dialect))


def test_replica_of_a_later_stage_may_stay_where_it_is_until_then(cluster: StandingCluster) -> None:
    plan = a_plan(
        {8: [whole("a-0")], 12: [whole("a-1")]},
        [[a_recommendation(f"rehome-{pod}", RecommendationKind.REHOME, [pod], OWNERS, 0)] for pod in NEW],
    )
    stage = BACKEND.render(plan, 1, take_snapshot(cluster, BACKEND.dialect))
    assert [(move.pod, move.new[0].node) for move in stage.moves] == [("a-0", "node-2")]
    (seats,) = (change.new for change in stage.changes if change.field == "metadata.annotations[gputide.io/seats]")
    assert nodes_of_seats(seats) == ["node-2", "node-0"]


@pytest.mark.parametrize("is_fit", [True, False])
def test_each_role_of_a_workload_is_checked_against_the_node_of_its_own_new_seat(is_fit: bool) -> None:
    homes = {"leader": "node-2", "worker": "node-3"} if is_fit else {"leader": "node-2", "worker": "node-2"}
    owner = an_owner("w", kind="LeaderWorkerSet")
    body = owner["spec"].pop("template")
    owner["spec"]["leaderWorkerTemplate"] = {"size": 2} | {
        f"{role}Template": {**body, "spec": {**body["spec"], "nodeSelector": {"role": role}}} for role in homes
    }
    pods = [
        a_pod("w", number, "node-0", kind="LeaderWorkerSet",
              labels={"leaderworkerset.sigs.k8s.io/worker-index": str(number)})
        for number in range(2)
    ]  # fmt: skip
    nodes = [
        a_node("node-0"), a_node("node-2", labels={"role": "leader"}), a_node("node-3", labels={"role": "worker"})
    ]  # fmt: skip
    plan = a_plan(
        {4 * int(home[-1]) + number: [whole(f"w-{number}", kind="LeaderWorkerSet")]
         for number, home in enumerate(homes.values())},
        [[a_recommendation("x", RecommendationKind.REHOME, ["w-0", "w-1"], ["LeaderWorkerSet/w"], 0)]],
    )  # fmt: skip
    snapshot = take_snapshot(StandingCluster([*nodes, owner, *pods]), BACKEND.dialect)
    if is_fit:
        assert len(BACKEND.render(plan, 1, snapshot).moves) == 2
        return
    with pytest.raises(Refused, match=r"on node node-2: their template selects role=worker"):
        BACKEND.render(plan, 1, snapshot)
