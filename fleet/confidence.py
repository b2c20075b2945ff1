"""How sure advice must be before it is proposed for approval, and how sure a stage of a plan is.

The recommender sets risk levels by it, the pages choose stages by it, and `plan approve` names those that are below it.
"""

from __future__ import annotations

from collections import defaultdict

from fleet.decisions import Plan, Stage
from fleet.inventory import WorkloadId

CONFIDENT_MIN = 0.8
"""Confidence from which advice is of low risk and its stage is chosen beforehand: it holds in four of five cases. Below
it somebody should look at the evidence first."""
LIKELY_MIN = 0.5
"""Confidence below which advice is of high risk: it fails more often than it holds, or rests on less than a day."""


def stage_confidence(plan: Plan, stage: Stage) -> float:
    """How sure a stage is, 0-1; 1 where the plan shows none of its recommendations.

    A stage that gives cards back is as sure as its least sure recommendation: who needs them again finds them gone, and
    no watch restores them. Other stages have the mean by pods: they are watched pod by pod, and one weak recommendation
    among fifty, which the stage's risk shows, makes the other forty-nine no less sure.
    """
    chosen = set(stage.recommendations)
    items = [item for item in plan.recommendations if item.id in chosen]
    if any(item.kind.ends_pods for item in items):
        return min(item.confidence for item in items)
    pods = sum(len(item.pods) for item in items)
    return round(sum(item.confidence * len(item.pods) for item in items) / pods, 4) if pods else 1.0


def confident_stages(plan: Plan) -> tuple[int, ...]:
    """Stages that may be chosen without a look at their evidence.

    Those of the tide are none of them: it needs a yes of its own. The others have a confidence of `CONFIDENT_MIN` or
    more, and rest on no earlier stage that has not: none of their workloads is changed by it, or has a card after the
    plan together with one that is.
    """
    workloads_of = {item.id: item.workloads for item in plan.recommendations}
    cards_of: dict[WorkloadId, set[int]] = defaultdict(set)
    for number, card in enumerate(plan.placement):
        for part in card.slices:
            cards_of[part.workload].add(number)
    chosen: list[int] = []
    left: set[WorkloadId] = set()
    left_cards: set[int] = set()
    tides = plan.tide_stages
    for stage in plan.stages:
        if stage.stage in tides:
            continue
        names = {name for item in stage.recommendations for name in workloads_of.get(item, ())}
        cards = {card for name in names for card in cards_of[name]}
        is_apart = left.isdisjoint(names) and left_cards.isdisjoint(cards)
        if is_apart and stage_confidence(plan, stage) >= CONFIDENT_MIN:
            chosen.append(stage.stage)
        else:
            left |= names
            left_cards |= cards
    return tuple(chosen)
