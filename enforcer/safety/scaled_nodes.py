"""What of a plan may not go back by itself, because nodes lend framebuffer: their factor, and pods with whole cards.

A factor that is taken back while pods rest on cards that hold them only with it leaves these without framebuffer. A pod
that comes back whole to a node that keeps its factor is granted its card times that. Called by undo before it begins;
pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from enforcer.backend import ROUNDED_MIB, Move, NodeStep
from enforcer.dialect import WHOLE_CORE_PERCENT
from enforcer.snapshot import Snapshot
from fleet.errors import Refused
from fleet.inventory import WorkloadId
from fleet.sentences import sentence


def check_scaled_nodes(
    moves: Sequence[Move], returned: Sequence[NodeStep], standing: Sequence[NodeStep], snapshot: Snapshot
) -> None:
    """Refuses an undo that would leave lent pods without their factor, or pods with whole cards beside one.

    Args:
        moves: of the undo, as they were made.
        returned: steps whose configuration goes back.
        standing: steps, of any plan, whose configuration stays.

    Raises:
        Refused: as above, with the pod and its node.
    """
    for step in returned:
        _check_staying(step, {move.workload for move in moves}, snapshot)
    stays = {step.node for step in standing if _is_scaled(step, snapshot)}
    for move in moves:
        for part in move.old:
            known = None if part.card is None else snapshot.cards.get(part.card)
            if known is not None and known.node in stays and part.core_percent == WHOLE_CORE_PERCENT:
                raise Refused(sentence("guard.undo_scaled", pod=move.pod_id, node=known.node))


def _check_staying(step: NodeStep, leaving: set[WorkloadId], snapshot: Snapshot) -> None:
    for card, mib in step.registered_mib:
        held = {
            seat.pod_id: sum(
                part.framebuffer_mib
                for part in seat.slices
                if part.card == card and part.core_percent != WHOLE_CORE_PERCENT
            )
            for seat in snapshot.seats.values()
            if card in seat.cards and seat.workload not in leaving
        }
        if sum(held.values()) > mib + ROUNDED_MIB:
            raise Refused(sentence("guard.undo_lent", pod=min(held), card=card, node=step.node))


def _is_scaled(step: NodeStep, snapshot: Snapshot) -> bool:
    return any(
        card in snapshot.cards and snapshot.cards[card].framebuffer_mib > mib + ROUNDED_MIB
        for card, mib in step.registered_mib
    )
