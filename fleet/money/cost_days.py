"""Card hours of a span by day, by who held what, and by what became of them: what one cuts and groups at will.

Summed once from the charged days that `gputide cost show` sums, so that totals are the same to the cent. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fleet.money.charged_day import ChargedDay
from fleet.money.charges import BillingPeriod, MeasuredHours, Owner, money_of
from fleet.money.prices import CardPrice
from fleet.money.tenancies import Tenancies, team_of
from fleet.money.week_hours import Measures
from fleet.profiles import HourMeasure

MEASURES = tuple(HourMeasure)
GROUPS = (Owner.TEAM, Owner.NAMESPACE, Owner.WORKLOAD, Owner.MODEL, Owner.NODE)
"""Whom card hours may be grouped by, and cut to."""
_FREE = (MEASURES.index(HourMeasure.UNALLOCATED), MEASURES.index(HourMeasure.STRANDED))
_HOUR = timedelta(hours=1)


class Holder(NamedTuple):
    """Who held a part of a card hour, and of which card; the first three are empty where nobody was granted it."""

    team: str
    namespace: str
    workload: str
    model: str
    node: str

    def named(self, by: Owner) -> str:
        """Its name in a grouping, one of `GROUPS`."""
        return str(getattr(self, by.value))


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class CostDays:
    """Card hours of some days, a row for each day, holder and price.

    Attributes:
        starts: start of each day, UTC; the first may begin within its day.
        until: end of the last one, UTC.
        holders: everybody who has a row.
        day: place of each row's day, int32, shape (rows,).
        holder: place of its holder, int32, shape (rows,).
        price: place of its price, int32, shape (rows,).
        units: its card hours by measure, in the order of `MEASURES`, millionths, int64, shape (rows, measures).
        hourly: card hours of the whole cluster in each hour since the first start, millionths, int64, shape
            (hours, measures); no hours where some holders are left out.
    """

    currency: str
    starts: tuple[datetime, ...]
    until: datetime
    holders: tuple[Holder, ...]
    prices: tuple[CardPrice, ...]
    day: NDArray[np.int32]
    holder: NDArray[np.int32]
    price: NDArray[np.int32]
    units: NDArray[np.int64]
    hourly: NDArray[np.int64]

    def only(self, namespaces: Collection[str]) -> CostDays:
        """What a reader sees who may see some namespaces alone: theirs, and nothing of what nobody was granted."""
        return self._kept([holder.namespace in namespaces and holder.namespace != "" for holder in self.holders])

    def of(self, chosen: Mapping[Owner, str]) -> CostDays:
        """The rows of holders that have each of these names; all of them where nothing is chosen."""
        if not chosen:
            return self
        return self._kept([all(holder.named(by) == name for by, name in chosen.items()) for holder in self.holders])

    def between(self, since: datetime, until: datetime) -> CostDays:
        """The days that begin within two moments; days are whole."""
        within = [number for number, start in enumerate(self.starts) if since <= start < until]
        if not within:
            return replace(self._rows(np.zeros(len(self.day), np.bool_)), starts=(), hourly=self.hourly[:0])
        first, last = within[0], within[-1]
        end = self.starts[last + 1] if last + 1 < len(self.starts) else self.until
        hours = [round((moment - self.starts[0]) / _HOUR) for moment in (self.starts[first], end)]
        rows = self._rows((self.day >= first) & (self.day <= last))
        return replace(
            rows,
            starts=self.starts[first : last + 1],
            until=end,
            day=rows.day - first,
            hourly=self.hourly[hours[0] : hours[1]],
        )

    def total(self) -> Measures:
        """All its card hours and what they cost."""
        return self._measures(np.zeros(len(self.day), np.int64), 1)[0]

    @property
    def unpriced_card_hours(self) -> float:
        """Card hours on cards without a price."""
        is_unpriced = np.array([price.amortised is None for price in self.prices], np.bool_)
        return int(self.units[is_unpriced[self.price]].sum()) / 1_000_000

    def per_day(self) -> list[Measures]:
        """The same of each day."""
        return self._measures(self.day, len(self.starts))

    def grouped(self, by: Owner) -> list[tuple[str, Measures]]:
        """The same by name, dearest first, then those with most card hours; the name is empty for what nobody held."""
        names = sorted({holder.named(by) for holder in self.holders})
        place = {name: number for number, name in enumerate(names)}
        of_holder = np.array([place[holder.named(by)] for holder in self.holders], np.int64)
        found = zip(names, self._measures(of_holder[self.holder], len(names)), strict=True)
        rows = [(name, measures) for name, measures in found if any(one.card_hours for one in measures.values())]
        return sorted(rows, key=lambda row: (*_order(row[1].values()), row[0]))

    def _measures(self, place: NDArray[np.integer[Any]], places: int) -> list[Measures]:
        # Sums of a year of 100,000 cards stay below 2^53 millionths, so the floats of bincount are exact.
        width = len(self.prices)
        tables = [
            np.bincount(place.astype(np.int64) * width + self.price, weights=column, minlength=places * width).reshape(
                places, width
            )
            for column in self.units.T
        ]
        return [
            {
                measure: self._measured(table[number])
                for measure, table in zip(MEASURES, tables, strict=True)
            }
            for number in range(places)
        ]  # fmt: skip

    def _measured(self, by_price: NDArray[np.float64]) -> MeasuredHours:
        held = {self.prices[number]: int(by_price[number]) for number in np.flatnonzero(by_price).tolist()}
        return MeasuredHours(card_hours=sum(held.values()) / 1_000_000, cost=money_of(held))

    def _kept(self, is_kept: Sequence[bool]) -> CostDays:
        return replace(self._rows(np.array(is_kept, np.bool_)[self.holder]), hourly=self.hourly[:0])

    def _rows(self, chosen: NDArray[np.bool_]) -> CostDays:
        return replace(
            self,
            day=self.day[chosen],
            holder=self.holder[chosen],
            price=self.price[chosen],
            units=self.units[chosen],
        )


def cost_days(
    days: Iterable[ChargedDay], who: Tenancies, billed: BillingPeriod, *, team_labels: Sequence[str]
) -> CostDays:
    """Sum the days of a period by holder; a day is in memory at a time.

    Args:
        who: cards and grants that the days count by place.
        team_labels: pod labels that name the team.
    """
    holders: dict[Holder, int] = {}
    prices: dict[CardPrice, int] = {}
    # A grant may know less of its card than the inventory, and one card has one owner.
    cards = [(card.card_model, card.node) for card in who.cards]
    of_grant = np.array(
        [
            holders.setdefault(
                Holder(team_of(grant, team_labels), grant.namespace, str(grant.workload_id), *cards[card]), len(holders)
            )
            for grant, card in zip(who.grants, who.card_of.tolist(), strict=True)
        ],
        np.int64,
    )
    of_card = np.array([holders.setdefault(Holder("", "", "", *card), len(holders)) for card in cards], np.int64)
    blocks: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]] = []
    hourly: list[NDArray[np.int64]] = []
    starts: list[datetime] = []
    for day in days:
        known = np.array([prices.setdefault(price, len(prices)) for price in day.prices], np.int64)
        holder = np.concatenate([of_grant[day.grant], of_card[day.card]])
        card_hour = np.concatenate([day.columns.card_hour, np.arange(day.columns.count)])
        units = _units(day)
        keys, row = np.unique(
            np.stack([holder, known[day.price_of[day.card[card_hour]]]], axis=1), axis=0, return_inverse=True
        )
        sums = np.stack([_sums(row.reshape(-1), column, len(keys)) for column in units.T], axis=1)
        has_any = sums.any(axis=1)
        blocks.append((np.full(int(has_any.sum()), len(starts)), keys[has_any, 0], keys[has_any, 1], sums[has_any]))
        hours = day.hour[card_hour]
        hourly.append(np.stack([_sums(hours, column, day.hours) for column in units.T], axis=1))
        starts.append(day.start)
    none = np.zeros((0, len(MEASURES)), np.int64)
    places = [np.concatenate([block[part] for block in blocks] or [none[:, 0]]).astype(np.int32) for part in range(3)]
    return CostDays(
        currency=billed.currency,
        starts=tuple(starts),
        until=billed.until,
        holders=tuple(holders),
        prices=tuple(prices),
        day=places[0],
        holder=places[1],
        price=places[2],
        units=np.concatenate([block[3] for block in blocks] or [none]),
        hourly=np.concatenate(hourly or [none]),
    )


def _units(day: ChargedDay) -> NDArray[np.int64]:
    """Millionths of card hours by measure: rows of grants first, then what is left of every card hour."""
    rows, hours = len(day.grant), day.columns.count
    units = np.zeros((rows + hours, len(MEASURES)), np.int64)
    for measure, held in day.measures.items():
        units[:rows, MEASURES.index(measure)] = held
    for place, rest in zip(_FREE, (day.split.allocation.idle, day.split.allocation.stranded), strict=True):
        units[rows:, place] = rest
    return units


def _sums(place: NDArray[np.int64], units: NDArray[np.int64], places: int) -> NDArray[np.int64]:
    return np.bincount(place, weights=units, minlength=places).astype(np.int64)


def _order(parts: Iterable[MeasuredHours]) -> tuple[float, float]:
    held = list(parts)
    return -float(sum(one.cost for one in held if one.cost is not None)), -sum(one.card_hours for one in held)
