"""Asks one card who it is, in a thread of its own: a card may hang at its very first call.

Made by `exporter.nvml.roster`, at most one per card at a time.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from exporter.nvml.figures import CardIdentity
from exporter.nvml.library import LIBRARY_LOST_CODES, NvmlFault, NvmlLibrary, number_or_none
from fleet.inventory import CardId, CardModelName

_TEXT_LENGTH_MAX = 96


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCard:
    """A card that told who it is.

    Attributes:
        identity: who it is.
        handle: its handle in the library's present initialisation.
    """

    identity: CardIdentity
    handle: object


class CardProbe:
    """Asks one card; begins at once.

    Args:
        library: the library, started.
        index: number of the card in the driver's order.
    """

    def __init__(self, library: NvmlLibrary, index: int) -> None:
        self.index = index
        self._library = library
        self._found: FoundCard | None = None
        self._fault: NvmlFault | None = None
        self._thread = threading.Thread(target=self._run, name=f"nvml probe {index}", daemon=True)
        self._thread.start()

    @property
    def is_open(self) -> bool:
        """True while there is no answer."""
        return self._thread.is_alive()

    def wait(self, timeout_seconds: float) -> None:
        """Waits for the answer."""
        self._thread.join(max(0.0, timeout_seconds))

    def found(self) -> FoundCard | None:
        """The answer; None where the card doesn't tell, or we may not look at it.

        Raises:
            NvmlFault: the driver has started anew.
        """
        if self._fault is not None and self._fault.code in LIBRARY_LOST_CODES:
            raise self._fault
        return self._found

    def _run(self) -> None:
        try:
            with self._library.calling():
                self._found = self._asked()
        except NvmlFault as exc:
            self._fault = exc

    def _asked(self) -> FoundCard:
        handle = self._library.call("nvmlDeviceGetHandleByIndex", self.index)
        uuid = self._library.call("nvmlDeviceGetUUID", handle)
        name = self._library.call("nvmlDeviceGetName", handle)
        pci = self._or_none("nvmlDeviceGetPciInfo", handle)
        memory = self._or_none("nvmlDeviceGetMemoryInfo", handle)
        minor = self._or_none("nvmlDeviceGetMinorNumber", handle)
        identity = CardIdentity(
            card=CardId(str(uuid)[:_TEXT_LENGTH_MAX]),
            card_model=CardModelName(str(name)[:_TEXT_LENGTH_MAX]),
            index=self.index,
            minor_number=number_or_none(minor) if minor is not None else None,
            pci_bus_id=_text(pci.busId) if pci is not None else None,
            serial=_text(self._or_none("nvmlDeviceGetSerial", handle)),
            framebuffer_bytes=number_or_none(memory.total) or None if memory is not None else None,
        )
        return FoundCard(identity=identity, handle=handle)

    def _or_none(self, function: str, handle: object) -> Any:
        try:
            return self._library.call(function, handle)
        except NvmlFault as exc:
            if exc.code in LIBRARY_LOST_CODES:
                raise
            return None


def _text(value: object) -> str | None:
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    return value[:_TEXT_LENGTH_MAX] if isinstance(value, str) and value else None
