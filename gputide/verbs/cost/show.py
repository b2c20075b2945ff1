"""`gputide cost show`: cost by allocation, by use and blended, by its owners."""

from __future__ import annotations

from typing import Annotated

import typer

from fleet.money.charges import Owner
from fleet.money.unit_costs import unit_costs
from gputide.answers.cost import cost_answer
from gputide.container.cost import cost_period, period_unit_counts
from gputide.options import SinceOption, UntilOption, answering
from gputide.output import Answer
from gputide.session import Session

app = typer.Typer()


@app.command(epilog="Example: gputide cost show --by namespace --since 2026-01-05 --until 2026-01-12")
@answering
def show(
    session: Session,
    by: Annotated[Owner, typer.Option(help="Whom to sum by.")] = Owner.NAMESPACE,
    since: SinceOption = None,
    until: UntilOption = None,
) -> Answer:
    """Show cost by allocation, by use and blended, side by side; what is unallocated, stranded, idle and unused apart.

    By workload also what a million requests, tokens or other units cost, where somebody counts them.
    """
    period = cost_period(session, since, until)
    found = period.chargeback(by)
    units = unit_costs(found.rows, period_unit_counts(period)) if by is Owner.WORKLOAD else ()
    return cost_answer(found, session.settings, units)
