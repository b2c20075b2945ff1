"""HAMi's names come from the cluster's own ConfigMap; pods and nodes are read as its releases write them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import yaml

from enforcer.backends.effectivegpu import EFFECTIVE_GPU_DIALECT, EffectiveGpuBackend, words_of_models
from enforcer.backends.hami import HamiBackend
from enforcer.backends.hami_dialect import HAMI_DIALECT, HAMI_WORDS, SCHEDULER_CONFIG, HamiDialect
from enforcer.manifest import Manifest
from enforcer.snapshot import take_snapshot
from fleet.decisions import Plan, RecommendationKind
from fleet.errors import Corrupt, Refused
from fleet.grammars.hami import (
    DEVICES_ALLOCATED_ANNOTATION,
    DeviceGrant,
    parse_node_register,
    render_devices_allocated,
)
from tests.enforcer.builders import NOW, a_plan, a_recommendation, a_slice, card_id, whole
from tests.enforcer.kin_cluster import EFFECTIVE_GPU, HAMI, a_kin_cluster, a_kin_owner, a_kin_pod
from tests.enforcer.plugin_cluster import StandingCluster, a_config
from tests.enforcer.test_backend_kin import rehome, slice_

RENAMED = {
    "resourceCountName": "acme.com/vgpu",
    "resourceMemoryName": "acme.com/vgpu-memory",
    "resourceMemoryPercentageName": "acme.com/vgpu-memory-percent",
    "resourceCoreName": "acme.com/vgpu-cores",
    "resourcePriorityName": "acme.com/vgpu-priority",
}
TEMPLATE = "spec.template.metadata.annotations"
CONTAINER = "spec.template.spec.containers[server].resources"


def device_config(content: Any) -> Manifest:
    text = content if isinstance(content, str) else yaml.safe_dump({"nvidia": content})
    return a_config(SCHEDULER_CONFIG, {"device-config.yaml": text})


def fields(plan: Plan, cluster: StandingCluster, backend: HamiBackend | None = None) -> dict[str, str | None]:
    chosen = backend or HamiBackend(NOW)
    rendered = chosen.render(plan, plan.stages[-1].stage, take_snapshot(cluster, chosen.dialect))
    return {f"{change.name} {change.field}": change.new for change in rendered.changes}


def owner_of(cluster: StandingCluster, name: str) -> Manifest:
    found = cluster.get("Deployment", "team", name)
    assert found is not None
    return found


def test_renamed_resources_are_asked_for_by_their_own_names() -> None:
    kin = replace(HAMI, limits={"acme.com/vgpu": "1"})
    cluster = a_kin_cluster(kin)
    cluster.put(device_config(RENAMED))
    told = fields(slice_(), cluster)
    assert told[f"a {CONTAINER}.limits[acme.com/vgpu-memory]"] == "12288"
    assert told[f"a {CONTAINER}.limits[acme.com/vgpu-cores]"] == "40"
    assert not any("nvidia.com/gpu" in field.replace("use-gpuuuid", "") for field in told)


def test_priority_is_read_by_its_own_name() -> None:
    dialect = HAMI_DIALECT.configured({SCHEDULER_CONFIG: device_config(RENAMED)})
    pod = a_kin_pod(HAMI, "a-0", HAMI.whole("server", 0), "node-0")
    pod["spec"]["containers"][0]["resources"]["limits"]["acme.com/vgpu-priority"] = "1"
    assert [part.priority for part in dialect.slices_of_pod(pod)] == ["1"]


def test_memory_factor_rounds_to_what_can_be_asked_for() -> None:
    """A unit of 1000 MiB: 12288 MiB are 12 units, and the scheduler grants 12000."""
    cluster = a_kin_cluster(HAMI)
    cluster.put(device_config({"memoryFactor": 1000}))
    assert fields(slice_(), cluster)[f"a {CONTAINER}.limits[nvidia.com/gpumem]"] == "12"
    stage = HamiBackend(NOW).render(slice_(), 1, take_snapshot(cluster))
    assert {part.framebuffer_mib for move in stage.moves for part in move.new} == {12000}
    said = [warning for warning in stage.warnings if "less than the plan says" in warning]
    assert len(said) == 1
    assert "a unit of nvidia.com/gpumem is 1000 MiB here" in said[0]
    cluster.put(device_config({"memoryFactor": 256}))
    even = HamiBackend(NOW).render(slice_(), 1, take_snapshot(cluster))
    assert not [warning for warning in even.warnings if "less than the plan says" in warning]


@pytest.mark.parametrize(
    "content",
    [
        {"memoryFactor": 0},
        {"memoryFactor": True},
        {"memoryFactor": "10"},
        {"resourceMemoryName": "gpumem]: evil"},
        {"resourceCoreName": ["nvidia.com/gpucores"]},
        {"resourceCountName": "x/" + "y" * 400},
        "nvidia: [1, 2]",
        "- a list",
        "nvidia: {a: b: c}",
    ],
)
def test_configuration_that_cannot_be_read_says_so(content: Any) -> None:
    with pytest.raises(Corrupt, match="hami-scheduler-device"):
        HAMI_DIALECT.configured({SCHEDULER_CONFIG: device_config(content)})


@pytest.mark.parametrize("text", ["", "nvidia:\n", "other: {}\n"])
def test_silent_configuration_leaves_the_names_of_the_chart(text: str) -> None:
    assert HAMI_DIALECT.configured({SCHEDULER_CONFIG: device_config(text)}).words == HAMI_WORDS if text else True
    assert HAMI_DIALECT.configured({}).words == HAMI_WORDS


def two_containers(entries: list[list[DeviceGrant]]) -> Manifest:
    pod = a_kin_pod(HAMI, "a-0", HAMI.whole("server", 0), "node-0")
    pod["spec"]["initContainers"] = [{"name": "warm-up"}]
    pod["metadata"]["annotations"][DEVICES_ALLOCATED_ANNOTATION] = render_devices_allocated(entries)
    return pod


def test_init_containers_keep_their_place_in_the_annotation() -> None:
    """HAMi from 2.6 on counts them first; a share of `server` must not be taken for one of its neighbour."""
    grant = DeviceGrant(card=card_id(0), device_type="NVIDIA", framebuffer_mib=4000, core_percent=30)
    newer = two_containers([[], [grant], []])
    older = two_containers([[grant], []])
    for pod in (newer, older):
        assert [part.container for part in HAMI_DIALECT.slices_of_pod(pod)] == ["server"]


def test_containers_without_a_card_may_be_left_out_of_the_annotation() -> None:
    """HAMi 2.10.0 writes one part for a pod whose second container alone has a card."""
    grant = DeviceGrant(card=card_id(0), device_type="NVIDIA", framebuffer_mib=4000, core_percent=30)
    pod = two_containers([[grant]])
    pod["spec"]["containers"].reverse()
    assert [part.container for part in HAMI_DIALECT.slices_of_pod(pod)] == ["server"]


def test_finished_pod_holds_nothing() -> None:
    cluster = a_kin_cluster(HAMI)
    pod = cluster.get("Pod", "team", "train-0")
    assert pod is not None
    pod["status"] = {"phase": "Succeeded"}
    assert take_snapshot(cluster).seats["team/train-0"].slices == ()


def test_claim_to_a_card_of_another_node_is_doubted() -> None:
    cluster = a_kin_cluster(HAMI)
    cluster.put(a_kin_pod(HAMI, "c-0", HAMI.whole("server", 0), "node-1"))
    snapshot = take_snapshot(cluster)
    assert "claims card" in snapshot.doubts["team/c-0"]
    assert snapshot.seats["team/c-0"].slices == ()


def test_share_in_percent_is_taken_out_beside_an_amount() -> None:
    cluster = a_kin_cluster(HAMI)
    limits = owner_of(cluster, "a")["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
    limits["nvidia.com/gpumem-percentage"] = "50"
    told = fields(slice_(), cluster)
    assert told[f"a {CONTAINER}.limits[nvidia.com/gpumem-percentage]"] is None
    assert told[f"a {CONTAINER}.limits[nvidia.com/gpumem]"] == "12288"


def test_requests_follow_the_limits() -> None:
    cluster = a_kin_cluster(HAMI)
    resources = owner_of(cluster, "a")["spec"]["template"]["spec"]["containers"][0]["resources"]
    resources["limits"]["nvidia.com/gpumem"] = resources.setdefault("requests", {})["nvidia.com/gpumem"] = "20000"
    told = fields(slice_(), cluster)
    assert told[f"a {CONTAINER}.requests[nvidia.com/gpumem]"] == told[f"a {CONTAINER}.limits[nvidia.com/gpumem]"]


@pytest.mark.parametrize(
    ("annotation", "value", "fact"),
    [
        ("nvidia.com/nouse-gpuuuid", f"GPU-x, {card_id(1)}", "nouse-gpuuuid names it"),
        ("nvidia.com/nouse-gputype", "a10,V100", "nouse-gputype is 'a10,V100'"),
    ],
)
def test_who_avoids_the_planned_card_is_left_alone(annotation: str, value: str, fact: str) -> None:
    cluster = a_kin_cluster(HAMI)
    owner_of(cluster, "a")["spec"]["template"]["metadata"]["annotations"] = {annotation: value}
    with pytest.raises(Refused, match=fact):
        fields(slice_(), cluster)


@pytest.mark.parametrize(("chosen", "is_changed"), [("nvidia a10", False), ("V100", True), ("v100, A10", False)])
def test_choice_of_a_model_follows_the_plan_only_where_it_must(chosen: str, is_changed: bool) -> None:
    cluster = a_kin_cluster(HAMI)
    owner_of(cluster, "a")["spec"]["template"]["metadata"]["annotations"] = {"nvidia.com/use-gputype": chosen}
    told = fields(slice_(), cluster)
    assert told.get(f"a {TEMPLATE}[nvidia.com/use-gputype]") == ("NVIDIA-NVIDIA A10" if is_changed else None)


def test_policies_say_how_the_plan_lays_replicas() -> None:
    """Replicas on one card are packed, on cards of one node spread over them; a tenant's other wish is kept."""
    packed = a_plan(
        {0: [a_slice("a-0"), a_slice("a-1")]},
        [[a_recommendation("x", RecommendationKind.SLICE, ["a-0", "a-1"], ["Deployment/a"], 1)]],
    )
    cluster = a_kin_cluster(HAMI)
    owner_of(cluster, "b")["spec"]["template"]["metadata"]["annotations"] = {
        "hami.io/gpu-scheduler-policy": "topology-aware",
        "hami.io/node-scheduler-policy": "spread",
    }
    told = {**fields(packed, cluster), **{key: new for key, new in fields(slice_(), cluster).items() if key[0] == "b"}}
    assert told[f"a {TEMPLATE}[hami.io/gpu-scheduler-policy]"] == "binpack"
    assert told[f"a {TEMPLATE}[hami.io/node-scheduler-policy]"] == "binpack"
    assert f"b {TEMPLATE}[hami.io/gpu-scheduler-policy]" not in told
    assert told[f"b {TEMPLATE}[hami.io/node-scheduler-policy]"] == "binpack"


