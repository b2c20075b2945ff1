"""Plays days of a fleet step by step: pods on cards as a policy seated them, with relief on or off.

The model of time. Within a step of the trace demand is what the trace says, from the step's first moment to its last.
A step is cut wherever something changes in it: a card that is overloaded is seen at once, but acted upon
`reaction_seconds` later; a pod that moves serves on its old card, and crowds it, until its framebuffer is loaded on
the new one (grant / `load_bytes_per_second`). Every piece is judged by `fleet.sharing`, as the referee judges steps,
and counts by its length: a card that is relieved after 144 of 600 seconds was violated for 0.24 of the step. Whoever
decides sees this piece and the past, never what comes.

The arithmetic of a step is done on arrays; only cards that need relief are looked at one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fleet.relief import LOAD_BYTES_PER_SECOND, Relief, ReliefMove, ReliefRules, Watch
from fleet.sharing import ACTIVE_RATIO_MIN, Fare, Seats, fare
from gputide.simulate_replan import matched_cards
from gputide.simulate_stage import Opening, Stage

NEVER = np.inf
SPARES_MAX = 256
"""Cards of each model that relief may draw upon: at most those that the policy freed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaction:
    """How relief acts.

    Attributes:
        rules: which pod goes where.
        reaction_seconds: from the first moment of an overload to the decision.
    """

    rules: ReliefRules
    reaction_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Replan:
    """How seats are looked at anew every few days.

    With relief, pods leave spares for cards that have room. Without, the policy plans anew with all that is known by
    then; its cards are matched with those in use so that few pods move, and those that do are stopped first and started
    on the other card: nobody serves them while their framebuffer is loaded.

    Attributes:
        every_seconds: time between two plans.
        plan: the policy's plan at a step; None where it has none.
        moves_max_ratio: most pods that leave spares at a time, share of all.
        load_bytes_per_second: how fast framebuffer is loaded without relief.
    """

    every_seconds: int
    plan: Callable[[int], Opening | None]
    moves_max_ratio: float = 0.02
    load_bytes_per_second: float = LOAD_BYTES_PER_SECOND


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """What happened.

    Attributes:
        cards_before: cards of the judged pods.
        cards_opening: cards that carry a judged pod at the first step.
        cards_peak: the same at its peak, per card model, summed: spares in use and moves under way included.
        active_steps: active steps of the counted pods, one entry per row.
        violated_steps: of them violated; fractions where a step was relieved.
        contended_steps: of them contended.
        framebuffer_steps: of them short of framebuffer or on a full card.
        asked: demand of the counted pods, card-steps.
        served: of it served.
        low_asked: demand of the pods of low priority among them, card-steps.
        low_served: of it served.
        moves: pods moved.
        grown: slices that were raised in place.
        used: counted cards in use, (cards, steps), bool.
        left: compute that all pods together leave on each card, (cards, steps).
        free_bytes: framebuffer that nobody on the card needs, (cards, steps).
        capacity_bytes: framebuffer of each card.
        model: number of each card's model.
        seat: card of each row at the end of each step, (rows, steps).
    """

    cards_before: int
    cards_opening: int
    cards_peak: int
    active_steps: NDArray[np.float64]
    violated_steps: NDArray[np.float64]
    contended_steps: NDArray[np.float64]
    framebuffer_steps: NDArray[np.float64]
    asked: float
    served: float
    low_asked: float
    low_served: float
    moves: int
    grown: int
    used: NDArray[np.bool_]
    left: NDArray[np.float32]
    free_bytes: NDArray[np.float32]
    capacity_bytes: NDArray[np.float64]
    model: NDArray[np.int64]
    seat: NDArray[np.int32]

    @property
    def saved_ratio(self) -> float:
        """Cards saved, net of spares at their peak, 0-1."""
        return 1.0 - self.cards_peak / max(1, self.cards_before)

    @property
    def violation_ratio(self) -> float:
        """Violated active time / active time, 0-1."""
        return float(self.violated_steps.sum() / max(1.0, self.active_steps.sum()))


def play(stage: Stage, opening: Opening, reaction: Reaction | None = None, replan: Replan | None = None) -> Played:
    """Play a stage.

    Args:
        stage: pods and days.
        opening: where they sit at first.
        reaction: how relief acts; None for no relief.
        replan: how seats are looked at anew; None for never.
    """
    game = _Game(stage, opening, reaction, cards_all=replan is not None)
    for step in range(stage.steps):
        if replan is not None and step and step * stage.step_seconds % replan.every_seconds == 0:
            game.replan(step, replan)
        game.step(step)
    return game.result()


