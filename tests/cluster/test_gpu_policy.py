"""GpuPolicy on the real API server: what it takes, who may write it, and who follows it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
import yaml

from enforcer.kubernetes.cluster import ClusterPlace, KubernetesCluster
from enforcer.snapshot import take_snapshot
from exporter.allocation.collector import AllocationCollector
from exporter.cluster.kubernetes import KubernetesReader
from fleet.inventory import ISOLATION_LABEL, LATENCY_CRITICAL_LABEL
from fleet.schema import GRANT_LABELS
from tests.cluster.api import Api
from tests.cluster.test_scheduler_layer import hami, hami_node, until, values
from tests.control_plane import ControlPlane

pytestmark = pytest.mark.cluster

KIND = Path(__file__).resolve().parents[2] / "docs" / "gpu-policy.yaml"
SPEC = {"selector": {"matchLabels": {"app": "web"}}, "latencyCritical": True, "isolation": "hard"}


@pytest.fixture
def policies(api: Api, namespace: str) -> str:
    """Path of a namespace's policies, served."""
    for manifest in yaml.safe_load_all(KIND.read_text(encoding="utf-8")):
        api.apply(manifest)
    path = f"/apis/gputide.io/v1alpha1/namespaces/{namespace}/gpupolicies"
    until(lambda: api.status("GET", path) == 200)
    return path


def policy(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "gputide.io/v1alpha1", "kind": "GpuPolicy", "metadata": {"name": name}, "spec": spec}


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"selector": {}},
        {"optOut": "yes"},
        {"minReplicasWarm": -1},
        {"isolation": "harder"},
        {"optOut": True, "selector": {"matchExpressions": [{"key": "app", "operator": "Gt", "values": ["1"]}]}},
    ],
)
def test_policy_that_asks_for_nothing_or_cannot_be_read_is_not_taken(
    api: Api, policies: str, spec: dict[str, Any]
) -> None:
    with pytest.raises(HTTPError, match="422"):
        api.create(policies, policy("bad", spec))


def test_exporter_and_enforcer_follow_a_policy_and_the_pods_own_label_wins(
    api: Api, policies: str, namespace: str, reader: Callable[..., KubernetesReader],
    control_plane: ControlPlane, writer_kubeconfig: Path,
) -> None:  # fmt: skip
    api.create(policies, policy("web", SPEC))
    hami_node(api, "node-policy")
    own = {"app": "web", ISOLATION_LABEL: "soft"}
    api.pod(namespace, "p", nodeName="node-policy", annotations=hami(8000, node="node-policy"), labels=own)
    running = AllocationCollector(reader(), cluster="c1")
    running.start()

    def labels() -> dict[str, str]:
        found = [row for row in values(running.snapshot(), "gputide_slice_info") if row[1] == namespace]
        told: dict[str, str] = json.loads(found[0][GRANT_LABELS.index("labels")]) if found else {}
        return told

    try:
        until(lambda: labels().get(LATENCY_CRITICAL_LABEL) == "true")
        assert labels()[ISOLATION_LABEL] == "soft"
        api.delete(f"{policies}/web")
        until(lambda: LATENCY_CRITICAL_LABEL not in labels())
    finally:
        running.stop()
    api.create(policies, policy("web", SPEC))
    cluster = KubernetesCluster(ClusterPlace(kubeconfig=writer_kubeconfig))
    try:
        (pod,) = cluster.list_objects("Pod", namespace)
        wishes = take_snapshot(cluster).wishes
        assert (wishes.of(LATENCY_CRITICAL_LABEL, pod), wishes.of(ISOLATION_LABEL, pod)) == ("true", "soft")
    finally:
        cluster.close()


def test_who_may_edit_a_namespace_may_write_its_policies(api: Api, policies: str, namespace: str) -> None:
    api.create(
        f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings",
        {"metadata": {"name": "ann"}, "subjects": [{"kind": "User", "name": "ann"}],
         "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"}},
    )  # fmt: skip

    def may(verb: str, where: str) -> bool:
        wanted = {"namespace": where, "verb": verb, "group": "gputide.io", "resource": "gpupolicies"}
        review = api.create(
            "/apis/authorization.k8s.io/v1/subjectaccessreviews",
            {"spec": {"user": "ann", "resourceAttributes": wanted}},
        )
        return bool(review["status"]["allowed"])

    until(lambda: may("create", namespace))
    assert policies
    assert not may("create", "default")
