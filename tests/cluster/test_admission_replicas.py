"""Two replicas of the admission, with the rights of the page: what one has given the other does not give again."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from enforcer.admission import (
    SEAT_ANNOTATION,
    SEATING_ANNOTATION,
    SEATS_ANNOTATION,
    PlannedSeat,
    seating_of,
    seats_text,
)
from enforcer.kubernetes.admission_review import PodAdmission
from enforcer.kubernetes.cluster import ClusterPlace, KubernetesCluster
from enforcer.kubernetes.seat_claims import GIVEN_ANNOTATION, SEATS_NAMESPACE, lease_of, note_of
from fleet.errors import Misconfigured
from fleet.inventory import WorkloadId
from tests.cluster.api import Api, Manifest
from tests.cluster.workloads import deployment
from tests.control_plane import ControlPlane

pytestmark = pytest.mark.cluster

PAGE = Path(__file__).resolve().parents[2] / "docs" / "admission.yaml"
RIGHTS = ("Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
SEATS = 6


@pytest.fixture
def replicas(control_plane: ControlPlane, api: Api) -> Iterator[list[PodAdmission]]:
    """Return two admissions that know nothing of each other but what the cluster tells."""
    api.create("/api/v1/namespaces", {"metadata": {"name": "gputide"}})
    for manifest in yaml.safe_load_all(PAGE.read_text(encoding="utf-8")):
        if manifest["kind"] in RIGHTS:
            api.apply(manifest)
    kubeconfig = control_plane.kubeconfig_of_token("admission", api.token("gputide", "gputide-admission"))
    place = ClusterPlace(kubeconfig=kubeconfig, requests_per_second=500.0, requests_burst=500)
    clusters = [KubernetesCluster(place) for _ in range(2)]
    yield [PodAdmission(cluster, notes=cluster.seat_claims(SEATS_NAMESPACE)) for cluster in clusters]
    for cluster in clusters:
        cluster.close()


PLANNED = {f"web-{number}": PlannedSeat(node="far-away") for number in range(SEATS)}


@pytest.fixture
def owner(api: Api, namespace: str) -> None:
    """Make the Deployment that the seats stand on; it wants no pods of its own."""
    deployment(api, namespace, "web", replicas=0)
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments/web"
    api.patch(path, {"metadata": {"annotations": {SEATS_ANNOTATION: seats_text(PLANNED)}}, "spec": {"paused": True}})


def a_review(namespace: str, name: str) -> Manifest:
    metadata = {
        "generateName": f"{name}-",
        "annotations": {SEATING_ANNOTATION: seating_of(PLANNED)},
        "labels": {"pod-template-hash": "5d4f"},
        "ownerReferences": [{"kind": "ReplicaSet", "name": "web-5d4f", "controller": True}],
    }
    container = {"name": "server", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    pod = {"kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}
    return {"request": {"uid": name, "namespace": namespace, "object": pod}}


def seat_of(answer: Manifest) -> str | None:
    (warning,) = answer["response"]["warnings"]
    assert "node far-away is gone" in warning
    patch = json.loads(base64.b64decode(answer["response"].get("patch", "W10=")))
    told = {entry["path"].rpartition("/")[2].replace("~1", "/"): entry.get("value") for entry in patch}
    found = told.get(SEAT_ANNOTATION)
    return None if found is None else str(found)


def test_reviews_at_the_same_moment_by_two_replicas_get_seats_of_their_own(
    replicas: list[PodAdmission], owner: None, namespace: str
) -> None:
    together = threading.Barrier(SEATS)

    def ask(number: int) -> str | None:
        together.wait(30)
        return seat_of(replicas[number % 2].review(a_review(namespace, f"web-5d4f-{number}")))

    with ThreadPoolExecutor(SEATS) as pool:
        given = list(pool.map(ask, range(SEATS)))
    assert sorted(map(str, given)) == [f"web-{number}" for number in range(SEATS)]


def test_seat_that_was_given_is_given_again_when_its_time_is_over(
    replicas: list[PodAdmission], owner: None, api: Api, namespace: str
) -> None:
    assert replicas[0] is not replicas[1]
    workload = WorkloadId(f"{namespace}/Deployment/web")
    seat_of(replicas[0].review(a_review(namespace, "web-5d4f-a")))
    path = f"/apis/coordination.k8s.io/v1/namespaces/{SEATS_NAMESPACE}/leases/{lease_of(workload)}"
    assert seat_of(replicas[1].review(a_review(namespace, "web-5d4f-b"))) == "web-1"
    over = {note_of(workload, seat): 1.0 for seat in ("web-0", "web-1")}
    api.patch(path, {"metadata": {"annotations": {GIVEN_ANNOTATION: json.dumps(over)}}})
    # It is over for the replica too that did not give it.
    assert seat_of(replicas[1].review(a_review(namespace, "web-5d4f-c"))) == "web-0"


def test_admission_may_not_touch_the_enforcers_own_lease(
    replicas: list[PodAdmission], control_plane: ControlPlane, api: Api
) -> None:
    assert replicas
    kubeconfig = control_plane.kubeconfig_of_token("admission", api.token("gputide", "gputide-admission"))
    cluster = KubernetesCluster(ClusterPlace(kubeconfig=kubeconfig))
    try:
        with pytest.raises(Misconfigured, match="lacks verb get on resource leases"):
            cluster.seat_claims("gputide").take(WorkloadId("team/Deployment/web"), "web-0", 10.0)
    finally:
        cluster.close()
