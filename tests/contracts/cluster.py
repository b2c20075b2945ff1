"""What every cluster behind the enforcer's ports must do; adapters' tests inherit these claims."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from enforcer.cluster import FieldChange
from enforcer.manifest import field_of
from fleet.errors import Refused

REPLICAS = "spec.replicas"
NOTE = "metadata.annotations[gputide.io/note]"
LIMIT = "spec.template.spec.containers[server].resources.limits[nvidia.com/gpumem]"


class ClusterContract:
    """Needs a fixture `cluster` in which Deployment team/a runs the pods a-0 and a-1, and one `reopened`."""

    def test_object_that_is_not_there_is_none(self, cluster: Any) -> None:
        assert cluster.get("Deployment", "team", "nobody") is None

    def test_list_holds_what_get_gives(self, cluster: Any) -> None:
        found = cluster.list_objects("Deployment", "team")
        assert cluster.get("Deployment", "team", "a") in found
        assert cluster.list_objects("Deployment", "elsewhere") == ()

    def test_pods_name_their_owner_and_their_node(self, cluster: Any) -> None:
        pod = cluster.get("Pod", "team", "a-0")
        assert pod["metadata"]["ownerReferences"][0]["name"] == "a"
        assert pod["spec"]["nodeName"].startswith("node-")

    def test_patch_writes_all_fields_and_gives_a_new_version(self, cluster: Any) -> None:
        before = cluster.get("Deployment", "team", "a")["metadata"]["resourceVersion"]
        fields = [FieldChange(field=NOTE, value="x"), FieldChange(field=LIMIT, value="4000")]
        version = cluster.patch("Deployment", "team", "a", fields, before)
        after = cluster.get("Deployment", "team", "a")
        assert version != before
        assert after["metadata"]["resourceVersion"] == version
        assert (field_of(after, NOTE), field_of(after, LIMIT)) == ("x", "4000")

    def test_patch_of_none_takes_the_field_away(self, cluster: Any) -> None:
        version = cluster.get("Deployment", "team", "a")["metadata"]["resourceVersion"]
        version = cluster.patch("Deployment", "team", "a", [FieldChange(field=NOTE, value="x")], version)
        cluster.patch("Deployment", "team", "a", [FieldChange(field=NOTE, value=None)], version)
        assert field_of(cluster.get("Deployment", "team", "a"), NOTE) is None

    def test_conflict_is_refused_naming_both_versions_and_writes_nothing(self, cluster: Any) -> None:
        old = cluster.get("Deployment", "team", "a")["metadata"]["resourceVersion"]
        new = cluster.patch("Deployment", "team", "a", [FieldChange(field=NOTE, value="theirs")], old)
        with pytest.raises(Refused) as refusal:
            cluster.patch("Deployment", "team", "a", [FieldChange(field=NOTE, value="ours")], old)
        assert old in str(refusal.value)
        assert new in str(refusal.value)
        assert field_of(cluster.get("Deployment", "team", "a"), NOTE) == "theirs"

    def test_patch_of_an_object_that_is_gone_is_refused(self, cluster: Any) -> None:
        with pytest.raises(Refused, match="gone"):
            cluster.patch("Deployment", "team", "nobody", [FieldChange(field=NOTE, value="x")], "1")

    def test_template_reaches_a_pod_when_it_is_evicted_and_not_before(self, cluster: Any) -> None:
        version = cluster.get("Deployment", "team", "a")["metadata"]["resourceVersion"]
        cluster.patch("Deployment", "team", "a", [FieldChange(field=LIMIT, value="4000")], version)
        limits = "spec.containers[server].resources.limits[nvidia.com/gpumem]"
        assert field_of(cluster.get("Pod", "team", "a-0"), limits) is None
        cluster.evict("team", "a-0")
        assert field_of(cluster.get("Pod", "team", "a-0"), limits) == "4000"
        assert field_of(cluster.get("Pod", "team", "a-1"), limits) is None

    def test_evicting_a_pod_that_is_gone_is_no_error(self, cluster: Any) -> None:
        cluster.evict("team", "nobody")

    def test_scaling_in_takes_the_pod_of_the_lowest_deletion_cost(self, cluster: Any) -> None:
        cost = FieldChange(field="metadata.annotations[controller.kubernetes.io/pod-deletion-cost]", value="-1")
        version = cluster.get("Pod", "team", "a-0")["metadata"]["resourceVersion"]
        cluster.patch("Pod", "team", "a-0", [cost], version)
        version = cluster.get("Deployment", "team", "a")["metadata"]["resourceVersion"]
        cluster.patch("Deployment", "team", "a", [FieldChange(field=REPLICAS, value="1")], version)
        assert cluster.get("Pod", "team", "a-0") is None
        assert cluster.get("Pod", "team", "a-1") is not None

    def test_what_was_written_is_there_after_a_restart(self, cluster: Any, reopened: Callable[[], Any]) -> None:
        version = cluster.get("Deployment", "team", "a")["metadata"]["resourceVersion"]
        cluster.patch("Deployment", "team", "a", [FieldChange(field=NOTE, value="kept")], version)
        again = reopened()
        assert field_of(again.get("Deployment", "team", "a"), NOTE) == "kept"
        assert again.list_objects("Pod") == cluster.list_objects("Pod")


class LeaseContract:
    """Needs a fixture `cluster` that holds a lease and lets time pass by `pause`."""

    def test_lease_has_one_holder(self, cluster: Any) -> None:
        assert cluster.acquire("one", 30.0)
        assert not cluster.acquire("two", 30.0)
        assert cluster.acquire("one", 30.0)

    def test_released_lease_is_free(self, cluster: Any) -> None:
        assert cluster.acquire("one", 30.0)
        cluster.release("two")
        assert not cluster.acquire("two", 30.0)
        cluster.release("one")
        assert cluster.acquire("two", 30.0)

    def test_lease_that_is_not_renewed_runs_out(self, cluster: Any) -> None:
        assert cluster.acquire("one", 30.0)
        cluster.pause(31.0)
        assert cluster.acquire("two", 30.0)
