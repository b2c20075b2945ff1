"""Whether an object that has a new version is still the one that was decided about.

Every version counts up when a controller reports a status, when a node breathes, when a revision is numbered. A write
that depended on the bare version would be refused for changes that nobody made. What counts is the rest: where it is
as it was read, the version that it has now is as good as the one that was read; where it differs, somebody changed it.
Called by the reader, which sees objects, and asked by the writer.

Source: kubernetes/community:contributors/devel/sig-architecture/api-conventions.md (spec and status),
Project-HAMi/HAMi:pkg/util/types.go (handshake and lock on nodes),
kubernetes/kubernetes:pkg/controller/deployment/util (revision).
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Mapping
from typing import Any

from enforcer.manifest import Manifest

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
        metadata = manifest["metadata"]
        key = (str(manifest["kind"]), str(metadata.get("namespace", "")), str(metadata["name"]))
        version, digest = str(metadata.get("resourceVersion", "")), _digest(manifest)
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
