"""The packing that each preset takes, of one search: the frontier is walked once, and every limit chooses from it.

Where framebuffer may be lent, a packing without that is made as well, and lending is kept only where it frees more. So
is one in which the pods of full nodes share cards with their neighbours alone, where pods found no CPU elsewhere.
Called by `planner`; pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fleet.capabilities.register import Division
from fleet.decisions import RiskLevel
from fleet.inventory import WorkloadId
from fleet.sharing import ACTIVE_RATIO_MIN
from recommender.advice.case import Permits
from recommender.bin_cards import NodeRoom
from recommender.consolidate import Point
from recommender.demand import Demand
from recommender.frontier_points import choose, points_of, proven_beyond
from recommender.group_seats import Guards
from recommender.harm.pair_guard import pair_guard
from recommender.latency.guard import latency_guard
from recommender.lent_cards import LENDING_REASONS, may_gain
from recommender.placement import Arrangement, arrange, moves_of
from recommender.placement_nodes import NodePoint, choose_nodes, node_points
from recommender.problem import PlanningProblem

FULL_RATIOS = (0.25, 1.0)
"""A node is full that has no CPU or memory for so many pods more, as a share of those on it that may share cards; what
frees most cards of these is taken."""
LENDING_ROUNDS = 3
"""How often pods are packed anew without those that found no node on which they may lend."""
_LESSENED = frozenset({"frees_no_card", "gap_needs_yes", "no_node_room", "no_surge_card", "no_surge_room"})
"""Reasons of refusals that leave less of an arrangement than was packed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """The packing that one preset takes.

    Attributes:
        arrangement: its seats.
        presets: seats that each preset would take.
        provable: the frontier that it was chosen from; empty where it was changed afterwards.
    """

    chosen: Point
    arrangement: Arrangement
    presets: Mapping[RiskLevel, Arrangement]
    provable: tuple[Point, ...] = ()

    def beyond(self) -> int | None:
        """How many cards more any other packing could free; None where nothing is proven."""
        return proven_beyond(self.provable, self.chosen) if self.provable else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Searched:
    """One walk of the frontier, where cards are shared one by one.

    Attributes:
        points: the frontier.
        chosen: what each limit on harm chooses of it.
        arranged: seats of each of those.
    """

    points: tuple[Point, ...]
    chosen: Mapping[RiskLevel, Point]
    arranged: Mapping[RiskLevel, Arrangement]


