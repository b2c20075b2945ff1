"""How large the KV cache of an inference server is, by what it says of itself.

SGLang measures its bytes. vLLM says how many tokens fit: bytes follow from the shape of its model's attention, which no
metric shows, so only models whose published configuration is known count, and only those in which every layer keeps
every token (no sliding window, latent attention or state-space layers). What is not sure to 3 % is not known: an absent
size costs advice, a wrong one costs framebuffer. Of servers that say less, the framebuffer that they hold shows between
what their cache lies (`estimated_pool`), and needs are counted with the least. Pure; called by
`pipeline.records.sightings` and `pipeline.warehouse.estimated_pools`.

Sources: `config.json` (num_hidden_layers, num_key_value_heads, head_dim or hidden_size / num_attention_heads) and the
number of parameters of huggingface.co/meta-llama, Qwen, deepseek-ai, mistralai and microsoft/phi-4 for each name of
`_SHAPES`; those of Llama and Qwen compared with NVIDIA/NeMo:nemo/collections/llm/gpt/model.
vllm-project/vllm:vllm/config/cache.py for the types of values, and its data-parallel client, which gives every engine
the blocks of all of them.
"""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import NamedTuple

from fleet.inventory import KvCache
from fleet.units import GIB


class _Shape(NamedTuple):
    layers: int
    kv_heads: int
    head_dim: int
    billions: float
    """Parameters."""


