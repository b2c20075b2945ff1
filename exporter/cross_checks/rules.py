"""Every cross-check of a reading as a pure function: where it can be made, and where it fails.

A check that distrusts says that a number is wrong. A remark does not: ranks that wait in a collective show a duty cycle
of 100 % at low SM activity, and both numbers are right. Names and thresholds are those of the analyzer's rules for
stored windows (`fleet.trust_thresholds`). Called by `exporter.cross_checks.checks`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

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


Rule = Callable[[Compared, On, Measure], Judged]
"""Makes a check on one reading, of the rows and the counter that the check names."""


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
    rule: Rule
    repeats_min: int = REPEATS_MIN
    share_min: float = SHARE_MIN
    window: int = sys.maxsize
    distrusts: bool = True


def container_zero_while_card_busy(now: Compared, _on: On, _: Measure) -> Judged:
    """A container reads zero while its card computes and none of its tenants accounts for it.

    HAMi on Blackwell shows 0 % for every container under full load (Project-HAMi/HAMi#2015).
    """
    own = compute_of(tuple(now.slice_column(measure) for measure in COMPUTE))
    busy = compute_of(tuple(now.card_column(measure) for measure in COMPUTE))
    accounted = now.summed(own)
    comparable = (now.beside(busy) > CARD_BUSY_RATIO_MIN) & ~np.isnan(own) & ~np.isnan(now.beside(accounted))
    comparable &= now.beside(now.is_fully_known.astype(np.float64)) == 1.0
    return Judged(
        comparable=comparable, fails=comparable & (own <= ZERO_RATIO_MAX) & (now.beside(accounted) <= ZERO_RATIO_MAX)
    )


def container_above_card(now: Compared, _on: On, _: Measure) -> Judged:
    """A container computes for a larger share of time than its card, which cannot be."""
    own, card = now.slice_column(Measure.DUTY_CYCLE), now.beside(now.card_column(Measure.DUTY_CYCLE))
    return _above(own, card + SM_OVER_DUTY_MIN)


def zero_while_serving(now: Compared, _on: On, _: Measure) -> Judged:
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


def containers_above_card(now: Compared, _on: On, _: Measure) -> Judged:
    """The slices of a card hold more framebuffer together than the card says is used."""
    used = now.card_column(Measure.FRAMEBUFFER_USED)
    return _above(now.summed(now.slice_column(Measure.FRAMEBUFFER_USED)), used + _slack(now))


def processes_above_card(now: Compared, _on: On, _: Measure) -> Judged:
    """The processes of a card hold more framebuffer together than the card says is used."""
    return _above(now.processes_bytes, now.card_column(Measure.FRAMEBUFFER_USED) + _slack(now))


def framebuffer_above_grant(now: Compared, _on: On, _: Measure) -> Judged:
    """A container holds more framebuffer than it was granted: nobody enforces the limit, or not against all processes.

    Several processes of one container that read a stale count allocate so (Project-HAMi/HAMi#1844).
    """
    return _above(now.slice_column(Measure.FRAMEBUFFER_USED), FRAMEBUFFER_OVER_CARD_MIN * now.granted_bytes)


def _slack(now: Compared) -> Float64:
    return FRAMEBUFFER_SLACK_SHARE * now.framebuffer_bytes


def _above(values: Float64, limits: Float64) -> Judged:
    comparable = ~np.isnan(values) & ~np.isnan(limits)
    return Judged(comparable=comparable, fails=comparable & (values > limits))


def sm_above_duty(now: Compared, on: On, _: Measure) -> Judged:
    """More SMs work than kernels run, which cannot be."""
    return _above(now.column(on, Measure.SM_ACTIVE), now.column(on, Measure.DUTY_CYCLE) + SM_OVER_DUTY_MIN)


def spinning(now: Compared, on: On, _: Measure) -> Judged:
    """Hardly any SM works while a kernel runs all the time."""
    duty, sm = now.column(on, Measure.DUTY_CYCLE), now.column(on, Measure.SM_ACTIVE)
    comparable = (duty >= SPIN_DUTY_MIN) & ~np.isnan(sm)
    return Judged(comparable=comparable, fails=comparable & (sm < SPIN_SM_MAX))


def above_one(now: Compared, on: On, counter: Measure) -> Judged:
    """A share is above 1."""
    values = now.column(on, counter)
    return Judged(comparable=~np.isnan(values), fails=values > ABOVE_ONE_MIN)


def out_of_range(now: Compared, on: On, counter: Measure) -> Judged:
    """A value lies outside its measure's bounds; shares above 1 are another check's."""
    column, values = _COLUMNS[counter], now.column(on, counter)
    above = values > (np.inf if column.value_max == 1.0 else column.value_max)
    return Judged(comparable=~np.isnan(values), fails=(values < column.value_min) | above)


def framebuffer_above_card(now: Compared, on: On, _: Measure) -> Judged:
    """More framebuffer is used than the card has."""
    whole = now.beside(now.framebuffer_bytes) if on is On.SLICE else now.framebuffer_bytes
    return _above(now.column(on, Measure.FRAMEBUFFER_USED), FRAMEBUFFER_OVER_CARD_MIN * whole)


def framebuffer_scale(now: Compared, on: On, _: Measure) -> Judged:
    """Less framebuffer is used than any process holds."""
    used = now.column(on, Measure.FRAMEBUFFER_USED)
    return Judged(comparable=~np.isnan(used), fails=(used > 0) & (used < FRAMEBUFFER_BYTES_MIN))


def framebuffer_zero(now: Compared, on: On, _: Measure) -> Judged:
    """No framebuffer is used while kernels run."""
    used = now.column(on, Measure.FRAMEBUFFER_USED)
    works = compute_of(tuple(now.column(on, measure) for measure in COMPUTE)) > CARD_BUSY_RATIO_MIN
    comparable = works & ~np.isnan(used)
    return Judged(comparable=comparable, fails=comparable & (used <= 0.0))


_COLUMNS = {column.measure: column for column in MEASURES}
_DUTY, _SM, _FRAMEBUFFER = Measure.DUTY_CYCLE, Measure.SM_ACTIVE, Measure.FRAMEBUFFER_USED
_RATIOS = (_DUTY, _SM, Measure.MEMORY_ACTIVE, Measure.ENCODER, Measure.DECODER)


def _check(name: str, on: On, counter: Measure, rule: Rule, meaning: str) -> Check:
    return Check(name=name, on=on, counter=counter, rule=rule, meaning=meaning)


def _impossible(name: str, on: On, counters: tuple[Measure, ...], rule: Rule, meaning: str) -> Iterator[Check]:
    """Checks of which one failure is enough."""
    for counter in counters:
        yield replace(_check(name, on, counter, rule, meaning), repeats_min=1, share_min=0.0)


def _of_both(on: On) -> tuple[Check, ...]:
    remark = _check(
        "spinning", on, _DUTY, spinning,
        "A kernel runs all the time and hardly any SM works: waiting ranks, or tiny kernels.",
    )  # fmt: skip
    return (
        _check(
            "sm_active_above_duty_cycle", on, _SM, sm_above_duty,
            "SM active exceeds the duty cycle: no SM works without a kernel.",
        ),
        *_impossible(
            "above_one", on, _RATIOS, above_one,
            "A share is above 1: a percentage taken for a ratio, or a sum over processes.",
        ),
        *_impossible(
            "out_of_range", on, (_DUTY, _FRAMEBUFFER, Measure.POWER), out_of_range,
            "The value is below zero, or so large that an unsigned counter ran below zero.",
        ),
        _check(
            "framebuffer_above_card", on, _FRAMEBUFFER, framebuffer_above_card,
            "More framebuffer is in use than the card has.",
        ),
        _check(
            "framebuffer_scale", on, _FRAMEBUFFER, framebuffer_scale,
            "Less than 1 MiB of framebuffer is in use: MiB taken for bytes.",
        ),
        _check(
            "framebuffer_zero_while_working", on, _FRAMEBUFFER, framebuffer_zero,
            "No framebuffer is in use while kernels run: it was not collected.",
        ),
        replace(remark, share_min=SPIN_SHARE_MIN, distrusts=False),
    )  # fmt: skip


CHECKS: tuple[Check, ...] = (
    _check(
        "container_zero_while_card_busy", On.SLICE, _DUTY, container_zero_while_card_busy,
        "The container reads zero while its card computes and none of its tenants accounts for it.",
    ),
    _check(
        "container_above_card", On.SLICE, _DUTY, container_above_card,
        "The container computes for a larger share of time than its card.",
    ),
    _check(
        "zero_while_serving", On.SLICE, _DUTY, zero_while_serving,
        "Every counter of computing reads zero while at least one request per second is answered.",
    ),
    replace(
        _check(
            "framebuffer_above_grant", On.SLICE, _FRAMEBUFFER, framebuffer_above_grant,
            "The container holds more framebuffer than it was granted: the limit is not enforced.",
        ),
        distrusts=False,
    ),
    *_of_both(On.SLICE),
    _check(
        "containers_above_card", On.CARD, _FRAMEBUFFER, containers_above_card,
        "The slices of the card hold more framebuffer together than the card says is used.",
    ),
    _check(
        "processes_above_card", On.CARD, _FRAMEBUFFER, processes_above_card,
        "The processes of the card hold more framebuffer together than the card says is used.",
    ),
    *_of_both(On.CARD),
)  # fmt: skip
"""Every check that looks at one reading at a time; frozen counters need several (`exporter.cross_checks.checks`)."""
