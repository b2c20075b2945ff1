"""A real Prometheus that holds two hours of what inference servers of a dozen pods write, and what they truly did.

Names and labels are the published ones of each server (`fleet.server_series` names the sources). Two jobs and two
replicas scrape some pods, one server claims to be another pod, one starts again, one pod has two servers. The rules of
`gputide admin grafana export` can be let to record the last hour, as a Prometheus that loads them does.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import yaml

from bench.measured_run import ROOT
from fleet.schema import Measure
from fleet.units import epoch_ms
from gputide.operate.engine_process import kill_process, start_process, wait_until
from gputide.operate.engines import free_port
from tests.engines.go_peers import GoPeers
from tests.engines.prometheus_parts import answer_of

UNTIL = datetime(2026, 1, 6, 12, tzinfo=UTC)
UNTIL_S = epoch_ms(UNTIL) // 1000
STEP_SECONDS = 15
SINCE_S = UNTIL_S - 2 * 3600
HOUR_S = UNTIL_S - 3600
"""Start of the hour that is judged; an hour before it, counters grow already."""
RESTART_S = UNTIL_S - 1800 + 7

REQUESTS, PROMPT, GENERATED, P99, RUNNING = (
    Measure.REQUEST_RATE,
    Measure.PROMPT_TOKEN_RATE,
    Measure.GENERATED_TOKEN_RATE,
    Measure.LATENCY_P99,
    Measure.REQUESTS_RUNNING,
)
CACHE = Measure.KV_CACHE_USAGE
Truth = Mapping[Measure, float | tuple[float, float]]
"""What each measure of a pod is, or between what it lies."""
BOUNDS = (("0.3", 0.5), ("1.0", 0.9), ("2.5", 0.98), ("5.0", 1.0), ("+Inf", 1.0))
"""Bounds of buckets, and the share of requests that is not above: the 99th percentile lies between 2.5 and 5."""


@dataclass(frozen=True, kw_only=True)
class Written:
    """One series that a pod writes: it grows by so much a second, or stands still.

    Attributes:
        name: the metric.
        labels: the pod's own labels.
        per_second: growth; None for a gauge.
        value: value of a gauge.
    """

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    per_second: float | None = None
    value: float = 0.0


def counter(name: str, per_second: float, **labels: str) -> Written:
    return Written(name=name, labels=labels, per_second=per_second)


def gauge(name: str, value: float, **labels: str) -> Written:
    return Written(name=name, labels=labels, value=value)


def buckets(name: str, per_second: float, **labels: str) -> list[Written]:
    return [counter(f"{name}_bucket", per_second * share, le=bound, **labels) for bound, share in BOUNDS]


def _ms(bound: str) -> str:
    return str(float(bound) * 1000).replace("inf", "+Inf")


def alike(prefix: str, requests: float, running: float, **labels: str) -> list[Written]:
    """What vLLM and those who took over its names write; a tenth of the requests ended at their length."""
    return [
        counter(f"{prefix}request_success_total", 0.9 * requests, finished_reason="stop", **labels),
        counter(f"{prefix}request_success_total", 0.1 * requests, finished_reason="length", **labels),
        counter(f"{prefix}prompt_tokens_total", 100 * requests, **labels),
        counter(f"{prefix}generation_tokens_total", 200 * requests, **labels),
        gauge(f"{prefix}num_requests_running", running, **labels),
        *buckets(f"{prefix}e2e_request_latency_seconds", requests, **labels),
    ]


def sglang(requests: float, running: float, **labels: str) -> list[Written]:
    """Priorities are on: each request counts for its own and, under the empty one, for all."""
    found = []
    for priority, share in (("", 1.0), ("1", 0.75), ("2", 0.25)):
        own = {**labels, "priority": priority} if priority else labels
        found += [
            counter("sglang:num_requests_total", share * requests / 2, is_streaming="true", **own),
            counter("sglang:num_requests_total", share * requests / 2, is_streaming="false", **own),
            counter("sglang:prompt_tokens_total", 100 * share * requests, **own),
            counter("sglang:generation_tokens_total", 200 * share * requests, **own),
            *buckets("sglang:e2e_request_latency_seconds", share * requests, **own),
        ]
        for dp_rank, tp_rank in (("0", "0"), ("0", "1"), ("1", "2"), ("1", "3")):
            ranks = {"dp_rank": dp_rank, "tp_rank": tp_rank, "pp_rank": "0", "moe_ep_rank": tp_rank}
            found.append(gauge("sglang:num_running_reqs", share * running / 2, **ranks, **own))
    return found


VLLM = {"model_name": "llama"}
CLAIMS = {"exported_pod": "two-engines", "exported_namespace": "team"}
"""What Prometheus makes of `pod` and `namespace` that a server writes itself."""
TGI = [
    counter("tgi_request_success", 2),
    counter("tgi_request_input_length_sum", 200),
    counter("tgi_request_generated_tokens_sum", 400),
    gauge("tgi_batch_current_size", 4),
    gauge("tgi_batch_current_max_tokens", 1000),
    gauge("tgi_batch_max_total_tokens", 4000),
    *buckets("tgi_request_duration", 2),
]
TRITON = [
    *(
        counter("nv_inference_request_success", 3, model=model, version=version)
        for model, version in (("preprocessing", "1"), ("tensorrt_llm", "2"), ("ensemble", "1"))
    ),
    gauge("nv_inference_request_summary_us", 900_000, model="tensorrt_llm", version="2", quantile="0.99"),
    gauge("nv_inference_request_summary_us", 3_000_000, model="ensemble", version="1", quantile="0.99"),
    gauge("nv_inference_request_summary_us", 400_000, model="ensemble", version="1", quantile="0.5"),
    gauge("nv_inference_request_summary_us", float("nan"), model="unused", version="1", quantile="0.99"),
    gauge("nv_trt_llm_request_metrics", 6, model="tensorrt_llm", version="2", request_type="active"),
    gauge("nv_trt_llm_request_metrics", 64, model="tensorrt_llm", version="2", request_type="max"),
    *(
        gauge("nv_trt_llm_kv_cache_block_metrics", blocks, model="tensorrt_llm", version="2", kv_cache_block_type=kind)
        for kind, blocks in (("max", 200), ("used", 50), ("free", 150), ("tokens_per", 32), ("fraction", 0.5))
    ),
]
LLAMA_CPP = [
    counter("llamacpp:prompt_tokens_total", 300),
    counter("llamacpp:tokens_predicted_total", 30),
    gauge("llamacpp:requests_processing", 1),
]


NIM = [
    *(
        counter("request_finish_total", share, finished_reason=reason, **VLLM)
        for reason, share in (("stop", 1.5), ("length", 0.5))
    ),
    counter("request_success_total", 1.5, **VLLM),
    counter("prompt_tokens_total", 200, **VLLM),
    counter("generation_tokens_total", 400, **VLLM),
    gauge("num_requests_running", 4, **VLLM),
    gauge("gpu_cache_usage_perc", 0.25, **VLLM),
    *buckets("e2e_request_latency_seconds", 2, **VLLM),
]
DYNAMO = [
    *(
        one
        for endpoint, requests in (("generate", 2.0), ("clear_kv_blocks", 50.0))
        for labels in ({"dynamo_namespace": "a", "dynamo_component": "backend", "dynamo_endpoint": endpoint},)
        for one in (
            counter("dynamo_component_requests_total", requests, **labels),
            gauge("dynamo_component_inflight_requests", 2 * requests, **labels),
            *buckets("dynamo_component_request_duration_seconds", requests, **labels),
        )
    ),
]
RAY_SERVE = [
    one
    for deployment in ("ingress", "model")
    for replica in ("a", "b")
    for labels in ({"application": "app", "deployment": deployment, "replica": replica},)
    for one in (
        counter("ray_serve_deployment_request_counter_total", 1, route="/v1", **labels),
        gauge("ray_serve_replica_processing_queries", 2, **labels),
        *(
            counter("ray_serve_deployment_processing_latency_ms_bucket", below, le=_ms(bound), route="/v1", **labels)
            for bound, below in BOUNDS
        ),
    )
]


def envoy(requests: float) -> list[Written]:
    """What a mesh's Envoy counts beside a server: what came in for it, and what it asked of others itself."""
    found = []
    for cluster, share in (("local_app", 1.0), ("outbound|443||other", 9.0)):
        labels = {"envoy_cluster_name": cluster}
        found.append(counter("envoy_cluster_upstream_rq_completed", share * requests, **labels))
        for bound, below in BOUNDS:
            took = share * requests * below
            found.append(counter("envoy_cluster_upstream_rq_time_bucket", took, le=_ms(bound), **labels))
    return found


