"""Tells `gputide run relief` what a node's agent sees: at once when a card gets into trouble, else every few seconds.

`GET /view?wait=SECONDS&trouble=DIGEST` answers with the newest view as soon as the cards in trouble are others than
those of the digest, or when the time is over; `/healthz` says that the agent looks. So whoever asks again and again
knows within one look of the agent, and nobody is asked a thousand times for nothing. It changes nothing, and tells
nothing but names and use. Served by the front door beside the agent's loop.
"""

from __future__ import annotations

import contextlib
import math
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from enforcer.agent.node_view import NodeView
from enforcer.agent.node_view_text import ToldView, view_text
from enforcer.agent.trouble import trouble_digest, troubled_cards
from fleet.errors import Misconfigured
from wire.port_guard import PortGuard
from wire.tokens import CHALLENGE

CONNECTIONS_MAX = 16
"""Who asks is one relief, and a person with curl; whoever comes beyond takes the place of who asked longest ago."""
WAIT_SECONDS_MAX = 60.0
_STALE_SECONDS = 10.0
_IDLE_SECONDS = 90.0
_HANDSHAKE_SECONDS = 5.0


class ViewServer:
    """Answers for one node; its views are shown to it by the agent's loop.

    Args:
        node: name of the node.
        host: address to listen on.
        port: port; 0 picks a free one.
        full_ratio: duty cycle from which a card is full, 0-1.
        free_ratio_min: free framebuffer / framebuffer below which a card is short, 0-1.
        tls: gives the context for a new connection; None for plain HTTP.
        guard: says who may see views; None for everybody.

    Raises:
        Misconfigured: the address can't be used.
    """

    def __init__(
        self,
        node: str,
        *,
        host: str,
        port: int,
        full_ratio: float,
        free_ratio_min: float,
        tls: Callable[[], ssl.SSLContext] | None = None,
        guard: PortGuard | None = None,
    ) -> None:
        self.tls = tls
        self._guard = guard
        self._node = node
        self._full_ratio, self._free_ratio_min = full_ratio, free_ratio_min
        self._shown = threading.Condition()
        self._told: ToldView | None = None
        self._shown_at = -math.inf
        self._is_stopped = False
        try:
            self._server = _Server((host, port), _Handler)
        except (OSError, OverflowError) as exc:
            raise Misconfigured(f"cannot listen on agent.listen={host}:{port}: {exc}") from exc
        self._server.app = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="view", daemon=True)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that it listens on."""
        host, port = self._server.server_address[:2]
        return str(host), int(port)

    def start(self) -> None:
        """Answer from now on."""
        self._thread.start()

    def show(self, view: NodeView) -> None:
        """Take a new view; whoever waits for trouble hears of it."""
        trouble = troubled_cards(view, full_ratio=self._full_ratio, free_ratio_min=self._free_ratio_min)
        told = ToldView(node=self._node, view=view, trouble=trouble_digest(trouble))
        with self._shown:
            is_news = self._told is None or self._told.trouble != told.trouble
            self._told, self._shown_at = told, time.monotonic()
            if is_news:
                self._shown.notify_all()

    def stop(self) -> None:
        """Send everybody away who waits, and answer no more."""
        with self._shown:
            self._is_stopped = True
            self._shown.notify_all()
        self._server.shutdown()
        self._server.server_close()

    def may_see(self, authorization: str | None, certificate: Mapping[str, object] | None) -> bool:
        """Whether whoever asks may see views; see `PortGuard.may`."""
        return self._guard is None or self._guard.may(authorization, certificate)

    def answer(self, wait_seconds: float, trouble: str) -> bytes | None:
        """The newest view, once its troubled cards are others than the caller's; None where the agent is blind."""
        until = time.monotonic() + min(WAIT_SECONDS_MAX, wait_seconds)
        with self._shown:
            while not self._is_stopped and (self._told is None or self._told.trouble == trouble):
                left = until - time.monotonic()
                if left <= 0:
                    break
                self._shown.wait(left)
            told, age = self._told, time.monotonic() - self._shown_at
        return None if told is None or age > _STALE_SECONDS else view_text(told)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64
    app: ViewServer

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._lock = threading.Lock()
        self._asked: dict[socket.socket, float] = {}
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            oldest = min(self._asked, key=self._asked.__getitem__) if len(self._asked) >= CONNECTIONS_MAX else None
            if oldest is not None:
                del self._asked[oldest]
            self._asked[request] = time.monotonic()
        if oldest is not None:
            with contextlib.suppress(OSError):
                # An encrypted socket's own would drop its cipher under the thread that reads.
                socket.socket.shutdown(oldest, socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serves one connection; the handshake is its thread's business, and holds nobody else up."""
        tls = self.app.tls
        if tls is not None:
            try:
                request.settimeout(_HANDSHAKE_SECONDS)
                encrypted = tls().wrap_socket(request, server_side=True, do_handshake_on_connect=False)
                with self._lock:
                    self._asked[encrypted] = self._asked.pop(request, time.monotonic())
                request = encrypted
                encrypted.do_handshake()
            except OSError:
                self.shutdown_request(request)
                return
        super().process_request_thread(request, client_address)

    def has_asked(self, connection: socket.socket) -> None:
        """A whole request came: who asks keeps its place before who is silent."""
        with self._lock:
            if connection in self._asked:
                self._asked[connection] = time.monotonic()

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._asked.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A caller that went away is no news."""
        del request, client_address


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _IDLE_SECONDS
    # Head and body would else wait for each other's acknowledgement.
    disable_nagle_algorithm = True
    wbufsize = -1
    server: _Server

    def do_GET(self) -> None:
        self.server.has_asked(self.connection)
        asked = urlsplit(self.path)
        if asked.path == "/healthz":
            self._send(HTTPStatus.OK, b"ok\n")
            return
        if asked.path != "/view":
            self._send(HTTPStatus.NOT_FOUND, b"ask /view\n")
            return
        shown = getattr(self.connection, "getpeercert", None)
        if not self.server.app.may_see(self.headers.get("Authorization"), (shown() or None) if shown else None):
            self._send(HTTPStatus.UNAUTHORIZED, b"show a token or a certificate that is known\n", fields=CHALLENGE)
            return
        try:
            words = parse_qs(asked.query, max_num_fields=4)
        except ValueError:
            self._send(HTTPStatus.BAD_REQUEST, b"too many fields\n")
            return
        wait = 0.0
        with contextlib.suppress(ValueError):
            wait = float(words.get("wait", ["0"])[0])
        wait = wait if math.isfinite(wait) and wait > 0 else 0.0
        # An empty word is left out by `parse_qs`: nothing was in trouble.
        found = self.server.app.answer(wait, words.get("trouble", [""])[0])
        if found is None:
            self._send(HTTPStatus.SERVICE_UNAVAILABLE, b"the driver did not answer lately\n")
        else:
            self._send(HTTPStatus.OK, found, "application/json")

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def _send(
        self,
        status: HTTPStatus,
        body: bytes,
        content_type: str = "text/plain",
        fields: tuple[tuple[str, str], ...] = (),
    ) -> None:
        self.send_response(status)
        for name, value in fields:
            self.send_header(name, value)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()
