"""A plan from a small history, applied on the real API server with HAMi's protocol double, and taken back.

What counts is what stands in the cluster afterwards: the cards that the real scheduler left free, what the API server
wrote down of every write, and that every object is as it was once the plan is undone.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from analyzer.profile import profile_fleet
from enforcer.backends.hami import HamiBackend
from enforcer.kubernetes.cluster import ClusterPlace, KubernetesCluster
from enforcer.record.journal import Journal, StageState
from enforcer.record.ledger import Ledger
from enforcer.record.plan_store import PlanStore
from enforcer.rollout.pod_mover import MovePolicy
from enforcer.rollout.run_context import RolloutPolicy, RunContext
from enforcer.rollout.stages import Rollout
from enforcer.rollout.undo import Undo
from enforcer.rollout.watch import ClusterSignals
from enforcer.safety.guard import Guard, GuardPolicy
from enforcer.snapshot import take_snapshot
from fleet.capabilities.register import HAMI
from fleet.data_folder import open_data_folder
from fleet.decisions import Plan
from fleet.documents import seal_plan
from fleet.sentences import Sentence
from fleet.settings.settings import Settings
from fleet.units import GIB, MIB
from fleet.usage import History
from gputide.container.plans import keep_plan
from recommender.planner import make_plan
from tests.cluster.api import Api, Manifest
from tests.cluster.audit import AuditLog, unwanted
from tests.cluster.hami_double import NAMESPACE_LABEL, HamiDouble
from tests.cluster.plugin import kubectl_gputide
from tests.cluster.served_admission import ServedAdmission
from tests.cluster.standing_fleet import cards_in_use, stand_up
from tests.cluster.workloads import pods, until, until_ready
from tests.control_plane import ControlPlane, KubernetesPrograms, User
from tests.enforcer.builders import a_yes
from tests.gputide.conftest import Program, Running, Said
from tests.recommender.builders import Service
from tests.stand_in_server import Card, NotStarted, started

pytestmark = pytest.mark.cluster

WRITER = "system:serviceaccount:gputide:gputide-writer"
SERVICES = (
    Service(name="web", level=0.1, used_gib=3.0),
    Service(name="chat", level=0.1, used_gib=3.0),
    Service(name="rank", level=0.15, used_gib=4.0),
    Service(name="embed", level=0.1, used_gib=2.0),
    Service(name="night", level=0.2, used_gib=5.0, hours=(0, 6)),
)
REPLICATED = (
    Service(name="web", replicas=3, level=0.1, used_gib=3.0),
    Service(name="rank", replicas=2, level=0.15, used_gib=4.0),
    Service(name="embed", level=0.1, used_gib=2.0),
)
VLLM = ("vllm", "serve", "M", "--port=0")
SERVERS = tuple(
    Service(name=name, server="vllm", level=0.1, used_gib=20.0, pool_gib=15.0, cache_ratio=0.05, args=args)
    for name, args in {
        "chat": (*VLLM, "--kv-cache-memory-bytes", "15G", "--dtype=auto"),
        "code": ("sh", "-c", 'exec vllm serve "M" --kv-cache-memory-bytes=15G # as measured\n'),
        "talk": (*VLLM, "--gpu-memory-utilization", "0.833"),
    }.items()
)
_numbers = count(1)


@pytest.fixture(scope="module")
def hami(
    control_plane: ControlPlane, programs: KubernetesPrograms, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[HamiDouble]:
    """Run HAMi's double for all tests of this file."""
    api = Api(control_plane.url, control_plane.ca, control_plane.kubeconfig())
    running = HamiDouble(control_plane, programs, api, tmp_path_factory.mktemp("hami"))
    running.start()
    yield running
    running.stop()


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A fleet that stands, and what the enforcer has to it."""

    prefix: str
    namespace: str
    services: tuple[Service, ...]
    history: History
    cluster: KubernetesCluster
    tools: RunContext


@pytest.fixture
def services() -> tuple[Service, ...]:
    """Return the services that stand; a test may have others."""
    return SERVICES


@pytest.fixture
def spare_cards() -> int:
    """Return how many cards are free; a test may have others."""
    return 1


@pytest.fixture
def standing(
    hami: HamiDouble,
    admission: ServedAdmission,
    api: Api,
    namespace: str,
    writer_kubeconfig: Path,
    tmp_path: Path,
    services: tuple[Service, ...],
    spare_cards: int,
) -> Iterator[Standing]:
    """Let the services run, each pod on a card of its own."""
    assert hami is not None
    assert admission is not None
    api.patch(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": {NAMESPACE_LABEL: "on"}}})
    place = ClusterPlace(kubeconfig=writer_kubeconfig, requests_per_second=500.0, requests_burst=500)
    cluster = KubernetesCluster(place)
    prefix = f"fleet{next(_numbers)}"
    history = stand_up(api, namespace, *services, prefix=prefix, spare_cards=spare_cards)
    tools = RunContext(
        reader=cluster,
        writer=cluster,
        lease=cluster,
        pause=cluster.pause,
        journal=Journal(Ledger(tmp_path / "ledger.jsonl")),
        guard=Guard(GuardPolicy()),
        signals=ClusterSignals(cluster),
        policy=RolloutPolicy(watch_seconds=1.0, moving=MovePolicy(poll_seconds=0.5, placement_seconds_max=60.0)),
    )
    yield Standing(prefix=prefix, namespace=namespace, services=services, history=history, cluster=cluster, tools=tools)
    cluster.close()
    for node in history.inventory.nodes:
        if api.has(f"/api/v1/nodes/{node.node}"):
            api.delete(f"/api/v1/nodes/{node.node}")


def plan_of(standing: Standing, *, gaps_allowed: bool = False) -> Plan:
    settings = Settings.model_validate(
        {"risk": {"preset": "high"}, "plan": {"spare_card_ratio": 0.0}, "guard": {"gaps_allowed": gaps_allowed}}
    )
    now = standing.cluster.now()
    profiles = profile_fleet(standing.history, settings=settings.analyzer, now=now)
    return seal_plan(make_plan(standing.history, profiles, settings=settings, capability=HAMI, now=now))


def in_use(standing: Standing) -> set[str]:
    return cards_in_use(take_snapshot(standing.cluster), standing.prefix)


def contents(api: Api, namespace: str) -> dict[str, Any]:
    found = api.ask("GET", f"/apis/apps/v1/namespaces/{namespace}/deployments")["items"]
    return {item["metadata"]["name"]: _wished(item) for item in found}


def reasons(api: Api, namespace: str) -> set[tuple[str, str]]:
    """Names of Deployments, each with the reason of an event on it."""
    found = api.ask("GET", f"/api/v1/namespaces/{namespace}/events?fieldSelector=involvedObject.kind%3DDeployment")
    return {(one["involvedObject"]["name"], one["reason"]) for one in found["items"]}


def owners(api: Api, namespace: str) -> set[str]:
    """Who owns which field of each Deployment, but for its status."""
    return {
        f"{item['metadata']['name']}: {entry['manager']} {entry['operation']} {field}"
        for item in api.ask("GET", f"/apis/apps/v1/namespaces/{namespace}/deployments")["items"]
        for entry in item["metadata"]["managedFields"]
        if entry.get("subresource") != "status"
        for field in _leaves(entry["fieldsV1"])
    }


def _leaves(tree: Manifest) -> list[str]:
    return [
        f"{key}/{leaf}" if leaf else key for key, inner in tree.items() for leaf in (_leaves(inner) if inner else [""])
    ]


def _wished(item: Manifest) -> Any:
    annotations = item["metadata"].get("annotations", {})
    by_people = {name: value for name, value in annotations.items() if not name.startswith("deployment.kubernetes.io")}
    return item["spec"], item["metadata"].get("labels"), by_people


def apply_all(standing: Standing, plan: Plan) -> list[tuple[StageState, Sentence | str | None]]:
    stages = tuple(stage.stage for stage in plan.stages)
    rollout = Rollout(standing.tools, HamiBackend(standing.cluster.now()))
    return [
        (result.state, result.reason)
        for result in rollout.apply(plan, stages, by="tests", approved=lambda: a_yes(plan, *stages))
    ]


def test_cards_that_are_really_free_are_those_of_the_plan_and_undo_restores(
    api: Api, audit: AuditLog, standing: Standing
) -> None:
    before, contents_before = in_use(standing), contents(api, standing.namespace)
    owners_before = owners(api, standing.namespace)
    assert len(before) == sum(service.replicas for service in standing.services)
    plan = plan_of(standing)
    assert plan.totals.cards_freed > 0
    began = audit.size()
    assert apply_all(standing, plan) == [(StageState.PROMOTED, None)] * len(plan.rollout_stages)
    settled(api, standing)
    assert len(before) - len(in_use(standing)) == plan.totals.cards_freed
    planned = {str(workload) for item in plan.recommendations for workload in item.workloads}
    writes = [write for write in audit.writes(began) if write.user == WRITER]
    assert {write.name for write in writes if write.resource == "deployments"}
    assert unwanted(writes, planned) == []
    undone = Undo(standing.tools).undo(plan.plan_id)
    assert undone.workloads
    settled(api, standing)
    assert reasons(api, standing.namespace) >= {
        (workload.split("/")[2], reason)
        for workload in undone.workloads
        for reason in ("GputideApplied", "GputideUndone")
    }, "kubectl describe shows them"
    assert len(in_use(standing)) == len(before)
    assert contents(api, standing.namespace) == contents_before
    assert owners(api, standing.namespace) == owners_before


@pytest.mark.parametrize("services", [REPLICATED])
def test_replicas_that_the_plan_seats_apart_go_to_their_own_cards(api: Api, standing: Standing) -> None:
    before, contents_before = in_use(standing), contents(api, standing.namespace)
    plan = plan_of(standing)
    assert plan.totals.cards_freed > 0
    assert apply_all(standing, plan) == [(StageState.PROMOTED, None)] * len(plan.rollout_stages)
    settled(api, standing)
    assert in_use(standing) == {str(card.card) for card in plan.placement}
    assert len(before) - len(in_use(standing)) == plan.totals.cards_freed
    Undo(standing.tools).undo(plan.plan_id)
    settled(api, standing)
    assert len(in_use(standing)) == len(before)
    assert contents(api, standing.namespace) == contents_before


def settled(api: Api, standing: Standing) -> None:
    for service in standing.services:
        until_ready(api, standing.namespace, service.name, service.replicas)
    # Pods that were asked to go are gone once kwok has played their end.
    deadline = time.monotonic() + 30
    while any(len(pods(api, standing.namespace, s.name)) != s.replicas for s in standing.services):
        assert time.monotonic() < deadline
        time.sleep(0.1)


@dataclass(frozen=True, slots=True, kw_only=True)
class OnCluster:
    """Calls of the real program on a data folder, with the writer's rights on the cluster."""

    program: Program
    folder: Path
    kubeconfig: Path
    approver: Path
    cluster: str

    def approve(self) -> Said:
        """Approve everything, as somebody who may: the writer may not."""
        return self("plan", "approve", kubeconfig=self.approver)

    def __call__(self, *arguments: str, kubeconfig: Path | None = None) -> Said:
        return self.start(*arguments, kubeconfig=kubeconfig).wait()

    def start(self, *arguments: str, kubeconfig: Path | None = None, watch_seconds: int = 1) -> Running:
        """Call it and go on while it runs."""
        chosen = {
            "cluster.name": self.cluster, "enforcer.cluster": "kubernetes",
            "enforcer.kubeconfig": kubeconfig or self.kubeconfig, "enforcer.poll_seconds": 0.5,
            "enforcer.watch_seconds": watch_seconds, "enforcer.requests_per_second": 500,
            "enforcer.requests_burst": 500,
        }  # fmt: skip
        flags = [flag for name, value in chosen.items() for flag in ("--set", f"{name}={value}")]
        return self.program.start(self.folder, *flags, *arguments)


