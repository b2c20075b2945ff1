"""Shares of cards that a plan gives to nodes: whose cards they are on, the scheduler chooses by framebuffer alone.

What backends have in common whose scheduler picks the card (`Division.SCHEDULER`): pods are kept on the planned nodes
(`node_pin`), a template asks for one share, and a stage says what the scheduler may choose where several cards of a
node are shared. A plan for such a backend sizes the slices of a node so that it needs as many cards whatever is chosen
(`slices_that_meet`). Used by `kai` and `dra_counted`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from enforcer.backend import RenderedStage
from enforcer.backends.alike import with_all_replicas, with_seats_as_they_are
from enforcer.backends.card_fit import check_isolation, granted_mib, is_whole
from enforcer.backends.device_plugin import counted_slice
from enforcer.backends.node_pin import check_nodes, node_of, nodes_of_workloads, pin_fields
from enforcer.backends.stage import StageDraft, Target, check_kinds, draft_stage, rendered
from enforcer.dialect import Dialect, SeatSlice
from enforcer.manifest import Manifest
from enforcer.snapshot import Snapshot
from fleet.capabilities.capability import Capabilities, slices_that_meet
from fleet.decisions import CardPlacement, PlacedSlice, Plan
from fleet.errors import Refused
from fleet.units import MIB


class NodeSharesBackend:
    """Shares on nodes (the port `Backend`); what a pod asks by is the subclass's.

    Attributes:
        whole_resource: stands in the seat of a pod that has whole cards.
        share_resource: stands in the seat of a pod that has a part of a card.
    """

    capabilities: Capabilities
    dialect: Dialect
    whole_resource: str
    share_resource: str

    def __init__(self, now: datetime) -> None:
        self._now = now

    def render(self, plan: Plan, stage: int, snapshot: Snapshot) -> RenderedStage:
        """Turn one stage into changes; see the port."""
        plan, along = with_all_replicas(with_seats_as_they_are(plan, snapshot), stage, snapshot, stays_on_node=True)
        nodes_of = nodes_of_workloads(plan)
        draft = draft_stage(plan, stage, snapshot, self._seat_slice)
        warnings = [*along, *draft.warnings, *check_kinds(self.capabilities, draft.recommendations)]
        self.check_draft(draft, snapshot)
        check_nodes(draft, snapshot, nodes_of)

        def template_fields(owner: Manifest, kind: str, staying: Sequence[Target]) -> Mapping[str, str | None]:
            if not any(entry.new for entry in staying):
                return {}
            return self.share_fields(owner, kind, staying, snapshot) | pin_fields(kind, staying, plan.plan_id)

        warnings += self._choice_warnings(draft, snapshot)
        stands = rendered(draft, snapshot, template_fields, self._now, warnings=warnings)
        return self.with_objects(stands, draft)

    def share_fields(
        self, owner: Manifest, kind: str, staying: Sequence[Target], snapshot: Snapshot
    ) -> dict[str, str | None]:
        """Fields of a template for the new seats of its pods, some of which move.

        Raises:
            Refused: its pods would have to ask for different things, or for more than can be said.
        """
        raise NotImplementedError

    def shareable_mib(self, node: Manifest, snapshot: Snapshot) -> int:
        """MiB of each card of a node that pods can share.

        Raises:
            Refused: the node can't share its cards in this way.
        """
        raise NotImplementedError

    def free_cards(self, node: str, snapshot: Snapshot) -> int:
        """Cards that a node offers, taken or not."""
        raise NotImplementedError

    def with_objects(self, stage: RenderedStage, draft: StageDraft) -> RenderedStage:
        """The stage with objects of ours that its changes name; none as a rule."""
        del draft
        return stage

    def _seat_slice(self, card: CardPlacement, part: PlacedSlice) -> SeatSlice:
        if part.mig_profile is not None:
            raise Refused(
                f"cannot give {part.pod_id} a MIG instance with {self.capabilities.backend}: it cuts no cards; "
                "enforcer.backend=mig does"
            )
        if is_whole(card, part):
            return counted_slice(part.container, card.node or "", self.whole_resource)
        return SeatSlice(
            container=part.container,
            card=None,
            framebuffer_mib=max(1, part.framebuffer_bytes // MIB),
            node=card.node,
            resource=self.share_resource,
        )

    def check_draft(self, draft: StageDraft, snapshot: Snapshot) -> None:
        """Refuse what the scheduler's books can't hold."""
        for card in draft.cards:
            self._check_card(card, snapshot)

    def _check_card(self, card: CardPlacement, snapshot: Snapshot) -> None:
        check_isolation(card, snapshot, self.capabilities)
        if all(is_whole(card, part) for part in card.slices):
            return
        granted, shareable = granted_mib(card), self.shareable_mib(node_of(snapshot, card.node or ""), snapshot)
        if granted > shareable:
            raise Refused(
                f"cannot grant {granted} MiB on card {card.card}: of each card of node {card.node} the scheduler "
                f"shares {shareable} MiB (it counts in steps of {self.capabilities.card_step_bytes // MIB} MiB)"
            )

    def _choice_warnings(self, draft: StageDraft, snapshot: Snapshot) -> list[str]:
        """What the scheduler chooses on each node of a stage where several cards are shared."""
        found = []
        for node in dict.fromkeys(card.node for card in draft.cards):
            cards = [card for card in draft.plan.placement if card.node == node]
            shared = [card for card in cards if not all(is_whole(card, part) for part in card.slices)]
            sizes = [part.framebuffer_bytes for card in shared for part in card.slices]
            if len(shared) < 2:
                continue
            most = slices_that_meet(sizes, self.capabilities.shareable_bytes(shared[0].framebuffer_bytes))
            if most and -(-len(sizes) // most) == len(shared):
                found.append(
                    f"the scheduler chooses which of the {len(sizes)} slices of node {node} share a card: any {most} "
                    f"of them, on {len(shared)} cards"
                )
            elif self.free_cards(node or "", snapshot) > len(cards):
                found.append(
                    f"the scheduler chooses which slices share a card, and the sizes of those of node {node} leave "
                    f"open which fit together, so it may use other than the plan's {len(cards)} cards there; what is "
                    "really free is seen when they are placed"
                )
        return found


def one_share(name: str, staying: Sequence[Target]) -> tuple[SeatSlice, ...]:
    """What every pod of a template is to ask for: one slice per card, all of one container and alike.

    Args:
        name: the owner as it is called in messages.
        staying: its pods that are there after the stage.

    Raises:
        Refused: its pods would have to ask for different things.
    """
    wanted = {
        tuple(sorted(entry.after, key=lambda part: (part.container, part.framebuffer_mib, part.resource or "")))
        for entry in staying
        if entry.after
    }
    shares = {tuple((part.container, part.framebuffer_mib, part.resource) for part in one) for one in wanted}
    if len(shares) != 1:
        raise Refused(f"cannot change {name}: its pods would ask for {len(shares)} different shares in one template")
    found = next(iter(wanted))
    if len(set(next(iter(shares)))) > 1:
        raise Refused(f"cannot change {name}: cards are shared with one container of a pod, in equal parts")
    return found
