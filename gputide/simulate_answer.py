"""A simulation as an answer of the command line: one row per policy. Called by `verbs.simulate` and the leaderboard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fleet.units import format_count, format_percent
from gputide.output import Answer, Listing
from gputide.simulate_policies import Performance

COLUMNS = (
    "policy",
    "relief",
    "cards",
    "spares",
    "saved",
    "violation",
    "predicted",
    "lost work",
    "moves/pod/day",
    "harvested card-h",
    "evictions/h",
    "lost card-h",
)


def simulation_answer(described: dict[str, Any], found: Sequence[Performance]) -> Answer:
    """What `plan simulate` prints.

    Args:
        described: the document.
        found: how each policy did.
    """
    pods = found[0].pods if found else 0
    return Answer(
        document=described,
        headline=(
            (
                f"{described['fleet']}: {format_count(pods)} pods on cards of their own, played {described['since']} "
                f"to {described['until']}, learned since {described['learned_since']}"
            ),
        ),
        listings=(Listing(title="Policies", columns=COLUMNS, rows=[performance_row(item) for item in found]),),
        footnotes=(
            *((described["timing"]["sentence"],) if "timing" in described else ()),
            "saved counts spares at their peak; predicted is what the plan alone was expected to violate",
            "harvested is work of low priority on what the others leave; lost is what eviction cost it",
        ),
    )


def performance_row(item: Performance) -> tuple[object, ...]:
    """One line of the table."""
    predicted = item.predicted_violation_ratio
    return (
        item.policy,
        f"{item.reaction_seconds:g} s" if item.reaction_seconds is not None else "off",
        item.cards_opening,
        max(0, item.cards_peak - item.cards_opening),
        format_percent(item.saved_ratio, digits=1),
        format_percent(item.violation_ratio, digits=3),
        format_percent(predicted, digits=2) if predicted is not None else None,
        format_percent(item.lost_work_ratio, digits=3),
        f"{item.moves_per_pod_day:.3f}",
        round(item.low_priority_gpu_hours),
        f"{item.evictions_per_worker_hour:.3f}",
        round(item.low_priority_lost_gpu_hours),
    )
