"""Clusters of cards that MIG cuts, for the recommender's tests."""

from dataclasses import replace
from typing import Any

from fleet.capabilities.register import MIG
from fleet.decisions import Plan
from fleet.inventory import CardId, CardModelName, WorkloadId
from fleet.units import GIB
from fleet.usage import History
from tests.recommender.builders import Service, cluster, plan_of

A100 = CardModelName("NVIDIA A100-SXM4-80GB")


def on_a100(*services: Service, spare_cards: int = 0, **options: Any) -> History:
    """The services, every pod with an A100 of 80 GiB of its own unless its `changes` say otherwise."""
    big: dict[str, Any] = {"card_model": A100, "framebuffer_bytes": 80 * GIB, "framebuffer_granted_bytes": 80 * GIB}
    history = cluster(
        *(replace(service, changes={**big, **service.changes}) for service in services),
        spare_cards=spare_cards,
        **options,
    )
    cards = tuple(replace(card, card_model=A100, framebuffer_bytes=80 * GIB) for card in history.inventory.cards)
    return replace(history, inventory=replace(history.inventory, cards=cards))


def holder(name: str, profile: str, card: int, **options: Any) -> Service:
    """A service of one pod with an instance on a card by its number, four cards to a node."""
    sizes = {"1g.10gb": 9.5, "2g.20gb": 19.5, "3g.40gb": 39.25, "7g.80gb": 79.0}
    shares = {"1g.10gb": 14 / 108, "2g.20gb": 28 / 108, "3g.40gb": 42 / 108, "7g.80gb": 98 / 108}
    return Service(
        name=name,
        mig_profile=profile,
        changes={
            "card": CardId(f"GPU-{card:04d}"),
            "node": f"node-{card // 4}",
            "framebuffer_granted_bytes": int(sizes.get(profile, 1.0) * GIB),
            "compute_granted_ratio": shares.get(profile, 1.0),
        },
        **options,
    )


def mig_plan(history: History, **options: Any) -> Plan:
    """The plan of a cluster whose backend is the mig-manager."""
    return plan_of(history, **{"capability": MIG, **options})


def placed(plan: Plan) -> dict[str, tuple[str, str | None]]:
    """Card and profile of every pod."""
    return {part.pod: (str(card.card), part.mig_profile) for card in plan.placement for part in card.slices}


def reasons_of(plan: Plan, name: str) -> set[str]:
    """Why a service of namespace `team` gets no instance."""
    return {item.reason for item in plan.refused if item.workload == WorkloadId(f"team/Deployment/{name}")}
