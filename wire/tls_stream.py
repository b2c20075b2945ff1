"""A server's side of TLS over a socket, in steps of bounded work: what a peer sends never keeps the caller from others.

Python's `ssl.SSLSocket` reads until it has data: a peer whose records hold none, such as KeyUpdate messages (RFC 8446
§4.6.3: 27 bytes cost 9 µs), keeps one call busy for as long as it sends. Here TLS is given the bytes, some at a time,
and a connection ends whose records hold too little. `TlsStream`, called by `http_parking`, is for threads; `TlsSteps`,
called by `http_proxy`, for asyncio, which gives TLS 256 KiB at a time. Loaded where a port has a certificate.
"""

from __future__ import annotations

import errno
import socket
import ssl
import time
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, TypeVar, cast

HANDSHAKE_BYTES_MAX = 256 * 1024
"""Largest handshake, with a client's chain of certificates."""
SILENT_BYTES_MAX = 64 * 1024
"""Most bytes beyond `BYTES_PER_BYTE_MAX` for each byte of data."""
BYTES_PER_BYTE_MAX = 64
"""Bytes of records that each byte of data may take; one in a record of its own takes 23."""

_STEP_BYTES = 16 * 1024
"""Most bytes of records in a step of a socket that does not block: 600 updates, 5 ms."""
_PIECE_BYTES = 64 * 1024
_Found = TypeVar("_Found")


class Silence:
    """What a peer has sent without data. Mutable: it counts."""

    def __init__(self) -> None:
        self._bytes, self._bytes_max = 0, HANDSHAKE_BYTES_MAX

    def came(self, count: int) -> None:
        """So many bytes of records came.

        Raises:
            OSError: too many by now, for the data that they held.
        """
        self._bytes += count
        if self._bytes > self._bytes_max:
            raise ConnectionAbortedError(errno.ECONNABORTED, f"{self._bytes} bytes of records hold next to no data")

    def held(self, count: int) -> None:
        """They held so many bytes of data."""
        self._bytes = max(0, self._bytes - BYTES_PER_BYTE_MAX * count)

    def is_shaken(self) -> None:
        """The handshake is over."""
        self._bytes, self._bytes_max = 0, SILENT_BYTES_MAX


class TlsSteps:
    """What `ssl.SSLContext.wrap_bio` gives, for asyncio, with the same bounds; mutable: it reads on.

    Args:
        incoming: what came; anything may lie in it, and no more than a step of it is given to TLS at once.
        inner: incoming buffer of `tls`.
        tls: a server's side.
    """

    def __init__(self, incoming: ssl.MemoryBIO, inner: ssl.MemoryBIO, tls: ssl.SSLObject) -> None:
        self._incoming, self._inner, self._tls, self._silence = incoming, inner, tls, Silence()

    def __getattr__(self, name: str) -> object:
        return getattr(self._tls, name)

    def do_handshake(self) -> None:
        """See `ssl.SSLObject.do_handshake`; a handshake that is too long is an OSError."""
        self._step_by_step(self._tls.do_handshake)
        self._silence.is_shaken()

    def read(self, *arguments: Any) -> bytes | int:
        """See `ssl.SSLObject.read`; records that hold too little are an OSError."""
        found = cast("bytes | int", self._step_by_step(partial(self._tls.read, *arguments)))
        self._silence.held(found if isinstance(found, int) else len(found))
        return found

    def unwrap(self) -> None:
        """See `ssl.SSLObject.unwrap`."""
        self._step_by_step(self._tls.unwrap)

    def _step_by_step(self, call: Callable[[], _Found]) -> _Found:
        while True:
            try:
                return call()
            except ssl.SSLWantReadError:
                came = self._incoming.read(_STEP_BYTES)
                if not came:
                    raise
                self._silence.came(len(came))
                self._inner.write(came)


