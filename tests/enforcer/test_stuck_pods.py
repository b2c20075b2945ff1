"""Pods that wait in vain for their planned seats are evicted; those that only wait for a while are not."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from enforcer.admission import (
    SEAT_ANNOTATION,
    SEATING_ANNOTATION,
    SEATS_ANNOTATION,
    UNPINNED_ANNOTATION,
    PlannedSeat,
    seating_of,
    seats_text,
)
from enforcer.kubernetes.departures import Departure
from enforcer.kubernetes.stuck_pods import FREED_MAX, SEAT_CLOSED_SECONDS, UNHELD_WAIT_SECONDS, WAIT_SECONDS, StuckPods
from enforcer.manifest import Manifest
from enforcer.rollout.held_mark import HELD_ANNOTATION
from fleet.inventory import WorkloadId
from fleet.units import format_time
from tests.enforcer.builders import NOW
from tests.enforcer.plugin_cluster import StandingCluster

NODE: Manifest = {"kind": "Node", "metadata": {"name": "n1"}, "spec": {}, "status": {}}
NOT_READY = {"type": "Ready", "status": "Unknown"}
SEATS = {"web-0": PlannedSeat(node="n1"), "web-1": PlannedSeat(node="n1")}


class Cluster(StandingCluster):
    """A cluster that keeps what was evicted."""

    def __init__(self, *manifests: Manifest) -> None:
        super().__init__(manifests)
        self.evicted: list[str] = []

    def pending_pods(self, keep: Callable[[Manifest], bool]) -> tuple[Manifest, ...]:
        return tuple(pod for pod in self.list_objects("Pod") if pod["status"]["phase"] == "Pending" and keep(pod))

    def evict(self, namespace: str, pod: str) -> bool:
        self.evicted.append(f"{namespace}/{pod}")
        return True


class Notes:
    """Seats that somebody has noted."""

    def __init__(self) -> None:
        self.taken: dict[str, float] = {}

    def take(self, workload: WorkloadId, seat: str, seconds: float) -> bool:
        is_free = f"{workload} {seat}" not in self.taken
        self.taken.setdefault(f"{workload} {seat}", seconds)
        return is_free


def owner(kind: str = "Deployment", **marks: str) -> Manifest:
    annotations = {SEATS_ANNOTATION: seats_text(SEATS), **marks}
    return {
        "kind": kind, "metadata": {"namespace": "team", "name": "web", "annotations": annotations},
        "spec": {"replicas": 2},
    }  # fmt: skip


def waiting(
    name: str = "web-5d4f-a", *, waited: float = WAIT_SECONDS, reason: str = "Unschedulable", kind: str = "ReplicaSet",
    seat: str = "web-0", marks: dict[str, str] | None = None, **metadata: Any,
) -> Manifest:  # fmt: skip
    since = format_time(NOW - timedelta(seconds=waited))
    said = {"type": "PodScheduled", "status": "False", "reason": reason, "lastTransitionTime": since, "message": "busy"}
    return {
        "kind": "Pod",
        "metadata": {
            "namespace": "team", "name": name,
            "annotations": {SEATING_ANNOTATION: seating_of(SEATS), SEAT_ANNOTATION: seat, **(marks or {})},
            "labels": {"pod-template-hash": "5d4f"} if kind == "ReplicaSet" else {},
            "ownerReferences": [
                {"kind": kind, "name": "web-5d4f" if kind == "ReplicaSet" else "web", "controller": True}
            ],
            **metadata,
        },
        "spec": {"containers": []},
        "status": {"phase": "Pending", "conditions": [said]},
    }  # fmt: skip


def looked(*manifests: Manifest, notes: Notes | None = None) -> tuple[Cluster, list[Departure]]:
    cluster, departed = Cluster(*manifests), list[Departure]()
    stuck = StuckPods(cluster, notes or Notes(), departed.append, lambda _: None)
    assert stuck.look() == len(cluster.evicted)
    return cluster, departed


def test_pod_that_the_scheduler_cannot_place_is_evicted_its_seat_closed_and_its_owner_told() -> None:
    notes = Notes()
    cluster, departed = looked(owner(), waiting(), notes=notes)
    assert cluster.evicted == ["team/web-5d4f-a"]
    assert notes.taken == {"team/Deployment/web web-0": SEAT_CLOSED_SECONDS}
    (departure,) = departed
    assert (departure.kind, departure.namespace, departure.name) == ("Deployment", "team", "web")
    assert departure.why == "it could not be scheduled to its seat on node n1 for 20 s: busy"


def test_what_one_replica_of_the_admission_frees_another_leaves_to_it() -> None:
    notes = Notes()
    looked(owner(), waiting(), notes=notes)
    assert looked(owner(), waiting(), notes=notes)[0].evicted == []


@pytest.mark.parametrize(
    "pod",
    [
        waiting(waited=WAIT_SECONDS - 1),
        waiting(reason="SchedulingGated"),
        waiting(marks={UNPINNED_ANNOTATION: "no room"}),
        waiting(deletionTimestamp=format_time(NOW)),
        waiting(seat="of an older plan"),
        waiting(kind="PyTorchJob", waited=UNHELD_WAIT_SECONDS),
        {**waiting(), "spec": {"nodeName": "n1", "containers": []}},
        {**waiting(), "status": {"phase": "Pending"}},
    ],
)
def test_pod_that_may_still_start_or_is_not_pinned_is_left_alone(pod: Manifest) -> None:
    assert looked(NODE, owner(), owner("PyTorchJob"), pod)[0].evicted == []


def test_pod_of_an_owner_that_a_stage_holds_is_left_alone() -> None:
    assert looked(NODE, owner(**{HELD_ANNOTATION: "{}"}), waiting())[0].evicted == []


@pytest.mark.parametrize(
    "node", [(), ({**NODE, "spec": {"unschedulable": True}},), ({**NODE, "status": {"conditions": [NOT_READY]}},)]
)
def test_pod_of_an_owner_that_a_stage_holds_is_freed_where_its_node_takes_no_pods(node: tuple[Manifest, ...]) -> None:
    held = owner(**{HELD_ANNOTATION: "{}"})
    assert looked(*node, held, waiting(waited=WAIT_SECONDS - 1))[0].evicted == []
    assert looked(*node, held, waiting())[0].evicted == ["team/web-5d4f-a"]


@pytest.mark.parametrize(("job", "evicted"), [({}, 1), ({"backoffLimit": 2}, 0), ({"backoffLimit": 3}, 1)])
def test_pod_of_a_job_is_evicted_only_where_the_job_does_not_fail_by_it(job: dict[str, int], evicted: int) -> None:
    found = {**owner("Job"), "spec": job, "status": {"failed": 1}}
    assert len(looked(found, waiting(kind="Job", waited=UNHELD_WAIT_SECONDS))[0].evicted) == evicted


def test_pod_of_a_kind_that_is_never_held_waits_longer() -> None:
    def pod(waited: float) -> Manifest:
        return waiting(kind="RayCluster", waited=waited)

    cluster = owner("RayCluster")
    assert looked(NODE, cluster, pod(UNHELD_WAIT_SECONDS - 1))[0].evicted == []
    assert looked(NODE, cluster, pod(UNHELD_WAIT_SECONDS))[0].evicted == ["team/web-5d4f-a"]


def test_pod_is_left_alone_as_long_as_another_may_take_to_leave_its_node() -> None:
    def leaving(seconds: float) -> Manifest:
        until = format_time(NOW + timedelta(seconds=seconds))
        metadata = {"namespace": "team", "name": "old", "deletionTimestamp": until}
        return {"kind": "Pod", "metadata": metadata, "spec": {"nodeName": "n1"}, "status": {"phase": "Running"}}

    assert looked(owner(), waiting(), leaving(30))[0].evicted == []
    assert looked(owner(), waiting(), leaving(-60))[0].evicted == ["team/web-5d4f-a"]


def test_what_a_tenant_wrote_on_one_pod_keeps_no_other_waiting() -> None:
    spoilt = owner()
    spoilt["metadata"] |= {"name": "spoilt", "annotations": {SEATS_ANNOTATION: "{"}}
    pod = waiting("spoilt-5d4f-a")
    pod["metadata"]["ownerReferences"][0]["name"] = "spoilt-5d4f"
    assert looked(owner(), spoilt, pod, waiting())[0].evicted == ["team/web-5d4f-a"]


def test_not_all_of_many_pods_are_evicted_at_once() -> None:
    pods = []
    for number in range(FREED_MAX + 5):
        pod = waiting(f"web{number}-5d4f-a")
        pod["metadata"]["ownerReferences"][0]["name"] = f"web{number}-5d4f"
        pods += [pod, {**owner(), "metadata": {**owner()["metadata"], "name": f"web{number}"}}]
    assert len(looked(*pods)[0].evicted) == FREED_MAX
