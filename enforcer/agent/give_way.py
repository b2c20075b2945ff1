"""Who must sleep so that others need not wait: low priority gives way to high priority on the same card.

Three manners. `off`: nobody sleeps. `strict`: low priority sleeps whenever somebody above it works (mGPU's acceptance:
offline use is 0 whenever online runs). `pressure`: only while the card is full as well, so that idle compute is used.
Pure; called by `node_agent`: `see` with each view of the node, some times a second, and `step` with each look at
launches, some dozen times a second.

**Who works (`strict`).** A launch shows within one look, so low priority sleeps one look later. That nobody launches
says less: kernels may still run, a CUDA graph launches without a sign, and where HAMi sets no core limit no launch ever
shows (`launches`). The duty cycle shows all of these, but as a mean of the last second. So a container is first
believed by its duty cycle alone, and low priority wakes after `quiet_seconds` without any; one that is not measured
counts as working, for missing is not zero. A container earns `release_seconds` by a pause: it launched, stopped, and
its duty cycle was 0 as soon as the driver's second was over. It loses it when its duty cycle shows work that no launch
explains, and must show twice as many such pauses each time. What it earned counts for the value of the switch under
which it did: HAMi's monitor turns the switch, and launches may vanish with it.

**While views stop** (a driver that hangs, a node without CPU) the clock goes on and nobody is measured. What a view
showed counts until another one shows something else, and after `stale_seconds` nobody above counts as measured: low
priority may fall asleep by an old view, but never wakes by one.

What remains: work that goes on for less than 2 s after the last launch, of a container that has earned the short time,
may not be seen, and low priority may run beside it. A launch explains a duty cycle only as far as the mean of a second
can still hold what ended with it, so a container that replays graphs between rare launches loses the short time, or has
its card's time doubled: see below.

**While views stop** (a driver that hangs, a node without CPU) the clock goes on and nobody is measured. What a view
showed counts until another one shows something else, and after `stale_seconds` nobody above counts as measured: low
priority may fall asleep by an old view, but never wakes by one.

What remains: work that goes on for up to 2 s after the last launch, of a container that has earned the short time, is
not seen, and low priority may run beside it.

**Between two requests.** Waking low priority for less than the second in which the library looks whether it may go on
gives it next to nothing, and costs high priority a burst. So where somebody above it works again within 1.3 s of the
waking, or the last view before showed more work than its last launches left, the card's time doubles, up to
`quiet_seconds`; it is `release_seconds` again after a pause ten times as long. A load that flaps by whatever pattern
wakes low priority no more than about once a second.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import Enum, auto
from operator import is_

from enforcer.agent.launches import SeenLaunches
from enforcer.agent.node_view import ContainerKey, NodeView, SliceView
from fleet.inventory import Priority
from fleet.settings.agent import AgentSettings, GiveWayManner

EXPLAINED_SECONDS = 2.0
"""How long a launch explains a duty cycle: the driver's second, the library's 0.12 s, and the age of a view; of a mean
of the last second no more is left after some time than that time lacks to it."""
FADED_SECONDS = 1.25
"""Likewise, where the view is hardly older than its figures: more than that is left of a stop seldom, not never."""
REFILLED_SECONDS = 1.5
"""How long a duty cycle may be missing: the library empties it for some milliseconds out of every 120."""
SWITCHED_SECONDS = 0.5
"""How long a launch may still show that the switch as it stood before let show: the library reads it every 0.12 s."""
WORTH_SECONDS = 1.3
"""How long low priority must be awake for it to be of use, and for a view to show that high priority did stop: the
library's step, and the driver's second."""
STALE_SECONDS_MIN = 1.5
"""How old the last view may be at least before nobody counts as measured any more; twice the time between two views."""
_CALM_TIMES = 10.0
_PAUSES_MAX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What follows from one step.

    Attributes:
        asleep: containers of low priority that should sleep now.
        free: those that may work although HAMi's monitor may not know yet: all above them are believed to be idle.
        idle: who is above them, alone on its cards, so that no equal relies on its last launches being counted.
        taken: who is above low priority on cards where it sleeps anyhow, so that more launches change nothing yet.
    """

    asleep: frozenset[ContainerKey] = frozenset()
    free: frozenset[ContainerKey] = frozenset()
    idle: frozenset[ContainerKey] = frozenset()
    taken: frozenset[ContainerKey] = frozenset()


