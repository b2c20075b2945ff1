"""Decodes one OTLP request of metrics into the columns of remote write, so that all behind it is one way.

The receiver's decoders hold one `OtlpDecoder` each. A body is untrusted: gzip's declared size is checked before memory
is taken, the walk ends where it holds more than `BodyLimits` allow, and labels are made for metrics that mean something
alone, until they take as much as a message may. Gauges and cumulative sums are taken; sums over an interval are counted
and refused, because adding them up needs a memory that outlives every restart; distributions are counted and not kept.

Formats: opentelemetry.io/docs/specs/otlp (binary protobuf over HTTP), RFC 1952 (gzip); wire numbers in `otlp.kernels`.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from time import sleep

import numpy as np
from numpy.typing import NDArray

from fleet.errors import Corrupt
from fleet.opentelemetry import metric_name
from pipeline.otlp import kernels
from pipeline.otlp.labels import LabelFields
from pipeline.remote_write.byte_words import joined_texts
from pipeline.remote_write.decode import STATUS_TEXT, BodyLimits, DecodedBody, TooLarge, Version
from pipeline.remote_write.kernels import NO_ROOM, OK

GZIP_EXPANSION_MAX = 1032
"""Bytes that a byte of a gzip body can become at most (zlib.net/zlib_tech.html, "Maximum Compression Factor")."""
NEW_BYTES_OF_FEW_MAX = 512 << 10
"""Attributes that were not met before and are read while other small bodies wait: some 30 ms."""
_TURN_BYTES = 64 << 10
_PAUSE_SECONDS = 0.001
_PIECE_ROWS = 4096
_GZIP = b"\x1f\x8b"
_GZIP_BITS = 31
_STATUS_TEXT = {**STATUS_TEXT, kernels.SPLIT: "parts of one message that belong together stand apart"}
_NAMES_MAX = 4096
_NAME_BYTES_MAX = 256


class Otlp(IntEnum):
    """Messages of OTLP, numbered behind `remote_write.decode.Version`."""

    METRICS = 3
    """`opentelemetry.proto.collector.metrics.v1.ExportMetricsServiceRequest`."""


def message_length(body: bytes) -> int:
    """Bytes of the message in a body, as gzip declares it at its end; a body that is not packed is the message."""
    return int.from_bytes(body[-4:], "little") if body.startswith(_GZIP) else len(body)


class _Much(Exception):
    """A body has more that was not met before than may be read now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Walked:
    """A body of which it is known where its parts stand.

    Attributes:
        found: rows of its metrics, shape (metrics, METRIC_COLUMNS).
        histograms: distributions.
    """

    message: bytes
    room: kernels.Room
    found: NDArray[np.int32]
    histograms: int

    @property
    def numbers(self) -> int:
        """Points of numbers."""
        return int((self.found[:, kernels.POINTS_END] - self.found[:, kernels.POINTS_START]).sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Points:
    """The points of a body that are taken, and how many are not.

    Attributes:
        fields: label fields of each.
    """

    fields: list[bytes]
    ts_ms: NDArray[np.int64]
    value_bits: NDArray[np.uint64]
    histograms: int
    unwanted: int
    deltas: int


class OtlpDecoder:
    """Decodes one body after another; one thread at a time may use it.

    Args:
        labels: what is remembered of labels, which several decoders may share; its own unless given.
    """

    def __init__(self, limits: BodyLimits, labels: LabelFields | None = None) -> None:
        self._limits = limits
        self._labels = LabelFields() if labels is None else labels
        self._names: dict[bytes, bytes | None] = {}

    def decode(self, body: bytes) -> DecodedBody:
        """Unpacks and walks one body as it came over the wire, gzip or plain.

        Raises:
            TooLarge: the body passes a limit.
            Corrupt: the body is cut, not protobuf or not this message; nothing of it can be used.
        """
        return _columns(self._points(self._walked(body)))

    def decode_few(self, body: bytes, points_max: int) -> DecodedBody | None:
        """As `decode`; None where it has more points or metrics than `points_max`, or much that was not met before.

        What was read of it by then is remembered.
        """
        walked = self._walked(body)
        if max(len(walked.found), walked.numbers) > points_max:
            return None
        try:
            return _columns(self._points(walked, NEW_BYTES_OF_FEW_MAX))
        except _Much:
            return None

    def _walked(self, body: bytes) -> _Walked:
        message = self._unpacked(body)
        room = _room(len(message), self._limits.samples)
        data = np.frombuffer(message or bytes(1), dtype=np.uint8)
        status, position, _, metrics, _, histograms = kernels.walk(data, len(message), room)
        if status == NO_ROOM:
            raise TooLarge(
                f"cannot take a body of more than {self._limits.samples} points, metrics or resources: "
                f"receiver.body_samples_max={self._limits.samples}"
            )
        if status != OK:
            raise Corrupt(
                f"cannot decode ExportMetricsServiceRequest, resource at byte {position}: {_STATUS_TEXT[status]}"
            )
        return _Walked(message=message, room=room, found=room.metrics[:metrics], histograms=histograms)

    def _points(self, walked: _Walked, new_bytes_max: int | None = None) -> _Points:
        """Label fields of every point that is taken, and what became of the others.

        Args:
            new_bytes_max: most bytes of attributes that were not met before; None for as many as there are.

        Raises:
            _Much: there are more.
        """
        message, room, labels = walked.message, walked.room, self._labels
        fields: list[bytes] = []
        runs = [np.empty(0, dtype=np.int64)]
        held = new = unwanted = deltas = 0
        target, read = None, -1
        for resource, name_start, name_end, kind, first, end in _in_pieces(walked.found):
            name = None if kind == kernels.HISTOGRAM else self._name(message[name_start:name_end])
            if name is None or kind == kernels.DELTA_SUM:
                unwanted += end - first if name is None else 0
                deltas += end - first if name is not None else 0
                continue
            if target is None or resource != read:  # once for all its metrics: it may be as large as the message
                start, stop = room.resources[resource].tolist()
                target, read = labels.known_target(message[start:stop]), resource
                if target is None:
                    new = _added(new, stop - start, new_bytes_max)
                    target = labels.target(message[start:stop])
            for left, right in _in_pieces(room.attributes[first:end]):
                attributes = message[left:right]
                made = labels.known(target, name, attributes)
                if made is None:
                    new = _added(new, right - left, new_bytes_max)
                    made = labels.make(target, name, attributes)
                held += len(made)
                if held > self._limits.decoded_bytes:
                    raise TooLarge(
                        f"cannot take a body whose labels take {held} bytes: more than "
                        f"receiver.decoded_bytes_max={self._limits.decoded_bytes}"
                    )
                fields.append(made)
            runs.append(np.arange(first, end, dtype=np.int64))
        kept = np.concatenate(runs)
        return _Points(
            fields=fields, ts_ms=room.ts_ms[kept], value_bits=room.value_bits[kept], histograms=walked.histograms,
            unwanted=unwanted, deltas=deltas,
        )  # fmt: skip

    def _name(self, raw: bytes) -> bytes | None:
        """The name of a metric in Prometheus; None for one that nobody asked for."""
        if len(raw) > _NAME_BYTES_MAX:
            return None
        if raw in self._names:
            return self._names[raw]
        name = metric_name(raw)
        if len(self._names) >= _NAMES_MAX:
            self._names.clear()
        return self._names.setdefault(raw, None if name is None else name.encode())

    def _unpacked(self, body: bytes) -> bytes:
        length = message_length(body)
        if length > self._limits.decoded_bytes:
            raise TooLarge(
                f"cannot decode OTLP body of {length} bytes after decompression: larger than "
                f"receiver.decoded_bytes_max={self._limits.decoded_bytes}"
            )
        if not body.startswith(_GZIP):
            return body
        if length > GZIP_EXPANSION_MAX * len(body):
            raise Corrupt(f"cannot decode OTLP body: {len(body)} bytes can't hold the {length} that they declare")
        unpacker = zlib.decompressobj(_GZIP_BITS)
        try:
            message = unpacker.decompress(body, length + 1)
        except zlib.error as exc:
            raise Corrupt(f"cannot decode OTLP body of {len(body)} bytes: not gzip: {exc}") from exc
        if len(message) != length or not unpacker.eof or unpacker.unused_data:
            raise Corrupt(
                f"cannot decode OTLP body of {len(body)} bytes: it is cut, has something behind its end, or does not "
                f"hold the {length} bytes that it declares"
            )
        return message


def _added(new: int, more: int, new_max: int | None) -> int:
    """Bytes of attributes that were not met before, some more of them; lets other threads go first now and then."""
    if new_max is not None and new + more > new_max:
        raise _Much
    if (new + more) // _TURN_BYTES > new // _TURN_BYTES:
        sleep(_PAUSE_SECONDS)  # who waits for the interpreter would else wait for the system's next slice, too
    return new + more


def _in_pieces(rows: NDArray[np.int32]) -> Iterator[tuple[int, ...]]:
    """Rows as numbers, some thousand at a time: one call for all of them would keep the interpreter too long."""
    for first in range(0, len(rows), _PIECE_ROWS):
        piece = rows[first : first + _PIECE_ROWS]
        yield from zip(*(piece[:, column].tolist() for column in range(piece.shape[1])), strict=True)


def _columns(points: _Points) -> DecodedBody:
    texts, places = joined_texts(points.fields), np.arange(len(points.fields))
    runs = (texts.starts[:-1], texts.starts[1:], places, places + 1, np.zeros_like(places))
    return DecodedBody(
        version=Version.V1,
        data=texts.data,
        series=np.column_stack(runs).astype(np.int32),
        ts_ms=points.ts_ms,
        values=points.value_bits.view(np.float64),
        symbols=np.empty((0, 2), dtype=np.int32),
        metadata=0,
        histograms=points.histograms,
        unsound_histograms=0,
        exemplars=0,
        unwanted=points.unwanted,
        deltas=points.deltas,
    )


def _room(size: int, samples: int) -> kernels.Room:
    most = min(size // 2 + 1, samples)  # each part takes a tag and a length at least
    return kernels.Room(
        resources=np.empty((most, 2), dtype=np.int32),
        metrics=np.empty((most, kernels.METRIC_COLUMNS), dtype=np.int32),
        attributes=np.empty((most, 2), dtype=np.int32),
        ts_ms=np.empty(most, dtype=np.int64),
        value_bits=np.empty(most, dtype=np.uint64),
    )