def istio(requests: float) -> list[Written]:
    """What the proxy counts: of each request what came in, and what the server asked of others itself."""
    found = []
    for code, share in (("200", 0.75), ("503", 0.25)):
        for source in ("web", "batch"):
            labels = {"reporter": "destination", "response_code": code, "source_workload": source}
            found += [
                counter("istio_requests_total", share * requests / 2, **labels),
                *(
                    counter(
                        "istio_request_duration_milliseconds_bucket",
                        share * requests / 2 * below,
                        le=_ms(bound),
                        **labels,
                    )
                    for bound, below in BOUNDS
                ),
            ]
    return [*found, counter("istio_requests_total", 50, reporter="source", response_code="200")]


PODS: Mapping[str, list[Written]] = {
    "two-engines": [*alike("vllm:", 2, 3, engine="0", **VLLM), *alike("vllm:", 1, 2, engine="1", **VLLM)],
    "hostile": alike("vllm:", 9, 7, engine="0", **VLLM, **CLAIMS),
    "restarted": alike("vllm:", 4, 5, engine="0", **VLLM),
    "at-rest": alike("vllm:", 0, 0, engine="0", **VLLM),
    "kserve": alike("kserve_vllm:", 2, 4, engine="0", **VLLM),
    "ray": [
        *alike("ray_vllm_", 1, 2, engine="0", WorkerId="a", ReplicaId="r1", **VLLM),
        *alike("ray_vllm_", 1, 2, engine="0", WorkerId="b", ReplicaId="r2", **VLLM),
    ],
    "trtllm": alike("trtllm_", 2, 4, engine_type="trtllm", **VLLM),
    "lmdeploy": alike("lmdeploy:", 2, 4, engine="0", **VLLM),
    "sglang": sglang(2, 4, engine_type="unified", **VLLM),
    "tgi": TGI,
    "triton": TRITON,
    "llama": LLAMA_CPP,
    "nim": NIM,
    "bare-names": NIM,
    "dynamo": DYNAMO,
    "ray-serve": RAY_SERVE,
}
NIM_IMAGE = "nvcr.io/nim/meta/llama-3.1-8b-instruct:1.8.4"
LATENCY = (2.5, 5.0)
TRUTH: Mapping[str, Truth] = {
    "two-engines": {REQUESTS: 3, PROMPT: 300, GENERATED: 600, P99: LATENCY, RUNNING: 5},
    "hostile": {REQUESTS: 9, PROMPT: 900, GENERATED: 1800, P99: LATENCY, RUNNING: 7},
    "restarted": {REQUESTS: 4, PROMPT: 400, GENERATED: 800, P99: LATENCY, RUNNING: 5},
    "at-rest": {REQUESTS: 0, PROMPT: 0, GENERATED: 0, RUNNING: 0},
    **{
        pod: {REQUESTS: 2, PROMPT: 200, GENERATED: 400, P99: LATENCY, RUNNING: 4}
        for pod in ("kserve", "ray", "trtllm", "lmdeploy", "sglang")
    },
    **{
        pod: {REQUESTS: 2, PROMPT: 200, GENERATED: 400, P99: LATENCY, RUNNING: 4, CACHE: 0.25} for pod in ("tgi", "nim")
    },
    **{pod: {REQUESTS: 2, P99: LATENCY, RUNNING: 4} for pod in ("dynamo", "ray-serve")},
    "triton": {REQUESTS: 3, P99: (3.0, 3.0), RUNNING: 6, CACHE: 0.25},
    "llama": {PROMPT: 300, GENERATED: 30, RUNNING: 1},
}
MESH = {"own-server": istio(8), "behind-envoy": envoy(8), "without-a-card": istio(8)}
BEHIND_A_PROXY = ("own-server", "behind-envoy")
MESH_TRUTH: Truth = {REQUESTS: 8, P99: LATENCY}


