"""What is known of quiet services at a cut and what became of it, as arrays: shared by the bars and the study of quiet.

The weights of `analyzer.confidence` and `analyzer.offpeak_hours` were learned on the services that the bars judge, so a
second figure stands beside each: every tenth of the services judged by weights learned on the other nine tenths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
from numpy.typing import NDArray

from analyzer.confidence import IDLE_PRIOR, Calibration, DayRecord, breaks, hazards, streaks, waking_signs
from analyzer.offpeak_hours import DAYS_SEEN_MIN, PromiseEvidence, promise_evidence
from analyzer.presence import Timeline
from analyzer.rhythm import hourly_peaks, local_hours
from analyzer.state.idleness import NEAR_USE_SHARE
from bench.service_demand import Services
from fleet.profiles import Profiles, WorkloadClass, WorkloadState
from fleet.settings.settings import AnalyzerSettings

CUTS = (3, 4, 5, 6, 7)
TEST_DAYS = 3
LOW, HIGH = 0.20, 0.50
PEAK_MIN = 0.01
"""Below this p95 there is no peak that hours could be off, for any rule."""
TENTHS = 10
RIDGE = 5.0
SEEN_SHARE_MIN = 0.5
"""Share of a day's steps from which the day counts as seen."""
QUIET = (WorkloadState.IDLE, WorkloadState.IDLE_HELD, WorkloadState.UNKNOWN)
"""States in which the analyzer promises no hours."""

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def activity_of(services: Services) -> NDArray[np.float32]:
    """Largest engine activity of every step over replicas, (services, steps); a gap counts as none."""
    return np.nan_to_num(np.fmax(services.duty, services.top)).astype(np.float32)


