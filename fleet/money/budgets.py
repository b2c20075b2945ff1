"""Budgets of a calendar month: what was spent, what the month will come to, and whether that is too much.

The forecast goes on at the mean of the last seven days of the month, and of what today has had so far. Called by
`gputide cost budgets`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import StrEnum

FORECAST_DAYS = 7
"""Days whose mean the forecast goes on with."""


class BudgetState(StrEnum):
    """How a budget stands."""

    OK = "ok"
    FORECAST_OVER = "forecast_over"
    OVER = "over"
    UNKNOWN = "unknown"
    """Nothing of it has a price."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetStatus:
    """A budget and how it stands.

    Attributes:
        kind: `team` or `namespace`.
        per_month: budget, in the currency of the prices.
        spent: by allocation since the month began; None where nothing has a price.
        forecast: what the whole month comes to; None where it can't be known.
        unpriced_card_hours: card hours that are in neither, as they have no price: both are then too low.
    """

    kind: str
    name: str
    per_month: Decimal
    spent: Decimal | None
    forecast: Decimal | None
    unpriced_card_hours: float
    state: BudgetState


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthSpending:
    """What the cards of a team or namespace have cost in a month that is not over.

    Attributes:
        spent: cost since the month began; None where nothing has a price.
        recent: cost of the last hours, at whose mean the forecast goes on; None where nothing has a price.
        recent_hours: how many hours those are.
        unpriced_card_hours: card hours of the month so far without a price.
    """

    spent: Decimal | None
    recent: Decimal | None
    recent_hours: int
    hours_left: int
    unpriced_card_hours: float

    @property
    def forecast(self) -> Decimal | None:
        """What the whole month comes to; None where it can't be known."""
        if self.spent is None or self.recent is None or self.recent_hours <= 0:
            return None
        return self.spent + self.recent / self.recent_hours * self.hours_left


def month_of(moment: datetime) -> tuple[datetime, datetime]:
    """Start and end of the calendar month (UTC) that a moment lies in."""
    start = moment.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return start, start.replace(year=start.year + start.month // 12, month=start.month % 12 + 1)


def budget_status(kind: str, name: str, per_month: Decimal, spending: MonthSpending) -> BudgetStatus:
    """How the budget of a team or namespace stands, in the currency of the prices."""
    spent, forecast = spending.spent, spending.forecast
    return BudgetStatus(
        kind=kind,
        name=name,
        per_month=per_month,
        spent=spent,
        forecast=forecast,
        unpriced_card_hours=spending.unpriced_card_hours,
        state=_state(per_month, spent, forecast),
    )


def _state(per_month: Decimal, spent: Decimal | None, forecast: Decimal | None) -> BudgetState:
    if spent is None:
        return BudgetState.UNKNOWN
    if spent > per_month:
        return BudgetState.OVER
    return BudgetState.FORECAST_OVER if forecast is not None and forecast > per_month else BudgetState.OK
