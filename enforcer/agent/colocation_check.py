"""Does low priority really do nothing while high priority works? The three situations of mGPU's acceptance, measured.

On every shared card that was looked at: high priority alone, low priority alone, both wanting the card. The third holds
where low priority did nothing in every look in which high priority worked, whether or not high priority filled the
card. What happens between two looks is not seen, so the result says how far apart they were; a situation that did not
occur, or in which somebody was not measured, is no proof of anything. Pure; called by `gputide run agent check`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from enforcer.agent.node_view import NodeView, SliceView
from fleet.inventory import Priority


class Situation(StrEnum):
    """Who wanted a card."""

    HIGH_ALONE = "high_alone"
    LOW_ALONE = "low_alone"
    BOTH = "both"


class Verdict(StrEnum):
    """What was found."""

    HOLDS = "holds"
    BROKEN = "broken"
    NOT_SEEN = "not_seen"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedSituation:
    """One situation on one card.

    Attributes:
        high_duty_ratio: mean duty cycle of high priority in these, 0-1; None where it was not seen.
        low_duty_ratio: likewise of low priority.
        low_duty_max: largest duty cycle of low priority in one of these looks, 0-1.
        verdict: high priority alone and low priority alone hold where they were seen.
    """

    card: str
    situation: Situation
    looks: int
    high_duty_ratio: float | None
    low_duty_ratio: float | None
    low_duty_max: float | None
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class ColocationCheck:
    """What a check found.

    Attributes:
        resolution_seconds: median time between two looks; None with fewer than two.
        unmeasured_looks: looks at a shared card in which somebody's duty cycle was not known; they count nowhere.
        situations: three per card that high and low priority shared.
    """

    resolution_seconds: float | None
    unmeasured_looks: int
    situations: tuple[CheckedSituation, ...]


def check_colocation(
    views: Sequence[NodeView], *, working_ratio: float, settle_seconds: float
) -> ColocationCheck:  # fmt: skip
    """Judge looks that were taken one after the other.

    Args:
        working_ratio: duty cycle above which somebody works, 0-1.
        settle_seconds: how long after high priority began to work low priority may still be seen working: a duty cycle
            is a mean over the driver's last second.
    """
    cards = sorted({card for view in views for card in _shared(view)})
    unmeasured = 0
    found: list[CheckedSituation] = []
    for card in cards:
        seen: dict[Situation, list[tuple[float, float]]] = {situation: [] for situation in Situation}
        began_at: float | None = None
        for view in views:
            slices = view.on_card(card)
            high, low = _duty(slices, Priority.HIGH), _duty(slices, Priority.LOW)
            if high is None or low is None:
                unmeasured += 1
                began_at = None
                continue
            if high <= working_ratio:
                began_at = None
            elif began_at is None:
                began_at = view.at_seconds
            situation = _situation(slices, high, low, working_ratio)
            if situation is None or (began_at is not None and view.at_seconds - began_at < settle_seconds):
                continue
            seen[situation].append((high, low))
        found += [_judged(card, situation, looks, working_ratio) for situation, looks in seen.items()]
    return ColocationCheck(
        resolution_seconds=_resolution(views), unmeasured_looks=unmeasured, situations=tuple(found)
    )  # fmt: skip


def _shared(view: NodeView) -> Iterable[str]:
    by_card: dict[str, set[Priority]] = {}
    for entry in view.slices:
        by_card.setdefault(entry.card, set()).add(entry.priority)
    return (card for card, priorities in by_card.items() if {Priority.HIGH, Priority.LOW} <= priorities)


def _duty(slices: Sequence[SliceView], priority: Priority) -> float | None:
    """Duty cycles of one priority together; None where one of them is not known."""
    found = [entry.duty_cycle_ratio for entry in slices if entry.priority is priority]
    known = [duty for duty in found if duty is not None]
    return sum(known) if len(known) == len(found) else None


def _situation(slices: Sequence[SliceView], high: float, low: float, working_ratio: float) -> Situation | None:
    """Low priority wants the card while it is there at all: asleep it shows nothing, which is the point."""
    is_low_there = any(entry.priority is Priority.LOW for entry in slices)
    if high > working_ratio:
        return Situation.BOTH if is_low_there else Situation.HIGH_ALONE
    return Situation.LOW_ALONE if low > working_ratio else None


def _judged(
    card: str, situation: Situation, looks: Sequence[tuple[float, float]], working_ratio: float
) -> CheckedSituation:
    if not looks:
        return CheckedSituation(
            card=card, situation=situation, looks=0, high_duty_ratio=None, low_duty_ratio=None, low_duty_max=None,
            verdict=Verdict.NOT_SEEN,
        )  # fmt: skip
    low_max = max(low for _, low in looks)
    is_broken = situation is Situation.BOTH and low_max > working_ratio
    return CheckedSituation(
        card=card,
        situation=situation,
        looks=len(looks),
        high_duty_ratio=sum(high for high, _ in looks) / len(looks),
        low_duty_ratio=sum(low for _, low in looks) / len(looks),
        low_duty_max=low_max,
        verdict=Verdict.BROKEN if is_broken else Verdict.HOLDS,
    )


def _resolution(views: Sequence[NodeView]) -> float | None:
    gaps = sorted(after.at_seconds - before.at_seconds for before, after in pairwise(views))
    return gaps[len(gaps) // 2] if gaps else None
