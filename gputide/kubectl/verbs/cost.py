"""`kubectl gputide cost`: what namespaces cost over the last seven days."""

from __future__ import annotations

import typer

from gputide.kubectl.answers import costs_answer
from gputide.kubectl.options import EveryNamespaceOption, NamespaceOption
from gputide.kubectl.sessions import chosen_namespace, cluster_objects
from gputide.options import answering
from gputide.output import Answer
from gputide.session import Session

app = typer.Typer()


@app.command(epilog="Example: kubectl gputide cost -A")
@answering
def cost(session: Session, namespace: NamespaceOption = None, every: EveryNamespaceOption = False) -> Answer:
    """Show card hours and cost by namespace, and how much of it was not used."""
    with cluster_objects(session) as objects:
        return costs_answer(objects.costs(chosen_namespace(session, namespace, every=every)))
