"""Which models may share a card because most of them sleep, and how many requests that makes late.

The rule of a card: a request wakes its model; where that does not fit beside those that are awake, models without a
request fall asleep, the one that rested longest first, until it does; a model with a request never does. A request is
late when it waits longer than its service allows. Two things make it wait: those that have requests leave no room, or
the weights take too long. How often the first happens follows from how likely each model has a request (Poisson
arrivals: 1 - exp(-requests running)), as a sum over independent models; how often a model is found asleep from the
approximation of Che, Tung and Wang (IEEE JSAC 2002) for caches that drop what was used least recently. Every hour of
the history is as busy as the busiest of it and of the half hours beside it: habits shift. Called by `planner`; pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from fleet.sharing import CONTENTION_RATIO_MAX
from fleet.sleeping import ASLEEP_BYTES, weights_seconds

Floats = NDArray[np.float64]
Chances = NDArray[np.float32]
_UNITS = 80
"""Parts of a card in which framebuffer is counted, sizes rounded up."""
_HALF_SECONDS = 1800
_TIME_STEPS = 12
_TRIED_MAX = 48
"""Cards that are tried for a model: of thousands of models each would otherwise be tried beside each."""
_REST_MAX = 9.0
"""Longest rest, seconds, as a power of ten: finite, for a model without any request rests as well."""


@dataclass(frozen=True, kw_only=True)
class Sleeper:
    """One model that may sleep.

    Attributes:
        row: its row of the demand.
        limit_bytes: framebuffer that it may take while it is awake.
        weights_bytes: what moves when it falls asleep or wakes.
        wait_seconds_max: how long a request may wait for it.
        rate: requests per second, (hours,).
        running: requests that run at a time, on average, (hours,).
        compute: what it asks of a card's compute, 0-1, (hours,).
    """

    row: int
    limit_bytes: int
    weights_bytes: float
    wait_seconds_max: float
    rate: Floats
    running: Floats
    compute: Floats

    @cached_property
    def busy(self) -> Floats:
        """How likely it has a request, 0-1, (hours,)."""
        return np.asarray(-np.expm1(-self.running), np.float64)

    @cached_property
    def rate_total(self) -> float:
        """Sum of its rates."""
        return float(self.rate.sum())

    @cached_property
    def busy_mean(self) -> float:
        """How likely it has a request, on average."""
        return float(self.busy.mean())


@dataclass(frozen=True, slots=True, kw_only=True)
class Nights:
    """What sleeping comes to for the models of one card, in their order.

    Attributes:
        late_ratio: share of each model's requests that wait too long, 0-1, (models,).
        wakes_per_day: how often each wakes, (models,).
        wait_seconds: longest that a wake of each takes, with those that make room for it, (models,).
    """

    late_ratio: Floats
    wakes_per_day: Floats
    wait_seconds: Floats


class SleepingCard:
    """Models of one card; mutable: `take` adds one."""

    def __init__(self, capacity_bytes: float, card_model: str) -> None:
        self.models: list[Sleeper] = []
        self.nights: Nights | None = None
        self.busy_units = 0.0
        """How full models with a request make it on average."""
        self._compute: Floats = np.zeros(1)
        self._unit = capacity_bytes / _UNITS
        self._card_model = card_model
        # P(models with a request take more than x units), without each model in turn, and with all of them.
        self._above: list[Chances] = []
        self._above_all: Chances | None = None

    def may_take(self, new: Sleeper, late_ratio_max: float) -> bool:
        """Whether one model more is worth a closer look: those with requests leave room for it often enough."""
        place = self._room(len(self.models) + 1) - self._units(new)
        return place >= 0 and (
            self._above_all is None or float(new.rate @ self._above_all[place]) <= late_ratio_max * new.rate_total
        )

    def nights_with(self, new: Sleeper, late_ratio_max: float) -> Nights | None:
        """What sleeping would come to with one model more; None where any model's requests would be late too often."""
        models = [*self.models, new]
        room = self._room(len(models))
        units = self._units(new)
        places = [room - self._units(model) for model in models]
        if min(places) < 0:
            return None
        contended = self._compute + new.compute > CONTENTION_RATIO_MAX
        crowded = []
        for number in reversed(range(len(models))):
            if number == len(self.models):
                chance = np.zeros(len(new.rate)) if self._above_all is None else self._above_all[places[-1]]
            else:
                chance = _joined_at(self._above[number], places[number], units, new.busy)
            crowded.append(np.maximum(chance, contended))
            rate = models[number].rate
            if float(rate @ crowded[-1]) > late_ratio_max * models[number].rate_total:
                return None
        rates = np.array([model.rate for model in models])
        nights = self._nights(models, rates, rates * np.array(crowded[::-1]), room)
        return None if (nights.late_ratio > late_ratio_max).any() else nights

    def take(self, new: Sleeper, nights: Nights) -> None:
        """Adds a model for which `nights_with` gave an answer."""
        units = self._units(new)
        alone = np.zeros((_UNITS, len(new.rate)), np.float32) if self._above_all is None else self._above_all
        # Nobody asks how likely others take more than they may beside a model: its own part of the card is left out.
        self._above = [_joined(above, units, new.busy) for above in self._above] + [alone[: _UNITS - units + 1].copy()]
        self._above_all = _joined(alone, units, new.busy)
        self.models.append(new)
        self.nights = nights
        self.busy_units += units * new.busy_mean
        self._compute = self._compute + new.compute

    def close(self) -> None:
        """Forgets what only one model more would need."""
        self._above, self._above_all = [], None

    def _units(self, model: Sleeper) -> int:
        """What a model takes beyond what it keeps asleep."""
        return math.ceil(max(0, model.limit_bytes - ASLEEP_BYTES) / self._unit)

    def _room(self, models: int) -> int:
        return math.floor(_UNITS - models * ASLEEP_BYTES / self._unit)

    def _nights(self, models: Sequence[Sleeper], rates: Floats, late: Floats, room: int) -> Nights:
        sizes = np.array([self._units(model) for model in models])
        move = np.array([weights_seconds(model.weights_bytes, self._card_model) for model in models])
        running = np.array([model.running for model in models])
        asleep = np.exp(-running - rates * _rest_seconds(sizes, rates, running, room))
        wakes = rates * asleep
        wait = np.array([move[own] + _longest_exit(own, sizes, move, room) for own in range(len(models))])
        allowed = np.array([model.wait_seconds_max for model in models])
        over = np.maximum(0.0, wait - allowed)[:, None]
        under_way = np.minimum(1.0, wakes.sum(axis=0) * float(wait.mean()))
        is_slow = (wait > allowed)[:, None]
        may_queue = (wait + wait.max() > allowed)[:, None]
        slow = np.where(is_slow, wakes * (1.0 + rates * over), np.where(may_queue, wakes * under_way, 0.0))
        total = np.maximum(rates.sum(axis=1), 1e-12)
        return Nights(
            late_ratio=np.minimum(1.0, (late + slow).sum(axis=1) / total),
            wakes_per_day=wakes.mean(axis=1) * 86400.0,
            wait_seconds=wait,
        )


