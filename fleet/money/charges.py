"""Whose cost it is: card hours summed per cluster, node, namespace, team, workload or pod.

Called by `gputide cost show` and the budgets. Amounts are exact; `in_cents` rounds them so that the
amounts shown sum to the total shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import ROUND_FLOOR, ROUND_HALF_EVEN, Decimal
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from fleet.inventory import Card, Grant
from fleet.money.charged_day import ChargedDay, ServedUnit
from fleet.money.prices import CardPrice
from fleet.money.split import MILLION
from fleet.money.tenancies import Tenancies, team_of
from fleet.profiles import HourMeasure


class Owner(StrEnum):
    """Whom cost is summed by."""

    CLUSTER = "cluster"
    NODE = "node"
    MODEL = "model"
    """Card model."""
    NAMESPACE = "namespace"
    TEAM = "team"
    WORKLOAD = "workload"
    POD = "pod"


BASES = ("allocation", "use", "blended")
_OF_CARDS = frozenset({Owner.CLUSTER, Owner.NODE, Owner.MODEL})


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """One cost on the three bases, exact, in the chargeback's currency; None where no card of it has a price."""

    allocation: Decimal | None
    use: Decimal | None
    blended: Decimal | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredHours:
    """Card hours of one measure.

    Attributes:
        cost: their exact price; where some have none, of the others; None where none has one.
    """

    card_hours: float
    cost: Decimal | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What inference servers served.

    Attributes:
        cost: cost by allocation of the hours in which they reported it; None where no card of these has a price.
    """

    count: float
    cost: Decimal | None

    @property
    def per_million(self) -> Decimal | None:
        """Cost of a million, exact; None where it is unknown or nothing was served."""
        if self.cost is None or not self.count:
            return None
        return self.cost * MILLION / Decimal(str(self.count))


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """What one owner costs; also what unallocated and stranded parts cost, and all together.

    Attributes:
        name: owner.
        cost: cost of what is used, held or left, on each basis; where some cards have no price, of the others.
        measures: its card hours by what becomes of them; of a cluster or node with what nobody was granted there.
        unpriced_card_hours: card hours by allocation on cards without a price.
        unmeasured_card_hours: card hours by allocation of slices whose use was not measured: they count as used.
        unallocated: by cluster and node: what nobody was granted there, by use also what nobody used; None for other
            owners.
        stranded: the same of what nobody can be granted.
        kwh: electricity at the cards, by use; None where none of it is known.
        unknown_kwh_card_hours: card hours by use whose electricity is not known.
        served: what its servers served, where any reports it.
    """

    name: str
    card_hours: float
    cost: Amounts
    measures: Mapping[HourMeasure, MeasuredHours]
    unpriced_card_hours: float
    unmeasured_card_hours: float
    unallocated: Amounts | None
    stranded: Amounts | None
    kwh: float | None
    unknown_kwh_card_hours: float
    served: Mapping[ServedUnit, Served]


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeCards:
    """Card hours in which nobody was granted any slice: giving such cards back saves money, smaller slices don't.

    Attributes:
        amortised: their full price; None where none has one.
        marginal: what would stop being paid at once; None where none of it is known.
        unpriced_card_hours: of them, those without a full price.
        unknown_marginal_card_hours: of them, those whose marginal price is not known.
    """

    card_hours: int
    amortised: Decimal | None
    marginal: Decimal | None
    unpriced_card_hours: int
    unknown_marginal_card_hours: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Chargeback:
    """All cost of a period by owner.

    Attributes:
        by: whom it is summed by.
        rows: owners, dearest by allocation first.
        unallocated: what nobody was granted; by use also what nobody used.
        stranded: what nobody can be granted, as its other half is taken.
        total: all card hours at their price.
        free_cards: cards that nobody held at all.
        density_max: most of a card that was granted at once; over 1 is oversubscribed.
        measured_kwh_ratio: share of the known electricity that cards reported themselves; None where none is known.
        prices: prices that were used, with their card hours, most first.
        unpriced_models: card models of which some card had no price, sorted.
    """

    cluster: str
    since: datetime
    until: datetime
    currency: str
    by: Owner
    rows: tuple[Charge, ...]
    unallocated: Charge
    stranded: Charge
    total: Charge
    free_cards: FreeCards
    density_max: float
    measured_kwh_ratio: float | None
    prices: tuple[tuple[CardPrice, int], ...]
    unpriced_models: tuple[str, ...]


class _Sums:
    """Sums per place, filled day by day (mutable: it counts in place).

    Owners have the first places, unallocated parts those behind them, stranded parts the last.

    Args:
        rest_of: place for unallocated parts of each card, shape (cards,).
        stranded_of: place for its stranded parts.
    """

    def __init__(self, places: int, rest_of: NDArray[np.int64], stranded_of: NDArray[np.int64]) -> None:
        self.places = places
        self.rest_of = rest_of
        self.stranded_of = stranded_of
        self.units: dict[tuple[str, CardPrice], NDArray[np.int64]] = {}
        self._tables: dict[str, tuple[list[CardPrice], NDArray[np.int64]]] = {}
        self.unmeasured = np.zeros(places, np.int64)
        self.kwh = np.zeros(places)
        self.kwh_hours = np.zeros(places)
        self.unknown_kwh = np.zeros(places)
        self.served = {unit: np.zeros(places) for unit in ServedUnit}
        self.serves = {unit: np.zeros(places, np.bool_) for unit in ServedUnit}
        self.free: dict[CardPrice, int] = {}
        self.measured_kwh = 0.0
        self.density_max = 0.0

    def add(self, day: ChargedDay, owner_of_row: NDArray[np.int64]) -> None:
        """Add a day.

        Args:
            owner_of_row: owner of each of its rows, shape (rows,).
        """
        hours, rows = day.columns.count, len(day.grant)
        owner = np.concatenate([owner_of_row, self.rest_of[day.card], self.stranded_of[day.card]])
        hour = np.concatenate([day.columns.card_hour, np.arange(hours), np.arange(hours)])
        price = day.price_of[day.card[hour]]
        self._tables.clear()
        of_basis: dict[str, NDArray[np.int64]] = {}
        for basis in BASES:
            parts = getattr(day.split, basis)
            of_basis[basis] = np.concatenate([parts.rows, parts.idle, parts.stranded])
        no_rest, no_rows = np.zeros(2 * hours, np.int64), np.zeros(rows, np.int64)
        no_hours, allocation = np.zeros(hours, np.int64), day.split.allocation
        kinds = {
            **of_basis,
            **{measure.value: np.concatenate([units, no_rest]) for measure, units in day.measures.items()},
            HourMeasure.UNALLOCATED.value: np.concatenate([no_rows, allocation.idle, no_hours]),
            HourMeasure.STRANDED.value: np.concatenate([no_rows, no_hours, allocation.stranded]),
        }
        for unit, served in day.served.items():
            is_known = ~np.isnan(served)
            if is_known.any():
                # Hours in which a server said nothing of its requests cost something too, but not these requests.
                kinds[unit.value] = np.concatenate([np.where(is_known, allocation.rows, 0), no_rest])
                self.served[unit] += self._sum(owner_of_row, np.where(is_known, served, 0.0))
                self.serves[unit] |= self._sum(owner_of_row, is_known.astype(float)) > 0
        for kind, units in kinds.items():
            for number, block in self._by_price(owner, price, units, len(day.prices)):
                key = (kind, day.prices[number])
                self.units[key] = self.units.get(key, 0) + block
        unmeasured = np.isnan(day.columns.compute_used) | np.isnan(day.columns.framebuffer_used)
        self.unmeasured += self._sum(owner_of_row, np.where(unmeasured, day.split.allocation.rows, 0)).astype(np.int64)
        self._add_energy(day, owner, hour, of_basis["use"])
        held = np.bincount(day.columns.card_hour, minlength=hours) > 0
        counts = np.bincount(day.price_of[day.card[~held]], minlength=len(day.prices))
        for number, count in enumerate(counts.tolist()):
            if count:
                self.free[day.prices[number]] = self.free.get(day.prices[number], 0) + count
        self.density_max = max(self.density_max, float(day.split.density.max(initial=0.0)))

    def units_at(self, kind: str, places: NDArray[np.int64]) -> dict[CardPrice, int]:
        """Millionths of card hours of some places by price, where there are any."""
        if kind not in self._tables:
            found = [(price, block) for (of, price), block in self.units.items() if of == kind]
            table = np.array([block for _, block in found], np.int64).reshape(len(found), self.places)
            self._tables[kind] = [price for price, _ in found], table
        prices, table = self._tables[kind]
        sums = table[:, places].sum(axis=1)
        return {prices[number]: int(sums[number]) for number in np.flatnonzero(sums).tolist()}

    def amounts_at(self, places: NDArray[np.int64]) -> Amounts:
        """Cost of some places."""
        return Amounts(**{basis: money_of(self.units_at(basis, places)) for basis in BASES})

    def _add_energy(
        self, day: ChargedDay, owner: NDArray[np.int64], hour: NDArray[np.int64], used: NDArray[np.int64]
    ) -> None:
        kwh, share = day.kwh[hour], used / MILLION
        is_known = ~np.isnan(kwh)
        self.kwh += self._sum(owner, np.where(is_known, kwh, 0.0) * share)
        self.kwh_hours += self._sum(owner, np.where(is_known, share, 0.0))
        self.unknown_kwh += self._sum(owner, np.where(is_known, 0.0, share))
        self.measured_kwh += float(np.nansum(day.kwh[day.kwh_is_measured]))

    def _sum(self, owner: NDArray[np.int64], values: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.bincount(owner, weights=values, minlength=self.places).astype(np.float64)

    def _by_price(
        self, owner: NDArray[np.int64], price: NDArray[np.int64], units: NDArray[np.int64], prices: int
    ) -> Iterable[tuple[int, NDArray[np.int64]]]:
        # Sums of a day stay far below 2^53, so the floats of bincount are exact.
        flat = np.bincount(price * self.places + owner, weights=units, minlength=prices * self.places)
        blocks = flat.reshape(prices, self.places).astype(np.int64)
        return ((number, blocks[number]) for number in range(prices) if blocks[number].any())


@dataclass(frozen=True, slots=True, kw_only=True)
class BillingPeriod:
    """What a bill is for."""

    cluster: str
    since: datetime
    until: datetime
    currency: str


class ChargeSums:
    """Sums days by owner (mutable: it counts in place).

    Args:
        who: cards and grants that the days count by place.
        team_labels: pod labels that name the team.
    """

    def __init__(self, who: Tenancies, by: Owner, team_labels: Sequence[str]) -> None:
        by_card = [owner_of_card(card, by) for card in who.cards]
        by_grant = (
            # A grant may know less of its card than the inventory, and one card has one owner.
            [by_card[place] for place in who.card_of.tolist()]
            if by in _OF_CARDS
            else [_tenant_of(grant, by, team_labels) for grant in who.grants]
        )
        self._by = by
        self._cards = who.cards
        self._unpriced_models: set[str] = set()
        self._names = list(dict.fromkeys([*by_grant, *by_card]))
        place = {name: number for number, name in enumerate(self._names)}
        count = len(self._names)
        card_owner = np.array([place[name] for name in by_card], np.int64)
        self._grant_owner = np.array([place[name] for name in by_grant], np.int64)
        self._sums = _Sums(3 * count, count + card_owner, 2 * count + card_owner)

    def add(self, day: ChargedDay) -> None:
        """Add a day."""
        self._sums.add(day, self._grant_owner[day.grant])
        cards = np.unique(day.card)
        self._unpriced_models |= {self._cards[place].card_model for place in cards[day.is_unpriced[cards]].tolist()}

    def chargeback(self, billed: BillingPeriod) -> Chargeback:
        """What was added so far, as the bill of a period."""
        sums, count = self._sums, len(self._names)
        owners = np.arange(count)
        charges = [
            _charge(sums, owners[number : number + 1], name, rest=count if self._by in _OF_CARDS else None)
            for number, name in enumerate(self._names)
        ]
        rows = [charge for charge in charges if charge.card_hours > 0 or _has_rest(charge)]
        kwh = float(sums.kwh.sum())
        return Chargeback(
            cluster=billed.cluster,
            since=billed.since,
            until=billed.until,
            currency=billed.currency,
            by=self._by,
            rows=tuple(sorted(rows, key=lambda row: (-(row.cost.allocation or 0), -row.card_hours, row.name))),
            unallocated=_charge(sums, owners + count, "unallocated"),
            stranded=_charge(sums, owners + 2 * count, "stranded"),
            total=_charge(sums, np.arange(3 * count), "total"),
            free_cards=_free_cards(sums),
            density_max=sums.density_max,
            measured_kwh_ratio=min(1.0, sums.measured_kwh / kwh) if kwh > 0 else None,
            prices=_prices_used(sums),
            unpriced_models=tuple(sorted(self._unpriced_models)),
        )


def chargeback(
    days: Iterable[ChargedDay], who: Tenancies, billed: BillingPeriod, *, by: Owner, team_labels: Sequence[str]
) -> Chargeback:
    """Sum the days of a period by owner; see `ChargeSums`."""
    sums = ChargeSums(who, by, team_labels)
    for day in days:
        sums.add(day)
    return sums.chargeback(billed)


def _tenant_of(grant: Grant, by: Owner, team_labels: Sequence[str]) -> str:
    return {
        Owner.NAMESPACE: lambda: grant.namespace,
        Owner.TEAM: lambda: team_of(grant, team_labels),
        Owner.WORKLOAD: lambda: str(grant.workload_id),
        Owner.POD: lambda: grant.pod_id,
    }[by]()


def owner_of_card(card: Card, by: Owner) -> str:
    """Which owner of a kind a card has by what it is and where it stands; empty for kinds that are tenants."""
    return {Owner.CLUSTER: card.cluster, Owner.NODE: card.node, Owner.MODEL: card.card_model}.get(by, "")


def _charge(sums: _Sums, places: NDArray[np.int64], name: str, *, rest: int | None = None) -> Charge:
    """Of some places together; `rest` is how far behind an owner's place that of its unallocated parts lies."""

    def chosen(values: NDArray[np.float64]) -> float:
        return float(values[places].sum())

    allocation = sums.units_at("allocation", places)
    whole = places if rest is None else np.concatenate([places, places + rest, places + 2 * rest])
    return Charge(
        name=name,
        card_hours=sum(allocation.values()) / MILLION,
        cost=sums.amounts_at(places),
        measures={measure: _measured(sums.units_at(measure.value, whole)) for measure in HourMeasure},
        unpriced_card_hours=sum(count for price, count in allocation.items() if price.amortised is None) / MILLION,
        unmeasured_card_hours=chosen(sums.unmeasured.astype(float)) / MILLION,
        unallocated=None if rest is None else sums.amounts_at(places + rest),
        stranded=None if rest is None else sums.amounts_at(places + 2 * rest),
        kwh=chosen(sums.kwh) if chosen(sums.kwh_hours) > 0 else None,
        unknown_kwh_card_hours=chosen(sums.unknown_kwh),
        served={
            unit: Served(count=chosen(sums.served[unit]), cost=money_of(sums.units_at(unit.value, places)))
            for unit in ServedUnit
            if sums.serves[unit][places].any()
        },
    )


