"""What inference servers say of themselves in their own metrics: which names count, and what their labels hold.

`fleet.series` makes aliases of them. Requests, tokens and latencies are counters and histograms, of which whoever keeps
samples makes rates: Prometheus by the recording rules of `dashboards.grafana.normalised`, or for a scan. Standard
library only: the node exporter's process loads this module.

Sources: vllm-project/vllm:vllm/engine/metrics.py and vllm/v1/metrics/loggers.py (`cache_config_info` has every field of
vllm/config/cache.py as Python's text), sgl-project/sglang:python/sglang/srt/metrics/collector.py and
srt/mem_cache/memory_pool.py (its GB are 2^30), NVIDIA/TensorRT-LLM:tensorrt_llm/metrics/collector.py,
InternLM/lmdeploy:lmdeploy/metrics, huggingface/text-generation-inference:router/src/server.rs,
triton-inference-server/server:docs/user_guide/metrics.md, triton-inference-server/tensorrtllm_backend:README.md,
ggml-org/llama.cpp:tools/server/README.md, docs.nvidia.com/nim/large-language-models (observability of 1.x),
ai-dynamo/dynamo:lib/runtime/src/metrics/prometheus_names.rs, ray-project/ray:python/ray/serve/_private/replica.py,
istio/istio.io:content/en/docs/reference/config/metrics, envoyproxy/envoy:docs (cluster manager statistics); ray-project
and opendatahub-io write vLLM's names behind prefixes of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from types import MappingProxyType

from fleet.schema import Measure
from fleet.servers import server_of_metric


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """What one series of an inference server says of it, as texts of `fleet.schema.SERVER_LABELS`; empty for nothing.

    Attributes:
        model: name of the model that it serves, as whoever started it chose.
        cache_dtype: type of the KV cache's values, `auto` for the model's own.
        pool_blocks: blocks of its KV cache, those of all its cards.
        pool_bytes: bytes of its KV cache on each of its cards.
    """

    server: str
    model: str = ""
    cache_dtype: str = ""
    pool_blocks: str = ""
    block_tokens: str = ""
    pool_bytes: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerMetric:
    """What a metric of a server means.

    Attributes:
        measure: the measure; None where the series says a fact.
        fact: field of `ServerFacts` that the value gives; None where labels say all.
        factor: what a value is multiplied by to be in the unit of the fact.
        fact_label: label by whose value the series gives one of `facts`, in the place of `fact`.
        facts: values of `fact_label`, and the field of `ServerFacts` that each gives.
        block_tokens: tokens of a block, where the metric counts tokens itself.
        never: labels with which the series speaks of a part whose siblings are not known.
    """

    measure: Measure | None = None
    fact: str | None = None
    factor: float = 1.0
    fact_label: str | None = None
    facts: tuple[tuple[str, str], ...] = ()
    block_tokens: str = ""
    never: tuple[str, ...] = ()

    def fact_of(self, labels: Mapping[str, str]) -> str | None:
        """The field of `ServerFacts` that the value of a series gives; None where it gives none."""
        if any(labels.get(label) for label in self.never):
            return None
        return self.fact if self.fact_label is None else dict(self.facts).get(labels.get(self.fact_label, ""))


_USAGE = ServerMetric(measure=Measure.KV_CACHE_USAGE)
_METRICS: Mapping[str, ServerMetric] = MappingProxyType(
    {
        # vLLM, by itself, behind Open Data Hub's PodMonitor and behind Ray's agent: the name says perc, the value is
        # 0-1; renamed with the V1 engine. The number of requests is asked for the model's name beside it.
        **{
            f"{prefix}{name}": metric
            for prefix in ("vllm:", "kserve_vllm:", "ray_vllm_")
            for name, metric in (
                ("gpu_cache_usage_perc", _USAGE),
                ("kv_cache_usage_perc", _USAGE),
                ("cache_config_info", ServerMetric()),
                ("num_requests_running", ServerMetric()),
            )
        },
        "sglang:token_usage": _USAGE,
        "sglang:kv_cache_memory_usage_gb": ServerMetric(fact="pool_bytes", factor=float(2**30)),
        # Each group of data parallelism has a cache of its own, and how many there are no series says.
        "sglang:max_total_num_tokens": ServerMetric(fact="pool_blocks", block_tokens="1", never=("dp_rank",)),
        **{
            f"{prefix}{name}": metric
            for prefix in ("trtllm_", "trtllm:")
            for name, metric in (
                ("kv_cache_utilization", _USAGE),
                ("kv_cache_max_blocks", ServerMetric(fact="pool_blocks")),
                ("kv_cache_tokens_per_block", ServerMetric(fact="block_tokens")),
                ("kv_cache_config_info", ServerMetric()),
            )
        },
        "nv_trt_llm_kv_cache_block_metrics": ServerMetric(
            fact_label="kv_cache_block_type", facts=(("max", "pool_blocks"), ("tokens_per", "block_tokens"))
        ),
        "tgi_batch_max_total_tokens": ServerMetric(fact="pool_blocks", block_tokens="1"),
        "lmdeploy:gpu_cache_usage_perc": _USAGE,
        "lmdeploy:num_requests_running": ServerMetric(),
        # By these a pod's server is known, and nothing else.
        "nv_inference_request_success": ServerMetric(),
        "llamacpp:requests_processing": ServerMetric(),
        "dynamo_component_inflight_requests": ServerMetric(),
        "ray_serve_replica_processing_queries": ServerMetric(),
    }
)
SERVER_METRICS: Mapping[str, ServerMetric] = MappingProxyType(
    {**_METRICS, **{name.replace(":", "_"): metric for name, metric in _METRICS.items()}}
)
"""Every metric of a server, also as pipelines of OpenTelemetry write it that keep no colon in a name."""
_LABELS = {
    "model": "model_name",
    "cache_dtype": "cache_dtype",
    "pool_blocks": "num_gpu_blocks",
    "block_tokens": "block_size",
}
_FIXED = ("kv_cache_memory_bytes", "num_gpu_blocks_override")
"""Sizes that somebody set: they don't shrink with the slice, and in a smaller one the server would not start.

