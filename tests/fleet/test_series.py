"""Each source's names and labels mean what its source code says, in our units."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet import series
from fleet.schema import CARD_MEASURES, SLICE_MEASURES, Measure
from fleet.series import Subject, resolve

CARD = "GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448"
DCGM = {"gpu": "0", "UUID": CARD, "modelName": "NVIDIA A10", "Hostname": "node-1"}


def test_dcgm_percent_becomes_a_ratio_of_the_card() -> None:
    meaning = resolve("DCGM_FI_DEV_GPU_UTIL", DCGM)
    assert meaning is not None
    assert (meaning.subject, meaning.measure, 50 * meaning.factor) == (Subject.CARD, Measure.DUTY_CYCLE, 0.5)
    assert (meaning.identity.card, meaning.identity.card_model, meaning.identity.node) == (CARD, "NVIDIA A10", "node-1")


def test_dcgm_mebibytes_become_bytes() -> None:
    meaning = resolve("DCGM_FI_DEV_FB_USED", DCGM)
    assert meaning is not None
    assert 3 * meaning.factor == 3 * 2**20


def test_the_small_hostname_of_newer_dcgm_exporters_is_understood() -> None:
    meaning = resolve("DCGM_FI_DEV_GPU_UTIL", {"UUID": CARD, "hostname": "node-2"})
    assert meaning is not None
    assert meaning.identity.node == "node-2"


def test_the_exported_pod_wins_over_the_exporters_own() -> None:
    labels = {
        **DCGM,
        "pod": "dcgm-exporter-x",
        "namespace": "gpu",
        "exported_pod": "svc-1",
        "exported_namespace": "team",
    }
    meaning = resolve("DCGM_FI_PROF_SM_ACTIVE", labels)
    assert meaning is not None
    assert (meaning.subject, meaning.identity.pod, meaning.identity.namespace) == (Subject.CARD, "svc-1", "team")


def test_an_idle_card_is_not_credited_to_the_exporters_own_pod() -> None:
    meaning = resolve("DCGM_FI_PROF_SM_ACTIVE", {**DCGM, "pod": "nvidia-dcgm-exporter-7x", "namespace": "gpu-operator"})
    assert meaning is not None
    assert (meaning.identity.pod, meaning.identity.namespace) == (None, None)


def test_a_copy_of_the_cards_value_per_sharing_pod_is_no_pods_own() -> None:
    meaning = resolve("DCGM_FI_PROF_SM_ACTIVE", {**DCGM, "pod": "svc-1", "namespace": "team", "vgpu": "3"})
    assert meaning is not None
    assert (meaning.subject, meaning.identity.pod) == (Subject.CARD, None)


def test_per_process_series_are_a_slices_own() -> None:
    meaning = resolve("DCGM_FI_DEV_FB_USED", {**DCGM, "pod": "svc-1", "namespace": "team", "vgpu": "3", "pod_uid": "u"})
    assert meaning is not None
    assert (meaning.subject, meaning.identity.pod) == (Subject.SLICE, "svc-1")


def test_engine_active_counts_under_mig_only() -> None:
    mig = {**DCGM, "GPU_I_ID": "3", "GPU_I_PROFILE": "3g.40gb", "pod": "svc-1", "namespace": "team"}
    meaning = resolve("DCGM_FI_PROF_GR_ENGINE_ACTIVE", mig)
    assert meaning is not None
    assert (meaning.subject, meaning.measure, meaning.identity.mig_profile) == (
        Subject.SLICE,
        Measure.DUTY_CYCLE,
        "3g.40gb",
    )
    assert resolve("DCGM_FI_PROF_GR_ENGINE_ACTIVE", DCGM) is None


@pytest.mark.parametrize("prefix", ["gpu_fractioning", "gpu_sharing"])
def test_what_kais_fractioning_measures_is_the_pods_whatever_container_exported_it(prefix: str) -> None:
    labels = {"exported_namespace": "team", "exported_pod": "svc", "namespace": "gpu-fractioning", "pod": "fractiond-1",
              "container": "metricsd", "gpu_uuid": CARD, "gpu": "0"}  # fmt: skip
    found = {name: resolve(f"{prefix}_gpu_{name}", labels) for name in ("memory_used_bytes", "sm_utilization_percent")}
    for (name, meaning), measure in zip(found.items(), (Measure.FRAMEBUFFER_USED, Measure.DUTY_CYCLE), strict=True):
        assert meaning is not None, name
        assert (meaning.subject, meaning.measure) == (Subject.SLICE, measure)
        identity = meaning.identity
        assert (identity.namespace, identity.pod, identity.container, identity.card) == ("team", "svc", None, CARD)
    assert resolve(f"{prefix}_gpu_sm_utilization_percent_normalized", labels) is None
    assert resolve(f"{prefix}_gpu_memory_used_bytes", {**labels, "gpu_uuid": ""}) is None


# As ROCm/device-metrics-exporter writes it on an MI300X (and on a card in CPX mode).
AMD = {"card_model": "102-G30211-0C", "card_series": "AMD Instinct MI300X OAM", "gpu_compute_partition_type": "spx",
       "gpu_id": "2", "gpu_partition_id": "0", "gpu_uuid": "ccff74a1-0000-1000-80e0-c6d49f5b0d86", "hostname": "tw038",
       "namespace": "team", "pod": "train-0", "container": "main", "serial_number": "692409005408"}  # fmt: skip


def test_amds_cards_are_read_as_long_as_they_are_whole() -> None:
    meaning = resolve("gpu_used_vram", AMD)
    assert meaning is not None
    assert (meaning.subject, meaning.measure, meaning.factor) == (Subject.CARD, Measure.FRAMEBUFFER_USED, 2**20)
    identity = meaning.identity
    assert (identity.card, identity.card_model, identity.pod) == (AMD["gpu_uuid"], AMD["card_series"], "train-0")
    assert resolve("gpu_gfx_activity", {**AMD, "gpu_compute_partition_type": "cpx"}) is None
    idle = resolve("gpu_gfx_activity", {**AMD, "pod": "amd-gpu-metrics-exporter-x7k", "namespace": "kube-amd-gpu"})
    assert idle is not None
    assert (idle.measure, idle.identity.pod, idle.identity.namespace) == (Measure.DUTY_CYCLE, None, None)
    capacity = resolve("gpu_total_vram", {key: value for key, value in AMD.items() if key != "gpu_uuid"})
    assert capacity is not None
    assert (capacity.fact, capacity.identity.card) == ("framebuffer_capacity_bytes", AMD["serial_number"])


def test_a_chip_of_ascend_is_nobodys_and_a_containers_use_is_its_own() -> None:
    labels = {"id": "0", "model_name": "910B4", "vdie_id": "1C11-A", "pcie_bus_info": "0000:C1:00.0",
              "namespace": "team", "pod_name": "svc-0", "container_name": "main", "pod": "npu-exporter-x"}  # fmt: skip
    chip, own = resolve("npu_chip_info_hbm_used_memory", labels), resolve("container_npu_utilization", labels)
    assert chip is not None
    assert own is not None
    assert (chip.subject, chip.identity.pod, chip.identity.card) == (Subject.CARD, None, "1C11-A")
    assert (own.subject, own.identity.pod, own.identity.container) == (Subject.SLICE, "svc-0", "main")
    assert (50 * own.factor, chip.factor) == (0.5, 2**20)


def test_a_mig_instance_without_a_tenant_says_nothing_of_the_card() -> None:
    assert resolve("DCGM_FI_DEV_FB_USED", {**DCGM, "GPU_I_ID": "3"}) is None


@pytest.mark.parametrize(
    ("new_name", "old_name", "new_labels", "old_labels"),
    [
        (
            "hami_vgpu_memory_used_bytes",
            "vGPU_device_memory_usage_in_bytes",
            {"namespace": "team", "pod": "svc", "container": "main", "device_uuid": CARD},
            {"podnamespace": "team", "podname": "svc", "ctrname": "main", "deviceuuid": CARD},
        ),
        (
            "hami_container_device_utilization_ratio",
            "Device_utilization_desc_of_container",
            {"namespace": "team", "pod": "svc", "container": "main", "device_uuid": CARD},
            {
                "podnamespace": "team",
                "podname": "svc",
                "ctrname": "main",
                "deviceuuid": CARD,
                "pod": "hami-device-plugin",
            },
        ),
        (
            "hami_host_gpu_utilization_ratio",
            "HostCoreUtilization",
            {"node": "node-1", "device_uuid": CARD, "device_type": "NVIDIA-NVIDIA A10"},
            {"nodeid": "node-1", "deviceuuid": CARD, "devicetype": "NVIDIA-NVIDIA A10"},
        ),
        (
            "hami_vgpu_core_allocated_ratio",
            "vGPUCoreAllocated",
            {"namespace": "team", "node": "node-1", "pod": "svc", "device_uuid": CARD},
            {"podnamespace": "team", "nodename": "node-1", "podname": "svc", "deviceuuid": CARD},
        ),
    ],
)
def test_old_and_new_names_of_hami_mean_the_same(
    new_name: str, old_name: str, new_labels: dict[str, str], old_labels: dict[str, str]
) -> None:
    meaning = resolve(new_name, new_labels)
    assert meaning is not None
    assert meaning == resolve(old_name, old_labels)


def test_hamis_ratio_of_a_container_is_a_percentage_that_may_pass_a_hundred() -> None:
    meaning = resolve("hami_container_device_utilization_ratio", {"pod": "svc", "device_uuid": CARD})
    assert meaning is not None
    assert (meaning.subject, 100 * meaning.factor, meaning.value_max) == (Subject.SLICE, 1.0, 1.0)


def test_the_vendor_is_taken_off_hamis_model() -> None:
    meaning = resolve("HostGPUMemoryUsage", {"deviceuuid": CARD, "devicetype": "NVIDIA-Tesla V100-PCIE-32GB"})
    assert meaning is not None
    assert meaning.identity.card_model == "Tesla V100-PCIE-32GB"


def test_volcano_counts_in_mebibytes() -> None:
    name = "volcano_vgpu_device_memory_allocation_for_a_certain_pod"
    meaning = resolve(name, {"devID": CARD, "NodeName": "node-1", "podName": "svc"})
    assert meaning is not None
    assert (meaning.subject, meaning.fact, meaning.factor) == (Subject.GRANT, "framebuffer_granted_bytes", 2.0**20)


@pytest.mark.parametrize("name", ["vllm:gpu_cache_usage_perc", "vllm:kv_cache_usage_perc"])
def test_vllms_cache_is_a_ratio_already_and_names_no_card(name: str) -> None:
    meaning = resolve(name, {"namespace": "team", "pod": "svc", "model_name": "m"})
    assert meaning is not None
    assert (meaning.subject, meaning.measure, meaning.factor) == (Subject.POD_SERVER, Measure.KV_CACHE_USAGE, 1.0)
    assert meaning.identity.card is None


def test_owners_link_pods_to_what_made_them() -> None:
    meaning = resolve(
        "kube_pod_owner", {"namespace": "team", "pod": "svc-1", "owner_kind": "ReplicaSet", "owner_name": "svc"}
    )
    assert meaning is not None
    assert meaning.owner == series.OwnerLink(kind="Pod", name="svc-1", owner_kind="ReplicaSet", owner_name="svc")
    orphan = {"namespace": "team", "pod": "svc-1", "owner_kind": "<none>", "owner_name": "<none>"}
    for kind, name in (("a/B", "svc"), ("ReplicaSet", "a/b"), ("ReplicaSet", "x" * 254)):
        assert resolve("kube_pod_owner", {**orphan, "owner_kind": kind, "owner_name": name}) is None
    assert resolve("kube_pod_owner", orphan) is None


def test_every_own_series_resolves_to_its_own_measure() -> None:
    labels = {
        "cluster": "c",
        "node": "n",
        "card": CARD,
        "card_model": "NVIDIA A10",
        "namespace": "t",
        "pod": "p",
        "container": "m",
    }
    for column in CARD_MEASURES:
        meaning = resolve(series.card_series(column.measure), labels)
        assert meaning is not None
        assert (meaning.subject, meaning.measure, meaning.factor) == (Subject.CARD, column.measure, 1.0)
    for column in SLICE_MEASURES:
        meaning = resolve(series.slice_series(column.measure), labels)
        assert meaning is not None
        assert (meaning.subject, meaning.measure, meaning.identity.container) == (Subject.SLICE, column.measure, "m")


@pytest.mark.parametrize(
    ("name", "subject"),
    [
        ("gputide_card_info", Subject.CARD_INFO),
        ("gputide_slice_info", Subject.SLICE_INFO),
        ("gputide_node_info", Subject.NODE_INFO),
    ],
)
def test_info_series_are_told_apart(name: str, subject: Subject) -> None:
    meaning = resolve(name, {"node": "n", "card": CARD, "pod": "p"})
    assert meaning is not None
    assert (meaning.subject, meaning.measure) == (subject, None)


@pytest.mark.parametrize("name", ["gputide:card:info", "gputide:slice:info", "gputide:node:info"])
def test_what_a_rule_records_counts_and_what_somebody_lets_be_scraped_under_its_name_does_not(name: str) -> None:
    recorded = {"node": "n", "card": CARD, "namespace": "t", "pod": "p", "card_model": "NVIDIA A10"}
    assert resolve(name, recorded) is not None
    assert resolve(name, {**recorded, "instance": "10.0.0.9:8080", "job": "pods"}) is None


@pytest.mark.parametrize("labels", [{}, {"UUID": ""}, {"gpu": "0"}])
def test_a_card_without_a_uuid_is_nobody(labels: dict[str, str]) -> None:
    assert resolve("DCGM_FI_DEV_GPU_UTIL", labels) is None


@given(st.sampled_from(series.known_names()), st.dictionaries(st.text(max_size=12), st.text(max_size=12), max_size=6))
def test_any_labels_are_answered(name: str, labels: dict[str, str]) -> None:
    meaning = resolve(name, labels)
    assert meaning is None or meaning.subject in Subject


def test_foreign_names_mean_nothing() -> None:
    assert resolve("up", {"UUID": CARD}) is None