class GiveWay:
    """Remembers who works, and since when nobody does; mutable. All times are of one clock that never goes back.

    Attributes:
        manner: when low priority sleeps; orders may change it.
    """

    def __init__(self, settings: AgentSettings) -> None:
        self.manner = settings.give_way
        self._settings = settings
        self._stale_seconds = max(STALE_SECONDS_MIN, 2 * settings.interval_seconds)
        self._workers: dict[ContainerKey | str, _Worker] = {}
        self._cards: dict[str, _Card] = {}
        self._slices: tuple[SliceView, ...] = ()
        self._lows: dict[str, frozenset[ContainerKey]] = {}
        self._aboves: dict[str, list[SliceView]] = {}
        self._shared: frozenset[ContainerKey] = frozenset()
        self._states: tuple[_CardState, ...] | None = None
        self._turn = Turn()
        self._seen_at = -math.inf
        self.watched: frozenset[ContainerKey] = frozenset()
        """Containers whose launches `step` wants to know."""
        self.low: frozenset[ContainerKey] = frozenset()
        """Containers of low priority that `step` may want asleep from one look to the next."""
        self._due_at = math.inf

    def see(self, view: NodeView, now: float, short_cards: frozenset[str] = frozenset()) -> None:
        """Take what a view of the node shows; a `step` with launches that are no older than it comes before.

        Args:
            short_cards: cards whose framebuffer runs out: there low priority stops growing whatever else is so.
        """
        self._sort(view.slices)
        self._seen_at = now
        is_strict = self.manner is GiveWayManner.STRICT
        cards: dict[str, _Card] = {}
        duties: dict[ContainerKey | str, list[float | None]] = {}
        # Of a card that the driver leaves out nothing is known, as long as somebody of low priority is there.
        seen_duties = dict.fromkeys(self._lows) | {card.card: card.duty_cycle_ratio for card in view.cards}
        for card_name, card_duty in seen_duties.items():
            above, low = self._aboves.get(card_name, []), self._lows.get(card_name, frozenset())
            card = self._cards.get(card_name) or _Card(wait_seconds=self._settings.release_seconds)
            card.low, card.above = low, ()
            if is_strict and low:
                card.above = tuple(_name(entry) for entry in above)
                for entry in above:
                    duties.setdefault(_name(entry), []).append(entry.duty_cycle_ratio)
            card.is_pressed = card_name in short_cards or self._is_pressed(card_duty, above)
            if card.is_pressed:
                card.pressed_at = now
            cards[card_name] = card
        self._cards, self._states = cards, None
        self._workers = {name: self._workers.get(name) or _Worker() for name in duties}
        for name, worker in self._workers.items():
            worker.see(_largest(duties[name]), self._settings.working_ratio, now)
        self.watched = frozenset(name for name in self._workers if isinstance(name, ContainerKey))
        self.low = frozenset[ContainerKey]().union(*(card.low for card in cards.values() if card.above))

    @property
    def lows(self) -> Iterable[frozenset[ContainerKey]]:
        """Who of low priority is on each card."""
        return self._lows.values()

    def is_due(self, now: float, news: AbstractSet[ContainerKey]) -> bool:
        """Whether `step` may lead to anything.

        Args:
            news: containers of which something new is known.
        """
        return now >= self._due_at or not news <= self._turn.taken

    def step(self, now: float, launches: Mapping[ContainerKey, SeenLaunches]) -> Turn:
        """Say who should sleep now.

        Args:
            launches: of `watched`; one that is left out can't be read.

        Returns:
            The same turn as before where nothing follows that did not follow before, and nothing was seen since.
        """
        for name, worker in self._workers.items():
            worker.take(launches.get(name) if isinstance(name, ContainerKey) else None, now)
        stale_at = self._seen_at + self._stale_seconds
        if now > stale_at:
            self._miss(now)
        states = tuple(self._state(card, now) for card in self._cards.values())
        if states != self._states:
            self._states, self._turn = states, self._turn_of(states)
        self._due_at = min(
            (card.taken_until for card in self._cards.values() if now < card.taken_until), default=math.inf
        )
        if now <= stale_at:
            # The step after it, as nothing is missed at the moment itself.
            self._due_at = min(self._due_at, math.nextafter(stale_at, math.inf))
        return self._turn

    def _sort(self, slices: tuple[SliceView, ...]) -> None:
        """Sort slices by card; most looks show the very objects of the look before."""
        if len(slices) == len(self._slices) and all(map(is_, slices, self._slices)):
            return
        self._slices, self._aboves = slices, {}
        lows: dict[str, set[ContainerKey]] = {}
        for entry in slices:
            if entry.priority is not Priority.LOW:
                self._aboves.setdefault(entry.card, []).append(entry)
            # One without a UID can't be found in the folder of regions: it is left awake.
            elif (key := entry.key) is not None:
                lows.setdefault(entry.card, set()).add(key)
        self._lows = {card: frozenset(keys) for card, keys in lows.items()}
        # Whether or not anybody of low priority is there.
        equals = (entry.key for above in self._aboves.values() if len(above) > 1 for entry in above)
        self._shared = frozenset(key for key in equals if key is not None)

    def forget(self) -> None:
        """Know nothing, so that nobody sleeps, until something is seen again."""
        self._workers, self._cards, self._states = {}, {}, None
        self.watched = self.low = frozenset()

    def _miss(self, now: float) -> None:
        """Go on without views: who is not measured counts as working, and a card that was pressed stays so."""
        for worker in self._workers.values():
            worker.miss(now)
        for card in self._cards.values():
            if card.is_pressed or now < card.pressed_at + self._settings.quiet_seconds:
                card.pressed_at = now

    def _state(self, card: _Card, now: float) -> _CardState:
        workers = [self._workers[name] for name in card.above]
        quiet = self._settings.quiet_seconds
        is_believed = all(worker.is_believed for worker in workers)
        works_until = max((worker.works_until(card.wait_seconds, quiet) for worker in workers), default=-math.inf)
        outlasts = any(worker.outlasts for worker in workers)
        card.take(now < works_until, now, self._settings, is_believed=is_believed, outlasts=outlasts)
        card.taken_until = math.inf if card.is_pressed else max(works_until, card.pressed_at + quiet)
        if now < card.taken_until:
            return _CardState.TAKEN
        if not workers:
            return _CardState.NOBODY_ABOVE
        return _CardState.FREE if is_believed else _CardState.QUIET

    def _turn_of(self, states: tuple[_CardState, ...]) -> Turn:
        low: dict[_CardState, set[ContainerKey]] = {state: set() for state in _CardState}
        above: dict[_CardState, set[ContainerKey]] = {state: set() for state in _CardState}
        for card, state in zip(self._cards.values(), states, strict=True):
            names = {name for name in card.above if isinstance(name, ContainerKey)}
            low[state] |= card.low
            above[state] |= names
        taken, free, quiet = _CardState.TAKEN, _CardState.FREE, _CardState.QUIET
        return Turn(
            asleep=frozenset(low[taken]),
            free=frozenset(low[free] - low[taken] - low[quiet]),
            idle=frozenset(above[free] - above[taken] - above[quiet] - self._shared),
            taken=frozenset(above[taken] - above[free] - above[quiet]),
        )

    def _is_pressed(self, card_duty: float | None, above: list[SliceView]) -> bool:
        settings = self._settings
        if self.manner is not GiveWayManner.PRESSURE:
            return False
        is_full = card_duty is None or card_duty >= settings.full_ratio
        return is_full and any(
            entry.duty_cycle_ratio is None or entry.duty_cycle_ratio > settings.working_ratio for entry in above
        )