Of those that its pod's command shows, and a plan so can change, the grant says the size (`fleet.server_arguments`).
"""


class Form(Enum):
    """How a metric of a server gives a measure."""

    COUNTER = auto()
    """By how much it grows a second."""
    HISTOGRAM = auto()
    """By its buckets: their 99th percentile."""
    GAUGE = auto()
    """By its value."""
    QUANTILE = auto()
    """By its value; quantiles can't be added, so the largest counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerReading:
    """Where one server gives one measure.

    Attributes:
        matchers: label matchers that choose its series.
        summed: labels of the server's own whose series are parts of a whole.
        repeated: labels of the server's own whose series repeat one value.
        factor: what its value is multiplied by to be in the unit of the measure.
        share_of: what the value is a part of, where the measure is a share.
        image: images whose pods alone it counts for, a pattern: a name that anything may have.
    """

    name: str
    form: Form
    matchers: tuple[str, ...] = ()
    summed: tuple[str, ...] = ()
    repeated: tuple[str, ...] = ()
    factor: float = 1.0
    share_of: ServerReading | None = None
    image: str | None = None


_VLLM_PARTS = ("ReplicaId", "WorkerId", "engine", "finished_reason", "model_name")
_LMDEPLOY_PARTS = ("engine", "finished_reason", "model_name")
_TRTLLM_PARTS = ("engine_type", "finished_reason", "model_name")
_DYNAMO_PARTS = ("dp_rank", "dynamo_component", "dynamo_endpoint", "dynamo_namespace", "model", "worker_id")
_RAY_PARTS = ("WorkerId", "replica", "route")
_NIM_IMAGES = "(.*/)?nim/.*"
_SGLANG_PARTS = ("dp_rank", "engine_type", "is_streaming", "model_name")
_SGLANG_RANKS = ("moe_ep_rank", "pp_rank", "tp_rank")
_ISTIO_PARTS = (
    "connection_security_policy", "destination_app", "destination_canonical_revision",
    "destination_canonical_service", "destination_cluster", "destination_principal", "destination_service",
    "destination_service_name", "destination_service_namespace", "destination_version", "destination_workload",
    "destination_workload_namespace", "grpc_response_status", "reporter", "request_protocol", "response_code",
    "response_flags", "source_app", "source_canonical_revision", "source_canonical_service", "source_cluster",
    "source_principal", "source_version", "source_workload", "source_workload_namespace",
)  # fmt: skip


