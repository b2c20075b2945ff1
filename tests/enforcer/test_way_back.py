"""An undo finds room for pods whose old cards are taken or lost since, wherever other cards like them are free."""

from __future__ import annotations

from pathlib import Path

from enforcer.cluster import FieldChange
from enforcer.rollout.run_context import RunContext
from enforcer.simulated.cluster import SimulatedCluster
from fleet.decisions import Plan, RecommendationKind
from fleet.grammars.hami import DEVICES_ALLOCATED_ANNOTATION
from fleet.sentences import Sentence
from tests.enforcer.builders import (
    CARD_BYTES,
    a_cluster,
    a_grant,
    a_plan,
    a_recommendation,
    a_rollout,
    a_slice,
    an_undo,
    card_id,
    some_tools,
)

PODS = ["a-0", "a-1"]


def two_pods_to(card: int) -> Plan:
    placed = [a_slice(pod, framebuffer_bytes=CARD_BYTES // 2) for pod in PODS]
    advice = a_recommendation("colocate-1", RecommendationKind.COLOCATE, PODS, ["Deployment/a"], 1)
    return a_plan({card: placed}, [[advice]], cards_before=2)


def applied(folder: Path, cards: int, old: tuple[int, int] = (0, 1), new: int = 2) -> RunContext:
    """Two pods that stood on a card each and share one now."""
    grants = [a_grant("a", number, card) for number, card in enumerate(old)]
    tools = some_tools(a_cluster(folder, grants, cards=cards), folder)
    a_rollout(tools).apply(two_pods_to(new), by="ada")
    return tools


def write(tools: RunContext, kind: str, namespace: str, name: str, annotation: str, text: str) -> None:
    found = tools.reader.get(kind, namespace, name)
    assert found is not None
    change = FieldChange(field=f"metadata.annotations[{annotation}]", value=text)
    tools.writer.patch(kind, namespace, name, [change], found["metadata"]["resourceVersion"])


def lowered(tools: RunContext) -> tuple[Sentence, ...]:
    undo = an_undo(tools)
    (plan_id,) = undo.applied_plans()
    return undo.way_back(undo.preview(plan_id))[1]


def go_to_card_1(tools: RunContext) -> None:
    """A pod that was made anew came to an old card of its own workload."""
    pod = tools.reader.list_objects("Pod", "team")[0]
    text = pod["metadata"]["annotations"][DEVICES_ALLOCATED_ANNOTATION].replace(card_id(2), card_id(1))
    write(tools, "Pod", "team", pod["metadata"]["name"], DEVICES_ALLOCATED_ANNOTATION, text)


def test_old_card_on_which_a_pod_of_the_workload_came_up_is_made_good_by_a_free_one(tmp_path: Path) -> None:
    tools = applied(tmp_path, cards=12)
    assert lowered(tools) == ()
    go_to_card_1(tools)
    assert lowered(tools) == ()


def test_old_card_that_is_lost_is_made_good_by_a_free_one(tmp_path: Path) -> None:
    tools = applied(tmp_path, cards=12, old=(0, 4), new=5)
    assert isinstance(tools.reader, SimulatedCluster)
    tools.reader.delete("Node", "", "node-0")
    assert lowered(tools) == ()


def test_without_a_free_card_the_gap_is_said(tmp_path: Path) -> None:
    tools = applied(tmp_path, cards=3)
    go_to_card_1(tools)
    assert len(lowered(tools)) == 1
