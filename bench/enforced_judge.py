"""Judges what a plan says and renders of low priority against a table of what each backend and version enforces.

The table and the rules are written by hand from public sources, and nothing of gputide is imported: judged and judge
share no code. A plan is read as its JSON and as the manifests that its stages leave, in each backend's own words.

Where low priority is really held back on a card (Project-HAMi/HAMi:cmd/vGPUmonitor/feedback.go, HAMi-core@24fd045,
HAMi#1445, Volcengine's help pages on mGPU, coldzerofear/vgpu-manager:README.md, kai-scheduler/KAI-Scheduler#262):

- HAMi from 2.8.1 and what mounts its library: every pod of the card has 1-99 % of cores, those above low priority also
  `GPU_CORE_UTILIZATION_POLICY=force` and priority 0, and the low one launches no CUDA graphs;
- the same where a pause of the library is written by somebody who watches: the agent of the node; graphs pass unless a
  measurement on that node says that they pause as well; one that acts on a full card lets requests of others wait;
- the same without core limits where a measurement on the node says so;
- mGPU suspends offline work (`reclaimed-mgpu-core`, `reclaimed_cores`) on nodes whose policy is not native-burst-share;
- nowhere else, nor for a pod that the library is switched off for, or before one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

GATED = {"hami": (2, 8, 1), "effectivegpu": (0, 0, 0), "volcano": (1, 16, 0)}
"""Backends whose pods run HAMi's library, each from the version on whose facts are known."""
SUSPENDS = "mgpu"
NATIVE = "native-burst-share"
GRAPHS = {"vllm", "sglang", "tensorrt-llm", "tgi", "lmdeploy", "nim", "dynamo", "llama.cpp", "ollama"}
"""Servers that launch by CUDA graphs unless they are told otherwise."""
CORES = {
    "hami": "nvidia.com/gpucores",
    "effectivegpu": "nvidia.com/gpucores",
    "volcano": "volcano.sh/vgpu-cores",
    "vgpu_manager": "nvidia.com/vgpu-cores",
}
"""Resource by which each backend grants a share of compute, percent of a card."""
MGPU_CORES, MGPU_RECLAIMED = "vke.volcengine.com/mgpu-core", "vke.volcengine.com/reclaimed-mgpu-core"
PRIORITY = "nvidia.com/priority"
POLICY_ENV = "GPU_CORE_UTILIZATION_POLICY"
DISABLE_ENV = "CUDA_DISABLE_CONTROL"
TRUE = {"1", "t", "T", "true", "TRUE", "True"}
PRIORITY_ENV = "CUDA_TASK_PRIORITY"
QOS = "katalyst.kubewharf.io/qos_level"
SEATS = "gputide.io/seats"
SLACK = 0.005
"""Demand over a card or a limit that is noise, and harm that rounding takes."""
CONTENDED = 1.005
SLOWED = 1.005
"""P99 latency beside others / alone from which somebody says that requests wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What is true of a cluster; nodes by name.

    Attributes:
        version: of the backend, as numbers; empty where it has none.
        policies: mGPU's policy of each node.
        agents: nodes on which an agent lets low priority sleep.
        strict: those of them on which it sleeps whenever somebody above it works, not only while the card is full.
        gated: nodes on which a container without a core limit was seen to wait at the gate.
        ungated: nodes on which one with a forced core limit was seen to pass it.
        graphs_pause: nodes on which a pause was seen to stop graphs.
        servers: what runs in each pod, by `namespace/pod`.
        use: compute that each pod uses, share of a card, (steps,).
    """

    backend: str
    version: tuple[int, ...]
    policies: Mapping[str, str]
    agents: frozenset[str]
    strict: frozenset[str]
    gated: frozenset[str]
    ungated: frozenset[str]
    graphs_pause: frozenset[str]
    servers: Mapping[str, str | None]
    use: Mapping[str, NDArray[np.float32]]


def faults_of(plan: Mapping[str, Any], owners: Mapping[str, Mapping[str, Any]] | None, world: World) -> list[str]:
    """Where a plan counts on what is not enforced; empty where it nowhere does.

    Args:
        plan: `gputide.plan/v1` with the English of its reasons.
        owners: manifests of workloads as its stages leave them, by id; None where it was not rendered.
    """
    judge = _Judge(plan, owners, world)
    return [*judge.promises(), *judge.shares()]


