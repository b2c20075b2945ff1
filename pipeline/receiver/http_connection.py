"""One connection: reads requests from a socket that is not trusted, and writes answers.

`http_server` runs each connection in a thread of its own and asks it for one request after the other. Nothing here
waits for ever: a request must have arrived whole within `request_seconds` of its first byte, an answer must have been
taken within `ANSWER_SECONDS`, and what is held in memory is bounded by the sizes given and the shared `BodyBudget`.
"""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus

from pipeline.receiver.body_budget import BodyBudget
from pipeline.receiver.http_head import HEAD_BYTES_MAX, Refusal, RequestHead, head_of

ANSWER_SECONDS = 10.0
"""How long a sender may take to read an answer."""
RETRY_AFTER_SECONDS = 5
"""When a sender shall come again that could not be served now."""
REST_BYTES_MAX = 256 * 1024
"""Largest rest of a refused request that is read and thrown away, so that its connection lives on."""
LINGER_SECONDS = 0.5
"""How long the rest of a refused request is read before its connection is closed, so that the answer arrives."""

_PIECE_BYTES = 64 * 1024
_CHUNK_LINE_BYTES_MAX = 1024
_TRAILER_BYTES_MAX = 8 * 1024
_REASONS = {status.value: status.phrase for status in HTTPStatus}
_HEX = frozenset(b"0123456789abcdefABCDEF")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """What a connection may cost.

    Attributes:
        body_bytes_max: largest body of one request (`receiver.body_bytes_max`).
        idle_seconds: how long a connection may be silent between two requests (`receiver.idle_seconds`).
        request_seconds: how long a request may take to arrive (`receiver.request_seconds`).
    """

    body_bytes_max: int
    idle_seconds: float
    request_seconds: float


class HungUp(Exception):
    """The sender is gone, or too slow to be waited for."""