def series() -> Iterator[tuple[str, dict[str, str], Written, int]]:
    """Pod, all labels, what is written, and how late each scrape is: two jobs and two replicas scrape some pods."""
    for number, (pod, written) in enumerate({**PODS, **MESH}.items()):
        target = {"namespace": "team", "pod": pod, "instance": f"10.0.0.{number}:8000"}
        scrapes = [({"job": "pods"}, 0)]
        if pod in ("two-engines", "sglang", "triton", "own-server"):
            scrapes = [
                ({"job": job, "prometheus_replica": replica}, 7 * int(replica))
                for job in ("pods", "services")
                for replica in ("0", "1")
            ]
        for more, late in scrapes:
            for one in written:
                yield pod, {**one.labels, **target, **more}, one, late
    # Two servers in one pod are two ports of it.
    for port, per_second in (("8000", 1.0), ("8001", 2.0)):
        labels = {"namespace": "team", "pod": "two-ports", "instance": f"10.0.1.1:{port}", "job": "pods"}
        for one in alike("vllm:", per_second, 1, engine="0", **VLLM):
            yield "two-ports", {**one.labels, **labels}, one, 0


def open_metrics() -> str:
    """All of it, and the cards that the pods hold, as `promtool tsdb create-blocks-from openmetrics` reads it."""
    lines = []
    for pod, labels, one, late in series():
        written = ",".join(f'{name}="{value}"' for name, value in labels.items())
        text = f"{one.name}{{{written}}}"
        for at in range(SINCE_S + late, UNTIL_S + 1, STEP_SECONDS):
            value = one.value
            if one.per_second is not None:
                begun = RESTART_S if pod == "restarted" and at >= RESTART_S else SINCE_S - 3600
                value = float(int(one.per_second * (at - begun)))
            lines.append(f"{text} {value} {at}")
    for number, pod in enumerate(pod for pod in (*PODS, *MESH, "two-ports") if pod != "without-a-card"):
        image = NIM_IMAGE if pod == "nim" else f"registry/{pod}:1"
        told = f'namespace="team",pod="{pod}",container="main",image_spec="{image}"'
        lines += [f"kube_pod_container_info{{{told}}} 1 {at}" for at in range(SINCE_S, UNTIL_S + 1, 60)]
        for card in range(2 if pod == "two-engines" else 1):
            seat = f'namespace="team",pod="{pod}",container="main",UUID="GPU-{number}-{card}",Hostname="n1"'
            seat += ',modelName="NVIDIA A10"'
            for at in range(SINCE_S, UNTIL_S + 1, 60):
                lines += [
                    f"DCGM_FI_DEV_GPU_UTIL{{{seat}}} 0 {at}",
                    f"DCGM_FI_DEV_FB_USED{{{seat}}} 1024 {at}",
                    f"DCGM_FI_DEV_FB_FREE{{{seat}}} 22000 {at}",
                    f'gputide:slice:granted{{namespace="team",pod="{pod}",card="GPU-{number}-{card}"}} 1 {at}',
                ]
    return "\n".join([*lines, "# EOF", ""])


