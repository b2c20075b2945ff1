"""May two workloads share a card? Learned from pairs that were measured; where nothing alike was measured: a canary.

How fast a workload stays beside another depends on how much it suffers (its sensitivity) and on how much the other
takes (its aggressiveness). Both are learned together, as one Gaussian process over measured pairs: a pair resembles
another as far as the victims resemble each other and the aggressors do, by what they are (the same subject, the same
family) and by what they do alone (duty cycle, memory activity, framebuffer). The answer is a chance that the victim
keeps its speed. From which chance on "may share" is said is set by the measured pairs themselves, each predicted by all
others, so that the precision asked for holds there; a family that was never measured gets no prediction.

Gaussian process and its leave-one-out answers in closed form: Rasmussen and Williams, Gaussian Processes for Machine
Learning (2006), equations 2.25, 2.26, 5.12. Pure; called by `planner` and `permits` where measured pairs are given.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fleet.errors import Misconfigured

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]

KEPT_RATIO_MIN: Final = 0.9
"""Speed beside / speed alone that counts as kept."""
SPEED_RATIO_MAX: Final = 2.0
"""A workload beside another can't be faster than this times its speed alone: such a measurement is wrong."""
PAIRS_MIN: Final = 40
"""Measured pairs below which nothing is predicted: thresholds can't be set from fewer."""
FAMILY_PAIRS_MIN: Final = 3
"""Measured pairs in which a family must have stood on the side it is asked about."""
MEASURED_PAIRS_MAX: Final = 4000
"""Pairs that are learned from at most, the last ones: time grows with their third power."""
SHAPE_PAIRS_MAX: Final = 1200
"""Pairs that the shape of the process is chosen on, evenly taken from those."""
_FRAMEBUFFER_UNIT: Final = 2.0 * 2**30
_FRAMEBUFFER_LENGTH: Final = 1.0
_NOISES: Final = (0.0003, 0.0008, 0.002)
_SCALES: Final = (0.001, 0.003, 0.009)
_LENGTHS: Final = (0.25, 0.5)
_SPEED_KEPT_MOST: Final = 1.02
"""Faster than alone is noise of the measurement: it is cut here so that it does not outweigh the harm."""
_Z_ONE_SIDED: Final = 1.0
"""Standard deviations that the precision must hold with: five of six times."""


