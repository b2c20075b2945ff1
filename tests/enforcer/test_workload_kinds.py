"""Every kind of workload is changed at its own field paths, rolled or evicted as its controller needs, and restored."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from bench.faulty_cluster import Faults
from enforcer.backends.device_plugin import resource_fields
from enforcer.backends.hami import HamiBackend
from enforcer.cluster import FieldChange
from enforcer.kinds.kind import PodTemplate, Reach, RolePod, Scaling
from enforcer.kinds.register import (
    WORKLOAD_KINDS,
    is_rolled_out,
    is_template_field,
    pod_templates,
    trouble_of,
    workload_kind,
)
from enforcer.kubernetes.kinds import API_KINDS
from enforcer.manifest import Manifest, field_of, set_field
from enforcer.ownership import parents_of, workload_of_pod
from enforcer.plan_names import with_top_owners
from enforcer.preview import preview
from enforcer.record.journal import StageState
from enforcer.simulated.cluster import SimulatedCluster
from enforcer.snapshot import take_snapshot
from fleet.decisions import Plan, RecommendationKind
from fleet.errors import Refused
from fleet.inventory import WorkloadId
from fleet.workload_kinds import CHANGEABLE_KINDS, JOB_KINDS, SERVICE_KINDS
from tests.enforcer.builders import (
    HALF,
    HOLD_SECONDS,
    NOW,
    a_cluster,
    a_grant,
    a_plan,
    a_recommendation,
    a_rollout,
    a_slice,
    an_undo,
    let_all_go,
    some_tools,
    where,
)

CUSTOM = ("InferenceService", "LeaderWorkerSet", "Notebook", "RayCluster", "Rollout", "MPIJob", "XGBoostJob")
AFTER = ["(0, 12)", "(0, 12)", "(2, 12)"]
BEFORE = ["(0, 24)", "(1, 24)", "(2, 24)"]
PODS = [f"w-{number}" for number in range(3)]
WORKERS = "spec.workerGroupSpecs[workers]"


def a_fleet(folder: Path, kind: str, *, faults: Faults | None = None, cards: int = 4) -> SimulatedCluster:
    cluster = a_cluster(
        folder, [a_grant("w", number, number, kind=kind) for number in range(3)], cards=cards, faults=faults
    )
    # Its last group waits until the first has shrunk.
    return let_all_go(cluster, "LeaderWorkerSet/w") if kind == "LeaderWorkerSet" else cluster


def halves(kind: str) -> Plan:
    """The first two pods share card 0, so the first must shrink before the second can come."""
    return a_plan(
        {0: [a_slice(PODS[0], kind=kind), a_slice(PODS[1], kind=kind)], 2: [a_slice(PODS[2], kind=kind)]},
        [[a_recommendation("x", RecommendationKind.SLICE, PODS, [f"{kind}/w"], 1)]],
    )


def stopping(kind: str, pods: list[str]) -> Plan:
    """Some pods are to go; the others keep their cards."""
    staying = {
        number: [replace(a_slice(pod, kind=kind), framebuffer_bytes=2 * HALF, compute_ratio=1.0)]
        for number, pod in enumerate(PODS)
        if pod not in pods
    }
    return a_plan(
        staying, [[a_recommendation("x", RecommendationKind.FEWER_CARDS, pods, [f"{kind}/w"], len(pods))]]
    )  # fmt: skip


def owner(cluster: SimulatedCluster, kind: str) -> Manifest:
    found = cluster.get(kind, "team", "w")
    assert found is not None
    return found


def as_set(cluster: SimulatedCluster, kind: str) -> Manifest:
    """The owner as its user set it."""
    found = owner(cluster, kind)
    found.pop("status", None)
    for key in ("resourceVersion", "generation"):
        found["metadata"].pop(key, None)
    return found


def spread(cluster: SimulatedCluster) -> list[str]:
    return sorted(map(str, where(cluster).values()))


@pytest.mark.parametrize("kind", CUSTOM)
def test_kind_gets_its_new_grants_and_undo_leaves_what_its_user_wrote(kind: str, tmp_path: Path) -> None:
    cluster = a_fleet(tmp_path, kind)
    before, tools = as_set(cluster, kind), some_tools(cluster, tmp_path)
    (result,) = a_rollout(tools).apply(halves(kind), by="ann")
    assert (result.state, result.reason) == (StageState.PROMOTED, None)
    assert spread(cluster) == AFTER
    template = pod_templates(as_set(cluster, kind))[-1].body
    assert template["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpumem"] == str(HALF // 2**20)
    assert an_undo(tools).undo(halves(kind).plan_id).kept == ()
    assert spread(cluster) == BEFORE
    assert as_set(cluster, kind) == before


@pytest.mark.parametrize("kind", ["InferenceService", "LeaderWorkerSet", "RayCluster", "Rollout"])
def test_pod_that_is_never_ready_takes_the_kind_back(kind: str, tmp_path: Path) -> None:
    faults = Faults(never_ready=frozenset(f"team/{pod}" for pod in PODS))
    cluster = a_fleet(tmp_path, kind, faults=faults)
    before = as_set(cluster, kind)

    def heal(step: str) -> None:
        if step == "restoring 1":
            faults.never_ready = frozenset()

    (result,) = a_rollout(some_tools(cluster, tmp_path, step=heal)).apply(halves(kind), by="ann")
    assert result.state is StageState.RESTORED
    assert spread(cluster) == BEFORE
    assert as_set(cluster, kind) == before


HELD = {
    "InferenceService": {"spec.predictor.deploymentStrategy.rollingUpdate.maxSurge": "0"},
    "LeaderWorkerSet": {"spec.rolloutStrategy.rollingUpdateConfiguration.partition": "2"},
    "Rollout": {"spec.minReadySeconds": str(HOLD_SECONDS), "spec.strategy.canary.maxSurge": "0"},
}


@pytest.mark.parametrize("kind", HELD)
def test_kind_that_rolls_by_itself_is_held_while_the_canary_is_watched(kind: str, tmp_path: Path) -> None:
    cluster = a_fleet(tmp_path, kind)
    seen: list[Manifest] = []

    def look(step: str) -> None:
        if step == "watched canary":
            seen.append(owner(cluster, kind))

    a_rollout(some_tools(cluster, tmp_path, step=look)).apply(halves(kind), by="ann")
    (held,) = seen
    assert {path: field_of(held, path) for path in HELD[kind]} == HELD[kind]


def test_ray_service_comes_beside_its_old_cluster_where_there_is_room(tmp_path: Path) -> None:
    cluster = a_fleet(tmp_path, "RayService", cards=8)
    plan = a_plan(
        {4: [a_slice(PODS[0], kind="RayService"), a_slice(PODS[1], kind="RayService")],
         5: [a_slice(PODS[2], kind="RayService")]},
        [[a_recommendation("x", RecommendationKind.SLICE, PODS, ["RayService/w"], 1)]],
    )  # fmt: skip
    before, tools = as_set(cluster, "RayService"), some_tools(cluster, tmp_path)
    (found,) = preview(plan, cluster, HamiBackend(NOW))
    assert any("a second Ray cluster is made" in warning for warning in found.warnings)
    (result,) = a_rollout(tools).apply(plan, by="ann")
    assert (result.state, result.reason) == (StageState.PROMOTED, None)
    assert spread(cluster) == ["(4, 12)", "(4, 12)", "(5, 12)"]
    an_undo(tools).undo(plan.plan_id)
    assert as_set(cluster, "RayService") == before


def test_cron_job_is_changed_for_its_next_run_and_its_pods_are_left_alone(tmp_path: Path) -> None:
    cluster = a_fleet(tmp_path, "CronJob")
    before, tools = as_set(cluster, "CronJob"), some_tools(cluster, tmp_path)
    (found,) = preview(halves("CronJob"), cluster, HamiBackend(NOW))
    assert any("from its next run on" in warning for warning in found.warnings)
    assert (found.moves, found.cards_freed) == ((), 0)
    (result,) = a_rollout(tools).apply(halves("CronJob"), by="ann")
    assert result.state is StageState.PROMOTED
    assert spread(cluster) == BEFORE
    path = "spec.jobTemplate.spec.template.spec.containers[server].resources.limits[nvidia.com/gpumem]"
    assert field_of(owner(cluster, "CronJob"), path) == str(HALF // 2**20)
    an_undo(tools).undo(halves("CronJob").plan_id)
    assert as_set(cluster, "CronJob") == before


REFUSED = {
    "RayJob": "make the RayJob anew",
    "TrainJob": "TrainingRuntime",
}


@pytest.mark.parametrize("kind", REFUSED)
def test_kind_whose_template_is_not_its_own_is_refused_with_the_fact(kind: str, tmp_path: Path) -> None:
    cluster = a_fleet(tmp_path, kind)
    with pytest.raises(Refused, match=REFUSED[kind]):
        a_rollout(some_tools(cluster, tmp_path)).apply(halves(kind), by="ann")
    assert spread(cluster) == BEFORE


BY_OWNER = [
    ("Rollout", "spec.workloadRef", {"kind": "Deployment", "name": "base"}, "that of Deployment base"),
    ("Rollout", "spec.strategy", {"blueGreen": {}}, "blueGreen"),
    ("InferenceService", "spec.predictor.canaryTrafficPercent", 10, "canaryTrafficPercent=10"),
    ("InferenceService", "spec.predictor.containers", [{"name": "server"}], "ServingRuntime"),
    ("RayService", "spec.rayClusterConfig", {}, "no template of its own"),
]


@pytest.mark.parametrize(("kind", "path", "value", "why"), BY_OWNER)
def test_owner_that_no_change_would_reach_is_refused_with_the_fact(
    kind: str, path: str, value: object, why: str, tmp_path: Path
) -> None:
    cluster = a_fleet(tmp_path, kind)
    snapshot = take_snapshot(cluster)
    manifest = copy.deepcopy(owner(cluster, kind))
    holder = manifest
    *names, last = path.split(".")
    for name in names:
        holder = holder[name]
    holder[last] = value
    changed = replace(snapshot, owners={**snapshot.owners, WorkloadId(f"team/{kind}/w"): manifest})
    with pytest.raises(Refused, match=why):
        HamiBackend(NOW).render(halves(kind), 1, changed)


SCALED = [
    ("Rollout", {"spec.replicas": "2"}),
    ("LeaderWorkerSet", {"spec.replicas": "2"}),
    ("InferenceService", {"spec.predictor.minReplicas": "2"}),
    ("RayCluster", {f"{WORKERS}.replicas": "2", f"{WORKERS}.scaleStrategy.workersToDelete": '["w-1"]'}),
]


@pytest.mark.parametrize(("kind", "fields"), SCALED)
def test_one_pod_fewer_is_said_in_the_kinds_own_field_and_undone(
    kind: str, fields: dict[str, str], tmp_path: Path
) -> None:
    cluster = a_fleet(tmp_path, kind)
    gone = "w-2" if kind == "LeaderWorkerSet" else "w-1"
    plan, before, tools = stopping(kind, [gone]), as_set(cluster, kind), some_tools(cluster, tmp_path)
    (result,) = a_rollout(tools).apply(plan, by="ann")
    assert (result.state, result.reason) == (StageState.PROMOTED, None)
    assert {path: field_of(owner(cluster, kind), path) for path in fields} == fields
    assert sum("24" in place for place in spread(cluster)) == 2
    an_undo(tools).undo(plan.plan_id)
    assert as_set(cluster, kind) == before
    assert spread(cluster) == BEFORE


STOPPED = {
    "InferenceService": {"metadata.annotations[serving.kserve.io/stop]": "true", "spec.predictor.minReplicas": "0"},
    "LeaderWorkerSet": {"spec.replicas": "0"},
    "RayCluster": {"spec.suspend": "true"},
    "RayJob": {"spec.suspend": "true"},
    "Rollout": {"spec.replicas": "0"},
    "TrainJob": {"spec.suspend": "true"},
    "PyTorchJob": {"spec.runPolicy.suspend": "true"},
    "TFJob": {"spec.runPolicy.suspend": "true"},
}


@pytest.mark.parametrize("kind", STOPPED)
def test_kind_is_stopped_whole_and_started_again(kind: str, tmp_path: Path) -> None:
    cluster = a_fleet(tmp_path, kind)
    plan, before, tools = stopping(kind, PODS), as_set(cluster, kind), some_tools(cluster, tmp_path)
    (result,) = a_rollout(tools).apply(plan, by="ann")
    assert (result.state, result.reason) == (StageState.PROMOTED, None)
    assert {path: field_of(owner(cluster, kind), path) for path in STOPPED[kind]} == STOPPED[kind]
    assert "24" not in " ".join(spread(cluster))
    an_undo(tools).undo(plan.plan_id)
    assert as_set(cluster, kind) == before
    assert spread(cluster) == BEFORE


@pytest.mark.parametrize("kind", ["DaemonSet", "RayService"])
def test_kind_without_a_size_is_not_scaled(kind: str, tmp_path: Path) -> None:
    cluster = a_fleet(tmp_path, kind)
    with pytest.raises(Refused, match=f"a {kind} has no number of replicas"):
        HamiBackend(NOW).render(stopping(kind, ["w-1"]), 1, take_snapshot(cluster))


def test_training_job_is_not_stopped_in_part(tmp_path: Path) -> None:
    cluster = a_fleet(tmp_path, "PyTorchJob")
    with pytest.raises(Refused, match=r"stopped whole or not at all, and 2 of its pods are to stay"):
        HamiBackend(NOW).render(stopping("PyTorchJob", ["w-1"]), 1, take_snapshot(cluster))


def scaling(kind: str, spec: Manifest, staying: list[tuple[str, str]], leaving: list[tuple[str, str]]) -> Scaling:
    made = {"kind": kind, "metadata": {"namespace": "team", "name": "w"}, "spec": spec}
    pods = [tuple(RolePod(name=name, role=role) for name, role in part) for part in (staying, leaving)]
    return Scaling(owner=made, staying=pods[0], leaving=pods[1], others=0, now=NOW)


def test_groups_of_a_leader_worker_set_go_whole() -> None:
    spec = {"replicas": 3, "leaderWorkerTemplate": {"size": 2, "workerTemplate": {}}}
    pods = [(f"w-{group}-{number}", "") for group in range(3) for number in range(2)]
    kind = workload_kind("LeaderWorkerSet")
    assert kind.scale(scaling("LeaderWorkerSet", spec, pods[:4], pods[4:])) == {"spec.replicas": "2"}
    with pytest.raises(Refused, match="in groups of 2"):
        kind.scale(scaling("LeaderWorkerSet", spec, pods[:3], pods[3:]))


def test_workers_of_one_ray_group_leave_by_name_and_the_other_groups_stay() -> None:
    groups: list[Manifest] = [
        {"groupName": name, "replicas": 2, "minReplicas": 2, "template": {}} for name in ("a10", "h100")
    ]
    spec = {"headGroupSpec": {}, "workerGroupSpecs": groups}
    staying = [("h", "headgroup"), ("a-0", "a10"), ("b-0", "h100"), ("b-1", "h100")]
    found = workload_kind("RayCluster").scale(scaling("RayCluster", spec, staying, [("a-1", "a10")]))
    group = "spec.workerGroupSpecs[a10]"
    assert found == {
        f"{group}.replicas": "1",
        f"{group}.minReplicas": "1",
        f"{group}.scaleStrategy.workersToDelete": json.dumps(["a-1"]),
    }
    with pytest.raises(Refused, match="stopped whole or not at all"):
        workload_kind("RayCluster").scale(scaling("RayCluster", spec, staying[1:], staying[:1]))


def test_fixed_number_of_replicas_of_an_inference_service_stays_one_and_a_range_stays_a_range() -> None:
    kind = workload_kind("InferenceService")
    pods = [(f"w-{number}", "predictor") for number in range(3)]
    fixed = {"predictor": {"minReplicas": 3, "maxReplicas": 3}}
    assert kind.scale(scaling("InferenceService", fixed, pods[1:], pods[:1])) == {
        "spec.predictor.minReplicas": "2",
        "spec.predictor.maxReplicas": "2",
    }
    ranging = {"predictor": {"minReplicas": 3, "maxReplicas": 9}}
    assert kind.scale(scaling("InferenceService", ranging, pods[1:], pods[:1])) == {"spec.predictor.minReplicas": "2"}


def test_head_and_workers_get_the_fields_of_their_own_pods(tmp_path: Path) -> None:
    """A launcher keeps its template while the workers beside it get theirs."""
    cluster = a_fleet(tmp_path, "MPIJob")
    rendered = HamiBackend(NOW).render(halves("MPIJob"), 1, take_snapshot(cluster))
    own = [change.field for change in rendered.changes if change.field.startswith("spec.")]
    assert own
    assert all(field.startswith("spec.mpiReplicaSpecs.Worker.template.") for field in own)


INLINE = {
    "predictor": {
        "annotations": {"a": "1"},
        "model": {"modelFormat": {"name": "vllm"}, "resources": {"limits": {"nvidia.com/gpu": "1"}}},
        "containers": [{"name": "proxy"}],
        "nodeSelector": {"zone": "a"},
    }
}
PLACES = [
    ("spec.template.spec.containers[kserve-container].resources.limits[nvidia.com/gpumem]",
     "spec.predictor.model.resources.limits[nvidia.com/gpumem]"),
    ("spec.template.spec.containers[proxy].env[A]", "spec.predictor.containers[proxy].env[A]"),
    ("spec.template.spec.nodeSelector[x]", "spec.predictor.nodeSelector[x]"),
    ("spec.template.metadata.annotations[x.y/z]", "spec.predictor.annotations[x.y/z]"),
    ("metadata.annotations[gputide.io/plan-id]", "metadata.annotations[gputide.io/plan-id]"),
]  # fmt: skip


@pytest.mark.parametrize(("said", "stands"), PLACES)
def test_predictors_fields_stand_beside_its_model(said: str, stands: str) -> None:
    (template,) = pod_templates({"kind": "InferenceService", "spec": INLINE})
    assert template.place(said) == stands
    assert is_template_field("InferenceService", stands) is stands.startswith("spec.")


def test_predictor_is_seen_as_one_pod_template() -> None:
    (template,) = pod_templates({"kind": "InferenceService", "spec": INLINE})
    names = [container["name"] for container in template.body["spec"]["containers"]]
    assert names == ["kserve-container", "proxy"]
    assert template.body["metadata"]["annotations"] == {"a": "1"}


@pytest.mark.parametrize(
    "path", ["spec.predictor.minReplicas", "spec.predictor.deploymentStrategy.type", "spec.replicas"]
)
def test_size_and_strategy_are_no_part_of_what_pods_are_made_from(path: str) -> None:
    assert not is_template_field("InferenceService", path)
    assert not is_template_field("Rollout", path)


def test_every_place_of_a_template_is_known_as_one() -> None:
    for kind in WORKLOAD_KINDS.values():
        assert kind.kind in API_KINDS
        template = {"metadata": {}, "spec": {"containers": [{"name": "c"}]}}
        found = PodTemplate(role="", path="spec.template", body=template)
        assert found.place("spec.template.spec.containers[c]") == "spec.template.spec.containers[c]"
        if kind.reach is Reach.FIXED:
            assert kind.refusal({"kind": kind.kind, "metadata": {}, "spec": {}})


STATUS = [
    ("Rollout", {"phase": "Degraded", "message": "timed out", "observedGeneration": "2"}, "it is degraded: timed out"),
    ("Rollout", {"phase": "Degraded", "message": "of before", "observedGeneration": "1"}, None),
    ("RayCluster", {"state": "failed", "reason": "no head"}, "it failed: no head"),
    ("PyTorchJob", {"conditions": [{"type": "Failed", "status": "True", "message": "m"}]}, "it failed: m"),
    ("InferenceService", {"modelStatus": {"transitionStatus": "InvalidSpec"}}, "does not load: InvalidSpec"),
    ("Deployment", {"conditions": "nonsense"}, None),
]


@pytest.mark.parametrize(("kind", "status", "trouble"), STATUS)
def test_trouble_is_what_the_kinds_own_status_says_of_the_latest_specification(
    kind: str, status: Manifest, trouble: str | None
) -> None:
    found = trouble_of({"kind": kind, "metadata": {"generation": 2}, "status": status})
    assert found is None if trouble is None else trouble in str(found)


def test_troubled_owner_is_taken_back_at_once(tmp_path: Path) -> None:
    cluster = a_fleet(tmp_path, "RayCluster", faults=Faults(never_ready=frozenset(f"team/{pod}" for pod in PODS)))
    shown = cluster.get

    def troubled(kind: str, namespace: str, name: str) -> Manifest | None:
        found = shown(kind, namespace, name)
        if found is not None and kind == "RayCluster" and found["metadata"]["generation"] > 1:
            found["status"]["state"], found["status"]["reason"] = "failed", "the head is gone"
        return found

    cluster.get = troubled  # type: ignore[method-assign]
    began = cluster.now()
    (result,) = a_rollout(some_tools(cluster, tmp_path)).apply(halves("RayCluster"), by="ann")
    assert result.state is StageState.RESTORED
    assert "is in trouble: it failed: the head is gone" in str(result.reason)
    assert cluster.now() - began < timedelta(hours=1)


SETTLED = [
    ("Rollout", {"observedGeneration": "2", "replicas": 3, "updatedReplicas": 3}, True),
    ("Rollout", {"observedGeneration": "1", "replicas": 3, "updatedReplicas": 3}, False),
    ("LeaderWorkerSet", {"observedGeneration": 2, "replicas": 3, "updatedReplicas": 2}, False),
    ("InferenceService", {"conditions": [{"type": "PredictorReady", "status": "False"}]}, False),
    ("InferenceService", {"observedGeneration": 2, "conditions": [
        {"type": "PredictorReady", "status": "False"}, {"type": "Stopped", "status": "True"}]}, True),
    ("RayService", {"observedGeneration": 2, "conditions": [{"type": "UpgradeInProgress", "status": "True"}]}, False),
    ("PyTorchJob", {}, True),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "status", "is_over"), SETTLED)
def test_kind_is_settled_when_its_own_status_says_so(kind: str, status: Manifest, is_over: bool) -> None:
    assert is_rolled_out({"kind": kind, "metadata": {"generation": 2}, "status": status}) is is_over


def reference(kind: str, name: str) -> list[Manifest]:
    return [{"kind": kind, "name": name, "controller": True}]


def a_pod(labels: dict[str, str], maker: tuple[str, str]) -> Manifest:
    return {"metadata": {"namespace": "team", "name": "p", "labels": labels, "ownerReferences": reference(*maker)}}


def an_object(kind: str, name: str, *maker: str) -> Manifest:
    return {"kind": kind, "metadata": {"namespace": "team", "name": name, "ownerReferences": reference(*maker)}}


CHAINS = [
    ({"pod-template-hash": "7d4"}, ("ReplicaSet", "w-predictor-7d4"),
     [an_object("Deployment", "w-predictor", "InferenceService", "w")], "team/InferenceService/w"),
    ({"serving.knative.dev/configuration": "w-predictor", "pod-template-hash": "7d4"},
     ("ReplicaSet", "w-predictor-00002-deployment-7d4"),
     [an_object("Deployment", "w-predictor-00002-deployment", "Revision", "w-predictor-00002"),
      an_object("Configuration", "w-predictor", "Service", "w-predictor"),
      an_object("Service", "w-predictor", "InferenceService", "w")], "team/InferenceService/w"),
    ({"ray.io/originated-from-crd": "RayService", "ray.io/originated-from-cr-name": "w"}, ("RayCluster", "w-x7"),
     [], "team/RayService/w"),
    ({"ray.io/originated-from-crd": "Secret", "ray.io/originated-from-cr-name": "w"}, ("RayCluster", "w-x7"),
     [], "team/RayCluster/w-x7"),
    ({"leaderworkerset.sigs.k8s.io/name": "w", "leaderworkerset.sigs.k8s.io/group-index": "3"},
     ("StatefulSet", "w-3"), [an_object("StatefulSet", "w-3", "Pod", "w-3")], "team/LeaderWorkerSet/w"),
    ({"leaderworkerset.sigs.k8s.io/name": "other", "leaderworkerset.sigs.k8s.io/group-index": "3"},
     ("StatefulSet", "w-3"), [an_object("StatefulSet", "w-3", "Pod", "w-3")], "team/Pod/w-3"),
    ({}, ("Job", "w-job"), [an_object("Job", "w-job", "JobSet", "w"), an_object("JobSet", "w", "TrainJob", "w")],
     "team/TrainJob/w"),
    # Whoever may write a pod may write any owner into it.
    ({}, ("a/Deployment", "w"), [], "team/Pod/p"), ({}, ("Job", "a/b"), [], "team/Pod/p"),
    ({}, ("Job", "w"), [an_object("Job", "w", "a/B", "w")], "team/Job/w"),
]  # fmt: skip


@pytest.mark.parametrize(("labels", "maker", "objects", "workload"), CHAINS)
def test_pod_belongs_to_the_owner_that_users_edit(
    labels: dict[str, str], maker: tuple[str, str], objects: list[Manifest], workload: str
) -> None:
    assert workload_of_pod(a_pod(labels, maker), parents_of(objects)) == workload


FIELDS = {
    "JAXJob": "jaxReplicaSpecs",
    "MPIJob": "mpiReplicaSpecs",
    "PaddleJob": "paddleReplicaSpecs",
    "PyTorchJob": "pytorchReplicaSpecs",
    "TFJob": "tfReplicaSpecs",
    "XGBoostJob": "xgbReplicaSpecs",
}


@pytest.mark.parametrize("kind", FIELDS)
def test_training_job_has_a_template_for_each_type_of_replica(kind: str) -> None:
    specs = {role: {"replicas": 2, "template": {"spec": {}}} for role in ("Master", "Worker")}
    made = {"kind": kind, "metadata": {"name": "w"}, "spec": {FIELDS[kind]: specs}}
    assert [(template.role, template.path) for template in pod_templates(made)] == [
        ("master", f"spec.{FIELDS[kind]}.Master.template"),
        ("worker", f"spec.{FIELDS[kind]}.Worker.template"),
    ]
    assert workload_kind(kind).role_of({"training.kubeflow.org/replica-type": "master"}) == "master"
    assert workload_kind(kind).wanted(made) == 4


def test_hostile_group_names_lead_to_no_path() -> None:
    groups = [{"groupName": name, "template": {"spec": {}}} for name in ("a].spec[b", "", "x" * 64, "ok")]
    made = {"kind": "RayCluster", "metadata": {"name": "w"}, "spec": {"workerGroupSpecs": groups}}
    assert [template.role for template in pod_templates(made)] == ["ok"]


def test_numbers_are_written_as_numbers_wherever_a_kind_has_them() -> None:
    made: Manifest = {"spec": {"workerGroupSpecs": [{"groupName": "a10", "replicas": 2}]}}
    set_field(made, "spec.workerGroupSpecs[a10].replicas", "1")
    set_field(made, "spec.workerGroupSpecs[a10].scaleStrategy.workersToDelete", '["p"]')
    set_field(made, "spec.runPolicy.suspend", "true")
    set_field(made, "spec.template.metadata.labels[replicas]", "1")
    assert made["spec"]["workerGroupSpecs"][0] == {
        "groupName": "a10", "replicas": 1, "scaleStrategy": {"workersToDelete": ["p"]},
    }  # fmt: skip
    assert made["spec"]["runPolicy"] == {"suspend": True}
    assert made["spec"]["template"]["metadata"]["labels"] == {"replicas": "1"}
    set_field(made, "spec.workerGroupSpecs[a10].scaleStrategy.workersToDelete", None)
    assert "scaleStrategy" not in made["spec"]["workerGroupSpecs"][0]


def test_empty_strategy_that_a_user_wrote_is_kept() -> None:
    made: Manifest = {"spec": {"strategy": {"canary": {}}}}
    set_field(made, "spec.strategy.canary.maxSurge", "0")
    set_field(made, "spec.strategy.canary.maxSurge", None)
    assert made == {"spec": {"strategy": {"canary": {}}}}


def test_backend_without_words_of_its_own_reaches_custom_kinds_too(tmp_path: Path) -> None:
    """What a backend says is placed by the kind, whichever backend it is."""
    snapshot = take_snapshot(a_fleet(tmp_path, "RayCluster"))
    manifest = snapshot.owners[WorkloadId("team/RayCluster/w")]
    head, workers = pod_templates(manifest)
    assert (head.role, workers.role) == ("headgroup", "workers")
    assert resource_fields(workers.view(manifest), "RayCluster", []) == {}
    assert workers.view(manifest)["spec"]["template"] is workers.body


def test_other_hand_on_a_custom_kind_is_kept_by_undo(tmp_path: Path) -> None:
    cluster = a_fleet(tmp_path, "RayCluster")
    tools = some_tools(cluster, tmp_path)
    a_rollout(tools).apply(halves("RayCluster"), by="ann")
    path = f"{WORKERS}.template.spec.containers[server].resources.limits[nvidia.com/gpumem]"
    version = owner(cluster, "RayCluster")["metadata"]["resourceVersion"]
    cluster.patch("RayCluster", "team", "w", [FieldChange(field=path, value="20000")], version)
    kept = an_undo(tools).undo(halves("RayCluster").plan_id).kept
    assert any("somebody set it to '20000' since" in str(left) for left in kept)


def test_plan_that_names_what_stands_below_changes_the_owner_that_users_edit(tmp_path: Path) -> None:
    """A history may know the Deployment of an InferenceService and not the InferenceService."""
    snapshot = take_snapshot(a_fleet(tmp_path, "InferenceService"))
    parents = {("Deployment", "team", "w-predictor"): ("InferenceService", "w")}
    below = WorkloadId("team/Deployment/w-predictor")
    plan = halves("InferenceService")
    named = replace(
        plan,
        placement=tuple(
            replace(card, slices=tuple(replace(part, workload=below) for part in card.slices))
            for card in plan.placement
        ),
        recommendations=tuple(replace(entry, workloads=(below,)) for entry in plan.recommendations),
    )
    assert with_top_owners(named, replace(snapshot, parents=parents)) == plan
    assert with_top_owners(plan, snapshot) is plan


def test_advice_is_made_for_kinds_that_are_changed_where_they_run_and_for_no_others() -> None:
    assert set(WORKLOAD_KINDS) >= CHANGEABLE_KINDS
    for kind in CHANGEABLE_KINDS:
        assert workload_kind(kind).reach in (Reach.ROLLS, Reach.EVICTED)
    assert JOB_KINDS | SERVICE_KINDS < CHANGEABLE_KINDS
    assert not {"CronJob", "RayService", "RayJob", "TrainJob", "DaemonSet"} & CHANGEABLE_KINDS
