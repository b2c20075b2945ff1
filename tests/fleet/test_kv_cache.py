"""The size of a KV cache follows from what a server says only where it is sure."""

from __future__ import annotations

import pytest

from fleet.kv_cache import Pool, model_known, pool_per_card


def size(model: str = "meta-llama/Llama-3.1-8B", cache_dtype: str = "auto", cards: int = 1) -> int | None:
    found = pool_per_card(model=model, cache_dtype=cache_dtype, tokens=1000, cards=cards)
    assert found is None or found.least == found.most
    return None if found is None else found.least


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


@pytest.mark.parametrize("value_bytes", [2.0, 1.0, 0.5625, 0.5])
@pytest.mark.parametrize("model", ["Llama-3.1-8B", "Llama-3.1-8B-Instruct-FP8", "Llama-3.1-8B-Instruct-AWQ"])
def test_a_type_that_nobody_says_may_be_the_smallest(model: str, value_bytes: float) -> None:
    found = pool_per_card(model=model, cache_dtype="", tokens=160_000, cards=2)
    assert found is not None
    assert found.least <= 160_000 * 65_536 * value_bytes // 2 <= found.most


def test_nothing_is_said_of_models_that_nobody_knows() -> None:
    assert pool_per_card(model="ours", cache_dtype="", tokens=160_000, cards=1) is None
    assert pool_per_card(model="Llama-3.1-8B", cache_dtype="", tokens=0, cards=1) == Pool(0, 0)


@pytest.mark.parametrize(
    ("names", "known"),
    [
        (("meta-llama/Llama-3.1-8B", None), "meta-llama/Llama-3.1-8B"),
        (("llama-3.1-8b-instruct", "models"), "llama-3.1-8b-instruct"),
        (("prod-chat", "Llama-3.1-8B"), "Llama-3.1-8B"),
        (("meta/llama-3.1-8b-instruct", "Meta-Llama-3.1-8B"), "meta/llama-3.1-8b-instruct"),
        (("Llama-3.1-8B", "Qwen2.5-14B"), None),
        (("Llama-3.1-8B-Instruct", "Llama-3.1-8B-Instruct-FP8"), None),
        (("ours", "&&"), None),
        ((None, None), None),
    ],
)
def test_names_must_speak_of_one_model(names: tuple[str | None, ...], known: str | None) -> None:
    assert model_known(*names) == known
