"""Replicas of one template: whose name is where does not count, and those of later stages come along."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enforcer.backend import Backend, RenderedStage
from enforcer.backends.alike import with_all_replicas, with_seats_as_they_are
from enforcer.backends.kai import KaiBackend
from enforcer.backends.nvidia_sharing import TimeSlicingBackend
from enforcer.manifest import Manifest, set_field
from enforcer.snapshot import take_snapshot
from fleet.decisions import Plan, RecommendationKind
from tests.enforcer.builders import HALF, NOW, a_plan, a_recommendation, a_slice, whole
from tests.enforcer.plugin_cluster import StandingCluster, a_config, a_node, a_pod, an_owner

SMALL = HALF - 2**30
OWNERS = ["Deployment/a", "Deployment/b"]
HOMES = {"a-0": "node-0", "a-1": "node-1", "b-0": "node-0", "b-1": "node-1"}
QUEUE = {"labels": {"kai.scheduler/queue": "team"}}


def in_two_stages() -> Plan:
    """All are cut where they are, then a-1 and b-1 come from node-1 to node-0."""
    parts = {pod: a_slice(pod, framebuffer_bytes=SMALL) for pod in HOMES}
    return a_plan(
        {0: [parts["a-0"], parts["b-0"]], 1: [parts["a-1"], parts["b-1"]]},
        [
            [a_recommendation("slice-1", RecommendationKind.SLICE, list(HOMES), OWNERS, 0)],
            [a_recommendation("slice-2", RecommendationKind.SLICE, ["a-1", "b-1"], OWNERS, 2)],
        ],
    )


def objects() -> list[Manifest]:
    pods = [a_pod(pod[0], int(pod[2]), node) for pod, node in HOMES.items()]
    for pod in pods:
        pod["spec"]["schedulerName"] = "kai-scheduler"
    owners = [an_owner(name, template=QUEUE, spec={"schedulerName": "kai-scheduler"}) for name in "ab"]
    return [a_node("node-0"), a_node("node-1"), a_config(), *owners, *pods]


def carried_out(cluster: StandingCluster, backend: Backend, plan: Plan, stage: int) -> RenderedStage:
    """Renders a stage, and makes the cluster as it would be after it."""
    rendered = backend.render(plan, stage, take_snapshot(cluster, backend.dialect))
    for change in rendered.changes:
        found = cluster.get(change.kind, change.namespace, change.name)
        assert found is not None
        set_field(found, change.field, change.new)
    for step in rendered.node_steps:
        node = cluster.get("Node", "", step.node)
        assert node is not None
        node["status"]["allocatable"] = {"nvidia.com/gpu.shared": step.done_value}
    for move in rendered.moves:
        pod, owner = cluster.get("Pod", "team", move.pod), cluster.get("Deployment", "team", move.pod[0])
        assert pod is not None
        assert owner is not None
        template = owner["spec"]["template"]
        pod["spec"]["nodeName"] = move.new[0].node
        pod["spec"]["containers"][0]["resources"] = template["spec"]["containers"][0]["resources"]
        pod["metadata"]["annotations"] = template["metadata"].get("annotations", {})
    return rendered


def where(rendered: RenderedStage) -> dict[str, str | None]:
    return {move.pod: move.new[0].node for move in rendered.moves}


def test_replicas_of_a_shared_node_come_at_once_and_later_stages_find_them_there() -> None:
    cluster = StandingCluster(objects())
    backend = TimeSlicingBackend(NOW)
    first = carried_out(cluster, backend, in_two_stages(), 1)
    assert where(first) == dict.fromkeys(HOMES, "node-0"), "only there is what their template asks for"
    assert "2 pods that later stages name come along: a template makes all its replicas anew" in first.warnings
    second = carried_out(cluster, backend, in_two_stages(), 2)
    assert (second.moves, second.changes) == ((), ())


def test_share_of_kai_is_taken_where_a_replica_is_until_its_own_stage() -> None:
    cluster = StandingCluster(objects())
    backend = KaiBackend(NOW)
    first = carried_out(cluster, backend, in_two_stages(), 1)
    assert where(first) == HOMES, "each on its node, with its share"
    assert {part.resource for move in first.moves for part in move.new} == {"gpu-memory"}
    second = carried_out(cluster, backend, in_two_stages(), 2)
    assert where(second) == {"a-1": "node-0", "b-1": "node-0"}
    third = carried_out(cluster, backend, in_two_stages(), 2)
    assert (third.moves, third.changes) == ((), ())


@pytest.mark.parametrize("stays_on_node", [True, False])
def test_stage_that_names_all_replicas_is_left_as_it_is(stays_on_node: bool) -> None:
    plan = in_two_stages()
    snapshot = take_snapshot(StandingCluster(objects()), KaiBackend(NOW).dialect)
    assert with_all_replicas(plan, 2, snapshot, stays_on_node=stays_on_node) == (plan, ())


def test_workload_that_a_later_stage_names_in_whole_waits_where_it_can() -> None:
    plan = a_plan(
        {0: [a_slice("a-0", framebuffer_bytes=SMALL), a_slice("a-1", framebuffer_bytes=SMALL)]},
        [
            [a_recommendation("slice-1", RecommendationKind.SLICE, ["a-0", "a-1"], OWNERS[:1], 0)],
            [a_recommendation("slice-2", RecommendationKind.SLICE, ["a-0", "a-1"], OWNERS[:1], 1)],
        ],
    )
    backend = KaiBackend(NOW)
    assert carried_out(StandingCluster(objects()), backend, plan, 1).moves == ()


@given(data=st.data())
def test_swapping_names_keeps_every_place_and_moves_as_few_as_can_be(data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=8), label="planned nodes")
    actual = data.draw(st.lists(st.integers(0, 4), min_size=len(places), max_size=len(places)), label="nodes now")
    pods = [f"a-{number}" for number in range(len(places))]
    cards: dict[int, list[object]] = {}
    used: dict[int, int] = {}
    for pod, node in zip(pods, places, strict=True):
        number = 4 * node + used.setdefault(node, 0) % 4
        used[node] += 1
        cards.setdefault(number, []).append(whole(pod))
    plan = a_plan(cards, [[a_recommendation("r", RecommendationKind.REHOME, pods, OWNERS[:1], 0)]])  # type: ignore[arg-type]
    cluster = StandingCluster([a_pod("a", number, f"node-{node}") for number, node in enumerate(actual)])
    swapped = with_seats_as_they_are(plan, take_snapshot(cluster, TimeSlicingBackend(NOW).dialect))
    nodes = {part.pod: card.node for card in swapped.placement for part in card.slices}
    assert sorted(nodes) == pods
    assert sorted(str(node) for node in nodes.values()) == sorted(f"node-{node}" for node in places)
    stay = sum(nodes[pod] == f"node-{node}" for pod, node in zip(pods, actual, strict=True))
    assert stay == sum(min(places.count(node), actual.count(node)) for node in set(places))
