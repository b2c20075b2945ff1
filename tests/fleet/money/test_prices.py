"""What a card costs: the first rule that fits, in one currency, and unknown where nobody knows."""

from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from pydantic import ValidationError

from fleet.errors import Misconfigured
from fleet.inventory import Card, CardId, CardModelName, Node
from fleet.money.amortisation import card_hour_cost, formula_of
from fleet.money.prices import PriceBook
from fleet.money.saving import saving_of
from fleet.settings.faults import fault_words
from fleet.settings.money import OnPremises, PriceBasis
from fleet.settings.settings import Settings

MACHINE = {
    "purchase": "96000", "cards": 8, "life_years": 4, "capital_cost_ratio": "0.08", "availability_ratio": "0.97",
    "watts": 3200, "pue": "1.4", "per_kwh": "0.11", "hosting_per_month": 900, "operations_per_month": 700,
}  # fmt: skip
POOL = {"pool": "own"}
NOW = datetime(2026, 1, 12, 8, tzinfo=UTC)


def a_card(model: str = "NVIDIA A10", *, node: str = "n", is_owned: bool | None = None) -> Card:
    return Card(
        card=CardId("GPU-1"), card_model=CardModelName(model), framebuffer_bytes=1, node=node, cluster="c",
        is_owned=is_owned,
    )  # fmt: skip


def a_book(*rules: dict[str, Any], **prices: Any) -> PriceBook:
    filled = [{"source": "invoice", "date": "2026-01", **rule} for rule in rules]
    settings = Settings.model_validate({"prices": {"rules": filled, **prices}, "energy": {"idle_watts_ratio": 0.2}})
    return PriceBook(settings, [Node(node="own-1", cluster="c", labels=(("pool", "own"),))])


def test_the_first_rule_that_fits_the_card_counts() -> None:
    book = a_book(
        {"card_model": "A10", "node_labels": POOL, "per_card_hour": "0.3"},
        {"card_model": "A10", "per_card_hour": "0.9"},
        {"card_model": "A10", "per_card_hour": "5"},
        overrides={"A10": "7"},
    )
    assert book.price_of(a_card(node="own-1"), NOW).amortised == Decimal("0.3")
    assert book.price_of(a_card(), NOW).amortised == Decimal("0.9")


def test_a_label_holds_for_the_node_of_its_cluster_alone() -> None:
    book = a_book({"node_labels": POOL, "per_card_hour": "0.3"}, {"per_card_hour": "2"})
    elsewhere = replace(a_card(node="own-1"), cluster="another")
    assert book.price_of(a_card(node="own-1"), NOW).amortised == Decimal("0.3")
    assert book.price_of(elsewhere, NOW).amortised == Decimal(2)


def test_a_contract_holds_from_its_first_day_to_its_last_whatever_was_asked_before() -> None:
    book = a_book({"since": "2026-01-10", "until": "2026-01-12", "per_card_hour": "2"}, overrides={"A10": "3"})
    moments = [datetime(2026, 1, day, hour, tzinfo=UTC) for day in (9, 10, 11, 12) for hour in (0, 23)]
    expected = [Decimal(2) if moment.day in (10, 11) else Decimal(3) for moment in moments]
    assert [book.price_of(a_card(), moment).amortised for moment in moments] == expected
    assert [book.price_of(a_card(), moment).amortised for moment in reversed(moments)] == expected[::-1]
    # Days are UTC: an hour before midnight there is the next day in Shanghai.
    shanghai = datetime(2026, 1, 10, 7, tzinfo=ZoneInfo("Asia/Shanghai"))
    assert book.price_of(a_card(), shanghai).amortised == Decimal(3)


def test_a_week_is_168_hours_at_the_price_of_now() -> None:
    book = a_book({"since": "2026-01-10", "until": "2026-01-12", "per_card_hour": "0.5"})
    assert book.at(datetime(2026, 1, 11, tzinfo=UTC)).per_week(a_card("NVIDIA L20")) == Decimal(84)
    assert book.at(datetime(2026, 1, 12, tzinfo=UTC)).per_week(a_card("NVIDIA L20")) is None


def test_the_version_changes_with_a_price_and_not_with_its_writing() -> None:
    first = a_book({"per_card_hour": "4.2"}, overrides={"A10": "1", "L4": "2.50"}).version
    assert a_book({"per_card_hour": "4.20"}, overrides={"L4": "2.5", "A10": "1"}).version == first
    changed = [
        a_book({"per_card_hour": "4.3"}, overrides={"A10": "1", "L4": "2.5"}),
        a_book({"per_card_hour": "4.2", "node": "n"}, overrides={"A10": "1", "L4": "2.5"}),
        a_book({"per_card_hour": "4.2"}, overrides={"A10": "1"}),
    ]
    assert len({first, *(book.version for book in changed)}) == 4


