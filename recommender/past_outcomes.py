"""What a cluster's earlier plans and measured pairs teach the planner; a factor on every forecast of harm among it.

A forecast that was too low before is too low again, because the days to come differ from those seen in the same way.
So the harm realised since each plan was applied is compared with the harm that it predicted for the same workloads,
pooled over all plans that were watched to the end, and forecasts are multiplied by the ratio. The ratio never makes
them smaller: a plan that harmed less than predicted may have been lucky, and the prediction for a workload is an
average over its moves.

Before the first plan is applied the history itself is asked: plans of earlier days, judged on the days that followed
(`trials`). They set the margin, the more of them the more, and give the plan its interval. Made by `gputide plan make`
for `planner`; pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from fleet.decisions import Backtested
from fleet.inventory import WorkloadId
from fleet.outcomes import Outcome
from fleet.priority_holds import NOBODY, Holders
from recommender.harm.interference import Interference
from recommender.replica_counts import Span

PRIOR_STEPS = 100.0
"""Violated pod-steps, as many predicted as realised, that count beside what was seen: a first plan proves little."""
FACTOR_MAX = 4.0
"""Beyond this the forecast is not too small but wrong, and a person must look."""


RELAXED_MAX = 4.0
"""A forecast is believed to be at most this many times too high."""
WEEK_DAYS = 7
"""A forecast is made smaller only once trials were judged on every day of a week: calm days say nothing of a Monday."""
OTHERS_RATIOS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 1.0, 1.5, 2.5, 5.2)
"""Realised / forecast of trials on other fleets, as many of each: how far off one may be where nothing is known yet.