def _measured(units: dict[CardPrice, int]) -> MeasuredHours:
    return MeasuredHours(card_hours=sum(units.values()) / MILLION, cost=money_of(units))


def _has_rest(row: Charge) -> bool:
    parts = [part for part in (row.unallocated, row.stranded) if part is not None]
    return any(part.allocation is None or part.allocation > 0 for part in parts)


def money_of(units: dict[CardPrice, int]) -> Decimal | None:
    """The exact price of millionths of card hours; None where there are some and none has a price."""
    priced = [price.amortised * count for price, count in units.items() if price.amortised is not None and count]
    if not priced and any(units.values()):
        return None
    return sum(priced, Decimal(0)) / MILLION


def _free_cards(sums: _Sums) -> FreeCards:
    free = sums.free
    amortised = [price.amortised * count for price, count in free.items() if price.amortised is not None]
    marginal = [price.marginal * count for price, count in free.items() if price.marginal is not None]
    return FreeCards(
        card_hours=sum(free.values()),
        amortised=sum(amortised, Decimal(0)) if amortised or not free else None,
        marginal=sum(marginal, Decimal(0)) if marginal or not free else None,
        unpriced_card_hours=sum(count for price, count in free.items() if price.amortised is None),
        unknown_marginal_card_hours=sum(count for price, count in free.items() if price.marginal is None),
    )


