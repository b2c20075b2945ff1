"""Accepts connections and gives each a thread of its own, within bounds.

The receiver hands in what to do with a request. When all places are taken, the connection that has been silent for
longest makes room, so that senders that open connections and say nothing, or say it slowly, lock nobody out. Several
processes may serve one listening socket: each takes the next connection as it comes, and none is lost when another
process dies.
"""

from __future__ import annotations

import errno
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fleet.errors import Misconfigured, Unavailable
from pipeline.receiver.body_budget import BodyBudget
from pipeline.receiver.http_connection import RETRY_AFTER_SECONDS, ConnectionLimits, HttpConnection, HungUp
from pipeline.receiver.http_head import Refusal, RequestHead

HANDSHAKE_SECONDS = 10.0
"""How long a TLS handshake may take."""
BACKLOG = 512
"""Connections that wait to be accepted."""

_SLOW_SECONDS = 1.0
_OUT_OF_FILES_SECONDS = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One request on its connection.

    Attributes:
        head: what the request says before its body.
        connection: where its body comes from and its answer goes to.
        certificate: the sender's certificate as `ssl.SSLSocket.getpeercert` gives it; None where it showed none.
    """

    head: RequestHead
    connection: HttpConnection
    certificate: Mapping[str, object] | None


class HttpServer:
    """A server on a listening socket.

    Args:
        listener: bound and listening; several servers may share it. Not closed here.
        serve: answers one request; what it raises as `Refusal` is answered here.
        refused: told the status of every request that ended in a `Refusal`.
        limits: what one connection may cost.
        budget: bytes of bodies over all connections.
        connections_max: connections that may be open (`receiver.connections_max`).
        tls: gives the context for a new connection; None for plain HTTP.
    """

    def __init__(
        self,
        listener: socket.socket,
        serve: Callable[[Exchange], None],
        *,
        refused: Callable[[int], None],
        limits: ConnectionLimits,
        budget: BodyBudget,
        connections_max: int,
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        self._listener = listener
        self._serve = serve
        self._refused = refused
        self._limits = limits
        self._budget = budget
        self._connections_max = connections_max
        self._tls = tls
        self._open: dict[threading.Thread, _Place] = {}
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._wake, self._woken = socket.socketpair()
        self._acceptor = threading.Thread(target=self._accept_all, name="receiver", daemon=True)

    @property
    def connections(self) -> int:
        """Connections that are open."""
        return len(self._open)

    def start(self) -> None:
        """Serves in threads of its own until `stop`."""
        self._listener.setblocking(False)
        self._acceptor.start()

    def stop(self, *, grace_seconds: float) -> None:
        """Accepts no more, ends silent connections, and lets requests under way come to their answers.

        Args:
            grace_seconds: how long requests under way may take before they are cut off.
        """
        self._stopping.set()
        self._wake.send(b"x")
        self._acceptor.join()
        with self._lock:
            places = dict(self._open)
        for place in places.values():
            place.connection.must_close = True
            if not place.connection.is_amid_request:
                _cut(place.opened, socket.SHUT_RD)
        deadline = time.monotonic() + grace_seconds
        for thread in places:
            thread.join(max(0.0, deadline - time.monotonic()))
        for thread, place in places.items():
            if thread.is_alive():
                _cut(place.opened, socket.SHUT_RDWR)
                thread.join(1.0)
        self._wake.close()
        self._woken.close()

    def _accept_all(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            while not self._stopping.is_set():
                selector.select()
                if self._stopping.is_set():
                    return
                self._accept_one()

    def _accept_one(self) -> None:
        try:
            opened, _ = self._listener.accept()
        except OSError as exc:
            if exc.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                self._make_room()
                self._stopping.wait(_OUT_OF_FILES_SECONDS)
            return  # another process took it, or it is gone already
        opened.setblocking(True)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = HttpConnection(opened, self._limits, self._budget)
        if len(self._open) >= self._connections_max and not self._make_room():
            self._refuse_connection(opened, connection)
            return
        thread = threading.Thread(target=self._run, args=(opened, connection), daemon=True)
        with self._lock:
            self._open[thread] = _Place(opened, connection)
        thread.start()

    def _make_room(self) -> bool:
        """End the connection that has been silent for longest; False where all of them are at work."""
        with self._lock:
            places = list(self._open.values())
        now = time.monotonic()
        idle, slow = [], []
        for place in places:
            since = place.connection.waits_since
            if since is None or place.is_cut:
                continue
            if not place.connection.is_amid_request:
                idle.append((since, place))
            elif now - since >= _SLOW_SECONDS:
                slow.append((since, place))
        chosen = min(idle or slow, key=lambda item: item[0], default=None)
        if chosen is None:
            return False
        chosen[1].is_cut = True
        _cut(chosen[1].opened, socket.SHUT_RDWR)
        return True

    def _refuse_connection(self, opened: socket.socket, connection: HttpConnection) -> None:
        self._refused(503)
        with opened:
            if self._tls is None:
                try:
                    connection.answer(
                        503,
                        f"cannot take a connection: receiver.connections_max={self._connections_max} are open\n",
                        (("Retry-After", str(RETRY_AFTER_SECONDS)),),
                    )
                except HungUp:
                    return

    def _run(self, opened: socket.socket, connection: HttpConnection) -> None:
        try:
            with opened:
                if self._tls is None:
                    self._serve_all(connection, None)
                else:
                    self._serve_encrypted(opened, self._tls)
        except HungUp:
            pass
        finally:
            connection.let_go()
            with self._lock:
                self._open.pop(threading.current_thread(), None)

    def _serve_encrypted(self, opened: socket.socket, tls: Callable[[], ssl.SSLContext]) -> None:
        opened.settimeout(HANDSHAKE_SECONDS)
        try:
            encrypted = tls().wrap_socket(opened, server_side=True)
        except (OSError, Misconfigured, Unavailable):
            self._refused(0)
            return
        with encrypted:
            connection = HttpConnection(encrypted, self._limits, self._budget)
            with self._lock:
                self._open[threading.current_thread()] = _Place(encrypted, connection)
            try:
                self._serve_all(connection, encrypted.getpeercert() or None)
            finally:
                connection.let_go()

    def _serve_all(self, connection: HttpConnection, certificate: Mapping[str, object] | None) -> None:
        while not connection.must_close:
            try:
                head = connection.next_head()
                if head is None:
                    return
                if self._stopping.is_set():
                    connection.must_close = True
                self._serve(Exchange(head=head, connection=connection, certificate=certificate))
            except Refusal as exc:
                connection.must_close |= exc.is_final
                self._refused(exc.status)
                fields = exc.fields
                if exc.retry_after_seconds is not None:
                    fields = (*fields, ("Retry-After", str(exc.retry_after_seconds)))
                connection.answer(exc.status, f"{exc}\n", fields)
            finally:
                connection.let_go()


class _Place:
    """One open connection in the server's book."""

    __slots__ = ("connection", "is_cut", "opened")

    def __init__(self, opened: socket.socket, connection: HttpConnection) -> None:
        self.opened, self.connection, self.is_cut = opened, connection, False


def _cut(opened: socket.socket, how: int) -> None:
    """Wake whoever waits on a socket; its own thread closes it."""
    try:
        socket.socket.shutdown(opened, how)  # an SSLSocket's own would drop its cipher under the reading thread
    except OSError:
        return
