"""What pods of a node name is asked for by name, once, within bounds; what may not be read is said.

By the real client against an HTTP server that answers as an API server does.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.cluster_api import SimulatedApi, start_server
from exporter.allocation.records import OwnerLinkRecord
from exporter.attribution.attributor import WorkloadName, workload_of
from exporter.attribution.pods import PodFacts
from exporter.cluster.kubernetes import KubernetesReader
from exporter.cluster.reader import ObjectReader, Watched
from exporter.node.objects import NodeLookups, NodeObjects
from exporter.node.pods import NodePods
from fleet.errors import Corrupt, Misconfigured, Unavailable
from tests.exporter.node import NODE, card_id, facts, manifest, uid
from wire.http_answer import TooLarge
from wire.kubernetes.page import Page

REPLICA_SETS, JOBS = "/apis/apps/v1/replicasets", "/apis/batch/v1/jobs"
JOB = OwnerLinkRecord(uid="job-1", kind="Job", name="nightly-1")
CRON = OwnerLinkRecord(uid="cron", kind="CronJob", name="nightly")


def until(holds: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.01)


def owned(link: OwnerLinkRecord, owner: OwnerLinkRecord | None, namespace: str = "team") -> dict[str, Any]:
    owners = [] if owner is None else [{"uid": owner.uid, "kind": owner.kind, "name": owner.name, "controller": True}]
    return {"metadata": {"namespace": namespace, "name": link.name, "uid": link.uid, "ownerReferences": owners}}


def claim(name: str, *reserved_for: str, device: str = "gpu-0") -> dict[str, Any]:
    results = [{"request": "card", "driver": "gpu.nvidia.com", "pool": NODE, "device": device}]
    status = {
        "allocation": {"devices": {"results": results}},
        "reservedFor": [{"resource": "pods", "name": "p", "uid": one} for one in reserved_for],
    }
    return {"metadata": {"namespace": "team", "name": name}, "status": status if reserved_for else {}}


def published(*devices: str) -> dict[str, Any]:
    entries = [{"name": name, "attributes": {"uuid": {"string": card_id(0)}}} for name in devices]
    return {
        "metadata": {"name": NODE},
        "spec": {"driver": "gpu.nvidia.com", "nodeName": NODE, "pool": {"name": NODE}, "devices": entries},
    }


@pytest.fixture
def api() -> Iterator[SimulatedApi]:
    simulated = SimulatedApi()
    yield simulated
    simulated.cut(forget=False)


@pytest.fixture
def reader(api: SimulatedApi, tmp_path: Path) -> Iterator[KubernetesReader]:
    server = start_server(api)
    document = {
        "current-context": "t",
        "clusters": [{"name": "t", "cluster": {"server": f"http://127.0.0.1:{server.server_address[1]}"}}],
        "users": [{"name": "u", "user": {"token": "secret"}}],
        "contexts": [{"name": "t", "context": {"cluster": "t", "user": "u"}}],
    }
    (tmp_path / "kubeconfig").write_text(json.dumps(document))
    made = KubernetesReader(kubeconfig=tmp_path / "kubeconfig", node=NODE)
    yield made
    made.close()
    server.shutdown()
    server.server_close()


class Time:
    """A clock that is turned by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time_() -> Time:
    return Time()


@pytest.fixture
def lookups(reader: KubernetesReader, time_: Time) -> Iterator[NodeLookups]:
    running = NodeLookups(reader, clock=time_)
    running.start()
    yield running
    running.stop()
    reader.close()
    assert running.join(30)


def followed(lookups: NodeLookups, *pods: PodFacts) -> NodeObjects:
    lookups.follow(pods)
    assert lookups.wait(pods, 60)
    return lookups.found()


