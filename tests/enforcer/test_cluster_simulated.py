"""The simulated cluster keeps the contract, places like HAMi, and follows its users."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from bench.faulty_cluster import Faults
from enforcer.cluster import FieldChange
from enforcer.manifest import field_of
from enforcer.simulated.cluster import SimulatedCluster
from fleet.errors import Corrupt, Refused, Unavailable
from fleet.grammars.hami import parse_devices_allocated, parse_node_register
from fleet.inventory import Priority, WorkloadId
from tests.contracts.cluster import ClusterContract, LeaseContract
from tests.enforcer.builders import HALF, NOW, a_cluster, a_grant, an_inventory, card_id, standard_grants, where

LIMITS = "spec.template.spec.containers[server].resources.limits"
AT_ONCE = {"spec.strategy.rollingUpdate.maxSurge": "0", "spec.strategy.rollingUpdate.maxUnavailable": "100%"}
NO_SURGE = {"spec.strategy.rollingUpdate.maxSurge": "0", "spec.strategy.rollingUpdate.maxUnavailable": "1"}
USE = "spec.template.metadata.annotations[nvidia.com/use-gpuuuid]"


@pytest.fixture
def cluster(tmp_path: Path) -> SimulatedCluster:
    return a_cluster(tmp_path)


@pytest.fixture
def reopened(tmp_path: Path) -> Callable[[], SimulatedCluster]:
    return lambda: SimulatedCluster.open(tmp_path / "cluster.sqlite")


class TestSimulatedCluster(ClusterContract):
    pass


class TestSimulatedLease(LeaseContract):
    pass


def patch(cluster: SimulatedCluster, name: str, kind: str = "Deployment", /, **fields: str | None) -> None:
    version = cluster.get(kind, "team", name)["metadata"]["resourceVersion"]  # type: ignore[index]
    changes = [FieldChange(field=path, value=value) for path, value in fields.items()]
    cluster.patch(kind, "team", name, changes, version)


def test_new_pods_take_the_card_of_their_trace(cluster: SimulatedCluster) -> None:
    assert where(cluster)["a-1"] == (1, 24)
    assert where(cluster)["train-0"] == (7, 24)


def test_new_pod_whose_card_is_taken_goes_where_there_is_room(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path, [a_grant("a", 0, 3), a_grant("b", 0, 3)])
    places = where(cluster)
    assert places["a-0"] == (3, 24)
    assert places["b-0"][0] != 3


def test_pod_without_room_is_pending_with_a_reason_and_runs_when_room_comes(tmp_path: Path) -> None:
    grants = [a_grant("a", 0, 0), a_grant("b", 0, 0)]
    cluster = a_cluster(tmp_path, grants, cards=1)
    assert where(cluster)["b-0"] == "pending"
    pod = cluster.get("Pod", "team", "b-0")
    assert pod is not None
    assert "no card fits" in pod["status"]["conditions"][0]["message"]
    cluster.sync(an_inventory(grants[1:], cards=1), NOW + timedelta(minutes=10))
    assert where(cluster) == {"b-0": (0, 24)}


def test_ended_pods_go_and_their_owner_is_scaled_in(cluster: SimulatedCluster) -> None:
    left = [grant for grant in standard_grants() if grant.pod != "a-1"]
    assert cluster.sync(an_inventory(left), NOW + timedelta(minutes=10))
    owner = cluster.get("Deployment", "team", "a")
    assert owner is not None
    assert owner["spec"]["replicas"] == 1
    assert "a-1" not in where(cluster)
    gone = [grant for grant in left if grant.workload != "a"]
    cluster.sync(an_inventory(gone), NOW + timedelta(minutes=20))
    assert cluster.get("Deployment", "team", "a") is None


def test_sync_of_the_same_changes_nothing(cluster: SimulatedCluster) -> None:
    before = cluster.list_objects("Pod")
    assert not cluster.sync(an_inventory(standard_grants()), NOW + timedelta(minutes=10))
    assert cluster.list_objects("Pod") == before
    assert cluster.now() == NOW + timedelta(minutes=10)


def test_clock_never_goes_back(cluster: SimulatedCluster) -> None:
    cluster.advance(NOW - timedelta(days=1))
    assert cluster.now() == NOW


def test_moved_pod_stays_where_it_is_when_users_act(cluster: SimulatedCluster) -> None:
    patch(cluster, "c", **{f"{LIMITS}[nvidia.com/gpumem]": "12000", USE: card_id(4), **AT_ONCE})
    cluster.pause(120.0)
    assert where(cluster)["c-1"] == (4, 11)
    more = [*standard_grants(), a_grant("new", 0, 5)]
    cluster.sync(an_inventory(more), NOW + timedelta(minutes=10))
    assert where(cluster)["c-1"] == (4, 11)
    assert where(cluster)["new-0"] == (5, 24)


def test_slices_never_exceed_the_card(cluster: SimulatedCluster) -> None:
    patch(cluster, "c", **{f"{LIMITS}[nvidia.com/gpumem]": "16000", USE: card_id(4), **AT_ONCE})
    cluster.pause(120.0)
    assert sorted(map(str, (where(cluster)["c-0"], where(cluster)["c-1"]))) == ["(4, 15)", "pending"]


def test_whole_card_keeps_slices_off_and_slices_keep_it_off(cluster: SimulatedCluster) -> None:
    patch(cluster, "c", **{f"{LIMITS}[nvidia.com/gpumem]": "100", USE: card_id(0), **NO_SURGE})
    cluster.pause(120.0)
    assert [seat for pod, seat in where(cluster).items() if pod.startswith("c-")].count("pending") == 1
    patch(cluster, "c", **{USE: card_id(5)})
    cluster.pause(120.0)
    assert (where(cluster)["c-0"], where(cluster)["c-1"]) == ((5, 0), (5, 0))
    patch(cluster, "a", **{USE: card_id(5), **NO_SURGE})
    cluster.pause(120.0)
    assert [seat for pod, seat in where(cluster).items() if pod.startswith("a-")].count("pending") == 1


def test_avoided_card_is_not_used(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path, [a_grant("a", 0, 0)], cards=2)
    patch(cluster, "a", **{"spec.template.metadata.annotations[nvidia.com/nouse-gpuuuid]": card_id(0)})
    cluster.pause(60.0)
    assert where(cluster)["a-0"] == (1, 24)


def test_node_without_cpu_takes_nobody(tmp_path: Path) -> None:
    grants = [replace(a_grant("a", number, number), cpu_request_cores=40.0) for number in range(2)]
    inventory = an_inventory(grants, cards=4)
    cluster = SimulatedCluster(tmp_path / "cluster.sqlite")
    cluster.sync(inventory, NOW)
    assert sorted(map(str, where(cluster).values())) == ["(0, 24)", "pending"]


def test_percentage_out_of_range_is_denied_and_the_other_pods_stay(cluster: SimulatedCluster) -> None:
    patch(cluster, "a", **{f"{LIMITS}[nvidia.com/gpumem-percentage]": "150", **NO_SURGE})
    cluster.pause(120.0)
    assert sorted(map(str, (where(cluster)["a-0"], where(cluster)["a-1"]))) == ["(0, 24)", "stopped"]
    assert any("gpumem-percentage=150" in message for *_, message in cluster.events())


def test_priority_becomes_the_variable_that_the_library_reads(cluster: SimulatedCluster) -> None:
    pod = cluster.get("Pod", "team", "b-0")
    assert pod is not None
    assert {"name": "CUDA_TASK_PRIORITY", "value": "0"} in pod["spec"]["containers"][0]["env"]


def test_allocation_and_register_are_in_hamis_grammar(cluster: SimulatedCluster) -> None:
    pod, node = cluster.get("Pod", "team", "a-0"), cluster.get("Node", "", "node-0")
    assert pod is not None
    assert node is not None
    (grant,) = parse_devices_allocated(pod["metadata"]["annotations"]["hami.io/vgpu-devices-allocated"])[0]
    assert (grant.card, grant.framebuffer_mib, grant.core_percent) == (card_id(0), 24576, 100)
    assert pod["metadata"]["annotations"]["hami.io/vgpu-node"] == "node-0"
    devices = parse_node_register(node["metadata"]["annotations"]["hami.io/node-nvidia-register"])
    assert [device.card for device in devices] == [card_id(number) for number in range(4)]


def test_notebook_is_stopped_and_started(cluster: SimulatedCluster) -> None:
    patch(cluster, "book", "Notebook", **{"metadata.annotations[kubeflow-resource-stopped]": "2026-01-12T00:00:00Z"})
    assert where(cluster)["book-0"] == "stopped"
    cluster.start(WorkloadId("team/Notebook/book"))
    assert where(cluster)["book-0"] == (6, 24)


def test_suspended_job_has_no_pods(cluster: SimulatedCluster) -> None:
    patch(cluster, "train", "Job", **{"spec.suspend": "true"})
    assert where(cluster)["train-0"] == "stopped"


def test_template_of_a_job_is_immutable(cluster: SimulatedCluster) -> None:
    with pytest.raises(Refused, match="immutable"):
        patch(cluster, "train", "Job", **{f"{LIMITS}[nvidia.com/gpumem]": "100"})


def test_granted_slices_of_the_trace_share_a_card(tmp_path: Path) -> None:
    grants = [a_grant("a", number, 0, framebuffer_bytes=HALF) for number in range(2)]
    cluster = a_cluster(tmp_path, grants, cards=1)
    states = where(cluster)
    assert states["a-0"] == (0, 12)
    assert states["a-1"] == (0, 12)


def test_seats_say_policy_and_oversubscription(cluster: SimulatedCluster) -> None:
    changed = {f"{LIMITS}[nvidia.com/gpumem]": "12288", f"{LIMITS}[nvidia.com/gpucores]": "40"}
    patch(cluster, "c", **changed, **NO_SURGE)
    cluster.pause(120.0)
    seat = next(seat for seat in cluster.seats() if seat.pod == "c-0")
    assert (seat.compute_granted_ratio, seat.core_policy.value, seat.priority) == (0.4, "hard", Priority.LOW)
    assert not seat.is_oversubscribed


# --- what the controllers do by themselves ---

IMAGE = "spec.template.spec.containers[server].env[MODEL]"
HELD = {"spec.minReadySeconds": "86400", "spec.progressDeadlineSeconds": "90000", **NO_SURGE}


def names(cluster: SimulatedCluster) -> dict[str, str]:
    return {seat.pod: seat.name for seat in cluster.seats()}


def renamed(cluster: SimulatedCluster, workload: str) -> list[str]:
    return [pod for pod, name in names(cluster).items() if pod.startswith(f"{workload}-") and name != pod]


def test_deployment_rolls_at_once_under_new_names_of_a_new_replica_set(cluster: SimulatedCluster) -> None:
    patch(cluster, "a", **{IMAGE: "next", **NO_SURGE})
    assert renamed(cluster, "a") == ["a-1"]
    cluster.pause(120.0)
    assert renamed(cluster, "a") == ["a-0", "a-1"]
    pod = cluster.get("Pod", "team", names(cluster)["a-0"])
    assert pod is not None
    (reference,) = pod["metadata"]["ownerReferences"]
    replica_set = cluster.get("ReplicaSet", "team", reference["name"])
    assert replica_set is not None
    assert replica_set["metadata"]["ownerReferences"][0] == {
        "apiVersion": "apps/v1", "kind": "Deployment", "name": "a", "controller": True
    }  # fmt: skip
    assert replica_set["status"] == {"replicas": 2}
    owner = cluster.get("Deployment", "team", "a")
    assert owner is not None
    assert owner["metadata"]["generation"] == 2
    assert owner["status"] == {
        "observedGeneration": 2, "replicas": 2, "updatedReplicas": 2, "readyReplicas": 2, "availableReplicas": 2
    }  # fmt: skip


def test_least_ready_time_holds_a_roll_after_its_first_pod(cluster: SimulatedCluster) -> None:
    patch(cluster, "a", **{IMAGE: "next", **HELD})
    cluster.pause(3600.0)
    assert renamed(cluster, "a") == ["a-1"]
    assert where(cluster)["a-1"] == (1, 24)
    patch(cluster, "a", **{"spec.minReadySeconds": None})
    cluster.pause(60.0)
    assert renamed(cluster, "a") == ["a-0", "a-1"]


def test_surge_needs_room_beside_the_old_pod(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path, [a_grant("a", 0, 0)], cards=1)
    rolling = "spec.strategy.rollingUpdate"
    patch(cluster, "a", **{f"{rolling}.maxSurge": "25%", f"{rolling}.maxUnavailable": "25%", IMAGE: "next"})
    cluster.pause(3600.0)
    assert len(cluster.list_objects("Pod")) == 2
    assert where(cluster) == {"a-0": (0, 24)}
    assert names(cluster) == {"a-0": "a-0"}


def test_paused_deployment_keeps_its_pods_and_makes_evicted_ones_as_they_were(cluster: SimulatedCluster) -> None:
    patch(cluster, "a", **{"spec.paused": "true"})
    patch(cluster, "a", **{f"{LIMITS}[nvidia.com/gpumem]": "12288"})
    cluster.pause(120.0)
    assert renamed(cluster, "a") == []
    cluster.evict("team", "a-0")
    cluster.pause(60.0)
    assert where(cluster)["a-0"] == (0, 24)
    patch(cluster, "a", **{"spec.paused": None, **NO_SURGE})
    cluster.pause(120.0)
    assert where(cluster)["a-0"] == (0, 12)


def test_recreate_ends_all_pods_before_it_makes_new_ones(cluster: SimulatedCluster) -> None:
    strategy = "spec.strategy"
    patch(cluster, "a", **{f"{strategy}.rollingUpdate": None, f"{strategy}.type": "Recreate", IMAGE: "next"})
    assert renamed(cluster, "a") == ["a-0", "a-1"]


def test_template_that_comes_back_is_the_same_replica_set(cluster: SimulatedCluster) -> None:
    patch(cluster, "a", **{IMAGE: "next", **NO_SURGE})
    cluster.pause(120.0)
    patch(cluster, "a", **{IMAGE: None})
    cluster.pause(120.0)
    sets = [found for found in cluster.list_objects("ReplicaSet") if found["metadata"]["name"].startswith("a-")]
    assert sorted(found["status"]["replicas"] for found in sets) == [0, 2]


def a_stateful_cluster(folder: Path) -> SimulatedCluster:
    return a_cluster(folder, [a_grant("s", number, number, kind="StatefulSet") for number in range(3)])


def models(cluster: SimulatedCluster) -> list[str | None]:
    return [field_of(pod, "spec.containers[server].env[MODEL]") for pod in cluster.list_objects("Pod", "team")]


def test_stateful_set_rolls_from_the_highest_ordinal_down_to_its_partition(tmp_path: Path) -> None:
    cluster = a_stateful_cluster(tmp_path)
    patch(cluster, "s", "StatefulSet", **{IMAGE: "next", "spec.updateStrategy.rollingUpdate.partition": "2"})
    cluster.pause(120.0)
    assert models(cluster) == [None, None, "next"]
    patch(cluster, "s", "StatefulSet", **{"spec.updateStrategy.rollingUpdate.partition": "0"})
    assert models(cluster) == [None, "next", "next"]
    cluster.pause(120.0)
    assert models(cluster) == ["next", "next", "next"]
    assert names(cluster) == {"s-0": "s-0", "s-1": "s-1", "s-2": "s-2"}


def test_stateful_set_waits_for_a_pod_that_is_never_ready_until_it_is_evicted(tmp_path: Path) -> None:
    faults = Faults(never_ready=frozenset({"team/s-2"}))
    cluster = a_cluster(
        tmp_path, [a_grant("s", number, number, kind="StatefulSet") for number in range(3)], faults=faults
    )
    patch(cluster, "s", "StatefulSet", **{IMAGE: "bad"})
    cluster.pause(120.0)
    faults.never_ready = frozenset()
    patch(cluster, "s", "StatefulSet", **{IMAGE: None})
    cluster.pause(3600.0)
    assert models(cluster) == [None, None, "bad"]
    cluster.evict("team", "s-2")
    cluster.pause(60.0)
    assert models(cluster) == [None, None, None]


def test_stateful_set_on_delete_changes_the_evicted_pod_only(tmp_path: Path) -> None:
    cluster = a_stateful_cluster(tmp_path)
    strategy = "spec.updateStrategy"
    patch(cluster, "s", "StatefulSet", **{f"{strategy}.rollingUpdate": None, f"{strategy}.type": "OnDelete"})
    patch(cluster, "s", "StatefulSet", **{IMAGE: "next"})
    cluster.pause(120.0)
    cluster.evict("team", "s-1")
    assert models(cluster) == [None, "next", None]


def test_daemon_set_rolls_one_pod_after_the_other(tmp_path: Path) -> None:
    grants = [a_grant("d", number, 4 * number, kind="DaemonSet") for number in range(2)]
    cluster = a_cluster(tmp_path, grants)
    patch(cluster, "d", "DaemonSet", **{IMAGE: "next"})
    assert len(renamed(cluster, "d")) == 1
    cluster.pause(120.0)
    assert models(cluster) == ["next", "next"]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"spec.minReadySeconds": "600"}, "progressDeadlineSeconds=600"),
        (
            {"spec.strategy.rollingUpdate.maxSurge": "0", "spec.strategy.rollingUpdate.maxUnavailable": "0"},
            "maxUnavailable",
        ),
        ({"spec.strategy.type": "Recreate"}, "Recreate"),
    ],
)
def test_what_the_api_server_would_not_take_is_refused(
    cluster: SimulatedCluster, fields: dict[str, str], why: str
) -> None:
    with pytest.raises(Refused, match=why):
        patch(cluster, "a", **fields)


@pytest.mark.parametrize(
    ("bound", "is_evicted"),
    [({"minAvailable": 2}, False), ({"minAvailable": "50%"}, True), ({"maxUnavailable": 0}, False)],
)
def test_disruption_budget_decides_over_evictions(
    cluster: SimulatedCluster, bound: dict[str, object], is_evicted: bool
) -> None:
    spec = {**bound, "selector": {"matchLabels": {"app": "a"}}}
    metadata = {"namespace": "team", "name": "a"}
    cluster.create({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": metadata, "spec": spec})
    assert cluster.evict("team", "a-0") is is_evicted
    assert (cluster.get("Pod", "team", "a-0") is None) is is_evicted
    assert cluster.evict("team", "b-0")


@pytest.mark.parametrize(
    ("faults", "error"),
    [
        (Faults(conflict_on_writes=frozenset({1})), Refused),
        (Faults(delete_on_writes=frozenset({1})), Refused),
        (Faults(fail_on_writes={1: 429}), Unavailable),
        (Faults(fail_on_writes={1: 500}), Unavailable),
    ],
)
def test_faults_happen_on_the_write_they_are_asked_for(tmp_path: Path, faults: Faults, error: type[Exception]) -> None:
    cluster = a_cluster(tmp_path, faults=faults)
    with pytest.raises(error):
        patch(cluster, "a", **{"spec.replicas": "1"})


def test_file_that_is_no_cluster_is_corrupt(tmp_path: Path) -> None:
    (tmp_path / "cluster.sqlite").write_bytes(b"not a database, by far" * 100)
    with pytest.raises(Corrupt, match=r"cluster\.sqlite"):
        SimulatedCluster(tmp_path / "cluster.sqlite")


def test_two_processes_see_each_others_writes(tmp_path: Path) -> None:
    one = a_cluster(tmp_path)
    two = SimulatedCluster.open(tmp_path / "cluster.sqlite")
    assert where(two) == where(one)
    patch(one, "c", **{f"{LIMITS}[nvidia.com/gpumem]": "12288", USE: card_id(4), **AT_ONCE})
    assert where(one) == where(two)
    two.pause(120.0)
    assert where(one)["c-1"] == (4, 12)
    assert where(one) == where(two)


def test_choice_of_models_is_held_against_the_type_that_the_plugin_registers(cluster: SimulatedCluster) -> None:
    chosen = "spec.template.metadata.annotations[nvidia.com/use-gputype]"
    node = cluster.get("Node", "", "node-0")
    assert node is not None
    (device, *_) = parse_node_register(node["metadata"]["annotations"]["hami.io/node-nvidia-register"])
    patch(cluster, "a", **{**AT_ONCE, chosen: device.device_type})
    assert "pending" not in where(cluster).values()
    patch(cluster, "a", **{chosen: "NVIDIA-NVIDIA H100"})
    assert "pending" in where(cluster).values()
