"""How large the KV cache of an inference server is, by what it says of itself.

SGLang measures its bytes. vLLM says how many tokens fit: bytes follow from the shape of its model's attention, which no
metric shows, so only models whose published configuration is known count, and only those in which every layer keeps
every token (no sliding window, latent attention or state-space layers). Others say tokens and not the type of their
values: then a cache is counted with the smallest type that there is, so that no need is counted too low. Of servers
that say neither bytes nor tokens nothing is known, for nothing bounds what they hold beside their weights: LMDeploy
leaves a fifth of what is free by default and any part on request, and NIM may choose weights of eight bits by itself.
An absent size costs advice, a wrong one costs framebuffer. Pure; called by `pipeline.records.sightings` and exporters.

Sources: `config.json` (num_hidden_layers, num_key_value_heads, head_dim or hidden_size / num_attention_heads) of
huggingface.co/meta-llama, Qwen, deepseek-ai, mistralai and microsoft/phi-4 for each name of `_SHAPES`; those of Llama
and Qwen compared with NVIDIA/NeMo:nemo/collections/llm/gpt/model. vllm-project/vllm:vllm/config/cache.py for the types
of values, and its data-parallel client, which gives every engine the blocks of all of them. The smallest types:
sgl-project/sglang:python/sglang/srt/server_args.py (kv_cache_dtype: four bits), NVIDIA/TensorRT-LLM (NVFP4), and
huggingface/text-generation-inference (eight bits). InternLM/lmdeploy:lmdeploy/messages.py (cache_max_entry_count).
That tokens which somebody set never keep a server from starting in less:
huggingface/text-generation-inference:backends/v3/src/lib.rs, NVIDIA/TensorRT-LLM:tensorrt_llm/llmapi (KvCacheConfig).
"""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import NamedTuple


class Pool(NamedTuple):
    """Bytes of a KV cache on each card of its server: the least and the most; the same where its size is known."""

    least: int
    most: int


class _Shape(NamedTuple):
    layers: int
    kv_heads: int
    head_dim: int


_SHAPES = MappingProxyType(
    {
        "llama-3-8b": _Shape(32, 8, 128),
        "llama-3-70b": _Shape(80, 8, 128),
        "llama-3.1-8b": _Shape(32, 8, 128),
        "llama-3.1-70b": _Shape(80, 8, 128),
        "llama-3.1-405b": _Shape(126, 8, 128),
        "llama-3.2-1b": _Shape(16, 8, 64),
        "llama-3.2-3b": _Shape(28, 8, 128),
        "llama-3.3-70b": _Shape(80, 8, 128),
        "qwen2.5-0.5b": _Shape(24, 2, 64),
        "qwen2.5-1.5b": _Shape(28, 2, 128),
        "qwen2.5-3b": _Shape(36, 2, 128),
        "qwen2.5-7b": _Shape(28, 4, 128),
        "qwen2.5-14b": _Shape(48, 8, 128),
        "qwen2.5-32b": _Shape(64, 8, 128),
        "qwen2.5-72b": _Shape(80, 8, 128),
        "qwen2.5-coder-7b": _Shape(28, 4, 128),
        "qwen2.5-coder-14b": _Shape(48, 8, 128),
        "qwen2.5-coder-32b": _Shape(64, 8, 128),
        "qwq-32b": _Shape(64, 8, 128),
        "qwen3-0.6b": _Shape(28, 8, 128),
        "qwen3-1.7b": _Shape(28, 8, 128),
        "qwen3-4b": _Shape(36, 8, 128),
        "qwen3-8b": _Shape(36, 8, 128),
        "qwen3-14b": _Shape(40, 8, 128),
        "qwen3-32b": _Shape(64, 8, 128),
        "qwen3-30b-a3b": _Shape(48, 4, 128),
        "qwen3-235b-a22b": _Shape(94, 4, 128),
        "deepseek-r1-distill-qwen-1.5b": _Shape(28, 2, 128),
        "deepseek-r1-distill-qwen-7b": _Shape(28, 4, 128),
        "deepseek-r1-distill-qwen-14b": _Shape(48, 8, 128),
        "deepseek-r1-distill-qwen-32b": _Shape(64, 8, 128),
        "deepseek-r1-distill-llama-8b": _Shape(32, 8, 128),
        "deepseek-r1-distill-llama-70b": _Shape(80, 8, 128),
        "mistral-7b-instruct-v0.2": _Shape(32, 8, 128),
        "mistral-7b-instruct-v0.3": _Shape(32, 8, 128),
        "mistral-nemo-instruct-2407": _Shape(40, 8, 128),
        "mistral-small-24b-instruct-2501": _Shape(40, 8, 128),
        "mixtral-8x7b-instruct-v0.1": _Shape(32, 8, 128),
        "mixtral-8x22b-instruct-v0.1": _Shape(56, 8, 128),
        "phi-4": _Shape(40, 10, 128),
    }
)
"""Attention of models by the last part of their name, without what `_VARIANT` matches."""
# Tuned variants and weights of four or eight bits keep the attention and the type of its values. A checkpoint in FP8
# may set the cache's type too, so that "auto" says nothing.
_VARIANT = re.compile(r"(-instruct|-base|-chat|-thinking)?(-2507)?(-awq|-gptq-int[48]|(?P<own_type>-fp8))?$")
_VALUE_BYTES = MappingProxyType(
    # Of all models above "auto" is bfloat16 or float16.
    {"auto": 2, "bfloat16": 2, "float16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}
)
_VALUE_BYTES_RANGE = (0.5, 2.0)
"""Bytes of a value of a type that nobody says."""


def pool_per_card(*, model: str, cache_dtype: str, tokens: int, cards: int) -> Pool | None:
    """How large a KV cache is on each card of its server.

    Keys and values of a token are 2 × layers × heads × size of a head × bytes of a value; tensor parallelism deals the
    heads out to cards, pipeline parallelism the layers, data parallelism the tokens.

    Args:
        model: name of the model: that of a hub, with or without its owner, or a folder's.
        cache_dtype: type of the cache's values as vLLM writes it; empty where nobody says it.
        tokens: tokens that fit into the cache, those of all cards.

    Returns:
        The bytes; None for a model or type that is not known, or where heads can't be dealt out evenly, so that cards
        may hold copies.
    """
    known = _known(model)
    if known is None or known.shape.kv_heads % cards:
        return None
    sizes = _VALUE_BYTES_RANGE
    if cache_dtype:
        value_bytes = _VALUE_BYTES.get(cache_dtype)
        if value_bytes is None or (known.has_own_type and cache_dtype == "auto"):
            return None
        sizes = (value_bytes, value_bytes)
    values = tokens * 2 * known.shape.layers * known.shape.kv_heads * known.shape.head_dim // cards
    least, most = (int(values * size) for size in sizes)
    return Pool(least, most)


def model_known(*names: str | None) -> str | None:
    """The name of the one published model that names speak of; None where they name none, or several unlike ones."""
    known = {name: found for name in names if name is not None and (found := _known(name)) is not None}
    return next(iter(known)) if len(set(known.values())) == 1 else None


class _Known(NamedTuple):
    shape: _Shape
    has_own_type: bool


def _known(model: str) -> _Known | None:
    name = model.rstrip("/").rpartition("/")[2].lower().removeprefix("meta-")
    if name in _SHAPES:
        return _Known(_SHAPES[name], has_own_type=False)
    variant = _VARIANT.search(name)
    shape = None if variant is None else _SHAPES.get(name[: variant.start()])
    return None if variant is None or shape is None else _Known(shape, has_own_type=bool(variant["own_type"]))
