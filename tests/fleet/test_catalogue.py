"""The catalogue is complete in itself, finds a model however it is written, and never makes one up."""

import pytest

from fleet.catalogue import CardModel, catalogue, find_model, parse_catalogue
from fleet.errors import Corrupt
from fleet.units import GIB


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("NVIDIA A10", "NVIDIA A10"),
        ("A10", "NVIDIA A10"),
        ("a10g", "NVIDIA A10G"),
        ("NVIDIA-A100-SXM4-80GB-SHARED", "NVIDIA A100-SXM4-80GB"),
        ("NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", "NVIDIA A100-SXM4-80GB"),
        ("Tesla T4", "Tesla T4"),
        ("L20", "NVIDIA L20"),
    ],
)
def test_a_model_is_found_however_it_is_written(written: str, name: str) -> None:
    model = find_model(written)
    assert model is not None
    assert model.name == name


@pytest.mark.parametrize("name", ["", "NVIDIA", "A100", "unknown-48GiB", "NVIDIA Z9000", "A" * 10_000])
def test_an_unknown_or_ambiguous_model_is_none(name: str) -> None:
    assert find_model(name) is None


def test_framebuffers_are_those_of_recorded_fleets() -> None:
    sizes = {name: model.framebuffer_bytes for name in ("NVIDIA A10", "NVIDIA L20") if (model := find_model(name))}
    assert sizes == {"NVIDIA A10": 24 * GIB, "NVIDIA L20": 48 * GIB}


@pytest.mark.parametrize("model", catalogue(), ids=lambda model: model.name)
def test_each_models_facts_hold_together(model: CardModel) -> None:
    assert model.framebuffer_bytes >= 8 * GIB
    assert 1 <= model.sms <= 200
    if model.price is not None:
        assert model.price.per_card_hour.amount > 0
        assert model.price.source
        assert len(model.price.date) == len("2026-01")
    if model.mig is not None:
        for profile in model.mig.profiles:
            assert all(start + profile.memory_slices <= model.mig.memory_slices for start in profile.starts)
            assert profile.count_max <= len(profile.starts)
            assert profile.count_max * profile.compute_slices <= model.mig.compute_slices
            if profile.framebuffer_bytes is not None:
                assert profile.count_max * profile.framebuffer_bytes <= model.framebuffer_bytes
            if profile.sms is not None:
                assert profile.count_max * profile.sms <= model.sms


def test_a_profile_is_of_its_card_and_not_of_its_name() -> None:
    found = {
        name: next(profile for profile in model.mig.profiles if profile.name == "1g.35gb")
        for name in ("NVIDIA H200", "NVIDIA GB300")
        if (model := find_model(name)) is not None and model.mig is not None
    }
    assert {name: (profile.count_max, profile.memory_slices) for name, profile in found.items()} == {
        "NVIDIA H200": (4, 2),
        "NVIDIA GB300": (7, 1),
    }


def test_models_without_a_trustworthy_price_have_none() -> None:
    assert [
        model.price for model in catalogue() if model.name in ("NVIDIA H20", "NVIDIA L20", "NVIDIA A800-SXM4-80GB")
    ] == [None] * 3


@pytest.mark.parametrize(
    "text",
    ["[", "", "mig_family = []\ncard_model = [{ name = 'x' }]", "mig_family = []\ncard_model = [1]",
     "mig_family = []\ncard_model = [" + "{name='A',framebuffer_gib=1,sms=1,watts_max=1}," * 2 + "]"],
)  # fmt: skip
def test_a_damaged_catalogue_is_corrupt(text: str) -> None:
    with pytest.raises(Corrupt):
        parse_catalogue(text)