class PresetPackings:
    """Packings of one problem, searched when a preset first asks for them; mutable: keeps what was searched."""

    def __init__(self, problem: PlanningProblem, permits: Permits) -> None:
        self._problem, self._permits = problem, permits
        self._resting = _resting_active(problem.demand, permits)
        self._homes = _homes(problem, permits)
        self._searched: dict[tuple[frozenset[WorkloadId], float | None], _Searched] = {}
        self._on_nodes: Mapping[RiskLevel, tuple[Point, Arrangement]] | None = None

    def of(self, level: RiskLevel) -> Packing:
        """The packing that a preset takes."""
        problem, permits = self._problem, self._permits
        if problem.capability.division in (Division.REPLICAS, Division.EQUAL_PARTS):
            return self._on_shared_nodes(level)
        if not any(member.lends for member in permits.members):
            return self._best(frozenset(), level)
        apart = self._best(frozenset(problem.rows_of), level)
        if not may_gain(problem, permits, apart.chosen.groups):
            return apart
        # Pods whose node can't let them lend share in other ways.
        found, kept = [apart, self._best(frozenset(), level)], frozenset[WorkloadId]()
        for _ in range(LENDING_ROUNDS):
            refused = {item.workload for item in found[-1].arrangement.refused if item.reason in LENDING_REASONS}
            if not refused:
                break
            kept |= refused
            found.append(self._best(kept, level))
        # Nobody lends where that frees no card more.
        best = max(found, key=lambda one: (one.arrangement.cards_freed, one is apart, -one.arrangement.violation_ratio))
        said = {
            item.workload: item for one in found for item in one.arrangement.refused if item.reason in LENDING_REASONS
        }
        for card in best.arrangement.lent.values():
            for row in card.rows:
                said.pop(problem.demand.grants[row].workload_id, None)
        others = tuple(item for item in best.arrangement.refused if item.workload not in said)
        return replace(best, arrangement=replace(best.arrangement, refused=(*others, *said.values())))

    def _best(self, apart: frozenset[WorkloadId], level: RiskLevel) -> Packing:
        """The packing that a preset takes where these workloads may not lend framebuffer."""
        found = [self._search(apart, None)]
        if not all(_is_seated(found[0].chosen[preset], found[0].arranged[preset]) for preset in RiskLevel):
            found += [self._search(apart, full_ratio) for full_ratio in self._homes]
        limits = self._problem.violation_limits
        # Of a dense packing less may be left than of a careful one, once each service must change cards without a gap,
        # where the scheduler chooses cards, or where one kind alone is asked for: a preset takes the best of those that
        # its limit allows.
        best = {
            preset: max(
                ((one, level) for one in found for level in RiskLevel if limits[level] <= limits[preset]),
                key=lambda way: (
                    way[0].arranged[way[1]].cards_freed,
                    way[0] is found[0],
                    -way[0].arranged[way[1]].violation_ratio,
                    way[1] is preset,
                ),
            )
            for preset in RiskLevel
        }
        searched, taken = best[level]
        arranged = searched.arranged
        # The proof is of the packing: it says nothing once pods of it stay where they are, or meet others, nor where
        # some had to share cards with their neighbours.
        is_seated = searched is found[0] and _is_seated(searched.chosen[taken], arranged[taken])
        is_whole = is_seated and not _LESSENED & {item.reason for item in arranged[taken].refused}
        # Nor where framebuffer is lent: that packs more than fits a card.
        is_provable = (
            is_whole and not arranged[taken].lent and self._problem.capability.division is not Division.SCHEDULER
        )
        return Packing(
            chosen=searched.chosen[taken],
            arrangement=arranged[taken],
            presets={preset: one.arranged[other] for preset, (one, other) in best.items()},
            provable=searched.points if is_provable else (),
        )

    def _search(self, apart: frozenset[WorkloadId], full_ratio: float | None) -> _Searched:
        key = apart, full_ratio
        if key not in self._searched:
            problem, permits = self._problem, _without_lending(self._problem, self._permits, apart)
            points = points_of(problem, permits, self._resting, None if full_ratio is None else self._homes[full_ratio])
            guards = _guards(problem, permits)
            limits = problem.forecast_limits
            chosen = {
                level: choose(
                    points,
                    violation_ratio_max=most,
                    resting_active=self._resting,
                    pod_ratio_max=problem.forecast_pod_limits[level],
                )
                for level, most in limits.items()
            }
            arranged = {
                level: _arranged(problem, permits, point, replace(guards, violation_ratio_max=limits[level]))
                for level, point in chosen.items()
            }
            self._searched[key] = _Searched(points=points, chosen=chosen, arranged=arranged)
        return self._searched[key]

    def _on_shared_nodes(self, level: RiskLevel) -> Packing:
        """The packing that is taken, its seats and those of every preset, where a node's cards are shared alike."""
        if self._on_nodes is None:
            self._on_nodes = self._searched_nodes()
        chosen, arrangement = self._on_nodes[level]
        return Packing(
            chosen=chosen,
            arrangement=arrangement,
            presets={level: found for level, (_, found) in self._on_nodes.items()},
        )

    def _searched_nodes(self) -> Mapping[RiskLevel, tuple[Point, Arrangement]]:
        problem, permits = self._problem, self._permits
        guards = _guards(problem, permits)
        points = node_points(problem, permits, pairs=guards.pairs, resting_active=self._resting)

        def seated(chosen: NodePoint, most: float) -> tuple[Point, Arrangement]:
            limited = replace(guards, violation_ratio_max=most)
            arrangement = arrange(problem, permits, chosen.point, limited, seating=chosen.seating)
            if problem.moves_max is None or moves_of(problem.demand, arrangement) <= problem.moves_max:
                return chosen.point, arrangement
            # Pods that only make room were not counted when moves were shared out; with too many, nothing is shared.
            point = points[-1].point
            return point, arrange(problem, permits, point, limited, seating=points[-1].seating)

        return {
            level: seated(choose_nodes(points, violation_ratio_max=most), most)
            for level, most in problem.forecast_limits.items()
        }


