"""Card hours, day by day, with their split, price and electricity: what chargeback and export are summed from.

A day is made at a time, so that a month of a large fleet fits memory; of a small fleet several are read together.
Called by `charges` and `focus`.

Electricity of card hours: measured where cards report power, else estimated from their model, else unknown.

An estimate takes the resting power of the model and goes up to its power limit with activity, a straight line; it is
marked as an estimate.

Amounts rounded for people so that what is shown sums to the sum that is shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import ROUND_FLOOR, ROUND_HALF_EVEN, Decimal

import numpy as np
from numpy.typing import NDArray

from analyzer.state.card_hours import measured_parts
from dashboards.money.hourly_usage import HOUR_MS, HOUR_SECONDS, HourlyUsage, Windows, hourly_usage, idle_grants
from dashboards.money.tenancies import Tenancies, slots_of
from fleet.catalogue import find_model
from fleet.inventory import Card
from fleet.profiles import HourMeasure
from fleet.settings.settings import AnalyzerSettings
from fleet.units import epoch_ms
from recommender.cost_split import CardHours, Split, split_card_hours
from recommender.prices import CardPrice, PriceBook, idle_watts

SLICE_HOURS_AT_ONCE = 200_000
"""Hours of slices that are read from the warehouse together: a question costs as much as a day of a small fleet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChargedDay:
    """The card hours of one UTC day, or of the part of it that was asked for.

    Attributes:
        start: start of the first hour, UTC.
        hours: number of hours.
        card: place of the card of each card hour, int64, shape (card hours,).
        hour: hour of each card hour, 0 … hours-1, int64, shape (card hours,).
        grant: place of the grant of each row, int64, shape (rows,).
        columns: who held what of which card hour.
        split: whose part is how large.
        measures: the part of each row by what becomes of it (`analyzer.state.card_hours`), millionths of a card hour,
            int64, shape (rows,); they sum to its part by allocation.
        prices: distinct prices.
        price_of: place of each card's price among them, int64, shape (cards,).
        kwh: electricity of each card hour, shape (card hours,); NaN where unknown.
        kwh_is_measured: True where the card reported its power, shape (card hours,).
        requests: requests that each row's pod answered in the hour, on its first row of the hour, else 0; NaN where
            no server reports them; shape (rows,).
    """

    start: datetime
    hours: int
    card: NDArray[np.int64]
    hour: NDArray[np.int64]
    grant: NDArray[np.int64]
    columns: CardHours
    split: Split
    measures: Mapping[HourMeasure, NDArray[np.int64]]
    prices: tuple[CardPrice, ...]
    price_of: NDArray[np.int64]
    kwh: NDArray[np.float64]
    kwh_is_measured: NDArray[np.bool_]
    requests: NDArray[np.float64]


