"""Text in pieces as one gzip member, each piece compressed once.

A piece is a run of deflate blocks that ends on a whole byte and refers to nothing before it, so that pieces compressed
at different times make one stream (RFC 1951 §2.3, RFC 1952 §2.3; madler/pigz:pigz.c works so across threads). Called by
`exporter.exposition.rendering`: families that did not change cost no compression.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

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
            begun: the begin.
            rest: last piece of the text.
        """
        checksum = zlib.crc32(rest, begun.checksum)
        length = (begun.length + len(rest)) & 0xFFFFFFFF
        return self._deflated(rest) + _END + checksum.to_bytes(4, "little") + length.to_bytes(4, "little")

    def _deflated(self, piece: bytes) -> bytes:
        # A full flush ends on a whole byte and forgets what came before.
        return self._compressor.compress(piece) + self._compressor.flush(zlib.Z_FULL_FLUSH)
