"""From the body of one request to a record on the bus, and what to answer.

The receiver hands every body to `Intake.take`; threads may call it at once. An answer of success is given only after
the bus has made the record durable. A body that comes again within `rollup.repeat_memory_seconds` is answered as before
and not carried again.

A body is recognised by a name of 16 bytes. Its bytes, seven to a number, are the coefficients of a polynomial, which is
evaluated at two secret points modulo the prime 2⁶¹ - 1 (the polynomial hash of Wegman and Carter, New hash functions
and their use in authentication and set equality, 1981). Two bodies of n bytes that were chosen without knowing the
points have one name with a probability of at most (n / 7 / 2⁶¹)², below 10⁻²³ for bodies of 32 MiB: no sender can craft
a body that is taken for another. It costs a third of SHA-256 on processors that have instructions for that one.
"""

from __future__ import annotations

import secrets
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

import numpy as np
from llvmlite import ir
from numba import extending, njit, types

from fleet.errors import Corrupt, Unavailable
from pipeline.bus.bus import BusFull, BusWriter
from pipeline.bus.lanes import cut_sections, split_sections
from pipeline.records.rows import Section, Tally, pack, rows_of
from pipeline.remote_write.byte_words import address, load8, store8
from pipeline.remote_write.decode import DecodedBody, Decoder, Version
from pipeline.remote_write.series_table import SeriesTable

REPEATS_MAX = 1_000_000
"""Bodies that are remembered at most."""
ROWS_PER_RECORD_MAX = 250_000
"""Rows of the largest record, unless its format takes fewer."""
RETRY_AFTER_SECONDS = 5
"""When a sender shall come again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a sender is answered.

    Attributes:
        text: what was wrong, one line; empty on success.
        histograms: native histograms that were taken and counted; they are not kept.
        exemplars: exemplars that were taken and counted.
        retry_after_seconds: when to come again; None where that does not help.
        is_counted: True where the body was understood, so that counts of what was written belong into the answer.
    """

    status: int
    text: str = ""
    samples: int = 0
    histograms: int = 0
    exemplars: int = 0
    retry_after_seconds: int | None = None
    is_counted: bool = False


class Intake:
    """Takes bodies in.

    Args:
        decoded_bytes_max: largest body after decompression (`receiver.decoded_bytes_max`).
        repeat_memory_seconds: how long a body is remembered (`rollup.repeat_memory_seconds`).
        pack_record: how a record is written (`bus.record_format`).
        rows_per_record_max: rows beyond which a body becomes several records, so that a bus with a bound takes each.
    """

    def __init__(
        self,
        bus: BusWriter,
        table: SeriesTable,
        *,
        decoded_bytes_max: int,
        repeat_memory_seconds: float,
        now_seconds: Callable[[], float],
        pack_record: Callable[[tuple[Section, ...], bytes], bytes] = pack,
        rows_per_record_max: int = ROWS_PER_RECORD_MAX,
    ) -> None:
        self._bus = bus
        self._table = table
        self._decoded_bytes_max = decoded_bytes_max
        self._repeat_memory_seconds = repeat_memory_seconds
        self._now_seconds = now_seconds
        self._pack_record = pack_record
        self._rows_per_record_max = rows_per_record_max
        self._body_hash = BodyHash()
        self._table_lock = threading.Lock()
        self._decoders: list[Decoder] = []
        self._memory_lock = threading.Lock()
        self._memory: OrderedDict[bytes, tuple[float, Answer]] = OrderedDict()
        self.counts: Counter[str] = Counter()
        """What became of bodies and samples; nanoseconds that appends to the bus took, and how many there were."""

    def take(self, body: bytes, version: Version) -> Answer:
        """Decodes a body, puts its rows on the bus and says what to answer.

        Args:
            body: snappy block, as it came.
        """
        body_hash = self._body_hash.name(body, version)
        known = self._recalled(body_hash)
        if known is not None:
            self._count(repeats=1)
            return known
        decoder = self._idle_decoder()
        try:
            decoded = decoder.decode(body, version)
        except Corrupt as exc:
            self._decoders.append(decoder)
            self._count(corrupt_bodies=1)
            return Answer(status=400, text=str(exc))
        try:
            answer = self._carried(decoded, body_hash)
        except BusFull as exc:
            self._count(refused_full=1)
            return Answer(status=429, text=str(exc), retry_after_seconds=RETRY_AFTER_SECONDS)
        except (Unavailable, Corrupt) as exc:
            self._count(refused_unavailable=1)
            return Answer(status=503, text=str(exc), retry_after_seconds=RETRY_AFTER_SECONDS)
        finally:
            self._decoders.append(decoder)
        self._remember(body_hash, answer)
        return answer

    @property
    def series(self) -> int:
        """Series met so far."""
        return len(self._table)

    @property
    def claims_overridden(self) -> int:
        """Series whose labels claimed another cluster than their sender's."""
        return self._table.claims_overridden

    def allow(self, series_max: int) -> None:
        """Change the bound on series; those that are known stay."""
        self._table.allow(series_max)

    def _carried(self, decoded: DecodedBody, body_hash: bytes) -> Answer:
        with self._table_lock:
            sections, tally = rows_of(decoded, self._table)
        if sections:
            nanoseconds = bytes_appended = 0
            for piece in cut_sections(sections, self._rows_per_record_max):
                by_lane = split_sections(piece, self._bus.lanes)
                payloads = {lane: self._pack_record(part, body_hash) for lane, part in by_lane.items()}
                started = perf_counter_ns()
                self._bus.append_all(payloads)
                nanoseconds += perf_counter_ns() - started
                bytes_appended += sum(map(len, payloads.values()))
            self._count(appends=1, append_nanoseconds=nanoseconds, append_bytes=bytes_appended)
        self._count(
            samples=tally.written,
            samples_unwanted=tally.unwanted,
            samples_of_dropped_series=tally.dropped,
            samples_out_of_range=tally.bad_values,
            samples_out_of_time=tally.bad_times,
            samples_invalid=tally.invalid,
            exemplars=decoded.exemplars,
            histograms=decoded.histograms,
            metadata=decoded.metadata,
            bodies=1,
        )
        return _answer(tally, decoded)

    def _idle_decoder(self) -> Decoder:
        try:
            return self._decoders.pop()
        except IndexError:
            return Decoder(self._decoded_bytes_max)

    def _count(self, **counts: int) -> None:
        with self._memory_lock:
            self.counts.update(counts)

    def _recalled(self, body_hash: bytes) -> Answer | None:
        with self._memory_lock:
            horizon = self._now_seconds() - self._repeat_memory_seconds
            while self._memory and next(iter(self._memory.values()))[0] < horizon:
                self._memory.popitem(last=False)
            known = self._memory.get(body_hash)
            return None if known is None else known[1]

    def _remember(self, body_hash: bytes, answer: Answer) -> None:
        with self._memory_lock:
            self._memory[body_hash] = (self._now_seconds(), answer)
            if len(self._memory) > REPEATS_MAX:
                self._memory.popitem(last=False)


def _answer(tally: Tally, decoded: DecodedBody) -> Answer:
    # What policy drops counts as handled: otherwise the sender would send it for ever.
    handled = tally.written + tally.unwanted + tally.dropped + tally.bad_values + tally.bad_times
    if tally.fault is None:
        return Answer(
            status=204, samples=handled, histograms=decoded.histograms, exemplars=decoded.exemplars, is_counted=True
        )
    return Answer(
        status=400,
        text=f"cannot take {tally.invalid} samples: {tally.fault}; the other {handled} were written",
        samples=handled,
        histograms=decoded.histograms,
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
