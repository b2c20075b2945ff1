"""An answer over HTTP: its body as it comes or within bounds, and for how long a busy server wants to be left alone.

Sources: RFC 9110 (Retry-After), RFC 9112, RFC 1952 (gzip).
"""

from __future__ import annotations

import http.client
import zlib
from collections.abc import Iterator

from fleet.errors import Corrupt, Unavailable

RETRY_AFTER_SECONDS_MAX = 300.0
"""Longest time for which a server that is busy is left alone."""

_PART_BYTES = 64 * 1024
_REFUSAL_BYTES_MAX = 1024 * 1024


class Busy(Unavailable):
    """The server wants to be left alone for a while.

    Attributes:
        retry_after_seconds: for how long; never more than `RETRY_AFTER_SECONDS_MAX`.
    """

    def __init__(self, message: str, *, retry_after_seconds: float) -> None:
        super().__init__(message)
        self.retry_after_seconds = min(max(0.0, retry_after_seconds), RETRY_AFTER_SECONDS_MAX)


class TooLarge(Corrupt):
    """An answer is larger than is read at once: fewer objects must be asked for."""


class Answer:
    """An answer whose body has not been read yet.

    Args:
        hidden: what a refusal's body must not repeat: errors quote it in messages and logs.

    Attributes:
        retry_after: the header `Retry-After`; None where there is none.
        date: the header `Date`, by the server's clock; None where there is none.
    """

    def __init__(self, response: http.client.HTTPResponse, hidden: tuple[bytes, ...] = ()) -> None:
        self._response = response
        self._hidden = hidden
        self.status = response.status
        self.retry_after = response.getheader("Retry-After")
        self.date = response.getheader("Date")
        self._is_gzip = (response.getheader("Content-Encoding") or "").strip().lower() == "gzip"

    def parts(self) -> Iterator[bytes]:
        """The body as it comes, unpacked; no part is longer than some ten thousand bytes.

        Raises:
            http.client.HTTPException: it ends too early, or is not what the protocol wants.
            OSError: the connection broke, or the time is over.
            zlib.error: it is not what it is said to be.
        """
        if self.status < http.client.BAD_REQUEST or not self._hidden:
            yield from self._unpacked()
            return
        said = bytearray()
        for part in self._unpacked():
            said += part
            if len(said) > _REFUSAL_BYTES_MAX:
                break
        for secret in self._hidden:
            said = said.replace(secret, b"...")
        for start in range(0, len(said), _PART_BYTES):
            yield bytes(said[start : start + _PART_BYTES])

    def _unpacked(self) -> Iterator[bytes]:
        if not self._is_gzip:
            yield from self._packed()
            return
        unpacking = zlib.decompressobj(16 + zlib.MAX_WBITS)
        for packed in self._packed():
            rest = packed
            while rest and not unpacking.eof:
                part = unpacking.decompress(rest, _PART_BYTES)
                rest = unpacking.unconsumed_tail
                if part:
                    yield part
        if not unpacking.eof:
            raise http.client.IncompleteRead(b"")

    def _packed(self) -> Iterator[bytes]:
        response = self._response
        # Of a length that was told, `read1` loses count (until Python 3.12).
        take = response.read1 if response.chunked or response.length is None else response.read
        while part := take(_PART_BYTES):
            yield part
        if not response.chunked and response.length:
            raise http.client.IncompleteRead(b"", response.length)


def read_body(answer: Answer, bytes_max: int, *, is_cut: bool = False) -> bytearray:
    """The whole body.

    Args:
        answer: not read yet.
        is_cut: the beginning of a longer body is enough.

    Raises:
        TooLarge: it has more.
        http.client.HTTPException: it ends too early.
    """
    body = bytearray()
    for part in answer.parts():
        body += part
        if len(body) > bytes_max and is_cut:
            return body[:bytes_max]
        if len(body) > bytes_max:
            raise TooLarge(f"cannot read an answer of status {answer.status}: larger than {bytes_max} bytes")
    return body


def lines_of(answer: Answer, what: str, bytes_max: int) -> Iterator[bytes | bytearray]:
    """The lines of a watch as they come, without those that are empty.

    Args:
        answer: not read yet.
        what: what is watched, for the message.

    Raises:
        Corrupt: a line has more.
        http.client.HTTPException: it ends too early.
    """
    rest = bytearray()
    for part in answer.parts():
        rest += part
        if b"\n" in part:
            *lines, rest = rest.split(b"\n")
            yield from filter(None, lines)
        elif len(rest) > bytes_max:
            raise Corrupt(f"cannot read an event of {what}: larger than {bytes_max} bytes")


def unavailable(message: str, retry_after: str | None) -> Unavailable:
    """The error of an answer that asks to come again: `Busy` where its header `Retry-After` says when, in seconds."""
    if retry_after is not None and retry_after.isascii() and retry_after.isdigit():
        return Busy(message, retry_after_seconds=float(retry_after[:9]))
    return Unavailable(message)
