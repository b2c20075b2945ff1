"""Every kind of workload on the real API server: its pods get the new grant, and undo leaves what its user wrote."""

from __future__ import annotations

import urllib.error
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from enforcer.backends.hami import HamiBackend
from enforcer.kinds.kserve import MODEL_CONTAINER
from enforcer.kubernetes.cluster import ClusterPlace, KubernetesCluster
from enforcer.record.journal import Journal, StageState
from enforcer.record.ledger import Ledger
from enforcer.rollout.pod_mover import MovePolicy
from enforcer.rollout.run_context import RolloutPolicy, RunContext
from enforcer.rollout.stages import Rollout
from enforcer.rollout.undo import Undo
from enforcer.rollout.watch import ClusterSignals
from enforcer.safety.guard import GuardPolicy
from enforcer.snapshot import take_snapshot
from fleet.decisions import CardPlacement, PlacedSlice, Plan, RecommendationKind
from fleet.documents import seal_plan
from fleet.errors import Refused
from fleet.grammars.hami import RegisteredDevice
from fleet.inventory import CardId, CardModelName, WorkloadId
from tests.cluster.api import Api, Manifest
from tests.cluster.hami_double import NAMESPACE_LABEL, HamiDouble, hami_node
from tests.cluster.kind_doubles import SPECS, TRAINING, KindController, define, path_of
from tests.cluster.served_admission import ServedAdmission
from tests.cluster.workloads import is_ready, until
from tests.control_plane import ControlPlane, KubernetesPrograms
from tests.enforcer.builders import CARD_BYTES, HALF, OpenGuard, a_plan, a_recommendation, a_slice

pytestmark = pytest.mark.cluster

