"""Reads a cluster through the Kubernetes API: pages, watches and single objects, decoded as plain JSON.

Objects stay plain: models of 50,000 pods would cost more than all that is kept of them, and a client that has such
models takes a ninth of what a node's exporter may hold. Called by the front door, which hands it to
`exporter.allocation.collector` or `exporter.node_pods`.

Sources: kubernetes/website:content/en/docs/reference/using-api/api-concepts.md,
kubernetes/apimachinery:pkg/apis/meta/v1 (Status, ListMeta, WatchEvent),
kubernetes/client-go:tools/cache/reflector.go (which version a list asks for, how long a watch lasts),
kubernetes/apiserver:pkg/storage/cacher (a list of what is in memory has no pages).
"""

from __future__ import annotations

import http.client
import json
import random
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from exporter.cluster_reader import (
    API_RESOURCES,
    ApiResource,
    EventKind,
    Expired,
    Manifest,
    Page,
    Watched,
    WatchEvent,
)
from fleet.errors import Misconfigured, Unavailable
from wire.http_answer import Answer, TooLarge, lines_of, read_body, unavailable
from wire.http_client import HttpClient, Request
from wire.kubernetes.access import find_access
from wire.kubernetes.answers import said
from wire.kubernetes.page import open_page

PAGE_BYTES_MAX = 64 * 1024 * 1024
"""Most bytes of one page; a larger one is asked for again with fewer objects."""
NODE_PAGE_BYTES_MAX = 16 * 1024 * 1024
"""The same where one node is read: its exporter is small, and its tenants may write pods of a megabyte each."""
EVENT_BYTES_MAX = 16 * 1024 * 1024
"""Most bytes of one event; the API server takes no object of a tenth of this."""
OBJECT_BYTES_MAX = 4 * 1024 * 1024
"""Most bytes of one object that is asked for by its name."""
WATCH_SECONDS = 240
_WATCH_SHARE_MIN = 0.75
"""Watches that began in one moment, as after the server was away, must not end and begin anew in one moment too."""
RULES_FILE = "docs/rbac-reader.yaml"

