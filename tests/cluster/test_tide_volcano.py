"""The tide on the real API server beside Volcano's objects, with the documented writer's rights.

Volcano's modules can't be had through Go's proxy, so its kinds are defined here with the fields that matter. What its
controllers write (PodGroups, and their names on pods) is written as they do, and its scheduler is played by rules that
agree with recorded decisions (`test_volcano_decisions.py`).

Sources: volcano-sh/volcano:pkg/controllers/podgroup/pg_controller_handler.go,
pkg/controllers/job/job_controller_actions.go.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

from enforcer.backends.volcano import GROUP_ANNOTATION, QUEUE_ANNOTATION, VOLCANO_DIALECT
from enforcer.kubernetes.cluster import ClusterPlace, KubernetesCluster
from enforcer.tide.early_home import Busy
from enforcer.tide.homecoming import TideResult, TideStep
from enforcer.tide.letting_in import RUNS_UNTIL_ANNOTATION, TIDE_LABEL
from enforcer.tide.runner import TideRunner
from fleet.inventory import TIER_LABEL
from tests.cluster.api import Api, Manifest
from tests.cluster.audit import AuditLog
from tests.cluster.backend_doubles import PlayedCard, VolcanoRules
from tests.cluster.kind_doubles import define
from tests.cluster.played_backends import FLEET, RulesPlayed
from tests.cluster.test_tide_kueue import JOBS, a_tide, wished
from tests.cluster.workloads import pods, until, until_ready
from tests.control_plane import HOLD_ANNOTATION, ControlPlane, KubernetesPrograms

pytestmark = pytest.mark.cluster

VOLCANO = "/apis/scheduling.volcano.sh/v1beta1"
_numbers = count(1)


@pytest.fixture(scope="module")
def volcano(
    control_plane: ControlPlane, programs: KubernetesPrograms, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RulesPlayed]:
    """Let the server serve Volcano's kinds, and play its scheduler."""
    control_plane.start()
    api = Api(control_plane.url, control_plane.ca, control_plane.kubeconfig())
    for kind in ("PodGroup", "Queue"):
        define(api, kind)
    paths = [f"{VOLCANO}/podgroups", f"{VOLCANO}/queues"]
    until(lambda: {api.status("GET", path) for path in paths} == {200}, "the server serves Volcano's kinds")
    played = RulesPlayed(name="volcano", rules=VolcanoRules())
    with played.running(control_plane, programs, api, tmp_path_factory.mktemp("volcano")):
        yield played


@dataclass(slots=True, kw_only=True)
class Site:
    """A node of four cards with two services on them, and their tide; mutable: pods get busy.

    Attributes:
        token: the writer's.
    """

    api: Api
    namespace: str
    runner: TideRunner
    token: str
    crowded: dict[str, str]

    def group(self, name: str) -> Manifest:
        return self.api.ask("GET", f"{VOLCANO}/namespaces/{self.namespace}/podgroups/{name}")

    def job(self, name: str) -> Manifest:
        return self.api.ask("GET", f"{JOBS.format(self.namespace)}/{name}")

    def runs(self, name: str) -> bool:
        return not self.job(name)["spec"]["suspend"] and bool(self.cards(name))

    def cards(self, app: str) -> set[str]:
        """Cards of its pods that are bound."""
        bound = [pod for pod in pods(self.api, self.namespace, app) if "nodeName" in pod["spec"]]
        return {card for pod in bound for card in VolcanoRules().grants_of(pod, ())}

    def night(self) -> TideResult:
        """Go out until work was let in."""
        results: list[TideResult] = []

        def is_admitted() -> bool:
            results.append(self.runner.step())
            return results[-1].step is TideStep.ADMITTED

        until(is_admitted, "the night lets work in")
        return results[-1]


