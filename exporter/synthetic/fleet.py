"""Builds the inventory of a synthetic fleet: cards are bought as workloads need them and filled into nodes.

Called by `exporter.synthetic.mix` and `exporter.synthetic.traps`, which say what stands there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from exporter.synthetic.shapes import Shape
from fleet.inventory import Card, CardId, CardModelName, Grant, Node, Priority
from fleet.units import GIB

CLUSTER = "demo"

NAME_LETTERS = "bcdfghjklmnpqrstvwxz2456789"
"""Letters of the random part of a pod's name.

Source: kubernetes:staging/src/k8s.io/apimachinery/pkg/util/rand (no vowels, so that no words come about)."""

A10G = CardModelName("NVIDIA A10G")
L40S = CardModelName("NVIDIA L40S")
A6000 = CardModelName("NVIDIA RTX A6000")
L20 = CardModelName("NVIDIA L20")
A100 = CardModelName("NVIDIA A100-SXM4-80GB")
H100 = CardModelName("NVIDIA H100 80GB HBM3")
B200 = CardModelName("NVIDIA B200")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeKind:
    """A kind of machine."""

    short_name: str
    cards: int
    framebuffer_bytes: int
    cpu_cores: float
    memory_bytes: int


NODE_KINDS: Mapping[CardModelName, NodeKind] = {
    A10G: NodeKind(short_name="a10g", cards=4, framebuffer_bytes=24 * GIB, cpu_cores=64.0, memory_bytes=256 * GIB),
    L40S: NodeKind(short_name="l40s", cards=8, framebuffer_bytes=48 * GIB, cpu_cores=128.0, memory_bytes=768 * GIB),
    A6000: NodeKind(short_name="a6000", cards=8, framebuffer_bytes=48 * GIB, cpu_cores=128.0, memory_bytes=512 * GIB),
    L20: NodeKind(short_name="l20", cards=8, framebuffer_bytes=48 * GIB, cpu_cores=128.0, memory_bytes=768 * GIB),
    A100: NodeKind(short_name="a100", cards=8, framebuffer_bytes=80 * GIB, cpu_cores=128.0, memory_bytes=1024 * GIB),
    H100: NodeKind(short_name="h100", cards=8, framebuffer_bytes=80 * GIB, cpu_cores=192.0, memory_bytes=2048 * GIB),
    B200: NodeKind(short_name="b200", cards=8, framebuffer_bytes=180 * GIB, cpu_cores=224.0, memory_bytes=2048 * GIB),
}
"""Machines by card model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What the slices of one workload have in common.

    Attributes:
        replicas_min: fewest replicas that the owner keeps.
        kv_cache_pool_bytes: KV cache, for servers that pre-allocate.
    """

    namespace: str
    name: str
    kind: str = "Deployment"
    container: str = "server"
    server: str | None = "triton"
    priority: Priority = Priority.HIGH
    labels: tuple[tuple[str, str], ...] = ()
    replicas_min: int | None = None
    kv_cache_pool_bytes: int | None = None


class FleetBuilder:
    """Collects cards, grants and shapes.

    Args:
        seed: seed of the fleet; part of the card ids.
        since: start of the trace, UTC.

    Attributes:
        cards: cards bought so far.
        grants: grants so far.
        shapes: behaviour of each grant, same order.
        watched: cards that report their own counters.
    """

    def __init__(self, *, seed: int, since: datetime, days: int) -> None:
        self.seed = seed
        self.since = since
        self.days = days
        self.cards: list[Card] = []
        self.grants: list[Grant] = []
        self.shapes: list[Shape] = []
        self.watched: list[CardId] = []
        self._nodes: list[Node] = []
        self._nodes_of: dict[CardModelName, int] = {}
        self._open_nodes: dict[CardModelName, tuple[str, int]] = {}

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Nodes bought so far."""
        return tuple(self._nodes)

    def service_number(self) -> int:
        """A new number under which slices share their noise."""
        return len(self.grants)

    def buy(self, model: CardModelName, *, mig_mode: bool | None = None) -> Card:
        """One more card, in the model's last node or a new one."""
        kind = NODE_KINDS[model]
        name, free = self._open_nodes.get(model, ("", 0))
        if free == 0:
            number = self._nodes_of.get(model, 0) + 1
            self._nodes_of[model] = number
            name, free = f"gpu-{kind.short_name}-{number:02d}", kind.cards
            self._nodes.append(
                Node(node=name, cluster=CLUSTER, cpu_cores=kind.cpu_cores, memory_bytes=kind.memory_bytes)
            )
        self._open_nodes[model] = (name, free - 1)
        # Ids look like the driver's, and are the same for the same seed.
        digest = hashlib.sha256(f"{self.seed}/{len(self.cards)}".encode()).hexdigest()
        card_id = f"GPU-{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}"
        card = Card(
            card=CardId(card_id),
            card_model=model,
            framebuffer_bytes=kind.framebuffer_bytes,
            node=name,
            cluster=CLUSTER,
            mig_mode=mig_mode,
            is_owned=model in (A100, L20),
        )
        self.cards.append(card)
        return card

    def grant(
        self,
        workload: Workload,
        card: Card,
        shape: Shape,
        *,
        replica: int = 0,
        share: float = 1.0,
        lived_days: tuple[float, float | None] = (0.0, None),
        mig_profile: str | None = None,
    ) -> None:
        """Grants a replica's pod a share of a card, from one day of the period to another (None: to its end)."""
        since_days, until_days = lived_days
        kind = NODE_KINDS[card.card_model]
        self.grants.append(
            Grant(
                cluster=CLUSTER,
                namespace=workload.namespace,
                pod=self._pod_name(workload, replica),
                container=workload.container,
                workload=workload.name,
                workload_kind=workload.kind,
                node=card.node,
                card=card.card,
                card_model=card.card_model,
                framebuffer_bytes=card.framebuffer_bytes,
                framebuffer_granted_bytes=round(card.framebuffer_bytes * share),
                compute_granted_ratio=share,
                priority=workload.priority,
                server=workload.server,
                kv_cache_pool_bytes=workload.kv_cache_pool_bytes,
                mig_profile=mig_profile,
                cpu_request_cores=kind.cpu_cores / kind.cards / 2 * share,
                memory_request_bytes=round(kind.memory_bytes / kind.cards / 2 * share),
                labels=tuple(sorted((*workload.labels, ("app", workload.name)))),
                replicas_min=workload.replicas_min,
                started_at=self.since + timedelta(days=since_days),
                ended_at=None if until_days is None else self.since + timedelta(days=until_days),
            )
        )
        self.shapes.append(shape)

    def _pod_name(self, workload: Workload, replica: int) -> str:
        """The name that the workload's controller would give: the same for the same seed."""
        if workload.kind == "Notebook":
            return f"{workload.name}-{replica}"
        owner = f"{self.seed}/{workload.namespace}/{workload.name}"
        middle = f"-{_letters(owner, 10)}" if workload.kind == "Deployment" else ""
        return f"{workload.name}{middle}-{_letters(f'{owner}/{replica}', 5)}"


def _letters(text: str, count: int) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return "".join(NAME_LETTERS[byte % len(NAME_LETTERS)] for byte in digest[:count])
