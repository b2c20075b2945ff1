"""The card hours of the last seven days by tenant and measure: what pages, report, API and exporter sum.

Made of the charged days that `gputide cost show` sums, so that their totals are the same to the cent. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal

from fleet.money.charges import Charge, Chargeback, MeasuredHours
from fleet.profiles import HourMeasure

Measures = Mapping[HourMeasure, MeasuredHours]

GRANTED = (HourMeasure.IDLE, HourMeasure.IDLE_HELD, HourMeasure.UNUSED, HourMeasure.USED)
IDLE = (HourMeasure.IDLE, HourMeasure.IDLE_HELD)
"""Granted, without compute."""
NOT_USED = (*IDLE, HourMeasure.UNUSED)
"""Granted, and not used."""
WASTED = (HourMeasure.UNALLOCATED, *IDLE)
"""Cards that nobody was granted, and cards on which nothing ran."""


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class WeekHours:
    """Card hours of a span, by what becomes of them.

    Attributes:
        since: since when cards are known, within the span, UTC.
        unmeasured: granted card hours of each namespace whose use was not measured: they count as used.
        rest: what nobody was granted; nothing for a reader who may see some namespaces alone.
    """

    since: datetime
    until: datetime
    currency: str
    tenants: Mapping[str, Measures]
    unmeasured: Mapping[str, float]
    rest: Measures

    @property
    def hours(self) -> float:
        """Length of the span."""
        return (self.until - self.since).total_seconds() / 3600

    @property
    def total(self) -> Measures:
        """Measures of all tenants and of what nobody was granted."""
        every = (*self.tenants.values(), self.rest)
        return {measure: added(one[measure] for one in every if measure in one) for measure in HourMeasure}

    def only(self, namespaces: Collection[str]) -> WeekHours:
        """What a reader sees who may see some namespaces alone."""
        return replace(
            self,
            tenants={name: measures for name, measures in self.tenants.items() if name in namespaces},
            unmeasured={name: hours for name, hours in self.unmeasured.items() if name in namespaces},
            rest={},
        )


def week_hours(found: Chargeback, *, known_since: datetime) -> WeekHours:
    """The card hours of a chargeback by namespace."""
    rest = (found.unallocated.measures, found.stranded.measures)
    return WeekHours(
        since=known_since,
        until=found.until,
        currency=found.currency,
        tenants={row.name: _granted(row) for row in found.rows},
        unmeasured={row.name: row.unmeasured_card_hours for row in found.rows},
        rest={
            HourMeasure.UNALLOCATED: rest[0][HourMeasure.UNALLOCATED],
            HourMeasure.STRANDED: rest[1][HourMeasure.STRANDED],
        },
    )


def added(parts: Iterable[MeasuredHours]) -> MeasuredHours:
    """Card hours together; their cost is None where there are some and none has a price."""
    held = [part for part in parts if part.card_hours]
    costs = [part.cost for part in held if part.cost is not None]
    return MeasuredHours(
        card_hours=sum(part.card_hours for part in held), cost=sum(costs, Decimal(0)) if costs or not held else None
    )


def part_of(measures: Measures, chosen: Iterable[HourMeasure]) -> MeasuredHours:
    """Some measures together."""
    return added(measures[measure] for measure in chosen if measure in measures)


def _granted(row: Charge) -> Measures:
    return {measure: row.measures[measure] for measure in GRANTED}
