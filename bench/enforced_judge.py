"""Judges what a plan says and renders of low priority against a table of what each backend and version enforces.

The table and the rules are written by hand from public sources, and nothing of gputide is imported: judged and judge
share no code. A plan is read as its JSON and as the manifests that its stages leave, in each backend's own words.

Where low priority is really held back on a card (Project-HAMi/HAMi:cmd/vGPUmonitor/feedback.go, HAMi-core@24fd045,
HAMi#1445, Volcengine's help pages on mGPU, coldzerofear/vgpu-manager:README.md, kai-scheduler/KAI-Scheduler#262):

- HAMi from 2.8.1 and what mounts its library: every pod of the card has 1-99 % of cores, those above low priority also
  `GPU_CORE_UTILIZATION_POLICY=force` and priority 0, and the low one launches no CUDA graphs;
- the same where a pause of the library is written by somebody who watches: the agent of the node; graphs pass unless a
  measurement on that node says that they pause as well;
- the same without core limits where a measurement on the node says so;
- mGPU suspends offline work (`reclaimed-mgpu-core`, `reclaimed_cores`) on nodes whose policy is not native-burst-share;
- nowhere else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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
PRIORITY_ENV = "CUDA_TASK_PRIORITY"
QOS = "katalyst.kubewharf.io/qos_level"
SEATS = "gputide.io/seats"
SLACK = 0.005
"""Demand over a card or a limit that is noise, and harm that rounding takes."""
CONTENDED = 1.005


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """What is true of a cluster; nodes by name.

    Attributes:
        version: of the backend, as numbers; empty where it has none.
        policies: mGPU's policy of each node.
        agents: nodes on which an agent lets low priority sleep.
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
            pods = set(item["pods"])
            cards = [
                card
                for card in self._plan["placement"]
                if _is_mixed(card) and pods & {_pod_id(part) for part in card["slices"]}
            ]
            unheld = [card for card in cards if not self._is_held(card)]
            promises = "priority" in item["needs"] or not re.search(r"contend as equals", item["reason"])
            if unheld and promises:
                yield f"{item['id']}: promises that low priority yields on {unheld[0]['card']}, and nothing makes it"
            seen = [self._contended(card) for card in cards] if unheld else [self._cut_off(card) for card in cards]
            harm = float(np.mean(seen)) if seen else 0.0
            if item["violation_ratio"] + SLACK < harm / 2:
                kind = "contend" if unheld else "are cut off by their limits"
                yield f"{item['id']}: predicts {item['violation_ratio']:.4f}, and its pods {kind} in {harm:.4f}"

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
        launches_graphs = any(world.servers.get(_pod_id(part)) in GRAPHS for part in lows)
        if node in world.agents and (not launches_graphs or node in world.graphs_pause):
            return True
        if launches_graphs:
            return False
        if node in world.gated:
            return True
        is_limited = all(1 <= (self._percent(part) or 0) <= 99 for part in parts)
        is_forced = all(self._is_forced(part) for part in parts if part["priority"] != "low")
        is_ranked = self._owners is None or all(self._is_above(part) == (part["priority"] != "low") for part in parts)
        return node not in world.ungated and is_limited and is_forced and is_ranked

    def _is_above(self, part: Mapping[str, Any]) -> bool:
        """Whether the library takes a pod for one of the upper level: without a word it does not."""
        if self._world.backend == "volcano":
            env = _container(self._owner(part), part).get("env") or ()
            return any(entry["name"] == PRIORITY_ENV and entry.get("value") == "0" for entry in env)
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
        env = _container(self._owner(part), part).get("env") or ()
        return any(entry["name"] == POLICY_ENV and entry.get("value") == "force" for entry in env)

    def _is_offline(self, part: Mapping[str, Any]) -> bool:
        if self._owners is None:
            return True
        owner = self._owner(part)
        annotations = owner["spec"]["template"].get("metadata", {}).get("annotations") or {}
        return annotations.get(QOS) == "reclaimed_cores" and bool(self._limits(part).get(MGPU_RECLAIMED))

    def _owner(self, part: Mapping[str, Any]) -> Mapping[str, Any]:
        assert self._owners is not None
        return self._owners[part["workload"]]

    def _contended(self, card: Mapping[str, Any]) -> float:
        """Share of the active time of all pods of a card in which together they used more than it has."""
        rows = self._rows(card["slices"])
        active = rows > 0.001
        together = rows.sum(axis=0) > CONTENDED
        return float((active & together).sum() / max(1, active.sum()))

    def _cut_off(self, card: Mapping[str, Any]) -> float:
        """Share of the active time of pods above low priority in which they used more than their limit."""
        above = [part for part in card["slices"] if part["priority"] != "low"]
        rows = self._rows(above)
        most = np.array([1.0 if part["core_policy"] != "hard" else part["compute_ratio"] or 1.0 for part in above])
        active = rows > 0.001
        return float((active & (rows > most[:, None] + SLACK)).sum() / max(1, active.sum()))

    def _rows(self, parts: Sequence[Mapping[str, Any]]) -> NDArray[np.float32]:
        return np.array([np.nan_to_num(self._world.use[_pod_id(part)]) for part in parts], np.float32)


def _is_mixed(card: Mapping[str, Any]) -> bool:
    return len({part["priority"] == "low" for part in card["slices"]}) == 2


def _pod_id(part: Mapping[str, Any]) -> str:
    return f"{part['namespace']}/{part['pod']}"


def _container(owner: Mapping[str, Any], part: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Sequence[Mapping[str, Any]] = owner["spec"]["template"]["spec"]["containers"]
    return next(entry for entry in found if entry["name"] == part["container"])
