"""Relief on the real API server beside HAMi's double, with the documented writer's rights and no others."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import pytest
import yaml

from enforcer.agent.node_view import ContainerKey
from enforcer.agent.orders import parse_orders
from enforcer.kubernetes.cluster import ClusterPlace, KubernetesCluster
from enforcer.record.ledger import Ledger
from enforcer.relief.demand_memory import DemandMemory
from enforcer.relief.relief_context import ReliefContext
from enforcer.relief.relief_journal import MovePhase, ReliefJournal
from enforcer.relief.runner import ReliefRunner
from enforcer.relief.squeeze import OrdersWriter
from enforcer.safety.guard import GuardPolicy
from enforcer.snapshot import take_snapshot
from fleet.grammars.hami import RegisteredDevice
from tests.cluster.api import Api, Manifest
from tests.cluster.audit import AuditLog
from tests.cluster.hami_double import NAMESPACE_LABEL, HamiDouble, hami_node
from tests.cluster.workloads import deployment, is_ready, pods, until, until_ready
from tests.control_plane import ControlPlane, KubernetesPrograms
from tests.enforcer.builders import OpenGuard
from tests.enforcer.relief.builders import POLICY, views_of

pytestmark = pytest.mark.cluster

WRITER = "system:serviceaccount:gputide:gputide-writer"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/gputide/leases/enforcer"
RULES = Path(__file__).resolve().parents[2] / "docs" / "rbac-relief.yaml"
_numbers = count(1)


@pytest.fixture(scope="module")
def hami(
    control_plane: ControlPlane, programs: KubernetesPrograms, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[HamiDouble]:
    """Run the double for all tests of this file."""
    api = Api(control_plane.url, control_plane.ca, control_plane.kubeconfig())
    running = HamiDouble(control_plane, programs, api, tmp_path_factory.mktemp("hami"))
    running.start()
    yield running
    running.stop()


@pytest.fixture
def team(hami: HamiDouble, api: Api, namespace: str) -> str:
    """Return a namespace whose pods pass the webhook."""
    assert hami is not None
    api.patch(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": {NAMESPACE_LABEL: "on"}}})
    return namespace


@pytest.fixture
def node(api: Api) -> Iterator[str]:
    """Return a node of two A10 with 24 GiB; it is gone afterwards."""
    name = f"relief-{next(_numbers)}"
    hami_node(api, name, [a10(name, number) for number in range(2)])
    yield name
    api.delete(f"/api/v1/nodes/{name}")


def a10(node: str, number: int) -> RegisteredDevice:
    return RegisteredDevice(
        card=card_of(node, number), slices_max=10, framebuffer_mib=24_576, core_percent=100,
        device_type="NVIDIA-NVIDIA A10", numa=0, is_healthy=True, index=number, mode="hami-core",
    )  # fmt: skip


def card_of(node: str, number: int) -> str:
    return f"GPU-{node}-{number}"


@dataclass
class Scene:
    """Two services and low priority on one card of a node, and a relief with the documented writer's rights."""

    api: Api
    team: str
    node: str
    cluster: KubernetesCluster
    folder: Path
    memory: DemandMemory

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self.journal = ReliefJournal(Ledger(self.folder / "relief.jsonl"))
        tools = ReliefContext(
            reader=self.cluster,
            writer=self.cluster,
            lease=self.cluster,
            holder="relief",
            guard=OpenGuard(GuardPolicy(gaps_allowed=True)),
            dialect=take_snapshot(self.cluster).dialect,
            journal=self.journal,
            orders=OrdersWriter(self.cluster, self.cluster, namespace="gputide", name="gputide-orders"),
        )
        policy = replace(POLICY, rules=replace(POLICY.rules, rest_seconds=1, home_seconds=60))
        self.runner = ReliefRunner(tools, policy, self.memory)

    def look(self, **use: float) -> tuple[str, ...]:
        asleep = {key.pod_uid for key in self.asleep()}
        found = self.runner.look(views_of(self.cluster, use, asleep=asleep))
        return found.said

    def asleep(self) -> tuple[ContainerKey, ...]:
        data = self.api.ask("GET", "/api/v1/namespaces/gputide/configmaps/gputide-orders").get("data") or {}
        return parse_orders(data[self.node]).paused if self.node in data else ()

    def card(self, app: str) -> str:
        (pod,) = [pod for pod in pods(self.api, self.team, app) if is_ready(pod)]
        return str(pod["metadata"]["annotations"]["hami.io/vgpu-devices-allocated"]).partition(",")[0]

    def run_until_moved(self, **use: float) -> None:
        until(lambda: self._is_over(use), "the move is over")

    def _is_over(self, use: dict[str, float]) -> bool:
        self.look(**use)
        moves = self.journal.moves()
        return bool(moves) and not moves[-1].is_open