def _alike(form: Form, name: str) -> tuple[ServerReading, ...]:
    """A metric that vLLM and those who took over its names have."""
    return (
        *(
            ServerReading(name=f"{prefix}{name}", form=form, summed=_VLLM_PARTS)
            for prefix in ("vllm:", "kserve_vllm:", "ray_vllm_")
        ),
        *(ServerReading(name=f"{prefix}{name}", form=form, summed=_TRTLLM_PARTS) for prefix in ("trtllm_", "trtllm:")),
        ServerReading(name=f"lmdeploy:{name}", form=form, summed=_LMDEPLOY_PARTS),
    )


def _nim(form: Form, name: str) -> ServerReading:
    # NIM 1.x writes vLLM's first names without a prefix.
    return ServerReading(name=name, form=form, summed=_VLLM_PARTS, image=_NIM_IMAGES)


def _dynamo(form: Form, name: str) -> ServerReading:
    # A worker's other endpoints answer questions about itself.
    name = f"dynamo_component_{name}"
    return ServerReading(name=name, form=form, matchers=('dynamo_endpoint="generate"',), summed=_DYNAMO_PARTS)


def _ray(form: Form, name: str, factor: float = 1.0) -> ServerReading:
    # A request passes through several deployments of an application: of these the largest counts.
    return ServerReading(name=f"ray_serve_{name}", form=form, summed=_RAY_PARTS, factor=factor)


def _sglang(form: Form, name: str) -> ServerReading:
    # With priorities each request counts for its own and, under the empty one, for all; the ranks of one group of
    # cards repeat its figures, and groups (dp_rank) are parts.
    return ServerReading(
        name=f"sglang:{name}", form=form, matchers=('priority=""',), summed=_SGLANG_PARTS, repeated=_SGLANG_RANKS
    )


def _triton(form: Form, name: str, *matchers: str, factor: float = 1.0) -> ServerReading:
    # An ensemble counts each request once more for each model that is a step of it: of models the largest counts.
    return ServerReading(name=name, form=form, matchers=matchers, summed=("version",), factor=factor)


