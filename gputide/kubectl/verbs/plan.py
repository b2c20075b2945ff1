"""`kubectl gputide plan`: the plans of the cluster, or how the stages of one stand."""

from __future__ import annotations

from typing import Annotated

import typer

from gputide.kubectl.answers import plan_answer, plans_answer
from gputide.kubectl.sessions import cluster_objects
from gputide.options import answering
from gputide.output import Answer
from gputide.session import Session

app = typer.Typer()


@app.command(epilog="Example: kubectl gputide plan 7f3a")
@answering
def plan(
    session: Session,
    identifier: Annotated[str | None, typer.Argument(metavar="[ID]", help="A plan, by the start of its id.")] = None,
) -> Answer:
    """List plans, newest first; with an id show what each stage frees and how it stands."""
    with cluster_objects(session) as objects:
        return plans_answer(objects.plans()) if identifier is None else plan_answer(objects.plan(identifier))
