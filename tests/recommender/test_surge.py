"""Services change cards without a gap: each goes to a card that is free then, and leaves its own to the next."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from fleet.decisions import Plan, RecommendationKind
from fleet.inventory import LATENCY_CRITICAL_LABEL
from fleet.usage import History
from tests.recommender.builders import ANY_CONFIDENCE, Service, cluster, plan_of

SINGLES = tuple(Service(name=f"s{number}", level=0.1, used_gib=3.0) for number in range(6))
IDLE = Service(name="idle", kind="Notebook", level=0.0)


def careful(history: History, **settings: Any) -> Plan:
    """The plan of a history where nobody said yes to a gap."""
    return plan_of(history, settings={"guard": {"gaps_allowed": False}, **settings})


def sources(history: History) -> dict[str, str]:
    return {grant.pod_id: str(grant.card) for grant in history.inventory.grants}


def gapless(history: History, plan: Plan, spared: str = "") -> bool:
    """Whether every pod finds room in its seat while its workload's pods still run, workload by workload, by stages.

    Pods whose names begin with `spared` may leave their card before.
    """
    size = {card.card: card.framebuffer_bytes for card in plan.placement}
    target = {part.pod_id: (str(card.card), part) for card in plan.placement for part in card.slices}
    held: dict[str, Counter[str]] = {}
    for grant in history.inventory.grants:
        held.setdefault(str(grant.card), Counter())[grant.pod_id] = grant.framebuffer_granted_bytes
    before = sources(history)
    done: set[str] = set()
    named = {item.id: item for item in plan.recommendations}
    for stage in plan.stages:
        items = [named[name] for name in stage.recommendations]
        for item in items:
            if item.kind is RecommendationKind.RECLAIM:
                for pod in item.pods:
                    held[before[pod]].pop(pod)
        left = {pod for item in items for pod in item.pods if item.kind is not RecommendationKind.RECLAIM} - done
        while left:
            able = None
            for pod in sorted(left):
                card, part = target[pod]
                there = held.get(card, Counter())
                used = sum(there.values()) - (there[pod] if spared and pod.startswith(spared) else 0)
                if used + part.framebuffer_bytes <= size[card]:  # type: ignore[index]
                    able = pod
                    break
            if able is None:
                return False
            card, part = target[able]
            held[before[able]].pop(able)
            held.setdefault(card, Counter())[able] = part.framebuffer_bytes
            left.discard(able)
            done.add(able)
    return True


def test_with_one_free_card_every_service_changes_cards_without_a_gap() -> None:
    history = cluster(*SINGLES, spare_cards=1)
    plan = careful(history)
    assert plan.totals.cards_freed == plan_of(cluster(*SINGLES)).totals.cards_freed > 0
    assert plan.totals.surge_cards == 1
    assert not [item for item in plan.refused if item.reason == "no_surge_card"]
    assert gapless(history, plan)
    assert sum(stage.cards_freed for stage in plan.stages) == plan.totals.cards_freed


def test_without_a_free_card_nothing_is_staged_and_the_card_that_would_help_is_named() -> None:
    plan = careful(cluster(*SINGLES))
    assert plan.stages == ()
    assert (plan.totals.cards_freed, plan.totals.surge_cards) == (0, 0)
    stuck = [item for item in plan.refused if item.reason == "no_surge_card"]
    assert len(stuck) == len(SINGLES)
    assert dict(stuck[0].values)["card_model"] == "NVIDIA A10"
    assert plan_of(cluster(*SINGLES)).totals.cards_freed > 0, "somebody who says yes to gaps gets the whole plan"


def test_nothing_moves_where_no_card_is_freed_beyond_the_spares() -> None:
    history = cluster(*SINGLES[:2], spare_cards=1)
    assert careful(history).totals.moves == 2
    plan = careful(history, plan={"spare_card_ratio": 1.0})
    assert (plan.recommendations, plan.totals.spare_cards, plan.totals.moves) == ((), 0, 0)


def test_card_of_an_idle_workload_is_given_back_first_and_is_the_first_target() -> None:
    history = cluster(*SINGLES, IDLE)
    plan = careful(history, **ANY_CONFIDENCE)
    assert plan.totals.surge_cards == 0
    assert plan.totals.cards_freed == plan_of(history, settings=ANY_CONFIDENCE).totals.cards_freed > 1
    assert gapless(history, plan)


@pytest.mark.parametrize("replicas", [2, 3, 5])
def test_replicas_follow_each_other_over_one_free_card(replicas: int) -> None:
    services = [Service(name=name, replicas=replicas, level=0.1, used_gib=3.0) for name in "ab"]
    history = cluster(*services, spare_cards=1)
    plan = careful(history)
    assert plan.totals.cards_freed > 0
    assert plan.totals.surge_cards == 1
    assert gapless(history, plan)


def test_lone_pod_of_a_stateful_set_and_a_latency_critical_one_stay_without_an_explicit_yes() -> None:
    calm = [Service(name=f"s{number}", level=0.1, used_gib=3.0, kind="StatefulSet") for number in range(2)]
    critical = Service(
        name="fast", replicas=2, level=0.1, used_gib=3.0, kind="StatefulSet", labels=((LATENCY_CRITICAL_LABEL, "true"),)
    )
    web = Service(name="web", replicas=2, level=0.1, used_gib=3.0)
    plan = careful(cluster(*calm, critical, web, spare_cards=2))
    reasons = {
        str(item.workload).rpartition("/")[2]: item.reason for item in plan.refused if item.reason == "gap_needs_yes"
    }
    assert set(reasons) == {"s0", "s1", "fast"}
    moved = {str(name) for item in plan.recommendations for name in item.workloads}
    assert moved <= {"team/Deployment/web"}


def test_pods_that_share_a_card_already_as_they_should_stay_there() -> None:
    history = cluster(*SINGLES, spare_cards=1)
    plan = careful(history)
    seat = {part.pod_id: (card, part) for card in plan.placement for part in card.slices}
    grants = tuple(
        replace(
            grant, card=seat[grant.pod_id][0].card, node=seat[grant.pod_id][0].node or grant.node,
            framebuffer_granted_bytes=seat[grant.pod_id][1].framebuffer_bytes,
        )
        for grant in history.inventory.grants
    )  # fmt: skip
    keys = tuple(
        replace(
            key, card=seat[f"{key.namespace}/{key.pod}"][0].card, node=seat[f"{key.namespace}/{key.pod}"][0].node or ""
        )
        for key in history.slices.keys
    )
    after = replace(
        history, inventory=replace(history.inventory, grants=grants), slices=replace(history.slices, keys=keys)
    )
    again = careful(after)
    assert {part.pod_id: str(card.card) for card in again.placement for part in card.slices} == {
        pod: str(card.card) for pod, (card, _) in seat.items()
    }
    assert again.totals.surge_cards == 0


def test_where_no_card_is_free_a_service_of_four_begins_and_leaves_cards_to_the_others() -> None:
    four = Service(name="four", replicas=4, level=0.1, used_gib=3.0)
    history = cluster(*SINGLES, four)
    plan = careful(history)
    assert plan.totals.cards_freed == plan_of(history).totals.cards_freed > 0
    assert not [item for item in plan.refused if item.reason == "no_surge_card"]
    assert gapless(history, plan, spared="team/four")
    assert not gapless(history, plan)
    critical = replace(four, labels=((LATENCY_CRITICAL_LABEL, "true"),))
    assert careful(cluster(*SINGLES, critical)).totals.cards_freed == 0
    assert careful(cluster(*SINGLES, replace(four, replicas=3))).totals.cards_freed == 0
