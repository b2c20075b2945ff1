"""Which pod leaves an overloaded card, and where to: `fleet.relief.choice` over the cluster as it stands.

Demand comes from what nodes report, seats and cards from the API server, wishes from the pods' owners. A card takes a
newcomer only where its node reports its use and that of all its pods, it is sound, open, not in trouble and not
somebody's own, and where HAMi's scheduler would count room for slices, cores and framebuffer. Reads nothing by itself.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field

import numpy as np

from enforcer.agent.node_view import NodeView
from enforcer.backends.hami_dialect import cordoned_cards
from enforcer.card_room import card_rooms
from enforcer.dialect import SeatSlice, StandingCard
from enforcer.node_choice import why_node_closed
from enforcer.relief.demand_memory import STEP_SECONDS, DemandMemory, SeatKey, used
from enforcer.relief.overload import Overload
from enforcer.relief.relief_journal import Manner
from enforcer.relief.wishes import Movable
from enforcer.seat import PodSeat
from enforcer.snapshot import Snapshot
from fleet.inventory import ISOLATION_LABEL, Priority
from fleet.relief.choice import Relief, Watch
from fleet.relief.rules import ReliefRules
from fleet.units import MIB

_TARGETS_TRIED_MAX = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """One pod's new card.

    Attributes:
        overload: what it relieves; None for a move home.
    """

    seat: PodSeat
    part: SeatSlice
    target: StandingCard
    movable: Movable
    overload: Overload | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """What a choice is made from.

    Attributes:
        movables: pods that might go, by `namespace/pod`; the others stay.
        nodes: nodes that these may run on by their own word, by `namespace/pod`.
        coming: cards that somebody is on his way to, by `namespace/pod` of who leaves for them.
        arrived: warm replicas of these moves: they count by the card of `coming`.
        closed: cards in trouble, or kept free otherwise.
    """

    snapshot: Snapshot
    views: Mapping[str, NodeView]
    memory: DemandMemory
    movables: Mapping[str, Movable] = field(default_factory=dict)
    nodes: Mapping[str, frozenset[str]] = field(default_factory=dict)
    resting: Collection[Hashable] = ()
    coming: Mapping[str, str] = field(default_factory=dict)
    arrived: Collection[str] = ()
    closed: Collection[Hashable] = ()


def choose(overload: Overload, ground: Field, rules: ReliefRules) -> Proposal | None:
    """The move that relieves a card at least cost; None where there is none."""
    tried: set[str] = set()
    for _ in range(_TARGETS_TRIED_MAX):
        seen = _seen(ground, tried)
        if overload.card not in seen.cards:
            return None
        card = seen.cards.index(overload.card)
        move = Relief(seen.watch, rules).way_out(card, overload.cause, overload.missing_bytes)
        if move is None:
            return None
        seat, part = seen.rows[move.row]
        target = ground.snapshot.cards[seen.cards[move.target]]
        movable = ground.movables[seat.pod_id]
        if _is_room(part, target, ground, is_isolated=movable.is_isolated):
            return Proposal(seat=seat, part=part, target=target, movable=movable, overload=overload)
        tried.add(target.card)
    return None


def may_return(seat: PodSeat, home: str, ground: Field, rules: ReliefRules, *, is_isolated: bool) -> bool:
    """Whether a pod's old card has had room for it for a while.

    Args:
        is_isolated: it shares a card with no other pod.
    """
    target = ground.snapshot.cards.get(home)
    if target is None or len(seat.slices) != 1:
        return False
    seen = _seen(ground, ())
    row = next((row for row, (other, _) in enumerate(seen.rows) if other.pod_id == seat.pod_id), None)
    if row is None or not _is_room(seat.slices[0], target, ground, is_isolated=is_isolated):
        return False
    return Relief(seen.watch, rules).may_return(row, seen.cards.index(home))


def _is_room(part: SeatSlice, target: StandingCard, ground: Field, *, is_isolated: bool) -> bool:
    """Whether HAMi's scheduler would put a share on a card, and nobody is there whom its owner wants walled off."""
    there = [seat for seat in ground.snapshot.seats.values() if target.card in seat.cards]
    room = card_rooms(there, {target.card: target})[target.card]
    # A whole card may be a smaller one than the pod has now.
    fits = part.framebuffer_mib <= target.framebuffer_mib and room.takes(part)
    return fits and not (is_isolated and there)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """Rows and cards of a watch, by their numbers."""

    rows: tuple[tuple[PodSeat, SeatSlice], ...]
    cards: tuple[str, ...]
    watch: Watch


