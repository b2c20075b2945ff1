"""Decodes one remote-write body, version 1.0 or 2.0, into columns.

The receiver calls `decode`; what the labels of a series mean is `series_table`'s business. A body is untrusted: its
declared length is checked before memory is taken, and anything that is not snappy, not protobuf or not the message it
claims to be is `Corrupt` with a readable text.

Formats: prometheus.io/docs/specs/prw/remote_write_spec and remote_write_spec_2_0; wire numbers in
`remote_write_kernels`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import cramjam
import numpy as np
from numpy.typing import NDArray

from fleet.errors import Corrupt
from pipeline import remote_write_kernels as kernels

Int64 = NDArray[np.int64]

_STATUS_TEXT = {
    kernels.CUT: "a field reaches beyond the end of its message: the body is cut or no protobuf",
    kernels.BAD_WIRE: "a field has a wire type that does not fit its number: the body is no such message",
    kernels.OTHER_VERSION: "it holds fields of the other version's message: the content type names the wrong one",
    kernels.SPLIT_LABELS: "the labels of one series don't stand together",
}


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
        version: version of the message.
        data: the message's bytes, uint8; label and symbol columns point into it.
        series: shape (series, 8), int64; its columns are named in `remote_write_kernels` (`LABELS_START` …).
        ts_ms: end of each sample's step, epoch milliseconds, shape (samples,); samples of one series stand together.
        values: shape (samples,), float64 with the sender's very bits, NaN payloads included.
        symbols: version 2: start and end of each symbol in `data`, shape (symbols, 2); empty for version 1.
        refs: version 2: references of all series, two per label, shape (references,); empty for version 1.
        metadata: number of metadata entries, which are counted and not kept.
    """

    version: Version
    data: NDArray[np.uint8]
    series: Int64
    ts_ms: Int64
    values: NDArray[np.float64]
    symbols: Int64
    refs: Int64
    metadata: int

    @property
    def exemplars(self) -> int:
        """Number of exemplars, which are counted and not kept."""
        return int(self.series[:, kernels.EXEMPLARS].sum())

    @property
    def histograms(self) -> int:
        """Number of native histograms, which are counted and not kept."""
        return int(self.series[:, kernels.HISTOGRAMS].sum())


def decode(body: bytes, version: Version, *, decoded_bytes_max: int) -> DecodedBody:
    """Unpacks and scans one body.

    Args:
        body: snappy block, as it came over the wire.
        version: the message it holds.
        decoded_bytes_max: largest message (`receiver.decoded_bytes_max`).

    Raises:
        Corrupt: the body is cut, too large, not snappy, not protobuf, or breaks a rule of the whole message; nothing of
            it can be used.
    """
    data = np.frombuffer(_unpacked(body, decoded_bytes_max), dtype=np.uint8)
    no_series = np.empty((0, kernels.SERIES_COLUMNS), dtype=np.int64)
    none, no_bits = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.uint64)
    no_symbols = np.empty((0, 2), dtype=np.int64)
    found = kernels.scan(data, int(version), False, 0, no_series, none, no_bits, no_symbols, none)
    _check(found, version)
    _, _, series_count, sample_count, symbol_count, ref_count, _ = found
    series = np.empty((series_count, kernels.SERIES_COLUMNS), dtype=np.int64)
    ts_ms = np.empty(sample_count, dtype=np.int64)
    bits = np.empty(sample_count, dtype=np.uint64)
    symbols = np.empty((symbol_count, 2), dtype=np.int64)
    refs = np.empty(ref_count, dtype=np.int64)
    found = kernels.scan(data, int(version), True, symbol_count, series, ts_ms, bits, symbols, refs)
    _check(found, version)
    if version is Version.V2 and symbol_count and symbols[0, 0] != symbols[0, 1]:
        raise Corrupt("cannot decode remote-write body: the first symbol is not the empty string")
    if version is Version.V2 and series_count and not symbol_count:
        raise Corrupt("cannot decode remote-write body: it has series and no symbols")
    return DecodedBody(
        version=version,
        data=data,
        series=series,
        ts_ms=ts_ms,
        values=bits.view(np.float64),
        symbols=symbols,
        refs=refs,
        metadata=int(found[6]),
    )


def _unpacked(body: bytes, decoded_bytes_max: int) -> bytes:
    length = _declared_length(body)
    if length > decoded_bytes_max:
        raise Corrupt(
            f"cannot decode remote-write body of {length} bytes after decompression: larger than "
            f"receiver.decoded_bytes_max={decoded_bytes_max}"
        )
    # A snappy copy of 3 bytes yields at most 64: a length beyond that is a lie, and no memory is taken for it.
    if length > 64 * len(body):
        raise Corrupt(f"cannot decode remote-write body: {len(body)} bytes can't hold the {length} that they declare")
    try:
        return bytes(cramjam.snappy.decompress_raw(body))
    except cramjam.DecompressionError as exc:
        raise Corrupt(f"cannot decode remote-write body of {len(body)} bytes: not a snappy block: {exc}") from exc


def _declared_length(body: bytes) -> int:
    """The length that a snappy block begins with (google/snappy:format_description.txt §1)."""
    length = 0
    for index, byte in enumerate(body[:5]):
        length |= (byte & 127) << (7 * index)
        if byte < 128:
            return length
    raise Corrupt(f"cannot decode remote-write body of {len(body)} bytes: not a snappy block: it declares no length")


def _check(found: tuple[int, ...], version: Version) -> None:
    status, position = found[0], found[1]
    if status != kernels.OK:
        name = "prometheus.WriteRequest" if version is Version.V1 else "io.prometheus.write.v2.Request"
        raise Corrupt(f"cannot decode {name} at byte {position}: {_STATUS_TEXT[status]}")
