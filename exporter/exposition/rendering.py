"""A snapshot as text that Prometheus can scrape: text format 0.0.4 and OpenMetrics 1.0.0, plain or gzip.

A snapshot is rendered when it is first asked for, and once however often it is scraped. Only the families that changed
are rendered anew (`exporter.exposition.block`), and only they are compressed anew: the text is one gzip member of
pieces that are compressed at different times. A piece is a run of deflate blocks that ends on a whole byte and refers
to nothing before it (RFC 1951 §2.3, RFC 1952 §2.3; madler/pigz:pigz.c works so across threads). Each scrape adds the
exporter's own few metrics. Called by `exporter.server`.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain

from exporter.collector import CollectorState, Snapshot
from exporter.compat.translation import Compat, CompatFamilies
from exporter.exposition.block import TextBlock
from exporter.exposition.lines import head, prefix
from exporter.exposition.readings import ReadingFamilies
from exporter.families import CataloguedFamily, Column, counter, gauge


class TextFormat(StrEnum):
    """Formats that a scraper may ask for; the value is the content type."""

    PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
    OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


AGE_FAMILY = gauge("gputide_exporter_data_age_seconds", "Age of the figures, seconds; grows while a device hangs.", ())
READINGS_FAMILY = counter("gputide_exporter_readings_total", "Readings taken.", ())
FAILURES_FAMILY = counter("gputide_exporter_reading_failures_total", "Readings that failed.", ())

OWN_FAMILIES: tuple[CataloguedFamily, ...] = (AGE_FAMILY, READINGS_FAMILY, FAILURES_FAMILY)
"""What the exporter says of itself in every answer."""


class Exposition:
    """Renders the snapshots of one collector; used under the server's lock.

    Args:
        compat: other exporters under whose names the same figures are shown too.
    """

    def __init__(self, compat: Iterable[Compat] = ()) -> None:
        self._readings = ReadingFamilies()
        self._compat = tuple(CompatFamilies(names) for names in sorted(set(compat)))
        self._shown: Snapshot | None = None
        self._columns: list[Column] = []
        self._bodies = {text_format: _Body(text_format) for text_format in TextFormat}

    def scrape(
        self, state: CollectorState, text_format: TextFormat = TextFormat.PROMETHEUS, *, is_packed: bool = False
    ) -> tuple[bytes, ...]:
        """The answer to a scrape, in pieces that follow each other.

        Args:
            is_packed: True for gzip; the pieces are one member then.
        """
        if state.snapshot is not None and state.snapshot is not self._shown:
            self._columns = self._of(state.snapshot)
            self._shown = state.snapshot
        body = self._bodies[text_format]
        body.show(self._columns)
        return body.packed(state) if is_packed else body.plain(state)

    def render(self, state: CollectorState, text_format: TextFormat = TextFormat.PROMETHEUS) -> bytes:
        """The whole answer to a scrape that asks for no compression."""
        return b"".join(self.scrape(state, text_format))

    def _of(self, snapshot: Snapshot) -> list[Column]:
        columns = self._readings.of(snapshot)
        columns += [(family, family.labels, family.values) for family in snapshot.families]
        for compat in self._compat:
            columns += [(family, family.labels, family.values) for family in compat.of(snapshot)]
        names = {family.name for family, _, _ in columns}
        if len(names) == len(columns):
            return columns
        # Two sources may give series of one name; a format wants them together.
        groups: dict[str, list[Column]] = {}
        for column in columns:
            groups.setdefault(column[0].name, []).append(column)
        return list(chain.from_iterable(groups.values()))


class _Body:
    """The answers in one format: what is left to do for a scrape once a snapshot is rendered."""

    def __init__(self, text_format: TextFormat) -> None:
        is_openmetrics = text_format is TextFormat.OPENMETRICS
        self._block = TextBlock(is_openmetrics=is_openmetrics)
        self._own_heads = tuple(
            head(family, is_openmetrics=is_openmetrics) + prefix(family.name, (), ()) for family in OWN_FAMILIES
        )
        self._end = b"\n# EOF\n" if is_openmetrics else b"\n"
        self._columns: list[Column] = []
        self._packed: PackedText | None = None
        self._packer = Packer()

    def show(self, columns: list[Column]) -> None:
        if columns is not self._columns:
            self._columns = columns
            if self._block.show(columns):
                self._packed = None

    def plain(self, state: CollectorState) -> tuple[bytes, ...]:
        text, own = self._block.text(), self._own(state)
        return (text, own) if text else (own[1:],)

    def packed(self, state: CollectorState) -> tuple[bytes, ...]:
        if self._packed is None:
            self._packed = self._packer.begun(self._block.pieces())
        own = self._own(state)
        return self._packed.stream, self._packer.ended(self._packed, own if self._packed.length else own[1:])

    def _own(self, state: CollectorState) -> bytes:
        values = (repr(state.age_seconds), str(state.readings), str(state.failures))
        lines = (before + value.encode() for before, value in zip(self._own_heads, values, strict=True))
        return b"".join([*lines, self._end])


LEVEL = 1
"""Names and labels repeat so much that higher levels gain a tenth of the bytes for twice the CPU time."""

# Deflate, no name, no time, fastest, unknown system (RFC 1952 §2.3.1).
_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x04\xff"
# An empty last block of fixed codes.
_END = b"\x03\x00"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedText:
    """The begin of a gzip member, to be ended by `Packer.ended`.

    Attributes:
        stream: header and blocks so far.
        checksum: CRC-32 of the text so far.
        length: bytes of text so far.
    """

    stream: bytes
    checksum: int
    length: int


class Packer:
    """Compresses pieces, and keeps the compressed form of each for as long as the piece is in use."""

    def __init__(self) -> None:
        # One compressor for all pieces: to set one up costs more than to compress a small piece.
        self._compressor = zlib.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
        self._packed: dict[int, tuple[bytes, bytes]] = {}

    def begun(self, pieces: Sequence[bytes]) -> PackedText:
        """All pieces, in order, as the begin of one gzip member.

        Args:
            pieces: what is to be compressed; a piece that is the same object as in the call before is not compressed
                again.
        """
        kept: dict[int, tuple[bytes, bytes]] = {}
        checksum = length = 0
        for piece in pieces:
            known = self._packed.get(id(piece))
            # The piece is kept beside its compressed form: while it is, no other object has its id.
            kept[id(piece)] = known if known is not None else (piece, self._deflated(piece))
            checksum = zlib.crc32(piece, checksum)
            length += len(piece)
        self._packed = kept
        stream = b"".join([_HEADER, *(kept[id(piece)][1] for piece in pieces)])
        return PackedText(stream=stream, checksum=checksum, length=length)

    def ended(self, begun: PackedText, rest: bytes) -> bytes:
        """What follows `begun.stream` so that both are a whole gzip member.

        Args:
            rest: last piece of the text.
        """
        checksum = zlib.crc32(rest, begun.checksum)
        length = (begun.length + len(rest)) & 0xFFFFFFFF
        return self._deflated(rest) + _END + checksum.to_bytes(4, "little") + length.to_bytes(4, "little")

    def _deflated(self, piece: bytes) -> bytes:
        # A full flush ends on a whole byte and forgets what came before.
        return self._compressor.compress(piece) + self._compressor.flush(zlib.Z_FULL_FLUSH)
