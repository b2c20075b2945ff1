"""Relief inside a play: what it sees of the cards, and the moves that it begins by the rules of `fleet.relief`.

It sees what the nodes of a cluster would report: compute and framebuffer that pods use, not what they would like to
have. It remembers use from the first step on, and of a pod that moved only what it did on its present card, because
the pods that a plan or a move makes are new ones. Low priority pauses at once, so its use is not seen.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fleet.relief.choice import Relief, ReliefMove, Watch
from fleet.relief.moves import PastMove, resting, unsettled, why_held
from fleet.relief.overload import CardUse, Trouble, trouble_of
from fleet.relief.pace import Pace
from fleet.relief.rules import ReliefRules
from fleet.sharing import Fare
from recommender.simulate.stage import Stage


@dataclass(slots=True, kw_only=True)
class Seating:
    """Cards, and which pods sit on them; mutable: a play moves pods.

    Attributes:
        card: card of each row, (rows,), int64.
        target: card that a row moves to, (rows,), -1 where it stays, int64.
        granted_bytes: grant, (rows,).
        kept_bytes: what of a row stays on its card while its pod rests, (rows,); inf where it lends none of it.
        model: card model, (cards,), int64.
        capacity_bytes: framebuffer, (cards,).
        is_open: True for cards that may take a newcomer, (cards,), bool.
    """

    card: NDArray[np.int64]
    target: NDArray[np.int64]
    granted_bytes: NDArray[np.float64]
    kept_bytes: NDArray[np.float64]
    model: NDArray[np.int64]
    capacity_bytes: NDArray[np.float64]
    is_open: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class BegunMove:
    """A move that begins now.

    Attributes:
        row: the pod.
        target: its new card.
        is_stopped: it cannot have a second replica, so it stops first.
    """

    row: int
    target: int
    is_stopped: bool


class PlayedRelief:
    """Relief of one play; mutable: it is shown every moment in order, in seconds since the first step.

    Args:
        seating: where pods sit; read at every look.
    """

    def __init__(self, stage: Stage, seating: Seating, rules: ReliefRules) -> None:
        self._stage, self._seating, self._rules = stage, seating, rules
        self._pace = Pace(rules)
        self._moves: tuple[PastMove, ...] = ()
        self._moves_of: dict[Hashable, tuple[PastMove, ...]] = {}
        self._pods_of = np.bincount(stage.demand.workload_of)
        self._pods = [(row, 0) for row in range(stage.rows)]
        self._rows: dict[Hashable, int] = {pod: row for row, pod in enumerate(self._pods)}
        self._load = np.zeros((stage.rows, stage.steps), np.float32)
        self._need = np.zeros(stage.rows)
        self._use = np.zeros(stage.rows, np.float32)
        self._step = 0
        self._overloaded: list[Trouble] = []
        self._found: tuple[Trouble, ...] = ()
        # What is known does not change before the next piece, or the next move.
        self._weighed: Relief | None = None
        self._weighed_at = 0.0
        self._may_move = np.zeros(stage.rows, bool)

    @property
    def moves(self) -> tuple[PastMove, ...]:
        """All moves so far."""
        return self._moves

    def see(self, now: float, step: int, state: Fare, need_bytes: NDArray[np.floating]) -> None:
        """Take in how pods fare from now on.

        Args:
            state: how they fare, (rows, 1).
            need_bytes: framebuffer that they need, (rows,).
        """
        seating, self._step, self._weighed = self._seating, step, None
        served = np.nan_to_num(state.served_ratio[:, 0])
        self._use = np.where(self._stage.is_low, np.float32(0), served)
        held = np.minimum(need_bytes, seating.granted_bytes)
        held = np.where(state.active[:, 0], held, np.minimum(held, seating.kept_bytes))
        self._load[:, step] = np.maximum(self._load[:, step], self._use)
        self._need = np.maximum(self._need, held)
        self._overloaded = self._overloads(now, held)

    def look(self, now: float) -> list[BegunMove]:
        """The moves that begin now."""
        begun: list[BegunMove] = []
        self._found = self._pace.see([replace(entry, at_seconds=now) for entry in self._overloaded])

        def leave(entry: Trouble) -> bool:
            if self._weighed_at != now:
                self._weighed = None
            card = int(entry.card)  # type: ignore[call-overload]
            move = self._known(now).way_out(card, entry.cause, entry.missing_bytes)
            if move is not None:
                begun.append(self._begin(move.row, move.target, now, is_home=False))
            return move is not None

        def come_home(move: PastMove) -> bool:
            row, home = self._rows.get(move.arrived_as), int(move.from_card)  # type: ignore[call-overload]
            if row is None or self._is_held(move.workload, now) or not self._known(now).may_return(row, home):
                return False
            begun.append(self._begin(row, home, now, is_home=True))
            return True

        self._pace.relieve(self._found, self._moves, now, leave)
        self._pace.bring_home(self._moves, now, come_home)
        return begun

    def _known(self, now: float) -> Relief:
        if self._weighed is None:
            self._weighed, self._weighed_at = Relief(self._watch(now), self._rules), now
        return self._weighed

    def _is_held(self, workload: Hashable, now: float) -> bool:
        pods = int(self._pods_of[workload])  # type: ignore[call-overload]
        return bool(why_held(self._moves_of.get(workload, ()), workload, now, self._rules, pods=pods))

    def next_at(self, now: float) -> float:
        """When to look next if nothing changes until then."""
        return self._pace.next_at(self._found, self._moves, now)

    def arrived(self, rows: NDArray[np.int64], now: float) -> None:
        """Pods have moved."""
        self._end(rows, now, is_made=True)

    def seated_anew(self, rows: NDArray[np.int64], now: float) -> None:
        """A plan gave pods other cards: they are new ones, whatever relief did to them before."""
        self._end(rows, now, is_made=False)
        for row in rows.tolist():
            self._replace(row)

    def _end(self, rows: NDArray[np.int64], now: float, *, is_made: bool) -> None:
        self._load[rows] = 0.0
        self._need[rows] = 0.0
        gone = set(rows.tolist())
        ended = [
            (move, row)
            for move in self._moves
            if move.ended_seconds is None and (row := self._rows.get(move.pod)) is not None and row in gone
        ]
        for move, row in ended:
            over = replace(move, ended_seconds=now, is_made=is_made)
            self._moves = tuple(over if one is move else one for one in self._moves)
            own = self._moves_of[move.workload]
            self._moves_of[move.workload] = tuple(over if one is move else one for one in own)
            if is_made and not move.is_restart:
                self._replace(row)

    def _begin(self, row: int, target: int, now: float, *, is_home: bool) -> BegunMove:
        seating, is_single = self._seating, bool(self._stage.is_single[row])
        pod = self._pods[row]
        move = PastMove(
            pod=pod, arrived_as=pod if is_single else _next(pod), workload=int(self._stage.demand.workload_of[row]),
            from_card=int(seating.card[row]), to_card=target, begun_seconds=now, is_restart=is_single, is_home=is_home,
        )  # fmt: skip
        self._moves = (*self._moves, move)
        self._moves_of[move.workload] = (*self._moves_of.get(move.workload, ()), move)
        seating.target[row] = target
        if self._weighed is not None:
            self._weighed.begun(ReliefMove(row=row, target=target))
            of_workload = self._stage.demand.workload_of == move.workload
            self._may_move[of_workload] &= not self._is_held(move.workload, now)
        return BegunMove(row=row, target=target, is_stopped=is_single)

    def _replace(self, row: int) -> None:
        """A pod's place is taken by a new one."""
        del self._rows[self._pods[row]]
        self._pods[row] = _next(self._pods[row])
        self._rows[self._pods[row]] = row

    def _overloads(self, now: float, held: NDArray[np.floating]) -> list[Trouble]:
        stage, seating = self._stage, self._seating
        cards = len(seating.capacity_bytes)
        pods = np.bincount(seating.card, ~stage.is_low, cards)
        demand = np.bincount(seating.card, self._use, cards)
        low = np.bincount(seating.card, np.where(stage.is_low, held, 0.0), cards)
        free = seating.capacity_bytes - np.bincount(seating.card, held, cards)
        is_short = free <= self._rules.free_ratio_min * seating.capacity_bytes + 1
        found = (
            trouble_of(
                card,
                CardUse(
                    pods=int(pods[card]),
                    demand_ratio=float(demand[card]),
                    duty_ratio=min(1.0, float(demand[card])),
                    low_bytes=float(low[card]),
                    framebuffer_bytes=float(seating.capacity_bytes[card]),
                    free_bytes=max(0.0, float(free[card])),
                ),
                now,
                self._rules,
            )
            for card in np.flatnonzero((pods > 0) & (is_short | (demand >= self._rules.full_ratio))).tolist()
        )
        return [entry for entry in found if entry is not None]

    def _watch(self, now: float) -> Watch:
        """What is known now; pods of overloaded cards may move."""
        stage, seating, rules = self._stage, self._seating, self._rules
        memory = max(1, rules.memory_seconds // stage.step_seconds)
        load = self._load[:, max(0, self._step + 1 - memory) : self._step + 1].copy()
        load[:, -1] = self._use
        rests = resting(self._moves, now, rules)
        closed = np.zeros(len(seating.capacity_bytes), bool)
        for card in (*(entry.card for entry in self._found), *unsettled(self._moves, now)):
            closed[card] = True  # type: ignore[call-overload]
        self._may_move = may_move = np.zeros(stage.rows, bool)
        troubled = np.array([entry.card for entry in self._found if entry.needs_move], np.int64)
        for row in np.flatnonzero(np.isin(seating.card, troubled)).tolist():
            is_free = stage.is_judged[row] and not stage.is_fixed[row] and not stage.is_low[row]
            is_free &= rules.restarts or not stage.is_single[row]
            may_move[row] = is_free and not self._is_held(int(stage.demand.workload_of[row]), now)
        return Watch(
            card=seating.card,
            target=seating.target,
            load=load,
            granted_bytes=seating.granted_bytes,
            need_bytes=self._need,
            workload=stage.demand.workload_of,
            may_move=may_move,
            is_single=stage.is_single,
            is_resting=np.array([pod in rests for pod in self._pods], bool),
            area=np.zeros(stage.rows, np.int64),
            reach=np.ones((1, len(seating.capacity_bytes)), bool),
            model=seating.model,
            capacity_bytes=seating.capacity_bytes,
            is_open=seating.is_open & ~closed,
            step_seconds=stage.step_seconds,
        )


def _next(pod: tuple[int, int]) -> tuple[int, int]:
    """Name of the pod that takes a pod's place: row and how many had it before."""
    return pod[0], pod[1] + 1
