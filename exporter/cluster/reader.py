"""The port through which a cluster's objects are read: what is watched, list pages and watch streams.

`exporter.cluster.watch` keeps a local state by it; `exporter.cluster.kubernetes` is the adapter for the real
API. What is read changes nothing: a reader may get, list and watch, no more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Protocol

from wire.kubernetes.page import Manifest, Page
from wire.kubernetes.read import WatchEvent
from wire.kubernetes.resource import ApiResource


class Watched(StrEnum):
    """What is read of a cluster; the value is the label `resource` of the exporter's own metrics."""

    NODES = "nodes"
    PODS = "pods"
    REPLICA_SETS = "replicasets"
    STATEFUL_SETS = "statefulsets"
    JOBS = "jobs"
    RESOURCE_QUOTAS = "resourcequotas"
    VOLCANO_QUEUES = "queues.scheduling.volcano.sh"
    POD_GROUPS = "podgroups.scheduling.volcano.sh"
    CLUSTER_QUEUES = "clusterqueues.kueue.x-k8s.io"
    LOCAL_QUEUES = "localqueues.kueue.x-k8s.io"
    WORKLOADS = "workloads.kueue.x-k8s.io"
    KAI_QUEUES = "queues.scheduling.run.ai"
    RESOURCE_CLAIMS = "resourceclaims.resource.k8s.io"
    RESOURCE_SLICES = "resourceslices.resource.k8s.io"
    TAINT_RULES = "devicetaintrules.resource.k8s.io"
    POD_AUTOSCALERS = "horizontalpodautoscalers.autoscaling"
    SCALED_OBJECTS = "scaledobjects.keda.sh"
    GPU_POLICIES = "gpupolicies.gputide.io"
    CLUSTER_POLICIES = "clustergpupolicies.gputide.io"


def _core(group: str, plural: str, *, metadata_only: bool = False) -> ApiResource:
    return ApiResource(group=group, versions=("v1",), plural=plural, metadata_only=metadata_only)


def _optional(group: str, plural: str, *versions: str) -> ApiResource:
    return ApiResource(group=group, versions=versions, plural=plural, is_optional=True)


API_RESOURCES: Mapping[Watched, ApiResource] = {
    Watched.NODES: _core("", "nodes"),
    Watched.PODS: _core("", "pods"),
    Watched.REPLICA_SETS: _core("apps", "replicasets", metadata_only=True),
    Watched.STATEFUL_SETS: _core("apps", "statefulsets", metadata_only=True),
    Watched.JOBS: _core("batch", "jobs", metadata_only=True),
    Watched.RESOURCE_QUOTAS: _core("", "resourcequotas"),
    Watched.VOLCANO_QUEUES: _optional("scheduling.volcano.sh", "queues", "v1beta1"),
    Watched.POD_GROUPS: _optional("scheduling.volcano.sh", "podgroups", "v1beta1"),
    Watched.CLUSTER_QUEUES: _optional("kueue.x-k8s.io", "clusterqueues", "v1beta2", "v1beta1"),
    Watched.LOCAL_QUEUES: _optional("kueue.x-k8s.io", "localqueues", "v1beta2", "v1beta1"),
    Watched.WORKLOADS: _optional("kueue.x-k8s.io", "workloads", "v1beta2", "v1beta1"),
    Watched.KAI_QUEUES: _optional("scheduling.run.ai", "queues", "v2"),
    Watched.RESOURCE_CLAIMS: _optional("resource.k8s.io", "resourceclaims", "v1", "v1beta2", "v1beta1"),
    Watched.RESOURCE_SLICES: _optional("resource.k8s.io", "resourceslices", "v1", "v1beta2", "v1beta1"),
    Watched.TAINT_RULES: _optional("resource.k8s.io", "devicetaintrules", "v1", "v1beta2", "v1alpha3"),
    Watched.POD_AUTOSCALERS: _optional("autoscaling", "horizontalpodautoscalers", "v2"),
    Watched.SCALED_OBJECTS: _optional("keda.sh", "scaledobjects", "v1alpha1"),
    Watched.GPU_POLICIES: _optional("gputide.io", "gpupolicies", "v1alpha1"),
    Watched.CLUSTER_POLICIES: _optional("gputide.io", "clustergpupolicies", "v1alpha1"),
}
"""In the order in which reading starts: nodes give cards their models before pods name them."""


class ClusterReader(Protocol):
    """Reads a cluster's objects.

    Contract:

    - All methods may be called from several threads at once.
    - No call blocks for ever: a server that says nothing ends as `Unavailable`.
    - Pages of one list show one version of the cluster; a watch from that version reports what happened after it.
    - A watch gives events in the order of their versions, each once.
    """

    def version_of(self, watched: Watched) -> str | None:
        """The version by which the server serves it now; None where it does not, or only in versions not understood.

        Raises:
            Unavailable: the server can't be reached.
            Misconfigured: the server lets nobody of this name in.
        """
        ...

    def page(self, watched: Watched, *, limit: int, token: str | None) -> Page:
        """One page of all objects of the cluster.

        Args:
            token: the former page's `next_token`; None for the first.

        Raises:
            Expired: the token is too old.
            TooLarge: the page has more bytes than are read at once.
            Unavailable: the server can't be reached, or is busy (`Busy` where it says for how long).
            Misconfigured: the server refuses; the message names resource, verb and the rule that is missing.
        """
        ...

    def watch(self, watched: Watched, *, version: str) -> Iterator[WatchEvent]:
        """Events after a version, until the server ends the stream, which is no error.

        Raises:
            Expired: the version is too old.
            Unavailable: the server can't be reached, is busy, or says something that is no event.
            Misconfigured: as `page`.
        """
        ...

    def close(self) -> None:
        """Gives back what the reader holds, and ends its watches; more than once does no harm."""
        ...


class ObjectReader(Protocol):
    """Reads single objects by their names, for callers that need a few of a kind that a cluster has many of.

    Contract: as that of `ClusterReader`, whose adapter may be the same.
    """

    def version_of(self, watched: Watched) -> str | None:
        """See `ClusterReader`."""
        ...

    def page(self, watched: Watched, *, limit: int, token: str | None) -> Page:
        """See `ClusterReader`."""
        ...

    def one(self, watched: Watched, *, namespace: str, name: str) -> Manifest | None:
        """The object of this name as it is now; None where there is none, or no object can have that name.

        Raises as `ClusterReader.page`.
        """
        ...
