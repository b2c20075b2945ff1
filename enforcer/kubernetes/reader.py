"""Reads the objects that the enforcer touches: one by its name, or all of a kind, page by page.

Fulfils `enforcer.cluster.ClusterReader`. What only the server keeps (which manager wrote which field) is left out: it
is half of every object, and no field that anybody may change. While a plan is carried out, lists that it reads again
and again come from what a watch keeps (`following`); objects asked for by name always come from the server.

The reader also remembers the content of what it read (`SeenContents`), because versions count up when a controller
reports a status, a node sends its heartbeat or a revision is numbered, and a write that depended on the bare version
would be refused for changes that nobody made. Where the content is as it was read, the version that the object has now
is as good as the one that was read; where it differs, somebody changed the object. The writer asks this.

Sources: kubernetes/website:content/en/docs/reference/using-api/api-concepts.md (chunks of one list show one version),
kubernetes/community:contributors/devel/sig-architecture/api-conventions.md (spec and status),
Project-HAMi/HAMi:pkg/util/types.go (handshake and lock on nodes),
kubernetes/kubernetes:pkg/controller/deployment/util (revision).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from enforcer.cluster import identity
from enforcer.kept_manifests import ListedManifests, as_text
from enforcer.kubernetes.custom_resources import GROUP, other_versions
from enforcer.kubernetes.followed import FOLLOWED_KINDS, FollowedKind
from enforcer.kubernetes.kinds import kind_named
from enforcer.manifest import Manifest
from fleet.errors import Unavailable
from wire.http_client import HttpClient
from wire.kubernetes.page import Page, pages_of
from wire.kubernetes.read import KubernetesApi
from wire.kubernetes.refusals import Deed, Expired
from wire.kubernetes.resource import ApiResource

PAGE_OBJECTS = 500
_Taken = TypeVar("_Taken")
_ATTEMPTS_MAX = 3
_REMEMBERED_MAX = 512
_MANY_AND_SHORT_LIVED = frozenset({"Pod", "ReplicaSet", "ResourceSlice"})
"""Of these only what is read by name is remembered."""


class KubernetesReader:
    """A `ClusterReader` of a real API server.

    Each call raises `Misconfigured` where a right is missing, and `Unavailable` where the cluster can't be reached.
    """

    def __init__(self, api: KubernetesApi) -> None:
        self._api = api
        self._lock = threading.Lock()
        self._lately: OrderedDict[tuple[str, str, str], tuple[str, bytes]] = OrderedDict()
        self._contents = SeenContents()
        self._watches: HttpClient | None = None
        self._followed: dict[str, FollowedKind] = {}

    def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
        """See `ClusterReader`; None too where the cluster does not serve the kind.

        Raises:
            Refused: the enforcer has no business with the kind, or nothing can have that name.
        """
        served = kind_named(kind)
        version = self._version_of(served)
        if version is None:
            return None
        deed = Deed(verb="get", resource=served.resource, namespace=namespace, name=name)
        found = self._api.get(deed, served.path(version, namespace, name))
        if found is None:
            return None
        manifest = whole(found, served, version)
        self.remember(manifest)
        return manifest

    def list_objects(self, kind: str, namespace: str | None = None) -> Sequence[Manifest]:
        """See `ClusterReader`; empty too where the cluster does not serve the kind.

        Raises:
            Refused: the enforcer has no business with the kind.
        """
        served = kind_named(kind)
        version = self._version_of(served)
        if version is None:
            return ()
        followed = self._follower(served, version)
        if followed is not None:
            return followed.objects(namespace)
        _, found = self._listed(served, version, namespace, lambda manifest: (identity(manifest), as_text(manifest)))
        return ListedManifests(tuple(text for _, text in sorted(found)))

    def _version_of(self, served: ApiResource) -> str | None:
        """The version by which a kind is served; None where the cluster does not know it.

        Raises:
            Refused: it is a kind of ours in versions alone that this program does not speak: what tenants ask for would
                go unheard.
        """
        version = self._api.version_of(served)
        if version is None and served.group == GROUP:
            refusal = other_versions(self._api, served)
            if refusal is not None:
                raise refusal
        return version

    def pods_on(self, node: str) -> Sequence[Manifest]:
        """Pods of all namespaces that are bound to a node, as they are now."""
        return self._pods_with(f"spec.nodeName={node}")

    def pending_pods(self, keep: Callable[[Manifest], bool]) -> Sequence[Manifest]:
        """Those of all pods in phase Pending, as they are now, that are to be kept; there may be many others."""
        return self._pods_with("status.phase=Pending", keep)

    def _pods_with(self, field: str, keep: Callable[[Manifest], bool] = lambda _: True) -> Sequence[Manifest]:
        def take(pod: Manifest) -> Manifest | None:
            return pod if keep(pod) else None

        _, found = self._listed(kind_named("Pod"), "v1", None, take, {"fieldSelector": field})
        return tuple(pod for pod in found if pod is not None)

    @contextlib.contextmanager
    def following(self) -> Iterator[None]:
        """See `FollowingReader`; within another call of this it does nothing more."""
        with self._lock:
            is_outer = self._watches is None
            if is_outer:
                self._watches = self._api.connected()
        try:
            yield
        finally:
            if is_outer:
                self._end_following()

    def renew(self) -> None:
        """See `FollowingReader`."""
        with self._lock:
            followed = list(self._followed.values())
        for one in followed:
            one.renew()

    def lately(self, kind: str, namespace: str, name: str) -> Manifest | None:
        """An object that is followed, as it was heard of last; None where nothing is known, though it may be there."""
        with self._lock:
            followed = self._followed.get(kind)
        return None if followed is None else followed.find(namespace, name)

    def is_going(self, namespace: str, name: str, uid: str) -> None:
        """Take note that the server said yes to a pod's eviction."""
        with self._lock:
            followed = self._followed.get("Pod")
        if followed is not None:
            followed.end_of(namespace, name, uid)

    def now(self) -> datetime:
        """See `ClusterReader`."""
        return self._api.now()

    def known(self, kind: str, namespace: str, name: str, resource_version: str) -> Manifest | None:
        """An object as it was read or written here lately; None where it was not, or in another version."""
        followed = self.lately(kind, namespace, name)
        if followed is not None and followed["metadata"]["resourceVersion"] == resource_version:
            return followed
        with self._lock:
            found = self._lately.get((kind, namespace, name))
        if found is None or found[0] != resource_version:
            return None
        manifest: Manifest = json.loads(found[1])
        return manifest

    def is_same(self, kind: str, namespace: str, name: str, resource_version: str) -> bool:
        """Whether the object, as it was seen last, has the content that it had in this version."""
        return self._contents.is_same((kind, namespace, name), resource_version)

    def remember(self, manifest: Manifest) -> None:
        """Keep an object for `known` and `is_same`; of whole objects the oldest is forgotten."""
        self._contents.see(manifest)
        key = identity(manifest)
        with self._lock:
            self._lately.pop(key, None)
            self._lately[key] = (str(manifest["metadata"].get("resourceVersion", "")), json.dumps(manifest).encode())
            if len(self._lately) > _REMEMBERED_MAX:
                self._lately.popitem(last=False)
            followed = self._followed.get(str(manifest["kind"]))
        if followed is not None:
            followed.put(manifest)

    def _follower(self, served: ApiResource, version: str) -> FollowedKind | None:
        """Who keeps the objects of a kind; None where nothing is followed now."""
        if served.kind not in FOLLOWED_KINDS:
            return None
        with self._lock:
            connection = self._watches
            if connection is None:
                return None
            if served.kind not in self._followed:
                self._followed[served.kind] = FollowedKind(
                    served.kind,
                    lambda keep: self._listed(served, version, None, keep),
                    lambda since, stands: self._events(connection, served, version, since, stands),
                    self._see_listed,
                )
            return self._followed[served.kind]

    def _end_following(self) -> None:
        with self._lock:
            connection, self._watches = self._watches, None
            followed, self._followed = list(self._followed.values()), {}
        for one in followed:
            one.end()
        if connection is not None:
            connection.close()
        for one in followed:
            one.join()

    def _events(
        self, connection: HttpClient, served: ApiResource, version: str, since: str, stands: Callable[[], None]
    ) -> Iterator[tuple[str, Manifest]]:
        for event in self._api.watch(served, version, since=since, http=connection, stands=stands):
            yield event.kind.value, whole(event.manifest, served, version)

    def _see_listed(self, manifest: Manifest) -> None:
        if manifest["kind"] not in _MANY_AND_SHORT_LIVED:
            self._contents.see(manifest)

    def _listed(
        self, served: ApiResource, version: str, namespace: str | None, take: Callable[[Manifest], _Taken],
        query: Mapping[str, str] | None = None,
    ) -> tuple[str, list[_Taken]]:  # fmt: skip
        """Everything, in pages of one version, and that version.

        Args:
            take: what is kept of each object: pages go one by one, and all of them parsed would take much memory.
        """
        for _ in range(_ATTEMPTS_MAX):
            # Where the list took longer than the server remembers one version: from the start.
            with contextlib.suppress(Expired):
                return self._pages(served, version, namespace, take, query)
        raise Unavailable(f"cannot list {served.resource}: the server forgot the list {_ATTEMPTS_MAX} times on the way")

    def _pages(
        self, served: ApiResource, version: str, namespace: str | None, take: Callable[[Manifest], _Taken],
        query: Mapping[str, str] | None,
    ) -> tuple[str, list[_Taken]]:  # fmt: skip
        found: list[_Taken] = []
        listed_at = ""
        for page in all_pages(self._api, served, version, namespace, query):
            for listed in page.manifests:
                manifest = whole(dict(listed), served, version)
                self._see_listed(manifest)
                found.append(take(manifest))
            listed_at = page.version
        return listed_at, found


