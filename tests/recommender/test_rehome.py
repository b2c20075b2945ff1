"""Cheaper cards: who fits on them, and who is left where he is."""

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from fleet.decisions import Plan, RecommendationKind
from fleet.inventory import Card, CardId, CardModelName, Node
from fleet.units import GIB
from fleet.usage import History
from tests.recommender.builders import ANY_CONFIDENCE, Service, cluster, plan_of

A100 = CardModelName("NVIDIA A100-SXM4-80GB")
L4 = CardModelName("NVIDIA L4")
T4 = CardModelName("Tesla T4")
PRICES: dict[str, Any] = {"prices": {"overrides": {"A100-SXM4-80GB": 3, "L4": 1, "T4": Decimal("0.5")}}}


def on_a100(*services: Service, free: Sequence[tuple[CardModelName, float]] = ((L4, 24.0),)) -> History:
    """The services on A100s, and free cards of other models (model, framebuffer in GiB)."""
    big: dict[str, Any] = {"card_model": A100, "framebuffer_bytes": 80 * GIB, "framebuffer_granted_bytes": 80 * GIB}
    history = cluster(*(replace(service, changes={**service.changes, **big}) for service in services))
    spare = [
        Card(
            card=CardId(f"GPU-free-{number}"),
            card_model=model,
            framebuffer_bytes=int(gib * GIB),
            node=f"cheap-{number}",
            cluster="c",
        )
        for number, (model, gib) in enumerate(free)
    ]
    held = tuple(replace(card, card_model=A100, framebuffer_bytes=80 * GIB) for card in history.inventory.cards)
    return replace(history, inventory=replace(history.inventory, cards=(*spare, *held)))


def rehomed(history: History, **options: Any) -> Plan:
    return plan_of(history, only=RecommendationKind.REHOME, settings=PRICES, **options)


SMALL = Service(name="small", level=0.08)
PREALLOCATED = replace(SMALL, server="tgi", pool_gib=4.0, used_gib=9.0, cache_ratio=0.1)


def test_a_small_service_moves_to_a_cheaper_free_card() -> None:
    plan = rehomed(on_a100(SMALL))
    (advice,) = plan.recommendations
    assert advice.kind is RecommendationKind.REHOME
    assert advice.saving_per_week.amortised == Decimal("336.00")  # (3 - 1) × 168 h
    (card,) = plan.placement
    assert (card.card_model, card.node) == (L4, "cheap-0")
    assert card.slices[0].framebuffer_bytes == 24 * GIB
    # One card is given back and another taken: no card is saved, money is.
    assert plan.totals.cards_freed == 0
    assert plan.totals.cards_after == plan.totals.cards_before == 1
    assert plan.totals.saving_per_week.amortised == Decimal("336.00")
    assert plan.totals.moves == 1


