"""What HAMi itself decided, case by case, read from the recorded facts.

`hami_decisions.jsonl` holds a cluster, a pod, and what HAMi v2.10.0 with its chart's defaults made of them against a
real API server of Kubernetes 1.36. A line's `nodes` lists cards as [UUID, deviceSplitCount, MiB, model, NUMA node] and
what is unusual of them; `held` lists other pods' nodes and annotations; `out` holds the words of a denial, or the
containers as the webhook left them with the chosen node, the annotation and every fitting node's score, or why each
node was refused. `hami_node_sequences.jsonl` holds what was changed of a node, step by step, and what a small pod found
there after two looks of the scheduler at its nodes.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.cluster.hami_rules import CORES, FRAMEBUFFER, REGISTER, Manifest, Node, book, grants_of, read_node

_FOLDER = Path(__file__).parent


def _lines(name: str) -> list[Manifest]:
    return [json.loads(line) for line in (_FOLDER / name).read_text(encoding="utf-8").splitlines()]


RECORDED = _lines("hami_decisions.jsonl")
SEQUENCES = _lines("hami_node_sequences.jsonl")


def pod_of(case: Manifest) -> Manifest:
    """The pod as its user sent it."""
    asked = case["pod"]
    spec: Manifest = {key: asked[key] for key in ("schedulerName", "nodeName") if key in asked}
    for key, found, letter in (("containers", "containers", "c"), ("initContainers", "init", "i")):
        if found in asked:
            spec[key] = [_container(f"{letter}{number}", one) for number, one in enumerate(asked[found])]
    metadata = {"name": "p", "annotations": asked.get("annotations", {}), "labels": asked.get("labels", {})}
    return {"metadata": metadata, "spec": spec}


def nodes_of(case: Manifest) -> list[Node]:
    """The nodes that HAMi knew, with what other pods held."""
    read = [read_node(node["name"], annotations_of(node)) for node in case["nodes"]]
    known = {node.name: node for node in read if node is not None}
    for node, text, odd in held_by(case):
        if node in known:
            book(known[node], text, odd.get("init", 0))
    return list(known.values())


def held_by(case: Manifest) -> list[tuple[str, str, Manifest]]:
    """Node, annotation and what is unusual of each pod that holds something."""
    pods = [(one[0], one[1], one[2] if len(one) > 2 else {}) for one in case.get("held", ())]
    return [pod for pod in pods if "phase" not in pod[2]]


def annotations_of(node: Manifest) -> dict[str, str]:
    """What stands on a node."""
    made: dict[str, str] = dict(node.get("annotations", {}))
    if "cards" in node:
        made[REGISTER] = register(node["cards"])
    return made


def register(cards: list[list[object]]) -> str:
    """The register's text of such cards."""
    devices = []
    for index, (card, count, mib, model, numa, *odd) in enumerate(cards):
        kind = str(model) if model == "NVIDIA" or str(model).startswith("Tesla") else f"NVIDIA-NVIDIA {model}"
        device = {"id": card, "index": index, "count": count, "devmem": mib, "devcore": 100, "type": kind}
        device |= {"numa": numa, "health": True, "mode": "hami-core"}
        for unusual in odd:
            assert isinstance(unusual, dict)
            device |= unusual
        devices.append(device)
    return json.dumps(devices)


def quota_left(case: Manifest) -> dict[str, int]:
    """What the namespace's quota leaves, where it has one."""
    left: dict[str, int] = dict(case.get("quota", {}))
    for _, text, odd in held_by(case) if left else ():
        for mib, cores, _ in grants_of(text, odd.get("init", 0)).values():
            for name, used in ((FRAMEBUFFER, mib), (CORES, cores)):
                if name in left:
                    left[name] -= used
    return left


def _container(name: str, asked: Manifest) -> Manifest:
    made: Manifest = {"name": name, "resources": {"limits": dict(asked["limits"])}}
    if "env" in asked:
        made["env"] = asked["env"]
    if asked.get("privileged"):
        made["securityContext"] = {"privileged": True}
    return made