@pytest.fixture
def scene(api: Api, team: str, node: str, writer_kubeconfig: Path, tmp_path: Path) -> Iterator[Scene]:
    if api.has(LEASE):
        api.delete(LEASE)
    for manifest in yaml.safe_load_all(RULES.read_text(encoding="utf-8")):
        api.apply(manifest)
    cluster = KubernetesCluster(
        ClusterPlace(kubeconfig=writer_kubeconfig, requests_per_second=500.0, requests_burst=500)
    )
    only = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    ]}}}  # fmt: skip
    close(api, node, card_of(node, 1))
    for app, priority in (("a", "0"), ("b", "0"), ("c", "1")):
        limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "6000", "nvidia.com/priority": priority}
        deployment(api, team, app, limits=limits, pod_spec={"affinity": only})
    for app in ("a", "b", "c"):
        until_ready(api, team, app, 1)
    close(api, node, None)
    yield Scene(api=api, team=team, node=node, cluster=cluster, folder=tmp_path, memory=DemandMemory())
    cluster.close()


def close(api: Api, node: str, card: str | None) -> None:
    """Close a card to newcomers, as HAMi's users do; None opens it."""
    noted: dict[str, str | None] = {
        "hami.io/device-cordon": card,
        "hami.io/node-handshake": "Reported_2026-01-01 00:00:00",
    }
    api.patch(f"/api/v1/nodes/{node}", {"metadata": {"annotations": noted}})


FULL = {"a": 0.7, "b": 0.6, "c": 0.2}
CALM = {"a": 0.2, "b": 0.2, "c": 0.2}


def test_overload_is_squeezed_at_once_and_a_pod_moves_by_a_warm_replica_and_home_again(
    scene: Scene, audit: AuditLog
) -> None:
    old, began = pods(scene.api, scene.team, "a")[0]["metadata"]["name"], audit.size()
    assert {scene.card(app) for app in "abc"} == {card_of(scene.node, 0)}
    started = time.monotonic()
    scene.look(**FULL)
    assert time.monotonic() - started < 1.0
    assert len(scene.asleep()) == 1
    until(lambda: bool(scene.look(**FULL)) and bool(scene.journal.moves()), "a move began", 10.0)
    assert time.monotonic() - started < 10.0
    move = scene.journal.moves()[0]
    app = move.order.workload.rpartition("/")[2]
    assert app in ("a", "b")
    both: list[int] = []

    def is_over() -> bool:
        scene.look(**FULL)
        both.append(sum(map(is_ready, pods(scene.api, scene.team, app))))
        return not scene.journal.moves()[0].is_open

    until(is_over, "the pod has moved")
    assert scene.journal.moves()[0].phase is MovePhase.DONE, scene.journal.moves()[0].why
    # Somebody always served.
    assert min(both) >= 1
    until_ready(scene.api, scene.team, app, 1)
    (serving,) = pods(scene.api, scene.team, app)
    assert serving["metadata"]["name"] == move.order.replica != old
    assert serving["metadata"]["ownerReferences"][0]["kind"] == "ReplicaSet"
    assert scene.card(app) == card_of(scene.node, 1)
    until(lambda: scene.look(**CALM) == () and scene.asleep() == (), "low priority works again", 30.0)
    # A relief that starts anew remembers no use, but who is away.
    scene.memory = DemandMemory()
    scene.restart()
    until(lambda: bool(scene.look(**CALM)) and len(scene.journal.moves()) == 2, "a move home began")
    scene.run_until_moved(**CALM)
    assert scene.journal.moves()[-1].order.is_home
    assert scene.journal.moves()[-1].phase is MovePhase.DONE, scene.journal.moves()[-1].why
    until_ready(scene.api, scene.team, app, 1)
    assert scene.card(app) == card_of(scene.node, 0)
    written = {(write.verb, write.resource) for write in audit.writes(began) if write.user == WRITER}
    assert written <= {
        ("patch", "configmaps"), ("create", "pods"), ("patch", "pods"), ("create", "pods/eviction"),
        ("create", "events"), ("patch", "events"), ("create", "leases"), ("update", "leases"),
    }  # fmt: skip


