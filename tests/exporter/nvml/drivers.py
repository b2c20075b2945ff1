"""Opens cards of the stand-in without threads of the exporter's own, for tests that go step by step."""

from collections.abc import Iterator
from contextlib import contextmanager

from exporter.nvml.cards import CardReader
from exporter.nvml.figures import CardIdentity
from exporter.nvml.library import NvmlLibrary
from fleet.inventory import CardId, CardModelName
from tests.exporter.nvml.standin import library_file, uuid


class Clock:
    """Seconds that go by when told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def started_library() -> Iterator[NvmlLibrary]:
    """The stand-in, initialised."""
    library = NvmlLibrary(str(library_file()))
    library.start()
    try:
        yield library
    finally:
        library.stop()


def identity(number: int) -> CardIdentity:
    """Who a card of the stand-in's world is."""
    bus = f"00000000:{number + 1:02X}:00.0"
    return CardIdentity(card=CardId(uuid(number)), card_model=CardModelName("any"), index=number, pci_bus_id=bus)


def card_reader(library: NvmlLibrary, number: int = 0, clock: Clock | None = None) -> CardReader:
    """One card of the stand-in's world."""
    return CardReader(library, identity(number), clock if clock is not None else Clock())
