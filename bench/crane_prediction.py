"""Prediction by Fourier transform as Crane's DSP makes it: the baseline of the period and reservation bars.

Written anew from the published defaults (gocrane/crane: pkg/prediction/dsp, pkg/prediction/accuracy): a period is a
frequency that beats the 99th of 100 shuffled spectra and a peak of the autocorrelation, accepted when it is exactly a
day or a week; a prediction is the last period of the series rebuilt from its strongest frequencies, plus a margin, by
whichever of eight estimators did best on that last period. One-hour gaps discard all that lies before them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

DAY_SECONDS = 86400
SHUFFLES = 100
RANK = 98
"""Which of the sorted shuffled peaks is the threshold, from 0."""
PEAK_SECONDS_MAX = 4 * 3600
"""Half-width of the neighbourhood in which the autocorrelation must rise and fall."""
HIGH_FREQUENCY = 1.0 / 3600.0
"""Above this frequency (hertz) weak components are noise."""
ITEMS_MAX = 100
"""Components above this rank are weak."""
FLOOR = 0.01
"""What stands in for a rebuilt value of zero or less."""
NEARLY_ZERO = 1e-3
"""Below this an actual value has no relative error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimator:
    """One way to rebuild a series: components kept at least, amplitude below which they are weak, margin on top."""

    items_min: int
    amplitude_min: float
    margin: float


ESTIMATORS = tuple(
    Estimator(items_min=items, amplitude_min=amplitude, margin=margin)
    for items, amplitude in ((3, 1.0), (50, 0.05))
    for margin in (0.01, 0.10, 0.15, 0.20)
)


def without_gaps(values: Floats, step_seconds: int) -> Floats:
    """The part after the last gap longer than an hour, smaller gaps interpolated; empty where nothing was seen."""
    there = np.flatnonzero(~np.isnan(values))
    if not there.size:
        return values[:0]
    long = np.flatnonzero(np.diff(there) * step_seconds > 3600)
    first = there[long[-1] + 1] if long.size else there[0]
    kept = there[there >= first]
    filled: Floats = np.interp(np.arange(first, there[-1] + 1), kept, values[kept])
    return filled


def without_outliers(values: Floats) -> Floats:
    """Values beyond the outer thousandths replaced by the one before."""
    if len(values) < 2:
        return values
    low, high = np.quantile(values, (0.001, 0.999))
    cleaned = values.copy()
    for place in np.flatnonzero((values[1:] > high) | (values[1:] < low)) + 1:
        cleaned[place] = cleaned[place - 1]
    return cleaned


def find_period(values: Floats, step_seconds: int, random: np.random.Generator) -> int | None:
    """Period in steps of the strongest confirmed frequency, None where no frequency is confirmed."""
    count = len(values)
    if count < 8 or values.min() == values.max():
        return None
    shuffled = values.copy()
    peaks = []
    for _ in range(SHUFFLES):
        random.shuffle(shuffled)
        peaks.append(np.abs(np.fft.rfft(shuffled))[1 : count // 2].max())
    threshold = sorted(peaks)[RANK]
    power = np.abs(np.fft.rfft(values))
    hints: list[int] = []
    for number in range(2, count // 2):
        if power[number] > threshold and (not hints or hints[-1] > count // number):
            hints.append(count // number)
    correlation = autocorrelation(values)
    best, best_value = None, 0.0
    for hint in hints:
        reach = min(PEAK_SECONDS_MAX // step_seconds, hint // 2)
        if correlation[hint] > best_value and _is_peak(correlation, hint, reach):
            best, best_value = hint, float(correlation[hint])
    return best


def autocorrelation(values: Floats) -> Floats:
    """Circular autocorrelation of a standardised series at every lag, same length."""
    standard = (values - values.mean()) / values.std()
    spectrum = np.abs(np.fft.rfft(standard)) ** 2
    return np.fft.irfft(spectrum, len(values)) / len(values)


def _is_peak(values: Floats, place: int, reach: int) -> bool:
    left = np.arange(max(0, place - reach), place + 1)
    right = np.arange(place, min(len(values) - 1, place + reach) + 1)
    if len(left) < 2 or len(right) < 2:
        return False
    return bool(_slope(left, values[left]) > 0 > _slope(right, values[right]))


def _slope(places: NDArray[np.int64], values: Floats) -> float:
    centred = places - places.mean()
    return float((centred * values).sum() / (centred * centred).sum())


def period_hours(values: Floats, step_seconds: int, random: np.random.Generator) -> int | None:
    """24, 168 or None: whole weeks are tried first, then whole days, each accepted only at exactly its length."""
    cleaned = without_outliers(without_gaps(values, step_seconds))
    for hours in (168, 24):
        steps = hours * 3600 // step_seconds
        whole = len(cleaned) // steps * steps
        if whole >= 2 * steps and find_period(cleaned[len(cleaned) - whole :], step_seconds, random) == steps:
            return hours
    return None


def predict(values: Floats, step_seconds: int, cycle_hours: int) -> Floats | None:
    """Next cycle of a series by the estimator that did best on the last one; None with fewer than two whole cycles.

    Args:
        values: history, NaN where not collected.
        step_seconds: length of a step.
        cycle_hours: 24 or 168.
    """
    steps = cycle_hours * 3600 // step_seconds
    cleaned = without_outliers(without_gaps(values, step_seconds))
    cycles = len(cleaned) // steps
    if cycles < 2:
        return None
    signal = cleaned[len(cleaned) - cycles * steps :]
    before, last = signal[:-steps], signal[-steps:]
    chosen = min(ESTIMATORS, key=lambda one: _error(last, rebuilt(before, steps, step_seconds, one)))
    return rebuilt(signal, steps, step_seconds, chosen)


def rebuilt(signal: Floats, steps: int, step_seconds: int, one: Estimator) -> Floats:
    """The last cycle of a signal from what is left of its spectrum, the margin on top, (steps,).

    The spectrum is the whole one of N frequencies, as in the source: there the mirror image of a slow component counts
    as a fast one, so a weak one loses that half, and half its height.
    """
    count = len(signal)
    spectrum = np.fft.fft(signal)
    amplitude = np.abs(spectrum) / count
    ordered = np.sort(amplitude[1 : count // 2])[::-1]
    frequency = np.arange(count) / (count * step_seconds)
    least = max(one.amplitude_min, ordered[min(ITEMS_MAX, len(ordered)) - 1])
    if len(ordered) >= one.items_min:
        least = min(least, ordered[one.items_min - 1])
    kept = np.where((amplitude < least) & (frequency > HIGH_FREQUENCY), 0, spectrum)
    level = np.fft.ifft(kept).real[-steps:]
    return np.where(level <= 0, FLOOR, level) * (1.0 + one.margin)


def _error(actual: Floats, predicted: Floats) -> float:
    """Relative error in which too little weighs more; the plain one where an actual value is nearly zero."""
    if (actual < NEARLY_ZERO).any():
        return float(np.abs(actual - predicted).mean())
    short = (actual - predicted) / actual
    # A share that rounds to one is infinitely wrong.
    with np.errstate(divide="ignore"):
        amplified = -np.log1p(-np.clip(short, 0.0, 1.0)) / math.log(1.25)
    return float(np.where(short > 0, amplified, -short).mean())