class TlsStream:
    """A connection under TLS, with the methods of a socket that servers use; for one thread at a time.

    `shutdown` may come from any thread. Mutable: its handshake and its bytes go on.

    Args:
        opened: connected; closed with this.
        context: certificate, versions and whom to believe.
    """

    def __init__(self, opened: socket.socket, context: ssl.SSLContext) -> None:
        self._opened = opened
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._unsent = memoryview(b"")
        self._silence = Silence()

    def __enter__(self) -> TlsStream:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def fileno(self) -> int:
        """Its file descriptor."""
        return self._opened.fileno()

    def setblocking(self, is_blocking: bool) -> None:
        """Whether calls wait."""
        self._opened.setblocking(is_blocking)

    def settimeout(self, seconds: float) -> None:
        """How long each call may wait."""
        self._opened.settimeout(seconds)

    def shutdown(self, how: int) -> None:
        """End one or both directions of the socket below."""
        self._opened.shutdown(how)

    def close(self) -> None:
        """Close the socket below."""
        self._opened.close()

    def getpeercert(self) -> dict[str, object] | None:
        """The client's certificate as `ssl.SSLSocket.getpeercert` gives it."""
        return cast("dict[str, object] | None", self._tls.getpeercert())

    def do_handshake(self) -> None:
        """Take a step of the handshake, on a socket that does not block.

        Raises:
            ssl.SSLWantReadError: the peer must send more.
            ssl.SSLWantWriteError: the peer must take what was sent.
            OSError: it failed.
        """
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            try:
                self._take(_STEP_BYTES)
            except BlockingIOError as exc:
                raise ssl.SSLWantReadError from exc
            self._shake_on()
        except ssl.SSLError:
            self._flush()  # the alert that says why
            raise
        self._flush()
        self._silence.is_shaken()

    def recv(self, count: int) -> bytes:
        """Data, as much as has come and at most so much; nothing where the peer has closed.

        Raises:
            BlockingIOError: nothing came, on a socket that does not block; a step was taken.
            TimeoutError: nothing came in time.
            OSError: the connection failed, or its records hold too little.
        """
        seconds = self._opened.gettimeout()
        deadline = None if seconds is None else time.monotonic() + seconds
        data = self._read(count)
        while data is None:
            if deadline is not None and seconds:
                self._opened.settimeout(max(1e-3, deadline - time.monotonic()))
            self._take(_PIECE_BYTES if seconds != 0.0 else min(_STEP_BYTES, count))
            data = self._read(count)
            if data is None and seconds == 0.0:
                raise BlockingIOError(errno.EAGAIN, "the records hold no data")
            if data is None and deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError("the records hold no data")
        return data

    def drained(self) -> bytes:
        """Data of records that have come whole, which no selector sees any more."""
        pieces = []
        while piece := self._read(_PIECE_BYTES):
            pieces.append(piece)
        return b"".join(pieces)

    def send(self, data: bytes | memoryview) -> int:
        """Send some data, and return how much; on a socket that waits."""
        count = self._tls.write(data[:_PIECE_BYTES])
        self._flush()
        return count

    def _shake_on(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLError:
            self._flush()
            raise

    def _read(self, count: int) -> bytes | None:
        """Data of records that have come whole; None where there is none, nothing at the end."""
        data = bytearray()
        try:
            while len(data) < count:
                piece = self._tls.read(count - len(data))
                if not piece:
                    break
                data += piece
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            pass
        except ssl.SSLWantReadError:
            if not data:
                self._answer_updates()
                return None
        self._silence.held(len(data))
        self._answer_updates()
        return bytes(data)

    def _take(self, count: int) -> None:
        """Give TLS what has come.

        Raises:
            OSError: nothing came, or too much without data.
        """
        came = self._opened.recv(count)
        if not came:
            self._incoming.write_eof()
            return
        self._silence.came(len(came))
        self._incoming.write(came)

    def _answer_updates(self) -> None:
        """Send what TLS itself has to say, as far as the peer takes it now."""
        try:
            self._flush()
        except (BlockingIOError, ssl.SSLWantWriteError):
            return

    def _flush(self) -> None:
        """Send what is encrypted.

        Raises:
            ssl.SSLWantWriteError: the peer must take what was sent, on a socket that does not block.
        """
        if self._outgoing.pending:
            self._unsent = memoryview(bytes(self._unsent) + self._outgoing.read())
        if not self._unsent:
            return
        if self._opened.gettimeout() != 0.0:
            unsent, self._unsent = self._unsent, memoryview(b"")
            self._opened.sendall(unsent)
            return
        try:
            self._unsent = self._unsent[self._opened.send(self._unsent) :]
        except BlockingIOError as exc:
            raise ssl.SSLWantWriteError from exc
        if self._unsent:
            raise ssl.SSLWantWriteError
