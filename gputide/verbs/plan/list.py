"""`gputide plan list`: every plan, with what was decided about it, newest first."""

from __future__ import annotations

import typer

from enforcer.record.journal import StageState
from fleet.documents import iso
from gputide.answers.plan import saving_text
from gputide.container.plans import copied_plans, journal
from gputide.options import AnyClusterOption, answering
from gputide.output import Answer, Listing
from gputide.session import Session

app = typer.Typer()


@app.command(epilog="Example: gputide plan list")
@answering
def list_plans(
    session: Session,
    cluster: AnyClusterOption = None,
) -> Answer:
    """List every plan, of all clusters unless one is named, with what was decided about it, newest first."""
    folder = session.folder()
    store, ledger = copied_plans(folder, session.settings), journal(folder)
    rows = []
    for plan in reversed(store.plans()):
        if cluster not in (None, plan.cluster):
            continue
        runs = ledger.runs(plan.plan_id)
        records = [record for run in runs for record in run.records.values()]
        applied = sorted({record.stage for record in records if record.state is StageState.PROMOTED})
        rows.append(
            (
                plan.plan_id,
                plan.cluster,
                iso(plan.created_at),
                iso(plan.expires_at),
                plan.risk.value,
                plan.totals.cards_freed,
                saving_text(plan.totals.saving_per_week, plan.currency),
                ", ".join(map(str, sorted(store.approved_stages(plan.plan_id)))),
                ", ".join(map(str, applied)),
            )
        )
    columns = (
        "plan",
        "cluster",
        "created",
        "expires",
        "risk",
        "cards freed",
        "per week",
        "approved stages",
        "applied stages",
    )
    return Answer(
        document=[dict(zip((name.replace(" ", "_") for name in columns), row, strict=True)) for row in rows],
        listings=(Listing(title="Plans", columns=columns, rows=rows),),
    )
