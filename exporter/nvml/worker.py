"""One thread per card: it alone calls into the library for that card, so that a call that hangs hangs nobody else.

A caller asks for figures and waits no longer than it likes. There is never a second thread for a card, however long
the first one hangs. Called by `exporter.nvml.cards`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from exporter.nvml.calls import CardLost, LibraryLost
from exporter.nvml.figures import CardFigures, CardIdentity


class CardWork(Protocol):
    """What a worker does; every call may hang."""

    def sample(self) -> None:
        """Takes one sub-sample."""
        ...

    def read(self) -> CardFigures:
        """Reads the card."""
        ...

    def close(self) -> None:
        """Gives back what belongs to the card."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Figures, and when they were read.

    Attributes:
        number: counts the card's answers, 1 first.
        read_at_seconds: when the reading ended, by the worker's clock.
    """

    figures: CardFigures
    number: int
    read_at_seconds: float


class CardWorker:
    """Samples a card every so often, and reads it when asked.

    Args:
        sample_seconds: time between two sub-samples; None takes them with the readings only.
    """

    def __init__(
        self,
        identity: CardIdentity,
        work: CardWork,
        *,
        sample_seconds: float | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.identity = identity
        self.answer: Answer | None = None
        """The latest answer; None before the first."""
        self.fault: Exception | None = None
        """`CardLost` or `LibraryLost`, where the last attempt ended so."""
        self._work = work
        self._sample_seconds = sample_seconds
        self._clock = clock
        self._turn = threading.Condition()
        self._is_asked = False
        self._is_stopping = False
        self._busy_since: float | None = None
        self._thread = threading.Thread(target=self._run, name=f"nvml {identity.card}", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """True while the thread runs or hangs."""
        return self._thread.is_alive()

    @property
    def is_answered(self) -> bool:
        """True where nothing that was asked is still open."""
        return not self._is_asked

    def busy_seconds(self) -> float:
        """How long the work under way has lasted; 0 where none is."""
        since = self._busy_since
        return 0.0 if since is None else max(0.0, self._clock() - since)

    def ask(self) -> None:
        """Wants a reading; asking again before it is answered changes nothing."""
        with self._turn:
            self._is_asked = True
            self._turn.notify_all()

    def wait(self, timeout_seconds: float) -> bool:
        """Waits until what was asked is answered, well or badly; False where the time ran out."""
        with self._turn:
            return self._turn.wait_for(lambda: not self._is_asked, max(0.0, timeout_seconds))

    def stop(self, timeout_seconds: float) -> bool:
        """Ends the thread, unless it hangs.

        Returns:
            False where it is still there after the time-out; it ends by itself when its call comes back.
        """
        with self._turn:
            self._is_stopping = True
            self._turn.notify_all()
        self._thread.join(max(0.0, timeout_seconds))
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            with self._turn:
                self._turn.wait_for(lambda: self._is_asked or self._is_stopping, self._sample_seconds)
                is_asked, is_stopping = self._is_asked, self._is_stopping
                self._busy_since = self._clock()
            if is_stopping:
                self._work.close()
                self._busy_since = None
                return
            if is_asked:
                self._attempt(self._read)
            elif self.fault is None:
                # A card that is gone is looked for when a reading wants it, not every second.
                self._attempt(self._work.sample)
            with self._turn:
                self._busy_since = None
                if is_asked:
                    self._is_asked = False
                    self._turn.notify_all()

    def _read(self) -> None:
        figures = self._work.read()
        number = self.answer.number + 1 if self.answer is not None else 1
        self.answer = Answer(figures=figures, number=number, read_at_seconds=self._clock())

    def _attempt(self, work: Callable[[], None]) -> None:
        try:
            work()
        except (CardLost, LibraryLost) as exc:
            self.fault = exc
        else:
            self.fault = None
