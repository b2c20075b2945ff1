"""Keeps new pods off single cards (`hami.io/device-cordon`), running pods untouched.

HAMi's scheduler does not look at the annotation at once: it reads a node anew only when its register or its resources
change, or when the handshake does not say that the scheduler is asking. So the handshake is set to what the device
plugin would answer, with which the cordon acted within 15 s (seen on v2.10). Pure. Sources:
Project-HAMi/HAMi:pkg/device/nvidia/device.go (DeviceCordonAnnotation), Project-HAMi/HAMi:docs/develop/protocol.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from enforcer.backends.hami_dialect import CORDON_FIELD, cordoned_cards
from enforcer.backends.stage import StageDraft, field_changes
from enforcer.snapshot import Snapshot
from fleet.grammars.hami import NODE_HANDSHAKE_ANNOTATION
from fleet.outcomes import Change

_HANDSHAKE = f"metadata.annotations[{NODE_HANDSHAKE_ANNOTATION}]"


def cordon_changes(
    snapshot: Snapshot, now: datetime, recommendation: str, *, close: Iterable[str]
) -> tuple[Change, ...]:
    """Close cards to new pods; cards that others closed stay closed.

    Returns:
        Changes of nodes, two fields each; none for a node that stands so already.
    """
    closing = set(close)
    changes: list[Change] = []
    for name in sorted(snapshot.nodes):
        node = snapshot.nodes[name]
        own = {card.card for card in snapshot.cards.values() if card.node == name}
        standing = cordoned_cards(node)
        wanted = sorted({*standing, *(closing & own)})
        if wanted == sorted(standing):
            continue
        fields: dict[str, str | None] = {
            CORDON_FIELD: ",".join(wanted) or None,
            _HANDSHAKE: f"Reported_{now:%Y-%m-%d %H:%M:%S}",
        }
        changes += field_changes(node, fields, recommendation)
    return tuple(changes)


def cards_of_emptied_nodes(draft: StageDraft, snapshot: Snapshot) -> tuple[str, ...]:
    """Cards of nodes that a stage empties, so that they can be given back."""
    leaving = {entry.seat.pod_id for targets in draft.targets.values() for entry in targets if entry.new is not None}
    left: set[str] = set()
    kept: set[str] = set()
    for seat in snapshot.seats.values():
        nodes = {snapshot.cards[card].node for card in seat.cards if card in snapshot.cards}
        (left if seat.pod_id in leaving else kept).update(nodes)
    for targets in draft.targets.values():
        for entry in targets:
            kept |= {snapshot.cards[part.card].node for part in entry.new or () if part.card in snapshot.cards}
    planned = {card.node for card in draft.plan.placement if card.slices}
    free = left - kept - planned
    return tuple(sorted(card.card for card in snapshot.cards.values() if card.node in free))
