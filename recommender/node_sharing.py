"""Which nodes are kept to be shared, and whose pods come to them, where all cards of a node are shared alike.

Time-slicing and MPS hand out every card of a node equally often, and nobody says which pods of the node meet on a card.
So a node is shared only if all who stay on it share, and all of them would fit an equal part of a card: then any of
them may meet; a pod that can't share leaves it for a whole card elsewhere. Workloads of small pods fill nodes first, in
parts as fine as the largest on the node allows; their pods come from anywhere, and what they leave are whole cards. A
shared node's cards all stay in use, for the plugin spreads pods over them: only cards elsewhere are counted as freed.
Called by `placement_nodes`; pure.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fleet.capabilities.capability import equal_part_bytes
from fleet.inventory import CardId, Grant, Inventory, WorkloadId
from recommender.bin_cards import NodeRoom, Seat

PORTIONS_MIN = 2
"""A card that is handed out once is whole."""
TRIED_MAX = 10_000
"""Nodes times workloads up to which nodes are chosen one by one; larger fleets are filled in order alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStock:
    """Nodes with cards of one model and size, and who could share them.

    Attributes:
        cards: cards of each node that may be shared, sorted; all are of the model.
        rows_on: rows of live grants that stay on each of those nodes, of any workload.
        rows_of: rows of each workload that may share.
        movable: rows that may move to another whole card of the model.
        portions: into how many equal parts a card may be divided for each of them.
        portions_max: most parts that are ever made of a card.
        fits: whether any so many of some rows fit a card together.
        parted: of rows that may meet, one that must not be among them; None where all get on.
    """

    cards: Mapping[str, Sequence[CardId]]
    rows_on: Mapping[str, Sequence[int]]
    rows_of: Mapping[WorkloadId, Sequence[int]]
    movable: frozenset[int]
    portions: Mapping[WorkloadId, int]
    portions_max: int
    fits: Callable[[Sequence[int], int], bool]
    grants: Sequence[Grant]
    inventory: Inventory
    parted: Callable[[Sequence[int]], int | None]


