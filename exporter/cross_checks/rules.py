"""Every cross-check of a reading as a pure function: where it can be made, and where it fails.

A check that distrusts says that a number is wrong. A remark does not: ranks that wait in a collective show a duty cycle
of 100 % at low SM activity, and both numbers are right. Names and thresholds are those of the analyzer's rules for
stored windows (`fleet.trust_thresholds`). Called by `exporter.cross_checks.checks`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from exporter.cross_checks.columns import COMPUTE, Bools, Compared, On, compute_of
from exporter.reader import Float64
from fleet.schema import MEASURES, Measure
from fleet.trust_thresholds import (
    ABOVE_ONE_MIN,
    CARD_BUSY_RATIO_MIN,
    FRAMEBUFFER_BYTES_MIN,
    FRAMEBUFFER_OVER_CARD_MIN,
    REPEATS_MIN,
    SHARE_MIN,
    SM_OVER_DUTY_MIN,
    SPIN_DUTY_MIN,
    SPIN_SHARE_MIN,
    SPIN_SM_MAX,
    ZERO_RATIO_MAX,
)

FRAMEBUFFER_SLACK_SHARE = 0.02
"""Share of a card's framebuffer by which sums of its tenants may exceed what the card says: they are read one after the
other while tenants allocate, and HAMi's library estimates what a context takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One check on one reading.

    Attributes:
        comparable: where the check could be made; shape `(rows,)`.
        fails: where it failed, a part of `comparable`; shape `(rows,)`.
    """

    comparable: Bools
    fails: Bools


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One cross-check.

    Attributes:
        name: its name, the label `check`.
        meaning: what is wrong where it fails, one sentence.
        repeats_min: how many of the last readings must fail; 1 where a single value is impossible.
        share_min: share of the comparable ones that must fail.
        window: how many of the last readings count; at most those that are kept.
        distrusts: False for a remark.
    """

    name: str
    on: On
    counter: Measure
    meaning: str
    rule: Callable[[Compared], Judged]
    repeats_min: int = REPEATS_MIN
    share_min: float = SHARE_MIN
    window: int = sys.maxsize
    distrusts: bool = True


def container_zero_while_card_busy(now: Compared) -> Judged:
    """A container reads zero while its card computes and none of its tenants accounts for it.

    HAMi on Blackwell shows 0 % for every container under full load (Project-HAMi/HAMi#2015).
    """
    own = compute_of(tuple(now.slice_column(measure) for measure in COMPUTE))
    busy = compute_of(tuple(now.card_column(measure) for measure in COMPUTE))
    accounted = now.summed(own)
    comparable = (now.beside(busy) > CARD_BUSY_RATIO_MIN) & ~np.isnan(own) & ~np.isnan(now.beside(accounted))
    comparable &= now.beside(now.is_fully_known.astype(np.float64)) == 1.0
    return Judged(
        comparable=comparable,
        fails=comparable & (own <= ZERO_RATIO_MAX) & (now.beside(accounted) <= ZERO_RATIO_MAX),
    )


def container_above_card(now: Compared) -> Judged:
    """A container computes for a larger share of time than its card, which cannot be."""
    own, card = now.slice_column(Measure.DUTY_CYCLE), now.beside(now.card_column(Measure.DUTY_CYCLE))
    return _above(own, card + SM_OVER_DUTY_MIN)


def zero_while_serving(now: Compared) -> Judged:
    """Every counter of computing reads zero while requests are answered, and no other engine works for them."""
    own = compute_of(tuple(now.slice_column(measure) for measure in COMPUTE))
    # A transcoder answers by the encoder and decoder alone, and its zero is true.
    engines = compute_of(
        tuple(
            values
            for measure in (Measure.ENCODER, Measure.DECODER)
            for values in (now.slice_column(measure), now.beside(now.card_column(measure)))
        )
    )
    comparable = (now.slice_column(Measure.REQUEST_RATE) >= 1.0) & ~np.isnan(own) & ~(engines > ZERO_RATIO_MAX)
    return Judged(comparable=comparable, fails=comparable & (own <= 0.0))


