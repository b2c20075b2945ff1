"""Who would suffer on a shared card is told from the hours in which all are busy."""

from dataclasses import replace

from dashboards.pages.card import sharing
from fleet.inventory import Priority
from fleet.profiles import CardProfile, HourOfWeek, Profile, Profiles
from tests.dashboards.embedded import make_profiles

FLEET = make_profiles()


def _busy_in(profile: Profile, hour: int, ratio: float, priority: Priority) -> Profile:
    hours = tuple(ratio if place == hour else 0.05 for place in range(168))
    return replace(
        profile, priority=priority, pods=profile.pods[:1], cards=profile.cards[:1],
        hour_of_week=HourOfWeek(p50=hours, p95=hours, max=hours),
        framebuffer=replace(profile.framebuffer, need_max=2**30, used_max=2**30),
    )  # fmt: skip


def _shared(hour: int, priority: Priority, *, framebuffer_bytes: int = 80 * 2**30) -> tuple[Profiles, CardProfile]:
    """A card of two: one busy on Monday at nine, one at an hour of the week."""
    first = _busy_in(FLEET.workloads[0], 9, 0.7, Priority.HIGH)
    second = _busy_in(FLEET.workloads[1], hour, 0.6, priority)
    card = replace(FLEET.cards[0], workloads=(first.workload, second.workload), framebuffer_bytes=framebuffer_bytes)
    return replace(FLEET, workloads=(first, second)), card


def test_low_priority_suffers_where_both_are_busy_at_once() -> None:
    profiles, card = _shared(9, Priority.LOW)
    found = sharing(profiles, card)
    assert found.peak_hour == 9
    assert found.peak_ratio is not None
    assert round(found.peak_ratio, 2) == 1.3
    assert found.sufferers == (card.workloads[1],)


def test_equals_suffer_together() -> None:
    profiles, card = _shared(9, Priority.HIGH)
    assert sharing(profiles, card).sufferers == card.workloads


def test_nobody_suffers_where_their_hours_differ() -> None:
    profiles, card = _shared(100, Priority.LOW)
    found = sharing(profiles, card)
    assert found.sufferers == ()
    assert found.peak_ratio is not None
    assert round(found.peak_ratio, 2) == 0.75


def test_framebuffer_that_does_not_suffice_harms_the_lower_priority() -> None:
    profiles, card = _shared(100, Priority.LOW, framebuffer_bytes=2**30)
    found = sharing(profiles, card)
    assert found.framebuffer_ratio == 2.0
    assert found.sufferers == (card.workloads[1],)


def test_one_holder_has_nobody_to_suffer_from_and_an_unmeasured_card_no_peak() -> None:
    profiles, card = _shared(9, Priority.LOW, framebuffer_bytes=1)
    alone = replace(card, workloads=card.workloads[:1])
    assert sharing(profiles, alone).sufferers == ()
    free = sharing(profiles, replace(card, workloads=()))
    assert (free.holders, free.peak_ratio, free.framebuffer_ratio) == ((), None, None)
