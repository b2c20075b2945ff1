"""The size of a KV cache follows from what a server says only where it is sure."""

from __future__ import annotations

import pytest

from fleet.inventory import KvCache
from fleet.kv_cache import pool_bytes_per_card


def size(model: str = "meta-llama/Llama-3.1-8B", cache_dtype: str = "auto", cards: int = 1) -> int | None:
    return pool_bytes_per_card(KvCache(model=model, cache_dtype=cache_dtype, tokens=1000, cards=cards))


@pytest.mark.parametrize(
    ("model", "token_bytes"),
    [
        ("meta-llama/Llama-3.1-8B", 131_072),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", 131_072),
        ("/models/Llama-3.3-70B-Instruct/", 327_680),
        ("hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ", 131_072),
        ("Qwen/Qwen2.5-7B-Instruct-GPTQ-Int4", 57_344),
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", 98_304),
        ("mistralai/Mistral-7B-Instruct-v0.3", 131_072),
        ("microsoft/phi-4", 204_800),
    ],
)
def test_a_published_model_is_known_by_its_name(model: str, token_bytes: int) -> None:
    assert size(model) == 1000 * token_bytes


@pytest.mark.parametrize(
    "model",
    [
        "", "/", "llama-8b", "gpt-4o", "Llama-3.1-8B-Instruct-FP8", "Llama-3.1-8B-Instruct-ours", "my-llama-3.1-8b",
        # A sliding window, latent attention, layers without attention.
        "mistralai/Mistral-7B-Instruct-v0.1", "deepseek-ai/DeepSeek-V3", "Qwen/Qwen3-Next-80B-A3B-Instruct",
        "-" * 100_000,
    ],
    ids=lambda model: model[:30],
)  # fmt: skip
def test_other_models_are_not(model: str) -> None:
    assert size(model) is None


def test_the_type_of_the_values_counts() -> None:
    assert size(cache_dtype="fp8_e4m3") == size() // 2  # type: ignore[operator]
    assert size("Llama-3.1-8B-Instruct-FP8", "fp8") == size(cache_dtype="fp8")
    assert size(cache_dtype="int4_per_token") is None


def test_cards_share_the_heads_where_these_divide() -> None:
    assert size(cards=4) == 1000 * 131_072 // 4
    assert size(cards=3) is None
    assert size(cards=16) is None, "more cards than heads hold copies"
