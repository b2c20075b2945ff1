"""A template names the nodes that a plan gives its pods, on top of what its user asked, and undo gives that back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from enforcer.backends.hami import HamiBackend
from enforcer.backends.node_terms import NODES_MAX, TERMS_PATH, node_terms
from enforcer.cluster import FieldChange
from enforcer.kinds.register import pod_templates
from enforcer.manifest import Manifest, field_of
from enforcer.simulated.cluster import SimulatedCluster
from enforcer.snapshot import take_snapshot
from fleet.decisions import Plan, RecommendationKind
from fleet.documents import seal_plan
from tests.enforcer.builders import (
    NOW,
    a_cluster,
    a_grant,
    a_plan,
    a_recommendation,
    a_rollout,
    a_slice,
    an_undo,
    some_tools,
)

ZONE = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
SPOT = {"matchExpressions": [{"key": "spot", "operator": "Exists"}]}


def named(node: str) -> list[dict[str, Any]]:
    return [{"key": "metadata.name", "operator": "In", "values": [node]}]


def an_owner(*terms: Manifest) -> Manifest:
    found: Manifest = {"metadata": {}, "spec": {"template": {"spec": {"containers": []}}}}
    if terms:
        required = {"nodeSelectorTerms": list(terms)}
        affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
        found["spec"]["template"]["spec"]["affinity"] = affinity
    return found


def terms_of(owner: Manifest, *nodes: str) -> list[Any]:
    (text,) = node_terms(owner, nodes).values()
    return list(json.loads(text or ""))


def test_each_node_has_a_term_of_its_own_for_a_field_selector_takes_one_name() -> None:
    assert terms_of(an_owner(), "n2", "n1", "n2") == [{"matchFields": named("n1")}, {"matchFields": named("n2")}]


def test_what_the_user_asked_holds_on_every_planned_node() -> None:
    assert terms_of(an_owner(ZONE, SPOT), "n1", "n2") == [
        {**term, "matchFields": named(node)} for term in (ZONE, SPOT) for node in ("n1", "n2")
    ]


def test_each_template_of_an_owner_keeps_its_own_users_terms() -> None:
    head, group = ({"spec": {"containers": [], "affinity": _ours(term)}} for term in (ZONE, SPOT))
    places = ("spec.headGroupSpec.template", "spec.workerGroupSpecs[gpu].template")
    told = {
        path.replace("spec.template", place, 1): json.dumps([term])
        for place, term in zip(places, (ZONE, SPOT), strict=True)
        for path in [TERMS_PATH]
    }
    owner: Manifest = {
        "kind": "RayCluster",
        "metadata": {"name": "ray", "annotations": {"gputide.io/previous": json.dumps(told)}},
        "spec": {
            "headGroupSpec": {"template": head},
            "workerGroupSpecs": [{"groupName": "gpu", "template": group}],
        },
    }
    found = [terms_of(template.view(owner), "n2") for template in pod_templates(owner)]
    assert found == [[{**ZONE, "matchFields": named("n2")}], [{**SPOT, "matchFields": named("n2")}]]


def _ours(term: Manifest) -> Manifest:
    """The affinity of a template after a first plan for node n1."""
    terms = {"nodeSelectorTerms": [{**term, "matchFields": named("n1")}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


def test_workload_that_is_spread_too_wide_is_left_without_terms() -> None:
    assert node_terms(an_owner(), [f"n{number}" for number in range(NODES_MAX + 1)]) == {}
    assert node_terms(an_owner(), []) == {}


def on_nodes(*cards: int) -> Plan:
    placement = {card: [a_slice(f"a-{number}")] for number, card in enumerate(cards)}
    pods = [f"a-{number}" for number in range(len(cards))]
    return a_plan(placement, [[a_recommendation("x", RecommendationKind.SLICE, pods, ["Deployment/a"], 0)]])


def owner_in(cluster: SimulatedCluster) -> Manifest:
    found = cluster.get("Deployment", "team", "a")
    assert found is not None
    return found


def with_terms(folder: Path) -> SimulatedCluster:
    cluster = a_cluster(folder, [a_grant("a", number, number) for number in range(2)])
    change = FieldChange(field=TERMS_PATH, value=json.dumps([ZONE], sort_keys=True))
    cluster.patch("Deployment", "team", "a", [change], owner_in(cluster)["metadata"]["resourceVersion"])
    cluster.pause(600)
    return cluster


def test_undo_gives_the_users_own_terms_back(tmp_path: Path) -> None:
    cluster = with_terms(tmp_path)
    before, tools = owner_in(cluster)["spec"], some_tools(cluster, tmp_path)
    snapshot = take_snapshot(cluster)
    names = [seat.pod for seats in snapshot.pods.values() for seat in seats]
    plan = a_plan(
        {4: [a_slice("a-0")], 1: [a_slice("a-1")]},
        [[a_recommendation("x", RecommendationKind.SLICE, ["a-0", "a-1"], ["Deployment/a"], 0)]],
    )
    assert names
    (result,) = a_rollout(tools).apply(_for(plan, names), by="ann")
    assert result.reason is None
    terms = json.loads(field_of(owner_in(cluster), TERMS_PATH) or "[]")
    assert terms == [{**ZONE, "matchFields": named(node)} for node in ("node-0", "node-1")]
    an_undo(tools).undo(_for(plan, names).plan_id)
    assert owner_in(cluster)["spec"] == before


def _for(plan: Plan, names: list[str]) -> Plan:
    """The plan with the names that the pods have by now."""
    called = dict(zip(("a-0", "a-1"), sorted(names), strict=True))
    placement = tuple(
        replace(card, slices=tuple(replace(part, pod=called[part.pod]) for part in card.slices))
        for card in plan.placement
    )
    entries = tuple(
        replace(entry, pods=tuple(f"team/{called[pod.removeprefix('team/')]}" for pod in entry.pods))
        for entry in plan.recommendations
    )
    return seal_plan(replace(plan, plan_id="", placement=placement, recommendations=entries))


def test_second_plan_names_its_own_nodes_and_no_longer_those_of_the_first(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path, [a_grant("a", 0, 0)])
    tools = some_tools(cluster, tmp_path)
    a_rollout(tools).apply(on_nodes(4), by="ann")
    (name,) = [seat.pod for seats in take_snapshot(cluster).pods.values() for seat in seats]
    plan = _one(on_nodes(0), name)
    rendered = HamiBackend(NOW).render(plan, 1, take_snapshot(cluster))
    (change,) = (entry for entry in rendered.changes if entry.field == TERMS_PATH)
    assert json.loads(change.new or "") == [{"matchFields": named("node-0")}]


def _one(plan: Plan, name: str) -> Plan:
    placement = tuple(
        replace(card, slices=tuple(replace(part, pod=name) for part in card.slices)) for card in plan.placement
    )
    entries = tuple(replace(entry, pods=(f"team/{name}",)) for entry in plan.recommendations)
    return replace(plan, placement=placement, recommendations=entries)
