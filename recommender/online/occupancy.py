"""Who sits on which card of a live inventory, what that leaves, and where pods of a card would fit instead.

Cards are filed by the room they have, so a place is found without looking at every card of a large cluster. Called
by `online.advice`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from fleet.inventory import ISOLATION_LABEL, OPT_OUT_LABEL, Card, CardId, CardModelName, Grant, Inventory, Node
from fleet.sharing import GRANT_SLACK_BYTES

PODS_PER_CARD_MAX = 64
"""Cards with more pods than this are not emptied."""
LOOKED_AT_MAX = 256
"""Cards with enough room that are looked at for one pod before it is given up."""
_ROOM_STEPS = 100
_NOISE_RATIO = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Relocation:
    """Where one pod of a cordoned card would fit.

    Attributes:
        pod: `namespace/pod`.
    """

    pod: str
    source: CardId
    target: CardId


class Occupancy:
    """Who sits on which card and what is left; mutable: rehoming takes room."""

    def __init__(self, inventory: Inventory, live: Sequence[Grant]) -> None:
        """Seats the live grants of an inventory."""
        self.nodes: dict[str, Node] = {node.node: node for node in inventory.nodes}
        self.cards_of: dict[str, list[Card]] = defaultdict(list)
        self.on: dict[CardId, list[Grant]] = {card.card: [] for card in inventory.cards}
        for card in inventory.cards:
            self.cards_of[card.node].append(card)
        cards_of_pod: dict[tuple[str, str], set[CardId]] = defaultdict(set)
        self._cpu: dict[str, float] = defaultdict(float)
        self._memory: dict[str, int] = defaultdict(int)
        for grant in live:
            if grant.card in self.on:
                self.on[grant.card].append(grant)
            if (grant.pod_id, grant.container) not in cards_of_pod:
                self._cpu[grant.node] += grant.cpu_request_cores or 0.0
                self._memory[grant.node] += grant.memory_request_bytes or 0
            cards_of_pod[grant.pod_id, grant.container].add(grant.card)
        spread: dict[str, set[CardId]] = defaultdict(set)
        for (pod, _), held in cards_of_pod.items():
            spread[pod] |= held
        self._spread = frozenset(pod for pod, held in spread.items() if len(held) > 1)
        self.models = sorted({card.card_model for card in inventory.cards})
        self._room: dict[CardModelName, list[dict[CardId, Card]]] = {
            model: [{} for _ in range(_ROOM_STEPS + 1)] for model in self.models
        }
        self._step: dict[CardId, int] = {}
        self._closed: set[CardId] = set()
        for card in inventory.cards:
            self._sort_in(card)

    def load(self, node: str) -> float:
        """Share of its cards that is granted, in cards."""
        return sum(1.0 - self.free_ratio(card) for card in self.cards_of[node])

    def free_ratio(self, card: Card) -> float:
        """Share of a card that is granted to nobody: the lesser of compute and framebuffer, 0-1."""
        compute = sum(grant.compute_granted_ratio for grant in self.on[card.card])
        framebuffer = sum(grant.framebuffer_granted_bytes for grant in self.on[card.card]) / card.framebuffer_bytes
        return float(min(max(1.0 - max(compute, framebuffer), 0.0), 1.0))

    def free_cpu_cores(self, node: str) -> float | None:
        """Cores that nobody asked for; None where the node's are not known."""
        known = self.nodes[node].cpu_cores if node in self.nodes else None
        return None if known is None else max(known - self._cpu[node], 0.0)

    def free_memory_bytes(self, node: str) -> int | None:
        """Host memory that nobody asked for; None where the node's is not known."""
        known = self.nodes[node].memory_bytes if node in self.nodes else None
        return None if known is None else max(known - self._memory[node], 0)

    def close(self, cards: Sequence[Card]) -> None:
        """Keeps these cards out of every later search for a place."""
        for card in cards:
            self._closed.add(card.card)
            self._sort_in(card)

    def rehome(
        self, cards: Sequence[Card], *, forbidden: set[CardId], onto_busy_only: bool = False
    ) -> tuple[Relocation, ...] | None:
        """A place for every pod of these cards; None, and nothing taken, where one finds none.

        Args:
            onto_busy_only: True where a pod may only go to a card that somebody is on already.
        """
        if any(not self._may_leave(card) for card in cards):
            return None
        done: list[tuple[Grant, Card]] = []
        leaving = [grant for card in cards for grant in self.on[card.card]]
        for grant in sorted(leaving, key=lambda grant: (-grant.framebuffer_granted_bytes, grant.pod_id, grant.card)):
            target = self._place_of(grant, forbidden, onto_busy_only=onto_busy_only)
            if target is None:
                for taken, card in reversed(done):
                    self.on[card.card].remove(taken)
                    self._take(taken, card, -1)
                return None
            done.append((grant, target))
            self.on[target.card].append(grant)
            # What it had on its node is promised to nobody: it leaves when somebody makes it leave.
            self._take(grant, target, 1)
        for card in cards:
            self.on[card.card] = []
            self._sort_in(card)
        moves = [Relocation(pod=grant.pod_id, source=grant.card, target=card.card) for grant, card in done]
        return tuple(sorted(moves, key=lambda move: (move.pod, move.source)))

    def _may_leave(self, card: Card) -> bool:
        grants = self.on[card.card]
        return (
            card.mig_mode is not True
            and len(grants) <= PODS_PER_CARD_MAX
            and not any(
                grant.pod_id in self._spread or grant.mig_profile or grant.label(OPT_OUT_LABEL) is not None
                for grant in grants
            )
        )

    def _place_of(self, grant: Grant, forbidden: set[CardId], *, onto_busy_only: bool) -> Card | None:
        """The fullest card that takes the pod, among the first that have room for it."""
        share = max(grant.compute_granted_ratio, grant.framebuffer_granted_bytes / grant.framebuffer_bytes)
        looked_at = 0
        for room in self._room.get(grant.card_model, [])[min(int(share * _ROOM_STEPS), _ROOM_STEPS) :]:
            for card in room.values():
                if card.card in forbidden or (onto_busy_only and not self.on[card.card]):
                    continue
                if self._fits(grant, card):
                    return card
                looked_at += 1
                if looked_at >= LOOKED_AT_MAX:
                    return None
        return None

    def _fits(self, grant: Grant, card: Card) -> bool:
        there = self.on[card.card]
        framebuffer = sum(other.framebuffer_granted_bytes for other in there) + grant.framebuffer_granted_bytes
        compute = sum(other.compute_granted_ratio for other in there) + grant.compute_granted_ratio
        if framebuffer > card.framebuffer_bytes + GRANT_SLACK_BYTES or compute > 1.0 + _NOISE_RATIO:
            return False
        if card.mig_mode is True or any(other.workload_id == grant.workload_id for other in there):
            return False
        if any(_isolation(other) != _isolation(grant) for other in there):
            return False
        return card.node == grant.node or self._node_takes(grant, card.node)

    def _node_takes(self, grant: Grant, node: str) -> bool:
        cpu, memory = self.free_cpu_cores(node), self.free_memory_bytes(node)
        if cpu is not None and (grant.cpu_request_cores or 0.0) > cpu:
            return False
        if memory is not None and (grant.memory_request_bytes or 0) > memory:
            return False
        own = self.nodes[grant.node].taints if grant.node in self.nodes else ()
        return set(self.nodes[node].taints if node in self.nodes else ()) <= set(own)

    def _take(self, grant: Grant, card: Card, sign: int) -> None:
        if card.node != grant.node:
            self._cpu[card.node] += sign * (grant.cpu_request_cores or 0.0)
            self._memory[card.node] += sign * (grant.memory_request_bytes or 0)
        self._sort_in(card)

    def _sort_in(self, card: Card) -> None:
        """Files the card under the room that it has."""
        rooms = self._room[card.card_model]
        if card.card in self._step:
            del rooms[self._step.pop(card.card)][card.card]
        if card.card in self._closed:
            return
        self._step[card.card] = int(self.free_ratio(card) * _ROOM_STEPS + _NOISE_RATIO)
        rooms[self._step[card.card]][card.card] = card


def _isolation(grant: Grant) -> str:
    """A pod that asks for hard isolation shares with its own namespace only."""
    return grant.namespace if grant.label(ISOLATION_LABEL) == "hard" else ""
