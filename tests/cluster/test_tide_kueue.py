"""The tide on the real API server beside Kueue's own controllers and scheduler, with the documented writer's rights."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import yaml

from enforcer.backends.hami_dialect import HAMI_DIALECT
from enforcer.dialect import Dialect
from enforcer.kubernetes.cluster import ClusterPlace, KubernetesCluster
from enforcer.manifest import field_of
from enforcer.record.journal import Journal
from enforcer.record.ledger import Ledger
from enforcer.rollout.run_context import RolloutPolicy, RunContext
from enforcer.rollout.watch import ClusterSignals
from enforcer.safety.guard import GuardPolicy
from enforcer.tide.calendar import TideCalendar
from enforcer.tide.early_home import Busy
from enforcer.tide.homecoming import TidePolicy, TideResult, TideStep
from enforcer.tide.letting_in import RUNS_UNTIL_ANNOTATION, TIDE_LABEL
from enforcer.tide.runner import TideRunner
from enforcer.tide.tide_journal import TideJournal
from exporter.allocation.collector import AllocationCollector
from fleet.decisions import Plan, ScheduledReplicas
from fleet.documents import seal_plan
from fleet.errors import Unavailable
from fleet.inventory import CardId, WorkloadId
from gputide.operate.engine_process import start_process, stop_process
from tests.cluster.api import Api, Manifest
from tests.cluster.conftest import CACHE, cannot_run
from tests.cluster.workloads import deployment, until, until_ready
from tests.control_plane import ENDS_WITH_US, HOLD_ANNOTATION, ControlPlane
from tests.enforcer.builders import OpenGuard, a_plan, a_yes, with_tide
from tests.engines.go_peers import KueuePeer, build_kueue

pytestmark = pytest.mark.cluster

KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
KINDS = {"ResourceFlavor", "ClusterQueue", "LocalQueue", "Workload", "AdmissionCheck", "Cohort", "Topology"}
DISCOVERY = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
JOBS = "/apis/batch/v1/namespaces/{}/jobs"
CARD = "nvidia.com/gpu"
_numbers = count(1)


@pytest.fixture(scope="module")
def peer() -> KueuePeer:
    if CACHE is None:
        cannot_run("Kueue was not built: `python tests/run_tiers.py cluster` does it")
    try:
        return build_kueue(Path(CACHE), tell=print)
    except Unavailable as absence:
        cannot_run(str(absence))


@pytest.fixture(scope="module")
def kueue(peer: KueuePeer, control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let the server serve Kueue's kinds by its own definitions, and run it."""
    api = Api(control_plane.url, control_plane.ca, control_plane.kubeconfig())
    for path in sorted(peer.definitions.iterdir()):
        api.apply(yaml.safe_load(path.read_text(encoding="utf-8")))
    # Kueue ends where the list of all kinds lacks its own, which grows after the kinds themselves are served.
    until(lambda: discovered(api) >= KINDS, "the server lists Kueue's kinds")
    folder = tmp_path_factory.mktemp("kueue")
    environ = {"KUBECONFIG": str(control_plane.kubeconfig()), "PATH": os.environ["PATH"], "HOME": str(folder)}
    command = [*ENDS_WITH_US, str(peer.program)]
    running = start_process("kueue", command, folder=folder, log=folder / "kueue.log", environ=environ)
    yield
    stop_process(running, patience_seconds=5.0)


