"""One small fleet in the words of each exporter, as promtool's notation and as OpenMetrics with times.

Card A is held by a notebook that does nothing, B is shared by a busy service and a batch job that does not give way and
is nearly full, C belongs to nobody and a program just crashed on it, of D the container claims more than its card does,
and its driver reports XID 79.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from fleet.units import GIB

STEP_SECONDS = 60
MODEL = "NVIDIA A10"
A, B, C, D = "GPU-a", "GPU-b", "GPU-c", "GPU-d"
LATE_STEPS = 3
"""Steps before the end at which values of `Series.late` begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A series that stands still, but for its last steps."""

    name: str
    labels: Mapping[str, str]
    value: float
    late: float | None = None

    @property
    def selector(self) -> str:
        """As PromQL and OpenMetrics write it."""
        quoted = ",".join(f'{key}="{value}"' for key, value in self.labels.items())
        return f"{self.name}{{{quoted}}}"

    def notation(self, steps: int) -> str:
        """As promtool writes it."""
        if self.late is None:
            return f"{self.value!r}x{steps}"
        return f"{self.value!r}x{steps - LATE_STEPS - 1} {self.late!r}x{LATE_STEPS}"

    def lines(self, times: range) -> Iterator[str]:
        """As `promtool tsdb create-blocks-from openmetrics` reads it."""
        for time in times:
            is_late = self.late is not None and time >= times[-LATE_STEPS]
            yield f"{self.selector} {self.late if is_late else self.value} {time}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Card:
    uuid: str
    node: str
    duty: float
    used_gib: float
    free_gib: float
    celsius: float
    xid: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Slice:
    namespace: str
    pod: str
    workload: str
    card: str
    node: str
    duty: float
    used_gib: float
    granted_gib: float
    priority: str = ""


CARDS = (
    _Card(uuid=A, node="node-1", duty=0.0, used_gib=20, free_gib=4, celsius=90),
    _Card(uuid=B, node="node-1", duty=0.9, used_gib=23.8, free_gib=0.2, celsius=60),
    _Card(uuid=C, node="node-2", duty=0.0, used_gib=0, free_gib=24, celsius=30, xid=13),
    _Card(uuid=D, node="node-2", duty=0.1, used_gib=6, free_gib=18, celsius=40, xid=79),
)
NOTEBOOK = _Slice(
    namespace="research", pod="nb-0", workload="nb", card=A, node="node-1", duty=0.0, used_gib=20, granted_gib=24
)
SLICES = (
    _Slice(
        namespace="chat", pod="chat-7f9c4d5b6f-x2x4z", workload="chat", card=B, node="node-1", duty=0.6, used_gib=15,
        granted_gib=16, priority="high",
    ),
    _Slice(
        namespace="batch", pod="etl-0", workload="etl", card=B, node="node-1", duty=0.3, used_gib=8, granted_gib=8,
        priority="low",
    ),
    _Slice(
        namespace="ads", pod="rank-0", workload="rank", card=D, node="node-2", duty=0.8, used_gib=5, granted_gib=12
    ),
)  # fmt: skip


def gputide_words() -> tuple[Series, ...]:
    """By gputide's own exporters."""
    return (*_own_cards(), *_own_slices())


def dcgm_and_hami_words() -> tuple[Series, ...]:
    """By dcgm-exporter, HAMi from v2.9 on and kube-state-metrics."""
    return (*_dcgm(), *_owners(), *_hami())


def dcgm_and_old_hami_words() -> tuple[Series, ...]:
    """By dcgm-exporter, HAMi before v2.9 and kube-state-metrics."""
    return (*_dcgm(), *_owners(), *_old_hami())


def other_words() -> Iterator[Series]:
    """A card of which dcgm-exporter alone speaks, and who holds it."""
    labels = {"cluster": "c1", "UUID": "GPU-e", "Hostname": "node-3", "modelName": MODEL}
    pod = {"exported_namespace": "research", "exported_pod": "nb-1", "exported_container": "main"}
    for name, value in (("GPU_UTIL", 50.0), ("FB_USED", 4096.0), ("FB_FREE", 20_480.0)):
        yield Series(name=f"DCGM_FI_DEV_{name}", labels={**labels, **pod}, value=value)