@pytest.fixture
def site(volcano: RulesPlayed, api: Api, namespace: str, writer_kubeconfig: Path, tmp_path: Path) -> Iterator[Site]:
    name = f"volcano-{next(_numbers)}"
    volcano.make_node(api, name, [PlayedCard(card=f"GPU-{name}-{one}", mib=24_576, model="A10") for one in range(4)])
    api.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": {FLEET: namespace}}})
    for service in ("a", "b"):
        volcano.deploy(api, namespace, service, 2)
    for service in ("a", "b"):
        until_ready(api, namespace, service, 2)
    cluster = KubernetesCluster(
        ClusterPlace(kubeconfig=writer_kubeconfig, requests_per_second=500.0, requests_burst=500)
    )
    crowded: dict[str, str] = {}
    runner = a_tide(
        cluster, tmp_path, namespace, "a", "b", dialect=VOLCANO_DIALECT, busy=lambda: Busy(crowded=dict(crowded))
    )
    token = api.token("gputide", "gputide-writer")
    yield Site(api=api, namespace=namespace, runner=runner, token=token, crowded=crowded)
    cluster.close()
    for made in api.ask("GET", JOBS.format(namespace))["items"]:
        api.delete(f"{JOBS.format(namespace)}/{made['metadata']['name']}?propagationPolicy=Background")
    api.delete(f"/api/v1/nodes/{name}")


def a_queue(site: Site) -> str:
    path = f"{VOLCANO}/queues"
    spec = {"weight": 1, "capability": {"volcano.sh/vgpu-number": "2"}}
    site.api.create(
        path,
        {
            "apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue",
            "metadata": {"name": site.namespace}, "spec": spec,
        },
    )  # fmt: skip
    return f"{path}/{site.namespace}"


def a_group(site: Site, name: str, owner: Manifest, least: int, **labels: str) -> None:
    """As a controller of Volcano's makes it for what owns pods."""
    reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "controller": True}
    reference |= {"name": owner["metadata"]["name"], "uid": owner["metadata"].get("uid", "none")}
    metadata = {"name": name, "labels": labels, "ownerReferences": [reference]}
    body = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup", "metadata": metadata}
    spec = {"minMember": least, "queue": site.namespace}
    site.api.create(f"{VOLCANO}/namespaces/{site.namespace}/podgroups", {**body, "spec": spec})


def a_gang(site: Site, app: str, least: int) -> None:
    """Pods of a service are of a PodGroup that its ReplicaSet owns."""
    own = pods(site.api, site.namespace, app)
    (owner,) = own[0]["metadata"]["ownerReferences"]
    a_group(site, f"podgroup-{app}", {**owner, "metadata": {"name": owner["name"], "uid": owner["uid"]}}, least)
    for pod in own:
        path = f"/api/v1/namespaces/{site.namespace}/pods/{pod['metadata']['name']}"
        site.api.patch(path, {"metadata": {"annotations": {GROUP_ANNOTATION: f"podgroup-{app}"}}})


def a_job(site: Site, name: str, tier: str = "batch") -> None:
    """A suspended Job of one pod with a card, which works until it is stopped."""
    container = {"name": "main", "image": "registry/none:1", "resources": {"limits": dict(VolcanoRules.limits)}}
    template = {
        "metadata": {"labels": {"app": name}, "annotations": {HOLD_ANNOTATION: "yes", QUEUE_ANNOTATION: "night"}},
        "spec": {
            "containers": [container], "restartPolicy": "Never", "terminationGracePeriodSeconds": 0,
            "schedulerName": "volcano", "nodeSelector": {FLEET: site.namespace},
        },
    }  # fmt: skip
    metadata = {"name": name, "labels": {TIDE_LABEL: "night", TIER_LABEL: tier}}
    site.api.create(
        JOBS.format(site.namespace), {"metadata": metadata, "spec": {"suspend": True, "template": template}}
    )


