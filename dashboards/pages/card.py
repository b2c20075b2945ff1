"""Who holds a card, and who of them would suffer when all are busy at once; a part of the panel on the fleet page."""

from __future__ import annotations

from typing import Any

from dash import dcc, html

from dashboards.access.cut import SHARED_WITH_OTHERS
from dashboards.address import Address
from dashboards.figures.figures import DAYS
from dashboards.shown.neighbours import Sharing, sharing
from dashboards.shown.rows import percent_words, workload_state_words
from dashboards.words.pages import counted, say
from fleet.profiles import CardProfile, Profile, Profiles
from fleet.units import format_bytes_short


def holders(address: Address, profiles: Profiles, card: CardProfile) -> list[Any]:
    """The workloads of a card with what each has and uses of it, and who would wait first."""
    if not card.workloads:
        return [html.H3(say("Granted to nobody"))]
    found = sharing(profiles, card)
    by_name = {profile.workload: profile for profile in found.holders}
    lines = [
        html.Li(
            [
                dcc.Link(name, href=address.href("/workloads", w=name)),
                html.Small(_held(by_name[name])) if name in by_name else None,
            ]
        )
        for name in card.workloads
    ]
    return [
        html.H3(counted(len(card.workloads), "Held by {count} workload", "Shared by {count} workloads")),
        html.Ul(lines, className="holders"),
        html.P(_suffering(found, card), className="suffers soft"),
    ]


def _held(profile: Profile) -> str:
    return " · ".join(
        (
            workload_state_words(profile.state),
            say("{level} priority", level=say(profile.priority.value)),
            f"{say('SM active p95')} {percent_words(profile.compute.p95, 0)}",
            say("granted {size}", size=format_bytes_short(profile.framebuffer.granted)),
        )
    )


def _suffering(found: Sharing, card: CardProfile) -> str:
    """One sentence: who waits first, and from what that is told."""
    if card.reason == SHARED_WITH_OTHERS:
        return say("Who would suffer is not told: others share it whom you may not see.")
    if len(found.holders) < len(card.workloads):
        return say("Who would suffer is not known: not every workload of it is profiled.")
    if len(found.holders) <= 1:
        return say("Nobody else would suffer from it: it has the card alone.")
    if found.peak_ratio is None or found.peak_hour is None:
        return say("Who would suffer is not known: nothing was measured.")
    day, hour = divmod(found.peak_hour, 24)
    told = {
        "ratio": percent_words(found.peak_ratio, 0),
        "hour": f"{say(DAYS[day])} {hour:02d}:00",
        "framebuffer": percent_words(found.framebuffer_ratio, 0),
    }
    if not found.sufferers:
        return say(
            "Nobody would suffer: at their busiest hour ({hour}) they need {ratio} of the compute and {framebuffer} of "
            "the framebuffer.",
            **told,
        )
    return say(
        "{who} would suffer first: at their busiest hour ({hour}) they need {ratio} of the compute and {framebuffer} "
        "of the framebuffer.",
        who=say(", ").join(found.sufferers),
        **told,
    )
