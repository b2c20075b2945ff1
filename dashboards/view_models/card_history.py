"""A card over time, as pages show it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

Series = tuple[float | None, ...]
"""One value per step; None where nothing was collected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Who held a part of a card, and when."""

    workload: str
    pod: str
    since: datetime
    until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class CardHistory:
    """One card over time, hour by hour; each series is of shape (hours,), None where nothing was collected.

    Attributes:
        times: start of each hour, UTC.
        compute: mean of SM active (or duty cycle), 0-1.
        framebuffer_used_bytes: mean of the framebuffer held.
        held: who held it, by when they began.
    """

    times: tuple[datetime, ...]
    compute: Series
    framebuffer_used_bytes: Series
    power_watts: Series
    temperature_celsius: Series
    held: tuple[Held, ...]