_SHAPES = MappingProxyType(
    {
        "llama-3-8b": _Shape(32, 8, 128, 8.030),
        "llama-3-70b": _Shape(80, 8, 128, 70.554),
        "llama-3.1-8b": _Shape(32, 8, 128, 8.030),
        "llama-3.1-70b": _Shape(80, 8, 128, 70.554),
        "llama-3.1-405b": _Shape(126, 8, 128, 405.853),
        "llama-3.2-1b": _Shape(16, 8, 64, 1.236),
        "llama-3.2-3b": _Shape(28, 8, 128, 3.213),
        "llama-3.3-70b": _Shape(80, 8, 128, 70.554),
        "qwen2.5-0.5b": _Shape(24, 2, 64, 0.494),
        "qwen2.5-1.5b": _Shape(28, 2, 128, 1.544),
        "qwen2.5-3b": _Shape(36, 2, 128, 3.086),
        "qwen2.5-7b": _Shape(28, 4, 128, 7.616),
        "qwen2.5-14b": _Shape(48, 8, 128, 14.770),
        "qwen2.5-32b": _Shape(64, 8, 128, 32.764),
        "qwen2.5-72b": _Shape(80, 8, 128, 72.706),
        "qwen2.5-coder-7b": _Shape(28, 4, 128, 7.616),
        "qwen2.5-coder-14b": _Shape(48, 8, 128, 14.770),
        "qwen2.5-coder-32b": _Shape(64, 8, 128, 32.764),
        "qwq-32b": _Shape(64, 8, 128, 32.764),
        "qwen3-0.6b": _Shape(28, 8, 128, 0.596),
        "qwen3-1.7b": _Shape(28, 8, 128, 1.721),
        "qwen3-4b": _Shape(36, 8, 128, 4.022),
        "qwen3-8b": _Shape(36, 8, 128, 8.191),
        "qwen3-14b": _Shape(40, 8, 128, 14.768),
        "qwen3-32b": _Shape(64, 8, 128, 32.762),
        "qwen3-30b-a3b": _Shape(48, 4, 128, 30.532),
        "qwen3-235b-a22b": _Shape(94, 4, 128, 235.094),
        "deepseek-r1-distill-qwen-1.5b": _Shape(28, 2, 128, 1.777),
        "deepseek-r1-distill-qwen-7b": _Shape(28, 4, 128, 7.616),
        "deepseek-r1-distill-qwen-14b": _Shape(48, 8, 128, 14.770),
        "deepseek-r1-distill-qwen-32b": _Shape(64, 8, 128, 32.764),
        "deepseek-r1-distill-llama-8b": _Shape(32, 8, 128, 8.030),
        "deepseek-r1-distill-llama-70b": _Shape(80, 8, 128, 70.554),
        "mistral-7b-instruct-v0.2": _Shape(32, 8, 128, 7.242),
        "mistral-7b-instruct-v0.3": _Shape(32, 8, 128, 7.248),
        "mistral-nemo-instruct-2407": _Shape(40, 8, 128, 12.248),
        "mistral-small-24b-instruct-2501": _Shape(40, 8, 128, 23.572),
        "mixtral-8x7b-instruct-v0.1": _Shape(32, 8, 128, 46.703),
        "mixtral-8x22b-instruct-v0.1": _Shape(56, 8, 128, 140.630),
        "phi-4": _Shape(40, 10, 128, 14.660),
    }
)
"""Attention of models by the last part of their name, without what `_VARIANT` matches."""
# Tuned variants and weights of four or eight bits keep the attention and the type of its values. A checkpoint in FP8
# may set the cache's type too, so that "auto" says nothing.
_VARIANT = re.compile(
    r"(-instruct|-base|-chat|-thinking)?(-2507)?(?P<quantised>-awq|-gptq-int[48]|(?P<own_type>-fp8))?$"
)
_VALUE_BYTES = MappingProxyType(
    # Of all models above "auto" is bfloat16 or float16.
    {"auto": 2, "bfloat16": 2, "float16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}
)
_WEIGHT_BYTES = 2
_OVERHEAD_BYTES = (GIB // 2, 7 * GIB // 2)
"""What a server holds beside weights and cache: CUDA's context and libraries, activations, CUDA graphs."""


def pool_bytes_per_card(cache: KvCache) -> int | None:
    """Bytes of a KV cache on each card of its server.

    Keys and values of a token are 2 × layers × heads × size of a head × bytes of a value; tensor parallelism deals the
    heads out to cards, pipeline parallelism the layers, data parallelism the tokens.

    Args:
        cache: what is said of it; a model by its name on a hub, with or without its owner, or by that of a folder.

    Returns:
        The bytes; None for a model or type that is not known, or where heads can't be dealt out evenly, so that cards
        may hold copies.
    """
    value_bytes = _VALUE_BYTES.get(cache.cache_dtype)
    known = _known(cache.model)
    if value_bytes is None or known is None or (known.has_own_type and cache.cache_dtype == "auto"):
        return None
    return _bytes_per_card(known.shape, cache, value_bytes)


def estimated_pool(cache: KvCache, used_bytes: float) -> tuple[int, int] | None:
    """Between what the KV cache of a server lies on each card, by the framebuffer that it holds.

    Beside weights and KV cache a server holds `_OVERHEAD_BYTES` of other things. Where tokens are known and the type of
    their values is not, only those types count with which all of it fits into what is held.

    Args:
        cache: what is said of it.
        used_bytes: framebuffer that its server holds on a card as a rule, in work or not.

    Returns:
        The least and the most, bytes; None for a model whose weights are not known, or where nothing fits.
    """
    known = _known(cache.model)
    if known is None or known.is_quantised or cache.cache_dtype:
        return None
    weights = known.shape.billions * 1e9 * _WEIGHT_BYTES / cache.cards
    least, most = (int(used_bytes - weights - overhead) for overhead in reversed(_OVERHEAD_BYTES))
    if cache.tokens is None:
        return (least, most) if least > 0 else None
    sizes = [_bytes_per_card(known.shape, cache, value_bytes) for value_bytes in sorted(set(_VALUE_BYTES.values()))]
    fitting = [size for size in sizes if size is not None and least <= size <= most]
    return (fitting[0], fitting[-1]) if fitting else None


class _Known(NamedTuple):
    shape: _Shape
    has_own_type: bool
    is_quantised: bool


def _known(model: str) -> _Known | None:
    name = model.rstrip("/").rpartition("/")[2].lower().removeprefix("meta-")
    if name in _SHAPES:
        return _Known(_SHAPES[name], has_own_type=False, is_quantised=False)
    variant = _VARIANT.search(name)
    shape = None if variant is None else _SHAPES.get(name[: variant.start()])
    if variant is None or shape is None:
        return None
    return _Known(shape, has_own_type=bool(variant["own_type"]), is_quantised=bool(variant["quantised"]))


def _bytes_per_card(shape: _Shape, cache: KvCache, value_bytes: int) -> int | None:
    if cache.tokens is None or shape.kv_heads % cache.cards:
        return None
    return cache.tokens * 2 * shape.layers * shape.kv_heads * shape.head_dim * value_bytes // cache.cards
