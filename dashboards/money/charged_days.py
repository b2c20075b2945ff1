"""Card hours of a period, day by day, with their split, price and electricity: chargeback and export sum them.

Days are made one at a time, so that a month of a large fleet fits memory; of a small fleet several are read together.
Called by `gputide cost`, budgets, report and pages.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from analyzer.state.card_hours import measured_parts, window_hours
from dashboards.money.hourly_usage import HOUR_MS, HOUR_SECONDS, HourlyUsage, hourly_usage, idle_grants
from fleet.errors import Misconfigured, NotEnoughData
from fleet.inventory import Inventory
from fleet.money.charged_day import ChargedDay, ServedUnit
from fleet.money.charges import BillingPeriod, Chargeback, Owner, chargeback
from fleet.money.cost_days import CostDays, cost_days
from fleet.money.energy import card_energy
from fleet.money.focus import Basis, ChargePeriod, FocusContext
from fleet.money.prices import CardPrice, PriceBook
from fleet.money.split import CardHours, split_card_hours
from fleet.money.tenancies import Tenancies, lives_of, slots_of, tenancies
from fleet.settings.settings import AnalyzerSettings, Settings
from fleet.units import epoch_ms, format_time
from pipeline.warehouse.parquet_reads import ParquetReads

DAYS_DEFAULT = 7
"""Length of a period that names no start."""
_DAYS_MAX = 400
SLICE_HOURS_AT_ONCE = 200_000
"""Hours of slices that are read from the warehouse together: a question costs as much as a day of a small fleet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostPeriod:
    """A period of one cluster, ready to be charged.

    Attributes:
        inventory: cards, nodes and grants known when the last idle window that reaches into it is over.
    """

    cluster: str
    since: datetime
    until: datetime
    inventory: Inventory
    who: Tenancies
    book: PriceBook
    settings: Settings
    source: ParquetReads

    @property
    def known_since(self) -> datetime:
        """When the first card was seen, where that is within the period, else its start, UTC.

        Nothing is charged before that, so means and counts begin then as well.
        """
        first = datetime.fromtimestamp(float(self.who.card_start_ms.min()) / 1000, UTC)
        return max(self.since, first)

    @property
    def billed(self) -> BillingPeriod:
        """The period, as a bill names it."""
        return BillingPeriod(cluster=self.cluster, since=self.since, until=self.until, currency=self.book.currency)

    def days(self) -> Iterator[ChargedDay]:
        """Its days."""
        return charged_days(
            self.source,
            self.who,
            self.book,
            cluster=self.cluster,
            since=self.since,
            until=self.until,
            settings=self.settings.analyzer,
        )

    def chargeback(self, by: Owner) -> Chargeback:
        """Its cost by owner."""
        return chargeback(self.days(), self.who, self.billed, by=by, team_labels=self.settings.prices.team_labels)

    def cost_days(self) -> CostDays:
        """Its card hours by day and holder, from the midnight of the day in which the first card was seen."""
        start = max(self.since, _midnight(self.known_since))
        return cost_days(
            replace(self, since=start).days(), self.who, self.billed, team_labels=self.settings.prices.team_labels
        )

    def focus_context(self, basis: Basis, period: ChargePeriod, advice: dict[str, str]) -> FocusContext:
        """What an export needs beside the days."""
        return FocusContext(
            who=self.who,
            nodes={node.node: node for node in self.inventory.nodes},
            cluster=self.cluster,
            currency=self.book.currency,
            team_labels=self.settings.prices.team_labels,
            basis=basis,
            period=period,
            advice=advice,
        )


def period_of(
    source: ParquetReads,
    settings: Settings,
    cluster: str,
    since: datetime | None,
    until: datetime | None,
    now: datetime,
) -> CostPeriod:
    """A period in whole hours; the hour in progress is not charged.

    Args:
        since: start, UTC; None for a week before the end.

    Raises:
        Misconfigured: the start is not before the end, or too long before it.
        NotEnoughData: the cluster had no card in that time.
    """
    end = _whole_hour(min(now, until) if until is not None else now)
    start = _whole_hour(since) if since is not None else end - timedelta(days=DAYS_DEFAULT)
    if start >= end:
        raise Misconfigured(
            f"cannot show cost from {format_time(start)} to {format_time(end)}: --since must be a whole hour or more "
            f"before --until and before now ({format_time(now)})"
        )
    if end - start > timedelta(days=_DAYS_MAX):
        raise Misconfigured(f"cannot show cost of {(end - start).days} days: at most {_DAYS_MAX}; name a later --since")
    # An idle window may end after the last hour that is charged: grants are known as far as it reaches.
    horizon = min(_whole_hour(now), end + timedelta(hours=window_hours(settings.analyzer) - 1))
    inventory = source.inventory(cluster, as_of=horizon, time_zone=settings.cluster.time_zone)
    lives = lives_of(source.card_lives(cluster, as_of=horizon), until=horizon)
    who = tenancies(inventory, lives, until=horizon)
    if not _stands_any(who, start, end):
        raise NotEnoughData(
            f"cannot show cost of cluster {cluster!r}: no card is known from {format_time(start)} to {format_time(end)}"
        )
    return CostPeriod(
        cluster=cluster,
        since=start,
        until=end,
        inventory=inventory,
        who=who,
        book=PriceBook(settings, inventory.nodes),
        settings=settings,
        source=source,
    )


def charged_days(
    warehouse: ParquetReads,
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
        served=_served(usage, slots_of(who), grant, grant_hour, share),
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


def _served(
    usage: HourlyUsage,
    slot: NDArray[np.int64],
    grant: NDArray[np.int64],
    hour: NDArray[np.int64],
    share: NDArray[np.float64],
) -> dict[ServedUnit, NDArray[np.float64]]:
    """What each row served; a pod of several cards reports one rate, so its first row of the hour alone carries it.

    A grant that changed in the hour has two rows of it: the pod lived as long as its slice that was held longest.
    """
    pod = usage.pod_of[grant]
    width = usage.compute.shape[1] + 1
    _, slot_hour = np.unique(slot[grant] * width + hour, return_inverse=True)
    held = np.bincount(slot_hour, weights=share)[slot_hour] if len(grant) else share
    pod_hours, first, pod_hour = np.unique(pod * width + hour, return_index=True, return_inverse=True)
    lived = np.zeros(len(pod_hours))
    np.maximum.at(lived, pod_hour, held)
    is_first = np.zeros(len(grant), np.bool_)
    is_first[first] = True
    # Unknown times nothing stays unknown.
    seconds = np.where(is_first, 3600.0 * lived[pod_hour], 0.0)
    return {unit: rate[pod, hour] * seconds for unit, rate in usage.served.items()}


def _prices(who: Tenancies, book: PriceBook, start: datetime) -> tuple[tuple[CardPrice, ...], NDArray[np.int64]]:
    """Distinct prices of a day and the place of each card's among them: rules hold from a UTC day to a UTC day."""
    places: dict[CardPrice, int] = {}
    of = [places.setdefault(book.price_of(card, start), len(places)) for card in who.cards]
    return tuple(places), np.array(of, np.int64)


def _stands_any(who: Tenancies, since: datetime, until: datetime) -> bool:
    start_ms, end_ms = since.timestamp() * 1000, until.timestamp() * 1000
    return bool(((who.card_start_ms < end_ms) & (who.card_end_ms > start_ms)).any())


def _whole_hour(moment: datetime) -> datetime:
    return moment.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