def _arranged(problem: PlanningProblem, permits: Permits, point: Point, guards: Guards) -> Arrangement:
    """The seats of a packing; where pods find no room, also with that of those who leave, and the better is taken."""
    found = arrange(problem, permits, point, guards)
    if problem.capability.admits_pods and not _is_seated(point, found):
        other = arrange(problem, permits, point, guards, gives_back=True)
        return max((found, other), key=lambda one: one.cards_freed)
    return found


def _is_seated(point: Point, arrangement: Arrangement) -> bool:
    """Whether pods got seats on no more cards than they were packed on."""
    packed = {int(row) for group in point.groups for row in group.rows}
    return sum(not packed.isdisjoint(seat.rows) for seat in arrangement.seats) <= point.choice.bins


def _homes(problem: PlanningProblem, permits: Permits) -> dict[float, NDArray[np.int32]]:
    """Number of the node that each row of the demand stays on because few others find CPU or memory there; -1 for any.

    Returns:
        (rows,), int32, for each of `FULL_RATIOS` that keeps somebody, or others than the one before.
    """
    grants = problem.demand.grants
    rows_of: dict[str, list[int]] = defaultdict(list)
    for member in permits.members:
        rows_of[grants[member.row].node].append(member.row)
    room = NodeRoom(problem.inventory, list(problem.inventory.live_grants()))
    found: dict[float, NDArray[np.int32]] = {}
    last, homes = np.full((2, len(grants)), -1, np.int32)
    for full_ratio in FULL_RATIOS:
        for number, (_, rows) in enumerate(sorted(rows_of.items())):
            if not room.has_room(grants[rows[0]].node, [grants[row] for row in rows], full_ratio):
                homes[rows] = number
        if not np.array_equal(homes, last):
            found[full_ratio] = homes
        last, homes = homes, homes.copy()
    return found


def _without_lending(problem: PlanningProblem, permits: Permits, names: frozenset[WorkloadId]) -> Permits:
    if not names:
        return permits
    grants = problem.demand.grants
    return replace(
        permits,
        members=tuple(
            replace(member, lends=False) if grants[member.row].workload_id in names else member
            for member in permits.members
        ),
    )


def _guards(problem: PlanningProblem, permits: Permits) -> Guards:
    """What must not share a card; the limit on harm is each preset's."""
    return Guards(
        latency=latency_guard(
            problem.demand, permits, problem.past.holders, inflation_max=problem.settings.risk.latency_inflation_max
        ),
        pairs=pair_guard(problem.demand, problem.history, problem.profiles, problem.past.interference),
        violation_ratio_max=problem.forecast_limits[problem.settings.risk.preset],
    )


def _resting_active(demand: Demand, permits: Permits) -> float:
    """How many pods outside every group are active on average."""
    packed = {member.row for member in permits.members}
    rows = [row for row, grant in enumerate(demand.grants) if row not in packed and grant.priority.value != "low"]
    if not rows:
        return 0.0
    compute = demand.compute[rows]
    seen = np.isfinite(compute).sum(axis=1)
    return float(((compute > ACTIVE_RATIO_MIN).sum(axis=1) / np.maximum(1, seen)).sum())