def charged_days(
    warehouse: Windows,
    who: Tenancies,
    book: PriceBook,
    *,
    cluster: str,
    since: datetime,
    until: datetime,
    settings: AnalyzerSettings,
) -> Iterator[ChargedDay]:
    """Every UTC day between two moments.

    Args:
        warehouse: where windows of an hour are kept.
        who: cards and grants.
        book: prices.
        cluster: cluster.
        since: start of the first hour, a whole hour, UTC.
        until: end of the last hour, a whole hour, UTC.
        settings: thresholds of idleness.

    Raises:
        Misconfigured: a price is in a currency that no rate converts.
    """
    days_at_once = max(1, SLICE_HOURS_AT_ONCE // (24 * max(1, len(who.grants))))
    is_idle = idle_grants(
        warehouse, who, cluster=cluster, since=since, until=until, days_at_once=days_at_once, settings=settings
    )
    start = since
    while start < until:
        stop = min(until, _midnight(start) + timedelta(days=days_at_once))
        usage = hourly_usage(warehouse, who, cluster=cluster, since=start, until=stop)
        read_from = start
        while start < stop:
            end = min(stop, _midnight(start) + timedelta(days=1))
            hours = [round((moment - read_from).total_seconds() / HOUR_SECONDS) for moment in (start, end)]
            first, last = (round((moment - since).total_seconds() / HOUR_SECONDS) for moment in (start, end))
            yield charged_day(
                usage.between(*hours),
                who,
                book,
                start=start,
                end=end,
                is_idle=is_idle[:, first:last],
                idle_held_bytes_min=settings.idle_held_bytes_min,
            )
            start = end


def charged_day(
    usage: HourlyUsage,
    who: Tenancies,
    book: PriceBook,
    *,
    start: datetime,
    end: datetime,
    is_idle: NDArray[np.bool_],
    idle_held_bytes_min: int,
) -> ChargedDay:
    """The card hours of one day.

    Args:
        usage: what was measured.
        who: cards and grants.
        book: prices.
        start: start of the first hour, UTC.
        end: end of the last hour, on the same UTC day.
        is_idle: hours in which each grant was idle, shape (grants, hours).
        idle_held_bytes_min: framebuffer beyond which an idle grant holds some.
    """
    start_ms = epoch_ms(start)
    hours = (epoch_ms(end) - start_ms) // HOUR_MS
    begins = start_ms + np.arange(hours, dtype=np.int64) * HOUR_MS
    # A card costs every hour in which it stood there at all, as rent and write-off do.
    stands = (who.card_start_ms[:, None] < begins + HOUR_MS) & (who.card_end_ms[:, None] > begins)
    card, hour = np.nonzero(stands)
    number = np.full(stands.shape, -1, np.int64)
    number[card, hour] = np.arange(len(card))

    grant, grant_hour, share = _granted_hours(who, start_ms, hours)
    place = number[who.card_of[grant], grant_hour]
    order = np.argsort(place, kind="stable")
    grant, grant_hour, share, place = grant[order], grant_hour[order], share[order], place[order]
    capacity = np.array([max(1, card.framebuffer_bytes) for card in who.cards], float)[who.card_of[grant]]
    columns = CardHours(
        count=len(card),
        card_hour=place,
        compute_granted=who.compute[grant] * share,
        framebuffer_granted=who.framebuffer[grant] * share,
        compute_used=np.clip(usage.compute[grant, grant_hour], 0.0, 1.0) * share,
        framebuffer_used=np.clip(usage.framebuffer_bytes[grant, grant_hour] / capacity, 0.0, 1.0) * share,
    )
    energy = card_energy(
        who.cards, usage.watts, _activity(usage, columns, stands, number), idle_watts_ratio=book.idle_watts_ratio
    )
    prices, price_of = _prices(who, book, start)
    split = split_card_hours(
        columns, compute_ratio=book.settings.compute_ratio, blended_use_ratio=book.settings.blended_use_ratio
    )
    return ChargedDay(
        start=start,
        hours=int(hours),
        card=card.astype(np.int64),
        hour=hour.astype(np.int64),
        grant=grant,
        columns=columns,
        split=split,
        measures=measured_parts(
            split.allocation.rows,
            split.use.rows,
            is_idle=is_idle[grant, grant_hour],
            is_held=usage.framebuffer_bytes[grant, grant_hour] > idle_held_bytes_min,
        ),
        prices=prices,
        price_of=price_of,
        kwh=energy.kwh[card, hour],
        kwh_is_measured=energy.is_measured[card, hour],
        requests=_requests(usage, slots_of(who), grant, grant_hour, share),
    )


def _midnight(moment: datetime) -> datetime:
    return moment.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


def _granted_hours(
    who: Tenancies, start_ms: int, hours: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Grant, hour, and share of the hour, for each hour that a grant's period touches."""
    end_ms = start_ms + hours * HOUR_MS
    alive = np.flatnonzero((who.start_ms < end_ms) & (who.end_ms > start_ms))
    first = np.maximum(0, (who.start_ms[alive] - start_ms) // HOUR_MS)
    last = np.minimum(hours - 1, (who.end_ms[alive] - 1 - start_ms) // HOUR_MS)
    length = last - first + 1
    grant = np.repeat(alive, length)
    offset = np.arange(len(grant)) - np.repeat(np.cumsum(length) - length, length)
    hour = np.repeat(first, length) + offset
    begin = start_ms + hour * HOUR_MS
    held = np.minimum(who.end_ms[grant], begin + HOUR_MS) - np.maximum(who.start_ms[grant], begin)
    return grant, hour, held / HOUR_MS


def _activity(
    usage: HourlyUsage, columns: CardHours, stands: NDArray[np.bool_], number: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Activity of each card and hour: as the card says, else what its tenants used; one unmeasured leaves it unknown.

    A card that nobody holds a slice of is at rest.
    """
    used = np.bincount(columns.card_hour, weights=columns.compute_used, minlength=columns.count)
    by_tenants = np.full(stands.shape, np.nan)
    by_tenants[stands] = used[number[stands]]
    return np.where(np.isnan(usage.activity), by_tenants, usage.activity)


def _requests(
    usage: HourlyUsage,
    slot: NDArray[np.int64],
    grant: NDArray[np.int64],
    hour: NDArray[np.int64],
    share: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Requests of each row; a pod of several cards reports one rate, so its first row of the hour alone carries it.

    A grant that changed in the hour has two rows of it: the pod lived as long as its slice that was held longest.
    """
    pod = usage.pod_of[grant]
    width = usage.request_rate.shape[1] + 1
    _, slot_hour = np.unique(slot[grant] * width + hour, return_inverse=True)
    held = np.bincount(slot_hour, weights=share)[slot_hour] if len(grant) else share
    pod_hours, first, pod_hour = np.unique(pod * width + hour, return_index=True, return_inverse=True)
    lived = np.zeros(len(pod_hours))
    np.maximum.at(lived, pod_hour, held)
    requests = usage.request_rate[pod, hour] * 3600.0 * lived[pod_hour]
    later = np.ones(len(grant), np.bool_)
    later[first] = False
    requests[later & ~np.isnan(requests)] = 0.0
    return requests


def _prices(who: Tenancies, book: PriceBook, start: datetime) -> tuple[tuple[CardPrice, ...], NDArray[np.int64]]:
    places: dict[CardPrice, int] = {}
    known: dict[tuple[str, str, str, bool | None], int] = {}
    of = np.empty(len(who.cards), np.int64)
    for number, card in enumerate(who.cards):
        key = (card.card_model, card.cluster, card.node, card.is_owned)
        if key not in known:
            price = book.price_of(card, day=start.astimezone(UTC).date())
            known[key] = places.setdefault(price, len(places))
        of[number] = known[key]
    return tuple(places), of


WATTS_PER_KILOWATT = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class CardEnergy:
    """Electricity of each card in each hour, at the card, without the data centre's overhead.

    Attributes:
        kwh: kilowatt hours, float64, shape (cards, hours); NaN where unknown.
        is_measured: True where the card reported its power, shape (cards, hours).
    """

    kwh: NDArray[np.float64]
    is_measured: NDArray[np.bool_]


def card_energy(
    cards: Sequence[Card],
    watts: NDArray[np.float64],
    activity: NDArray[np.float64],
    *,
    idle_watts_ratio: float | None,
) -> CardEnergy:
    """Electricity per card hour.

    Args:
        cards: the cards.
        watts: mean power, shape (cards, hours); NaN where not reported.
        activity: share of the card that was busy, 0-1, shape (cards, hours); NaN where unknown.
        idle_watts_ratio: resting power as a share of the power limit, for models without a measured one; None for
            unknown.
    """
    models = [find_model(card.card_model) for card in cards]
    idle = np.array([np.nan if (rest := idle_watts(m, idle_watts_ratio)) is None else rest for m in models], float)
    limit = np.array([np.nan if model is None else model.watts_max for model in models], float)
    estimate = idle[:, None] + (limit - idle)[:, None] * np.clip(activity, 0.0, 1.0)
    is_measured = ~np.isnan(watts)
    return CardEnergy(kwh=np.where(is_measured, watts, estimate) / WATTS_PER_KILOWATT, is_measured=is_measured)


CENT = Decimal("0.01")


def in_cents(amounts: Sequence[Decimal | None], *, quantum: Decimal = CENT) -> list[Decimal | None]:
    """Amounts in cents whose sum is their exact sum in cents, by the largest remainder.

    Args:
        amounts: exact amounts of 0 or more; None stays None and adds nothing.
        quantum: what to round to.
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
