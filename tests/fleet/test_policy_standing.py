"""What a policy's status says: what of it is in force for how many workloads, and who says otherwise."""

from __future__ import annotations

from typing import Any

from fleet.gpu_policy import POLICIES_MAX, GpuPolicy, gpu_policy
from fleet.inventory import WorkloadId
from fleet.policy_standing import InForce, Subject, standings


def policy(name: str, namespace: str = "team", **spec: Any) -> GpuPolicy:
    return gpu_policy({"metadata": {"name": name, "namespace": namespace}, "spec": spec})


def subject(name: str, namespace: str = "team", **labels: str) -> Subject:
    own = tuple(sorted({"app": name, **labels}.items()))
    return Subject(workload=WorkloadId(f"{namespace}/Deployment/{name}"), namespace=namespace, labels=own)


def on(*apps: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": "app", "operator": "In", "values": list(apps)}]}


def test_workload_whose_own_label_decides_counts_as_spoken_of_and_not_as_in_force() -> None:
    subjects = [subject("a"), subject("b", **{"gputide.io/isolation": "soft"}), subject("a", namespace="other")]
    found = standings([policy("all", isolation="hard")], subjects)["GpuPolicy team/all"]
    assert found.workloads == 2
    assert found.in_force == (InForce(field="isolation", value="hard", workloads=1),)


def test_policies_on_other_workloads_do_not_conflict_until_they_meet() -> None:
    one, other = (
        policy("one", minReplicasWarm=1, selector=on("a", "b")),
        policy("two", minReplicasWarm=2, selector=on("b", "c")),
    )
    apart = standings([one, other], [subject("a"), subject("c")])
    assert not any(found.conflicts for found in apart.values())
    together = standings([other, one], [subject("a"), subject("b")])
    assert together["GpuPolicy team/one"].conflicts == ("minReplicasWarm: GpuPolicy team/two says 2, and 2 holds",)
    assert together["GpuPolicy team/two"].conflicts == ("minReplicasWarm: GpuPolicy team/one says 1, and 2 holds",)


def test_policies_of_other_levels_or_namespaces_never_conflict() -> None:
    found = standings(
        [
            policy("a", optOut=True),
            policy("b", optOut=False, selector=on("x")),
            policy("a", namespace="other", optOut=False),
            policy("c", optOut=True),
            policy("base", namespace="", optOut=False),
        ],
        [subject("x")],
    )
    assert not any(one.conflicts for one in found.values())


def test_two_of_the_cluster_that_disagree_conflict_though_nothing_runs() -> None:
    found = standings([policy("a", namespace="", optOut=True), policy("b", namespace="", optOut=False)], [])
    assert found["ClusterGpuPolicy b"].conflicts == ("optOut: ClusterGpuPolicy a says true, and true holds",)
    assert found["ClusterGpuPolicy a"].conflicts == ("optOut: ClusterGpuPolicy b says false, and true holds",)


def test_too_many_policies_are_rejected_and_none_is_in_force() -> None:
    many = [policy(f"p{number}", minReplicasWarm=2) for number in range(POLICIES_MAX + 1)]
    found = standings(many, [subject("a")])
    assert all(
        one.rejected.startswith("namespace team has more policies than the limit of 64") for one in found.values()
    )
    assert not any(one.in_force or one.conflicts for one in found.values())
