"""How large the KV cache of an inference server is, by what it says of itself.

SGLang measures its bytes. vLLM says how many tokens fit: bytes follow from the shape of its model's attention, which no
metric shows, so only models whose published configuration is known count, and only those in which every layer keeps
every token (no sliding window, latent attention or state-space layers). What is not sure to 3 % is not known: an absent
size costs advice, a wrong one costs framebuffer. Pure; called by `pipeline.records.sightings`.

Sources: `config.json` (num_hidden_layers, num_key_value_heads, head_dim or hidden_size / num_attention_heads) of
huggingface.co/meta-llama, Qwen, deepseek-ai, mistralai and microsoft/phi-4 for each name of `_SHAPES`; those of Llama
and Qwen compared with NVIDIA/NeMo:nemo/collections/llm/gpt/model. vllm-project/vllm:vllm/config/cache.py for the types
of values, and its data-parallel client, which gives every engine the blocks of all of them.
"""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import NamedTuple


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


def pool_bytes_per_card(*, model: str, cache_dtype: str, tokens: int, cards: int) -> int | None:
    """Bytes of a KV cache on each card of its server.

    Keys and values of a token are 2 × layers × heads × size of a head × bytes of a value; tensor parallelism deals the
    heads out to cards, pipeline parallelism the layers, data parallelism the tokens.

    Args:
        model: name of the model as the server writes it: that of a hub, with or without its owner, or a folder's.
        cache_dtype: type of the cache's values as vLLM writes it.
        tokens: tokens that fit into the cache, those of all cards.
        cards: cards that the server has.

    Returns:
        The bytes; None for a model or type that is not known, or where heads can't be dealt out evenly, so that cards
        may hold copies.
    """
    name = model.rstrip("/").rpartition("/")[2].lower().removeprefix("meta-")
    variant = _VARIANT.search(name)
    shape = _SHAPES.get(name) or (None if variant is None else _SHAPES.get(name[: variant.start()]))
    value_bytes = _VALUE_BYTES.get(cache_dtype)
    if shape is None or value_bytes is None or shape.kv_heads % cards:
        return None
    if variant is not None and variant["own_type"] and cache_dtype == "auto":
        return None
    return tokens * 2 * shape.layers * shape.kv_heads * shape.head_dim * value_bytes // cards
