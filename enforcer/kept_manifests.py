"""Many manifests kept as text and parsed where one is looked at: parsed ones take ten times the memory.

A cluster of thousands of workloads is read whole before each stage, of which a few are changed. Nobody can change what
another is given: each look has a copy of its own. Called by the reader of a real cluster and by the snapshot.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar, overload

from enforcer.manifest import Manifest

Key = TypeVar("Key", bound=Hashable)


def as_text(manifest: Manifest) -> bytes:
    """A manifest as compact JSON."""
    return json.dumps(manifest, separators=(",", ":")).encode()


def as_manifest(text: bytes) -> Manifest:
    """The manifest of a text."""
    found: Manifest = json.loads(text)
    return found


def with_texts(listed: Sequence[Manifest]) -> Iterator[tuple[bytes, Manifest]]:
    """Each manifest of a list beside its text, which is the list's own where that keeps texts."""
    texts = listed.texts if isinstance(listed, ListedManifests) else map(as_text, listed)
    return ((text, as_manifest(text)) for text in texts)


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
class KeptManifests(Mapping[Key, Manifest], Generic[Key]):
    """Manifests by workload or by name; mutable: `texts` is filled.

    Attributes:
        texts: as JSON.
    """

    texts: dict[Key, bytes] = field(default_factory=dict)

    def __getitem__(self, key: Key) -> Manifest:
        """One of them."""
        return as_manifest(self.texts[key])

    def __iter__(self) -> Iterator[Key]:
        """Every key."""
        return iter(self.texts)

    def __len__(self) -> int:
        """How many there are."""
        return len(self.texts)

    def __contains__(self, key: object) -> bool:
        """Whether there is one, without a look at it."""
        return key in self.texts
