"""Which models may share a card because most of them sleep, and how many requests that makes late.

The rule of a card: a request wakes its model; where that does not fit beside those that are awake, models without a
request fall asleep, the one that rested longest first, until it does; a model with a request never does. A request is
late when it waits longer than its service allows. Two things make it wait: those that have requests leave no room, or
the weights take too long. How often the first happens follows from how likely each model has a request (Poisson
arrivals: 1 - exp(-requests running)), as a sum over independent models; how often a model is found asleep from the
approximation of Che, Tung and Wang (IEEE JSAC 2002) for caches that drop what was used least recently. Every step of
the history counts as busy as the busiest within half an hour of it: habits shift. Called by `planner`; pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fleet.sharing import CONTENTION_RATIO_MAX
from fleet.sleeping import ASLEEP_BYTES, weights_seconds

Floats = NDArray[np.float64]
_UNITS = 80
"""Parts of a card in which framebuffer is counted, sizes rounded up."""
_NEAR_SECONDS = 1800
_TIME_STEPS = 40
_REST_MAX = 9.0
"""Longest rest, seconds, as a power of ten: finite, for a model without any request rests as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sleeper:
    """One model that may sleep.

    Attributes:
        row: its row of the demand.
        limit_bytes: framebuffer that it may take while it is awake.
        weights_bytes: what moves when it falls asleep or wakes.
        wait_seconds_max: how long a request may wait for it.
        rate: requests per second, (steps,).
        running: requests that run at a time, on average, (steps,).
        compute: what it asks of a card's compute, 0-1, (steps,).
    """

    row: int
    limit_bytes: int
    weights_bytes: float
    wait_seconds_max: float
    rate: Floats
    running: Floats
    compute: Floats


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
        self._unit = capacity_bytes / _UNITS
        self._card_model = card_model
        # P(models with a request take more than x units), without each model in turn, and with all of them.
        self._above: list[Floats] = []
        self._above_all: Floats | None = None

    @property
    def busy_units(self) -> float:
        """How full models with a request make it on average."""
        return sum(self._units(model) * float(_busy(model).mean()) for model in self.models)

    def nights_with(self, new: Sleeper, late_ratio_max: float) -> Nights | None:
        """What sleeping would come to with one model more; None where any model's requests would be late too often."""
        models = [*self.models, new]
        room = self._room(len(models))
        units, busy = self._units(new), _busy(new)
        places = [room - self._units(model) for model in models]
        if min(places) < 0:
            return None
        crowded = [_joined_at(above, place, units, busy) for above, place in zip(self._above, places, strict=False)]
        steps = len(new.rate)
        crowded.append(np.zeros(steps) if self._above_all is None else self._above_all[:, places[-1]])
        contended = np.sum([model.compute for model in models], axis=0) > CONTENTION_RATIO_MAX
        rates = np.array([model.rate for model in models])
        late = rates * np.maximum(np.array(crowded), contended)
        if _exceeds(late, rates, late_ratio_max):
            return None
        nights = self._nights(models, rates, late, room)
        return None if (nights.late_ratio > late_ratio_max).any() else nights

    def take(self, new: Sleeper, nights: Nights) -> None:
        """Adds a model for which `nights_with` gave an answer."""
        units, busy = self._units(new), _busy(new)
        alone = np.zeros((len(busy), _UNITS)) if self._above_all is None else self._above_all
        self._above = [_joined(above, units, busy) for above in self._above] + [alone]
        self._above_all = _joined(alone, units, busy)
        self.models.append(new)
        self.nights = nights

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
    cards: list[SleepingCard] = []
    for model in sorted(sleepers, key=lambda one: (-one.limit_bytes * float(_busy(one).mean()), one.row)):
        for card in sorted(cards, key=lambda one: -one.busy_units):
            nights = None if len(card.models) >= slices_max else card.nights_with(model, late_ratio_max)
            if nights is not None and has_place([*card.models, model]):
                card.take(model, nights)
                break
        else:
            alone = SleepingCard(capacity_bytes, card_model)
            nights = alone.nights_with(model, 1.0)
            if nights is not None:
                alone.take(model, nights)
                cards.append(alone)
    return [card for card in cards if len(card.models) > 1]


def as_seen(values: NDArray[np.float32], step_seconds: int) -> Floats:
    """A row of the history as it is planned with, (steps,).

    What was not collected counts as the most of that time of other days, or of all where that is not known either, and
    every step as the most within half an hour of it.
    """
    seen = np.asarray(np.isfinite(values), bool)
    filled = np.where(seen, values, -1.0).astype(np.float64)
    per_day, most = max(1, 86400 // step_seconds), float(filled.max(initial=0.0))
    for time in range(min(per_day, len(filled))):
        usual = float(filled[time::per_day].max())
        filled[time::per_day][~seen[time::per_day]] = usual if usual >= 0 else most
    near = _NEAR_SECONDS // step_seconds
    padded = np.pad(filled, near, mode="edge")
    return np.asarray(np.lib.stride_tricks.sliding_window_view(padded, 2 * near + 1).max(axis=1), np.float64)


def _busy(model: Sleeper) -> Floats:
    return np.asarray(1.0 - np.exp(-model.running), np.float64)


def _exceeds(late: Floats, rates: Floats, ratio: float) -> bool:
    return bool((late.sum(axis=1) > ratio * rates.sum(axis=1)).any())


def _joined(above: Floats, units: int, busy: Floats) -> Floats:
    """P(sum > x), x = 0 … units of a card - 1, once one more model takes some units in a share of the time."""
    moved = np.ones_like(above)
    if units < above.shape[1]:
        moved[:, units:] = above[:, : above.shape[1] - units]
    return np.asarray((1.0 - busy)[:, None] * above + busy[:, None] * moved, np.float64)


def _joined_at(above: Floats, place: int, units: int, busy: Floats) -> Floats:
    moved = above[:, place - units] if place >= units else 1.0
    return np.asarray((1.0 - busy) * above[:, place] + busy * moved, np.float64)


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