def containers_above_card(now: Compared) -> Judged:
    """The slices of a card hold more framebuffer together than the card says is used."""
    used = now.card_column(Measure.FRAMEBUFFER_USED)
    return _above(now.summed(now.slice_column(Measure.FRAMEBUFFER_USED)), used + _slack(now))


def processes_above_card(now: Compared) -> Judged:
    """The processes of a card hold more framebuffer together than the card says is used."""
    return _above(now.processes_bytes, now.card_column(Measure.FRAMEBUFFER_USED) + _slack(now))


def framebuffer_above_grant(now: Compared) -> Judged:
    """A container holds more framebuffer than it was granted: nobody enforces the limit, or not against all processes.

    Several processes of one container that read a stale count allocate so (Project-HAMi/HAMi#1844).
    """
    return _above(now.slice_column(Measure.FRAMEBUFFER_USED), FRAMEBUFFER_OVER_CARD_MIN * now.granted_bytes)


def _slack(now: Compared) -> Float64:
    return FRAMEBUFFER_SLACK_SHARE * now.framebuffer_bytes


def _above(values: Float64, limits: Float64) -> Judged:
    comparable = ~np.isnan(values) & ~np.isnan(limits)
    return Judged(comparable=comparable, fails=comparable & (values > limits))


def _sm_above_duty(on: On) -> Callable[[Compared], Judged]:
    def rule(now: Compared) -> Judged:
        duty = now.column(on, Measure.DUTY_CYCLE)
        return _above(now.column(on, Measure.SM_ACTIVE), duty + SM_OVER_DUTY_MIN)

    return rule


def _spinning(on: On) -> Callable[[Compared], Judged]:
    def rule(now: Compared) -> Judged:
        duty, sm = now.column(on, Measure.DUTY_CYCLE), now.column(on, Measure.SM_ACTIVE)
        comparable = (duty >= SPIN_DUTY_MIN) & ~np.isnan(sm)
        return Judged(comparable=comparable, fails=comparable & (sm < SPIN_SM_MAX))

    return rule


def _above_one(on: On, measure: Measure) -> Callable[[Compared], Judged]:
    def rule(now: Compared) -> Judged:
        values = now.column(on, measure)
        return Judged(comparable=~np.isnan(values), fails=values > ABOVE_ONE_MIN)

    return rule


def _out_of_range(on: On, measure: Measure) -> Callable[[Compared], Judged]:
    (column,) = (column for column in MEASURES if column.measure is measure)

    def rule(now: Compared) -> Judged:
        values = now.column(on, measure)
        is_ratio = column.value_max == 1.0
        above = np.zeros(len(values), np.bool_) if is_ratio else values > column.value_max
        return Judged(comparable=~np.isnan(values), fails=(values < column.value_min) | above)

    return rule


def _framebuffer_above_card(on: On) -> Callable[[Compared], Judged]:
    def rule(now: Compared) -> Judged:
        whole = now.beside(now.framebuffer_bytes) if on is On.SLICE else now.framebuffer_bytes
        return _above(now.column(on, Measure.FRAMEBUFFER_USED), FRAMEBUFFER_OVER_CARD_MIN * whole)

    return rule


def _framebuffer_scale(on: On) -> Callable[[Compared], Judged]:
    def rule(now: Compared) -> Judged:
        used = now.column(on, Measure.FRAMEBUFFER_USED)
        return Judged(comparable=~np.isnan(used), fails=(used > 0) & (used < FRAMEBUFFER_BYTES_MIN))

    return rule


def _framebuffer_zero(on: On) -> Callable[[Compared], Judged]:
    def rule(now: Compared) -> Judged:
        used = now.column(on, Measure.FRAMEBUFFER_USED)
        works = compute_of(tuple(now.column(on, measure) for measure in COMPUTE)) > CARD_BUSY_RATIO_MIN
        comparable = works & ~np.isnan(used)
        return Judged(comparable=comparable, fails=comparable & (used <= 0.0))

    return rule


