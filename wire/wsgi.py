"""A WSGI application behind our HTTP server: the web app's pages, which Flask and Dash answer.

Called by `dashboards.app`. A request's body is read whole, within the server's limits, before the application sees it,
so that a slow sender holds none of the application's places; an answer is gathered before it is sent, so that a slow
reader holds none either. Requests of clients that nobody knows have fewer places, apart, and wait while somebody who is
signed in is served; their connections give way to newcomers until they are answered: however many there are, they keep
nobody out who is signed in. Source: PEP 3333;
Pylons/waitress:src/waitress/task.py (slashes at the front of a path count as one; header fields whose names hold an
underscore are dropped: `X_A` and `X-A` have one name in an environment).
"""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import unquote_to_bytes

from wire.http_connection import RETRY_AFTER_SECONDS
from wire.http_head import Refusal
from wire.http_server import Exchange, Known

Application = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]

_BEHIND_SECONDS_MAX = 1.0
"""How long a request of a client that nobody knows waits behind those of people who are signed in."""
_WAITING_MAX = 64
"""Most of them that are under way or wait for that, each in a thread; further ones are refused."""
_OWN = frozenset({"content-length", "connection", "date", "transfer-encoding"})


def wsgi(
    application: Application,
    *,
    address: tuple[str, int],
    scheme: str,
    threads: int,
    is_known: Known | None = None,
    health_path: str | None = None,
) -> Callable[[Exchange], None]:
    """What answers requests by an application.

    Args:
        threads: requests of known clients that it may work on at once, and of unknown ones a quarter as many; further
            ones wait, and unknown ones also while a known one is worked on.
        is_known: None where everybody is.
        health_path: what a kubelet asks for; it waits for nobody.
    """
    of_known, of_unknown = threading.BoundedSemaphore(threads), threading.BoundedSemaphore(max(1, threads // 4))
    waiting = threading.BoundedSemaphore(_WAITING_MAX)
    known = _UnderWay()

    def answer(exchange: Exchange) -> None:
        head, connection = exchange.head, exchange.connection
        is_stranger = is_known is not None and not is_known(head.fields, exchange.client)
        if is_stranger:
            connection.give_way()
        body = connection.body() if head.is_chunked or head.length else b""
        if is_stranger:
            connection.give_way()
        environ = _environ(exchange, body, address, scheme)
        if head.path == health_path:
            status, fields, pieces = _answered(application, environ)
        elif is_stranger:
            if not waiting.acquire(blocking=False):
                raise Refusal(
                    503, "cannot answer now: others are served first", retry_after_seconds=RETRY_AFTER_SECONDS
                )
            try:
                with of_unknown:
                    known.wait(_BEHIND_SECONDS_MAX)
                    status, fields, pieces = _answered(application, environ)
            finally:
                waiting.release()
        else:
            with known, of_known:
                status, fields, pieces = _answered(application, environ)
        declared = next((value for name, value in fields if name.lower() == "content-length"), None)
        exchange.connection.answer(
            status,
            *pieces,
            kind=None,
            fields=tuple((name, value) for name, value in fields if name.lower() not in _OWN),
            length=int(declared) if head.method == "HEAD" and declared is not None else None,
        )

    return answer


class _UnderWay:
    """How many are under way, for who waits until none is; from any thread."""

    def __init__(self) -> None:
        self._count, self._none = 0, threading.Condition()

    def __enter__(self) -> None:
        with self._none:
            self._count += 1

    def __exit__(self, *_: object) -> None:
        with self._none:
            self._count -= 1
            if not self._count:
                self._none.notify_all()

    def wait(self, seconds_max: float) -> None:
        """Return once none is under way, or after some time."""
        with self._none:
            self._none.wait_for(lambda: not self._count, seconds_max)


def _environ(exchange: Exchange, body: bytes, address: tuple[str, int], scheme: str) -> dict[str, Any]:
    head = exchange.head
    environ: dict[str, Any] = {
        f"HTTP_{name.upper().replace('-', '_')}": value for name, value in head.fields.items() if "_" not in name
    }
    for name in ("CONTENT_TYPE", "CONTENT_LENGTH"):
        environ.pop(f"HTTP_{name}", None)
    return environ | {
        "REQUEST_METHOD": head.method,
        "SCRIPT_NAME": "",
        "PATH_INFO": "/" + unquote_to_bytes(head.path).decode("latin-1").lstrip("/"),
        "QUERY_STRING": head.query,
        "CONTENT_TYPE": head.fields.get("content-type", ""),
        "CONTENT_LENGTH": str(len(body)),
        "SERVER_NAME": address[0],
        "SERVER_PORT": str(address[1]),
        "SERVER_PROTOCOL": "HTTP/1.1",
        "REMOTE_ADDR": exchange.client,
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": scheme,
        "wsgi.input": io.BytesIO(body),
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
    }


def _answered(application: Application, environ: dict[str, Any]) -> tuple[int, list[tuple[str, str]], list[bytes]]:
    """Status, header fields and body, once it is whole."""
    started: list[Any] = []
    pieces: list[bytes] = []

    def start(status: str, fields: list[tuple[str, str]], _failed: object = None) -> Callable[[bytes], None]:
        started[:] = [int(status[:3]), fields]
        return pieces.append

    found = application(environ, start)
    try:
        pieces.extend(found)
    finally:
        close = getattr(found, "close", None)
        if close is not None:
            close()
    status, fields = started
    return status, fields, pieces
