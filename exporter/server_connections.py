"""Bounds on what clients may cost the exporter: connections, bytes and time of a request's head.

Whoever can reach the port can open connections, send a byte every few seconds, or never end a line. Each of these is
bounded here, so that a scraper is served nevertheless. Used by `exporter.server`.
"""

from __future__ import annotations

import io
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

CONNECTIONS_MAX = 32
"""Connections that are served at once; a few scrapers and a kubelet keep one each."""
REFUSALS_MAX = 16
"""Further connections that are told so by a 503; beyond them one is closed without a word."""
HEAD_BYTES_MAX = 16 * 1024
"""Largest head of a request."""
HEAD_SECONDS_MAX = 5.0
"""Longest time from a head's first byte to its last."""
IDLE_SECONDS_MAX = 75.0
"""How long a connection may stay open without a request: scrapers come back on it every 15 to 60 s."""
WAITING_SECONDS_KEPT = 1.0
"""When all places are taken, a connection that has waited longer for its (next) request gives way to a newcomer."""
ANSWERING_SECONDS_KEPT = 5.0
"""The same for a connection whose client is slow to take its answer."""
HANDSHAKE_SECONDS_MAX = 5.0
"""Longest time for a TLS handshake."""
SEND_SECONDS_MAX = 10.0
"""Longest time in which a client must have taken its answer."""


class Admission(StrEnum):
    """What becomes of a new connection."""

    SERVED = "served"
    REFUSED = "refused"
    """It gets a 503."""
    CLOSED = "closed"


class HeadReader(io.RawIOBase):
    """Reads requests from a socket within the bounds above.

    Args:
        connection: the socket.
        clock: seconds that never go back.

    Attributes:
        is_exceeded: a head was too long; it reads as if it ended there, and nothing in it may be believed.
    """

    def __init__(self, connection: socket.socket, clock: Callable[[], float] = time.monotonic) -> None:
        self._connection = connection
        self._clock = clock
        self._begun_at: float | None = None
        self._bytes = 0
        self.is_exceeded = False

    def begin(self) -> None:
        """The next byte belongs to a new request."""
        self._begun_at, self._bytes = None, 0

    def readable(self) -> bool:
        """It can be read."""
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Reads what is there; 0, as at the end of the stream, once the head is too long.

        Raises:
            TimeoutError: nothing came in time, or the head took too long.
        """
        view = memoryview(buffer)
        allowed = min(len(view), HEAD_BYTES_MAX - self._bytes)
        waits = IDLE_SECONDS_MAX if self._begun_at is None else self._begun_at + HEAD_SECONDS_MAX - self._clock()
        if allowed <= 0:
            self.is_exceeded = True
            return 0
        if waits <= 0.0:
            raise TimeoutError(f"a request's head was not complete after {HEAD_SECONDS_MAX} s")
        self._connection.settimeout(waits)
        count = self._connection.recv_into(view[:allowed])
        if self._begun_at is None:
            self._begun_at = self._clock()
        self._bytes += count
        return count


@dataclass(slots=True)
class _Place:
    """One connection that is being served; mutable: since when it waits for a request or answers one."""

    connection: socket.socket
    since: float
    is_answering: bool = False


class Connections:
    """Counts connections and says which may be served.

    When all places are taken, the connection that did nothing for longest gives way: HTTP lets a server close an idle
    connection at any time, and so somebody who only holds connections open keeps no scraper out.

    Args:
        clock: seconds that never go back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._served: dict[int, _Place] = {}
        self._refused: set[int] = set()

    def admit(self, connection: socket.socket) -> Admission:
        """Takes in a new connection.

        Args:
            connection: its socket; `leave` must follow unless it is to be closed.
        """
        now = self._clock()
        with self._lock:
            if len(self._served) >= CONNECTIONS_MAX:
                self._make_room(now)
            if len(self._served) < CONNECTIONS_MAX:
                self._served[id(connection)] = _Place(connection=connection, since=now)
                return Admission.SERVED
            if len(self._refused) < REFUSALS_MAX:
                self._refused.add(id(connection))
                return Admission.REFUSED
            return Admission.CLOSED

    def is_served(self, connection: socket.socket) -> bool:
        """Whether its requests are answered; False where it was refused or had to give way."""
        with self._lock:
            return id(connection) in self._served

    def turn(self, connection: socket.socket, *, is_answering: bool) -> None:
        """Notes that a connection begins to answer a request, or to wait for the next one."""
        with self._lock:
            place = self._served.get(id(connection))
            if place is not None:
                place.since, place.is_answering = self._clock(), is_answering

    def exchange(self, plain: socket.socket, encrypted: socket.socket) -> None:
        """The connection goes on as another socket: TLS has taken it over."""
        with self._lock:
            if id(plain) in self._refused:
                self._refused.discard(id(plain))
                self._refused.add(id(encrypted))
            place = self._served.pop(id(plain), None)
            if place is not None:
                place.connection = encrypted
                self._served[id(encrypted)] = place

    def leave(self, connection: socket.socket) -> None:
        """Forgets a connection."""
        with self._lock:
            self._served.pop(id(connection), None)
            self._refused.discard(id(connection))

    def _make_room(self, now: float) -> None:
        over = {key: now - place.since - _kept(place) for key, place in self._served.items()}
        key = max(over, key=over.__getitem__)
        if over[key] > 0.0:
            _hang_up(self._served.pop(key).connection)


def _kept(place: _Place) -> float:
    return ANSWERING_SECONDS_KEPT if place.is_answering else WAITING_SECONDS_KEPT


def _hang_up(connection: socket.socket) -> None:
    """Ends a connection on which another thread waits; that thread then sees its end and closes it."""
    try:
        # An encrypted socket's own would drop its cipher under the thread that reads.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)
    except OSError:
        # It has gone by itself.
        return
