"""What low priority work gets out of a fleet: the compute that others leave, and what being sent away costs it.

One worker of low priority may sit on each shared card in use, and one on each card that is paid for and empty (spares
between overloads, cards of pods that sleep). On a shared card it gets what the others leave, at once less when they
want more (mGPU: nothing while the online side fills the card). It never takes framebuffer from them: when less than
the watermark is left free it is evicted at once and not started again on that card for a while (Kuaishou). Evicted, it
loses what it did since its last checkpoint. Where it starts is decided by `fleet.colocation`, which sees the past of
the pods on each card.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from fleet.colocation import Admission, AdmissionRules
from fleet.sharing import ACTIVE_RATIO_MIN
from fleet.usage import Float32
from recommender.simulate.play import Played
from recommender.simulate.stage import Stage

GONE_SECONDS = 3600
"""A pod that was not seen for so long needs nothing any more; a shorter gap hides what it needs."""
_NOWHERE = -1

FreeSeen = Callable[[int], NDArray[np.floating]]
"""What was known of free framebuffer in a step: (cards, steps so far), the last column is the step itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HarvestRules:
    """What a worker is like.

    Attributes:
        sizes_ratio: framebuffer of a worker, share of the card; of several sizes, all of which wait, a card gets the
            largest that is let in.
        watermark_ratio: framebuffer that stays free beside it, share of the card.
        rest_seconds: an evicted worker, and none as large, does not come back to that card for so long.
        checkpoint_seconds: time between two checkpoints.
        left_min: compute left on a card, share of the card, below which no worker starts there.
        yields_whole_card: True where a worker gets nothing at all while others work on its card (mGPU); else what they
            leave.
        admission: how carefully workers are let in.
    """

    sizes_ratio: tuple[float, ...] = (0.2,)
    watermark_ratio: float = 0.05
    rest_seconds: int = 3600
    checkpoint_seconds: int = 1800
    left_min: float = 0.2
    yields_whole_card: bool = False
    admission: AdmissionRules = field(default_factory=AdmissionRules)


@dataclass(frozen=True, slots=True, kw_only=True)
class Harvest:
    """What low priority got.

    Attributes:
        gpu_hours: card-hours of work that stayed done.
        lost_gpu_hours: card-hours done and lost by eviction.
        evictions: how often one was sent away.
    """

    gpu_hours: float
    lost_gpu_hours: float
    worker_hours: float
    evictions: int

    @property
    def evictions_per_worker_hour(self) -> float:
        """Eviction rate."""
        return self.evictions / self.worker_hours if self.worker_hours > 0 else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """What the work of normal priority leaves on cards.

    Attributes:
        compute: compute left on each card, share of it, (cards, steps).
        free_ratio: framebuffer that no pod on the card needs, share of it, (cards, steps).
        is_shared: cards in use that may take a worker, (cards, steps).
        idle_cards: whole cards that are paid for and empty, (steps,).
    """

    compute: NDArray[np.float32]
    free_ratio: NDArray[np.float32]
    is_shared: NDArray[np.bool_]
    idle_cards: NDArray[np.int64]


def harvest(
    leftover: Leftover,
    wanted: NDArray[np.int64] | None,
    *,
    step_seconds: int,
    rules: HarvestRules,
    seen: FreeSeen | None = None,
) -> Harvest:
    """Plays low priority work on what is left.

    Args:
        wanted: workers that wait or run in each step, (steps,); None for a queue that never ends.
        seen: what is known of free framebuffer; the steps of `free_ratio` so far unless given.
    """
    left, free_ratio, is_shared = leftover.compute, leftover.free_ratio, leftover.is_shared
    idle_cards = leftover.idle_cards
    if rules.yields_whole_card:
        left = np.where(left >= 1.0 - ACTIVE_RATIO_MIN, left, np.float32(0))
    workers = _Workers(left.shape[0], step_seconds, rules)
    known = seen or (lambda step: free_ratio[:, : step + 1])
    steps = left.shape[1]
    done = worker_hours = 0.0
    endless = left.shape[0] + int(idle_cards.max(initial=0))
    for step in range(steps):
        workers.make_room(step, free_ratio[:, step], is_shared[:, step])
        demand = endless if wanted is None else int(wanted[step])
        workers.fill_whole_cards(step, int(idle_cards[step]), demand)
        workers.start(step, left[:, step], free_ratio[:, step], is_shared[:, step], known, demand)
        done += workers.work(left[:, step])
        worker_hours += workers.count * step_seconds / 3600.0
    return Harvest(
        gpu_hours=max(0.0, done - workers.lost),
        lost_gpu_hours=workers.lost,
        worker_hours=worker_hours,
        evictions=workers.evictions,
    )


