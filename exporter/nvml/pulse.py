"""A quick look at every card of a node, a few times a second: framebuffer and duty cycle, and nothing else.

For the node agent, which must act within a second, where a whole reading would cost too much. One thread of its own
makes the calls, two per card, so that a driver that hangs keeps no caller waiting beyond its deadline.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from exporter.nvml.library import LIBRARY_LOST_CODES, NvmlFault, NvmlLibrary, number_or_none
from fleet.errors import Unavailable

CARDS_MAX = 64
"""Cards of a node; further ones are not looked at."""
ROSTER_SECONDS = 30.0
"""How often it is asked anew which cards there are."""
STOP_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CardPulse:
    """One card at one moment.

    Attributes:
        duty_cycle_ratio: share of the driver's last sampling period (a sixth of a second to a second) in which a
            kernel ran, 0-1; None where the driver does not say, as on a card that is cut by MIG.
    """

    card: str
    framebuffer_bytes: int
    framebuffer_free_bytes: int
    duty_cycle_ratio: float | None


class CardPulses:
    """Looks at the cards of this node.

    Args:
        library_path: file of `libnvidia-ml.so.1`, where the loader doesn't find it.
    """

    def __init__(self, library_path: str | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._library = NvmlLibrary(library_path)
        self._clock = clock
        self._handles: dict[str, object] = {}
        self._roster_at = -math.inf
        self._is_started = False
        self._turn = threading.Condition()
        self._asked = self._answered = 0
        self._answer: tuple[CardPulse, ...] | Unavailable = ()
        self._is_closed = False
        self._thread = threading.Thread(target=self._serve, name="card-pulses", daemon=True)
        self._thread.start()

    def look(self, deadline_seconds: float) -> tuple[CardPulse, ...]:
        """Every card that answers; one that does not is left out.

        Raises:
            Unavailable: there is no driver, or it has not answered in time.
        """
        with self._turn:
            # While an earlier look hangs no new one is begun: its answer is waited for.
            if self._asked == self._answered:
                self._asked += 1
                self._turn.notify_all()
            asked = self._asked
            if not self._turn.wait_for(lambda: self._answered >= asked, deadline_seconds):
                raise Unavailable(f"cannot look at the cards: the driver has not answered within {deadline_seconds} s")
            answer = self._answer
        if isinstance(answer, Unavailable):
            raise answer
        return answer

    def close(self) -> None:
        """Ends the thread, unless it hangs, and gives the library back; more than once does no harm."""
        with self._turn:
            if self._is_closed:
                return
            self._is_closed = True
            self._turn.notify_all()
        self._thread.join(STOP_SECONDS)
        if not self._thread.is_alive() and self._is_started:
            self._library.stop()

    def _serve(self) -> None:
        while True:
            with self._turn:
                self._turn.wait_for(lambda: self._is_closed or self._asked > self._answered)
                if self._is_closed:
                    return
            answer: tuple[CardPulse, ...] | Unavailable
            try:
                answer = self._pulses()
            except Unavailable as exc:
                answer = exc
            with self._turn:
                self._answer = answer
                self._answered = self._asked
                self._turn.notify_all()

    def _pulses(self) -> tuple[CardPulse, ...]:
        if not self._is_started:
            self._library.start()
            self._is_started = True
        try:
            return self._pulses_of_started()
        except NvmlFault as exc:
            self._roster_at = -math.inf
            if exc.code in LIBRARY_LOST_CODES:
                self._library.start_anew(STOP_SECONDS)
                raise Unavailable("cannot look at the cards: the driver was restarted") from exc
            raise Unavailable(f"cannot look at the cards: {exc}") from exc

    def _pulses_of_started(self) -> tuple[CardPulse, ...]:
        """Raises `NvmlFault` where the library is lost, or does not say how many cards there are."""
        if self._clock() - self._roster_at >= ROSTER_SECONDS:
            self._handles = self._found()
            self._roster_at = self._clock()
        pulses = []
        for card, handle in list(self._handles.items()):
            try:
                pulse = self._pulse(card, handle)
            except NvmlFault as exc:
                if exc.code in LIBRARY_LOST_CODES:
                    raise
                self._roster_at = -math.inf
                continue
            if pulse is not None:
                pulses.append(pulse)
        return tuple(pulses)

    def _found(self) -> dict[str, object]:
        count = min(self._library.call("nvmlDeviceGetCount"), CARDS_MAX)
        found: dict[str, object] = {}
        for number in range(count):
            try:
                handle = self._library.call("nvmlDeviceGetHandleByIndex", number)
                found[self._library.call("nvmlDeviceGetUUID", handle)] = handle
            except NvmlFault as exc:
                if exc.code in LIBRARY_LOST_CODES:
                    raise
                continue
        return found

    def _pulse(self, card: str, handle: object) -> CardPulse | None:
        told = self._library.call("nvmlDeviceGetMemoryInfo", handle)
        total, free = number_or_none(told.total), number_or_none(told.free)
        if not total or free is None or free > total:
            return None
        return CardPulse(
            card=card, framebuffer_bytes=total, framebuffer_free_bytes=free, duty_cycle_ratio=self._duty_cycle(handle)
        )

    def _duty_cycle(self, handle: object) -> float | None:
        try:
            percent = self._library.call("nvmlDeviceGetUtilizationRates", handle).gpu
        except NvmlFault as exc:
            if exc.code in LIBRARY_LOST_CODES:
                raise
            return None
        return percent / 100 if 0 <= percent <= 100 else None
