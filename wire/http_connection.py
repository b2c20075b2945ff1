"""One connection: reads requests from a socket that is not trusted, and writes answers.

`http_server` runs each connection in a thread of its own and asks it for one request after the other. Every wait ends:
a request must have arrived whole within `request_seconds` of its first byte, an answer must have been taken within
`answer_seconds`, and the bytes held in memory are bounded by the sizes given and the shared `BodyBudget`. The node
exporter loads this module: it imports no TLS and no mail parsing, which take six megabytes.
"""

from __future__ import annotations

import math
import socket
import threading
import time
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

from wire.http_head import HEAD_BYTES_MAX, Refusal, RequestHead, head_of

if TYPE_CHECKING:
    from wire.tls_stream import TlsStream  # six megabytes, which a plain port does without

RETRY_AFTER_SECONDS = 5
"""When a sender that could not be served now may come again."""
REST_BYTES_MAX = 256 * 1024
"""Largest rest of a refused request that is read and thrown away, so that its connection lives on."""
LINGER_SECONDS = 0.5
"""How long the rest of a refused request is read before its connection is closed, so that the answer arrives."""

TEXT = "text/plain; charset=utf-8"
"""Content type of an answer that is a line of text."""
SMALL_BODY_BYTES = 1 << 20
"""Bodies beyond it leave a quarter of what all may hold to smaller ones."""

