"""All objects of one kind as they are now, listed once and kept by a watch, while a plan is carried out.

A rollout looks at its pods and owners again and again; asked of the server each time, that is most of what it asks.
What is kept may be late by the moment that an event travels, so it decides nothing alone: writes depend on the version
that was read, what we wrote or evicted ourselves counts at once, and who ends a wait asks for a fresh list first
(`renew`). While the watch is cut every look is a list, as it was before there was a watch. Called by the reader.

Not one with `exporter.cluster.watch`, though both list and watch: that one reads for ever in its own thread,
hides failures behind an age and keeps no object, this one is read through, raises where a look fails and counts own
writes at once; they share no four lines (measured), and the loop over events alone in substance.

Sources: kubernetes/website:content/en/docs/reference/using-api/api-concepts.md (watches, bookmarks, 410),
kubernetes/enhancements:keps/sig-api-machinery/5504-comparable-resource-version (versions of one kind are ordered),
kubernetes/client-go:tools/cache/reflector.go.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from enforcer.kept_manifests import ListedManifests, as_manifest, as_text
from enforcer.manifest import Manifest
from fleet.errors import Corrupt, GputideError, Misconfigured
from fleet.logs import logger

FOLLOWED_KINDS = frozenset(
    {"CronJob", "DaemonSet", "Deployment", "Job", "Notebook", "Pod", "ReplicaSet", "StatefulSet"}
)
"""Kinds that a rollout looks at again and again. Nodes are not among them: they report themselves all the time."""

_END_SECONDS_MAX = 5.0

Watching = Callable[[str, Callable[[], None]], Iterator[tuple[str, Manifest]]]
"""Events after a version: their words and their objects; what it is given is called once the watch stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """One object as JSON text; its namespace is empty where it lies in none."""

    namespace: str
    name: str
    version: str
    uid: str
    is_going: bool
    text: bytes

    @classmethod
    def of(cls, manifest: Manifest) -> Kept:
        """An object as the server has it."""
        metadata = manifest["metadata"]
        return cls(
            namespace=str(metadata.get("namespace", "")), name=str(metadata["name"]),
            version=str(metadata["resourceVersion"]), uid=str(metadata.get("uid", "")),
            is_going="deletionTimestamp" in metadata, text=as_text(manifest),
        )  # fmt: skip


Listing = Callable[[Callable[[Manifest], Kept]], tuple[str, list[Kept]]]
"""Lists everything, and keeps of each object what it is given says; returns the version of the list too."""


