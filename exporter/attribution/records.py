"""What attribution finds: who was granted which slice of which card, by which source, and where sources disagree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from exporter.allocation.records import OwnerLinkRecord
from exporter.attribution.cards import KnownCard
from exporter.attribution.cgroup import CgroupPlace
from exporter.attribution.pods import PodFacts
from exporter.kubelet.pod_resources import DeviceRow, PodRow
from fleet.grammars.claims import ClaimAllocation, PublishedDevice
from fleet.inventory import CardId, Grant


class GrantSource(StrEnum):
    """Who says that a slice was granted."""

    ANNOTATION = "annotation"
    """The pod's annotation, written by the scheduler of HAMi, Volcano, vgpu-manager or mGPU: their truth."""
    POD_RESOURCES = "pod_resources"
    """The kubelet: the truth for NVIDIA's device plugin, MIG and GKE's."""
    RESOURCE_CLAIM = "resource_claim"
    """A ResourceClaim's allocation: the truth for dynamic resource allocation."""
    RESERVATION_POD = "reservation_pod"
    """The pod that holds the card for a group of KAI's."""


class FindingKind(StrEnum):
    """What is odd."""

    CARD_DIFFERS = "card_differs"
    """Two sources name different cards; the one that is the truth for its backend counts."""
    CARD_UNKNOWN = "card_unknown"
    """A card was granted that the driver does not know: lost, replaced, or of another vendor."""
    INSTANCE_UNKNOWN = "instance_unknown"
    """A MIG instance was granted that the driver does not know: the card was cut anew since."""
    DEVICE_UNKNOWN = "device_unknown"
    """A device of a claim that no driver publishes."""
    UNREADABLE = "unreadable"
    """A device id or annotation is not the grammar."""
    DISTRUSTED = "distrusted"
    """The pod's annotation is not believed; the detail says why."""
    UNCERTAIN_CARD = "uncertain_card"
    """Only the kubelet's id is there, of a plugin that may have handed out another card."""
    UNKNOWN_AMOUNT = "unknown_amount"
    """The card is known and how much of it was granted is not; the most that it can be is counted."""
    NOT_HANDED_OUT = "not_handed_out"
    """The scheduler granted, and the kubelet has handed out nothing (yet)."""
    FINISHED_POD = "finished_pod"
    """The kubelet still lists devices of a pod that is over; they don't count."""
    UNKNOWN_POD = "unknown_pod"
    """The kubelet lists devices of a pod that the API server has not named."""
    TWO_LIVES = "two_lives"
    """The kubelet lists two pods of the same name; which of them lives is not known."""
    UNKNOWN_GROUP = "unknown_group"
    """A pod shares a card by KAI, and no reservation pod says which."""
    STRANGER = "stranger"
    """A process of a pod runs on a card that the pod was not granted."""
    VIRTUAL_MACHINE = "virtual_machine"
    """A pod in a virtual machine: what runs inside can't be seen from the node."""
    OWNERS_REFUSED = "owners_refused"
    """The API server lets nobody of this name read who owns an owner; a pod's own controller is its workload then."""
    CLAIMS_REFUSED = "claims_refused"
    """The same for claims or for what drivers publish: the kubelet alone reports dynamic resource allocation then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something odd about one pod or card.

    Attributes:
        pod: name of the pod, or its UID where only that is known.
        container: name of the container; empty where the pod as a whole is meant.
        card: id of the card; empty where it is about none.
        detail: what was seen, escaped and cut.
    """

    kind: FindingKind
    namespace: str
    pod: str
    container: str = ""
    card: str = ""
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOnCard:
    """A process that the driver lists on a card.

    Attributes:
        pid: process id on the host.
        places: where it runs, see `exporter.attribution.process_places`.
        is_mps_server: it looks like the server by which the card's tenants share it, see `exporter.attribution.mps`.
    """

    pid: int
    card: CardId
    places: tuple[CgroupPlace, ...]
    is_mps_server: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """All that is known of one node at one moment; what could not be asked is None, which is not the same as nothing.

    Attributes:
        cards: cards that the driver knows, lost ones left out.
        rows: what the kubelet handed out; None where it could not be asked.
        allocatable: what the kubelet may hand out; None where it could not be asked. Says how many share a replica.
        pods: pods of the node that have to do with cards, as last heard of; None where the API server has never been
            asked.
        owners: controller of each object that may own pods, by the object's UID; not changed afterwards.
        published: devices that drivers publish on this node.
        enclosing: UIDs of the pods that this very node runs in, see `exporter.attribution.cgroup.place_that_counts`.
    """

    cluster: str
    node: str
    cards: tuple[KnownCard, ...]
    rows: tuple[PodRow, ...] | None
    allocatable: tuple[DeviceRow, ...] | None
    pods: tuple[PodFacts, ...] | None
    owners: Mapping[str, OwnerLinkRecord]
    claims: tuple[ClaimAllocation, ...] = ()
    published: tuple[PublishedDevice, ...] = ()
    processes: tuple[ProcessOnCard, ...] = ()
    enclosing: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributedSlice:
    """What one container holds of one card.

    Attributes:
        pod_uid: UID of the pod; None where only the kubelet is known, which has none.
        instances: UUIDs of the MIG instances that it consists of, sorted; empty for others.
        sources: who says so, the one that counts first.
        is_certain: False where the card itself may be another one.
        is_amount_known: False where `grant` counts the most that it can be.
        pids: processes of the container that the driver lists on the card, sorted; empty for a slice that nobody uses.
    """

    grant: Grant
    pod_uid: str | None
    instances: tuple[str, ...]
    sources: tuple[GrantSource, ...]
    is_certain: bool
    is_amount_known: bool
    pids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """Who was granted what on one node.

    Attributes:
        slices: one per container and card, sorted by namespace, pod, container and card.
        findings: what is odd, in a stable order, at most `exporter.attribution.attributor.FINDINGS_MAX`.
        mps_servers: processes whose use is that of the tenants of their card together.
    """

    slices: tuple[AttributedSlice, ...]
    findings: tuple[Finding, ...]
    mps_servers: tuple[ProcessOnCard, ...] = ()
