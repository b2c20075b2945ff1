"""Which cards the driver has, looked up again and again by a thread of its own.

Cards come and go (hot plug, reset), and a restarted driver forgets its clients: then the library is initialised again.
Only this thread does that. It asks each card for its identity in one more thread, at most one per card at a time,
because a card may hang at its very first call. Owned by `exporter.nvml.cards`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from exporter.nvml.events import STOP_SECONDS, XidWatch
from exporter.nvml.figures import CardIdentity, LibraryVersions
from exporter.nvml.library import LIBRARY_LOST_CODES, NvmlFault, NvmlLibrary, number_or_none
from fleet.errors import Unavailable
from fleet.inventory import CardId, CardModelName

LOOK_SECONDS = 30.0
"""Time between two looks at which cards there are."""

RETRY_SECONDS = 5.0
"""Time between two looks while they fail."""

START_ANEW_SECONDS = 300.0
"""While a card is lost the library is initialised again this often: only then does the driver let it be reset and
found again (docs.nvidia.com, `nvidia-smi --gpu-reset`: no client may hold the card)."""

CARDS_MAX = 64
"""Cards per node; further ones are not looked at."""

PROBE_SECONDS = 1.0
"""Longest time that a look waits for a card to report its identity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Roster:
    """The cards at one look.

    Attributes:
        number: counts the looks, 1 first.
        cards: cards that answered, by index; one that hangs is still among them if it answered before.
    """

    number: int
    versions: LibraryVersions
    cards: tuple[CardIdentity, ...]
    unnamed: int


class RosterKeeper:
    """Looks in the background which cards there are.

    Args:
        library: the library; started here.
        look_seconds: time between two looks.
    """

    def __init__(
        self,
        library: NvmlLibrary,
        *,
        look_seconds: float = LOOK_SECONDS,
        start_anew_seconds: float = START_ANEW_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.roster: Roster | None = None
        """The latest look; None before the first good one."""
        self.failure: Exception | None = None
        """Why the latest look failed, None where it didn't."""
        self.xids = XidWatch(library)
        self._library = library
        self._look_seconds = look_seconds
        self._start_anew_seconds = start_anew_seconds
        self._clock = clock
        self._started_at = clock()
        self._is_started = False
        self._is_library_lost = False
        self._is_card_lost = False
        self._probes: dict[int, CardProbe] = {}
        self._followed: Mapping[CardId, object] = {}
        self._followed_generation = -1
        self._turn = threading.Condition()
        self._is_wanted = True
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="nvml roster", daemon=True)
        self._thread.start()

    def wait_for_first(self, timeout_seconds: float) -> Roster | None:
        """Waits for the first look; returns the latest, None where there was no good one within the time."""
        with self._turn:
            self._turn.wait_for(lambda: self.roster is not None or self.failure is not None, timeout_seconds)
        return self.roster

    def library_is_lost(self) -> None:
        """A call said that the driver has started anew."""
        with self._turn:
            self._is_library_lost = self._is_wanted = True
            self._turn.notify_all()

    def card_is_lost(self, *, is_lost: bool) -> None:
        """Some card is lost, or none is any more."""
        self._is_card_lost = is_lost

    def stop(self, timeout_seconds: float) -> bool:
        """Ends the looks and the watch for events; False where a call still hangs after the time."""
        with self._turn:
            self._is_stopping = True
            self._turn.notify_all()
        self._thread.join(timeout_seconds)
        is_quiet = not any(probe.is_open for probe in self._probes.values())
        return self.xids.stop(timeout_seconds) and is_quiet and not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            with self._turn:
                self._turn.wait_for(lambda: self._is_wanted or self._is_stopping, self._pause_seconds())
                self._is_wanted = False
                if self._is_stopping:
                    return
            try:
                self._start_where_needed()
                roster = self._look()
            except (Unavailable, NvmlFault) as exc:
                self._is_library_lost |= isinstance(exc, NvmlFault) and exc.code in LIBRARY_LOST_CODES
                failure: Exception | None = exc
            else:
                failure, self.roster = None, roster
            with self._turn:
                self.failure = failure
                self._turn.notify_all()

    def _pause_seconds(self) -> float:
        return self._look_seconds if self.failure is None else min(self._look_seconds, RETRY_SECONDS)

    def _start_where_needed(self) -> None:
        if not self._is_started:
            self._library.start()
            self._is_started = True
        elif self._is_library_lost:
            self._stop_watching()
            if not self._library.start_anew(1.0):
                # A hung call belongs to the driver that is gone. It can't be waited for, and needs no handle.
                self._library.start()
        elif self._is_card_lost and self._clock() - self._started_at >= self._start_anew_seconds:
            self._stop_watching()
            if not self._library.start_anew(1.0):
                return
        else:
            return
        self._is_library_lost = False
        self._started_at = self._clock()

    def _stop_watching(self) -> None:
        self.xids.stop(STOP_SECONDS)
        self._followed_generation = -1

    def _look(self) -> Roster:
        cards: list[CardIdentity] = []
        handles: dict[CardId, object] = {}
        with self._library.calling():
            versions = self._library.versions()
            count = self._library.call("nvmlDeviceGetCount")
        unnamed = 0
        for probe in self._probed(min(count, CARDS_MAX)):
            found = self._last_known(probe) if probe.is_open else probe.found()
            if found is None:
                unnamed += 1
            else:
                handles[found.identity.card] = found.handle
                cards.append(found.identity)
        is_other = handles.keys() != self._followed.keys() or self._library.generation != self._followed_generation
        # A driver that was busy when it was asked may report events by now.
        if is_other or (handles and not self.xids.is_watching):
            generation = self._library.generation
            if self.xids.follow(handles):
                self._followed, self._followed_generation = handles, generation
        number = self.roster.number + 1 if self.roster is not None else 1
        return Roster(number=number, versions=versions, cards=tuple(cards), unnamed=unnamed)

    def _probed(self, count: int) -> list[CardProbe]:
        """One probe per card, each with its answer, or still open where it hangs."""
        for index in range(count):
            probe = self._probes.get(index)
            if probe is None or not probe.is_open:
                self._probes[index] = CardProbe(self._library, index)
        until = self._clock() + PROBE_SECONDS
        probes = [self._probes[index] for index in range(count)]
        for probe in probes:
            probe.wait(until - self._clock())
        return probes

    def _last_known(self, probe: CardProbe) -> FoundCard | None:
        """What was known of a card whose probe hangs: that it hangs is for its own thread to find out."""
        known = self.roster.cards if self.roster is not None else ()
        for identity in known:
            if identity.index == probe.index and identity.card in self._followed:
                return FoundCard(identity=identity, handle=self._followed[identity.card])
        return None


_TEXT_LENGTH_MAX = 96


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCard:
    """A card that gave its identity.

    Attributes:
        handle: its handle in the library's present initialisation.
    """

    identity: CardIdentity
    handle: object


class CardProbe:
    """Asks one card; begins at once.

    Args:
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
        """The answer; None where the card doesn't report, or we may not look at it.

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