class _Game:
    """The state between two pieces of a step."""

    def __init__(self, stage: Stage, opening: Opening, reaction: Reaction | None, *, cards_all: bool) -> None:
        self._stage, self._reaction = stage, reaction
        self._spares_max = stage.rows if cards_all else SPARES_MAX if reaction is not None else 0
        self._counted = stage.counted
        _, self._card = np.unique(opening.card, return_inverse=True)
        self._card = self._card.reshape(-1).astype(np.int64)
        self._lay_out_cards()
        rows, cards = stage.rows, len(self._capacity)
        self._granted, self._spills = opening.granted_bytes.astype(float), opening.spills
        self._oversubscribed = opening.is_oversubscribed.copy()
        self._target = np.full(rows, -1, np.int64)
        self._next_granted = self._granted.copy()
        self._done_at = np.full(rows, NEVER)
        self._is_down = np.zeros(rows, bool)
        self._rests_until = np.full(rows, -NEVER)
        self._over_since = np.full(cards, NEVER)
        self._short_since = np.full(rows, NEVER)
        self._sums = np.zeros((4, rows))
        self._by_step = np.zeros((2, stage.steps))
        self._asked = self._served = self._low_asked = self._low_served = 0.0
        self._moves = self._grown = 0
        self._peak = np.zeros(len(stage.models), np.int64)
        self._used = np.zeros((cards, stage.steps), bool)
        self._left = np.ones((cards, stage.steps), np.float32)
        self._free_bytes = np.zeros((cards, stage.steps), np.float32)
        self._seat = np.zeros((rows, stage.steps), np.int32)
        self._need = np.nan_to_num(stage.demand.need_bytes[:, stage.past :])

    def _lay_out_cards(self) -> None:
        """Cards of the opening first, then spares: as many per model as the policy freed."""
        stage = self._stage
        seated = int(self._card.max(initial=-1)) + 1
        capacity, model = np.zeros(seated), np.zeros(seated, np.int64)
        np.maximum.at(capacity, self._card, stage.capacity_bytes)
        model[self._card] = stage.model
        # A card without a judged pod is nobody's to fill: it is not counted, so it must not be used.
        is_counted = np.bincount(self._card, stage.is_judged, seated) > 0
        # Nor does anybody come to those who must not be disturbed.
        is_open = is_counted & (np.bincount(self._card, stage.is_fixed, seated) == 0)
        self._seated, spare_model, spare_capacity = seated, [model], [capacity]
        for number in range(len(stage.models)):
            rows = stage.is_judged & (stage.model == number)
            freed = int(rows.sum()) - int((is_counted & (model == number)).sum())
            count = min(self._spares_max, max(0, freed))
            spare_model.append(np.full(count, number, np.int64))
            spare_capacity.append(np.full(count, stage.capacity_bytes[rows].max(initial=0.0)))
        self._model, self._capacity = np.concatenate(spare_model), np.concatenate(spare_capacity)
        self._is_spare = np.arange(len(self._model)) >= seated
        spares = np.ones(len(self._model) - seated, bool)
        self._is_counted = np.concatenate([is_counted, spares])
        self._is_open = np.concatenate([is_open, spares])

    def replan(self, step: int, replan: Replan) -> None:
        """Look at all seats anew, before a step."""
        clock = step * float(self._stage.step_seconds)
        if self._reaction is not None:
            relief = Relief(self._watch(step - 1, clock, self._reaction), self._reaction.rules)
            budget = round(replan.moves_max_ratio * int(self._counted.sum()))
            self._start_all(relief.leave_spares(budget), clock, self._reaction)
            return
        opening = replan.plan(step)
        if opening is None:
            return
        card = matched_cards(opening.card, self._card, self._stage.model, self._model, self._is_open)
        moved = np.flatnonzero(card != self._card)
        self._card, self._granted = card, opening.granted_bytes.astype(float)
        self._oversubscribed = opening.is_oversubscribed.copy()
        self._target[moved], self._next_granted = card[moved], self._granted.copy()
        self._is_down[moved] = True
        self._done_at[moved] = clock + self._granted[moved] / replan.load_bytes_per_second
        self._moves += len(moved)

    def step(self, step: int) -> None:
        """Play one step, piece by piece."""
        length, start = float(self._stage.step_seconds), step * float(self._stage.step_seconds)
        clock, looked = start, self._reaction is None
        while clock < start + length:
            state = self._fare(step)
            self._note_trouble(state, clock)
            upcoming = min(start + length, self._next_event(clock))
            if not looked and self._reaction is not None:
                upcoming = min(upcoming, max(clock, start + self._reaction.reaction_seconds))
            self._account(state, step, (upcoming - clock) / length)
            clock = upcoming
            self._finish_moves(clock)
            if self._reaction is not None:
                is_look = not looked and clock >= min(start + self._reaction.reaction_seconds, start + length)
                looked |= is_look
                self._decide(step, clock, self._reaction, is_look=is_look)
        self._record(step)

    def result(self) -> Played:
        """What happened, all in all."""
        judged = self._stage.is_judged
        opening = np.zeros(len(self._capacity), bool)
        opening[: self._seated] = self._is_counted[: self._seated]
        active, violated, contended, framebuffer = self._sums
        return Played(
            cards_before=int(judged.sum()),
            cards_opening=int(opening.sum()),
            cards_peak=int(self._peak.sum()),
            active_steps=active,
            violated_steps=violated,
            contended_steps=contended,
            framebuffer_steps=framebuffer,
            asked=self._asked,
            served=self._served,
            low_asked=self._low_asked,
            low_served=self._low_served,
            moves=self._moves,
            grown=self._grown,
            used=self._used,
            left=self._left,
            free_bytes=self._free_bytes,
            capacity_bytes=self._capacity,
            model=self._model,
            seat=self._seat,
        )

    def _fare(self, step: int) -> Fare:
        stage = self._stage
        column = stage.past + step
        seats = Seats(
            card=self._card,
            # Who is stopped holds nothing: its place is another's already.
            framebuffer_granted_bytes=np.where(self._is_down, 0.0, self._granted),
            compute_granted_ratio=np.ones(stage.rows),
            is_hard=np.zeros(stage.rows, bool),
            is_low=stage.is_low,
            is_oversubscribed=self._oversubscribed,
            capacity_bytes=self._capacity,
        )
        demand = np.where(self._is_down, np.float32(0), stage.demand.compute[:, column])[:, None]
        need = np.where(self._is_down, np.float32(0), self._need[:, step])[:, None]
        return fare(demand, need, seats, spills=self._spills)

    def _note_trouble(self, state: Fare, clock: float) -> None:
        """Since when each card is overloaded and each slice too small."""
        trouble = (state.contention | state.full)[:, 0] & state.active[:, 0] & self._counted
        over = np.bincount(self._card, trouble, len(self._capacity)) > 0
        self._over_since = np.where(over, np.minimum(self._over_since, clock), NEVER)
        short = state.short[:, 0] & self._counted
        self._short_since = np.where(short, np.minimum(self._short_since, clock), NEVER)

    def _next_event(self, clock: float) -> float:
        done = float(self._done_at.min(initial=NEVER))
        if self._reaction is None:
            return max(clock, done)
        due = float(min(self._over_since.min(initial=NEVER), self._short_since.min(initial=NEVER)))
        return max(clock, min(due + self._reaction.reaction_seconds, done))

    def _account(self, state: Fare, step: int, share: float) -> None:
        counted = self._counted
        demand = np.nan_to_num(self._stage.coming[:, step])
        # Who is being restarted serves nobody: its active time is violated.
        stopped = self._is_down & (demand > ACTIVE_RATIO_MIN)
        contended, short = state.contention[:, 0], (state.short | state.full)[:, 0]
        active = (state.active[:, 0] | stopped) & counted
        for place, what in enumerate((active, stopped | contended | short, stopped | contended, short)):
            self._sums[place] += share * (what & active)
        self._by_step[:, step] += share * np.array([active.sum(), ((stopped | contended | short) & active).sum()])
        self._asked += share * float(demand[counted].sum())
        served = np.nan_to_num(state.served_ratio[:, 0])
        self._served += share * float(served[counted].sum())
        self._low_asked += share * float(demand[self._stage.is_low].sum())
        self._low_served += share * float(served[self._stage.is_low].sum())
        used = self._cards_in_use() & self._is_counted
        self._peak = np.maximum(self._peak, np.bincount(self._model[used], minlength=len(self._peak)))

    def _cards_in_use(self) -> NDArray[np.bool_]:
        moving = self._target[self._target >= 0]
        cards = len(self._capacity)
        return (np.bincount(self._card, minlength=cards) + np.bincount(moving, minlength=cards)) > 0

    def _finish_moves(self, clock: float) -> None:
        done = np.flatnonzero(self._done_at <= clock)
        self._card[done] = self._target[done]
        self._granted[done] = self._next_granted[done]
        self._target[done] = -1
        self._done_at[done] = NEVER
        self._is_down[done] = False

    def _decide(self, step: int, clock: float, reaction: Reaction, *, is_look: bool) -> None:
        due = np.flatnonzero(self._over_since + reaction.reaction_seconds <= clock)
        short = np.flatnonzero(self._short_since + reaction.reaction_seconds <= clock)
        need = self._need[:, step]
        is_tight = (need > reaction.rules.tight_ratio * self._granted) & self._counted
        tight = np.flatnonzero(is_tight) if is_look and reaction.rules.grows_in_place else short
        if not (len(due) or len(short) or len(tight) or (is_look and reaction.rules.alarm_ratio is not None)):
            return
        relief = Relief(self._watch(step, clock, reaction), reaction.rules)
        for row in short.tolist():
            self._short_since[row] = clock
            self._start_all(relief.grow(row, float(need[row])), clock, reaction)
        for row in np.setdiff1d(tight, short).tolist():
            self._start_all(relief.grow(row, float(need[row]), may_leave=False), clock, reaction)
        ahead = relief.alarmed().tolist() if is_look else ()
        self._start_all(relief.relieve(due.tolist(), ahead=ahead), clock, reaction)
        self._over_since[due] = clock

    def _watch(self, step: int, clock: float, reaction: Reaction) -> Watch:
        stage = self._stage
        memory = max(2, reaction.rules.memory_seconds // stage.step_seconds)
        last = stage.past + step + 1
        load = stage.demand.compute[:, max(0, last - memory) : last]
        need = stage.demand.need_bytes[:, max(0, last - memory) : last]
        return Watch(
            card=self._card,
            target=self._target,
            load=np.where(stage.is_low[:, None], np.float32(0), np.nan_to_num(load)),
            granted_bytes=self._granted,
            need_bytes=np.nan_to_num(need).max(axis=1).astype(float),
            workload=stage.demand.workload_of,
            may_move=stage.is_judged & ~stage.is_fixed,
            is_resting=self._rests_until > clock,
            model=self._model,
            capacity_bytes=self._capacity,
            is_open=self._is_open,
            is_spare=self._is_spare,
            step_seconds=stage.step_seconds,
            violation_ratio=self._recent_violation(step, memory),
        )

    def _recent_violation(self, step: int, memory: int) -> float:
        """Violated share of the memory's active time; before the first step nothing was violated."""
        seen = self._by_step[:, max(0, step + 1 - memory) : step + 1]
        active, violated = seen[0].mean() * memory, seen[1].sum()
        return float(violated / max(1.0, active))

    def _start_all(self, moves: Iterable[ReliefMove], clock: float, reaction: Reaction) -> None:
        ready = clock
        for move in moves:
            # A pod that makes room is started anew when the one before it has left.
            ready = self._start(move, ready if move.is_swapped else clock, reaction)

    def _start(self, move: ReliefMove, clock: float, reaction: Reaction) -> float:
        """Start a move; returns when it will be done."""
        row = move.row
        if move.target == self._card[row]:
            self._grown += int(move.granted_bytes > self._granted[row])
            self._granted[row] = move.granted_bytes
            return clock
        self._moves += 1
        self._target[row] = move.target
        self._next_granted[row] = move.granted_bytes
        self._done_at[row] = clock + move.granted_bytes / reaction.rules.load_bytes_per_second
        self._is_down[row] = move.is_swapped
        self._rests_until[row] = clock + reaction.rules.rest_seconds
        return float(self._done_at[row])

    def _record(self, step: int) -> None:
        stage, cards = self._stage, len(self._capacity)
        demand = np.nan_to_num(stage.coming[:, step])
        total = np.bincount(self._card, demand, cards)
        self._used[:, step] = self._cards_in_use() & self._is_counted
        self._left[:, step] = np.maximum(0.0, 1.0 - total)
        self._seat[:, step] = self._card
        self._free_bytes[:, step] = self._capacity - np.bincount(self._card, self._need[:, step], cards)
