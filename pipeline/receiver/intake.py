"""From the body of one request to a record on the bus, and what to answer.

The receiver hands every body to `Intake.take`; threads may call it at once. An answer of success is given only after
the bus has made the record durable. A body that comes again within `rollup.repeat_memory_seconds` is answered as before
and not carried again. What a body may take is bounded before it is taken: by `decode.BodyLimits`, by `turns`, and by
the number of new series that are read while other bodies wait for the series table.

A body is recognised by a name of 16 bytes. Its bytes, seven to a number, are the coefficients of a polynomial, which is
evaluated at two secret points modulo the prime 2⁶¹ - 1 (the polynomial hash of Wegman and Carter, New hash functions
and their use in authentication and set equality, 1981). Two bodies of n bytes that were chosen without knowing the
points have one name with a probability of at most (n / 7 / 2⁶¹)², below 10⁻²³ for bodies of 32 MiB: no sender can craft
a body that is taken for another. It costs a third of SHA-256 on processors that have instructions for that one.
"""

from __future__ import annotations

import secrets
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from time import sleep
from typing import Any

import numpy as np
from llvmlite import ir
from numba import extending, njit, types

from fleet.errors import Corrupt, Unavailable
from pipeline.bus.bus import BusFull
from pipeline.receiver.record_writer import RecordWriter, Written
from pipeline.receiver.repeats import Repeats
from pipeline.receiver.turns import Crowded, Message, Turns, may_be_small
from pipeline.records.rows import TS_MAX_MS, Section, Tally, rows_of
from pipeline.remote_write.byte_words import address, load8, store8
from pipeline.remote_write.decode import DecodedBody, TooLarge
from pipeline.remote_write.series_table import SeriesTable