@contextmanager
def serving(peers: GoPeers, folder: Path, *limits: str) -> Iterator[str]:
    """Start the Prometheus of a folder; gives its address."""
    url = f"http://127.0.0.1:{free_port()}"
    (folder / "prometheus.yml").write_text("{}\n", encoding="utf-8")
    command = [
        str(peers.prometheus), "--config.file=prometheus.yml", "--storage.tsdb.path=tsdb",
        "--storage.tsdb.retention.time=100y", f"--web.listen-address={url.removeprefix('http://')}", *limits,
    ]  # fmt: skip
    process = start_process(
        "prometheus", command, folder=folder, log=folder / "prometheus.log", environ=dict(os.environ)
    )
    try:
        wait_until(lambda: bool(answer_of(url, "vector(1)")), process, seconds_max=60)
        yield url
    finally:
        kill_process(process)


def back_fill(peers: GoPeers, folder: Path) -> None:
    """Write the hours into the folder of a Prometheus."""
    (folder / "history.om").write_text(open_metrics(), encoding="utf-8")
    promtool(peers, folder, "openmetrics", "history.om", "tsdb")


def record(peers: GoPeers, folder: Path) -> None:
    """Let the chart's rules record the hour that is judged; what they record of cards is there already."""
    with serving(peers, folder) as url:
        rules = yaml.safe_load((ROOT / "deploy/helm/gputide/files/rules.yaml").read_text(encoding="utf-8"))
        groups = [group for group in rules["groups"] if group["name"] == "gputide-servers"]
        (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": groups}), encoding="utf-8")
        span = (f"--start={HOUR_S + 60}", f"--end={UNTIL_S}", "--eval-interval=1m")
        promtool(peers, folder, "rules", f"--url={url}", "--output-dir=tsdb", *span, "rules.yaml")


def promtool(peers: GoPeers, folder: Path, *words: str) -> None:
    command = [str(peers.promtool), "tsdb", "create-blocks-from", *words]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=300)


def all_truth() -> dict[str, Truth]:
    """What each pod's own server did, by pod."""
    ports: Truth = {REQUESTS: 3, PROMPT: 300, GENERATED: 600, P99: LATENCY, RUNNING: 2}
    return {**TRUTH, "two-ports": ports}


def errors(found: Mapping[str, float], measure: Measure, pods: Mapping[str, Truth]) -> dict[str, float]:
    """By how much what was found of each pod is off, as a share of the truth.

    It is infinite where a figure is missing, or there and should not be, and for one outside of its bucket.
    """
    off = {pod: float("inf") for pod in found.keys() | pods.keys() if (pod in found) != (measure in pods.get(pod, {}))}
    for pod, value in found.items():
        if pod in off:
            continue
        truth = pods[pod][measure]
        if isinstance(truth, tuple):
            off[pod] = 0.0 if truth[0] <= value <= truth[1] else float("inf")
        else:
            off[pod] = abs(value - truth) / truth if truth else abs(value)
    return off
