"""Encodes columns of samples as remote-write bodies, so that a replay sends the real bytes through the receiver.

`LabelSets` is built once per fleet; `encode` then writes several samples per series and request, with every symbol once
per request (version 2). The counterpart of `remote_write.decode`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import cramjam
import numpy as np
from numpy.typing import NDArray

from pipeline.remote_write import kernels
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
        self._forms = {Version.V1: _joined(first), Version.V2: _joined(second)}
        self._symbols = np.frombuffer(b"".join(bytes_field(4, text.encode()) for text in symbols), dtype=np.uint8)
        self._count = len(labels)

    def __len__(self) -> int:
        return self._count

    def encode(
        self,
        version: Version,
        series: NDArray[np.int64],
        ts_ms: NDArray[np.int64],
        values: NDArray[np.float64],
    ) -> bytes:
        """One compressed body.

        Args:
            version: the message to write.
            series: which label set each sample belongs to, shape (samples,); samples of one series stand together, and
                within a series in the order in which they shall be sent.
            ts_ms: epoch milliseconds, shape (samples,).
            values: shape (samples,); bits are kept.

        Returns:
            A snappy block of the message.
        """
        series = np.ascontiguousarray(series, dtype=np.int64)
        ts_ms = np.ascontiguousarray(ts_ms, dtype=np.int64)
        bits = np.ascontiguousarray(values, dtype=np.float64).view(np.uint64)
        if len(series) and (series.min() < 0 or series.max() >= self._count):
            raise ValueError("a sample names a series that is not among the label sets")
        starts = np.flatnonzero(np.diff(series, prepend=-1)) if len(series) else np.empty(0, dtype=np.int64)
        runs = np.append(starts, len(series)).astype(np.int64)
        prefixes, prefix_starts = self._forms[version]
        head = self._symbols if version is Version.V2 else self._symbols[:0]
        tag = np.uint8(10 if version is Version.V1 else 42)
        nothing = np.empty(0, dtype=np.uint8)
        size = kernels.write_series(nothing, len(head), tag, runs, series[starts], prefixes, prefix_starts, ts_ms, bits)
        message = np.empty(size, dtype=np.uint8)
        message[: len(head)] = head
        if len(starts):
            kernels.write_series(message, len(head), tag, runs, series[starts], prefixes, prefix_starts, ts_ms, bits)
        return bytes(cramjam.snappy.compress_raw(message.data))


def _joined(parts: list[bytes]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    starts = np.zeros(len(parts) + 1, dtype=np.int64)
    np.cumsum([len(part) for part in parts], out=starts[1:])
    return np.frombuffer(b"".join(parts), dtype=np.uint8), starts


def _text(number: int, text: str, known: dict[str, bytes]) -> bytes:
    payload = known.get(text)
    if payload is None:
        payload = known[text] = text.encode()
    return bytes_field(number, payload)