@pytest.fixture(scope="module")
def other_caller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """Return a second one, for calls beside one that goes on."""
    made = Program(tmp_path_factory.mktemp("other-program"))
    yield made
    made.close()


@pytest.fixture
def planned(
    standing: Standing, writer_kubeconfig: Path, control_plane: ControlPlane, caller: Program, tmp_path: Path
) -> OnCluster:
    """Return the program on a data folder that holds the plan."""
    folder = open_data_folder(tmp_path / "data", create=True)
    settings = Settings.model_validate({"enforcer": {"cluster": "kubernetes", "kubeconfig": str(writer_kubeconfig)}})
    plan = plan_of(standing)
    keep_plan(folder, settings, plan)
    return OnCluster(
        program=caller,
        folder=folder.path,
        kubeconfig=writer_kubeconfig,
        approver=control_plane.kubeconfig(),
        cluster=plan.cluster,
    )


def test_program_shows_applies_and_undoes_a_plan_on_a_real_cluster(
    api: Api, audit: AuditLog, standing: Standing, planned: OnCluster, control_plane: ControlPlane
) -> None:
    before, contents_before = in_use(standing), contents(api, standing.namespace)
    began = audit.size()
    shown = planned("plan", "diff", "--all")
    assert shown.status == 0, shown.err
    rehearsed = [write for write in audit.writes(began) if write.user == WRITER]
    assert {write.name for write in rehearsed if write.resource == "deployments"} >= {"rank", "embed"}
    assert all(write.is_dry for write in rehearsed)
    assert f"Deployment {standing.namespace}/rank planned" in shown.out
    assert planned.approve().status == 0
    stranger = planned("apply", "--yes", kubeconfig=control_plane.kubeconfig(User.STRANGER))
    assert stranger.status == 2
    assert "RBAC lacks verb list on resource gpuapprovals.gputide.io in the whole cluster" in stranger.err
    lost = planned("apply", "--yes", kubeconfig=Path("/nowhere/kubeconfig"))
    assert lost.status == 2
    assert "cannot use kubeconfig /nowhere/kubeconfig" in lost.err
    assert "enforcer.kubeconfig" in lost.err
    dry = planned("apply")
    assert dry.status == 0, dry.err
    assert contents(api, standing.namespace) == contents_before
    applied = planned("apply", "--yes", "--format", "json")
    assert applied.status == 0, applied.err
    settled(api, standing)
    assert len(in_use(standing)) < len(before)
    undone = planned("undo", "--yes")
    assert undone.status == 0, undone.err
    settled(api, standing)
    assert len(in_use(standing)) == len(before)
    assert contents(api, standing.namespace) == contents_before


