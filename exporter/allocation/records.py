"""What is kept of each Kubernetes object: a compact record of the fields that the scheduler layer needs.

At 50,000 pods whole manifests would take gigabytes, so each is read once, when it arrives, and dropped. Made by
`pods`, `nodes` and `queues`; kept by `exporter.allocation.state`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from fleet.autoscaling import Autoscaler
from fleet.gpu_policy import GpuPolicy
from fleet.grammars.claims import ClaimAllocation, ClaimedDevice, DeviceTaint, PublishedDevice, TaintRule
from fleet.inventory import Priority


class SharingBackend(StrEnum):
    """Who hands out a node's cards; the value is the label `backend`."""

    HAMI = "hami"
    VOLCANO = "volcano"
    VGPU_MANAGER = "vgpu_manager"
    MGPU = "mgpu"
    KAI = "kai"
    DRA = "dra"
    NVIDIA = "nvidia"
    """NVIDIA's device plugin: whole cards, time slices, MPS shares or MIG instances."""


class DistrustReason(StrEnum):
    """Why an annotation that speaks of a grant is not counted as one; the value is the label `reason`."""

    BIND_FAILED = "bind_failed"
    """The scheduler chose a card, and binding or handing out failed; the annotation stays."""
    UNBOUND = "unbound"
    """The scheduler chose a card, and the pod is not bound to its node yet."""
    NODE_DIFFERS = "node_differs"
    """The annotation was written for another node than the one that the pod is on."""
    FINISHED = "finished"
    """The pod has ended, and its annotation stays as long as the object does."""
    CORRUPT = "corrupt"
    """Not the grammar, larger than its bounds, or for more containers than there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerLinkRecord:
    """Who owns an object."""

    uid: str
    kind: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedRecord:
    """An object that may own pods, and has an owner itself."""

    uid: str
    owner: OwnerLinkRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRecord:
    """What a driver publishes by one ResourceSlice.

    Attributes:
        node: node of the devices; None for devices that any node can reach.
    """

    node: str | None
    devices: tuple[PublishedDevice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CardShare:
    """What one container was granted on one card, as an annotation says it.

    Attributes:
        framebuffer_bytes: framebuffer granted, bytes; None for a whole card and where nothing is said.
        compute_ratio: limit on its compute, share of the card, 0-1; None for no limit.
    """

    container: str
    card: str
    framebuffer_bytes: int | None
    compute_ratio: float | None
    mig_profile: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupShare:
    """What one container shares of the cards of KAI's groups; the cards are known by the groups' reservation pods.

    Attributes:
        groups: names of the groups, one per card.
        framebuffer_bytes: framebuffer of each card, bytes; None where it asked by ratio.
        ratio: share of each card, 0-1; None where it asked by framebuffer.
        is_capped: asked by the annotations of `NvFractions`.
        cards: UUIDs of the cards that the container sees, by the pod's own annotation; empty where it does not say.
    """

    container: str
    groups: tuple[str, ...]
    framebuffer_bytes: int | None
    ratio: float | None
    is_capped: bool = False
    cards: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerNeeds:
    """What one container asks for.

    Attributes:
        devices: name and number of each resource that counts GPU devices, sorted.
        claims: names, within the pod, of the resource claims that it uses.
        requests: claim and request, of those of which it uses some requests only.
        is_init: it runs before the others and ends; a sidecar does not.
        server: server or framework that runs in it (`fleet.servers`); None where nothing says it.
        kv_cache_pool_bytes: size of its KV cache, where its command fixes it; None elsewhere.
    """

    container: str
    devices: tuple[tuple[str, float], ...]
    cpu_cores: float | None
    memory_bytes: int | None
    priority: Priority
    claims: tuple[str, ...] = ()
    requests: tuple[tuple[str, str], ...] = ()
    is_init: bool = False
    server: str | None = None
    kv_cache_pool_bytes: int | None = None

    def given(self, claim: str, allocation: ClaimAllocation) -> tuple[ClaimedDevice, ...]:
        """What it has of a claim, by the claim's name within the pod; nothing of one that it does not use."""
        requests = {request for name, request in self.requests if name == claim}
        return allocation.given(requests) if claim in self.claims else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRecord:
    """One pod that asks for cards, holds one, or reserves one for others.

    Attributes:
        node: node that it is bound to; None while it waits.
        is_over: it has succeeded or failed, and holds nothing any more.
        bound_at: when it was bound, epoch seconds; None while it waits and where the object does not say.
        owner: its controller; None where it has none.
        containers: what its containers ask for, init containers first.
        labels: labels and `gputide.io/` annotations, sorted by key, within bounds.
        selectable: the labels that policies select by, within wider bounds; None where `labels` has all of them.
        shares: what it was granted by annotations that are to be trusted.
        groups: what it shares by KAI; empty until it is bound.
        claims: name within the pod, and name in its namespace, of each resource claim.
        reserves: KAI's groups that this reservation pod holds a card for, and the card; empty for other pods.
        distrust: why its annotations are not counted; None where they are, or where it has none.
        queue: queue that it waits in or came through, by its own labels; None where it names none.
        waits_for: why it is not bound; None for a bound pod, and one that is over.
        waits_since: since when, epoch seconds; None where the object does not say.
    """

    namespace: str
    pod: str
    uid: str
    node: str | None
    is_over: bool
    bound_at: float | None
    owner: OwnerLinkRecord | None
    containers: tuple[ContainerNeeds, ...]
    labels: tuple[tuple[str, str], ...]
    selectable: tuple[tuple[str, str], ...] | None = None
    shares: tuple[CardShare, ...] = ()
    groups: tuple[GroupShare, ...] = ()
    claims: tuple[tuple[str, str], ...] = ()
    reserves: tuple[tuple[str, str], ...] = ()
    distrust: DistrustReason | None = None
    queue: str | None = None
    scheduler: str = ""
    waits_for: str | None = None
    waits_since: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CardRecord:
    """One card of a node, as its device plugin registers it.

    Attributes:
        card_model: model as the driver prints it.
        framebuffer_bytes: framebuffer of the card, bytes; None where only what may be granted is known.
        grantable_bytes: framebuffer that may be granted, bytes, oversubscription included; None where not said.
        compute_ratio: compute that may be granted, share of the card; None where not said.
        slices_max: how many slices it is split into at most; None where not said.
        mode: how it is shared, in the backend's own word; None where not said.
        is_healthy: False takes it out of scheduling; None where not said.
        is_cordoned: nothing new is granted on it.
        taints: what its driver and administrators say of it, where claims hand it out.
    """

    card: str
    card_model: str
    framebuffer_bytes: int | None
    grantable_bytes: int | None
    backend: SharingBackend
    compute_ratio: float | None = None
    slices_max: int | None = None
    mode: str | None = None
    is_healthy: bool | None = None
    is_cordoned: bool = False
    taints: tuple[DeviceTaint, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord:
    """One node that has cards.

    Attributes:
        cpu_cores: allocatable cores; None where not said.
        memory_bytes: allocatable host memory, bytes; None where not said.
        taints: `key=value:effect` texts.
        labels: labels, sorted by key, within bounds.
        provider_id: what the provider calls it; None where not said, or longer than `PROVIDER_ID_LENGTH_MAX`.
        cards: cards that device plugins registered.
        devices: name and allocatable number of each resource that counts GPU devices, sorted.
        sharing: backend and mode of each way in which its cards are handed out, sorted.
        card_model: model by gpu-feature-discovery's label; None where not said.
        framebuffer_bytes: framebuffer of each of its cards by the same; None where not said.
        mig_config: name of the wanted MIG configuration; None where not said.
        mig_state: what MIG manager says of it (`success`, `pending`, `failed` …); None where not said.
        unreadable: annotations that are not the grammar.
        numbered: cards that HAMi's scheduler numbers by the node's capacity; whether it is HAMi that hands them out,
            only a pod that was granted one reports.
        caps_fractions: KAI's `NvFractions` is ready there; its admission lets the scheduler alone say which cards a
            container sees.
    """

    node: str
    cpu_cores: float | None
    memory_bytes: int | None
    taints: tuple[str, ...]
    labels: tuple[tuple[str, str], ...]
    cards: tuple[CardRecord, ...]
    devices: tuple[tuple[str, float], ...]
    sharing: tuple[tuple[SharingBackend, str], ...]
    card_model: str | None = None
    framebuffer_bytes: int | None = None
    mig_strategy: str | None = None
    mig_config: str | None = None
    mig_state: str | None = None
    unreadable: int = 0
    numbered: tuple[CardRecord, ...] = ()
    caps_fractions: bool = False
    provider_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AmountRecord:
    """How much of one resource a queue or quota speaks of.

    Attributes:
        resource: name of the resource, as the object writes it.
        deserved: what it is promised (nominal quota, deserved, guarantee); None where not said.
        limit: what it may have at most; None where not said or without end.
        used: what is held now; None where not said.
    """

    resource: str
    deserved: float | None = None
    limit: float | None = None
    used: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRecord:
    """One queue or quota.

    Attributes:
        kind: `ResourceQuota`, or `volcano`, `kueue`, `kueue_local` or `kai` for queues.
        namespace: namespace; empty for queues of the whole cluster.
        parent: parent queue, cohort, or the cluster queue behind a local one; None where there is none.
        amounts: per resource, GPU resources only, sorted.
        pending: workloads that wait in it; None where not said.
        admitted: workloads that run by it; None where not said.
    """

    kind: str
    namespace: str
    name: str
    parent: str | None
    amounts: tuple[AmountRecord, ...]
    pending: int | None = None
    admitted: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingRecord:
    """One group of pods that waits as a whole: a PodGroup of Volcano, or a Workload of Kueue.

    Attributes:
        kind: `PodGroup` or `Workload`.
        reason: why it waits, one word.
    """

    kind: str
    namespace: str
    name: str
    queue: str | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoscalerRecord:
    """One autoscaler."""

    namespace: str
    target_kind: str
    target: str
    autoscaler: Autoscaler


Record = (
    NodeRecord
    | PodRecord
    | OwnedRecord
    | QueueRecord
    | WaitingRecord
    | ClaimAllocation
    | PublishedRecord
    | TaintRule
    | AutoscalerRecord
    | GpuPolicy
)
"""Whatever is kept of an object."""

Key = tuple[str, str]
"""Namespace and name of an object; the namespace is empty for objects of the whole cluster."""
