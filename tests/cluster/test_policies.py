"""Policies of all levels on the real API server: plans follow them, and their status says how."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
import yaml

from bench.stored_fleet import CLUSTER, store_fleet
from enforcer.kubernetes.cluster import ClusterPlace, KubernetesCluster
from enforcer.policy_follower import FollowerMetrics, Planned, PolicyFollower
from enforcer.snapshot import take_snapshot
from fleet.errors import NotEnoughData
from fleet.inventory import ISOLATION_LABEL, OPT_OUT_LABEL, WorkloadId
from fleet.policy_standing import Subject
from tests.cluster.api import Api
from tests.cluster.audit import AuditLog
from tests.cluster.workloads import deployment, until
from tests.gputide.conftest import Program
from wire.own_metrics import OwnMetrics

pytestmark = pytest.mark.cluster

KIND = Path(__file__).resolve().parents[2] / "docs" / "gpu-policy.yaml"
EVERYWHERE = "/apis/gputide.io/v1alpha1/clustergpupolicies"


class Planner:
    """A follower on the real API server with the writer's rights, whose plans are numbers; mutable: time goes on."""

    def __init__(self, kubeconfig: Path, folder: Path, namespace: str) -> None:
        self.cluster = KubernetesCluster(ClusterPlace(kubeconfig=kubeconfig, requests_per_second=500.0))
        self.now = 0.0
        self.made: list[str] = []
        self.refusal = ""
        self.subjects = tuple(
            Subject(workload=WorkloadId(f"{namespace}/Deployment/{name}"), namespace=namespace, labels=(("app", name),))
            for name in ("web", "batch")
        )
        self.metrics = FollowerMetrics(own := OwnMetrics("planner"))
        self.own = own
        self.follower = PolicyFollower(
            self.cluster.policies, lambda: self.subjects, self.plan, lambda _: self.made,
            Planned(folder / "policies.json"), self.metrics, lambda: self.now,
        )  # fmt: skip

    def plan(self) -> str:
        if self.refusal:
            raise NotEnoughData(self.refusal)
        self.made.append(f"{len(self.made) + 1:08x}{0:056x}")
        return self.made[-1]


@pytest.fixture
def lists(api: Api, namespace: str) -> Iterator[str]:
    """Path of a namespace's policies, served; those of the cluster are gone afterwards."""
    for manifest in yaml.safe_load_all(KIND.read_text(encoding="utf-8")):
        api.apply(manifest)
    path = f"/apis/gputide.io/v1alpha1/namespaces/{namespace}/gpupolicies"
    until(lambda: {api.status("GET", path), api.status("GET", EVERYWHERE)} == {200}, "policies are served", 60.0)
    yield path
    for everything in (EVERYWHERE, path):
        for one in api.ask("GET", everything)["items"]:
            api.delete(f"{everything}/{one['metadata']['name']}")


@pytest.fixture
def planner(writer_kubeconfig: Path, tmp_path: Path, namespace: str) -> Iterator[Planner]:
    made = Planner(writer_kubeconfig, tmp_path, namespace)
    yield made
    made.cluster.close()


