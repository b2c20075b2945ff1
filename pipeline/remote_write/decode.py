"""Decodes one remote-write body, version 1.0 or 2.0, into columns.

The receiver keeps some `Decoder`s; what the labels of a series mean is `series_table`'s business. A body is untrusted:
its declared length is checked before memory is taken, the scan ends where it holds more than `BodyLimits` allow, before
anything is kept or any object made of it, and anything that is not snappy, not protobuf or not the message it claims to
be is `Corrupt` with a readable text.

Formats: prometheus.io/docs/specs/prw/remote_write_spec and remote_write_spec_2_0; wire numbers in
`remote_write.kernels`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import cramjam
import numpy as np
from numpy.typing import NDArray

from fleet.errors import Corrupt
from pipeline.remote_write import kernels

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]

_MESSAGE_BYTES_MAX = (1 << 30) - 1
"""Largest message at all: places in it and behind it are 32-bit numbers."""
EXPANSION_MAX = 64
"""Bytes that a byte of a body can become at most: a snappy copy of 3 bytes yields 64."""
SYMBOLS_PER_SAMPLE_MAX = 4
"""Symbols that a body of version 2 may have per sample that it may have; honest senders have one or two."""

STATUS_TEXT = {
    kernels.CUT: "a field reaches beyond the end of its message: the body is cut or no protobuf",
    kernels.BAD_WIRE: "a field has a wire type that does not fit its number: the body is no such message",
    kernels.OTHER_VERSION: "it holds fields of the other version's message: the content type names the wrong one",
    kernels.SPLIT_LABELS: "the labels of one series don't stand together",
}
"""What a scan ended with, in words."""


class TooLarge(Corrupt):
    """A body that costs more than one may; it would be as large when it came again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyLimits:
    """What one body may cost.

    Attributes:
        decoded_bytes: largest message (`receiver.decoded_bytes_max`).
        samples: most samples, and most series (`receiver.body_samples_max`).
    """

    decoded_bytes: int
    samples: int


