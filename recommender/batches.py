"""In which batches workloads move: the least risky first, and none puts more on a card than it holds.

A workload that an admission step seats pod by pod is cut in place before; any other is cut when its first pod moves,
for that makes all its replicas anew. Called by `proposals`; pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from fleet.inventory import CardId, WorkloadId
from recommender.proposal_scene import Move, Scene

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