def server_words() -> Iterator[Series]:
    """What the busy service's inference server, vLLM, says of its requests, and another's, TGI, of its cache."""
    chat = {"cluster": "c1", "namespace": "chat", "pod": SLICES[0].pod, "model_name": "llama"}
    for name, labels in (
        ("request_success_total", {"finished_reason": "stop"}),
        ("prompt_tokens_total", {}),
        ("generation_tokens_total", {}),
        *(
            (f"{histogram}_seconds_bucket", {"le": end})
            for histogram in ("e2e_request_latency", "time_to_first_token", "inter_token_latency")
            for end in ("1.0", "+Inf")
        ),
    ):
        yield Series(name=f"vllm:{name}", labels={**chat, **labels}, value=0, late=500)
    yield Series(name="vllm:num_requests_running", labels=chat, value=3)
    rank = {"cluster": "c1", "namespace": "ads", "pod": SLICES[2].pod}
    yield Series(name="tgi_batch_current_max_tokens", labels=rank, value=1000)
    yield Series(name="tgi_batch_max_total_tokens", labels=rank, value=4000)


PASSES = (
    ("rollup", "step"), ("bridge", "poll"), ("agent", "look"), ("relief", "look"), ("tide", "step"), ("notify", "look"),
)  # fmt: skip
"""Processes that do one thing again and again, and what each calls a time of it."""


def own_processes() -> tuple[Series, ...]:
    """What gputide's processes and Prometheus itself show, with all that there is an alert for."""
    receiver = {"instance": "receiver:9090"}
    refused = [
        Series(name=f"gputide_receiver_refused_{reason}_total", labels=receiver, value=0, late=50)
        for reason in ("full", "unavailable", "rate", "busy")
    ]
    prometheus = {"instance": "prometheus:9090"}
    sent = {**prometheus, "remote_name": "gputide", "url": "http://receiver:9090/api/v1/write"}
    return (
        *refused,
        Series(name="gputide_receiver_corrupt_bodies_total", labels=receiver, value=0, late=50),
        Series(name="gputide_receiver_samples_total", labels=receiver, value=100),
        Series(name="gputide_receiver_requests_total", labels={**receiver, "code": "204"}, value=100),
        Series(name="gputide_receiver_request_seconds_bucket", labels={**receiver, "le": "0.1"}, value=9, late=90),
        Series(name="gputide_receiver_request_seconds_bucket", labels={**receiver, "le": "+Inf"}, value=10, late=100),
        *(
            Series(name=f"gputide_{process}_last_success_timestamp_seconds", labels={"instance": process}, value=0)
            for process in ("rollup", "bridge", "agent", "relief", "tide", "notify")
        ),
        *(
            Series(name=f"gputide_{process}_{name}", labels={"instance": process, **more}, value=0, late=late)
            for process, one in PASSES
            for name, more, late in (
                (f"{one}_failures_total", {"error": "Unavailable"}, 50),
                (f"{one}_seconds_bucket", {"le": "0.1"}, 90),
                (f"{one}_seconds_bucket", {"le": "+Inf"}, 100),
            )
        ),
        *(
            Series(name=f"gputide_{process}_api_requests_total", labels={"instance": process}, value=0, late=50)
            for process in ("agent", "admission", "relief", "tide")
        ),
        Series(
            name="gputide_admission_reviews_total",
            labels={"instance": "admission", "result": "unpinned"},
            value=0,
            late=50,
        ),
        Series(name="gputide_exporter_data_age_seconds", labels={"instance": "node-1:9400"}, value=300),
        Series(
            name="gputide_node_source_age_seconds",
            labels={"cluster": "", "node": "node-1", "source": "kubelet"},
            value=90,
        ),
        Series(name="prometheus_remote_storage_highest_timestamp_in_seconds", labels=prometheus, value=10_000),
        Series(name="prometheus_remote_storage_queue_highest_sent_timestamp_seconds", labels=sent, value=1_000),
    )