def all_pages(
    api: KubernetesApi, served: ApiResource, version: str, namespace: str | None, query: Mapping[str, str] | None = None
) -> Iterator[Page]:
    """Every object of a kind, page by page; one empty page where the cluster does not serve it."""

    def read(limit: int, token: str | None) -> Page:
        page = api.page(served, version, limit=limit, token=token, namespace=namespace, query=query)
        return page or Page(manifests=(), version="", next_token=None)

    return pages_of(read, objects_max=PAGE_OBJECTS)


def whole(manifest: Manifest, served: ApiResource, version: str) -> Manifest:
    """An object with the kind that items of a list lack, and without what only the server keeps."""
    metadata: dict[str, Any] = manifest.get("metadata") or {}
    metadata.pop("managedFields", None)
    group = f"{served.group}/{version}" if served.group else version
    return {**manifest, "apiVersion": group, "kind": served.kind, "metadata": metadata}


VERSIONS_MAX = 256
"""Versions of one content that are remembered of one object; the oldest are forgotten."""

_SERVERS_OWN = frozenset({"resourceVersion", "generation", "managedFields", "selfLink"})
_MACHINES = re.compile(r"handshake|mutex\.lock|^deployment\.kubernetes\.io/revision", re.ASCII)
"""Annotations that machines write by themselves, again and again."""

