"""Objects of the Kubernetes API, pages of them, kubeconfigs, configurations of plugins, reviews of new pods."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from enforcer.admission import SEATING_ANNOTATION, SEATS_ANNOTATION, PlannedSeat, seating_of, seats_text
from enforcer.backends.hami_dialect import nvidia_section
from enforcer.backends.mig import with_layouts
from enforcer.kubernetes.admission_review import PodAdmission
from exporter.allocation.manifest import Shared
from exporter.allocation.objects import key_of, record_of, version_of
from exporter.attribution.pods import pod_facts
from exporter.cluster.reader import Watched
from tests.enforcer.plugin_cluster import StandingCluster
from tests.exporter.allocation_manifests import grant, node, owned, pod
from tests.fuzz.parsers import Parser, text_of
from wire.kubernetes.access import find_access
from wire.kubernetes.page import open_page
from wire.kubernetes.refusals import status_of

_CARD = "GPU-00000000-0000-4000-8000-000000000000"
_CLAIM = {
    "metadata": {"namespace": "team", "name": "claim", "uid": "u1"},
    "status": {
        "allocation": {"devices": {"results": [
            {"driver": "gpu.nvidia.com", "pool": "n1", "device": "gpu-0", "request": "gpu", "shareID": "s1",
             "consumedCapacity": {"memory": "8Gi", "cores": "50"}, "adminAccess": False}]}},
        "reservedFor": [{"resource": "pods", "name": "web-0", "uid": "u2"}],
    },
}  # fmt: skip
_SLICE = {"metadata": {"name": "n1-gpu"}, "spec": {
    "nodeName": "n1", "driver": "gpu.nvidia.com", "pool": {"name": "n1", "generation": 1, "resourceSliceCount": 1},
    "devices": [
        {"name": "gpu-0", "attributes": {"uuid": {"string": _CARD}, "productName": {"string": "NVIDIA A10"},
                                         "type": {"string": "gpu"}},
         "capacity": {"memory": {"value": "24Gi"}, "cores": {"value": "100"}}},
        {"name": "gpu-1", "basic": {"attributes": {"uuid": {"string": _CARD}}, "capacity": {"memory": "24Gi"}}},
    ]}}  # fmt: skip
_AMOUNTS = {"nvidia.com/gpu": "8", "requests.nvidia.com/gpu": "8", "cpu": "64", "volcano.sh/vgpu-number": "3"}
_SPECIMENS: dict[Watched, tuple[dict[str, Any], ...]] = {
    Watched.NODES: (node(cards=2, labels={"nvidia.com/gpu.product": "A10", "nvidia.com/gpu.memory": "23028"}),),
    Watched.PODS: (
        pod(granted=grant(0), owner=("ReplicaSet", "web-5d4f", "u9"),
            claims=[{"name": "g", "resourceClaimName": "claim"}],
            annotations={"gputide.io/latency-critical": "true", "nvidia.com/use-gpuuuid": _CARD}),
        pod(on=None, condition={"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no"}),
    ),
    Watched.REPLICA_SETS: (owned("web-5d4f", "u9", ("Deployment", "web", "u8")),),
    Watched.RESOURCE_QUOTAS: ({"metadata": {"namespace": "team", "name": "q"}, "spec": {"hard": _AMOUNTS},
                               "status": {"hard": _AMOUNTS, "used": _AMOUNTS}},),
    Watched.VOLCANO_QUEUES: ({"metadata": {"name": "q"}, "spec": {"capability": _AMOUNTS, "deserved": _AMOUNTS,
                              "guarantee": {"resource": _AMOUNTS}}, "status": {"allocated": _AMOUNTS}},),
    Watched.CLUSTER_QUEUES: ({"metadata": {"name": "q"}, "spec": {"resourceGroups": [
        {"coveredResources": ["nvidia.com/gpu"], "flavors": [{"name": "a10", "resources": [
            {"name": "nvidia.com/gpu", "nominalQuota": "8", "borrowingLimit": "2"}]}]}]},
        "status": {"flavorsUsage": [{"name": "a10", "resources": [{"name": "nvidia.com/gpu", "total": "3"}]}]}},),
    Watched.KAI_QUEUES: ({"metadata": {"name": "q"}, "spec": {"parentQueue": "root", "resources": {
        "gpu": {"quota": 4, "limit": -1, "overQuotaWeight": 1}}}, "status": {"allocated": {"nvidia.com/gpu": "2"}}},),
    Watched.POD_GROUPS: ({"metadata": {"namespace": "team", "name": "g", "creationTimestamp": "2026-01-12T08:30:00Z"},
                          "spec": {"queue": "q", "minMember": 2}, "status": {"phase": "Pending", "conditions": [
                              {"type": "Unschedulable", "status": "True", "reason": "NotEnoughResources"}]}},),
    Watched.WORKLOADS: ({"metadata": {"namespace": "team", "name": "w"}, "spec": {"queueName": "q"}, "status": {
        "conditions": [{"type": "QuotaReserved", "status": "False", "reason": "Pending", "message": "no",
                        "lastTransitionTime": "2026-01-12T08:30:00Z"}]}},),
    Watched.RESOURCE_CLAIMS: (_CLAIM,),
    Watched.RESOURCE_SLICES: (_SLICE,),
    Watched.POD_AUTOSCALERS: ({"metadata": {"namespace": "team", "name": "h"}, "spec": {
        "minReplicas": 1, "maxReplicas": 9, "scaleTargetRef": {"kind": "Deployment", "name": "web"}}},),
    Watched.SCALED_OBJECTS: ({"metadata": {"namespace": "team", "name": "h"}, "spec": {
        "minReplicaCount": 0, "maxReplicaCount": 9, "scaleTargetRef": {"name": "web"}}},),
    Watched.GPU_POLICIES: ({"metadata": {"namespace": "team", "name": "p"}, "spec": {
        "selector": {"matchLabels": {"app": "web"}, "matchExpressions": [
            {"key": "tier", "operator": "In", "values": ["a", "b"]}]},
        "optOut": False, "latencyCritical": True, "minReplicasWarm": 2, "isolation": "hard"}},),
    Watched.CLUSTER_POLICIES: ({"metadata": {"name": "base"}, "spec": {"optOut": False, "minReplicasWarm": 1}},),
}  # fmt: skip
_KUBECONFIG = {
    "current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
    "clusters": [{"name": "k", "cluster": {"server": "https://10.0.0.1:6443/x", "certificate-authority": "ca.crt",
                                           "tls-server-name": "api"}}],
    "users": [{"name": "u", "user": {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "aws",
                                              "args": ["eks"], "env": [{"name": "A", "value": "b"}]}}}],
}  # fmt: skip


def _object(data: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _record(watched: Watched) -> Parser:
    def read(data: bytes) -> object:
        manifest = _object(data)
        if manifest is None:
            return None
        found = record_of(watched, manifest, Shared(), frozenset({"example.com/gpu"}))
        facts = pod_facts(manifest, Shared()) if watched is Watched.PODS else None
        return key_of(manifest), version_of(manifest), found, facts

    seeds = tuple(json.dumps(specimen).encode() for specimen in _SPECIMENS[watched])
    return Parser(name=f"object-{watched.name.lower().replace('_', '-')}", seeds=seeds, read=read)


def _page(data: bytes) -> object:
    metadata, objects = open_page(bytearray(data))
    return metadata, [len(found) for found in objects]


def _review(data: bytes) -> object:
    review = _object(data)
    return None if review is None else PodAdmission(StandingCluster([_OWNER]), clock=lambda: 0.0).review(review)


@cache
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="gputide-fuzz-"))
    _kept.append(folder)
    return folder


_kept: list[Path] = []


def scratch_file(name: str) -> Path:
    """A file of this process, for readers that want a path."""
    return _folder() / name


def remove_scratch() -> None:
    """Remove what `scratch_file` named."""
    while _kept:
        shutil.rmtree(_kept.pop())
    _folder.cache_clear()


def of_file(read: Callable[[Path], object], name: str) -> Callable[[bytes], object]:
    """A reader of files as one of bytes."""

    def read_bytes(data: bytes) -> object:
        path = scratch_file(name)
        path.write_bytes(data)
        return read(path)

    return read_bytes


def _kubeconfig(path: Path) -> object:
    return find_access(path, None, setting="enforcer.kubeconfig", environ={}, service_account=Path("/nowhere"))


_CONFIG_KEY = ("ConfigMap", "kube-system", "hami-scheduler-device")


def _hami_config(data: bytes) -> object:
    config = {"data": {"device-config.yaml": text_of(data)}}
    return nvidia_section({_CONFIG_KEY: config}, _CONFIG_KEY)


_SEATS = {"web-0": PlannedSeat(node="n1", cards=(_CARD,))}
_POD = pod(on=None, annotations={SEATING_ANNOTATION: seating_of(_SEATS)})
_POD["metadata"]["ownerReferences"] = [{"kind": "StatefulSet", "name": "web", "controller": True}]
_OWNER: dict[str, Any] = {
    "kind": "StatefulSet",
    "metadata": {"namespace": "team", "name": "web", "annotations": {SEATS_ANNOTATION: seats_text(_SEATS)}},
}

CLUSTER: tuple[Parser, ...] = (
    *(_record(watched) for watched in _SPECIMENS),
    Parser(
        name="object-page",
        seeds=(json.dumps({"metadata": {"resourceVersion": "1"}, "items": [_CLAIM, {}]}).encode(),
               json.dumps({"items": [], "metadata": {"continue": "x"}}).encode()),
        read=_page,
        also=(ValueError, RecursionError),
    ),
    Parser(name="refusal-of-api", seeds=(b'{"kind": "Status", "message": "no", "code": 403}',),
           read=status_of),
    Parser(
        name="admission-review",
        seeds=(json.dumps({"apiVersion": "admission.k8s.io/v1", "request": {
            "uid": "7", "namespace": "team", "operation": "CREATE", "object": _POD}}).encode(),),
        read=_review,
        cost=2,
    ),
    Parser(
        name="kubeconfig",
        seeds=(json.dumps(_KUBECONFIG).encode(), yaml.safe_dump(_KUBECONFIG).encode()),
        read=of_file(_kubeconfig, "kubeconfig"),
        cost=20,
    ),
    Parser(name="hami-config", seeds=(b"nvidia:\n  resourceCountName: nvidia.com/gpu\n  deviceMemoryScaling: 2\n",),
           read=_hami_config, cost=10),
    Parser(name="mig-config", seeds=(b"version: v1\nmig-configs:\n  all-1g:\n  - devices: all\n",),
           read=lambda data: with_layouts(text_of(data), "ours", [{"devices": "all"}]), cost=10),
)  # fmt: skip
"""In the order of the rooms that read them."""
