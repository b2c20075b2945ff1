"""Small fleets with services and work of low priority, planned and rendered in many worlds, for `backends-enforced`.

A world is a backend and its version, and what is there beside it: agents on all, some or no nodes, ready or not, of
every manner, containers that switch limits off, and what probes measured. gputide sees it as it sees a
cluster: by pods of its own namespace, owners, and results of probes. In a part of the cases the world changes between
plan and apply, and in a part only some stages are approved, in any order.
"""

from __future__ import annotations

from collections import defaultdict
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
from enforcer.manifest import Manifest, set_field
from fleet.capabilities.register import capabilities_of
from fleet.decisions import Plan, RiskLevel
from fleet.documents import seal_plan
from fleet.errors import Refused
from fleet.inventory import CardId, Node, Priority
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
LABELS = ((), (("gputide.io/isolation", "hard"),), (("gputide.io/latency-critical", "true"),))
LABEL_SHARES = (0.8, 0.05, 0.15)
DAYS = 2
REPLICAS_MAX = 4
CHANGED_SHARE = 0.25
"""Share of the cases in which agents stop, or results of probes are taken away, between plan and apply."""
PARTLY_SHARE = 0.4
"""Share of the cases in which some stages alone are approved, half of them in another order than the plan's."""
SWITCHED_SHARE = 0.05
"""Share of the workloads whose container switches limits off by one of `SWITCHES`."""
SWITCHES = (("CUDA_DISABLE_CONTROL", "true"), ("GPU_CORE_UTILIZATION_POLICY", "disable"))
MANNERS = ("strict", "strict", "pressure", "off")
"""How agents let low priority give way, as often as each is drawn."""
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
    """What a cluster shows beside its backend, and on which nodes an agent is really at work."""

    pods: tuple[Manifest, ...]
    agents: frozenset[str]
    strict: frozenset[str]
    results: tuple[ProbeResult, ...]

    def holders(self, backend: str) -> Holders:
        """As gputide reads it."""
        strict = nodes_with_agents(self.pods, strict_only=True)
        return holders_of(capabilities_of(backend), self.results, nodes_with_agents(self.pods), strict=strict)

    def world(self, backend: str, version: str | None, history: History) -> World:
        """As the judge sees it."""
        tried = [result for result in self.results if result.gate_holds is not None]
        grants, mean = history.inventory.grants, history.slices.mean[Measure.SM_ACTIVE]
        return World(
            backend=backend,
            version=() if version is None else tuple(int(part) for part in version.lstrip("v").split(".")),
            policies={node.node: dict(node.labels).get(MGPU_POLICY, POLICIES[0]) for node in history.inventory.nodes},
            agents=self.agents,
            strict=self.strict,
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
        is_rendered: all its stages were carried out; False where one was refused, or not approved.
        is_partly: some of them were.
    """

    backend: str
    faults: tuple[str, ...]
    colocations: int
    promises: int
    is_rendered: bool
    is_partly: bool


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
    adapter = dict(BACKENDS)[backend](NOW)
    running = RunningBackend(
        adapter, version=version, allows_experimental=True, left_out=None, holders=lambda: later.holders(backend)
    )
    standing = BackendCluster(history.inventory, adapter)
    _switch_off(random, standing, history)
    done = _carried_out(plan, _approved(random, plan), running, standing)
    is_whole = len(done) == len(plan.stages)
    # What is not carried out is judged by what it says of the world that it was made in.
    faults = [] if is_whole else faults_of(document, None, seen.world(backend, version, history))
    if done:
        owners = {str(name): owner for name, owner in standing.snapshot().owners.items()}
        faults += faults_of(_standing(document, done, standing), owners, later.world(backend, version, history))
    return Outcome(
        backend=f"{backend} {version or ''}".strip(),
        faults=tuple(faults),
        colocations=mixed_cards(document),
        promises=sum("priority" in item["needs"] for item in document["recommendations"]),
        is_rendered=is_whole,
        is_partly=0 < len(done) < len(plan.stages),
    )


def _approved(random: np.random.Generator, plan: Plan) -> list[int]:
    """All stages in order, or some of them, in order or not."""
    stages = [stage.stage for stage in plan.stages]
    if random.uniform() >= PARTLY_SHARE:
        return stages
    some = [stage for stage in stages if random.uniform() < 0.7]
    return [int(stage) for stage in random.permutation(some)] if random.uniform() < 0.5 else some


def _carried_out(plan: Plan, stages: list[int], running: RunningBackend, standing: BackendCluster) -> list[int]:
    """Stages carried out one after the other, up to the first that is refused or whose pods find no room.

    A pod that no stage has cut holds its card whole, and no scheduler puts another beside it: approved out of order, a
    stage may want the card of one that has not left yet. It waits, and is taken back.
    """
    places = {part.pod_id: card.card for card in plan.placement for part in card.slices}
    done: list[int] = []
    cut: set[str] = set()
    for stage in stages:
        try:
            rendered = running.render(plan, stage, standing.snapshot())
        except Refused:
            break
        cut |= {move.pod_id for move in rendered.moves}
        whole = {card for pod, held in standing.cards_of_pods.items() if pod not in cut for card in held}
        if whole & {places.get(move.pod_id) for move in rendered.moves if move.new}:
            break
        standing.carry_out(plan, rendered)
        done.append(stage)
    return done


def _standing(document: Mapping[str, Any], done: list[int], cluster: BackendCluster) -> dict[str, Any]:
    """What was carried out of a plan: the advice of its stages, and every pod on the card that it really has."""
    chosen = {name for stage in document["stages"] if stage["stage"] in done for name in stage["recommendations"]}
    parts = {f"{part['namespace']}/{part['pod']}": part for card in document["placement"] for part in card["slices"]}
    cards: dict[CardId, list[Mapping[str, Any]]] = defaultdict(list)
    for pod, held in cluster.cards_of_pods.items():
        for card in held if pod in parts else ():
            cards[card].append(parts[pod])
    return {
        "recommendations": [item for item in document["recommendations"] if item["id"] in chosen],
        "placement": [
            {"card": card, "node": cluster.node_of(card), "slices": slices} for card, slices in sorted(cards.items())
        ],
    }


def _switch_off(random: np.random.Generator, cluster: BackendCluster, history: History) -> None:
    """Gives some containers a variable by which no limit holds for them."""
    owners = {
        (grant.workload_kind, grant.namespace, grant.workload): grant.container for grant in history.inventory.grants
    }
    for key, container in sorted(owners.items()):
        if random.uniform() < SWITCHED_SHARE:
            name, value = SWITCHES[int(random.integers(0, len(SWITCHES)))]
            set_field(cluster.manifest(*key), f"spec.template.spec.containers[{container}].env[{name}]", value)


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
        replicas=int(random.integers(1, REPLICAS_MAX + 1)),
        level=float(random.uniform(0.05, 0.8)),
        hours=(begin, begin + int(random.integers(2, 8))) if is_at_rest else (0, 24),
        used_gib=float(random.uniform(1.0, 8.0)),
        priority=Priority.HIGH if random.uniform() < 0.7 else Priority.NORMAL,
        server=SERVERS[int(random.integers(0, len(SERVERS)))],
        labels=LABELS[int(random.choice(len(LABELS), p=LABEL_SHARES))],
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
    # The agents of a cluster have one chart, and so one manner; now and then one of them is not ready.
    manner, ready = str(random.choice(MANNERS)), {node: random.uniform() < 0.9 for node in nodes}
    agents = _some(random, nodes)
    at_work = frozenset(node for node in agents if ready[node] and manner != "off")
    probed = _some(random, nodes) if random.uniform() < 0.4 else []
    return Seen(
        pods=tuple(_agent(node, manner, is_ready=ready[node]) for node in agents),
        agents=at_work,
        strict=at_work if manner == "strict" else frozenset(),
        results=tuple(_result(random, node, backend) for node in probed),
    )


def _some(random: np.random.Generator, nodes: list[str]) -> list[str]:
    """None of the nodes, all, or one less."""
    return (nodes[:0], nodes, nodes[1:])[int(random.integers(0, 3))]


def _agent(node: str, manner: str, *, is_ready: bool) -> Manifest:
    return {
        "metadata": {"name": f"agent-{node}", "ownerReferences": [{"kind": "DaemonSet", "name": "gputide-agent"}]},
        "spec": {
            "nodeName": node,
            "containers": [{"name": "agent", "args": ["run", "agent", "--set", f"agent.give_way={manner}"]}],
        },
        "status": {"conditions": [{"type": "Ready", "status": str(is_ready)}]},
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
