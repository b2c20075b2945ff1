"""Workloads that tests let run on nodes that kwok plays."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from tests.cluster.api import Api, Manifest

READY_SECONDS_MAX = 60.0
OFFERED = {
    "nvidia.com/gpu": "80",
    "nvidia.com/gpumem": "200k",
    "nvidia.com/gpucores": "800",
    "cpu": "64",
    "memory": "512Gi",
    "pods": "110",
}

_TOLERATED = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
"""Taints that nodes have until kwok plays them; a cordon is none of them."""


def sharing_node(api: Api, name: str, **metadata: Any) -> None:
    """Make a node that offers cards by HAMi's resources to the plain scheduler."""
    annotations = {"kwok.x-k8s.io/node": "fake", **metadata.pop("annotations", {})}
    api.create("/api/v1/nodes", {"metadata": {"name": name, "annotations": annotations, **metadata}})
    api.patch(f"/api/v1/nodes/{name}/status", {"status": {"capacity": OFFERED, "allocatable": OFFERED}})


def deployment(
    api: Api,
    namespace: str,
    name: str,
    *,
    replicas: int = 1,
    container: str = "server",
    limits: dict[str, str] | None = None,
    spec: Manifest | None = None,
    pod_spec: Manifest | None = None,
    annotations: dict[str, str] | None = None,
    kind: str = "Deployment",
    pod_labels: Mapping[str, str] | None = None,
) -> Manifest:
    """Make a Deployment or StatefulSet of one container, whose pods go one at a time with none beside the others."""
    labels = {"app": name}
    only = {"name": container, "image": "registry/none:1", "resources": {"limits": limits or {}}}
    template = {
        "metadata": {"labels": {**labels, **(pod_labels or {})}, "annotations": annotations or {}},
        "spec": {
            "containers": [only],
            "tolerations": [{"key": key, "operator": "Exists"} for key in _TOLERATED],
            "terminationGracePeriodSeconds": 0,
            **(pod_spec or {}),
        },
    }
    way: Manifest = {"strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}}
    if kind == "StatefulSet":
        way = {"serviceName": name, "podManagementPolicy": "Parallel"}
    return api.create(
        f"/apis/apps/v1/namespaces/{namespace}/{kind.lower()}s",
        {
            "metadata": {"name": name},
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": labels},
                "template": template,
                **way,
                **(spec or {}),
            },
        },
    )


def pods(api: Api, namespace: str, app: str) -> list[Manifest]:
    """Pods of an app that nobody has asked to go, by name."""
    found = api.ask("GET", f"/api/v1/namespaces/{namespace}/pods?labelSelector=app%3D{app}")["items"]
    return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]


def is_ready(pod: Manifest) -> bool:
    """Say whether a pod's ready condition holds."""
    conditions = pod["status"].get("conditions", [])
    return any(told["type"] == "Ready" and told["status"] == "True" for told in conditions)


def until(holds: Callable[[], bool], what: str, seconds: float = READY_SECONDS_MAX) -> None:
    """Look until it holds."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"not in {seconds:.0f} s: {what}"
        time.sleep(0.05)


def is_settled(api: Api, namespace: str, app: str) -> bool:
    """Say whether a Deployment of this name, where there is one, has replaced every pod of an earlier template."""
    found = api.ask("GET", f"/apis/apps/v1/namespaces/{namespace}/deployments?fieldSelector=metadata.name%3D{app}")
    return all(map(is_rolled, found["items"]))


def is_rolled(owner: Manifest) -> bool:
    """Say whether a Deployment's controller has seen it and replaced every pod of an earlier template."""
    status = owner.get("status", {})
    is_seen = status.get("observedGeneration", 0) >= owner["metadata"]["generation"]
    return bool(is_seen and status.get("replicas", 0) == status.get("updatedReplicas", 0))


def until_ready(api: Api, namespace: str, app: str, count: int, seconds: float = READY_SECONDS_MAX) -> None:
    """Wait until so many pods of an app are ready, made from its latest template, and no other is there."""
    until(
        lambda: (
            is_settled(api, namespace, app) and [is_ready(pod) for pod in pods(api, namespace, app)] == [True] * count
        ),
        f"{count} ready pods of {namespace}/{app}",
        seconds,
    )