_RATIOS = (Measure.DUTY_CYCLE, Measure.SM_ACTIVE, Measure.MEMORY_ACTIVE, Measure.ENCODER, Measure.DECODER)


_ABOVE_ONE = "A share is above 1: a percentage taken for a ratio, or a sum over processes."
_OUT_OF_RANGE = "The value is below zero, or so large that an unsigned counter ran below zero."


def _of_both(on: On) -> tuple[Check, ...]:
    framebuffer = Measure.FRAMEBUFFER_USED
    above_one = (
        Check(
            name="above_one",
            on=on,
            counter=measure,
            meaning=_ABOVE_ONE,
            rule=_above_one(on, measure),
            repeats_min=1,
            share_min=0.0,
        )
        for measure in _RATIOS
    )
    out_of_range = (
        Check(
            name="out_of_range",
            on=on,
            counter=measure,
            meaning=_OUT_OF_RANGE,
            rule=_out_of_range(on, measure),
            repeats_min=1,
            share_min=0.0,
        )
        for measure in (Measure.DUTY_CYCLE, framebuffer, Measure.POWER)
    )
    return (
        Check(
            name="sm_active_above_duty_cycle",
            on=on,
            counter=Measure.SM_ACTIVE,
            meaning="SM active exceeds the duty cycle: no SM works without a kernel.",
            rule=_sm_above_duty(on),
        ),
        *above_one,
        *out_of_range,
        Check(
            name="framebuffer_above_card",
            on=on,
            counter=framebuffer,
            meaning="More framebuffer is in use than the card has.",
            rule=_framebuffer_above_card(on),
        ),
        Check(
            name="framebuffer_scale",
            on=on,
            counter=framebuffer,
            meaning="Less than 1 MiB of framebuffer is in use: MiB taken for bytes.",
            rule=_framebuffer_scale(on),
        ),
        Check(
            name="framebuffer_zero_while_working",
            on=on,
            counter=framebuffer,
            meaning="No framebuffer is in use while kernels run: it was not collected.",
            rule=_framebuffer_zero(on),
        ),
        Check(
            name="spinning",
            on=on,
            counter=Measure.DUTY_CYCLE,
            meaning="A kernel runs all the time and hardly any SM works: waiting ranks, or tiny kernels.",
            rule=_spinning(on),
            share_min=SPIN_SHARE_MIN,
            distrusts=False,
        ),
    )


CHECKS: tuple[Check, ...] = (
    Check(
        name="container_zero_while_card_busy",
        on=On.SLICE,
        counter=Measure.DUTY_CYCLE,
        meaning="The container reads zero while its card computes and none of its tenants accounts for it.",
        rule=container_zero_while_card_busy,
    ),
    Check(
        name="container_above_card",
        on=On.SLICE,
        counter=Measure.DUTY_CYCLE,
        meaning="The container computes for a larger share of time than its card.",
        rule=container_above_card,
    ),
    Check(
        name="zero_while_serving",
        on=On.SLICE,
        counter=Measure.DUTY_CYCLE,
        meaning="Every counter of computing reads zero while at least one request per second is answered.",
        rule=zero_while_serving,
    ),
    Check(
        name="framebuffer_above_grant",
        on=On.SLICE,
        counter=Measure.FRAMEBUFFER_USED,
        meaning="The container holds more framebuffer than it was granted: the limit is not enforced.",
        rule=framebuffer_above_grant,
        distrusts=False,
    ),
    *_of_both(On.SLICE),
    Check(
        name="containers_above_card",
        on=On.CARD,
        counter=Measure.FRAMEBUFFER_USED,
        meaning="The slices of the card hold more framebuffer together than the card says is used.",
        rule=containers_above_card,
    ),
    Check(
        name="processes_above_card",
        on=On.CARD,
        counter=Measure.FRAMEBUFFER_USED,
        meaning="The processes of the card hold more framebuffer together than the card says is used.",
        rule=processes_above_card,
    ),
    *_of_both(On.CARD),
)
"""Every check that looks at one reading at a time; frozen counters need several (`exporter.cross_checks.checks`)."""