def policy(name: str, kind: str = "GpuPolicy", **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "gputide.io/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def selecting(app: str) -> dict[str, Any]:
    return {"matchLabels": {"app": app}}


def status(api: Api, path: str) -> dict[str, Any]:
    found: dict[str, Any] = api.ask("GET", path).get("status") or {}
    return found


def condition(api: Api, path: str, kind: str) -> tuple[str, str, str]:
    (found,) = [one for one in status(api, path)["conditions"] if one["type"] == kind]
    return found["status"], found["reason"], found["message"]


def events(api: Api, path: str) -> list[tuple[str, str]]:
    uid = api.ask("GET", path)["metadata"]["uid"]
    found = api.ask("GET", f"/api/v1/events?fieldSelector=involvedObject.uid%3D{uid}")["items"]
    return sorted((one["reason"], one["type"]) for one in found)


def test_status_says_what_is_in_force_for_how_many_workloads_and_which_plan_follows(
    api: Api, lists: str, planner: Planner
) -> None:
    api.create(EVERYWHERE, policy("base", "ClusterGpuPolicy", minReplicasWarm=1))
    api.create(lists, policy("all", latencyCritical=True, minReplicasWarm=2))
    api.create(lists, policy("web", minReplicasWarm=5, selector=selecting("web")))
    assert planner.follower.look()
    found = {name: status(api, f"{lists}/{name}") for name in ("all", "web")}
    assert found["all"]["inForce"] == [
        {"field": "latencyCritical", "value": "true", "workloads": 2},
        {"field": "minReplicasWarm", "value": "2", "workloads": 1},
    ]
    assert found["web"]["inForce"] == [{"field": "minReplicasWarm", "value": "5", "workloads": 1}]
    assert (found["all"]["workloads"], found["web"]["workloads"]) == (2, 1)
    assert {one["plan"] for one in found.values()} == {f"plan-{planner.made[0]}"}
    assert found["web"]["observedGeneration"] == 1
    assert status(api, f"{EVERYWHERE}/base")["inForce"] == []
    assert condition(api, f"{lists}/web", "Planned")[:2] == ("True", "Planned")
    api.patch(f"{lists}/web", {"spec": {"minReplicasWarm": 6}})
    assert planner.follower.look()
    assert status(api, f"{lists}/web")["observedGeneration"] == 2
    assert status(api, f"{lists}/web")["plan"] == f"plan-{planner.made[1]}"
    assert status(api, f"{lists}/all")["plan"] == f"plan-{planner.made[0]}", "nothing of it changed"
    assert events(api, f"{lists}/web") == [("Planned", "Normal")] * 2


def test_policies_that_contradict_each_other_both_say_so_and_the_careful_value_holds(
    api: Api, lists: str, planner: Planner, namespace: str
) -> None:
    api.create(lists, policy("a", isolation="hard", selector=selecting("web")))
    api.create(
        lists, policy("b", isolation="soft", selector={"matchExpressions": [{"key": "app", "operator": "Exists"}]})
    )
    api.create(lists, policy("c", isolation="soft", selector=selecting("batch")))
    planner.follower.look()
    assert condition(api, f"{lists}/a", "Conflict") == (
        "True", "SameLevel", f"isolation: GpuPolicy {namespace}/b says soft, and hard holds",
    )  # fmt: skip
    assert condition(api, f"{lists}/b", "Conflict") == (
        "True", "SameLevel", f"isolation: GpuPolicy {namespace}/a says hard, and hard holds",
    )  # fmt: skip
    assert condition(api, f"{lists}/c", "Conflict")[:2] == ("False", "NoConflict")
    assert status(api, f"{lists}/a")["inForce"] == [{"field": "isolation", "value": "hard", "workloads": 1}]
    assert ("SameLevel", "Warning") in events(api, f"{lists}/a")
    api.delete(f"{lists}/a")
    planner.follower.look()
    assert condition(api, f"{lists}/b", "Conflict")[0] == "False"


def test_tenant_loosens_nothing_that_the_cluster_asks_for_by_policy_or_label(
    api: Api, lists: str, planner: Planner, namespace: str
) -> None:
    api.create(EVERYWHERE, policy("base", "ClusterGpuPolicy", isolation="hard", optOut=True))
    api.create(lists, policy("loose", isolation="soft", optOut=False, selector=selecting("web")))
    planner.follower.look()
    says, reason, message = condition(api, f"{lists}/loose", "Overruled")
    assert (says, reason) == ("True", "LoosensCluster")
    assert "isolation: ClusterGpuPolicy base asks for hard" in message
    assert status(api, f"{lists}/loose")["inForce"] == []
    labels = {OPT_OUT_LABEL: "false", ISOLATION_LABEL: "soft"}
    deployment(api, namespace, "web", container="main", limits={"nvidia.com/gpu": "1"}, annotations=labels)
    snapshot = take_snapshot(planner.cluster)
    web = WorkloadId(f"{namespace}/Deployment/web")
    assert snapshot.asked(ISOLATION_LABEL, web) == {"hard"}
    assert snapshot.is_flagged(OPT_OUT_LABEL, web)


def test_policy_that_cannot_be_read_says_so_and_the_plan_before_stays(api: Api, lists: str, planner: Planner) -> None:
    api.create(lists, policy("web", minReplicasWarm=2, selector=selecting("web")))
    assert planner.follower.look()
    wrong = {"matchExpressions": [{"key": "app", "operator": "In"}]}
    api.patch(f"{lists}/web", {"spec": {"selector": {"matchLabels": None, **wrong}}})
    assert not planner.follower.look()
    says, reason, message = condition(api, f"{lists}/web", "Accepted")
    assert (says, reason) == ("False", "Rejected")
    assert "values for In and NotIn alone" in message
    assert condition(api, f"{lists}/web", "Planned") == ("False", "CannotBeRead", "the plan before stays")
    assert len(planner.made) == 1
    api.create(EVERYWHERE, policy("other", "ClusterGpuPolicy", minReplicasWarm=1))
    assert planner.follower.look(), "it holds up nobody else"


def test_plan_that_can_not_be_made_is_tried_again_and_the_status_says_why(
    api: Api, lists: str, planner: Planner
) -> None:
    planner.refusal = "no history yet"
    api.create(lists, policy("all", optOut=True))
    assert not planner.follower.look()
    assert condition(api, f"{lists}/all", "Planned") == (
        "False", "NotPlanned", "no plan follows it yet, and the plan before stays: no history yet",
    )  # fmt: skip
    planner.refusal, planner.now = "", 400.0
    assert planner.follower.look()


def test_cluster_at_rest_is_written_nothing(api: Api, lists: str, planner: Planner, audit: AuditLog) -> None:
    api.create(lists, policy("all", optOut=True))
    begin = audit.size()
    planner.follower.look()
    assert [one for one in audit.writes(begin) if one.resource == "gpupolicies/status"]
    begin = audit.size()
    for _ in range(3):
        planner.now += 301.0
        assert not planner.follower.look()
    # Namespaces of other tests are being deleted meanwhile.
    own = [one for one in audit.writes(begin) if not one.user.startswith("system:serviceaccount:kube-system:")]
    assert not [one for one in own if "gpupolicies" in one.resource]


def test_tenant_writes_no_policy_of_the_cluster_and_no_status(api: Api, lists: str, namespace: str) -> None:
    api.create(
        f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings",
        {"metadata": {"name": "editor"},
         "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": namespace}],
         "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"}},
    )  # fmt: skip
    token = api.token(namespace, "default")

    def is_made() -> bool:
        try:
            return bool(api.ask("POST", lists, policy("own", optOut=True), token=token))
        except HTTPError as refused:
            return refused.code == 409

    until(is_made, "the tenant may write its policies", 60.0)
    for method, path, body in (
        ("POST", EVERYWHERE, policy("base", "ClusterGpuPolicy", optOut=True)),
        ("PATCH", f"{lists}/own/status", {"status": {"workloads": 7}}),
    ):
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        with pytest.raises(HTTPError, match="403"):
            api.ask(method, path, body, content_type=kind, token=token)