def test_budget_that_forbids_to_go_keeps_the_old_pod_and_the_replica_is_taken_back(scene: Scene) -> None:
    for app in ("a", "b"):
        # More than there are with a second replica: nobody may ever go.
        budget: Manifest = {
            "metadata": {"name": app},
            "spec": {"minAvailable": 3, "selector": {"matchLabels": {"app": app}}},
        }
        scene.api.create(f"/apis/policy/v1/namespaces/{scene.team}/poddisruptionbudgets", budget)
    before = {pod["metadata"]["name"] for app in "ab" for pod in pods(scene.api, scene.team, app)}
    patience = replace(scene.runner._policy.patience, leave_seconds_max=2.0)
    scene.runner.mover._patience = patience
    until(lambda: bool(scene.look(**FULL)) and bool(scene.journal.moves()), "a move began", 10.0)
    until(lambda: _goes_back(scene), "it is being taken back")
    assert scene.journal.moves()[0].phase is MovePhase.BACK
    for app in ("a", "b"):
        scene.api.delete(f"/apis/policy/v1/namespaces/{scene.team}/poddisruptionbudgets/{app}")
    scene.run_until_moved(**FULL)
    assert scene.journal.moves()[0].phase is MovePhase.TAKEN_BACK
    why = scene.journal.moves()[0].why
    assert why is not None
    assert why.code == "relief.kept_by_budget"
    until(
        lambda: {p["metadata"]["name"] for app in "ab" for p in pods(scene.api, scene.team, app)} == before, "as before"
    )


def _goes_back(scene: Scene) -> bool:
    scene.look(**FULL)
    return scene.journal.moves()[0].phase is MovePhase.BACK


def test_relief_that_was_killed_after_the_eviction_goes_on_with_it(scene: Scene) -> None:
    until(lambda: bool(scene.look(**FULL)) and bool(scene.journal.moves()), "a move began", 10.0)

    class Killed(Exception):
        """The process ended here."""

    def die(step: str) -> None:
        if step.startswith("adopt "):
            raise Killed

    scene.runner.mover._step = die
    with pytest.raises(Killed):
        until(lambda: scene.look(**FULL) == ("never",), "it is killed")
    app = scene.journal.moves()[0].order.workload.rpartition("/")[2]
    scene.restart()
    scene.run_until_moved(**FULL)
    assert scene.journal.moves()[0].phase is MovePhase.DONE
    until_ready(scene.api, scene.team, app, 1)
    assert scene.card(app) == card_of(scene.node, 1)


def test_rules_of_relief_allow_a_pod_and_one_config_map_and_no_more(
    scene: Scene, control_plane: ControlPlane, writer_kubeconfig: Path
) -> None:
    writer = Api(control_plane.url, control_plane.ca, writer_kubeconfig)
    maps = "/api/v1/namespaces/gputide/configmaps"
    assert writer.status("PATCH", f"{maps}/gputide-orders") == 200
    assert writer.status("PATCH", f"{maps}/gputide-freeze") == 403
    assert writer.status("POST", maps) == 403
    # An empty pod is no valid one; that it is looked at at all shows the right.
    assert writer.status("POST", "/api/v1/namespaces/default/pods") in (400, 422)
    (pod,) = pods(scene.api, scene.team, "a")
    assert writer.status("DELETE", f"/api/v1/namespaces/{scene.team}/pods/{pod['metadata']['name']}") == 403


def test_relief_without_its_rules_says_which_one_it_lacks(scene: Scene, api: Api) -> None:
    api.delete("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/gputide-relief")
    until(lambda: any("create" in text and "pods" in text for text in scene.look(**FULL)), "the right is named", 30.0)
    assert {record.phase for record in scene.journal.moves()} == {MovePhase.TAKEN_BACK}
    assert len(scene.asleep()) == 1
