"""What recommendations are written from: moves, cuts, and all they rest on. Filled by `scene`, read by `proposals`."""

from __future__ import annotations

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
