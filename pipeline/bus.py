"""The port of the bus: what carries records from the receiver to the rollup.

The receiver appends, the rollup reads and commits; adapters are `bus_file` here and a Kafka one in production.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from fleet.errors import Unavailable


class BusFull(Unavailable):
    """The bus holds as much as it may until its reader has caught up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Records of a bus in order, as one piece of work.

    Attributes:
        source: name of the bus that the offsets belong to; a new bus has a new one.
        start: offset of the first record.
        end: offset after the last record: where the next chunk starts.
        records: the records' payloads.
        ends: offset after each record.
        corrupt: records that were passed over because they are damaged.
    """

    source: str
    start: int
    end: int
    records: tuple[bytes, ...]
    ends: tuple[int, ...]
    corrupt: int = 0


class Bus(Protocol):
    """Carries records, at least once.

    Contract: an append that returned is durable, and its offset is larger than that of any append that had returned
    before. Records are read in the order of their offsets, as often as asked for, until they are committed; what is not
    committed survives restarts. The bus is bounded, and says when it is full.
    """

    def append(self, payload: bytes) -> int:
        """Takes a record.

        Returns:
            The offset after it, once it is durable.

        Raises:
            BusFull: the bound is reached.
            Unavailable: another process writes to it.
            Corrupt: the storage can't take it; the record is not on the bus.
        """
        ...

    def read(self, start: int, *, bytes_max: int) -> Chunk | None:
        """The durable records from an offset on.

        Args:
            start: an offset that a chunk ended with, or 0; what was committed and dropped is passed over.
            bytes_max: most bytes of payload; one record is given even where it alone is larger.

        Returns:
            None where there is no record.
        """
        ...

    def commit(self, offset: int) -> None:
        """Says that everything before an offset was dealt with and may be dropped."""
        ...

    def committed(self) -> int:
        """The offset of the last commit, 0 where there is none."""
        ...