RETRY_AFTER_SECONDS = 5
"""When a sender shall come again."""
NEW_AT_ONCE = 250
"""New series that are read before other bodies have their turn at the series table: some 5 to 20 ms."""
NEW_OF_SMALL_MAX = 2500
"""New series of a small body; one with more takes the turn of a large one."""
_PAUSE_SECONDS = 0.001


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a sender is answered.

    Attributes:
        text: what was wrong, one line; empty on success.
        rejected: samples that can't be taken now or later.
        histograms: histograms that were taken and counted; they are not kept.
        exemplars: exemplars that were taken and counted.
        retry_after_seconds: when to come again; None where that does not help.
        is_counted: True where the body was understood, so that counts of what was written belong into the answer.
    """

    status: int
    text: str = ""
    samples: int = 0
    rejected: int = 0
    histograms: int = 0
    exemplars: int = 0
    retry_after_seconds: int | None = None
    is_counted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ready:
    """A body that the bus may have: what writes its rows, what is counted then, and the answer."""

    write: Callable[[], Written] | None
    counts: dict[str, int]
    answer: Answer


class Intake:
    """Takes bodies in.

    Args:
        records: takes their rows to the bus.
        turns: bounds what bodies take together.
        repeats: bodies that were answered.
        ts_max_ms: the latest time that a sample may have now, epoch milliseconds.
    """

    def __init__(
        self,
        records: RecordWriter,
        table: SeriesTable,
        *,
        turns: Turns,
        repeats: Repeats[Answer],
        ts_max_ms: Callable[[], int] = lambda: TS_MAX_MS,
    ) -> None:
        self._records = records
        self._table = table
        self._turns = turns
        self._repeats = repeats
        self._ts_max_ms = ts_max_ms
        self._body_hash = BodyHash()
        self._table_lock = threading.Lock()
        self._counts_lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        """What became of bodies and samples; nanoseconds that appends to the bus took, and how many there were."""

    def take(self, body: bytes, message: Message) -> Answer:
        """Decodes a body, puts its rows on the bus and says what to answer.

        Args:
            body: as it came: a snappy block of remote write, or OTLP, gzip or plain.
        """
        body_hash = self._body_hash.name(body, message)
        known = self._repeats.recall(body_hash)
        if known is not None:
            self._count(repeats=1)
            return known
        try:
            answer = self._taken(body, message, body_hash)
        except TooLarge as exc:
            return self._refused(413, exc, "refused_large")
        except Corrupt as exc:
            return self._refused(400, exc, "corrupt_bodies")
        except BusFull as exc:
            return self._refused(429, exc, "refused_full")
        except Crowded as exc:
            return self._refused(429, exc, "refused_busy")
        except Unavailable as exc:
            return self._refused(503, exc, "refused_unavailable")
        self._repeats.remember(body_hash, answer)
        return answer

    @property
    def series(self) -> int:
        """Wanted series that are remembered."""
        return self._table.wanted

    @property
    def series_taken(self) -> int:
        """What this takes of a bound on series: more than `series` where labels are long."""
        return self._table.taken

    @property
    def claims_overridden(self) -> int:
        """Series whose labels claimed another cluster than their sender's."""
        return self._table.claims.overridden

    @property
    def untrusted(self) -> int:
        """Series left out because their targets may not speak for others."""
        return self._table.claims.untrusted

    def allow(self, series_max: int) -> None:
        """Change the bound on series; those that are known stay."""
        self._table.allow(series_max)

    def _taken(self, body: bytes, message: Message, body_hash: bytes) -> Answer:
        if may_be_small(body, message):
            decoder = self._turns.take_small()
            try:
                small = decoder.decode_small(body, message)
                ready = None if small is None else self._ready(small, body_hash, NEW_OF_SMALL_MAX)
            finally:
                self._turns.give_back(decoder)
            if ready is not None:
                return self._written(ready)
        with self._turns.large() as fresh:
            decoded = fresh.decode(body, message)
            while (ready := self._ready(decoded, body_hash, NEW_OF_SMALL_MAX)) is None:
                pass
            return self._written(ready)

    def _ready(self, decoded: DecodedBody, body_hash: bytes, new_max: int) -> _Ready | None:
        found = self._rows(decoded, new_max)
        if found is None:
            return None
        sections, tally = found
        counts = {
            "samples": tally.written,
            "samples_unwanted": tally.unwanted + decoded.unwanted,
            "samples_of_dropped_series": tally.dropped,
            "samples_out_of_range": tally.bad_values,
            "samples_out_of_time": tally.bad_times,
            "samples_invalid": tally.invalid,
            "samples_delta": decoded.deltas,
            "samples_beyond_series_max": tally.beyond,
            "exemplars": decoded.exemplars,
            "histograms": decoded.histograms,
            "metadata": decoded.metadata,
            "bodies": 1,
        }
        write = self._records.prepared(sections, body_hash, tally.written) if sections else None
        return _Ready(write=write, counts=counts, answer=_answer(tally, decoded, self._table.series_max))

    def _rows(self, decoded: DecodedBody, new_max: int) -> tuple[tuple[Section, ...], Tally] | None:
        """The rows of a body; None where more of its series are new."""
        for _ in range(0, new_max, NEW_AT_ONCE):
            with self._table_lock:
                series = self._table.lookup_some(decoded, NEW_AT_ONCE)
                if series is not None:
                    return rows_of(decoded, self._table, series, ts_max_ms=self._ts_max_ms())
            sleep(_PAUSE_SECONDS)  # who waits for the lock would else not get it
        return None

    def _written(self, ready: _Ready) -> Answer:
        counts = ready.counts
        if ready.write is not None:
            counts |= asdict(ready.write())
        self._count(**counts)
        return ready.answer

    def _refused(self, status: int, exc: Exception, count: str) -> Answer:
        self._count(**{count: 1})
        retry_after_seconds = RETRY_AFTER_SECONDS if status in (429, 503) else None
        return Answer(status=status, text=str(exc), retry_after_seconds=retry_after_seconds)

    def _count(self, **counts: int) -> None:
        with self._counts_lock:
            self.counts.update(counts)


def _answer(tally: Tally, decoded: DecodedBody, series_max: int) -> Answer:
    # What policy drops counts as handled: otherwise the sender would send it for ever.
    handled = tally.written + tally.unwanted + decoded.unwanted + tally.dropped + tally.bad_values + tally.bad_times
    text = ""
    if tally.fault is not None:
        text = f"cannot take {tally.invalid} samples: {tally.fault}; the other {handled} were written"
    elif tally.beyond:
        # 400 and not 503: a sender would come again for ever, keep all others waiting behind it and lose those as well.
        text = (
            f"cannot take {tally.beyond} samples of new series: receiver.series_max={series_max} are remembered; "
            f"the other {handled} were written"
        )
    elif decoded.deltas:
        text = (
            f"cannot take {decoded.deltas} points of sums that are not cumulative: set the sender's temporality to "
            f"cumulative, or let the collector's deltatocumulative processor add them up; the other {handled} were "
            "written"
        )
    elif decoded.unsound_histograms:
        text = (
            f"cannot take {decoded.unsound_histograms} histograms: count and buckets do not agree; the other "
            f"{decoded.histograms - decoded.unsound_histograms}, and {handled} samples, were taken"
        )
    return Answer(
        status=400 if text else 204,
        text=text,
        samples=handled,
        rejected=tally.invalid + tally.beyond + decoded.deltas,
        histograms=decoded.histograms - decoded.unsound_histograms,
        exemplars=decoded.exemplars,
        is_counted=True,
    )


