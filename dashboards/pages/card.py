"""Who shares a card, and who of them would suffer when all are busy at once; a part of the panel on the fleet page.

Busy at once is the hour of the week in which the 95th percentiles of all who share the card sum to most: use that never
coincides harms nobody. Where that sum, or the framebuffer that they need, is more than the card has, those of the
lowest priority wait first; of equal priority all of them do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dash import dcc, html

from dashboards.access.namespace_cut import SHARED_WITH_OTHERS
from dashboards.address import Address
from dashboards.figures.figures import DAYS
from dashboards.view_models.rows import percent_words, workload_state_words
from dashboards.words.reading import say, say_code
from fleet.inventory import Priority, WorkloadId
from fleet.profiles import CardProfile, Profile, Profiles
from fleet.units import format_bytes_short


def holders(address: Address, profiles: Profiles, card: CardProfile) -> list[Any]:
    """The workloads of a card with what each has and uses of it, and who would wait first."""
    if not card.workloads:
        return [html.H3(say("fleet.heading_granted_to_nobody"))]
    found = sharing(profiles, card)
    by_name = {profile.workload: profile for profile in found.holders}
    held = {name: html.Small(_held(profile)) for name, profile in by_name.items()}
    links = {name: dcc.Link(name, href=address.href("/workloads", w=name)) for name in card.workloads}
    lines = [html.Li([link, held.get(name)]) for name, link in links.items()]
    return [
        html.H3(say("fleet.shared_by_count_workloads", count=len(card.workloads))),
        html.Ul(lines, className="holders"),
        html.P(_suffering(found, card), className="suffers soft"),
    ]


def _held(profile: Profile) -> str:
    return " · ".join(
        (
            workload_state_words(profile.state),
            say("fleet.level_priority", level=say_code("level", profile.priority)),
            f"{say('fleet.compute_p95')} {percent_words(profile.compute.p95, 0)}",
            say("fleet.granted_size", size=format_bytes_short(profile.framebuffer.granted)),
        )
    )


def _suffering(found: Sharing, card: CardProfile) -> str:
    """One sentence: who waits first, and from what that is told."""
    if card.reason == SHARED_WITH_OTHERS:
        return say("fleet.who_would_suffer_not_told_others")
    if len(found.holders) < len(card.workloads):
        return say("fleet.who_would_suffer_not_known_not")
    if len(found.holders) <= 1:
        return say("fleet.nobody_else_would_suffer_from_has")
    if found.peak_ratio is None or found.peak_hour is None:
        return say("fleet.who_would_suffer_not_known_nothing")
    day, hour = divmod(found.peak_hour, 24)
    told = {
        "ratio": percent_words(found.peak_ratio, 0),
        "hour": f"{say_code('weekday', DAYS[day])} {hour:02d}:00",
        "framebuffer": percent_words(found.framebuffer_ratio, 0),
    }
    if not found.sufferers:
        return say("fleet.nobody_would_suffer_at_their_busiest", **told)
    return say("fleet.who_would_suffer_first_at_their", who=say("mark.list").join(found.sufferers), **told)


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
