"""Whose cost it is: by allocation, use and blended, per owner, with idle and stranded parts told apart."""

from datetime import timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from bench.money_fleets import BEGIN, money_fleet
from fleet.money.charged_day import ServedUnit
from fleet.money.charges import BASES, BillingPeriod, Chargeback, Owner, chargeback, in_cents
from fleet.profiles import HourMeasure
from tests.fleet.money.builders import (
    DAY,
    SIZE,
    a_card,
    a_day,
    a_grant,
    charged,
    measured,
    settled,
    some_settings,
)


def costs(found: Chargeback) -> dict[str, tuple[Decimal | None, Decimal | None, Decimal | None]]:
    lines = (*found.rows, found.unallocated, found.stranded, found.total)
    return {line.name: (line.cost.allocation, line.cost.use, line.cost.blended) for line in lines}


def test_the_worked_example_of_the_documentation_is_what_comes_out(repository: Path) -> None:
    grants = [a_grant(0, "chat", share=0.5), a_grant(0, "batch", share=0.1, framebuffer_granted_bytes=SIZE // 2)]
    who = settled([a_card(0)], grants)
    usage = measured(who, compute=[0.2, 0.1], framebuffer_bytes=[SIZE * 0.4, SIZE * 0.3])
    found = costs(charged(who, a_day(who, usage)))
    table = [f"| {name} | {' | '.join(f'{amount:.2f}' for amount in amounts)} |" for name, amounts in found.items()]
    assert table[0] == "| team/chat | 10.80 | 6.48 | 8.64 |"
    assert "\n".join(table) in (repository / "docs" / "money.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("by", "names"),
    [
        (Owner.CLUSTER, {"c"}),
        (Owner.NODE, {"n-0", "n-1"}),
        (Owner.MODEL, {"NVIDIA A10"}),
        (Owner.NAMESPACE, {"team", "=cmd"}),
        (Owner.TEAM, {"risk", "=cmd"}),
        (Owner.WORKLOAD, {"team/Deployment/w", "=cmd/Deployment/b"}),
        (Owner.POD, {"team/a", "=cmd/b"}),
    ],
)
def test_each_owner_is_named_and_all_together_pay_for_every_card(by: Owner, names: set[str]) -> None:
    grants = [
        a_grant(0, "a", workload="w", labels=(("team", "risk"),)),
        a_grant(1, "b", namespace="=cmd", share=0.25, node="n-1"),
    ]
    who = settled([a_card(0), a_card(1, node="n-1"), a_card(2, node="n-1")], grants)
    found = charged(who, a_day(who), by)
    assert {row.name for row in found.rows} == names
    for basis in BASES:
        lines = [getattr(line.cost, basis) for line in (*found.rows, found.unallocated, found.stranded)]
        assert sum(lines) == getattr(found.total.cost, basis) == Decimal("0.9") * 24 * 3


@pytest.mark.parametrize(
    ("by", "name"), [(Owner.MODEL, "NVIDIA A10"), (Owner.NODE, "n-0"), (Owner.CLUSTER, "c")], ids=["model", "node", "c"]
)
def test_a_card_is_one_row_also_where_a_grant_calls_it_something_else(by: Owner, name: str) -> None:
    other = a_grant(0, "a", share=0.5, card_model="A10", node="n-0.local", cluster="C")
    who = settled([a_card(0)], [other])
    (row,) = charged(who, a_day(who), by).rows
    assert row.name == name
    assert row.unallocated is not None
    assert (row.cost.allocation, row.unallocated.allocation) == (Decimal("10.8"), Decimal("10.8"))


def test_a_node_shows_what_is_unallocated_on_it_even_where_nobody_holds_a_card() -> None:
    who = settled([a_card(0), a_card(1, node="n-1")], [a_grant(0, "a", share=0.5)])
    idle = {
        row.name: row.unallocated.allocation
        for row in charged(who, a_day(who), Owner.NODE).rows
        if row.unallocated is not None
    }
    assert idle == {"n-0": Decimal("10.80"), "n-1": Decimal("21.60")}


def test_a_mig_slice_is_billed_by_its_slices_of_the_card() -> None:
    model = "NVIDIA A100-SXM4-80GB"
    who = settled([a_card(0, model=model)], [a_grant(0, "a", mig_profile="3g.40gb", card_model=model)])
    found = charged(who, a_day(who, settings=some_settings(overrides={model: "2.8"})))
    # Three of seven compute slices, four of eight of memory: half of each at 2.80 an hour.
    assert found.rows[0].cost.allocation == (Decimal("2.8") * 24 * 464286).scaleb(-6)


def test_a_pod_pays_for_the_part_of_the_hour_in_which_it_lived() -> None:
    grant = a_grant(
        0, "a", started_at=DAY + timedelta(hours=1, minutes=30), ended_at=DAY + timedelta(hours=2, minutes=15)
    )
    who = settled([a_card(0)], [grant])
    assert charged(who, a_day(who)).rows[0].card_hours == pytest.approx(0.75)


def test_a_grant_that_changed_is_counted_once_at_each_moment() -> None:
    before, after = a_grant(0, "a", share=0.5), a_grant(0, "a", share=0.25, started_at=DAY + timedelta(hours=12))
    who = settled([a_card(0)], [before, after])
    assert charged(who, a_day(who)).rows[0].card_hours == 12 * 0.5 + 12 * 0.25


def test_cards_without_a_price_are_counted_and_never_taken_for_free() -> None:
    who = settled([a_card(0), a_card(1, model="Nobody knows")], [a_grant(1, "a", card_model="Nobody knows")])
    found = charged(who, a_day(who))
    assert (found.rows[0].cost.allocation, found.rows[0].unpriced_card_hours) == (None, 24)
    assert (found.total.cost.allocation, found.total.unpriced_card_hours) == (Decimal("21.60"), 24)


def test_a_card_that_nobody_holds_saves_its_rent_or_its_power_when_it_is_given_back() -> None:
    who = settled([a_card(0, is_owned=False), a_card(1, is_owned=True), a_card(2)], [a_grant(2, "a", share=0.1)])
    settings = some_settings(power_per_kwh="0.2")
    settings = settings.model_copy(update={"energy": settings.energy.model_copy(update={"idle_watts_ratio": 0.2})})
    free = charged(who, a_day(who, settings=settings)).free_cards
    assert (free.card_hours, free.amortised) == (48, Decimal("43.20"))
    assert free.marginal == Decimal("0.9") * 24 + Decimal("0.006") * 24


def test_unmeasured_use_counts_as_granted_and_is_told() -> None:
    who = settled([a_card(0)], [a_grant(0, "a", share=0.5)])
    row = charged(who, a_day(who)).rows[0]
    assert row.cost.use == row.cost.allocation
    assert (row.unmeasured_card_hours, row.measures[HourMeasure.UNUSED].cost) == (12.0, Decimal(0))


def test_requests_of_an_hour_in_which_a_grant_changed_are_counted_whole() -> None:
    half_past = DAY + timedelta(minutes=30)
    grants = [
        a_grant(0, "p", share=0.5, ended_at=half_past),
        a_grant(0, "p", share=0.25, started_at=half_past),
    ]
    who = settled([a_card(0)], grants)
    row = charged(who, a_day(who, measured(who, requests=2.0))).rows[0]
    assert row.served[ServedUnit.REQUESTS].count == 2 * 86400


def test_requests_of_a_pod_on_two_cards_are_counted_once() -> None:
    who = settled([a_card(0), a_card(1)], [a_grant(0, "a"), a_grant(1, "a")])
    row = charged(who, a_day(who, measured(who, requests=2.0))).rows[0]
    served = row.served[ServedUnit.REQUESTS]
    assert served.count == 2 * 86400
    assert served.per_million == Decimal("43.2") * 1_000_000 / 172_800


def test_hours_without_reported_requests_do_not_make_the_reported_ones_dearer() -> None:
    who = settled([a_card(0)], [a_grant(0, "a")])
    usage = measured(who, requests=2.0)
    usage.served[ServedUnit.REQUESTS][:, 6:] = float("nan")
    row = charged(who, a_day(who, usage)).rows[0]
    served = row.served[ServedUnit.REQUESTS]
    assert (served.count, row.cost.allocation, served.cost) == (2 * 6 * 3600, Decimal("21.6"), Decimal("5.4"))
    assert served.per_million == Decimal("5.4") * 1_000_000 / 43_200


def test_electricity_is_measured_where_cards_report_it_and_unknown_otherwise() -> None:
    who = settled([a_card(0), a_card(1)], [a_grant(0, "a"), a_grant(1, "b")])
    usage = measured(who, watts=[100.0, float("nan")], compute=0.5, framebuffer_bytes=SIZE)
    found = charged(who, a_day(who, usage))
    kwh = {row.name: row.kwh for row in found.rows}
    # By use: half the compute and all the framebuffer are three quarters of the card.
    assert kwh["team/a"] == pytest.approx(2.4 * 0.75)
    assert kwh["team/b"] is None
    assert found.measured_kwh_ratio == 1.0
    assert found.total.unknown_kwh_card_hours == 24


@examples(max_examples=12, deadline=None)
@given(st.integers(0, 10**6))
def test_what_owners_pay_sums_to_the_price_of_every_card_hour_to_the_cent(seed: int) -> None:
    fleet = money_fleet(seed, cards=6, days=2)
    days = fleet.days()
    paid = sum(
        (day.prices[place].amortised or Decimal(0) for day in days for place in day.price_of[day.card].tolist()),
        Decimal(0),
    )
    for by in Owner:
        billed = BillingPeriod(cluster="c", since=BEGIN, until=fleet.until, currency="USD")
        found = chargeback(days, fleet.who, billed, by=by, team_labels=("team",))
        for basis in BASES:
            amounts = [getattr(line.cost, basis) for line in (*found.rows, found.unallocated, found.stranded)]
            assert sum((amount or Decimal(0) for amount in amounts), Decimal(0)) == paid
            shown = sum((amount or Decimal(0) for amount in in_cents(amounts)), Decimal(0))
            assert shown == paid.quantize(Decimal("0.01"))


@given(st.lists(st.one_of(st.none(), st.decimals(0, 10**9, places=9)), max_size=20))
def test_cents_sum_to_the_sum_in_cents_and_none_is_a_cent_off(amounts: list[Decimal | None]) -> None:
    shown = in_cents(amounts)
    known = [amount for amount in amounts if amount is not None]
    assert sum((cent for cent in shown if cent is not None), Decimal(0)) == sum(known, Decimal(0)).quantize(
        Decimal("0.01")
    )
    assert [cent is None for cent in shown] == [amount is None for amount in amounts]
    assert all(
        abs(cent - amount) < Decimal("0.01")
        for cent, amount in zip(shown, amounts, strict=True)
        if cent is not None and amount is not None
    )


@examples(max_examples=12, deadline=None)
@given(st.integers(0, 10**6))
def test_measures_of_owners_and_what_is_left_sum_to_every_card_hour_of_the_fleet(seed: int) -> None:
    fleet = money_fleet(seed, cards=6, days=2)
    days = fleet.days()
    for by in Owner:
        billed = BillingPeriod(cluster="c", since=BEGIN, until=fleet.until, currency="USD")
        found = chargeback(days, fleet.who, billed, by=by, team_labels=("team",))
        of_cards = (Owner.CLUSTER, Owner.NODE, Owner.MODEL)
        lines = found.rows if by in of_cards else (*found.rows, found.unallocated, found.stranded)
        for measure in HourMeasure:
            parts = [line.measures[measure] for line in lines]
            total = found.total.measures[measure]
            assert sum(part.card_hours for part in parts) == pytest.approx(total.card_hours)
            assert sum((part.cost or Decimal(0) for part in parts), Decimal(0)) == (total.cost or Decimal(0))
        assert sum(one.card_hours for one in found.total.measures.values()) == pytest.approx(found.total.card_hours)


def test_an_idle_grant_is_idle_as_a_whole_and_a_working_one_unused_in_part() -> None:
    who = settled([a_card(0), a_card(1), a_card(2)], [a_grant(0, "rests"), a_grant(1, "holds"), a_grant(2, "works")])
    usage = measured(who, compute=[0.0, 0.0, 0.5], framebuffer_bytes=[0.0, SIZE, SIZE])
    rows = {row.name: row.measures for row in charged(who, a_day(who, usage, idle=(0, 1))).rows}
    assert rows["team/rests"][HourMeasure.IDLE].card_hours == 24
    assert rows["team/holds"][HourMeasure.IDLE_HELD].card_hours == 24
    assert rows["team/works"][HourMeasure.UNUSED].card_hours == 24 * 0.25
    assert rows["team/works"][HourMeasure.USED].cost == Decimal("21.6") * Decimal("0.75")