def savings_words() -> tuple[Series, ...]:
    """What `gputide run export savings` tells of a plan that harms, one that waits, and a warehouse that is behind."""
    one, two = {"cluster": "c1", "plan_id": "p1"}, {"cluster": "c1", "plan_id": "p2"}
    rank = {"cluster": "c1", "namespace": "ads", "workload": "rank", "workload_kind": "Deployment"}
    found = [
        Series(name="gputide_plan_info", labels={**one, "state": "applied"}, value=1),
        Series(name="gputide_plan_cards_promised", labels=one, value=10),
        Series(name="gputide_plan_cards_expected", labels=one, value=6),
        Series(name="gputide_plan_cards_realised", labels=one, value=4),
        Series(name="gputide_plan_violation_ratio_predicted", labels=one, value=0.001),
        Series(name="gputide_plan_violation_ratio", labels=one, value=0.02),
        Series(name="gputide_plan_services_over_harm_budget", labels=one, value=3),
        Series(name="gputide_plan_info", labels={**two, "state": "waiting"}, value=1),
        Series(name="gputide_plan_cards_promised", labels=two, value=10),
        Series(name="gputide_warehouse_data_age_seconds", labels={"cluster": "c1"}, value=5000),
        Series(name="gputide_warehouse_coverage_ratio", labels={"cluster": "c1"}, value=0.97),
        Series(name="gputide_cluster_silent_since_timestamp_seconds", labels={"cluster": "c2"}, value=1000),
        Series(
            name="gputide_week_card_hours",
            labels={"cluster": "c1", "namespace": "team-a", "measure": "idle"},
            value=900,
        ),
        Series(
            name="gputide_week_card_hours_cost",
            labels={"cluster": "c1", "namespace": "team-a", "measure": "idle", "currency": "USD"},
            value=900,
        ),
        Series(name="gputide_workload_cards", labels={**rank, "state": "busy"}, value=1),
        Series(name="gputide_workload_off_peak_limit_ratio", labels=rank, value=0.1),
    ]
    for step in ("found", "accepted", "applied", "verified", "realised"):
        labels = {"cluster": "c1", "step": step}
        found.append(Series(name="gputide_savings_cards", labels=labels, value=4))
        found.append(Series(name="gputide_savings_per_week", labels={**labels, "currency": "USD"}, value=90))
    return tuple(found)


def _own_cards() -> Iterator[Series]:
    for card in CARDS:
        labels = {"cluster": "c1", "node": card.node, "card": card.uuid, "card_model": MODEL}
        for measure, value in (
            ("duty_cycle_ratio", card.duty),
            ("sm_active_ratio", card.duty / 2),
            ("encoder_ratio", 0),
            ("decoder_ratio", 0),
            ("framebuffer_used_bytes", card.used_gib * GIB),
            ("framebuffer_capacity_bytes", (card.used_gib + card.free_gib) * GIB),
            ("power_watts", 60),
            ("temperature_celsius", card.celsius),
        ):
            yield Series(name=f"gputide_card_{measure}", labels=labels, value=value)
        yield Series(name="gputide_card_last_xid", labels=labels, value=0, late=card.xid)
        yield Series(name="gputide_card_xid_events_total", labels=labels, value=0, late=float(card.xid > 0))


def _own_slices() -> Iterator[Series]:
    for one in (NOTEBOOK, *SLICES):
        labels = {
            "cluster": "c1", "namespace": one.namespace, "pod": one.pod, "container": "main", "node": one.node,
            "card": one.card, "card_model": MODEL,
        }  # fmt: skip
        yield Series(name="gputide_slice_duty_cycle_ratio", labels=labels, value=one.duty)
        yield Series(name="gputide_slice_sm_active_ratio", labels=labels, value=one.duty / 2)
        yield Series(name="gputide_slice_framebuffer_used_bytes", labels=labels, value=one.used_gib * GIB)
        yield Series(name="gputide_slice_framebuffer_granted_bytes", labels=labels, value=one.granted_gib * GIB)
        yield Series(name="gputide_slice_compute_granted_ratio", labels=labels, value=0.5)
        yield Series(name="gputide_slice_request_rate_per_second", labels=labels, value=3)
        yield Series(name="gputide_slice_kv_cache_usage_ratio", labels=labels, value=0.5)
        quota = {"cluster": "c1", "namespace": one.namespace, "quota": "gpu", "resource": "nvidia.com/gpu"}
        yield Series(name="gputide_quota_limit", labels=quota, value=8)
        yield Series(name="gputide_quota_used", labels=quota, value=1)
        told = {"workload": one.workload, "workload_kind": "Deployment", "priority": one.priority or "normal"}
        yield Series(name="gputide_slice_info", labels={**labels, **told}, value=1)


