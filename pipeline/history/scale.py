"""Whether a metric holds the unit that its name promises, by what it holds: a factor that mends it, or none that does.

Percent and ratio, MiB and bytes are mixed up by relabelling, recording rules and versions of exporters, and each of
them a hundred- or millionfold wrong looks like a fleet at rest or on fire. Called by `reading`, once per metric.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import partial

from fleet.provenance import TARGET_NAMESPACES
from fleet.schema import Measure
from fleet.sentences import Sentence, sentence
from fleet.series import meaning_of_name
from fleet.units import MIB
from pipeline.history.source import HistorySource
from wire.prometheus_query import TooMuch

FRAMEBUFFER_MIB_MAX = 2.0**21
"""No card has two TiB; and a pod that uses a card at all holds more than as many bytes."""

_LOOK_SECONDS = (86_400, 3_600)
"""How much of the newest time is looked at; the shorter where the server refuses the longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """What a metric's samples are multiplied by before its own factor counts.

    Attributes:
        factor: 1 where the unit is as promised.
        remark: what was found, in words; None where all is as promised.
    """

    factor: float = 1.0
    remark: Sentence | None = None


def scale_of(source: HistorySource, name: str, *, until_ms: int, but: Collection[str] = ()) -> Scale:
    """The scale of a metric, by its largest values of the last day.

    A percentage of all these sources is a whole number, so values that are not, none of them above 1, are ratios. What
    stays in doubt is read as the name promises.

    Args:
        but: namespaces of targets that may not speak for others: what they write changes nothing.

    Raises:
        Unavailable: the source can't be reached.
        Misconfigured: it does not let us in.
    """
    meaning = meaning_of_name(name)
    # A server's own metrics come from tenants' pods: what one of them writes changes nothing for others.
    if meaning is None or meaning.measure in (None, Measure.KV_CACHE_USAGE):
        return Scale()
    largest = partial(_largest, source, source.selector(name, *_without(but)), until_ms)
    if meaning.measure is Measure.FRAMEBUFFER_USED:
        return _framebuffer(name, meaning.factor, largest())
    if meaning.factor != 1.0 and meaning.measure.value.endswith("_ratio"):
        most = largest()
        if most is not None and 0.0 < most <= 1.0 and (largest(" % 1") or 0.0) > 0.0:
            return Scale(
                factor=1.0 / meaning.factor,
                remark=sentence("doctor.found.unit_ratios", metric=name, largest=f"{most:.3g}"),
            )
    if meaning.factor == 1.0 and meaning.measure.value.endswith("_ratio"):
        most = largest()
        if most is not None and most > 1.5:
            return Scale(factor=0.01, remark=sentence("doctor.found.unit_percent", metric=name, largest=f"{most:.4g}"))
    return Scale()


def _framebuffer(name: str, factor: float, largest: float | None) -> Scale:
    if largest is None or largest <= 0.0:
        return Scale()
    if factor != 1.0 and largest > FRAMEBUFFER_MIB_MAX:
        return Scale(
            factor=1.0 / MIB, remark=sentence("doctor.found.unit_bytes", metric=name, largest=f"{largest:.4g}")
        )
    if factor == 1.0 and largest < FRAMEBUFFER_MIB_MAX and largest >= 16:
        remark = sentence("doctor.found.unit_mib", metric=name, largest=f"{largest:.4g}")
        return Scale(factor=float(MIB), remark=remark)
    return Scale()


def _without(namespaces: Collection[str]) -> tuple[str, ...]:
    """Matchers of targets outside some namespaces."""
    if not namespaces:
        return ()
    pattern = json.dumps("|".join(sorted(map(re.escape, namespaces))), ensure_ascii=False)
    return tuple(f"{label}!~{pattern}" for label in TARGET_NAMESPACES)


def _largest(source: HistorySource, selector: str, until_ms: int, of: str = "") -> float | None:
    for seconds in _LOOK_SECONDS:
        over = f"{selector}[{seconds}s]" if not of else f"({selector}{of})[{seconds}s:{max(60, seconds // 288)}s]"
        try:
            return source.number(f"max(max_over_time({over}))", at_ms=until_ms)
        except TooMuch:
            continue
    return None