@pytest.mark.parametrize("services", [SERVERS])
def test_servers_start_in_their_slices_with_what_was_applied(
    api: Api, standing: Standing, planned: OnCluster, tmp_path: Path
) -> None:
    before, contents_before = in_use(standing), contents(api, standing.namespace)
    owners_before = owners(api, standing.namespace)
    shown = planned("plan", "diff", "--all")
    assert shown.status == 0, shown.err
    assert "--kv-cache-memory-bytes" in shown.out
    assert planned.approve().status == 0
    applied = planned("apply", "--yes")
    assert applied.status == 0, applied.err
    settled(api, standing)
    assert len(in_use(standing)) < len(before)
    for service in standing.services:
        spec, *_ = contents(api, standing.namespace)[service.name]
        container = spec["template"]["spec"]["containers"][0]
        limit = int(container["resources"]["limits"]["nvidia.com/gpumem"]) * MIB
        card = Card(total_bytes=limit, limit_bytes=limit, weights_bytes=4 * GIB, others_bytes=GIB)
        is_fixed = "--kv-cache-memory-bytes" in " ".join(service.args)
        assert (container["args"] != list(service.args)) is is_fixed
        with started(container["args"], card, tmp_path) as server:
            assert 0 < server.taken_bytes <= limit
        if is_fixed:
            with pytest.raises(NotStarted), started(service.args, card, tmp_path):
                pass
    undone = planned("undo", "--yes")
    assert undone.status == 0, undone.err
    settled(api, standing)
    assert contents(api, standing.namespace) == contents_before
    assert owners(api, standing.namespace) == owners_before