Key = tuple[str, str, str]


class SeenContents:
    """Which versions of each object had the content that it has now; for several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: dict[Key, tuple[bytes, list[str]]] = {}

    def see(self, manifest: Manifest) -> None:
        """Take note of an object as it was read."""
        key = identity(manifest)
        version, digest = str(manifest["metadata"].get("resourceVersion", "")), _digest(manifest)
        with self._lock:
            before = self._seen.get(key)
            if before is None or before[0] != digest:
                self._seen[key] = (digest, [version])
            elif version not in before[1]:
                before[1].append(version)
                del before[1][:-VERSIONS_MAX]

    def is_same(self, key: Key, resource_version: str) -> bool:
        """Whether the object, as it was seen last, has the content that it had in this version."""
        with self._lock:
            found = self._seen.get(key)
            return found is not None and resource_version in found[1]


def _digest(manifest: Manifest) -> bytes:
    metadata: Mapping[str, Any] = manifest["metadata"]
    annotations = metadata.get("annotations") or {}
    kept = {name: value for name, value in metadata.items() if name not in _SERVERS_OWN and name != "annotations"}
    content = {name: value for name, value in manifest.items() if name not in ("status", "metadata")}
    by_people = {name: value for name, value in annotations.items() if _MACHINES.search(name) is None}
    text = json.dumps([content, kept, by_people], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
