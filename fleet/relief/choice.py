"""Which pod leaves an overloaded card, and where to.

The enforcer and the simulator hand over what was seen up to this moment (a `Watch`); the future is not in it. Every pod
whose leaving would relieve the card is weighed against every card that has room for it and against an empty card. The
cheapest wins: the share of the coming hours in which the two cards are likely to be full again, plus what a move,
loading framebuffer and an empty card cost (`ReliefRules`). Room on a card is judged by what its pods and the newcomer
did over the memory, the last hours counting most. Pods that can have a second replica go before those that must be
stopped. Low priority is no part of this: it gets what the others leave.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fleet.relief.overload import Cause
from fleet.relief.rules import ReliefRules
from fleet.sharing import ACTIVE_RATIO_MIN, sum_by_card
from fleet.usage import Float32


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What was seen, up to now. Rows are slices; those of low priority demand nothing here.

    Attributes:
        card: card of each row, (rows,), int64.
        target: card that a row moves to right now, (rows,), -1 where it stays, int64.
        load: compute that each row used, share of a card, (rows, steps), no NaN; the last column is the present.
        granted_bytes: grant, (rows,).
        need_bytes: most framebuffer that each row used over the memory, (rows,).
        workload: number of the workload, (rows,): its replicas stay on different cards.
        may_move: False for what must stay as it is, (rows,), bool.
        is_single: True where a pod must be stopped before it starts elsewhere, (rows,), bool.
        is_resting: moved a short while ago, (rows,), bool.
        area: number of the area of cards that a row may go to, (rows,), int64.
        reach: cards of each area, (areas, cards), bool.
        model: card model, (cards,), int64.
        capacity_bytes: framebuffer, (cards,).
        is_open: True for cards that may take a newcomer, (cards,), bool.
    """

    card: NDArray[np.int64]
    target: NDArray[np.int64]
    load: Float32
    granted_bytes: NDArray[np.float64]
    need_bytes: NDArray[np.float64]
    workload: NDArray[np.int32]
    may_move: NDArray[np.bool_]
    is_single: NDArray[np.bool_]
    is_resting: NDArray[np.bool_]
    area: NDArray[np.int64]
    reach: NDArray[np.bool_]
    model: NDArray[np.int64]
    capacity_bytes: NDArray[np.float64]
    is_open: NDArray[np.bool_]
    step_seconds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReliefMove:
    """One pod's new card.

    Attributes:
        row: row of the watch.
        target: card.
    """

    row: int
    target: int