_PIECE_BYTES = 64 * 1024
_CHUNK_LINE_BYTES_MAX = 1024
_TRAILER_BYTES_MAX = 8 * 1024
_REASONS = {status.value: status.phrase for status in HTTPStatus}
_HEX = frozenset(b"0123456789abcdefABCDEF")
_BODILESS = frozenset({HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """What clients may cost a server.

    Attributes:
        section: settings that the limits of the same names stand in, such as `receiver`; empty where they are fixed.
        body_bytes_max: largest body of one request.
        pending_bytes_max: bytes of bodies that all requests may hold together.
        idle_seconds: how long a connection may be silent between two requests; before the first it has
            `request_seconds`, where these are fewer.
        parked_max: connections that may wait for a whole request without a thread, beside `connections_max`; 0 for
            none.
        slow_seconds: how long a client may keep a place waiting amid a request while newcomers find none.
        request_seconds: how long a request may take from its first byte to its last.
        answer_seconds: how long a client may take to read an answer.
    """

    section: str = ""
    connections_max: int
    parked_max: int = 0
    body_bytes_max: int = 0
    pending_bytes_max: int = 0
    idle_seconds: float
    request_seconds: float
    answer_seconds: float = 10.0
    slow_seconds: float = 1.0

    def named(self, name: str) -> str:
        """A limit as messages name it, such as `receiver.connections_max=512`."""
        return f"{self.section}{'.' if self.section else ''}{name}={getattr(self, name)}"


class BodyBudget:
    """A bound on bytes of bodies that many threads share.

    Connections take from it as bytes arrive (not as lengths are declared, so that a false length costs nothing), and
    give back when the request is answered.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._held = 0
        self._lock = threading.Lock()

    @property
    def held_bytes(self) -> int:
        """Bytes that are held now."""
        return self._held

    def take(self, count: int, *, is_small: bool = True) -> bool:
        """Hold some more bytes; False, and nothing held, where that would pass the bound.

        Args:
            is_small: False for one who leaves a quarter to others.
        """
        with self._lock:
            if self._held + count > (self._bytes_max if is_small else self._bytes_max * 3 // 4):
                return False
            self._held += count
            return True

    def give_back(self, count: int) -> None:
        """Hold some bytes less."""
        with self._lock:
            self._held -= count


class HungUp(Exception):
    """The client is gone, or too slow to be waited for."""


class HttpConnection:
    """One connection.

    Args:
        opened: the socket; the caller closes it.
        budget: bytes of bodies that all connections may hold together.

    Attributes:
        waits_since: since when it waits for its client, `time.monotonic()`; None while its request is being answered.
        is_amid_request: True from the end of a request's head to the end of its answer. A head comes in one piece from
            every honest client, so that half a head gives way to a newcomer as silence does.
        must_close: True where it ends after the answer under way.
        parked_head: head of the request that `is_whole` speaks of; None where it has none, or one to be refused.
    """

    def __init__(self, opened: socket.socket, limits: ServerLimits, budget: BodyBudget) -> None:
        self._socket: socket.socket | TlsStream = opened
        self._limits = limits
        self._budget = budget
        self._buffer = b""
        self._at = 0
        self._held = 0
        self._deadline = 0.0
        self._head: RequestHead | None = None
        self._is_body_read = True
        self._left = 0
        self._whole_bytes: int | None = None
        self._fed = bytearray()
        self._is_held = True
        self.parked_head: RequestHead | None = None
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
        self._is_body_read = True
        self._whole_bytes, self._is_held = None, True
        if self._fed:
            self._buffer, self._at = b"".join((self._buffer[self._at :], self._fed)), 0
            self._fed = bytearray()
        self.let_go()  # what was held while it was parked is counted again as it is read
        self.is_amid_request = False
        self.waits_since = started = time.monotonic()
        silent_seconds = self._limits.idle_seconds
        if self._head is None:
            silent_seconds = min(silent_seconds, self._limits.request_seconds)
        self._head = None
        self._deadline = started + (self._limits.request_seconds if self._has_more else silent_seconds)
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
                self._deadline = time.monotonic() + self._limits.request_seconds
        self.is_amid_request = True
        data, self._at = self._buffer[self._at : end], end + 4
        if len(data) > HEAD_BYTES_MAX:
            raise Refusal(431, f"cannot take a head longer than {HEAD_BYTES_MAX} bytes", is_final=True)
        self._head = head = head_of(data)
        self._is_body_read = not (head.is_chunked or head.length)
        self._left = head.length or 0
        if self._is_body_read:
            self.waits_since = None
        return head

    def park(self) -> bool:
        """Keep no more than what came behind the last request, and count that; False where there is no room for it."""
        self._buffer, self._at = self._buffer[self._at :], 0
        if not isinstance(self._socket, socket.socket):
            self._buffer += self._socket.drained()
        self._is_held = self._budget.take(len(self._buffer), is_small=False)
        self._held += len(self._buffer) if self._is_held else 0
        return self._is_held

    def go_on_over(self, encrypted: TlsStream) -> None:
        """Read and write through TLS from now on."""
        self._socket = encrypted

    def forget(self) -> None:
        """Let go of all that has come: it is answered, and closed, without being read."""
        self._buffer, self._at = b"", 0
        self._fed = bytearray()
        self._is_body_read = True
        self.let_go()

    def feed(self) -> float:
        """Take what has come, without waiting.

        Returns:
            Until when the request must be whole, `time.monotonic()`; infinite where nothing of it came.

        Where all requests hold too much together the request counts as whole: a thread refuses it, or has room kept.

        Raises:
            HungUp: the client is gone.
        """
        try:
            piece = self._socket.recv(_PIECE_BYTES)
        except (BlockingIOError, InterruptedError):
            return math.inf
        except OSError as exc:
            raise HungUp(str(exc)) from exc
        if not piece:
            raise HungUp("closed")
        # A quarter is left to what threads read.
        self._is_held = self._budget.take(len(piece), is_small=False)
        self._held += len(piece) if self._is_held else 0
        if self._whole_bytes is None:
            self._buffer, self._at = self._buffer[self._at :] + piece, 0
        else:
            # A body may come in as many pieces as it has bytes: none of them copies those before it.
            self._fed += piece
        return time.monotonic() + self._limits.request_seconds

    def is_whole(self) -> bool:
        """Whether all of the next request is there, or what can only be refused."""
        if self._whole_bytes is None:
            self.parked_head = None
            end = self._buffer.find(b"\r\n\r\n", self._at)
            if end < 0:
                return not self._is_held or len(self._buffer) - self._at > HEAD_BYTES_MAX
            try:
                head = head_of(self._buffer[self._at : end])
            except Refusal:
                return True
            length = 0 if head.is_chunked or head.expects_continue else head.length or 0
            self.parked_head = head
            self._whole_bytes = end + 4 - self._at + (length if length <= self._limits.body_bytes_max else 0)
        return not self._is_held or len(self._buffer) - self._at + len(self._fed) >= self._whole_bytes

    def has_head(self) -> bool:
        """Whether the head of the next request is there, or what can only be refused."""
        return self.is_whole() or self._whole_bytes is not None

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
            self._check_length(head.length, limit)
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

    def give_way(self) -> None:
        """Until its answer is sent, the connection makes room for newcomers as an idle one does.

        For answers that take long, and for clients that nobody knows.
        """
        self.waits_since, self.is_amid_request = time.monotonic(), False

    def hold(self, count: int) -> None:
        """Hold memory for what a body becomes, until its answer is sent.

        Raises:
            Refusal: 429, where all requests hold too much together.
        """
        if not self._budget.take(count, is_small=self._held + count <= SMALL_BODY_BYTES):
            raise Refusal(
                429,
                f"cannot take {count} bytes more: all requests under way hold {self._budget.held_bytes} of "
                f"{self._limits.named('pending_bytes_max')}",
                retry_after_seconds=RETRY_AFTER_SECONDS,
            )
        self._held += count

    def let_go(self) -> None:
        """Give back all memory that the request has held."""
        if self._held:
            self._budget.give_back(self._held)
            self._held = 0

    def answer(
        self,
        status: int,
        *pieces: bytes,
        kind: str | None = TEXT,
        fields: tuple[tuple[str, str], ...] = (),
        length: int | None = None,
    ) -> None:
        """Send an answer; `must_close` says afterwards whether the connection is to be closed.

        Args:
            pieces: the body, in pieces that follow each other; none goes with 204 and 304, or answers HEAD.
            kind: content type; None where `fields` has it.
            length: bytes of the body that HEAD asks about, where no pieces were made for it.

        Raises:
            HungUp: the client does not take it.
        """
        head = self._head
        goes_on = head is not None and head.is_kept_alive and not self.must_close and self._rest_is_small()
        date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())
        lines = [f"HTTP/1.1 {status} {_REASONS.get(status, '')}", f"Date: {date}"]
        if status not in _BODILESS:
            if kind is not None:
                lines.append(f"Content-Type: {kind}")
            lines.append(f"Content-Length: {sum(map(len, pieces)) if length is None else length}")
        lines += [f"{name}: {value}" for name, value in fields]
        if not goes_on:
            lines.append("Connection: close")
            self.must_close = True
        has_body = status not in _BODILESS and (head is None or head.method != "HEAD")
        self._send("\r\n".join((*lines, "", "")).encode("latin-1"), *(pieces if has_body else ()))
        if goes_on:
            self.waits_since, self.is_amid_request = time.monotonic(), False
            self._skip_rest()
        else:
            self._linger()

    def _rest_is_small(self) -> bool:
        """True where what is left of the request can be thrown away to reach the next one."""
        if self._is_body_read:
            return True
        head = self._head
        # A client that waits for `100 Continue` may send its body or not: the next byte could be either.
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
        """True where bytes have come that are not read yet."""
        return self._at < len(self._buffer)

    def _buffered(self, count: int) -> bytes:
        """At most so many of the bytes that have come already."""
        piece = self._buffer[self._at : self._at + count]
        self._at += len(piece)
        if not self._has_more:  # a sender may take long over what is missing: nothing is kept twice meanwhile
            self._buffer, self._at = b"", 0
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
            piece = b""
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
            self._check_length(len(body) + size, bytes_max)
            self._gather(body, size)
            if self._line(2):
                raise _broken_chunks(f"a chunk of {size} bytes does not end where it should")
        trailer_bytes = 0
        while line := self._line(_CHUNK_LINE_BYTES_MAX):
            trailer_bytes += len(line)
            if trailer_bytes > _TRAILER_BYTES_MAX:
                raise _broken_chunks("its trailer does not end")
        return bytes(body)

    def _check_length(self, length: int, bytes_max: int) -> None:
        if length > bytes_max:
            name = f"{self._limits.section}{'.' if self._limits.section else ''}body_bytes_max"
            raise Refusal(413, f"cannot take a body of {length} bytes: larger than {name}={bytes_max}")

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
        if b"\n" in line or b"\r" in line:
            # Another reader may end a line there (RFC 9112 §7.1.1: an extension holds neither).
            raise _broken_chunks("a line of it holds a bare line feed or carriage return")
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

    def _send(self, head: bytes, *pieces: bytes) -> None:
        # A time-out of the socket holds for one packet; the client has this long for all of them.
        self.waits_since = started = time.monotonic()
        until = started + self._limits.answer_seconds
        if pieces and len(pieces[0]) <= _PIECE_BYTES:  # one packet instead of two
            head, pieces = head + pieces[0], pieces[1:]
        try:
            for piece in (head, *pieces):
                rest = memoryview(piece)
                while rest:
                    left = until - time.monotonic()
                    if left <= 0:
                        raise HungUp(f"an answer was not taken within {self._limits.answer_seconds} s")
                    self._socket.settimeout(left)
                    rest = rest[self._socket.send(rest) :]
        except OSError as exc:
            raise HungUp(str(exc)) from exc


def _broken_chunks(why: str) -> Refusal:
    return Refusal(400, f"cannot read a chunked body: {why}", is_final=True)
