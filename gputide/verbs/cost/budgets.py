"""`gputide cost budgets`: this month's budgets."""

from __future__ import annotations

from typing import Annotated

import typer

from dashboards.money.budgets import FIRST_HOUR, budget_statuses
from fleet.errors import EXIT_FINDINGS, Misconfigured, NotEnoughData
from fleet.money.budgets import BudgetState, month_of
from fleet.units import format_time
from gputide.answers.cost import budget_answer
from gputide.container.cost import cost_period
from gputide.options import FormatOption, OutputOption
from gputide.output import Format, print_answer
from gputide.session import session_of

app = typer.Typer()


@app.command(epilog="Example: gputide cost budgets --fail-over")
def budgets(
    context: typer.Context,
    fail_over: Annotated[
        bool, typer.Option("--fail-over", help="End with status 1 where a budget is or will be exceeded.")
    ] = False,
    form: FormatOption = Format.TABLE,
    output: OutputOption = None,
) -> None:
    """Show this month's budgets: spent, forecast, and whether that is too much."""
    session = session_of(context)
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
    print_answer(budget_answer(statuses, period.book.currency, f"{begin:%Y-%m}"), form=form, target=output)
    if fail_over and any(item.state in (BudgetState.OVER, BudgetState.FORECAST_OVER) for item in statuses):
        raise typer.Exit(EXIT_FINDINGS)