class FollowedKind:
    """The objects of one kind; for several threads."""

    def __init__(self, name: str, listing: Listing, watching: Watching, seen: Callable[[Manifest], None]) -> None:
        self._name = name
        self._listing = listing
        self._watching = watching
        self._seen = seen
        self._log = logger("enforcer.kubernetes.followed")
        self._listing_lock = threading.Lock()
        self._changed = threading.Condition()
        self._kept: dict[str, dict[str, Kept]] = {}
        self._going: set[str] = set()
        self._ended: set[str] = set()
        self._from_version: str | None = None
        self._is_old = True
        self._is_watching = False
        self._is_watched = False
        self._is_forbidden = False
        self._is_over = False
        self._thread: threading.Thread | None = None

    def objects(self, namespace: str | None) -> ListedManifests:
        """All objects, of one namespace where it is given, by namespace and name; each a copy of one's own.

        Raises:
            Misconfigured: a right is missing.
            Unavailable: they must be listed, and can't be.
        """
        with self._listing_lock:
            if self._must_list():
                self._list()
        with self._changed:
            spaces = [self._kept.get(namespace, {})] if namespace is not None else list(self._kept.values())
            found = [kept for space in spaces for kept in space.values()]
        found.sort(key=lambda kept: (kept.namespace, kept.name))
        return ListedManifests(tuple(kept.text for kept in found))

    def find(self, namespace: str, name: str) -> Manifest | None:
        """One object as it was heard of last; None where nothing is known of it, though it may be there."""
        with self._changed:
            kept = self._kept.get(namespace, {}).get(name)
        return None if kept is None else as_manifest(kept.text)

    def put(self, manifest: Manifest) -> None:
        """Take an object as the server just answered it; nothing, where a newer one is known already."""
        kept = Kept.of(manifest)
        with self._changed:
            self._take(kept)

    def end_of(self, namespace: str, name: str, uid: str) -> None:
        """A pod was asked to go: it counts as going from now on, whatever late events say."""
        with self._changed:
            self._going.add(uid)
            kept = self._kept.get(namespace, {}).get(name)
            if kept is not None and kept.uid == uid:
                self._keep(kept)

    def renew(self) -> None:
        """The next look is at a fresh list."""
        with self._changed:
            self._is_old = True

    def end(self) -> None:
        """Follow no more; a watch must be woken by closing its connection."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def join(self) -> None:
        """Wait for the end of the watch."""
        if self._thread is not None:
            self._thread.join(_END_SECONDS_MAX)

    def _must_list(self) -> bool:
        with self._changed:
            return self._is_old or not self._is_watched

    def _list(self) -> None:
        with self._changed:
            # Who asks for a fresh list while this one is on its way may know more than it.
            self._is_old = False
            self._ended.clear()
        try:
            version, listed = self._listing(self._kept_of)
        except GputideError:
            self.renew()
            raise
        with self._changed:
            before, self._kept = self._kept, {}
            for found in listed:
                self._take(found)
            for kept in [kept for space in before.values() for kept in space.values()]:
                if _is_newer(kept.version, version):
                    self._take(kept)
            if not self._is_watching and not self._is_forbidden and not self._is_over:
                self._from_version, self._is_watching = version, True
                self._changed.notify_all()
                if self._thread is None:
                    self._thread = threading.Thread(target=self._follow, name=f"follow {self._name}", daemon=True)
                    self._thread.start()

    def _kept_of(self, manifest: Manifest) -> Kept:
        """What is kept of an object that is listed: what is kept already, where that is of the same version."""
        metadata = manifest["metadata"]
        with self._changed:
            kept = self._kept.get(str(metadata.get("namespace", "")), {}).get(str(metadata["name"]))
        is_same = kept is not None and (kept.uid, kept.version) == (metadata.get("uid"), metadata["resourceVersion"])
        return kept if kept is not None and is_same else Kept.of(manifest)

    def _follow(self) -> None:
        while (version := self._next_version()) is not None:
            try:
                self._watch(version)
            except GputideError as exc:
                if not self._is_over:
                    self._log.info("a watch was cut, lists take its place until it stands again", said=str(exc))
                self._is_forbidden = isinstance(exc, Misconfigured)
            finally:
                with self._changed:
                    self._is_watching = self._is_watched = False

    def _watch(self, version: str) -> None:
        """Watch; where a watch ends by itself the next goes on where it stood."""
        while not self._is_over:
            for word, manifest in self._watching(version, self._stands):
                version = str(manifest["metadata"]["resourceVersion"])
                self._hear(word, manifest)

    def _stands(self) -> None:
        with self._changed:
            self._is_watched = True

    def _next_version(self) -> str | None:
        """Wait for a version to watch from; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or self._from_version is not None)
            version, self._from_version = self._from_version, None
            return None if self._is_over else version

    def _hear(self, word: str, manifest: Manifest) -> None:
        match word:
            case "BOOKMARK":
                return
            case "ADDED" | "MODIFIED":
                self.put(manifest)
                self._seen(manifest)
            case "DELETED":
                with self._changed:
                    self._drop(manifest)
            case _:
                raise Corrupt(f"cannot read an event of {self._name}: {word[:64]!r} is no known word")

    def _take(self, found: Kept) -> None:
        kept = self._kept.get(found.namespace, {}).get(found.name)
        if found.uid not in self._ended and (kept is None or _is_newer(found.version, kept.version)):
            self._keep(found)

    def _keep(self, found: Kept) -> None:
        if found.uid in self._going and not found.is_going:
            # The server said yes to its eviction; this is what it was like before.
            manifest = as_manifest(found.text)
            metadata = manifest["metadata"]
            metadata["deletionTimestamp"] = metadata.get("creationTimestamp")
            found = Kept.of(manifest)
        self._kept.setdefault(found.namespace, {})[found.name] = found

    def _drop(self, manifest: Manifest) -> None:
        metadata = manifest["metadata"]
        space = self._kept.get(metadata.get("namespace", ""), {})
        kept = space.get(metadata["name"])
        self._going.discard(str(metadata.get("uid", "")))
        # A list that is on its way may have it still.
        self._ended.add(str(metadata.get("uid", "")))
        if kept is not None and not _is_newer(kept.version, str(metadata["resourceVersion"])):
            del space[metadata["name"]]


def _is_newer(version: str, than: str) -> bool:
    """Whether a version of an object came after another."""
    if not version.isdecimal() or not than.isdecimal():
        # No server that we know writes such; then whatever is heard last is taken.
        return version != than
    return int(version) > int(than)
