"""Rows of bodies onto the bus: what waits together goes into few large records.

Senders write many small bodies at once, and a record of its own for each costs their readers far more than the
samples do. The first body of a group waits `linger_seconds` for others, or until there is enough for a record, and then
until fewer than `appends_at_once` appends are under way; its thread writes what has come by then, and every body of the
group is answered once all of its rows are durable, or refused as the others are. So a bus that is quick makes nobody
wait, one that is slow gets larger records, and nothing is said to be written before it is. A body that is large alone
waits for nobody. Where a record costs next to nothing, as on the file bus, joining costs more than it saves, and every
body is a record. Called by `intake`, shared by the intakes of all senders.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter_ns

from fleet.errors import Corrupt, Unavailable
from pipeline.bus.bus import BusWriter, RecordTooLarge
from pipeline.bus.lanes import cut_sections, lane_records
from pipeline.records.joined_rows import joined_sections
from pipeline.records.rows import Section

ROWS_PER_RECORD_MAX = 250_000
"""Rows of the largest record."""
GATHERED_SAMPLES_MAX = 65_536
"""Samples at which a group waits for no further body; a body with a quarter of it goes alone."""
GATHERED_BYTES_MAX = 8 << 20
"""Bytes of rows in memory at which it does, labels included; so does a body with a quarter of it."""
_ALONE = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What appends took; of a group, the body that came first has all of it."""

    appends: int = 0
    append_bytes: int = 0
    append_nanoseconds: int = 0


class RecordWriter:
    """Writes records.

    Args:
        rows_per_record_max: most rows of a record.
        gathers: whether bodies go together.
        linger_seconds: how long a group waits for bodies.
        appends_at_once: groups that are under way to the bus at once.
        wait: waits for an event so many seconds at most.
    """

    def __init__(
        self,
        bus: BusWriter,
        *,
        rows_per_record_max: int = ROWS_PER_RECORD_MAX,
        gathers: bool = True,
        linger_seconds: float = 0.0,
        appends_at_once: int = 1,
        wait: Callable[[threading.Event, float], object] = threading.Event.wait,
    ) -> None:
        self._bus = bus
        self._rows_per_record_max = rows_per_record_max
        self._gathers = gathers
        self._linger_seconds = linger_seconds
        self._wait = wait
        self._turns = threading.BoundedSemaphore(appends_at_once)
        self._lock = threading.Lock()
        self._open: _Group | None = None

    def prepared(self, sections: tuple[Section, ...], body_hash: bytes, samples: int) -> Callable[[], Written]:
        """Begins to write the rows of a body; what it returns ends that, and returns once all of them are durable.

        Where bodies go together only the end waits, for others or for the bus, so what decoding takes is given back
        before it. A body holds its rows until then, and in the end what one append packs of them.

        Args:
            body_hash: 16 bytes that name the body; a record carries the name of the first one in it.
            samples: how many samples its rows hold.

        Raises:
            BusFull: as `BusWriter.append_all`, at the end; some rows may be on the bus nevertheless.
            Unavailable: likewise, where the storage can't take a record, too.
        """
        if not self._gathers:
            return partial(self._all_appended, [self._packed(piece, body_hash) for piece in self._pieces(sections)])
        share = max(samples / GATHERED_SAMPLES_MAX, sum(map(_bytes_of, sections)) / GATHERED_BYTES_MAX)
        if share >= _ALONE:
            return partial(self._written, sections, body_hash)
        return partial(self._gathered, sections, body_hash, share)

    def write(self, sections: tuple[Section, ...], body_hash: bytes, samples: int) -> Written:
        """Writes the rows of a body from begin to end, see `prepared`."""
        return self.prepared(sections, body_hash, samples)()

    def _gathered(self, sections: tuple[Section, ...], body_hash: bytes, share: float) -> Written:
        with self._lock:
            group = self._open
            is_first = group is None
            if group is None:
                group = self._open = _Group(body_hash=body_hash)
            group.bodies.append(sections)
            group.share += share
            if group.share >= 1:
                self._open = None
                group.is_full.set()
        if is_first:
            return self._lead(group)
        group.is_over.wait()
        if group.failure is not None:
            raise copy(group.failure)
        return Written()

    def _lead(self, group: _Group) -> Written:
        try:
            if self._linger_seconds:
                self._wait(group.is_full, self._linger_seconds)
            with self._turns:
                self._close(group)
                sections = joined_sections(group.bodies)
                group.bodies.clear()
                written = self._written(sections, group.body_hash)
            group.failure = None
            return written
        except BaseException as exc:
            group.failure = copy(exc)  # without the frames, which hold the group and the rows
            raise
        finally:
            self._close(group)
            group.is_over.set()

    def _close(self, group: _Group) -> None:
        with self._lock:
            if self._open is group:
                self._open = None

    def _written(self, sections: tuple[Section, ...], body_hash: bytes) -> Written:
        started = perf_counter_ns()
        sizes = [size for piece in self._pieces(sections) for size in self._appended(piece, body_hash)]
        return Written(appends=len(sizes), append_bytes=sum(sizes), append_nanoseconds=perf_counter_ns() - started)

    def _all_appended(self, records: Sequence[Mapping[int, bytes]]) -> Written:
        started = perf_counter_ns()
        sizes = [self._append(payloads) for payloads in records]
        return Written(appends=len(sizes), append_bytes=sum(sizes), append_nanoseconds=perf_counter_ns() - started)

    def _appended(self, sections: tuple[Section, ...], body_hash: bytes) -> Iterator[int]:
        """Appends a record per lane; gives the bytes of each append, of which there are more where one is too large."""
        rows = sum(len(section.ts_ms) for section in sections)
        try:
            yield self._append(self._packed(sections, body_hash), is_last_try=rows == 1)
        except RecordTooLarge:
            for smaller in cut_sections(sections, -(-rows // 2)):
                yield from self._appended(smaller, body_hash)

    def _append(self, payloads: Mapping[int, bytes], *, is_last_try: bool = True) -> int:
        try:
            self._bus.append_all(payloads)
        except Corrupt as exc:
            if isinstance(exc, RecordTooLarge) and not is_last_try:
                raise
            raise Unavailable(str(exc)) from exc
        return sum(map(len, payloads.values()))

    def _pieces(self, sections: tuple[Section, ...]) -> Iterator[tuple[Section, ...]]:
        """What is appended at once."""
        return cut_sections(sections, self._rows_per_record_max)

    def _packed(self, sections: tuple[Section, ...], body_hash: bytes) -> dict[int, bytes]:
        return lane_records(sections, self._bus.lanes, body_hash)


@dataclass(slots=True, kw_only=True, eq=False)
class _Group:
    """Bodies that go together; mutable: they join until it is closed.

    Attributes:
        failure: why they are not durable; None once they are.
    """

    body_hash: bytes
    bodies: list[tuple[Section, ...]] = field(default_factory=list)
    share: float = 0.0
    is_full: threading.Event = field(default_factory=threading.Event)
    is_over: threading.Event = field(default_factory=threading.Event)
    failure: BaseException | None = field(
        default_factory=lambda: Unavailable("cannot write a body: the one that it waited with was not written")
    )


def _bytes_of(section: Section) -> int:
    return int(section.identities.nbytes + section.identity.nbytes + section.ts_ms.nbytes + section.values.nbytes)
