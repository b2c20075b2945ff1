"""Puts what a chargeback needs together over the data folder: cards and grants, prices, and hours of the warehouse."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from dashboards.money.charged_days import charged_days
from fleet.errors import Misconfigured, NotEnoughData
from fleet.inventory import Inventory
from fleet.money.book import PriceBook
from fleet.money.charged_day import ChargedDay
from fleet.money.charges import BillingPeriod, Chargeback, Owner, chargeback
from fleet.money.focus import Basis, ChargePeriod, FocusContext
from fleet.money.tenancies import Tenancies, lives_of, tenancies
from fleet.settings.settings import Settings
from fleet.units import format_time
from gputide.container.plans import plan_store
from gputide.container.warehouse import cluster_name, warehouse
from gputide.session import Session
from pipeline.warehouse.parquet_reads import ParquetReads

DAYS_DEFAULT = 7
"""Days that cost is shown of unless a start is named."""
_DAYS_MAX = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class CostPeriod:
    """A period of one cluster, ready to be charged.

    Attributes:
        cluster: cluster.
        since: start, a whole hour, UTC.
        until: end, a whole hour, UTC.
        inventory: cards, nodes and grants known at its end.
        who: the same as columns.
        book: prices.
        settings: all settings.
        source: the warehouse.
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

        Before that nothing of its cost is known: a mean or a count of that time would not be of the same hours.
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


def cost_period(
    session: Session, since: datetime | None, until: datetime | None, *, cluster: str | None = None
) -> CostPeriod:
    """The period that was asked for, in whole hours: what is not over yet is not charged.

    Args:
        session: the session.
        since: start, UTC; None for a week before the end.
        until: end, UTC; None for now.
        cluster: whose; None for the one that the settings mean.

    Raises:
        Misconfigured: the start is not before the end, or too long before it.
        NotEnoughData: no card stood there in that time.
    """
    folder, settings, now = session.folder(), session.settings, session.now()
    end = _whole_hour(min(now, until) if until is not None else now)
    start = _whole_hour(since) if since is not None else end - timedelta(days=DAYS_DEFAULT)
    if start >= end:
        raise Misconfigured(
            f"cannot show cost from {format_time(start)} to {format_time(end)}: --since must be a whole hour or more "
            f"before --until and before now ({format_time(now)})"
        )
    if end - start > timedelta(days=_DAYS_MAX):
        raise Misconfigured(f"cannot show cost of {(end - start).days} days: at most {_DAYS_MAX}; name a later --since")
    cluster = cluster_name(folder, settings, cluster)
    source = warehouse(folder, settings)
    inventory = source.inventory(cluster, as_of=end, time_zone=settings.cluster.time_zone)
    lives = lives_of(source.card_lives(cluster, as_of=end), until=end)
    who = tenancies(inventory, lives, until=end)
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


def newest_advice(session: Session, cluster: str) -> dict[str, str]:
    """Id of a cluster's newest plan's first recommendation for each workload; empty where there is no plan."""
    plan = plan_store(session.folder()).newest(cluster)
    found: dict[str, str] = {}
    for item in plan.recommendations if plan is not None else ():
        for workload in item.workloads:
            found.setdefault(workload, item.id)
    return found


def _stands_any(who: Tenancies, since: datetime, until: datetime) -> bool:
    start_ms, end_ms = since.timestamp() * 1000, until.timestamp() * 1000
    return bool(((who.card_start_ms < end_ms) & (who.card_end_ms > start_ms)).any())


def _whole_hour(moment: datetime) -> datetime:
    return moment.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
