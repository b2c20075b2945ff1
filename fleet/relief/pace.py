"""When a move is due: since when each card is overloaded, and how long a look that found no way out waits."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import TypeVar

from fleet.relief.moves import PastMove, away, home_due, relieved_until, slots_free
from fleet.relief.overload import Trouble
from fleet.relief.rules import ReliefRules

PAUSE_SECONDS_MAX = 20.0
"""How long low priority may take to pause by an order: agents look at theirs every `agent.orders_seconds`."""
_FRUITLESS_SECONDS = 5.0
_FRUITLESS_SECONDS_MAX = 120.0
_HOME_LOOK_SECONDS = 60.0

T = TypeVar("T", bound=Trouble)


class Pace:
    """Remembers since when cards are overloaded; mutable: it is shown every moment in order.

    Times are seconds of any one clock. Cards are relieved in the order in which they are given. Moves come as a
    sequence that does not change: another one wherever a move began or ended.
    """

    def __init__(self, rules: ReliefRules) -> None:
        self._rules = rules
        self._first_seen: dict[Hashable, float] = {}
        self._since: dict[Hashable, float] = {}
        self._fruitless: dict[Hashable, tuple[float, float]] = {}
        self._home_look_at = float("-inf")
        self._moves: Sequence[PastMove] = ()
        self._known_away: tuple[PastMove, ...] = ()
        self._relieved_until: dict[Hashable, float] = {}

    @property
    def troubled(self) -> frozenset[Hashable]:
        """Cards that were overloaded when last seen."""
        return frozenset(self._first_seen)

    def see(self, found: Sequence[T]) -> tuple[T, ...]:
        """Take in the cards that are overloaded now.

        Returns:
            The same, with `needs_move` where low priority should have ended the overload by now and did not.
        """
        grown = tuple(self._grown(entry) for entry in found)
        cards = {entry.card for entry in grown}
        moving = {entry.card for entry in grown if entry.needs_move}
        self._first_seen = {card: at for card, at in self._first_seen.items() if card in cards}
        self._since = {card: at for card, at in self._since.items() if card in moving}
        for entry in grown:
            self._first_seen.setdefault(entry.card, entry.at_seconds)
            if entry.needs_move:
                self._since.setdefault(entry.card, entry.at_seconds)
        return grown

    def first_seen(self, card: Hashable) -> float:
        """Since when a card that is overloaded now is."""
        return self._first_seen[card]

    def due(self, found: Sequence[T], moves: Sequence[PastMove], now: float) -> list[T]:
        """Overloaded cards that a pod should leave now."""
        return [
            entry
            for entry in found
            if entry.at_seconds >= self._lasted_at(entry, moves) and now >= self._next_try(entry.card)
        ]

    def next_at(self, found: Sequence[Trouble], moves: Sequence[PastMove], now: float) -> float:
        """When to look next if nothing changes until then; inf where only a change can make a move due."""
        moments = [max(self._lasted_at(entry, moves), self._next_try(entry.card)) for entry in found]
        moments += [self._first_seen[entry.card] + PAUSE_SECONDS_MAX for entry in found if _may_grow(entry)]
        if self._away(moves):
            moments.append(self._home_look_at + _HOME_LOOK_SECONDS)
        return min((moment for moment in moments if moment > now), default=_NEVER)

    def relieve(self, found: Sequence[T], moves: Sequence[PastMove], now: float, begin: Callable[[T], bool]) -> None:
        """Begin the moves that are due, as many as may be under way.

        Args:
            begin: begins a move that relieves a card; False where no pod can leave it, then the card is looked at again
                after a pause that doubles.
        """
        free = slots_free(moves, self._rules)
        for entry in self.due(found, moves, now):
            if free <= 0:
                return
            if begin(entry):
                free -= 1
                self._fruitless.pop(entry.card, None)
            else:
                pause = self._fruitless[entry.card][1] * 2 if entry.card in self._fruitless else _FRUITLESS_SECONDS
                self._fruitless[entry.card] = (now, min(pause, _FRUITLESS_SECONDS_MAX))

    def is_home_look_due(self, moves: Sequence[PastMove], now: float) -> bool:
        """Whether to see if a moved pod can return."""
        return now - self._home_look_at >= _HOME_LOOK_SECONDS and bool(self._away(moves))

    def home_due(self, moves: Sequence[PastMove], now: float) -> tuple[PastMove, ...]:
        """Pods that are away, have rested, and do not move right now."""
        return home_due(self._away(moves), moves, now, self._rules)

    def bring_home(self, moves: Sequence[PastMove], now: float, begin: Callable[[PastMove], bool]) -> None:
        """Begin the return of pods whose old card has room, as many as may be under way.

        Args:
            begin: begins the return of a moved pod; False where its old card has no room for it.
        """
        if not self.is_home_look_due(moves, now):
            return
        self._home_look_at = now
        free = slots_free(moves, self._rules)
        for move in self.home_due(moves, now):
            if free <= 0:
                return
            free -= begin(move)

    def _away(self, moves: Sequence[PastMove]) -> tuple[PastMove, ...]:
        """Pods that are away."""
        self._look_at(moves)
        return self._known_away

    def _look_at(self, moves: Sequence[PastMove]) -> None:
        """Take in another sequence of moves."""
        if self._moves is not moves:
            self._moves, self._known_away = moves, away(moves)
            self._relieved_until = relieved_until(moves)

    def _grown(self, entry: T) -> T:
        since = self._first_seen.get(entry.card, entry.at_seconds)
        if not _may_grow(entry) or entry.at_seconds - since < PAUSE_SECONDS_MAX:
            return entry
        return replace(entry, needs_move=True)

    def _lasted_at(self, entry: Trouble, moves: Sequence[PastMove]) -> float:
        """The moment from which a view of a card that is still overloaded asks for a move."""
        since = self._since.get(entry.card)
        if not entry.needs_move or since is None:
            return _NEVER
        self._look_at(moves)
        return max(since + self._rules.sustain_seconds, self._relieved_until.get(entry.card, -_NEVER))

    def _next_try(self, card: Hashable) -> float:
        return sum(self._fruitless[card]) if card in self._fruitless else -_NEVER


_NEVER = float("inf")


def _may_grow(entry: Trouble) -> bool:
    return entry.can_move and not entry.needs_move
