"""What the exporter reads of a cluster, by the Kubernetes API: which objects, and what of them a node needs.

Called by the command line, which hands it to `exporter.allocation.collector` or `exporter.node.pods`.

Sources: kubernetes/client-go:tools/cache/reflector.go (which version a list asks for),
kubernetes/apiserver:pkg/storage/cacher (a list of what is in memory has no pages).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from exporter.cluster.reader import API_RESOURCES, Watched
from fleet.errors import Refused
from wire.http_answer import TooLarge
from wire.kubernetes.access import find_access
from wire.kubernetes.page import Manifest, Page
from wire.kubernetes.read import PAGE_BYTES_MAX, WATCH_SECONDS, KubernetesApi, WatchEvent
from wire.kubernetes.refusals import Deed, Expired

NODE_PAGE_BYTES_MAX = 16 * 1024 * 1024
"""Most bytes of a page where one node is read: its exporter is small, and its tenants may write pods of a megabyte."""
RULES_FILE = "docs/rbac-reader.yaml"

_OF_A_NODE = (Watched.PODS, Watched.RESOURCE_SLICES)


class KubernetesReader:
    """A `ClusterReader` and `ObjectReader` of a real API server.

    Args:
        kubeconfig: path of a kubeconfig; None for the pod's own service account, else `$KUBECONFIG` or
            `~/.kube/config`.
        context: name of a context of it; None for the current one.
        node: pods and published devices of this node only are read; None for all. So the exporters of thousands of
            nodes cost the server little.
        watch_seconds: after this time, or up to a quarter less, the server ends a watch, and the next goes on where it
            stood.
        page_bytes_max: most bytes of one page; None for what fits a node or a cluster.
        setting: which setting names the kubeconfig, for messages.

    Raises:
        Misconfigured: no configuration, one that can't be read, or that needs what is not understood.
    """

    def __init__(
        self,
        *,
        kubeconfig: Path | None = None,
        context: str | None = None,
        node: str | None = None,
        watch_seconds: int = WATCH_SECONDS,
        page_bytes_max: int | None = None,
        setting: str = "exporter.kubeconfig",
    ) -> None:
        endpoint = find_access(kubeconfig, context, setting=setting)
        self._api = KubernetesApi(endpoint, "gputide-exporter", rules_file=RULES_FILE)
        self._selector = {} if node is None else {"fieldSelector": f"spec.nodeName={node}"}
        self._watch_seconds = watch_seconds
        self._page_bytes_max = page_bytes_max or (PAGE_BYTES_MAX if node is None else NODE_PAGE_BYTES_MAX)
        self._versions: dict[Watched, str] = {}
        self._not_from_memory: set[Watched] = set()

    def version_of(self, watched: Watched) -> str | None:
        """See `ClusterReader`."""
        found = self._api.version_of(API_RESOURCES[watched], is_fresh=True)
        if found is not None:
            self._versions[watched] = found
        return found

    def page(self, watched: Watched, *, limit: int, token: str | None) -> Page:
        """See `ClusterReader`."""
        query = self._selected(watched)
        if token is None and query and watched not in self._not_from_memory:
            # From the server's memory, where a node's pods are indexed: else all pods of the cluster are read from its
            # store for each node that asks.
            query["resourceVersion"] = "0"
        resource, version = API_RESOURCES[watched], self._version(watched)
        try:
            page = self._api.page(
                resource, version, limit=limit, token=token, query=query, bytes_max=self._page_bytes_max
            )
        except TooLarge:
            # What it has in memory the server lists as a whole, whatever the limit is: the store alone gives pages.
            self._not_from_memory.add(watched)
            raise
        if page is None:
            raise Expired(f"cannot list {watched.value}: {self._api.server} does not serve it any more")
        if token is None:
            self._not_from_memory.discard(watched)
        return page

    def watch(self, watched: Watched, *, version: str) -> Iterator[WatchEvent]:
        """See `ClusterReader`."""
        try:
            yield from self._api.watch(
                API_RESOURCES[watched],
                self._version(watched),
                since=version,
                query=self._selected(watched),
                seconds=self._watch_seconds,
            )
        except Expired:
            # What the server's memory holds may be as old: the next list is of its store.
            self._not_from_memory.add(watched)
            raise

    def one(self, watched: Watched, *, namespace: str, name: str) -> Manifest | None:
        """See `ObjectReader`."""
        wanted = API_RESOURCES[watched]
        try:
            path = wanted.path(self._version(watched), namespace, name)
        except Refused:
            # An owner's name is what a tenant wrote.
            return None
        deed = Deed(verb="get", resource=wanted.resource, namespace=namespace, name=name)
        return self._api.get(deed, path, metadata_only=wanted.metadata_only)

    def close(self) -> None:
        """See `ClusterReader`."""
        self._api.close()

    def _selected(self, watched: Watched) -> dict[str, str]:
        return dict(self._selector) if watched in _OF_A_NODE else {}

    def _version(self, watched: Watched) -> str:
        return self._versions.get(watched) or API_RESOURCES[watched].versions[0]
