"""The kinds of values that settings have, and what every section of them is: called by the modules of settings.

Sizes and durations may be written with a unit (`64MiB`, `15m`).
"""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from fleet.errors import Misconfigured
from fleet.units import parse_bytes, parse_duration


def _bytes_of_text(value: object) -> object:
    return _parsed(value, parse_bytes)


def _seconds_of_text(value: object) -> object:
    return _parsed(value, parse_duration)


def _parsed(value: object, parse: Any) -> object:
    if not isinstance(value, str) or value.strip().isdigit():
        return value
    try:
        return parse(value)
    except Misconfigured as exc:
        # Pydantic adds the setting's name to what a validator raises only when it is a ValueError.
        raise ValueError(str(exc)) from exc


def _is_day(value: str) -> str:
    try:
        date.fromisoformat(value)
    except ValueError as exc:
        raise ValueError("expected a day such as 2026-12-24") from exc
    return value


def _without_underscores(value: object) -> object:
    # Python reads 1_000 as a thousand, other readers of the same file read 1 or refuse it.
    if isinstance(value, str) and "_" in value:
        raise ValueError("expected a number such as 0.85")
    return value


Bytes = Annotated[int, BeforeValidator(_bytes_of_text), Field(ge=1)]
Seconds = Annotated[int, BeforeValidator(_seconds_of_text), Field(ge=1)]
Ratio = Annotated[float, Field(ge=0.0, le=1.0)]
Count = Annotated[int, Field(ge=1)]
_Plain = Annotated[Decimal, BeforeValidator(_without_underscores)]
Amount = Annotated[_Plain, Field(ge=0, max_digits=18)]
UnitPrice = Annotated[_Plain, Field(ge=0, max_digits=18, decimal_places=9)]
Price = Amount
Day = Annotated[str, AfterValidator(_is_day)]
HostPort = Annotated[str, Field(pattern=r"^(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]]+):[0-9]{1,5}$")]


class Section(BaseModel):
    """One section of the tree: frozen, and no name that it does not know."""

    # Built once, as parts of the tree, and not each by itself before: that took a fifth of every start.
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)
