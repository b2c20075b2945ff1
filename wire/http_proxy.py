"""Passes HTTP requests on to servers behind, streams included: ports, each in front of one server, with a gate.

By aiohttp: thousands of requests may wait at their gates, or stream for minutes, on one thread. A request is read whole
before its gate opens, within limits of size and time, and sent with the length that was read: what a client leaves out,
packs or announces otherwise can't become a request of its own behind. What is of one connection alone (RFC 9110, 7.6.1)
is not passed on. A connection to a server is used again for less long than servers keep it (uvicorn: five seconds), so
that none closes under a request; where one ends all the same the client of a POST hears 502, and it is not sent twice.
A client that closes its half of the connection counts as one that left, as servers (uvicorn) count it.
"""

from __future__ import annotations

import asyncio
import logging
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from io import BytesIO
from typing import Any, Protocol, cast

from aiohttp import ClientError, ClientSession, ClientTimeout, DummyCookieJar, TCPConnector, web
from aiohttp.web_protocol import RequestHandler
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from fleet.errors import Misconfigured, Unavailable
from wire.tls_stream import TlsSteps

BODY_BYTES_MAX = 32 * 2**20
"""Longest body of a request; pictures travel in it."""
HELD_BYTES_MAX = 512 * 2**20
"""Most bytes of bodies that are held at a time: half of it for any port, and the other half in shares, one a port."""
BODY_SECONDS, HEAD_SECONDS, WRITE_SECONDS, RESTING_SECONDS = 60.0, 15.0, 60.0, 75.0
"""How long a client may take for a body, for the head of its first request, to take a part of an answer, and to rest
between two requests."""
CONNECTIONS_MAX = 4096
"""Open connections of clients to one port."""

_HOP = frozenset(
    {"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "transfer-encoding",
     "upgrade", "expect"}
)  # fmt: skip
"""Headers of one connection, and `Expect`, which is answered here."""
_UNSENDABLE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")
"""In a header: control characters, and bytes that are no UTF-8, which aiohttp leaves out."""
_CONNECT_SECONDS, _SILENT_SECONDS = 2.0, 3600.0
_KEPT_SECONDS = 2.0
_STOP_SECONDS = 30.0
"""How long requests that run may go on at the end; then they are cancelled, and have as long once more."""
_ANSWER_BYTES_MAX = 65_536
Contexts = Callable[[], ssl.SSLContext]


class Passed(StrEnum):
    """What became of a request."""

    PASSED = "passed"
    REFUSED = "refused"
    FAILED = "failed"
    """The server behind ended the connection, or took none."""
    LEFT = "left"
    """The client left before it had an answer, or did not take it."""