class _CardState(Enum):
    """Of one card: does somebody above low priority work, and how is that known?"""

    NOBODY_ABOVE = auto()
    TAKEN = auto()
    QUIET = auto()
    FREE = auto()
    """Nobody works, and launches are believed."""


@dataclass(slots=True, kw_only=True)
class _Card:
    """One card; mutable: each step moves it on.

    Attributes:
        above: who is above low priority there, where low priority sleeps whenever they work.
        pressed_at: when low priority was last wanted asleep for another reason.
        is_pressed: whether the last view wanted that.
        taken_until: until when low priority sleeps, if nothing more is heard.
        wait_seconds: how long a believed container must have launched nothing.
    """

    wait_seconds: float
    low: frozenset[ContainerKey] = frozenset()
    above: tuple[ContainerKey | str, ...] = ()
    pressed_at: float = -math.inf
    is_pressed: bool = False
    taken_until: float = -math.inf
    _is_held: bool = False
    _freed_at: float = -math.inf
    _was_believed: bool = False

    def take(self, works: bool, now: float, settings: AgentSettings, *, is_believed: bool, outlasts: bool) -> None:
        """Learn from how long low priority was let work, where launches decided that it was.

        Args:
            outlasts: whether the last view showed more work above it than the last launches left.
        """
        if works and not self._is_held and self._was_believed:
            was_free = now - self._freed_at
            if was_free < WORTH_SECONDS or outlasts:
                self.wait_seconds = min(2 * self.wait_seconds, max(settings.quiet_seconds, settings.release_seconds))
            elif was_free >= _CALM_TIMES * self.wait_seconds:
                self.wait_seconds = settings.release_seconds
        elif self._is_held and not works:
            self._freed_at, self._was_believed = now, is_believed
        self._is_held = works


