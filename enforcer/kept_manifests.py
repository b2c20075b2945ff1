"""Many manifests kept as text and parsed where one is looked at: parsed ones take ten times the memory.

A cluster of thousands of workloads is read whole before each stage, of which a few are changed. Nobody can change what
another is given: each look has a copy of its own. Called by the reader of a real cluster and by the snapshot.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import overload

from enforcer.manifest import Manifest
from fleet.inventory import WorkloadId


def as_text(manifest: Manifest) -> bytes:
    """A manifest as compact JSON."""
    return json.dumps(manifest, separators=(",", ":")).encode()


def as_manifest(text: bytes) -> Manifest:
    """The manifest of a text."""
    found: Manifest = json.loads(text)
    return found


@dataclass(frozen=True, slots=True)
class ListedManifests(Sequence[Manifest]):
    """A list of manifests.

    Attributes:
        texts: as JSON.
    """

    texts: tuple[bytes, ...]

    @overload
    def __getitem__(self, place: int) -> Manifest: ...
    @overload
    def __getitem__(self, place: slice) -> ListedManifests: ...
    def __getitem__(self, place: int | slice) -> Manifest | ListedManifests:
        """One of them, or a part of the list."""
        if isinstance(place, slice):
            return ListedManifests(self.texts[place])
        return as_manifest(self.texts[place])

    def __len__(self) -> int:
        """How many there are."""
        return len(self.texts)


@dataclass(frozen=True, slots=True)
class OwnerManifests(Mapping[WorkloadId, Manifest]):
    """Manifests of workloads; mutable: it is filled.

    Attributes:
        texts: as JSON.
    """

    texts: dict[WorkloadId, bytes] = field(default_factory=dict)

    def put(self, workload: WorkloadId, manifest: Manifest) -> None:
        """Keep one."""
        self.texts[workload] = as_text(manifest)

    def __getitem__(self, workload: WorkloadId) -> Manifest:
        """That of a workload."""
        return as_manifest(self.texts[workload])

    def __iter__(self) -> Iterator[WorkloadId]:
        """Every workload."""
        return iter(self.texts)

    def __len__(self) -> int:
        """How many there are."""
        return len(self.texts)

    def __contains__(self, workload: object) -> bool:
        """Whether there is a workload, without a look at it."""
        return workload in self.texts
