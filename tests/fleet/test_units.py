"""Units are read and written without loss, and refused where they are none."""

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from fleet import units
from fleet.errors import Misconfigured
from fleet.settings.kinds import Amount, Price, UnitPrice
from fleet.units import Money

MOMENTS = st.datetimes(datetime(1970, 1, 1), datetime(9000, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - bounds
AMOUNTS = st.decimals(-(10**12), 10**12, places=4, allow_nan=False)


@given(st.integers(0, 2**60))
def test_bytes_are_the_same_after_writing_and_reading(size_bytes: int) -> None:
    assert units.parse_bytes(units.format_bytes(size_bytes)) == size_bytes


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("4000MiB", 4000 * 2**20),
        ("24 GiB", 24 * 2**30),
        ("24Gi", 24 * 2**30),
        ("4GB", 4 * 10**9),
        ("1.5KiB", 1536),
        ("7", 7),
    ],
)
def test_sizes_are_read_in_base_units(text: str, size_bytes: int) -> None:
    assert units.parse_bytes(text) == size_bytes


@pytest.mark.parametrize("text", ["", "MiB", "-1MiB", "1 2", "1XiB", "NaN", "1e3", "٣MiB", "9" * 100])
def test_text_that_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(Misconfigured, match="cannot read"):
        units.parse_bytes(text)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("4000", "4k"),
        ("1", "1000m"),
        ("1Gi", "1024Mi"),
        ("0.5", "500m"),
        ("1e3", "1k"),
        (4, "4"),
        ("+1", "1.0"),
        ("2E", "2e18"),
    ],
)
def test_quantities_that_the_api_server_holds_equal_are_equal(first: str | int, second: str | int) -> None:
    assert units.quantity_equal(first, second)


@pytest.mark.parametrize(("first", "second"), [("4000", "4Ki"), ("1", "1m"), ("1G", "1Gi"), ("1", "-1")])
def test_quantities_that_differ_are_not_equal(first: str, second: str) -> None:
    assert not units.quantity_equal(first, second)


@given(st.integers(0, 10**15), st.sampled_from([("Ki", 2**10), ("Mi", 2**20), ("k", 10**3), ("M", 10**6), ("", 1)]))
def test_a_quantity_with_a_suffix_equals_the_number_written_out(number: int, suffix: tuple[str, int]) -> None:
    assert units.quantity_equal(f"{number}{suffix[0]}", str(number * suffix[1]))


@pytest.mark.parametrize("text", ["", "1K", "1kk", "Mi", "1 Mi", "0x10", "nan", "1e9999"])
def test_text_that_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(Misconfigured):
        units.parse_quantity(text)


@given(st.integers(0, 10**12))
def test_durations_are_the_same_after_writing_and_reading(duration_ms: int) -> None:
    assert round(units.parse_duration(units.format_duration(duration_ms / 1000)) * 1000) == duration_ms


@pytest.mark.parametrize(
    ("text", "seconds"), [("15s", 15), ("10m", 600), ("7d", 604800), ("1h30m", 5400), ("500ms", 0.5)]
)
def test_durations_are_read_in_seconds(text: str, seconds: float) -> None:
    assert units.parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "15", "-1s", "1m1h", "1s1s", "1y", "1 h"])
def test_text_that_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(Misconfigured):
        units.parse_duration(text)


@given(MOMENTS)
def test_times_are_the_same_after_writing_and_reading(moment: datetime) -> None:
    read = units.parse_time(units.format_time(moment))
    assert read == moment
    assert read.utcoffset() == timedelta(0)


@given(MOMENTS)
def test_epoch_milliseconds_lose_less_than_one(moment: datetime) -> None:
    assert timedelta(0) <= moment - units.time_from_epoch_ms(units.epoch_ms(moment)) < timedelta(milliseconds=1)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-01-12", datetime(2026, 1, 12, tzinfo=UTC)),
        ("2026-01-12T08:30:00Z", datetime(2026, 1, 12, 8, 30, tzinfo=UTC)),
        ("2026-01-12T08:30:00+08:00", datetime(2026, 1, 12, 0, 30, tzinfo=UTC)),
        ("2026-01-12 08:30", datetime(2026, 1, 12, 8, 30, tzinfo=UTC)),
    ],
)
def test_times_are_read_as_aware_utc(text: str, moment: datetime) -> None:
    assert units.parse_time(text) == moment


@pytest.mark.parametrize("text", ["", "yesterday", "2026-13-01", "0001-01-01T00:00:00+14:00"])
def test_text_that_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(Misconfigured):
        units.parse_time(text)


def test_a_time_is_written_in_utc_whatever_its_zone() -> None:
    moment = datetime(2026, 1, 12, 8, 30, tzinfo=timezone(timedelta(hours=8)))
    assert units.format_time(moment) == "2026-01-12T00:30:00Z"


def test_a_naive_time_is_a_bug() -> None:
    with pytest.raises(ValueError, match="zone"):
        units.format_time(datetime(2026, 1, 12))  # noqa: DTZ001 - that is the point


@given(AMOUNTS, st.sampled_from(["USD", "CNY", "CHF"]))
def test_money_is_the_same_after_writing_and_reading(amount: Decimal, currency: str) -> None:
    assert units.parse_money(f"{amount:f} {currency}") == Money(amount=amount, currency=currency)


@pytest.mark.parametrize(
    ("amount", "currency", "full", "short"),
    [
        ("1234", "USD", "$1,234", "$1.2k"),
        ("213999.6", "CNY", "¥ 214,000", "¥ 214k"),
        ("-87.2", "USD", "-$87", "-$87"),
        ("999950", "EUR", "€999,950", "€1.0M"),
        ("80", "CHF", "CHF 80", "CHF 80"),
        ("-0.2", "USD", "$0", "$0"),
    ],
)
def test_money_is_written_with_its_symbol(amount: str, currency: str, full: str, short: str) -> None:
    money = Money(amount=Decimal(amount), currency=currency)
    assert (units.format_money(money), units.format_money_short(money)) == (full, short)


def test_two_currencies_never_meet_in_one_sum() -> None:
    with pytest.raises(Misconfigured, match=r"prices\.currency"):
        Money(amount=Decimal(1), currency="USD") + Money(amount=Decimal(1), currency="CNY")


@pytest.mark.parametrize("text", ["NaN", "Infinity", "1e99", "", "1,5"])
def test_a_price_must_be_a_plain_finite_number(text: str) -> None:
    with pytest.raises(Misconfigured):
        units.parse_decimal(text)


@pytest.mark.parametrize("text", ["1_000", "1_0.5", "_1"])
def test_price_with_an_underscore_is_refused_wherever_it_is_given(text: str) -> None:
    with pytest.raises(Misconfigured, match="number"):
        units.parse_decimal(text)
    for kind in (Price, UnitPrice, Amount):
        with pytest.raises(ValidationError, match="number"):
            TypeAdapter(kind).validate_python(text)