def test_process_makes_the_plan_anew_and_the_plan_says_which_policy_decided(
    api: Api, lists: str, writer_kubeconfig: Path, caller: Program, tmp_path: Path
) -> None:
    store_fleet(tmp_path, 60)
    settings = {"enforcer.cluster": "kubernetes", "enforcer.kubeconfig": writer_kubeconfig, "cluster.name": CLUSTER}
    flags = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]

    def newest() -> dict[str, Any]:
        said = caller(tmp_path, *flags, "run", "planner", "--yes", "--once")
        assert said.status == 0, said.err
        found: dict[str, Any] = caller(tmp_path, *flags, "plan", "show", "--format", "json").document
        return found

    api.create(EVERYWHERE, policy("base", "ClusterGpuPolicy", minReplicasWarm=1))
    first = newest()
    touched = sorted({name for item in first["recommendations"] for name in item["workloads"]})
    assert touched
    assert {(one["field"], one["value"], one["policy"]) for one in first["policies"]} == {
        ("minReplicasWarm", "1", "ClusterGpuPolicy base")
    }
    namespace = touched[0].split("/")[0]
    own = f"/apis/gputide.io/v1alpha1/namespaces/{namespace}/gpupolicies"
    api.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
    api.create(own, policy("alone", optOut=True))
    try:
        second = newest()
        assert status(api, f"{own}/alone")["plan"] == f"plan-{second['plan_id']}"
        assert api.has(f"/apis/gputide.io/v1alpha1/gpuplans/plan-{second['plan_id']}")
        assert not [name for item in second["recommendations"] for name in item["workloads"] if name in touched[:1]]
        (refused,) = [one for one in second["refused"] if one["workload"] == touched[0]]
        assert refused["detail"] == f"GpuPolicy {namespace}/alone says so"
        (item, *_) = second["recommendations"]
        explained = caller(tmp_path, *flags, "plan", "explain", item["id"]).out
        assert f"ClusterGpuPolicy base decides minReplicasWarm=1 for {item['workloads'][0]}." in explained
    finally:
        api.delete(f"{own}/alone")
