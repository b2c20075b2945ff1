"""The simulated cluster places pods as Volcano, vgpu-manager and KAI themselves did, in every recorded case it plays.

Left out are policies of Volcano's plugin, its gangs and modes; init containers, NUMA nodes, links, units of
framebuffer, kinds of memory, cards that are broken or cut and nodes without a register; of KAI pods about to go.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from enforcer.simulated.books import Allocation, CardBook, NodeBook, Unplaced, book
from enforcer.simulated.kai import KAI_SYSTEM
from enforcer.simulated.system import SharingSystem
from enforcer.simulated.vgpumanager import VGPU_MANAGER_SYSTEM
from enforcer.simulated.volcano import VOLCANO_SYSTEM
from fleet.grammars.hami import DeviceGrant, parse_container_devices

FOLDER = Path(__file__).parents[1] / "cluster"
Case = dict[str, Any]


def recorded(name: str) -> list[Case]:
    return [json.loads(line) for line in (FOLDER / f"{name}_decisions.jsonl").read_text("utf-8").splitlines()]


def books_of(node: str, cards: Iterable[tuple[str, int, int, str]]) -> dict[str, CardBook]:
    """Books of a node by (card, slices, MiB, model)."""
    return {
        card: CardBook(card=card, card_model=model, node=node, framebuffer_mib=mib, slices_max=slices)
        for card, slices, mib, model in cards
    }


def enter(books: dict[str, CardBook], grants: Iterable[DeviceGrant]) -> None:
    book(
        books,
        [
            Allocation(container="", card=one.card, framebuffer_mib=one.framebuffer_mib, core_percent=one.core_percent)
            for one in grants
        ],
    )


def decide(
    system: SharingSystem, pod: Case, books: Mapping[str, CardBook], allowed: Iterable[str] | None = None
) -> tuple[Allocation, ...] | Unplaced:
    nodes = {card.node: NodeBook(node=card.node, cpu_cores=None, memory_bytes=None) for card in books.values()}
    ask = system.ask_of(system.mutate(pod))
    return system.place(ask, books.values(), nodes, (), None if allowed is None else set(allowed))


def pod_of(containers: list[Case], annotations: Mapping[str, str], letter: str = "c") -> Case:
    asked = [{"name": f"{letter}{number}", "resources": {"limits": one}} for number, one in enumerate(containers)]
    return {"metadata": {"name": "p", "annotations": dict(annotations)}, "spec": {"containers": asked}}


# --- Volcano ---

_NAMING = {"volcano.sh/vgpu-use-gpuuuid", "volcano.sh/vgpu-nouse-gpuuuid"}
_UNPLAYED_VOLCANO = {"volcano.sh/vgpu-podgroup-policy", "volcano.sh/vgpu-mode"}


def is_volcano_played(case: Case) -> bool:
    annotations = case["pod"].get("annotations", {})
    models = [
        annotations[name] for name in ("nvidia.com/use-gputype", "nvidia.com/nouse-gputype") if name in annotations
    ]
    is_later = "since" in case or not annotations.keys() & _NAMING
    has_blanks = any(not word or word != word.strip() for text in models for word in text.split(","))
    return is_later and not (
        "policy" in case
        or "init" in case["pod"]
        or has_blanks
        or annotations.keys() & _UNPLAYED_VOLCANO
        or any(str(card[3]).startswith("Tesla") for _, cards in case["nodes"] for card in cards)
    )


VOLCANO = [case for case in recorded("volcano") if is_volcano_played(case)]


@pytest.mark.parametrize("case", VOLCANO, ids=lambda case: case["rule"])
def test_volcano_takes_and_refuses_as_recorded(case: Case) -> None:
    pod = pod_of(case["pod"]["containers"], case["pod"].get("annotations", {}))
    if not VOLCANO_SYSTEM.ask_of(pod).containers:
        assert all("unasked" in said or said == {"refused": "no devices"} for said in case["out"].values())
        return
    for node, cards in case["nodes"]:
        books = books_of(node, [(card, slices, mib, f"NVIDIA {model}") for card, slices, mib, model, *_ in cards])
        for holder, ids, *_ in case.get("held", ()):
            if holder == node:
                held = [grant for part in ids.split(";") for grant in parse_container_devices(part, "held")]
                # Of several grants of one pod on one card Volcano counts the first.
                enter(books, {grant.card: grant for grant in reversed(held)}.values())
        found, said = decide(VOLCANO_SYSTEM, pod, books), case["out"][node]
        if "refused" in said:
            assert isinstance(found, Unplaced)
        else:
            assert not isinstance(found, Unplaced)
            marks = VOLCANO_SYSTEM.marks(pod, found, list(books.values()))
            assert marks["annotations"]["volcano.sh/vgpu-ids-new"] == said["ids"]


# --- vgpu-manager ---

_UNPLAYED_VGPU = {"nvidia.com/memory-scheduler-policy", "nvidia.com/device-topology-mode"}


def is_vgpu_played(case: Case) -> bool:
    cards = [card for node in case["nodes"] for card in node["cards"] or ()]
    return not (
        "init" in case["pod"]
        or case["pod"].get("annotations", {}).keys() & _UNPLAYED_VGPU
        or any(node["cards"] is None or node.keys() & {"config", "number"} for node in case["nodes"])
        or any(set(card[4]) - {"number"} for card in cards if len(card) > 4)
        or (
            # By a policy NUMA nodes say nothing.
            "nvidia.com/device-scheduler-policy" not in case["pod"].get("annotations", {})
            and any((numas := [card[3] for card in node["cards"]]) != sorted(numas) for node in case["nodes"])
        )
    )


VGPU_MANAGER = [case for case in recorded("vgpu_manager") if is_vgpu_played(case)]


@pytest.mark.parametrize("case", VGPU_MANAGER, ids=lambda case: case["rule"])
def test_vgpu_manager_chooses_nodes_and_cards_as_recorded(case: Case) -> None:
    books: dict[str, CardBook] = {}
    # By a policy nodes of the same score are taken by their names, which is the order of a simulated cluster's books.
    has_policy = "nvidia.com/node-scheduler-policy" in case["pod"].get("annotations", {})
    for node in sorted(case["nodes"], key=lambda node: node["name"]) if has_policy else case["nodes"]:
        cards = [(card, (odd or [{}])[0].get("number", 10), mib, model) for card, mib, model, _, *odd in node["cards"]]
        own = books_of(node["name"], cards)
        for holder in case.get("held", ()):
            if holder["node"] == node["name"] and holder.get("labels", {}).get("nvidia.com/assigned-phase") != "failed":
                meant, real = holder["text"], holder.get("real", "")
                enter(own, granted(real if real.count("[") >= meant.count("[") else meant))
        books |= own
    pod, out = pod_of(case["pod"]["containers"], case["pod"].get("annotations", {})), case["out"]
    # The extender is asked about pods that the webhook did not see.
    nodes = {node["name"]: NodeBook(node=node["name"], cpu_cores=None, memory_bytes=None) for node in case["nodes"]}
    ask = VGPU_MANAGER_SYSTEM.ask_of(pod)
    if not ask.containers:
        assert out["nodes"] == list(nodes)
        return
    found = VGPU_MANAGER_SYSTEM.place(ask, books.values(), nodes)
    if "error" in out or not out["nodes"]:
        assert isinstance(found, Unplaced)
        return
    assert not isinstance(found, Unplaced)
    node = books[found[0].card].node
    marks = VGPU_MANAGER_SYSTEM.marks(pod, found, [card for card in books.values() if card.node == node])
    assert ([node], marks["annotations"]["nvidia.com/real-allocated"]) == (out["nodes"], out["allocated"])


def granted(text: str) -> list[DeviceGrant]:
    parts = [part for one in text.split(";") for part in one.partition("[")[2].rstrip("]").split(",") if part]
    fields = [part.split("_") for part in parts]
    return [
        DeviceGrant(card=card, device_type="NVIDIA", framebuffer_mib=int(mib), core_percent=int(cores))
        for _, card, cores, mib in fields
    ]


# --- KAI ---


def is_kai_played(case: Case) -> bool:
    pods = [case["pod"], *case.get("held", ())]
    portions = [pod.get("gpus", 0) for pod in pods]
    return not (
        any(pod.get("going") for pod in pods)
        or any(portion > 1 and portion != int(portion) for portion in portions)
        or any(len(pod.get("groups", ())) > 1 and "gpus" not in pod and "mib" not in pod for pod in pods)
    )


KAI = [case for case in recorded("kai") if is_kai_played(case)]


def kai_pod(asked: Case) -> Case:
    portion, annotations = asked.get("gpus", 0), {}
    if portion and portion == int(portion):
        return pod_of([{"nvidia.com/gpu": str(int(portion))}], {})
    if portion:
        annotations["gpu-fraction"] = str(portion)
    if "mib" in asked:
        annotations["gpu-memory"] = str(asked["mib"])
    if "devices" in asked:
        annotations["gpu-fraction-num-devices"] = str(asked["devices"])
    return pod_of([{}], annotations)


@pytest.mark.parametrize("case", KAI, ids=lambda case: case["rule"])
def test_kai_chooses_nodes_and_cards_as_recorded(case: Case) -> None:
    books: dict[str, CardBook] = {}
    card_of: dict[tuple[str, str], str] = {}
    for node, cards, mib in case["nodes"]:
        books |= books_of(node, [(f"{node}{number:02}", 100, mib, "A10") for number in range(cards)])
    for pod in case.get("held", ()):
        own = [card for card in books.values() if card.node == pod["node"]]
        ask = KAI_SYSTEM.ask_of(kai_pod(pod))
        idle = [card for card in own if not card.slices]
        groups = pod.get("groups", ())
        for name in groups:
            card_of.setdefault((pod["node"], name), idle.pop(0).card if idle else "")
        part = ask.containers[0]
        for card in [card_of[pod["node"], name] for name in groups] or [card.card for card in idle[: part.count]]:
            # What a share is of the node's card in hundreds of MiB, as KAI counts.
            mib = part.framebuffer_mib or int(pod.get("gpus", 1.0) * (own[0].framebuffer_mib // 100 * 100))
            cores = 0 if groups else 100
            book(books, [Allocation(container="", card=card, framebuffer_mib=mib, core_percent=cores)])
    found = decide(KAI_SYSTEM, kai_pod(case["pod"]), books, case["pod"].get("only"))
    if isinstance(found, Unplaced):
        assert {status for status, *_ in case["out"]} <= {"Pending", "Pipelined"}
        return
    node = books[found[0].card].node
    is_whole = found[0].core_percent == 100
    held = sorted(books[part.card].used_mib for part in found) if not is_whole else []

    def seen(outcome: list[Any]) -> tuple[str, str, list[int]]:
        """Of cards that are alike KAI takes any; here a card is what is held on it."""
        status, at, *groups = outcome
        return status, at, sorted(books[card_of[at, one]].used_mib if (at, one) in card_of else 0 for one in groups)

    assert ("Binding", node, held) in [seen(outcome) for outcome in case["out"]]


def test_recorded_cases_are_played() -> None:
    assert [len(played) for played in (VOLCANO, VGPU_MANAGER, KAI)] == [116, 132, 191]
