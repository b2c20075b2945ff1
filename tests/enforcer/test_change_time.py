"""How long a pod may take is what its own template says of its start and end; a card is free once its pod is gone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from enforcer.record.journal import HoldIntent, ObjectIntent, StageState
from enforcer.rollout.change_time import change_seconds_max
from enforcer.seat import is_ready
from enforcer.simulated.cluster import SimulatedCluster
from tests.enforcer.builders import a_cluster, a_grant, a_rollout, some_tools
from tests.enforcer.test_availability import shared

DEADLINE = "spec.progressDeadlineSeconds"


def an_owner(container: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    template = {"spec": {"containers": [{"name": "server", **(container or {})}], "terminationGracePeriodSeconds": 0}}
    return {"kind": "Deployment", "metadata": {"namespace": "t", "name": "a"}, "spec": {"template": template, **spec}}


@pytest.mark.parametrize(
    ("owner", "seconds"),
    [
        (an_owner(), 60),
        (an_owner({"startupProbe": {"failureThreshold": 180, "periodSeconds": 10}}), 1810),
        (an_owner({"startupProbe": {"failureThreshold": 3, "initialDelaySeconds": 900}}), 940),
        (an_owner({"readinessProbe": {"initialDelaySeconds": 300, "periodSeconds": 5}}), 305),
        (an_owner(progressDeadlineSeconds=600), 60),
        (an_owner(progressDeadlineSeconds=3600), 3600),
        (None, 60),
    ],
)
def test_pod_may_take_as_long_as_its_own_probes_and_deadline_let_it(owner: Any, seconds: int) -> None:
    assert change_seconds_max(owner, None, 60) == seconds


def test_pod_that_drains_requests_has_its_grace_period_besides() -> None:
    owner = an_owner()
    owner["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 1800
    assert change_seconds_max(owner, None, 60) == 1860


def test_deadline_that_we_set_to_hold_an_owner_is_not_its_own() -> None:
    hold = HoldIntent(field=DEADLINE, old="600", canary="2595600", rest="600")
    intent = ObjectIntent(
        kind="Deployment", namespace="t", name="a", resource_version="1", recommendation="r", fields=(), holds=(hold,)
    )
    assert change_seconds_max(an_owner(progressDeadlineSeconds=2595600), intent, 60) == 60


@pytest.mark.parametrize(("status", "ready"), [("True", True), ("False", False)])
def test_pod_is_ready_only_when_its_readiness_gates_are_open(status: str, ready: bool) -> None:
    conditions = [{"type": "ContainersReady", "status": "True"}, {"type": "Ready", "status": status}]
    pod = {"status": {"containerStatuses": [{"name": "server", "ready": True}], "conditions": conditions}}
    assert is_ready(pod) is ready


class Draining(SimulatedCluster):
    """A cluster in which the pod of one workload that was to leave is still being ended for a while."""

    ends_at: float = 0.0
    waited: float = 0.0

    def list_objects(self, kind: str, namespace: str | None = None) -> tuple[dict[str, Any], ...]:
        found = super().list_objects(kind, namespace)
        if kind != "Pod" or self.waited >= self.ends_at or not self.ends_at:
            return found
        ghost = {
            "metadata": {
                "namespace": "team", "name": "a-0", "deletionTimestamp": "2026-01-12T00:00:00Z",
                "ownerReferences": [{"kind": "Deployment", "name": "a", "controller": True}],
            },
            "spec": {"containers": []},
            "status": {"phase": "Running"},
        }  # fmt: skip
        is_gone = all(pod["metadata"]["name"] != "a-0" for pod in found)
        return (*found, ghost) if is_gone else found


def test_stage_waits_until_the_pod_that_leaves_is_gone(tmp_path: Path) -> None:
    a_cluster(tmp_path, [a_grant("a", 0, 0)]).close()
    cluster = Draining(tmp_path / "cluster.sqlite")
    cluster.ends_at = 90.0
    seen: list[tuple[float, str]] = []

    def pause(seconds: float) -> None:
        cluster.waited += seconds
        cluster.pause(seconds)

    def step(what: str) -> None:
        seen.append((cluster.waited, what))

    tools = some_tools(cluster, tmp_path, pause=pause, step=step)
    (result,) = a_rollout(tools).apply(shared(5, "a-0"), by="ann")
    assert (result.state, result.reason) == (StageState.PROMOTED, None)
    assert min(waited for waited, what in seen if what.startswith("watched rest")) >= 90.0
