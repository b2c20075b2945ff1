"""All cards of a node: asks every card's thread, waits no longer than it must, and says how each one fares.

A card is read in a thread of its own (`exporter.nvml.worker`), because any call may hang: sub-samples now and then, and
all of it when a reading is taken. A card that hangs or is lost is reported as such and leaves the others fresh. Used by
`exporter.nvml.reader`, the node exporter and the doctor.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from exporter.nvml.activity import ActivitySampler, framebuffer
from exporter.nvml.calls import CardCalls, CardLost, LibraryLost
from exporter.nvml.fields import read_slow_figures
from exporter.nvml.figures import CardFigures, CardIdentity, CardReading, CardsReading, CardState
from exporter.nvml.library import NvmlLibrary
from exporter.nvml.mig import MigReader
from exporter.nvml.processes import ProcessReader
from exporter.nvml.roster import LOOK_SECONDS, START_ANEW_SECONDS, Roster, RosterKeeper
from exporter.nvml.worker import CardWorker
from fleet.errors import Unavailable
from fleet.inventory import CardId

SAMPLE_SECONDS = 1.0
"""Time between two sub-samples of a card."""

HANG_SECONDS = 2.0
"""A card whose work has lasted this long counts as hung."""

ANSWER_SECONDS = 0.25
"""Longest time that a reading waits for cards that are slow; what comes later is in the next reading. A card that has
already been busy for so long when it is asked is not waited for."""

FORGET_SECONDS = 3600.0
"""A card that the driver has not named for this long is no longer reported as lost."""

_DEADLINE_SHARE = 0.8
_STOP_SECONDS = 1.0
_IDLE_STOP_SECONDS = 0.05


@dataclass(slots=True, kw_only=True)
class _Slot:
    """One card that was ever seen; mutable: it is followed in place."""

    identity: CardIdentity
    worker: CardWorker
    named_at: float
    is_missing: bool = False
    given: int = 0


class NvmlCards:
    """The cards of this node, as the driver has them.

    Args:
        library_path: file of `libnvidia-ml.so.1`, where the loader doesn't find it and it lies in no usual place.
        sample_seconds: time between two sub-samples of a card; None takes them with the readings only.
        look_seconds: time between two looks at which cards there are.
        start_anew_seconds: how often the library is started anew while a card is lost.
    """

    def __init__(
        self,
        *,
        library_path: str | None = None,
        sample_seconds: float | None = SAMPLE_SECONDS,
        hang_seconds: float = HANG_SECONDS,
        answer_seconds: float = ANSWER_SECONDS,
        look_seconds: float = LOOK_SECONDS,
        start_anew_seconds: float = START_ANEW_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._library = NvmlLibrary(library_path)
        self._sample_seconds = sample_seconds
        self._hang_seconds = hang_seconds
        self._answer_seconds = answer_seconds
        self._clock = clock
        self._slots: dict[CardId, _Slot] = {}
        self._number = 0
        self._is_closed = False
        self._keeper = RosterKeeper(
            self._library, look_seconds=look_seconds, start_anew_seconds=start_anew_seconds, clock=clock
        )

    def read(self, deadline_seconds: float) -> CardsReading:
        """Reads all cards.

        Raises:
            Unavailable: the driver's library could not be loaded or started, or has not named its cards in time.
        """
        until = self._clock() + deadline_seconds * _DEADLINE_SHARE
        roster = self._keeper.wait_for_first(deadline_seconds * _DEADLINE_SHARE)
        if roster is None:
            failure = self._keeper.failure
            raise Unavailable(
                f"cannot read cards: {failure}" if failure is not None
                else f"cannot read cards: the driver has not named them within {deadline_seconds} s"
            )  # fmt: skip
        self._follow(roster)
        self._ask(until)
        self._tell_keeper()
        cards = sorted((self._reading(slot) for slot in self._slots.values()), key=lambda card: card.identity.index)
        return CardsReading(versions=roster.versions, cards=tuple(cards), unnamed=self._unnamed(roster))

    def close(self) -> None:
        """Ends every thread that doesn't hang, and gives the library back; more than once does no harm."""
        if self._is_closed:
            return
        self._is_closed = True
        until = self._clock() + _STOP_SECONDS
        stopped = [slot.worker.stop(until - self._clock()) for slot in self._slots.values()]
        if self._keeper.stop(_STOP_SECONDS) and all(stopped):
            self._library.stop()

    def _follow(self, roster: Roster) -> None:
        """Makes the slots agree with what the driver names."""
        if roster.number == self._number:
            return
        self._number = roster.number
        now = self._clock()
        named = {identity.card: identity for identity in roster.cards}
        for card, identity in named.items():
            slot = self._slots.get(card)
            if slot is None:
                self._slots[card] = _Slot(identity=identity, worker=self._worker(identity), named_at=now)
                continue
            if identity != slot.identity:
                # It sits elsewhere now, and would be looked for in its old place.
                slot.worker.stop(_IDLE_STOP_SECONDS)
            slot.identity, slot.named_at, slot.is_missing = identity, now, False
            if not slot.worker.is_alive:
                slot.worker, slot.given = self._worker(identity), 0
        for card, slot in list(self._slots.items()):
            if card in named:
                continue
            slot.is_missing = True
            is_stopped = slot.worker.stop(0.0)
            if is_stopped and now - slot.named_at >= FORGET_SECONDS:
                del self._slots[card]

    def _worker(self, identity: CardIdentity) -> CardWorker:
        reader = CardReader(self._library, identity, self._clock)
        return CardWorker(identity, reader, sample_seconds=self._sample_seconds, clock=self._clock)

    def _unnamed(self, roster: Roster) -> int:
        # A card that is known and lost is counted by the driver, and reported as lost.
        return max(0, roster.unnamed - sum(slot.is_missing for slot in self._slots.values()))

    def _ask(self, until: float) -> None:
        until = min(until, self._clock() + self._answer_seconds)
        there = [slot.worker for slot in self._slots.values() if not slot.is_missing and slot.worker.is_alive]
        for worker in there:
            worker.ask()
        for worker in there:
            if worker.busy_seconds() < self._answer_seconds:
                worker.wait(until - self._clock())

    def _is_hung(self, worker: CardWorker) -> bool:
        return worker.is_alive and worker.busy_seconds() >= self._hang_seconds

    def _tell_keeper(self) -> None:
        faults = [slot.worker.fault for slot in self._slots.values() if not slot.is_missing]
        # What a worker said before it hung, or before the library was started anew, is old news.
        answered = [slot.worker for slot in self._slots.values() if not slot.is_missing and slot.worker.is_answered]
        if any(isinstance(worker.fault, LibraryLost) for worker in answered):
            self._keeper.library_is_lost()
        is_missing = any(slot.is_missing for slot in self._slots.values())
        self._keeper.card_is_lost(is_lost=is_missing or any(fault is not None for fault in faults))

    def _reading(self, slot: _Slot) -> CardReading:
        worker, answer = slot.worker, slot.worker.answer
        if self._is_hung(worker):
            state = CardState.HUNG
        elif slot.is_missing or worker.fault is not None or not worker.is_alive:
            state = CardState.LOST
        else:
            state = CardState.OK
        is_new = state is CardState.OK and answer is not None and answer.number > slot.given
        if answer is not None and is_new:
            slot.given = answer.number
        since = answer.read_at_seconds if answer is not None else slot.named_at
        return CardReading(
            identity=slot.identity,
            state=state,
            figures=answer.figures if answer is not None else None,
            age_seconds=max(0.0, self._clock() - since),
            is_new=is_new,
            xids=self._keeper.xids.counts(slot.identity.card),
            last_xid=self._keeper.xids.last(slot.identity.card),
        )


Result = TypeVar("Result")


class CardReader:
    """One card. Its calls raise `CardLost` and `LibraryLost`, as those of `CardCalls` do."""

    def __init__(
        self, library: NvmlLibrary, identity: CardIdentity, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._library = library
        self._calls = CardCalls(library, identity, clock)
        self._activity = ActivitySampler(self._calls)
        self._mig = MigReader(self._calls)
        self._processes = ProcessReader(self._calls)

    def sample(self) -> None:
        """Takes one sub-sample."""
        with self._library.calling():
            self._telling_loss(self._sample)

    def read(self) -> CardFigures:
        """Takes one more sub-sample, reads the rest, and gives all since the reading before."""
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
