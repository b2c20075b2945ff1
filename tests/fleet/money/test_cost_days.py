"""Days that are cut and grouped say what the bill of the same days says, to the cent."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.inventory import Grant
from fleet.money.charges import Owner, chargeback
from fleet.money.cost_days import GROUPS, CostDays, cost_days
from fleet.money.tenancies import Tenancies
from fleet.money.week_hours import part_of
from fleet.profiles import HourMeasure
from tests.fleet.money.builders import BILLED, DAY, a_card, a_day, a_grant, measured, settled

MODELS = ("NVIDIA A10", "NVIDIA H100 80GB HBM3", "Nobody knows")


def a_fleet(shares: list[float]) -> Tenancies:
    """A card for each share, of three models on two nodes, held by three teams; a share of 0 leaves it free."""
    cards = [a_card(number, model=MODELS[number % 3], node=f"n-{number % 2}") for number in range(len(shares))]
    grants: list[Grant] = [
        a_grant(
            number, f"pod-{number}", share=share, namespace=f"space-{number % 4}", workload=f"w-{number % 5}",
            labels=(("team", f"team-{number % 3}"),), card_model=MODELS[number % 3], node=f"n-{number % 2}",
        )
        for number, share in enumerate(shares)
        if share
    ]  # fmt: skip
    return settled(cards, grants)


def made(who: Tenancies) -> CostDays:
    return cost_days([a_day(who)], who, BILLED, team_labels=("team",))


@pytest.mark.parametrize("by", GROUPS)
@given(shares=st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=1, max_size=12))
def test_every_grouping_is_the_bills(by: Owner, shares: list[float]) -> None:
    who = a_fleet(shares)
    bill = chargeback([a_day(who)], who, BILLED, by=by, team_labels=("team",))
    found = dict(made(who).grouped(by))
    is_of_cards = by in (Owner.MODEL, Owner.NODE)
    for row in bill.rows:
        assert found.pop(row.name) == row.measures
    nobody = found.pop("", None)
    assert found == {}
    if not is_of_cards and nobody is not None:
        free = part_of(nobody, (HourMeasure.UNALLOCATED,))
        assert free == bill.unallocated.measures[HourMeasure.UNALLOCATED]
    assert made(who).total() == bill.total.measures


def test_a_cut_keeps_who_was_chosen_and_the_rest_is_not_lost_elsewhere() -> None:
    days = made(a_fleet([1.0, 0.5, 0.0, 0.25, 1.0]))
    chosen = days.of({Owner.NODE: "n-0", Owner.MODEL: MODELS[0]})
    assert {name for name, _ in chosen.grouped(Owner.NODE)} == {"n-0"}
    assert part_of(chosen.total(), HourMeasure).card_hours == 24
    assert (len(days.hourly), len(chosen.hourly)) == (24, 0)
    assert days.hourly.sum() == 5 * 24 * 1_000_000


def test_a_reader_of_some_namespaces_sees_nothing_of_others_nor_what_is_free() -> None:
    days = made(a_fleet([0.5, 0.5, 0.0, 1.0])).only(["space-0", ""])
    assert [name for name, _ in days.grouped(Owner.NAMESPACE)] == ["space-0"]
    assert part_of(days.total(), HourMeasure).card_hours == 12
    assert len(days.hourly) == 0


def test_days_are_cut_whole_and_hours_with_them() -> None:
    who = a_fleet([1.0, 0.0])
    one = a_day(who)
    three = cost_days([one, one, one], who, BILLED, team_labels=())
    # The same day three times, each with a start of its own.
    starts = tuple(DAY + timedelta(days=number) for number in range(3))
    days = replace(three, starts=starts, until=starts[-1] + timedelta(days=1))
    cut = days.between(starts[1], starts[2])
    assert (cut.starts, cut.until) == ((starts[1],), starts[2])
    assert len(cut.hourly) == 24
    assert cut.total() == made(who).total()
    assert [part_of(day, HourMeasure).card_hours for day in days.per_day()] == [48, 48, 48]
    nothing = days.between(starts[2] + timedelta(days=3), starts[2] + timedelta(days=4))
    assert (nothing.starts, part_of(nothing.total(), HourMeasure).card_hours) == ((), 0)


def test_what_has_no_price_is_counted_and_said() -> None:
    days = made(a_fleet([0.0, 0.0, 1.0]))
    assert days.unpriced_card_hours == 24
    (unpriced,) = [measures for name, measures in days.grouped(Owner.MODEL) if name == MODELS[2]]
    assert unpriced[HourMeasure.USED].card_hours == 24
    assert part_of(unpriced, HourMeasure).cost is None


def test_an_idle_grant_is_idle_and_what_it_holds_is_told_apart() -> None:
    who = a_fleet([1.0, 0.0, 0.0, 1.0])
    day = a_day(who, measured(who, compute=0.0, framebuffer_bytes=[0.0, 2**34]), idle=(0, 1))
    rows = dict(cost_days([day], who, BILLED, team_labels=()).grouped(Owner.NODE))
    assert rows["n-0"][HourMeasure.IDLE].cost == Decimal("0.9") * 24
    assert rows["n-1"][HourMeasure.IDLE_HELD].card_hours == 24
