"""Prices by the price book as it is now, budgets, quotas, card hours and unit costs of a cluster.

The book is read again when its file changes. Budgets and unit costs are summed from charged days, which takes seconds
for a large fleet: a web app gets the last answer while a thread sums the next one, at most once an hour, because whole
hours are charged. Before the first answer it gets `NotMadeYet`. Verbs wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

from dashboards.money.budgets import FIRST_HOUR, budget_statuses
from dashboards.money.charged_days import CostPeriod
from dashboards.stored.last_answers import LastAnswers, Patience
from fleet.data_folder import DataFolder
from fleet.errors import NotEnoughData
from fleet.inventory import Node, Quota
from fleet.money.budgets import BudgetStatus, month_of
from fleet.money.charges import Owner
from fleet.money.cost_days import CostDays
from fleet.money.prices import PriceBook, Prices
from fleet.money.unit_costs import UnitCost, UnitCount, unit_costs
from fleet.money.week_hours import WeekHours, week_hours
from fleet.settings.price_book import book_path, with_price_book
from fleet.settings.settings import Settings

_WEEK = timedelta(days=7)
_SUMS = Patience(
    what="costs", not_yet="cannot show what cluster {cluster} costs yet: its hours are being charged", first_seconds=0.2
)
_MONTH, _QUARTER = timedelta(days=28), timedelta(days=91)
_WEEK_HOURS = replace(_SUMS, first_seconds=20.0)
"""The fleet page waits for its card hours as long as for the first analysis."""
_COST_DAYS = replace(
    _SUMS, first_seconds=2.0, rest_ratio=4.0
)  # charging a long time takes a fifth of a processor at most


class StoredMoney:
    """`Money` over a data folder.

    Args:
        settings: all settings, without what the price book adds.
        period: what a cluster is charged by the settings given, from a moment until now.
        unit_counts: requests and tokens that were counted in a period.
        quotas: quotas of a cluster, as the inventory has them.
        nodes: nodes of a cluster, the same object while nothing changed.
        is_patient: True to wait for sums.
    """

    def __init__(
        self,
        folder: DataFolder,
        settings: Settings,
        now: Callable[[], datetime],
        *,
        period: Callable[[Settings, str, datetime], CostPeriod],
        unit_counts: Callable[[CostPeriod], tuple[UnitCount, ...]],
        quotas: Callable[[str], tuple[Quota, ...]],
        nodes: Callable[[str], tuple[Node, ...]],
        is_patient: bool = False,
    ) -> None:
        self._folder = folder
        self._settings = settings
        self._now = now
        self._period = period
        self._unit_counts = unit_counts
        self._quotas = quotas
        self._nodes = nodes
        self._lock = threading.Lock()
        self._prices: dict[str, tuple[object, tuple[Node, ...], Prices]] = {}
        self._budgets = LastAnswers(self._made_budgets, _SUMS, is_patient=is_patient)
        self._unit_costs = LastAnswers(self._made_unit_costs, _SUMS, is_patient=is_patient)
        self._weeks = LastAnswers(self._made_week, _WEEK_HOURS, is_patient=is_patient)
        self._months = LastAnswers(self._made_month, _COST_DAYS, is_patient=is_patient)
        self._quarters = LastAnswers(self._made_quarter, _COST_DAYS, is_patient=is_patient)

    @property
    def currency(self) -> str:
        """ISO 4217 code of every amount."""
        return self._settings.prices.currency

    def prices(self, cluster: str) -> Prices:
        """What the cards of a cluster cost now, by the price book as it is now."""
        version, nodes = self._version(), self._nodes(cluster)
        with self._lock:
            kept = self._prices.get(cluster)
            if kept is None or kept[0] != version or kept[1] is not nodes:
                prices = PriceBook(self._priced(), nodes).at(self._now())
                kept = self._prices[cluster] = version, nodes, prices
            return kept[2]

    def budgets(self, cluster: str) -> tuple[BudgetStatus, ...]:
        """How this month's budgets stand."""
        if not self._priced().prices.budgets:
            return ()
        return self._budgets.of(cluster, self._version())

    def quotas(self, cluster: str) -> tuple[Quota, ...]:
        """Quotas and queues that stand."""
        return self._quotas(cluster)

    def week(self, cluster: str) -> WeekHours | None:
        """Card hours of the last seven days; None where no card was known then."""
        return self._weeks.of(cluster, self._version())

    def cost_days(self, cluster: str, *, is_quarter: bool) -> CostDays | None:
        """Card hours by day and holder of the last 28 days, or of the last 91; None where no card was known then."""
        return (self._quarters if is_quarter else self._months).of(cluster, self._version())

    def unit_costs(self, cluster: str) -> tuple[UnitCost, ...]:
        """Cost of a request or token over the last week."""
        return self._unit_costs.of(cluster, self._version())

    def _made_budgets(self, cluster: str) -> tuple[BudgetStatus, ...]:
        begin, _ = month_of(self._now())
        if self._now() - begin < FIRST_HOUR:
            return ()
        try:
            return budget_statuses(self._period(self._priced(), cluster, begin))
        except NotEnoughData:
            return ()

    def _made_week(self, cluster: str) -> WeekHours | None:
        try:
            period = self._period(self._priced(), cluster, self._now() - _WEEK)
        except NotEnoughData:
            return None
        return week_hours(period.chargeback(Owner.NAMESPACE), known_since=period.known_since)

    def _made_month(self, cluster: str) -> CostDays | None:
        return self._made_days(cluster, _MONTH)

    def _made_quarter(self, cluster: str) -> CostDays | None:
        return self._made_days(cluster, _QUARTER)

    def _made_days(self, cluster: str, span: timedelta) -> CostDays | None:
        try:
            return self._period(self._priced(), cluster, self._now() - span).cost_days()
        except NotEnoughData:
            return None

    def _made_unit_costs(self, cluster: str) -> tuple[UnitCost, ...]:
        try:
            period = self._period(self._priced(), cluster, self._now() - _WEEK)
        except NotEnoughData:
            return ()
        return unit_costs(period.chargeback(Owner.WORKLOAD).rows, self._unit_counts(period))

    def _priced(self) -> Settings:
        """The settings with the price book as it is now."""
        return with_price_book(self._settings, self._folder.path)

    def _version(self) -> object:
        """Changes with the price book's file, and every hour: a price may begin or end, and hours are charged."""
        now = self._now()
        path = book_path(self._settings, self._folder.path)
        try:
            stat = path.stat()
        except OSError:
            return now.date(), now.hour, None
        return now.date(), now.hour, (stat.st_mtime_ns, stat.st_size)