# EffectiveGPU: one resource per card model.

A10, A100 = "sf.example/egpu-a10", "sf.example/egpu-a100"
MODELS = words_of_models(HAMI_WORDS, {"A10": A10, "A100": A100})
PER_MODEL = EffectiveGpuBackend(NOW, HamiDialect(MODELS, device_config=EFFECTIVE_GPU_DIALECT.config_objects[0],
                                                 node_config=EFFECTIVE_GPU_DIALECT.node_config))  # fmt: skip


def a_mixed_cluster() -> StandingCluster:
    """Service c on A100 cards of node-1, the others on A10 cards of node-0."""
    cluster = a_kin_cluster(EFFECTIVE_GPU)
    node = cluster.get("Node", "", "node-1")
    assert node is not None
    text = node["metadata"]["annotations"]["hami.io/node-nvidia-register"]
    node["metadata"]["annotations"]["hami.io/node-nvidia-register"] = text.replace("A10", "A100")
    for name, resource in (("a", A10), ("b", A10), ("c", A100)):
        owner = a_kin_owner(replace(EFFECTIVE_GPU, limits={resource: "1"}), name)
        owner["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"] = {resource: "1"}
        cluster.put(owner)
    return cluster


def test_longest_name_of_a_model_counts() -> None:
    assert MODELS.count_of_model("NVIDIA-NVIDIA A100-SXM4-80GB") == A100
    assert MODELS.count_of_model("NVIDIA-NVIDIA A10") == A10
    assert MODELS.count_of_model("NVIDIA-Tesla T4") == "nvidia.com/gpu"


