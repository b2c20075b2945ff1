"""Small fleets with services and work of low priority, planned and rendered in many worlds, for `backends-enforced`.

A world is a backend and its version, and what is there beside it: agents on all, some or no nodes, and what probes
measured. gputide is told of it as it is told of a cluster: by pods of its own namespace, and by results of probes. In
a part of the cases the world changes between plan and apply.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from analyzer.profile import profile_fleet
from bench.enforced_judge import World, faults_of, mixed_cards
from dashboards.words.advice import plan_in_english
from enforcer.agent.presence import nodes_with_agents
from enforcer.backends.register import BACKENDS
from enforcer.backends.running import RunningBackend
from enforcer.manifest import Manifest
from fleet.capabilities.register import capabilities_of
from fleet.decisions import Plan, RiskLevel
from fleet.documents import seal_plan
from fleet.errors import Refused
from fleet.inventory import Node, Priority
from fleet.priority_holds import Holders, holders_of
from fleet.probe_results import ProbeResult
from fleet.profiles import Profiles
from fleet.schema import Measure
from fleet.settings.settings import Settings
from fleet.units import GIB
from fleet.usage import History
from recommender.past_outcomes import OwnPast
from recommender.planner import make_plan
from tests.gputide.backend_clusters import BackendCluster, with_uuids
from tests.recommender.builders import NOW, Service, cluster

VERSIONS: tuple[tuple[str, str | None], ...] = (
    ("hami", "v2.8.1"), ("hami", "v2.9.0"), ("hami", "v2.10.0"), ("hami", "v2.11.0"),
    ("effectivegpu", None),
    ("volcano", "v1.15.1"), ("volcano", "v1.16.0"),
    ("mgpu", None),
    ("vgpu_manager", "v1.0.0"),
    ("kai", "v0.17.0"), ("nvidia_time_slicing", None), ("nvidia_mps", None), ("whole_cards", None),
)  # fmt: skip
WEIGHTS = (4, 4, 8, 4, 4, 1, 8, 4, 2, 1, 1, 1, 1)
"""How often each is drawn: most often those that know priorities."""
MGPU_POLICY = "vke.volcengine.com/mgpu-compute-policy"
POLICIES = ("fixed-share", "guaranteed-burst-share", "native-burst-share")
SERVERS = ("triton", "vllm", "sglang", None, "pytorch")
LOW_SERVERS = ("pytorch", "deepspeed", None, "vllm", "tgi")
DAYS = 2
CHANGED_SHARE = 0.25
"""Share of the cases in which agents stop, or results of probes are taken away, between plan and apply."""
FLEET_CASES = 20
"""Cases of one fleet, so that it is profiled once."""
SETTINGS = Settings.model_validate(
    {
        "plan": {"spare_card_ratio": 0.0},
        "recommender": {"packing": "greedy"},
        "guard": {"gaps_allowed": True},
        "enforcer": {"experimental": True},
    }
)


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a cluster shows beside its backend."""

    pods: tuple[Manifest, ...]
    results: tuple[ProbeResult, ...]

    def holders(self, backend: str) -> Holders:
        """As gputide reads it."""
        return holders_of(capabilities_of(backend), self.results, nodes_with_agents(self.pods))

    def world(self, backend: str, version: str | None, history: History) -> World:
        """As the judge is told."""
        tried = [result for result in self.results if result.gate_holds is not None]
        grants, mean = history.inventory.grants, history.slices.mean[Measure.SM_ACTIVE]
        return World(
            backend=backend,
            version=() if version is None else tuple(int(part) for part in version.lstrip("v").split(".")),
            policies={node.node: dict(node.labels).get(MGPU_POLICY, POLICIES[0]) for node in history.inventory.nodes},
            agents=frozenset(str(pod["spec"]["nodeName"]) for pod in self.pods),
            gated=frozenset(one.node for one in tried if one.gate_holds and one.granted_compute_ratio is None),
            ungated=frozenset(
                one.node for one in tried if not one.gate_holds and one.granted_compute_ratio is not None
            ),
            graphs_pause=frozenset(one.node for one in self.results if one.graph_pauses),
            servers={grant.pod_id: grant.server for grant in grants},
            use={key.pod_id: mean[row] for row, key in enumerate(history.slices.keys)},
        )


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of one case.

    Attributes:
        faults: where the plan counts on what is not enforced.
        colocations: cards on which low priority sits beside others.
        is_rendered: its stages were rendered; False where one was refused.
    """

    backend: str
    faults: tuple[str, ...]
    colocations: int
    promises: int
    is_rendered: bool


def outcome_of(number: int) -> Outcome:
    """Plans and renders the case of a number, and judges it."""
    random = np.random.default_rng([20, number])
    history, profiles = _fleet(number // FLEET_CASES)
    backend, version = VERSIONS[random.choice(len(VERSIONS), p=np.array(WEIGHTS) / sum(WEIGHTS))]
    if backend == "mgpu":
        history = _with_policy(history, str(random.choice(POLICIES)))
    seen = _seen(random, history, backend)
    settings = SETTINGS.model_copy(
        update={"risk": SETTINGS.risk.model_copy(update={"preset": RiskLevel(random.choice(list(RiskLevel)))})}
    )
    plan = make_plan(
        history, profiles, settings=settings, capability=capabilities_of(backend, version), now=NOW,
        past=OwnPast(holders=seen.holders(backend)),
    )  # fmt: skip
    plan = seal_plan(replace(plan, backend_version=version))
    document = plan_in_english(plan)
    later = _seen(random, history, backend) if random.uniform() < CHANGED_SHARE else seen
    owners = _rendered(plan, history, backend, version, later)
    # What was refused is not carried out: then the plan is judged by the world that it was made in.
    world = (seen if owners is None else later).world(backend, version, history)
    return Outcome(
        backend=f"{backend} {version or ''}".strip(),
        faults=tuple(faults_of(document, owners, world)),
        colocations=mixed_cards(document),
        promises=sum("priority" in item["needs"] for item in document["recommendations"]),
        is_rendered=owners is not None,
    )


def _rendered(
    plan: Plan, history: History, backend: str, version: str | None, seen: Seen
) -> Mapping[str, Manifest] | None:
    """Owners once every stage is carried out; None where a stage is refused."""
    adapter = dict(BACKENDS)[backend](NOW)
    running = RunningBackend(
        adapter, version=version, allows_experimental=True, left_out=None, holders=lambda: seen.holders(backend)
    )
    standing = BackendCluster(history.inventory, adapter)
    try:
        for stage in plan.rollout_stages:
            standing.carry_out(plan, running.render(plan, stage, standing.snapshot()))
    except Refused:
        return None
    return {str(name): owner for name, owner in standing.snapshot().owners.items()}


@cache
def _fleet(seed: int) -> tuple[History, Profiles]:
    random = np.random.default_rng([21, seed])
    services = [_service(random, number) for number in range(int(random.integers(1, 4)))]
    services += [_low(random, number) for number in range(int(random.integers(1, 3)))]
    history = with_uuids(cluster(*services, days=DAYS, seed=seed, spare_cards=int(random.integers(0, 2))))
    return history, profile_fleet(history, settings=SETTINGS.analyzer, now=NOW)


def _service(random: np.random.Generator, number: int) -> Service:
    begin = int(random.integers(0, 16))
    is_at_rest = random.uniform() < 0.6
    return Service(
        name=f"web-{number}",
        kind=str(random.choice(["Deployment", "Deployment", "StatefulSet", "Job", "Notebook"])),
        replicas=1,
        level=float(random.uniform(0.05, 0.8)),
        hours=(begin, begin + int(random.integers(2, 8))) if is_at_rest else (0, 24),
        used_gib=float(random.uniform(1.0, 8.0)),
        priority=Priority.HIGH if random.uniform() < 0.7 else Priority.NORMAL,
        server=SERVERS[int(random.integers(0, len(SERVERS)))],
        labels=(("gputide.io/isolation", "hard"),) if random.uniform() < 0.05 else (),
        **_cache(random),
    )


def _low(random: np.random.Generator, number: int) -> Service:
    return Service(
        name=f"train-{number}",
        kind=str(random.choice(["Job", "Job", "Deployment"])),
        level=float(random.uniform(0.1, 0.9)),
        hours=(0, 24) if random.uniform() < 0.7 else (int(random.integers(0, 6)), int(random.integers(8, 24))),
        used_gib=float(random.uniform(1.0, 8.0)),
        priority=Priority.LOW,
        server=LOW_SERVERS[int(random.integers(0, len(LOW_SERVERS)))],
        **_cache(random),
    )


def _cache(random: np.random.Generator) -> dict[str, Any]:
    """A KV cache that shows what it needs, as for every server that takes one ahead."""
    return {"pool_gib": 1.0, "cache_ratio": float(random.uniform(0.05, 0.3))}


def _with_policy(history: History, policy: str) -> History:
    nodes = tuple(
        Node(node=node.node, cluster="c", labels=((MGPU_POLICY, policy),)) for node in history.inventory.nodes
    )
    return replace(history, inventory=replace(history.inventory, nodes=nodes))


def _seen(random: np.random.Generator, history: History, backend: str) -> Seen:
    nodes = [node.node for node in history.inventory.nodes]
    agents = _some(random, nodes)
    probed = _some(random, nodes) if random.uniform() < 0.4 else []
    return Seen(
        pods=tuple(_agent(node) for node in agents), results=tuple(_result(random, node, backend) for node in probed)
    )


def _some(random: np.random.Generator, nodes: list[str]) -> list[str]:
    """None of the nodes, all, or one less."""
    return (nodes[:0], nodes, nodes[1:])[int(random.integers(0, 3))]


def _agent(node: str) -> Manifest:
    return {
        "metadata": {"name": f"agent-{node}", "ownerReferences": [{"kind": "DaemonSet", "name": "gputide-agent"}]},
        "spec": {"nodeName": node, "containers": [{"name": "agent", "args": ["run", "agent"]}]},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }


def _result(random: np.random.Generator, node: str, backend: str) -> ProbeResult:
    is_limited = random.uniform() < 0.5
    return ProbeResult(
        backend=backend, node=node, card="GPU-0", measured_at=NOW, granted_framebuffer_bytes=4 * GIB,
        allocated_framebuffer_bytes=4 * GIB, is_refused=True, managed_escapes=False, spilled_bytes=0,
        spill_bytes_per_second=None, granted_compute_ratio=0.3 if is_limited else None,
        compute_ratio=0.3 if is_limited else 1.0, graph_compute_ratio=1.0, pause_seconds=0.8, resume_seconds=1.0,
        graph_pauses=bool(random.uniform() < 0.3), gate_holds=(True, False, None)[int(random.integers(0, 3))],
    )  # fmt: skip


def cases(count: int) -> Iterator[range]:
    """Numbers of cases in parts that share a fleet."""
    return (range(start, min(count, start + FLEET_CASES)) for start in range(0, count, FLEET_CASES))
