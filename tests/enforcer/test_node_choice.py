"""Where a pod may run by its own word."""

from __future__ import annotations

from typing import Any

import pytest

from enforcer.node_choice import may_run_on, nodes_for

ZONE = {"zone": "a", "cards": "8"}
TAINT = {"key": "gpu", "value": "team", "effect": "NoSchedule"}


def node(name: str = "n", *taints: dict[str, str], **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels or ZONE}, "spec": {"taints": list(taints)}}


def pod(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p"}, "spec": spec}


def affine(*terms: dict[str, Any]) -> dict[str, Any]:
    required = {"nodeSelectorTerms": list(terms)}
    return pod(affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}})


def term(key: str, operator: str, *values: str, part: str = "matchExpressions") -> dict[str, Any]:
    return {part: [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("wanted", "may"),
    [
        (pod(), True),
        (pod(nodeSelector={"zone": "a"}), True),
        (pod(nodeSelector={"zone": "b"}), False),
        (affine(term("zone", "In", "a", "b")), True),
        (affine(term("zone", "NotIn", "a")), False),
        (affine(term("none", "NotIn", "a")), True),
        (affine(term("zone", "Exists")), True),
        (affine(term("zone", "DoesNotExist")), False),
        (affine(term("cards", "Gt", "4")), True),
        (affine(term("cards", "Lt", "4")), False),
        (affine(term("zone", "Gt", "4")), False),
        (affine(term("metadata.name", "In", "n", part="matchFields")), True),
        (affine(term("metadata.name", "In", "m", part="matchFields")), False),
        (affine(term("zone", "In", "b"), term("zone", "In", "a")), True),
        (affine({}), False),
        (affine(), False),
    ],
)
def test_selector_and_affinity_are_read_as_the_scheduler_reads_them(wanted: dict[str, Any], may: bool) -> None:
    assert may_run_on(wanted, node()) is may


@pytest.mark.parametrize(
    ("tolerations", "may"),
    [
        ((), False),
        (({"operator": "Exists"},), True),
        (({"key": "gpu", "operator": "Exists"},), True),
        (({"key": "gpu", "value": "team"},), True),
        (({"key": "gpu", "value": "other"},), False),
        (({"key": "gpu", "value": "team", "effect": "NoExecute"},), False),
    ],
)
def test_taint_keeps_off_who_does_not_tolerate_it(tolerations: tuple[dict[str, str], ...], may: bool) -> None:
    assert may_run_on(pod(tolerations=list(tolerations)), node("n", TAINT)) is may
    preferred = {**TAINT, "effect": "PreferNoSchedule"}
    assert may_run_on(pod(tolerations=list(tolerations)), node("n", preferred))


def test_only_nodes_that_fit_are_named() -> None:
    nodes = {"n": node("n"), "m": node("m", zone="b")}
    assert nodes_for(pod(nodeSelector={"zone": "b"}), nodes) == {"m"}
