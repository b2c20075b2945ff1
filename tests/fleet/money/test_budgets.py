"""A budget is ok, will be exceeded, is exceeded, or can't be known."""

from datetime import UTC, datetime
from decimal import Decimal

import pytest

from fleet.money.budgets import BudgetState, MonthSpending, budget_status, month_of


@pytest.mark.parametrize(
    ("spent", "recent", "state", "forecast"),
    [
        ("40", "14", BudgetState.OK, "80"),
        ("40", "28", BudgetState.FORECAST_OVER, "120"),
        ("101", "0", BudgetState.OVER, "101"),
        ("100", "0", BudgetState.OK, "100"),
        (None, None, BudgetState.UNKNOWN, None),
    ],
)
def test_a_budget_goes_on_as_in_the_last_week(
    spent: str | None, recent: str | None, state: BudgetState, forecast: str | None
) -> None:
    found = budget_status("team", "t", Decimal(100), MonthSpending(
        spent=None if spent is None else Decimal(spent), recent=None if recent is None else Decimal(recent),
        recent_hours=168, hours_left=480, unpriced_card_hours=0.0,
    ))  # fmt: skip
    assert (found.state, found.forecast) == (state, None if forecast is None else Decimal(forecast))


def test_a_month_ends_where_the_next_begins_also_in_december() -> None:
    assert month_of(datetime(2026, 12, 31, 23, tzinfo=UTC)) == (
        datetime(2026, 12, 1, tzinfo=UTC),
        datetime(2027, 1, 1, tzinfo=UTC),
    )