HALF_MIB = str(HALF // 2**20)
ONE_POD = frozenset({"Notebook"})
ROLLING = ("Rollout", "InferenceService", "LeaderWorkerSet", "RayService")
EVICTED = ("RayCluster", "Notebook", *TRAINING)
_numbers = count(1)


@pytest.fixture(scope="module")
def hami(
    control_plane: ControlPlane, programs: KubernetesPrograms, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[HamiDouble]:
    """Run HAMi's double, and let the server serve the kinds."""
    api = Api(control_plane.url, control_plane.ca, control_plane.kubeconfig())
    for kind in SPECS:
        define(api, kind)
    for kind in SPECS:
        until(lambda: api.status("GET", path_of(kind, "default")) == 200, f"{kind} is served")  # noqa: B023
    running = HamiDouble(control_plane, programs, api, tmp_path_factory.mktemp("hami"))
    running.start()
    yield running
    running.stop()


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A node of three cards, a namespace whose pods HAMi places, and what the enforcer has to it."""

    node: str
    namespace: str
    cluster: KubernetesCluster
    tools: RunContext
    controller: KindController

    def card(self, number: int) -> CardId:
        return CardId(f"GPU-{self.node}-{number}")


@pytest.fixture
def site(
    hami: HamiDouble, admission: ServedAdmission, api: Api, namespace: str, writer_kubeconfig: Path, tmp_path: Path
) -> Iterator[Site]:
    """Make the node, and let the kinds' controllers run."""
    assert hami is not None
    assert admission is not None
    api.patch(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": {NAMESPACE_LABEL: "on"}}})
    node = f"kinds-{next(_numbers)}"
    devices = [
        RegisteredDevice(
            card=f"GPU-{node}-{number}", slices_max=10, framebuffer_mib=CARD_BYTES // 2**20, core_percent=100,
            device_type="NVIDIA-NVIDIA A10", numa=0, is_healthy=True, index=number, mode="hami-core",
        )
        for number in range(3)
    ]  # fmt: skip
    hami_node(api, node, devices)
    cluster = KubernetesCluster(
        ClusterPlace(kubeconfig=writer_kubeconfig, requests_per_second=500.0, requests_burst=500)
    )
    tools = RunContext(
        reader=cluster, writer=cluster, lease=cluster, pause=cluster.pause,
        journal=Journal(Ledger(tmp_path / "ledger.jsonl")),
        guard=OpenGuard(GuardPolicy(gaps_allowed=True)),
        signals=ClusterSignals(cluster),
        policy=RolloutPolicy(watch_seconds=0.5, moving=MovePolicy(poll_seconds=0.3, placement_seconds_max=45.0)),
    )  # fmt: skip
    controller = KindController(api, namespace, tuple(SPECS))
    controller.start()
    yield Site(node=node, namespace=namespace, cluster=cluster, tools=tools, controller=controller)
    for kind in SPECS:
        for owner in api.ask("GET", path_of(kind, namespace))["items"]:
            api.delete(path_of(kind, namespace, owner["metadata"]["name"]))
    controller.stop()
    cluster.close()
    api.delete(f"/api/v1/nodes/{node}")
    assert controller.faults == []


def a_template(container: str = "server") -> Manifest:
    only = {"name": container, "image": "registry/none:1", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    spec = {"containers": [only], "tolerations": [{"operator": "Exists"}], "terminationGracePeriodSeconds": 0}
    return {"metadata": {"labels": {"app": "w"}}, "spec": spec}


def a_ray_cluster(pods: int) -> Manifest:
    head = {"spec": {"containers": [{"name": "ray-head", "image": "registry/none:1"}]}}
    group = {"groupName": "gpu", "replicas": pods, "minReplicas": 0, "maxReplicas": 8, "template": a_template()}
    return {"headGroupSpec": {"template": head}, "workerGroupSpecs": [group]}


ONE_AT_A_TIME = {"maxSurge": 0, "maxUnavailable": 1}


def spec_of(kind: str, pods: int) -> Manifest:
    """What a user writes."""
    if kind in TRAINING:
        return {TRAINING[kind]: {"Worker": {"replicas": pods, "template": a_template()}}}
    match kind:
        case "Rollout":
            return {"replicas": pods, "template": a_template(), "strategy": {"canary": ONE_AT_A_TIME}}
        case "InferenceService":
            pod = a_template(MODEL_CONTAINER)["spec"]
            model = {"modelFormat": {"name": "vllm"}, "resources": pod.pop("containers")[0]["resources"]}
            strategy = {"type": "RollingUpdate", "rollingUpdate": ONE_AT_A_TIME}
            return {"predictor": {**pod, "minReplicas": pods, "model": model, "deploymentStrategy": strategy}}
        case "LeaderWorkerSet":
            # Its last group waits until the first has shrunk.
            rolling = {"rollingUpdateConfiguration": {"maxUnavailable": pods, "maxSurge": 0}}
            group = {"size": 1, "workerTemplate": a_template()}
            return {"replicas": pods, "leaderWorkerTemplate": group, "rolloutStrategy": rolling}
        case "RayCluster":
            return a_ray_cluster(pods)
        case "RayService":
            return {"rayClusterConfig": a_ray_cluster(pods)}
        case _:
            return {"template": a_template()}


def stand_up(api: Api, site: Site, kind: str, *, pods: int, labels: dict[str, str] | None = None) -> list[str]:
    """Make a workload and wait until its pods run on cards of their own; returns their names."""
    annotations = {"serving.kserve.io/deploymentMode": "RawDeployment"} if kind == "InferenceService" else {}
    metadata = {"name": "w", "annotations": annotations, "labels": labels or {}}
    made = {"apiVersion": api_version(kind), "kind": kind, "metadata": metadata, "spec": spec_of(kind, pods)}
    api.create(path_of(kind, site.namespace), made)
    workload = WorkloadId(f"{site.namespace}/{kind}/w")

    def running() -> list[str]:
        snapshot = take_snapshot(site.cluster)
        return sorted(seat.pod for seat in snapshot.pods.get(workload, ()) if seat.is_ready and seat.slices)

    until(lambda: len(running()) == pods, f"{pods} pods of {workload} run")
    until(lambda: is_told(api, site, kind), f"{workload} tells that nothing is on its way")
    return running()


def api_version(kind: str) -> str:
    return path_of(kind, "none").split("/namespaces")[0].removeprefix("/apis/")


def is_told(api: Api, site: Site, kind: str) -> bool:
    try:
        status = api.ask("GET", path_of(kind, site.namespace, "w")).get("status", {})
    except urllib.error.HTTPError:
        return False
    settled = {"PredictorReady": "True", "UpgradeInProgress": "False"}
    conditions = {one["type"]: one["status"] for one in status.get("conditions", ())}
    if kind == "InferenceService" and not settled.keys() & conditions.keys():
        return False
    told = all(settled.get(name, value) == value for name, value in conditions.items())
    return told and status.get("replicas", 0) == status.get("updatedReplicas", 0)


def halves(site: Site, kind: str, names: list[str], card: int) -> Plan:
    """All its pods on one card."""
    container = MODEL_CONTAINER if kind == "InferenceService" else "server"

    workload = WorkloadId(f"{site.namespace}/{kind}/w")
    if kind == "InferenceService":
        # A history that knows no more than built-in kinds has it by the Deployment below.
        workload = WorkloadId(f"{site.namespace}/Deployment/w-predictor")

    def placed(name: str) -> PlacedSlice:
        return replace(
            a_slice("w-0"), namespace=site.namespace, pod=name, workload=workload, container=container,
            framebuffer_bytes=HALF,
        )  # fmt: skip

    recommendation = replace(
        a_recommendation("x", RecommendationKind.SLICE, [], [], len(names) - 1),
        workloads=(workload,),
        pods=tuple(f"{site.namespace}/{name}" for name in names),
    )
    plan = a_plan({0: []}, [[recommendation]])
    now = datetime.now(UTC)
    placement = CardPlacement(
        card=site.card(card), card_model=CardModelName("NVIDIA A10"), node=site.node, framebuffer_bytes=CARD_BYTES,
        framebuffer_oversubscription_ratio=1.0, slices=tuple(placed(name) for name in names),
    )  # fmt: skip
    return seal_plan(
        replace(
            plan, plan_id="", placement=(placement,), created_at=now, expires_at=now + timedelta(days=1),
            history=replace(plan.history, since=now - timedelta(days=7), until=now),
        )
    )  # fmt: skip


def wished(api: Api, site: Site, kind: str) -> Any:
    """What the user wrote: specification and annotations."""
    found = api.ask("GET", path_of(kind, site.namespace, "w"))
    return found["spec"], found["metadata"].get("annotations", {})


def granted(api: Api, site: Site) -> list[tuple[str | None, bool]]:
    """Framebuffer that each pod with a card asks for, and whether it is ready."""
    found = api.ask("GET", f"/api/v1/namespaces/{site.namespace}/pods")["items"]
    limits = [
        (pod["spec"]["containers"][0].get("resources", {}).get("limits", {}), is_ready(pod))
        for pod in found
        if "deletionTimestamp" not in pod["metadata"]
    ]
    return [(one.get("nvidia.com/gpumem"), ready) for one, ready in limits if "nvidia.com/gpu" in one]


def held(site: Site, *pods: str) -> set[str]:
    """Cards of some of its pods, by default of all."""
    seats = [seat for seat in take_snapshot(site.cluster).seats.values() if seat.namespace == site.namespace]
    return {card for seat in seats if not pods or seat.pod in pods for card in seat.cards}


@pytest.mark.parametrize("kind", [*ROLLING, *EVICTED])
def test_pods_of_a_kind_get_their_new_grant_and_undo_leaves_what_its_user_wrote(
    kind: str, api: Api, site: Site
) -> None:
    pods = 1 if kind in ONE_POD else 2
    names = stand_up(api, site, kind, pods=pods)
    before = wished(api, site, kind)
    cards_before = held(site)
    assert granted(api, site) == [(None, True)] * pods
    free = next(number for number in range(3) if site.card(number) not in cards_before)
    last = next(number for number in range(3) if site.card(number) in held(site, names[-1]))
    # A RayService needs room beside its old pods; others shrink where the last one is and move together.
    card = free if kind == "RayService" else last
    plan = halves(site, kind, names, card)
    (result,) = Rollout(site.tools, HamiBackend(site.cluster.now())).apply(plan, by="ann")
    assert (result.state, result.reason) == (StageState.PROMOTED, None)
    until(lambda: granted(api, site) == [(HALF_MIB, True)] * pods, f"{pods} pods with {HALF_MIB} MiB")
    assert held(site) == {site.card(card)}
    assert wished(api, site, kind) != before
    undone = Undo(site.tools).undo(plan.plan_id)
    assert undone.workloads == (f"{site.namespace}/{kind}/w",)
    until(lambda: granted(api, site) == [(None, True)] * pods, f"{pods} pods with a whole card")
    assert wished(api, site, kind) == before


@pytest.mark.parametrize("kind", ["InferenceService", "RayService"])
def test_owner_that_a_repository_keeps_is_refused_whatever_stands_between_it_and_its_pods(
    kind: str, api: Api, site: Site
) -> None:
    names = stand_up(api, site, kind, pods=1, labels={"kustomize.toolkit.fluxcd.io/name": "apps"})
    before = wished(api, site, kind)
    with pytest.raises(Refused, match=r"Flux .*--emit"):
        Rollout(site.tools, HamiBackend(site.cluster.now())).apply(halves(site, kind, names, 0), by="ann")
    assert wished(api, site, kind) == before


def test_cron_jobs_grant_counts_for_its_next_run_and_the_one_under_way_is_left_alone(api: Api, site: Site) -> None:
    job = {"template": {**a_template(), "spec": {**a_template()["spec"], "restartPolicy": "Never"}}}
    crons = f"/apis/batch/v1/namespaces/{site.namespace}/cronjobs"
    spec = {"schedule": "0 3 31 2 *", "jobTemplate": {"spec": job}}
    made = api.create(crons, {"metadata": {"name": "w"}, "spec": spec})
    reference = {"apiVersion": "batch/v1", "kind": "CronJob", "name": "w", "uid": made["metadata"]["uid"]}
    owned = {"ownerReferences": [{**reference, "controller": True}]}
    # kwok ends a Job's pods as soon as they run, so the run that is under way is a pod without a Job between.
    running = {"metadata": {**a_template()["metadata"], **owned, "name": "w-1"}, "spec": job["template"]["spec"]}
    api.create(f"/api/v1/namespaces/{site.namespace}/pods", running)
    workload = WorkloadId(f"{site.namespace}/CronJob/w")

    def cards() -> list[str]:
        seats = take_snapshot(site.cluster).pods.get(workload, [])
        return [card for seat in seats if seat.is_ready for card in seat.cards]

    until(lambda: bool(cards()), "the first run is under way")
    plan = halves(site, "CronJob", ["w-1"], int(cards()[0][-1]))
    before = api.ask("GET", f"{crons}/w")["spec"]
    (result,) = Rollout(site.tools, HamiBackend(site.cluster.now())).apply(plan, by="ann")
    assert (result.state, result.reason) == (StageState.PROMOTED, None)
    assert granted(api, site) == [(None, True)], "the run under way keeps its card"
    now = api.ask("GET", f"{crons}/w")["spec"]["jobTemplate"]["spec"]
    api.create(f"/apis/batch/v1/namespaces/{site.namespace}/jobs", {"metadata": {"name": "w-2", **owned}, "spec": now})
    until(lambda: HALF_MIB in [mib for mib, _ in granted(api, site)], "the next run has the new grant")
    Undo(site.tools).undo(plan.plan_id)
    assert api.ask("GET", f"{crons}/w")["spec"] == before