def test_owner_of_an_owner_is_found_by_one_question_for_all_its_pods(api: SimulatedApi, lookups: NodeLookups) -> None:
    api.put(JOBS, owned(JOB, CRON))
    pods = [facts(f"p{number}", number, owner=JOB) for number in range(5)]
    found = followed(lookups, *pods)
    assert workload_of("p0", pods[0].record.owner, {}, found.owners) == WorkloadName(kind="CronJob", name="nightly")
    assert followed(lookups, *pods, facts("p9", 9, owner=JOB)).owners is found.owners
    assert api.requests == ["/apis/batch/v1/namespaces/team/jobs/nightly-1"]


def test_owners_are_followed_to_the_topmost_that_may_be_known(api: SimulatedApi, lookups: NodeLookups) -> None:
    replica_set = OwnerLinkRecord(uid="rs", kind="ReplicaSet", name="web-1")
    api.put(REPLICA_SETS, owned(replica_set, JOB))
    api.put(JOBS, owned(JOB, CRON))
    assert followed(lookups, facts("p", 1, owner=replica_set)).owners == {"rs": JOB, "job-1": CRON}


def test_owners_in_a_circle_are_asked_for_once_each(api: SimulatedApi, lookups: NodeLookups) -> None:
    replica_set = OwnerLinkRecord(uid="rs", kind="ReplicaSet", name="web-1")
    api.put(REPLICA_SETS, owned(replica_set, JOB))
    api.put(JOBS, owned(JOB, replica_set))
    followed(lookups, facts("p", 1, owner=replica_set))
    assert len(api.requests) == 2


def test_another_object_of_the_owners_name_owns_nothing(api: SimulatedApi, lookups: NodeLookups) -> None:
    # Volcano's Job bears the same kind; and a tenant may write any name on his own pod.
    api.put(JOBS, owned(OwnerLinkRecord(uid="another", kind="Job", name="nightly-1"), CRON))
    assert followed(lookups, facts("p", 1, owner=JOB)).owners == {}


def test_pod_that_names_anothers_owner_by_its_uid_hides_nothing(api: SimulatedApi, lookups: NodeLookups) -> None:
    api.put(JOBS, owned(JOB, CRON))
    thief = OwnerLinkRecord(uid=JOB.uid, kind="Job", name="of-mine")
    stranger = OwnerLinkRecord(uid=JOB.uid, kind="ReplicaSet", name=JOB.name)
    pods = (facts("a", 1, owner=thief), facts("b", 2, owner=stranger), facts("p", 3, owner=JOB))
    assert followed(lookups, *pods).owners == {"job-1": CRON}


