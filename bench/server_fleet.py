"""Inference servers of every family on cards of their own, and what each writes of itself: the world of two bars.

A stand-in takes framebuffer as its server does: weights, what CUDA, graphs and activations take, and a KV cache of
whole blocks in a share of what is left. Its metrics are the published ones (sources: vllm-project/vllm:
vllm/v1/metrics/loggers.py, sgl-project/sglang:python/sglang/srt/metrics/collector.py, huggingface/
text-generation-inference:router/src/infer, triton-inference-server/tensorrtllm_backend:README.md, NVIDIA/TensorRT-LLM:
tensorrt_llm/metrics/collector.py, InternLM/lmdeploy:lmdeploy/metrics/loggers.py, docs.nvidia.com/nim/
large-language-models of 1.x, ggml-org/llama.cpp:tools/server/README.md). Layers, heads and bytes of weights are those
of each model's `config.json` and `model.safetensors.index.json`. Nothing is taken from the product's own tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np

from bench.seen_fleet import (
    A10,
    A100,
    DAY,
    DAYS,
    GIB,
    MIB,
    SIZE_MIB,
    Card,
    Floats,
    SeenFleet,
    Tenant,
    Written,
    _written,
)

NEIGHBOURS = 8
"""Small services, each alone on a card, that fit beside a server whose slice is smaller than its card."""
CACHE_RATIO = 0.9
"""Share of what is left after weights that a stand-in's cache takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A published model.

    Attributes:
        name: as a hub has it.
        weights: bytes of its files, two a parameter.
        layers: layers, each with attention to all tokens.
        kv_heads: heads of keys and values.
    """

    name: str
    weights: int
    layers: int
    kv_heads: int

    @property
    def last(self) -> str:
        """Its name without its owner: a label of a pod holds no slash."""
        return self.name.rpartition("/")[2]

    @property
    def token_bytes(self) -> int:
        """Keys and values of a token, heads of 128 numbers of two bytes."""
        return 2 * self.layers * self.kv_heads * 128 * 2


LLAMA_8B = Model(name="meta-llama/Llama-3.1-8B-Instruct", weights=16_060_522_496, layers=32, kv_heads=8)
LLAMA_70B = Model(name="meta-llama/Llama-3.1-70B-Instruct", weights=141_107_412_992, layers=80, kv_heads=8)
QWEN_7B = Model(name="Qwen/Qwen2.5-7B-Instruct", weights=15_231_233_024, layers=28, kv_heads=4)
QWEN_14B = Model(name="Qwen/Qwen2.5-14B-Instruct", weights=29_540_067_328, layers=48, kv_heads=8)
MISTRAL_7B = Model(name="mistralai/Mistral-7B-Instruct-v0.3", weights=14_496_047_104, layers=32, kv_heads=8)
OURS = replace(LLAMA_8B, name="team/our-own-8b")


class Known(StrEnum):
    """What a reader can know of a cache."""

    SIZE = "size"
    """Its bytes, or its tokens with the type of their values."""
    LEAST = "least"
    """Its tokens alone."""
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """One server in one or several pods.

    Attributes:
        name: of its workload.
        family: whose metrics it writes.
        image: of its container.
        model: what it serves.
        card_model: the cards that it holds.
        cards: how many a pod.
        pods: how many.
        is_split: its cards share weights and cache; each holds both where not.
        value_bytes: bytes of a value of its cache.
        says_type: type of these values, as it writes it.
        served: name under which it serves the model; empty for the hub's.
        label: value of its pods' `gputide.io/model`; None for none.
        labels: labels that it writes on every series, whatever they are.
        known: what a reader can know of its cache.
    """

    name: str
    family: str
    image: str
    model: Model
    card_model: str = A100
    cards: int = 1
    pods: int = 1
    is_split: bool = True
    value_bytes: float = 2.0
    says_type: str = "auto"
    served: str = ""
    label: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    known: Known = Known.SIZE

    @property
    def parts(self) -> int:
        """Into how many parts weights and the keys and values of a token are dealt."""
        return self.cards if self.is_split else 1

    @property
    def pod_names(self) -> tuple[str, ...]:
        """Its pods."""
        return tuple(f"{self.name}-7d9f8c6b5-{chr(97 + number) * 5}" for number in range(self.pods))


VLLM, TRITON = "vllm/vllm-openai:v0.11.0", "nvcr.io/nvidia/tritonserver:25.06-trtllm-python-py3"
TGI, SGLANG, LMDEPLOY = (
    "ghcr.io/huggingface/text-generation-inference:3.3.7",
    "lmsysorg/sglang:v0.4.9",
    "openmmlab/lmdeploy:v0.16.0",
)
TRTLLM = "nvcr.io/nvidia/tensorrt-llm/release:1.2.0"
LEAST, NOTHING = Known.LEAST, Known.NOTHING
EIGHT_BITS, FOUR_BITS = 1.0, 0.5625
"""Bytes of a value; those of four bits have a scale for sixteen."""
CLAIMS = {"pod": "vllm-7d9f8c6b5-aaaaa", "namespace": "llm", "exported_pod": "vllm-7d9f8c6b5-aaaaa"}
SERVICES = (
    Service(name="vllm", family="vllm", image=VLLM, model=LLAMA_8B, pods=2),
    Service(
        name="vllm-fp8", family="vllm", image=VLLM, model=LLAMA_8B, pods=2, value_bytes=EIGHT_BITS, says_type="fp8"
    ),
    Service(name="sglang", family="sglang", image="lmsysorg/sglang:v0.5.17", model=QWEN_14B, cards=2),
    Service(name="ray", family="ray_vllm_", image="rayproject/ray-llm:2.49.0", model=QWEN_7B),
    Service(name="kserve", family="kserve_vllm:", image=VLLM, model=QWEN_14B, pods=2),
    Service(
        name="kserve-mnt", family="vllm", image=VLLM, model=LLAMA_8B, served="llama-3.1-8b-instruct", label="models"
    ),
    Service(name="hostile", family="vllm", image=VLLM, model=QWEN_7B, labels=CLAIMS),
    Service(
        name="tgi", family="tgi", image=TGI, model=MISTRAL_7B, card_model=A10, pods=2, label=MISTRAL_7B.last,
        known=LEAST,
    ),
    Service(
        name="tgi-fp8", family="tgi", image=TGI, model=MISTRAL_7B, pods=2, value_bytes=EIGHT_BITS,
        label=MISTRAL_7B.last, known=LEAST,
    ),
    Service(name="triton", family="triton", image=TRITON, model=LLAMA_8B, pods=2, label=LLAMA_8B.last, known=LEAST),
    Service(
        name="triton-fp8", family="triton", image=TRITON, model=LLAMA_8B, pods=2, value_bytes=EIGHT_BITS,
        label=LLAMA_8B.last, known=LEAST,
    ),
    Service(name="trtllm", family="trtllm_", image=TRTLLM, model=LLAMA_70B, cards=4, known=LEAST),
    Service(
        name="trtllm-fp4", family="trtllm_", image=TRTLLM, model=LLAMA_8B, pods=2, value_bytes=FOUR_BITS, known=LEAST
    ),
    Service(
        name="dynamo", family="trtllm:", image="nvcr.io/nvidia/ai-dynamo/tensorrtllm-runtime:0.7.0", model=LLAMA_8B,
        pods=2, value_bytes=EIGHT_BITS, says_type="fp8",
    ),
    Service(name="older-sglang", family="older sglang", image=SGLANG, model=QWEN_7B, pods=2, known=LEAST),
    Service(
        name="sglang-fp8", family="older sglang", image=SGLANG, model=QWEN_14B, pods=2, value_bytes=EIGHT_BITS,
        known=LEAST,
    ),
    Service(
        name="sglang-fp4", family="older sglang", image=SGLANG, model=QWEN_14B, pods=2, value_bytes=FOUR_BITS,
        known=LEAST,
    ),
    Service(name="lmdeploy", family="lmdeploy", image=LMDEPLOY, model=QWEN_7B, pods=2, known=NOTHING),
    Service(
        name="lmdeploy-dp", family="lmdeploy", image=LMDEPLOY, model=QWEN_14B, cards=2, is_split=False, known=NOTHING
    ),
    Service(
        name="nim", family="nim", image="nvcr.io/nim/meta/llama-3.1-8b-instruct:1.8.4", model=LLAMA_8B, known=NOTHING
    ),
    Service(name="own-model", family="vllm", image=VLLM, model=OURS, known=NOTHING),
    Service(name="stale-label", family="vllm", image=VLLM, model=LLAMA_8B, label=QWEN_14B.last, known=NOTHING),
    Service(name="unnamed-tgi", family="tgi", image=TGI, model=MISTRAL_7B, known=NOTHING),
    Service(name="unnamed-triton", family="triton", image=TRITON, model=LLAMA_8B, known=NOTHING),
)  # fmt: skip


@dataclass(slots=True)
class ServerFleet(SeenFleet):
    """Those services, each with its own use of its cache, and small ones; mutable as its parent."""

    pools: dict[str, int] = field(default_factory=dict)
    """Bytes of each service's cache on each of its cards."""
    needs: dict[str, float] = field(default_factory=dict)
    """Most that each needed on a card."""
    tokens: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        for number, one in enumerate(SERVICES):
            size = SIZE_MIB[one.card_model] * MIB
            # CUDA's context and libraries, activations, graphs, adapters, a draft model.
            beside = float(rng.uniform(0.5, 10.0 if one.card_model == A100 else 4.0)) * GIB
            weights = one.model.weights / one.parts
            block = int(16 * one.model.token_bytes * one.value_bytes / 2) // one.parts
            blocks = int(CACHE_RATIO * (size - weights - beside) / block)
            self.tokens[one.name], self.pools[one.name] = 16 * blocks, blocks * block
            hour = np.arange(DAYS * DAY) * (24 / DAY)
            usage = np.clip(rng.uniform(0.1, 0.6) * (1 + np.sin((hour - number) * np.pi / 12)) / 2, 0, 1)
            used = weights + beside + blocks * block
            self.needs[one.name] = float(used - blocks * block * (1 - usage.max()))
            for place, pod in enumerate(name for name in one.pod_names for _ in range(one.cards)):
                uuid = f"GPU-{self.seed:04x}{number:04x}-0000-4000-8000-{place:012x}"
                self.cards.append(Card(uuid=uuid, model=one.card_model, node=f"n-{number // 4}"))
                self.tenants.append(
                    Tenant(
                        pod=pod, namespace="llm", workload=one.name, kind="Deployment",
                        owner=("ReplicaSet", f"{one.name}-7d9f8c6b5"), server="", image=one.image,
                        card=self.cards[-1], duty=0.9 * usage, used_mib=np.full(DAYS * DAY, used / MIB), sm=0.5 * usage,
                        kv=usage,
                    )
                )  # fmt: skip

        for number in range(2 * NEIGHBOURS):
            # Every other card is free, for a pod to go to before its predecessor leaves.
            card = Card(uuid=f"GPU-{self.seed:04x}ffff-0000-4000-8000-{number:012x}", model=A100, node="n-small")
            self.cards.append(card)
            if number % 2:
                continue
            duty = rng.uniform(0.02, 0.08, DAYS * DAY)
            self._deployment(
                rng, f"small-{number}", card, server="", image="nvcr.io/nvidia/tritonserver:25.01-py3", duty=duty,
                used_mib=2000.0 + 1000.0 * duty, sm=duty / 2,
            )  # fmt: skip

    def foreign_words(self) -> Iterator[Written]:
        """What dcgm-exporter, kube-state-metrics and the servers write; of a pod with several cards once."""
        models = {pod: one.label for one in SERVICES for pod in one.pod_names if one.label is not None}
        seen = set()
        for word in SeenFleet.foreign_words(self):
            labels = dict(word.labels)
            if labels["__name__"] == "kube_pod_labels" and labels.get("pod") in models:
                labels["label_gputide_io_model"] = models[labels["pod"]]
            key = frozenset(labels.items())
            if key not in seen:
                seen.add(key)
                yield replace(word, labels=labels)

    def _servers(self) -> Iterator[Written]:
        usage = {one.workload: one.kv for one in self.tenants if one.kv is not None}
        for number, one in enumerate(SERVICES):
            for place, pod in enumerate(one.pod_names):
                target = {
                    "namespace": "llm", "pod": pod, "container": "main", "job": "servers",
                    "instance": f"10.1.{place}.{number}:8000",
                }  # fmt: skip
                for name, labels, values in _series(one, self.tokens[one.name], self.pools[one.name], usage[one.name]):
                    own = {
                        f"exported_{key}" if key in target else key: text
                        for key, text in {**one.labels, **labels}.items()
                    }
                    yield _written(
                        name, {**own, **target}, np.broadcast_to(np.asarray(values, float), usage[one.name].shape)
                    )


