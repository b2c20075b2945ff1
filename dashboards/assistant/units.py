"""The unit of every number and time of an answer, by its key: names carry their units last. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

_SHARE = "1 is all of it"
_CARD_SHARE = "share of one card's compute, 1 is all of it"
_MONEY = "in `currency`"
_COUNTED = "count"
_MOMENT = re.compile(r"\d{4}-\d{2}-\d{2}T")

_EXACT = {
    "amortised": f"{_MONEY}, a week", "marginal": f"{_MONEY}, a week", "cost": _MONEY, "amount": _MONEY,
    "per_million": f"{_MONEY}, a million units", "spent": f"{_MONEY}, this month", "forecast": f"{_MONEY}, this month",
    "per_month": f"{_MONEY}, a month", "compute_p95": _CARD_SHARE, "speed_ratio": "speed beside / speed alone",
    "confidence": "share of such cases in which the state held a week, 1 is all", "used": "cards",
    "granted": "in `resource`'s unit", "quota": "in `resource`'s unit", "left": "in `resource`'s unit",
    "off_peak_hours": "hour of the week, 0 is Monday 00:00 in `time_zone`", "time_zone": "of `off_peak_hours`",
    "active_weekdays": "day of the week, 0 is Monday", "silent_weekdays": "day of the week, 0 is Monday",
    "shift_ratio": "new level / old level", "growth_per_week_ratio": "change a week / level",
    "replica_correlation": "-1 to 1", "unused_cards": "whole cards' worth of compute that is not used at p95",
    "low_priority_gpu_hours_per_week": "card hours a week", "kg_co2": "kg of CO2", "kwh": "kWh",
    "compute.granted_ratio": _CARD_SHARE, "density_max": "granted at once / one card", "age_seconds": "seconds",
    "grants_max": _COUNTED, "relief_moves_per_pod_day": "moves a pod and day",
}  # fmt: skip
_OF_PARENT = {
    "compute": _CARD_SHARE, "engines": _SHARE, "request_rate": "requests a second", "framebuffer": "bytes",
}  # fmt: skip
_ENDINGS = (
    ("_bytes", "bytes"), ("_seconds", "seconds"), ("_per_week", f"{_MONEY}, a week"), ("_ratio", _SHARE),
    ("_interval", _SHARE), ("_hours", "card hours"), ("_bytes_max", "bytes"), ("_gib", "GiB"),
    ("_per_card_hour", f"{_MONEY}, a card hour"), ("_per_pod_day", "a pod and day"), ("_days", "days"),
)  # fmt: skip
_OWN_HOURS = {"period_hours": "hours"}


def units_of(content: Mapping[str, Any]) -> dict[str, str]:
    """The unit of each key that holds a number or a moment; of a key with several meanings by its parent's name too."""
    return dict(sorted(_units(content, "", "")))


def _units(value: Any, parent: str, key: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from _units(part, key or parent, name)
    elif isinstance(value, list):
        for item in value:
            yield from _units(item, parent, key)
    elif isinstance(value, str):
        if _MOMENT.match(value):
            yield key, "UTC, ISO 8601"
    elif isinstance(value, int | float) and not isinstance(value, bool):
        if parent in _OF_PARENT:
            yield f"{parent}.{key}", _OF_PARENT[parent]
        else:
            yield key, _unit(key)


def _unit(key: str) -> str:
    known = _EXACT.get(key) or _OWN_HOURS.get(key)
    if known is not None:
        return known
    if key.startswith("cost_"):
        return f"{_MONEY}, a week" if key.endswith("_per_week") else _MONEY
    return next((unit for ending, unit in _ENDINGS if key.endswith(ending)), _COUNTED)
