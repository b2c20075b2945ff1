"""How often a state that looked like this held over the next seven days: confidence by rolling back.

The history is cut at every day that it holds; at each cut it is asked how long a workload had been quiet by then, and
whether the next day broke it. The daily hazards, by how long the quiet had lasted and by class of workload, give the
chance that the state survives a week. Where the history holds few such days the answer leans on a documented prior:
each estimate counts as `PRIOR_WEIGHT` observations of the pool above it (class → fleet → prior).

Silent workloads are not alike: what worked on many of its days comes back sooner than what never did, and what trickles
along just below the limit crosses it by chance. Both multiply the hazard by a fixed factor (proportional hazards); the
level of the hazard is the fleet's own.

Called by `analyzer.profile` once per fleet, after every workload's days are known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from analyzer.offpeak_hours import promised_hours
from analyzer.presence import Bools
from analyzer.rhythm import DAY_HISTORY_SECONDS_MIN, HOUR_COVERAGE_MIN
from fleet.profiles import WorkloadClass
from fleet.settings.settings import AnalyzerSettings
from fleet.usage import Float32

HORIZON_DAYS = 7
"""How far ahead a state must hold."""
IDLE_PRIOR = 0.20
"""Chance that what was silent for a day stays silent for a week, where nothing else is known. On a fleet of 205
inference services over ten days, "silent for 1 / 3 / 7 days" came true in 44 / 46 / 30 % of the cases over the next
three days, and in about 20 % over a whole week."""
SIZE_PRIOR = 0.80
"""Chance that a grant that was too large stays so for a week. An assumption, to be overruled by a week of history."""
BUSY_PRIOR = 0.80
"""Chance that what works every day goes on for a week. An assumption, like the one above."""
OFF_PEAK_PRIOR = 0.905
"""Chance that an hour which was always low is low again; naive promises held so often on the same fleet."""
PRIOR_WEIGHT = 10.0
"""How many observed days a prior is worth."""
OWN_WEIGHT = 20.0
"""How many days the fleet's hazard is worth against one workload's own record of waking up."""
PROMISE_PRIOR_WEIGHT = 48.0
"""How many observed hours the pool is worth against one workload's own promises."""
WAKING_NEAR_USE, WAKING_DAYS_USED = 0.33, 0.57
"""Logarithms of how much sooner a silent workload wakes that came near the limit of use in its silence, and one that
worked on all of its days before it. Poisson regression on 408 silent service-days of 79 services over ten days;
`bench/quality/quiet-study` learns them again, and judges each service by factors learned without it. How many replicas
it has would separate better there, but replicas in that fleet were sized by demand that lay ahead."""
STREAK_BUCKETS = (1, 2, 3, 7)
"""Lower ends, in days, of the classes of how long a state had lasted."""

Hazards = Mapping[tuple[WorkloadClass, int], float]
"""Chance per day that a state breaks, by class of workload and bucket of its age."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DayRecord:
    """What every workload did on every day of the history, counted back from its end; arrays (workloads, days).

    Attributes:
        seen: the day was seen well enough to judge it.
        used: something was used.
        nearly_used: an engine came near the limit of use, or passed it.
        compute_large: compute passed the limit of `oversized` in more than one of a hundred windows.
        need_large: the need of framebuffer passed its limit.
        promised: hours that earlier days would have promised, and that came within the week after, (workloads,).
        kept: how many of them stayed low, (workloads,).
    """

    seen: Bools
    used: Bools
    nearly_used: Bools
    compute_large: Bools
    need_large: Bools
    promised: NDArray[np.int64]
    kept: NDArray[np.int64]

    @classmethod
    def joined(cls, records: Sequence[DayRecord], order: NDArray[np.int64] | slice = slice(None)) -> DayRecord:
        """Several records as one, their workloads one after the other, then in another order."""
        columns = {field.name: np.concatenate([getattr(one, field.name) for one in records]) for field in fields(cls)}
        return cls(**{name: column[order] for name, column in columns.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Daily hazards and kept promises of one fleet.

    Attributes:
        idle: hazard that a silent workload wakes.
        small_compute: hazard that one with too much compute needs it.
        small_need: hazard that one with too much framebuffer needs it.
        busy: hazard that a working one falls silent.
        kept_ratio: share of promised hours that were kept in the fleet, shrunk to the prior.
    """

    idle: Hazards
    small_compute: Hazards
    small_need: Hazards
    busy: Hazards
    kept_ratio: float

    def survival(
        self,
        hazards: Hazards,
        workload_class: WorkloadClass,
        streak_days: float,
        *,
        at_risk: int = 0,
        broke: int = 0,
        waking_score: float = 0.0,
        horizon_days: int = HORIZON_DAYS,
    ) -> float:
        """Chance that a state that has lasted `streak_days` lasts `horizon_days` more, 0-1.

        Args:
            at_risk: days on which this workload could have broken it.
            broke: on how many of them it did; what came back often comes back sooner than its class.
            waking_score: logarithm of how much higher its hazard is.
            horizon_days: how far ahead it must hold.
        """
        chance = 1.0
        start = max(1, int(streak_days + 0.5))
        for day in range(horizon_days):
            hazard = 1.0 - (1.0 - hazards[workload_class, _bucket(start + day)]) ** math.exp(waking_score)
            chance *= 1.0 - (broke + OWN_WEIGHT * hazard) / (at_risk + OWN_WEIGHT)
        return chance

    def promise(self, promised: int, kept: int) -> float:
        """Chance that a promised hour of one workload is kept, 0-1."""
        return (kept + PROMISE_PRIOR_WEIGHT * self.kept_ratio) / (promised + PROMISE_PRIOR_WEIGHT)