def portions_of(granted_bytes: float, compute_ratio: float, *, capacity_bytes: float, portions_max: int) -> int:
    """Most equal parts of a card of which one holds a pod; 1 where it needs more than half.

    Args:
        compute_ratio: share of a card's compute that it needs, above 0.
        portions_max: most parts that the backend makes.
    """
    parts = min(portions_max, math.floor(1.0 / compute_ratio + 1e-9), int(capacity_bytes // max(1.0, granted_bytes)))
    while parts > 1 and equal_part_bytes(int(capacity_bytes), parts) < granted_bytes:
        parts -= 1
    return max(1, parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSeats:
    """Who sits where.

    Attributes:
        seats: cards of the nodes that are shared.
        displaced: new card of each row that leaves such a node and keeps a card of its own.
    """

    seats: tuple[Seat, ...]
    displaced: Mapping[int, CardId]


def seat_on_nodes(stock: NodeStock) -> NodeSeats:
    """Seats of those who share; none where sharing frees no card.

    Of two ways the one that frees more cards, or moves fewer pods aside: filling nodes with everybody until nobody is
    left, or node by node with whole workloads as long as each node frees some. Nodes are shared on which everybody may
    be restarted: those who do not share move to whole cards that are free, or that others leave.
    """
    ways = [found for way in (_all_together, _node_by_node) if (found := _without_stuck(stock, way)).seats]
    nobody = NodeSeats(seats=(), displaced={})
    best = min(ways, key=lambda found: (-_cards_freed(found), len(found.displaced)), default=nobody)
    return best if _cards_freed(best) > 0 else nobody


def _cards_freed(found: NodeSeats) -> int:
    """Cards fewer in use: who shares had one each."""
    return sum(len(seat.rows) for seat in found.seats) - len(found.seats)


def _without_stuck(stock: NodeStock, way: Callable[[NodeStock, set[str]], list[Seat]]) -> NodeSeats:
    """One way of filling nodes, without those that somebody can't leave for want of a card."""
    barred: set[str] = set()
    while True:
        seats = way(stock, barred)
        displaced = _displaced(stock, seats)
        if isinstance(displaced, dict):
            return NodeSeats(seats=tuple(seats), displaced=displaced)
        barred.add(displaced)


def changed_together(found: NodeSeats, grants: Sequence[Grant]) -> tuple[tuple[WorkloadId, ...], ...]:
    """Workloads whose pods change in groups at once, sorted.

    A node changes while it is empty, and a template makes all its replicas anew: so a workload that comes to a node, or
    leaves it, changes with all others that do, and with those that leave the card that it moves to.
    """
    nodes = {seat.node for seat in found.seats}
    links: dict[str, set[WorkloadId]] = defaultdict(set)
    changing = [row for seat in found.seats for row in seat.rows] + list(found.displaced)
    for row in changing:
        if grants[row].node in nodes:
            links[grants[row].node].add(grants[row].workload_id)
        links[grants[row].card].add(grants[row].workload_id)
    for seat in found.seats:
        links[seat.node] |= {grants[row].workload_id for row in seat.rows}
    for row, card in found.displaced.items():
        links[card].add(grants[row].workload_id)
    groups: list[set[WorkloadId]] = []
    for names in links.values():
        joined = [group for group in groups if group & names]
        groups = [group for group in groups if not group & names] + [names.union(*joined)]
    return tuple(sorted(tuple(sorted(group)) for group in groups))


def _all_together(stock: NodeStock, barred: set[str]) -> list[Seat]:
    """Fills nodes one after the other with as many workloads as find room, those of the smallest pods first."""
    order = [name for name, parts in stock.portions.items() if parts >= PORTIONS_MIN]
    order.sort(key=lambda name: (-stock.portions[name], name))
    best: list[Seat] = []
    least, most = 1, len(order)
    while least <= most:
        count = (least + most) // 2
        found = _filled(stock, order[:count], barred)
        if isinstance(found, str):
            order.remove(found)
            most = min(most, len(order))
        elif found is None:
            most = count - 1
        else:
            best, least = found or best, count + 1
    return best


def _filled(stock: NodeStock, names: Sequence[WorkloadId], barred: set[str]) -> list[Seat] | WorkloadId | None:
    """Seats of workloads on as few nodes as come, none where they are too few to share any.

    Returns:
        None where they are too many; a workload where it slows another too much.
    """
    waiting = [row for name in names for row in sorted(stock.rows_of[name])]
    sharing = set(waiting)
    # A shared node is emptied first.
    room = NodeRoom(stock.inventory, ())
    seats: list[Seat] = []
    for node in _open_nodes(stock, sharing, barred):
        if not waiting:
            break
        coming = _rows_for(stock, node, waiting, room)
        if (culprit := stock.parted(coming)) is not None:
            return stock.grants[culprit].workload_id
        if len(coming) <= len(stock.cards[node]):
            # A node without a card for two hands its cards out whole.
            return None if seats else []
        taken = set(coming)
        waiting = [row for row in waiting if row not in taken]
        seats += _dealt(stock, node, coming)
    return None if waiting else seats


def _node_by_node(stock: NodeStock, barred: set[str]) -> list[Seat]:
    """Fills the node that frees most with whole workloads, then the next, as long as one frees any."""
    nodes = _open_nodes(stock, set(), barred)
    left = sorted(stock.portions, key=lambda name: (-stock.portions[name], name))
    if len(nodes) * len(left) > TRIED_MAX:
        return []
    room = NodeRoom(stock.inventory, ())
    seats: list[Seat] = []
    while left and nodes:
        best: tuple[int, str, list[int]] = (0, "", [])
        for node in nodes:
            for parts in range(PORTIONS_MIN, stock.portions_max + 1):
                rows = _whole_workloads(stock, node, left, parts, room)
                if len(rows) - len(stock.cards[node]) > best[0]:
                    best = (len(rows) - len(stock.cards[node]), node, rows)
        _, node, rows = best
        if not rows:
            break
        for row in rows:
            room.admit(node, [stock.grants[row]])
        seats += _dealt(stock, node, rows)
        nodes.remove(node)
        placed = {stock.grants[row].workload_id for row in rows}
        left = [name for name in left if name not in placed]
    return seats


def _whole_workloads(stock: NodeStock, node: str, names: Sequence[WorkloadId], parts: int, room: NodeRoom) -> list[int]:
    """Rows of workloads that fit a node with all their pods, any so many of them on one card; small pods first."""
    cards = len(stock.cards[node])
    tried = room.copy()
    rows: list[int] = []
    for name in names:
        own = sorted(stock.rows_of[name])
        if len(own) > cards or len(rows) + len(own) > cards * parts or not stock.fits([*rows, *own], parts):
            continue
        if stock.parted([*rows, *own]) is not None:
            continue
        # What a workload took before one of its pods found no room is not given back: the node counts as fuller.
        if all(tried.admit(node, [stock.grants[row]]) for row in own):
            rows += own
    return rows


def _open_nodes(stock: NodeStock, sharing: set[int], barred: set[str]) -> list[str]:
    """Nodes on which everybody may be restarted, those first from which fewest have to move aside."""
    movable = stock.movable | {row for rows in stock.rows_of.values() for row in rows}
    staying = {node: [row for row in stock.rows_on.get(node, ()) if row not in sharing] for node in stock.cards}
    nodes = [node for node, rows in staying.items() if node not in barred and movable.issuperset(rows)]
    return sorted(nodes, key=lambda node: (len(staying[node]), -len(stock.cards[node]), node))


def _displaced(stock: NodeStock, seats: Sequence[Seat]) -> dict[int, CardId] | str:
    """A whole card for everybody who leaves a shared node without sharing; or the node that somebody can't leave."""
    sharing = {row for seat in seats for row in seat.rows}
    shared = {seat.node for seat in seats}
    # Elsewhere those who share leave, and bring along what they hold of CPU and memory.
    room = NodeRoom(stock.inventory, [grant for row, grant in enumerate(stock.grants) if row not in sharing])
    found: dict[int, CardId] = {}
    for node in sorted(shared):
        for row in stock.rows_on.get(node, ()):
            if row in sharing:
                continue
            card = _whole_card(stock, row, sharing, shared, set(found.values()), room)
            if card is None:
                return node
            found[row] = card
    return found


def _whole_card(
    stock: NodeStock, row: int, sharing: set[int], shared: set[str], taken: set[CardId], room: NodeRoom
) -> CardId | None:
    """A card of the same model for a pod that keeps one whole: free ones first, then those that sharing leaves."""
    for is_left in (False, True):
        for node, cards in sorted(stock.cards.items()):
            rows = stock.rows_on.get(node, ())
            if node in shared:
                continue
            held = {stock.grants[other].card for other in rows if not (is_left and other in sharing)}
            free = [card for card in cards if card not in held and card not in taken]
            if free and room.admit(node, [stock.grants[row]]):
                return free[0]
    return None


def _rows_for(stock: NodeStock, node: str, waiting: Sequence[int], room: NodeRoom) -> list[int]:
    """Who comes to a node: in order, as long as all fit parts that the largest of them fits."""
    cards = len(stock.cards[node])
    rows: list[int] = []
    crowd: Counter[WorkloadId] = Counter()
    for row in waiting:
        grant = stock.grants[row]
        if len(rows) >= cards * stock.portions[grant.workload_id]:
            break
        # Replicas of one workload lie on different cards.
        if crowd[grant.workload_id] < cards and room.admit(node, [grant]):
            rows.append(row)
            crowd[grant.workload_id] += 1
    return rows


def _dealt(stock: NodeStock, node: str, rows: Sequence[int]) -> list[Seat]:
    """The rows of a node on its cards in turn, replicas of a workload next to each other."""
    cards = stock.cards[node]
    on_card: dict[CardId, list[int]] = {card: [] for card in cards}
    by_name = sorted(rows, key=lambda row: (stock.grants[row].workload_id, row))
    for number, row in enumerate(by_name):
        on_card[cards[number % len(cards)]].append(row)
    return [Seat(card=card, node=node, rows=tuple(sorted(held))) for card, held in on_card.items() if held]
