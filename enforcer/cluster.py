"""The cluster as the enforcer needs it: read objects, change one field set on a condition, evict, hold the lease.

Three ports; `simulated.cluster` and later the Kubernetes API stand behind them. Objects travel as manifests, the one
form that the API server, the diff and the user share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, runtime_checkable

from enforcer.manifest import Manifest
from fleet.sentences import Sentence

STOPPED_ANNOTATION = "kubeflow-resource-stopped"
"""Annotation with which a Notebook is stopped (kubeflow/kubeflow: notebook controller); its value is when."""

DELETION_COST_ANNOTATION = "controller.kubernetes.io/pod-deletion-cost"
"""Pods of the lowest cost go first when their owner is scaled in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldChange:
    """One field to be written.

    Attributes:
        value: text; None takes it away.
    """

    field: str
    value: str | None


class ClusterReader(Protocol):
    """Reads objects; every answer is one the cluster once gave whole, never half of a change.

    Each call raises `Unavailable` where the cluster can't be reached.
    """

    def get(self, kind: str, namespace: str, name: str) -> Manifest | None:
        """One object, or None where there is none."""
        ...

    def list_objects(self, kind: str, namespace: str | None = None) -> Sequence[Manifest]:
        """All objects of a kind, sorted by namespace and name; of one namespace where it is given."""
        ...

    def now(self) -> datetime:
        """The cluster's clock, UTC."""
        ...

    def why_unseated(self, namespaces: Sequence[str]) -> Sentence | None:
        """Why new pods of some namespaces are not given their planned seats at admission; None where they are.

        Raises:
            Misconfigured: a right is missing.
        """
        ...


@runtime_checkable
class FollowingReader(ClusterReader, Protocol):
    """A reader to which looking again costs little, while it follows what goes on."""

    def following(self) -> AbstractContextManager[None]:
        """While in it, lists may be late by a moment; what was written or evicted through the same cluster is there."""
        ...

    def renew(self) -> None:
        """Lists that are asked for from now on are as fresh as those of a reader that does not follow."""
        ...


class ClusterWriter(Protocol):
    """Changes objects; a change is made whole or not at all.

    Each call raises `Unavailable` where the cluster can't be reached or is too busy; trying again may help.
    """

    def patch(self, kind: str, namespace: str, name: str, fields: Sequence[FieldChange], resource_version: str) -> str:
        """Write fields of one object, on the condition that it still has the version that was read.

        Returns:
            The new resource version.

        Raises:
            Refused: somebody changed the object since (the message names both versions), it is gone, or admission
                denied the new content. Nothing was written.
        """
        ...

    def evict(self, namespace: str, pod: str) -> bool:
        """Evict one pod; its owner makes it anew from the template. A pod that is gone is no error.

        Returns:
            False while a disruption budget forbids it.
        """
        ...

    def make(self, manifest: Manifest) -> bool:
        """Make an object of our own; one of that name that is there already stays as it is.

        Returns:
            False where it was there.

        Raises:
            Refused: admission denied it.
        """
        ...

    def record_event(self, kind: str, namespace: str, name: str, reason: str, message: str) -> None:
        """Leave an event on an object."""
        ...


Owners = tuple[Manifest, ...]
"""Who owns which fields of an object, in the form of its `metadata.managedFields`."""


@runtime_checkable
class DisowningWriter(ClusterWriter, Protocol):
    """A writer to a cluster that keeps who owns each field of an object.

    Each call raises as those of `ClusterWriter`.
    """

    def owners(self, kind: str, namespace: str, fields: Mapping[str, Sequence[str]]) -> Mapping[str, Owners]:
        """Who owns some fields of some objects now, but for ourselves."""
        ...

    def disown(self, kind: str, namespace: str, name: str, fields: Sequence[str], former: Owners) -> None:
        """Give fields that were written back to their former owners; values stay. An object may be gone."""
        ...


class Lease(Protocol):
    """The right to change the cluster; one holder at a time."""

    def acquire(self, holder: str, seconds: float) -> bool:
        """Take or renew the lease for `seconds`; False while somebody else holds it."""
        ...

    def release(self, holder: str) -> None:
        """Give it up; does nothing for somebody who does not hold it."""
        ...


class Pause(Protocol):
    """Lets time pass: sleeps in a real cluster, moves the clock of a simulated one."""

    def __call__(self, seconds: float) -> None:
        """Come back when `seconds` of the cluster's time are over."""
        ...


def followed(reader: ClusterReader) -> AbstractContextManager[None]:
    """Let a reader follow what goes on, if it can."""
    return reader.following() if isinstance(reader, FollowingReader) else nullcontext()


def renew(reader: ClusterReader) -> None:
    """Make the next looks fresh ones; before anything is concluded from them for good."""
    if isinstance(reader, FollowingReader):
        reader.renew()


def identity(manifest: Mapping[str, object]) -> tuple[str, str, str]:
    """Kind, namespace and name of a manifest."""
    metadata = manifest["metadata"]
    if not isinstance(metadata, Mapping):
        raise TypeError(f"a manifest without metadata: {manifest!r}")
    return str(manifest["kind"]), str(metadata.get("namespace", "")), str(metadata["name"])