def test_more_devices_than_a_node_has_are_not_kept(
    api: SimulatedApi, lookups: NodeLookups, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("exporter.node.objects.DEVICES_MAX", 1)
    group = "/apis/resource.k8s.io/v1"
    for kind in ("resourceclaims", "resourceslices"):
        api.serve(f"{group}/{kind}")
    api.put(f"{group}/resourceclaims", claim("gpu", uid(1)))
    api.put(f"{group}/resourceslices", published("gpu-0", "gpu-1"))
    found = followed(lookups, facts("p", 1, claims={"card": "gpu"}, resources={}))
    assert (found.published, found.failures) == ((), 1)


def test_kinds_that_nobody_reads_and_names_that_none_can_have_are_not_asked_for(
    api: SimulatedApi, lookups: NodeLookups
) -> None:
    followed(
        lookups,
        facts("a", 1, owner=OwnerLinkRecord(uid="x", kind="PyTorchJob", name="llm")),
        facts("b", 2, owner=OwnerLinkRecord(uid="y", kind="ReplicaSet", name="../../secrets/token")),
        facts("c", 3),
    )
    assert api.requests == []


def test_what_no_pod_names_any_more_is_forgotten(api: SimulatedApi, lookups: NodeLookups) -> None:
    api.put(JOBS, owned(JOB, CRON))
    assert followed(lookups, facts("p", 1, owner=JOB)).owners == {"job-1": CRON}
    assert followed(lookups, facts("q", 2)).owners == {}


def test_refused_kind_is_said_and_asked_for_again_after_a_while(
    api: SimulatedApi, lookups: NodeLookups, time_: Time
) -> None:
    api.put(JOBS, owned(JOB, CRON))
    api.refused[JOBS] = 403
    replica_set = OwnerLinkRecord(uid="rs", kind="ReplicaSet", name="web-1")
    api.put(REPLICA_SETS, owned(replica_set, CRON))
    pods = (
        facts("a", 1, owner=JOB), facts("b", 2, owner=OwnerLinkRecord(uid="j2", kind="Job", name="other")),
        facts("c", 3, owner=replica_set),
    )  # fmt: skip
    found = followed(lookups, *pods)
    assert (set(found.refused), found.failures) == ({Watched.JOBS}, 1)
    assert found.owners == {"rs": CRON}
    del api.refused[JOBS]
    time_.now += 301
    lookups.follow(pods)
    until(lambda: lookups.found().owners.get("job-1") == CRON)
    until(lambda: lookups.found().refused == frozenset())


def test_server_that_is_away_is_asked_again_ever_more_seldom(
    api: SimulatedApi, lookups: NodeLookups, time_: Time
) -> None:
    api.put(JOBS, owned(JOB, CRON))
    api.refused[JOBS] = 503
    pods = (facts("p", 1, owner=JOB),)
    lookups.follow(pods)
    until(lambda: lookups.found().failures >= 1)
    assert not lookups.found().is_settled
    del api.refused[JOBS]
    assert lookups.wait(pods, 60)
    assert lookups.found().owners == {"job-1": CRON}


def test_claim_and_the_devices_of_its_drivers_are_read_in_the_version_that_is_served(
    api: SimulatedApi, lookups: NodeLookups
) -> None:
    group = "/apis/resource.k8s.io/v1beta2"
    for kind in ("resourceclaims", "resourceslices"):
        api.serve(f"{group}/{kind}")
    api.put(f"{group}/resourceclaims", claim("gpu", uid(1)))
    api.put(f"{group}/resourceslices", published("gpu-0"))
    found = followed(lookups, facts("p", 1, claims={"card": "gpu"}, resources={}))
    assert [(one.claim, one.reserved_for) for one in found.claims] == [("gpu", (uid(1),))]
    assert [(one.device, one.uuid) for one in found.published] == [("gpu-0", card_id(0))]
    slices = [path for path in api.requests if "resourceslices" in path]
    assert slices == [f"{group}/resourceslices?limit=100&fieldSelector=spec.nodeName%3D{NODE}&resourceVersion=0"]


def test_claim_is_asked_for_until_it_is_reserved_for_the_pod(
    api: SimulatedApi, lookups: NodeLookups, time_: Time
) -> None:
    group = "/apis/resource.k8s.io/v1"
    for kind in ("resourceclaims", "resourceslices"):
        api.serve(f"{group}/{kind}")
    api.put(f"{group}/resourceclaims", claim("gpu"))
    pods = (facts("p", 1, claims={"card": "gpu"}, resources={}),)
    assert followed(lookups, *pods).claims == ()
    api.put(f"{group}/resourceclaims", claim("gpu", uid(1)))
    api.put(f"{group}/resourceslices", published("gpu-0"))
    time_.now += 2
    lookups.follow(pods)
    until(lambda: len(lookups.found().published) == 1)
    # Another pod comes to share it.
    api.put(f"{group}/resourceclaims", claim("gpu", uid(1), uid(2)))
    shared = followed(lookups, *pods, facts("q", 2, claims={"card": "gpu"}, resources={}))
    until(lambda: lookups.found().claims[0].reserved_for == tuple(sorted((uid(1), uid(2)))))
    assert len(shared.published) == 1


def test_device_that_is_published_later_is_found(api: SimulatedApi, lookups: NodeLookups, time_: Time) -> None:
    group = "/apis/resource.k8s.io/v1"
    for kind in ("resourceclaims", "resourceslices"):
        api.serve(f"{group}/{kind}")
    api.put(f"{group}/resourceclaims", claim("gpu", uid(1), device="gpu-7"))
    pods = (facts("p", 1, claims={"card": "gpu"}, resources={}),)
    assert followed(lookups, *pods).published == ()
    api.put(f"{group}/resourceslices", published("gpu-7"))
    time_.now += 2
    lookups.follow(pods)
    until(lambda: [one.device for one in lookups.found().published] == ["gpu-7"])


def test_cluster_without_dynamic_resource_allocation_is_no_failure(api: SimulatedApi, lookups: NodeLookups) -> None:
    found = followed(lookups, facts("p", 1, claims={"card": "gpu"}, resources={}))
    assert (found.claims, found.failures, found.refused) == ((), 0, frozenset())


class Odd:
    """A reader whose objects are what they are told to be."""

    def __init__(self, answer: object) -> None:
        self.answer = answer
        self.asked = 0

    def version_of(self, watched: Watched) -> str | None:
        return "v1"

    def page(self, watched: Watched, *, limit: int, token: str | None) -> Page:
        raise Corrupt("no list")

    def one(self, watched: Watched, *, namespace: str, name: str) -> Any:
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    "answer",
    [
        {}, {"metadata": 5}, {"metadata": {"uid": "job-1", "ownerReferences": "x"}}, {"status": {"allocation": 5}},
        {"metadata": {"uid": "job-1", "ownerReferences": [5, {"controller": True, "uid": 7}]}}, Corrupt("odd"),
        {"metadata": {"namespace": "team", "name": "gpu"}, "status": {"allocation": {"devices": {"results": [5]}}}},
    ],
)  # fmt: skip
def test_objects_of_any_shape_end_no_thread(answer: object) -> None:
    running = NodeLookups(Odd(answer))
    running.start()
    try:
        pods = (facts("p", 1, owner=JOB, claims={"card": "gpu"}),)
        running.follow(pods)
        assert running.wait(pods, 60)
        assert running.found().claims == ()
    finally:
        running.stop()
        assert running.join(30)


