"""What a node's exporter asks a real API server: its own pods, who owns their owners, what their claims were given."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from exporter.attribution.attributor import WorkloadName, workload_of
from exporter.cluster.kubernetes import KubernetesReader
from exporter.cluster.reader import Watched
from exporter.node.objects import NodeLookups
from exporter.node.pods import NodePods
from fleet.errors import Misconfigured
from tests.cluster.api import Api
from tests.control_plane import ControlPlane, User

pytestmark = pytest.mark.cluster

RULES = Path(__file__).resolve().parents[2] / "docs" / "rbac-reader.yaml"
CARD = "GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448"
PATHS = {
    "Namespace": "/api/v1/namespaces",
    "ServiceAccount": "/api/v1/namespaces/gputide/serviceaccounts",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
}
LIMITS = {"resources": {"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": "1"}}}
Watching = Callable[..., NodePods]


def until(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.02)


@pytest.fixture
def kubeconfig_of_node(control_plane: ControlPlane, api: Api) -> Path:
    """Return a kubeconfig of the service account that the documented rules make for nodes."""
    for manifest in yaml.safe_load_all(RULES.read_text(encoding="utf-8")):
        api.create(PATHS[manifest["kind"]], manifest)
    return control_plane.kubeconfig_of_token("node", api.token("gputide", "gputide-node"))


@pytest.fixture
def watching(reader: Callable[..., KubernetesReader]) -> Iterator[Watching]:
    """Return a maker of watches of one node's pods."""
    made: list[NodePods] = []

    def make(kubeconfig: Path, node: str) -> NodePods:
        asking = reader(kubeconfig, node=node)
        made.append(NodePods(asking, lookups=NodeLookups(asking)))
        made[-1].start()
        return made[-1]

    yield make
    for one in made:
        one.stop()


def deploy(api: Api, namespace: str, node: str) -> None:
    """Run a Deployment of one pod, and a CronJob's Job of another, on a node."""
    api.node(node, cards=8)
    container = {"name": "main", "image": "registry/none:1", **LIMITS}
    spec: dict[str, Any] = {"nodeName": node, "containers": [container], "tolerations": [{"operator": "Exists"}]}
    labels = {"app": "web"}
    api.create(
        f"/apis/apps/v1/namespaces/{namespace}/deployments",
        {
            "metadata": {"name": "web"},
            "spec": {
                "replicas": 1, "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": spec},
            },
        },
    )  # fmt: skip
    template = {"spec": {**spec, "restartPolicy": "Never"}}
    cron = api.create(
        f"/apis/batch/v1/namespaces/{namespace}/cronjobs",
        {
            "metadata": {"name": "nightly"},
            "spec": {"schedule": "0 0 1 1 *", "suspend": True, "jobTemplate": {"spec": {"template": template}}},
        },
    )
    owner = {"apiVersion": "batch/v1", "kind": "CronJob", "name": "nightly", "uid": cron["metadata"]["uid"]}
    api.create(
        f"/apis/batch/v1/namespaces/{namespace}/jobs",
        {
            "metadata": {"name": "nightly-1", "ownerReferences": [{**owner, "controller": True}]},
            "spec": {"template": template},
        },
    )


def workloads(pods: NodePods) -> set[WorkloadName]:
    owners = pods.objects().owners
    # Without labels, whose hash would give a Deployment away.
    return {workload_of(one.record.pod, one.record.owner, {}, owners) for one in pods.facts() or ()}


def test_documented_rules_of_a_node_are_enough_for_owners(
    api: Api, namespace: str, kubeconfig_of_node: Path, watching: Watching
) -> None:
    deploy(api, namespace, "node-owners")
    pods = watching(kubeconfig_of_node, "node-owners")
    until(
        lambda: (
            workloads(pods)
            == {WorkloadName(kind="Deployment", name="web"), WorkloadName(kind="CronJob", name="nightly")}
        )
    )
    assert pods.objects().refused == frozenset()
    assert pods.objects().failures == 0
    assert pods.state().errors == ()
    other = watching(kubeconfig_of_node, "node-elsewhere")
    assert other.wait(30)
    assert other.facts() == ()