def test_machine_that_knows_nothing_of_a_plan_takes_it_back(
    api: Api, standing: Standing, planned: OnCluster, tmp_path: Path
) -> None:
    before, contents_before = len(in_use(standing)), contents(api, standing.namespace)
    assert planned.approve().status == 0
    applied = planned("apply", "--yes")
    assert applied.status == 0, applied.err
    elsewhere = replace(planned, folder=open_data_folder(tmp_path / "elsewhere", create=True).path)
    undone = elsewhere("undo", "--yes")
    assert undone.status == 0, undone.err
    settled(api, standing)
    assert len(in_use(standing)) == before
    assert contents(api, standing.namespace) == contents_before
    again = planned("undo", "--yes")
    assert again.status == 4
    assert "it was undone already" in again.err


def test_ledger_of_the_folder_that_was_cut_is_named_and_keeps_nobody_from_undoing(
    api: Api, standing: Standing, planned: OnCluster
) -> None:
    contents_before = contents(api, standing.namespace)
    assert planned.approve().status == 0
    applied = planned("apply", "--yes")
    assert applied.status == 0, applied.err
    sound = planned("admin", "ledger", "verify", "--format", "json")
    assert (sound.status, sound.document["trust"]) == (0, "unkeyed, anchored"), sound.out
    ledger = planned.folder / "ledger.jsonl"
    ledger.write_bytes(b"".join(ledger.read_bytes().splitlines(keepends=True)[:-3]))
    (planned.folder / "ledger.jsonl.head").unlink()
    left = ledger.read_bytes()
    said = planned("admin", "ledger", "verify")
    assert said.status == 1
    undone = planned("undo", "--yes")
    assert undone.status == 0, undone.err
    assert "a ledger of the data folder can't be trusted" in undone.err
    settled(api, standing)
    assert contents(api, standing.namespace) == contents_before
    assert ledger.read_bytes() == left
    assert planned("admin", "ledger", "verify").status == 1
    assert planned("admin", "ledger", "accept", "--yes").status == 0
    assert planned("admin", "ledger", "verify").status == 0


