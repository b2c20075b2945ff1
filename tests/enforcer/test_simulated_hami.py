"""The simulated cluster admits and places pods as HAMi itself did, in every recorded case that it simulates.

Left out: init containers with cards, NUMA binding, links between cards, modes, quotas, weights of scores, registers
that HAMi's own plugin does not write, and pods that never reach the webhook.
"""

from __future__ import annotations

import pytest

from enforcer.manifest import Manifest
from enforcer.simulated.books import Allocation, CardBook, NodeBook, Unplaced, book
from enforcer.simulated.hami import HAMI_SYSTEM
from fleet.errors import Refused
from fleet.grammars.hami import parse_devices_allocated
from tests.cluster.hami_recorded import RECORDED, held_by, nodes_of, pod_of
from tests.cluster.hami_rules import amount

UNSIMULATED = ("nvidia.com/numa-bind", "nvidia.com/vgpu-mode", "hami.io/device-scoring-weights")


def is_simulated(case: Manifest) -> bool:
    """Say whether everything that matters in a case is in a simulated cluster."""
    pod, cards = case["pod"], [card for node in nodes_of(case) for card in node.cards]
    annotations = pod.get("annotations", {})
    return not (
        "quota" in case
        or "init" in pod
        or any("init" in odd for _, _, odd in held_by(case))
        or annotations.keys() & set(UNSIMULATED)
        or "topology-aware" in annotations.get("hami.io/gpu-scheduler-policy", "")
        or any(card.cores != 100 or not card.device_type.startswith("NVIDIA-") for card in cards)
        or "labels" in pod
        or pod.get("schedulerName", "hami-scheduler") != "hami-scheduler"
    )


SIMULATED = [case for case in RECORDED if is_simulated(case)]
PLACED = [case for case in SIMULATED if case["out"].keys() & {"nodes", "failed"}]


def test_most_recorded_cases_are_simulated() -> None:
    assert len(SIMULATED) >= 260


@pytest.mark.parametrize("case", SIMULATED, ids=lambda case: case["rule"])
def test_webhook_admits_and_denies_as_hami(case: Manifest) -> None:
    if "denied" in case["out"]:
        with pytest.raises(Refused):
            HAMI_SYSTEM.mutate(pod_of(case))
        return
    spec = HAMI_SYSTEM.mutate(pod_of(case))["spec"]
    assert spec.get("schedulerName", "default-scheduler") == case["out"].get("scheduler", "hami-scheduler")
    changed = [{"limits": one["resources"]["limits"], "env": one.get("env", [])} for one in spec["containers"]]
    assert [_amounts(one) for one in changed] == [_amounts(one) for one in case["out"]["containers"]]


@pytest.mark.parametrize("case", PLACED, ids=lambda case: case["rule"])
def test_scheduler_places_as_hami(case: Manifest) -> None:
    out = case["out"]
    ask = HAMI_SYSTEM.ask_of(HAMI_SYSTEM.mutate(pod_of(case)))
    assert bool(ask.containers) == ("allocated" in out or "failed" in out)
    if not ask.containers:
        return
    cards = _books(case)
    found = HAMI_SYSTEM.place(
        ask, cards.values(), {card.node: _node(card.node) for card in cards.values()}, _closed(case)
    )
    if "failed" in out:
        assert isinstance(found, Unplaced)
        return
    assert not isinstance(found, Unplaced)
    node = cards[found[0].card].node
    (chosen,) = out["nodes"]
    # Of nodes with the same score HAMi takes any.
    assert out["scores"][node] == out["scores"][chosen]
    if node == chosen:
        granted = [
            Allocation(
                container="", card=grant.card, framebuffer_mib=grant.framebuffer_mib, core_percent=grant.core_percent
            )
            for container in parse_devices_allocated(out["allocated"])
            for grant in container
        ]
        assert [(part.card, part.framebuffer_mib, part.core_percent) for part in found] == [
            (part.card, part.framebuffer_mib, part.core_percent) for part in granted
        ]


def _amounts(container: Manifest) -> Manifest:
    limits = {key: amount(value) for key, value in container["limits"].items()}
    return {"limits": limits, "env": container.get("env", [])}


def _books(case: Manifest) -> dict[str, CardBook]:
    offered = case.get("offered", [node["name"] for node in case["nodes"]])
    cards = {
        card.card: CardBook(
            card=card.card,
            card_model=card.device_type.removeprefix("NVIDIA-"),
            node=node.name,
            framebuffer_mib=card.mib,
            slices_max=card.slices_max,
        )
        for node in nodes_of({**case, "held": []})
        if node.name in offered
        for card in node.cards
    }
    for node, text, _ in held_by(case):
        for grants in parse_devices_allocated(text):
            for grant in grants:
                part = Allocation(
                    container="", card=grant.card, framebuffer_mib=grant.framebuffer_mib,
                    core_percent=grant.core_percent,
                )  # fmt: skip
                book({name: card for name, card in cards.items() if card.node == node}, [part])
    return cards


def _closed(case: Manifest) -> set[str]:
    nodes = nodes_of({**case, "held": []})
    return {card.card for node in nodes for card in node.cards if not card.is_healthy or card.card in node.cordoned}


def _node(name: str) -> NodeBook:
    return NodeBook(node=name, cpu_cores=None, memory_bytes=None)
