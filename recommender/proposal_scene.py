"""What recommendations are written from: moves, cuts, and all they rest on. Filled by `scene`, read by `proposals`.

In which batches workloads move: the least risky first, and none puts more on a card than it holds.

A workload that an admission step seats pod by pod is cut in place before; any other is cut when its first pod moves,
for that makes all its replicas anew.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fleet.decisions import Evidence, RecommendationKind, Saving
from fleet.inventory import CardId, Grant, WorkloadId
from fleet.profiles import Profile
from recommender.mig.stages import Carving
from recommender.rehome import Rehoming


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A pod that changes its card.

    Attributes:
        row: row of the demand.
        source: card it leaves.
        target: card it joins.
        kind: what the sharing on the target is.
        violation_ratio: predicted violated share of the target's active time, 0-1.
        low_hours: work of low priority that the target makes room for, GPU hours a week.
    """

    row: int
    source: CardId
    target: CardId
    kind: RecommendationKind
    violation_ratio: float
    low_hours: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The slice that every pod of a workload gets."""

    framebuffer_bytes: int
    compute_ratio: float
    shown_bytes: int
    is_hard: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What proposals are written from.

    Attributes:
        grants: live grants by row.
        rows_of: rows of each workload.
        profiles: profile of each workload that has one.
        evidence: evidence without numbers, per workload.
        savings: saving of a set of cards.
        cuts: new slice of each workload that is cut.
        moves: pods that change cards.
        reclaimed: workloads that give all back.
        dropped: rows of cards that pods of several give back.
        carved: workloads on MIG instances, by stage.
        rehomed: workloads that move to cheaper cards.
        rehoming_savings: what each of them saves.
        cards_before: cards granted to somebody before.
        freed: cards that are free afterwards.
        admits_pods: single pods may get what their template does not say; else all replicas change at once.
        together: workloads that share in one stage each, for their nodes change for all of them at once.
        displaced: new card of each row that leaves a node which is shared without it.
        replaced: freed cards that are not counted, for others that nobody held are in use instead.
    """

    grants: Sequence[Grant]
    rows_of: Mapping[WorkloadId, Sequence[int]]
    profiles: Mapping[WorkloadId, Profile]
    evidence: Mapping[WorkloadId, Evidence]
    savings: Mapping[CardId, Saving]
    cuts: Mapping[WorkloadId, Cut]
    moves: Sequence[Move]
    reclaimed: Sequence[WorkloadId]
    dropped: frozenset[int]
    carved: Sequence[Carving]
    rehomed: Sequence[Rehoming]
    rehoming_savings: Mapping[WorkloadId, Saving]
    cards_before: frozenset[CardId]
    freed: frozenset[CardId]
    admits_pods: bool = True
    together: Sequence[Sequence[WorkloadId]] = ()
    displaced: Mapping[int, CardId] = field(default_factory=dict)
    replaced: frozenset[CardId] = frozenset()

    def waits(self, name: WorkloadId, moves_of: Mapping[WorkloadId, Sequence[Move]]) -> bool:
        """Whether a workload is cut only when pods of it move: all its replicas are made anew by that."""
        return name in moves_of and not self.admits_pods


BATCHES = 5
"""Stages that consolidation is spread over, the least risky moves first."""


def moves_by_workload(scene: Scene) -> dict[WorkloadId, list[Move]]:
    """Moves of each workload of which a pod moves."""
    moves_of: dict[WorkloadId, list[Move]] = defaultdict(list)
    for move in scene.moves:
        moves_of[scene.grants[move.row].workload_id].append(move)
    return moves_of


def batches_of(scene: Scene, moves_of: Mapping[WorkloadId, Sequence[Move]]) -> list[list[WorkloadId]]:
    """Workloads that move, in batches of about equal moves; no batch puts more on a card than it holds."""
    order = sorted(moves_of, key=lambda name: (max(move.violation_ratio for move in moves_of[name]), name))
    held, capacity = _held(scene, moves_of)
    size = max(1, -(-len(scene.moves) // BATCHES))
    batches: list[list[WorkloadId]] = []
    waiting = order
    while waiting:
        batch: list[WorkloadId] = []
        later: list[WorkloadId] = []
        count = 0
        leaving: list[tuple[CardId, int]] = []
        for name in waiting:
            if (count and count + len(moves_of[name]) > size) or not _arrive(scene, moves_of[name], held, capacity):
                later.append(name)
                continue
            batch.append(name)
            count += len(moves_of[name])
            leaving += _left_by(scene, name, moves_of)
        if not batch:
            # Pods that must change places with each other go together.
            batches.append(later)
            break
        for card, size_bytes in leaving:
            held[card] -= size_bytes
        batches.append(batch)
        waiting = later
    return batches


def _left_by(scene: Scene, name: WorkloadId, moves_of: Mapping[WorkloadId, Sequence[Move]]) -> list[tuple[CardId, int]]:
    """Framebuffer that falls free on each card once a workload has moved, and is cut with that where it waited."""
    if not scene.waits(name, moves_of):
        return [(move.source, _size(scene, move.row)) for move in moves_of[name]]
    gone = {move.row for move in moves_of[name]}
    return [
        (grant.card, grant.framebuffer_granted_bytes - (0 if row in gone else _size(scene, row)))
        for row in scene.rows_of[name]
        for grant in [scene.grants[row]]
    ]


def _arrive(scene: Scene, moves: Sequence[Move], held: dict[CardId, int], capacity: Mapping[CardId, int]) -> bool:
    """Books a workload's moves on their targets; False, and nothing booked, where one does not fit yet."""
    for number, move in enumerate(moves):
        held[move.target] += _size(scene, move.row)
        if held[move.target] > capacity[move.target]:
            for booked in moves[: number + 1]:
                held[booked.target] -= _size(scene, booked.row)
            return False
    return True


def _held(scene: Scene, moves_of: Mapping[WorkloadId, Sequence[Move]]) -> tuple[dict[CardId, int], dict[CardId, int]]:
    """Framebuffer granted per card once everybody who does not wait is cut in place, and what each card has."""
    held: dict[CardId, int] = defaultdict(int)
    capacity: dict[CardId, int] = {}
    gone = set(scene.reclaimed)
    for row, grant in enumerate(scene.grants):
        capacity[grant.card] = max(capacity.get(grant.card, 0), grant.framebuffer_bytes)
        if grant.workload_id not in gone and row not in scene.dropped:
            waits = scene.waits(grant.workload_id, moves_of)
            held[grant.card] += grant.framebuffer_granted_bytes if waits else _size(scene, row)
    return held, capacity


def _size(scene: Scene, row: int) -> int:
    grant = scene.grants[row]
    cut = scene.cuts.get(grant.workload_id)
    return grant.framebuffer_granted_bytes if cut is None else cut.framebuffer_bytes