class Gate(Protocol):
    """Decides about the requests of one port."""

    def objection(self, raw_path: str) -> str | None:
        """Why nobody may ask for a path, given as it stands in the request; None where they may. Answered by 403."""
        ...

    def held_open(self, method: str, raw_path: str) -> AbstractAsyncContextManager[None]:
        """Waits until a request may pass, and holds the gate open meanwhile; `Unavailable` is answered by 503."""
        ...

    def ended(self, how: Passed) -> None:
        """Takes note of what became of a request."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxiedPort:
    """One port.

    Attributes:
        host: that it listens on; `port` 0 takes any that is free.
        origin: of the server behind, such as `http://10.0.0.7:8000`.
    """

    host: str
    port: int
    origin: str
    gate: Gate


def origin_of(text: str) -> URL:
    """The origin of a server.

    Raises:
        Misconfigured: it is none, such as for a port, or a name, that can't be.
    """
    try:
        origin = URL(text).origin()
        str(origin.host).encode("idna")  # as the resolver does
        return origin
    except ValueError as exc:
        raise Misconfigured(f"cannot speak to server {text!r}: {exc}") from exc


class ServersBehind:
    """Connections to the servers behind; for one event loop; mutable: it counts the bytes that it holds."""

    def __init__(self, session: ClientSession) -> None:
        self._session = session
        self._held_bytes: dict[Gate, int] = {}

    def serves(self, gate: Gate) -> None:
        """Gives a port its share of what may be held."""
        self._held_bytes[gate] = 0

    async def ask(self, method: str, origin: str, path: str, seconds: float) -> tuple[int, str]:
        """The status and the text that a server answers with, 64 KiB at most; a redirect is not followed.

        Raises:
            Unavailable: it does not answer in time.
        """
        url, timeout = origin_of(origin).join(URL(path)), ClientTimeout(total=seconds)
        try:
            async with self._session.request(method, url, timeout=timeout, allow_redirects=False) as answer:
                content = b""
                while len(content) < _ANSWER_BYTES_MAX and (part := await answer.content.readany()):
                    content += part
        except (ClientError, TimeoutError, OSError) as exc:
            raise Unavailable(f"{origin} does not answer {method} {path}: {str(exc) or type(exc).__name__}") from exc
        return answer.status, content[:_ANSWER_BYTES_MAX].decode(errors="replace")

    @asynccontextmanager
    async def body_of(self, request: web.BaseRequest, gate: Gate) -> AsyncIterator[BytesIO]:
        """The whole body of a request to a port, held meanwhile.

        Raises:
            web.HTTPException: it is too large, too slow, or too much is held already.
        """
        if request.headers.get("Expect", "").lower() == "100-continue":
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            request.writer.output_size = 0
        content, length, held = BytesIO(), 0, self._held_bytes
        try:
            async with asyncio.timeout(BODY_SECONDS):
                async for part in request.content.iter_any():
                    length += content.write(part)
                    held[gate] += len(part)
                    if length > BODY_BYTES_MAX:
                        raise web.HTTPRequestEntityTooLarge(BODY_BYTES_MAX, length)
                    if sum(held.values()) > HELD_BYTES_MAX / 2 and held[gate] > HELD_BYTES_MAX / 2 / len(held):
                        raise web.HTTPServiceUnavailable
            content.seek(0)
            yield content
        except TimeoutError as exc:
            raise web.HTTPRequestTimeout from exc
        finally:
            held[gate] -= length

    async def pass_on(self, request: web.BaseRequest, body: BytesIO, port: ProxiedPort) -> web.StreamResponse:
        """Passes one request on, and its answer back.

        Raises:
            web.HTTPBadRequest: a header can't be passed on.
            ConnectionResetError: the answer ended early, for either side.
        """
        url = origin_of(port.origin).join(URL(request.rel_url.raw_path_qs, encoded=True))
        headers = _passed_on(request.headers)
        if headers is None:
            raise web.HTTPBadRequest(reason="a header is not UTF-8")
        headers.popall("Content-Length", None)
        how, data = Passed.FAILED, body if body.getbuffer().nbytes else None
        try:
            async with self._session.request(
                request.method, url, headers=headers, data=data, allow_redirects=False
            ) as answer:
                headers = _passed_on(answer.headers)
                if answer.status < 200 or headers is None:
                    return _error(502, "the server answers with a status or a header that can't be passed on")
                response = web.StreamResponse(status=answer.status, headers=headers)
                how = Passed.LEFT
                await _taken(response.prepare(request))
                how = Passed.PASSED
                async for part in answer.content.iter_any():
                    await _taken(response.write(part))
                await _taken(response.write_eof())
                return response
        except _NotTaken as exc:
            how = Passed.LEFT
            if request.transport is not None:
                request.transport.abort()
            raise ConnectionResetError("the client did not take its answer") from exc
        except ClientError as exc:
            if how is not Passed.FAILED:
                how = Passed.FAILED
                raise ConnectionResetError("the server ended within its answer") from exc
            return _error(502, "the server ended the connection")
        except asyncio.CancelledError:
            how = how if how is Passed.PASSED else Passed.LEFT
            raise
        finally:
            port.gate.ended(how)


class _NotTaken(Exception):
    """A client left, or does not read."""


async def _taken(writing: Awaitable[object]) -> None:
    try:
        async with asyncio.timeout(WRITE_SECONDS):
            await writing
    except (TimeoutError, ConnectionError) as exc:
        raise _NotTaken from exc


@asynccontextmanager
async def servers_behind() -> AsyncIterator[ServersBehind]:
    """Connections to servers, closed at the end."""
    async with ClientSession(
        connector=TCPConnector(limit=0, keepalive_timeout=_KEPT_SECONDS),
        timeout=ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=_SILENT_SECONDS),
        cookie_jar=DummyCookieJar(), auto_decompress=False,
        skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
    ) as session:  # fmt: skip
        yield ServersBehind(session)


@asynccontextmanager
async def proxying(
    ports: Sequence[ProxiedPort], servers: ServersBehind, tls: Contexts | None = None
) -> AsyncIterator[tuple[int, ...]]:
    """Serves ports meanwhile and gives their numbers; at the end, requests that run have half a minute.

    Args:
        tls: gives the TLS context for a new connection; None for plain HTTP.

    Raises:
        Unavailable: a port can't be had.
    """
    runners: list[web.ServerRunner] = []
    async with AsyncExitStack() as listening:
        listening.push_async_callback(_ended, runners)
        found = []
        for port in ports:
            servers.serves(port.gate)
            runner = web.ServerRunner(_Listener(_answering(port, servers)), shutdown_timeout=_STOP_SECONDS)
            runners.append(runner)
            await runner.setup()
            context = None if tls is None else _RenewedContext(tls)
            try:
                await web.TCPSite(runner, port.host, port.port, ssl_context=context).start()
            except (OSError, OverflowError) as exc:
                raise Unavailable(f"cannot listen on {port.host}:{port.port}: {exc}") from exc
            found.append(int(runner.addresses[0][1]))
        yield tuple(found)


async def _ended(runners: Sequence[web.ServerRunner]) -> None:
    """Ends all ports at the same time, each without new connections first."""
    for runner in runners:
        for site in tuple(runner.sites):
            await site.stop()
    await asyncio.gather(*(runner.cleanup() for runner in runners))


class _Listener(web.Server):
    """The connections of one port; those beyond the limit, and those that say nothing, are closed."""

    def __init__(self, answer: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]) -> None:
        # A client's malformed request is no event of ours.
        quiet = logging.getLogger("gputide.router.clients")
        quiet.setLevel(logging.CRITICAL + 1)
        super().__init__(
            self._heard(answer), handler_cancellation=True, access_log=None, logger=quiet, auto_decompress=False,
            keepalive_timeout=RESTING_SECONDS,
        )  # fmt: skip
        self._silent: dict[object, asyncio.TimerHandle] = {}

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        seconds = HEAD_SECONDS if len(self.connections) <= CONNECTIONS_MAX else 0.0
        self._silent[handler] = asyncio.get_running_loop().call_later(seconds, transport.abort)

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        self._speaks(handler)
        super().connection_lost(handler, exc)

    def _heard(
        self, answer: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]
    ) -> Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]:
        async def heard(request: web.BaseRequest) -> web.StreamResponse:
            self._speaks(request.protocol)
            return await answer(request)

        return heard

    def _speaks(self, handler: object) -> None:
        if (timer := self._silent.pop(handler, None)) is not None:
            timer.cancel()


def _answering(port: ProxiedPort, servers: ServersBehind) -> Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]:
    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        path = request.rel_url.raw_path
        objection = port.gate.objection(path)
        if objection is not None:
            port.gate.ended(Passed.REFUSED)
            return _error(403, objection)
        passes = False
        try:
            async with servers.body_of(request, port.gate) as body, port.gate.held_open(request.method, path):
                passes = True
                return await servers.pass_on(request, body, port)
        except web.HTTPException as refused:
            port.gate.ended(Passed.REFUSED)
            return _error(refused.status, refused.reason)
        except Unavailable as exc:
            port.gate.ended(Passed.REFUSED)
            return _error(503, str(exc))
        except asyncio.CancelledError:
            if not passes:
                port.gate.ended(Passed.LEFT)
            raise

    return answer


def _error(status: int, text: str) -> web.Response:
    """An error in the form that the APIs of language models have; a body that was not read ends the connection."""
    error = {"error": {"message": text, "type": "gputide", "code": status}}
    answer = web.json_response(error, status=status, headers={"Retry-After": "1"} if status == 503 else None)
    if status in (408, 413):
        answer.force_close()
    return answer


def _passed_on(headers: CIMultiDictProxy[str]) -> CIMultiDict[str] | None:
    """The headers that go to the other side; None where one would not come there as it is."""
    if any(_UNSENDABLE.search(value) for value in headers.values()):
        return None
    named = {word.strip().lower() for entry in headers.getall("Connection", ()) for word in entry.split(",")}
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in _HOP | named)


class _RenewedContext(ssl.SSLContext):
    """Takes the certificate and the authorities that are valid when a client comes, for resumed sessions too.

    Connections read TLS in bounded steps.
    """

    def __new__(cls, contexts: Contexts) -> _RenewedContext:
        del contexts
        return super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)

    def __init__(self, contexts: Contexts) -> None:
        self._contexts = contexts

    def wrap_bio(
        self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *arguments: Any, **named: Any
    ) -> ssl.SSLObject:
        inner = ssl.MemoryBIO()
        return cast(
            "ssl.SSLObject", TlsSteps(incoming, inner, self._contexts().wrap_bio(inner, outgoing, *arguments, **named))
        )
