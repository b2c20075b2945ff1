"""What if the cards were others: who fits there, and that nobody is lost on the way."""

from dataclasses import replace

import numpy as np
import pytest

from fleet.catalogue import CardModel, find_model
from fleet.errors import Misconfigured
from fleet.schema import Measure
from fleet.units import GIB
from fleet.usage import History
from recommender.demand import demand_of
from recommender.hypothetical_cards import (
    AddedCards,
    CardChange,
    Hypothesis,
    RemovedCards,
    RemovedNode,
    SwappedModel,
    on_other_cards,
)
from recommender.rehome import LOAD_MAX, slowdown_of
from tests.recommender.builders import A10, Service, cluster, plan_of


def model(name: str) -> CardModel:
    found = find_model(name)
    assert found is not None
    return found


def supposed(history: History, *changes: CardChange) -> Hypothesis:
    return on_other_cards(history, changes, headroom_ratio=0.1, video_ratio_max=0.01)


TO_L4 = SwappedModel(source=model("NVIDIA A10"), target=model("NVIDIA L4"))
TO_T4 = SwappedModel(source=model("NVIDIA A10"), target=model("Tesla T4"))


def test_a_swap_scales_compute_by_the_data_sheets() -> None:
    history = cluster(Service(name="web", level=0.2), spare_cards=1)
    found = supposed(history, TO_L4)
    slowdown = slowdown_of(TO_L4.source, TO_L4.target)
    assert slowdown is not None
    assert slowdown > 1
    np.testing.assert_allclose(
        demand_of(found.history).compute, demand_of(history).compute * np.float32(slowdown), rtol=1e-5
    )
    assert {card.card_model for card in found.cards} == {"NVIDIA L4"}
    assert {grant.card_model for grant in found.history.inventory.grants} == {"NVIDIA L4"}
    assert len(found.swapped) == 2
    assert plan_of(found.history).placement[0].card_model == "NVIDIA L4"


@pytest.mark.parametrize(
    ("service", "reason"),
    [
        (Service(name="web", level=LOAD_MAX), "compute"),
        (Service(name="web", level=0.1, server="vllm"), "preallocation_hides_need"),
        (
            Service(
                name="web",
                level=0.1,
                server="tgi",
                pool_gib=12.0,
                used_gib=21.6,
                cache_ratio=0.1,
                changes={"kv_cache_pool_max_bytes": 15 * 2**30},
            ),
            "pool_estimated",
        ),
        (Service(name="web", level=0.1, mig_profile="1g.10gb"), "mig"),
        (Service(name="web", level=0.1, used_gib=23.0), "framebuffer"),
    ],
)
def test_who_does_not_fit_keeps_its_card_and_is_told_why(service: Service, reason: str) -> None:
    found = supposed(cluster(service, Service(name="small", level=0.1)), TO_L4)
    assert [(item.workload, item.reason) for item in found.refused] == [("team/Deployment/web", reason)]
    models = {grant.workload: grant.card_model for grant in found.history.inventory.grants}
    assert models == {"web": A10, "small": "NVIDIA L4"}


def test_who_shares_a_card_with_one_that_does_not_fit_keeps_it_too() -> None:
    history = cluster(Service(name="web", level=0.6), Service(name="small", level=0.1))
    first, second = history.inventory.grants
    beside = tuple(replace(grant, card=first.card, node=first.node) for grant in (first, second))
    keys = tuple(replace(key, card=first.card, node=first.node) for key in history.slices.keys)
    shared = replace(
        history,
        inventory=replace(history.inventory, grants=beside),
        slices=replace(history.slices, keys=keys),
    )
    found = supposed(shared, TO_L4)
    assert {item.workload for item in found.refused} == {"team/Deployment/small", "team/Deployment/web"}
    assert first.card not in found.swapped


def test_whoever_uses_video_engines_keeps_the_card_that_has_them() -> None:
    history = cluster(Service(name="coder", level=0.1))
    mean = {**history.slices.mean, Measure.ENCODER: np.full((1, history.slices.steps), 0.3, np.float32)}
    coding = replace(history, slices=replace(history.slices, mean=mean, peak=mean))
    assert [item.reason for item in supposed(coding, TO_L4).refused] == ["video_engines"]


def test_a_server_that_takes_its_share_takes_it_of_the_other_card() -> None:
    history = cluster(Service(name="llm", level=0.1, server="vllm", pool_gib=16.0, used_gib=21.6))
    mean = {**history.slices.mean, Measure.KV_CACHE_USAGE: np.full((1, history.slices.steps), 0.25, np.float32)}
    known = replace(history, slices=replace(history.slices, mean=mean, peak=mean))
    big = SwappedModel(source=model("NVIDIA A10"), target=model("NVIDIA L40S"))
    found = supposed(known, big)
    (grant,) = found.history.inventory.grants
    assert grant.framebuffer_bytes == grant.framebuffer_granted_bytes == 48 * GIB
    used = found.history.slices.mean[Measure.FRAMEBUFFER_USED][0]
    assert used.max() == pytest.approx(0.9 * 48 * GIB, rel=1e-3)
    before, after = demand_of(known).need_bytes[0], demand_of(found.history).need_bytes[0]
    np.testing.assert_allclose(after, before, rtol=1e-3)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (TO_T4, "it is older"),
        (SwappedModel(source=model("NVIDIA A10"), target=model("NVIDIA A10")), "the same model"),
        (SwappedModel(source=model("Tesla T4"), target=model("NVIDIA A10")), "the cluster has none"),
        (RemovedCards(model=model("NVIDIA A10"), count=4), "take away 4 cards of NVIDIA A10: the cluster has 3"),
    ],
)
def test_what_cannot_be_supposed_is_told(change: CardChange, why: str) -> None:
    with pytest.raises(Misconfigured, match=why):
        supposed(cluster(Service(name="web", replicas=2), spare_cards=1), change)


def test_cards_nobody_holds_are_taken_away_first_and_no_pod_is_lost() -> None:
    history = cluster(Service(name="web", replicas=3), spare_cards=2)
    spare = {card.card for card in history.inventory.cards} - {grant.card for grant in history.inventory.grants}
    found = supposed(history, RemovedCards(model=model("NVIDIA A10"), count=2))
    assert found.gone == spare
    more = supposed(history, RemovedCards(model=model("NVIDIA A10"), count=4))
    assert len(more.gone) == 4
    assert len(more.cards) == 1
    assert more.history.inventory.grants == history.inventory.grants
    placed = {item.pod_id for card in plan_of(more.history).placement for item in card.slices}
    assert placed == {grant.pod_id for grant in history.inventory.grants}


def test_a_node_goes_with_its_cards() -> None:
    history = cluster(Service(name="web", replicas=6))
    found = supposed(history, RemovedNode(node="node-0"))
    assert {card.node for card in found.cards} == {"node-1"}


def test_added_cards_stand_free_on_nodes_of_their_own() -> None:
    history = cluster(Service(name="web"))
    change = AddedCards(model=model("NVIDIA H100 80GB HBM3"), count=20)
    found = supposed(history, change, change)
    assert len(found.added) == 40
    assert len({card.card for card in found.cards}) == 41
    nodes = {card.node for card in found.cards if card.card in found.added}
    assert len(nodes) == 6
    assert nodes <= {node.node for node in found.history.inventory.nodes}
    assert not found.added & {grant.card for grant in found.history.inventory.grants}
