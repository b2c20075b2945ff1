"""The HTTP/1.1 server of every port of ours: a thread per connection, within bounds.

Called by the receiver, the node exporter, the admission webhook, the node agent and (through `wsgi`) the web app, each
with its own function that answers a request. When all places are taken, a connection that waits for its client makes
room, of the address that holds most of them the one that has waited for longest, so that clients that open connections
and send nothing, or send slowly, keep nobody else out. Under TLS a connection gets its thread once the head of a
request is there, and, where the limits say so, any connection once one has come whole (`http_parking`). Several
processes may serve one listening socket: each takes the next connection as it comes, and none is lost when another
process dies.

Ours, because beside 700 silent sockets uvicorn answers nobody and granian after five seconds; neither they nor
hypercorn bound what bodies under way hold together (3.0 to 4.2 GiB against 1.7); and each takes a node exporter at
least 5 MiB over ours, which is more than its bar allows. `bench/http_servers.py` prints the comparison.
"""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from fleet.errors import GputideError, Misconfigured, Unavailable
from fleet.listener_files import ListenerFiles
from wire.http_connection import RETRY_AFTER_SECONDS, TEXT, BodyBudget, HttpConnection, HungUp, ServerLimits
from wire.http_head import Refusal, RequestHead
from wire.http_parking import Parked, Parking

if TYPE_CHECKING:
    import ssl  # six megabytes, which a plain port does without

    from wire.tls_stream import TlsStream

Known = Callable[[Mapping[str, str], str], bool]
"""Whether somebody is signed in, by the header fields of a request and the address that it comes from."""
TlsContexts: TypeAlias = "Callable[[], ssl.SSLContext]"
"""Gives the TLS context for a new connection."""
BACKLOG = 4096
"""Connections that wait to be accepted: beyond them the system drops newcomers, which come again after seconds."""

_OUT_OF_FILES_SECONDS = 0.05
_ACCEPTS_AT_ONCE = 64
_BEHIND_SECONDS = 0.02
"""How long a request that does not go first waits for a loop that is behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One request on its connection.

    Attributes:
        head: what the request says before its body.
        connection: gives the body, and takes the answer.
        certificate: the client's certificate as `ssl.SSLSocket.getpeercert` gives it; None where it showed none.
    """

    head: RequestHead
    connection: HttpConnection
    client: str
    certificate: Mapping[str, object] | None

    @property
    def authorization(self) -> str | None:
        """The header field of this name."""
        return self.head.fields.get("authorization")

    def check_method(self, *allowed: str) -> None:
        """Raises `Refusal` with status 405 for another method than these."""
        if self.head.method not in allowed:
            names = ", ".join(allowed)
            raise Refusal(405, f"cannot {self.head.method} here: expected {names}", fields=(("Allow", names),))


