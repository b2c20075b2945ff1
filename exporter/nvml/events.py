"""XID events: the driver's word for what went wrong on a card, counted per code as they come.

A gauge of the last code loses repeats; so one thread waits for every event of every card and counts. Started and ended
by `exporter.nvml.roster`, whose thread alone may start the library anew.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping
from typing import Any

from exporter.nvml.library import LIBRARY_LOST_CODES, TIMED_OUT, NvmlFault, NvmlLibrary
from fleet.inventory import CardId

XID_EVENT = 0x8
"""`nvmlEventTypeXidCriticalError` of nvml.h."""

WAIT_MILLISECONDS = 100
"""Longest wait in one call; ending the watch takes as long."""

STOP_SECONDS = 1.0
"""A watch that has not ended after this time hangs."""

CODES_MAX = 256
"""Codes per card; further ones are counted under `OTHER_CODES`."""

OTHER_CODES = -1


class XidWatch:
    """Counts the XID events of some cards."""

    def __init__(self, library: NvmlLibrary) -> None:
        self._library = library
        self._counts: dict[CardId, dict[int, int]] = {}
        self._last: dict[CardId, int] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def is_watching(self) -> bool:
        """True while somebody listens; a watch ends by itself where the driver reports no card's events."""
        return self._thread is not None and self._thread.is_alive()

    def counts(self, card: CardId) -> Mapping[int, int] | None:
        """Events of one card so far, by code; None where the driver doesn't report them."""
        with self._lock:
            found = self._counts.get(card)
            return None if found is None else dict(found)

    def last(self, card: CardId) -> int | None:
        """Code of one card's last event; None where there was none."""
        with self._lock:
            return self._last.get(card)

    def follow(self, handles: Mapping[CardId, object]) -> bool:
        """Watches these cards from now on, instead of those before; counts go on.

        Returns:
            False where the watch from before hangs in the library, and must end first.
        """
        if not self.stop(STOP_SECONDS):
            return False
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._watch, args=(dict(handles), self._stop), name="nvml events", daemon=True
        )
        self._thread.start()
        return True

    def stop(self, timeout_seconds: float) -> bool:
        """Ends the watch; False where its call has not come back within the time."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout_seconds)
            if self._thread.is_alive():
                return False
            self._thread = None
        return True

    def _watch(self, handles: Mapping[CardId, object], stop: threading.Event) -> None:
        try:
            with self._library.calling():
                events = self._library.call("nvmlEventSetCreate")
        except NvmlFault:
            return
        try:
            cards = self._registered(handles, events)
            while cards and not stop.is_set():
                try:
                    with self._library.calling():
                        event = self._library.call("nvmlEventSetWait_v2", events, WAIT_MILLISECONDS)
                except NvmlFault as exc:
                    if exc.code in LIBRARY_LOST_CODES:
                        return
                    if exc.code != TIMED_OUT:
                        # A card of the set is gone, or the driver is busy; the others' events still come.
                        stop.wait(WAIT_MILLISECONDS / 1000)
                else:
                    self._count(cards.get(_address(event.device)), event)
        finally:
            self._free(events)

    def _registered(self, handles: Mapping[CardId, object], events: object) -> Mapping[int, CardId]:
        cards = {}
        for card, handle in handles.items():
            try:
                with self._library.calling():
                    self._library.call("nvmlDeviceRegisterEvents", handle, XID_EVENT, events)
            except NvmlFault:
                continue
            cards[_address(handle)] = card
            with self._lock:
                self._counts.setdefault(card, {})
        return cards

    def _count(self, card: CardId | None, event: Any) -> None:
        if card is None or event.eventType != XID_EVENT:
            return
        with self._lock:
            counts = self._counts[card]
            code = self._last[card] = int(event.eventData)
            if code not in counts and len(counts) >= CODES_MAX:
                code = OTHER_CODES
            counts[code] = counts.get(code, 0) + 1

    def _free(self, events: object) -> None:
        try:
            with self._library.calling():
                self._library.call("nvmlEventSetFree", events)
        except NvmlFault:
            # A restarted driver has freed it already.
            return


def _address(handle: Any) -> int:
    return int(ctypes.cast(handle, ctypes.c_void_p).value or 0)