BODY_HASH_BYTES = 16

_PRIME = (1 << 61) - 1
_NUMBER_BYTES = 7
_BLOCK_NUMBERS = 8
_BLOCK_BYTES = _NUMBER_BYTES * _BLOCK_NUMBERS
_LOADED_BYTES = _BLOCK_BYTES + 1
"""Numbers are loaded eight bytes at a time, so a block is loaded with the byte behind it."""

# Numba's own type for what this makes has the compiler's context among a caller's arguments.
_intrinsic: Any = extending.intrinsic


class BodyHash:
    """Names bodies; two objects name the same body differently.

    Args:
        points: the secret points, 0 to 2⁶¹ - 2; drawn unless given.
    """

    def __init__(self, points: tuple[int, int] | None = None) -> None:
        first, second = points or (secrets.randbelow(_PRIME), secrets.randbelow(_PRIME))
        self._powers = np.array(
            [[pow(point, _BLOCK_NUMBERS - place, _PRIME) for place in range(_BLOCK_NUMBERS + 1)]
             for point in (first, second)], dtype=np.uint64,
        )  # fmt: skip

    def name(self, body: bytes, kind: int) -> bytes:
        """`BODY_HASH_BYTES` bytes that name a body of a kind.

        Args:
            kind: 0 to 255; the same bytes of another kind are another body.
        """
        first, second = _evaluate(np.frombuffer(body, dtype=np.uint8), len(body) << 8 | kind, self._powers)
        return int(first).to_bytes(8, "little") + int(second).to_bytes(8, "little")


@_intrinsic
def _with_block(typing: Any, value: Any, at: Any, powers: Any) -> Any:
    """The polynomial's value with the eight coefficients at an address behind it; below 2⁶¹ + 4, not yet reduced."""
    word, wide = ir.IntType(64), ir.IntType(128)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def loaded(base: Any, offset: int) -> Any:
            place = builder.add(base, ir.Constant(word, offset))
            return builder.load(builder.inttoptr(place, word.as_pointer()), align=1)

        def product(left: Any, right: Any) -> Any:
            return builder.mul(builder.zext(left, wide), builder.zext(right, wide))

        # Each product of a coefficient is below 2¹¹⁷ and that of the value below 2¹²³: the sum stays within 128 bits.
        total = product(arguments[0], loaded(arguments[2], 0))
        for place in range(_BLOCK_NUMBERS):
            number = builder.and_(
                loaded(arguments[1], place * _NUMBER_BYTES), ir.Constant(word, (1 << 8 * _NUMBER_BYTES) - 1)
            )
            total = builder.add(total, product(number, loaded(arguments[2], 8 * (place + 1))))
        low = builder.and_(builder.trunc(total, word), ir.Constant(word, _PRIME))
        high = builder.trunc(builder.lshr(total, ir.Constant(wide, 61)), word)
        once = builder.add(low, high)
        return builder.add(builder.and_(once, ir.Constant(word, _PRIME)), builder.lshr(once, ir.Constant(word, 61)))

    return types.uint64(types.uint64, types.int64, types.int64), generate


@njit(cache=True, nogil=True)
def _evaluate(data: Any, start: Any, powers: Any) -> Any:
    """The polynomial whose first coefficient is `start`, at both points."""
    first = second = np.uint64(start)
    at, size = address(data), np.int64(len(data))
    to_first, to_second = address(powers[0]), address(powers[1])
    while size >= _LOADED_BYTES:
        first, second = _with_block(first, at, to_first), _with_block(second, at, to_second)
        at += _BLOCK_BYTES
        size -= _BLOCK_BYTES
    rest = np.zeros(_LOADED_BYTES, dtype=np.uint8)
    for place in range(size):
        store8(address(rest) + place, load8(at + place))
    first, second = _with_block(first, address(rest), to_first), _with_block(second, address(rest), to_second)
    return first % np.uint64(_PRIME), second % np.uint64(_PRIME)
