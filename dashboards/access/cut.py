"""What somebody who may see some namespaces is shown of a fleet, a plan and an outcome: theirs, and nothing beside.

Whatever counts the cluster as a whole is counted anew over what they see or left out, never shown: a total tells of
others. Pure; called by `scoped`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from decimal import Decimal

from fleet.decisions import Plan, Recommendation, Saving, Stage, Totals
from fleet.inventory import WorkloadId
from fleet.profiles import CardProfile, Profiles

_WORKLOAD = re.compile(r"[^\s/,;:()'\"]+/[^\s/,;:()'\"]+/[^\s/,;:()'\"]+")
"""`namespace/Kind/name` in a sentence."""


def namespace_of(workload: str) -> str:
    """Namespace of `namespace/Kind/name`."""
    return workload.split("/", 1)[0]


def without_others(text: str, namespaces: frozenset[str]) -> str:
    """A sentence that leaves workloads of other namespaces unnamed: a reason may tell of the neighbour."""
    return _WORKLOAD.sub(
        lambda found: found[0] if namespace_of(found[0]) in namespaces else "a workload of another namespace", text
    )


def cut_profiles(profiles: Profiles, namespaces: frozenset[str]) -> Profiles:
    """Their workloads, and the cards that these are on."""
    workloads = tuple(
        replace(profile, rises_with=_theirs(profile.rises_with, namespaces))
        for profile in profiles.workloads
        if profile.namespace in namespaces
    )
    cards = tuple(_cut_card(card, namespaces) for card in profiles.cards if _theirs(card.workloads, namespaces))
    return replace(profiles, workloads=workloads, cards=cards, unallocated=(), withheld=())


def cut_plan(plan: Plan, namespaces: frozenset[str]) -> Plan:
    """The advice that concerns them alone, counted anew; it keeps the plan's id, and no longer its content."""
    own = tuple(item for item in plan.recommendations if _is_theirs(item, namespaces))
    by_id = {item.id: item for item in own}
    placement = tuple(
        replace(card, slices=tuple(part for part in card.slices if part.namespace in namespaces))
        for card in plan.placement
        if any(part.namespace in namespaces for part in card.slices)
    )
    schedule = tuple(entry for entry in plan.schedule if namespace_of(entry.workload) in namespaces)
    return replace(
        plan,
        settings=(),
        recommendations=tuple(
            replace(
                item,
                conflicts_with=tuple(name for name in item.conflicts_with if name in by_id),
                reason=without_others(item.reason, namespaces),
                change_of_mind=without_others(item.change_of_mind, namespaces),
            )
            for item in own
        ),
        refused=tuple(
            replace(item, detail=without_others(item.detail, namespaces))
            for item in plan.refused
            if namespace_of(item.workload) in namespaces
        ),
        withheld=(),
        placement=placement,
        schedule=schedule,
        stages=tuple(
            _cut_stage(stage, [by_id[name] for name in stage.recommendations if name in by_id])
            for stage in plan.stages
            if by_id.keys() & set(stage.recommendations)
        ),
        frontier=(),
        totals=_totals(own, len(placement)),
    )


def stage_namespaces(plan: Plan, stages: Iterable[int]) -> frozenset[str]:
    """Namespaces that stages touch: of the workloads they change, and of those who come to share a card with these."""
    chosen = set(stages)
    named = {name for stage in plan.stages if stage.stage in chosen for name in stage.recommendations}
    changed = {workload for item in plan.recommendations if item.id in named for workload in item.workloads}
    neighbours = {
        part.workload
        for card in plan.placement
        if any(part.workload in changed for part in card.slices)
        for part in card.slices
    }
    return frozenset(namespace_of(workload) for workload in changed | neighbours)


def _cut_card(card: CardProfile, namespaces: frozenset[str]) -> CardProfile:
    own = _theirs(card.workloads, namespaces)
    return card if own == card.workloads else replace(card, workloads=own, reason="shared with another namespace")


def _cut_stage(stage: Stage, own: list[Recommendation]) -> Stage:
    return replace(
        stage,
        # The title of a stage may count what it does to everybody.
        title=stage.title if len(own) == len(stage.recommendations) else _title_of_part(own),
        recommendations=tuple(item.id for item in own),
        cards_freed=sum(item.cards_freed for item in own),
        moves=sum(len(item.pods) for item in own),
    )


def _title_of_part(own: list[Recommendation]) -> str:
    kinds = dict.fromkeys(item.kind.value.replace("_", " ") for item in own)
    return f"Your part of it: {', '.join(kinds)}"


def _totals(own: tuple[Recommendation, ...], cards: int) -> Totals:
    freed = sum(item.cards_freed for item in own)
    return Totals(
        cards_before=cards + freed,
        cards_after=cards,
        cards_freed=freed,
        spare_cards=0,
        nodes_freed=0,
        framebuffer_bytes_freed=0,
        low_priority_gpu_hours_per_week=sum((item.low_priority_gpu_hours_per_week for item in own), start=0.0),
        saving_per_week=Saving(
            amortised=_sum(item.saving_per_week.amortised for item in own),
            marginal=_sum(item.saving_per_week.marginal for item in own),
        ),
        predicted_violation_ratio=max((item.violation_ratio for item in own), default=0.0),
        moves=sum(len(item.pods) for item in own),
    )


def _sum(values: Iterable[Decimal | None]) -> Decimal | None:
    """Sum of what is known; None where nothing is."""
    known = [value for value in values if value is not None]
    return sum(known, Decimal(0)) if known else None


def _is_theirs(item: Recommendation, namespaces: frozenset[str]) -> bool:
    """Advice that names somebody else's workload as well is not shown: its reason tells of both."""
    return all(namespace_of(workload) in namespaces for workload in item.workloads)


def _theirs(workloads: tuple[WorkloadId, ...], namespaces: frozenset[str]) -> tuple[WorkloadId, ...]:
    return tuple(workload for workload in workloads if namespace_of(workload) in namespaces)