def _prices_used(sums: _Sums) -> tuple[tuple[CardPrice, int], ...]:
    hours = {
        price: int(block.sum()) // MILLION for (basis, price), block in sums.units.items() if basis == "allocation"
    }
    return tuple(sorted(hours.items(), key=lambda item: (-item[1], item[0].source)))


CENT = Decimal("0.01")


def in_cents(amounts: Sequence[Decimal | None], *, quantum: Decimal = CENT) -> list[Decimal | None]:
    """Amounts in cents whose sum is their exact sum in cents, by the largest remainder.

    Args:
        amounts: exact amounts of 0 or more; None stays None and adds nothing.
    """
    known = [amount for amount in amounts if amount is not None]
    total = sum(known, Decimal(0)).quantize(quantum, ROUND_HALF_EVEN)
    floors = [None if amount is None else amount.quantize(quantum, ROUND_FLOOR) for amount in amounts]
    left = int((total - sum((floor for floor in floors if floor is not None), Decimal(0))) / quantum)
    cut = sorted(
        (number for number, amount in enumerate(amounts) if amount is not None),
        key=lambda number: (floors[number] or 0) - (amounts[number] or 0),
    )
    for number in cut[:left]:
        floors[number] = (floors[number] or Decimal(0)) + quantum
    return floors
