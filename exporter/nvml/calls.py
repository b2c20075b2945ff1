"""Asks one card, and remembers what it will not answer.

An unsupported figure is asked for again only now and then, or when the card has come back: a driver's refusal costs as
much as an answer. Failed calls are counted by function and error. Used by every module that reads a part of a card.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from exporter.nvml.figures import CardIdentity
from exporter.nvml.library import (
    CARD_LOST_CODES,
    EMPTY_CODES,
    LIBRARY_LOST_CODES,
    NOT_SUPPORTED_CODES,
    NvmlFault,
    NvmlLibrary,
    error_word,
)

ASK_AGAIN_SECONDS = 600.0
"""After this time what was unsupported is asked for once more: a mode may have been switched, a permission given."""


class CardLost(Exception):
    """The card is gone, as the driver says; its handle is of no more use."""


class LibraryLost(Exception):
    """The driver has started anew; every handle is of no more use until the library is initialised again."""


class CardCalls:
    """Calls that concern one card.

    Args:
        identity: which card; its place on the bus is where its handle is looked for.
    """

    def __init__(
        self, library: NvmlLibrary, identity: CardIdentity, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.library = library
        self._identity = identity
        self._clock = clock
        self._generation = -1
        self._handle: object = None
        self._silent_until: dict[str, float] = {}
        self._failed: dict[tuple[str, str], int] = {}

    @property
    def failed(self) -> Mapping[tuple[str, str], int]:
        """Calls that failed so far, by function and error; not supported counts once per asking."""
        return dict(self._failed)

    @property
    def handle(self) -> object:
        """The card's handle in the library's present initialisation.

        Raises:
            CardLost: there is no such card now.
            LibraryLost: the library must be initialised again.
        """
        if self._generation != self.library.generation:
            generation = self.library.generation
            try:
                self._handle = self._found()
            except NvmlFault as exc:
                self._count(exc)
                raise (LibraryLost if exc.code in LIBRARY_LOST_CODES else CardLost) from exc
            self._generation = generation
            self._silent_until.clear()
        return self._handle

    def forget(self) -> None:
        """Has everything asked for anew, the handle too: the card was lost."""
        self._generation = -1

    def ask(self, function: str, *arguments: Any) -> Any:
        """Calls a function with the card's handle and the arguments.

        Returns:
            What it gives; None where the card doesn't support it or failed to answer this time.

        Raises:
            CardLost: the card is gone.
            LibraryLost: the library must be initialised again.
        """
        return self.try_to(function, lambda: self.library.call(function, self.handle, *arguments))

    def try_to(self, name: str, ask: Callable[[], Any]) -> Any:
        """As `ask`, for what takes more than one call.

        Args:
            name: under which a refusal is remembered, a function's name.
        """
        if self.is_silent(name):
            return None
        try:
            return ask()
        except NvmlFault as exc:
            return self._judge(name, exc)

    def is_silent(self, name: str) -> bool:
        """True while something is known to be unsupported."""
        until = self._silent_until.get(name)
        return until is not None and self._clock() < until

    def silence(self, name: str) -> None:
        """Leaves something alone for a while; the card has said that it doesn't support it."""
        self._silent_until[name] = self._clock() + ASK_AGAIN_SECONDS

    def _found(self) -> object:
        # By its UUID the library would look at every card until it finds the one, and hang with any that hangs.
        if self._identity.pci_bus_id is None:
            return self.library.call("nvmlDeviceGetHandleByUUID", self._identity.card)
        handle = self.library.call("nvmlDeviceGetHandleByPciBusId", self._identity.pci_bus_id)
        if self.library.call("nvmlDeviceGetUUID", handle) != self._identity.card:
            raise CardLost
        return handle

    def _judge(self, name: str, fault: NvmlFault) -> None:
        if fault.code in EMPTY_CODES:
            return
        self._count(fault)
        if fault.code in CARD_LOST_CODES:
            raise CardLost from fault
        if fault.code in LIBRARY_LOST_CODES:
            raise LibraryLost from fault
        if fault.code in NOT_SUPPORTED_CODES:
            self.silence(name)

    def _count(self, fault: NvmlFault) -> None:
        key = fault.function, error_word(fault.code)
        self._failed[key] = self._failed.get(key, 0) + 1