def test_another_currency_is_converted_by_a_given_rate_and_refused_without_one() -> None:
    rule = {"card_model": "A10", "per_card_hour": "8", "currency": "CNY"}
    rate = {"currency": "CNY", "into": "USD", "rate": "0.14", "source": "bank", "date": "2026-01"}
    assert a_book(rule, rates=[rate]).price_of(a_card(), NOW).amortised == Decimal("1.12")
    with pytest.raises(Misconfigured, match=r"rule 1 \(invoice\) of 8 CNY to sums in USD: no rate from CNY into USD"):
        a_book(rule).price_of(a_card(), NOW)
    back = {**rate, "currency": "USD", "into": "CNY"}
    with pytest.raises(Misconfigured, match="no rate"):
        a_book(rule, rates=[back]).price_of(a_card(), NOW)


def test_a_price_too_large_for_exact_sums_is_refused_however_it_came_about() -> None:
    machine = {"on_premises": {"purchase": "99999999999999999", "life_years": 0.5}}
    with pytest.raises(Misconfigured, match="is not below 1000000000"):
        a_book(machine).price_of(a_card(), NOW)


def test_a_list_price_in_another_currency_is_unknown_without_a_rate() -> None:
    rate = {"currency": "USD", "into": "EUR", "rate": "0.9", "source": "bank", "date": "2026-01"}
    assert a_book(currency="EUR").price_of(a_card("NVIDIA A10G"), NOW).amortised is None
    assert a_book(currency="EUR", rates=[rate]).price_of(a_card("NVIDIA A10G"), NOW).amortised == Decimal("0.9054")


def test_a_model_that_nobody_priced_is_unknown_and_not_free() -> None:
    found = a_book().price_of(a_card("Accelerator nobody knows"), NOW)
    assert (found.amortised, found.marginal, found.source) == (None, None, "")


@pytest.mark.parametrize(
    ("basis", "marginal"),
    # An A10 has a limit of 150 W: a fifth of it at 0.2 a kilowatt hour.
    [(PriceBasis.RENTED, "0.9"), (PriceBasis.COMMITTED, "0"), (PriceBasis.OWNED, "0.006")],
)
def test_what_a_free_card_saves_at_once_depends_on_how_it_is_paid(basis: PriceBasis, marginal: str) -> None:
    book = a_book({"per_card_hour": "0.9", "basis": basis}, power_per_kwh="0.2")
    assert book.price_of(a_card(), NOW).marginal == Decimal(marginal)
    saving = saving_of([a_card()], book.at(NOW))
    assert (saving.amortised, saving.marginal) == (
        Decimal("151.20"),
        (Decimal(marginal) * 168).quantize(Decimal("0.01")),
    )


def test_a_rule_says_itself_what_a_free_card_saves_where_that_is_known() -> None:
    book = a_book({"per_card_hour": "0.9", "basis": "committed", "marginal_per_card_hour": "0.05"})
    assert book.price_of(a_card(), NOW).marginal == Decimal("0.05")


def test_a_machine_of_ones_own_costs_purchase_power_and_running_per_card_hour() -> None:
    machine = OnPremises.model_validate(MACHINE)
    cost = card_hour_cost(machine)
    assert round(cost.purchase, 6) == Decimal("0.381302")  # 96,000 × 1.08 / (4 × 8,760 × 0.97) / 8
    assert cost.power == Decimal("0.0616")  # 3.2 kW × 1.4 × 0.11 / 8
    assert round(cost.running, 6) == Decimal("0.273973")  # 1,600 / 730 / 8
    assert cost.total == Decimal("0.716874679")
    assert formula_of(machine).endswith("= 0.3813 + 0.0616 + 0.2740 = 0.7169")
    found = a_book({"on_premises": MACHINE}).price_of(a_card(), NOW)
    assert (found.amortised, found.basis) == (cost.total, PriceBasis.OWNED)
    assert found.marginal == Decimal("0.00462")  # 30 W × 1.4 × 0.11


def test_watts_without_a_price_of_power_are_refused() -> None:
    with pytest.raises(ValueError, match="watts is set, but per_kwh is not"):
        OnPremises.model_validate({"purchase": 1, "life_years": 1, "watts": 100})


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({}, "either per_card_hour or on_premises"),
        ({"per_card_hour": 1, "on_premises": MACHINE}, "either per_card_hour or on_premises"),
        ({"per_card_hour": -1}, "expected at least 0"),
        ({"per_card_hour": "NaN"}, "finite"),
        ({"per_card_hour": 10**9}, "at most 9 digits before the point"),
        ({"per_card_hour": 1, "currency": "usd"}, "matches"),
        ({"per_card_hour": 1, "since": "2026-02-01", "until": "2026-02-01"}, "not before"),
        ({"per_card_hour": 1, "surprise": 1}, "unknown name"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(rule: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        a_book(rule)
    assert message in fault_words(caught.value)
