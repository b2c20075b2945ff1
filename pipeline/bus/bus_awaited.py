"""A bus that may not be there yet when its receiver starts: asked for until it is.

Brokers and receivers are restarted in any order. Until the bus is open, all that is asked of it is `Unavailable`, so
that senders are asked to come again and keep what they have. Called by `gputide.container.bus`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Protocol

from fleet.errors import Unavailable
from fleet.logs import logger
from pipeline.bus.bus import BusWriter

RETRY_SECONDS = 5.0
"""How long until a bus that was not there is asked for again."""


class ClosableWriter(BusWriter, Protocol):
    """A bus' side for a receiver, which holds connections."""

    def close(self) -> None:
        """Lets go of them."""


class AwaitedBus:
    """A bus that is opened as soon as it can be; mutable: a thread of its own opens it.

    Args:
        open_bus: opens the bus, or says that it can't.

    Raises:
        Misconfigured: the settings are wrong, as far as the first try has shown.
    """

    def __init__(self, open_bus: Callable[[], ClosableWriter], *, retry_seconds: float = RETRY_SECONDS) -> None:
        self._open_bus = open_bus
        self._retry_seconds = retry_seconds
        self._stopped = threading.Event()
        self._bus: ClosableWriter | None = None
        self._fault = ""
        self._thread: threading.Thread | None = None
        try:
            self._bus = open_bus()
        except Unavailable as exc:
            self._note(exc)
            self._thread = threading.Thread(target=self._keep_trying, name="bus", daemon=True)
            self._thread.start()

    @property
    def is_open(self) -> bool:
        """Whether records are taken."""
        return self._bus is not None

    @property
    def lanes(self) -> int:
        """See `BusWriter.lanes`.

        Raises:
            Unavailable: the bus is not open yet.
        """
        return self._opened().lanes

    def append_all(self, payloads: Mapping[int, bytes]) -> None:
        """See `BusWriter.append_all`; `Unavailable` as well while the bus is not open yet."""
        self._opened().append_all(payloads)

    def close(self) -> None:
        """Stops asking for the bus, or closes it."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
        if self._bus is not None:
            self._bus.close()

    def _opened(self) -> ClosableWriter:
        if self._bus is None:
            raise Unavailable(f"cannot append: the bus is not there since this receiver started; {self._fault}")
        return self._bus

    def _keep_trying(self) -> None:
        while self._bus is None and not self._stopped.wait(self._retry_seconds):
            try:
                self._bus = self._open_bus()
            except Exception as exc:  # noqa: BLE001 - nobody else would open it: a bug is said to senders and tried again
                self._note(exc)

    def _note(self, exc: Exception) -> None:
        if not self._fault:
            _LOG.warning("waiting for the bus; senders are asked to come again", reason=str(exc))
        self._fault = str(exc)


_LOG = logger(__name__)
