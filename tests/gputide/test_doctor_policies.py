"""`gputide doctor` names a namespace that is left alone because it has more policies than are read."""

from __future__ import annotations

from pathlib import Path

from enforcer.simulated.cluster import SimulatedCluster
from enforcer.wishes import policies_in
from fleet.gpu_policy import POLICIES_MAX
from gputide.doctor.cluster import policies
from gputide.doctor.finding import Area, Diagnosis, a_check, diagnosed
from tests.enforcer.builders import a_cluster


def some_policies(cluster: SimulatedCluster, namespace: str, count: int) -> None:
    for number in range(count):
        metadata = {"namespace": namespace, "name": f"p{number}"}
        cluster.create({"kind": "GpuPolicy", "metadata": metadata, "spec": {}})


def look(cluster: SimulatedCluster) -> tuple[Diagnosis, ...]:
    return diagnosed(a_check(Area.CLUSTER, "policies", lambda: policies(policies_in(cluster.list_objects)), ""))


def test_only_the_namespace_with_too_many_policies_is_named(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path)
    some_policies(cluster, "team", POLICIES_MAX)
    (said,) = look(cluster)
    assert said.kind is None
    some_policies(cluster, "crowd", POLICIES_MAX + 1)
    (said,) = look(cluster)
    assert (said.kind and said.kind.code, said.subject) == ("policies-too-many", "crowd")
    assert "65 policies, limit 64" in str(said.said)