def test_move_to_another_model_asks_for_its_resource() -> None:
    snapshot = take_snapshot(a_mixed_cluster(), PER_MODEL.dialect)
    told = {f"{change.name} {change.field}": change.new for change in PER_MODEL.render(rehome(), 2, snapshot).changes}
    for place in ("limits", "requests"):
        assert told[f"c {CONTAINER}.{place}[{A100}]"] is None
        assert told[f"c {CONTAINER}.{place}[{A10}]"] == "1"


def test_slice_on_the_same_model_keeps_its_resource() -> None:
    snapshot = take_snapshot(a_mixed_cluster(), PER_MODEL.dialect)
    told = {f"{change.name} {change.field}": change.new for change in PER_MODEL.render(slice_(), 1, snapshot).changes}
    assert told[f"a {CONTAINER}.limits[nvidia.com/gpumem]"] == "12288"
    assert not any(A10 in field or A100 in field for field in told)


def test_replicas_on_two_models_cannot_be_named_by_one_template() -> None:
    plan = a_plan(
        {0: [whole("c-0")], 5: [whole("c-1")]},
        [[a_recommendation("x", RecommendationKind.REHOME, ["c-0", "c-1"], ["Deployment/c"], 0)]],
    )
    with pytest.raises(Refused, match="each model is asked for by a resource of its own"):
        PER_MODEL.render(plan, 1, take_snapshot(a_mixed_cluster(), PER_MODEL.dialect))