class Version(IntEnum):
    """Version of the remote-write protocol."""

    V1 = 1
    """`prometheus.WriteRequest`."""
    V2 = 2
    """`io.prometheus.write.v2.Request`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedBody:
    """One body as columns.

    Attributes:
        data: the message's bytes, uint8; label and symbol columns point into it. Behind them, references that don't
            stand together in the message.
        series: shape (series, 5), int32; its columns are named in `remote_write.kernels` (`LABELS_START` …). Series
            without samples and histograms are left out.
        ts_ms: end of each sample's step, epoch milliseconds, shape (samples,); samples of one series stand together.
        values: shape (samples,), float64 with the sender's very bits, NaN payloads included.
        symbols: version 2: start and end of each symbol in `data`, shape (symbols, 2), int32; empty for version 1.
        metadata: number of metadata entries, which are counted and not kept.
        histograms: number of native histograms, which are counted and not kept.
        unsound_histograms: those of them whose count is not that of their buckets, or whose buckets can't be.
        exemplars: number of exemplars, which are counted and not kept.
        unwanted: samples of metrics that nobody asked for, which are left out already; only OTLP has any.
        deltas: samples over an interval each, which can't be taken; likewise.
    """

    version: Version
    data: NDArray[np.uint8]
    series: Int32
    ts_ms: Int64
    values: NDArray[np.float64]
    symbols: Int32
    metadata: int
    histograms: int
    unsound_histograms: int
    exemplars: int
    unwanted: int = 0
    deltas: int = 0


class Decoder:
    """Decodes one body after another into the same memory: fresh pages for each would cost more than the scan.

    One thread at a time may use it, and a decoded body is good until the next one.
    """

    def __init__(self, limits: BodyLimits) -> None:
        self._limits = limits
        self._message = np.empty(0, dtype=np.uint8)
        self._room = _Room.of(0, limits, series=1, sample=1, symbol=1)

    def decode(self, body: bytes, version: Version) -> DecodedBody:
        """Unpacks and scans one body, a snappy block as it came over the wire.

        Raises:
            TooLarge: the body passes a limit.
            Corrupt: the body is cut, not snappy, not protobuf, or breaks a rule of the whole message; nothing of it can
                be used.
        """
        size = self._unpack(body)
        data = self._message[: 2 * size]
        # What honest senders come to; a message that is denser is scanned once more, with room for the densest that
        # may be, which is not kept.
        if size > self._room.size:
            self._room = _Room.of(size * 5 // 4, self._limits, series=24, sample=14, symbol=4)
        room = self._room
        found = _scan(data, size, version, self._limits.samples, room)
        if found[0] == kernels.NO_ROOM:
            room = _Room.of(size, self._limits, series=2, sample=2, symbol=2)
            found = _scan(data, size, version, self._limits.samples, room)
        status, position, series, samples, symbols, end, metadata, histograms, unsound, exemplars = found
        if status == kernels.NO_ROOM:
            what = "symbols" if symbols == len(room.symbols) else "series or samples"
            most = len(room.symbols) if symbols == len(room.symbols) else self._limits.samples
            raise TooLarge(
                f"cannot take a body of more than {most} {what}: receiver.body_samples_max={self._limits.samples}"
            )
        if status != kernels.OK:
            name = "prometheus.WriteRequest" if version is Version.V1 else "io.prometheus.write.v2.Request"
            raise Corrupt(f"cannot decode {name} at byte {position}: {STATUS_TEXT[status]}")
        if version is Version.V2 and symbols and room.symbols[0, 0] != room.symbols[0, 1]:
            raise Corrupt("cannot decode remote-write body: the first symbol is not the empty string")
        if version is Version.V2 and series and not symbols:
            raise Corrupt("cannot decode remote-write body: it has series and no symbols")
        return DecodedBody(
            version=version,
            data=data[:end],
            series=room.series[:series],
            ts_ms=room.ts_ms[:samples],
            values=room.value_bits[:samples].view(np.float64),
            symbols=room.symbols[:symbols],
            metadata=metadata,
            histograms=histograms,
            unsound_histograms=unsound,
            exemplars=exemplars,
        )

    def _unpack(self, body: bytes) -> int:
        """Decompresses into the memory kept for it, with as much again behind; the message's length."""
        length = declared_length(body)
        if length is None:
            raise Corrupt(f"cannot decode remote-write body of {len(body)} bytes: not a snappy block: no length in it")
        bytes_max = min(self._limits.decoded_bytes, _MESSAGE_BYTES_MAX)
        if length > bytes_max:
            raise TooLarge(
                f"cannot decode remote-write body of {length} bytes after decompression: larger than "
                f"receiver.decoded_bytes_max={bytes_max}"
            )
        # A length beyond that is a lie, and no memory is taken for it.
        if length > EXPANSION_MAX * len(body):
            raise Corrupt(
                f"cannot decode remote-write body: {len(body)} bytes can't hold the {length} that they declare"
            )
        if len(self._message) < 2 * length:
            self._message = np.empty(length * 5 // 2, dtype=np.uint8)
        try:
            written = cramjam.snappy.decompress_raw_into(body, self._message[:length].data)
        except cramjam.DecompressionError as exc:
            raise Corrupt(f"cannot decode remote-write body of {len(body)} bytes: not a snappy block: {exc}") from exc
        if written != length:
            raise Corrupt(f"cannot decode remote-write body: it holds {written} bytes and declares {length}")
        return length


@dataclass(frozen=True, slots=True, kw_only=True)
class _Room:
    """Output arrays of scans of messages up to `size` bytes."""

    size: int
    series: Int32
    ts_ms: Int64
    value_bits: NDArray[np.uint64]
    symbols: Int32

    @classmethod
    def of(cls, size: int, limits: BodyLimits, *, series: int, sample: int, symbol: int) -> _Room:
        """Room for a message of `size` bytes whose series, samples … take so many bytes each at least."""
        samples, symbols = min(size // sample, limits.samples), SYMBOLS_PER_SAMPLE_MAX * limits.samples
        return cls(
            size=size,
            series=np.empty((min(size // series, limits.samples), kernels.SERIES_COLUMNS), dtype=np.int32),
            ts_ms=np.empty(samples, dtype=np.int64),
            value_bits=np.empty(samples, dtype=np.uint64),
            symbols=np.empty((min(size // symbol, symbols), 2), dtype=np.int32),
        )


def _scan(data: NDArray[np.uint8], size: int, version: Version, met_max: int, room: _Room) -> tuple[int, ...]:
    found: tuple[int, ...] = kernels.scan(
        data, size, int(version), met_max, room.series, room.ts_ms, room.value_bits, room.symbols
    )
    return found


def declared_length(body: bytes) -> int | None:
    """The length that a snappy block begins with; None where it is no number (google/snappy:format_description.txt §1).

    Nothing is checked of it: any sender can declare any length.
    """
    length = 0
    for index, byte in enumerate(body[:5]):
        length |= (byte & 127) << (7 * index)
        if byte < 128:
            return length
    return None
