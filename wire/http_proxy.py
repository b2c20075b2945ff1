"""Passes HTTP requests on to servers behind, streams included: ports, each in front of one server, with a gate.

By aiohttp: thousands of requests may wait at their gates, or stream for minutes, on one thread. What is of one
connection alone (RFC 9110, 7.6.1) is not passed on; everything else is, bodies as they come. A connection to a server
is used again for less long than servers keep it (uvicorn: five seconds), so that none closes under a request; where one
ends all the same the client hears 502, and nothing is sent twice.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from aiohttp import ClientError, ClientSession, ClientTimeout, DummyCookieJar, TCPConnector, web
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from fleet.errors import Unavailable

_HOP = frozenset(
    {"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te", "trailer", "transfer-encoding",
     "upgrade", "expect"}
)  # fmt: skip
"""Headers of one connection, and `Expect`, which is answered here."""
_CONNECT_SECONDS = 2.0
_KEPT_SECONDS = 2.0
_STOP_SECONDS = 60.0
Contexts = Callable[[], ssl.SSLContext]


class Passed(StrEnum):
    """What became of a request."""

    PASSED = "passed"
    REFUSED = "refused"
    FAILED = "failed"
    """The server behind ended the connection, or took none."""
    LEFT = "left"
    """The client left before it had an answer."""


class Gate(Protocol):
    """Decides about the requests of one port."""

    def objection(self, raw_path: str) -> str | None:
        """Why nobody may ask for a path, given as it stands in the request; None where they may. Answered by 403."""
        ...

    def held_open(self, method: str) -> AbstractAsyncContextManager[None]:
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


class ServersBehind:
    """Connections to the servers behind; for one event loop."""

    def __init__(self, session: ClientSession) -> None:
        self._session = session

    async def ask(self, method: str, origin: str, path: str, seconds: float) -> str:
        """The text that a server answers with.

        Raises:
            Unavailable: it does not answer in time, or with another status than 200.
        """
        try:
            timeout = ClientTimeout(total=seconds)
            async with self._session.request(method, URL(origin).join(URL(path)), timeout=timeout) as answer:
                text = await answer.text(errors="replace")
        except (ClientError, TimeoutError, OSError, ValueError) as exc:
            raise Unavailable(f"{origin} does not answer {method} {path}: {str(exc) or type(exc).__name__}") from exc
        if answer.status != 200:
            raise Unavailable(f"{origin} answered {method} {path} with {answer.status}: {text[:200]!r}")
        return text

    async def pass_on(self, request: web.BaseRequest, port: ProxiedPort) -> web.StreamResponse:
        """Passes one request on, and its answer back."""
        url = URL(port.origin).join(URL(request.rel_url.raw_path_qs, encoded=True))
        body = request.content if request.can_read_body else None
        response: web.StreamResponse | None = None
        how = Passed.LEFT
        try:
            async with self._session.request(
                request.method, url, headers=_passed_on(request.headers), data=body, allow_redirects=False
            ) as answer:
                response = web.StreamResponse(status=answer.status, headers=_passed_on(answer.headers))
                await response.prepare(request)
                how = Passed.PASSED
                async for part in answer.content.iter_any():
                    await response.write(part)
                await response.write_eof()
        except ClientError as exc:
            how = Passed.FAILED
            if response is not None and response.prepared:
                raise ConnectionResetError("the server ended within its answer") from exc
            return _error(502, "the server ended the connection")
        finally:
            port.gate.ended(how)
        return response


@asynccontextmanager
async def servers_behind() -> AsyncIterator[ServersBehind]:
    """Connections to servers, closed at the end."""
    async with ClientSession(
        connector=TCPConnector(limit=0, keepalive_timeout=_KEPT_SECONDS),
        timeout=ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS),
        cookie_jar=DummyCookieJar(), auto_decompress=False,
        skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
    ) as session:  # fmt: skip
        yield ServersBehind(session)


@asynccontextmanager
async def proxying(
    ports: Sequence[ProxiedPort], servers: ServersBehind, tls: Contexts | None = None
) -> AsyncIterator[tuple[int, ...]]:
    """Serves ports meanwhile and gives their numbers; at the end, requests that run have a minute.

    Args:
        tls: gives the TLS context for a new connection; None for plain HTTP.

    Raises:
        Unavailable: a port can't be had.
    """
    async with AsyncExitStack() as listening:
        found = []
        for port in ports:
            server = web.Server(_answering(port, servers), handler_cancellation=True, access_log=None)
            runner = web.ServerRunner(server, shutdown_timeout=_STOP_SECONDS)
            await runner.setup()
            listening.push_async_callback(runner.cleanup)
            try:
                await web.TCPSite(runner, port.host, port.port, ssl_context=_renewed(tls)).start()
            except OSError as exc:
                raise Unavailable(f"cannot listen on {port.host}:{port.port}: {exc}") from exc
            found.append(int(runner.addresses[0][1]))
        yield tuple(found)


def _answering(port: ProxiedPort, servers: ServersBehind) -> Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]:
    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        objection = port.gate.objection(request.rel_url.raw_path)
        if objection is not None:
            port.gate.ended(Passed.REFUSED)
            return _error(403, objection)
        try:
            async with port.gate.held_open(request.method):
                return await servers.pass_on(request, port)
        except Unavailable as exc:
            port.gate.ended(Passed.REFUSED)
            return _error(503, str(exc))

    return answer


def _error(status: int, text: str) -> web.Response:
    """An error in the form that the APIs of language models have."""
    error = {"error": {"message": text, "type": "gputide", "code": status}}
    return web.json_response(error, status=status, headers={"Retry-After": "1"} if status == 503 else None)


def _passed_on(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    named = {word.strip().lower() for entry in headers.getall("Connection", ()) for word in entry.split(",")}
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in _HOP | named)


def _renewed(contexts: Contexts | None) -> ssl.SSLContext | None:
    """A context that takes the certificate that is valid when a client comes."""
    if contexts is None:
        return None
    first = contexts()

    def renew(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = contexts()

    first.sni_callback = renew
    return first