SERVER_READINGS: Mapping[Measure, tuple[ServerReading, ...]] = MappingProxyType(
    {
        Measure.REQUEST_RATE: (
            *_alike(Form.COUNTER, "request_success_total"),
            _sglang(Form.COUNTER, "num_requests_total"),
            ServerReading(name="tgi_request_success", form=Form.COUNTER),
            _triton(Form.COUNTER, "nv_inference_request_success"),
            _nim(Form.COUNTER, "request_finish_total"),
            _dynamo(Form.COUNTER, "requests_total"),
            _ray(Form.COUNTER, "deployment_request_counter_total"),
        ),
        Measure.PROMPT_TOKEN_RATE: (
            *_alike(Form.COUNTER, "prompt_tokens_total"),
            _sglang(Form.COUNTER, "prompt_tokens_total"),
            ServerReading(name="tgi_request_input_length_sum", form=Form.COUNTER),
            ServerReading(name="llamacpp:prompt_tokens_total", form=Form.COUNTER),
            _nim(Form.COUNTER, "prompt_tokens_total"),
        ),
        Measure.GENERATED_TOKEN_RATE: (
            *_alike(Form.COUNTER, "generation_tokens_total"),
            _sglang(Form.COUNTER, "generation_tokens_total"),
            ServerReading(name="tgi_request_generated_tokens_sum", form=Form.COUNTER),
            ServerReading(name="llamacpp:tokens_predicted_total", form=Form.COUNTER),
            _nim(Form.COUNTER, "generation_tokens_total"),
        ),
        Measure.LATENCY_P99: (
            *_alike(Form.HISTOGRAM, "e2e_request_latency_seconds_bucket"),
            _sglang(Form.HISTOGRAM, "e2e_request_latency_seconds_bucket"),
            ServerReading(name="tgi_request_duration_bucket", form=Form.HISTOGRAM),
            _triton(Form.QUANTILE, "nv_inference_request_summary_us", 'quantile="0.99"', factor=1e-6),
            _nim(Form.HISTOGRAM, "e2e_request_latency_seconds_bucket"),
            _dynamo(Form.HISTOGRAM, "request_duration_seconds_bucket"),
            _ray(Form.HISTOGRAM, "deployment_processing_latency_ms_bucket", 1e-3),
        ),
        Measure.REQUESTS_RUNNING: (
            *_alike(Form.GAUGE, "num_requests_running"),
            _sglang(Form.GAUGE, "num_running_reqs"),
            ServerReading(name="tgi_batch_current_size", form=Form.GAUGE),
            _triton(Form.GAUGE, "nv_trt_llm_request_metrics", 'request_type="active"'),
            ServerReading(name="llamacpp:requests_processing", form=Form.GAUGE),
            _nim(Form.GAUGE, "num_requests_running"),
            _dynamo(Form.GAUGE, "inflight_requests"),
            _ray(Form.GAUGE, "replica_processing_queries"),
        ),
        # Beside `SERVER_METRICS`, for servers that have no share of their own or not by a name of their own.
        Measure.KV_CACHE_USAGE: (
            ServerReading(
                name="tgi_batch_current_max_tokens", form=Form.GAUGE,
                share_of=ServerReading(name="tgi_batch_max_total_tokens", form=Form.GAUGE),
            ),
            replace(
                _triton(Form.GAUGE, "nv_trt_llm_kv_cache_block_metrics", 'kv_cache_block_type="used"'),
                share_of=_triton(Form.GAUGE, "nv_trt_llm_kv_cache_block_metrics", 'kv_cache_block_type="max"'),
            ),
            _nim(Form.QUANTILE, "gpu_cache_usage_perc"),
        ),
    }
)  # fmt: skip
"""Where servers give what they do, one after the other: of a pod with several the first counts.

A mean (Triton's sums, TGI's time per token of a request) is no percentile. What Dynamo says of an engine's cache is
left to the engine: its unit differs from version to version.
"""
OBJECTIVE_READINGS: Mapping[str, tuple[ServerReading, ...]] = MappingProxyType(
    {
        "gputide:pod:time_to_first_token_p99_seconds": (
            *_alike(Form.HISTOGRAM, "time_to_first_token_seconds_bucket"),
            _sglang(Form.HISTOGRAM, "time_to_first_token_seconds_bucket"),
            _nim(Form.HISTOGRAM, "time_to_first_token_seconds_bucket"),
        ),
        "gputide:pod:inter_token_latency_p99_seconds": (
            *_alike(Form.HISTOGRAM, "inter_token_latency_seconds_bucket"),
            *_alike(Form.HISTOGRAM, "time_per_output_token_seconds_bucket"),
            _sglang(Form.HISTOGRAM, "inter_token_latency_seconds_bucket"),
            _nim(Form.HISTOGRAM, "time_per_output_token_seconds_bucket"),
        ),
    }
)
"""What is recorded only to be held against what pods promise (`enforcer.latency_objectives`)."""
_ENVOY_CLUSTERS = 'envoy_cluster_name=~"inbound.*|local_app|local_service|localhost[_:].*|cds_ingress_.*"'
"""What meshes call the server beside their proxy: Istio and Kuma, Consul, Envoy's own examples, App Mesh."""
MESH_READINGS: Mapping[Measure, tuple[ServerReading, ...]] = MappingProxyType(
    {
        measure: (
            ServerReading(
                name=f"istio_{istio}", form=form, matchers=('reporter="destination"',), summed=_ISTIO_PARTS,
                factor=factor,
            ),
            ServerReading(
                name=f"envoy_cluster_upstream_{envoy}", form=form, matchers=(_ENVOY_CLUSTERS,),
                summed=("envoy_cluster_name",), factor=factor,
            ),
        )
        for measure, istio, envoy, form, factor in (
            (Measure.REQUEST_RATE, "requests_total", "rq_completed", Form.COUNTER, 1.0),
            (Measure.LATENCY_P99, "request_duration_milliseconds_bucket", "rq_time_bucket", Form.HISTOGRAM, 1e-3),
        )
    }
)  # fmt: skip
"""What Istio's proxy, or another mesh's Envoy, in a pod says of whatever server runs there.

Gateways count requests by route: they say nothing of a pod. Gateway API's endpoint picker shows how long the queue of
each pod is, which the servers behind it, of the names above, count themselves.
"""
READ_NAMES = frozenset(reading.name for readings in SERVER_READINGS.values() for reading in readings)
"""Every metric of `SERVER_READINGS`."""

