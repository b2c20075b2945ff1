"""Which physical card each bin becomes: a card that one of its pods already holds, on as few nodes as possible.

A pod that stays on its card is not moved, so a bin takes the card of one of its own pods; among those, nodes are
filled one by one so that whole nodes are freed. A node's CPU and host memory are respected where they are known, and
its taints and labels: a pod tolerates the taints of the node that it runs on, and selects nodes like those on which its
workload ran; where its template could be read (`Inventory.kept_off`), none that this leaves out. Called by `planner`.
"""

from __future__ import annotations

from collections import ChainMap, Counter, defaultdict
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from dataclasses import dataclass
from math import inf

from fleet.inventory import KEPT_APART_LABEL, CardId, Grant, Inventory, WorkloadId
from fleet.workload_kinds import JOB_KINDS

DESCRIBED_PREFIXES = (
    "kubernetes.io/hostname", "nvidia.com/", "feature.node.kubernetes.io/", "gputide.io/",
    "vke.volcengine.com/mgpu-compute-policy",
)  # fmt: skip
"""Labels that describe one machine, its cards, and how they are shared (`node_terms`). Nobody is taken to select by
them unless a template says so: cards are matched by their model."""

HOSTNAME_LABEL = "kubernetes.io/hostname"
"""Every node has one of its own, whether the inventory has its labels or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """One card and who sits on it.

    Attributes:
        rows: rows of the demand, ascending.
    """

    card: CardId
    node: str
    rows: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BinSeats:
    """Bins on cards, or the pods because of which they can't be seated like this.

    Attributes:
        seats: one per card, sorted by card.
        roomless: rows whose bin finds no node with room for it, and whose own card went to others.
        cardless: the same of bins that find no card: pods share cards more closely today than bins do.
    """

    seats: tuple[Seat, ...]
    roomless: tuple[int, ...]
    cardless: tuple[int, ...]


def seat_bins(
    bins: Sequence[Sequence[int]],
    grants: Sequence[Grant],
    inventory: Inventory,
    resting: Sequence[int],
    *,
    gives_back: bool = False,
    may_share: Callable[[Sequence[int]], bool] = lambda _rows: True,
) -> BinSeats:
    """Gives every bin a card.

    Args:
        bins: rows of each bin, all bins of one card model.
        resting: rows that stay where they are (their nodes can't be freed).
        gives_back: whether others may have the room of pods that go to other nodes; somebody must find an order then in
            which each finds it (`recommender.surge`).
        may_share: whether some rows of a bin may share a card without the others.

    Returns:
        Seats; of a bin that fits no node's CPU or memory as many pods share a card as find room, and the others stay on
        the cards that they hold. Where one of these went to another bin, the row is named, and the seats can't all be
        had.
    """
    seating = _Seating(bins, grants, NodeRoom(inventory, grants), kept={grants[row].node for row in resting})
    new = seating.seat_waiting()
    while gives_back and new and seating.waiting:
        for seat in new:
            for row in seat.rows:
                if grants[row].node != seat.node:
                    seating.room.give_back(grants[row], seat.node)
        new = seating.seat_waiting()
    seats, roomless, cardless = seating.seats, list[int](), list[int]()
    for number in sorted(seating.waiting):
        has_card = any(grants[row].card not in seats for row in _anchors(bins[number], grants))
        lost = roomless if has_card else cardless
        left = list(bins[number])
        while (part := _largest_part(left, grants, seats, seating.room, may_share)) is not None:
            seats[part.card] = part
            left = [row for row in left if row not in part.rows]
        for row in left:
            grant = grants[row]
            if grant.card in seats:
                lost.append(row)
            else:
                seats[grant.card] = Seat(card=grant.card, node=grant.node, rows=(row,))
    return BinSeats(
        seats=tuple(seats[card] for card in sorted(seats)), roomless=tuple(roomless), cardless=tuple(cardless)
    )


class _Seating:
    """Bins that wait for a card, and those that have one; mutable: bins are seated one after the other."""

    def __init__(
        self, bins: Sequence[Sequence[int]], grants: Sequence[Grant], room: NodeRoom, *, kept: set[str]
    ) -> None:
        self._bins, self._grants, self.room = bins, grants, room
        self.seats: dict[CardId, Seat] = {}
        self.waiting = set(range(len(bins)))
        self._at: dict[str, list[int]] = defaultdict(list)
        for number, rows in enumerate(bins):
            for node in sorted({grants[row].node for row in _anchors(rows, grants)}):
                self._at[node].append(number)
        self._nodes = sorted(self._at, key=lambda name: (name not in kept, -len(self._at[name]), name))

    def seat_waiting(self) -> list[Seat]:
        """Seats bins where they find room: on nodes that can't be freed first, then on those that most could take."""
        found = []
        for node in self._nodes:
            for number in self._at[node]:
                if number in self.waiting:
                    seat = _seat_on(node, self._bins[number], self._grants, self.seats, self.room)
                    if seat is not None:
                        self.seats[seat.card] = seat
                        self.waiting.discard(number)
                        found.append(seat)
        return found


class NodeRoom:
    """CPU and host memory that nodes have left, and whom they keep off; nothing is known of most.

    A pod may come to a node whose labels all have values that nodes of its workload have or had: a node pool or a zone
    in which none of its replicas ever ran may be one that it does not select, or that its volume does not reach. Where
    a workload keeps its pods apart (`fleet.inventory.KEPT_APART_LABEL`), no second one comes to a node, or to a zone.
    """

    def __init__(self, inventory: Inventory, grants: Sequence[Grant]) -> None:
        self._taints = {node.node: frozenset(node.taints) for node in inventory.nodes if node.taints}
        self._cpu: MutableMapping[str, float] = {
            node.node: node.cpu_cores for node in inventory.nodes if node.cpu_cores is not None
        }
        self._memory: MutableMapping[str, float] = {
            node.node: float(node.memory_bytes) for node in inventory.nodes if node.memory_bytes
        }
        self._labels = _grouping_labels(inventory)
        self._keys = frozenset(key for labels in self._labels.values() for key in labels)
        self._kept_off = inventory.kept_off
        self._selected: dict[WorkloadId, dict[str, set[str | None]]] = {}
        self._ran_on: dict[WorkloadId, set[str]] = defaultdict(set)
        for grant in (*inventory.grants, *grants):
            self._ran_on[grant.workload_id].add(grant.node)
        self._values = {node.node: dict(node.labels) for node in inventory.nodes}
        self._there: MutableMapping[tuple[WorkloadId, str], frozenset[str]] = {}
        for grant in {(grant.pod_id, grant.container): grant for grant in grants}.values():
            self._take(grant)
        self._come((grant.node, grant) for grant in grants)

    def _come(self, pods: Iterable[tuple[str, Grant]]) -> None:
        """Notes who is where of those who keep apart."""
        for node, grant in pods:
            domain = self._domain(grant, node)
            if domain is not None:
                self._there[domain] = self._there.get(domain, frozenset()) | {grant.pod_id}

    def _domain(self, grant: Grant, node: str) -> tuple[WorkloadId, str] | None:
        """Where at most one pod of a workload may run: its node, or the nodes that share a label's value with it."""
        key = dict(grant.labels).get(KEPT_APART_LABEL)
        if key is None:
            return None
        # A node without the label is in no domain, and takes as many as come.
        value = node if key == HOSTNAME_LABEL else self._values.get(node, {}).get(key)
        return None if value is None else (grant.workload_id, value)

    def _take(self, grant: Grant) -> None:
        if grant.node in self._cpu:
            self._cpu[grant.node] -= grant.cpu_request_cores or 0.0
        if grant.node in self._memory:
            self._memory[grant.node] -= grant.memory_request_bytes or 0

    def copy(self) -> NodeRoom:
        """The same room, booked apart: it says what this one does of all that it did not change itself."""
        other = NodeRoom.__new__(NodeRoom)
        other._taints, other._labels, other._keys = self._taints, self._labels, self._keys
        other._selected, other._ran_on, other._kept_off = self._selected, self._ran_on, self._kept_off
        other._values = self._values
        other._cpu, other._memory = ChainMap({}, self._cpu), ChainMap({}, self._memory)
        other._there = ChainMap({}, self._there)
        return other

    def book(self, tried: NodeRoom) -> None:
        """Takes over what was booked in a copy of this."""
        for own, changed in ((self._cpu, tried._cpu), (self._memory, tried._memory), (self._there, tried._there)):
            assert isinstance(changed, ChainMap)
            own.update(changed.maps[0])

    def has_room(self, node: str, pods: Sequence[Grant], ratio: float) -> bool:
        """Whether a node has CPU and memory left for a share of what these pods ask for together."""
        cores, memory = asked_by(pods)
        return self.has_left(node, ratio * cores, ratio * memory)

    def has_left(self, node: str, cores: float, memory_bytes: float) -> bool:
        """Whether a node has so much CPU and memory left, or nothing is known of it; what is not asked for is there."""
        return (cores <= 0 or cores <= self._cpu.get(node, inf)) and (
            memory_bytes <= 0 or memory_bytes <= self._memory.get(node, inf)
        )

    def admit(self, node: str, arriving: Sequence[Grant]) -> bool:
        """Takes the room that arriving pods need; False, and nothing taken, where it is not there.

        Those who leave give nothing back here, so that a stage is safe before the next has begun.
        """
        cores, memory = asked_by(arriving)
        if not self.has_left(node, cores, memory):
            return False
        taints = self._taints.get(node, frozenset())
        if any(not taints <= self._taints.get(grant.node, frozenset()) for grant in arriving):
            return False
        if not all(self._selects(grant, node) for grant in arriving):
            return False
        if not self._is_alone(node, arriving):
            return False
        if node in self._cpu:
            self._cpu[node] -= cores
        if node in self._memory:
            self._memory[node] -= memory
        self._come((node, grant) for grant in arriving)
        return True

    def release(self, node: str, leaving: Sequence[Grant]) -> None:
        """Gives back the room of pods that left a node."""
        if node in self._cpu:
            self._cpu[node] += sum(grant.cpu_request_cores or 0.0 for grant in leaving)
        if node in self._memory:
            self._memory[node] += sum(grant.memory_request_bytes or 0 for grant in leaving)
        for grant in leaving:
            domain = self._domain(grant, node)
            if domain is not None:
                self._there[domain] = self._there.get(domain, frozenset()) - {grant.pod_id}

    def give_back(self, grant: Grant, node: str) -> None:
        """Gives back the room of a pod that has got some on another node, where it counts among those kept apart."""
        self.release(grant.node, [grant])
        self._come([(node, grant)])

    def taken_by(self, node: str, pods: Iterable[Grant]) -> list[Grant]:
        """Those that would find room on a node one after the other; nothing is booked."""
        tried = self.copy()
        return [pod for pod in pods if tried.admit(node, [pod])]

    def _is_alone(self, node: str, arriving: Sequence[Grant]) -> bool:
        """Whether none of those who arrive meets a pod that its workload keeps apart from it, there or on the way."""
        met: dict[tuple[WorkloadId, str], set[str]] = defaultdict(set)
        for grant in arriving:
            domain = self._domain(grant, node)
            if domain is not None:
                met[domain].add(grant.pod_id)
        return all(len(self._there.get(domain, frozenset()) | pods) == 1 for domain, pods in met.items())

    def _selects(self, grant: Grant, node: str) -> bool:
        """Whether nodes of its workload had every label that this one has; an unknown node is one without labels."""
        if node != grant.node and node in self._kept_off.get(grant.workload_id, ()):
            return False
        if not self._keys:
            return True
        known = self._selected.get(grant.workload_id)
        if known is None:
            ran_on = [self._labels.get(name, {}) for name in self._ran_on[grant.workload_id]]
            known = {key: {labels.get(key) for labels in ran_on} for key in self._keys}
            self._selected[grant.workload_id] = known
        here = self._labels.get(node, {})
        return all(here.get(key) in values for key, values in known.items())


def asked_by(pods: Iterable[Grant]) -> tuple[float, int]:
    """CPU cores and bytes of host memory that pods ask for together."""
    cores, memory = 0.0, 0
    for grant in pods:
        cores += grant.cpu_request_cores or 0.0
        memory += grant.memory_request_bytes or 0
    return cores, memory


def _grouping_labels(inventory: Inventory) -> dict[str, dict[str, str]]:
    """Labels by which nodes are grouped: those whose value some other node has or lacks as well."""
    nodes = {node.node: dict(node.labels) for node in inventory.nodes}
    seen = Counter(pair for labels in nodes.values() for pair in labels.items())
    keys = {key for key, _ in seen if not key.startswith(DESCRIBED_PREFIXES)}
    # Where every node has a value of its own the label is a name.
    names = {key for key in keys if len(nodes) > 1 and sum(key in labels for labels in nodes.values()) == len(nodes)}
    names = {key for key in names if all(count == 1 for (name, _), count in seen.items() if name == key)}
    return {
        node: {key: value for key, value in labels.items() if key in keys - names} for node, labels in nodes.items()
    }


def _anchors(rows: Sequence[int], grants: Sequence[Grant]) -> list[int]:
    """Whose card a bin may take: a running job's where it holds one, for a job loses its work when it moves."""
    jobs = [row for row in rows if grants[row].workload_kind in JOB_KINDS]
    return jobs or list(rows)


def _largest_part(
    rows: Sequence[int],
    grants: Sequence[Grant],
    seats: dict[CardId, Seat],
    room: NodeRoom,
    may_share: Callable[[Sequence[int]], bool],
) -> Seat | None:
    """A seat of most pods of a bin that find room on one node, at least two; None where there is none."""
    best: tuple[str, list[int]] | None = None
    for node in sorted({grants[row].node for row in _anchors(rows, grants)}):
        here = [row for row in rows if grants[row].node == node]
        away = sorted(set(rows) - set(here), key=lambda row: (grants[row].cpu_request_cores or 0.0, row))
        coming = {id(grant) for grant in room.taken_by(node, [grants[row] for row in away])}
        held = sorted([*here, *(row for row in away if id(grants[row]) in coming)])
        is_better = best is None or len(held) > len(best[1])
        if len(held) > 1 and is_better and may_share(held) and _card_on(node, held, grants, seats) is not None:
            best = node, held
    return None if best is None else _seat_on(best[0], best[1], grants, seats, room)


def _card_on(node: str, rows: Sequence[int], grants: Sequence[Grant], seats: dict[CardId, Seat]) -> CardId | None:
    """The card of a node that most of those hold who may have it, among those that nobody has got yet."""
    held: dict[CardId, int] = defaultdict(int)
    for row in _anchors(rows, grants):
        if grants[row].node == node and grants[row].card not in seats:
            held[grants[row].card] += 1
    return min(held, key=lambda name: (-held[name], name)) if held else None


def _seat_on(
    node: str, rows: Sequence[int], grants: Sequence[Grant], seats: dict[CardId, Seat], room: NodeRoom
) -> Seat | None:
    card = _card_on(node, rows, grants, seats)
    if card is None:
        return None
    if not room.admit(node, [grants[row] for row in rows if grants[row].node != node]):
        return None
    return Seat(card=card, node=node, rows=tuple(sorted(rows)))
