"""Changing how a node shares its cards: who must leave it before, and each object once. Pure.

For backends whose node must be empty meanwhile: what still runs there holds its card in a way of which the new one
knows nothing, so the card would be handed out twice, or can't be cut.
"""

from __future__ import annotations

from collections.abc import Sequence

from enforcer.backends.stage import StageDraft
from enforcer.snapshot import Snapshot
from fleet.errors import Refused
from fleet.outcomes import Change


def leaving_pods(node: str, draft: StageDraft, snapshot: Snapshot, what: str) -> tuple[tuple[str, str], ...]:
    """Pods that hold cards of a node and are moved or named by the stage, so that the node is empty for a while.

    Args:
        what: what becomes of the node, for the message.

    Raises:
        Refused: the stage says nothing of somebody on it.
    """
    moving = {entry.seat.pod_id for targets in draft.targets.values() for entry in targets if entry.new is not None}
    moving |= {pod for entry in draft.recommendations for pod in entry.pods}
    found = []
    for seat in snapshot.seats.values():
        if seat.node != node or not seat.slices:
            continue
        if seat.pod_id not in moving:
            raise Refused(
                f"cannot change node {node}: its cards must be empty to be {what}, and stage {draft.stage} leaves "
                f"{seat.pod_id} there"
            )
        found.append((seat.namespace, seat.pod))
    return tuple(sorted(found))


def by_object(changes: Sequence[Change]) -> list[Change]:
    """Changes grouped by object, each once, in the order in which objects first appear."""
    order = dict.fromkeys((change.kind, change.namespace, change.name) for change in changes)
    found: list[Change] = []
    for key in order:
        own = {change.field: change for change in changes if (change.kind, change.namespace, change.name) == key}
        found += own.values()
    return found
