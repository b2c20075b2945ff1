"""The API server as a node's exporter sees it: the pods of that node, each told as soon as it is made."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from exporter.cluster.reader import Watched
from wire.kubernetes.page import Page
from wire.kubernetes.read import EventKind, WatchEvent


class NodeCluster:
    """A `ClusterReader` of one node's pods; objects of other kinds are not asked for."""

    def __init__(self) -> None:
        self._manifests: list[dict[str, Any]] = []
        self._is_closed = False
        self._changed = threading.Condition()

    def add(self, manifest: dict[str, Any]) -> None:
        """Makes a pod."""
        with self._changed:
            version = str(len(self._manifests) + 1)
            self._manifests.append({**manifest, "metadata": {**manifest["metadata"], "resourceVersion": version}})
            self._changed.notify_all()

    def number_of(self, pod: str) -> int:
        """Which one a pod is, counted from 1; 0 where there is none of that name."""
        names = [manifest["metadata"]["name"] for manifest in self._manifests]
        return names.index(pod) + 1 if pod in names else 0

    def count(self) -> int:
        """How many pods were made."""
        return len(self._manifests)

    def version_of(self, watched: Watched) -> str | None:
        """See `ClusterReader`."""
        return "v1"

    def page(self, watched: Watched, *, limit: int, token: str | None) -> Page:
        """See `ClusterReader`; all on one page."""
        with self._changed:
            return Page(manifests=list(self._manifests), version=str(len(self._manifests)), next_token=None)

    def watch(self, watched: Watched, *, version: str) -> Iterator[WatchEvent]:
        """See `ClusterReader`."""
        number = int(version)
        while (manifest := self._next(number)) is not None:
            number += 1
            yield WatchEvent(kind=EventKind.ADDED, manifest=manifest, version=str(number))

    def close(self) -> None:
        """See `ClusterReader`."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _next(self, number: int) -> dict[str, Any] | None:
        """The pod of this number, counted from 0, once it is made; None where this is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or len(self._manifests) > number)
            return None if self._is_closed else self._manifests[number]
