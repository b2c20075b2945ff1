"""Shows `gputide run relief` what a node's agent sees: at once when a card gets into trouble, else every few seconds.

`GET /view?wait=SECONDS&trouble=DIGEST` answers with the newest view as soon as the cards in trouble are others than
those of the digest, or when the time is over; `/healthz` says that the agent runs. So a client that asks again and
again knows within one look of the agent, without a thousand requests for nothing. It changes nothing, and shows names
and use only. `gputide run agent` runs it beside the agent's loop.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from urllib.parse import parse_qs

from enforcer.agent.node_view import NodeView, trouble_digest, troubled_cards
from enforcer.agent.node_view_text import ToldView, view_text
from wire.http_connection import HttpConnection, ServerLimits
from wire.http_head import Refusal
from wire.http_server import Exchange, HttpServer, TlsContexts, listen
from wire.port_guard import PortGuard

CONNECTIONS_MAX = 16
"""One relief asks, and a person with curl; a further one takes the place of the one that asked longest ago."""
WAIT_SECONDS_MAX = 60.0
_STALE_SECONDS = 10.0
_LIMITS = ServerLimits(connections_max=CONNECTIONS_MAX, idle_seconds=90.0, request_seconds=5.0)
_LOOK_SECONDS = 1.0
_STOP_SECONDS = 1.0


class ViewServer:
    """Answers for one node; its views are shown to it by the agent's loop.

    Args:
        port: port; 0 picks a free one.
        full_ratio: duty cycle from which a card is full, 0-1.
        free_ratio_min: free framebuffer / framebuffer below which a card is short, 0-1.
        tls: gives the context for a new connection; None for plain HTTP.
        guard: says who may see views; None for everybody.

    Raises:
        Misconfigured: the address can't be used.
        Unavailable: another process listens there.
    """

    def __init__(
        self,
        node: str,
        *,
        host: str,
        port: int,
        full_ratio: float,
        free_ratio_min: float,
        tls: TlsContexts | None = None,
        guard: PortGuard | None = None,
    ) -> None:
        self._guard = guard
        self._node = node
        self._full_ratio, self._free_ratio_min = full_ratio, free_ratio_min
        self._shown = threading.Condition()
        self._told: ToldView | None = None
        self._shown_at = -math.inf
        self._is_stopped = False
        self._server = HttpServer(listen(host, port, setting="agent.listen"), self._answer, limits=_LIMITS, tls=tls)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that it listens on."""
        return self._server.address

    def start(self) -> None:
        """Answer from now on."""
        self._server.start()

    def show(self, view: NodeView) -> None:
        """Take a new view; requests that wait for trouble are answered where there is some."""
        trouble = troubled_cards(view, full_ratio=self._full_ratio, free_ratio_min=self._free_ratio_min)
        told = ToldView(node=self._node, view=view, trouble=trouble_digest(trouble))
        with self._shown:
            is_news = self._told is None or self._told.trouble != told.trouble
            self._told, self._shown_at = told, time.monotonic()
            if is_news:
                self._shown.notify_all()

    def stop(self) -> None:
        """Answer the requests that wait, and no further ones."""
        with self._shown:
            self._is_stopped = True
            self._shown.notify_all()
        self._server.stop(grace_seconds=_STOP_SECONDS)

    def _answer(self, exchange: Exchange) -> None:
        exchange.check_method("GET")
        if exchange.head.path == "/healthz":
            exchange.connection.answer(200, b"ok\n")
            return
        if exchange.head.path != "/view":
            raise Refusal(404, "ask /view")
        if self._guard is not None:
            self._guard.check(exchange)
        try:
            words = parse_qs(exchange.head.query, max_num_fields=4)
        except ValueError as exc:
            raise Refusal(400, "too many fields") from exc
        wait = 0.0
        with contextlib.suppress(ValueError):
            wait = float(words.get("wait", ["0"])[0])
        wait = wait if math.isfinite(wait) and wait > 0 else 0.0
        # `parse_qs` leaves an empty digest out: nothing was in trouble.
        found = self._wait(exchange.connection, wait, words.get("trouble", [""])[0])
        if found is None:
            raise Refusal(503, "the driver did not answer lately")
        exchange.connection.answer(200, found, kind="application/json")

    def _wait(self, connection: HttpConnection, wait_seconds: float, trouble: str) -> bytes | None:
        """The newest view, once its troubled cards are others than the caller's; None where the agent sees nothing."""
        connection.give_way()
        until = time.monotonic() + min(WAIT_SECONDS_MAX, wait_seconds)
        with self._shown:
            while not self._is_stopped and (self._told is None or self._told.trouble == trouble):
                left = until - time.monotonic()
                if left <= 0 or connection.must_close:
                    break
                self._shown.wait(min(left, _LOOK_SECONDS))
            told, age = self._told, time.monotonic() - self._shown_at
        return None if told is None or age > _STALE_SECONDS else view_text(told)