class Prediction(StrEnum):
    """What is said of a victim beside an aggressor."""

    KEEPS = "keeps"
    SUFFERS = "suffers"
    UNMEASURED = "unmeasured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A workload as it runs alone.

    Attributes:
        family: what it is, for example a model's or a service's name; compared by equality.
        variant: which of its family, for example a batch size; "" where there is one.
        duty_cycle_ratio: mean alone, 0-1; None where not collected.
        memory_active_ratio: mean alone, 0-1; None where not collected.
        framebuffer_bytes: held alone; None where not collected.
    """

    family: str
    variant: str = ""
    duty_cycle_ratio: float | None = None
    memory_active_ratio: float | None = None
    framebuffer_bytes: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPair:
    """How fast one workload was beside another on one card.

    Attributes:
        aggressor: who sat beside it.
        speed_ratio: speed beside / speed alone, 0 to `SPEED_RATIO_MAX`.
    """

    victim: Subject
    aggressor: Subject
    speed_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What is predicted of one pair.

    Attributes:
        predicted: the word.
        chance: that the victim keeps its speed, 0-1; None where unmeasured.
        speed_ratio: expected speed beside / speed alone; None where unmeasured.
        reason: one sentence.
    """

    predicted: Prediction
    chance: float | None
    speed_ratio: float | None
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Interference:
    """What measured pairs teach.

    Attributes:
        kept_ratio_min: speed that counts as kept.
        chance_min: chance from which on "keeps" is said; above 1 where no chance is sure enough.
    """

    kept_ratio_min: float
    chance_min: float
    pairs: int
    _subjects: tuple[Subject, ...] = field(repr=False)
    _victim: Int64 = field(repr=False)
    _aggressor: Int64 = field(repr=False)
    _weight: Float64 = field(repr=False)
    _factor: Float64 = field(repr=False)
    _mean: float = field(repr=False)
    _shape: _Shape = field(repr=False)
    _as_victim: Counter[str] = field(repr=False)
    _as_aggressor: Counter[str] = field(repr=False)

    def predict(self, victims: Sequence[Subject], aggressors: Sequence[Subject]) -> list[Verdict]:
        """What becomes of each victim beside the aggressor at the same place.

        Args:
            victims: who is asked about, any number.
            aggressors: who sits beside, as many.
        """
        verdicts: list[Verdict | None] = [
            self._unmeasured(victim, aggressor) for victim, aggressor in zip(victims, aggressors, strict=True)
        ]
        asked = [number for number, verdict in enumerate(verdicts) if verdict is None]
        if asked:
            mean, spread = self._expect([victims[k] for k in asked], [aggressors[k] for k in asked])
            for number, speed, sigma in zip(asked, mean, spread, strict=True):
                verdicts[number] = self._verdict(float(speed), float(sigma))
        return [verdict for verdict in verdicts if verdict is not None]

    def _unmeasured(self, victim: Subject, aggressor: Subject) -> Verdict | None:
        for count, subject, side in (
            (self._as_victim[victim.family], victim, "beside others"),
            (self._as_aggressor[aggressor.family], aggressor, "as a neighbour"),
        ):
            if count < FAMILY_PAIRS_MIN or self.pairs < PAIRS_MIN:
                reason = (
                    f"{subject.family} was measured {side} in {count} pairs of {self.pairs}; a forecast needs "
                    f"{FAMILY_PAIRS_MIN} of {PAIRS_MIN}: try it on one replica first"
                )
                return Verdict(predicted=Prediction.UNMEASURED, chance=None, speed_ratio=None, reason=reason)
        return None

    def _expect(self, victims: Sequence[Subject], aggressors: Sequence[Subject]) -> tuple[Float64, Float64]:
        new = sorted({*victims, *aggressors} - set(self._subjects), key=_order)
        subjects = (*self._subjects, *new)
        alike = _likeness(subjects, self._shape.length)
        place = {subject: number for number, subject in enumerate(subjects)}
        left = np.array([place[subject] for subject in victims])
        right = np.array([place[subject] for subject in aggressors])
        to_known = self._shape.covariance(alike, left, right, self._victim, self._aggressor)
        own = np.diagonal(self._shape.covariance(alike, left, right, left, right))
        solved = np.linalg.solve(self._factor, to_known.T)
        spread = np.sqrt(np.maximum(own - (solved**2).sum(axis=0), 0.0) + self._shape.noise)
        return self._mean + to_known @ self._weight, spread

    def _verdict(self, speed: float, sigma: float) -> Verdict:
        chance = float(_chances(np.array([speed]), np.array([sigma]), self.kept_ratio_min)[0])
        keeps = chance >= self.chance_min
        return Verdict(
            predicted=Prediction.KEEPS if keeps else Prediction.SUFFERS,
            chance=round(chance, 6),
            speed_ratio=round(speed, 6),
            reason=(
                f"beside it {speed:.0%} of its speed are expected; it keeps {self.kept_ratio_min:.0%} with a chance of "
                f"{chance:.0%}, {'at least' if keeps else 'less than'} the {min(self.chance_min, 1.0):.0%} asked for"
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """Hyperparameters: variance, noise (both of a speed ratio), length over which ratios resemble each other."""

    scale: float
    noise: float
    length: float

    def covariance(self, alike: Float64, left_v: Int64, left_a: Int64, right_v: Int64, right_a: Int64) -> Float64:
        """Covariance of pairs with pairs, (left, right): of victims, of aggressors, and of both together."""
        victims = alike[np.ix_(left_v, right_v)]
        aggressors = alike[np.ix_(left_a, right_a)]
        return self.scale * (victims + 0.3 * aggressors + victims * aggressors)


def learn_interference(
    measured: Sequence[MeasuredPair], *, kept_ratio_min: float = KEPT_RATIO_MIN, precision_min: float = 0.95
) -> Interference:
    """Learns from measured pairs.

    Args:
        measured: pairs, the oldest first; of more than `MEASURED_PAIRS_MAX` the last count.
        kept_ratio_min: speed beside / speed alone that counts as kept, 0-1.
        precision_min: share of "keeps" that must be right, 0-1.

    Raises:
        Misconfigured: a speed that cannot be.
    """
    pairs = measured[-MEASURED_PAIRS_MAX:]
    for pair in pairs:
        if not 0.0 <= pair.speed_ratio <= SPEED_RATIO_MAX:
            raise Misconfigured(
                f"cannot learn from {pair.victim.family} beside {pair.aggressor.family}: speed_ratio="
                f"{pair.speed_ratio} is not within 0 and {SPEED_RATIO_MAX}"
            )
    subjects = tuple(sorted({side for pair in pairs for side in (pair.victim, pair.aggressor)}, key=_order))
    place = {subject: number for number, subject in enumerate(subjects)}
    victim = np.array([place[pair.victim] for pair in pairs], np.int64)
    aggressor = np.array([place[pair.aggressor] for pair in pairs], np.int64)
    speed = np.minimum(np.array([pair.speed_ratio for pair in pairs], float), _SPEED_KEPT_MOST)
    mean = float(speed.mean()) if len(speed) else 1.0
    fit = _fit(subjects, victim, aggressor, speed - mean)
    kept = np.array([pair.speed_ratio >= kept_ratio_min for pair in pairs], bool)
    chance = _chances(mean + fit.left_out, fit.left_out_spread, kept_ratio_min)
    chance_min = _threshold(chance, kept, precision_min)
    return Interference(
        kept_ratio_min=kept_ratio_min,
        chance_min=chance_min,
        pairs=len(pairs),
        _subjects=subjects,
        _victim=victim,
        _aggressor=aggressor,
        _weight=fit.weight,
        _factor=fit.factor,
        _mean=mean,
        _shape=fit.shape,
        _as_victim=Counter(pair.victim.family for pair in pairs),
        _as_aggressor=Counter(pair.aggressor.family for pair in pairs),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fit:
    """A fitted process: weights, Cholesky factor, and every pair predicted by all others."""

    shape: _Shape
    weight: Float64
    factor: Float64
    left_out: Float64
    left_out_spread: Float64
    density: float


def _fit(subjects: tuple[Subject, ...], victim: Int64, aggressor: Int64, speed: Float64) -> _Fit:
    """The shape whose left-out answers give the measured speeds the highest density."""
    some = np.linspace(0, len(speed) - 1, min(len(speed), SHAPE_PAIRS_MAX)).astype(np.int64)
    shapes = [
        _Shape(scale=scale, noise=noise, length=length) for length in _LENGTHS for scale in _SCALES for noise in _NOISES
    ]
    alike = {length: _likeness(subjects, length) for length in _LENGTHS}
    density = [
        _fitted(shape, alike[shape.length], victim[some], aggressor[some], speed[some]).density for shape in shapes
    ]
    shape = shapes[int(np.argmax(density))]
    return _fitted(shape, alike[shape.length], victim, aggressor, speed)


def _fitted(shape: _Shape, alike: Float64, victim: Int64, aggressor: Int64, speed: Float64) -> _Fit:
    covariance = shape.covariance(alike, victim, aggressor, victim, aggressor) if len(speed) else np.zeros((0, 0))
    factor = np.asarray(np.linalg.cholesky(covariance + shape.noise * np.eye(len(speed))), np.float64)
    inverse_factor = np.linalg.solve(factor, np.eye(len(speed)))
    inverse = inverse_factor.T @ inverse_factor
    weight = inverse @ speed
    left_out, variance = _left_out(inverse, weight, speed, victim, aggressor)
    density = float((-0.5 * np.log(variance) - 0.5 * (speed - left_out) ** 2 / variance).sum())
    return _Fit(
        shape=shape, weight=weight, factor=factor, left_out=left_out, left_out_spread=np.sqrt(variance), density=density
    )


def _left_out(
    inverse: Float64, weight: Float64, speed: Float64, victim: Int64, aggressor: Int64
) -> tuple[Float64, Float64]:
    """Every pair predicted by all measurements of other pairs, and the variance of that.

    Both directions of a pair, and its repetitions, are left out together: who asks about a new pair has neither.
    """
    first, second = np.minimum(victim, aggressor), np.maximum(victim, aggressor)
    _, group = np.unique(np.stack([first, second]), axis=1, return_inverse=True)
    order = np.argsort(group, kind="stable")
    mean = np.empty(len(speed))
    variance = np.empty(len(speed))
    for rows in np.split(order, np.flatnonzero(np.diff(group[order])) + 1):
        block = np.linalg.inv(inverse[np.ix_(rows, rows)])
        mean[rows] = speed[rows] - block @ weight[rows]
        variance[rows] = np.diagonal(block)
    return mean, variance


def _likeness(subjects: Sequence[Subject], length: float) -> Float64:
    """How alike subjects are, (subjects, subjects): by what they do alone, by family, and being the same."""
    does = np.array(
        [
            (
                _or_nan(subject.duty_cycle_ratio) / length,
                _or_nan(subject.memory_active_ratio) / length,
                math.log1p(_or_nan(subject.framebuffer_bytes) / _FRAMEBUFFER_UNIT) / _FRAMEBUFFER_LENGTH,
            )
            for subject in subjects
        ]
    ).reshape(len(subjects), 3)
    apart = ((does[:, None, :] - does[None, :, :]) ** 2).sum(axis=2)
    families = np.array([subject.family for subject in subjects], dtype=object)
    same_family = np.equal.outer(families, families).astype(float) if len(subjects) else np.zeros((0, 0))
    # Who does what is not known resembles nobody by it.
    alike: Float64 = np.nan_to_num(np.exp(-0.5 * apart)) + 0.5 * same_family + 0.5 * np.eye(len(subjects))
    return alike


def _threshold(chance: Float64, kept: NDArray[np.bool_], precision_min: float) -> float:
    """The lowest chance above which enough of the left-out answers are right, by one standard error at least."""
    if len(chance) < PAIRS_MIN:
        return 2.0
    order = np.argsort(-chance, kind="stable")
    said = np.arange(1, len(order) + 1)
    right = np.cumsum(kept[order]) / said
    sure = right - _Z_ONE_SIDED * np.sqrt(np.maximum(right * (1.0 - right), 0.25 / said) / said)
    holds = np.flatnonzero(sure >= precision_min)
    # Where pairs part cleanly even unlikely ones could be said without missing the precision: they are not.
    return max(0.5, float(chance[order[holds[-1]]])) if len(holds) else 2.0


def _chances(mean: Float64, spread: Float64, kept_ratio_min: float) -> Float64:
    """Chance that a normal value reaches the limit."""
    scaled = (mean - kept_ratio_min) / (spread * math.sqrt(2.0))
    return np.array([0.5 * math.erfc(-value) for value in scaled], float)


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def _order(subject: Subject) -> tuple[str, str, str]:
    return (subject.family, subject.variant, repr(subject))
