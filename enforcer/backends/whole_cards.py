"""Whole cards by NVIDIA's device plugin: nobody shares, pods come and go and are kept on the planned nodes.

A card is really free when its node offers more cards than its pods ask for; which one it is, the API does not say.

Source: NVIDIA/k8s-device-plugin:README.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from enforcer.backend import RenderedStage
from enforcer.backends.alike import with_all_replicas, with_seats_as_they_are
from enforcer.backends.device_plugin import CARD_RESOURCE, NODE_DIALECT, counted_slice, resource_fields
from enforcer.backends.node_pin import check_nodes, nodes_of_workloads, pin_fields
from enforcer.backends.stage import Target, check_kinds, draft_stage, rendered
from enforcer.dialect import Dialect, SeatSlice
from enforcer.manifest import Manifest
from enforcer.snapshot import Snapshot
from fleet.capabilities.whole_cards import WHOLE_CARDS
from fleet.decisions import CardPlacement, PlacedSlice, Plan
from fleet.errors import Refused


class WholeCardsBackend:
    """No sharing (the port `Backend`)."""

    capabilities = WHOLE_CARDS
    dialect: Dialect = NODE_DIALECT

    def __init__(self, now: datetime) -> None:
        self._now = now

    def render(self, plan: Plan, stage: int, snapshot: Snapshot) -> RenderedStage:
        """Turn one stage into changes; see the port."""
        plan, along = with_all_replicas(with_seats_as_they_are(plan, snapshot), stage, snapshot, stays_on_node=True)
        nodes_of = nodes_of_workloads(plan)
        draft = draft_stage(plan, stage, snapshot, _seat_slice)
        check_nodes(draft, snapshot, nodes_of)
        warnings = [*along, *draft.warnings, *check_kinds(WHOLE_CARDS, draft.recommendations)]
        named = {pod for entry in draft.recommendations for pod in entry.pods}
        for card in plan.placement:
            pods = {part.pod_id for part in card.slices}
            # Also where nobody moves: two pods with a card each look the same as two on one.
            if len(pods) > 1 and pods & named:
                raise Refused(f"cannot put {len(pods)} pods on card {card.card}: {WHOLE_CARDS.backend} shares none")

        def template_fields(owner: Manifest, kind: str, staying: Sequence[Target]) -> Mapping[str, str | None]:
            if not any(entry.new for entry in staying):
                return {}
            return {**resource_fields(owner, kind, staying), **pin_fields(kind, staying, plan.plan_id)}

        return rendered(draft, snapshot, template_fields, self._now, warnings=warnings)


def _seat_slice(card: CardPlacement, part: PlacedSlice) -> SeatSlice:
    if part.mig_profile is not None:
        raise Refused(f"cannot give {part.pod_id} a MIG instance: {WHOLE_CARDS.backend} cuts no cards")
    return counted_slice(part.container, card.node or "", CARD_RESOURCE)
