"""Who waits and why, and what queues and quotas hold."""

from __future__ import annotations

import pytest

from exporter.cluster.reader import Watched
from tests.exporter.allocation_manifests import Manifest, of, pod

# Kinds that are not the API server's own, whose shape nobody may have checked.
CUSTOM = [watched for watched in Watched if "." in watched.value and not watched.value.endswith("k8s.io")] + [
    Watched.CLUSTER_QUEUES, Watched.LOCAL_QUEUES, Watched.WORKLOADS,
]  # fmt: skip


def stuck(message: str, reason: str = "Unschedulable") -> dict[str, str]:
    return {
        "type": "PodScheduled", "status": "False", "reason": reason, "message": message,
        "lastTransitionTime": "2026-01-12T09:00:00Z",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("0/5 nodes are available: 2 2/2 CardInsufficientMemory, 3 node(s) had untolerated taint {a: b}.",
         "insufficient_framebuffer"),
        ("0/1 nodes are available: 1 8/8 CardTypeMismatch.", "card_mismatch"),
        ("0/9 nodes are available: 4 Insufficient cpu, 5 Insufficient nvidia.com/gpu. preemption: 0/9 nodes",
         "insufficient_cards"),
        ("0/9 nodes are available: 9 Insufficient cpu.", "insufficient_cpu"),
        ("0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector.", "node_mismatch"),
        ("0/2 nodes are available: 2 cannot allocate all claims.", "insufficient_cards"),
        ("0/1 nodes are available: 1 2/2 CardCordoned.", "cordoned"),
        ("0/1 nodes are available: 1 8/8 CardMigTopologyInfeasible.", "insufficient_slices"),
        ("0/1 nodes are available: 1 ResourceQuotaNotFit.", "quota"),
        ("0/1 nodes are available: 1 4/4 CardAppClassMismatch.", "card_mismatch"),
        ("something new", "other"),
        ("x" * 100_000, "other"),
    ],
)  # fmt: skip
def test_waiting_pod_is_told_with_the_reason_that_speaks_of_cards(message: str, reason: str):
    found = of((Watched.PODS, pod(on=None, condition=stuck(message), labels={"kai.scheduler/queue": "q1"})))
    (labels,) = found["gputide_pending_pod_info"]
    assert labels == ("c1", "team", "p1", reason, "q1", "hami-scheduler", "p1", "Pod")
    assert found["gputide_pending_pods"]["c1", reason] == 1
    assert sum(found["gputide_pending_pods"].values()) == 1
    assert found["gputide_pending_devices"] == {("c1", "nvidia.com/gpu"): 1}
    assert found["gputide_pending_pod_since_timestamp_seconds"] == {("c1", "team", "p1"): 1768208400.0}


def test_pod_that_no_scheduler_has_seen_says_so():
    (labels,) = of((Watched.PODS, pod(on=None)))["gputide_pending_pod_info"]
    assert labels[3] == "not_tried"


def test_gated_pod_waits_for_its_gate():
    condition = stuck("Scheduling is blocked due to non-empty scheduling gates", reason="SchedulingGated")
    (labels,) = of((Watched.PODS, pod(on=None, condition=condition)))["gputide_pending_pod_info"]
    assert labels[3] == "gated"


def test_pod_that_has_ended_or_is_bound_does_not_wait():
    found = of((Watched.PODS, pod("a", on=None, phase="Failed")), (Watched.PODS, pod("b", phase="Pending")))
    assert not found["gputide_pending_pod_info"]
    assert sum(found["gputide_pending_pods"].values()) == 0


def test_quota_tells_of_cards_only():
    quota = {
        "metadata": {"namespace": "team", "name": "gpu"},
        "status": {
            "hard": {"limits.nvidia.com/gpumem": "80k", "requests.nvidia.com/gpu": "8", "pods": "100"},
            "used": {"requests.nvidia.com/gpu": "3", "pods": "7"},
        },
    }
    found = of((Watched.RESOURCE_QUOTAS, quota))
    place = ("c1", "team", "gpu")
    assert found["gputide_quota_limit"] == {
        (*place, "limits.nvidia.com/gpumem"): 80_000, (*place, "requests.nvidia.com/gpu"): 8,
    }  # fmt: skip
    assert found["gputide_quota_used"] == {(*place, "requests.nvidia.com/gpu"): 3}


