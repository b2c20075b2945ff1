"""Decodes one OTLP request of metrics into the columns of remote write, so that all behind it is one way.

The receiver's decoders hold one `OtlpDecoder` each. A body is untrusted: gzip's declared size is checked before memory
is taken, the walk ends where it holds more than `BodyLimits` allow, and labels are made for metrics that mean something
alone, until they take as much as a message may. Gauges and cumulative sums are taken; sums over an interval are counted
and refused, because adding them up needs a memory that outlives every restart; distributions are counted and not kept.

Formats: opentelemetry.io/docs/specs/otlp (binary protobuf over HTTP), RFC 1952 (gzip); wire numbers in `otlp.kernels`.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from enum import IntEnum

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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Walked:
    """A body of which it is known where its parts stand.

    Attributes:
        names: per metric its name in Prometheus; None for one that nobody asked for.
        sizes: per metric how many points it has, shape (metrics,).
        is_wanted: which metrics somebody asked for, shape (metrics,).
        is_taken: which of them are no sums over an interval, shape (metrics,).
        histograms: distributions.
    """

    message: bytes
    room: kernels.Room
    names: list[bytes | None]
    sizes: NDArray[np.int32]
    is_wanted: NDArray[np.bool_]
    is_taken: NDArray[np.bool_]
    histograms: int


class OtlpDecoder:
    """Decodes one body after another; one thread at a time may use it."""

    def __init__(self, limits: BodyLimits) -> None:
        self._limits = limits
        self._labels = LabelFields()
        self._names: dict[bytes, bytes | None] = {}

    def decode(self, body: bytes) -> DecodedBody:
        """Unpacks and walks one body as it came over the wire, gzip or plain.

        Raises:
            TooLarge: the body passes a limit.
            Corrupt: the body is cut, not protobuf or not this message; nothing of it can be used.
        """
        return self._columns(self._walked(body))

    def decode_few(self, body: bytes, points_max: int) -> DecodedBody | None:
        """As `decode`; None where it has more than `points_max` points of metrics that mean something."""
        walked = self._walked(body)
        return None if int(walked.sizes[walked.is_taken].sum()) > points_max else self._columns(walked)

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
        found = room.metrics[:metrics]
        starts, ends, kinds = (found[:, part] for part in (kernels.NAME_START, kernels.NAME_END, kernels.KIND))
        is_number = (kinds != kernels.HISTOGRAM).tolist()
        names = [
            self._name(message[start:end]) if is_one else None
            for start, end, is_one in zip(starts.tolist(), ends.tolist(), is_number, strict=True)
        ]
        is_wanted = np.array([name is not None for name in names], dtype=np.bool_)
        return _Walked(
            message=message,
            room=room,
            names=names,
            sizes=found[:, kernels.POINTS_END] - found[:, kernels.POINTS_START],
            is_wanted=is_wanted,
            is_taken=is_wanted & (kinds == kernels.NUMBERS),
            histograms=histograms,
        )

    def _columns(self, walked: _Walked) -> DecodedBody:
        fields, kept = self._fields(walked)
        texts, room = joined_texts(fields), walked.room
        places = np.arange(len(fields))
        runs = (texts.starts[:-1], texts.starts[1:], places, places + 1, np.zeros_like(places))
        return DecodedBody(
            version=Version.V1,
            data=texts.data,
            series=np.column_stack(runs).astype(np.int32),
            ts_ms=room.ts_ms[kept],
            values=room.value_bits[kept].view(np.float64),
            symbols=np.empty((0, 2), dtype=np.int32),
            metadata=0,
            histograms=walked.histograms,
            unsound_histograms=0,
            exemplars=0,
            unwanted=int(walked.sizes[~walked.is_wanted].sum()),
            deltas=int(walked.sizes[walked.is_wanted & ~walked.is_taken].sum()),
        )

    def _fields(self, walked: _Walked) -> tuple[list[bytes], NDArray[np.int64]]:
        """Label fields of every point that is taken, and which points these are."""
        message, room = walked.message, walked.room
        fields: list[bytes] = []
        runs = [np.empty(0, dtype=np.int64)]
        held = 0
        for metric in np.flatnonzero(walked.is_taken).tolist():
            name = walked.names[metric]
            resource, _, _, _, first, end = room.metrics[metric].tolist()
            start, stop = room.resources[resource].tolist()
            if name is None or first == end:
                continue
            target = self._labels.target(message[start:stop])
            for left, right in room.attributes[first:end].tolist():
                made = self._labels.fields(target, name, message[left:right])
                held += len(made)
                if held > self._limits.decoded_bytes:
                    raise TooLarge(
                        f"cannot take a body whose labels take {held} bytes: more than "
                        f"receiver.decoded_bytes_max={self._limits.decoded_bytes}"
                    )
                fields.append(made)
            runs.append(np.arange(first, end, dtype=np.int64))
        return fields, np.concatenate(runs)

    def _name(self, raw: bytes) -> bytes | None:
        """The name of a metric in Prometheus; None for one that nobody asked for."""
        if raw in self._names:
            return self._names[raw]
        name = metric_name(raw) if len(raw) <= _NAME_BYTES_MAX else None
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


def _room(size: int, samples: int) -> kernels.Room:
    most = min(size // 2 + 1, samples)  # each part takes a tag and a length at least
    return kernels.Room(
        resources=np.empty((most, 2), dtype=np.int32),
        metrics=np.empty((most, kernels.METRIC_COLUMNS), dtype=np.int32),
        attributes=np.empty((most, 2), dtype=np.int32),
        ts_ms=np.empty(most, dtype=np.int64),
        value_bits=np.empty(most, dtype=np.uint64),
    )
