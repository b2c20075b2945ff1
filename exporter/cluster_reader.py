"""The port through which a cluster's objects are read: what is watched, list pages and watch streams.

`exporter.cluster_reader_watch` keeps a local state by it; `exporter.cluster_kubernetes` is the adapter for the real
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
    POD_AUTOSCALERS = "horizontalpodautoscalers.autoscaling"
    SCALED_OBJECTS = "scaledobjects.keda.sh"
    GPU_POLICIES = "gpupolicies.gputide.io"


API_RESOURCES: Mapping[Watched, ApiResource] = {
    Watched.NODES: ApiResource(group="", versions=("v1",), plural="nodes"),
    Watched.PODS: ApiResource(group="", versions=("v1",), plural="pods"),
    Watched.REPLICA_SETS: ApiResource(group="apps", versions=("v1",), plural="replicasets", metadata_only=True),
    Watched.STATEFUL_SETS: ApiResource(group="apps", versions=("v1",), plural="statefulsets", metadata_only=True),
    Watched.JOBS: ApiResource(group="batch", versions=("v1",), plural="jobs", metadata_only=True),
    Watched.RESOURCE_QUOTAS: ApiResource(group="", versions=("v1",), plural="resourcequotas"),
    Watched.VOLCANO_QUEUES: ApiResource(
        group="scheduling.volcano.sh", versions=("v1beta1",), plural="queues", is_optional=True
    ),
    Watched.POD_GROUPS: ApiResource(
        group="scheduling.volcano.sh", versions=("v1beta1",), plural="podgroups", is_optional=True
    ),
    Watched.CLUSTER_QUEUES: ApiResource(
        group="kueue.x-k8s.io", versions=("v1beta2", "v1beta1"), plural="clusterqueues", is_optional=True
    ),
    Watched.LOCAL_QUEUES: ApiResource(
        group="kueue.x-k8s.io", versions=("v1beta2", "v1beta1"), plural="localqueues", is_optional=True
    ),
    Watched.WORKLOADS: ApiResource(
        group="kueue.x-k8s.io", versions=("v1beta2", "v1beta1"), plural="workloads", is_optional=True
    ),
    Watched.KAI_QUEUES: ApiResource(group="scheduling.run.ai", versions=("v2",), plural="queues", is_optional=True),
    Watched.RESOURCE_CLAIMS: ApiResource(
        group="resource.k8s.io", versions=("v1", "v1beta2", "v1beta1"), plural="resourceclaims", is_optional=True
    ),
    Watched.RESOURCE_SLICES: ApiResource(
        group="resource.k8s.io", versions=("v1", "v1beta2", "v1beta1"), plural="resourceslices", is_optional=True
    ),
    Watched.POD_AUTOSCALERS: ApiResource(
        group="autoscaling", versions=("v2",), plural="horizontalpodautoscalers", is_optional=True
    ),
    Watched.SCALED_OBJECTS: ApiResource(
        group="keda.sh", versions=("v1alpha1",), plural="scaledobjects", is_optional=True
    ),
    Watched.GPU_POLICIES: ApiResource(
        group="gputide.io", versions=("v1alpha1",), plural="gpupolicies", is_optional=True
    ),
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

        Raises:
            TooLarge: it has more bytes than are read at once.
            Unavailable: the server can't be reached, or is busy (`Busy` where it says for how long).
            Misconfigured: the server refuses; the message names resource, verb and the rule that is missing.
        """
        ...
