"""When a cluster was last heard, and since when it is silent."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSighting:
    """When a cluster was last heard.

    Attributes:
        newest_at: end of its newest window, UTC.
        cards: its cards on the day that it was last heard.
        silent_after_seconds: without a sample for longer than this it is silent (`cluster.silent_seconds`).
        now: the moment that ages are counted to, by the clock of the data.
    """

    cluster: str
    newest_at: datetime
    cards: int
    silent_after_seconds: float
    now: datetime

    @property
    def age_seconds(self) -> float:
        """Age of the newest window."""
        return max(0.0, (self.now - self.newest_at).total_seconds())

    @property
    def silent_since(self) -> datetime | None:
        """Since when it sends nothing; None while it sends."""
        return self.newest_at if self.age_seconds > self.silent_after_seconds else None
