"""What stands in a cluster: nodes, cards, and who was granted which slice of which card, from when to when.

Every room speaks in these records. The exporter reads them from a node or a trace, the warehouse keeps them as the
`inventory` and `allocations` tables, the analyzer and the recommender take one `Inventory` as input. Only the
standard library is imported here: the node exporter's process loads this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import NewType

from fleet.servers import MODEL_LABEL, SERVER_LABEL

CardId = NewType("CardId", str)
"""UUID of one physical card, as the driver prints it (`GPU-…`)."""

WorkloadId = NewType("WorkloadId", str)
"""`namespace/Kind/name` of the object that owns a pod, for example `team-0/Deployment/svc-m-large-0`."""

CardModelName = NewType("CardModelName", str)
"""Name of a card model as the driver prints it, for example `NVIDIA A10`."""

PROVIDER_ID_LENGTH_MAX = 512
"""Characters of a node's provider id; Azure's longest, of a machine in a scale set, have some 330."""


class Priority(StrEnum):
    """Priority of a pod's GPU work; `NORMAL` means that nobody set one."""

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One physical card.

    Attributes:
        card_model: model as the driver prints it.
        framebuffer_bytes: whole framebuffer of the card, bytes.
        mig_mode: True where MIG is switched on, None where unknown.
        is_owned: True for bought, False for rented cards, None where unknown.
    """

    card: CardId
    card_model: CardModelName
    framebuffer_bytes: int
    node: str
    cluster: str
    mig_mode: bool | None = None
    is_owned: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One machine with cards.

    Attributes:
        cpu_cores: allocatable cores, None where unknown.
        memory_bytes: allocatable host memory, bytes, None where unknown.
        taints: `key=value:effect` strings.
        labels: label pairs, sorted by key.
        provider_id: what the provider calls it (`spec.providerID`, such as `aws:///eu-west-1a/i-0abc`), at most
            `PROVIDER_ID_LENGTH_MAX` characters, None where unknown.
    """

    node: str
    cluster: str
    cpu_cores: float | None = None
    memory_bytes: int | None = None
    taints: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    provider_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLife:
    """When a node was first and last seen, UTC, and the ids that its provider gave it, sorted."""

    first_seen: datetime
    last_seen: datetime
    provider_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What one container of one pod was granted on one card during one period.

    A pod with several cards has one grant per card; a grant that changed has one per period.

    Attributes:
        workload: name of the owner (without namespace and kind).
        workload_kind: Kubernetes kind of the owner (`Deployment`, `Job`, `Notebook` …).
        framebuffer_bytes: framebuffer of the whole card, bytes.
        compute_granted_ratio: share of the card's compute granted, 0-1.
        server: inference server or framework (`triton`, `vllm`, `pytorch` …), None where unknown.
        kv_cache_pool_bytes: size of the pre-allocated KV cache, bytes, None where the server does not pre-allocate; of
            an estimated one the least that it may be.
        kv_cache_pool_max_bytes: the most that an estimated KV cache may be; None where its size is known.
        mig_profile: profile of the MIG instance granted, None where it is none.
        memory_request_bytes: host memory requested, bytes.
        labels: labels and `gputide.io/` annotations of the pod, sorted by key.
        replicas_min: fewest replicas the owner wants to keep.
        started_at: start of the period, UTC.
        ended_at: end of the period, UTC; None while it lasts (the future is never known).
    """

    cluster: str
    namespace: str
    pod: str
    container: str
    workload: str
    workload_kind: str
    node: str
    card: CardId
    card_model: CardModelName
    framebuffer_bytes: int
    framebuffer_granted_bytes: int
    compute_granted_ratio: float
    priority: Priority
    server: str | None = None
    kv_cache_pool_bytes: int | None = None
    kv_cache_pool_max_bytes: int | None = None
    mig_profile: str | None = None
    cpu_request_cores: float | None = None
    memory_request_bytes: int | None = None
    labels: tuple[tuple[str, str], ...] = ()
    replicas_min: int | None = None
    started_at: datetime
    ended_at: datetime | None = None

    @property
    def workload_id(self) -> WorkloadId:
        """`namespace/Kind/name` of the owner."""
        return WorkloadId(f"{self.namespace}/{self.workload_kind}/{self.workload}")

    @property
    def pod_id(self) -> str:
        """`namespace/pod`, unique in a cluster."""
        return f"{self.namespace}/{self.pod}"

    def label(self, key: str) -> str | None:
        """Value of one label or annotation, None where it is not set."""
        return next((value for name, value in self.labels if name == key), None)

    def lives_at(self, moment: datetime) -> bool:
        """True when the period holds `moment` (start included, end excluded)."""
        return self.started_at <= moment and (self.ended_at is None or moment < self.ended_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """What a namespace or a queue may have of one resource; amounts in the resource's unit.

    Attributes:
        kind: `ResourceQuota`, or `volcano`, `kueue`, `kueue_local` or `kai` for queues.
        namespace: namespace; empty for queues of the whole cluster.
        parent: parent queue, cohort, or the cluster queue behind a local one; None where there is none.
        resource: name of the resource as the object writes it, such as `requests.nvidia.com/gpu`.
        deserved: what it is promised (nominal quota, guarantee); None where not said.
        limit: what it may have at most; None where not said or without end.
        held: what it held when it was last seen; None where not said.
    """

    cluster: str
    kind: str
    namespace: str
    name: str
    parent: str | None
    resource: str
    deserved: float | None
    limit: float | None
    held: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """All that was known of one cluster at one moment.

    Attributes:
        as_of: the moment, UTC; nothing later is in the record.
        time_zone: IANA name in which the cluster's people live; hours of the week are counted in it.
        cards: every card, also those granted to nobody, sorted by id.
        nodes: every node, sorted by name.
        grants: every period of every grant that is known, also ended ones, sorted by pod, card, start.
        quotas: quotas and queues that stand, sorted by kind, namespace, name, resource.
        kept_off: nodes that workloads leave out by selector or affinity, of those whose templates could be read.
    """

    cluster: str
    as_of: datetime
    time_zone: str = "UTC"
    cards: tuple[Card, ...] = ()
    nodes: tuple[Node, ...] = ()
    grants: tuple[Grant, ...] = ()
    quotas: tuple[Quota, ...] = ()
    kept_off: Mapping[WorkloadId, frozenset[str]] = field(default_factory=dict)

    def known_at(self, moment: datetime) -> Inventory:
        """What was known at an earlier moment: grants that had begun, without the ends that came later."""
        grants = tuple(
            replace(grant, ended_at=None) if grant.ended_at is not None and grant.ended_at >= moment else grant
            for grant in self.grants
            if grant.started_at < moment
        )
        return replace(self, as_of=moment, grants=grants)

    def live_grants(self) -> tuple[Grant, ...]:
        """Grants that last at `as_of`."""
        return tuple(grant for grant in self.grants if grant.lives_at(self.as_of))


OPT_OUT_LABEL = "gputide.io/opt-out"
LATENCY_CRITICAL_LABEL = "gputide.io/latency-critical"
WARM_REPLICAS_LABEL = "gputide.io/min-replicas-warm"
ISOLATION_LABEL = "gputide.io/isolation"
LATENCY_OBJECTIVE_LABEL = "gputide.io/latency-p99-seconds"
"""What the 99th percentile of a pod's request latency may be, seconds."""
FIRST_TOKEN_OBJECTIVE_LABEL = "gputide.io/ttft-p99-seconds"
"""The same of the time to the first token of an answer."""
INTER_TOKEN_OBJECTIVE_LABEL = "gputide.io/itl-p99-seconds"
"""The same of the time between two tokens."""
WISH_LABELS = (OPT_OUT_LABEL, LATENCY_CRITICAL_LABEL, WARM_REPLICAS_LABEL, ISOLATION_LABEL)
"""What tenants ask for."""
BY_POLICY_LABEL = "gputide.io/by-policy"
"""Which policy decided what of a pod's labels, as `fleet.gpu_policy.with_policies` notes it; nobody else's counts."""
NODE_MODE_LABEL = "gputide.io/node-mode"
"""Of a node that somebody put into a mode (`fleet.decisions.NodeMode`): which; no plan shares its cards otherwise."""
CORE_LIMIT_LABEL = "gputide.io/core-limit"
"""Of pods that a plan holds to a core limit at every moment: which, percent of a card."""
KEPT_APART_LABEL = "gputide.io/apart"
"""Label of nodes, such as kubernetes.io/hostname, in each of whose values at most one pod of the workload may run. The
cluster exporter reads it from the pod's own required anti-affinity."""
LIBRARY_OFF_LABEL = "gputide.io/library-off"
"""Says that a container keeps HAMi's library out of itself (`CUDA_DISABLE_CONTROL`), so that no limit holds it: the
backends that take its variable so, joined by commas. The cluster exporter reads it from the pod's own variables."""
AUTOSCALED_LABEL = "gputide.io/autoscaled"
"""Says that an autoscaler counts the replicas up and down: a schedule of replicas would work against it. Where the
cluster exporter read which one it is, the value is `fleet.autoscaling.Autoscaler.told`."""
TIER_LABEL = "gputide.io/tier"
"""Names a tier of `fleet.tiers`."""
READ_LABELS = (*WISH_LABELS, AUTOSCALED_LABEL, SERVER_LABEL, MODEL_LABEL, TIER_LABEL)
"""Labels of pods that kube-state-metrics is asked for."""

_NO_WORDS = frozenset({"false", "no", "0", "off", ""})


def is_yes(value: str | None) -> bool:
    """Whether a flag, such as `OPT_OUT_LABEL`, is set: with any value but a word for no."""
    return value is not None and value.strip().lower() not in _NO_WORDS
