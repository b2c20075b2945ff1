"""`gputide plan list`: every plan, with what was decided about it, newest first."""

from __future__ import annotations

import typer

from enforcer.record.journal import StageState
from fleet.decisions import Plan
from fleet.documents import iso
from gputide.answers.plan import saving_text
from gputide.container.plans import copied_plans, journal
from gputide.options import AnyClusterOption, answering
from gputide.output import Answer, Listing
from gputide.session import Session

app = typer.Typer()


@app.command(epilog="Example: gputide plan list")
@answering
def list_plans(session: Session, cluster: AnyClusterOption = None) -> Answer:
    """List every plan, of all clusters unless one is named, with what was decided about it, newest first."""
    folder = session.folder()
    store, ledger = copied_plans(folder, session.settings), journal(folder)

    def applied(plan: Plan) -> set[int]:
        records = [record for run in ledger.runs(plan.plan_id) for record in run.records.values()]
        return {record.stage for record in records if record.state is StageState.PROMOTED}

    plans = [plan for plan in reversed(store.plans()) if cluster in (None, plan.cluster)]
    listing = Listing.of(
        "Plans",
        plans,
        {
            "plan": lambda plan: plan.short_id,
            "cluster": lambda plan: plan.cluster,
            "created": lambda plan: iso(plan.created_at),
            "expires": lambda plan: iso(plan.expires_at),
            "risk": lambda plan: plan.risk.value,
            "cards freed": lambda plan: plan.totals.cards_freed,
            "per week": lambda plan: saving_text(plan.totals.saving_per_week, plan.currency),
            "approved stages": lambda plan: ", ".join(map(str, sorted(store.approved_stages(plan.plan_id)))),
            "applied stages": lambda plan: ", ".join(map(str, sorted(applied(plan)))),
        },
    )
    records = [{**row, "plan": plan.plan_id} for row, plan in zip(listing.records(), plans, strict=True)]
    return Answer(document=records, listings=(listing,))
