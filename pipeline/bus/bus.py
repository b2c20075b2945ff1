"""The ports of the bus: what carries records from the receiver to the rollup.

A bus has one or more lanes (folders of the file bus, partitions of a Kafka topic). The receiver appends through
`BusWriter`; the rollup reads and commits one lane after the other, each of them a `Bus`. Adapters are `bus_file` and
`bus_kafka`; `lanes` says which row goes where.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from fleet.errors import Corrupt, Unavailable


class BusFull(Unavailable):
    """The bus holds as much as it may until its reader has caught up."""


class RecordTooLarge(Corrupt):
    """A record, or all of an append together, is larger than the bus takes; the same rows in smaller ones are not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """A record that the bus itself knows to be none that this program can read.

    Attributes:
        offset: where it begins.
        reason: why it can't be read, in words.
    """

    offset: int
    payload: bytes
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Records of a bus in order, as one piece of work.

    Attributes:
        source: name of the lane that the offsets belong to; a new bus has new ones.
        start: offset of the first record.
        end: offset after the last record: where the next chunk starts.
        ends: offset after each record.
        starts: where each record begins; empty where each begins where the one before ends.
        corrupt: records that were passed over because they are damaged beyond recognition.
        unreadable: records that lie between the others and are none of them; a reader keeps them as dead letters.
    """

    source: str
    start: int
    end: int
    records: tuple[bytes, ...]
    ends: tuple[int, ...]
    starts: tuple[int, ...] = ()
    corrupt: int = 0
    unreadable: tuple[Unreadable, ...] = ()


class BusWriter(Protocol):
    """The receiver's side of a bus.

    Contract: an append that returned is durable on every lane that it names. One that failed may have reached some of
    them: the same sample sent again is recognised downstream.
    """

    @property
    def lanes(self) -> int:
        """Number of lanes, at least 1."""
        ...

    def append_all(self, payloads: Mapping[int, bytes]) -> None:
        """Takes at most one record per lane, and returns once all of them are durable.

        Args:
            payloads: record by number of its lane, 0 to `lanes` - 1.

        Raises:
            BusFull: the bound is reached.
            Unavailable: the bus can't be reached, or another process writes to it.
            RecordTooLarge: a record, or all of them together, is larger than it ever takes.
            Corrupt: the storage can't take a record.
        """
        ...


class Bus(Protocol):
    """One lane: carries records, at least once.

    Contract: an append that returned is durable, and its offset is larger than that of any append that had returned
    before. Records are read in the order of their offsets, as often as asked for, until they are committed; what is not
    committed survives restarts. The bus is bounded, and says when it is full.
    """

    def append(self, payload: bytes) -> int:
        """Takes a record; returns the offset after it, once it is durable. Raises as `BusWriter.append_all`."""
        ...

    def read(self, start: int, *, bytes_max: int) -> Chunk | None:
        """The durable records from an offset on; None where there is no record.

        Args:
            start: an offset that a chunk ended with, or 0; what was committed and dropped is passed over.
            bytes_max: most bytes of payload; one record is given even where it alone is larger.
        """
        ...

    def commit(self, offset: int) -> None:
        """Says that everything before an offset was dealt with and may be dropped."""
        ...

    def committed(self) -> int:
        """The offset of the last commit, 0 where there is none."""
        ...


class OpenedLane(Bus, Protocol):
    """A lane that this process has opened."""

    def close(self) -> None:
        """Gives up what it holds; what was committed is durable."""
        ...


class DeadLetters(Protocol):
    """Keeps records that can't be read, for a person to look at.

    Contract: what was put is durable when `put` returns, so that the bus may drop it. A record may be put twice.
    """

    def put(self, payload: bytes, *, reason: str, source: str, offset: int) -> None:
        """Keeps one record.

        Args:
            reason: why it can't be read.
            source: name of its lane.

        Raises:
            Unavailable: it can't be kept now; the same record is put again later.
            Corrupt: storage can't take it.
        """
        ...
