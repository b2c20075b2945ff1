"""`gputide verify`: what an applied plan promised, held against what the days since then showed."""

from __future__ import annotations

from dataclasses import replace

import typer

from dashboards.words.bill import bill_words
from enforcer.record.outcome_store import keep_outcome
from enforcer.record.verdict import verdict_of
from fleet.data_folder import writing
from fleet.errors import EXIT_FINDINGS, EXIT_FINE
from fleet.words import Language
from gputide.answers.bill import bill_document
from gputide.answers.plan import outcome_answer
from gputide.answers.tiers import tiers_kept
from gputide.container.bill import bills_of
from gputide.container.cluster import holders_now
from gputide.container.measured_harm import verified
from gputide.container.plans import journal, newest_applied, plan_store
from gputide.container.tide import tide_journal
from gputide.options import AnyClusterOption, PlanOption, answering
from gputide.output import Answer
from gputide.session import Session

app = typer.Typer()


@app.command(epilog="Example: gputide verify --format json")
@answering
def verify(
    session: Session,
    plan: PlanOption = None,
    cluster: AnyClusterOption = None,
) -> Answer:
    """Say what was really saved and harmed; interim until `enforcer.verify_days` are over.

    Exit status 1 says that a service is over its harm budget (`guard.harm_ratio_max`), interim or final, or that what
    the plan counts on to hold low priority back is no longer there.
    """
    folder = session.folder()
    plans = plan_store(folder)
    chosen = plans.get(plan if plan is not None else newest_applied(journal(folder, cluster=cluster), plans))
    holders = holders_now(folder, session.settings, chosen.cluster, session.now())
    outcome = verified(folder, session.settings, chosen, session.now(), holders)
    with writing(folder):
        keep_outcome(folder, outcome)
    verdict = verdict_of(outcome)
    answer = outcome_answer(outcome, verdict, chosen.currency)
    # The bill is held against all plans, because a card that two of them free counts once.
    bill = [one for one in bills_of(session, chosen.cluster) if one.plan_id == chosen.plan_id]
    if bill:
        line = bill_words(bill, Language.EN)
        answer = replace(
            answer, headline=(*answer.headline, line), document={**answer.document, "bill": bill_document(bill[0])}
        )
    nights = tide_journal(folder).nights()
    if nights:
        answer = replace(answer, listings=(*answer.listings, tiers_kept(nights, session.settings.guarantees)))
    return replace(answer, status=EXIT_FINDINGS if verdict.needs_hands else EXIT_FINE)