_ANSWER_SECONDS = 60.0
_OVERTIME_SECONDS = 30.0
_JSON = "application/json"
_METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_REFUSAL_BYTES_MAX = 1024 * 1024
_OF_A_NODE = (Watched.PODS, Watched.RESOURCE_SLICES)
# An owner's name is what a tenant wrote: only what can be a name becomes part of a path.
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.:]{0,251}[a-z0-9])?", re.ASCII)


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
        access = find_access(kubeconfig, context, setting=setting)
        self._connection = HttpClient(access, "gputide-exporter")
        self._selectors = {} if node is None else dict.fromkeys(_OF_A_NODE, f"spec.nodeName={node}")
        self._watch_seconds = watch_seconds
        self._page_bytes_max = page_bytes_max or (PAGE_BYTES_MAX if node is None else NODE_PAGE_BYTES_MAX)
        self._random = random.Random()
        self._server = self._connection.server
        self._versions: dict[Watched, str] = {}
        self._not_from_memory: set[Watched] = set()

    def version_of(self, watched: Watched) -> str | None:
        """See `ClusterReader`."""
        wanted = API_RESOURCES[watched]
        if not wanted.is_optional:
            return wanted.versions[0]
        for version in wanted.versions:
            answer = self._answer(
                watched,
                "get",
                Request(path=_prefix(wanted, version), query={}, accept=_JSON, seconds_max=_ANSWER_SECONDS),
            )
            if answer is None:
                continue
            listed = answer.get("resources")
            names = (
                {entry.get("name") for entry in listed if isinstance(entry, dict)} if isinstance(listed, list) else ()
            )
            if wanted.plural in names:
                self._versions[watched] = version
                return version
        return None

    def page(self, watched: Watched, *, limit: int, token: str | None) -> Page:
        """See `ClusterReader`."""
        wanted = API_RESOURCES[watched]
        query = {"limit": str(limit), **self._selected(watched)}
        if token is not None:
            query["continue"] = token
        elif watched in self._selectors and watched not in self._not_from_memory:
            # From the server's memory, where a node's pods are indexed: else all pods of the cluster are read from its
            # store for each node that asks.
            query["resourceVersion"] = "0"
        accept = _METADATA_LIST if wanted.metadata_only else _JSON
        asked = Request(path=self._path(watched), query=query, accept=accept, seconds_max=_ANSWER_SECONDS)
        try:
            body = self._body(watched, "list", asked)
        except TooLarge:
            # What it has in memory the server lists as a whole, whatever the limit is: the store alone gives pages.
            self._not_from_memory.add(watched)
            raise
        if body is None:
            raise Expired(f"cannot list {watched.value}: {self._server} does not serve it any more")
        try:
            metadata, manifests = open_page(body)
        except (ValueError, RecursionError) as exc:
            raise Unavailable(f"cannot list {watched.value}: {self._server} answered with no list: {exc}") from exc
        if token is None:
            self._not_from_memory.discard(watched)
        told = metadata.get("continue")
        return Page(
            manifests=_Checked(manifests, watched),
            version=str(metadata.get("resourceVersion", "")),
            next_token=told if isinstance(told, str) and told else None,
        )

    def watch(self, watched: Watched, *, version: str) -> Iterator[WatchEvent]:
        """See `ClusterReader`."""
        seconds = round(self._watch_seconds * self._random.uniform(_WATCH_SHARE_MIN, 1.0))
        asked = Request(
            path=self._path(watched),
            query={
                "watch": "1",
                "allowWatchBookmarks": "true",
                "resourceVersion": version,
                "timeoutSeconds": str(seconds),
                **self._selected(watched),
            },
            accept=_METADATA if API_RESOURCES[watched].metadata_only else _JSON,
            seconds_max=seconds + _OVERTIME_SECONDS,
            is_stream=True,
        )
        try:
            with self._connection.ask(asked) as answer:
                if answer.status != http.client.OK:
                    raise self._refusal(watched, "watch", answer.status, read_body(answer, _REFUSAL_BYTES_MAX), answer)
                for line in lines_of(answer, watched.value, EVENT_BYTES_MAX):
                    yield self._event(watched, line)
        except Expired:
            # What the server's memory holds may be as old: the next list is of its store.
            self._not_from_memory.add(watched)
            raise

    def one(self, watched: Watched, *, namespace: str, name: str) -> Manifest | None:
        """See `ObjectReader`."""
        if not _NAME.fullmatch(namespace) or not _NAME.fullmatch(name):
            return None
        wanted = API_RESOURCES[watched]
        path = f"{self._group(watched)}/namespaces/{quote(namespace)}/{wanted.plural}/{quote(name)}"
        accept = _METADATA if wanted.metadata_only else _JSON
        asked = Request(path=path, query={}, accept=accept, seconds_max=_ANSWER_SECONDS)
        return self._answer(watched, "get", asked, bytes_max=OBJECT_BYTES_MAX)

    def close(self) -> None:
        """See `ClusterReader`."""
        self._connection.close()

    def _selected(self, watched: Watched) -> dict[str, str]:
        selector = self._selectors.get(watched)
        return {} if selector is None else {"fieldSelector": selector}

    def _answer(
        self, watched: Watched, verb: str, asked: Request, *, bytes_max: int | None = None
    ) -> dict[str, Any] | None:
        """One whole answer, decoded; None where the server has nothing at this path."""
        body = self._body(watched, verb, asked, bytes_max=bytes_max)
        return None if body is None else _decoded(body, watched)

    def _body(self, watched: Watched, verb: str, asked: Request, *, bytes_max: int | None = None) -> bytearray | None:
        with self._connection.ask(asked) as answer:
            body = read_body(answer, bytes_max or self._page_bytes_max)
        if answer.status == http.client.NOT_FOUND:
            return None
        if answer.status != http.client.OK:
            raise self._refusal(watched, verb, answer.status, body, answer)
        return body

    def _event(self, watched: Watched, line: bytes | bytearray) -> WatchEvent:
        event = _decoded(line, watched)
        manifest, kind = event.get("object"), event.get("type")
        if not isinstance(manifest, dict):
            raise Unavailable(f"cannot watch {watched.value}: {self._server} sent an event without an object")
        if kind == "ERROR":
            code = manifest.get("code")
            raise self._refusal(watched, "watch", code if isinstance(code, int) else 500, manifest)
        metadata = manifest.get("metadata")
        version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
        if not isinstance(kind, str) or kind not in EventKind.__members__ or not isinstance(version, str):
            raise Unavailable(f"cannot watch {watched.value}: {self._server} sent {str(kind)[:64]!r}, no known event")
        return WatchEvent(kind=EventKind(kind), manifest=manifest, version=version)

    def _refusal(
        self, watched: Watched, verb: str, status: int, told: bytearray | Manifest, answer: Answer | None = None
    ) -> Exception:
        words = said(told)
        what = f"cannot {verb} {watched.value} at {self._server}"
        match status:
            case http.client.NOT_FOUND:
                return Expired(f"{what}: it is not served any more")
            case http.client.GONE:
                return Expired(f"{what}: what was read is too old to go on from: {words}")
            case http.client.FORBIDDEN:
                wanted = API_RESOURCES[watched]
                verbs = '["get"]' if verb == "get" else '["list", "watch"]'
                rule = f'{{apiGroups: ["{wanted.group}"], resources: ["{wanted.plural}"], verbs: {verbs}}}'
                return Misconfigured(f"{what}: verb {verb} is forbidden ({words}); add rule {rule} of {RULES_FILE}")
            case http.client.UNAUTHORIZED:
                return Misconfigured(f"{what}: the server does not know who asks ({words}); check token and kubeconfig")
        message = f"{what}: status {status}: {words}"
        return unavailable(message, None if answer is None else answer.retry_after)

    def _group(self, watched: Watched) -> str:
        return _prefix(API_RESOURCES[watched], self._versions.get(watched) or API_RESOURCES[watched].versions[0])

    def _path(self, watched: Watched) -> str:
        return f"{self._group(watched)}/{API_RESOURCES[watched].plural}"


class _Checked:
    """Objects of a page; what turns out to be no JSON on the way is what the server said, and ends it."""

    def __init__(self, manifests: Iterable[Manifest], watched: Watched) -> None:
        self._manifests = manifests
        self._watched = watched

    def __iter__(self) -> Iterator[Manifest]:
        try:
            yield from self._manifests
        except (ValueError, RecursionError) as exc:
            raise Unavailable(f"cannot list {self._watched.value}: a page is no JSON: {exc}") from exc


def _prefix(wanted: ApiResource, version: str) -> str:
    return f"/apis/{wanted.group}/{version}" if wanted.group else f"/api/{version}"


def _decoded(body: bytes | bytearray, watched: Watched) -> dict[str, Any]:
    try:
        decoded = json.loads(body)
    except (ValueError, RecursionError) as exc:
        shown = bytes(body[:64])
        raise Unavailable(f"cannot read what was answered of {watched.value}: not JSON: {shown!r}") from exc
    if not isinstance(decoded, dict):
        raise Unavailable(f"cannot read what was answered of {watched.value}: no object")
    return decoded