Series = tuple[str, dict[str, str], float | Floats]


def _series(one: Service, tokens: int, pool: int, usage: Floats) -> Iterator[Series]:
    """What a server writes of its cache: names, its own labels, values."""
    named, running = {"model_name": one.served or one.model.name}, np.round(8 * usage)
    if one.family in ("vllm", "ray_vllm_", "kserve_vllm:"):
        prefix = "vllm:" if one.family == "vllm" else one.family
        engine = {**named, "engine": "0"}
        config = {"block_size": "16", "cache_dtype": one.says_type, "num_gpu_blocks": str(tokens // 16), "engine": "0"}
        unset = dict.fromkeys(("num_gpu_blocks_override", "kv_cache_memory_bytes", "sliding_window"), "None")
        yield f"{prefix}cache_config_info", {**config, **unset, "gpu_memory_utilization": "0.92"}, 1.0
        yield f"{prefix}kv_cache_usage_perc", engine, usage
        yield f"{prefix}num_requests_running", engine, running
    elif one.family in ("sglang", "older sglang"):
        for rank in range(one.cards):
            ranks = {**named, "engine_type": "unified", "tp_rank": str(rank), "pp_rank": "0", "moe_ep_rank": "0"}
            yield "sglang:max_total_num_tokens", ranks, float(tokens)
            yield "sglang:token_usage", ranks, usage
            yield "sglang:num_running_reqs", ranks, running
            if one.family == "sglang":
                yield "sglang:kv_cache_memory_usage_gb", ranks, round(pool / GIB, 2)
                yield "sglang:weight_memory_usage_gb", ranks, round(one.model.weights / one.cards / GIB, 2)
    elif one.family == "tgi":
        yield "tgi_batch_max_total_tokens", {}, float(tokens)
        yield "tgi_batch_current_max_tokens", {}, np.round(usage * tokens)
        yield "tgi_batch_current_size", {}, running
    elif one.family == "triton":
        model, blocks = {"model": "tensorrt_llm", "version": "1"}, tokens // 32
        used = np.round(usage * blocks)
        kinds: dict[str, float | Floats] = {
            "max": float(blocks),
            "used": used,
            "free": blocks - used,
            "tokens_per": 32.0,
            "fraction": 0.5,
        }
        for kind, value in kinds.items():
            yield "nv_trt_llm_kv_cache_block_metrics", {**model, "kv_cache_block_type": kind}, value
        yield "nv_trt_llm_request_metrics", {**model, "request_type": "active"}, running
    elif one.family in ("trtllm_", "trtllm:"):
        labels = {**named, "engine_type": "trtllm"}
        config = {"page_size": "32", "cache_dtype": one.says_type, "free_gpu_memory_fraction": "0.9"}
        yield f"{one.family}kv_cache_max_blocks", labels, float(tokens // 32)
        yield f"{one.family}kv_cache_tokens_per_block", labels, 32.0
        yield f"{one.family}kv_cache_utilization", labels, usage
        yield f"{one.family}kv_cache_config_info", {**labels, **config}, 1.0
    else:
        prefix = "lmdeploy:" if one.family == "lmdeploy" else ""
        for number in range(one.cards // one.parts):
            labels = {**named, "engine": str(number)} if prefix else named
            yield f"{prefix}gpu_cache_usage_perc", labels, usage
            yield f"{prefix}num_requests_running", labels, running
