"""`gputide cost`: what the cards cost and whose cost it is; budgets; the FOCUS export."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Annotated

import typer

from dashboards.money.budgets import FORECAST_DAYS, BudgetState, BudgetStatus, budget_status, month_of
from dashboards.money.charges import Charge, ChargeSums, Owner
from dashboards.money.focus import Basis, ChargePeriod
from fleet.errors import EXIT_FINDINGS, Misconfigured, NotEnoughData
from fleet.units import format_time, parse_time
from gputide.cost_answers import budget_answer, cost_answer
from gputide.cost_export import ExportFormat, export_focus
from gputide.options import FormatOption, OutputOption
from gputide.output import Format, print_answer
from gputide.session import Session, session_of
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
    """Show cost by allocation, by use and blended, side by side; idle and stranded parts apart."""
    session = session_of(context)
    answer = cost_answer(_period(session, since, until).chargeback(by), session.settings)
    print_answer(answer, form=form, target=output)


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
    begin, _ = month_of(now)
    if now - begin < timedelta(hours=1):
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


def budget_statuses(period: CostPeriod) -> tuple[BudgetStatus, ...]:
    """How every budget stands at the end of a period that began with its month."""
    recent_since = max(period.since, (period.until - timedelta(days=FORECAST_DAYS)).replace(hour=0))
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
        kind, name = (Owner.TEAM, budget.team) if budget.team is not None else (Owner.NAMESPACE, budget.namespace)
        spent, lately = spent_by[kind].get(name or ""), recent_by[kind].get(name or "")
        found.append(
            budget_status(
                kind=kind.value,
                name=name or "",
                per_month=period.book.converted(budget.per_month, budget.currency, of=f"the budget of {name}"),
                spent=Decimal(0) if spent is None else spent.cost.allocation,
                recent=Decimal(0) if lately is None else lately.cost.allocation,
                recent_hours=round((period.until - recent_since).total_seconds() / 3600),
                hours_left=round((month_end - period.until).total_seconds() / 3600),
                unpriced_card_hours=0.0 if spent is None else spent.unpriced_card_hours,
            )
        )
    return tuple(found)


def _charges(sums: ChargeSums, period: CostPeriod) -> dict[str, Charge]:
    found = sums.chargeback(
        cluster=period.cluster, since=period.since, until=period.until, currency=period.book.currency
    )
    return {row.name: row for row in found.rows}


def _period(session: Session, since: str | None, until: str | None) -> CostPeriod:
    return cost_period(
        session,
        None if since is None else parse_time(since),
        None if until is None else parse_time(until),
    )
