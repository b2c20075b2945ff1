"""The rules of KAI's double decide as KAI's scheduler itself did, in every recorded case.

A line's `nodes` lists [name, cards, MiB of each by its label]; `held` lists other pods with their groups; `only` the
nodes that affinity allows; `out` lists every outcome of eight runs, since KAI takes any of cards that are alike: its
status, and the node and groups of a pod that got or awaits a place.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.kai_rules import Ask, Node, Unfit, book, card_mib, place

FILE = Path(__file__).with_name("kai_decisions.jsonl")
RECORDED = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]


def test_there_are_as_many_cases_as_were_recorded() -> None:
    assert len({case["rule"] for case in RECORDED}) == len(RECORDED) >= 190


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: case["rule"])
def test_pods_come_to_the_recorded_node_and_cards(case: dict[str, Any]) -> None:
    nodes = {name: Node(name=name, cards=cards, mib=card_mib(str(mib))) for name, cards, mib in case["nodes"]}
    for pod in case.get("held", ()):
        book(nodes[pod["node"]], ask_of(pod), pod.get("groups", ()), is_going=pod.get("going", False))
    asked = case["pod"]
    try:
        found = place(ask_of(asked), list(nodes.values()), asked.get("only", tuple(nodes)))
    except Unfit:
        assert {status for status, *_ in case["out"]} <= {"Pending", "Pipelined"}
        return

    def seen(status: str, node: str, *groups: str | None) -> list[object]:
        """Of cards that are alike KAI takes any; here a card is what is held on it."""
        held = nodes[node].groups
        return [status, node, sorted(held[one].held if one in held else 0 for one in groups)]

    assert seen("Binding", found.node, *found.groups) in [seen(*outcome) for outcome in case["out"]]


def ask_of(pod: dict[str, Any]) -> Ask:
    portion = pod.get("gpus", 0)
    if portion and portion == int(portion):
        return Ask(whole=int(portion))
    return Ask(devices=pod.get("devices", 1), portion=portion or None, mib=pod.get("mib"))
