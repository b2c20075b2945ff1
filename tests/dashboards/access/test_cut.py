"""What a team is shown of a fleet and a plan: its own, counted anew."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from dashboards.access.namespace_cut import cut_plan, cut_profiles, namespace_of, stage_namespaces
from fleet.decisions import RecommendationKind, Refusal
from fleet.documents import document
from fleet.inventory import WorkloadId
from fleet.profiles import NeighbourEffect
from fleet.sentences import sentence
from tests.dashboards.embedded import CLUSTER, make_views
from tests.english import english

VIEWS, _ = make_views()
PROFILES = VIEWS.fleet.profiles(CLUSTER)
PLAN = VIEWS.plans.plans(CLUSTER)[0].plan
OWN = frozenset({"team-3", "team-12"})
STRANGERS = {
    profile.workload.split("/", 2)[2] for profile in PROFILES.workloads if profile.namespace not in OWN
} | {pod for profile in PROFILES.workloads if profile.namespace not in OWN for pod in profile.pods}  # fmt: skip


@pytest.mark.parametrize("cut", [cut_profiles(PROFILES, OWN), cut_plan(PLAN, OWN)], ids=["profiles", "plan"])
def test_nothing_of_others_is_left(cut: object) -> None:
    words = set(re.findall(r"[\w.-]+", json.dumps(document(cut), default=str)))
    assert not words & STRANGERS


def test_neighbours_of_other_namespaces_are_not_named() -> None:
    first = next(entry for entry in PROFILES.workloads if entry.namespace in OWN)
    effects = tuple(
        NeighbourEffect(
            neighbour=WorkloadId(name), measured_by="latency_p99_seconds", days=5, speed_ratio=0.8,
            speed_ratio_min=0.7, speed_ratio_max=0.9,
        )
        for name in ("team-12/Job/own", "team-1/Job/other")
    )  # fmt: skip
    met = replace(PROFILES, workloads=(replace(first, beside=effects),))
    assert [one.neighbour for one in cut_profiles(met, OWN).workloads[0].beside] == ["team-12/Job/own"]


def test_everything_of_their_own_is_left() -> None:
    cut = cut_profiles(PROFILES, OWN)
    assert cut.workloads == tuple(entry for entry in PROFILES.workloads if entry.namespace in OWN)
    held = {card for profile in cut.workloads for card in profile.cards}
    assert held <= {card.card for card in cut.cards}


def test_totals_of_a_cut_plan_are_those_of_what_is_shown() -> None:
    cut = cut_plan(PLAN, OWN)
    assert cut.recommendations
    totals, named = cut.totals, [card for item in cut.recommendations for card in item.freed]
    assert 0 < totals.cards_freed < PLAN.totals.cards_freed
    assert 0 < totals.spare_cards < PLAN.totals.spare_cards
    assert totals.cards_freed + totals.spare_cards == len(named) == totals.cards_before - totals.cards_after
    assert totals.saving_per_week.amortised == sum(
        card.saving_per_week.amortised or 0 for card in named if not card.is_spare
    )
    assert sum(stage.cards_freed for stage in cut.stages) == cut.totals.cards_freed
    assert {name for stage in cut.stages for name in stage.recommendations} == {i.id for i in cut.recommendations}
    assert not cut.frontier
    assert not cut.withheld
    assert not cut.settings


def test_what_is_done_by_hand_counts_in_no_total_of_a_team() -> None:
    """Its requests may be late, and its pods restart, only where people carry it out."""
    first = next(item for item in cut_plan(PLAN, OWN).recommendations if item.pods)
    by_hand = replace(
        first, id="sleep-0001", kind=RecommendationKind.SLEEP, cards_freed=0, freed=(), violation_ratio=0.9
    )
    cut = cut_plan(replace(PLAN, recommendations=(*PLAN.recommendations, by_hand)), OWN)
    assert cut.by_hand
    assert cut.totals == cut_plan(PLAN, OWN).totals


def test_stage_touches_those_who_come_to_share_a_card_too() -> None:
    (first,) = [stage for stage in PLAN.stages if stage.stage == 1]
    changed = {
        namespace_of(workload)
        for item in PLAN.recommendations
        if item.id in first.recommendations
        for workload in item.workloads
    }
    assert changed <= stage_namespaces(PLAN, (1,))
    neighbours = {
        part.namespace
        for card in PLAN.placement
        if {part.workload for part in card.slices}
        & {w for item in PLAN.recommendations if item.id in first.recommendations for w in item.workloads}
        for part in card.slices
    }
    assert stage_namespaces(PLAN, (1,)) == changed | neighbours


def test_reason_names_no_neighbour_of_another_namespace() -> None:
    mine = next(profile.workload for profile in PROFILES.workloads if profile.namespace in OWN)
    values = (("neighbour", "ads/Deployment/secret-launch"),)
    refused = Refusal(workload=mine, reason="neighbour_stays", values=values)
    advice = next(item for item in PLAN.recommendations if {namespace_of(name) for name in item.workloads} <= OWN)
    moved = replace(advice, why=(sentence("rehome_aside", pods=1, nodes=1, named="ads/Deployment/secret-launch"),))
    plan = replace(
        PLAN,
        refused=(refused,),
        recommendations=tuple(moved if item.id == advice.id else item for item in PLAN.recommendations),
    )
    cut = cut_plan(plan, OWN)
    assert "secret-launch" not in json.dumps(document(cut), default=str)
    assert english(cut.refused[0]) == "it shares a card with a workload that stays as it is"


def test_title_of_a_stage_that_others_share_counts_nothing_of_theirs() -> None:
    counted = replace(
        PLAN, stages=tuple(replace(stage, title=sentence("mig_waits", cards=5, pods=12)) for stage in PLAN.stages)
    )
    whole = {stage.stage: set(stage.recommendations) for stage in PLAN.stages}
    cut = cut_plan(counted, OWN)
    parts = [stage for stage in cut.stages if set(stage.recommendations) < whole[stage.stage]]
    assert parts
    assert all(english(stage).startswith("Your part of it: ") for stage in parts)