_POD = "cluster, namespace, pod"


def recorded_name(measure: Measure) -> str:
    """The name under which recording rules keep a measure of a pod's server."""
    return f"gputide:pod:{measure.value}"


def plain_selector(name: str, *matchers: str) -> str:
    """How PromQL names a metric's series."""
    return f"{name}{{{', '.join(matchers)}}}"


def servers_expression(
    measure: Measure, *, selector: Callable[..., str] = plain_selector, names: Collection[str] = READ_NAMES
) -> str | None:
    """A measure of every pod's server as PromQL, labels `cluster`, `namespace` and `pod`; None where no name gives it.

    Args:
        measure: one of `SERVER_READINGS`.
        selector: writes a metric and matchers.
    """
    readings = [reading for reading in SERVER_READINGS[measure] if reading.name in names]
    return "\nor\n".join(reading_expression(reading, selector) for reading in readings) or None


def reading_expression(reading: ServerReading, selector: Callable[..., str] = plain_selector) -> str:
    """One reading of every pod as PromQL.

    A server speaks for the pod that was scraped, whatever it writes itself, so labels `exported_…` count for nothing.
    The same target may be scraped by two jobs, and two replicas of Prometheus may scrape it: the largest of an instance
    counts.
    """
    vector = _measured(reading, selector)
    if reading.share_of is not None:
        vector = f"{vector}\n/ on ({_POD})\n{_measured(reading.share_of, selector)}"
    if reading.image is None:
        return vector
    pods = [
        selector("kube_pod_container_info", f'image_spec=~"{reading.image}"'),
        selector("gputide_slice_info", 'server="nim"'),
    ]
    for label in ("namespace", "pod"):
        pods = [f'label_replace({one}, "{label}", "$1", "exported_{label}", "(.+)")' for one in pods]
    return f"({vector}\nand on (namespace, pod)\n({' or '.join(pods)}))"


def _measured(reading: ServerReading, selector: Callable[..., str]) -> str:
    vector = selector(reading.name, *reading.matchers, 'pod!=""')
    if reading.form in (Form.COUNTER, Form.HISTOGRAM):
        vector = f"rate({vector}[5m])"
    if reading.form is Form.QUANTILE:
        return f"max by ({_POD}) ({vector}){_times(reading.factor)} >= 0"
    rest = ", le" if reading.form is Form.HISTOGRAM else ""
    vector = _without("sum", reading.summed, _without("max", reading.repeated, vector))
    vector = f"sum by ({_POD}{rest}) (max by ({_POD}, instance{rest}) ({vector}))"
    if reading.form is not Form.HISTOGRAM:
        return f"{vector}{_times(reading.factor)}"
    # Without a request it has no value.
    return f"histogram_quantile(0.99, {vector}){_times(reading.factor)} >= 0"


def _without(operator: str, labels: Sequence[str], vector: str) -> str:
    return f"{operator} without ({', '.join(labels)}) ({vector})" if labels else vector


def _times(factor: float) -> str:
    return "" if factor == 1.0 else f" * {factor:g}"


def server_facts(name: str, labels: Mapping[str, str]) -> ServerFacts:
    """What the labels of a series of `SERVER_METRICS` say; of a cache of a size that somebody set, nothing."""
    said = {field: _set(labels, label) for field, label in _LABELS.items()}
    metric = SERVER_METRICS[name]
    said["block_tokens"] = said["block_tokens"] or metric.block_tokens
    if metric.fact_label is not None:
        # Triton's model is a folder's name; two of them are two caches.
        said["model"] = said["model"] or labels.get("model", "")
    if name.startswith("trtllm") and said["cache_dtype"] == "auto":
        # It follows the checkpoint, which may have been quantised with a cache of eight bits.
        said["cache_dtype"] = ""
    if any(_set(labels, label) for label in _FIXED):
        said["pool_blocks"] = ""
    return ServerFacts(server=server_of_metric(name) or "", **said)


def _set(labels: Mapping[str, str], name: str) -> str:
    """A label, without Python's text for a field that nobody set."""
    text = labels.get(name, "")
    return "" if text == "None" else text
