"""One HTTP/1.1 client for all rooms: connections that are kept, a deadline for the whole call, no redirect, no proxy.

It stands on the standard library's parser and TLS because a node's exporter uses it too: urllib3 adds 7 MB and requests
12 MB of resident memory to the exporter's 60 MB, neither bounds a whole call, and a second client for the other
processes would be a second set of rules about certificates and tokens.

Rules: certificates are checked unless the endpoint says otherwise. A redirect is an answer like any other, so that a
token goes only to the server that was named. Proxy variables of the environment are not read, for the same reason.
A refusal's body never repeats what a request was signed with.

Sources: RFC 9110, RFC 9112.
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
from urllib.parse import urlencode, urlsplit

from fleet.errors import Misconfigured, Unavailable
from wire.credentials import Credentials, FixedHeader
from wire.http_answer import Answer
from wire.tls import Tls, TlsContexts

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

CONNECT_SECONDS_MAX = 10.0
"""Longest time to reach one address of the server, and longest time for its part of the TLS handshake."""

_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
"""Of a server that vanished without a word a watch would hear nothing until its time is over; seconds, and probes."""
_IDLE_SECONDS_MAX = 30.0
_IDLE_CONNECTIONS_MAX = 4
_PART_BYTES = 64 * 1024
_SECRET_LENGTH_MIN = 8
_PORTS = {"http": 80, "https": 443}


class Untrusted(Unavailable):
    """The server's certificate is not trusted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A server, and how one gets in.

    Attributes:
        path: what its paths begin with, without a slash at the end; empty as a rule.
        tls: how its certificate is checked; None for a server that is spoken to in the clear.
        headers: further headers of every request, for servers behind a gateway that asks for them.
    """

    host: str
    port: int
    path: str = ""
    tls: Tls | None = None
    credentials: Credentials = FixedHeader(None)  # noqa: RUF009 - it holds no state
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def server(self) -> str:
        """Its address, for messages."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'http' if self.tls is None else 'https'}://{host}:{self.port}{self.path}"


def endpoint_of(
    url: str,
    *,
    setting: str,
    tls: Tls | None = None,
    credentials: Credentials | None = None,
    headers: tuple[tuple[str, str], ...] = (),
    sign_in: str = "name a file that holds it",
) -> Endpoint:
    """The endpoint at an address of the form `http[s]://HOST[:PORT][/PATH]`.

    Args:
        setting: dotted name of the setting that gives it, for messages.
        tls: how an https server is checked, and what it is shown; None for the authorities of this machine.
        sign_in: advice for an address with a password in it.

    Raises:
        Misconfigured: it is no such address, or holds a password.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as exc:
        raise Misconfigured(f"cannot use {setting}={url!r}: {exc}") from exc
    if parts.username is not None or parts.password is not None:
        raise Misconfigured(f"cannot use {setting} with a password in it: everybody on the machine sees it; {sign_in}")
    if parts.scheme not in _PORTS or not host or port == 0:
        raise Misconfigured(f"cannot use {setting}={url!r}: expected http://HOST:PORT or https://HOST:PORT")
    if parts.query or parts.fragment:
        raise Misconfigured(f"cannot use {setting}={url!r}: it goes on behind the path")
    return Endpoint(
        host=host,
        port=port or _PORTS[parts.scheme],
        path=parts.path.rstrip("/"),
        tls=None if parts.scheme == "http" else tls or Tls(),
        credentials=credentials or FixedHeader(None),
        headers=headers,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request.

    Attributes:
        path: path, quoted; behind that of the endpoint.
        seconds_max: longest time of the whole call, from the connection to the end of the answer.
        accept: what the answer may be.
        is_stream: the answer comes bit by bit, and each bit is wanted at once.
        method: GET reads; anything else is never sent twice by itself, unless it `is_read`.
        is_read: it changes nothing, whatever its method is.
        body: what goes with it; None for nothing.
        shown: what messages call the path, where it is a secret; None for the path.
    """

    path: str
    seconds_max: float
    query: Mapping[str, str] | None = None
    accept: str = "application/json"
    is_stream: bool = False
    method: str = "GET"
    is_read: bool = False
    body: bytes | None = None
    content_type: str = "application/json"
    headers: Mapping[str, str] | None = None
    shown: str | None = None


