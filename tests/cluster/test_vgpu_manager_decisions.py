"""The rules of vgpu-manager's double decide as its scheduler extender itself did, in every recorded case.

A line's `nodes` lists cards as [UUID, MiB, model, NUMA node] and what is unusual of them, and what is unusual of the
node; `held` lists other pods; `out` holds the node, its annotation, and why each other node was refused.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.vgpu_manager_rules import (
    CONFIG,
    MEMORY_POLICY,
    PHASE,
    PRE_ALLOCATED,
    REAL_ALLOCATED,
    REGISTER,
    Manifest,
    Unfit,
    admit,
    asks_of,
    book,
    place,
    read_node,
)

FILE = Path(__file__).with_name("vgpu_manager_decisions.jsonl")
RECORDED = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]
USUAL = {"deviceSplit": 10, "coresScaling": 1, "memoryFactor": 1, "memoryScaling": 1}


def test_there_are_as_many_cases_as_were_recorded() -> None:
    assert len({case["rule"] for case in RECORDED}) == len(RECORDED) >= 220


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: case["rule"])
def test_nodes_and_cards_are_chosen_as_recorded(case: dict[str, Any]) -> None:
    pod, out = pod_of(case), case["out"]
    if not asks_of(pod):
        assert out["nodes"] == [node["name"] for node in case["nodes"]]
        return
    policy = pod["metadata"]["annotations"].get(MEMORY_POLICY, "")
    nodes = {
        node["name"]: read_node(node["name"], annotations_of(node), int(node.get("number", "80") or 0), policy)
        for node in case["nodes"]
    }
    for holder in case.get("held", ()):
        if holder.get("labels", {}).get(PHASE) != "failed":
            texts = {PRE_ALLOCATED: holder["text"], REAL_ALLOCATED: holder.get("real", "")}
            book(nodes[holder["node"]], texts)
    if "error" in out:
        with pytest.raises(Unfit) as wrong:
            place(pod, list(nodes.values()))
        assert str(wrong.value) == out["error"]
        return
    chosen, text, failed = place(pod, list(nodes.values()))
    assert ([] if chosen is None else [chosen]) == out["nodes"]
    assert (text, failed) == (out.get("allocated", ""), out.get("failed", {}))


def test_webhook_fills_in_counts_and_the_cores_of_whole_cards() -> None:
    asked = [{"nvidia.com/vgpu-memory": "4000"}, {"nvidia.com/vgpu-number": "1"}, {"cpu": "1"}]
    pod = {"metadata": {}, "spec": {"containers": [{"name": "c", "resources": {"limits": one}} for one in asked]}}
    spec = admit(pod)["spec"]
    assert [one["resources"]["limits"] for one in spec["containers"]] == [
        {"nvidia.com/vgpu-memory": "4000", "nvidia.com/vgpu-number": "1"},
        {"nvidia.com/vgpu-number": "1", "nvidia.com/vgpu-cores": "100"},
        {"cpu": "1"},
    ]
    assert spec["schedulerName"] == "vgpu-scheduler"


def pod_of(case: dict[str, Any]) -> Manifest:
    """The pod as its user sent it."""
    asked = case["pod"]
    spec = {
        key: [
            {"name": f"{letter}{number}", "resources": {"limits": limits}}
            for number, limits in enumerate(asked.get(found, ()))
        ]
        for key, found, letter in (("containers", "containers", "c"), ("initContainers", "init", "i"))
    }
    return {"metadata": {"name": "p", "annotations": asked.get("annotations", {})}, "spec": spec}


def annotations_of(node: dict[str, Any]) -> dict[str, str]:
    """What stands on a node."""
    found = {}
    if node["cards"] is not None:
        found[REGISTER] = json.dumps([entry(number, *card) for number, card in enumerate(node["cards"])])
    if node.get("config", {}) is not None:
        found[CONFIG] = json.dumps(USUAL | node.get("config", {}))
    return found


def entry(index: int, card: str, mib: int, model: str, numa: int, odd: Manifest | None = None) -> Manifest:
    """A card as its node registers it."""
    usual = {"number": 10, "numa": numa, "mig": False, "healthy": True}
    return {"id": index, "uuid": card, "type": model, "core": 100, "memory": mib, **usual, **(odd or {})}
