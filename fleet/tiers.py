"""Tiers of work: what each is promised of the cards that services leave, and the priority that a backend gives it.

The one place that says it. A pod carries its tier as a label or an annotation; its priority is read from it where no
word of the backend says one, plans grant that priority in the backend's own words, and the tide lets work in, warns it
and counts what became of the promise by tier. A tenant writes the label, so it speaks for that tenant's own pods alone.
Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from fleet.inventory import TIER_LABEL, Priority


class Tier(StrEnum):
    """Tier of a pod's work, the one that is promised most first."""

    PROTECTED = "protected"
    """Services: nothing is taken that they need."""
    MID = "mid"
    """Work that may be stopped seldom, for long enough, and with time to save."""
    BATCH = "batch"
    """Work that saves often; work that names no tier."""
    FREE = "free"
    """Whatever is left: nothing is promised."""

    @property
    def priority(self) -> Priority:
        """The priority that backends are asked to give it."""
        return _PRIORITIES[self]


_PRIORITIES = {
    Tier.PROTECTED: Priority.HIGH,
    Tier.MID: Priority.NORMAL,
    Tier.BATCH: Priority.LOW,
    Tier.FREE: Priority.LOW,
}

NIGHT_TIERS = (Tier.MID, Tier.BATCH, Tier.FREE)
"""Tiers that take the cards of services that scale in, in the order in which they are let in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarantee:
    """What the work of a tier is promised in a night of the tide.

    Attributes:
        hours_min: it is let in only where so many hours are left before it must go.
        notice_seconds: between being asked to save and being stopped, at least.
        evictions_per_hour_max: how often it may have to go before the moment that was announced, per hour that it runs;
            None where nothing is promised.
    """

    hours_min: float = 0.0
    notice_seconds: float = 0.0
    evictions_per_hour_max: float | None = None


def tier_of(labels: Mapping[str, str]) -> Tier | None:
    """The tier that labels or annotations name; None where they name none that there is."""
    return next((tier for tier in Tier if tier.value == labels.get(TIER_LABEL)), None)
