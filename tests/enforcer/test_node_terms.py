"""A pod is let go to one node on top of what its user asked of nodes."""

from __future__ import annotations

from typing import Any

import pytest

from enforcer.admission import may_go_to, off_node, on_node
from enforcer.manifest import Manifest

ZONE = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
SPOT = {"matchExpressions": [{"key": "spot", "operator": "Exists"}]}


def named(*nodes: str) -> list[dict[str, Any]]:
    return [{"key": "metadata.name", "operator": "In", "values": [node]} for node in nodes]


def a_spec(*terms: Manifest) -> Manifest:
    required = {"nodeSelectorTerms": list(terms)}
    preferred = [{"weight": 1, "preference": SPOT}]
    of_nodes: Manifest = {"preferredDuringSchedulingIgnoredDuringExecution": preferred}
    if terms:
        of_nodes["requiredDuringSchedulingIgnoredDuringExecution"] = required
    return {"containers": [], "affinity": {"nodeAffinity": of_nodes, "podAntiAffinity": {"x": 1}}}


def terms_of(spec: Manifest) -> list[Any]:
    required = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return list(required["nodeSelectorTerms"])


def test_pod_without_terms_gets_one_by_the_name_of_its_node() -> None:
    assert terms_of(on_node({"containers": []}, "n1")) == [{"matchFields": named("n1")}]


def test_each_term_of_the_user_holds_on_the_node_as_well_and_all_else_stays() -> None:
    spec = a_spec(ZONE, {**SPOT, "matchFields": named("n2")})
    found = on_node(spec, "n1")
    assert terms_of(found) == [
        {**ZONE, "matchFields": named("n1")}, {**SPOT, "matchFields": named("n2", "n1")},
    ]  # fmt: skip
    assert found["affinity"]["podAntiAffinity"] == {"x": 1}
    assert "preferredDuringSchedulingIgnoredDuringExecution" in found["affinity"]["nodeAffinity"]
    assert terms_of(spec) == [ZONE, {**SPOT, "matchFields": named("n2")}]


@pytest.mark.parametrize(
    ("terms", "may"),
    [
        ((), True),
        ((ZONE,), True),
        (({"matchFields": named("n2")},), False),
        (({"matchFields": named("n2")}, SPOT), True),
        (({"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n1"]}]},), False),
    ],
)
def test_pod_may_go_where_a_term_by_name_leaves_it_the_node(terms: tuple[Manifest, ...], may: bool) -> None:
    assert may_go_to(a_spec(*terms), "n1") is may


@pytest.mark.parametrize("terms", [(), (ZONE,), (ZONE, {**SPOT, "matchFields": named("n1")})])
def test_pod_that_is_let_go_again_has_its_users_terms_alone(terms: tuple[Manifest, ...]) -> None:
    assert off_node(on_node(a_spec(*terms), "n1"), "n1") == a_spec(*terms)
    assert off_node(on_node({"containers": []}, "n1"), "n1") == {"containers": []}