def test_rules_of_a_node_allow_no_more_than_is_asked(kubeconfig_of_node: Path, reader: Callable[..., Any]) -> None:
    reading = reader(kubeconfig_of_node, node="node-owners")
    for watched in (Watched.NODES, Watched.REPLICA_SETS, Watched.JOBS, Watched.RESOURCE_QUOTAS):
        with pytest.raises(Misconfigured, match="lacks verb list"):
            reading.page(watched, limit=1, token=None)
    with pytest.raises(Misconfigured, match="lacks verb watch"):
        next(iter(reading.watch(Watched.RESOURCE_SLICES, version="1")))


def test_owner_that_may_not_be_read_is_refused_with_the_rule(control_plane: ControlPlane, reader: Any) -> None:
    reading = reader(control_plane.kubeconfig(User.STRANGER))
    with pytest.raises(
        Misconfigured, match=r'get jobs.batch.*apiGroups: \["batch"\], resources: \["jobs"\], verbs: \["get"\]'
    ):
        reading.one(Watched.JOBS, namespace="default", name="any")


def test_only_metadata_of_an_owner_travel(api: Api, namespace: str, reader: Any) -> None:
    deploy(api, namespace, "node-metadata")
    found = reader().one(Watched.JOBS, namespace=namespace, name="nightly-1")
    assert found is not None
    assert found["kind"] == "PartialObjectMetadata"
    assert "spec" not in found
    assert reader().one(Watched.JOBS, namespace=namespace, name="gone") is None


def test_claim_that_the_scheduler_allocates_is_found_with_the_nodes_devices(
    api: Api, namespace: str, kubeconfig_of_node: Path, watching: Watching
) -> None:
    api.node("node-claims", cards=0)
    resources = "/apis/resource.k8s.io/v1"
    devices = [{"name": "gpu-0", "attributes": {"uuid": {"string": CARD}}}]
    pool = {"name": "node-claims", "generation": 1, "resourceSliceCount": 1}
    api.create(
        f"{resources}/resourceslices",
        {
            "metadata": {"name": "node-claims"},
            "spec": {"driver": "gpu.claims.example", "nodeName": "node-claims", "pool": pool, "devices": devices},
        },
    )
    selector = {"cel": {"expression": "device.driver == 'gpu.claims.example'"}}
    api.create(f"{resources}/deviceclasses", {"metadata": {"name": "claims"}, "spec": {"selectors": [selector]}})
    exactly = {"name": "card", "exactly": {"deviceClassName": "claims"}}
    api.create(
        f"{resources}/namespaces/{namespace}/resourceclaims",
        {"metadata": {"name": "claim"}, "spec": {"devices": {"requests": [exactly]}}},
    )
    pods = watching(kubeconfig_of_node, "node-claims")
    user = {"name": "main", "image": "i", "resources": {"claims": [{"name": "card"}]}}
    api.pod(
        namespace, "p", containers=[user], resourceClaims=[{"name": "card", "resourceClaimName": "claim"}]
    )  # fmt: skip
    until(lambda: len(pods.objects().claims) == 1 and len(pods.objects().published) == 1)
    (claim,), (published,), (facts,) = pods.objects().claims, pods.objects().published, pods.facts() or ()
    assert claim.reserved_for == (facts.record.uid,)
    assert [(one.pool, one.device) for one in claim.devices] == [(published.pool, published.device)]
    assert (published.uuid, pods.objects().refused) == (CARD, frozenset())


def test_service_account_token_that_is_replaced_goes_on_being_read(
    control_plane: ControlPlane, api: Api, kubeconfig_of_node: Path, reader: Any, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    document = yaml.safe_load(kubeconfig_of_node.read_text(encoding="utf-8"))
    document["users"][0]["user"] = {"tokenFile": "token"}
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(document), encoding="utf-8")
    token.write_text("no token of this cluster")
    reading = reader(tmp_path / "kubeconfig", node="node-token")
    with pytest.raises(Misconfigured, match="blanks"):
        reading.page(Watched.PODS, limit=1, token=None)
    token.write_text("wrong")
    with pytest.raises(Misconfigured, match="does not know who asks"):
        reading.page(Watched.PODS, limit=1, token=None)
    token.write_text(api.token("gputide", "gputide-node"))
    assert reading.page(Watched.PODS, limit=1, token=None).version
    assert control_plane.url in str(document)
