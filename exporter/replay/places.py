"""Which grant every recorded slice of a trace stands for at the moment: as recorded, moved by a plan, or stopped.

One piece of `exporter.replay.reader`, which asks it what came and went, and where each slice's demand plays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from exporter.reader import InventoryChange
from exporter.replay.seats import Enforced, Seat, Seating, is_as_recorded, seated_grants
from exporter.trace.trace import Trace
from fleet.inventory import CardId, Grant


class Places:
    """Where the slices of a trace sit.

    Args:
        seating: where pods sit that were moved; None where nothing was changed.

    Attributes:
        grants: every recorded grant, pair by pair in the trace's order.
        seats: per grant the seat that a plan gave it, None where it sits as recorded.
        card_numbers: per grant the number of the card that it sits on, shape `(grants,)`.
        is_stopped: per grant True where a plan stopped it, shape `(grants,)`.
        is_card_played: per card True where a plan changed who sits there, shape `(cards,)`.
        generation: counts how often the seating changed.
        enforced: what keeps pods of one card apart.
    """

    def __init__(self, trace: Trace, seating: Seating | None, since: datetime) -> None:
        self._trace = trace
        self._seating = seating
        self.enforced = Enforced() if seating is None else seating.enforced
        self._since = since
        self._cards = {card.card: card for card in trace.cards}
        self._number_of_card = {card.card: number for number, card in enumerate(trace.cards)}
        self.grants: tuple[Grant, ...] = tuple(grant for pair in trace.pairs for grant in pair.grants)
        self.seats: list[Seat | None] = [None] * len(self.grants)
        self.card_numbers = np.array([self._number_of_card[grant.card] for grant in self.grants], np.int64)
        self.is_stopped: NDArray[np.bool_] = np.zeros(len(self.grants), bool)
        self.is_card_played: NDArray[np.bool_] = np.zeros(len(trace.cards), bool)
        self.generation = 0
        self._current: list[Grant] = list(self.grants)
        self._numbers_by_pod: dict[str, list[int]] = {}
        for number, grant in enumerate(self.grants):
            self._numbers_by_pod.setdefault(grant.pod_id, []).append(number)
        self._by_pod: Mapping[str, tuple[Seat, ...]] = {}
        self._returned: set[str] = set()
        self._begun: list[Grant] = []
        self._ended: list[Grant] = []
        self._known_until: datetime | None = None

    def current(self, number: int) -> Grant:
        """What a recorded grant stands for now; of one that was stopped, what it was."""
        return self._current[number]

    def settle(self, at: datetime) -> None:
        """Takes over what the seating says at the start of a block."""
        seats = self._seating.seats(at) if self._seating is not None else {}
        if seats is self._by_pod or seats == self._by_pod:
            return
        before, self._by_pod = self._by_pod, dict(seats)
        self._returned |= before.keys() - seats.keys()
        self.generation += 1
        for pod in sorted({*seats, *before}):
            if seats.get(pod) != before.get(pod):
                self._settle_pod(pod, seats.get(pod), at)
        touched = [n for pod in seats for n in self._numbers_by_pod.get(pod, ()) if self._is_touched(n)]
        self.is_card_played[:] = False
        self.is_card_played[self.card_numbers[touched]] = True
        self.is_card_played[[self._number_of_card[self.grants[number].card] for number in touched]] = True

    def change(self, until: datetime) -> InventoryChange:
        """What came and went since the last call, up to a moment, with what `settle` changed."""
        is_first = self._known_until is None
        started, over = self._trace.grant_changes(self._known_until, until)
        if is_first:
            over = tuple(grant for grant in over if grant.ended_at is not None and grant.ended_at > self._since)
            told = {_period(grant) for grant in over}
            told |= {_period(grant) for grant in self._trace.grants_at(until) if grant.ended_at is None}
            started = tuple(grant for grant in started if _period(grant) in told)
        begun, ended = self._begun, self._ended
        self._begun, self._ended, self._known_until = [], [], until
        return InventoryChange(
            cards=self._trace.cards if is_first else (),
            nodes=self._trace.nodes if is_first else (),
            grants_started=(*(grant for grant in started if not self._is_told(grant)), *begun),
            grants_ended=(*ended, *self._ends(over)),
        )

    def _is_told(self, started: Grant) -> bool:
        """True where the start of a recorded grant is no news: the pod sits elsewhere or anew, or was stopped."""
        if started.pod_id not in self._by_pod:
            return False
        numbers = self._numbers_by_pod[started.pod_id]
        number = next(n for n in numbers if _period(self.grants[n]) == _period(started))
        return self.is_stopped[number] or _period(self._current[number]) != _period(started) or self._is_touched(number)

    def _ends(self, over: tuple[Grant, ...]) -> Iterator[Grant]:
        """Ends as things stand: a pod that was moved ends where it sits now, one that was stopped has ended before."""
        moved = {_period(grant): grant for grant in over if grant.pod_id in self._by_pod}
        yield from (self._over(grant) for grant in over if grant.pod_id not in self._by_pod)
        for pod in sorted({grant.pod_id for grant in moved.values()}):
            for number in self._numbers_by_pod[pod]:
                end = moved.get(_period(self.grants[number]))
                if end is None or end.ended_at is None or self.is_stopped[number]:
                    continue
                current = self._current[number]
                # A seat outlives the periods that were recorded for what sits there, all but the last.
                is_last = not any(
                    self.grants[n].started_at > end.started_at and self._current[n].card == current.card
                    for n in self._numbers_by_pod[pod]
                )
                if is_last:
                    yield replace(current, ended_at=max(end.ended_at, current.started_at))

    def _over(self, ended: Grant) -> Grant:
        """The end of a recorded grant whose pod sits as recorded: of the grant that began when the pod came back."""
        if ended.pod_id not in self._returned:
            return ended
        numbers = self._numbers_by_pod[ended.pod_id]
        number = next(n for n in numbers if _period(self.grants[n]) == _period(ended))
        return replace(ended, started_at=max(ended.started_at, self._current[number].started_at))

    def _settle_pod(self, pod: str, seats: tuple[Seat, ...] | None, at: datetime) -> None:
        numbers_by_card: dict[CardId, list[int]] = {}
        for number in self._numbers_by_pod.get(pod, []):
            numbers_by_card.setdefault(self.grants[number].card, []).append(number)
        latest = [self._at(numbers, at) for numbers in numbers_by_card.values()]
        for number in latest:
            card = self.grants[number].card
            dealt = self._dealt(number, latest, seats, at) if seats is not None else {}
            seat: Seat | None = None
            if seats is None:
                grant: Grant | None = replace(
                    self.grants[number], started_at=max(self.grants[number].started_at, at), ended_at=None
                )
            else:
                grant, seat = dealt.get(card, (None, None))
            is_ahead = grant is not None and seat is not None and self._is_ahead(number, seat, at)
            if grant is not None and seat is not None and is_ahead:
                grant = replace(grant, started_at=seat.since)
            moved_at = seat.since if seat is not None else _stopped_at(seats, at)
            is_back = seat is not None and seat.is_anew and is_as_recorded(self.grants[number], seat)
            self._note(number, grant, moved_at, at, is_end_told=(is_back or is_ahead) and self._known_until is None)
            for period in numbers_by_card[card]:
                self.is_stopped[period] = grant is None
                self.seats[period] = seat
                self._current[period] = grant if grant is not None else self._current[period]
                self.card_numbers[period] = self._number_of_card[self._current[period].card]

    def _dealt(
        self, number: int, latest: list[int], seats: tuple[Seat, ...], at: datetime
    ) -> dict[CardId, tuple[Grant, Seat]]:
        """The seats of a pod, dealt to the slices that it holds together with one of them.

        A pod whose card was exchanged holds one card after the other: the card that it gave up takes no seat from the
        one that it holds, nor does one that it will get.
        """
        grant = self.grants[number]
        moment = at if grant.lives_at(at) else grant.started_at
        beside = [self.grants[n] for n in latest if n == number or self.grants[n].lives_at(moment)]
        return seated_grants(beside, seats, self._cards, self.enforced)

    def _is_ahead(self, number: int, seat: Seat, at: datetime) -> bool:
        """True where a pod got a card before the record says that it exchanged another one for it.

        It then has one grant of the card from that moment on, also for a replay that goes on later: with the recorded
        start beside it one slice would be granted twice, and the first of the two would end where the replay went on.
        """
        recorded = self.grants[number]
        if self._known_until is not None and recorded.started_at <= at:
            return False  # its start was sent
        is_recorded_place = not seat.is_anew and is_as_recorded(recorded, seat)
        return (
            is_recorded_place
            and seat.since < recorded.started_at
            and any(
                self.grants[other].container == recorded.container and self.grants[other].lives_at(seat.since)
                for other in self._numbers_by_pod[recorded.pod_id]
            )
        )

    def _is_touched(self, number: int) -> bool:
        seat = self.seats[number]
        return self.is_stopped[number] or (seat is not None and not is_as_recorded(self.grants[number], seat))

    def _at(self, numbers: list[int], at: datetime) -> int:
        """The latest period that had begun, or the first one."""
        begun = [number for number in numbers if self.grants[number].started_at <= at]
        return begun[-1] if begun else numbers[0]

    def _note(self, number: int, grant: Grant | None, moved_at: datetime, at: datetime, *, is_end_told: bool) -> None:
        """Keeps what began and ended, for slices that live.

        A pod in its recorded place when a replay goes on had left it in an earlier one, which said so.
        """
        recorded, then = self.grants[number], replace(self._current[number], ended_at=None)
        if recorded.started_at > at or (recorded.ended_at is not None and recorded.ended_at <= at):
            return
        if not self.is_stopped[number] and then != grant and not is_end_told:
            self._ended.append(replace(then, ended_at=max(moved_at, then.started_at)))
        if grant is not None and (then != grant or self.is_stopped[number]):
            self._begun.append(grant)


def _stopped_at(seats: tuple[Seat, ...] | None, at: datetime) -> datetime:
    stopped = [seat.since for seat in seats or () if seat.card is None]
    return stopped[0] if stopped else at


def _period(grant: Grant) -> tuple[str, str, CardId, datetime]:
    return grant.pod_id, grant.container, grant.card, grant.started_at