def sleeping_cards(
    sleepers: Sequence[Sleeper],
    *,
    capacity_bytes: float,
    card_model: str,
    slices_max: int,
    late_ratio_max: float,
    has_place: Callable[[Sequence[Sleeper]], bool],
) -> list[SleepingCard]:
    """Packs models onto as few cards as their requests allow, busiest first, each where it fits most tightly.

    Args:
        slices_max: most models of a card.
        late_ratio_max: share of each model's requests that may be late, 0-1.
        has_place: whether there is a node to which such models can come.

    Returns:
        Cards with at least two models each.
    """
    full: list[SleepingCard] = []
    cards: list[SleepingCard] = []
    for model in sorted(sleepers, key=lambda one: (-one.limit_bytes * one.busy_mean, one.row)):
        fullest = sorted(cards, key=lambda one: -one.busy_units)
        for card in islice((one for one in fullest if one.may_take(model, late_ratio_max)), _TRIED_MAX):
            nights = card.nights_with(model, late_ratio_max)
            if nights is not None and has_place([*card.models, model]):
                card.take(model, nights)
                if len(card.models) >= slices_max:
                    card.close()
                    cards.remove(card)
                    full.append(card)
                break
        else:
            alone = SleepingCard(capacity_bytes, card_model)
            nights = alone.nights_with(model, 1.0)
            if nights is not None:
                alone.take(model, nights)
                cards.append(alone)
    return [card for card in (*full, *cards) if len(card.models) > 1]


