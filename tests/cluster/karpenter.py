"""Karpenter as it is published, on the tests' control plane: its machines are nodes that kwok plays.

Called by the tests of released nodes and by `bench/bars/native-nodes`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from gputide.operate.engine_process import ProcessRecord, start_process
from gputide.operate.engines import free_port
from tests.cluster.api import Api, Manifest
from tests.cluster.workloads import until
from tests.control_plane import ENDS_WITH_US, ControlPlane
from tests.engines.go_peers import KarpenterPeer

CLAIMS, POOLS = "/apis/karpenter.sh/v1/nodeclaims", "/apis/karpenter.sh/v1/nodepools"
_CLASSES = "/apis/karpenter.kwok.sh/v1alpha1/kwoknodeclasses"
CARDS = 4
PRODUCT = "NVIDIA-A100-SXM4-40GB"
_TYPES = {"a100-4": (CARDS, 12.0), "a100-8": (2 * CARDS, 40.0), "cpu-8": (0, 0.4)}
"""Cards and price per hour of each instance type."""


def start_karpenter(peer: KarpenterPeer, plane: ControlPlane, folder: Path) -> ProcessRecord:
    """Let the server serve Karpenter's kinds by its own definitions, and run it."""
    api = Api(plane.url, plane.ca, plane.kubeconfig())
    for path in sorted(peer.definitions.iterdir()):
        api.apply(yaml.safe_load(path.read_text(encoding="utf-8")))
    until(
        lambda: {api.status("GET", one) for one in (POOLS, CLAIMS, _CLASSES)} == {200},
        "the server serves Karpenter's kinds",
    )
    types = folder / "types.json"
    types.write_text(json.dumps([_instance_type(name, *what) for name, what in _TYPES.items()]), encoding="utf-8")
    environ = {
        "KUBECONFIG": str(plane.kubeconfig()), "PATH": os.environ["PATH"], "HOME": str(folder), "GOGC": "400",
        "DISABLE_LEADER_ELECTION": "true", "METRICS_PORT": "0", "HEALTH_PROBE_PORT": str(free_port()),
        "INSTANCE_TYPES_FILE_PATH": str(types), "DISABLE_CLUSTER_STATE_OBSERVABILITY": "true",
        "SYSTEM_NAMESPACE": "kube-system",
    }  # fmt: skip
    command = [*ENDS_WITH_US, str(peer.program)]
    return start_process("karpenter", command, folder=folder, log=folder / "karpenter.log", environ=environ)


def node_pool(
    api: Api, name: str, *, types: tuple[str, ...] = ("a100-4",), disruption: Mapping[str, Any] | None = None
) -> None:
    """Make a pool of nodes that only pods with `pool: NAME` come to."""
    api.create(
        _CLASSES, {"apiVersion": "karpenter.kwok.sh/v1alpha1", "kind": "KWOKNodeClass", "metadata": {"name": "default"}}
    )
    labels = {
        "pool": name, "nvidia.com/gpu.count": str(CARDS), "nvidia.com/gpu.memory": "40960",
        "nvidia.com/gpu.product": PRODUCT,
    }  # fmt: skip
    requirements = [{"key": "node.kubernetes.io/instance-type", "operator": "In", "values": list(types)}]
    spec = {
        "template": {
            "metadata": {"labels": labels},
            "spec": {
                "requirements": requirements,
                "nodeClassRef": {"name": "default", "kind": "KWOKNodeClass", "group": "karpenter.kwok.sh"},
            },
        },
        "disruption": {
            "consolidationPolicy": "WhenEmpty", "consolidateAfter": "20s", "budgets": [{"nodes": "100%"}],
            **(disruption or {}),
        },
    }  # fmt: skip
    api.create(POOLS, {"apiVersion": "karpenter.sh/v1", "kind": "NodePool", "metadata": {"name": name}, "spec": spec})


def nodes_of(api: Api, pool: str) -> list[Manifest]:
    """Nodes of a pool, by name."""
    return list(api.ask("GET", f"/api/v1/nodes?labelSelector=pool%3D{pool}")["items"])


def ready_nodes(api: Api, pool: str) -> list[str]:
    """Names of those that Karpenter counts as initialised."""
    return [one["metadata"]["name"] for one in nodes_of(api, pool) if _INITIALISED in one["metadata"]["labels"]]


_INITIALISED = "karpenter.sh/initialized"


def _instance_type(name: str, cards: int, price: float) -> dict[str, Any]:
    resources = {"cpu": "64", "memory": "512Gi", "ephemeral-storage": "200Gi"}
    if cards:
        resources["nvidia.com/gpu"] = str(cards)
    where = {"karpenter.sh/capacity-type": "on-demand", "topology.kubernetes.io/zone": "test-zone-a"}
    return {
        "name": name,
        "offerings": [
            {
                "Price": price, "Available": True,
                "Requirements": [{"key": key, "operator": "In", "values": [value]} for key, value in where.items()],
            }
        ],
        "architecture": "amd64",
        "operatingSystems": ["linux"],
        "resources": resources,
    }  # fmt: skip