class HttpClient:
    """Speaks to one server from several threads, each request on a connection of its own while it lasts.

    Args:
        agent: who asks, in the server's logs.
        contexts: TLS contexts that several clients share; None for its own, as the endpoint says.
        is_kept: connections are kept for the next request.
    """

    def __init__(
        self, endpoint: Endpoint, agent: str, *, contexts: TlsContexts | None = None, is_kept: bool = True
    ) -> None:
        self._endpoint = endpoint
        self._agent = agent
        self._is_kept = is_kept
        self._tls = None if endpoint.tls is None else contexts or TlsContexts(endpoint.tls)
        self._lock = threading.Lock()
        self._idle: list[tuple[_Line, float]] = []
        self._busy: set[_Line] = set()
        self._is_closed = False

    @property
    def server(self) -> str:
        """Address of the server, for messages."""
        return self._endpoint.server

    @contextlib.contextmanager
    def ask(self, asked: Request) -> Iterator[Answer]:
        """Asks; the connection is kept where the answer was read to its end.

        Raises:
            Unavailable: the server can't be reached, breaks off, says nothing in time, or this was closed
                (`Untrusted` where its certificate is not trusted).
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

    def reach(self, seconds_max: float) -> None:
        """Connects, the TLS handshake included, and asks nothing. Raises as `ask`."""
        self._open(time.monotonic() + seconds_max).close()

    def close(self) -> None:
        """Closes all connections; threads that wait for an answer are woken. More than once does no harm."""
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
        signed = self._endpoint.credentials.header() or ""
        values = [signed, signed.partition(" ")[2], *(value for _, value in self._endpoint.headers)]
        found = {value.encode("latin-1", "replace") for value in values if len(value) >= _SECRET_LENGTH_MIN}
        return tuple(sorted(found, key=len, reverse=True))

    def _answered(self, asked: Request) -> tuple[_Line, http.client.HTTPResponse]:
        may_renew = True
        headers = self._headers(asked)
        until = time.monotonic() + asked.seconds_max
        while True:
            line, is_fresh = self._take(until)
            try:
                response = line.ask(asked, self._target(asked), headers, until)
                if response.status != http.client.UNAUTHORIZED or not may_renew:
                    return line, response
                may_renew = False
                if not self._endpoint.credentials.renew():
                    return line, response
                response.close()
                self._release(line, is_kept=False)
                headers = self._headers(asked)
            except (http.client.HTTPException, OSError) as exc:
                self._release(line, is_kept=False)
                may_repeat = asked.method == "GET" or asked.is_read
                if is_fresh or not may_repeat or isinstance(exc, TimeoutError):
                    raise self._unavailable(asked, exc) from exc
                # The server closed a connection that had been kept, as it may at any time.
            except BaseException:
                self._release(line, is_kept=False)
                raise

    def _headers(self, asked: Request) -> dict[str, str]:
        headers = {
            "Accept": asked.accept,
            "Accept-Encoding": "identity" if asked.is_stream else "gzip",
            "User-Agent": self._agent,
            **dict(self._endpoint.headers),
            **(asked.headers or {}),
        }
        signed = self._endpoint.credentials.header()
        if signed is not None:
            headers["Authorization"] = signed
        if asked.body is not None:
            headers["Content-Type"] = asked.content_type
        return headers

    def _target(self, asked: Request) -> str:
        target = f"{self._endpoint.path}{asked.path}" or "/"
        return f"{target}?{urlencode(asked.query)}" if asked.query else target

    def _take(self, until: float) -> tuple[_Line, bool]:
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
        line = self._open(until)
        with self._lock:
            if not self._is_closed:
                self._busy.add(line)
                return line, True
        line.close()
        raise self._closed()

    def _open(self, until: float) -> _Line:
        endpoint = self._endpoint
        if self._is_closed:
            raise self._closed()
        try:
            plain = _connected(endpoint.host, endpoint.port, until)
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
            if self._tls is None or endpoint.tls is None:
                return _Line(plain, endpoint.host, endpoint.port)
            context = self._tls.context()
            plain.settimeout(_seconds_left(until))
            secured = context.wrap_socket(plain, server_hostname=endpoint.tls.server_name or endpoint.host)
        except ssl.SSLCertVerificationError as exc:
            plain.close()
            raise Untrusted(
                f"cannot reach {self.server}: its certificate is not trusted: {exc.verify_message}"
            ) from exc
        except (OSError, ValueError) as exc:
            plain.close()
            raise Unavailable(f"cannot reach {self.server}: {exc}") from exc
        except BaseException:
            plain.close()
            raise
        return _Line(secured, endpoint.host, endpoint.port)

    def _release(self, line: _Line, *, is_kept: bool) -> None:
        with self._lock:
            self._busy.discard(line)
            is_kept = is_kept and self._is_kept and not self._is_closed and len(self._idle) < _IDLE_CONNECTIONS_MAX
            if is_kept:
                self._idle.append((line, time.monotonic()))
        if not is_kept:
            line.close()

    def _unavailable(self, asked: Request, exc: Exception) -> Unavailable:
        if self._is_closed:
            return self._closed()
        verb = "read" if asked.method == "GET" else asked.method.lower()
        what = f"cannot {verb} {asked.path if asked.shown is None else asked.shown} of {self.server}"
        if isinstance(exc, TimeoutError):
            return Unavailable(f"{what}: not answered in {asked.seconds_max:.0f} s")
        return Unavailable(f"{what}: {exc!r}")

    def _closed(self) -> Unavailable:
        return Unavailable(f"cannot ask {self.server}: the connection to it was closed")


def _connected(host: str, port: int, until: float) -> socket.socket:
    """A connection to the first address of a host that takes one, all addresses within the time."""
    failed: OSError = OSError(f"no address of {host}")
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        connection = socket.socket(family, kind, protocol)
        try:
            connection.settimeout(_seconds_left(until))
            connection.connect(address)
        except OSError as exc:
            connection.close()
            failed = exc
        else:
            return connection
    raise failed


def _seconds_left(until: float) -> float:
    left = min(CONNECT_SECONDS_MAX, until - time.monotonic())
    if left <= 0:
        raise TimeoutError("timed out")
    return left


class _Line:
    """One connection, and the time by which the answer on it must have come."""

    def __init__(self, connection: socket.socket, host: str, port: int) -> None:
        self._socket = connection
        self._until = 0.0
        self._http = http.client.HTTPConnection(host, port)
        self._http.auto_open = 0
        self._http.sock = self

    def ask(self, asked: Request, target: str, headers: Mapping[str, str], until: float) -> http.client.HTTPResponse:
        self._until = until
        self._http.request(asked.method, target, body=asked.body, headers=dict(headers))
        return self._http.getresponse()

    def interrupt(self) -> None:
        """Wakes a thread that waits for the next byte: closing would not, and TLS's own way of ending would race it."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Closes the connection once nobody reads from it any more; called by the parser too."""
        self._http.sock = None
        self._socket.close()

    def sendall(self, data: bytes) -> None:
        self.limit()
        self._socket.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        # Unbuffered below: the socket counts this file, and stays open until it is closed.
        return io.BufferedReader(_Timed(self, self._socket.makefile("rb", buffering=0)), _PART_BYTES)

    def limit(self) -> None:
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
