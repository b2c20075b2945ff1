"""How the budgets of this month stand: charged days of the month and of its last week, summed by team and namespace.

Called by `gputide cost budgets`, by messages about budgets and by the tenants page.
"""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

from dashboards.money.charged_days import CostPeriod
from fleet.money.budgets import FORECAST_DAYS, BudgetStatus, MonthSpending, budget_status, month_of
from fleet.money.charges import Charge, ChargeSums, Owner

FIRST_HOUR = timedelta(hours=1)
"""Nothing of a month is charged before its first hour is over."""


def budget_statuses(period: CostPeriod) -> tuple[BudgetStatus, ...]:
    """How every budget stands at the end of a period that began with its month."""
    recent_since = max(period.since, (period.until - timedelta(days=FORECAST_DAYS)).replace(hour=0))
    recent_hours = round((period.until - max(recent_since, period.known_since)).total_seconds() / 3600)
    labels = period.settings.prices.team_labels
    kinds = (Owner.TEAM, Owner.NAMESPACE)
    month, recent = ({kind: ChargeSums(period.who, kind, labels) for kind in kinds} for _ in range(2))
    for day in period.days():
        for kind in kinds:
            month[kind].add(day)
            if day.start >= recent_since:
                recent[kind].add(day)
    spent_by = {kind: _charges(month[kind], period) for kind in kinds}
    recent_by = {kind: _charges(recent[kind], period) for kind in kinds}
    _, month_end = month_of(period.since)
    found = []
    for budget in period.settings.prices.budgets:
        if budget.cluster not in (None, period.cluster):
            continue
        kind, name = (Owner.TEAM, budget.team) if budget.team is not None else (Owner.NAMESPACE, budget.namespace)
        spent, lately = spent_by[kind].get(name or ""), recent_by[kind].get(name or "")
        found.append(
            budget_status(
                kind.value,
                name or "",
                period.book.converted(budget.per_month, budget.currency, of=f"the budget of {name}"),
                MonthSpending(
                    spent=Decimal(0) if spent is None else spent.cost.allocation,
                    recent=Decimal(0) if lately is None else lately.cost.allocation,
                    recent_hours=recent_hours,
                    hours_left=round((month_end - period.until).total_seconds() / 3600),
                    unpriced_card_hours=0.0 if spent is None else spent.unpriced_card_hours,
                ),
            )
        )
    return tuple(found)


def _charges(sums: ChargeSums, period: CostPeriod) -> dict[str, Charge]:
    return {row.name: row for row in sums.chargeback(period.billed).rows}