def as_seen(values: NDArray[np.float32], step_seconds: int) -> Floats:
    """A row of the history as it is planned with, hour by hour, or by two steps where these are longer, (hours,).

    What was not collected counts as the most of that time of other days, or of all where that is not known either, and
    every hour as the most of it and of the half hours beside it.
    """
    seen = np.asarray(np.isfinite(values), bool)
    filled = np.where(seen, values, -1.0).astype(np.float64)
    per_day, most = max(1, 86400 // step_seconds), float(filled.max(initial=0.0))
    for time in range(min(per_day, len(filled))):
        usual = float(filled[time::per_day].max())
        filled[time::per_day][~seen[time::per_day]] = usual if usual >= 0 else most
    steps = max(1, _HALF_SECONDS // step_seconds)
    halves = np.maximum.reduceat(filled, np.arange(0, len(filled), steps))
    padded = np.pad(halves, (1, 1 + len(halves) % 2), mode="edge")
    return np.asarray(np.lib.stride_tricks.sliding_window_view(padded, 4)[::2].max(axis=1), np.float64)


def _joined(above: Chances, units: int, busy: Floats) -> Chances:
    """P(sum > x), x = 0 … units of a card - 1, once one more model takes some units in a share of the time."""
    moved = np.ones_like(above)
    moved[units:] = above[: max(0, len(above) - units)]
    return np.asarray(above + busy.astype(np.float32) * (moved - above))


def _joined_at(above: Chances, place: int, units: int, busy: Floats) -> Floats:
    moved = above[place - units] if place >= units else 1.0
    return np.asarray(above[place] + busy * (moved - above[place]), np.float64)


def _rest_seconds(sizes: NDArray[np.int64], rates: Floats, running: Floats, room: int) -> Floats:
    """How long a model without a request stays awake until others take its place, (steps,); years where all fit.

    Che's characteristic time: that after which the models used within it fill the card, with as many of mean size as it
    holds whole.
    """
    if int(sizes.sum()) <= room:
        return np.full(rates.shape[1], 10.0**_REST_MAX)
    mean_size = float(sizes.mean())
    filled = max(float(sizes.max()), room // mean_size * mean_size)
    least, most = np.full(rates.shape[1], -3.0), np.full(rates.shape[1], _REST_MAX)
    for _ in range(_TIME_STEPS):
        middle = (least + most) / 2
        awake = (sizes[:, None] * -np.expm1(-running - rates * 10.0**middle)).sum(axis=0)
        least, most = np.where(awake <= filled, middle, least), np.where(awake <= filled, most, middle)
    return np.asarray(10.0**least, np.float64)


def _longest_exit(own: int, sizes: NDArray[np.int64], move: Floats, room: int) -> float:
    """How long others take at most to fall asleep before a model fits: those with the most weights go."""
    missing, seconds = int(sizes.sum()) - room, 0.0
    # One that rested longer but is small may go first, and leave a large one to go all the same.
    needed = min(missing, int(sizes[own])) + int(sizes.max()) - 1 if missing > 0 else 0
    for other in np.argsort(-move, kind="stable"):
        if needed <= 0:
            break
        if other != own:
            seconds += float(move[other])
            needed -= int(sizes[other])
    return seconds
