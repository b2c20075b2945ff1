"""How a synthetic slice behaves over time: a few numbers per slice, and the arrays that follow from them.

Called by `exporter.synthetic.writer`. Everything is computed some steps at a time for all slices at once, and depends
on the seed and the time only, so a large fleet is written in bounded memory and any two runs give the same values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from fleet.schema import Measure

_SESSIONS = 0x5E55
"""Tells the random numbers of a whole day from those of its parts."""

FOREVER_DAYS = 1e6
"""Stands for "never" in numbers of days."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Behaviour of one slice.

    Attributes:
        service: slices of one service share their noise; any number.
        quiet_ratio: SM active in the quietest hour.
        peak_ratio: SM active in the busiest hour.
        peak_hour: that hour of the day, UTC.
        sharpness: how narrow the busy time is; 2 is a long day, 6 a few hours.
        weekend_factor: what is left of the busy part on Saturday and Sunday.
        noise_ratio: spread of the noise, as a share of the load.
        duty_exponent: duty cycle = 1 - (1 - SM active)^this: kernels leave most SMs idle, so it saturates early.
        duty_floor_ratio: duty cycle never falls below it while the slice runs (spinning or tiny kernels).
        framebuffer_bytes: framebuffer held when idle.
        framebuffer_load_bytes: framebuffer held on top at full load.
        kv_idle_ratio: usage of the KV cache when idle; NaN where there is no cache.
        kv_load_ratio: usage on top at full load.
        encoder_ratio: encoder at full load; NaN where it is not reported.
        decoder_ratio: decoder at full load; NaN where it is not reported.
        requests_per_second: request rate at full load; NaN where it is not reported.
        pause_hours: every day begins with so many hours of nothing (data loading).
        session_probability: chance that a working day has a session, outside of which nothing runs; 1 = no sessions.
        begins_days: rows begin so many days after the start of the trace.
        ends_days: rows end so many days after it.
        counters_end_days: from then on duty cycle and SM active are missing.
        has_duty: False where the duty cycle is never reported.
        has_sm: False where SM active is never reported.
        is_seen: False where there are no rows at all.
        visible_factor: what the counter shows of duty cycle and SM active: 1, or 0 for one that lies.
    """

    service: int = 0
    quiet_ratio: float = 0.0
    peak_ratio: float = 0.0
    peak_hour: float = 14.0
    sharpness: float = 3.0
    weekend_factor: float = 1.0
    noise_ratio: float = 0.08
    duty_exponent: float = 3.0
    duty_floor_ratio: float = 0.0
    framebuffer_bytes: float = 0.0
    framebuffer_load_bytes: float = 0.0
    kv_idle_ratio: float = float("nan")
    kv_load_ratio: float = 0.0
    encoder_ratio: float = float("nan")
    decoder_ratio: float = float("nan")
    requests_per_second: float = float("nan")
    pause_hours: float = 0.0
    session_probability: float = 1.0
    begins_days: float = 0.0
    ends_days: float = FOREVER_DAYS
    counters_end_days: float = FOREVER_DAYS
    has_duty: bool = True
    has_sm: bool = True
    is_seen: bool = True
    visible_factor: float = 1.0


Columns = Mapping[str, NDArray[np.float64]]
"""One array of shape `(slices, 1)` per field of `Shape`."""


def columns_of(shapes: Sequence[Shape]) -> Columns:
    """The shapes as columns."""
    return {
        field.name: np.array([float(getattr(shape, field.name)) for shape in shapes], np.float64)[:, None]
        for field in fields(Shape)
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Day:
    """What slices do in some steps of one day; arrays of shape `(slices, steps)`.

    Attributes:
        shown: per measure what the slice's counters say; NaN = not reported.
        is_there: True where the slice has a row.
        load: SM active in truth, 0-1, also of slices that nobody sees.
    """

    shown: Mapping[Measure, NDArray[np.float64]]
    is_there: NDArray[np.bool_]
    load: NDArray[np.float64]


def day_of(
    columns: Columns, *, seed: int, day: int, part: int, first_weekday: int, step_ends_hours: NDArray[np.float64]
) -> Day:
    """Computes some steps of one day.

    Args:
        day: number of the day, 0 first.
        part: which part of the day the steps are; parts have noise of their own.
        first_weekday: weekday of day 0, Monday = 0.
        step_ends_hours: end of each step, hours since midnight of that day, above 0; shape `(steps,)`.
    """
    random = np.random.default_rng([seed, day, part])
    of_day = np.random.default_rng([seed, day, _SESSIONS])
    # The end of a step may be the next midnight, but the step lies in this day.
    hours = step_ends_hours - 1e-6
    is_weekend = (first_weekday + day) % 7 >= 5
    runs = _runs(columns, of_day, hours, is_weekend=is_weekend)
    load = np.where(runs, _load(columns, random, hours, is_weekend=is_weekend), 0.0)
    at_days = day + hours / 24.0
    is_there = (columns["is_seen"] > 0) & (at_days > columns["begins_days"]) & (at_days <= columns["ends_days"])
    return Day(shown=_shown(columns, load, at_days), is_there=is_there, load=load)


def _load(
    columns: Columns, random: np.random.Generator, hours: NDArray[np.float64], *, is_weekend: bool
) -> NDArray[np.float64]:
    rows, steps = len(columns["service"]), len(hours)
    wave = np.exp(columns["sharpness"] * (np.cos((hours - columns["peak_hour"]) * (2 * np.pi / 24)) - 1))
    height = (columns["peak_ratio"] - columns["quiet_ratio"]) * (columns["weekend_factor"] if is_weekend else 1.0)
    _, service = np.unique(columns["service"], return_inverse=True)
    of_service = random.standard_normal((int(service.max()) + 1, steps), np.float32)[service.ravel()]
    of_slice = random.standard_normal((rows, steps), np.float32)
    noise = 1.0 + columns["noise_ratio"] * (0.8 * of_service + 0.6 * of_slice)
    load: NDArray[np.float64] = (columns["quiet_ratio"] + height * wave) * np.maximum(noise, 0.0)
    return np.clip(load, 0.0, 1.0)


def _runs(
    columns: Columns, of_day: np.random.Generator, hours: NDArray[np.float64], *, is_weekend: bool
) -> NDArray[np.bool_]:
    rows = len(columns["service"])
    has_session = (of_day.random((rows, 1)) < columns["session_probability"]) & (not is_weekend)
    begin = of_day.uniform(8.0, 15.0, (rows, 1))
    in_session = has_session & (hours > begin) & (hours < begin + of_day.uniform(0.5, 4.0, (rows, 1)))
    return np.where(columns["session_probability"] < 1.0, in_session, hours >= columns["pause_hours"])


def _shown(
    columns: Columns, load: NDArray[np.float64], at_days: NDArray[np.float64]
) -> dict[Measure, NDArray[np.float64]]:
    duty = np.maximum(1.0 - (1.0 - load) ** columns["duty_exponent"], columns["duty_floor_ratio"])
    visible = columns["visible_factor"]
    is_counting = at_days <= columns["counters_end_days"]
    relative = load / np.maximum(columns["peak_ratio"], 1e-9)
    used = columns["framebuffer_bytes"] + columns["framebuffer_load_bytes"] * relative
    shown = {
        Measure.DUTY_CYCLE: np.where(is_counting & (columns["has_duty"] > 0), duty * visible, np.nan),
        Measure.SM_ACTIVE: np.where(is_counting & (columns["has_sm"] > 0), load * visible, np.nan),
        Measure.FRAMEBUFFER_USED: np.floor(used),
        Measure.KV_CACHE_USAGE: np.clip(columns["kv_idle_ratio"] + columns["kv_load_ratio"] * relative, 0.0, 1.0),
        Measure.ENCODER: np.clip(columns["encoder_ratio"] * _engine(load, columns), 0.0, 1.0),
        Measure.DECODER: np.clip(columns["decoder_ratio"] * _engine(load, columns), 0.0, 1.0),
        Measure.REQUEST_RATE: columns["requests_per_second"] * np.round(relative, 3),
    }
    return {measure: _rounded(measure, values) for measure, values in shown.items()}


def _engine(load: NDArray[np.float64], columns: Columns) -> NDArray[np.float64]:
    """Media engines follow the load, whose own trace on the SMs is small."""
    return load / np.maximum(columns["peak_ratio"], 1e-9)


def _rounded(measure: Measure, values: NDArray[np.float64]) -> NDArray[np.float64]:
    # Four digits are what real counters give; the file shrinks by half.
    return np.round(values, 4) if measure.value.endswith("_ratio") else values
