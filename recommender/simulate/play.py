"""Plays days of a fleet step by step: pods on cards as a policy seated them, with relief on or off.

The model of time. Within a step of the trace demand is what the trace says, from the step's first moment to its last.
A step is cut wherever something changes in it: relief begins moves as `fleet.relief` decides; a pod that moves serves
on its old card, and crowds it, until its framebuffer is loaded on the new one (grant / `load_bytes_per_second`); a pod
that cannot have a second replica is stopped meanwhile. Every piece is judged by `fleet.sharing`, as the referee judges
steps, and counts by its length: a card that is relieved after 144 of 600 seconds was violated for 0.24 of the step.
Decisions see this piece and the past, never what comes.

The arithmetic of a step is done on arrays; only cards that need relief are looked at one by one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fleet.lending import Residency
from fleet.relief.moves import PastMove
from fleet.relief.rules import ReliefRules
from fleet.sharing import ACTIVE_RATIO_MIN, Fare, Seats, fare
from recommender.demand import touched
from recommender.simulate.relief import PlayedRelief, Seating
from recommender.simulate.replan import Replan, matched_cards
from recommender.simulate.stage import Opening, Stage

NEVER = np.inf
SPARES_MAX = 256
"""Cards of each model that relief may draw upon: at most those that the policy freed."""


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
        low_asked: demand of the pods of low priority, card-steps.
        switches: how often lent framebuffer came back to its card, per row.
        switch_seconds: how long each row waited while framebuffer moved, in all.
        host_bytes: lent framebuffer in host memory, in each step, of all cards, (steps,).
        orders: moves that relief began, in seconds since the first step, rows and numbers of cards as names.
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
    switches: NDArray[np.int64]
    switch_seconds: NDArray[np.float64]
    host_bytes: NDArray[np.float64]
    orders: tuple[PastMove, ...]
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


def play(stage: Stage, opening: Opening, rules: ReliefRules | None = None, replan: Replan | None = None) -> Played:
    """Play a stage.

    Args:
        rules: of relief; None for no relief.
        replan: how seats are looked at anew; None for never.
    """
    game = _Game(stage, opening, rules, replan)
    for step in range(stage.steps):
        if replan is not None and step and step * stage.step_seconds % replan.every_seconds == 0:
            game.replan(step, replan)
        game.step(step)
    return game.result()


class _Game:
    """The state between two pieces of a step."""

    def __init__(self, stage: Stage, opening: Opening, rules: ReliefRules | None, replan: Replan | None) -> None:
        self._stage, self._counted = stage, stage.counted
        self._paging_rate = opening.paging_bytes_per_second
        self._spares_max = stage.rows if replan is not None else SPARES_MAX if rules is not None else 0
        self._seating = self._laid_out(opening)
        rows, cards = stage.rows, len(self._seating.capacity_bytes)
        self._residency = Residency(rows)
        self._switches, self._waited = np.zeros(rows, np.int64), np.zeros(rows)
        self._waits = np.zeros(rows)
        self._host_bytes = np.zeros(stage.steps)
        self._relief = None if rules is None else PlayedRelief(stage, self._seating, rules)
        self._load_rate = NEVER if rules is None else rules.load_bytes_per_second
        self._done_at = np.full(rows, NEVER)
        self._is_down = np.zeros(rows, bool)
        self._sums = np.zeros((4, rows))
        self._asked = self._served = self._low_asked = self._low_served = 0.0
        self._moves = 0
        self._peak = np.zeros(len(stage.models), np.int64)
        self._used = np.zeros((cards, stage.steps), bool)
        self._left = np.ones((cards, stage.steps), np.float32)
        self._free_bytes = np.zeros((cards, stage.steps), np.float32)
        self._seat = np.zeros((rows, stage.steps), np.int32)
        self._touches: NDArray[np.bool_] | None = None
        self._need = np.nan_to_num(stage.demand.need_bytes[:, stage.past :])

    def _laid_out(self, opening: Opening) -> Seating:
        """Cards of the opening first, then spares: as many per model as the policy freed."""
        stage = self._stage
        _, card = np.unique(opening.card, return_inverse=True)
        card = card.reshape(-1).astype(np.int64)
        seated = int(card.max(initial=-1)) + 1
        capacity, model = np.zeros(seated), np.zeros(seated, np.int64)
        np.maximum.at(capacity, card, stage.capacity_bytes)
        model[card] = stage.model
        # A card without a judged pod is not counted, so it must not be used.
        is_counted = np.bincount(card, stage.is_judged, seated) > 0
        is_open = is_counted & (np.bincount(card, stage.is_alone, seated) == 0)
        models, capacities = [model], [capacity]
        for number in range(len(stage.models)):
            rows = stage.is_judged & (stage.model == number)
            freed = int(rows.sum()) - int((is_counted & (model == number)).sum())
            count = min(self._spares_max, max(0, freed))
            models.append(np.full(count, number, np.int64))
            capacities.append(np.full(count, stage.capacity_bytes[rows].max(initial=0.0)))
        spares = np.ones(sum(len(part) for part in models) - seated, bool)
        self._seated, self._is_counted = seated, np.concatenate([is_counted, spares])
        return Seating(
            card=card,
            target=np.full(stage.rows, -1, np.int64),
            granted_bytes=opening.granted_bytes.astype(float),
            kept_bytes=opening.kept_bytes.copy(),
            model=np.concatenate(models),
            capacity_bytes=np.concatenate(capacities),
            is_open=np.concatenate([is_open, spares]),
        )

    def replan(self, step: int, replan: Replan) -> None:
        """Seat all pods by a new plan, before a step."""
        opening, seating = replan.plan(step), self._seating
        if opening is None:
            return
        clock = step * float(self._stage.step_seconds)
        card = matched_cards(opening.card, seating.card, self._stage.model, seating.model, seating.is_open)
        moved = np.flatnonzero(card != seating.card)
        seating.card, seating.granted_bytes = card, opening.granted_bytes.astype(float)
        seating.kept_bytes = opening.kept_bytes.copy()
        seating.target[moved] = card[moved]
        self._is_down[moved] = True
        self._done_at[moved] = clock + seating.granted_bytes[moved] / replan.load_bytes_per_second
        self._moves += len(moved)
        if self._relief is not None:
            self._relief.seated_anew(moved, clock)

    def step(self, step: int) -> None:
        """Play one step, piece by piece."""
        length, start = float(self._stage.step_seconds), step * float(self._stage.step_seconds)
        clock = start
        self._lend(step)
        while clock < start + length:
            state = self._fare(step)
            until = min(start + length, float(self._done_at.min(initial=NEVER)))
            if self._relief is not None:
                self._relief.see(clock, step, state, self._need_now(step))
                until = self._relieved(self._relief, clock, until)
            self._account(state, step, (until - clock) / length)
            clock = until
            self._finish_moves(clock)
        self._record(step)

    def _lend(self, step: int) -> None:
        """Lets lent framebuffer change hands as a step begins; pods stand on their cards before the first one does."""
        seating, stage = self._seating, self._stage
        if not np.isfinite(seating.kept_bytes).any():
            return
        if self._touches is None:
            # A request of a second pulls framebuffer back as well, whatever the mean of its step says.
            self._touches = touched(stage.whole)[:, stage.past :]
        works = (np.nan_to_num(stage.coming[:, step]) > ACTIVE_RATIO_MIN) | self._touches[:, step]
        works &= ~self._is_down
        held = self._need_now(step).astype(float)
        turn = self._residency.turn(step, works, held, seating.kept_bytes, seating.card, seating.capacity_bytes)
        self._host_bytes[step] = turn.out_bytes.sum()
        self._waits = turn.waits_bytes / self._paging_rate if step else np.zeros(stage.rows)
        self._waited += self._waits
        self._switches += turn.came_back & (step > 0)

    def _relieved(self, relief: PlayedRelief, clock: float, until: float) -> float:
        """Let relief look at a piece as often as it asks to; returns the piece's end."""
        while clock < until:
            begun = relief.look(clock)
            for move in begun:
                self._moves += 1
                self._done_at[move.row] = clock + self._seating.granted_bytes[move.row] / self._load_rate
                self._is_down[move.row] = move.is_stopped
                # Elsewhere it lends nothing: whether that card's node is scaled nobody says.
                self._seating.kept_bytes[move.row] = np.inf
                until = min(until, float(self._done_at[move.row]))
            if any(move.is_stopped for move in begun):
                return clock
            clock = relief.next_at(clock)
        return until

    def result(self) -> Played:
        """What happened, all in all."""
        judged, seating = self._stage.is_judged, self._seating
        opening = np.zeros(len(seating.capacity_bytes), bool)
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
            switches=self._switches,
            switch_seconds=self._waited,
            host_bytes=self._host_bytes,
            orders=() if self._relief is None else self._relief.moves,
            used=self._used,
            left=self._left,
            free_bytes=self._free_bytes,
            capacity_bytes=seating.capacity_bytes,
            model=seating.model,
            seat=self._seat,
        )

    def _need_now(self, step: int) -> NDArray[np.float32]:
        """Framebuffer that pods need; a pod that is stopped needs none."""
        return np.where(self._is_down, np.float32(0), self._need[:, step])

    def _fare(self, step: int) -> Fare:
        stage, seating = self._stage, self._seating
        seats = Seats(
            card=seating.card,
            # The place of a pod that is stopped is another's already.
            framebuffer_granted_bytes=np.where(self._is_down, 0.0, seating.granted_bytes),
            compute_granted_ratio=np.ones(stage.rows),
            is_hard=np.zeros(stage.rows, bool),
            is_low=stage.is_low,
            kept_bytes=seating.kept_bytes,
            capacity_bytes=seating.capacity_bytes,
        )
        demand = np.where(self._is_down, np.float32(0), stage.demand.compute[:, stage.past + step])[:, None]
        return fare(demand, self._need_now(step)[:, None], seats)

    def _account(self, state: Fare, step: int, share: float) -> None:
        counted, stage = self._counted, self._stage
        demand = np.nan_to_num(self._stage.coming[:, step])
        # A pod that is being restarted serves nothing: its active time is violated.
        stopped = self._is_down & (demand > ACTIVE_RATIO_MIN)
        contended, short = state.contention[:, 0], (state.short | state.full)[:, 0]
        active = (state.active[:, 0] | stopped) & counted
        # Requests wait while framebuffer comes back: a switch counts by its length.
        waits = np.minimum(1.0, self._waits / stage.step_seconds)
        for place, what in enumerate((active, stopped | contended | short, stopped | contended, short)):
            self._sums[place] += share * np.where(what, 1.0, 0.0 if place in (0, 2) else waits) * active
        self._asked += share * float(demand[counted].sum())
        served = np.nan_to_num(state.served_ratio[:, 0])
        self._served += share * float(served[counted].sum())
        self._low_asked += share * float(demand[self._stage.is_low].sum())
        self._low_served += share * float(served[self._stage.is_low].sum())
        used = self._cards_in_use() & self._is_counted
        self._peak = np.maximum(self._peak, np.bincount(self._seating.model[used], minlength=len(self._peak)))

    def _cards_in_use(self) -> NDArray[np.bool_]:
        seating = self._seating
        moving, cards = seating.target[seating.target >= 0], len(seating.capacity_bytes)
        return (np.bincount(seating.card, minlength=cards) + np.bincount(moving, minlength=cards)) > 0

    def _finish_moves(self, clock: float) -> None:
        done, seating = np.flatnonzero(self._done_at <= clock), self._seating
        if not len(done):
            return
        seating.card[done], seating.target[done] = seating.target[done], -1
        self._residency.anew(done)
        self._done_at[done] = NEVER
        self._is_down[done] = False
        if self._relief is not None:
            self._relief.arrived(done, clock)

    def _record(self, step: int) -> None:
        stage, seating = self._stage, self._seating
        cards, demand = len(seating.capacity_bytes), np.nan_to_num(stage.coming[:, step])
        self._used[:, step] = self._cards_in_use() & self._is_counted
        self._left[:, step] = np.maximum(0.0, 1.0 - np.bincount(seating.card, demand, cards))
        self._seat[:, step] = seating.card
        self._free_bytes[:, step] = seating.capacity_bytes - np.bincount(seating.card, self._need[:, step], cards)
