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
from recommender.mig.card_cutting import MigSeats
from recommender.mig.instance_size import InstanceAdvice

BATCHES = 5
"""Most stages that cutting is spread over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Carving:
    """One workload on instances.

    Attributes:
        advice: the instance that each of its pods gets.
        targets: card of each of its rows afterwards.
        restarted: rows that get another instance, another card, or whose card is cut under them.
        waiting: those of them that come back to their own card, and are down while it is cut.
        recut: cards of its targets that are cut anew.
        interrupted: rows of others that keep their cards, and are down while their machine is empty to be cut.
        stage: number of its stage among those that cut, from 1; 0 where nothing of it is restarted.
    """

    workload: WorkloadId
    advice: InstanceAdvice
    targets: Mapping[int, CardId]
    restarted: frozenset[int]
    waiting: frozenset[int]
    recut: frozenset[CardId]
    interrupted: frozenset[int] = frozenset()
    stage: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """What cutting a card asks of its machine, where all its cards must be empty for that.

    Attributes:
        rows_on: live rows on each machine that stay on it or leave it with the plan.
    """

    node_of: Mapping[CardId, str]
    rows_on: Mapping[str, Sequence[int]]


def carvings_of(
    grants: Sequence[Grant],
    advice: Mapping[WorkloadId, InstanceAdvice],
    seats: Sequence[MigSeats],
    machines: Machines | None = None,
) -> tuple[Carving, ...]:
    """Every workload on instances, by stage and name.

    Args:
        seats: rows on cards, one answer per card model.
        machines: where a machine is emptied while its cards are cut; None where each card is cut by itself.
    """
    carved = {item.workload: item for each in seats for item in _unstaged(grants, advice, each)}
    together: list[set[WorkloadId]] = []
    if machines is not None:
        emptied = sorted({machines.node_of[card] for item in carved.values() for card in item.recut})
        together += [_emptied(node, grants, carved, machines) for node in emptied]
    stages = _stages(grants, carved, together)
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


def _emptied(
    node: str, grants: Sequence[Grant], carved: dict[WorkloadId, Carving], machines: Machines
) -> set[WorkloadId]:
    """Notes who is restarted when a machine is emptied; returns pods that come to it or leave it, all at once."""
    rows = machines.rows_on.get(node, ())
    here = {
        name
        for name, item in carved.items()
        if any(machines.node_of[card] == node for card in item.targets.values())
        or any(grants[row].workload_id == name for row in rows)
    }
    for name in here:
        item = carved[name]
        own = {row for row in item.targets if row in rows or machines.node_of[item.targets[row]] == node}
        waiting = {row for row in own if machines.node_of[item.targets[row]] == grants[row].node == node}
        carved[name] = replace(item, restarted=item.restarted | own, waiting=item.waiting | waiting)
    others = frozenset(row for row in rows if grants[row].workload_id not in carved)
    first = min(name for name in here if any(machines.node_of[card] == node for card in carved[name].recut))
    carved[first] = replace(carved[first], interrupted=carved[first].interrupted | others)
    return here


def _stages(
    grants: Sequence[Grant], carved: Mapping[WorkloadId, Carving], together: Sequence[set[WorkloadId]]
) -> dict[WorkloadId, int]:
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
    for names in together:
        for name in names:
            needs[name] |= names - {name}
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