def cluster_queue(*, cohort: str | None, borrowing: str | None) -> Manifest:
    resource = {"name": "nvidia.com/gpu", "nominalQuota": "8"} | ({"borrowingLimit": borrowing} if borrowing else {})
    flavors = [{"name": name, "resources": [resource]} for name in ("a10", "a100")]
    return {
        "metadata": {"name": "cq"},
        "spec": {"resourceGroups": [{"flavors": flavors}]} | ({"cohort": cohort} if cohort else {}),
        "status": {
            "pendingWorkloads": 4, "admittedWorkloads": 2,
            "flavorsUsage": [{"name": "a10", "resources": [{"name": "nvidia.com/gpu", "total": "5", "borrowed": "0"}]}],
        },
    }  # fmt: skip


@pytest.mark.parametrize(
    ("cohort", "borrowing", "limit"), [(None, None, 16.0), ("all", None, None), ("all", "2", 20.0)]
)
def test_queue_of_kueue_may_have_what_it_can_borrow(cohort: str | None, borrowing: str | None, limit: float | None):
    found = of((Watched.CLUSTER_QUEUES, cluster_queue(cohort=cohort, borrowing=borrowing)))
    place = ("c1", "kueue", "", "cq")
    assert found["gputide_queue_info"] == {(*place, cohort or ""): 1}
    assert found["gputide_queue_deserved"] == {(*place, "nvidia.com/gpu"): 16}
    assert found["gputide_queue_limit"].get((*place, "nvidia.com/gpu")) == limit
    assert found["gputide_queue_used"] == {(*place, "nvidia.com/gpu"): 5}
    assert found["gputide_queue_pending_workloads"] == {place: 4}


def test_queues_of_volcano_and_kai_are_told_apart():
    volcano = {
        "metadata": {"name": "q"},
        "spec": {"capability": {"nvidia.com/gpu": 8, "cpu": "9"}, "deserved": {"nvidia.com/gpu": "4"}},
        "status": {"allocated": {"nvidia.com/gpu": "2"}},
    }
    kai = {
        "metadata": {"name": "q"},
        "spec": {"parentQueue": "all", "resources": {"gpu": {"quota": 3.5, "limit": -1}}},
        "status": {"allocated": {"nvidia.com/gpu": "1500m"}},
    }
    found = of((Watched.VOLCANO_QUEUES, volcano), (Watched.KAI_QUEUES, kai))
    assert found["gputide_queue_deserved"] == {
        ("c1", "volcano", "", "q", "nvidia.com/gpu"): 4, ("c1", "kai", "", "q", "nvidia.com/gpu"): 3.5,
    }  # fmt: skip
    assert found["gputide_queue_limit"] == {("c1", "volcano", "", "q", "nvidia.com/gpu"): 8}
    assert found["gputide_queue_used"]["c1", "kai", "", "q", "nvidia.com/gpu"] == 1.5
    assert not found["gputide_queue_pending_workloads"]


@pytest.mark.parametrize(
    ("watched", "manifest", "expected"),
    [
        (Watched.POD_GROUPS, {"spec": {"queue": "q"}, "status": {"phase": "Inqueue"}}, ("PodGroup", "q", "Inqueue")),
        (
            Watched.POD_GROUPS,
            {
                "spec": {"queue": "q"},
                "status": {
                    "phase": "Pending",
                    "conditions": [{"type": "Unschedulable", "status": "True", "reason": "NotEnoughResources"}],
                },
            },
            ("PodGroup", "q", "NotEnoughResources"),
        ),
        (Watched.POD_GROUPS, {"status": {"phase": "Running"}}, None),
        (
            Watched.WORKLOADS,
            {
                "spec": {"queueName": "lq"},
                "status": {"conditions": [{"type": "QuotaReserved", "status": "False", "reason": "Inadmissible"}]},
            },
            ("Workload", "lq", "Inadmissible"),
        ),
        (Watched.WORKLOADS, {"status": {"conditions": [{"type": "Admitted", "status": "True"}]}}, None),
    ],
)
def test_group_that_waits_is_told_with_its_reason(
    watched: Watched, manifest: Manifest, expected: tuple[str, str, str] | None
):
    found = of((watched, {"metadata": {"namespace": "team", "name": "g"}, **manifest}))["gputide_waiting_group_info"]
    kind_queue_reason = [(labels[1], labels[4], labels[5]) for labels in found]
    assert kind_queue_reason == ([] if expected is None else [expected])


@pytest.mark.parametrize("watched", CUSTOM)
@pytest.mark.parametrize(
    "spec", [None, 7, [], {"resourceGroups": {"flavors": 1}, "resources": []}, {"capability": [1]}]
)
def test_custom_object_of_any_shape_breaks_nothing(watched: Watched, spec: object):
    of((watched, {"metadata": {"name": "odd"}, "spec": spec, "status": spec}))