class Relief:
    """Weighs the ways out of overloaded cards at one moment."""

    def __init__(self, watch: Watch, rules: ReliefRules) -> None:
        self._watch, self._rules = watch, rules
        cards, steps = len(watch.capacity_bytes), watch.load.shape[1]
        moving = np.flatnonzero(watch.target >= 0)
        self._total = sum_by_card(watch.load, watch.card, cards)
        np.add.at(self._total, watch.target[moving], watch.load[moving])
        self._free = watch.capacity_bytes - np.bincount(watch.card, watch.granted_bytes, cards)
        self._free -= np.bincount(watch.target[moving], watch.granted_bytes[moving], cards)
        used = np.bincount(watch.card, minlength=cards) + np.bincount(watch.target[moving], minlength=cards)
        self._is_used = used > 0
        age = np.arange(steps, dtype=np.float64)[::-1] * watch.step_seconds / rules.recent_seconds
        recent = 0.5**age
        self._weight = (0.5 * recent / recent.sum() + 0.5 / steps).astype(np.float32)

    def way_out(self, card: int, cause: Cause, missing_bytes: int = 0) -> ReliefMove | None:
        """The cheapest move that relieves a card; None where there is none.

        Args:
            missing_bytes: framebuffer that must become free, where that is the cause.
        """
        watch = self._watch
        here = np.flatnonzero((watch.card == card) & watch.may_move & (watch.target < 0))
        for is_single in (False, True):
            rows = here[watch.is_single[here] == is_single].tolist()
            move = self._relieved(card, rows) if cause is Cause.DEMAND else None
            if move is None and cause is Cause.FRAMEBUFFER:
                enough = [row for row in rows if watch.need_bytes[row] >= missing_bytes]
                rows = enough or sorted(rows, key=lambda row: -float(watch.need_bytes[row]))[:1]
            move = move or self._cheapest(self._rested(rows), self._total[card])
            if move is not None:
                return move
        return None

    def begun(self, move: ReliefMove) -> None:
        """Take in a move that began, of a row whose `target` in the watch is set by now."""
        watch = self._watch
        self._total[move.target] += watch.load[move.row]
        self._free[move.target] -= watch.granted_bytes[move.row]
        self._is_used[move.target] = True

    def may_return(self, row: int, home: int) -> bool:
        """Whether a pod's old card has had room for it for long enough."""
        watch, rules = self._watch, self._rules
        steps = max(1, rules.home_seconds // watch.step_seconds)
        if watch.load.shape[1] < steps or not self._fitting(row)[home]:
            return False
        return float((self._total[home] + watch.load[row])[-steps:].max()) <= rules.home_ratio

    def _relieved(self, card: int, rows: Sequence[int]) -> ReliefMove | None:
        """The cheapest move after which the rest needs little enough, or that of the busiest pod."""
        watch, enough_ratio = self._watch, self._rules.relieved_ratio
        there = np.flatnonzero(watch.card == card)
        # A pod that is moving away no longer counts.
        left = self._total[card] - watch.load[there[watch.target[there] >= 0]].sum(axis=0)
        if np.count_nonzero(watch.target[there] < 0) < 2 or left[-1] <= enough_ratio:
            return None
        able = self._rested([row for row in rows if watch.load[row, -1] > ACTIVE_RATIO_MIN])
        enough = [row for row in able if left[-1] - watch.load[row, -1] <= enough_ratio]
        return self._cheapest(enough or sorted(able, key=lambda r: (-float(watch.load[r, -1]), r))[:1], left)

    def _rested(self, rows: Sequence[int]) -> Sequence[int]:
        """Those that did not move lately; all where every one did."""
        return [row for row in rows if not self._watch.is_resting[row]] or rows

    def _cheapest(self, rows: Sequence[int], left: Float32) -> ReliefMove | None:
        options = [option for row in rows for option in self._options(row, left)]
        return min(options, key=lambda option: option[0])[1] if options else None

    def _options(self, row: int, left: Float32) -> Iterator[tuple[float, ReliefMove]]:
        """Ways out for a row and their costs: to a card in use, to an empty card.

        Args:
            left: demand of its card, (steps,).
        """
        watch, rules = self._watch, self._rules
        loading = float(watch.granted_bytes[row]) / rules.load_bytes_per_second
        cost = rules.move_cost + loading * rules.load_cost_per_second
        cost += float(self._likely_full((left - watch.load[row])[None])[0])
        fits = self._fitting(row)
        found = np.flatnonzero(fits & self._is_used)
        if len(found):
            total = self._total[found] + watch.load[row]
            # A card that would be full right now takes no pod.
            likely = np.where(total[:, -1] <= rules.relieved_ratio, self._likely_full(total), np.float32(np.inf))
            best = int(likely.argmin())
            if likely[best] <= rules.likely_full_max:
                yield cost + float(likely[best]), ReliefMove(row=row, target=int(found[best]))
        empty = fits & ~self._is_used
        if empty.any():
            yield cost + rules.spare_cost, ReliefMove(row=row, target=int(empty.argmax()))

    def _fitting(self, row: int) -> NDArray[np.bool_]:
        """Cards of the same model that have the framebuffer and no replica of the same workload, (cards,)."""
        watch = self._watch
        fits: NDArray[np.bool_] = watch.is_open & watch.reach[watch.area[row]]
        fits = fits & (watch.model == watch.model[watch.card[row]]) & (self._free >= watch.granted_bytes[row])
        own = np.flatnonzero(watch.workload == watch.workload[row])
        fits[watch.card[own]] = False
        fits[watch.target[own][watch.target[own] >= 0]] = False
        return fits

    def _likely_full(self, total: Float32) -> NDArray[np.float32]:
        """Share of the coming hours in which cards are likely to be full, 0-1, (candidates,).

        Args:
            total: demand of each candidate over the memory, (candidates, steps).
        """
        busy = self._rules.busy_ratio
        # Among cards that were never busy, the one whose largest demand was least.
        likely: NDArray[np.float32] = np.clip(
            (total - busy) / (1.0 - busy), 0.0, 1.0
        ) @ self._weight + 0.001 * total.max(axis=1)
        return likely
