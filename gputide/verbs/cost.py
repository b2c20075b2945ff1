"""`gputide cost`: what the cards cost and whose cost it is; budgets; the FOCUS export."""

from __future__ import annotations

from typing import Annotated

import typer

from fleet.errors import EXIT_FINDINGS, Misconfigured, NotEnoughData
from fleet.money.budgets import BudgetState
from fleet.money.charges import Owner
from fleet.money.focus import Basis, ChargePeriod
from fleet.money.unit_costs import unit_costs
from fleet.units import format_time, parse_time
from gputide.budget_states import FIRST_HOUR, begin_of_month, budget_statuses
from gputide.cost_answers import budget_answer, cost_answer
from gputide.cost_export import ExportFormat, export_focus
from gputide.options import FormatOption, OutputOption
from gputide.output import Format, print_answer
from gputide.session import Session, session_of
from gputide.unit_counts import unit_counts
from gputide.wiring_cost import CostPeriod, cost_period

app = typer.Typer(
    no_args_is_help=True, help="What the cards cost, and whose cost it is. Example: gputide cost show --by team"
)

SinceOption = Annotated[
    str | None,
    typer.Option("--since", metavar="TIME", help="Start (ISO 8601, UTC); a week before the end unless given."),
]
UntilOption = Annotated[str | None, typer.Option("--until", metavar="TIME", help="End; now unless given.")]


@app.callback()
def _cost() -> None:
    """What the cards cost, and whose cost it is."""


@app.command("show", epilog="Example: gputide cost show --by namespace --since 2026-01-05 --until 2026-01-12")
def show(
    context: typer.Context,
    by: Annotated[Owner, typer.Option(help="Whom to sum by.")] = Owner.NAMESPACE,
    since: SinceOption = None,
    until: UntilOption = None,
    form: FormatOption = Format.TABLE,
    output: OutputOption = None,
) -> None:
    """Show cost by allocation, by use and blended, side by side; what is unallocated, stranded, idle and unused apart.

    By workload also what a million requests, tokens or other units cost, where somebody counts them.
    """
    session = session_of(context)
    period = _period(session, since, until)
    found = period.chargeback(by)
    units = (
        unit_costs(
            found.rows,
            unit_counts(
                session.settings.prices,
                cluster=period.cluster,
                since=period.known_since,
                until=period.until,
                way=session.settings.prometheus,
            ),
        )
        if by is Owner.WORKLOAD
        else ()
    )
    print_answer(cost_answer(found, session.settings, units), form=form, target=output)


@app.command("budgets", epilog="Example: gputide cost budgets --fail-over")
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
    begin = begin_of_month(now)
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


@app.command("export", epilog="Example: gputide cost export -o focus.parquet --since 2026-01-01 --until 2026-02-01")
def export(
    context: typer.Context,
    since: SinceOption = None,
    until: UntilOption = None,
    basis: Annotated[Basis, typer.Option(help="By what the cost of a shared card is split.")] = Basis.ALLOCATION,
    charge_period: Annotated[ChargePeriod, typer.Option(help="Length of a row: hour or day.")] = ChargePeriod.DAY,
    form: Annotated[
        ExportFormat, typer.Option("--format", "-f", help="focus (by the file's name), parquet or csv.")
    ] = ExportFormat.FOCUS,
    output: OutputOption = None,
) -> None:
    """Write every charge in the columns of FOCUS 1.3, as Parquet or CSV."""
    session = session_of(context)
    export_focus(session, _period(session, since, until), basis, charge_period, form, output)


def _period(session: Session, since: str | None, until: str | None) -> CostPeriod:
    return cost_period(
        session,
        None if since is None else parse_time(since),
        None if until is None else parse_time(until),
    )
