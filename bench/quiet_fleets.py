"""Fleets of notebooks, services and jobs that fall silent, of which some come back: what reclaims are judged on.

Each workload goes by one habit, drawn by itself: office hours with holidays, given up one day, never begun, once a
month, now and then with heavy-tailed gaps, finished but still holding its card, paused. None of it is the rule by which
the analyzer reads hazards. One pod with one card each; the same seed gives the same arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from exporter.trace.usage import Piece
from exporter.trace.writer import write_trace
from fleet.inventory import Card, CardId, CardModelName, Grant, Node, Priority
from fleet.schema import Measure
from fleet.units import GIB

SINCE = datetime(2026, 5, 4, tzinfo=UTC)
"""A Monday."""
STEP_SECONDS = 1800
STEPS_PER_DAY = 86400 // STEP_SECONDS
CARD_BYTES = 48 * GIB
MODEL = CardModelName("NVIDIA L40S")

Days = NDArray[np.bool_]
"""On which days something works."""


def _office(random: np.random.Generator, days: int) -> Days:
    """Its owner's weekdays, mostly; now and then a holiday of days or weeks."""
    at_work = np.isin(np.arange(days) % 7, random.choice(5, int(random.integers(1, 6)), replace=False))
    found = at_work & (random.random(days) < random.uniform(0.6, 1.0))
    for _ in range(random.poisson(days / 45)):
        start = int(random.integers(days))
        found[start : start + max(2, int(random.lognormal(np.log(8), 0.7)))] = False
    return found


def _given_up(random: np.random.Generator, days: int) -> Days:
    """Office hours, until nobody comes any more."""
    found = _office(random, days)
    found[int(random.exponential(18)) :] = False
    return found


def _retired(random: np.random.Generator, days: int) -> Days:
    """A service that worked every day until its callers went elsewhere."""
    return np.arange(days) < random.exponential(18)


def _never_begun(random: np.random.Generator, days: int) -> Days:
    """Rolled out and called by nobody; one in four goes live after weeks."""
    return np.arange(days) >= (random.exponential(40) if random.random() < 0.25 else np.inf)


def _monthly(random: np.random.Generator, days: int) -> Days:
    """A report of two or three days a month."""
    return (np.arange(days) + int(random.integers(30))) % 30 < random.integers(2, 4)


def _now_and_then(random: np.random.Generator, days: int) -> Days:
    """Used for a day or two, then left for days or weeks."""
    found = np.zeros(days, np.bool_)
    day = int(random.integers(5))
    while day < days:
        used = int(random.integers(1, 3))
        found[day : day + used] = True
        day += used + max(1, int(random.lognormal(np.log(6), 1.0)))
    return found


def _finished(random: np.random.Generator, days: int) -> Days:
    """Training that ended; the pod still holds its card."""
    return np.arange(days) < random.uniform(2, 25)


def _paused(random: np.random.Generator, days: int) -> Days:
    """Training that waits for data now and then, for a day or four."""
    found = np.ones(days, np.bool_)
    for _ in range(random.poisson(days / 10)):
        start = int(random.integers(days))
        found[start : start + int(random.integers(1, 5))] = False
    return found


HABITS: dict[Callable[[np.random.Generator, int], Days], tuple[str, int]] = {
    _office: ("Notebook", 6), _given_up: ("Notebook", 4), _now_and_then: ("Notebook", 4), _retired: ("Deployment", 4),
    _never_begun: ("Deployment", 2), _monthly: ("Deployment", 2), _finished: ("Job", 2), _paused: ("Job", 2),
}  # fmt: skip
"""Kind of the workload, and how many of twenty-six go by the habit."""


@dataclass(frozen=True, kw_only=True)
class QuietFleet:
    """One fleet; rows are workloads.

    Attributes:
        worked: share of compute used, (workloads, steps), 0-1.
    """

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    worked: NDArray[np.float32]

    def stays_quiet(self, day: int, days: int) -> dict[str, bool]:
        """Of each workload, whether nothing of it works in so many days from one on."""
        later = self.worked[:, day * STEPS_PER_DAY : (day + days) * STEPS_PER_DAY]
        stays: list[bool] = np.all(later <= 0, axis=1).tolist()
        return dict(zip(self.names, stays, strict=True))

    def write(self, folder: Path, days: int) -> None:
        """The first days as a trace."""
        cards = [
            Card(card=CardId(f"GPU-{row:06d}"), card_model=MODEL, framebuffer_bytes=CARD_BYTES,
                 node=f"node-{row // 8:04d}", cluster="quiet")
            for row in range(len(self.names))
        ]  # fmt: skip
        grants = [
            Grant(
                cluster="quiet", namespace=f"team-{row % 5}", pod=f"{name}-0", container="main", workload=name,
                workload_kind=kind, node=card.node, card=card.card, card_model=MODEL, framebuffer_bytes=CARD_BYTES,
                framebuffer_granted_bytes=CARD_BYTES, compute_granted_ratio=1.0, priority=Priority.NORMAL,
                server="jupyter" if kind == "Notebook" else "pytorch" if kind == "Job" else "triton",
                started_at=SINCE,
            )
            for row, (name, kind, card) in enumerate(zip(self.names, self.kinds, cards, strict=True))
        ]  # fmt: skip
        steps, rows = days * STEPS_PER_DAY, len(self.names)
        compute = self.worked[:, :steps]
        moments = (int(SINCE.timestamp()) + (np.arange(steps, dtype=np.int64) + 1) * STEP_SECONDS) * 1000
        load = compute.T.ravel().astype(np.float64)
        nothing = np.full(load.shape, np.nan)
        piece = Piece(
            keys=np.tile(np.arange(rows, dtype=np.int32), steps), ts_ms=np.repeat(moments, rows),
            values={Measure.SM_ACTIVE: load, Measure.DUTY_CYCLE: load, Measure.FRAMEBUFFER_USED: (4 + 8 * load) * GIB,
                    Measure.KV_CACHE_USAGE: nothing},
        )  # fmt: skip
        nodes = [Node(node=name, cluster="quiet") for name in sorted({card.node for card in cards})]
        write_trace(folder, cards=cards, nodes=nodes, grants=grants, usage=[piece])


def quiet_fleet(seed: int, workloads: int, days: int) -> QuietFleet:
    """Makes a fleet.

    Args:
        days: length, at least 1.
    """
    random = np.random.default_rng(seed)
    habits, weights = list(HABITS), np.array([weight for _, weight in HABITS.values()], float)
    names, kinds = [], []
    worked = np.zeros((workloads, days, STEPS_PER_DAY), np.float32)
    for row in range(workloads):
        habit = habits[int(random.choice(len(habits), p=weights / weights.sum()))]
        kind, _ = HABITS[habit]
        names.append(f"{kind.lower()}-{row:04d}")
        kinds.append(kind)
        begins, lasts = int(random.integers(14, 24)), int(random.integers(4, 22))
        for day in np.flatnonzero(habit(random, days)):
            hours = slice(0, STEPS_PER_DAY) if kind == "Job" else slice(begins, begins + lasts)
            worked[row, day, hours] = random.uniform(0.1, 0.7, worked[row, day, hours].shape)
    return QuietFleet(names=tuple(names), kinds=tuple(kinds), worked=worked.reshape(workloads, -1))
