"""What the rules allow, workload by workload, before anything is packed, and cards that a pod of several never uses.

Called by `planner`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from analyzer.succession import OVERLAP_MAX
from fleet.capabilities.register import Capabilities, Division, Oversubscription
from fleet.decisions import RecommendationKind, Refusal, Withheld
from fleet.inventory import CardId, Grant, Priority, WorkloadId
from fleet.units import MIB
from recommender.advice.case import Case, Permits, untouchable
from recommender.advice.register import ADVICE
from recommender.demand import Demand
from recommender.outlook import Member
from recommender.priority_holds import holds_of
from recommender.problem import PlanningProblem
from recommender.replica_counts import scalings

_SHARING = tuple(advice.kind for advice in ADVICE if advice.shares)


def permits_of(problem: PlanningProblem) -> Permits:
    """Asks every rule about every workload."""
    demand, only, moves_max = problem.demand, problem.scope.only, problem.moves_max
    cases = _cases(problem)
    withheld = _withheld_by_backend(problem.capability, lends=problem.settings.recommender.lend_framebuffer)
    withheld += _sleep_withheld(problem)
    off = {item.kind for item in (*withheld, *problem.profiles.withheld) if item.reason not in _FRAMEBUFFER_REASONS}
    kinds: dict[WorkloadId, frozenset[RecommendationKind]] = {}
    refused: list[Refusal] = []
    for name, case in cases.items():
        if problem.scope.namespace not in (None, case.grants[0].namespace):
            continue
        allowed, said = _ask(case, off, only)
        kinds[name] = allowed
        refused += said
    reclaimed = [name for name in kinds if RecommendationKind.RECLAIM in kinds[name]]
    sharing = [name for name in kinds if name not in set(reclaimed) and _may_share(kinds[name], only)]
    fewer, over = _fewer(cases, kinds, reclaimed, moves_max)
    used = len(_pods_of(cases, [*reclaimed, *fewer]))
    sharing, late = _within_moves(demand, cases, sharing, moves_max, used)
    members, stuck = _members(problem, cases, kinds, sharing, set(reclaimed))
    return Permits(
        cases=cases,
        kinds=kinds,
        reclaimed=tuple(reclaimed),
        dropped=frozenset(row for name in fewer for row in cases[name].spare_rows),
        members=tuple(members),
        refused=tuple(refused + over + late + stuck),
        withheld=withheld,
        off=frozenset(item.kind for item in withheld if item.reason == _REFUSED_REASON),
    )


_FRAMEBUFFER_REASON = "framebuffer_not_oversubscribed"
_LENT_REASON = "framebuffer_lent_unknown"
_FRAMEBUFFER_REASONS = (_FRAMEBUFFER_REASON, _LENT_REASON)
"""Compute may be promised more than once all the same."""
_REFUSED_REASON = "backend_refuses"


def _withheld_by_backend(capability: Capabilities, *, lends: bool) -> tuple[Withheld, ...]:
    own = (("backend", str(capability.backend)),)
    if capability.cuts_by_mig:
        return tuple(Withheld(kind=kind, reason="backend_cuts_by_mig", values=own) for kind in _SHARING)
    if not capability.can_share or capability.framebuffer_step_bytes is None:
        facts_known = (*own, ("slices", str(capability.slices_per_card_max)))
        return tuple(Withheld(kind=kind, reason="backend_cannot_share", values=facts_known) for kind in _SHARING)
    facts = dict(capability.refuses)
    refused = tuple(
        Withheld(kind=kind, reason=_REFUSED_REASON, values=(*own, ("fact", f"{capability.backend}_{kind.value}")))
        for kind in (*_SHARING, RecommendationKind.REHOME)
        if kind.value in facts
    )
    spills = capability.oversubscription is Oversubscription.SPILL
    is_said = not capability.can_lend and (lends or not spills)
    if RecommendationKind.OVERSUBSCRIBE.value not in facts and is_said:
        reason = _LENT_REASON if spills else _FRAMEBUFFER_REASON
        refused += (Withheld(kind=RecommendationKind.OVERSUBSCRIBE, reason=reason, values=own),)
    return refused


def _sleep_withheld(problem: PlanningProblem) -> tuple[Withheld, ...]:
    """What lies with a server's own allocations can't spill; it can be granted twice where books alone count it."""
    is_asked = problem.settings.recommender.sleep_wait_seconds is not None
    record = problem.capability
    if not is_asked or record.oversubscription is Oversubscription.ACCOUNTING_ONLY:
        return ()
    own = (("backend", str(record.backend)),)
    return (Withheld(kind=RecommendationKind.SLEEP, reason="sleep_books", values=own),)


def _ask(
    case: Case, off: set[RecommendationKind], only: RecommendationKind | None
) -> tuple[frozenset[RecommendationKind], list[Refusal]]:
    everything = untouchable(case)
    if everything is not None:
        return frozenset(), [everything]
    allowed: set[RecommendationKind] = set()
    refused: list[Refusal] = []
    for rule in ADVICE:
        # Sharing of any kind needs the slice rule's consent, so it is always asked.
        if rule.kind in off or (only not in (None, rule.kind) and rule.kind is not RecommendationKind.SLICE):
            continue
        if not rule.applies(case):
            continue
        refusal = rule.refusal(case)
        if refusal is None:
            allowed.add(rule.kind)
        elif rule.kind is not RecommendationKind.SLICE or only is None or only in _SHARING:
            refused.append(refusal)
    if case.priority is Priority.LOW and RecommendationKind.COLOCATE not in allowed:
        allowed.discard(RecommendationKind.SLICE)
    return frozenset(allowed), refused


def _fewer(
    cases: dict[WorkloadId, Case],
    kinds: dict[WorkloadId, frozenset[RecommendationKind]],
    reclaimed: list[WorkloadId],
    moves_max: int | None,
) -> tuple[list[WorkloadId], list[Refusal]]:
    """Workloads that ask for fewer cards, as far as the moves go; one that gives all back is not among them."""
    left = None if moves_max is None else moves_max - len(_pods_of(cases, reclaimed))
    kept: list[WorkloadId] = []
    refused: list[Refusal] = []
    for name, allowed in kinds.items():
        if RecommendationKind.FEWER_CARDS not in allowed or name in reclaimed:
            continue
        pods = len(_pods_of(cases, [name]))
        if left is not None and pods > left:
            refused.append(
                cases[name].refuse(RecommendationKind.FEWER_CARDS, "moves_max", pods=pods, moves_max=moves_max or 0)
            )
            continue
        left = None if left is None else left - pods
        kept.append(name)
    return kept, refused


def _may_share(kinds: frozenset[RecommendationKind], only: RecommendationKind | None) -> bool:
    if RecommendationKind.SLICE not in kinds or (only is not None and only not in _SHARING):
        return False
    # A card is co-located by a pod of low priority and one that is not; the other side needs no consent but slicing.
    return only in (None, RecommendationKind.SLICE, RecommendationKind.COLOCATE) or only in kinds


def _cases(problem: PlanningProblem) -> dict[WorkloadId, Case]:
    demand, settings, terms, now = problem.demand, problem.settings, problem.terms, problem.now
    grants_known, since = problem.inventory.grants, problem.history.slices.since
    holds = holds_of(demand, problem.inventory, problem.capability, problem.past.holders)
    changes = scalings(grants_known, now=now, since=since, own=problem.past.scalings)
    rows_of: dict[int, list[int]] = defaultdict(list)
    on_card: dict[str, set[WorkloadId]] = defaultdict(set)
    hidden = _needs_hidden(problem)
    for row, grant in enumerate(demand.grants):
        rows_of[int(demand.workload_of[row])].append(row)
        on_card[grant.card].add(grant.workload_id)
    seen = np.isfinite(demand.compute)
    first = np.where(seen.any(axis=1), seen.argmax(axis=1), demand.steps)
    cases = {}
    for number, name in enumerate(demand.workloads):
        rows = rows_of[number]
        grants = tuple(demand.grants[row] for row in rows)
        spare = spare_cards(demand, rows, idle_ratio_max=settings.analyzer.idle_ratio_max)
        cases[name] = Case(
            workload=name,
            profile=problem.profile_of.get(name),
            grants=grants,
            seen_seconds=float(demand.steps - min(first[row] for row in rows)) * demand.step_seconds,
            has_need=bool(demand.has_need[rows].all() and np.isfinite(demand.need_bytes[rows]).any()),
            is_estimated=any(grant.kv_cache_pool_max_bytes is not None for grant in grants),
            neighbours=tuple(sorted({other for grant in grants for other in on_card[grant.card]} - {name})),
            settings=settings,
            capability=problem.capability,
            now=now,
            spare_rows=spare.rows,
            spare_held_bytes=spare.held_bytes,
            scalings=changes.get(name, 0),
            lends=name in hidden,
            node_policy=terms.policies.get(grants[0].node),
            node_bar=terms.bar_of(grant.node for grant in grants),
            hold=holds.get(name),
        )
    return cases


def _needs_hidden(problem: PlanningProblem) -> frozenset[WorkloadId]:
    """Workloads of which a pod has, or had, a part of a card on a node that lends framebuffer, or lent it.

    Such a node divides every grant of a part, and monitors count what is left of it; pods that stayed alone on their
    card, and those that moved away since, showed less than they hold as well.
    """
    inventory = problem.inventory
    if not problem.capability.may_have_lent:
        return frozenset()
    on_card: dict[CardId, list[Grant]] = defaultdict(list)
    for grant in inventory.grants:
        on_card[grant.card].append(grant)
    nodes = {grants[0].node for grants in on_card.values() if _ever_lent(grants)}
    return frozenset(
        grant.workload_id
        for grant in inventory.grants
        if grant.node in nodes and grant.framebuffer_granted_bytes < grant.framebuffer_bytes
    )


def _ever_lent(grants: Sequence[Grant]) -> bool:
    """Whether more was granted on a card at a time than it has: to one pod, which saw a factor, or to several."""
    most = grants[0].framebuffer_bytes + MIB
    if any(grant.framebuffer_granted_bytes > most for grant in grants):
        return True
    # A pod and the one that replaced it are seen together for a while, and a whole card is never shared.
    changes: list[tuple[datetime, int]] = []
    for grant in grants:
        end = None if grant.ended_at is None else grant.ended_at - OVERLAP_MAX
        if grant.framebuffer_granted_bytes < grant.framebuffer_bytes and (end is None or end > grant.started_at):
            changes.append((grant.started_at, grant.framebuffer_granted_bytes))
            changes += [] if end is None else [(end, -grant.framebuffer_granted_bytes)]
    granted = 0
    for _, size in sorted(changes):
        granted += size
        if granted > most:
            return True
    return False


def _pods_of(cases: dict[WorkloadId, Case], names: Sequence[WorkloadId]) -> list[str]:
    return sorted({grant.pod_id for name in names for grant in cases[name].grants})


def _within_moves(
    demand: Demand, cases: dict[WorkloadId, Case], sharing: list[WorkloadId], moves_max: int | None, used: int
) -> tuple[list[WorkloadId], list[Refusal]]:
    """Keeps the workloads that share most easily, as far as the moves go."""
    if moves_max is None:
        return sharing, []
    mean = np.nan_to_num(demand.compute).mean(axis=1) if demand.steps else np.zeros(len(demand.grants))
    total = np.bincount(demand.workload_of, weights=mean, minlength=len(demand.workloads))
    level = {name: float(total[number]) for number, name in enumerate(demand.workloads)}
    kept: list[WorkloadId] = []
    refused: list[Refusal] = []
    for name in sorted(sharing, key=lambda name: (level[name], name)):
        pods = len(cases[name].grants)
        if used + pods <= moves_max:
            kept.append(name)
            used += pods
        else:
            refused.append(cases[name].refuse(None, "moves_max", pods=pods, moves_max=moves_max))
    return sorted(kept), refused


def _members(
    problem: PlanningProblem,
    cases: dict[WorkloadId, Case],
    kinds: dict[WorkloadId, frozenset[RecommendationKind]],
    sharing: list[WorkloadId],
    reclaimed: set[WorkloadId],
) -> tuple[list[Member], list[Refusal]]:
    """Rows that may share; a workload beside one that stays as it is stays as well."""
    chosen = set(sharing)
    refused: list[Refusal] = []
    changed = True
    while changed:
        changed = False
        for name in sorted(chosen):
            resting = [other for other in cases[name].neighbours if other not in chosen and other not in reclaimed]
            if resting:
                chosen.discard(name)
                refused.append(cases[name].refuse(None, "neighbour_stays", neighbour=resting[0]))
                changed = True
    # A claim belongs to a namespace, and so does the pod that names it.
    demand = problem.demand
    by_namespace = problem.capability.division is Division.CLAIM
    apart = {name for name in chosen if by_namespace or cases[name].isolation == "hard"}
    isolated = sorted({cases[name].grants[0].namespace for name in apart})
    group = {space: number for number, space in enumerate(isolated)}
    members = []
    for row, grant in enumerate(demand.grants):
        if grant.workload_id not in chosen:
            continue
        case = cases[grant.workload_id]
        members.append(
            Member(
                row=row,
                workload=int(demand.workload_of[row]),
                hold=case.hold,
                takes_limit=case.takes_limit,
                group=group[grant.namespace] if grant.workload_id in apart else -1,
                is_hard=case.is_hard,
                lends=problem.capability.can_lend
                and problem.settings.recommender.lend_framebuffer
                and RecommendationKind.OVERSUBSCRIBE in kinds[grant.workload_id]
                and case.priority is not Priority.LOW,
                is_flat=RecommendationKind.OVERSUBSCRIBE not in kinds[grant.workload_id]
                and RecommendationKind.OFFPEAK_PAIR not in kinds[grant.workload_id],
            )
        )
    return members, refused


COVERAGE_MIN = 0.95
"""Share of the steps in which its pod was seen that such a card must have been seen in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpareCards:
    """What a workload could give back.

    Attributes:
        rows: rows of the demand, as many per pod for all its pods, ascending; empty where there are none.
        held_bytes: most framebuffer that any of them holds.
    """

    rows: tuple[int, ...]
    held_bytes: int


