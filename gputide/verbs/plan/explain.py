"""`gputide plan explain ID`: one recommendation in plain words, with its evidence and what would change its mind."""

from __future__ import annotations

from typing import Annotated

import typer

from dashboards.words.explain import explain as explain_recommendation
from fleet.documents import document
from fleet.words import Language, Words
from gputide.container.history import load_profiles
from gputide.container.plans import chosen_plan
from gputide.options import PlanOption, answering
from gputide.output import Answer, Listing
from gputide.session import Session

app = typer.Typer()


@app.command(epilog="Example: gputide plan explain slice-0007")
@answering
def explain(
    session: Session,
    identifier: Annotated[str, typer.Argument(metavar="ID", help="Recommendation, as `plan make` lists it.")],
    plan: PlanOption = None,
) -> Answer:
    """Say why a recommendation was made, on what evidence, and what would change it."""
    chosen = chosen_plan(session.folder(), plan)
    profiles = load_profiles(session, chosen.cluster)
    explanation = explain_recommendation(chosen, profiles, identifier, Words(language=Language.EN))
    return Answer(
        document=document(explanation),
        headline=(explanation.headline, *explanation.why, *explanation.change_of_mind),
        listings=(
            Listing(
                title="Evidence",
                columns=("figure", "value"),
                rows=[(name, f"{value:,.6g}") for name, value in explanation.evidence.numbers],
                caption=f"{explanation.evidence.samples:,} samples of {', '.join(explanation.evidence.counters)}",
            ),
        ),
    )
