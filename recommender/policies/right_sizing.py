"""What right-sizing tools would ask for each pod: a percentile with a margin, a forecast, or what really came.

- *percentile*: compute at the 95th percentile of each pod, the largest of its workload; framebuffer at its maximum
  plus 15 % (KRR, `robusta-dev/krr:robusta_krr/strategies/simple.py`).
- *forecast*: pods with a daily period are predicted hour by hour from the strongest Fourier components of their
  history plus 15 %; others stand at the 99th percentile, newer samples counting more with a half-life of a day, plus
  15 %; framebuffer likewise with a half-life of two days (Crane, `gocrane/crane:pkg/prediction/dsp`,
  `pkg/recommendation/recommender/resource`).
- *hindsight*: the days that came, as they came: no rule, but how far first fit could have gone.

Each is packed by `first_fit_decreasing`. Pure; called by the command line's `plan simulate`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fleet.usage import Float32
from recommender.demand import Demand

PERCENTILE = 0.95
MARGIN = 1.15
FORECAST_QUANTILE = 0.99
COMPUTE_HALF_LIFE_DAYS = 1.0
FRAMEBUFFER_HALF_LIFE_DAYS = 2.0
COMPONENTS = 50
"""Fourier components that a forecast keeps."""
PERIODIC_MIN = 0.3
"""Autocorrelation at one day from which a pod is taken to have a daily period."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a rule asks for some rows.

    Attributes:
        framebuffer_bytes: framebuffer, (rows,).
        profile: demand per slot of a day, share of a card 0-1, (rows, slots); one slot where it does not change.
    """

    framebuffer_bytes: NDArray[np.float64]
    profile: Float32


def percentile_ask(demand: Demand, rows: NDArray[np.int64]) -> Ask:
    """KRR's strategy `simple`."""
    compute = _quantile(demand.compute[rows], PERCENTILE)
    largest = _largest_of_workload(compute, demand.workload_of[rows])
    need = np.nan_to_num(demand.need_bytes[rows]).max(axis=1, initial=0.0).astype(float)
    most = _largest_of_workload(need, demand.workload_of[rows])
    return Ask(framebuffer_bytes=most * MARGIN, profile=np.minimum(1.0, largest)[:, None].astype(np.float32))


def forecast_ask(demand: Demand, rows: NDArray[np.int64]) -> Ask:
    """Crane's forecast for pods with a daily period, its decaying percentile for the others."""
    compute = np.nan_to_num(demand.compute[rows]).astype(np.float64)
    steps, per_day = compute.shape[1], demand.steps_per_day
    slots = min(24, per_day)
    weight = 0.5 ** (np.arange(steps)[::-1] / per_day / COMPUTE_HALF_LIFE_DAYS)
    flat = np.array([_weighted_quantile(series, weight, FORECAST_QUANTILE) for series in compute])
    profile = np.repeat(flat[:, None], slots, axis=1)
    days = steps // per_day
    if days >= 2:
        recent = compute[:, steps - days * per_day :]
        predicted = _next_day(recent, per_day)
        hourly = predicted[:, : per_day // slots * slots].reshape(len(rows), slots, -1).max(axis=2)
        is_periodic = _correlation_at(recent, per_day) >= PERIODIC_MIN
        profile = np.where(is_periodic[:, None], hourly, profile)
    need = np.nan_to_num(demand.need_bytes[rows]).astype(np.float64)
    weight = 0.5 ** (np.arange(steps)[::-1] / per_day / FRAMEBUFFER_HALF_LIFE_DAYS)
    size = np.array([_weighted_quantile(series, weight, FORECAST_QUANTILE) for series in need])
    return Ask(framebuffer_bytes=size * MARGIN, profile=np.clip(profile * MARGIN, 0.0, 1.0).astype(np.float32))


def hindsight_ask(coming: Demand, rows: NDArray[np.int64]) -> Ask:
    """The days themselves, step by step.

    Args:
        coming: the days that are played.
    """
    need = np.nan_to_num(coming.need_bytes[rows]).max(axis=1, initial=0.0).astype(float)
    return Ask(framebuffer_bytes=need, profile=np.nan_to_num(coming.compute[rows]))


def _quantile(values: Float32, quantile: float) -> NDArray[np.float64]:
    """Quantile of what was seen of each row, 0 where nothing was."""
    seen = np.isfinite(values).any(axis=1)
    found = np.zeros(len(values))
    if seen.any():
        found[seen] = np.nanquantile(values[seen], quantile, axis=1)
    return found


def _largest_of_workload(values: NDArray[np.float64], workload_of: NDArray[np.int32]) -> NDArray[np.float64]:
    most = np.zeros(int(workload_of.max(initial=-1)) + 1)
    np.maximum.at(most, workload_of, values)
    largest: NDArray[np.float64] = most[workload_of]
    return largest


def _weighted_quantile(values: NDArray[np.float64], weight: NDArray[np.float64], quantile: float) -> float:
    if not len(values):
        return 0.0
    order = np.argsort(values, kind="stable")
    passed = np.cumsum(weight[order])
    return float(values[order][min(len(values) - 1, int(np.searchsorted(passed, quantile * passed[-1])))])


def _correlation_at(series: NDArray[np.float64], lag: int) -> NDArray[np.float64]:
    """Correlation of each series with itself `lag` steps later, 0 where it does not vary."""
    early, late = series[:, :-lag], series[:, lag:]
    early, late = (part - part.mean(axis=1, keepdims=True) for part in (early, late))
    scale = np.sqrt((early**2).sum(axis=1) * (late**2).sum(axis=1))
    found: NDArray[np.float64] = np.zeros(len(series))
    np.divide((early * late).sum(axis=1), scale, out=found, where=scale > 0)
    return found


def _next_day(series: NDArray[np.float64], per_day: int) -> NDArray[np.float64]:
    """The series' strongest Fourier components, carried on for a day, (rows, per_day).

    The history is whole days, so its first day is also what the components say of the next one.
    """
    spectrum = np.fft.rfft(series, axis=1)
    kept = min(COMPONENTS, spectrum.shape[1])
    least = np.partition(np.abs(spectrum), -kept, axis=1)[:, -kept][:, None]
    return np.fft.irfft(np.where(np.abs(spectrum) >= least, spectrum, 0), n=series.shape[1], axis=1)[:, :per_day]
