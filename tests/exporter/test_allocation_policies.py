"""What a GpuPolicy asks for stands among the labels of the pods that it selects."""

from __future__ import annotations

import json
from typing import Any

from exporter.allocation.manifest import LABELS_MAX
from exporter.allocation.state import Allocation
from exporter.cluster.reader import Watched
from fleet.gpu_policy import POLICIES_MAX
from fleet.inventory import BY_POLICY_LABEL
from fleet.schema import GRANT_LABELS
from tests.exporter.allocation_manifests import Manifest, drop, grant, node, pod, rows, take

POLICIES = Watched.GPU_POLICIES


def policy(name: str = "p", namespace: str = "team", **spec: Any) -> Manifest:
    return {"metadata": {"namespace": namespace, "name": name}, "spec": spec}


def allocation_of(**labels: str) -> Allocation:
    found = Allocation("c1")
    take(found, Watched.NODES, node(cards=1))
    take(found, Watched.PODS, pod("p1", granted=grant(0) + ";", labels={"app": "web", **labels}))
    return found


def own_labels(allocation: Allocation) -> dict[str, str]:
    (labels,) = rows(allocation)["gputide_slice_info"]
    found: dict[str, str] = json.loads(labels[GRANT_LABELS.index("labels")])
    return {key: value for key, value in found.items() if key.startswith("gputide.io/") and key != BY_POLICY_LABEL}


def test_policy_that_comes_changes_and_goes_is_followed() -> None:
    allocation = allocation_of()
    assert own_labels(allocation) == {}
    take(allocation, POLICIES, policy(latencyCritical=True, selector={"matchLabels": {"app": "web"}}))
    assert own_labels(allocation) == {"gputide.io/latency-critical": "true"}
    take(allocation, POLICIES, policy(minReplicasWarm=2))
    assert own_labels(allocation) == {"gputide.io/min-replicas-warm": "2"}
    drop(allocation, POLICIES, policy(minReplicasWarm=2))
    assert own_labels(allocation) == {}


def test_policy_of_another_namespace_says_nothing() -> None:
    allocation = allocation_of()
    take(allocation, POLICIES, policy(namespace="other", optOut=True))
    assert own_labels(allocation) == {}


def test_label_of_the_pod_wins_for_that_pod() -> None:
    allocation = allocation_of(**{"gputide.io/opt-out": "false"})
    take(allocation, POLICIES, policy(optOut=True, isolation="hard"))
    assert own_labels(allocation) == {"gputide.io/opt-out": "false", "gputide.io/isolation": "hard"}


def test_namespace_of_more_policies_than_are_read_is_left_alone_until_one_goes() -> None:
    allocation = allocation_of()
    for number in range(POLICIES_MAX + 1):
        take(allocation, POLICIES, policy(f"p{number:03}", minReplicasWarm=number + 1))
    assert own_labels(allocation) == {"gputide.io/opt-out": "true"}
    drop(allocation, POLICIES, policy(f"p{POLICIES_MAX:03}"))
    assert own_labels(allocation) == {"gputide.io/min-replicas-warm": str(POLICIES_MAX)}


def test_pod_of_more_labels_than_are_kept_is_selected_by_any_of_them() -> None:
    allocation = allocation_of(**{f"l{number}": "x" for number in range(LABELS_MAX)})
    take(allocation, POLICIES, policy(optOut=True, selector={"matchLabels": {"app": "web"}}))
    assert own_labels(allocation) == {"gputide.io/opt-out": "true"}


def test_policy_of_the_cluster_reaches_every_pod_and_no_label_loosens_it() -> None:
    allocation = allocation_of(**{"gputide.io/isolation": "soft", BY_POLICY_LABEL: '{"": []}'})
    base = {"metadata": {"name": "base"}, "spec": {"isolation": "hard"}}
    take(allocation, Watched.CLUSTER_POLICIES, base)
    assert own_labels(allocation) == {"gputide.io/isolation": "hard"}
    drop(allocation, Watched.CLUSTER_POLICIES, base)
    assert own_labels(allocation) == {"gputide.io/isolation": "soft"}
