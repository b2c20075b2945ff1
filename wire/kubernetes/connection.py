"""HTTP/1.1 with an API server: connections that are kept, answers as they come, and an end to whatever takes too long.

The standard library's parser over the standard library's TLS: a Kubernetes client takes seven megabytes more, of a
node exporter's sixty. Called by the exporter's reader and the enforcer's client.

Sources: RFC 9110, RFC 9112; kubernetes/apiserver:pkg/endpoints/handlers/responsewriters (gzip of large answers).
"""

from __future__ import annotations

import contextlib
import http.client
import io
import socket
import ssl
import threading
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from fleet.errors import Unavailable
from wire.kubernetes.access import ClusterAccess
from wire.tls import TlsContexts

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

CONNECT_SECONDS_MAX = 10.0
"""Longest time to reach the server, and longest time for its part of the TLS handshake."""

_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
"""Of a server that vanished without a word a watch would hear nothing until its time is over; seconds, and probes."""
_IDLE_SECONDS_MAX = 30.0
_IDLE_CONNECTIONS_MAX = 4
_PART_BYTES = 64 * 1024
_REFUSAL_BYTES_MAX = 1024 * 1024
_SECRET_LENGTH_MIN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request.

    Attributes:
        path: path, quoted.
        query: what follows the question mark.
        accept: what the answer may be.
        seconds_max: longest time from the request to the end of the answer.
        is_stream: the answer comes bit by bit, and each bit is wanted at once.
        method: GET reads; anything else is never sent twice by itself.
        body: JSON that goes with it; None for nothing.
        content_type: what the body is.
    """

    path: str
    query: Mapping[str, str]
    accept: str
    seconds_max: float
    is_stream: bool = False
    method: str = "GET"
    body: bytes | None = None
    content_type: str = "application/json"


class Answer:
    """An answer whose body has not been read yet.

    Args:
        response: the parser's.
        hidden: what a refusal's body must not repeat: errors quote it in messages and logs.

    Attributes:
        status: HTTP status.
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