def test_effective_gpu_reads_names_from_its_own_configuration() -> None:
    kin = replace(EFFECTIVE_GPU, limits={"acme.com/vgpu": "1"})
    cluster = a_kin_cluster(kin)
    key = EFFECTIVE_GPU_DIALECT.config_objects[0]
    cluster.put(a_config(key, {"device-config.yaml": json.dumps({"nvidia": RENAMED})}))
    rendered = EffectiveGpuBackend(NOW).render(slice_(), 1, take_snapshot(cluster, EFFECTIVE_GPU_DIALECT))
    assert f"{CONTAINER}.limits[acme.com/vgpu-memory]" in {change.field for change in rendered.changes}


def test_card_that_its_node_calls_broken_gets_no_pods() -> None:
    cluster = a_kin_cluster(HAMI)
    node = cluster.get("Node", "", "node-0")
    assert node is not None
    devices = parse_node_register(node["metadata"]["annotations"]["hami.io/node-nvidia-register"])
    sick = [replace(device, is_healthy=device.card != card_id(1)) for device in devices]
    node["metadata"]["annotations"].update(HAMI.node_annotations(sick))
    with pytest.raises(Refused, match=f"cannot put pods on card {card_id(1)}: its node calls it unhealthy"):
        fields(slice_(), cluster)


def test_card_that_somebody_closed_gets_no_pods() -> None:
    cluster = a_kin_cluster(HAMI)
    node = cluster.get("Node", "", "node-0")
    assert node is not None
    node["metadata"]["annotations"]["hami.io/device-cordon"] = card_id(1)
    with pytest.raises(Refused, match=f"cannot put pods on card {card_id(1)}: hami.io/device-cordon of node node-0"):
        fields(slice_(), cluster)
