"""A real control plane with HAMi's protocol double and an audit log, and fleets of services that are planned on it.

Shared by the bars of the enforcer that need the real API server and scheduler. The enforcer speaks to it with the
documented rights of the writer, as the command line does.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import yaml

from analyzer.profile import profile_fleet
from bench.measured_run import ROOT
from enforcer.backends.hami import HamiBackend
from enforcer.backends.register import BACKENDS
from enforcer.kubernetes.cluster import ClusterPlace, KubernetesCluster
from enforcer.record.journal import Journal, StageState
from enforcer.record.ledger import Ledger
from enforcer.rollout.pod_mover import MovePolicy
from enforcer.rollout.run_context import RolloutPolicy, RunContext
from enforcer.rollout.stages import Rollout
from enforcer.rollout.watch import ClusterSignals
from enforcer.safety.guard import Guard, GuardPolicy
from enforcer.snapshot import take_snapshot
from fleet.capabilities.register import HAMI
from fleet.decisions import Plan
from fleet.documents import seal_plan
from fleet.settings.settings import Settings
from fleet.usage import History
from gputide.operate.engine_cache import default_cache_path
from recommender.planner import make_plan
from tests.cluster.api import Api
from tests.cluster.audit import POLICY, AuditLog, Write, unwanted
from tests.cluster.hami_double import NAMESPACE_LABEL, HamiDouble
from tests.cluster.placed_fleet import Ground
from tests.cluster.played_backends import PlayedBackend
from tests.cluster.served_admission import ServedAdmission
from tests.cluster.standing_fleet import cards_in_use, stand_up
from tests.control_plane import ControlPlane, KubernetesPrograms, kubernetes_programs
from tests.enforcer.builders import a_yes
from tests.gputide.conftest import Program
from tests.recommender.builders import Service

ACCOUNT = "gputide-writer"
WRITER = f"system:serviceaccount:gputide:{ACCOUNT}"
CARDS_PER_NODE = 4

_READS = frozenset({"get", "list", "watch"})
_POLICY = {**POLICY, "rules": [{"level": "Metadata", "users": [WRITER]}, *POLICY["rules"]]}
"""What the tests' log has, and what the enforcer reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveCluster:
    """What runs.

    Attributes:
        plane: the control plane.
        api: an administrator's hand.
        double: HAMi.
        admission: gputide's.
        audit: what the API server writes down of every write.
        kubeconfig: the writer's.
        folder: for ledgers.
        account: service account of gputide's namespace that the kubeconfig is of.
    """

    plane: ControlPlane
    api: Api
    double: HamiDouble
    admission: ServedAdmission
    audit: AuditLog
    kubeconfig: Path
    folder: Path
    account: str = ACCOUNT

    def opened(self) -> KubernetesCluster:
        """The cluster with the writer's rights; asked as often as is useful."""
        place = ClusterPlace(kubeconfig=self.kubeconfig, requests_per_second=500.0, requests_burst=500)
        return KubernetesCluster(place)

    def asked(self, since: int) -> list[Write]:
        """What the enforcer asked of the server after a place in the log, reading too."""
        own = f"system:serviceaccount:gputide:{self.account}"
        return [entry for entry in self.audit.writes(since) if entry.user == own]

    def writes(self, since: int) -> list[Write]:
        """What the enforcer wrote after a place in the log."""
        return [entry for entry in self.asked(since) if entry.verb not in _READS]


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingFleet:
    """Services that run, each pod on a card of its own.

    Attributes:
        namespace: of all.
        history: what they are advised by.
    """

    namespace: str
    history: History


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """How a plan went.

    Attributes:
        promised: cards that it frees by its own word.
        freed: cards that hold no pod any more.
        objects: workloads that it changes.
        is_whole: every stage was kept.
        unwanted: writes of the enforcer that the plan does not ask for.
        writes: all writes of the enforcer.
        requests: all requests of the enforcer, reading and waiting among them.
        by_verb: the same, as the server counted them, by verb and resource.
        under_way_max: most of them at once.
        wall_seconds: how long it took.
    """

    promised: int
    freed: int
    objects: int
    is_whole: bool
    unwanted: tuple[Write, ...]
    writes: int
    requests: int
    by_verb: Mapping[str, int]
    under_way_max: int
    wall_seconds: float


def programs() -> KubernetesPrograms:
    """The control plane's programs, built where they are not in the cache.

    Raises:
        Unavailable: they can't be built here.
    """
    cache = Path(os.environ.get("GPUTIDE_ENGINES_CACHE") or default_cache_path())
    return kubernetes_programs(cache, tell=lambda said: print(said, file=sys.stderr))


@contextmanager
def live_cluster(found: KubernetesPrograms, folder: Path) -> Iterator[LiveCluster]:
    """Run it for as long as is needed."""
    audit, policy = AuditLog(folder / "audit.log"), folder / "audit-policy.yaml"
    arguments = audit.arguments(policy)
    policy.write_text(json.dumps(_POLICY), encoding="utf-8")
    plane = ControlPlane(
        found,
        folder,
        api_arguments=arguments,
        # Of their own accord controllers write twenty times a second, which is nothing that is measured here.
        controller_arguments=["--kube-api-qps=500", "--kube-api-burst=500"],
    )
    try:
        plane.start()
        api = Api(plane.url, plane.ca, plane.kubeconfig())
        for page in ("custom-resources.yaml", "rbac-writer.yaml"):
            _apply_page(api, page)
        kubeconfig = plane.kubeconfig_of_token("writer", api.token("gputide", "gputide-writer"))
        double = HamiDouble(plane, found, api, folder, looks_at_all_nodes=True)
        double.start()
        admission = ServedAdmission(plane, api)
        admission.start()
        try:
            yield LiveCluster(
                plane=plane, api=api, double=double, admission=admission, audit=audit, kubeconfig=kubeconfig,
                folder=folder,
            )  # fmt: skip
        finally:
            admission.stop()
            double.stop()
    finally:
        plane.end()