class ApiConnection:
    """Speaks to one API server from several threads, each request on a connection of its own while it lasts.

    Args:
        access: where it is and how one gets in.
        agent: who asks, in the server's logs.
    """

    def __init__(self, access: ClusterAccess, agent: str) -> None:
        self._access = access
        self._agent = agent
        self._tls = None if access.tls is None else TlsContexts(access.tls)
        self._lock = threading.Lock()
        self._idle: list[tuple[_Line, float]] = []
        self._busy: set[_Line] = set()
        self._is_closed = False

    @property
    def server(self) -> str:
        """Address of the server, for messages."""
        return self._access.server

    @contextlib.contextmanager
    def ask(self, asked: Asked) -> Iterator[Answer]:
        """Asks; the connection is kept where the answer was read to its end.

        Raises:
            Unavailable: the server can't be reached, breaks off, says nothing in time, or this was closed.
            Misconfigured: certificates or credentials can't be used.
        """
        line, response = self._answered(asked)
        is_done = False
        try:
            answer = Answer(response, self._secrets() if response.status >= http.client.BAD_REQUEST else ())
            yield answer
            is_done = response.isclosed()
        except (http.client.HTTPException, OSError, zlib.error) as exc:
            raise self._unavailable(asked, exc) from exc
        finally:
            # The socket counts the parser's file, and would stay open with it.
            response.close()
            self._release(line, is_kept=is_done and not response.will_close)

    def close(self) -> None:
        """Closes all connections; whoever waits for an answer is woken. More than once does no harm."""
        with self._lock:
            self._is_closed = True
            idle, busy = [line for line, _ in self._idle], list(self._busy)
            self._idle.clear()
        for line in busy:
            line.interrupt()
        for line in idle:
            line.close()

    def _secrets(self) -> tuple[bytes, ...]:
        """What requests are signed with, the longest first; short words are no secrets, and may stand in any text."""
        signed = self._access.credentials.header() or ""
        values = [signed, signed.partition(" ")[2], *(value for _, value in self._access.headers)]
        found = {value.encode("latin-1", "replace") for value in values if len(value) >= _SECRET_LENGTH_MIN}
        return tuple(sorted(found, key=len, reverse=True))

    def _answered(self, asked: Asked) -> tuple[_Line, http.client.HTTPResponse]:
        may_renew = True
        while True:
            line, is_fresh = self._take()
            try:
                response = self._exchange(line, asked)
                if response.status != http.client.UNAUTHORIZED or not may_renew:
                    return line, response
                may_renew = False
                if not self._access.credentials.renew():
                    return line, response
                response.close()
                self._release(line, is_kept=False)
            except (http.client.HTTPException, OSError) as exc:
                self._release(line, is_kept=False)
                if is_fresh or asked.method != "GET" or isinstance(exc, TimeoutError):
                    raise self._unavailable(asked, exc) from exc
                # The server closed a connection that had been kept, as it may at any time.
            except BaseException:
                self._release(line, is_kept=False)
                raise

    def _exchange(self, line: _Line, asked: Asked) -> http.client.HTTPResponse:
        headers = {
            "Accept": asked.accept,
            "Accept-Encoding": "identity" if asked.is_stream else "gzip",
            "User-Agent": self._agent,
            **dict(self._access.headers),
        }
        signed = self._access.credentials.header()
        if signed is not None:
            headers["Authorization"] = signed
        target = f"{self._access.path}{asked.path}"
        if asked.query:
            target += f"?{urlencode(asked.query)}"
        if asked.body is not None:
            headers["Content-Type"] = asked.content_type
        return line.ask(asked, target, headers)

    def _take(self) -> tuple[_Line, bool]:
        """A connection, and whether it is a new one."""
        old: list[_Line] = []
        try:
            with self._lock:
                while self._idle and not self._is_closed:
                    line, since = self._idle.pop()
                    if time.monotonic() - since < _IDLE_SECONDS_MAX:
                        self._busy.add(line)
                        return line, False
                    old.append(line)
        finally:
            for line in old:
                line.close()
        line = self._open()
        with self._lock:
            if not self._is_closed:
                self._busy.add(line)
                return line, True
        line.close()
        raise self._closed()

    def _open(self) -> _Line:
        access = self._access
        if self._is_closed:
            raise self._closed()
        try:
            plain = socket.create_connection((access.host, access.port), CONNECT_SECONDS_MAX)
        except (OSError, UnicodeError) as exc:
            raise Unavailable(f"cannot reach {self.server}: {exc}") from exc
        try:
            # Requests are small and answered at once.
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in _KEEPALIVE.items():
                # Not every system has each of them.
                if hasattr(socket, option):
                    plain.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
            if self._tls is None or access.tls is None:
                return _Line(plain, access.host, access.port)
            name = access.tls.server_name or access.host
            secured = self._tls.context().wrap_socket(plain, server_hostname=name)
        except (OSError, ValueError) as exc:
            plain.close()
            why = "its certificate is not trusted: " if isinstance(exc, ssl.SSLCertVerificationError) else ""
            raise Unavailable(f"cannot reach {self.server}: {why}{exc}") from exc
        except BaseException:
            plain.close()
            raise
        return _Line(secured, access.host, access.port)

    def _release(self, line: _Line, *, is_kept: bool) -> None:
        with self._lock:
            self._busy.discard(line)
            is_kept = is_kept and not self._is_closed and len(self._idle) < _IDLE_CONNECTIONS_MAX
            if is_kept:
                self._idle.append((line, time.monotonic()))
        if not is_kept:
            line.close()

    def _unavailable(self, asked: Asked, exc: Exception) -> Unavailable:
        if self._is_closed:
            return self._closed()
        verb = "read" if asked.method == "GET" else asked.method.lower()
        what = f"cannot {verb} {asked.path} of {self.server}"
        if isinstance(exc, TimeoutError):
            return Unavailable(f"{what}: not answered in {asked.seconds_max:.0f} s")
        return Unavailable(f"{what}: {exc!r}")

    def _closed(self) -> Unavailable:
        return Unavailable(f"cannot ask {self.server}: the connection to it was closed")


class _Line:
    """One connection, and the time by which the answer on it must have come."""

    def __init__(self, connection: socket.socket, host: str, port: int) -> None:
        self._socket = connection
        self._until = 0.0
        self._http = http.client.HTTPConnection(host, port)
        self._http.auto_open = 0
        self._http.sock = self

    def ask(self, asked: Asked, target: str, headers: Mapping[str, str]) -> http.client.HTTPResponse:
        """Sends a request and reads the head of the answer."""
        self._until = time.monotonic() + asked.seconds_max
        self._http.request(asked.method, target, body=asked.body, headers=dict(headers))
        return self._http.getresponse()

    def interrupt(self) -> None:
        """Wakes whoever waits for the next byte: closing would not, and TLS's own way of ending would race it."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Closes the connection once nobody reads from it any more; called by the parser too."""
        self._http.sock = None
        self._socket.close()

    def sendall(self, data: bytes) -> None:
        """Sends, for the parser."""
        self.limit()
        self._socket.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        """What the parser reads from."""
        # Unbuffered below: the socket counts this file, and stays open until it is closed.
        return io.BufferedReader(_Timed(self, self._socket.makefile("rb", buffering=0)), _PART_BYTES)

    def limit(self) -> None:
        """Gives the next operation the time that is left."""
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError("the time of the answer is over")
        self._socket.settimeout(left)


class _Timed(io.RawIOBase):
    """Reads from a connection while there is time."""

    def __init__(self, line: _Line, below: socket.SocketIO) -> None:
        self._line = line
        self._below = below

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int | None:
        self._line.limit()
        return self._below.readinto(buffer)

    def close(self) -> None:
        self._below.close()
        super().close()
