"""Cutting cards: valid and invalid layouts as NVIDIA documents them, fewest cards, fewest cards cut anew."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.catalogue import MigFamily, catalogue, find_model
from fleet.errors import Misconfigured
from fleet.units import GIB
from recommender.mig.geometry import (
    FRAMEBUFFER_RATIO_MIN,
    MigCard,
    MigPlacement,
    cards_bound,
    is_valid_layout,
    maximal_layouts,
    plan_geometry,
    smallest_profile,
)

FAMILIES = {model.mig.name: model.mig for model in catalogue() if model.mig is not None}
A100 = FAMILIES["a100-40gb"]
A30 = FAMILIES["a30-24gb"]


def layout(text: str) -> tuple[MigPlacement, ...]:
    """`3g.20gb@0 1g.5gb@4` as placements."""
    pairs = (word.split("@") for word in text.split())
    return tuple(MigPlacement(start=int(start), profile=profile) for profile, start in pairs)


@pytest.mark.parametrize(
    ("family", "text"),
    [
        (A100, "1g.5gb@0 1g.5gb@1 1g.5gb@2 1g.5gb@3 1g.5gb@4 1g.5gb@5 1g.5gb@6"),
        (A100, "1g.10gb@0 1g.10gb@2 1g.10gb@4 1g.10gb@6"),
        (A100, "2g.10gb@0 2g.10gb@2 2g.10gb@4 1g.5gb@6"),
        (A100, "3g.20gb@0 3g.20gb@4"),
        (A100, "4g.20gb@0 3g.20gb@4"),
        (A100, "4g.20gb@0 2g.10gb@4 1g.5gb@6"),
        (A100, "1g.5gb@0 1g.5gb@1 2g.10gb@2 3g.20gb@4"),
        (A100, "1g.5gb+me@6 3g.20gb@0"),
        (A100, "7g.40gb@0"),
        (A30, "2g.12gb@0 1g.6gb@2 1g.6gb@3"),
        (A30, "1g.6gb+me@0 1g.6gb@1 2g.12gb@2"),
        (FAMILIES["rtx-pro-6000-96gb"], "2g.48gb@0 1g.24gb@2 1g.24gb+me@3"),
        # What NVIDIA's mig-manager calls balanced (NVIDIA/mig-parted:deployments/systemd/config-default.yaml).
        (FAMILIES["gb200-186gb"], "1g.23gb@0 1g.23gb@1 2g.47gb@2 3g.93gb@4"),
        (FAMILIES["b300-269gb"], "1g.34gb@0 1g.34gb@1 2g.67gb@2 3g.135gb@4"),
        (FAMILIES["gb300-278gb"], "1g.35gb@0 1g.35gb@1 2g.70gb@2 3g.139gb@4"),
        (FAMILIES["gh200-144gb"], "1g.18gb@0 1g.18gb@1 2g.36gb@2 3g.72gb@4"),
        (FAMILIES["rtx-pro-6000-96gb"], "2g.48gb-me@0 1g.24gb-me@2 1g.24gb+me.all@3"),
    ],
)
def test_layout_that_the_guide_shows_is_valid(family: MigFamily, text: str) -> None:
    assert is_valid_layout(family, layout(text))


@pytest.mark.parametrize(
    ("family", "text", "why"),
    [
        (A100, "4g.20gb@0 4g.20gb@4", "4g starts at 0 only"),
        (A100, "3g.20gb@0 3g.20gb@4 1g.5gb@6", "two 3g take all memory slices, though a compute slice is left"),
        (A100, "1g.5gb@0 3g.20gb@1", "3g starts at 0 or 4"),
        (A100, "1g.5gb@0 4g.20gb@0", "they overlap"),
        (A100, "2g.10gb@6", "2g starts at 0, 2 or 4"),
        (A100, "1g.5gb@7", "no compute slice at the last memory slice"),
        (A100, "2g.10gb@0 2g.10gb@2 2g.10gb@4 2g.10gb@6", "three 2g at most"),
        (A100, "7g.40gb@0 1g.5gb@6", "7g is the whole card"),
        (A100, "1g.5gb+me@0 1g.5gb+me@1", "one instance has the media engines"),
        (A30, "1g.6gb+me@0 2g.12gb+me@2", "one instance has the media engines, whatever its profile"),
        (A30, "4g.24gb@0 1g.6gb@0", "4g is the whole card"),
        (A30, "2g.12gb@1", "2g starts at 0 or 2"),
        (FAMILIES["rtx-pro-5000-48gb"], "2g.48gb@0 1g.24gb@1", "2g is the whole card"),
        (FAMILIES["rtx-pro-6000-96gb"], "2g.48gb@0 1g.24gb+me.all@2", "beside all media engines others have none"),
        (FAMILIES["rtx-pro-6000-96gb"], "1g.24gb-me@0 1g.24gb+gfx@1 2g.48gb+me.all@2", "one of the others has some"),
    ],
)
def test_layout_that_no_card_can_have_is_not_valid(family: MigFamily, text: str, why: str) -> None:
    assert not is_valid_layout(family, layout(text)), why


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_maximal_layouts_are_valid_and_none_holds_another(family: MigFamily) -> None:
    counts = []
    for found in maximal_layouts(family):
        assert is_valid_layout(family, found)
        counts.append(Counter(placement.profile for placement in found))
    assert not any(a is not b and a <= b for a in counts for b in counts)
    for profile in family.profiles:
        assert max(count[profile.name] for count in counts) == profile.count_max


def test_sum_of_slices_is_not_trusted() -> None:
    demand = {"3g.20gb": 2, "1g.5gb": 1}
    assert sum(int(name[0]) * count for name, count in demand.items()) == A100.compute_slices
    assert plan_geometry(A100, demand).cards == 2


def test_small_instances_fill_the_gaps_of_large_ones() -> None:
    found = plan_geometry(A100, {"4g.20gb": 2, "2g.10gb": 2, "1g.5gb": 2})
    assert (found.cards, found.cards_bound) == (2, 2)


def test_card_that_serves_as_it_is_is_not_cut_anew() -> None:
    cards = [
        MigCard(card="GPU-0"),
        MigCard(card="GPU-1", layout=layout("3g.20gb@0 3g.20gb@4")),
        MigCard(card="GPU-2", layout=layout("7g.40gb@0")),
    ]
    found = plan_geometry(A100, {"3g.20gb": 3}, cards=cards)
    assert [(cut.card, cut.is_recut) for cut in found.cuts] == [("GPU-1", False), ("GPU-0", True)]
    assert found.cuts[0].served == (("3g.20gb", 2),)
    assert found.cuts[1].served == (("3g.20gb", 1),)


def test_fewer_cards_go_before_fewer_cuts() -> None:
    cards = [MigCard(card=f"GPU-{number}", layout=layout("1g.5gb@0")) for number in range(7)]
    found = plan_geometry(A100, {"1g.5gb": 7}, cards=cards)
    assert [cut.is_recut for cut in found.cuts] == [True]


def test_pinned_card_stays_and_serves_with_what_it_has() -> None:
    cards = [MigCard(card="GPU-0", layout=layout("2g.10gb@0"), is_pinned=True), MigCard(card="GPU-1")]
    found = plan_geometry(A100, {"2g.10gb": 4}, cards=cards)
    assert [(cut.card, cut.is_recut, cut.served) for cut in found.cuts] == [
        ("GPU-0", False, (("2g.10gb", 1),)),
        ("GPU-1", True, (("2g.10gb", 3),)),
    ]
    assert found.cards_bound == 2


def test_cards_that_are_missing_are_counted_without_a_name() -> None:
    found = plan_geometry(A30, {"4g.24gb": 2}, cards=[MigCard(card="GPU-0")])
    assert [cut.card for cut in found.cuts] == ["GPU-0", None]


def test_nothing_wanted_needs_no_card() -> None:
    assert plan_geometry(A100, {"1g.5gb": 0}).cards == 0
    assert cards_bound(A100, {}) == 0


@pytest.mark.parametrize("demand", [{"9g.99gb": 1}, {"1g.5gb": -1}])
def test_demand_that_no_card_knows_is_refused(demand: dict[str, int]) -> None:
    with pytest.raises(Misconfigured, match="cannot plan MIG"):
        plan_geometry(A100, demand)


def test_card_with_an_impossible_layout_is_refused() -> None:
    with pytest.raises(Misconfigured, match="GPU-0"):
        plan_geometry(A100, {"1g.5gb": 1}, cards=[MigCard(card="GPU-0", layout=layout("3g.20gb@1"))])


@settings(max_examples=40, deadline=None)
@given(data=st.data(), name=st.sampled_from(sorted(FAMILIES)))
def test_plan_serves_all_within_one_card_of_the_bound(data: st.DataObject, name: str) -> None:
    family = FAMILIES[name]
    demand = {profile.name: data.draw(st.integers(0, 9)) for profile in family.profiles}
    present = data.draw(st.lists(st.sampled_from(maximal_layouts(family)), max_size=3))
    cards = [MigCard(card=f"GPU-{number}", layout=found) for number, found in enumerate(present)]
    plan = plan_geometry(family, demand, cards=cards)
    served: Counter[str] = Counter()
    for cut in plan.cuts:
        assert is_valid_layout(family, cut.layout)
        assert Counter(dict(cut.served)) <= Counter(placement.profile for placement in cut.layout)
        served.update(dict(cut.served))
    assert +served == +Counter(demand)
    assert plan.cards_bound <= plan.cards <= plan.cards_bound + 1
    named = [cut.card for cut in plan.cuts if cut.card is not None]
    assert len(set(named)) == len(named)


def test_smallest_profile_holds_framebuffer_and_compute() -> None:
    model = find_model("NVIDIA A100-SXM4-40GB")
    assert model is not None

    def name(gib: float, compute: float) -> str | None:
        found = smallest_profile(model, framebuffer_bytes=int(gib * GIB), compute_ratio=compute)
        return found.name if found is not None else None

    assert name(4, 0.1) == "1g.5gb"
    assert name(5, 0.1) == "1g.10gb"
    assert name(4, 0.2) == "2g.10gb"
    assert name(19, 0.5) == "4g.20gb"
    assert name(39.38, 0.9) == "7g.40gb"
    assert name(41, 0.1) is None


def test_card_without_mig_has_no_profile() -> None:
    model = find_model("NVIDIA A10")
    assert model is not None
    assert smallest_profile(model, framebuffer_bytes=1, compute_ratio=0.0) is None


def test_framebuffer_of_a_profile_that_was_never_verified_is_taken_with_care() -> None:
    model = find_model("NVIDIA B200")
    assert model is not None
    found = smallest_profile(model, framebuffer_bytes=22 * GIB, compute_ratio=0.1)
    assert found is not None
    assert found.name == "1g.45gb"


def test_share_that_stands_for_unverified_profiles_is_below_every_verified_one() -> None:
    for model in catalogue():
        for profile in model.mig.profiles if model.mig is not None else ():
            if profile.framebuffer_bytes is not None and model.mig is not None:
                share = model.framebuffer_bytes * profile.memory_slices / model.mig.memory_slices
                assert profile.framebuffer_bytes / share >= FRAMEBUFFER_RATIO_MIN