def listen(host: str, port: int, *, setting: str) -> socket.socket:
    """A socket that listens.

    Args:
        port: port; 0 lets the system choose one.
        setting: what the user changes where the address can't be used, such as `--listen`.

    Raises:
        Unavailable: another process listens there.
        Misconfigured: this machine has no such address, or may not listen there.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError) as exc:
        is_taken = isinstance(exc, OSError) and exc.errno == errno.EADDRINUSE
        raise (Unavailable if is_taken else Misconfigured)(
            f"cannot listen on {host}:{port}: {exc}; choose another with {setting}"
        ) from exc


def tls_contexts(files: ListenerFiles) -> TlsContexts | None:
    """What gives the TLS context for a new connection; None where the port is plain.

    Raises:
        Misconfigured: a file can't be used.
    """
    if files.certificate_file is None:
        return None
    from wire.listener_tls import ListenerContexts  # noqa: PLC0415 - a process without TLS saves 6 MB of memory

    return ListenerContexts(files, needs_client=False, now_seconds=time.monotonic).context


class HttpServer:
    """A server on a listening socket.

    Args:
        listener: bound and listening; servers of several processes may share it. `stop` closes it.
        answer: answers one request; a `Refusal` that it raises is answered here.
        limits: what clients may cost.
        refused: takes the status of every request that ended in a `Refusal`, 0 for a TLS handshake that failed.
        tls: gives the context for a new connection; None for plain HTTP.
        is_first: whose parked requests get a thread before those of others; None for nobody's.

    Attributes:
        address: host and port that it listens on.
    """

    def __init__(
        self,
        listener: socket.socket,
        answer: Callable[[Exchange], None],
        *,
        limits: ServerLimits,
        refused: Callable[[int], None] | None = None,
        tls: TlsContexts | None = None,
        is_first: Known | None = None,
    ) -> None:
        self._listener = listener
        host, port = listener.getsockname()[:2]
        self.address = str(host), int(port)
        self._answer = answer
        self._refused = refused or (lambda _status: None)
        self._limits = limits
        self._budget = BodyBudget(limits.pending_bytes_max)
        self._tls = tls
        self._open: dict[threading.Thread, _Place] = {}
        self._by_address: Counter[str] = Counter()
        self._parks = limits.parked_max > 0
        self._returning: deque[Parked] = deque()
        self._is_first = is_first or (lambda _fields, _client: False)
        self._whole, self._whole_first, self._some_whole = deque[Parked](), deque[Parked](), threading.Condition()
        self._lock = threading.Lock()
        self._stopping, self._ended = threading.Event(), threading.Event()
        self._wake, self._woken = socket.socketpair()
        self._acceptor = threading.Thread(target=self._accept_all, name="http", daemon=True)

    @property
    def held_bytes(self) -> int:
        """Bytes of bodies that requests under way hold."""
        return self._budget.held_bytes

    @property
    def connections(self) -> int:
        """Connections that are open."""
        return len(self._open)

    def start(self) -> None:
        """Serves in threads until `stop`."""
        with self._lock:
            if not self._stopping.is_set():
                self._listener.setblocking(False)
                self._woken.setblocking(False)
                self._acceptor.start()

    def serve(self) -> None:
        """Serves until another thread has called `stop`."""
        self.start()
        self._ended.wait()

    def stop(self, *, grace_seconds: float) -> None:
        """Accepts no more, ends silent connections, and lets requests under way come to their answers.

        Args:
            grace_seconds: how long requests under way may take before they are cut off.
        """
        with self._lock:
            if self._stopping.is_set():
                return
            self._stopping.set()
        if self._acceptor.is_alive():
            self._wake.send(b"x")
            self._acceptor.join()
        self._listener.close()
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
        while self._returning:
            returned = self._returning.popleft()
            returned.connection.let_go()
            returned.opened.close()
        self._wake.close()
        self._woken.close()
        self._ended.set()

    def _accept_all(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            parking = None
            if self._parks or self._tls is not None:
                failed = partial(self._refused, 0)
                parking = Parking(selector, self._limits, self._is_whole, tls=self._tls, failed=failed)
            beginner = threading.Thread(target=self._begin_all, args=(parking,), name="http-begin", daemon=True)
            if parking is not None:
                beginner.start()
            while not self._stopping.is_set():
                if parking is None:
                    selector.select()
                else:
                    parking.look()
                    self._park_returned(parking)
                for _ in range(_ACCEPTS_AT_ONCE):
                    if self._stopping.is_set() or not self._accept_one(parking):
                        break
            if parking is not None:
                parking.close()
                with self._some_whole:
                    self._some_whole.notify_all()
                beginner.join()

    def _is_whole(self, taken: Parked) -> None:
        head = taken.connection.parked_head
        try:
            is_first = head is not None and self._is_first(head.fields, taken.client)
        except GputideError:  # whoever answers the request meets it again, and says it
            is_first = False
        with self._some_whole:
            (self._whole_first if is_first else self._whole).append(taken)
            self._some_whole.notify()

    def _begin_all(self, parking: Parking | None) -> None:
        """Give threads to parked requests: to begin one takes as long as busy threads let it wait, milliseconds.

        While the loop is behind, those that do not go first are begun one by one, so that newcomers are heard.
        """
        while True:
            with self._some_whole:
                self._some_whole.wait_for(lambda: self._whole_first or self._whole or self._stopping.is_set())
                if parking is not None and parking.is_behind:
                    self._some_whole.wait_for(lambda: self._whole_first or self._stopping.is_set(), _BEHIND_SECONDS)
                if self._stopping.is_set():
                    for taken in (*self._whole_first, *self._whole):
                        taken.connection.let_go()
                        taken.opened.close()
                    return
                taken = (self._whole_first or self._whole).popleft()
            self._begin(taken)

    def _park_returned(self, parking: Parking) -> None:
        """Look after connections whose thread has answered."""
        with contextlib.suppress(BlockingIOError):
            self._woken.recv(4096)
        while self._returning:
            parking.enter(self._returning.popleft())

    def _accept_one(self, parking: Parking | None) -> bool:
        """Take one connection, or make room for it; False where none waits."""
        try:
            opened, peer = self._listener.accept()
        except OSError as exc:
            if exc.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                if parking is not None and parking.make_room():
                    return True
                self._make_room()
                self._stopping.wait(_OUT_OF_FILES_SECONDS)
            return False  # another process took it, or it is gone already
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        taken = Parked(
            opened=opened,
            connection=HttpConnection(opened, self._limits, self._budget),
            client=str(peer[0]),
            deadline=time.monotonic() + self._limits.request_seconds,
            awaits_handshake=self._tls is not None,
        )
        if parking is not None:
            parking.enter(taken)
        else:
            opened.setblocking(True)
            self._begin(taken)
        return True

    def _begin(self, taken: Parked) -> None:
        """Give a connection a thread."""
        opened, connection, client = taken.opened, taken.connection, taken.client
        if len(self._open) >= self._limits.connections_max and not self._make_room():
            self._refuse_connection(opened, connection, f"{self._limits.named('connections_max')} are open")
            return
        thread = threading.Thread(target=self._run, args=(opened, connection, client), daemon=True)
        with self._lock:
            self._open[thread] = _Place(opened, connection, client)
            self._by_address[client] += 1
        try:
            thread.start()
        except RuntimeError:  # the system gives no more threads; this one must go on to accept
            self._leave(thread)
            self._make_room()
            self._refuse_connection(opened, connection, "the system gives it no thread")

    def _make_room(self) -> bool:
        """End a connection that waits for its client; False where all of them are at work.

        One between two requests goes before one amid a request, one of an address that holds many places before one of
        an address that holds few, and the one that has waited for longest before all others.
        """
        with self._lock:
            places, held = list(self._open.values()), self._by_address.copy()
        slow_before = time.monotonic() - self._limits.slow_seconds
        waiting = []
        for place in places:
            since, is_amid = place.connection.waits_since, place.connection.is_amid_request
            if since is not None and not place.is_cut and (not is_amid or since <= slow_before):
                waiting.append(((is_amid, -held[place.client], since), place))
        chosen = min(waiting, key=lambda item: item[0], default=None)
        if chosen is None:
            return False
        chosen[1].is_cut = chosen[1].connection.must_close = True
        _cut(chosen[1].opened, socket.SHUT_RDWR)
        return True

    def _leave(self, thread: threading.Thread) -> None:
        with self._lock:
            place = self._open.pop(thread, None)
            if place is not None:
                self._by_address[place.client] -= 1
                if not self._by_address[place.client]:
                    del self._by_address[place.client]

    def _refuse_connection(self, opened: socket.socket | TlsStream, connection: HttpConnection, why: str) -> None:
        self._refused(503)
        connection.forget()
        with opened, contextlib.suppress(HungUp):
            connection.answer(
                503,
                f"cannot take a connection: {why}\n".encode(),
                fields=(("Retry-After", str(RETRY_AFTER_SECONDS)),),
            )

    def _run(self, opened: socket.socket | TlsStream, connection: HttpConnection, client: str) -> None:
        is_to_park = False
        try:
            shown = None if isinstance(opened, socket.socket) else opened.getpeercert() or None
            is_to_park = self._serve_all(connection, client, shown)
        except HungUp:
            pass
        finally:
            self._leave(threading.current_thread())
            if not is_to_park:
                opened.close()
        if is_to_park:
            deadline = time.monotonic() + self._limits.idle_seconds
            self._returning.append(Parked(opened=opened, connection=connection, client=client, deadline=deadline))
            with contextlib.suppress(OSError):  # it has stopped meanwhile, and closes what returns
                self._wake.send(b"x")

    def _serve_all(self, connection: HttpConnection, client: str, certificate: Mapping[str, object] | None) -> bool:
        """Answer one request after the other; True where the next one is to be waited for without a thread."""
        while not connection.must_close:
            try:
                head = connection.next_head()
                if head is None:
                    return False
                if self._stopping.is_set():
                    connection.must_close = True
                self._answer(Exchange(head=head, connection=connection, client=client, certificate=certificate))
            except Refusal as exc:
                connection.must_close |= exc.is_final
                self._refused(exc.status)
                fields = exc.fields
                if exc.retry_after_seconds is not None:
                    fields = (*fields, ("Retry-After", str(exc.retry_after_seconds)))
                content, kind = exc.message or (f"{exc}\n".encode(), TEXT)
                connection.answer(exc.status, content, kind=kind, fields=fields)
            finally:
                connection.let_go()
            if self._parks and not connection.must_close:
                return connection.park()  # also before a request that is there already: others have their turn
        return False


class _Place:
    """One open connection in the server's book."""

    __slots__ = ("client", "connection", "is_cut", "opened")

    def __init__(self, opened: socket.socket | TlsStream, connection: HttpConnection, client: str) -> None:
        self.opened, self.connection, self.client, self.is_cut = opened, connection, client, False


def _cut(opened: socket.socket | TlsStream, how: int) -> None:
    """Wake the thread that waits on a socket; that thread closes it."""
    try:
        opened.shutdown(how)
    except OSError:
        return
