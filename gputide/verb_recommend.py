"""`gputide recommend`: one consistent plan for the cluster, kept in the data folder."""

from __future__ import annotations

from typing import Annotated

import typer

from fleet.decisions import RecommendationKind
from fleet.documents import seal_plan
from gputide.answers import plan_answer
from gputide.data_folder import writing
from gputide.options import FormatOption, OutputOption, RiskOption
from gputide.outcome_shelf import StoredOutcomes
from gputide.output import Format, print_answer
from gputide.probe_shelf import measured_capability
from gputide.session import session_of
from gputide.wiring import keep_plan, load_interference, load_profiles, with_overrides
from recommender.past_outcomes import calibration_of
from recommender.planner import make_plan

app = typer.Typer()


@app.command(epilog="Example: gputide recommend --risk low --max-moves 200")
def recommend(
    context: typer.Context,
    risk: RiskOption = None,
    only: Annotated[RecommendationKind | None, typer.Option(help="Only this kind of advice.")] = None,
    max_moves: Annotated[int | None, typer.Option(min=0, help="Most pods that the plan may move.")] = None,
    namespace: Annotated[str | None, typer.Option(help="Only workloads of this namespace.")] = None,
    what_if: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Plan as if this setting were so; not kept.")
    ] = None,
    form: FormatOption = Format.TABLE,
    output: OutputOption = None,
) -> None:
    """Make a plan: what to reclaim, slice and put together, what that saves, what it may harm, and what was refused."""
    session = session_of(context)
    overrides = [*(what_if or []), *([f"risk.preset={risk}"] if risk is not None else [])]
    session = with_overrides(session, overrides)
    history, profiles = load_profiles(session)
    outcomes = StoredOutcomes(session.folder()).outcomes(history.inventory.cluster)
    with session.progress("planning") as _:
        plan = make_plan(
            history,
            profiles,
            settings=session.settings,
            capability=measured_capability(session.folder(), session.settings),
            now=session.now(),
            only=only,
            max_moves=max_moves,
            namespace=namespace,
            interference=load_interference(session.settings),
            calibration_ratio=calibration_of(outcomes),
        )
    plan = seal_plan(plan)
    if not what_if:
        folder = session.folder()
        with writing(folder):
            keep_plan(folder, session.settings, plan)
    print_answer(plan_answer(plan), form=form, target=output)