class HttpConnection:
    """One connection.

    Args:
        opened: the socket; closed by whoever opened it.
        limits: what it may cost.
        budget: bytes of bodies that all connections may hold together.
    """

    def __init__(self, opened: socket.socket, limits: ConnectionLimits, budget: BodyBudget) -> None:
        self._socket = opened
        self._limits = limits
        self._budget = budget
        self._buffer = b""
        self._at = 0
        self._held = 0
        self._deadline = 0.0
        self._head: RequestHead | None = None
        self._is_body_read = True
        self._left = 0
        self.waits_since: float | None = time.monotonic()
        self.is_amid_request = False
        self.must_close = False

    def next_head(self) -> RequestHead | None:
        """Waits for the head of the next request.

        Returns:
            None where the sender has closed the connection or stayed silent for too long.

        Raises:
            Refusal: it is no request that can be answered otherwise.
            HungUp: the sender went away in its midst.
        """
        self._head = None
        self._is_body_read = True
        self.is_amid_request = self._has_more
        self.waits_since = started = time.monotonic()
        self._deadline = started + (self._limits.request_seconds if self._has_more else self._limits.idle_seconds)
        while (end := self._buffer.find(b"\r\n\r\n", self._at)) < 0:
            if len(self._buffer) - self._at > HEAD_BYTES_MAX:
                raise Refusal(431, f"cannot take a head longer than {HEAD_BYTES_MAX} bytes", is_final=True)
            is_first = not self._has_more
            try:
                self._receive_more()
            except HungUp:
                if is_first:
                    return None
                raise
            if is_first:
                self.is_amid_request = True
                self._deadline = time.monotonic() + self._limits.request_seconds
        data, self._at = self._buffer[self._at : end], end + 4
        if len(data) > HEAD_BYTES_MAX:
            raise Refusal(431, f"cannot take a head longer than {HEAD_BYTES_MAX} bytes", is_final=True)
        self._head = head = head_of(data)
        self._is_body_read = not (head.is_chunked or head.length)
        self._left = head.length or 0
        if self._is_body_read:
            self.waits_since = None
        return head

    def body(self, bytes_max: int | None = None) -> bytes:
        """The body of the request whose head was read last.

        Args:
            bytes_max: largest body of this sender, where it is less than everybody's.

        Raises:
            Refusal: 400, 411, 413 or, where all requests hold too much together, 429.
            HungUp: the sender went away or was too slow.
        """
        head = self._head
        if head is None:
            raise ValueError("a body follows a head")
        limit = self._limits.body_bytes_max if bytes_max is None else min(bytes_max, self._limits.body_bytes_max)
        if not head.is_chunked and head.length is None:
            raise Refusal(411, "cannot read a body without Content-Length that is not chunked", is_final=True)
        if head.length is not None:
            _check_length(head.length, limit)
        if head.expects_continue and not self._has_more:
            self._send(b"HTTP/1.1 100 Continue\r\n\r\n")
        if head.length is None:
            body = self._chunks(limit)
        else:
            gathered = bytearray()
            self._gather(gathered, head.length)
            body = bytes(gathered)
        self._is_body_read = True
        self.waits_since = None
        return body

    def hold(self, count: int) -> None:
        """Hold memory for what a body becomes, until its answer is sent.

        Raises:
            Refusal: 429, where all requests hold too much together.
        """
        if not self._budget.take(count):
            raise Refusal(
                429,
                f"cannot take {count} bytes more: all requests under way hold {self._budget.held_bytes} of "
                f"receiver.pending_bytes_max={self._budget.bytes_max}",
                retry_after_seconds=RETRY_AFTER_SECONDS,
            )
        self._held += count

    def let_go(self) -> None:
        """Give back all memory that the request has held."""
        if self._held:
            self._budget.give_back(self._held)
            self._held = 0

    def answer(self, status: int, text: str = "", fields: tuple[tuple[str, str], ...] = (), kind: str = "") -> None:
        """Send an answer; `must_close` says afterwards whether the connection is to be closed.

        Args:
            status: HTTP status.
            text: body of the answer; none goes with 204.
            fields: further header fields.
            kind: content type, plain text unless given.

        Raises:
            HungUp: the sender does not take it.
        """
        data = text.encode()
        head = self._head
        goes_on = head is not None and head.is_kept_alive and not self.must_close and self._rest_is_small()
        lines = [f"HTTP/1.1 {status} {_REASONS.get(status, '')}", f"Date: {formatdate(usegmt=True)}"]
        if status != HTTPStatus.NO_CONTENT:
            lines += [f"Content-Type: {kind or 'text/plain; charset=utf-8'}", f"Content-Length: {len(data)}"]
        lines += [f"{name}: {value}" for name, value in fields]
        if not goes_on:
            lines.append("Connection: close")
            self.must_close = True
        self._send("\r\n".join((*lines, "", "")).encode("latin-1") + data)
        if goes_on:
            self._skip_rest()
        else:
            self._linger()

    def _rest_is_small(self) -> bool:
        """True where what is left of the request can be thrown away to reach the next one."""
        if self._is_body_read:
            return True
        head = self._head
        # Who was to be told to go on may send its body or not: the next byte could be either.
        return (
            head is not None and head.length is not None and self._left <= REST_BYTES_MAX and not head.expects_continue
        )

    def _skip_rest(self) -> None:
        if self._is_body_read or self._head is None or self._head.length is None:
            return
        self._left -= len(self._buffered(self._left))
        while self._left:
            self._left -= len(self._receive(min(self._left, _PIECE_BYTES)))
        self._is_body_read = True

    def _linger(self) -> None:
        """Close the sending half and read on for a moment: bytes left unread would reset the answer away."""
        if self._is_body_read and not self._has_more:
            return
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            return
        self._deadline = time.monotonic() + LINGER_SECONDS
        try:
            while True:
                self._receive(_PIECE_BYTES)
        except HungUp:
            return

    @property
    def _has_more(self) -> bool:
        """True where bytes have come that nobody has read."""
        return self._at < len(self._buffer)

    def _buffered(self, count: int) -> bytes:
        """At most so many of the bytes that have come already."""
        piece = self._buffer[self._at : self._at + count]
        self._at += len(piece)
        return piece

    def _receive_more(self) -> None:
        piece = self._receive(_PIECE_BYTES)
        self._buffer = self._buffer[self._at :] + piece
        self._at = 0

    def _gather(self, body: bytearray, count: int) -> None:
        """Append the next bytes to a body, held as they come."""
        piece = self._buffered(count)
        while True:
            self._left -= len(piece)
            self.hold(len(piece))
            body += piece
            count -= len(piece)
            if not count:
                return
            try:
                piece = self._receive(min(count, _PIECE_BYTES))
            except HungUp as exc:
                raise Refusal(400, f"cannot read a body: its last {count} bytes did not come", is_final=True) from exc

    def _chunks(self, bytes_max: int) -> bytes:
        body = bytearray()
        while True:
            digits = self._line(_CHUNK_LINE_BYTES_MAX).partition(b";")[0].rstrip(b" \t")
            if not 0 < len(digits) <= 15 or not _HEX.issuperset(digits):
                raise _broken_chunks(f"{digits[:50]!r} is no chunk size")
            size = int(digits, 16)
            if not size:
                break
            _check_length(len(body) + size, bytes_max)
            self._gather(body, size)
            if self._line(2):
                raise _broken_chunks(f"a chunk of {size} bytes does not end where it should")
        trailer_bytes = 0
        while line := self._line(_CHUNK_LINE_BYTES_MAX):
            trailer_bytes += len(line)
            if trailer_bytes > _TRAILER_BYTES_MAX:
                raise _broken_chunks("its trailer does not end")
        return bytes(body)

    def _line(self, bytes_max: int) -> bytes:
        """The next line without its end."""
        while (end := self._buffer.find(b"\r\n", self._at, self._at + bytes_max + 2)) < 0:
            if len(self._buffer) - self._at >= bytes_max + 2:
                raise _broken_chunks("a line of it is too long")
            try:
                self._receive_more()
            except HungUp as exc:
                raise _broken_chunks("it is cut") from exc
        line, self._at = self._buffer[self._at : end], end + 2
        return line

    def _receive(self, count: int) -> bytes:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise HungUp("too slow")
        try:
            self._socket.settimeout(left)
            piece = self._socket.recv(count)
        except OSError as exc:  # a time-out, a reset, or a TLS failure: all of them end the connection
            raise HungUp(str(exc)) from exc
        if not piece:
            raise HungUp("closed")
        return piece

    def _send(self, data: bytes) -> None:
        try:
            self._socket.settimeout(ANSWER_SECONDS)
            self._socket.sendall(data)
        except OSError as exc:
            raise HungUp(str(exc)) from exc


def _broken_chunks(why: str) -> Refusal:
    return Refusal(400, f"cannot read a chunked body: {why}", is_final=True)


def _check_length(length: int, bytes_max: int) -> None:
    if length > bytes_max:
        raise Refusal(
            413, f"cannot take a remote-write body of {length} bytes: larger than receiver.body_bytes_max={bytes_max}"
        )