def days_of(services: Services, days: int) -> DayRecord:
    """What every service did on its first days; the parts that idleness does not ask for are empty."""
    per_day = services.steps_per_day
    level = activity_of(services)[:, : days * per_day].reshape(len(services.names), days, per_day)
    seen = ~np.isnan(services.top)[:, : days * per_day].reshape(level.shape)
    limit = AnalyzerSettings().idle_ratio_max
    nothing, count = np.zeros(level.shape[:2], bool), np.zeros(len(level), np.int64)
    return DayRecord(
        seen=seen.mean(axis=2) >= SEEN_SHARE_MIN,
        used=np.asarray((level > limit).any(axis=2), bool),
        nearly_used=np.asarray((level > NEAR_USE_SHARE * limit).any(axis=2), bool),
        compute_large=nothing,
        need_large=nothing,
        promised=count,
        kept=count,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Silent:
    """Services that were silent on the last day before a cut; arrays (cases,).

    Attributes:
        service: number of the service.
        cut: days known.
        stays: silent on all judged days.
        signs: what their waking is predicted by, (cases, signs).
        lasted: days that the silence had lasted.
    """

    service: NDArray[np.int64]
    cut: NDArray[np.int64]
    stays: Bools
    signs: Floats
    lasted: NDArray[np.int64]


def silent_cases(services: Services, *, test_days: int = TEST_DAYS) -> tuple[Silent, int]:
    """Every silent service of every cut, and how many service-folds in all stay silent."""
    whole = days_of(services, 10)
    parts, silent_later = [], 0
    for cut in CUTS:
        stays = np.asarray(~whole.used[:, cut : cut + test_days].any(axis=1), bool)
        silent_later += int(stays.sum())
        rows = np.flatnonzero(~whole.used[:, cut - 1])
        known = days_of(services, cut)
        lasted = streaks(~known.used, np.ones_like(known.seen))[rows, -1]
        parts.append((rows, np.full(len(rows), cut), stays[rows], waking_signs(known)[rows, -1], lasted))
    service, at, stays, signs, lasted = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Silent(service=service, cut=at, stays=stays, signs=signs, lasted=lasted), silent_later


def wakings(services: Services) -> tuple[NDArray[np.int64], Floats, Floats]:
    """Every silent day but the last: its service, its signs and whether the next day woke it."""
    days = days_of(services, 10)
    signs = waking_signs(days)
    service, day = np.nonzero(~days.used[:, :-1])
    return service, signs[service, day], days.used[service, day + 1].astype(np.float64)


def idle_chances(
    services: Services, cases: Silent, weights: Callable[[Bools], Floats], *, horizon_days: int = TEST_DAYS
) -> Floats:
    """Chance of every case to stay silent, every tenth of the services by weights of the others.

    Args:
        services: the services.
        cases: silent ones.
        weights: from a mask of the silent days that may be learned from to the weights of the signs.
        horizon_days: for how long.
    """
    learned_from, _, _ = wakings(services)
    tenth_of, found = tenths(len(services.names)), np.zeros(len(cases.stays))
    for tenth in range(TENTHS):
        factor = weights(tenth_of[learned_from] != tenth)
        for cut in CUTS:
            days = days_of(services, cut)
            kinds = [WorkloadClass.INFERENCE] * len(days.used)
            scores = waking_signs(days) @ factor
            table = hazards(~days.used, days.seen, kinds, IDLE_PRIOR, scores)
            calibration = Calibration(idle=table, small_compute=table, small_need=table, busy=table, kept_ratio=0.0)
            at_risk, broke = breaks(~days.used, days.seen)
            for case in np.flatnonzero((cases.cut == cut) & (tenth_of[cases.service] == tenth)):
                row = int(cases.service[case])
                found[case] = calibration.survival(
                    table,
                    WorkloadClass.INFERENCE,
                    int(cases.lasted[case]),
                    at_risk=int(at_risk[row]),
                    broke=int(broke[row]),
                    waking_score=float(scores[row, -1]),
                    horizon_days=horizon_days,
                )
    return found


def learned_wakings(services: Services) -> Callable[[Bools], Floats]:
    """Weights of the signs of waking from some silent days: Poisson regression."""
    _, signs, woke = wakings(services)
    return lambda rows: poisson_regression(signs[rows], woke[rows])[1:]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hours:
    """Hours of the judged days, one row each; arrays (rows,).

    Attributes:
        service: number of the service.
        cut: days known.
        hour_of_day: 0-23.
        promised: the analyzer promised it.
        naive: it was low on every day so far.
        candidate: it may be promised at all: its peaks were low every time, and the service is not idle.
        level: its mean, of the busiest replica, as a share of the p95 known at the cut.
        signals: what its chance is made of, (rows, 2).
    """

    service: NDArray[np.int64]
    cut: NDArray[np.int64]
    hour_of_day: NDArray[np.int64]
    promised: Bools
    naive: Bools
    candidate: Bools
    level: Floats
    signals: Floats

    @property
    def holds(self) -> Bools:
        """It stayed low."""
        return self.level <= LOW

    @property
    def breaks(self) -> Bools:
        """It passed half of the peak."""
        return self.level > HIGH


def judged_hours(services: Services, profiles: Mapping[int, Profiles]) -> Hours:
    """Every hour of every fold that was seen.

    Args:
        services: the services.
        profiles: what the analyzer says, by cut.
    """
    found: list[tuple[NDArray[np.generic], ...]] = []
    for cut in CUTS:
        past = services.top[:, : cut * services.steps_per_day]
        p95 = np.array([np.quantile(row[~np.isnan(row)], 0.95) for row in past])
        promised, may, evidence = _as_analyzed(services, profiles[cut], cut)
        hourly = hour_means(past).reshape(len(past), -1, 24)
        naive = (np.nan_to_num(hourly) <= LOW * p95[:, None, None]).all(axis=1) & (p95 > PEAK_MIN)[:, None]
        coming = hour_means(services.top[:, past.shape[1] : past.shape[1] + TEST_DAYS * services.steps_per_day])
        service, ahead = np.nonzero(~np.isnan(coming) & (p95 > PEAK_MIN)[:, None])
        # The trace begins on a Monday at 00:00 UTC.
        hour, phase = (cut * 24 + ahead) % 168, ahead % 24
        found.append(
            (
                service,
                np.full(len(service), cut),
                phase,
                promised[service, hour],
                naive[service, phase],
                may[service, phase],
                coming[service, ahead] / p95[service],
                evidence.signals()[service, phase],
            )
        )
    columns = [np.concatenate(column) for column in zip(*found, strict=True)]
    service, at, hour_of_day, promised, naive_rows, candidate, level, signals = columns
    return Hours(
        service=service,
        cut=at,
        hour_of_day=hour_of_day,
        promised=promised,
        naive=naive_rows,
        candidate=candidate,
        level=level,
        signals=signals,
    )


def _as_analyzed(services: Services, profiles: Profiles, cut: int) -> tuple[Bools, Bools, PromiseEvidence]:
    """Promised hours of the week, hours of the day that may be promised, and what speaks for them."""
    promised = np.zeros((len(services.names), 168), bool)
    p95 = np.full(len(services.names), np.nan)
    quiet = np.ones(len(services.names), bool)
    number_of = {name: number for number, name in enumerate(services.names)}
    for profile in profiles.workloads:
        number = number_of.get(profile.workload.rsplit("/", 1)[1])
        if number is not None:
            promised[number, list(profile.off_peak_hours)] = True
            p95[number] = np.nan if profile.compute.p95 is None else profile.compute.p95
            quiet[number] = profile.state in QUIET
    steps = cut * services.steps_per_day
    now = services.since + timedelta(days=cut)
    line = Timeline(since=services.since, step_seconds=services.step_seconds, steps=steps, now=now)
    hours = local_hours(line, "UTC")
    peaks, seen = hourly_peaks(services.top[:, :steps], hours, np.ones(len(p95), np.int64))
    evidence = promise_evidence(peaks, seen, hours.hour, p95, cycle=24, settings=AnalyzerSettings())
    return promised, evidence.always_low & (evidence.times >= DAYS_SEEN_MIN) & ~quiet[:, None], evidence


def left_out_chances(service: NDArray[np.int64], signals: Floats, holds: Bools, services: int) -> Floats:
    """Chance of every row by a logistic regression on the rows of the other tenths of the services."""
    found = np.zeros(len(service))
    tenth_of = tenths(services)[service]
    for tenth in range(TENTHS):
        others = tenth_of != tenth
        weights = logistic_regression(signals[others], holds[others])
        found[~others] = chance_of(weights, signals[~others])
    return found


def chance_of(weights: Floats, signals: Floats) -> Floats:
    """Logistic chance, (rows,)."""
    return np.asarray(1.0 / (1.0 + np.exp(-(weights[0] + signals @ weights[1:]))), np.float64)


def tenths(services: int) -> NDArray[np.int64]:
    """Which tenth every service belongs to, by lot."""
    return np.random.default_rng(1).permutation(services) % TENTHS


def poisson_regression(signs: Floats, events: Floats) -> Floats:
    """Intercept and logarithms of the factors of a rate, by Newton's method with a little ridge."""
    design = np.column_stack([np.ones(len(signs)), signs])
    weights = np.zeros(design.shape[1])
    weights[0] = np.log(events.mean())
    ridge = RIDGE * np.diag(np.r_[0.0, np.ones(len(weights) - 1)])
    for _ in range(15):
        rate = np.exp(np.clip(design @ weights, -8.0, 2.0))
        curve = (design * rate[:, None]).T @ design + ridge
        weights = weights + np.linalg.solve(curve, design.T @ (events - rate) - ridge @ weights)
    return weights


def logistic_regression(signals: Floats, holds: Bools, ridge: float = 1.0) -> Floats:
    """Intercept and weights of log odds, by Newton's method with a little ridge."""
    design = np.column_stack([np.ones(len(signals)), signals])
    weights = np.zeros(design.shape[1])
    share = holds.mean()
    weights[0] = np.log(share / (1.0 - share))
    damping = ridge * np.diag(np.r_[0.0, np.ones(len(weights) - 1)])
    for _ in range(15):
        chance = 1.0 / (1.0 + np.exp(-np.clip(design @ weights, -15.0, 15.0)))
        curve = (design * (chance * (1.0 - chance) + 1e-6)[:, None]).T @ design + damping
        weights = weights + np.linalg.solve(curve, design.T @ (holds - chance) - damping @ weights)
    return weights


def frontier(chances: Floats, stays: Bools, silent_later: int) -> Iterator[tuple[float, float, int]]:
    """Precision, recall and number flagged at every chance, the surest first."""
    for least in sorted(set(chances.tolist()), reverse=True):
        hits = stays[chances >= least]
        yield float(hits.mean()), float(hits.sum()) / max(1, silent_later), len(hits)


def hour_means(values: NDArray[np.float32]) -> Floats:
    """Mean of every hour, (services, hours), NaN where nothing was collected."""
    parts = values.reshape(len(values), -1, 6)
    seen = (~np.isnan(parts)).sum(axis=2)
    return np.where(seen > 0, np.nansum(parts, axis=2) / np.maximum(1, seen), np.nan)
