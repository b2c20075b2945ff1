"""Usual installations are believed, whatever Prometheus calls their targets; a tenant's pod speaks for itself alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.forged_series import WAYS, scraped
from fleet.provenance import Provenance, Stranger
from fleet.settings.provenance import ProvenanceSettings

CARD = {"UUID": "GPU-1", "modelName": "NVIDIA A10"}
TENANT = {"namespace": "team", "pod": "train-0", "container": "main"}
DCGM = "DCGM_FI_DEV_GPU_UTIL"
EXPORTER = {"namespace": "gpu-operator", "pod": "nvidia-dcgm-exporter-x", "container": "exporter"}
MONITOR = {**EXPORTER, "endpoint": "gpu-metrics", "job": "nvidia-dcgm-exporter", "instance": "10.0.0.7:9400"}
STATE = {"endpoint": "http", "job": "kube-state-metrics", "instance": "10.0.0.9:8080"}
HONEST = {
    "dcgm-exporter by a ServiceMonitor": (DCGM, scraped({**CARD, **TENANT}, MONITOR)),
    "its card that nobody holds": (DCGM, {**CARD, **MONITOR}),
    "with honorLabels": (DCGM, {**MONITOR, **CARD, **TENANT}),
    "with pod_name": (DCGM, {**MONITOR, **CARD, "pod_name": "train-0", "pod_namespace": "team"}),
    "by its address": (DCGM, {**CARD, **TENANT, "job": "dcgm", "instance": "node-1:9400"}),
    "by its address, without a pod": (DCGM, {**CARD, "job": "my gpus", "instance": "node-1:9400"}),
    "without job and instance": (DCGM, {**CARD, **TENANT}),
    "as older examples relabel": (
        DCGM, {**CARD, **TENANT, "kubernetes_namespace": "gpu-operator", "job": "gpu-metrics"},
    ),
    "with copies of what was renamed": (
        DCGM, {**CARD, **TENANT, "exported_namespace": "team", "exported_pod": "train-0", "job": "dcgm-exporter"},
    ),
    "Grafana's agents": (DCGM, {**CARD, **TENANT, "job": "integrations/dcgm-exporter", "instance": "n1"}),
    "a ScrapeConfig": (DCGM, {**CARD, **TENANT, "job": "scrapeConfig/monitoring/cards", "instance": "n1:9400"}),
    "OpenShift": (DCGM, scraped({**CARD, **TENANT}, {**MONITOR, "namespace": "nvidia-gpu-operator"})),
    "GKE": (DCGM, scraped({**CARD, **TENANT}, {**MONITOR, "namespace": "gke-managed-system", "job": "dcgm"})),
    "kube-state-metrics": ("kube_pod_owner", {**STATE, **TENANT}),
    "its ReplicaSets": ("kube_replicaset_owner", {**STATE, "namespace": "team", "replicaset": "train"}),
    "its nodes": ("kube_node_status_allocatable", {**STATE, "namespace": "monitoring", "pod": "ksm-0", "node": "n1"}),
    "HAMi": ("vGPU_device_memory_usage_in_bytes", {"podnamespace": "team", "podname": "a", "namespace": "kube-system"}),
    "Volcano": ("volcano_vgpu_device_memory_limit", {"podName": "a", "namespace": "volcano-system"}),
    "our own by the chart": ("gputide_slice_info", {**TENANT, "job": "gputide/gputide-exporter", "instance": "i"}),
    "our own by a rule": ("gputide:slice:info", {**TENANT, "prometheus": "monitoring/k8s"}),
    "a tenant's server": ("vllm:kv_cache_usage_perc", {**TENANT, "job": "servers", "instance": "10.0.0.1:8000"}),
    "a server that claims another pod": ("vllm:kv_cache_usage_perc", {**TENANT, "exported_pod": "b", "job": "servers"}),
}  # fmt: skip


@pytest.mark.parametrize("install", HONEST)
def test_usual_installation_is_believed(install: str) -> None:
    name, labels = HONEST[install]
    assert Provenance().stranger(name, labels) is None


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("name", "exposed"),
    [
        (DCGM, {**CARD, **TENANT}),
        (DCGM, {**CARD, "exported_namespace": "team", "exported_pod": "train-0"}),
        (DCGM, {**CARD, "pod_name": "train-0", "pod_namespace": "team"}),
        (DCGM, {**CARD, **EXPORTER}),
        ("hami_vgpu_memory_used_bytes", {"device_uuid": "GPU-1", **TENANT}),
        ("vGPU_device_memory_usage_in_bytes", {"deviceuuid": "GPU-1", "podnamespace": "team", "podname": "train-0"}),
        ("volcano_vgpu_device_core_allocation_for_a_certain_pod", {"devID": "GPU-1", "podName": "train-0"}),
        ("gputide_slice_info", {"card": "GPU-1", **TENANT}),
        ("gputide_slice_info", {"card": "GPU-1", **TENANT, "job": "gputide/gputide-exporter"}),
        ("gputide_slice_info", {"card": "GPU-1", **TENANT, "kubernetes_namespace": "gputide"}),
        ("kube_pod_labels", TENANT),
        ("kube_pod_owner", {**TENANT, "owner_kind": "Job", "owner_name": "x"}),
    ],
)
def test_tenants_pod_speaks_for_no_other(way: str, name: str, exposed: dict[str, str]) -> None:
    stored = scraped(exposed, WAYS[way])
    found = Provenance().stranger(name, stored)
    assert found is not None
    assert (found.namespace, found.job) == ("intruders", WAYS[way]["job"])


@pytest.mark.parametrize("way", WAYS)
def test_tenants_pod_says_nothing_of_cards_and_nodes_in_its_own_name_either(way: str) -> None:
    for name in ("kube_node_status_allocatable", "gputide_card_info", "gputide_node_info", "HostCoreUtilization"):
        assert Provenance().stranger(name, scraped({"node": "n1", "card": "GPU-1"}, WAYS[way])) is not None
    if way != "Service called as an exporter":
        assert Provenance().stranger(DCGM, scraped(CARD, WAYS[way])) is not None


def test_job_that_a_tenant_may_name_is_told_by_where_its_target_is() -> None:
    """Where `up` is known, the name of a job counts for nothing."""
    way = WAYS["Service called as an exporter"]
    lie, honest = {**CARD, **way}, {**TENANT, **STATE, "job": way["job"], "instance": way["instance"]}
    target = (way["job"], way["instance"])
    assert Provenance().stranger(DCGM, lie) is None
    assert Provenance().stranger(DCGM, lie, {target: frozenset({"intruders"})}) == Stranger("intruders", way["job"])
    # One who gives its target the job and address of an exporter takes the word from nobody but its own namespace.
    both = {target: frozenset({"intruders", "monitoring"})}
    assert Provenance().stranger(DCGM, lie, both) == Stranger("intruders", way["job"])
    assert Provenance().stranger("kube_pod_owner", honest, both) is None
    by_address = {("my gpus", "node-1:9400"): frozenset({""})}
    assert (
        Provenance().stranger(DCGM, {**CARD, **TENANT, "job": "my gpus", "instance": "node-1:9400"}, by_address) is None
    )


def test_exporter_that_is_not_trusted_is_named_and_not_those_of_whom_it_speaks() -> None:
    target = (STATE["job"], STATE["instance"])
    found = Provenance().stranger("kube_pod_owner", {**STATE, **TENANT}, {target: frozenset({"metrics"})})
    assert found == Stranger("metrics", STATE["job"])


def test_federated_series_are_believed_by_where_the_federating_server_found_them() -> None:
    labels = {**CARD, **TENANT, "job": "federate", "instance": "origin:9090", "exported_job": "dcgm-exporter"}
    origin = ("federate", "origin:9090")
    assert Provenance().stranger(DCGM, labels) == Stranger("team", "federate")
    assert Provenance().stranger(DCGM, labels, {origin: frozenset({""})}) is None
    # The origin's own `up` of tenants' targets comes with it, and names the namespaces that speak for themselves.
    lie = {**labels, "namespace": "intruders", "pod": "web-0"}
    assert Provenance().stranger(DCGM, lie, {origin: frozenset({"", "intruders"})}) == Stranger("intruders", "federate")


def test_tenant_whose_node_and_card_series_have_no_pod_is_not_believed_by_its_jobs_name() -> None:
    way = WAYS["Service called as an exporter"]
    without_pod = {key: value for key, value in way.items() if key != "pod"}
    for name, labels in (
        (DCGM, {**CARD, **without_pod}),
        ("kube_node_status_allocatable", {"node": "n1", **without_pod}),
    ):
        assert Provenance().stranger(name, labels) == Stranger("intruders", way["job"])


def test_server_of_an_old_job_speaks_for_the_pod_that_was_scraped() -> None:
    name, old = "vllm:kv_cache_usage_perc", WAYS["old annotations"]
    assert Provenance().stranger(name, {**TENANT, **old}) == Stranger("intruders", "kubernetes-pods")
    assert Provenance().stranger(name, {"namespace": "intruders", "pod": "web-0", **old}) is None


def test_settings_name_who_is_trusted() -> None:
    rule = ProvenanceSettings(namespaces=("infra-*",), jobs=(), own_namespaces=("here",)).rule
    for namespace, is_trusted in (("infra-gpu", True), ("here", True), ("gpu-operator", False), ("xinfra-gpu", False)):
        assert (rule.stranger(DCGM, {**CARD, "namespace": namespace}) is None) is is_trusted
    assert rule.stranger(DCGM, {**CARD, **TENANT, "job": "dcgm", "instance": "n1:9400"}) == Stranger("team", "dcgm")


@given(st.dictionaries(st.sampled_from(["namespace", "job", "pod", "instance"]), st.text(max_size=6)))
def test_any_text_is_judged(labels: dict[str, str]) -> None:
    found = Provenance().stranger(DCGM, labels)
    assert found is None or labels["namespace"]
