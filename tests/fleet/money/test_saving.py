"""Money is saved by whole freed cards, at the price that was set or listed."""

from datetime import UTC, datetime
from decimal import Decimal

from fleet.inventory import Card, CardId, CardModelName
from fleet.money.prices import PriceBook
from fleet.money.saving import saving_of
from fleet.settings.settings import Settings

NOW = datetime(2026, 1, 12, tzinfo=UTC)


def card(model: str, *, is_owned: bool | None = None) -> Card:
    return Card(
        card=CardId("GPU-1"),
        card_model=CardModelName(model),
        framebuffer_bytes=1,
        node="n",
        cluster="c",
        is_owned=is_owned,
    )


def test_set_price_wins_over_the_list_and_counts_a_week() -> None:
    prices = PriceBook(Settings.model_validate({"prices": {"overrides": {"A10": "0.5"}}})).at(NOW)
    saving = saving_of([card("NVIDIA A10"), card("NVIDIA A10")], prices)
    assert saving.amortised == Decimal("168.00")


def test_rented_card_saves_its_rent_and_an_owned_one_no_cash_without_a_price_of_power() -> None:
    prices = PriceBook(Settings.model_validate({"prices": {"overrides": {"A10": "1"}}})).at(NOW)
    assert saving_of([card("NVIDIA A10", is_owned=False)], prices).marginal == Decimal("168.00")
    assert saving_of([card("NVIDIA A10", is_owned=True)], prices).marginal is None


def test_card_without_a_price_adds_nothing_and_alone_makes_no_sum() -> None:
    prices = PriceBook(Settings.model_validate({"prices": {"overrides": {"A10": "1"}}})).at(NOW)
    assert saving_of([card("NVIDIA A10"), card("Unheard Of")], prices).amortised == Decimal("168.00")
    assert saving_of([card("Unheard Of")], prices).amortised is None


def test_nothing_freed_saves_nothing() -> None:
    saving = saving_of([], PriceBook(Settings()).at(NOW))
    assert (saving.amortised, saving.marginal) == (Decimal(0), Decimal(0))


def test_price_in_another_currency_is_not_converted() -> None:
    prices = PriceBook(Settings.model_validate({"prices": {"currency": "EUR"}})).at(NOW)
    assert saving_of([card("NVIDIA A100-SXM4-80GB")], prices).amortised is None
