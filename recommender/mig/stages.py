"""Workloads on MIG instances, in stages that are safe to stop after: no card is cut while somebody still holds it.

A template changes all replicas of a workload at once, and a pod can only come to a card when everybody who holds it
now has left or waits for it too; so each workload takes those with it whose cards it comes to. Called by
`mig.placement`; pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fleet.inventory import CardId, Grant, WorkloadId
from recommender.mig.advice import InstanceAdvice
from recommender.mig.seating import MigSeats

BATCHES = 5
"""Most stages that cutting is spread over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Carving:
    """One workload on instances.

    Attributes:
        workload: who.
        advice: the instance that each of its pods gets.
        targets: card of each of its rows afterwards.
        restarted: rows that get another instance, another card, or whose card is cut under them.
        waiting: those of them that come back to their own card, and are down while it is cut.
        recut: cards of its targets that are cut anew.
        stage: number of its stage among those that cut, from 1; 0 where nothing of it is restarted.
    """

    workload: WorkloadId
    advice: InstanceAdvice
    targets: Mapping[int, CardId]
    restarted: frozenset[int]
    waiting: frozenset[int]
    recut: frozenset[CardId]
    stage: int = 0


def carvings_of(
    grants: Sequence[Grant], advice: Mapping[WorkloadId, InstanceAdvice], seats: Sequence[MigSeats]
) -> tuple[Carving, ...]:
    """Every workload on instances, by stage and name.

    Args:
        grants: live grants by row.
        advice: the instance of each workload.
        seats: rows on cards, one answer per card model.
    """
    carved = {item.workload: item for each in seats for item in _unstaged(grants, advice, each)}
    stages = _stages(grants, carved)
    found = [replace(item, stage=stages.get(name, 0)) for name, item in carved.items()]
    return tuple(sorted(found, key=lambda item: (item.stage, item.workload)))


def _unstaged(grants: Sequence[Grant], advice: Mapping[WorkloadId, InstanceAdvice], seats: MigSeats) -> list[Carving]:
    rows_of: dict[WorkloadId, list[int]] = defaultdict(list)
    for row in seats.targets:
        rows_of[grants[row].workload_id].append(row)
    profile_of = {row: advice[grants[row].workload_id].profile.name for row in seats.targets}
    restarted = seats.restarted(grants, profile_of)
    anew = frozenset(seats.recut)
    return [
        Carving(
            workload=name,
            advice=advice[name],
            targets={row: seats.targets[row] for row in sorted(rows)},
            restarted=restarted & set(rows),
            waiting=frozenset(row for row in rows if grants[row].card == seats.targets[row] in anew),
            recut=anew & {seats.targets[row] for row in rows},
        )
        for name, rows in rows_of.items()
    ]


def _stages(grants: Sequence[Grant], carved: Mapping[WorkloadId, Carving]) -> dict[WorkloadId, int]:
    """Stage of every workload of which something is restarted; no stage needs a later one."""
    leaving: dict[CardId, set[WorkloadId]] = defaultdict(set)
    for name, item in carved.items():
        for row in item.restarted:
            leaving[grants[row].card].add(name)
    needs = {
        name: {other for row in item.restarted for other in leaving[item.targets[row]]} - {name}
        for name, item in carved.items()
        if item.restarted
    }
    groups: list[list[WorkloadId]] = []
    done: set[WorkloadId] = set()
    reach = {name: _reach(name, needs) for name in needs}
    for name in sorted(needs, key=lambda name: (len(reach[name]), name)):
        if group := sorted(reach[name] - done):
            groups.append(group)
            done.update(group)
    total = sum(len(carved[name].restarted) for name in needs)
    size = max(1, -(-total // BATCHES))
    stages: dict[WorkloadId, int] = {}
    number, moves = 1, 0
    for group in groups:
        arriving = sum(len(carved[name].restarted) for name in group)
        if moves and moves + arriving > size and number < BATCHES:
            number, moves = number + 1, 0
        moves += arriving
        stages.update(dict.fromkeys(group, number))
    return stages


def _reach(name: WorkloadId, needs: Mapping[WorkloadId, set[WorkloadId]]) -> set[WorkloadId]:
    """A workload and all that it needs, and those need, and so on."""
    found = {name}
    waiting = [name]
    while waiting:
        fresh = needs[waiting.pop()] - found
        found |= fresh
        waiting += sorted(fresh)
    return found
