"""A small cluster whose nodes tell what its pods use, and a relief over it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from enforcer.agent.node_view import CardView, NodeView, SliceView
from enforcer.agent.orders import Orders, parse_orders
from enforcer.cluster import ClusterReader, FieldChange
from enforcer.record.ledger import Ledger
from enforcer.relief.moving import Patience
from enforcer.relief.relief_context import ReliefContext, ReliefPolicy
from enforcer.relief.relief_journal import ReliefJournal
from enforcer.relief.runner import ReliefLook, ReliefMetrics, ReliefRunner
from enforcer.relief.squeeze import OrdersWriter
from enforcer.safety.guard import GuardPolicy
from enforcer.simulated.cluster import SimulatedCluster
from enforcer.snapshot import take_snapshot
from fleet.inventory import Grant, Priority
from fleet.relief.rules import ReliefRules
from tests.enforcer.builders import HALF, OpenGuard, a_cluster, a_grant, card_id

POLICY = ReliefPolicy(
    patience=Patience(ready_seconds_max=120.0, leave_seconds_max=60.0),
    rules=ReliefRules(sustain_seconds=2.0, rest_seconds=300, home_seconds=300),
    calm_seconds=10.0,
)


def two_on_a_card() -> list[Grant]:
    """Services a and b share card 0 with the low priority of c; d has card 1; the others are free."""
    third = HALF // 2
    return [
        a_grant("a", 0, 0, framebuffer_bytes=third),
        a_grant("b", 0, 0, framebuffer_bytes=third),
        a_grant("c", 0, 0, framebuffer_bytes=third, priority=Priority.LOW),
        a_grant("d", 0, 1, framebuffer_bytes=HALF),
    ]


def views_of(
    reader: ClusterReader,
    use: Mapping[str, float],
    *,
    free_ratio: float = 0.4,
    used_ratio: float = 0.8,
    asleep: Collection[str] = (),
) -> dict[str, NodeView]:
    """What the nodes of a cluster would tell.

    Args:
        reader: the cluster.
        use: share of a card that each workload's pods want, by the start of their name; what together exceeds a card
            is cut to it.
        free_ratio: framebuffer that is free on every card.
        used_ratio: framebuffer that every pod uses of its grant.
        asleep: UIDs of pods that the node's agent put to sleep.
    """
    snapshot = take_snapshot(reader)
    at = reader.now().timestamp()
    uids = {
        f"{pod['metadata']['namespace']}/{pod['metadata']['name']}": pod["metadata"].get("uid")
        for pod in reader.list_objects("Pod")
    }
    slices: dict[str, list[SliceView]] = {node: [] for node in snapshot.nodes}
    wanted: dict[str, float] = {}
    wants: dict[str, float] = {}
    # Who has a card but is not bound to its node yet, or is gone by now, runs nowhere.
    seats = [seat for seat in snapshot.seats.values() if seat.node in slices and seat.pod_id in uids]
    for seat in seats:
        for part in seat.slices:
            wants[seat.pod_id] = 0.0 if uids[seat.pod_id] in asleep else _use(seat.pod, use)
            wanted[str(part.card)] = wanted.get(str(part.card), 0.0) + wants[seat.pod_id]
    for seat in seats:
        for part in seat.slices:
            scale = max(1.0, wanted[str(part.card)])
            slices[str(seat.node)].append(
                SliceView(
                    namespace=seat.namespace, pod=seat.pod, pod_uid=uids[seat.pod_id], container=part.container,
                    card=str(part.card), priority=Priority.LOW if part.priority == "1" else Priority.NORMAL,
                    framebuffer_used_bytes=int(used_ratio * part.framebuffer_mib * 2**20),
                    framebuffer_granted_bytes=part.framebuffer_mib * 2**20,
                    framebuffer_limit_bytes=None, duty_cycle_ratio=wants[seat.pod_id] / scale,
                )
            )  # fmt: skip
    return {
        node: NodeView(
            at_seconds=at,
            cards=tuple(
                CardView(
                    card=card.card, framebuffer_bytes=card.framebuffer_mib * 2**20,
                    framebuffer_free_bytes=int(free_ratio * card.framebuffer_mib * 2**20),
                    duty_cycle_ratio=min(1.0, wanted.get(card.card, 0.0)),
                )
                for card in snapshot.cards.values() if card.node == node
            ),
            slices=tuple(slices[node]),
        )
        for node in snapshot.nodes
    }  # fmt: skip


def _use(pod: str, use: Mapping[str, float]) -> float:
    return next((ratio for name, ratio in use.items() if pod.startswith(f"{name}-")), 0.0)


@dataclass
class World:
    """A simulated cluster with a relief; mutable: time passes.

    Attributes:
        blind: workloads of which nobody says what they use.
        is_card_known: whether their cards say what they do.
    """

    folder: Path
    cluster: SimulatedCluster
    use: dict[str, float] = field(default_factory=dict)
    free_ratio: float = 0.4
    blind: frozenset[str] = frozenset()
    is_card_known: bool = True
    policy: ReliefPolicy = POLICY
    tool_changes: dict[str, Any] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    metrics: ReliefMetrics | None = None

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """A new relief over the same folder and cluster."""
        self.journal = ReliefJournal(Ledger(self.folder / "relief.jsonl"))
        tools = ReliefContext(
            reader=self.cluster,
            writer=self.cluster,
            lease=self.cluster,
            holder="relief",
            guard=OpenGuard(GuardPolicy(gaps_allowed=True)),
            dialect=take_snapshot(self.cluster).dialect,
            journal=self.journal,
            orders=OrdersWriter(self.cluster, self.cluster, namespace="gputide", name="gputide-orders"),
        )
        self.tools = replace(tools, **self.tool_changes)
        self.runner = ReliefRunner(self.tools, self.policy)

    def look(self) -> ReliefLook:
        """Look once; the agents follow the orders of before."""
        orders = [found for node in ("node-0", "node-1") if (found := self.orders(node)) is not None]
        asleep = {key.pod_uid for entry in orders if entry.expires_at > self.cluster.now() for key in entry.paused}
        views = views_of(self.cluster, self.use, free_ratio=self.free_ratio, asleep=asleep)
        views = {node: self._as_seen(view) for node, view in views.items()}
        result = self.runner.look(views) if self.metrics is None else self.metrics.look(self.runner, views)
        self.said += result.said
        return result

    def _as_seen(self, view: NodeView) -> NodeView:
        """A view in which nobody says what blind workloads use, nor their cards where these are not known."""
        hidden = {part.card for part in view.slices if part.pod.partition("-")[0] in self.blind}
        return replace(
            view,
            slices=tuple(
                replace(part, duty_cycle_ratio=None) if part.pod.partition("-")[0] in self.blind else part
                for part in view.slices
            ),
            cards=tuple(
                card if self.is_card_known or card.card not in hidden else replace(card, duty_cycle_ratio=None)
                for card in view.cards
            ),
        )

    def run(self, seconds: float, step: float = 1.0) -> None:
        """Look again and again while time passes."""
        passed = 0.0
        while passed < seconds:
            self.look()
            self.cluster.pause(step)
            passed += step

    def cards(self) -> dict[str, int]:
        """Number of the card of each workload's first pod."""
        return {
            str(seat.workload).rpartition("/")[2]: int(str(seat.slices[0].card)[-12:])
            for seat in take_snapshot(self.cluster).seats.values()
            if seat.slices
        }

    def orders(self, node: str = "node-0") -> Orders | None:
        found = self.cluster.get("ConfigMap", "gputide", "gputide-orders")
        return None if found is None or node not in found["data"] else parse_orders(found["data"][node])

    def change_owner(self, name: str, **annotations: str) -> None:
        """A user writes annotations on a Deployment."""
        found = self.cluster.get("Deployment", "team", name)
        assert found is not None
        fields = [
            FieldChange(field=f"metadata.annotations[gputide.io/{key.replace('_', '-')}]", value=value)
            for key, value in annotations.items()
        ]
        self.cluster.patch("Deployment", "team", name, fields, found["metadata"]["resourceVersion"])


def a_world(folder: Path, grants: list[Grant] | None = None, **changes: Any) -> World:
    return World(folder, a_cluster(folder, two_on_a_card() if grants is None else grants, cards=4), **changes)


__all__ = ["POLICY", "World", "a_world", "card_id", "two_on_a_card", "views_of"]