def calibrate(days: DayRecord, classes: Sequence[WorkloadClass]) -> Calibration:
    """Learns hazards and kept promises from a fleet's own days.

    Args:
        classes: class of every workload, (workloads,).
    """
    promised, kept = int(days.promised.sum()), int(days.kept.sum())
    return Calibration(
        idle=hazards(~days.used, days.seen, classes, IDLE_PRIOR, waking_scores(days)),
        small_compute=hazards(~days.compute_large, days.seen, classes, SIZE_PRIOR),
        small_need=hazards(~days.need_large, days.seen, classes, SIZE_PRIOR),
        busy=hazards(days.used, days.seen, classes, BUSY_PRIOR),
        kept_ratio=(kept + PROMISE_PRIOR_WEIGHT * OFF_PEAK_PRIOR) / (promised + PROMISE_PRIOR_WEIGHT),
    )


def waking_signs(days: DayRecord) -> NDArray[np.float64]:
    """What is known by the end of every day and says how soon a silent workload wakes, (workloads, days, 2).

    Whether it came near the limit of use since its silence began, 0 or 1, and the share of its seen days on which it
    worked, 0-1; of use where the workload is silent.
    """
    used = days.used & days.seen
    share = used.cumsum(axis=1) / np.maximum(1, days.seen.cumsum(axis=1))
    near = np.zeros(used.shape, bool)
    running = np.zeros(len(used), bool)
    for day in range(used.shape[1]):
        running = ~days.used[:, day] & (running | days.nearly_used[:, day])
        near[:, day] = running
    return np.stack([near.astype(np.float64), share], axis=2)


def waking_scores(days: DayRecord) -> NDArray[np.float64]:
    """Logarithm of how much sooner each workload wakes than one that never worked, (workloads, days), 0 and above."""
    return np.asarray(waking_signs(days) @ np.array([WAKING_NEAR_USE, WAKING_DAYS_USED]), np.float64)


def hazards(
    holds: Bools,
    seen: Bools,
    classes: Sequence[WorkloadClass],
    week_prior: float,
    scores: NDArray[np.float64] | None = None,
) -> Hazards:
    """Chance per day that a state breaks, by class and by how many days it had lasted.

    Args:
        holds: the state held on the day, (workloads, days), oldest day first.
        seen: the day counts, (workloads, days); an unseen day ends a streak and is no event.
        week_prior: chance to survive a week where nothing is known.
        scores: logarithm of how much higher each one's hazard is, (workloads, days); the table is then that of a
            score of 0.
    """
    prior = 1.0 - week_prior ** (1.0 / HORIZON_DAYS)
    kinds = list(WorkloadClass)
    kind_of = np.array([kinds.index(kind) for kind in classes], np.int64)
    at_risk = np.zeros((len(kinds), len(STREAK_BUCKETS)))
    factors, events = np.zeros_like(at_risk), np.zeros_like(at_risk)
    lasted = streaks(holds, seen)
    for day in range(holds.shape[1] - 1):
        rows = np.flatnonzero((lasted[:, day] > 0) & seen[:, day + 1])
        bucket = np.searchsorted(STREAK_BUCKETS, lasted[rows, day], side="right") - 1
        np.add.at(at_risk, (kind_of[rows], bucket), 1)
        np.add.at(factors, (kind_of[rows], bucket), 1.0 if scores is None else np.exp(scores[rows, day]))
        np.add.at(events, (kind_of[rows], bucket), ~holds[rows, day + 1])
    fleet = _baseline(events.sum(axis=0), at_risk.sum(axis=0), factors.sum(axis=0), prior)
    own = _baseline(events, at_risk, factors, fleet)
    return {
        (kind, bucket): float(own[number, bucket])
        for number, kind in enumerate(kinds)
        for bucket in range(len(STREAK_BUCKETS))
    }


