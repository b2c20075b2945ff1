"""What somebody who may see some namespaces is shown of a fleet, a plan and an outcome: theirs, and nothing beside.

Whatever counts the cluster as a whole is counted anew over what they see or left out, never shown: a total says
something of others. Pure; called by `scoped`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace

from fleet.decisions import FreedCard, Plan, Recommendation, Stage, Totals
from fleet.inventory import WorkloadId
from fleet.money.saving import cards_in, saved
from fleet.profiles import CardProfile, Profiles
from fleet.sentences import Sentence, Value, sentence

SHARED_WITH_OTHERS = "shared with another namespace"
"""Reason of a card of which somebody sees a part of the workloads."""
_WORKLOAD = re.compile(r"[^\s/,;:()'\"]+/[^\s/,;:()'\"]+/[^\s/,;:()'\"]+")
"""`namespace/Kind/name` in a sentence."""


def namespace_of(workload: str) -> str:
    """Namespace of `namespace/Kind/name`."""
    return workload.split("/", 1)[0]


def without_others(said: Sentence | str, namespaces: frozenset[str]) -> Sentence | str:
    """A sentence that leaves workloads of other namespaces unnamed: a reason may name the neighbour."""
    return without_workloads(said, lambda workload: namespace_of(workload) in namespaces)


def without_workloads(said: Sentence | str, is_theirs: Callable[[str], bool]) -> Sentence | str:
    """A sentence that leaves every workload unnamed that is not theirs."""
    if isinstance(said, str):
        return _WORKLOAD.sub(lambda found: found[0] if is_theirs(found[0]) else "a workload of another namespace", said)
    values = (
        (name, without_workloads(value, is_theirs) if isinstance(value, str | Sentence) else value)
        for name, value in said.values
    )
    return replace(said, values=tuple(values))


def cut_profiles(profiles: Profiles, namespaces: frozenset[str]) -> Profiles:
    """Their workloads, and the cards that these are on."""
    workloads = tuple(
        replace(
            profile,
            rises_with=_theirs(profile.rises_with, namespaces),
            beside=tuple(one for one in profile.beside if namespace_of(one.neighbour) in namespaces),
        )
        for profile in profiles.workloads
        if profile.namespace in namespaces
    )
    cards = tuple(_cut_card(card, namespaces) for card in profiles.cards if _theirs(card.workloads, namespaces))
    return replace(profiles, workloads=workloads, cards=cards, unallocated=(), withheld=())


def cut_plan(plan: Plan, namespaces: frozenset[str]) -> Plan:
    """The advice that concerns them alone, counted anew; it keeps the plan's id, and no longer its content."""
    return cut_plan_to(plan, lambda workload: namespace_of(workload) in namespaces)


def cut_plan_to(plan: Plan, is_theirs: Callable[[str], bool]) -> Plan:
    """The advice that concerns some workloads alone, counted anew.

    Args:
        plan: the plan; the cut keeps its id, and no longer its content.
        is_theirs: says of `namespace/Kind/name` whether it is one of them.
    """
    # Advice that names somebody else's workload as well is not shown: its reason names both.
    own = tuple(item for item in plan.recommendations if all(map(is_theirs, item.workloads)))
    by_id = {item.id: item for item in own}
    placement = tuple(
        replace(card, slices=tuple(part for part in card.slices if is_theirs(part.workload)))
        for card in plan.placement
        if any(is_theirs(part.workload) for part in card.slices)
    )
    schedule = tuple(entry for entry in plan.schedule if is_theirs(entry.workload))
    return replace(
        plan,
        settings=(),
        recommendations=tuple(
            replace(
                item,
                conflicts_with=tuple(name for name in item.conflicts_with if name in by_id),
                why=tuple(replace(one, values=_cut_values(one.values, is_theirs)) for one in item.why),
            )
            for item in own
        ),
        refused=tuple(
            replace(item, values=_cut_values(item.values, is_theirs))
            for item in plan.refused
            if is_theirs(item.workload)
        ),
        withheld=(),
        backtested=None,
        placement=placement,
        schedule=schedule,
        stages=tuple(
            _cut_stage(stage, [by_id[name] for name in stage.recommendations if name in by_id])
            for stage in plan.stages
            if by_id.keys() & set(stage.recommendations)
        ),
        frontier=(),
        # A node is of the cluster as a whole.
        node_switch=None,
        node_release=None,
        freed_nodes=(),
        policies=tuple(one for one in plan.policies or () if is_theirs(one.workload)) or None,
        # What people carry out by hand counts in no total.
        totals=_totals(tuple(item for item in own if item not in plan.by_hand), len(placement)),
    )


def _cut_values(
    values: tuple[tuple[str, Value], ...], is_theirs: Callable[[str], bool]
) -> tuple[tuple[str, Value], ...]:
    """What is in a sentence, without a workload that is another's: it is then said without it."""
    return tuple(
        (name, value)
        for name, value in values
        if not isinstance(value, str) or without_workloads(value, is_theirs) == value
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
    return card if own == card.workloads else replace(card, workloads=own, reason=SHARED_WITH_OTHERS)


def _cut_stage(stage: Stage, own: list[Recommendation]) -> Stage:
    return replace(
        stage,
        # The title of a stage may count what it does to everybody.
        title=stage.title if len(own) == len(stage.recommendations) else _title_of_part(own),
        recommendations=tuple(item.id for item in own),
        cards_freed=cards_in(_kept_free(own)),
        moves=sum(len(item.pods) for item in own),
    )


def _title_of_part(own: list[Recommendation]) -> Sentence:
    return sentence("part", kinds=", ".join(dict.fromkeys(item.kind.value for item in own)))


def _totals(own: tuple[Recommendation, ...], cards: int) -> Totals:
    freed = cards_in(_kept_free(own))
    spare = sum(card.is_spare for item in own for card in item.freed)
    return Totals(
        cards_before=cards + freed + spare,
        cards_after=cards,
        cards_freed=freed,
        spare_cards=spare,
        nodes_freed=0,
        framebuffer_bytes_freed=0,
        low_priority_gpu_hours_per_week=sum((item.low_priority_gpu_hours_per_week for item in own), start=0.0),
        saving_per_week=saved(_kept_free(own)),
        predicted_violation_ratio=max((item.violation_ratio for item in own), default=0.0),
        moves=sum(len(item.pods) for item in own),
    )


def _kept_free(own: Iterable[Recommendation]) -> list[FreedCard]:
    """Cards that are freed for good: spares stay in use."""
    return [card for item in own for card in item.freed if not card.is_spare]


def _theirs(workloads: tuple[WorkloadId, ...], namespaces: frozenset[str]) -> tuple[WorkloadId, ...]:
    return tuple(workload for workload in workloads if namespace_of(workload) in namespaces)