def mixed_cards(plan: Mapping[str, Any]) -> int:
    """Cards on which low priority sits beside others."""
    return sum(_is_mixed(card) for card in plan["placement"])


class _Judge:
    def __init__(self, plan: Mapping[str, Any], owners: Mapping[str, Mapping[str, Any]] | None, world: World) -> None:
        self._plan, self._owners, self._world = plan, owners, world

    def promises(self) -> Iterator[str]:
        for item in self._plan["recommendations"]:
            if item["kind"] != "colocate":
                continue
            # Harm is said of an average pod and of the worst card: a card counts once for each pod that comes to it.
            cards = [
                card
                for card in self._plan["placement"]
                for part in card["slices"]
                if _pod_id(part) in set(item["pods"])
            ]
            unheld = [card for card in cards if _is_mixed(card) and not self._is_held(card)]
            promises = "priority" in item["needs"] or not re.search(r"contend as equals", item["reason"])
            if unheld and promises:
                yield f"{item['id']}: promises that low priority yields on {unheld[0]['card']}, and nothing makes it"
            # What advice does not ask for is not looked for by `apply`, so it can't be counted on either.
            harmed = [self._harmed(card, counts_on_hold="priority" in item["needs"]) for card in cards] or [0.0]
            worst = max(clause["values"].get("worst_ratio", 0.0) for clause in item["why"])
            for said, harm in ((item["violation_ratio"], float(np.mean(harmed))), (worst, max(harmed))):
                if said + SLACK < harm / 2:
                    yield f"{item['id']}: predicts {said:.4f}, and its pods are harmed in {harm:.4f}"
            inflation = dict(item["evidence"]["numbers"]).get("latency_p99_inflation_ratio")
            if inflation is not None and inflation < SLOWED:
                yield from (
                    f"{item['id']}: says that requests are not slowed on {card['card']}, and low priority works there"
                    for card in cards
                    if _is_mixed(card) and self._slows(card)
                )

    def shares(self) -> Iterator[str]:
        """Shares of compute that the plan says and the patch does not grant."""
        world = self._world
        if self._owners is None or (world.backend not in CORES and world.backend != SUSPENDS):
            return
        touched = {pod for item in self._plan["recommendations"] for pod in item["pods"]}
        for card in self._plan["placement"]:
            for part in card["slices"]:
                share = part["compute_ratio"]
                if len(card["slices"]) < 2 or share is None or _pod_id(part) not in touched:
                    continue
                percent = self._percent(part)
                if percent != round(100 * share):
                    yield f"{_pod_id(part)}: {share} of a card is planned, {percent} % granted"

    def _is_held(self, card: Mapping[str, Any]) -> bool:
        world, node, parts = self._world, card["node"], card["slices"]
        lows = [part for part in parts if part["priority"] == "low"]
        if world.backend == SUSPENDS:
            is_native = world.policies.get(node) == NATIVE
            return not is_native and all(self._is_offline(part) for part in lows)
        if world.backend not in GATED or (world.version and world.version < GATED[world.backend]):
            return False
        if any(map(self._is_outside, parts)):
            return False
        launches_graphs = any(world.servers.get(_pod_id(part)) in GRAPHS for part in lows)
        if node in world.agents and (not launches_graphs or node in world.graphs_pause):
            return True
        if launches_graphs:
            return False
        if node in world.gated:
            return True
        is_limited = all(1 <= (self._percent(part) or 0) <= 99 and self._policy(part) != "disable" for part in parts)
        is_forced = all(self._is_forced(part) for part in parts if part["priority"] != "low")
        is_ranked = self._owners is None or all(self._is_above(part) == (part["priority"] != "low") for part in parts)
        return node not in world.ungated and is_limited and is_forced and is_ranked

    def _is_above(self, part: Mapping[str, Any]) -> bool:
        """Whether the library takes a pod for one of the upper level: without a word it does not."""
        if self._world.backend == "volcano":
            return self._variable(part, PRIORITY_ENV) == "0"
        return self._limits(part).get(PRIORITY) == "0"

    def _percent(self, part: Mapping[str, Any]) -> int | None:
        """Percent of cores that a pod is granted; None where nobody says."""
        if self._owners is None:
            share = part["compute_ratio"]
            return None if share is None else round(100 * share)
        limits = self._limits(part)
        if self._world.backend == SUSPENDS:
            text = limits.get(MGPU_CORES) or limits.get(MGPU_RECLAIMED)
        else:
            text = limits.get(CORES[self._world.backend])
        return None if text is None else int(text)

    def _limits(self, part: Mapping[str, Any]) -> Mapping[str, str | None]:
        """What a pod asks for: its template's words, and over them what admission gives it alone."""
        owner = self._owner(part)
        seats = json.loads((owner["metadata"].get("annotations") or {}).get(SEATS) or "{}")
        own = seats.get(part["pod"], {}).get("limits", {})
        return {**_container(owner, part).get("resources", {}).get("limits", {}), **own}

    def _is_forced(self, part: Mapping[str, Any]) -> bool:
        if self._owners is None:
            # A Job's template can't be given a variable.
            return part["core_policy"] == "hard" and "/Job/" not in part["workload"]
        return self._policy(part) == "force"

    def _policy(self, part: Mapping[str, Any]) -> str | None:
        return self._variable(part, POLICY_ENV)

    def _is_outside(self, part: Mapping[str, Any]) -> bool:
        """Whether the library is not loaded into a pod: by Volcano's plugin where the variable stands at all."""
        said = self._variable(part, DISABLE_ENV)
        return said is not None and (self._world.backend == "volcano" or said in TRUE)

    def _variable(self, part: Mapping[str, Any], name: str) -> str | None:
        if self._owners is None:
            return None
        env = _container(self._owner(part), part).get("env") or ()
        return next((entry.get("value", "") for entry in env if entry["name"] == name), None)

    def _is_offline(self, part: Mapping[str, Any]) -> bool:
        if self._owners is None:
            return True
        owner = self._owner(part)
        annotations = owner["spec"]["template"].get("metadata", {}).get("annotations") or {}
        return annotations.get(QOS) == "reclaimed_cores" and bool(self._limits(part).get(MGPU_RECLAIMED))

    def _owner(self, part: Mapping[str, Any]) -> Mapping[str, Any]:
        assert self._owners is not None
        return self._owners[part["workload"]]

    def _harmed(self, card: Mapping[str, Any], *, counts_on_hold: bool) -> float:
        """Share of the active time of pods that nobody makes wait in which a card, or their limit, had too little.

        Low priority that is not held back is one of them.
        """
        yields = not _is_mixed(card) or (counts_on_hold and self._is_held(card))
        parts = [part for part in card["slices"] if not (yields and part["priority"] == "low")]
        if not parts:
            return 0.0
        rows = self._rows(parts)
        most = np.array([self._most(part) if _is_mixed(card) else np.inf for part in parts])
        is_short = (rows.sum(axis=0) > CONTENDED) | (rows > most[:, None] + SLACK)
        active = rows > 0.001
        return float((active & is_short).sum() / max(1, active.sum()))

    def _most(self, part: Mapping[str, Any]) -> float:
        """Compute that a pod above low priority gets at most while it shares a card, share of the card."""
        if part["priority"] == "low":
            return np.inf
        if self._owners is None or self._world.backend == SUSPENDS:
            return (part["compute_ratio"] or np.inf) if part["core_policy"] == "hard" else np.inf
        return (self._percent(part) or np.inf) / 100 if self._is_forced(part) else np.inf

    def _slows(self, card: Mapping[str, Any]) -> bool:
        """Whether low priority works beside others that work, because an agent alone holds it, on a full card."""
        if card["node"] in self._world.strict or not self._is_held(card) or self._world.backend == SUSPENDS:
            return False
        lows, others = (
            self._rows([part for part in card["slices"] if (part["priority"] == "low") is is_low]).sum(axis=0)
            for is_low in (True, False)
        )
        by_gate = replace(self._world, agents=frozenset())
        is_by_agent = not _Judge(self._plan, self._owners, by_gate)._is_held(card)
        return is_by_agent and bool(((lows > 0.1) & (others > 0.1)).any())

    def _rows(self, parts: Sequence[Mapping[str, Any]]) -> NDArray[np.float32]:
        return np.array([np.nan_to_num(self._world.use[_pod_id(part)]) for part in parts], np.float32)


def _is_mixed(card: Mapping[str, Any]) -> bool:
    return len({part["priority"] == "low" for part in card["slices"]}) == 2


def _pod_id(part: Mapping[str, Any]) -> str:
    return f"{part['namespace']}/{part['pod']}"


def _container(owner: Mapping[str, Any], part: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Sequence[Mapping[str, Any]] = owner["spec"]["template"]["spec"]["containers"]
    return next(entry for entry in found if entry["name"] == part["container"])