def _baseline(
    events: NDArray[np.float64],
    at_risk: NDArray[np.float64],
    factors: NDArray[np.float64],
    pool: NDArray[np.float64] | float,
) -> NDArray[np.float64]:
    """Hazard of a score of 0 whose counterpart at the mean factor was seen, shrunk to the pool's."""
    mean_factor = np.where(at_risk > 0, factors / np.maximum(1.0, at_risk), 1.0)
    expected = 1.0 - (1.0 - pool) ** mean_factor
    seen = (events + PRIOR_WEIGHT * expected) / (at_risk + PRIOR_WEIGHT)
    return np.asarray(1.0 - (1.0 - seen) ** (1.0 / mean_factor), np.float64)


def streaks(holds: Bools, seen: Bools) -> NDArray[np.int64]:
    """How many seen days in a row the state had held by the end of every day, (workloads, days)."""
    lasted = np.zeros(holds.shape, np.int64)
    running = np.zeros(len(holds), np.int64)
    for day in range(holds.shape[1]):
        running = np.where(holds[:, day] & seen[:, day], running + 1, 0)
        lasted[:, day] = running
    return lasted


def breaks(holds: Bools, seen: Bools) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Days on which each workload's state could have broken, and on which it did, (workloads,) each."""
    could = (streaks(holds, seen)[:, :-1] > 0) & seen[:, 1:]
    return could.sum(axis=1), (could & ~holds[:, 1:]).sum(axis=1)


def _bucket(days: int) -> int:
    return int(np.searchsorted(STREAK_BUCKETS, days, side="right")) - 1


def day_starts(steps: int, step_seconds: int) -> NDArray[np.int64]:
    """First step of every whole day, counted back from the end of the history; empty below one day."""
    per_day = 86400 / step_seconds
    # Two missing steps still make a day: the first sample of a history ends a step that began before it.
    days = int((steps + 2) // per_day) if steps >= per_day - 2 else 0
    starts = np.round(steps - per_day * np.arange(days, 0, -1)).astype(np.int64)
    return np.maximum(starts, 0)


def kept_promises(
    peaks: Float32,
    seen: NDArray[np.float32],
    hour: NDArray[np.int64],
    p95: NDArray[np.float64],
    settings: AnalyzerSettings,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Promises that earlier days would have led to, and how many came true within the week after.

    Cuts are made where at least three days lie before and one after, at most `HORIZON_DAYS` of them, the latest ones.
    The reference, p95, is that of the whole history.

    Args:
        peaks: largest demand of every local hour, (workloads, hours).
        seen: share of the hour that was seen, the same shape.
        p95: 95th percentile of each workload's demand.

    Returns:
        Promised and kept hours, (workloads,) each.
    """
    promised = np.zeros(len(peaks), np.int64)
    kept = np.zeros(len(peaks), np.int64)
    shortest = DAY_HISTORY_SECONDS_MIN // 3600
    limit = settings.off_peak_ratio * np.nan_to_num(p95)[:, None]
    cuts = range(peaks.shape[1] - 24, shortest - 1, -24)
    for cut in list(cuts)[:HORIZON_DAYS]:
        hours = promised_hours(
            peaks[:, :cut], seen[:, :cut], hour[:cut], p95, history_seconds=cut * 3600, settings=settings
        )
        later = slice(cut, cut + 24 * HORIZON_DAYS)
        judged = hours[:, hour[later]] & (seen[:, later] >= HOUR_COVERAGE_MIN)
        promised += judged.sum(axis=1)
        kept += (judged & (np.nan_to_num(peaks[:, later]) <= limit)).sum(axis=1)
    return promised, kept