@pytest.mark.parametrize(
    ("service", "free", "why"),
    [
        (replace(SMALL, level=0.3), ((L4, 24.0),), "too slow"),
        (replace(SMALL, used_gib=23.0), ((L4, 24.0),), "too small with its headroom"),
        (SMALL, ((T4, 16.0),), "older"),
        (SMALL, ((CardModelName("Somebody's card"), 80.0),), "unknown"),
        (replace(SMALL, replicas=2), ((L4, 24.0),), "one card for two replicas"),
        (replace(SMALL, labels=(("gputide.io/latency-critical", "true"),)), ((L4, 24.0),), "latency-critical"),
        (replace(SMALL, kind="Job"), ((L4, 24.0),), "a job loses its work"),
        (replace(SMALL, mig_profile="1g.10gb"), ((L4, 24.0),), "MIG"),
        (replace(PREALLOCATED, changes={"kv_cache_pool_max_bytes": 8 * GIB}), ((L4, 24.0),), "an estimated cache"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_who_does_not_fit_stays(service: Service, free: Sequence[tuple[CardModelName, float]], why: str) -> None:
    plan = rehomed(on_a100(service, free=free))
    assert plan.recommendations == (), why
    assert {card.card_model for card in plan.placement} == {A100}


def test_a_server_whose_cache_is_known_moves() -> None:
    assert len(rehomed(on_a100(PREALLOCATED)).recommendations) == 1


def test_whoever_saves_most_goes_first() -> None:
    plan = rehomed(on_a100(SMALL, Service(name="pair", level=0.05, replicas=2), free=((L4, 24.0), (L4, 24.0))))
    assert [item.workloads[0].rpartition("/")[2] for item in plan.recommendations] == ["pair"]


def priced(*rules: dict[str, Any]) -> dict[str, Any]:
    """The same prices behind rules for some of the cards."""
    filled = [{"source": "invoice", "date": "2026-01", **rule} for rule in rules]
    return {"prices": {**PRICES["prices"], "rules": filled}}


@pytest.mark.parametrize(
    ("rule", "saving"),
    [
        ({"node": "cheap-0", "per_card_hour": "3.5"}, None),
        ({"node": "cheap-0", "per_card_hour": "0.25"}, Decimal("462.00")),
        ({"card_model": "A100-SXM4-80GB", "cluster": "c", "per_card_hour": "0.9"}, None),
        ({"card_model": "A100-SXM4-80GB", "cluster": "another", "per_card_hour": "0.9"}, Decimal("336.00")),
        ({"node": "cheap-0", "per_card_hour": "3.5", "until": "2026-01-01"}, Decimal("336.00")),
        ({"card_model": "L4", "node_labels": {"pool": "spot"}, "per_card_hour": "3.5"}, Decimal("336.00")),
        ({"card_model": "L4", "node_labels": {"pool": "reserved"}, "per_card_hour": "3.5"}, None),
    ],
)
def test_cards_are_compared_at_their_own_price_of_now(rule: dict[str, Any], saving: Decimal | None) -> None:
    history = on_a100(SMALL)
    names = {card.node for card in history.inventory.cards}
    nodes = tuple(Node(node=name, cluster="c", labels=(("pool", "reserved"),)) for name in sorted(names))
    history = replace(history, inventory=replace(history.inventory, nodes=nodes))
    plan = plan_of(history, only=RecommendationKind.REHOME, settings=priced(rule))
    assert [item.saving_per_week.amortised for item in plan.recommendations] == ([] if saving is None else [saving])


def test_of_two_cards_of_one_model_the_cheaper_is_taken() -> None:
    rule = {"node": "cheap-1", "per_card_hour": "0.5"}
    history = on_a100(SMALL, free=((L4, 24.0), (L4, 24.0)))
    plan = plan_of(history, only=RecommendationKind.REHOME, settings=priced(rule))
    assert [card.node for card in plan.placement] == ["cheap-1"]
    assert plan.totals.saving_per_week.amortised == Decimal("420.00")


def test_no_pod_of_a_workload_moves_to_a_card_that_costs_more_than_its_own() -> None:
    pair = Service(name="pair", level=0.05, replicas=2)
    history = on_a100(pair, free=((L4, 24.0), (L4, 24.0)))
    node = history.inventory.grants[0].node
    dear = priced({"node": "cheap-1", "per_card_hour": "2"}, {"node": node, "per_card_hour": "1.5"})
    moved = plan_of(history, only=RecommendationKind.REHOME, settings=dear).recommendations
    # Cards of both pods stand in one node: neither costs more than the second free card.
    assert moved == ()


def test_moves_limit_it() -> None:
    assert rehomed(on_a100(SMALL), moves_max=0).recommendations == ()


def beside(fleet: History, service: Service) -> History:
    """The fleet, and one pod of a service on an L4 of its own."""
    l4: dict[str, Any] = {"card": CardId("GPU-l4"), "card_model": L4, "node": "cheap"}
    sizes: dict[str, Any] = {"framebuffer_bytes": 24 * GIB, "framebuffer_granted_bytes": 24 * GIB}
    other = cluster(service)
    (grant,), (key,) = other.inventory.grants, other.slices.keys
    grants = sorted((*fleet.inventory.grants, replace(grant, **l4, **sizes)), key=lambda each: (each.pod_id, each.card))
    card = Card(**l4, framebuffer_bytes=24 * GIB, cluster="c")
    mean, peak = (
        {measure: np.concatenate([ours[measure], theirs[measure]]) for measure in ours}
        for ours, theirs in ((fleet.slices.mean, other.slices.mean), (fleet.slices.peak, other.slices.peak))
    )
    return replace(
        fleet,
        inventory=replace(fleet.inventory, cards=(*fleet.inventory.cards, card), grants=tuple(grants)),
        slices=replace(fleet.slices, keys=(*fleet.slices.keys, replace(key, **l4)), mean=mean, peak=peak),
    )


def test_a_card_that_the_plan_frees_may_be_taken() -> None:
    fleet = beside(on_a100(SMALL, free=()), Service(name="idle-book", kind="Notebook", level=0.0, server="jupyter"))
    plan = plan_of(fleet, settings={**PRICES, **ANY_CONFIDENCE})
    kinds = {item.kind: item for item in plan.recommendations}
    assert set(kinds) == {RecommendationKind.RECLAIM, RecommendationKind.REHOME}
    assert kinds[RecommendationKind.RECLAIM].cards_freed == 0
    assert kinds[RecommendationKind.REHOME].cards_freed == 1
    assert plan.totals.cards_freed == 1
    assert [(card.card, card.card_model) for card in plan.placement] == [("GPU-l4", L4)]
    assert plan.totals.saving_per_week.amortised == Decimal("504.00")
