"""Recommendations and stages: every kind of advice writes its part, in an order that is safe to stop at.

Each kind drafts stages of its own, or parts of the batches in which workloads move; after each stage the granted
framebuffer fits every card. Called by `planner`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fleet.decisions import Recommendation, Stage
from fleet.sentences import Sentence
from recommender.advice.register import ADVICE
from recommender.batches import batches_of
from recommender.scene import Draft, Scene

_BATCHED = next(place for place, advice in enumerate(ADVICE) if advice.shares)
"""Batches stand where the first kind of sharing stands among the advice."""


def propose(scene: Scene) -> tuple[tuple[Recommendation, ...], tuple[Stage, ...]]:
    """Recommendations in order of application, and the stages that hold them.

    Each freed card is counted in one recommendation: that of the last pod to leave it.
    """
    scene = replace(scene, batches=batches_of(scene))
    drafted: list[tuple[tuple[int, int, int], int, Draft]] = []
    for place, advice in enumerate(ADVICE):
        for draft in advice.propose(scene):
            at = (place, 0, 0) if draft.batch is None else (_BATCHED, draft.batch, draft.turn)
            drafted.append((at, len(drafted), draft))
    drafts = [draft for _, _, draft in sorted(drafted, key=lambda item: item[:2])]
    stages: list[Stage] = []
    for title, group in _staged(drafts):
        stages.append(_stage(len(stages) + 1, title, group))
    return tuple(made for draft in drafts for made in draft.recommendations), tuple(stages)


def _staged(drafts: Sequence[Draft]) -> list[tuple[Sentence, list[Draft]]]:
    """Title and drafts of each stage: those of one batch together, each other one by itself."""
    groups: list[tuple[Sentence, list[Draft]]] = []
    for draft in drafts:
        if draft.title is None:
            continue
        if draft.batch is not None and groups and groups[-1][1][0].batch == draft.batch:
            groups[-1][1].append(draft)
        else:
            groups.append((draft.title, [draft]))
    return groups


def _stage(number: int, title: Sentence, drafts: Sequence[Draft]) -> Stage:
    made = [one for draft in drafts for one in draft.recommendations]
    return Stage(
        stage=number,
        title=title,
        recommendations=tuple(one.id for one in made),
        cards_freed=sum(one.cards_freed for one in made),
        moves=len({pod for one in made for pod in one.pods}),
    )
