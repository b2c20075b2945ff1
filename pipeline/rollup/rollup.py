"""The port of the rollup: bus in, additive rows out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class RollupStep:
    """What one step did.

    Attributes:
        start: offset it began at.
        end: offset it ended at.
        records: records taken in.
        corrupt: records, or single rows of them, that could not be read and were passed over.
        samples: partial rows that came in.
        repeats: partial rows that brought nothing new: merged into others or counted before.
        rows: rows written, all tables and levels.
    """

    start: int
    end: int
    records: int
    corrupt: int
    samples: int
    repeats: int
    rows: int


class Rollup(Protocol):
    """Turns the bus into windows.

    Contract: merged over all its rows, the result depends on the set of samples only, not on their order, on how they
    are split into records, on repeats or on restarts; late samples are merged, never lost. A sample is told apart by
    series and time; where one (series, time) comes with several values, the largest within a step counts, and what an
    earlier step has counted stays.
    """

    def step(self) -> RollupStep | None:
        """Takes in the next piece of the bus; None where there is none.

        Raises:
            Unavailable: another process rolls up into the same warehouse.
            Corrupt: the storage can't take the rows; the same piece is taken in again by the next step.
        """
        ...
