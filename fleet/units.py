"""Units as people write them: parsed into base units on the way in, printed on the way out, and nowhere in between.

Called by the command line, the settings, the dashboards, the grammars and the enforcer (quantities of Kubernetes).
Inside, everything is bytes, seconds, ratios of 0-1, `Decimal` money with a currency, and aware UTC times.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import ROUND_HALF_EVEN, Context, Decimal, InvalidOperation
from types import MappingProxyType

from fleet.errors import Misconfigured

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
TIB = 1024 * GIB

_TEXT_LENGTH_MAX = 64
_DIGITS_MAX = 40
_EXACT = Context(prec=120)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_BINARY_SUFFIXES: Mapping[str, Decimal] = MappingProxyType(
    {name: Decimal(1024**power) for power, name in enumerate(("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"))}
)
_DECIMAL_SUFFIXES: Mapping[str, Decimal] = MappingProxyType(
    {
        name: Decimal(1).scaleb(exponent)
        for name, exponent in (
            ("n", -9), ("u", -6), ("m", -3), ("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18),
        )
    }
)  # fmt: skip
_QUANTITY = re.compile(r"([+-]?)(\d+(?:\.\d*)?|\.\d+)(?:([KMGTPE]i)|([numkMGTPE])|[eE]([+-]?\d{1,3}))?", re.ASCII)
_BYTES = re.compile(r"(\d+(?:\.\d+)?) ?([KMGTPE]i?B?|kB?|B)?", re.ASCII)
_DURATION_SECONDS: Mapping[str, Decimal] = MappingProxyType(
    {
        "w": Decimal(604800),
        "d": Decimal(86400),
        "h": Decimal(3600),
        "m": Decimal(60),
        "s": Decimal(1),
        "ms": Decimal("0.001"),
    }
)
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[wdhms])", re.ASCII)
_CURRENCY_SYMBOLS: Mapping[str, str] = MappingProxyType(
    {"USD": "$", "EUR": "€", "GBP": "£", "CNY": "¥ ", "JPY": "JP¥ "}
)
_CURRENCY_CODE = re.compile(r"[A-Z]{3}", re.ASCII)
_MONEY = re.compile(r"(-?\d+(?:\.\d+)?) ?([A-Z]{3})|([A-Z]{3}) ?(-?\d+(?:\.\d+)?)", re.ASCII)
_PLAN_ID = re.compile(r"[0-9a-f]{64}", re.ASCII)
_PLAN_ID_DIGITS_SHOWN = 12
_SHORT_STEPS = ((Decimal(10) ** 9, "G"), (Decimal(10) ** 6, "M"), (Decimal(10) ** 3, "k"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Money:
    """An amount of one currency; amounts of two currencies never meet in one sum.

    Attributes:
        amount: the exact amount, in the currency's main unit.
        currency: ISO 4217 code, such as `USD`.
    """

    amount: Decimal
    currency: str

    def __post_init__(self) -> None:
        if not _CURRENCY_CODE.fullmatch(self.currency):
            raise Misconfigured(f"cannot use currency {self.currency!r}: not an ISO 4217 code of three capital letters")
        if not self.amount.is_finite():
            raise Misconfigured(f"cannot use an amount of {self.amount} {self.currency}: not a finite number")

    def __add__(self, other: Money) -> Money:
        if other.currency != self.currency:
            raise Misconfigured(f"cannot add {other.currency} to {self.currency}: set prices.currency to one of them")
        return Money(amount=self.amount + other.amount, currency=self.currency)

    def __neg__(self) -> Money:
        return Money(amount=-self.amount, currency=self.currency)

    def __sub__(self, other: Money) -> Money:
        return self + -other

    def __mul__(self, factor: Decimal | int) -> Money:
        return Money(amount=self.amount * factor, currency=self.currency)


def parse_quantity(text: str) -> Decimal:
    """Reads a Kubernetes quantity, exactly; returns the number in base units (bytes, cores, pieces).

    Args:
        text: a number with an optional suffix, binary (`Ki` … `Ei`), decimal (`n u m k M G T P E`) or exponent (`e3`).

    Raises:
        Misconfigured: the text is no quantity.

    Source: kubernetes/apimachinery:pkg/api/resource/quantity.go (grammar in the comment of `Quantity`).
    """
    match = _QUANTITY.fullmatch(text) if len(text) <= _TEXT_LENGTH_MAX else None
    if match is None:
        raise Misconfigured(
            f"cannot read {_shown(text)} as a Kubernetes quantity: expected a number such as 4, 500m, 4k or 24Gi"
        )
    sign, digits, binary, decimal, exponent = match.groups()
    if exponent is not None:
        factor = Decimal(1).scaleb(int(exponent))
    else:
        factor = _BINARY_SUFFIXES[binary] if binary else _DECIMAL_SUFFIXES[decimal or ""]
    value = _EXACT.multiply(Decimal(digits), factor)
    return -value if sign == "-" else value


def quantity_equal(first: str | float, second: str | float) -> bool:
    """Says whether two quantities mean the same number, however they are written.

    The API server rewrites quantities into a canonical form (`4000` comes back as `4k`), so comparing texts would
    report changes that nobody made. Numbers are what YAML reads from an unquoted quantity.

    Raises:
        Misconfigured: one of them is no quantity.
    """
    return parse_quantity(_quantity_text(first)) == parse_quantity(_quantity_text(second))


def parse_bytes(text: str) -> int:
    """Reads a size: `300MiB`, `24 GiB`, `24Gi`, `4GB` (decimal), `4096`.

    Returns:
        Whole bytes, rounded half to even where a fraction was written.

    Raises:
        Misconfigured: the text is no size.
    """
    match = _BYTES.fullmatch(text.strip()) if len(text) <= _TEXT_LENGTH_MAX else None
    if match is None:
        raise Misconfigured(
            f"cannot read {_shown(text)} as a size: expected a number and a unit, such as 300MiB, 24GiB or 4GB"
        )
    suffix = (match.group(2) or "").removesuffix("B")
    if suffix == "K":
        suffix = "k"
    factor = _BINARY_SUFFIXES.get(suffix) or _DECIMAL_SUFFIXES[suffix]
    return int(_EXACT.multiply(Decimal(match.group(1)), factor).to_integral_value(ROUND_HALF_EVEN, _EXACT))


def format_bytes(size_bytes: int) -> str:
    """Writes a size without losing a byte: the largest binary unit that divides it (`24GiB`, `4000MiB`, `1537B`)."""
    for factor, unit in ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size_bytes and size_bytes % factor == 0:
            return f"{size_bytes // factor}{unit}"
    return f"{size_bytes}B"


def format_bytes_short(size_bytes: float) -> str:
    """Writes a size for the eye, with three digits or so: `23.6 GiB`, `812 MiB`."""
    for factor, unit in ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(size_bytes) >= factor:
            value = size_bytes / factor
            return f"{value:.0f} {unit}" if abs(value) >= 100 or value == int(value) else f"{value:.1f} {unit}"
    return f"{size_bytes:.0f} B"


def format_percent(ratio: float, *, digits: int = 0) -> str:
    """Writes a ratio as a percentage: 0.125 with one digit is `12.5 %`."""
    return f"{ratio * 100:.{digits}f} %"


def parse_duration(text: str) -> float:
    """Reads `15s`, `10m`, `7d`, `1h30m` or `500ms` as seconds.

    Units are those of Prometheus, largest first and each at most once.

    Raises:
        Misconfigured: the text is no duration.
    """
    stripped = text.strip()
    if len(text) > _TEXT_LENGTH_MAX or not re.fullmatch(rf"(?:{_DURATION_PART.pattern})+", stripped, re.ASCII):
        raise Misconfigured(
            f"cannot read {_shown(text)} as a duration: expected numbers and units, such as 15s, 10m, 1h30m or 7d"
        )
    parts = _DURATION_PART.findall(stripped)
    order = list(_DURATION_SECONDS)
    ranks = [order.index(unit) for _, unit in parts]
    if ranks != sorted(set(ranks)):
        raise Misconfigured(
            f"cannot read {_shown(text)} as a duration: write each unit once, the largest first ({' '.join(order)})"
        )
    return float(sum((Decimal(number) * _DURATION_SECONDS[unit] for number, unit in parts), Decimal(0)))


def format_duration(duration_seconds: float) -> str:
    """Writes a duration to the millisecond in the units that `parse_duration` reads: `1h30m`, `7d`, `500ms`, `0s`.

    Raises:
        ValueError: the duration is negative.
    """
    if duration_seconds < 0:
        raise ValueError(f"a duration can't be negative: {duration_seconds}")
    rest = round(duration_seconds * 1000)
    text = ""
    for unit, unit_seconds in list(_DURATION_SECONDS.items())[1:]:
        count, rest = divmod(rest, int(unit_seconds * 1000))
        if count:
            text += f"{count}{unit}"
    return text or "0s"


def parse_time(text: str) -> datetime:
    """Reads an ISO 8601 time as an aware UTC time.

    A date alone is its midnight in UTC, and a time without an offset is UTC.

    Raises:
        Misconfigured: the text is no time.
    """
    stripped = text.strip()
    try:
        if len(stripped) > _TEXT_LENGTH_MAX:
            raise ValueError
        if re.fullmatch(r"\d{4}-\d{2}-\d{2}", stripped, re.ASCII):
            return datetime.combine(date.fromisoformat(stripped), time.min, tzinfo=UTC)
        parsed = datetime.fromisoformat(stripped)
        return parsed.replace(tzinfo=UTC) if parsed.tzinfo is None else parsed.astimezone(UTC)
    except (ValueError, OverflowError) as exc:
        raise Misconfigured(
            f"cannot read {_shown(text)} as a time: expected ISO 8601, such as 2026-01-12 or 2026-01-12T08:30:00Z"
        ) from exc


def format_time(moment: datetime) -> str:
    """Writes an aware time in UTC: `2026-01-12T08:30:00Z`, with a fraction only where there is one.

    Raises:
        ValueError: the time is naive, which is a bug of the caller.
    """
    if moment.tzinfo is None:
        raise ValueError(f"a time without a zone can't be written: {moment!r}")
    return moment.astimezone(UTC).isoformat().removesuffix("+00:00") + "Z"


def epoch_ms(moment: datetime) -> int:
    """Milliseconds since 1970-01-01 UTC, rounded down; exact, as no float is involved.

    Raises:
        ValueError: the time is naive.
    """
    if moment.tzinfo is None:
        raise ValueError(f"a time without a zone has no place on the epoch: {moment!r}")
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def time_from_epoch_ms(moment_ms: int) -> datetime:
    """The aware UTC time of milliseconds since 1970-01-01 UTC.

    Raises:
        OverflowError: the time lies outside years 1-9999.
    """
    return _EPOCH + timedelta(milliseconds=moment_ms)


def parse_decimal(text: str) -> Decimal:
    """Reads a plain finite decimal number, such as a price.

    Raises:
        Misconfigured: the text is no finite number or longer than 40 digits.
    """
    try:
        # Python would read 1_000.
        is_plain = len(text) <= _TEXT_LENGTH_MAX and "_" not in text
        value = Decimal(text.strip()) if is_plain else Decimal("NaN")
    except InvalidOperation as exc:
        raise Misconfigured(f"cannot read {_shown(text)} as a number") from exc
    if not value.is_finite() or len(value.as_tuple().digits) > _DIGITS_MAX or abs(value.adjusted()) > _DIGITS_MAX:
        raise Misconfigured(f"cannot read {_shown(text)} as a number: expected at most {_DIGITS_MAX} digits")
    return value


def parse_money(text: str) -> Money:
    """Reads an amount with its ISO 4217 code on either side: `1.25 USD`, `CNY 8`.

    Raises:
        Misconfigured: the text is no amount, or has no currency.
    """
    match = _MONEY.fullmatch(text.strip()) if len(text) <= _TEXT_LENGTH_MAX else None
    if match is None:
        raise Misconfigured(
            f"cannot read {_shown(text)} as money: expected a number and a currency code, such as 1.25 USD"
        )
    amount, currency = (match.group(1), match.group(2)) if match.group(1) else (match.group(4), match.group(3))
    return Money(amount=Decimal(amount), currency=currency)


def format_money(money: Money, *, digits: int = 0) -> str:
    """Writes an amount in full, grouped by thousands: `$1,234`, `¥ 214,000`, `CHF 80`; `digits` behind the point."""
    rounded = money.amount.quantize(Decimal(1).scaleb(-digits), ROUND_HALF_EVEN, _EXACT)
    return _with_symbol(rounded, f"{abs(rounded):,f}", money.currency)


def format_money_short(money: Money) -> str:
    """Writes an amount for the eye: `¥ 214k`, `$1.2M`, `$87`; two or more digits are kept."""
    for factor, unit in _SHORT_STEPS:
        # Rounding may carry over into the next unit (999,950 is 1.0M), so the step is chosen by the rounded amount.
        if abs(money.amount) >= factor * Decimal("0.9995"):
            value = money.amount / factor
            digits = Decimal("0.1") if abs(value) < Decimal("9.95") else Decimal(1)
            rounded = value.quantize(digits, ROUND_HALF_EVEN, _EXACT)
            return _with_symbol(rounded, f"{abs(rounded):f}{unit}", money.currency)
    rounded = money.amount.quantize(Decimal(1), ROUND_HALF_EVEN, _EXACT)
    return _with_symbol(rounded, f"{abs(rounded):f}", money.currency)


def format_plan_id(plan_id: str) -> str:
    """A plan's id as people see and type it, its first twelve digits; any other text as it is."""
    return plan_id[:_PLAN_ID_DIGITS_SHOWN] if _PLAN_ID.fullmatch(plan_id) else plan_id


def format_count(count: int) -> str:
    """Writes a count grouped by thousands: `2,103,441`."""
    return f"{count:,d}"


def _with_symbol(value: Decimal, digits: str, currency: str) -> str:
    sign = "-" if value < 0 else ""
    return f"{sign}{_CURRENCY_SYMBOLS.get(currency, currency + ' ')}{digits}"


def _quantity_text(value: str | float) -> str:
    return value if isinstance(value, str) else str(value)


def _shown(text: str) -> str:
    """The text as it stands in a message: quoted and bounded, since it may come from outside."""
    return repr(text if len(text) <= _TEXT_LENGTH_MAX else text[:_TEXT_LENGTH_MAX] + "…")
