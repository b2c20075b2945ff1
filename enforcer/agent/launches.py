"""When containers last launched a kernel, as their regions show it within one look.

**How a launch shows.** The library writes 2 into `recent_kernel` at every launch (up to HAMi 2.8.0: of any process
whose host pid it found; from 2.8.1: only under a core limit of 1 to 99 and with the switch on, which it reads again
every 120 ms), and nothing ever takes the 2 away but HAMi's monitor, by 1 every 5 s. So a launch is seen by writing
another value over the last one, and looking whether 2 stands there again. `last_kernel_time` has whole seconds, and
utilisation by process is the driver's mean of the last second, so neither can show that somebody stopped 100 ms ago.

**Beside HAMi's monitor.** Every 5 s it takes 1 off a `recent_kernel` above 0, counts the container as active where more
than 0 is left, and by that writes -1 into whoever has a lower priority on the card, and switches core limits. A plain 0
or 1 over a launch would hide the launch from it, and equals that share a card would lose their limits. So what is
written is `LAUNCH_SEEN`: one less is still above 0, and it can't be taken for a launch. It stands for the 5 s in which
the monitor counts a launch, then 0 does; where the agent stops looking, what the library's 2 would be by then. If it
dies, the monitor counts it down in 20 s, and the next launch writes 2 as ever. A -1 is left alone.

Where a container's launches show at all is for `give_way` to find out.
"""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

from enforcer.agent.held_regions import HeldRegion, HeldRegions
from enforcer.agent.node_view import ContainerKey
from fleet.errors import Refused
from fleet.regions.fields import BLOCKED, LAUNCH_SEEN, LAUNCHED

COUNTED_SECONDS = 5.0
"""How long HAMi's monitor counts a launch."""
_FRESH_SECONDS = 3.0
"""At the first look: a last launch, in whole seconds, that is younger counts as one of now."""


@dataclass(slots=True, kw_only=True)
class SeenLaunches:
    """What is known of one container's launches; mutable: each look moves it on.

    Attributes:
        launched_at: when the last one was seen; minus infinity for never.
        has_switch: whether its `utilization_switch` is on, on which it depends whether launches show.
    """

    launched_at: float = -math.inf
    has_switch: bool = False


class Launches:
    """Looks at the launches of some containers; mutable. Times are of one clock that never goes back.

    Args:
        containers: root of all regions.
        wall_clock: Unix seconds.
    """

    def __init__(self, containers: Path, wall_clock: Callable[[], float] = time.time) -> None:
        self._regions = HeldRegions(containers)
        self._wall_clock = wall_clock
        self._watched: dict[ContainerKey, _Watched] = {}
        self._news_at = -math.inf

    @property
    def seen(self) -> Mapping[ContainerKey, SeenLaunches]:
        """What is known; of a container whose region can't be read, nothing."""
        return {key: watched.seen for key, watched in self._watched.items()}

    @property
    def refused(self) -> Mapping[ContainerKey, str]:
        """Whose launches can't be looked at though they have a region, and why."""
        return self._regions.refused

    @property
    def is_watching(self) -> bool:
        """Whether there is anybody to look at."""
        return bool(self._watched)

    def is_calm(self, now: float) -> bool:
        """Whether nobody launched for `COUNTED_SECONDS`."""
        return now - self._news_at >= COUNTED_SECONDS

    def watch(self, keys: AbstractSet[ContainerKey]) -> None:
        """Look at these from now on, and anew at those whose files are others now."""
        for key in self._watched.keys() - keys:
            self._watched[key].leave()
        self._regions.keep(keys)
        before, self._watched = self._watched, {}
        for key in keys:
            held, known = self._regions.held(key), before.get(key)
            if held is None:
                self._regions.drop(key)
            else:
                self._watched[key] = known if known is not None and known.held is held else _Watched(held)

    def look(self, now: float) -> AbstractSet[ContainerKey]:
        """Look once.

        Returns:
            Of which containers something is new: a launch, another switch, or that the region can't be read any more
            (until the next `watch`).
        """
        news: set[ContainerKey] = set()
        for key in self._pending(now):
            try:
                if self._watched[key].look(now, self._wall_clock):
                    news.add(key)
            except Refused:
                self._regions.drop(key)
                del self._watched[key]
                news.add(key)
        if news:
            self._news_at = now
        return news

    def _pending(self, now: float) -> list[ContainerKey]:
        """Of which containers more has to be read: of few, and the agent costs little as long as this does."""
        watched = self._watched
        try:
            return [key for key, one in watched.items() if now >= one.counted_until or one.held.peek() != one.tail]
        except OSError:
            return list(watched)

    def uncount(self, keys: AbstractSet[ContainerKey]) -> None:
        """Have HAMi's monitor count no launch of these any more."""
        for key in keys & self._watched.keys():
            try:
                self._watched[key].uncount()
            except Refused:
                self._regions.drop(key)
                del self._watched[key]

    def close(self) -> None:
        """Look at nobody any more."""
        self.watch(frozenset())


class _Watched:
    """One container from look to look.

    Attributes:
        tail: what its region showed where nothing has to be done about it; empty where something has.
        counted_until: when its launch must be counted no more.
    """

    def __init__(self, held: HeldRegion) -> None:
        self.held = held
        self.seen = SeenLaunches()
        self.tail = b""
        self.counted_until = math.inf
        self._is_first = True

    def look(self, now: float, wall_clock: Callable[[], float]) -> bool:
        """Whether there are news."""
        tail = self.held.tail_bytes()
        _, switch, recent, _ = struct.unpack("<4i", tail)
        is_news = self._is_first or (switch != 0) != self.seen.has_switch
        self.seen.has_switch = switch != 0
        is_launch = 0 < recent <= LAUNCHED
        if is_launch or not BLOCKED <= recent <= LAUNCH_SEEN:
            # What stands there at the first look may be hours old; a value that nobody writes may mean anything.
            if not (self._is_first and is_launch) or self._is_fresh(wall_clock):
                self.seen.launched_at, is_news = now, True
                self.counted_until = now + COUNTED_SECONDS
            if is_launch:
                self._write(LAUNCH_SEEN if self.seen.launched_at == now else 0, tail)
            else:
                self.tail = b""
        else:
            self.tail = tail
            if self._is_first:
                self.counted_until = now + COUNTED_SECONDS
            elif now >= self.counted_until:
                self.uncount()
        self._is_first = False
        return is_news

    def uncount(self) -> None:
        tail = self.held.tail_bytes()
        self.counted_until = math.inf
        if struct.unpack("<4i", tail)[2] in (LAUNCH_SEEN, LAUNCH_SEEN - 1):
            self._write(0, tail)

    def leave(self) -> None:
        """Leave what would stand there now if the launch had not been written over."""
        try:
            recent = self.held.tail()[2]
            if self.held.stands and recent in (LAUNCH_SEEN, LAUNCH_SEEN - 1):
                self.held.set_recent_kernel(recent - LAUNCH_SEEN + LAUNCHED)
        except Refused:
            # It is left either way, and nothing that can't be read is written.
            return

    def _write(self, value: int, tail: bytes) -> None:
        self.held.set_recent_kernel(value)
        self.tail = tail[:8] + struct.pack("<i", value) + tail[12:]

    def _is_fresh(self, wall_clock: Callable[[], float]) -> bool:
        last = self.held.last_kernel_at()
        return last is None or wall_clock() - last < _FRESH_SECONDS
