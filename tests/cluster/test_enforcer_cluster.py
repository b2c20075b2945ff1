"""The enforcer's ports on the real API server, with the rights of the documented writer and no others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from enforcer.cluster import FieldChange
from enforcer.kubernetes.cluster import ClusterPlace, KubernetesCluster
from enforcer.kubernetes.kinds import API_KINDS
from enforcer.manifest import field_of
from fleet.errors import Misconfigured, Refused, Unavailable
from tests.cluster.api import Api
from tests.cluster.audit import AuditLog, Write
from tests.cluster.workloads import deployment, pods, sharing_node, until, until_ready
from tests.contracts.cluster import NOTE, ClusterContract, LeaseContract, version_of
from tests.control_plane import ControlPlane, User

pytestmark = pytest.mark.cluster

WRITER = "system:serviceaccount:gputide:unconfined"
IMAGE = "spec.template.spec.containers[server].image"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/gputide/leases/enforcer"


def place(kubeconfig: Path, **more: float) -> ClusterPlace:
    return ClusterPlace(kubeconfig=kubeconfig, requests_per_second=500.0, requests_burst=500, **more)  # type: ignore[arg-type]


@pytest.fixture
def cluster(unconfined_kubeconfig: Path) -> Iterator[KubernetesCluster]:
    found = KubernetesCluster(place(unconfined_kubeconfig))
    yield found
    found.close()


@pytest.fixture
def reopened(unconfined_kubeconfig: Path) -> Iterator[Callable[[], KubernetesCluster]]:
    made: list[KubernetesCluster] = []

    def make() -> KubernetesCluster:
        made.append(KubernetesCluster(place(unconfined_kubeconfig)))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def team(api: Api, namespace: str) -> str:
    """Return a namespace in which Deployment a runs two pods."""
    sharing_node(api, "node-shared")
    deployment(api, namespace, "a", replicas=2)
    until_ready(api, namespace, "a", 2)
    until(lambda: is_settled(api, namespace), "Deployment a has settled")
    return namespace


def note_of(cluster: KubernetesCluster, team: str) -> str | None:
    found = cluster.get("Deployment", team, "a")
    assert found is not None
    return field_of(found, NOTE)


def is_settled(api: Api, namespace: str) -> bool:
    found = api.ask("GET", f"/apis/apps/v1/namespaces/{namespace}/deployments/a")
    return found["status"].get("readyReplicas") == 2 and "deployment.kubernetes.io/revision" in found["metadata"].get(
        "annotations", {}
    )


class TestKubernetesCluster(ClusterContract):
    @pytest.fixture
    def team(self, team: str) -> str:
        return team


class TestKubernetesLease(LeaseContract):
    @pytest.fixture
    def lease_seconds(self) -> float:
        return 2.0

    @pytest.fixture(autouse=True)
    def _fresh(self, api: Api, cluster: KubernetesCluster) -> None:
        assert cluster is not None
        if api.has(LEASE):
            api.delete(LEASE)


def test_template_change_rolls_through_a_new_replica_set(api: Api, cluster: KubernetesCluster, team: str) -> None:
    before = {pod["metadata"]["name"] for pod in pods(api, team, "a")}
    cluster.patch(
        "Deployment", team, "a", [FieldChange(field=IMAGE, value="registry/none:2")], version_of(cluster, team)
    )
    until_ready(api, team, "a", 2)
    until(lambda: not before & {pod["metadata"]["name"] for pod in pods(api, team, "a")}, "all pods are new")
    until_ready(api, team, "a", 2)


def test_status_that_a_controller_wrote_since_is_no_conflict(api: Api, cluster: KubernetesCluster, team: str) -> None:
    cluster.list_objects("Deployment", team)
    read = version_of(cluster, team)
    api.patch(f"/apis/apps/v1/namespaces/{team}/deployments/a/status", {"status": {"observedGeneration": 1000}})
    assert version_of(cluster, team) != read
    cluster.patch("Deployment", team, "a", [FieldChange(field=NOTE, value="ours")], read)
    assert note_of(cluster, team) == "ours"


def test_change_by_somebody_else_is_a_conflict_even_right_before_the_write(
    api: Api, cluster: KubernetesCluster, team: str
) -> None:
    read = version_of(cluster, team)
    theirs = {"metadata": {"annotations": {"gputide.io/note": "theirs"}}}
    api.patch(f"/apis/apps/v1/namespaces/{team}/deployments/a", theirs)
    # The writer still remembers what it read: only the server can tell.
    with pytest.raises(Refused, match=f"read resourceVersion={read}, now "):
        cluster.patch("Deployment", team, "a", [FieldChange(field=NOTE, value="ours")], read)
    found = api.ask("GET", f"/apis/apps/v1/namespaces/{team}/deployments/a")
    assert field_of(found, NOTE) == "theirs"


def test_dry_run_tells_what_would_stand_there_and_writes_nothing(
    api: Api, audit: AuditLog, cluster: KubernetesCluster, team: str
) -> None:
    version, began = version_of(cluster, team), audit.size()
    planned = cluster.dry_run("Deployment", team, "a", [FieldChange(field=NOTE, value="x")], version)
    assert field_of(planned, NOTE) == "x"
    assert version_of(cluster, team) == version
    assert [write.is_dry for write in audit.writes(began) if write.user == WRITER] == [True]
    with pytest.raises(Refused, match=r"spec\.replicas"):
        cluster.dry_run("Deployment", team, "a", [FieldChange(field="spec.replicas", value="-1")], version)
    assert api.ask("GET", f"/apis/apps/v1/namespaces/{team}/deployments/a")["spec"]["replicas"] == 2


def test_field_that_the_server_does_not_know_is_refused_and_not_dropped(cluster: KubernetesCluster, team: str) -> None:
    fields = [FieldChange(field="spec.replica", value="1")]
    with pytest.raises(Refused, match="replica"):
        cluster.patch("Deployment", team, "a", fields, version_of(cluster, team))


def test_fields_that_were_written_are_gputides(api: Api, cluster: KubernetesCluster, team: str) -> None:
    cluster.patch("Deployment", team, "a", [FieldChange(field=NOTE, value="x")], version_of(cluster, team))
    managed = api.ask("GET", f"/apis/apps/v1/namespaces/{team}/deployments/a")["metadata"]["managedFields"]
    ours = [entry["fieldsV1"] for entry in managed if entry["manager"] == "gputide"]
    assert ours == [{"f:metadata": {"f:annotations": {"f:gputide.io/note": {}}}}]


def test_eviction_that_a_budget_forbids_is_not_made_and_the_budget_is_named(
    api: Api, cluster: KubernetesCluster, team: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = f"/apis/policy/v1/namespaces/{team}/poddisruptionbudgets"
    selector = {"matchLabels": {"app": "a"}}
    api.create(path, {"metadata": {"name": "all-of-a"}, "spec": {"minAvailable": 2, "selector": selector}})
    until(lambda: "observedGeneration" in api.ask("GET", f"{path}/all-of-a").get("status", {}), "the budget is counted")
    name = pods(api, team, "a")[0]["metadata"]["name"]
    assert cluster.evict(team, name) is False
    said = capsys.readouterr()
    assert "all-of-a" in said.out + said.err
    assert name in [pod["metadata"]["name"] for pod in pods(api, team, "a")]
    api.create(path, {"metadata": {"name": "second"}, "spec": {"minAvailable": 0, "selector": selector}})
    until(lambda: "observedGeneration" in api.ask("GET", f"{path}/second").get("status", {}), "it is counted too")
    with pytest.raises(Refused, match="more than one PodDisruptionBudget"):
        cluster.evict(team, name)


def test_the_same_event_is_counted(api: Api, cluster: KubernetesCluster, team: str) -> None:
    for _ in range(3):
        cluster.record_event("Deployment", team, "a", "GputideApplied", "plan 7")
    cluster.record_event("Node", "", "node-shared", "GputideApplied", "plan 7")
    # As `kubectl describe` asks for them.
    uid = api.ask("GET", f"/apis/apps/v1/namespaces/{team}/deployments/a")["metadata"]["uid"]
    events = api.ask("GET", f"/api/v1/namespaces/{team}/events?fieldSelector=involvedObject.uid%3D{uid}")["items"]
    events = [event for event in events if event["reason"] == "GputideApplied"]
    assert [(event["involvedObject"]["name"], event["count"]) for event in events] == [("a", 3)]
    of_nodes = api.ask("GET", "/api/v1/namespaces/default/events?fieldSelector=reason%3DGputideApplied")["items"]
    assert "node-shared" in {event["involvedObject"]["name"] for event in of_nodes}


def test_every_kind_can_be_listed_and_one_that_is_not_served_is_empty(cluster: KubernetesCluster) -> None:
    lists = {kind: cluster.list_objects(kind) for kind in API_KINDS if kind not in ("ConfigMap", "Lease")}
    assert list(lists["Notebook"]) == []
    assert {item["kind"] for item in lists["Namespace"]} == {"Namespace"}
    assert cluster.get("Notebook", "team", "any") is None


def test_long_list_is_read_in_pages_and_holds_every_object_once(
    monkeypatch: pytest.MonkeyPatch, api: Api, cluster: KubernetesCluster, namespace: str
) -> None:
    monkeypatch.setattr("enforcer.kubernetes.reader.PAGE_OBJECTS", 3)
    for number in range(8):
        deployment(api, namespace, f"d{number}", replicas=0)
    began = cluster.requests
    found = cluster.list_objects("Deployment", namespace)
    assert [item["metadata"]["name"] for item in found] == [f"d{number}" for number in range(8)]
    assert cluster.requests - began == 3


def test_clock_is_the_servers(cluster: KubernetesCluster) -> None:
    cluster.get("Node", "", "none")
    assert abs((cluster.now() - datetime.now(UTC)).total_seconds()) < 2.0


def test_missing_right_is_named_by_verb_resource_and_namespace(control_plane: ControlPlane, team: str) -> None:
    stranger = KubernetesCluster(place(control_plane.kubeconfig(User.STRANGER)))
    with pytest.raises(
        Misconfigured, match=rf"verb list on resource deployments.apps in namespace {team}.*rbac-writer"
    ):
        stranger.list_objects("Deployment", team)
    with pytest.raises(Misconfigured, match=r"verb list on resource nodes in the whole cluster"):
        stranger.list_objects("Node")
    stranger.close()


@pytest.mark.parametrize(
    ("method", "path", "resource"),
    [
        ("GET", "/api/v1/namespaces/{}/secrets", "secrets"),
        ("GET", "/api/v1/namespaces/{}/configmaps", "configmaps"),
        ("DELETE", "/api/v1/namespaces/{}/pods/any", "pods"),
        ("POST", "/api/v1/namespaces/{}/pods", "pods"),
        ("POST", "/api/v1/namespaces/{}/pods/any/exec", "pods/exec"),
        ("DELETE", "/apis/apps/v1/namespaces/{}/deployments/a", "deployments"),
        ("POST", "/apis/apps/v1/namespaces/{}/deployments", "deployments"),
        ("PUT", "/apis/apps/v1/namespaces/{}/deployments/a", "deployments"),
        ("PATCH", "/apis/apps/v1/namespaces/{}/replicasets/any", "replicasets"),
        ("PATCH", "/apis/policy/v1/namespaces/{}/poddisruptionbudgets/any", "poddisruptionbudgets"),
        ("DELETE", "/api/v1/nodes/node-shared", "nodes"),
        ("PATCH", "/api/v1/nodes/node-shared/status", "nodes/status"),
        ("PATCH", "/api/v1/namespaces/kube-system/configmaps/hami-device-plugin", None),
        ("PATCH", "/api/v1/namespaces/kube-system/configmaps/coredns", "configmaps"),
        ("GET", "/api/v1/namespaces/kube-system/configmaps", "configmaps"),
        ("PATCH", "/apis/rbac.authorization.k8s.io/v1/clusterroles/gputide-writer", "clusterroles"),
        ("POST", "/api/v1/namespaces/gputide/serviceaccounts/gputide-writer/token", "serviceaccounts/token"),
        ("DELETE", "/apis/coordination.k8s.io/v1/namespaces/gputide/leases/enforcer", "leases"),
        ("GET", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/enforcer", "leases"),
    ],
)
def test_writer_may_do_no_more_than_it_needs(
    control_plane: ControlPlane, unconfined_kubeconfig: Path, team: str, method: str, path: str, resource: str | None
) -> None:
    answer = Api(control_plane.url, control_plane.ca, unconfined_kubeconfig).status(method, path.format(team))
    # What it may do of this list is the backends' configuration in kube-system: there is no such object.
    assert answer == (404 if resource is None else 403)


def test_writes_are_the_writers_and_touch_only_what_was_named(
    audit: AuditLog, cluster: KubernetesCluster, api: Api, team: str
) -> None:
    began = audit.size()
    cluster.patch("Deployment", team, "a", [FieldChange(field=NOTE, value="x")], version_of(cluster, team))
    name = pods(api, team, "a")[0]["metadata"]["name"]
    cluster.evict(team, name)
    ours = [write for write in audit.writes(began) if write.user == WRITER]
    assert [(write.verb, write.resource, write.name, write.status) for write in ours] == [
        ("patch", "deployments", "a", 200),
        ("create", "pods/eviction", name, 201),
    ]


def test_two_enforcers_on_one_machine_never_hold_the_lease_at_once(
    api: Api, cluster: KubernetesCluster, reopened: Callable[[], KubernetesCluster]
) -> None:
    if api.has(LEASE):
        api.delete(LEASE)
    clusters = [reopened() for _ in range(4)]
    taken: list[str] = []
    go = threading.Barrier(len(clusters))

    def run(one: KubernetesCluster, name: str) -> None:
        go.wait()
        if one.acquire(name, 30.0):
            taken.append(name)

    threads = [threading.Thread(target=run, args=(one, f"h{number}")) for number, one in enumerate(clusters)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) == 1
    assert api.ask("GET", LEASE)["spec"]["holderIdentity"] == taken[0]
    assert not cluster.acquire("late", 30.0)


def test_lease_of_a_holder_whose_clock_is_wrong_counts_by_our_own_time(
    api: Api, cluster: KubernetesCluster, reopened: Callable[[], KubernetesCluster]
) -> None:
    if api.has(LEASE):
        api.delete(LEASE)
    assert cluster.acquire("one", 2.0)
    api.patch(LEASE, {"spec": {"renewTime": "2001-01-01T00:00:00.000000Z"}})
    fresh = reopened()
    assert not fresh.acquire("two", 2.0), "it looks as old as 2001, and was seen to change just now"
    time.sleep(2.5)
    assert fresh.acquire("two", 2.0)
    assert not cluster.acquire("one", 2.0)


def test_cluster_that_is_away_is_unavailable_and_is_used_again_when_it_is_back(
    control_plane: ControlPlane, kill_api_server: Callable[[], None], cluster: KubernetesCluster, team: str
) -> None:
    version = version_of(cluster, team)
    kill_api_server()
    with pytest.raises(Unavailable):
        cluster.get("Deployment", team, "a")
    with pytest.raises(Unavailable):
        cluster.patch("Deployment", team, "a", [FieldChange(field=NOTE, value="x")], version)
    control_plane.start()
    cluster.patch("Deployment", team, "a", [FieldChange(field=NOTE, value="y")], version_of(cluster, team))
    assert note_of(cluster, team) == "y"


def test_writes_are_recognised_by_whom(audit: AuditLog, api: Api, team: str) -> None:
    began = audit.size()
    api.patch(f"/apis/apps/v1/namespaces/{team}/deployments/a", {"metadata": {"annotations": {"by": "hand"}}})
    by_hand = Write(
        user="admin", verb="patch", resource="deployments", namespace=team, name="a", status=200, is_dry=False
    )
    assert by_hand in audit.writes(began)
