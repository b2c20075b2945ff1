"""The rules of Volcano's shares decide as Volcano itself did, node by node, in every recorded case.

A line's `nodes` lists cards as [UUID, slices, MiB, model] and False where one is unhealthy; `held` lists other pods'
nodes, annotations and groups; `out` holds per node the annotation and the score, or the words of the refusal. Lines
with `since` hold for 1.16.0-alpha.1; it decided the others as v1.15.1 did, but for the two that name cards.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cluster.volcano_rules import Card, Manifest, Unfit, book, is_asking, place, read_register

FILE = Path(__file__).with_name("volcano_decisions.jsonl")
RECORDED = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]


def test_there_are_as_many_cases_as_were_recorded() -> None:
    assert len({case["rule"] for case in RECORDED}) == len(RECORDED) >= 220


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: case["rule"])
def test_nodes_take_and_refuse_as_recorded(case: Manifest) -> None:
    assert {name: decision(case, name, cards) for name, cards in case["nodes"]} == case["out"]


def decision(case: Manifest, node: str, cards: list[list[object]]) -> Manifest:
    """What a node answers to the pod of a case."""
    known = read_register(register(cards))
    if not known:
        return {"refused": "no devices"}
    for holder, ids, *group in case.get("held", ()):
        if holder == node:
            book(known, ids, *group)
    pod = pod_of(case)
    if not is_asking(pod):
        return {"unasked": True}
    try:
        ids, score = place(pod, known, case.get("policy", ""), knows_cards="since" in case)
    except Unfit as refusal:
        return {"refused": str(refusal)}
    return {"ids": ids, "score": pytest.approx(score), "phase": "allocating"}


def register(cards: list[list[object]]) -> str:
    """The register's text of such cards."""
    parts = []
    for card, count, mib, model, *health in cards:
        kind = str(model) if str(model).startswith("Tesla") else f"NVIDIA-NVIDIA {model}"
        parts.append(f"{card},{count},{mib},{kind},{'false' if health else 'true'},hami-core:")
    return "".join(parts)


def pod_of(case: Manifest) -> Manifest:
    """The pod as its user sent it."""
    spec = {"containers": [{"name": "c", "resources": {"limits": limits}} for limits in case["pod"]["containers"]]}
    return {"metadata": {"name": "p", "annotations": case["pod"].get("annotations", {})}, "spec": spec}


def test_cards_are_left_as_they_are() -> None:
    cards = read_register(register([["a0", 10, 24576, "A10"]]))
    limits = {"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "1000"}
    pod = {"metadata": {}, "spec": {"containers": [{"name": "c", "resources": {"limits": limits}}]}}
    assert place(pod, cards, "", knows_cards=True) == place(pod, cards, "", knows_cards=True)
    assert cards == [Card(card="a0", index=0, slices_max=10, mib=24576, device_type="NVIDIA-NVIDIA A10")]
