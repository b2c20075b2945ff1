"""Recommendations and stages: every kind of advice writes its part, in an order that is safe to stop at.

Each kind drafts stages of its own, or parts of the batches in which workloads move, the least risky first. After each
stage the granted framebuffer fits every card. A workload that moves is cut when its first pod does, because that
restarts all its replicas; one that an admission step seats pod by pod and that has no turn is cut in place before.
Called by `planner`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from fleet.decisions import Recommendation, RecommendationKind, Stage
from fleet.inventory import CardId, WorkloadId
from fleet.money.saving import cards_in
from fleet.sentences import Sentence
from recommender.advice.register import ADVICE
from recommender.placement import Move
from recommender.solution import Draft, Solution

_BATCHED = next(place for place, advice in enumerate(ADVICE) if advice.shares)
"""Batches stand where the first kind of sharing stands among the advice."""


def propose(solution: Solution) -> tuple[tuple[Recommendation, ...], tuple[Stage, ...]]:
    """Recommendations in order of application, and the stages that hold them.

    Each freed card is counted in one recommendation: that of the last pod to leave it.
    """
    solution = replace(solution, batches=batches_of(solution))
    drafted: list[tuple[tuple[int, int, int], int, Draft]] = []
    for place, advice in enumerate(ADVICE):
        for draft in advice.propose(solution):
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
        if draft.batch is not None and groups and groups[-1][1][0].batch == draft.batch:
            groups[-1][1].append(draft)
        elif draft.title is not None:
            groups.append((draft.title, [draft]))
    return groups


def _stage(number: int, title: Sentence, drafts: Sequence[Draft]) -> Stage:
    made = [one for draft in drafts for one in draft.recommendations]
    return Stage(
        stage=number,
        title=title,
        recommendations=tuple(one.id for one in made),
        cards_freed=cards_in(card for one in made for card in one.freed if not card.is_spare),
        # Pods that scale in are not restarted elsewhere.
        moves=len({pod for one in made if one.kind is not RecommendationKind.TIDE for pod in one.pods}),
    )


BATCHES = 5
"""Stages that consolidation is spread over, the least risky moves first."""


def batches_of(solution: Solution) -> list[list[WorkloadId]]:
    """Workloads that move, in batches of about equal moves; no batch puts more on a card than it holds.

    Where all cards of a node are shared alike, the workloads of the node are a batch of their own.
    """
    if solution.arrangement.together:
        return [list(names) for names in solution.arrangement.together]
    moves_of = solution.moves_of
    in_turn = [name for name in solution.arrangement.sequence if name in moves_of]
    others = sorted(
        moves_of.keys() - set(in_turn), key=lambda name: (max(move.violation_ratio for move in moves_of[name]), name)
    )
    order = [*in_turn, *others]
    held, capacity = _held(solution)
    size = max(1, -(-len(solution.arrangement.moves) // BATCHES))
    batches: list[list[WorkloadId]] = []
    waiting, chain = order, set(in_turn)
    while waiting:
        batch: list[WorkloadId] = []
        later: list[WorkloadId] = []
        count = 0
        leaving: list[tuple[CardId, int]] = []
        for name in waiting:
            is_full = count and count + len(moves_of[name]) > size
            # Each finds its cards free once those before it went: who can't surge leaves cards to others, too.
            is_early = name in chain and any(other in chain for other in later)
            if is_full or is_early or not _arrive(solution, moves_of[name], held, capacity, is_sure=name in chain):
                later.append(name)
                continue
            batch.append(name)
            count += len(moves_of[name])
            leaving += _left_by(solution, name)
        if not batch:
            # Pods that must change places with each other go together.
            batches.append(later)
            break
        for card, size_bytes in leaving:
            held[card] -= size_bytes
        batches.append(batch)
        waiting = later
    return batches


def _left_by(solution: Solution, name: WorkloadId) -> list[tuple[CardId, int]]:
    """Framebuffer that is freed on each card once a workload has moved, and is cut with that where it waited."""
    moves = solution.moves_of[name]
    if not solution.waits(name):
        return [(move.source, solution.grants[move.row].framebuffer_granted_bytes) for move in moves]
    gone = {move.row for move in moves}
    return [
        (grant.card, grant.framebuffer_granted_bytes - (0 if row in gone else _size(solution, row)))
        for row in solution.problem.rows_of[name]
        for grant in [solution.grants[row]]
    ]


def _arrive(
    solution: Solution, moves: Sequence[Move], held: dict[CardId, int], capacity: Mapping[CardId, int], *, is_sure: bool
) -> bool:
    """Books a workload's moves on their targets; False, and nothing booked, where one does not fit yet.

    Args:
        is_sure: it is known to fit once those before it went.
    """
    for number, move in enumerate(moves):
        held[move.target] += _size(solution, move.row)
        if not is_sure and held[move.target] > capacity[move.target]:
            for booked in moves[: number + 1]:
                held[booked.target] -= _size(solution, booked.row)
            return False
    return True


def _held(solution: Solution) -> tuple[dict[CardId, int], dict[CardId, int]]:
    """Framebuffer granted per card once every pod is cut that neither moves nor waits, and what each card has."""
    held: dict[CardId, int] = defaultdict(int)
    capacity = {card.card: card.framebuffer_bytes for card in solution.problem.cards.values()}
    gone = set(solution.permits.reclaimed)
    moved = {move.row for move in solution.arrangement.moves}
    for row, grant in enumerate(solution.grants):
        capacity[grant.card] = max(capacity.get(grant.card, 0), grant.framebuffer_bytes)
        if grant.workload_id not in gone and row not in solution.arrangement.dropped:
            waits = row in moved or solution.waits(grant.workload_id)
            held[grant.card] += grant.framebuffer_granted_bytes if waits else _size(solution, row)
    for card in solution.arrangement.lent.values():
        capacity[card.card] = max(capacity[card.card], sum(_size(solution, row) for row in card.rows))
    return held, capacity


def _size(solution: Solution, row: int) -> int:
    grant = solution.grants[row]
    cut = solution.arrangement.cuts.get(grant.workload_id)
    return grant.framebuffer_granted_bytes if cut is None else cut.framebuffer_bytes
