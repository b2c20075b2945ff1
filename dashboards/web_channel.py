"""One browser's connection to the web app: encrypted where there is a certificate, and never open for nothing.

waitress speaks plain HTTP and waits as long as bytes trickle in. Here a connection speaks TLS from its first byte, and
a request that has not come whole within `REQUEST_SECONDS_MAX` ends it, so that nobody holds the app's places by sending
slowly. Called by `dashboards.app` for every connection that is accepted.

Source: Pylons/waitress:src/waitress/channel.py, wasyncore.py (what a channel and its socket must do).

Answers are sent compressed where the browser takes it: a page of a large fleet is a megabyte of repeating JSON.

What a callback or the API answers is packed quickly, files of this release once and well. What carries the token of
the person's page goes as it is, and is small: the length of something packed tells of what is in it (BREACH,
breachattack.com). gzip is RFC 1952; called by `app`.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import socket
import ssl
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from flask import Flask, Response, request
from waitress.channel import HTTPChannel

from fleet.errors import Misconfigured

REQUEST_SECONDS_MAX = 30.0
"""How long a request, and a handshake before the first one, may take to arrive."""
CONNECTIONS_MAX = 500
"""Open connections; further ones wait."""
IDLE_SECONDS_MAX = 60
"""How long a connection may be silent between two requests."""


class BoundedChannel(HTTPChannel):  # type: ignore[misc]  # the library has no types
    """A plain connection whose requests must arrive in time."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._begun_at: float | None = time.monotonic()
        super().__init__(*arguments, **options)

    def readable(self) -> bool:
        """Asked by the server's loop, every second at least: whether to wait for bytes; who takes too long is cut."""
        if self._begun_at is not None and time.monotonic() - self._begun_at > REQUEST_SECONDS_MAX and not self.requests:
            self.will_close = True
        return bool(super().readable())

    def received(self, data: bytes) -> bool:
        """Bytes have come: the clock of an unfinished request runs on, that of a new one begins."""
        taken = bool(super().received(data))
        if self.request is None:
            self._begun_at = None
        elif self._begun_at is None:
            self._begun_at = time.monotonic()
        return taken


def encrypted_channel(tls: Callable[[], ssl.SSLContext]) -> Callable[..., HTTPChannel]:
    """Makes encrypted channels, each by the context of its moment.

    Args:
        tls: gives the context for a new connection.
    """

    def channel(server: Any, opened: socket.socket, *rest: Any, **options: Any) -> HTTPChannel | None:
        try:
            opened.setblocking(False)
            wrapped = tls().wrap_socket(opened, server_side=True, do_handshake_on_connect=False)
        except (OSError, Misconfigured):
            opened.close()
            return None
        return _EncryptedChannel(server, _EncryptedSocket(wrapped), *rest, **options)

    return channel


class _EncryptedSocket:
    """What a channel asks of its socket; a worker sends while the loop reads, which one TLS connection can't bear."""

    def __init__(self, wrapped: ssl.SSLSocket) -> None:
        self._wrapped = wrapped
        self._lock = threading.RLock()
        self._is_open = False

    @property
    def has_more(self) -> bool:
        """Whether bytes were deciphered already that no loop hears of."""
        with self._lock:
            return self._is_open and self._wrapped.pending() > 0

    def recv(self, count: int) -> bytes:
        """The next bytes, after the handshake.

        Raises:
            BlockingIOError: there are none yet.
            OSError: the connection is gone or no TLS.
        """
        with self._lock:
            try:
                if not self._is_open:
                    self._wrapped.do_handshake()
                    self._is_open = True
                return self._wrapped.recv(count)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as exc:
                raise BlockingIOError(errno.EWOULDBLOCK, "no bytes yet") from exc
            except ssl.SSLError as exc:
                raise ConnectionResetError(errno.ECONNRESET, "the connection is no TLS, or was cut") from exc

    def send(self, data: bytes) -> int:
        """Sends what can be sent now; raises as `recv`."""
        with self._lock:
            try:
                return self._wrapped.send(data)
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as exc:
                raise BlockingIOError(errno.EWOULDBLOCK, "no room yet") from exc
            except ssl.SSLError as exc:
                raise ConnectionResetError(errno.ECONNRESET, "the connection was cut") from exc

    def close(self) -> None:
        """Closes the connection."""
        with self._lock:
            self._wrapped.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)


class _EncryptedChannel(BoundedChannel):
    socket: _EncryptedSocket | None

    def handle_read(self) -> None:
        """Takes all that has come: what TLS has deciphered already wakes no loop."""
        while (opened := self.socket) is not None:
            try:
                data = opened.recv(self.adj.recv_bytes)
            except BlockingIOError:
                return
            except OSError:
                self.handle_close()
                return
            if not data:
                self.handle_close()
                return
            self.last_activity = time.time()
            self.received(data)
            if not opened.has_more:
                return


BYTES_MIN = 4096
"""Answers below this are sent as they are."""
_MADE_FOR_THE_READER = ("/_dash-update-component", "/api/")
_WITH_TOKEN = "/api/v1/me"
_OF_THE_RELEASE = "/_dash-component-suites/"
_QUICK, _GOOD = 1, 6
_FILES_MAX = 64
_ENCODING = "gzip"


def compress(server: Flask) -> None:
    """Pack the answers of an app."""
    files: OrderedDict[bytes, bytes] = OrderedDict()
    lock = threading.Lock()

    def _of_file(content: bytes) -> bytes:
        # By content, not by address: anybody may ask for one file under many addresses.
        name = hashlib.blake2b(content, digest_size=16).digest()
        with lock:
            packed = files.get(name)
        if packed is None:
            packed = gzip.compress(content, _GOOD, mtime=0)
            with lock:
                files[name] = packed
                while len(files) > _FILES_MAX:
                    files.popitem(last=False)
        return packed

    def _packed(response: Response) -> Response:
        is_file = request.path.startswith(_OF_THE_RELEASE)
        is_made = request.path.startswith(_MADE_FOR_THE_READER) and request.path != _WITH_TOKEN
        if not is_file and not is_made:
            return response
        response.headers["Vary"] = ", ".join(filter(None, (response.headers.get("Vary"), "Accept-Encoding")))
        if (
            response.status_code != 200
            or response.direct_passthrough
            or "Content-Encoding" in response.headers
            or not request.accept_encodings[_ENCODING]
        ):
            return response
        content = response.get_data()
        if len(content) < BYTES_MIN:
            return response
        response.set_data(_of_file(content) if is_file else gzip.compress(content, _QUICK, mtime=0))
        response.headers["Content-Encoding"] = _ENCODING
        return response

    server.after_request(_packed)