def test_job_of_volcanos_scheduler_works_at_night_and_its_objects_stay_as_they_are(site: Site, audit: AuditLog) -> None:
    queue = a_queue(site)
    a_job(site, "train")
    a_gang(site, "a", 1)
    a_group(site, "podgroup-train", {**site.job("train"), "apiVersion": "batch/v1", "kind": "Job"}, 1)
    groups = ("podgroup-a", "podgroup-train")
    before = [site.api.ask("GET", queue), *map(site.group, groups)]
    job, since = wished(site.job("train")), audit.size()
    site.night()
    until(lambda: site.runs("train"), "Volcano's scheduler places the Job's pod")
    assert RUNS_UNTIL_ANNOTATION in site.job("train")["metadata"]["annotations"]
    assert site.runner.abort("ann").step is TideStep.CAME_HOME
    assert wished(site.job("train")) == job
    for service in ("a", "b"):
        until_ready(site.api, site.namespace, service, 2)
    assert [site.api.ask("GET", queue), *map(site.group, groups)] == before, "to the version"
    writer = "system:serviceaccount:gputide:gputide-writer"
    # Another test's Workload of Kueue may wait in a namespace of its own, and go into the night as well.
    ours = [one for one in audit.writes(since) if one.user == writer and one.namespace in ("", site.namespace)]
    assert {write.resource for write in ours} >= {"jobs", "deployments"}
    assert {write.resource for write in ours} <= {"jobs", "deployments", "pods", "events", "leases"}


@pytest.mark.parametrize("kind", ["podgroups", "queues"])
def test_writer_may_list_volcanos_objects_and_change_none(site: Site, kind: str) -> None:
    queue = a_queue(site)
    a_gang(site, "a", 1)
    path = queue if kind == "queues" else f"{VOLCANO}/namespaces/{site.namespace}/podgroups/podgroup-a"
    assert site.api.ask("GET", f"{VOLCANO}/{kind}", token=site.token)["items"]
    change = {"metadata": {"annotations": {"ours": "1"}}}
    with pytest.raises(OSError, match="403"):
        site.api.ask("PATCH", path, change, content_type="application/merge-patch+json", token=site.token)


def test_service_keeps_the_pods_that_its_gang_is_placed_with(site: Site) -> None:
    a_gang(site, "a", 2)
    a_gang(site, "b", 1)
    found = site.runner.would_scale()
    assert found.services == (f"{site.namespace}/Deployment/b",)
    why = "PodGroup podgroup-a has its pods placed only 2 together, so one that dies at night would wait"
    assert found.left == ((f"{site.namespace}/Deployment/a", why),)


def test_marked_job_of_volcanos_own_kind_is_named_and_left(site: Site) -> None:
    owner = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": "mpi"}}
    a_group(site, "mpi-1", owner, 2, **{TIDE_LABEL: "night"})
    before = site.group("mpi-1")
    said = site.night().said
    assert f"{site.namespace}/Job/mpi is not let in: a Job of batch.volcano.sh can't be suspended" in str(said)
    assert site.runner.abort("ann").step is TideStep.CAME_HOME
    assert site.group("mpi-1") == before


def test_of_work_on_a_machine_of_two_services_only_what_holds_the_card_of_the_one_in_need_goes(site: Site) -> None:
    by_day = {service: site.cards(service) for service in ("a", "b")}
    for name, tier in (("mid", "mid"), ("free", "free")):
        a_job(site, name, tier)
    site.night()
    until(lambda: site.runs("mid") and site.runs("free"), "both Jobs have a card")
    left = by_day["a"] - site.cards("a")
    going = next(name for name in ("mid", "free") if site.cards(name) == left)
    (stays,) = {"mid", "free"} - {going}
    (pod,) = pods(site.api, site.namespace, "a")
    site.crowded[f"{site.namespace}/{pod['metadata']['name']}"] = "it is full"
    until(lambda: site.runner.step().step is TideStep.NOTHING, "nobody has to go any more")
    until_ready(site.api, site.namespace, "a", 2)
    assert (site.job(going)["spec"]["suspend"], site.runs(stays)) == (True, True), "b's card is b's"
    assert site.cards("a") == by_day["a"]
    time.sleep(0.5)
    assert site.runner.step().step is TideStep.NOTHING
    assert site.runner.abort("ann").step is TideStep.CAME_HOME
    until_ready(site.api, site.namespace, "b", 2)
    assert site.job(stays)["spec"]["suspend"]
