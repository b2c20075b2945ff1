"""How far behind each step from the exporter to the warehouse is, and which of them holds the rest up. Pure.

Seen from the data folder: what the receiver wrote to the bus and when, what waits there, when the rollup last stored
something, and of when the newest sample is. What happens before the receiver shows in the age of the samples that it
takes. Called by the health page and the API.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

BEHIND_SECONDS = 300.0
"""A step that did nothing for longer than this, or two intervals of the data where that is longer, is behind."""


class LagCause(StrEnum):
    """What holds the chain up."""

    NONE = "none"
    SENDER = "sender"
    """Nothing arrives: the exporter, its Prometheus or the way from there stands still."""
    LATE_SAMPLES = "late_samples"
    """What arrives is old: the exporter's Prometheus is behind with its remote write."""
    SENDER_OR_LATE = "sender_or_late"
    """Something arrives, of this cluster nothing new: it may all be other clusters'."""
    ROLLUP = "rollup"
    """What arrived waits on the bus: the rollup stands still or is too slow."""
    UNKNOWN = "unknown"
    """The bus lies elsewhere, and nothing here says how far it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LagChain:
    """The chain of one cluster; ages in seconds, by the machine's clock but for the newest sample's.

    Attributes:
        newest_at: end of the newest window in the warehouse, by the samples' own time, UTC; None where there is none.
        sample_age_seconds: its age by the clock of the data; None where there is none.
        interval_seconds: how often a sample is expected.
        received_age_seconds: since the receiver last wrote to the bus; None where the bus lies elsewhere or is empty.
        waiting_bytes: what waits on the bus for the rollup; None where the bus lies elsewhere.
        stored_age_seconds: since the rollup last stored something; None where it never did.
        is_shared: other clusters' samples come by the same bus, so that what arrives need not be this one's.
    """

    newest_at: datetime | None
    sample_age_seconds: float | None
    interval_seconds: float
    received_age_seconds: float | None
    waiting_bytes: int | None
    stored_age_seconds: float | None
    is_shared: bool = False

    @property
    def limit_seconds(self) -> float:
        """Age from which on a step is behind."""
        return max(BEHIND_SECONDS, 2 * self.interval_seconds)

    @property
    def cause(self) -> LagCause:
        """What holds the chain up, looked for from the newest sample backwards."""
        age = self.sample_age_seconds
        if age is not None and age <= self.limit_seconds:
            return LagCause.NONE
        if self.waiting_bytes is None:
            return LagCause.UNKNOWN
        stored = self.stored_age_seconds
        if self.waiting_bytes > 0 and (stored is None or stored > self.limit_seconds):
            return LagCause.ROLLUP
        received = self.received_age_seconds
        if received is None or received > self.limit_seconds:
            return LagCause.SENDER
        return LagCause.SENDER_OR_LATE if self.is_shared else LagCause.LATE_SAMPLES
