"""What happens to a cluster after a plan was applied keeps no pod from starting: lost and cordoned nodes."""

from __future__ import annotations

import json
from pathlib import Path

from enforcer.admission import SEAT_ANNOTATION, UNPINNED_ANNOTATION
from enforcer.cluster import FieldChange
from enforcer.kinds.register import WORKLOAD_KINDS, pod_templates
from enforcer.reconcile import find_drift, repair
from enforcer.rollout.restore import StageResult
from enforcer.rollout.run_context import RunContext
from enforcer.simulated.cluster import SimulatedCluster
from enforcer.snapshot import take_snapshot
from tests.enforcer.builders import a_cluster, a_rollout, an_undo, some_tools, standard_plan


def applied(folder: Path) -> tuple[SimulatedCluster, RunContext, tuple[StageResult, ...]]:
    cluster = a_cluster(folder, cards=16)
    tools = some_tools(cluster, folder)
    return cluster, tools, a_rollout(tools).apply(standard_plan(), by="ann")


def unpinned(cluster: SimulatedCluster) -> dict[str, str]:
    pods = cluster.list_objects("Pod")
    found = {pod["metadata"]["name"]: pod["metadata"]["annotations"].get(UNPINNED_ANNOTATION) for pod in pods}
    return {name: why for name, why in found.items() if why is not None}


def cordon(cluster: SimulatedCluster, name: str) -> None:
    node = cluster.get("Node", "", name)
    assert node is not None
    change = FieldChange(field="spec.unschedulable", value="true")
    cluster.patch("Node", "", name, [change], node["metadata"]["resourceVersion"])


def test_no_template_names_a_node_or_a_card_after_a_plan_was_applied(tmp_path: Path) -> None:
    cluster, _, results = applied(tmp_path)
    assert {result.reason for result in results} == {None}
    snapshot = take_snapshot(cluster)
    owners = [owner for kind in (*WORKLOAD_KINDS, "ReplicaSet") for owner in cluster.list_objects(kind)]
    texts = [json.dumps(template.body) for owner in owners for template in pod_templates(owner)]
    assert texts
    named = [name for name in (*snapshot.cards, *snapshot.nodes) if any(name in text for text in texts)]
    assert named == []
    # The seats are there nevertheless: on owners and on pods.
    assert sum(SEAT_ANNOTATION in pod["metadata"]["annotations"] for pod in cluster.list_objects("Pod")) == 6


def test_pods_of_a_node_that_is_lost_after_a_plan_come_up_elsewhere(tmp_path: Path) -> None:
    cluster, _, _ = applied(tmp_path)
    cluster.delete("Node", "", "node-1")
    cluster.pause(120)
    pods = cluster.list_objects("Pod")
    assert [pod["metadata"]["name"] for pod in pods if pod["status"]["phase"] == "Pending"] == []
    assert "node-1" not in {pod["spec"]["nodeName"] for pod in pods}
    assert set(unpinned(cluster).values()) == {"node node-1 is gone"}


def test_pod_of_a_cordoned_node_is_not_pinned_to_it(tmp_path: Path) -> None:
    cluster, _, _ = applied(tmp_path)
    cordon(cluster, "node-1")
    (pod, *_) = [pod for pod in cluster.list_objects("Pod") if pod["spec"].get("nodeName") == "node-1"]
    assert cluster.evict("team", pod["metadata"]["name"])
    assert set(unpinned(cluster).values()) == {"node node-1 is cordoned"}


def test_drift_says_which_pods_are_not_in_their_planned_seats_and_repair_cannot_mend_it(tmp_path: Path) -> None:
    cluster, tools, _ = applied(tmp_path)
    assert find_drift(tools.journal, cluster) == ()
    cluster.delete("Node", "", "node-1")
    found = find_drift(tools.journal, cluster)
    assert {drift.name: drift.found for drift in found} == unpinned(cluster)
    refused = repair(found, cluster, cluster, tools.journal, "ann")
    assert len(refused) == len(found) > 0
    assert all("node node-1 is gone; make a new plan" in why for why in refused)


def test_drift_sees_seats_that_somebody_changed(tmp_path: Path) -> None:
    cluster, tools, _ = applied(tmp_path)
    owner = cluster.get("Deployment", "team", "a")
    assert owner is not None
    change = FieldChange(field="metadata.annotations[gputide.io/seats]", value="{}")
    cluster.patch("Deployment", "team", "a", [change], owner["metadata"]["resourceVersion"])
    (drift,) = find_drift(tools.journal, cluster)
    assert (drift.kind, drift.name, drift.found) == ("Deployment", "a", "{}")


def test_undo_after_a_node_was_lost_takes_every_mark_back(tmp_path: Path) -> None:
    cluster, tools, _ = applied(tmp_path)
    cluster.delete("Node", "", "node-1")
    an_undo(tools).undo(standard_plan().plan_id)
    owners = [owner for kind in WORKLOAD_KINDS for owner in cluster.list_objects(kind)]
    assert [owner["metadata"]["name"] for owner in owners if "gputide.io" in json.dumps(owner)] == []
