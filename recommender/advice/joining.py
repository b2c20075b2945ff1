"""Pods that join cards which others hold: what all kinds of sharing propose alike.

Called by the kinds whose `shares` is true.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from fleet.decisions import FreedCard, Recommendation, RecommendationKind
from fleet.inventory import CardId, WorkloadId
from fleet.money.saving import cards_in, saved
from fleet.priority_holds import Hold, first_at_every_moment
from fleet.sentences import Sentence, sentence
from recommender.harm.risk import level_of
from recommender.placement import Move
from recommender.solution import Draft, Solution, confidence_of, needs_of

_KIND_ORDER = (
    RecommendationKind.COLOCATE,
    RecommendationKind.OFFPEAK_PAIR,
    RecommendationKind.OVERSUBSCRIBE,
    RecommendationKind.SLICE,
)
"""A workload whose pods join cards of several kinds gets one recommendation: of the first of these."""


_JOINS: Mapping[Hold | None, str] = {
    Hold.NONE: "join_colocate_equals",
    Hold.AGENT: "join_colocate_agent",
    Hold.GRAPHS: "join_colocate_agent",
    Hold.PROBED: "join_colocate_gate",
    Hold.CORES: "join_colocate_cores",
}
"""Sentences of co-location by what holds low priority back; a backend that does so itself has the plain one."""


def batch_title(solution: Solution, number: int) -> Sentence:
    """Title of a batch of moving workloads, counted from 1."""
    return sentence(
        "share_nodes" if solution.arrangement.together else "share", number=number, all=len(solution.batches)
    )


def joins(solution: Solution, kind: RecommendationKind) -> list[Draft]:
    """Moves of one kind, batch by batch, numbered over all kinds.

    What holds low priority back differs from card to card of a service, and so does what must be enforced there: pods
    that come to cards of another hold are a recommendation of their own.

    Args:
        solution: where pods move.
        kind: the kind of sharing on the cards that are joined.
    """
    emptied = _emptied_by(solution)
    drafts: list[Draft] = []
    number = 0
    for batch, names in enumerate(solution.batches, start=1):
        made: list[Recommendation] = []
        for name in names:
            cards = set(emptied.get(name, ()))
            for part in _by_hold(solution.moves_of.get(name, ())):
                number += 1
                kinds = {move.kind for move in part}
                if kind is next(one for one in _KIND_ORDER if one in kinds):
                    made.append(
                        _join(solution, number, kind, part, solution.freed(cards & {move.source for move in part}))
                    )
                cards -= {move.source for move in part}
        if made:
            drafts.append(Draft(title=batch_title(solution, batch), recommendations=made, batch=batch, turn=2))
    return drafts


def _by_hold(moves: Sequence[Move]) -> list[list[Move]]:
    """Moves of one workload by what holds low priority back where they lead; those beside none go with the first."""
    holds: list[Hold | None] = [*dict.fromkeys(move.hold for move in moves if move.hold is not None)] or [None]
    return [[move for move in moves if (move.hold or holds[0]) is hold] for hold in holds if moves]


def _join(
    solution: Solution, number: int, kind: RecommendationKind, moves: Sequence[Move], freed: tuple[FreedCard, ...]
) -> Recommendation:
    name = solution.grants[moves[0].row].workload_id
    hold = next((move.hold for move in moves if move.hold is not None), None)
    hours = sum({move.target: move.low_hours for move in moves if move.kind is kind}.values())
    ratio = max(move.violation_ratio for move in moves)
    mean = sum(move.violation_ratio for move in moves) / len(moves)
    evidence = solution.evidence(name)
    targets = sorted({move.target for move in moves})
    lends = solution.lending([move.row for move in moves])
    return Recommendation(
        id=f"{kind.value.replace('_', '-')}-join-{number:04d}",
        kind=kind,
        workloads=(name,),
        pods=solution.pods([move.row for move in moves]),
        cards_freed=cards_in(freed),
        saving_per_week=saved(freed),
        freed=freed,
        risk_level=level_of(mean, confidence_of(evidence)),
        confidence=confidence_of(evidence),
        evidence=evidence,
        needs=needs_of(
            is_hard=solution.arrangement.cuts[name].is_hard,
            hold=hold,
            is_strict=_is_strict(solution, moves),
            lends=bool(lends),
        ),
        violation_ratio=mean,
        low_priority_gpu_hours_per_week=sum((move.low_hours for move in moves if move.is_first), start=0.0),
        why=(
            *lends,
            sentence(
                "join_lend" if lends else _JOINS.get(hold, f"join_{kind.value}"),
                pods=len(moves),
                targets=len(targets),
                cards=cards_in(freed),
                violation_ratio=round(float(mean), 6),
                worst_ratio=round(float(ratio), 6),
                **({"hours": round(hours, 1)} if hold in (Hold.CORES, Hold.PROBED) else {}),
            ),
        ),
    )


def _is_strict(solution: Solution, moves: Sequence[Move]) -> bool:
    """Whether low priority must never work beside others: requests were found fast enough on a card because of that."""
    holders = solution.problem.past.holders
    cards = {move.target for move in moves if move.hold and first_at_every_moment(move.hold, holders)}
    return not cards.isdisjoint(solution.timed_cards)


def _emptied_by(solution: Solution) -> dict[WorkloadId, list[CardId]]:
    """Freed cards by the workload whose move empties them: the last to leave."""
    rank = {name: number for number, name in enumerate(name for batch in solution.batches for name in batch)}
    owner: dict[CardId, WorkloadId] = {}
    for move in solution.arrangement.moves:
        name = solution.grants[move.row].workload_id
        is_later = move.source not in owner or rank[name] > rank[owner[move.source]]
        if move.source in solution.arrangement.freed and is_later:
            owner[move.source] = name
    emptied: dict[WorkloadId, list[CardId]] = defaultdict(list)
    for card in sorted(owner):
        emptied[owner[card]].append(card)
    return emptied