def discovered(api: Api) -> set[str]:
    groups = {group["metadata"]["name"]: group for group in api.ask("GET", "/apis", accept=DISCOVERY)["items"]}
    versions = groups.get("kueue.x-k8s.io", {}).get("versions", ())
    found = [one["resources"] for one in versions if one["version"] == "v1beta2" and one["freshness"] == "Current"]
    return {part["responseKind"]["kind"] for parts in found for part in parts}


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A node of three cards with a service on two, a suspended Job in a queue of its own, and a tide."""

    api: Api
    name: str
    namespace: str
    runner: TideRunner

    @property
    def job(self) -> Manifest:
        return self.api.ask("GET", f"{JOBS.format(self.namespace)}/train")

    @property
    def queue(self) -> Manifest:
        return self.api.ask("GET", f"{KUEUE}/clusterqueues/{self.name}")

    @property
    def workload(self) -> Manifest:
        (found,) = self.api.ask("GET", f"{KUEUE}/namespaces/{self.namespace}/workloads")["items"]
        return dict(found)

    def hold(self, **change: Any) -> None:
        self.api.patch(f"{KUEUE}/clusterqueues/{self.name}", change)

    def is_running(self) -> bool:
        return not self.job["spec"]["suspend"] and self.job.get("status", {}).get("active") == 1

    def is_stopped(self) -> bool:
        return bool(self.job["spec"]["suspend"]) and not self.job.get("status", {}).get("active")

    def night(self) -> TideResult:
        """Go out until work was let in."""
        results: list[TideResult] = []

        def is_admitted() -> bool:
            results.append(self.runner.step())
            return results[-1].step is TideStep.ADMITTED

        until(is_admitted, "the night lets work in")
        return results[-1]


@pytest.fixture
def site(kueue: None, api: Api, namespace: str, writer_kubeconfig: Path, tmp_path: Path) -> Iterator[Site]:
    name = f"tide-{next(_numbers)}"
    api.node(name, cards=3, labels={"pool": name})
    limits = {CARD: "1"}
    deployment(api, namespace, "serve", replicas=2, limits=limits, pod_spec={"nodeSelector": {"pool": name}})
    api.apply(an_object("ResourceFlavor", {"name": name}, nodeLabels={"pool": name}))
    quota = {"coveredResources": [CARD], "flavors": [{"name": name, "resources": [{"name": CARD, "nominalQuota": 1}]}]}
    api.apply(an_object("ClusterQueue", {"name": name}, namespaceSelector={}, resourceGroups=[quota]))
    api.apply(an_object("LocalQueue", {"name": "night", "namespace": namespace}, clusterQueue=name))
    until_ready(api, namespace, "serve", 2)
    cluster = KubernetesCluster(
        ClusterPlace(kubeconfig=writer_kubeconfig, requests_per_second=500.0, requests_burst=500)
    )
    runner = a_tide(cluster, tmp_path, namespace, "serve", queues=(name,))
    yield Site(api=api, name=name, namespace=namespace, runner=runner)
    cluster.close()
    api.delete(f"{JOBS.format(namespace)}/train?propagationPolicy=Background")
    api.delete(f"/api/v1/nodes/{name}")


def an_object(kind: str, metadata: Manifest, **spec: Any) -> Manifest:
    return {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": metadata, "spec": spec}


def a_tide(
    cluster: KubernetesCluster, folder: Path, namespace: str, *services: str, queues: tuple[str, ...] = (),
    dialect: Dialect = HAMI_DIALECT, busy: Callable[[], Busy] = Busy,
) -> TideRunner:  # fmt: skip
    """The tide of an approved plan, in the middle of a night."""
    tools = RunContext(
        reader=cluster, writer=cluster, lease=cluster, pause=cluster.pause,
        journal=Journal(Ledger(folder / "ledger.jsonl")), guard=OpenGuard(GuardPolicy(gaps_allowed=True)),
        signals=ClusterSignals(cluster), policy=RolloutPolicy(), dialect=dialect,
    )  # fmt: skip
    now = datetime.now(UTC)
    plan = a_schedule(now, *(WorkloadId(f"{namespace}/Deployment/{name}") for name in services))
    start, end = ((now + timedelta(hours=hours)).time() for hours in (-1, 8))
    policy = TidePolicy(queues=queues, poll_seconds=0.3, home_seconds_max=60.0, lead_min=timedelta(minutes=10))
    return TideRunner(
        tools, TideJournal(Ledger(folder / "tide.jsonl")), plan,
        TideCalendar(start=start, end=end, time_zone=ZoneInfo("UTC")), policy,
        lambda: [replace(one, at=now) for one in a_yes(plan, *plan.tide_stages)], busy=busy,
    )  # fmt: skip


def a_schedule(now: datetime, *services: WorkloadId) -> Plan:
    """Of two replicas one stays."""
    entries = [
        ScheduledReplicas(
            workload=service, replicas=1, start="22:30", end="07:30", time_zone="UTC", frees=(CardId(f"GPU-{number}"),)
        )
        for number, service in enumerate(services)
    ]
    plan = with_tide(a_plan({}, []), tuple(entries))
    tides = tuple(
        replace(tide, workloads=(service,)) for tide, service in zip(plan.recommendations, services, strict=True)
    )
    history = replace(plan.history, since=now - timedelta(days=7), until=now)
    dated = replace(plan, plan_id="", created_at=now, expires_at=now + timedelta(days=1), history=history)
    return seal_plan(replace(dated, recommendations=tides))


def a_job(site: Site, **labels: str) -> None:
    """A suspended Job of one pod with a card, which works until it is stopped."""
    container = {"name": "main", "image": "registry/none:1", "resources": {"limits": {CARD: "1"}}}
    template = {
        "metadata": {"annotations": {HOLD_ANNOTATION: "yes"}},
        "spec": {"containers": [container], "restartPolicy": "Never", "terminationGracePeriodSeconds": 0},
    }
    metadata = {"name": "train", "labels": {QUEUE_LABEL: "night", **labels}}
    site.api.create(
        JOBS.format(site.namespace),
        {"metadata": metadata, "spec": {"suspend": True, "template": template}},
    )
    path = f"{KUEUE}/namespaces/{site.namespace}/workloads"
    until(lambda: len(site.api.ask("GET", path)["items"]) == 1, "Kueue makes a Workload of the Job")


def test_exporter_says_what_a_queue_may_have_and_who_waits_in_it(site: Site, reader: Callable[..., Any]) -> None:
    site.hold(spec={"stopPolicy": "Hold"})
    a_job(site)
    collector = AllocationCollector(reader(), cluster="c1")
    collector.start()

    def rows(name: str) -> dict[tuple[str, ...], float]:
        families = [family for family in collector.snapshot().families if family.name == name]
        return {
            labels: value for one in families for labels, value in zip(one.labels, one.values.tolist(), strict=True)
        }

    try:
        queue = ("c1", "kueue", "", site.name)
        until(lambda: rows("gputide_queue_limit").get((*queue, CARD)) == 1.0, "the queue's quota is exported")
        until(lambda: rows("gputide_queue_pending_workloads").get(queue) == 1.0, "the Job waits in the queue")
        waiting = ("c1", "Workload", site.namespace, site.workload["metadata"]["name"], "night")
        until(
            lambda: any(labels[:5] == waiting for labels in rows("gputide_waiting_group_info")), "it waits as a whole"
        )
    finally:
        collector.stop()


def wished(manifest: Manifest) -> Any:
    return manifest["spec"], manifest["metadata"].get("annotations", {}), manifest["metadata"].get("labels", {})


@pytest.mark.parametrize("held", ["Hold", "HoldAndDrain"])
def test_queue_that_is_held_by_day_admits_at_night_and_is_held_again(site: Site, held: str) -> None:
    site.hold(spec={"stopPolicy": held})
    a_job(site)
    before = wished(site.queue), wished(site.job)
    assert site.is_stopped()
    site.night()
    until(site.is_running, "Kueue starts the Job")
    assert field_of(site.workload, "status.admission.clusterQueue") == site.name, "it says whose it is"
    assert (site.queue["spec"]["stopPolicy"], RUNS_UNTIL_ANNOTATION in wished(site.queue)[1]) == ("None", True)
    assert site.runner.abort("ann").step is TideStep.CAME_HOME
    assert wished(site.queue) == before[0]
    if held == "Hold":
        assert site.is_running(), "what runs may end"
        return
    until(lambda: site.is_stopped() and wished(site.job) == before[1], "Kueue drains the queue")


def test_workload_that_is_inactive_by_day_runs_at_night_and_is_evicted_in_the_morning(site: Site) -> None:
    site.hold(spec={"stopPolicy": "Hold"})
    a_job(site)
    path = f"{KUEUE}/namespaces/{site.namespace}/workloads/{site.workload['metadata']['name']}"
    site.api.patch(path, {"metadata": {"labels": {TIDE_LABEL: "night"}}, "spec": {"active": False}})
    site.hold(spec={"stopPolicy": None})
    before = wished(site.workload), wished(site.job)
    site.night()
    until(site.is_running, "Kueue starts the Job")
    assert site.runner.abort("ann").step is TideStep.CAME_HOME
    assert wished(site.workload) == before[0]
    until(lambda: site.is_stopped() and wished(site.job) == before[1], "Kueue evicts the workload")


def test_marked_job_of_kueue_is_left_to_its_queue(site: Site) -> None:
    site.hold(spec={"stopPolicy": "HoldAndDrain"})
    a_job(site, **{TIDE_LABEL: "night"})
    before = wished(site.job)
    said = site.night().said
    until(site.is_running, "Kueue starts the Job")
    assert any(f"{site.namespace}/Job/train is not let in: Kueue starts and stops it" in text for text in said)
    assert site.runner.abort("ann").step is TideStep.CAME_HOME
    until(lambda: site.is_stopped() and wished(site.job) == before, "Kueue drains the queue")


def test_what_others_write_to_a_job_of_kueue_is_taken_back(site: Site) -> None:
    """Why the tide leaves such a Job alone."""
    site.hold(spec={"stopPolicy": "Hold"})
    a_job(site)
    changed = site.api.patch(f"{JOBS.format(site.namespace)}/train", {"spec": {"suspend": False}})
    until(site.is_stopped, "Kueue suspends the Job again")
    assert site.job["metadata"]["generation"] > changed["metadata"]["generation"]
