"""`gputide verify`: what an applied plan promised, held against what the days since then showed."""

from __future__ import annotations

import typer

from enforcer.record.outcome_store import keep_outcome
from enforcer.record.verdict import verdict_of
from fleet.data_folder import writing
from fleet.errors import EXIT_FINDINGS
from gputide.answers.plan import outcome_answer
from gputide.container.measured_harm import verified
from gputide.container.plans import journal, newest_applied, plan_store
from gputide.options import AnyClusterOption, FormatOption, OutputOption, PlanOption
from gputide.output import Format, print_answer
from gputide.session import session_of

app = typer.Typer()


@app.command(epilog="Example: gputide verify --format json")
def verify(
    context: typer.Context,
    plan: PlanOption = None,
    cluster: AnyClusterOption = None,
    form: FormatOption = Format.TABLE,
    output: OutputOption = None,
) -> None:
    """Say what was really saved and harmed; interim until `enforcer.verify_days` are over.

    Exit status 1 says that a service is over its harm budget (`guard.harm_ratio_max`), interim or final.
    """
    session = session_of(context)
    folder = session.folder()
    chosen = plan_store(folder).get(plan if plan is not None else newest_applied(journal(folder, cluster=cluster)))
    outcome = verified(folder, session.settings, chosen, session.now())
    with writing(folder):
        keep_outcome(folder, outcome)
    verdict = verdict_of(outcome)
    print_answer(outcome_answer(outcome, verdict, chosen.currency), form=form, target=output)
    if verdict.is_harmed:
        raise typer.Exit(EXIT_FINDINGS)
