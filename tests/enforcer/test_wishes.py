"""What tenants ask for is heeded wherever it stands and however it is written, by guard, backends, relief and tide."""

from __future__ import annotations

from pathlib import Path

import pytest

from enforcer.backends.hami import HamiBackend
from enforcer.cluster import FieldChange
from enforcer.safety.guard import GuardPolicy
from enforcer.simulated.cluster import SimulatedCluster
from enforcer.snapshot import take_snapshot
from enforcer.wishes import Wishes
from fleet.errors import Refused
from fleet.gpu_policy import POLICIES_MAX, gpu_policy
from fleet.inventory import OPT_OUT_LABEL, WorkloadId, is_yes
from tests.enforcer.builders import NOW, OpenGuard, a_cluster, standard_plan

A = WorkloadId("team/Deployment/a")


def note(cluster: SimulatedCluster, kind: str, name: str, field: str, value: str) -> None:
    found = cluster.get(kind, "team", name)
    assert found is not None
    change = FieldChange(field=f"metadata.{field}", value=value)
    cluster.patch(kind, "team", name, [change], found["metadata"]["resourceVersion"])


def policy(cluster: SimulatedCluster, **spec: object) -> None:
    metadata = {"namespace": "team", "name": "p"}
    cluster.create({"apiVersion": "gputide.io/v1alpha1", "kind": "GpuPolicy", "metadata": metadata, "spec": spec})


def guarded(cluster: SimulatedCluster) -> None:
    OpenGuard(GuardPolicy()).check_wishes(standard_plan(), (1, 2), take_snapshot(cluster))


@pytest.mark.parametrize("value", ["true", "True", "yes", "1", "on", " TRUE "])
def test_flag_is_set_by_any_word_but_no_as_plans_read_it(tmp_path: Path, value: str) -> None:
    cluster = a_cluster(tmp_path)
    note(cluster, "Deployment", "a", "annotations[gputide.io/opt-out]", value)
    with pytest.raises(Refused, match=str(A)):
        guarded(cluster)


@pytest.mark.parametrize("value", ["false", "No", "0", "off", "", None])
def test_flag_is_not_set_by_a_word_for_no(value: str | None) -> None:
    assert not is_yes(value)


def test_pod_that_opts_out_by_itself_is_heeded(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path)
    note(cluster, "Pod", "a-1", "labels[gputide.io/opt-out]", "true")
    with pytest.raises(Refused, match=str(A)):
        guarded(cluster)


@pytest.mark.parametrize("by", ["label", "policy"])
def test_backend_seats_nobody_beside_who_wants_a_card_to_itself(tmp_path: Path, by: str) -> None:
    cluster = a_cluster(tmp_path)
    if by == "label":
        note(cluster, "Deployment", "a", "labels[gputide.io/isolation]", "hard")
    else:
        policy(cluster, isolation="hard", selector={"matchLabels": {"app": "a"}})
    with pytest.raises(Refused, match=r"team/Deployment/a on card .* gputide\.io/isolation=hard"):
        HamiBackend(NOW).render(standard_plan(), 2, take_snapshot(cluster))


def test_namespace_of_more_policies_than_are_read_is_left_alone() -> None:
    metadata = {"namespace": "team", "name": "p"}
    pod = {"kind": "Pod", "metadata": {"namespace": "team", "labels": {}}}
    policies = [gpu_policy({"metadata": metadata, "spec": {}}) for _ in range(POLICIES_MAX + 1)]
    assert Wishes(policies[1:]).of(OPT_OUT_LABEL, pod) is None
    assert Wishes(policies).of(OPT_OUT_LABEL, pod) == "true"
