"""Where a pod may run by its own word, and where it has room."""

from __future__ import annotations

from typing import Any

import pytest

from enforcer.node_choice import may_run_on, nodes_for, why_no_room

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


def asking(*inits: dict[str, Any], spec: dict[str, Any] | None = None, **amounts: str) -> dict[str, Any]:
    """A pod of one container that asks for amounts of `gpu` (whole cards) and resources by their names."""
    return pod(
        containers=[{"name": "c", "resources": resources(**amounts)}], initContainers=list(inits), **(spec or {})
    )


def resources(**amounts: str) -> dict[str, Any]:
    return {"requests": {{"gpu": "nvidia.com/gpu"}.get(name, name): amount for name, amount in amounts.items()}}


def offering(**amounts: str) -> dict[str, Any]:
    return {**node(), "status": {"allocatable": {"pods": "3", **resources(**amounts)["requests"]}}}


SIDECAR = {"name": "s", "restartPolicy": "Always", "resources": resources(cpu="2")}
INIT = {"name": "i", "resources": resources(cpu="5")}
LIMIT_ALONE = {"containers": [{"name": "c", "resources": {"limits": {"cpu": "3"}}}]}


@pytest.mark.parametrize(
    ("wanted", "others", "short_of"),
    [
        (asking(gpu="1"), [asking(gpu="1")], None),
        (asking(gpu="1"), [asking(gpu="1"), asking(gpu="1")], "0 nvidia.com/gpu left of the 1"),
        (asking(cpu="1500m"), [asking(cpu="7")], "1 cpu left of the 1.5"),
        (asking(cpu="1"), [asking(cpu="7")], None),
        (asking(memory="2Gi"), [asking(memory="63Gi")], "1073741824 memory left of the 2147483648"),
        (asking(), [asking()] * 3, "0 pods left of the 1"),
        (asking(unlisted="9"), [], None),
        # A sidecar runs beside the containers, an init container before them and beside the sidecars.
        (asking(SIDECAR, cpu="6"), [], None),
        (asking(SIDECAR, cpu="7"), [], "8 cpu left of the 9"),
        (asking(SIDECAR, INIT, cpu="1"), [asking(cpu="1")], None),
        (asking(SIDECAR, INIT, cpu="1"), [asking(cpu="2")], "6 cpu left of the 7"),
        (asking(INIT, SIDECAR, cpu="1"), [asking(cpu="3")], None),
        (asking(cpu="1", spec={"overhead": {"cpu": "8"}}), [], "8 cpu left of the 9"),
        (asking(cpu="1", spec={"resources": resources(cpu="9")}), [], "8 cpu left of the 9"),
        (asking(cpu="6"), [pod(**LIMIT_ALONE)], "5 cpu left of the 6"),
    ],
)
def test_room_is_counted_as_the_scheduler_books_it(
    wanted: dict[str, Any], others: list[dict[str, Any]], short_of: str | None
) -> None:
    found = why_no_room(wanted, offering(cpu="8", memory="64Gi", gpu="2"), others)
    assert found == (None if short_of is None else f"node n has {short_of} it asks for")
