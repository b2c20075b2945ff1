"""`gputide cost budgets`: this month's budgets."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from dashboards.money.budgets import FIRST_HOUR, budget_statuses
from fleet.errors import EXIT_FINDINGS, EXIT_FINE, Misconfigured, NotEnoughData
from fleet.money.budgets import BudgetState, month_of
from fleet.units import format_time
from gputide.answers.cost import budget_answer
from gputide.container.cost import cost_period
from gputide.options import answering
from gputide.output import Answer
from gputide.session import Session

app = typer.Typer()


@app.command(epilog="Example: gputide cost budgets --fail-over")
@answering
def budgets(
    session: Session,
    fail_over: Annotated[
        bool, typer.Option("--fail-over", help="End with status 1 where a budget is or will be exceeded.")
    ] = False,
) -> Answer:
    """Show this month's budgets: spent, forecast, and whether that is too much."""
    if not session.settings.prices.budgets:
        raise Misconfigured(
            "cannot show budgets: there is none; add a [[budget]] with team or namespace and per_month (docs/money.md)"
        )
    now = session.now()
    begin, _ = month_of(now)
    if now - begin < FIRST_HOUR:
        raise NotEnoughData(
            f"cannot tell how the budgets of {begin:%Y-%m} stand: its first hour is not over (now is "
            f"{format_time(now)}), and the hour in progress is not charged"
        )
    period = cost_period(session, begin, None)
    statuses = budget_statuses(period)
    answer = budget_answer(statuses, period.book.currency, f"{begin:%Y-%m}")
    is_over = any(item.state in (BudgetState.OVER, BudgetState.FORECAST_OVER) for item in statuses)
    return replace(answer, status=EXIT_FINDINGS if fail_over and is_over else EXIT_FINE)
