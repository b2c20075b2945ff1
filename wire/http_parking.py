"""Connections whose request has not arrived whole: kept without a thread, until it has.

One thread looks after all of them, so a client that says nothing, or says it a byte at a time, costs a file descriptor
and what it has sent. Called by `http_server` for ports that strangers may hold open in thousands; a connection under
TLS is not parked, since its bytes are no request before they are decrypted.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from wire.http_connection import HttpConnection, HungUp

_SWEEP_SECONDS = 0.5
"""How late a connection is closed at most whose time is over."""
_EVENTS_AT_ONCE = 256
"""Beyond these the loop goes back to newcomers first."""


@dataclass(slots=True)
class Parked:
    """One connection; mutable: its deadline moves once its first byte has come.

    Attributes:
        deadline: until when its request must be whole, `time.monotonic()`.
    """

    opened: socket.socket
    connection: HttpConnection
    client: str
    deadline: float


class Parking:
    """Connections by address, of each the one that has waited for longest first; for one thread.

    Args:
        selector: looks after them, and after what else its owner registers, whose `data` is None.
        places: most of them; beyond it the address that holds most loses the one that has waited for longest.
        leave: takes a connection whose request is whole; its socket blocks again.
    """

    def __init__(self, selector: selectors.BaseSelector, places: int, leave: Callable[[Parked], None]) -> None:
        self._selector, self._places, self._leave = selector, places, leave
        self._by_address: dict[str, dict[socket.socket, Parked]] = {}
        self._count = 0
        self._swept = time.monotonic()

    def enter(self, parked: Parked) -> None:
        """Look after a connection from now on; it leaves at once where its request is whole."""
        parked.opened.setblocking(False)
        if parked.connection.is_whole():
            self._give(parked)
            return
        if self._count >= self._places:
            self.make_room()
        self._by_address.setdefault(parked.client, {})[parked.opened] = parked
        self._count += 1
        self._selector.register(parked.opened, selectors.EVENT_READ, parked)

    def make_room(self) -> bool:
        """Close the one that has waited for longest, of the address that holds most; False where there is none."""
        most = max(self._by_address.values(), key=len, default=None)
        if most is None:
            return False
        self._close(next(iter(most.values())))
        return True

    def look(self, seconds: float = _SWEEP_SECONDS) -> None:
        """Wait until something comes, of newcomers too, and take what has come."""
        for key, _ in self._selector.select(seconds)[:_EVENTS_AT_ONCE]:
            if isinstance(key.data, Parked):
                self._read(key.data)
        now = time.monotonic()
        if now - self._swept >= _SWEEP_SECONDS:
            self._swept = now
            for parked in [one for held in self._by_address.values() for one in held.values() if one.deadline <= now]:
                self._close(parked)

    def close(self) -> None:
        """Close all of them."""
        for parked in [one for held in self._by_address.values() for one in held.values()]:
            self._close(parked)

    def _read(self, parked: Parked) -> None:
        try:
            parked.deadline = min(parked.deadline, parked.connection.feed())
        except HungUp:
            self._close(parked)
            return
        if parked.connection.is_whole():
            self._forget(parked)
            self._give(parked)

    def _give(self, parked: Parked) -> None:
        parked.opened.setblocking(True)
        self._leave(parked)

    def _close(self, parked: Parked) -> None:
        self._forget(parked)
        parked.connection.let_go()
        parked.opened.close()

    def _forget(self, parked: Parked) -> None:
        held = self._by_address[parked.client]
        del held[parked.opened]
        self._count -= 1
        if not held:
            del self._by_address[parked.client]
        self._selector.unregister(parked.opened)
