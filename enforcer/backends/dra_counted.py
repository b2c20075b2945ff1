"""Dynamic resource allocation by parts of a card's memory: each pod has a claim of its own, which is counted.

Unlike the claim that pods share (`dra`), these may meet across namespaces, and a workload may sit on several cards. The
driver publishes cards that several claims may hold only behind its gate ConsumableShares; nothing enforces what is
counted. Which card of its node a claim gets is the scheduler's choice (`node_shares`): it takes the first that has the
capacity left.

Sources: kubernetes/api:resource/v1/types.go (CapacityRequirements, Device.AllowMultipleAllocations),
kubernetes-sigs/dra-driver-nvidia-gpu:demo/specs/consumable-shares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import itemgetter

from enforcer.backend import RenderedStage
from enforcer.backends.device_plugin import counted_slice
from enforcer.backends.dra import DraDialect, check_rolled, claim_fields
from enforcer.backends.dra_claims import CARD_CLASS, Claim, claim_manifest, counted_claim
from enforcer.backends.node_shares import NodeSharesBackend, one_share
from enforcer.backends.stage import StageDraft, Target
from enforcer.dialect import Dialect, SeatSlice
from enforcer.manifest import Manifest, workload_parts
from enforcer.snapshot import Snapshot
from fleet.capabilities.dra import DRA_CONSUMABLE
from fleet.errors import Refused
from fleet.grammars.claims import ClaimAllocation
from fleet.units import MIB

SHARE_RESOURCE = f"{CARD_CLASS}/memory"
"""Stands in the seat of a pod that claims a part of a card."""


class DraCountedDialect(DraDialect):
    """Claims by what they consume of which node's cards (the port `ListingDialect`)."""

    def shareable_mib(self, node: str) -> int | None:
        """MiB of each of a node's open cards, the smallest; None where one of them may be held by one claim only."""
        cards = [
            device
            for (pool, _), device in self._devices.items()
            if pool == node and device.parent is None and not any(taint.closes for taint in device.taints)
        ]
        sizes = [device.framebuffer_bytes for device in cards if device.is_shareable and device.framebuffer_bytes]
        return min(sizes) // MIB if sizes and len(sizes) == len(cards) else None

    def _slices(self, container: str, claim: ClaimAllocation, shared: str | None) -> list[SeatSlice]:
        found = []
        for given in claim.devices:
            device = self._devices.get((given.pool, given.device))
            if device is None or device.parent is not None:
                continue
            size, consumed = device.framebuffer_bytes or 0, given.framebuffer_bytes
            if consumed is None or consumed >= size:
                found.append(counted_slice(container, given.pool, CARD_CLASS))
            else:
                found.append(
                    SeatSlice(
                        container=container,
                        card=None,
                        framebuffer_mib=consumed // MIB,
                        node=given.pool,
                        resource=SHARE_RESOURCE,
                    )
                )
        return found or super()._slices(container, claim, shared)


class DraCountedBackend(NodeSharesBackend):
    """Claims of parts of cards (the port `Backend`)."""

    capabilities = DRA_CONSUMABLE
    dialect: Dialect = DraCountedDialect()
    whole_resource = CARD_CLASS
    share_resource = SHARE_RESOURCE

    def share_fields(
        self, owner: Manifest, kind: str, staying: Sequence[Target], snapshot: Snapshot
    ) -> dict[str, str | None]:
        """The claim's name in the template; see the base."""
        claim, container = _claim(owner["metadata"]["namespace"], kind, owner["metadata"]["name"], staying)
        return claim_fields(owner, kind, claim, {container}, snapshot)

    def shareable_mib(self, node: Manifest, snapshot: Snapshot) -> int:
        """What the driver publishes; see the base."""
        dialect, name = snapshot.dialect, node["metadata"]["name"]
        found = dialect.shareable_mib(name) if isinstance(dialect, DraCountedDialect) else None
        if found is None:
            raise Refused(
                f"cannot share cards of node {name}: its driver publishes cards that one claim holds alone "
                "(allowMultipleAllocations is not set); turn on its gate ConsumableShares with the policy memory, or "
                "set enforcer.backend=dra_shared"
            )
        return found

    def free_cards(self, node: str, snapshot: Snapshot) -> int:
        """Cards that the driver publishes and nobody closed; see the base."""
        return sum(card.node == node and card.closed_by is None for card in snapshot.cards.values())

    def check_draft(self, draft: StageDraft, snapshot: Snapshot) -> None:
        """Refuse closed cards as well; see the base."""
        check_rolled(draft, snapshot)
        super().check_draft(draft, snapshot)

    def with_objects(self, stage: RenderedStage, draft: StageDraft) -> RenderedStage:
        """The stage with the templates of claims that it names; see the base."""
        objects: dict[tuple[str, str, str], Manifest] = {}
        for workload, targets in draft.targets.items():
            staying = [entry for entry in targets if entry.after]
            if not any(entry.new for entry in staying):
                continue
            namespace, kind, name = workload_parts(workload)
            claim, _ = _claim(namespace, kind, name, staying)
            objects[claim.kind, namespace, claim.name] = claim_manifest(claim, namespace)
        return replace(stage, objects=tuple(manifest for _, manifest in sorted(objects.items(), key=itemgetter(0))))


def _claim(namespace: str, kind: str, name: str, staying: Sequence[Target]) -> tuple[Claim, str]:
    """The claim that a template names for all its pods, and the container that holds it."""
    shares = one_share(f"{kind} {namespace}/{name}", staying)
    part = shares[0].framebuffer_mib if shares[0].resource == SHARE_RESOURCE else None
    return counted_claim(name, framebuffer_mib=part, count=len(shares)), shares[0].container
