"""A cluster of NVIDIA's device plugin as manifests, for tests of backends whose seats are counted by node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from enforcer.admission import parse_seats
from enforcer.cluster import identity
from enforcer.manifest import Manifest
from fleet.decisions import Plan
from fleet.sentences import Sentence
from tests.enforcer.builders import NOW

MIB_OF_CARD = 24 * 1024
CONFIGS = ("ConfigMap", "gpu-operator", "device-plugin-config")


class StandingCluster:
    """Reads manifests (the port `ClusterReader`).

    Args:
        manifests: all objects.
    """

    def __init__(self, manifests: Iterable[Manifest]) -> None:
        self._objects = {identity(manifest): manifest for manifest in manifests}

    def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
        return self._objects.get((kind, namespace, name))

    def list_objects(self, kind: str, namespace: str | None = None) -> tuple[Manifest, ...]:
        keys = sorted(key for key in self._objects if key[0] == kind and namespace in (None, key[1]))
        return tuple(self._objects[key] for key in keys)

    def pods_on(self, node: str) -> tuple[Manifest, ...]:
        return tuple(pod for pod in self.list_objects("Pod") if pod["spec"].get("nodeName") == node)

    def now(self) -> datetime:
        return NOW

    def why_unseated(self, namespaces: Sequence[str]) -> Sentence | None:
        del namespaces
        return None

    def put(self, manifest: Manifest) -> None:
        self._objects[identity(manifest)] = manifest


def nodes_of_seats(text: str | None) -> list[str]:
    """Nodes of planned seats, in the order of their pods."""
    return [seat.node for _, seat in sorted(parse_seats(text or "").items())]


def a_node(
    name: str, cards: int = 4, *, labels: Mapping[str, str] | None = None, offers: Mapping[str, int] | None = None,
    mib: int = MIB_OF_CARD, product: str = "NVIDIA-A10",
) -> Manifest:  # fmt: skip
    told = {"nvidia.com/gpu.count": str(cards), "nvidia.com/gpu.memory": str(mib), "nvidia.com/gpu.product": product}
    given = {"nvidia.com/gpu": cards} if offers is None else offers
    return {
        "kind": "Node",
        "metadata": {"name": name, "resourceVersion": "1", "labels": {**told, **(labels or {})}},
        "status": {"allocatable": {resource: str(count) for resource, count in given.items()}},
    }


def an_owner(name: str, *, kind: str = "Deployment", limits: Mapping[str, str] | None = None, replicas: int = 2,
             template: Mapping[str, Any] | None = None, spec: Mapping[str, Any] | None = None,
             annotations: Mapping[str, str] | None = None) -> Manifest:  # fmt: skip
    wanted = {"nvidia.com/gpu": "1"} if limits is None else dict(limits)
    containers = [{"name": "server", "resources": {"limits": wanted}}, {"name": "sidecar"}]
    return {
        "kind": kind,
        "metadata": {
            "namespace": "team", "name": name, "resourceVersion": "7", "annotations": dict(annotations or {}),
        },
        "spec": {
            "replicas": replicas,
            "template": {"metadata": dict(template or {}), "spec": {"containers": containers, **(spec or {})}},
        },
    }  # fmt: skip


def a_pod(workload: str, number: int, node: str | None, *, kind: str = "Deployment",
          limits: Mapping[str, str] | None = None, annotations: Mapping[str, str] | None = None,
          labels: Mapping[str, str] | None = None, claims: Sequence[Mapping[str, str]] = ()) -> Manifest:  # fmt: skip
    wanted = {"nvidia.com/gpu": "1"} if limits is None else dict(limits)
    spec: dict[str, Any] = {"containers": [{"name": "server", "resources": {"limits": wanted}}, {"name": "sidecar"}]}
    if node is not None:
        spec["nodeName"] = node
    if claims:
        spec["resourceClaims"] = list(claims)
        spec["containers"][0]["resources"]["claims"] = [{"name": claim["name"]} for claim in claims]
    return {
        "kind": "Pod",
        "metadata": {
            "namespace": "team", "name": f"{workload}-{number}", "resourceVersion": "3",
            "annotations": dict(annotations or {}), "labels": dict(labels or {}),
            "ownerReferences": [{"kind": kind, "name": workload}],
        },
        "spec": spec,
        "status": {"phase": "Running", "containerStatuses": [{"ready": True}]},
    }  # fmt: skip


def a_config(key: tuple[str, str, str] = CONFIGS, data: Mapping[str, str] | None = None) -> Manifest:
    kind, namespace, name = key
    return {
        "kind": kind,
        "metadata": {"namespace": namespace, "name": name, "resourceVersion": "11"},
        "data": dict(data or {}),
    }


def standard_objects() -> list[Manifest]:
    """Three services of two pods each on the four cards of node-0 and two of node-1, a notebook and a job there too."""
    homes = [("a", 0, "node-0"), ("a", 1, "node-0"), ("b", 0, "node-0"), ("b", 1, "node-0"), ("c", 0, "node-1"),
             ("c", 1, "node-1")]  # fmt: skip
    return [
        a_node("node-0"),
        a_node("node-1"),
        *(an_owner(name) for name in "abc"),
        an_owner("book", kind="Notebook"),
        an_owner("train", kind="Job"),
        *(a_pod(name, number, node) for name, number, node in homes),
        a_pod("book", 0, "node-1", kind="Notebook"),
        a_pod("train", 0, "node-1", kind="Job"),
        a_config(),
    ]


def for_backend(plan: Plan, backend: str) -> Plan:
    return replace(plan, backend=backend)
