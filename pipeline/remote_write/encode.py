"""Encodes columns of samples as remote-write bodies, so that a replay sends the real bytes through the receiver.

`LabelSets` is built once per fleet; `encode` then writes several samples per series and request, with every symbol once
per request (version 2). The counterpart of `remote_write.decode`. The inner loop is compiled by numba and cached beside
this file; wire numbers as in `remote_write.kernels`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import cramjam
import numpy as np
from numba import njit
from numpy.typing import NDArray

from pipeline.remote_write.byte_words import joined_texts
from pipeline.remote_write.decode import Version
from pipeline.remote_write.protobuf_fields import bytes_field, varint


class LabelSets:
    """The labels of many series in both wire forms, built once.

    Args:
        labels: per series its labels, `__name__` included; written sorted by name.
    """

    def __init__(self, labels: Sequence[Mapping[str, str]]) -> None:
        symbols: dict[str, int] = {"": 0}
        texts: dict[str, bytes] = {}
        first, second = [], []
        for pairs in labels:
            ordered = sorted(pairs.items())
            fields = (_text(1, name, texts) + _text(2, value, texts) for name, value in ordered)
            first.append(b"".join(bytes_field(1, both) for both in fields))
            refs = b"".join(varint(symbols.setdefault(text, len(symbols))) for pair in ordered for text in pair)
            second.append(bytes_field(1, refs))
        self._forms = {Version.V1: joined_texts(first), Version.V2: joined_texts(second)}
        self._symbols = np.frombuffer(b"".join(bytes_field(4, text.encode()) for text in symbols), dtype=np.uint8)
        self._count = len(labels)

    def __len__(self) -> int:
        return self._count

    def encode(
        self, version: Version, series: NDArray[np.int64], ts_ms: NDArray[np.int64], values: NDArray[np.float64]
    ) -> bytes:
        """One compressed body: a snappy block of the message.

        Args:
            series: which label set each sample belongs to, shape (samples,); samples of one series stand together, and
                within a series in the order in which they shall be sent.
            ts_ms: epoch milliseconds, shape (samples,).
            values: shape (samples,); bits are kept.
        """
        series = np.ascontiguousarray(series, dtype=np.int64)
        ts_ms = np.ascontiguousarray(ts_ms, dtype=np.int64)
        bits = np.ascontiguousarray(values, dtype=np.float64).view(np.uint64)
        if len(series) and (series.min() < 0 or series.max() >= self._count):
            raise ValueError("a sample names a series that is not among the label sets")
        starts = np.flatnonzero(np.diff(series, prepend=-1)) if len(series) else np.empty(0, dtype=np.int64)
        runs = _Runs(starts=np.append(starts, len(series)).astype(np.int64), series=series[starts])
        prefixes = self._forms[version]
        head = self._symbols if version is Version.V2 else self._symbols[:0]
        tag = np.uint8(10 if version is Version.V1 else 42)
        nothing = np.empty(0, dtype=np.uint8)
        size = _write_series(nothing, len(head), tag, runs, prefixes, ts_ms, bits)
        message = np.empty(size, dtype=np.uint8)
        message[: len(head)] = head
        if len(starts):
            _write_series(message, len(head), tag, runs, prefixes, ts_ms, bits)
        return bytes(cramjam.snappy.compress_raw(message.data))


def _text(number: int, text: str, known: dict[str, bytes]) -> bytes:
    payload = known.get(text)
    if payload is None:
        payload = known[text] = text.encode()
    return bytes_field(number, payload)


@njit(cache=True, nogil=True)
def _varint_size(value: Any) -> Any:
    size = 1
    while value >= 128:
        value >>= np.uint64(7)
        size += 1
    return size


@njit(cache=True, nogil=True)
def _put_varint(out: Any, at: Any, value: Any) -> Any:
    while value >= 128:
        out[at] = np.uint8((value & np.uint64(127)) | np.uint64(128))
        value >>= np.uint64(7)
        at += 1
    out[at] = np.uint8(value)
    return at + 1


class _Runs(NamedTuple):
    """Runs of samples, each of one series.

    Attributes:
        starts: (runs + 1,) int64, first sample of each run, and the end of the last.
        series: (runs,) int64, which series each run is of.
    """

    starts: NDArray[np.int64]
    series: NDArray[np.int64]


@njit(cache=True, nogil=True)
def _write_series(out: Any, at: Any, tag: Any, runs: Any, prefixes: Any, ts_ms: Any, value_bits: Any) -> Any:
    """Writes one TimeSeries message per run of samples; with an empty `out` it only counts bytes.

    Args:
        out: uint8, large enough, or empty.
        tag: field tag of the series, 10 (version 1) or 42 (version 2).
        prefixes: the label fields of all series, `Texts`.
        ts_ms: (samples,) int64.
        value_bits: (samples,) uint64.

    Returns:
        The position after the last byte.
    """
    fill = len(out) > 0
    for run in range(len(runs.series)):
        series = runs.series[run]
        prefix_start, prefix_end = prefixes.starts[series], prefixes.starts[series + 1]
        size = prefix_end - prefix_start
        for index in range(runs.starts[run], runs.starts[run + 1]):
            size += 12 + _varint_size(np.uint64(ts_ms[index]))
        if not fill:
            at += 1 + _varint_size(np.uint64(size)) + size
            continue
        out[at] = tag
        at = _put_varint(out, at + 1, np.uint64(size))
        for index in range(prefix_start, prefix_end):
            out[at] = prefixes.data[index]
            at += 1
        for index in range(runs.starts[run], runs.starts[run + 1]):
            out[at] = 18
            # At most 9 + 1 + 10 bytes: the length is one byte itself.
            out[at + 1] = np.uint8(10 + _varint_size(np.uint64(ts_ms[index])))
            out[at + 2] = 9
            bits = value_bits[index]
            for byte in range(8):
                out[at + 3 + byte] = np.uint8((bits >> np.uint64(8 * byte)) & np.uint64(255))
            out[at + 11] = 16
            at = _put_varint(out, at + 12, np.uint64(ts_ms[index]))
    return at
