"""How soon relief acts and how fast a pod is ready elsewhere: as measured here, else as assumed. What is planned with.

Relief notes both for every move in its ledger; once enough moves were made, what they took replaces the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from enforcer.relief.book import MeasuredRelief
from fleet.relief.rules import LOAD_BYTES_PER_SECOND

ASSUMED_REACTION_SECONDS = 120.0
"""From an overload to the decision, where nothing was measured: a careful guess, as a person beside a pager."""


class TimingSource(StrEnum):
    """Where a figure comes from."""

    GIVEN = "given"
    MEASURED = "measured"
    ASSUMED = "assumed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReliefTiming:
    """What relief takes.

    Attributes:
        reaction_seconds: from an overload to the decision.
        reaction_source: where that comes from.
        load_bytes_per_second: how fast a moving pod's framebuffer is loaded.
        load_source: where that comes from.
        moves: moves that were measured; 0 where none were.
    """

    reaction_seconds: float
    reaction_source: TimingSource
    load_bytes_per_second: float
    load_source: TimingSource
    moves: int

    @property
    def sentence(self) -> str:
        """One sentence for people."""
        measured = f", over {self.moves} moves" if self.moves else ""
        return (
            f"relief decides {self.reaction_seconds:g} s after an overload ({self.reaction_source.value}) and loads "
            f"{self.load_bytes_per_second / 2**30:.2f} GiB/s ({self.load_source.value}){measured}"
        )


def relief_timing(
    measured: MeasuredRelief | None,
    *,
    reaction_seconds: float | None = None,
    load_bytes_per_second: float | None = None,
) -> ReliefTiming:
    """What relief takes.

    Args:
        measured: what moves took so far; None where too few were made.
        reaction_seconds: what is given instead.
        load_bytes_per_second: what is given instead.
    """
    reaction, reaction_source = reaction_seconds, TimingSource.GIVEN
    if reaction is None and measured is not None and measured.reaction_seconds is not None:
        reaction, reaction_source = measured.reaction_seconds, TimingSource.MEASURED
    if reaction is None:
        reaction, reaction_source = ASSUMED_REACTION_SECONDS, TimingSource.ASSUMED
    rate, load_source = load_bytes_per_second, TimingSource.GIVEN
    if rate is None and measured is not None:
        rate, load_source = measured.load_bytes_per_second, TimingSource.MEASURED
    if rate is None:
        rate, load_source = LOAD_BYTES_PER_SECOND, TimingSource.ASSUMED
    used = TimingSource.MEASURED in (reaction_source, load_source)
    return ReliefTiming(
        reaction_seconds=reaction,
        reaction_source=reaction_source,
        load_bytes_per_second=rate,
        load_source=load_source,
        moves=measured.moves if measured is not None and used else 0,
    )
