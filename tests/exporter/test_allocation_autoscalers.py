"""Who scales a workload stands beside its slices: HorizontalPodAutoscalers and KEDA's ScaledObjects."""

from __future__ import annotations

import json
from typing import Any

import pytest

from exporter.allocation.state import Allocation
from exporter.cluster.reader import Watched
from fleet.autoscaling import Autoscaler, AutoscalerKind, autoscaler_of
from fleet.inventory import AUTOSCALED_LABEL
from fleet.schema import GRANT_LABELS
from tests.exporter.allocation_manifests import ALL, Manifest, drop, grant, node, owned, pod, rows, take

HPAS, SCALED_OBJECTS = Watched.POD_AUTOSCALERS, Watched.SCALED_OBJECTS


def autoscaler(spec: dict[str, Any], *, name: str = "web", namespace: str = "team") -> Manifest:
    return {"metadata": {"namespace": namespace, "name": name}, "spec": spec}


def of_target(**spec: Any) -> dict[str, Any]:
    return {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}, **spec}


HPA = autoscaler(of_target(minReplicas=2, maxReplicas=10))
KEDA = autoscaler({"scaleTargetRef": {"name": "web"}, "maxReplicaCount": 20}, name="web-scaled")


@pytest.fixture
def allocation() -> Allocation:
    """A Deployment of one pod on a card; its ReplicaSet comes last."""
    found = Allocation("c1")
    take(found, Watched.NODES, node(cards=1))
    take(
        found,
        Watched.PODS,
        pod("p1", granted=grant(0) + ";", labels={"app": "web"}, owner=("ReplicaSet", "web-1", "uid-rs")),
    )
    take(found, Watched.REPLICA_SETS, owned("web-1", "uid-rs", ("Deployment", "web", "uid-d")))
    return found


def told(allocation: Allocation) -> str | None:
    (labels,) = rows(allocation)["gputide_slice_info"]
    found: str | None = json.loads(labels[GRANT_LABELS.index("labels")]).get(AUTOSCALED_LABEL)
    return found


def test_pods_of_a_workload_say_who_scales_it_and_its_bounds(allocation: Allocation) -> None:
    assert told(allocation) is None
    take(allocation, HPAS, HPA)
    assert told(allocation) == "HorizontalPodAutoscaler 2-10"
    assert autoscaler_of(told(allocation)) == Autoscaler(
        kind=AutoscalerKind.HORIZONTAL_POD_AUTOSCALER, replicas_min=2, replicas_max=10
    )
    take(allocation, HPAS, autoscaler(of_target(minReplicas=3, maxReplicas=10)))
    assert told(allocation) == "HorizontalPodAutoscaler 3-10"
    drop(allocation, HPAS, HPA)
    assert told(allocation) is None


def test_a_scaled_object_goes_before_the_autoscaler_that_keda_keeps(allocation: Allocation) -> None:
    take(allocation, SCALED_OBJECTS, KEDA)
    take(allocation, HPAS, autoscaler(of_target(minReplicas=1, maxReplicas=20), name="keda-hpa-web"))
    assert told(allocation) == "ScaledObject 0-20"


def test_an_owner_that_is_read_late_finds_its_autoscaler(allocation: Allocation) -> None:
    replica_set = owned("web-1", "uid-rs", ("Deployment", "web", "uid-d"))
    drop(allocation, Watched.REPLICA_SETS, replica_set)
    take(allocation, HPAS, HPA)
    assert told(allocation) is None
    take(allocation, Watched.REPLICA_SETS, replica_set)
    assert told(allocation) == "HorizontalPodAutoscaler 2-10"


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"scaleTargetRef": {"kind": "Deployment"}, "maxReplicas": 3},
        {"scaleTargetRef": "web", "maxReplicas": 3},
        of_target(),
        of_target(minReplicas=5, maxReplicas=3),
        of_target(minReplicas=-1, maxReplicas=3),
        of_target(minReplicas=True, maxReplicas=3),
        of_target(maxReplicas=10**12),
        of_target(minReplicas="2", maxReplicas=3),
        {"scaleTargetRef": {"kind": "StatefulSet", "name": "web"}, "maxReplicas": 3},
        {"scaleTargetRef": {"kind": "Deployment", "name": "other"}, "maxReplicas": 3},
    ],
)
def test_what_scales_nobody_or_is_no_autoscaler_says_nothing(spec: dict[str, Any], allocation: Allocation) -> None:
    take(allocation, HPAS, autoscaler(spec))
    assert told(allocation) is None


def test_an_autoscaler_of_another_namespace_says_nothing(allocation: Allocation) -> None:
    take(allocation, HPAS, autoscaler(of_target(maxReplicas=10), namespace="other"))
    assert told(allocation) is None


def test_what_is_read_goes_before_what_somebody_wrote(allocation: Allocation) -> None:
    manifest = pod(
        "p1", granted=grant(0) + ";", annotations={AUTOSCALED_LABEL: "ScaledObject 1-2"},
        owner=("ReplicaSet", "web-1", "uid-rs"),
    )  # fmt: skip
    take(allocation, Watched.PODS, manifest)
    assert told(allocation) == "ScaledObject 1-2"
    take(allocation, HPAS, HPA)
    assert told(allocation) == "HorizontalPodAutoscaler 2-10"


def test_grants_wait_for_the_autoscalers_to_be_read(allocation: Allocation) -> None:
    assert "gputide_slice_info" not in rows(allocation, ALL - {HPAS})
    assert "gputide_slice_framebuffer_granted_bytes" in rows(allocation, ALL - {HPAS})


@pytest.mark.parametrize("text", ["", "true", "keda", "HorizontalPodAutoscaler 5-2", "ScaledObject ١-٢", "Other 1-2"])
def test_a_word_of_another_kind_is_no_autoscaler(text: str) -> None:
    assert autoscaler_of(text) is None
