"""Who shares a card, and who of them would suffer when all are busy at once. Pure; called by the fleet page.

Busy at once is the hour of the week in which the 95th percentiles of all who share the card sum to most: use that never
coincides harms nobody. Where that sum, or the framebuffer that they need, is more than the card has, those of the
lowest priority wait first; of equal priority all of them do.
"""

from __future__ import annotations

from dataclasses import dataclass

from fleet.inventory import Priority, WorkloadId
from fleet.profiles import CardProfile, Profile, Profiles

HOURS_OF_WEEK = 168
_RANK = {Priority.LOW: 0, Priority.NORMAL: 1, Priority.HIGH: 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """A card with all who hold it.

    Attributes:
        holders: profiles of its workloads, in the order of the card; who is not profiled is left out.
        peak_ratio: largest sum over the hours of the week of their 95th percentiles of compute, 1 is the whole card;
            None where nothing was measured.
        peak_hour: that hour, 0 is Monday 00:00 in the time zone of the first holder; None as before.
        framebuffer_ratio: framebuffer that they need / that of the card; None where nothing was measured.
        sufferers: who would wait, or be out of memory, first; empty where all fit at once, or there is one holder.
    """

    holders: tuple[Profile, ...]
    peak_ratio: float | None
    peak_hour: int | None
    framebuffer_ratio: float | None
    sufferers: tuple[WorkloadId, ...]


def sharing(profiles: Profiles, card: CardProfile) -> Sharing:
    """Who holds a card, and who of them would suffer."""
    wanted = set(card.workloads)
    by_name = {profile.workload: profile for profile in profiles.workloads if profile.workload in wanted}
    holders = tuple(by_name[name] for name in card.workloads if name in by_name)
    hours = {hour: ratio for hour in range(HOURS_OF_WEEK) if (ratio := _at(holders, hour)) is not None}
    peak_hour = max(hours, key=lambda hour: hours[hour], default=None)
    peak_ratio = None if peak_hour is None else hours[peak_hour]
    framebuffer_ratio = _framebuffer(holders, card)
    is_short = (peak_ratio or 0.0) > 1 or (framebuffer_ratio or 0.0) > 1
    lowest = min((_RANK[profile.priority] for profile in holders), default=0)
    return Sharing(
        holders=holders,
        peak_ratio=peak_ratio,
        peak_hour=peak_hour,
        framebuffer_ratio=framebuffer_ratio,
        sufferers=tuple(profile.workload for profile in holders if _RANK[profile.priority] == lowest)
        if is_short and len(holders) > 1
        else (),
    )


def _at(holders: tuple[Profile, ...], hour: int) -> float | None:
    """Sum of what the holders use in an hour of the week; None where none was measured in it."""
    found = [
        ratio * _slices(profile)
        for profile in holders
        if hour < len(profile.hour_of_week.p95) and (ratio := profile.hour_of_week.p95[hour]) is not None
    ]
    return sum(found) if found else None


def _framebuffer(holders: tuple[Profile, ...], card: CardProfile) -> float | None:
    needs = [
        need * _slices(profile)
        for profile in holders
        if (need := profile.framebuffer.need_max or profile.framebuffer.used_max) is not None
    ]
    return sum(needs) / card.framebuffer_bytes if needs and card.framebuffer_bytes else None


def _slices(profile: Profile) -> int:
    """Slices that a workload has on one of its cards, on average, at least one."""
    return max(1, round(len(profile.pods) / max(1, len(profile.cards))))
