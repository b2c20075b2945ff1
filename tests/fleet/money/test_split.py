"""A card hour is split without loss, by rules that a person can check with a pencil."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.money.split import MILLION, CardHours, Parts, Split, split_card_hours

SHARES = st.one_of(
    st.sampled_from([0.0, 0.1, 0.25, 1 / 3, 0.5, 2 / 3, 1.0]), st.floats(0.0, 1.0, allow_subnormal=False)
)
USED = st.one_of(st.just(float("nan")), SHARES)
TENANTS = st.lists(st.tuples(SHARES, SHARES, USED, USED), max_size=9)
"""Compute and framebuffer granted and used, per tenant of one card hour."""

Tenant = tuple[float, float, float, float]


def split(hours: list[list[Tenant]], *, compute_ratio: float = 0.5, blended_use_ratio: float = 0.5) -> Split:
    rows = [tenant for hour in hours for tenant in hour]
    columns = np.array(rows, float).reshape(len(rows), 4)
    return split_card_hours(
        CardHours(
            count=len(hours),
            card_hour=np.repeat(np.arange(len(hours)), [len(hour) for hour in hours]).astype(np.int64),
            compute_granted=columns[:, 0],
            framebuffer_granted=columns[:, 1],
            compute_used=columns[:, 2],
            framebuffer_used=columns[:, 3],
        ),
        compute_ratio=compute_ratio,
        blended_use_ratio=blended_use_ratio,
    )


def one(*tenants: Tenant, compute_ratio: float = 0.5) -> tuple[list[int], int, int]:
    """Parts, idle and stranded of one card hour by allocation."""
    parts = split([list(tenants)], compute_ratio=compute_ratio).allocation
    return parts.rows.tolist(), int(parts.idle[0]), int(parts.stranded[0])


def granted(compute: float, framebuffer: float) -> Tenant:
    return (compute, framebuffer, float("nan"), float("nan"))


@settings(max_examples=150, deadline=None)
@given(st.lists(TENANTS, min_size=1, max_size=4), st.floats(0, 1), st.floats(0, 1))
def test_parts_idle_and_stranded_are_the_card_hour_and_none_is_negative(
    hours: list[list[Tenant]], compute_ratio: float, blended_use_ratio: float
) -> None:
    found = split(hours, compute_ratio=compute_ratio, blended_use_ratio=blended_use_ratio)
    place = np.repeat(np.arange(len(hours)), [len(hour) for hour in hours])
    for parts in (found.allocation, found.use, found.blended):
        total = np.bincount(place, weights=parts.rows, minlength=len(hours)) + parts.idle + parts.stranded
        assert total.tolist() == [MILLION] * len(hours)
        assert min([*parts.rows.tolist(), *parts.idle.tolist(), *parts.stranded.tolist()]) >= 0


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(SHARES, SHARES), max_size=7), st.sampled_from([0.0, 0.5, 0.75, 1.0]))
def test_every_part_is_within_a_millionth_of_the_formula_in_fractions(
    grants: list[tuple[float, float]], weight: float
) -> None:
    rows, idle, stranded = one(*(granted(*grant) for grant in grants), compute_ratio=weight)
    exact = [(Fraction(compute), Fraction(framebuffer)) for compute, framebuffer in grants]
    compute_sum, framebuffer_sum = (sum((grant[side] for grant in exact), Fraction(0)) for side in (0, 1))
    w = Fraction(weight)
    parts = [w * c / max(Fraction(1), compute_sum) + (1 - w) * m / max(Fraction(1), framebuffer_sum) for c, m in exact]
    taken = max(min(Fraction(1), compute_sum), min(Fraction(1), framebuffer_sum))
    wanted = [*parts, 1 - taken, taken - sum(parts, Fraction(0))]
    assert all(
        abs(got - share * MILLION) < 1 + Fraction(1, 1000)
        for got, share in zip([*rows, idle, stranded], wanted, strict=True)
    )


def test_three_equal_tenants_differ_by_a_millionth_at_most_and_lose_nothing() -> None:
    assert sorted(one(*[granted(1 / 3, 1 / 3)] * 3)[0]) == [333_333, 333_333, 333_334]


def test_full_framebuffer_strands_the_compute_that_is_left() -> None:
    # 40 % of compute and all framebuffer are taken: the other 60 % of compute, worth 30 % of the card, serve nobody.
    assert one(granted(0.1, 0.25), granted(0.3, 0.75)) == ([175_000, 525_000], 0, 300_000)


def test_what_can_still_be_granted_in_both_is_idle_and_not_stranded() -> None:
    assert one(granted(0.25, 0.25)) == ([250_000], 750_000, 0)
    assert one() == ([], MILLION, 0)


def test_a_bill_depends_on_its_own_grant_until_the_card_is_oversubscribed() -> None:
    alone, beside = one(granted(0.5, 0.5)), one(granted(0.5, 0.5), granted(0.4, 0.1))
    assert alone[0][0] == beside[0][0] == 500_000


def test_oversubscribed_grants_are_scaled_to_the_card_and_the_ratio_is_told() -> None:
    found = split([[granted(1.0, 0.5), granted(1.0, 0.5)], [granted(0.5, 0.2)]])
    assert found.allocation.rows.tolist() == [500_000, 500_000, 350_000]
    assert found.density.tolist() == [2.0, 0.5]


def test_by_use_a_tenant_pays_what_it_used_and_the_rest_is_idle() -> None:
    found = split([[(1.0, 1.0, 0.2, 0.6)]])
    assert (found.use.rows.tolist(), found.use.idle.tolist()) == ([400_000], [600_000])
    assert (found.blended.rows.tolist(), found.blended.idle.tolist()) == ([700_000], [300_000])


def test_a_tenant_that_was_not_measured_counts_as_granted_and_not_as_nothing() -> None:
    found = split([[granted(0.5, 0.5), (0.5, 0.5, 0.0, 0.0)]])
    assert found.use.rows.tolist() == [500_000, 0]


def test_blended_lies_between_the_two_as_the_setting_says() -> None:
    hours: list[list[Tenant]] = [[(1.0, 1.0, 0.0, 0.0)]]
    by_use = [split(hours, blended_use_ratio=ratio).blended.rows.tolist() for ratio in (0.0, 0.25, 1.0)]
    assert by_use == [[1_000_000], [750_000], [0]]


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_a_price_may_stand_for_one_of_the_two_alone(weight: float) -> None:
    rows, idle, stranded = one(granted(0.2, 0.6), compute_ratio=weight)
    assert rows == [200_000 if weight else 600_000]
    assert rows[0] + idle + stranded == MILLION


def test_no_card_hours_split_into_nothing() -> None:
    empty = split([])
    assert isinstance(empty.allocation, Parts)
    assert empty.allocation.idle.tolist() == []