@contextmanager
def admitted_plane(found: KubernetesPrograms, folder: Path, played: PlayedBackend) -> Iterator[Ground]:
    """A control plane with a backend that is played, and admission."""
    quick = ["--kube-api-qps=500", "--kube-api-burst=500"]
    plane = ControlPlane(found, folder, controller_arguments=quick)
    try:
        plane.start()
        api = Api(plane.url, plane.ca, plane.kubeconfig())
        for name in ("rbac-writer.yaml", "custom-resources.yaml"):
            _apply_page(api, name)
        kubeconfig = plane.kubeconfig_of_token("writer", api.token("gputide", "gputide-writer"))
        dialect = dict(BACKENDS)[played.name](datetime.now(UTC)).dialect
        admission = ServedAdmission(plane, api, dialect)
        with played.running(plane, found, api, folder):
            admission.start()
            program = Program(folder)
            try:
                yield Ground(
                    api=api, approver=plane.kubeconfig(), writer=kubeconfig, played=played, folder=folder,
                    program=program,
                )  # fmt: skip
            finally:
                program.close()
                admission.stop()
    finally:
        plane.end()


def _apply_page(api: Api, page: str) -> None:
    """Make every object of a page of the documentation."""
    for manifest in yaml.safe_load_all((ROOT / "docs" / page).read_text(encoding="utf-8")):
        api.apply(manifest)


def stand_up_fleet(live: LiveCluster, name: str, *, services: int, nodes: int, seed: int) -> StandingFleet:
    """Services that differ in what they need, on nodes of four cards.

    Args:
        live: where.
        name: of the namespace, and the beginning of the names of nodes and cards.
        services: Deployments of one pod, each with a whole card.
        nodes: nodes; their cards are at least as many as the services.
        seed: of what the services need.
    """
    live.api.create("/api/v1/namespaces", {"metadata": {"name": name, "labels": {NAMESPACE_LABEL: "on"}}})
    random = np.random.default_rng(seed)
    found = [
        Service(
            name=f"svc-{place}",
            level=float(random.uniform(0.05, 0.4)),
            used_gib=float(random.uniform(1.0, 10.0)),
            hours=(0, 24) if random.uniform() < 0.7 else (0, 8),
        )
        for place in range(services)
    ]
    spare = nodes * CARDS_PER_NODE - services
    history = stand_up(live.api, name, *found, prefix=name, spare_cards=spare)
    return StandingFleet(namespace=name, history=history)


def planned(fleet: StandingFleet, cluster: KubernetesCluster) -> Plan:
    """A plan for a fleet."""
    settings = Settings.model_validate({"risk": {"preset": "high"}, "plan": {"spare_card_ratio": 0.0}})
    now = cluster.now()
    profiles = profile_fleet(fleet.history, settings=settings.analyzer, now=now)
    return seal_plan(make_plan(fleet.history, profiles, settings=settings, capability=HAMI, now=now))


def tools_on(cluster: KubernetesCluster, ledger: Path) -> RunContext:
    """What rollout and undo work with; watched for a second."""
    return RunContext(
        reader=cluster, writer=cluster, lease=cluster, pause=cluster.pause, journal=Journal(Ledger(ledger)),
        guard=Guard(GuardPolicy()), signals=ClusterSignals(cluster),
        policy=RolloutPolicy(watch_seconds=1.0, moving=MovePolicy(poll_seconds=1.0, placement_seconds_max=120.0)),
    )  # fmt: skip


def apply_to(live: LiveCluster, fleet: StandingFleet) -> tuple[Plan, Applied]:
    """Plan a fleet, apply all of the plan, and count."""
    cluster = live.opened()
    plan = planned(fleet, cluster)
    before = cards_in_use(take_snapshot(cluster), fleet.namespace)
    tools = tools_on(cluster, live.folder / f"ledger-{fleet.namespace}.jsonl")
    stages = plan.rollout_stages
    asked, began, started = cluster.requests, live.audit.size(), time.monotonic()
    results = Rollout(tools, HamiBackend(cluster.now())).apply(
        plan, stages, by="bench", approved=lambda: a_yes(plan, *stages)
    )
    for result in results:
        if result.state is not StageState.PROMOTED:
            print(f"stage {result.stage} was taken back: {result.reason}", file=sys.stderr)
    asked, wall_seconds = cluster.requests - asked, time.monotonic() - started
    workloads = {str(workload) for item in plan.recommendations for workload in item.workloads}
    writes = live.writes(began)
    applied = Applied(
        promised=plan.totals.cards_freed,
        freed=len(before) - len(cards_in_use(take_snapshot(cluster), fleet.namespace)),
        objects=len(workloads),
        is_whole=len(results) == len(stages) and all(result.state is StageState.PROMOTED for result in results),
        unwanted=tuple(unwanted(writes, workloads)),
        writes=len(writes),
        requests=asked,
        by_verb=Counter(f"{entry.verb} {entry.resource}" for entry in live.asked(began)),
        under_way_max=cluster.requests_under_way_max,
        wall_seconds=wall_seconds,
    )
    cluster.close()
    return plan, applied


def clear_away(live: LiveCluster, fleet: StandingFleet) -> None:
    """Take a fleet's namespace and nodes away."""
    live.api.delete(f"/api/v1/namespaces/{fleet.namespace}")
    for node in fleet.history.inventory.nodes:
        live.api.delete(f"/api/v1/nodes/{node.node}")
