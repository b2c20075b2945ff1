"""`kubectl gputide why POD`: what is known of a pod's workload, and what the newest plan says of it."""

from __future__ import annotations

from typing import Annotated

import typer

from fleet.errors import Misconfigured
from gputide.kubectl.answers import advice_answer
from gputide.kubectl.options import NamespaceOption
from gputide.kubectl.sessions import chosen_namespace, cluster_objects
from gputide.options import answering
from gputide.output import Answer
from gputide.session import Session

app = typer.Typer()


@app.command(epilog="Example: kubectl gputide why ranker-0 -n team-search")
@answering
def why(
    session: Session,
    pod: Annotated[str, typer.Argument(metavar="POD", help="Name of a pod.")],
    namespace: NamespaceOption = None,
) -> Answer:
    """Say why a pod's workload is idle, oversized or busy, and why a plan changes it or leaves it alone."""
    where = chosen_namespace(session, namespace, every=False)
    if where is None or "/" in pod:
        raise Misconfigured(f"cannot use {pod[:253]!r}: name a pod, and its namespace with -n")
    with cluster_objects(session) as objects:
        return advice_answer(objects.advice(where, pod))
