"""What every cluster behind the enforcer's ports must do; adapters' tests inherit these claims."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from enforcer.cluster import FieldChange
from enforcer.manifest import field_of, values_equal
from fleet.errors import Refused

REPLICAS = "spec.replicas"
NOTE = "metadata.annotations[gputide.io/note]"
COST = "metadata.annotations[controller.kubernetes.io/pod-deletion-cost]"
POD_LIMIT = "spec.containers[server].resources.limits[nvidia.com/gpumem]"
LIMIT = "spec.template.spec.containers[server].resources.limits[nvidia.com/gpumem]"

LOOKS_MAX = 120
LOOK_SECONDS = 0.5


class ClusterContract:
    """Needs a fixture `cluster` in which Deployment a of namespace `team` runs two pods, and one `reopened`."""

    @pytest.fixture
    def team(self) -> str:
        return "team"

    def test_object_that_is_not_there_is_none(self, cluster: Any, team: str) -> None:
        assert cluster.get("Deployment", team, "nobody") is None

    def test_list_holds_what_get_gives(self, cluster: Any, team: str) -> None:
        found = cluster.list_objects("Deployment", team)
        assert cluster.get("Deployment", team, "a") in found
        assert not cluster.list_objects("Deployment", "elsewhere")

    def test_list_of_all_namespaces_is_sorted_by_namespace_and_name(self, cluster: Any, team: str) -> None:
        places = [(item["metadata"]["namespace"], item["metadata"]["name"]) for item in cluster.list_objects("Pod")]
        assert places == sorted(places)
        assert {team} <= {namespace for namespace, _ in places}

    def test_pods_lead_to_their_owner_and_name_their_node(self, cluster: Any, team: str) -> None:
        pods = pods_of(cluster, team)
        assert len(pods) == 2
        assert all(pod["spec"]["nodeName"].startswith("node-") for pod in pods)

    def test_object_of_our_own_is_made_once_and_stays_as_it_is(self, cluster: Any, team: str) -> None:
        request = {"name": "card", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
        made = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": {"namespace": team, "name": "own"},
            "spec": {"spec": {"devices": {"requests": [request]}}},
        }
        assert cluster.make(made)
        assert not cluster.make({**made, "spec": {"spec": {"devices": {}}}})
        found = cluster.get("ResourceClaimTemplate", team, "own")
        assert [entry["name"] for entry in found["spec"]["spec"]["devices"]["requests"]] == ["card"]

    def test_patch_writes_all_fields_and_gives_a_new_version(self, cluster: Any, team: str) -> None:
        before = version_of(cluster, team)
        fields = [FieldChange(field=NOTE, value="x"), FieldChange(field=LIMIT, value="4000")]
        version = cluster.patch("Deployment", team, "a", fields, before)
        after = cluster.get("Deployment", team, "a")
        assert version != before
        assert field_of(after, NOTE) == "x"
        assert values_equal(LIMIT, field_of(after, LIMIT), "4000")

    def test_patch_of_none_takes_the_field_away(self, cluster: Any, team: str) -> None:
        version = cluster.patch(
            "Deployment", team, "a", [FieldChange(field=NOTE, value="x")], version_of(cluster, team)
        )
        cluster.patch("Deployment", team, "a", [FieldChange(field=NOTE, value=None)], version)
        assert field_of(cluster.get("Deployment", team, "a"), NOTE) is None

    def test_conflict_is_refused_naming_both_versions_and_writes_nothing(self, cluster: Any, team: str) -> None:
        old = version_of(cluster, team)
        new = cluster.patch("Deployment", team, "a", [FieldChange(field=NOTE, value="theirs")], old)
        with pytest.raises(Refused) as refusal:
            cluster.patch("Deployment", team, "a", [FieldChange(field=NOTE, value="ours")], old)
        told = re.findall(r"[0-9]+", str(refusal.value))
        assert old in told
        # A controller may have reported a status in between, which makes a version too.
        assert any(int(version) >= int(new) for version in told if version != old)
        assert field_of(cluster.get("Deployment", team, "a"), NOTE) == "theirs"

    def test_patch_of_an_object_that_is_gone_is_refused(self, cluster: Any, team: str) -> None:
        with pytest.raises(Refused, match="gone"):
            cluster.patch("Deployment", team, "nobody", [FieldChange(field=NOTE, value="x")], "1")

    def test_evicted_pods_come_back_with_the_template_that_holds_now(self, cluster: Any, team: str) -> None:
        cluster.patch("Deployment", team, "a", [FieldChange(field=LIMIT, value="4000")], version_of(cluster, team))
        for pod in pods_of(cluster, team):
            if field_of(pod, POD_LIMIT) is None:
                cluster.evict(team, pod["metadata"]["name"])
        eventually(
            cluster,
            lambda: [values_equal(POD_LIMIT, field_of(pod, POD_LIMIT), "4000") for pod in ready_pods(cluster, team)],
            [True, True],
        )

    def test_evicting_a_pod_that_is_gone_is_no_error(self, cluster: Any, team: str) -> None:
        assert cluster.evict(team, "nobody")

    def test_scaling_in_takes_the_pod_of_the_lowest_deletion_cost(self, cluster: Any, team: str) -> None:
        goes, stays = (pod["metadata"]["name"] for pod in pods_of(cluster, team))
        version = cluster.get("Pod", team, goes)["metadata"]["resourceVersion"]
        cluster.patch("Pod", team, goes, [FieldChange(field=COST, value="-1")], version)
        cluster.patch("Deployment", team, "a", [FieldChange(field=REPLICAS, value="1")], version_of(cluster, team))
        eventually(cluster, lambda: [pod["metadata"]["name"] for pod in pods_of(cluster, team)], [stays])

    def test_event_is_left_on_any_object_as_often_as_one_likes(self, cluster: Any, team: str) -> None:
        for _ in range(3):
            cluster.record_event("Deployment", team, "a", "GputideApplied", "plan 7")

    def test_what_was_written_is_there_after_a_restart(
        self, cluster: Any, team: str, reopened: Callable[[], Any]
    ) -> None:
        cluster.patch("Deployment", team, "a", [FieldChange(field=NOTE, value="kept")], version_of(cluster, team))
        again = reopened()
        assert field_of(again.get("Deployment", team, "a"), NOTE) == "kept"
        assert again.list_objects("Pod", team) == cluster.list_objects("Pod", team)


class LeaseContract:
    """Needs a fixture `cluster` that holds a lease and lets time pass by `pause`."""

    @pytest.fixture
    def lease_seconds(self) -> float:
        return 30.0

    def test_lease_has_one_holder(self, cluster: Any, lease_seconds: float) -> None:
        assert cluster.acquire("one", lease_seconds)
        assert not cluster.acquire("two", lease_seconds)
        assert cluster.acquire("one", lease_seconds)

    def test_released_lease_is_free(self, cluster: Any, lease_seconds: float) -> None:
        assert cluster.acquire("one", lease_seconds)
        cluster.release("two")
        assert not cluster.acquire("two", lease_seconds)
        cluster.release("one")
        assert cluster.acquire("two", lease_seconds)

    def test_lease_that_is_not_renewed_runs_out(self, cluster: Any, lease_seconds: float) -> None:
        assert cluster.acquire("one", lease_seconds)
        assert not cluster.acquire("two", lease_seconds)
        cluster.pause(lease_seconds + 1)
        assert cluster.acquire("two", lease_seconds)


def version_of(cluster: Any, team: str) -> str:
    """The version of Deployment a as it stands."""
    return str(cluster.get("Deployment", team, "a")["metadata"]["resourceVersion"])


def pods_of(cluster: Any, team: str) -> list[Any]:
    """Pods of Deployment a that nobody has asked to go, by name."""
    owners = {("Deployment", "a")}
    owners |= {
        ("ReplicaSet", found["metadata"]["name"])
        for found in cluster.list_objects("ReplicaSet", team)
        if _owner(found) in owners
    }
    pods = [pod for pod in cluster.list_objects("Pod", team) if _owner(pod) in owners]
    return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]


def ready_pods(cluster: Any, team: str) -> list[Any]:
    """Those of them whose containers are all ready."""
    return [
        pod
        for pod in pods_of(cluster, team)
        if (told := pod["status"].get("containerStatuses")) and all(container["ready"] for container in told)
    ]


def eventually(cluster: Any, look: Callable[[], Any], expected: Any) -> None:
    """Look until it is as expected, while the cluster's time passes."""
    for _ in range(LOOKS_MAX):
        if look() == expected:
            return
        cluster.pause(LOOK_SECONDS)
    assert look() == expected


def _owner(manifest: Any) -> tuple[str, str]:
    found = manifest["metadata"].get("ownerReferences") or [{}]
    return found[0].get("kind", ""), found[0].get("name", "")
