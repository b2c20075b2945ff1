"""`gputide plan cordon`: cards to keep new pods off so that whole nodes are freed."""

from __future__ import annotations

import typer

from fleet.documents import document
from gputide.container.history import load_inventory
from gputide.options import ClusterOption, answering
from gputide.output import Answer, Listing
from gputide.session import Session
from recommender.online.advice import cards_to_cordon, stranded_cards

app = typer.Typer()


@app.command(epilog="Example: gputide plan cordon --format json")
@answering
def cordon(session: Session, cluster: ClusterOption = None) -> Answer:
    """Show which cards to keep newcomers off so that whole nodes are freed, and free cards that nobody can use."""
    inventory = load_inventory(session, cluster)
    node_of = {card.card: card.node for card in inventory.cards}
    cordons, stranded = cards_to_cordon(inventory), stranded_cards(inventory)
    return Answer(
        document={"cordons": document(cordons), "stranded": document(stranded)},
        headline=(
            (
                f"{sum(item.cards_freed for item in cordons)} cards and {sum(item.frees_node for item in cordons)} "
                f"nodes would be freed, {sum(item.cards_stranded for item in stranded):.1f} free cards can't be used"
            ),
        ),
        listings=(
            Listing.of(
                "Cards to cordon",
                cordons,
                {
                    "node": lambda item: item.node,
                    "cards": lambda item: len(item.cards),
                    "freed": lambda item: "the node" if item.frees_node else "the cards",
                    "cards freed": lambda item: item.cards_freed,
                    "pods go to": lambda item: ", ".join(sorted({node_of[place.target] for place in item.relocations})),
                },
            ),
            Listing(
                title="Free cards without CPU or host memory",
                columns=("node", "card model", "cards free", "stranded", "missing"),
                rows=[
                    (item.node, item.card_model, f"{item.cards_free:.1f}", f"{item.cards_stranded:.1f}", item.missing)
                    for item in stranded
                ],
            ),
        ),
    )
