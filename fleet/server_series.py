"""What inference servers say of themselves in their own metrics: which names count, and what their labels hold.

`fleet.series` makes aliases of them. Standard library only: the node exporter's process loads this module.

Sources: vllm-project/vllm:vllm/engine/metrics.py and vllm/v1/metrics/loggers.py (`cache_config_info` has every field of
vllm/config/cache.py as Python's text), sgl-project/sglang:python/sglang/srt/metrics/collector.py and
srt/mem_cache/memory_pool.py (its GB are 2^30), NVIDIA/TensorRT-LLM:tensorrt_llm/metrics/collector.py,
InternLM/lmdeploy:lmdeploy/metrics; ray-project/ray and opendatahub-io write vLLM's names behind prefixes of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from fleet.schema import Measure
from fleet.servers import server_of_metric


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts:
    """What one series of an inference server says of it, as texts of `fleet.schema.SERVER_LABELS`; empty for nothing.

    Attributes:
        server: its name.
        model: name of the model that it serves, as whoever started it chose.
        cache_dtype: type of the KV cache's values, `auto` for the model's own.
        pool_blocks: blocks of its KV cache, those of all its cards.
        block_tokens: tokens of a block.
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
    """

    measure: Measure | None = None
    fact: str | None = None
    factor: float = 1.0


_USAGE = ServerMetric(measure=Measure.KV_CACHE_USAGE)
SERVER_METRICS: Mapping[str, ServerMetric] = MappingProxyType(
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
        "trtllm_kv_cache_utilization": _USAGE,
        "lmdeploy:gpu_cache_usage_perc": _USAGE,
    }
)
_LABELS = {
    "model": "model_name",
    "cache_dtype": "cache_dtype",
    "pool_blocks": "num_gpu_blocks",
    "block_tokens": "block_size",
}
_FIXED = ("kv_cache_memory_bytes", "num_gpu_blocks_override")
"""Sizes that somebody set: they don't shrink with the slice, and in a smaller one the server would not start."""


def server_facts(name: str, labels: Mapping[str, str]) -> ServerFacts:
    """What the labels of a series of `SERVER_METRICS` say; of a cache of a size that somebody set, nothing."""
    said = {field: _set(labels, label) for field, label in _LABELS.items()}
    if any(_set(labels, label) for label in _FIXED):
        said["pool_blocks"] = ""
    return ServerFacts(server=server_of_metric(name) or "", **said)


def _set(labels: Mapping[str, str], name: str) -> str:
    """A label, without Python's text for a field that nobody set."""
    text = labels.get(name, "")
    return "" if text == "None" else text
