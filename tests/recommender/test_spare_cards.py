"""Cards that pods of several hold and never work on: found, and refused wherever a doubt is left."""

from dataclasses import replace

import numpy as np
import pytest

from fleet.decisions import RecommendationKind
from fleet.schema import Measure
from fleet.units import GIB
from fleet.usage import History
from recommender.demand import demand_of
from recommender.permits import NOTHING_SPARE, SpareCards, spare_cards
from tests.english import english
from tests.recommender.builders import Service, cluster, plan_of

GREEDY = Service(name="greedy", replicas=2, level=0.9, used_gib=20.0, cards_per_pod=4, idle_cards=3)


def spare(history: History) -> SpareCards:
    demand = demand_of(history)
    return spare_cards(demand, range(len(demand.grants)), idle_ratio_max=0.01)


def test_every_pod_gives_back_as_many() -> None:
    found = spare(cluster(GREEDY))
    assert len(found.rows) == 6
    assert found.held_bytes == 0


def test_the_pod_that_works_on_most_cards_decides() -> None:
    history = cluster(GREEDY)
    demand = demand_of(history)
    other = next(row for row in spare(history).rows if demand.grants[row].pod.endswith("-1"))
    key = demand.grants[other]
    row = next(n for n, k in enumerate(history.slices.keys) if (k.pod, k.card) == (key.pod, key.card))
    history.slices.mean[Measure.SM_ACTIVE][row, 40:44] = 0.5
    assert len(spare(history).rows) == 4


@pytest.mark.parametrize(
    "service",
    [
        replace(GREEDY, idle_cards=0),
        replace(GREEDY, idle_cards=4),
        replace(GREEDY, cards_per_pod=1, idle_cards=1),
    ],
    ids=["works on all", "works on none", "has one"],
)
def test_nothing_is_spare(service: Service) -> None:
    assert spare(cluster(service)) == NOTHING_SPARE


def test_a_card_seen_too_seldom_is_not_idle() -> None:
    history = cluster(GREEDY)
    for row in spare(history).rows:
        grant = demand_of(history).grants[row]
        place = next(n for n, k in enumerate(history.slices.keys) if (k.pod, k.card) == (grant.pod, grant.card))
        for measure in (Measure.SM_ACTIVE, Measure.DUTY_CYCLE):
            history.slices.mean[measure][place, : history.slices.steps // 2] = np.nan
    assert spare(history) == NOTHING_SPARE


def test_a_card_that_holds_framebuffer_is_refused_with_the_setting() -> None:
    history = cluster(GREEDY)
    history.slices.peak[Measure.FRAMEBUFFER_USED][:] = 2.0 * GIB
    plan = plan_of(history)
    (refusal,) = [item for item in plan.refused if item.kind is RecommendationKind.FEWER_CARDS]
    assert refusal.reason == "framebuffer_held"
    assert "analyzer.idle_held_bytes_min" in english(refusal)
    assert plan.totals.cards_freed == 0


def test_the_pods_keep_the_cards_they_work_on() -> None:
    plan = plan_of(cluster(GREEDY, Service(name="full", level=0.9, used_gib=20.0)))
    kept = [part.pod for card in plan.placement for part in card.slices]
    assert sorted(kept) == ["full-0", "greedy-0", "greedy-1"]
    assert plan.totals.cards_freed == 6
    assert plan.totals.moves == 2
    (stage,) = plan.stages
    assert (stage.cards_freed, stage.moves) == (6, 2)


def test_moves_limit_it() -> None:
    plan = plan_of(cluster(GREEDY), moves_max=1)
    assert plan.totals.cards_freed == 0
    assert any(item.reason == "moves_max" for item in plan.refused)


def test_the_one_kind_asked_for_is_the_one_given() -> None:
    fleet = cluster(GREEDY, Service(name="small", replicas=4, level=0.1))
    plan = plan_of(fleet, only=RecommendationKind.FEWER_CARDS)
    assert {item.kind for item in plan.recommendations} == {RecommendationKind.FEWER_CARDS}
    assert plan.totals.cards_freed == 6
