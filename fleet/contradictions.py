"""Sources that say of one card what can't both be true: the record of it, and the one rule by which it is found.

Two exporters that are trusted may still disagree. No figure is made of both: one source counts for each card, and that
they disagree is a finding, which doctor and the health page show. Called by `gputide.doctor.prometheus_sources`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

APART_BYTES_MAX, APART_RATIO_MAX = 2.0 * (1 << 30), 0.1
"""How far apart two exporters' means of an hour may lie: one counts what the driver reserves, another does not."""


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Statement:
    """What one source says of a card's framebuffer in use.

    Attributes:
        used_bytes: mean of an hour.
        metric: name of the metric.
        job: job by which Prometheus scrapes the source; `?` where it says none.
    """

    used_bytes: float
    metric: str
    job: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Contradiction:
    """Two statements of one card that can't both be true.

    Attributes:
        card: its id.
        node: its node, as far as a source says it; empty where none does.
        least: who says least.
        most: who says most.
        since: from which hour on sources contradict each other without a break, UTC; None where that was not asked, or
            reaches back farther than was looked.
    """

    card: str
    node: str = ""
    least: Statement
    most: Statement
    since: datetime | None = None


def contradictions(said: Mapping[str, Iterable[Statement]]) -> tuple[Contradiction, ...]:
    """Cards of which sources say what can't both be true, by id; of each the two that are farthest apart."""
    found = []
    for card, statements in sorted(said.items()):
        least, most = min(statements), max(statements)
        if most.used_bytes - least.used_bytes > max(APART_BYTES_MAX, APART_RATIO_MAX * most.used_bytes):
            found.append(Contradiction(card=card, least=least, most=most))
    return tuple(found)