@dataclass(slots=True)
class _Worker:
    """One container above low priority; mutable: each look moves it on.

    Attributes:
        busy_at: when its duty cycle last showed work, or was not known.
        launched_at: when it was last seen to have launched.
        outlasts: whether its duty cycle last showed more than a stop at its last launch was likely to leave.
    """

    busy_at: float = -math.inf
    launched_at: float = -math.inf
    outlasts: bool = False
    _is_busy: bool = False
    _measured_at: float = -math.inf
    _is_measured: bool = False
    _is_readable: bool = False
    _switch: bool = False
    _switched_at: float = -math.inf
    _is_judged: bool = True
    _owed: dict[bool, int] = field(default_factory=dict)
    _pauses: dict[bool, int] = field(default_factory=dict)

    @property
    def is_believed(self) -> bool:
        """Whether that it launches nothing means that it does nothing."""
        return self._is_measured and self._is_readable and self._owed.get(self._switch, 1) == 0

    def works_until(self, wait_seconds: float, quiet_seconds: float) -> float:
        """Until when it counts as working, if nothing more is heard of it."""
        if self.is_believed:
            return self.launched_at + wait_seconds
        # Until a view shows that it stopped: `quiet_seconds` may be shorter than the time between two of them.
        return math.inf if self._is_busy else max(self.busy_at, self.launched_at) + quiet_seconds

    def take(self, launches: SeenLaunches | None, now: float) -> None:
        """Take what looks at its launches showed."""
        if launches is None:
            if self._is_readable:
                self.busy_at = now
            self._is_readable = False
            return
        if launches.has_switch != self._switch:
            # A pause proves nothing of a switch under which it did not begin.
            self._switch, self._switched_at, self._is_judged = launches.has_switch, now, True
        self._is_readable = True
        if launches.launched_at > self.launched_at:
            self.launched_at = launches.launched_at
            self._is_judged = self.launched_at - self._switched_at < SWITCHED_SECONDS

    def miss(self, now: float) -> None:
        """Nothing was seen of it for long."""
        self.busy_at, self._is_measured = now, False

    def see(self, duty: float | None, working_ratio: float, now: float) -> None:
        """Take its duty cycle, and hold it against its launches."""
        if duty is not None:
            self._measured_at = now
        elif now - self._measured_at < REFILLED_SECONDS:
            return
        self._is_measured, self._is_busy = duty is not None, duty is None or duty > working_ratio
        since = now - self.launched_at
        self.outlasts = duty is not None and duty > max(working_ratio, FADED_SECONDS - since)
        if duty is None:
            self.busy_at = now
        elif duty > max(working_ratio, EXPLAINED_SECONDS - since):
            self.busy_at, self._is_judged = now, True
            pauses = self._pauses.get(self._switch, 1)
            if self._owed.get(self._switch, 1) == 0:
                pauses = min(_PAUSES_MAX, 2 * pauses)
            self._pauses[self._switch] = self._owed[self._switch] = pauses
        elif duty <= working_ratio and since >= EXPLAINED_SECONDS and not self._is_judged:
            self._is_judged = True
            self._owed[self._switch] = max(0, self._owed.get(self._switch, 1) - 1)


def _name(entry: SliceView) -> ContainerKey | str:
    return entry.key or f"{entry.pod_id}/{entry.container}"


def _largest(duties: list[float | None]) -> float | None:
    """Of one container on its cards; None where one of them is not known."""
    known = [duty for duty in duties if duty is not None]
    return max(known) if len(known) == len(duties) else None