class Large(Odd):
    """A reader of claims and of one page of devices that must be asked for by few objects."""

    def page(self, watched: Watched, *, limit: int, token: str | None) -> Page:
        if limit > 2:
            raise TooLarge(f"cannot read an answer: larger than {limit} objects")
        return Page(manifests=[published("gpu-0")], version="1", next_token=None)


def test_devices_whose_page_is_too_large_are_asked_for_in_smaller_ones() -> None:
    running = NodeLookups(Large(claim("gpu", uid(1))))
    running.start()
    try:
        found = followed(running, facts("p", 1, claims={"card": "gpu"}, resources={}))
        assert ([one.device for one in found.published], found.failures) == (["gpu-0"], 0)
    finally:
        running.stop()
        assert running.join(30)


def test_questions_are_bounded_per_second() -> None:
    odd = Odd(None)
    running = NodeLookups(odd)
    pods = tuple(
        facts(f"p{number}", number, owner=OwnerLinkRecord(uid=f"j{number}", kind="Job", name=f"j{number}"))
        for number in range(200)
    )
    began = time.monotonic()
    running.start()
    running.follow(pods)
    until(lambda: odd.asked >= 52, seconds=60.0)
    running.stop()
    assert running.join(30)
    assert odd.asked <= 50 + 10 * (time.monotonic() - began) + 1


@pytest.mark.parametrize("answer", [Unavailable("away"), Misconfigured("no")])
def test_pods_are_known_whatever_becomes_of_the_questions(
    api: SimulatedApi, reader: KubernetesReader, answer: Exception
) -> None:
    api.put("/api/v1/pods", manifest("p", 1, owner=JOB))
    asking: ObjectReader = Odd(answer)
    pods = NodePods(reader, lookups=NodeLookups(asking))
    pods.start()
    try:
        is_answered = isinstance(answer, Misconfigured)
        until(lambda: pods.facts() is not None, seconds=60.0)
        assert pods.wait(60.0 if is_answered else 0.5) is is_answered
        assert [one.record.pod for one in pods.facts() or ()] == ["p"]
        assert pods.objects().owners == {}
    finally:
        pods.stop()