@pytest.mark.parametrize(("verb", "is_elsewhere"), [("apply --abort", True), ("undo", False)])
def test_stage_that_another_process_applies_is_taken_back(
    verb: str,
    is_elsewhere: bool,
    api: Api,
    standing: Standing,
    planned: OnCluster,
    other_caller: Program,
    tmp_path: Path,
) -> None:
    contents_before = contents(api, standing.namespace)
    assert planned.approve().status == 0
    applying = planned.start("apply", "--yes", watch_seconds=300)
    until(lambda: contents(api, standing.namespace) != contents_before, "the stage is under way", 60.0)
    other = replace(planned, program=other_caller)
    if is_elsewhere:
        other = replace(other, folder=open_data_folder(tmp_path / "elsewhere", create=True).path)
    shown = other("apply", "--abort")
    assert shown.status == 0, shown.err
    assert "nothing was changed" in shown.out
    began = time.monotonic()
    ended = other(*verb.split(), "--yes")
    assert time.monotonic() - began < 60.0
    applied = applying.wait()
    assert contents(api, standing.namespace) == contents_before
    again = other("apply", "--abort", "--yes")
    assert ended.status == 0, ended.err
    assert applied.status == 4
    assert "was taken back: aborted by" in applied.err
    assert again.status == 0
    assert "nothing is being applied" in again.out
    settled(api, standing)


def test_controller_does_what_a_plan_in_the_cluster_asks_for(
    api: Api, standing: Standing, planned: OnCluster, other_caller: Program, tmp_path: Path
) -> None:
    before, contents_before = len(in_use(standing)), contents(api, standing.namespace)
    assert planned.approve().status == 0
    folder = open_data_folder(tmp_path / "controller", create=True).path
    running = replace(planned, program=other_caller, folder=folder)
    controller = running.start("run", "controller", "--yes")
    try:
        lease = "/apis/coordination.k8s.io/v1/namespaces/gputide/leases/controller"
        until(lambda: api.has(lease) and "holderIdentity" in api.ask("GET", lease)["spec"], "it holds its lease", 60.0)
        for words in (("apply", "--yes"), ("watch",)):
            said = kubectl_gputide(planned.approver, tmp_path, "--set", f"cluster.name={planned.cluster}", *words)
            assert said.status == 0, said.err
        settled(api, standing)
        assert len(in_use(standing)) < before
        plan = PlanStore(planned.folder / "plans").newest(planned.cluster)
        assert plan is not None
        path = f"/apis/gputide.io/v1alpha1/gpuplans/plan-{plan.plan_id}"
        assert api.ask("GET", path)["spec"]["apply"] == list(plan.rollout_stages)
        api.patch(path, {"spec": {"apply": []}})
        until(lambda: contents(api, standing.namespace) == contents_before, "it is taken back", 90.0)
        until(lambda: api.ask("GET", path)["status"]["state"] == "Undone", "its status says so", 60.0)
        api.patch(path, {"spec": {"apply": [plan.stages[0].stage]}})
        until(lambda: contents(api, standing.namespace) != contents_before, "it is applied again", 90.0)
        undone = planned("undo", "--yes")
        assert undone.status == 0, undone.err
        assert contents(api, standing.namespace) == contents_before
    finally:
        os.kill(controller.pid, signal.SIGTERM)
        controller.wait()
    settled(api, standing)


def test_config_map_that_freezes_stops_every_change(api: Api, standing: Standing, planned: OnCluster) -> None:
    assert planned.approve().status == 0
    contents_before = contents(api, standing.namespace)
    freeze = partial(kubectl_gputide, planned.approver, planned.folder / "cache", "freeze")
    assert freeze().out.startswith("every change in this cluster is stopped, by admin;")
    try:
        refused = planned("apply", "--yes")
    finally:
        assert [freeze("--lift").out for _ in range(2)] == ["changes are allowed again\n", "nothing was frozen\n"]
    assert refused.status == 4
    assert "ConfigMap gputide/gputide-freeze freezes it" in refused.err
    assert contents(api, standing.namespace) == contents_before
