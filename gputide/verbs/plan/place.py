"""`gputide plan place`: the best node for a new pod."""

from __future__ import annotations

from typing import Annotated

import typer

from fleet.documents import document
from fleet.inventory import CardModelName
from fleet.units import parse_bytes
from gputide.container.history import load_inventory
from gputide.options import ClusterOption, answering
from gputide.output import Answer, Listing
from gputide.session import Session
from recommender.online.advice import nodes_for
from recommender.online.placement import PlacementWeights

app = typer.Typer()


@app.command(epilog="Example: gputide plan place --card-ratio 0.5 --cpu-cores 4 --memory 16GiB")
@answering
def place(
    session: Session,
    cards: Annotated[int, typer.Option(min=1, help="Cards that the pod asks for.")] = 1,
    card_ratio: Annotated[float, typer.Option(min=0.001, max=1.0, help="Share of each of them.")] = 1.0,
    card_model: Annotated[str | None, typer.Option(help="Card model that it needs; any unless given.")] = None,
    cpu_cores: Annotated[float, typer.Option(min=0.0, help="CPU cores that it asks for.")] = 0.0,
    memory: Annotated[str, typer.Option(help="Host memory that it asks for, such as 16GiB.")] = "0",
    cluster: ClusterOption = None,
) -> Answer:
    """Show which node a new pod should go to, so that what stays free is of most use; changes nothing."""
    offers = nodes_for(
        load_inventory(session, cluster),
        card_model=None if card_model is None else CardModelName(card_model),
        cards=cards,
        card_ratio=card_ratio,
        cpu_cores=cpu_cores,
        memory_bytes=parse_bytes(memory),
        weights=PlacementWeights(power=session.settings.recommender.placement_watt_milli),
    )
    return Answer(
        document={"offers": document(offers)},
        headline=(f"{len(offers)} nodes could take it" if offers else "no node has room for it",),
        listings=(
            Listing(
                title="Nodes, best first",
                columns=("node", "costs cards"),
                rows=[(offer.node, f"{offer.cost_cards:.3f}") for offer in offers],
            ),
        ),
    )
