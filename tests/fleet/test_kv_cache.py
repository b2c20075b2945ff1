"""The size of a KV cache follows from what a server says only where it is sure."""

from __future__ import annotations

import pytest

from fleet.inventory import KvCache
from fleet.kv_cache import estimated_pool, pool_bytes_per_card
from fleet.units import GIB


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


LLAMA_WEIGHTS = 16_060_522_496
"""Bytes of its files."""


def estimate(
    beside_gib: float,
    *,
    tokens: int | None = None,
    token_bytes: int = 131_072,
    model: str = "Llama-3.1-8B",
    cards: int = 1,
) -> tuple[int, int] | None:
    """What is said of a server that holds weights, a cache of 20 GiB or of some tokens, and other things."""
    pool = 20 * GIB if tokens is None else tokens * token_bytes // cards
    cache = KvCache(model=model, cache_dtype="", tokens=tokens, cards=cards)
    return estimated_pool(cache, LLAMA_WEIGHTS / cards + beside_gib * GIB + pool)


@pytest.mark.parametrize("beside_gib", [0.6, 2.0, 3.4])
@pytest.mark.parametrize("cards", [1, 2])
def test_framebuffer_without_weights_says_between_what_a_cache_lies(beside_gib: float, cards: int) -> None:
    found = estimate(beside_gib, cards=cards)
    assert found is not None
    assert found[0] <= 20 * GIB <= found[1]
    assert found[1] - found[0] == pytest.approx(3 * GIB, abs=2)


@pytest.mark.parametrize("token_bytes", [131_072, 65_536])
@pytest.mark.parametrize("beside_gib", [0.6, 3.4])
def test_framebuffer_says_of_which_type_the_values_of_known_tokens_are(token_bytes: int, beside_gib: float) -> None:
    assert estimate(beside_gib, tokens=160_000, token_bytes=token_bytes) == (160_000 * token_bytes,) * 2


def test_a_small_cache_of_known_tokens_may_be_of_either_type() -> None:
    assert estimate(1.0, tokens=10_000) == (10_000 * 65_536, 10_000 * 131_072)


@pytest.mark.parametrize("model", ["ours", "Llama-3.1-8B-Instruct-AWQ", "Llama-3.1-8B-Instruct-FP8"])
def test_weights_that_are_not_known_say_nothing(model: str) -> None:
    assert estimate(2.0, model=model) is None


def test_nothing_is_said_where_it_does_not_fit_what_is_held() -> None:
    assert estimate(9.0, tokens=160_000) is None
    assert estimated_pool(KvCache(model="Llama-3.1-8B", cache_dtype="", tokens=None, cards=1), 10 * GIB) is None
