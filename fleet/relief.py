"""What to do when a card overloads at run time: which pod leaves it, and where to. Rules only; nothing is done here.

Two rooms must decide alike: the enforcer, which relieves real cards, and the simulator, which says beforehand what
relief will be worth. Both hand over what node agents have seen up to this moment (a `Watch`); the future is not in it.

Demand. Every pod whose leaving would relieve the card is weighed against every card that has room for it, against
changing places with every pod that is idle right now (it can be stopped for a minute without harm), and against a
spare. The cheapest wins: the share of the coming hours in which the two cards are likely to be full again, plus what
moves, loading framebuffer and opening a spare cost (`ReliefRules`). Room on a card is judged by what its pods and the
newcomer did over the last day, the last hours counting most.

Framebuffer. A slice that is too small grows on its card, where neighbours give back what they have not needed; else
its pod goes where there is room, by the same means. Low priority is no part of this: it gets what the others leave.

Tuned on some cuts of one public inference fleet and checked on others and on generated fleets; changing the costs and
times by a factor of two changes little.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fleet.sharing import ACTIVE_RATIO_MIN, CONTENTION_RATIO_MAX, sum_by_card
from fleet.units import GIB, MIB
from fleet.usage import Float32

GRANT_STEP_BYTES = 256 * MIB
"""Grants are changed in steps of this."""
LOAD_BYTES_PER_SECOND = 1.0 * GIB
"""How fast a pod's framebuffer is loaded where nobody has measured it: weights from a disk of the node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReliefRules:
    """When relief acts, and how far it goes. Costs are in the unit of a card that is full for all the coming hours.

    Attributes:
        alarm_ratio: demand, share of the card, from which a card that rises is relieved before it is overloaded;
            None always waits for the overload.
        alarm_violation_ratio: violated active time of the fleet over the memory from which that is done: it takes
            more moves and spares, so it is kept for days on which waiting is not enough.
        rise_factor: the rise of the last step is taken to go on for this many steps.
        relieved_ratio: a relieved card's demand is at most this.
        busy_ratio: demand from which a card counts as likely to be full, rising to certainty at the whole card.
        likely_full_max: a card that is likely to be full for more than this share of the time takes nobody.
        memory_seconds: how far back demand is remembered.
        recent_seconds: half-life of the recent demand, which counts for one half; the whole memory for the other.
        rest_seconds: a pod that was moved is not moved again so soon, unless nobody else can be.
        load_bytes_per_second: how fast a pod's framebuffer is loaded on another card.
        swaps: True where idle pods may be stopped for a moment to change places with busy ones.
        grows_in_place: True where the limit of a running pod can be changed.
        tight_ratio: a slice whose need is above this share of it grows on its card before it is too small.
        headroom_ratio: a slice that was too small gets its need and this share more.
        kept_ratio: a slice that gives framebuffer back keeps its need of the memory and this share more.
        move_cost: of every pod that moves.
        load_cost_per_second: of every second of loading.
        spare_cost: of a fresh spare.
    """

    alarm_ratio: float | None = 0.97
    alarm_violation_ratio: float = 0.001
    rise_factor: float = 0.5
    relieved_ratio: float = 1.0
    busy_ratio: float = 0.8
    likely_full_max: float = 0.3
    memory_seconds: int = 86400
    recent_seconds: int = 3 * 3600
    rest_seconds: int = 6 * 3600
    load_bytes_per_second: float = LOAD_BYTES_PER_SECOND
    swaps: bool = True
    grows_in_place: bool = True
    tight_ratio: float = 0.97
    headroom_ratio: float = 0.05
    kept_ratio: float = 0.02
    move_cost: float = 0.02
    load_cost_per_second: float = 1 / 6000
    spare_cost: float = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What the agents have seen, up to now. Rows are slices; those of low priority demand nothing here.

    Attributes:
        card: card of each row, (rows,), int64.
        target: card that a row moves to right now, (rows,), -1 where it stays, int64.
        load: demand of each row, share of a card, (rows, steps), no NaN; the last column is the present.
        granted_bytes: grant, (rows,).
        need_bytes: most framebuffer that each row needed over the memory, (rows,).
        workload: number of the workload, (rows,): its replicas stay on different cards.
        may_move: False for what must stay as it is, (rows,), bool.
        is_resting: moved a short while ago, (rows,), bool.
        model: card model, (cards,), int64.
        capacity_bytes: framebuffer, (cards,).
        is_open: True for cards that may take a newcomer, (cards,), bool.
        is_spare: True for spares, in use or not, (cards,), bool.
        step_seconds: length of a step.
        violation_ratio: violated active time / active time of all these pods over the memory, 0-1.
    """

    card: NDArray[np.int64]
    target: NDArray[np.int64]
    load: Float32
    granted_bytes: NDArray[np.float64]
    need_bytes: NDArray[np.float64]
    workload: NDArray[np.int32]
    may_move: NDArray[np.bool_]
    is_resting: NDArray[np.bool_]
    model: NDArray[np.int64]
    capacity_bytes: NDArray[np.float64]
    is_open: NDArray[np.bool_]
    is_spare: NDArray[np.bool_]
    step_seconds: int
    violation_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReliefMove:
    """One pod's new place.

    Attributes:
        row: row of the watch.
        target: card; its own where only the grant changes.
        granted_bytes: its grant there.
        is_swapped: True for a pod that is stopped at once to make room for the move before this one, and started on
            that one's card when it has left.
    """

    row: int
    target: int
    granted_bytes: float
    is_swapped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Option:
    """One way out.

    Attributes:
        cost: see `ReliefRules`.
        row: who leaves.
        target: where to.
        granted_bytes: its grant there.
        other: who comes in its place, None for nobody.
    """

    cost: float
    row: int
    target: int
    granted_bytes: float
    other: int | None = None


class Relief:
    """Decides for one moment; a decision sees what the earlier ones of the same moment took.

    Args:
        watch: what was seen; left as it is.
        rules: the rules.
    """

    def __init__(self, watch: Watch, rules: ReliefRules) -> None:
        self._watch, self._rules = watch, rules
        cards, steps = len(watch.capacity_bytes), watch.load.shape[1]
        self._target, self._granted = watch.target.copy(), watch.granted_bytes.copy()
        moving = np.flatnonzero(self._target >= 0)
        self._total = sum_by_card(watch.load, watch.card, cards)
        np.add.at(self._total, self._target[moving], watch.load[moving])
        self._free = watch.capacity_bytes - np.bincount(watch.card, self._granted, cards)
        self._free -= np.bincount(self._target[moving], self._granted[moving], cards)
        used = np.bincount(watch.card, minlength=cards) + np.bincount(self._target[moving], minlength=cards)
        self._is_used = used > 0
        age = np.arange(steps, dtype=np.float64)[::-1] * watch.step_seconds / rules.recent_seconds
        recent = 0.5**age
        self._weight = (0.5 * recent / recent.sum() + 0.5 / steps).astype(np.float32)
        self._places: dict[int, set[int]] = {}
        for workload, *places in zip(watch.workload.tolist(), watch.card.tolist(), self._target.tolist(), strict=True):
            self._places.setdefault(workload, set()).update(place for place in places if place >= 0)

    def alarmed(self) -> NDArray[np.int64]:
        """Cards that are not overloaded yet and will be if they rise on; empty where the rules wait."""
        alarm = self._rules.alarm_ratio
        if alarm is None or self._watch.violation_ratio < self._rules.alarm_violation_ratio:
            return np.zeros(0, np.int64)
        now, before = self._total[:, -1], self._total[:, max(-2, -self._total.shape[1])]
        ahead = now + self._rules.rise_factor * np.maximum(0.0, now - before)
        is_near = (now > alarm) & (ahead > CONTENTION_RATIO_MAX) & (now <= CONTENTION_RATIO_MAX)
        return np.flatnonzero(is_near)

    def relieve(self, cards: Iterable[int], *, ahead: Iterable[int] = ()) -> Iterator[ReliefMove]:
        """Moves that relieve some cards, the fullest first.

        Args:
            cards: overloaded cards.
            ahead: cards that will be overloaded if they rise on; one pod leaves each.
        """
        for card in sorted(cards, key=lambda c: (-float(self._total[c, -1]), c)):
            yield from self._relieved(int(card), self._rules.relieved_ratio)
        for card in sorted(ahead):
            yield from self._relieved(int(card), float(self._rules.alarm_ratio or self._rules.relieved_ratio))

    def grow(self, row: int, need_bytes: float, *, may_leave: bool = True) -> tuple[ReliefMove, ...]:
        """A larger slice for a row, and whose slices shrink for it; nothing where no card has room.

        Args:
            row: whose slice is too small.
            need_bytes: what it needs now.
            may_leave: False where it is not too small yet: then it grows on its card or not at all.
        """
        watch, card = self._watch, int(self._watch.card[row])
        wanted = self._slice_for(need_bytes, self._rules.headroom_ratio, card)
        extra = wanted - float(self._granted[row])
        if self._target[row] >= 0 or extra <= 0:
            return ()
        shrunk = self._room_from_neighbours(row, extra) if self._rules.grows_in_place else None
        if shrunk is not None:
            return (*(self._regranted(other, keeps) for other, keeps in shrunk), self._regranted(row, wanted))
        if not watch.may_move[row] or not may_leave:
            return ()
        option = min(self._options([row], self._total[card], wanted), key=lambda o: o.cost, default=None)
        return self._taken(option) if option is not None else ()

    def leave(self, rows: Sequence[int]) -> tuple[ReliefMove, ...]:
        """The cheapest way out of their card for one of some rows, whatever it demands; nothing where none has one.

        Args:
            rows: rows of one card, of which one shall go: its framebuffer is wanted, or a neighbour suffers.
        """
        able = [row for row in rows if self._watch.may_move[row] and self._target[row] < 0]
        able = [row for row in able if not self._watch.is_resting[row]] or able
        if not able:
            return ()
        card = int(self._watch.card[able[0]])
        option = min(self._options(able, self._total[card], None), key=lambda o: o.cost, default=None)
        return self._taken(option) if option is not None else ()

    def leave_spares(self, moves_max: int) -> Iterator[ReliefMove]:
        """Moves off spares onto cards in use that have room, so that spares are free again; quickest to load first."""
        watch = self._watch
        rows = np.flatnonzero(watch.is_spare[watch.card] & watch.may_move & (self._target < 0) & ~watch.is_resting)
        made = 0
        for row in sorted(rows.tolist(), key=lambda r: (float(self._granted[r]), r)):
            if made >= moves_max:
                return
            found = self._room(row, float(self._granted[row]), self._is_used & ~watch.is_spare)
            if found is not None:
                made += 1
                yield self._moved(row, found[0], float(self._granted[row]))

    def _relieved(self, card: int, enough_ratio: float) -> Iterator[ReliefMove]:
        watch = self._watch
        rows = np.flatnonzero(watch.card == card).tolist()
        # Who is on its way out no longer counts: the card will be rid of it.
        left = self._total[card] - watch.load[[row for row in rows if self._target[row] >= 0]].sum(axis=0)
        staying = [row for row in rows if self._target[row] < 0]
        while len(staying) > 1 and left[-1] > enough_ratio:
            able = [row for row in staying if watch.may_move[row] and watch.load[row, -1] > ACTIVE_RATIO_MIN]
            able = [row for row in able if not watch.is_resting[row]] or able
            enough = [row for row in able if left[-1] - watch.load[row, -1] <= enough_ratio]
            # Where no pod suffices, the busiest goes first.
            able = enough or sorted(able, key=lambda r: (-float(watch.load[r, -1]), r))[:1]
            option = min(self._options(able, left, None), key=lambda o: o.cost, default=None)
            if option is None:
                return
            staying.remove(option.row)
            left = left - watch.load[option.row]
            if option.other is not None:
                left = left + watch.load[option.other]
            yield from self._taken(option)

    def _options(self, rows: Sequence[int], left: Float32, wanted: float | None) -> Iterator[_Option]:
        """Ways out for each row: to a card in use, into an idle pod's place, to a fresh spare.

        Args:
            rows: rows of one card.
            left: demand of that card, (steps,).
            wanted: grant of the row, where it changes, bytes.
        """
        watch, rules = self._watch, self._rules
        for row in rows:
            size = float(self._granted[row]) if wanted is None else wanted
            here = float(self._likely_full((left - watch.load[row])[None], now_matters=False)[0])
            move = rules.move_cost + size / rules.load_bytes_per_second * rules.load_cost_per_second
            found = self._room(row, size, self._is_used)
            if found is not None:
                yield _Option(cost=here + found[1] + move, row=row, target=found[0], granted_bytes=size)
            swap = self._swap(row, left, size) if rules.swaps else None
            if swap is not None:
                target = int(watch.card[swap[0]])
                cost = swap[1] + 2 * move
                yield _Option(cost=cost, row=row, target=target, granted_bytes=size, other=swap[0])
            fresh = self._fitting(row, size) & ~self._is_used
            if fresh.any():
                cost = here + move + rules.spare_cost
                yield _Option(cost=cost, row=row, target=int(fresh.argmax()), granted_bytes=size)

    def _fitting(self, row: int, size: float) -> NDArray[np.bool_]:
        """Cards of the same model that have the framebuffer and no replica of the same workload, (cards,)."""
        watch = self._watch
        fits: NDArray[np.bool_] = watch.is_open & (watch.model == watch.model[watch.card[row]]) & (self._free >= size)
        fits[list(self._places[int(watch.workload[row])])] = False
        return fits

    def _room(self, row: int, size: float, among: NDArray[np.bool_]) -> tuple[int, float] | None:
        """The card that is least likely to be full with the row, and how likely; None where none has room."""
        candidates = np.flatnonzero(self._fitting(row, size) & among)
        if not len(candidates):
            return None
        likely = self._likely_full(self._total[candidates] + self._watch.load[row])
        best = int(likely.argmin())
        return (int(candidates[best]), float(likely[best])) if likely[best] <= self._rules.likely_full_max else None

    def _swap(self, row: int, left: Float32, size: float) -> tuple[int, float] | None:
        """The idle pod that changes places best, and how likely both cards are full then; None where none does."""
        watch, card = self._watch, int(self._watch.card[row])
        others = watch.may_move & ~watch.is_resting & (watch.load[:, -1] <= ACTIVE_RATIO_MIN) & (self._target < 0)
        others &= watch.is_open[watch.card] & (watch.model[watch.card] == watch.model[card]) & (watch.card != card)
        others &= self._granted <= self._free[card] + self._granted[row]
        others &= self._free[watch.card] + self._granted >= size
        others &= ~np.isin(watch.card, list(self._places[int(watch.workload[row])]))
        others &= ~np.isin(watch.workload, [name for name, places in self._places.items() if card in places])
        found = np.flatnonzero(others)
        if not watch.is_open[card] or not len(found):
            return None
        own, theirs = watch.load[row], watch.load[found]
        likely = self._likely_full(left - own + theirs)
        likely += self._likely_full(self._total[watch.card[found]] - theirs + own)
        best = int(likely.argmin())
        return (int(found[best]), float(likely[best])) if likely[best] <= self._rules.likely_full_max else None

    def _likely_full(self, total: Float32, *, now_matters: bool = True) -> NDArray[np.float32]:
        """Share of the coming hours in which cards are likely to be full, 0-1, (candidates,).

        Args:
            total: demand of each candidate over the memory, (candidates, steps).
            now_matters: infinite for a card that would be full right now.
        """
        busy = self._rules.busy_ratio
        # Among cards that were never busy, the one whose largest demand was least.
        likely: NDArray[np.float32] = np.clip(
            (total - busy) / (1.0 - busy), 0.0, 1.0
        ) @ self._weight + 0.001 * total.max(axis=1)
        if not now_matters:
            return likely
        return np.where(total[:, -1] <= self._rules.relieved_ratio, likely, np.float32(np.inf))

    def _slice_for(self, need_bytes: float, more_ratio: float, card: int) -> float:
        wanted = np.ceil(need_bytes * (1.0 + more_ratio) / GRANT_STEP_BYTES) * GRANT_STEP_BYTES
        return min(float(wanted), float(self._watch.capacity_bytes[card]))

    def _room_from_neighbours(self, row: int, extra: float) -> list[tuple[int, float]] | None:
        """Neighbours and the smaller slices they keep, so that `extra` bytes are free; None where they can't be."""
        watch, card = self._watch, int(self._watch.card[row])
        missing, found = extra - float(self._free[card]), []
        for other in np.flatnonzero((watch.card == card) & (self._target < 0) & watch.may_move).tolist():
            if missing <= 0:
                break
            keeps = self._slice_for(float(watch.need_bytes[other]), self._rules.kept_ratio, card)
            if other != row and keeps < self._granted[other]:
                found.append((other, keeps))
                missing -= float(self._granted[other]) - keeps
        return found if missing <= 0 else None

    def _regranted(self, row: int, granted_bytes: float) -> ReliefMove:
        card = int(self._watch.card[row])
        self._free[card] += self._granted[row] - granted_bytes
        self._granted[row] = granted_bytes
        return ReliefMove(row=row, target=card, granted_bytes=granted_bytes)

    def _taken(self, option: _Option) -> tuple[ReliefMove, ...]:
        first = self._moved(option.row, option.target, option.granted_bytes)
        if option.other is None:
            return (first,)
        watch, other, here = self._watch, option.other, int(self._watch.card[option.row])
        # The idle pod gives its place up at once, and gets one that is free only when the first has left.
        self._free[option.target] += self._granted[other]
        self._total[option.target] -= watch.load[other]
        self._free[here] += watch.granted_bytes[option.row]
        second = self._moved(other, here, float(self._granted[other]))
        return first, replace(second, is_swapped=True)

    def _moved(self, row: int, target: int, granted_bytes: float) -> ReliefMove:
        """Takes the room on the target."""
        self._total[target] += self._watch.load[row]
        self._free[target] -= granted_bytes
        self._is_used[target] = True
        self._target[row] = target
        self._places[int(self._watch.workload[row])].add(target)
        return ReliefMove(row=row, target=target, granted_bytes=granted_bytes)
