"""`kubectl gputide top`: what pods or cards are granted, use and cost now."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from gputide.kubectl.answers import Order, cards_answer, pods_answer
from gputide.kubectl.options import EveryNamespaceOption, NamespaceOption
from gputide.kubectl.sessions import chosen_namespace, cluster_objects
from gputide.options import answering
from gputide.output import Answer
from gputide.session import Session

app = typer.Typer()


class What(StrEnum):
    """What is listed."""

    PODS = "pods"
    CARDS = "cards"


@app.command(epilog="Example: kubectl gputide top pods -n team-chat")
@answering
def top(
    session: Session,
    what: Annotated[What, typer.Argument(help="pods, or the cards of all nodes.")] = What.PODS,
    namespace: NamespaceOption = None,
    every: EveryNamespaceOption = False,
    sort: Annotated[Order, typer.Option(help="What comes first: what is not used, what costs most, names.")] = (
        Order.WASTE
    ),
) -> Answer:
    """Show what is granted, what was used of it over the last day, since when it is idle, and what it costs a day."""
    with cluster_objects(session) as objects:
        if what is What.CARDS:
            return cards_answer(objects.cards(), sort)
        where = chosen_namespace(session, namespace, every=every)
        return pods_answer(objects.pods(where), sort, namespace=where)
