"""A GPU-sharing backend as the enforcer uses it: what it enforces, and how a stage of a plan reads in its own words.

One adapter per backend in `backends`, each with its record in `fleet.capabilities.register`. Rendering changes nothing;
the rollout carries out what is rendered.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from enforcer.dialect import Dialect, SeatSlice
from enforcer.manifest import Manifest
from enforcer.snapshot import Snapshot
from fleet.capabilities.register import Capabilities
from fleet.decisions import Plan
from fleet.inventory import WorkloadId
from fleet.outcomes import Change


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One pod that gets another seat: itself, or one that its owner makes in its place under another name.

    Attributes:
        pod: pod as the plan knows it.
        old: where it sits; empty where it is pending or stopped.
        new: where it, or who comes in its place, shall sit; empty where it shall be gone; as `old` where it is only
            made anew with the others of its owner.
        called: what the pod is called in the cluster, where an earlier stage made it anew under another name.
    """

    namespace: str
    pod: str
    workload: WorkloadId
    old: tuple[SeatSlice, ...]
    new: tuple[SeatSlice, ...]
    recommendation: str
    called: str | None = None

    @property
    def pod_id(self) -> str:
        """`namespace/pod`."""
        return f"{self.namespace}/{self.pod}"

    @property
    def live_id(self) -> str:
        """`namespace/pod` as the cluster calls it."""
        return f"{self.namespace}/{self.called or self.pod}"


def by_workload(moves: Iterable[Move]) -> dict[WorkloadId, list[Move]]:
    """Moves of each workload, in their order."""
    found: dict[WorkloadId, list[Move]] = {}
    for move in moves:
        found.setdefault(move.workload, []).append(move)
    return found


ROUNDED_MIB = 16
"""By so much a card's framebuffer in MiB may differ from source to source."""


class NodeOwner(StrEnum):
    """What made a node's machine, and takes it away."""

    KARPENTER = "karpenter"
    CLUSTER_API = "cluster_api"
    CLUSTER_AUTOSCALER = "cluster_autoscaler"
    NOBODY = "nobody"
    """People: it is cordoned, and they are asked to take it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Departure:
    """A node that its owner shall take away.

    Attributes:
        machine: kind, namespace and name of the object that stands for its machine, which outlives the Node; that of
            the Node where there is none.
        newest: `creationTimestamp` of the newest machine (of the newest node where no object stands for machines) when
            this was rendered: a later one came in the place of this one.
    """

    owner: NodeOwner
    machine: tuple[str, str, str]
    newest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStep:
    """What a node needs besides written fields until its cards are shared in another way.

    Carried out after the stage's changes stand and before its pods move.

    Attributes:
        empty_cards: cards that nobody may hold when the changes are written; empty where running pods may stay.
        restarts: pods (`namespace`, `name`) that read their configuration when they start: evicted, and waited for
            until their owner made them anew.
        done_field: field of the node by which it is seen that the node is ready, None where the restart is enough.
        done_value: its value then.
        done_mode: mode that the node's cards show when it is ready, as the dialect reads it; None where any will do.
        failed_value: its value when the node gave up, None where it never says so.
        leaving: pods (`namespace`, `name`) that hold cards of the node and must be gone before the node's own fields
            (the stage's changes of this Node) are written: it is cordoned, they are evicted and waited for, and it is
            opened again when it is ready. Empty where running pods may stay.
        advertised: further fields of the node and the values that they have when it is ready, such as what it offers.
        back: fields of the node and the values that they have once it is taken back. A node with these is closed while
            it changes even where nobody must leave, and on the way back everybody leaves its cards again.
        registers_mib: cards and the framebuffer that each registers at least when the node is ready, MiB. A node that
            registers more than it has is taken back before pods return to it, for one with a whole card would see that.
        registered_mib: cards and the framebuffer that each registered before, MiB: on the way back none may register
            more when pods return.
        offered_before: fields of a node that a stage empties and the values that they had before: on the way back it is
            emptied again, and pods that no other node has room for come back once it has these.
        departure: who takes the node away once it is written; None where it stays.
    """

    node: str
    empty_cards: tuple[str, ...] = ()
    restarts: tuple[tuple[str, str], ...] = ()
    done_field: str | None = None
    done_value: str | None = None
    done_mode: str | None = None
    failed_value: str | None = None
    leaving: tuple[tuple[str, str], ...] = ()
    advertised: tuple[tuple[str, str], ...] = ()
    back: tuple[tuple[str, str], ...] = ()
    registers_mib: tuple[tuple[str, int], ...] = ()
    registered_mib: tuple[tuple[str, int], ...] = ()
    offered_before: tuple[tuple[str, str], ...] = ()
    departure: Departure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedStage:
    """One stage in the backend's words.

    Attributes:
        changes: fields of objects, grouped by object, in the order of the plan.
        warnings: what holds only in part, one sentence each.
        node_steps: nodes that are to share their cards in another way.
        objects: objects of our own that must be there before the changes are written, since these name them: made where
            they are absent, never changed, and left by an undo. Their names say their content.
    """

    stage: int
    changes: tuple[Change, ...]
    moves: tuple[Move, ...]
    warnings: tuple[str, ...]
    node_steps: tuple[NodeStep, ...] = ()
    objects: tuple[Manifest, ...] = ()


class Backend(Protocol):
    """Renders plans for one way of sharing cards."""

    @property
    def capabilities(self) -> Capabilities:
        """What it really enforces."""
        ...

    @property
    def dialect(self) -> Dialect:
        """How it writes seats and cards; what the cluster is read in."""
        ...

    def render(self, plan: Plan, stage: int, snapshot: Snapshot) -> RenderedStage:
        """Turn one stage of a plan into changes of objects.

        Args:
            stage: number of the stage; the ones before it count as applied.
            snapshot: the cluster as it stands; old values and versions come from it.

        Returns:
            What to change. Pods that sit as planned already are left out, so a stage that is applied renders empty.

        Raises:
            Refused: the stage needs what the backend does not enforce, or the cluster lacks what it names.
        """
        ...