NOTHING_SPARE = SpareCards(rows=(), held_bytes=0)


def spare_cards(demand: Demand, rows: Sequence[int], *, idle_ratio_max: float) -> SpareCards:
    """Finds the cards that every pod of a workload can do without.

    Args:
        demand: live slices and their series.
        idle_ratio_max: activity up to which a card does nothing, 0-1.

    Returns:
        As many cards per pod as the pod with the fewest idle ones has, since replicas have one template; nothing where
        a pod has a single card, works on none, or was seen too seldom.
    """
    cards_of: dict[str, list[int]] = defaultdict(list)
    for row in rows:
        cards_of[demand.grants[row].pod_id].append(row)
    if len({len(held) for held in cards_of.values()}) != 1:
        return NOTHING_SPARE
    idle_of = {pod: _idle(demand, held, idle_ratio_max) for pod, held in cards_of.items()}
    count = min(len(idle) for idle in idle_of.values())
    if not count or any(len(idle) == len(cards_of[pod]) for pod, idle in idle_of.items()):
        return NOTHING_SPARE
    # A pod that works on fewer cards than its siblings keeps the idle ones that hold most.
    chosen = [row for idle in idle_of.values() for row in idle[:count]]
    return SpareCards(rows=tuple(sorted(chosen)), held_bytes=int(max(_held(demand, row) for row in chosen)))


def _idle(demand: Demand, held: Sequence[int], idle_ratio_max: float) -> list[int]:
    """Rows of one pod that never worked, those that hold least first."""
    compute = demand.compute[list(held)]
    seen = np.isfinite(compute)
    steps = int(seen.any(axis=0).sum())
    if not steps or len(held) < 2:
        return []
    idle = [
        row
        for number, row in enumerate(held)
        if seen[number].sum() >= COVERAGE_MIN * steps and float(np.nanmax(compute[number])) <= idle_ratio_max
    ]
    return sorted(idle, key=lambda row: (_held(demand, row), demand.grants[row].card))


def _held(demand: Demand, row: int) -> float:
    used = demand.used_bytes[row]
    return float(np.nanmax(used)) if np.isfinite(used).any() else float(demand.grants[row].framebuffer_granted_bytes)