class _Workers:
    """Who runs where, between two steps."""

    def __init__(self, cards: int, step_seconds: int, rules: HarvestRules) -> None:
        self._rules, self._step_seconds = rules, step_seconds
        self._hours = step_seconds / 3600.0
        self._per_checkpoint = max(1, rules.checkpoint_seconds // step_seconds)
        self._sizes = sorted(rules.sizes_ratio, reverse=True)
        self._admission = Admission(rules.admission, step_seconds=step_seconds)
        self._size = np.zeros(cards)
        self._age, self._unsaved = np.zeros(cards, np.int64), np.zeros(cards)
        self._rests_until, self._rests_size = np.zeros(cards, np.int64), np.full(cards, np.inf)
        self._whole = self._evicted = 0
        self.lost, self.evictions = 0.0, 0

    @property
    def count(self) -> int:
        """Workers that run."""
        return int((self._size > 0).sum()) + self._whole

    def make_room(self, step: int, free_ratio: NDArray[np.float32], is_shared: NDArray[np.bool_]) -> None:
        """Sends away whom others leave no framebuffer."""
        room = free_ratio - self._size
        gone = (self._size > 0) & (~is_shared | (room < self._rules.watermark_ratio))
        self.lost += float(self._unsaved[gone].sum())
        self._evicted = int(gone.sum())
        self._rests_until[gone] = step + self._rules.rest_seconds // self._step_seconds
        self._rests_size[gone] = self._size[gone]
        self._size[gone] = 0.0

    def fill_whole_cards(self, step: int, idle_cards: int, demand: int) -> None:
        """Empty cards take a worker each, and give it up when they are needed."""
        whole = min(idle_cards, demand)
        back = max(0, min(self._whole, demand) - whole)
        # A whole card's worker is half-way to its next checkpoint on average.
        self.lost += back * min(self._rules.checkpoint_seconds / 3600.0 / 2, self._hours * step)
        self._whole = whole
        self._evicted += back
        self.evictions += self._evicted

    def start(
        self,
        step: int,
        left: NDArray[np.float32],
        free_ratio: NDArray[np.float32],
        is_shared: NDArray[np.bool_],
        known: FreeSeen,
        demand: int,
    ) -> None:
        """Lets in who waits, where most compute is left first."""
        # Who has nobody waiting behind it is done.
        self._size[np.flatnonzero(self._size > 0)[max(0, demand - self._whole) :]] = 0.0
        able = is_shared & (self._size <= 0) & (left >= self._rules.left_min)
        able &= free_ratio - self._sizes[-1] >= self._rules.watermark_ratio
        waiting = demand - self.count
        if waiting > 0 and able.any():
            room = self._admission.room(known(step)[able]) - self._rules.watermark_ratio
            cards = np.flatnonzero(able)
            size = np.zeros(len(cards))
            for one in self._sizes:
                rests = (self._rests_until[cards] > step) & (one >= self._rests_size[cards])
                size[(size <= 0) & (room >= one) & ~rests] = one
            ranked = np.argsort(-left[cards], kind="stable")
            started = ranked[size[ranked] > 0][:waiting]
            self._size[cards[started]] = size[started]
            self._age[cards[started]], self._unsaved[cards[started]] = 0, 0.0
        self._admission.learn(evictions=self._evicted, workers=self.count)

    def work(self, left: NDArray[np.float32]) -> float:
        """Card-hours done in a step."""
        running = self._size > 0
        gained = np.where(running, left, 0.0) * self._hours
        self._unsaved += gained
        self._age += running
        self._unsaved[(self._age % self._per_checkpoint) == 0] = 0.0
        return float(gained.sum()) + self._whole * self._hours


class CardPast:
    """Free framebuffer of cards as known in a step, from the past of the pods that sit there then.

    A card that got new pods yesterday has no past of its own that says anything, so its past is put together from its
    pods', wherever they sat, and changes when one comes, goes or ends. Steps must be asked for in order.
    """

    def __init__(self, stage: Stage, played: Played) -> None:
        self._need = _filled(stage.demand.need_bytes, stage.past)
        self._past, self._seat = stage.past, played.seat
        self._seen = np.isfinite(stage.demand.need_bytes)
        self._gone_steps = max(1, GONE_SECONDS // stage.step_seconds)
        self._capacity = np.maximum(1.0, played.capacity_bytes).astype(np.float32)
        self._card = np.full(stage.rows, _NOWHERE, np.int64)
        self._held = np.zeros((len(self._capacity), stage.demand.steps), np.float32)

    def __call__(self, step: int) -> Float32:
        """Share of each card's framebuffer that its pods of this step did not need, (cards, past steps and this)."""
        columns = self._past + step + 1
        lives = self._seen[:, max(0, columns - self._gone_steps) : columns].any(axis=1)
        now = np.where(lives, self._seat[:, step], _NOWHERE)
        for row in np.flatnonzero(now != self._card).tolist():
            if self._card[row] != _NOWHERE:
                self._held[self._card[row]] -= self._need[row]
            if now[row] != _NOWHERE:
                self._held[now[row]] += self._need[row]
        self._card = now
        free: Float32 = 1.0 - self._held[:, :columns] / self._capacity[:, None]
        return free


def _filled(need: Float32, past: int) -> Float32:
    """Need without gaps: where nothing was collected, the most that was ever seen of the pod until then.

    Before it was seen at all, a pod needs what it needed at most before the cut, for that much may come again.
    """
    known = np.nan_to_num(need)
    most = np.maximum.accumulate(known, axis=1)
    before = known[:, :past].max(axis=1, initial=0.0)
    filled: NDArray[np.float32] = np.where(np.isfinite(need), known, np.maximum(most, before[:, None]))
    return filled