Right on average."""
INDEPENDENT_DAYS = 3.0
"""Days of judged trials that count as one independent case: what went wrong on a day goes wrong on the next as well."""
OTHERS_WEIGHT = 4.0
"""Independent cases that other fleets count as, all together."""
RELIEF_LEAVES = 0.07
"""Share of the contention that scenarios forecast that stays where relief acts, by its plays on other fleets."""
_QUANTILES = (0.05, 0.95)
_STEPS = 200
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedPlan:
    """What came of one plan of a trial.

    Attributes:
        forecast_ratio: violation that scenarios alone forecast, 0-1.
        violation_ratio: violation that came, 0-1: what relief left of it where relief was played.
        saved_ratio: cards saved, share of those before, 0-1: net of spares at their peak where relief was played.
        spare_ratio: cards that relief used beyond the plan's at its peak, share of the plan's; 0 without relief.
        moves_per_pod_day: moves that relief made, per pod and day; 0 without relief.
    """

    forecast_ratio: float
    violation_ratio: float
    saved_ratio: float = 0.0
    spare_ratio: float = 0.0
    moves_per_pod_day: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Plans made at an earlier moment from what was known then, judged on the days that followed.

    Attributes:
        since: start of the judged days.
        until: their end.
        plans: plans of several densities.
    """

    since: datetime
    until: datetime
    plans: tuple[TriedPlan, ...]

    @property
    def days(self) -> float:
        """How long it was judged."""
        return (self.until - self.since).total_seconds() / 86400

    def realised(self, forecast: NDArray[np.float64]) -> NDArray[np.float64]:
        """What plans with such forecasts would have realised, 0-1: between those tried in proportion."""
        at, came = self._known(lambda plan: plan.violation_ratio)
        beyond = np.maximum(1.0, forecast / at[-1]) if at[-1] > 0 else np.ones_like(forecast)
        return np.asarray(np.minimum(1.0, np.interp(forecast, at, np.maximum.accumulate(came)) * beyond), np.float64)

    def came(self, forecast: NDArray[np.float64], value: Callable[[TriedPlan], float]) -> NDArray[np.float64]:
        """Another figure of plans with such forecasts, between those tried in proportion; beyond them the last."""
        return np.asarray(np.interp(forecast, *self._known(value)), np.float64)

    def _known(self, value: Callable[[TriedPlan], float]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Forecasts, rising from 0, and a figure at each."""
        plans = sorted(self.plans, key=lambda plan: (plan.forecast_ratio, plan.violation_ratio))
        at = np.array([0.0, *(plan.forecast_ratio for plan in plans)])
        return at, np.array([0.0, *(value(plan) for plan in plans)])


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnPast:
    """What this cluster's earlier plans and measurements taught.

    Attributes:
        calibration_ratio: factor on forecasts of harm by the outcomes of applied plans, 1 … `FACTOR_MAX`.
        trials: plans of earlier days and what came of them, in order of time, on days apart; none where
            the history is too short.
        scalings: spans in which our own tide moved a workload's replicas, see `replica_counts`.
        absences: since when and until when our own tide had replicas of a workload away, and how many stayed.
        night_evictions_per_hour: how often work had to go before its time in nights of the tide, per hour that it ran;
            None where too few nights say it.
        interference: what measured pairs teach; None where there are none.
        holders: agents that were seen, and what probes saw of the gate of low priority.
        relief_moves_max: plans count on relief, and on no more moves of it per pod and day than this: the trials are
            what it left, and so is what is expected. None: they count on none.
    """

    calibration_ratio: float = 1.0
    trials: tuple[Trial, ...] = ()
    scalings: Mapping[WorkloadId, Sequence[Span]] = field(default_factory=dict)
    absences: Mapping[WorkloadId, Sequence[tuple[datetime, datetime, int]]] = field(default_factory=dict)
    night_evictions_per_hour: float | None = None
    interference: Interference | None = None
    holders: Holders = NOBODY
    relief_moves_max: float | None = None

    @property
    def contention_left(self) -> float:
        """Share of the contention of scenarios that stays, 0-1: relief moves pods, and grants are as they were."""
        return 1.0 if self.relief_moves_max is None else RELIEF_LEAVES

    def expected(self, forecast: float) -> float:
        """Harm to expect of a plan of which scenarios alone predict this, 0-1: own trials and a prior pooled."""
        return min(1.0, float(self._pooled(np.array([forecast]))[0][0]) * self.calibration_ratio)

    def forecast_limit(self, limit: float) -> float:
        """What scenarios alone may predict for no more harm than a limit to be expected, 0-1.

        Where plans count on relief, it makes no more moves than it may, and no denser plan saves more net of spares.
        """
        allowed = self._allowed(limit)
        if self.relief_moves_max is not None and self.trials:
            moves = self._came(allowed, lambda plan: plan.moves_per_pod_day)
            allowed = allowed[moves <= self.relief_moves_max] if moves.min() <= self.relief_moves_max else allowed[:1]
            saved = self._came(allowed, lambda plan: plan.saved_ratio)
            allowed = allowed[saved >= saved.max()]
        # Denser plans are expected to harm more, so the largest forecast that is expected to keep the limit is it.
        return float(allowed.max())

    def forecast_pod_limit(self, limit: float) -> float:
        """The same of any one pod."""
        return float(self._allowed(limit).max())

    def _allowed(self, limit: float) -> NDArray[np.float64]:
        """Forecasts that are expected to keep a limit, rising; the most careful that is tried where none is."""
        limit /= self.calibration_ratio
        if not self.trials or limit <= 0:
            return np.array([limit])
        tried = np.sort(limit * np.append(np.geomspace(1.0 / FACTOR_MAX, RELAXED_MAX, _STEPS), 1.0))
        mean, error = self._pooled(tried)
        # A calm past is luck in part: a plan gets denser than its forecast allows by what even a worse one would bear.
        careful = np.maximum(mean, np.minimum(tried, mean + error))
        allowed = tried[careful <= limit * (1.0 + _ROUNDING)]
        return allowed if len(allowed) else tried[:1]

    def spare_ratio(self, forecast: float) -> float:
        """Cards that relief needs beyond those of a plan with this forecast, share of them, by the worst trial."""
        return max((float(one.came(np.array([forecast]), _spares)[0]) for one in self.trials), default=0.0)

    def moves_per_pod_day(self, forecast: float) -> float | None:
        """Moves that relief is expected to make under a plan with this forecast; None where no trial says it."""
        if self.relief_moves_max is None or not self.trials:
            return None
        return float(self._came(np.array([forecast]), lambda plan: plan.moves_per_pod_day)[0])

    def interval(self, forecast: float) -> tuple[float, float] | None:
        """Between which harm nine of ten such plans are expected to stay, 0-1.

        The own trials, and beside them how far off forecasts were on other fleets: the fewer days were judged, the more
        those count. What is expected lies within. None without trials, and where no harm is expected: trials say
        nothing of such plans.
        """
        expected = self.expected(forecast)
        if not self.trials or expected <= 0:
            return None
        values, weights = self._cases(np.array([forecast]))
        order = np.argsort(values[:, 0])
        share = np.cumsum(weights[order]) / weights.sum()
        least, most = (float(values[order, 0][np.searchsorted(share, at)]) for at in _QUANTILES)
        ratio = self.calibration_ratio
        return min(1.0, expected, least * ratio), min(1.0, max(expected, most * ratio))

    def backtested(self, forecast: float, limit: float) -> Backtested | None:
        """What plans as dense as one with this forecast did on the own past; None where there is no `interval`."""
        if not self.trials or self.expected(forecast) <= 0:
            return None
        came = [float(trial.realised(np.array([forecast]))[0]) for trial in self.trials]
        return Backtested(
            trials=len(came),
            within_limit=sum(one <= limit for one in came),
            since=min(trial.since for trial in self.trials),
            until=max(trial.until for trial in self.trials),
            violation_ratio_min=min(came),
            violation_ratio_max=max(came),
        )

    def _pooled(self, forecast: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Harm to expect by forecasts and its standard error, before outcomes of applied plans are counted."""
        if not self.trials:
            return forecast, np.zeros_like(forecast)
        values, weights = self._cases(forecast)
        mean = weights @ values / weights.sum()
        error = np.sqrt(weights @ (values - mean) ** 2) / weights.sum()
        if sum(trial.days for trial in self.trials) < WEEK_DAYS:
            mean = np.maximum(forecast, mean)
        return mean, error

    def _came(self, forecast: NDArray[np.float64], value: Callable[[TriedPlan], float]) -> NDArray[np.float64]:
        """Mean of a figure over the own trials, by their days."""
        days = np.array([trial.days for trial in self.trials])
        return np.asarray(days @ np.array([one.came(forecast, value) for one in self.trials]) / days.sum(), np.float64)

    def _cases(self, forecast: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """What came of plans with such forecasts, the own trials first and then other fleets'.

        Returns:
            Harm, 0-1, (cases, forecasts); and how many independent cases each counts as, (cases,).
        """
        own = np.array([trial.realised(forecast) for trial in self.trials])
        others = np.multiply.outer(OTHERS_RATIOS, forecast)
        days = np.array([trial.days for trial in self.trials]) / INDEPENDENT_DAYS
        weights = [days, np.full(len(others), OTHERS_WEIGHT / len(others))]
        return np.concatenate([own, others]), np.concatenate(weights)


def _spares(plan: TriedPlan) -> float:
    return plan.spare_ratio


def calibration_of(outcomes: Iterable[Outcome]) -> float:
    """The factor on forecasts of harm, 1 … `FACTOR_MAX`; 1 where nothing was verified yet.

    Args:
        outcomes: what came of earlier plans, one per plan; interim ones are left out.
    """
    predicted = realised = PRIOR_STEPS
    for outcome in outcomes:
        if not outcome.is_final:
            continue
        # Workloads that no plan touched suffer too; that much is not the plans' doing.
        aside = outcome.control_violation_ratio or 0.0
        for item in outcome.workloads:
            if item.violation_ratio is not None:
                predicted += item.active_steps * item.predicted_violation_ratio
                realised += item.active_steps * max(0.0, item.violation_ratio - aside)
    return min(FACTOR_MAX, max(1.0, realised / predicted))
