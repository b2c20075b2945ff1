"""Emptied nodes are handed to what owns their machines; nodes that serve, or are wanted to stay, are not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from enforcer.backend import NodeOwner
from enforcer.backends.device_plugin import NODE_DIALECT
from enforcer.backends.hami import HamiBackend
from enforcer.backends.running import RunningBackend
from enforcer.cluster import FieldChange
from enforcer.machines import (
    DELETE_MACHINE_ANNOTATION,
    Machine,
    machine_of,
)
from enforcer.manifest import Manifest
from enforcer.node_plan import PlanPlace
from enforcer.node_release import RELEASED_ANNOTATION, release_plan, render_release, replacement, why_held
from enforcer.record.billed import releases_of
from enforcer.record.journal import StageState
from enforcer.rollout.run_context import RunContext
from enforcer.rollout.stages import Rollout
from enforcer.safety.guard import GuardPolicy
from enforcer.simulated.cluster import SimulatedCluster
from enforcer.snapshot import take_snapshot
from fleet.decisions import Plan
from fleet.documents import plan_from_json, plan_to_json
from fleet.errors import Refused
from fleet.node_changes import NodeRelease
from fleet.settings.settings import Settings
from tests.enforcer.builders import NOW, OpenGuard, a_cluster, an_undo, some_tools
from tests.enforcer.plugin_cluster import StandingCluster, a_node, a_pod
from tests.enforcer.test_rollout import Killed, killing

LATER = "2026-01-13T08:00:00Z"
BEFORE = "2026-01-12T08:00:00Z"
POOL = {"karpenter.sh/nodepool": "gpu", "karpenter.sh/capacity-type": "on-demand"}
OF_MACHINE = {
    "cluster.x-k8s.io/machine": "m-1", "cluster.x-k8s.io/cluster-namespace": "capi",
    "cluster.x-k8s.io/owner-kind": "MachineSet", "cluster.x-k8s.io/owner-name": "set",
}  # fmt: skip


def an_object(kind: str, name: str, namespace: str = "", **parts: Any) -> Manifest:
    metadata = {"name": name, "resourceVersion": "1", "creationTimestamp": BEFORE, **parts.pop("metadata", {})}
    return {"kind": kind, "metadata": {**metadata, **({"namespace": namespace} if namespace else {})}, **parts}


def a_claim(name: str, *, cards: int = 4, at: str = BEFORE, labels: dict[str, str] | None = None) -> Manifest:
    metadata = {"labels": {**POOL, **(labels or {})}, "creationTimestamp": at}
    status = {"nodeName": "node-0", "capacity": {"nvidia.com/gpu": str(cards)}}
    return an_object("NodeClaim", name, metadata=metadata, status=status)


def of_karpenter(**pool: Any) -> list[Manifest]:
    node = a_node("node-0", labels=POOL)
    return [node, a_claim("claim-0"), an_object("NodePool", "gpu", spec=pool)]


def of_cluster_api(annotations: dict[str, str] | None = None, *, replicas: int = 3) -> list[Manifest]:
    node = a_node("node-0")
    node["metadata"]["annotations"] = OF_MACHINE
    above = {"ownerReferences": [{"kind": "MachineDeployment", "name": "gpu"}]}
    gpu = an_object("MachineDeployment", "gpu", "capi", metadata={"annotations": annotations or {}})
    gpu["spec"] = {"replicas": replicas}
    return [node, an_object("Machine", "m-1", "capi"), an_object("MachineSet", "set", "capi", metadata=above), gpu]


def of_group(labels: dict[str, str], *others: Manifest) -> list[Manifest]:
    node = a_node("node-0", labels=labels)
    node["spec"] = {"providerID": "aws:///zone/i-1"}
    return [node, *others]


AUTOSCALER = an_object("ConfigMap", "cluster-autoscaler-status", "kube-system")
GROUP = {"eks.amazonaws.com/nodegroup": "gpu"}


def found(objects: Sequence[Manifest]) -> Machine:
    return machine_of(objects[0], StandingCluster(objects))


@pytest.mark.parametrize(
    ("objects", "owner"),
    [
        (of_karpenter(), NodeOwner.KARPENTER),
        (of_cluster_api(), NodeOwner.CLUSTER_API),
        (of_cluster_api({"cluster.x-k8s.io/cluster-api-autoscaler-node-group-min-size": "1"}),
         NodeOwner.CLUSTER_AUTOSCALER),
        (of_group(GROUP, AUTOSCALER), NodeOwner.CLUSTER_AUTOSCALER),
        (of_group(GROUP), NodeOwner.NOBODY),
        (of_group({}, AUTOSCALER), NodeOwner.NOBODY),
    ],
    ids=["karpenter", "cluster api", "cluster api with autoscaler", "node group", "group without one", "own machine"],
)  # fmt: skip
def test_owner_is_read_off_the_node(objects: list[Manifest], owner: NodeOwner) -> None:
    machine = found(objects)
    assert machine.owner is owner
    assert not machine.stays


@pytest.mark.parametrize(
    ("objects", "why"),
    [
        (of_karpenter(replicas=3), "keeps 3 nodes whatever they carry"),
        (of_karpenter(disruption={"consolidateAfter": "Never"}), "kubectl delete nodeclaim claim-0"),
        (of_karpenter()[:1] + of_karpenter()[2:], "there is no NodeClaim of it"),
        (of_cluster_api({"cluster.x-k8s.io/paused": ""}), "MachineDeployment gpu is paused"),
        (of_cluster_api({"cluster.x-k8s.io/cluster-api-autoscaler-node-group-min-size": "3"}), "minimum of 3 nodes"),
        (of_cluster_api()[:2], "which has no replicas to lower"),
    ],
)
def test_owner_that_would_not_take_the_node_is_said_before(objects: list[Manifest], why: str) -> None:
    cluster = StandingCluster(objects)
    with pytest.raises(Refused, match=why):
        render_release("p", NodeRelease(node="node-0"), found(objects), take_snapshot(cluster, NODE_DIALECT))


def test_reserved_capacity_is_paid_without_its_node_too() -> None:
    objects = of_karpenter()
    objects[0]["metadata"]["labels"]["karpenter.sh/capacity-type"] = "reserved"
    assert "its capacity is reserved" in str(found(objects).stays[0])


def test_cluster_api_is_named_the_machine_before_it_is_asked_for_one_fewer() -> None:
    objects = of_cluster_api()
    snapshot = take_snapshot(StandingCluster(objects), NODE_DIALECT)
    stage = render_release("p" * 64, NodeRelease(node="node-0"), found(objects), snapshot)
    wanted = [(one.kind, one.field, one.old, one.new) for one in stage.changes if one.kind != "Node"]
    mark = f"metadata.annotations[{DELETE_MACHINE_ANNOTATION}]"
    assert wanted == [("Machine", mark, None, "gputide"), ("MachineDeployment", "spec.replicas", "3", "2")]
    written = {one.field: one.new for one in stage.changes if one.kind == "Node"}
    assert written["spec.unschedulable"] == "true"
    assert written[f"metadata.annotations[{RELEASED_ANNOTATION}]"] == "cluster_api"


def on_node(name: str, **metadata: Any) -> Manifest:
    pod = a_pod(name, 0, "node-0")
    pod["metadata"] |= metadata
    return pod


def test_pods_that_go_with_their_node_do_not_count_and_all_others_do() -> None:
    daemon = on_node("log", ownerReferences=[{"kind": "DaemonSet", "name": "log"}])
    mirror = on_node("etcd", annotations={"kubernetes.io/config.mirror": "x"}, ownerReferences=[{"kind": "Node"}])
    over = {**on_node("done"), "status": {"phase": "Succeeded"}}
    assert why_held(a_node("node-0"), [daemon, mirror, over, a_pod("far", 0, "node-1")], []) == []
    leaving = on_node("web", deletionTimestamp=LATER)
    assert [one.code for one in why_held(a_node("node-0"), [daemon, leaving], [])] == ["release.serves"]
    assert why_held(a_node("node-0"), [daemon, leaving], [], lastingly=True) == []


@pytest.mark.parametrize(
    "mark", ["karpenter.sh/do-not-disrupt", "cluster-autoscaler.kubernetes.io/scale-down-disabled"]
)
def test_node_that_somebody_marks_to_stay_stays(mark: str) -> None:
    objects = of_karpenter()
    objects[0]["metadata"]["annotations"] = {mark: "true"}
    with pytest.raises(Refused, match=f"it is marked {mark}"):
        render_release(
            "p", NodeRelease(node="node-0"), found(objects), take_snapshot(StandingCluster(objects), NODE_DIALECT)
        )


OF_A10 = {"nvidia.com/gpu.product": "NVIDIA-A10"}


@pytest.mark.parametrize(
    ("new", "is_one"),
    [
        (a_claim("new", at=LATER), True),
        (a_claim("new", at=BEFORE), False),
        (a_claim("new", at=LATER, cards=0), False),
        (a_claim("new", at=LATER, cards=2, labels=OF_A10), False),
        (a_claim("new", at=LATER, cards=2, labels={"nvidia.com/gpu.product": "NVIDIA-H100"}), True),
        (a_claim("new", at=LATER, cards=2, labels={**OF_A10, "karpenter.sh/capacity-type": "spot"}), True),
        (a_claim("new", at=LATER, cards=2), True),
    ],
    ids=["as large", "there before", "without cards", "smaller", "another model", "another price", "unknown model"],
)
def test_later_machine_counts_in_its_place_unless_it_is_known_to_be_cheaper(new: Manifest, is_one: bool) -> None:
    old = a_claim("old", labels=OF_A10)
    assert (replacement([old, new], old, BEFORE) is not None) is is_one


def a_release(node: str) -> Plan:
    place = PlanPlace(cluster="c1", backend="hami", version=None, cards=4)
    return release_plan(NodeRelease(node=node, plan="f" * 64), place, NOW, Settings())


def test_plan_of_a_release_is_read_as_it_was_written() -> None:
    plan = a_release("node-2")
    assert plan_from_json(plan_to_json(plan), name="plan") == plan


def test_own_machine_is_cordoned_and_undo_opens_it_again(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path, cards=12)
    before = cluster.get("Node", "", "node-2")
    tools = some_tools(cluster, tmp_path)
    plan = a_release("node-2")
    (result,) = a_rollout(tools).apply(plan, by="ann")
    assert result.state is StageState.PROMOTED
    assert is_closed(cluster, "node-2")
    assert set(releases_of(tools.journal.runs())) == {"node-2"}
    an_undo(tools).undo(plan.plan_id)
    assert not is_closed(cluster, "node-2")
    after = cluster.get("Node", "", "node-2")
    assert before is not None
    assert after is not None
    assert after["metadata"].get("annotations") == before["metadata"].get("annotations")
    assert releases_of(tools.journal.runs()) == {}


def test_node_that_holds_pods_with_cards_is_not_released(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path, cards=12)
    with pytest.raises(Refused, match=r"node node-0 is not released: pod .* still runs there"):
        a_rollout(some_tools(cluster, tmp_path)).apply(a_release("node-0"), by="ann")
    assert not is_closed(cluster, "node-0")


def is_closed(cluster: SimulatedCluster, node: str) -> bool:
    manifest = cluster.get("Node", "", node)
    assert manifest is not None
    return bool((manifest.get("spec") or {}).get("unschedulable"))


def a_rollout(tools: RunContext, machine: Machine | None = None) -> Rollout:
    backend = RunningBackend(
        HamiBackend(NOW), version=None, allows_experimental=True, left_out=None,
        machine=lambda _: machine or Machine(owner=NodeOwner.NOBODY),
    )  # fmt: skip
    return Rollout(tools, backend)


class BusyCluster(SimulatedCluster):
    """A cluster in which a pod runs on node-2 until some time after the node was cordoned.

    Attributes:
        ends_after: seconds from the first look after the cordon until it ends; None where it never does.
        restart_policy: of the pod.
        comes_late: whether a scheduler that had chosen the node before the cordon binds it there afterwards.
    """

    ends_after: float | None = 30.0
    restart_policy = "Never"
    comes_late = False
    _closed_at: datetime | None = None

    def list_objects(self, kind: str, namespace: str | None = None) -> tuple[Manifest, ...]:
        found = tuple(super().list_objects(kind, namespace))
        if kind != "Pod":
            return found
        if is_closed(self, "node-2"):
            self._closed_at = self._closed_at or self.now()
        waited = None if self._closed_at is None else (self.now() - self._closed_at).total_seconds()
        is_there = (waited is not None or not self.comes_late) and (
            waited is None or self.ends_after is None or waited < self.ends_after
        )
        pod = on_node("short")
        pod["spec"] |= {"nodeName": "node-2", "restartPolicy": self.restart_policy}
        return (*found, pod) if is_there else found


def a_busy_cluster(folder: Path) -> BusyCluster:
    a_cluster(folder, cards=12)
    cluster = BusyCluster(folder / "cluster.sqlite")
    for one in of_cluster_api()[1:]:
        cluster.make(one)
    return cluster


def of_cluster(cluster: SimulatedCluster) -> Machine:
    manifest, scaled = cluster.get("Machine", "capi", "m-1"), cluster.get("MachineDeployment", "capi", "gpu")
    return Machine(owner=NodeOwner.CLUSTER_API, manifest=manifest, scaled=scaled, newest=BEFORE)


def replicas(cluster: SimulatedCluster) -> int:
    found = cluster.get("MachineDeployment", "capi", "gpu")
    assert found is not None
    return int(found["spec"]["replicas"])


def test_short_pod_ends_on_the_closed_node_before_anybody_is_asked_for_it(tmp_path: Path) -> None:
    cluster = a_busy_cluster(tmp_path)
    tools = some_tools(cluster, tmp_path)
    seen: list[tuple[str, int]] = []
    tools.step = lambda what: seen.append((what, len([p for p in cluster.list_objects("Pod") if is_short(p)])))
    tools.policy = replace(tools.policy, leave_seconds_max=10.0)
    a_rollout(tools, of_cluster(cluster)).apply(a_release("node-2"), by="ann")
    asked = [pods for what, pods in seen if "MachineDeployment" in what]
    assert asked, seen
    assert asked[0] == 0


def is_short(pod: Manifest) -> bool:
    return str(pod["metadata"]["name"]).startswith("short")


def test_own_machine_is_kept_closed_once_its_short_pod_ended(tmp_path: Path) -> None:
    cluster = a_busy_cluster(tmp_path)
    (result,) = a_rollout(some_tools(cluster, tmp_path)).apply(a_release("node-2"), by="ann")
    assert result.state is StageState.PROMOTED, result.reason
    assert is_closed(cluster, "node-2")
    assert not any(map(is_short, cluster.list_objects("Pod")))


def test_short_pod_that_never_ends_gives_the_node_back_and_names_the_limit(tmp_path: Path) -> None:
    cluster = a_busy_cluster(tmp_path)
    cluster.ends_after = None
    tools = some_tools(cluster, tmp_path)
    tools.policy = replace(tools.policy, empty_seconds_max=60.0)
    (result,) = a_rollout(tools, of_cluster(cluster)).apply(a_release("node-2"), by="ann")
    assert result.state is StageState.RESTORED
    assert "limit enforcer.node_empty_seconds_max" in str(result.reason)
    assert "short-0 still runs there" in str(result.reason)
    assert not is_closed(cluster, "node-2")
    assert replicas(cluster) == 3


def test_pod_that_was_bound_between_look_and_cordon_keeps_its_machine(tmp_path: Path) -> None:
    cluster = a_busy_cluster(tmp_path)
    cluster.comes_late, cluster.restart_policy, cluster.ends_after = True, "Always", None
    tools = some_tools(cluster, tmp_path)
    steps: list[str] = []
    tools.step = steps.append
    (result,) = a_rollout(tools, of_cluster(cluster)).apply(a_release("node-2"), by="ann")
    assert result.state is StageState.RESTORED
    assert "short-0 still runs there" in str(result.reason)
    assert not is_closed(cluster, "node-2")
    assert not [what for what in steps if "MachineDeployment" in what]


def test_pod_that_stays_is_refused_before_the_node_is_closed(tmp_path: Path) -> None:
    cluster = a_busy_cluster(tmp_path)
    cluster.restart_policy, cluster.ends_after = "Always", None
    (result,) = a_rollout(some_tools(cluster, tmp_path)).apply(a_release("node-2"), by="ann")
    assert "short-0 still runs there" in str(result.reason)
    assert cluster._closed_at is None, "it was never cordoned"


def test_freeze_while_short_pods_end_asks_nobody_for_the_machine(tmp_path: Path) -> None:
    cluster = a_busy_cluster(tmp_path)
    freeze = tmp_path / "freeze"
    tools = some_tools(cluster, tmp_path, guard=OpenGuard(GuardPolicy(gaps_allowed=True, freeze_file=freeze)))

    def pause(seconds: float) -> None:
        freeze.write_text("ann\n")
        cluster.pause(seconds)

    tools.pause = pause
    plan = a_release("node-2")
    with pytest.raises(Refused, match="frozen by ann"):
        a_rollout(tools, of_cluster(cluster)).apply(plan, by="ann")
    assert replicas(cluster) == 3
    freeze.unlink()
    tools.pause, tools.policy = cluster.pause, replace(tools.policy, leave_seconds_max=10.0)
    seen: list[int] = []
    tools.step = lambda _: seen.append(replicas(cluster))
    a_rollout(tools, of_cluster(cluster)).apply(plan, by="ann")
    assert 2 in seen, "the run went on where the freeze stopped it"


def test_one_node_leaves_at_a_time_and_another_of_its_name_does_not_count(tmp_path: Path) -> None:
    a_cluster(tmp_path, cards=16)
    cluster = LeavingCluster(tmp_path / "cluster.sqlite")
    for one in of_cluster_api()[1:]:
        cluster.make(one)
    tools = some_tools(cluster, tmp_path)
    tools.policy = replace(tools.policy, leave_seconds_max=30.0)
    (result,) = a_rollout(tools, of_cluster(cluster)).apply(a_release("node-2"), by="ann")
    assert result.state is StageState.PROMOTED, result.reason
    with pytest.raises(Refused, match="node node-2 was released and has not left yet"):
        a_rollout(tools).apply(a_release("node-3"), by="ann")
    found = cluster.get("Node", "", "node-2")
    assert found is not None
    fields = ("spec.unschedulable", f"metadata.annotations[{RELEASED_ANNOTATION}]")
    cluster.patch(
        "Node", "", "node-2", [FieldChange(field=field, value=None) for field in fields],
        found["metadata"]["resourceVersion"],
    )  # fmt: skip
    (result,) = a_rollout(tools).apply(a_release("node-3"), by="ann")
    assert result.state is StageState.PROMOTED, result.reason


class LeavingCluster(SimulatedCluster):
    """A cluster with Machines of Cluster API; the one that is asked to go is being deleted at once, and stays so."""

    def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
        body = super().get(kind, namespace, name)
        deployment = super().get("MachineDeployment", "capi", "gpu")
        if kind == "Machine" and body is not None and deployment is not None and deployment["spec"]["replicas"] < 3:
            body["metadata"]["deletionTimestamp"] = LATER
        return body


def test_machine_on_its_way_out_is_not_asked_for_again_by_an_undo(tmp_path: Path) -> None:
    a_cluster(tmp_path, cards=12)
    cluster = LeavingCluster(tmp_path / "cluster.sqlite")
    machine, _, gpu = of_cluster_api()[1:]
    for one in (machine, gpu):
        cluster.make(one)
    tools = some_tools(cluster, tmp_path)
    tools.policy = replace(tools.policy, leave_seconds_max=30.0)
    plan = a_release("node-2")
    (result,) = a_rollout(tools, of_cluster(cluster)).apply(plan, by="ann")
    assert result.state is StageState.PROMOTED, result.reason
    undone = an_undo(tools).undo(plan.plan_id)
    assert "nothing of that can be taken back" in str(undone.kept[0])
    after = cluster.get("MachineDeployment", "capi", "gpu")
    assert after is not None
    assert after["spec"]["replicas"] == 2


def test_kill_at_any_moment_of_a_release_leaves_nothing_half_done(tmp_path: Path) -> None:
    plan, number, is_over = a_release("node-2"), 0, False
    while not is_over:
        number += 1
        folder = tmp_path / str(number)
        folder.mkdir()
        cluster = a_busy_cluster(folder)
        machine = of_cluster(cluster)
        tools = killing(some_tools(cluster, folder), number)
        tools.policy = replace(tools.policy, leave_seconds_max=10.0)
        try:
            a_rollout(tools, machine).apply(plan, by="ann")
            is_over = True
        except Killed:
            pass
        tools = some_tools(cluster, folder)
        tools.policy = replace(tools.policy, leave_seconds_max=10.0)
        if not is_over:
            a_rollout(tools, machine).apply(plan, by="ann")
        # Nobody takes the machine here, so everything is given back.
        found, kept = cluster.get("Node", "", "node-2"), cluster.get("Machine", "capi", "m-1")
        assert found is not None
        assert kept is not None
        assert not is_closed(cluster, "node-2"), number
        assert RELEASED_ANNOTATION not in (found["metadata"].get("annotations") or {}), number
        assert DELETE_MACHINE_ANNOTATION not in (kept["metadata"].get("annotations") or {}), number
        assert replicas(cluster) == 3, number
    assert number > 8