def _seen(ground: Field, tried: Collection[str]) -> _Seen:
    snapshot, low = ground.snapshot, _low_pods(ground)
    cards = tuple(sorted(snapshot.cards))
    number = {card: place for place, card in enumerate(cards)}
    rows = tuple(
        (seat, part)
        for seat in snapshot.seats.values()
        for part in seat.slices
        if part.card in number and seat.pod_id not in ground.arrived
    )
    keys = [SeatKey(namespace=seat.namespace, pod=seat.pod, card=str(part.card)) for seat, part in rows]
    use = {key: ratio for view in ground.views.values() for key, ratio in used(view).items()}
    load = ground.memory.load(keys, {key: ratio or 0.0 for key, ratio in use.items()})
    taken = {*tried, *_isolated(ground), *(key.card for key, ratio in use.items() if ratio is None)}
    load[[row for row, (seat, _) in enumerate(rows) if seat.pod_id in low]] = 0.0
    workloads: dict[str, int] = {}
    models: dict[str, int] = {}
    coming = {pod: number[card] for pod, card in ground.coming.items() if card in number}
    standing = [snapshot.cards[card] for card in cards]
    single = {pod for pod, entry in ground.movables.items() if entry.manner is Manner.RESTART}
    areas: dict[frozenset[str], int] = {}
    everywhere = frozenset(snapshot.nodes)
    area = [areas.setdefault(ground.nodes.get(seat.pod_id, everywhere), len(areas)) for seat, _ in rows]
    granted = np.array([float(part.framebuffer_mib * MIB) for _, part in rows])
    watch = Watch(
        card=np.array([number[str(part.card)] for _, part in rows], np.int64),
        target=np.array([coming.get(seat.pod_id, -1) for seat, _ in rows], np.int64),
        load=load,
        granted_bytes=granted,
        need_bytes=np.array([ground.memory.need_bytes(key) for key in keys]),
        workload=np.array([workloads.setdefault(seat.workload, len(workloads)) for seat, _ in rows], np.int32),
        may_move=np.array(
            [
                seat.pod_id in ground.movables and len(seat.slices) == 1 and seat.is_ready and seat.pod_id not in low
                for seat, _ in rows
            ],
            np.bool_,
        ),
        is_single=np.array([seat.pod_id in single for seat, _ in rows], np.bool_),
        is_resting=np.array([seat.pod_id in ground.resting for seat, _ in rows], np.bool_),
        area=np.array(area, np.int64),
        reach=np.array([[card.node in nodes for card in standing] for nodes in areas], np.bool_),
        model=np.array([models.setdefault(card.device_type, len(models)) for card in standing], np.int64),
        capacity_bytes=np.array([float(card.framebuffer_mib * MIB) for card in standing]),
        is_open=np.array(
            [_is_open(card, ground) and card.card not in taken for card in standing],
            np.bool_,
        ),
        step_seconds=STEP_SECONDS,
    )
    return _Seen(rows=rows, cards=cards, watch=watch)


def _low_pods(ground: Field) -> frozenset[str]:
    return frozenset(
        part.pod_id for view in ground.views.values() for part in view.slices if part.priority is Priority.LOW
    )


def _isolated(ground: Field) -> frozenset[str]:
    """Cards whose pods share with nobody."""
    found = ground.snapshot
    hard = {name for name in found.owners if "hard" in found.asked(ISOLATION_LABEL, name)}
    return frozenset(card for name in hard for seat in ground.snapshot.pods.get(name, ()) for card in seat.cards)


def _is_open(card: StandingCard, ground: Field) -> bool:
    """Whether a card may take a newcomer: its node reports its use, and nobody closed it."""
    node = ground.snapshot.nodes.get(card.node)
    if node is None or not card.is_healthy or card.card in ground.closed:
        return False
    view = ground.views.get(card.node)
    if view is None or not any(entry.card == card.card for entry in view.cards):
        return False
    return why_node_closed(node) is None and card.card not in cordoned_cards(node)