def _dcgm() -> Iterator[Series]:
    for card in CARDS:
        labels = {"UUID": card.uuid, "Hostname": card.node, "modelName": MODEL, "gpu": "0"}
        if card.uuid == NOTEBOOK.card:
            labels |= {"exported_namespace": "research", "exported_pod": "nb-0", "exported_container": "main"}
        # What the scrape adds of the exporter itself.
        labels |= {"namespace": "gpu-operator", "pod": "nvidia-dcgm-exporter-abc12", "container": "exporter"}
        yield Series(name="DCGM_FI_DEV_GPU_UTIL", labels=labels, value=card.duty * 100)
        yield Series(name="DCGM_FI_DEV_ENC_UTIL", labels=labels, value=0)
        yield Series(name="DCGM_FI_DEV_DEC_UTIL", labels=labels, value=0)
        yield Series(name="DCGM_FI_PROF_SM_ACTIVE", labels=labels, value=card.duty / 2)
        yield Series(name="DCGM_FI_DEV_FB_USED", labels=labels, value=card.used_gib * 1024)
        yield Series(name="DCGM_FI_DEV_FB_FREE", labels=labels, value=card.free_gib * 1024)
        yield Series(name="DCGM_FI_DEV_POWER_USAGE", labels=labels, value=60)
        yield Series(name="DCGM_FI_DEV_GPU_TEMP", labels=labels, value=card.celsius)
        yield Series(name="DCGM_FI_DEV_XID_ERRORS", labels=labels, value=0, late=card.xid)


def _owners() -> Iterator[Series]:
    for one in (NOTEBOOK, *SLICES):
        set_name, _, tail = one.pod.rpartition("-")
        kind = "ReplicaSet" if len(tail) == len("x2x4z") else "StatefulSet"
        labels = {"namespace": one.namespace, "pod": one.pod}
        owner = {"owner_kind": kind, "owner_name": set_name}
        yield Series(name="kube_pod_owner", labels={**labels, **owner}, value=1)
        klass = {"high": "online-high", "low": "batch-preemptible"}.get(one.priority, "default")
        yield Series(name="kube_pod_info", labels={**labels, "priority_class": klass}, value=1)
    quota = {"namespace": "ads", "resourcequota": "gpu", "resource": "requests.nvidia.com/gpu"}
    yield Series(name="kube_resourcequota", labels={**quota, "type": "hard"}, value=8)
    yield Series(name="kube_resourcequota", labels={**quota, "type": "used"}, value=1)


def _hami() -> Iterator[Series]:
    for one in SLICES:
        labels = {
            "device_uuid": one.card, "device_type": f"NVIDIA-{MODEL}", "node": one.node,
            "exported_namespace": one.namespace, "exported_pod": one.pod, "exported_container": "main",
            "namespace": "kube-system", "pod": "hami-device-plugin-1", "container": "monitor",
        }  # fmt: skip
        yield Series(name="hami_vgpu_memory_used_bytes", labels=labels, value=one.used_gib * GIB)
        yield Series(name="hami_vgpu_memory_limit_bytes", labels=labels, value=one.granted_gib * GIB)
        yield Series(name="hami_container_device_utilization_ratio", labels=labels, value=one.duty * 100)


def _old_hami() -> Iterator[Series]:
    for one in SLICES:
        labels = {
            "deviceuuid": one.card, "nodeid": one.node, "podnamespace": one.namespace, "podname": one.pod,
            "ctrname": "main", "vdeviceid": "0", "zone": "vGPU",
        }  # fmt: skip
        yield Series(name="vGPU_device_memory_usage_in_bytes", labels=labels, value=one.used_gib * GIB)
        yield Series(name="vGPU_device_memory_limit_in_bytes", labels=labels, value=one.granted_gib * GIB)
        yield Series(name="Device_utilization_desc_of_container", labels=labels, value=one.duty * 100)
