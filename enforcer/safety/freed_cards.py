"""How many cards a plan frees, counted in the cluster: a plan may claim anything of itself. Called by the guard."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from enforcer.snapshot import Snapshot
from fleet.decisions import Plan
from fleet.inventory import WorkloadId


def cards_left_empty(plan: Plan, going: AbstractSet[WorkloadId], snapshot: Snapshot) -> set[str]:
    """Cards that hold pods now and none once some workloads are placed anew; not those that nodes only count.

    Args:
        going: workloads that are placed as the plan says; all others stay.
    """
    held = {
        card
        for name in going
        for seat in snapshot.pods.get(name, ())
        for card in seat.cards
        if card in snapshot.cards and not snapshot.cards[card].is_counted
    }
    # Pods of a plan that the cluster does not have keep no card.
    kept: set[str] = {
        card.card for card in plan.placement if any(part.pod_id in snapshot.seats for part in card.slices)
    }
    staying = {
        card for name, seats in snapshot.pods.items() if name not in going for seat in seats for card in seat.cards
    }
    return held - kept - staying
