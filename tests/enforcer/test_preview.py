"""A preview shows all that a stage does: objects made and changed, nodes emptied and waited for, cards counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from enforcer.backends.hami import HamiBackend
from enforcer.backends.nvidia_sharing import TimeSlicingBackend
from enforcer.node_preview import NodeDiff
from enforcer.preview import ObjectDiff, place_lines, preview
from fleet.decisions import Plan, RecommendationKind, Stage
from fleet.sentences import sentence
from tests.enforcer.builders import NOW, a_cluster, a_recommendation, standard_plan
from tests.enforcer.plugin_cluster import StandingCluster, standard_objects
from tests.enforcer.preview_text import preview_text
from tests.enforcer.test_backend_nvidia_sharing import shared_node

SLICING = TimeSlicingBackend(NOW)


def test_node_that_is_shared_by_replicas_is_shown_emptied_waited_for_and_opened_with_its_cards() -> None:
    (stage,) = preview(shared_node(), StandingCluster(standard_objects()), SLICING)
    assert stage.refusal is None
    (node,) = (found for found in stage.nodes if found.node == "node-0")
    assert node.steps[0].startswith("is closed to new pods and emptied: team/a-0")
    assert "is waited for until status.allocatable[nvidia.com/gpu.shared] is 8 (now None)" in node.steps
    assert node.steps[-1] == "is opened again"
    assert (node.cards_before, node.cards_after, node.cards_freed) == (4, 2, 2)
    cards = {(card.node, str(card.card)): (card.before, card.after) for card in stage.cards}
    pods = ("team/a-0", "team/a-1", "team/b-0", "team/b-1")
    assert cards["node-0", "nvidia.com/gpu"] == (pods, ())
    assert cards["node-0", "nvidia.com/gpu.shared"] == ((), pods)
    assert stage.cards_freed == 2


def test_counted_resource_that_nobody_asks_for_any_more_is_no_freed_card() -> None:
    (stage,) = preview(shared_node(), StandingCluster(standard_objects()), SLICING)
    assert not any(card.freed > 0 for card in stage.cards)


def test_preview_of_nodes_is_read_by_people() -> None:
    text = preview_text(preview(shared_node(), StandingCluster(standard_objects()), SLICING))
    assert "node-0: 4 cards held -> 2" in text
    assert "node-0: is closed to new pods and emptied" in text
    assert "node-0 nvidia.com/gpu.shared: free -> team/a-0, team/a-1, team/b-0, team/b-1" in text
    assert "+++ Node /node-0 planned" in text


def test_node_by_uuids_has_its_cards_one_by_one_and_no_count(tmp_path: Path) -> None:
    stages = preview(standard_plan(), a_cluster(tmp_path), HamiBackend(NOW))
    assert all(node.cards_before is None for stage in stages for node in stage.nodes)
    assert sum(stage.cards_freed for stage in stages) == 4
    assert any("free" in line for stage in stages for line in place_lines(stage))


def test_objects_that_are_made_first_are_shown_whole() -> None:
    made = ObjectDiff(
        kind="ResourceClaim", namespace="team", name="gputide-1", recommendation="", resource_version="", before="",
        after="kind: ResourceClaim\nmetadata:\n  name: gputide-1\n",
    )  # fmt: skip
    assert made.text.splitlines()[0] == "--- ResourceClaim team/gputide-1 now"
    assert [line for line in made.text.splitlines()[3:] if not line.startswith("+")] == []


def test_counted_node_that_fills_up_frees_nothing() -> None:
    assert NodeDiff(node="n", steps=(), cards_before=2, cards_after=4).cards_freed == 0


def test_second_stage_counts_from_where_the_first_one_left() -> None:
    plan = shared_node()
    (first,) = preview(plan, StandingCluster(standard_objects()), SLICING)
    twice = _with_second_stage(plan, RecommendationKind.SLICE)
    one, two = preview(twice, StandingCluster(standard_objects()), SLICING)
    assert one.cards_freed == first.cards_freed
    assert two.cards_freed == 0


def test_stage_of_the_tide_changes_nothing_and_says_who_plays_it() -> None:
    plan = _with_second_stage(shared_node(), RecommendationKind.TIDE, ["a-0"], ["Deployment/a"])
    _, tide = preview(plan, StandingCluster(standard_objects()), SLICING)
    assert (tide.objects, tide.moves, tide.cards, tide.cards_freed, tide.refusal) == ((), (), (), 0, None)
    assert "gputide run tide" in tide.warnings[0]


def _with_second_stage(
    plan: Plan, kind: RecommendationKind, pods: Sequence[str] = (), workloads: Sequence[str] = ()
) -> Plan:
    late = a_recommendation("later", kind, pods, workloads, 0)
    stage = Stage(stage=2, title=sentence("reclaim"), recommendations=("later",), cards_freed=0, moves=0)
    return replace(plan, recommendations=(*plan.recommendations, late), stages=(*plan.stages, stage))
