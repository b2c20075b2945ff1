"""Reads one card, whole: sub-samples now and then, and all of it when a reading is taken.

Runs in the card's own thread (`exporter.nvml.worker`), because any call may hang.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from exporter.nvml.activity import ActivitySampler, framebuffer
from exporter.nvml.calls import CardCalls, CardLost, LibraryLost
from exporter.nvml.fields import read_slow_figures
from exporter.nvml.figures import CardFigures, CardIdentity
from exporter.nvml.library import NvmlLibrary
from exporter.nvml.mig import MigReader
from exporter.nvml.processes import ProcessReader

Result = TypeVar("Result")


class CardReader:
    """One card.

    Args:
        library: the library, started.
        identity: which card.
        clock: seconds that never go back; for tests.
    """

    def __init__(
        self, library: NvmlLibrary, identity: CardIdentity, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._library = library
        self._calls = CardCalls(library, identity, clock)
        self._activity = ActivitySampler(self._calls)
        self._mig = MigReader(self._calls)
        self._processes = ProcessReader(self._calls)

    def sample(self) -> None:
        """Takes one sub-sample.

        Raises:
            CardLost: the card is gone.
            LibraryLost: the library must be initialised again.
        """
        with self._library.calling():
            self._telling_loss(self._sample)

    def read(self) -> CardFigures:
        """Takes one more sub-sample, reads the rest, and gives all since the reading before.

        Raises:
            CardLost: the card is gone.
            LibraryLost: the library must be initialised again.
        """
        with self._library.calling():
            return self._telling_loss(self._read)

    def close(self) -> None:
        """Gives back what the library allocated for this card."""
        with self._library.calling():
            self._activity.close()
            self._mig.close()

    def _sample(self) -> None:
        self._activity.sample()
        self._mig.sample()

    def _read(self) -> CardFigures:
        self._sample()
        mig_mode = self._mig.mode()
        if mig_mode:
            migs = self._mig.read()
        else:
            self._mig.close()
            migs = ()
        slow = read_slow_figures(self._calls)
        return CardFigures(
            activities=self._activity.take(),
            framebuffer=framebuffer(self._calls),
            gauges=slow.gauges,
            counters=slow.counters,
            held_back=self._activity.take_held_back(),
            mig_mode=mig_mode,
            compute_mode=slow.compute_mode,
            migs=migs,
            processes=self._processes.read(self._mig.handles),
            failed_calls=self._calls.failed,
        )

    def _telling_loss(self, work: Callable[[], Result]) -> Result:
        try:
            return work()
        except (CardLost, LibraryLost):
            # What the card could do before says nothing of what it can do when it is back, or of its handle.
            self._calls.forget()
            self._activity.close()
            self._mig.close()
            raise
