"""`gputide cost bill`: the provider's bill, imported and held against applied plans."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dashboards.money.import_bill import SameRows
from fleet.data_folder import DataFolder
from fleet.errors import Misconfigured, NotEnoughData
from gputide.answers.bill import bills_answer, import_answer
from gputide.container.bill import bills_of, import_bill
from gputide.container.plans import plan_store
from gputide.container.warehouse import cluster_name
from gputide.options import ClusterOption, PlanOption, UntilOption, answering
from gputide.options import SinceOption as Since
from gputide.output import Answer
from gputide.session import Session

app = typer.Typer(no_args_is_help=True, help="The provider's bill. Example: gputide cost bill import focus.parquet")


@app.command("import", epilog="Example: gputide cost bill import 2026-01/*.csv.gz")
@answering
def import_(
    session: Session,
    files: Annotated[list[Path], typer.Argument(help="Files in FOCUS 1.0 to 1.2: CSV, CSV.gz or Parquet.")],
    map_file: Annotated[
        Path | None, typer.Option("--map", metavar="FILE", help="CSV with node,ResourceId for nodes without an id.")
    ] = None,
    same_rows: Annotated[
        SameRows, typer.Option("--same-rows", help="Rows that equal another in every column: refuse, drop or keep.")
    ] = SameRows.REFUSE,
) -> Answer:
    """Keep what a bill in FOCUS says of known nodes, in the place of what was imported of the same billing periods.

    Give all files of a billing period in one call.
    """
    found, names = import_bill(session, files, map_file, same_rows)
    return import_answer(found, names, same_rows)


@app.command("show", epilog="Example: gputide cost bill show --format json")
@answering
def show(
    session: Session,
    plan: PlanOption = None,
    since: Since = None,
    until: UntilOption = None,
    cluster: ClusterOption = None,
) -> Answer:
    """Show for applied plans what was promised, freed, gone and no longer billed; days without a bill are unknown."""
    folder = session.folder()
    if since is not None and until is not None and since >= until:
        raise Misconfigured(f"cannot show the bill from {since.isoformat()} to {until.isoformat()}: it ends first")
    name = cluster_name(folder, session.settings, cluster)
    bills = bills_of(session, name, since=since, until=until)
    if not bills:
        raise NotEnoughData(_nothing(folder))
    if plan is not None:
        chosen = plan_store(folder).get(plan).plan_id
        bills = tuple(bill for bill in bills if bill.plan_id == chosen)
        if not bills:
            raise NotEnoughData(f"cannot show the bill of plan {chosen}: it is not applied")
    return bills_answer(bills)


def _nothing(folder: DataFolder) -> str:
    if not folder.bill.exists():
        return "cannot show the bill: none was imported; `gputide cost bill import FILE`"
    return "cannot show the bill of plans: none is applied"
