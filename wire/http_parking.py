"""Connections whose handshake is under way or whose request has not arrived whole: kept without a thread, until it has.

One thread looks after all of them, so a client that says nothing, or says it a byte at a time, costs a file descriptor
and what it has sent; TLS takes memory from its first byte on. Called by `http_server`: for the handshakes of every
port under TLS, and for the wait for a whole request on ports that strangers may hold open in thousands.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fleet.errors import Misconfigured, Unavailable
from wire.http_connection import HttpConnection, HungUp, ServerLimits

if TYPE_CHECKING:
    import ssl  # six megabytes, which a plain port does without

    from wire.tls_stream import TlsStream

HANDSHAKE_SECONDS = 5.0
"""How long a TLS handshake may take, from the moment that the connection is there."""

_SWEEP_SECONDS = 0.5
"""How late a connection is closed at most whose time is over."""
_EVENTS_AT_ONCE = 64
"""Beyond these the loop goes back to newcomers first."""
_SILENT_PER_CONNECTION = 8
"""Connections under TLS that may be without a request's head, for each that may be at work."""
_BEHIND_EVENTS = 8
"""Events at once from which on the loop is behind: it took longer for the last ones than for what is usual."""


@dataclass(slots=True, eq=False)
class Parked:
    """One connection; mutable: its handshake goes on, and its deadline moves once its first byte has come.

    Attributes:
        opened: the socket; a `TlsStream` from the first byte of a handshake on.
        deadline: until when its handshake must be done or its request whole, `time.monotonic()`.
        awaits_handshake: True until its handshake is done; False from the beginning in the clear.
    """

    opened: socket.socket | TlsStream
    connection: HttpConnection
    client: str
    deadline: float
    awaits_handshake: bool = False


class Parking:
    """Connections by address, of each the one that has waited for longest first; for one thread.

    Args:
        selector: looks after them, and after what else its owner registers, whose `data` is None.
        limits: beyond `parked_max` the address that holds most loses the one that has waited for longest; where that
            is 0, a connection leaves once the head of a request is there, and the bound is a multiple of
            `connections_max`.
        leave: takes a connection whose request is whole; its socket blocks again.
        tls: gives the context of a handshake; None in the clear.
        failed: hears of each handshake that failed or did not end in time.

    Attributes:
        is_behind: True while more has come than the loop takes at once, so that work that can wait lets it go on.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        limits: ServerLimits,
        leave: Callable[[Parked], None],
        *,
        tls: Callable[[], ssl.SSLContext] | None,
        failed: Callable[[], None],
    ) -> None:
        self._selector, self._leave, self._tls, self._failed = selector, leave, tls, failed
        self._waits_for_whole = limits.parked_max > 0
        self._places = limits.parked_max or _SILENT_PER_CONNECTION * limits.connections_max
        self._request_seconds = limits.request_seconds
        self._by_address: dict[str, dict[Parked, None]] = {}
        self._count = 0
        self.is_behind = False
        self._swept = time.monotonic()

    def enter(self, parked: Parked) -> None:
        """Look after a connection from now on; it leaves at once where its request is whole."""
        parked.opened.setblocking(False)
        if parked.awaits_handshake:
            parked.deadline = time.monotonic() + HANDSHAKE_SECONDS
        if self._is_done(parked):
            self._give(parked)
            return
        if self._count >= self._places:
            self.make_room()
        self._by_address.setdefault(parked.client, {})[parked] = None
        self._count += 1
        self._selector.register(parked.opened, selectors.EVENT_READ, parked)

    def make_room(self) -> bool:
        """Close the one that has waited for longest, of the address that holds most; False where there is none."""
        most = max(self._by_address.values(), key=len, default=None)
        if most is None:
            return False
        self._close(next(iter(most)))
        return True

    def look(self, seconds: float = _SWEEP_SECONDS) -> None:
        """Wait until something comes, of newcomers too, and take what has come."""
        ready = [key.data for key, _ in self._selector.select(seconds) if isinstance(key.data, Parked)]
        self.is_behind = len(ready) > _BEHIND_EVENTS
        if self.is_behind:  # newcomers first, and those of addresses that hold few
            ready.sort(key=lambda parked: (len(self._by_address[parked.client]), -parked.deadline))
        for parked in ready[:_EVENTS_AT_ONCE]:
            self._read(parked)
        now = time.monotonic()
        if now - self._swept >= _SWEEP_SECONDS:
            self._swept = now
            for parked in [one for one in self._all() if one.deadline <= now]:
                self._read(parked)  # what came while others were looked after: a close would throw it away
                if parked in self._by_address.get(parked.client, ()):
                    self._close(parked)

    def close(self) -> None:
        """Close all of them."""
        for parked in self._all():
            self._close(parked)

    def _all(self) -> list[Parked]:
        return [one for held in self._by_address.values() for one in held]

    def _is_done(self, parked: Parked) -> bool:
        if parked.awaits_handshake:
            return False
        return parked.connection.is_whole() if self._waits_for_whole else parked.connection.has_head()

    def _read(self, parked: Parked) -> None:
        try:
            if parked.awaits_handshake:
                self._shake(parked)
            else:
                parked.deadline = min(parked.deadline, parked.connection.feed())
        except (OSError, HungUp, Misconfigured, Unavailable):
            self._close(parked)
            return
        if self._is_done(parked):
            self._forget(parked)
            self._give(parked)

    def _shake(self, parked: Parked) -> None:
        """Take a step of a handshake.

        Raises:
            OSError: it failed.
            Misconfigured, Unavailable: its files can't be used.
        """
        import ssl  # noqa: PLC0415 - a process without TLS saves 6 MB of memory

        from wire.tls_stream import TlsStream  # noqa: PLC0415

        if isinstance(parked.opened, socket.socket) and self._tls is not None:
            # The selector knows it by its number, which is the same under TLS.
            parked.opened = TlsStream(parked.opened, self._tls())
            parked.connection.go_on_over(parked.opened)
        if isinstance(parked.opened, socket.socket):
            raise ValueError("a handshake needs a context")
        try:
            parked.opened.do_handshake()
        except ssl.SSLWantReadError:
            self._selector.modify(parked.opened, selectors.EVENT_READ, parked)
        except ssl.SSLWantWriteError:
            self._selector.modify(parked.opened, selectors.EVENT_WRITE, parked)
        else:
            self._selector.modify(parked.opened, selectors.EVENT_READ, parked)
            parked.awaits_handshake = False
            parked.deadline = time.monotonic() + self._request_seconds
            # What came with its last message has left the socket, where the selector would see it.
            parked.deadline = min(parked.deadline, parked.connection.feed())

    def _give(self, parked: Parked) -> None:
        parked.opened.setblocking(True)
        self._leave(parked)

    def _close(self, parked: Parked) -> None:
        self._forget(parked)
        parked.connection.let_go()
        parked.opened.close()
        if parked.awaits_handshake:
            self._failed()

    def _forget(self, parked: Parked) -> None:
        held = self._by_address[parked.client]
        del held[parked]
        self._count -= 1
        if not held:
            del self._by_address[parked.client]
        self._selector.unregister(parked.opened)
