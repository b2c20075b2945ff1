"""Puts containers to sleep and wakes them through their regions, and remembers on disk whom it put to sleep.

A container sleeps until something wakes it, so a list of ours lies on the node before the first process sleeps: an
agent that was killed wakes them when it starts again, and one that stops wakes them before. Who may have to sleep from
one look to the next stands on it in advance, because storage takes longer than they may go on. New processes join awake
and slots move, so sleep is written again and again. A container with no region, or one that can't be trusted, is
reported and left awake, but for processes that have mapped a region which this agent had open before.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from contextlib import suppress
from pathlib import Path

from enforcer.agent.held_regions import HeldRegions
from enforcer.agent.node_view import ContainerKey
from fleet.durable import write_durably
from fleet.errors import Refused
from fleet.regions.fields import BLOCKED


class Sleepers:
    """Containers that this agent put to sleep, kept in the file `memory`; mutable.

    Args:
        containers: root of all regions.
    """

    def __init__(self, containers: Path, memory: Path) -> None:
        self._containers = containers
        self._regions = HeldRegions(containers, keeps_moved=True)
        self._memory = memory
        self._listed = _remembered(memory)
        self._asleep = set(self._listed)
        self._expected: frozenset[ContainerKey] = frozenset()
        self.refused: dict[ContainerKey, str] = {}
        """Containers that should sleep and can't be put to sleep, and why; as of the last `follow`."""

    @property
    def asleep(self) -> frozenset[ContainerKey]:
        """Whom it put to sleep and has not woken."""
        return frozenset(self._asleep)

    def expect(self, keys: frozenset[ContainerKey]) -> None:
        """Be ready to put these to sleep at once: their regions open, their names on the list.

        Raises:
            Corrupt: the list can't be kept.
        """
        self._expected = keys
        self._regions.keep(keys | self._asleep)
        if self._listed != self._asleep | self._expected:
            self._remember(self._asleep | self._expected)

    def follow(
        self, wanted: AbstractSet[ContainerKey], now_seconds: float
    ) -> tuple[tuple[ContainerKey, ...], tuple[ContainerKey, ...]]:
        """Puts to sleep who should, and wakes who need not sleep any more.

        Args:
            now_seconds: by a clock that never goes back.

        Returns:
            Who fell asleep, and who woke, by UID and name.

        Raises:
            Corrupt: the list can't be kept; nobody fell asleep then.
        """
        fallen = sorted(wanted - self._asleep, key=_order)
        if not self._listed >= wanted:
            # First the list, then the sleep: who sleeps and stands on no list would sleep for ever.
            self._remember(self._asleep | wanted | self._expected)
        self.refused = {}
        # Before anybody wakes: high priority waits for the one, low priority for the other.
        for key in (*fallen, *sorted(wanted & self._asleep, key=_order)):
            self._pause(key, now_seconds)
        woken = tuple(key for key in sorted(self._asleep - wanted, key=_order) if self._wake(key))
        self._asleep |= wanted
        if self._listed != self._asleep | self._expected:
            self._remember(self._asleep | self._expected)
        return tuple(key for key in fallen if key not in self.refused), woken

    def follow_quickly(
        self, wanted: AbstractSet[ContainerKey], now_seconds: float
    ) -> tuple[tuple[ContainerKey, ...], tuple[ContainerKey, ...]]:
        """Like `follow`, of those alone that are expected and whose regions are open, and without a word to storage."""
        fallen = self._open_of((wanted & self._expected & self._listed) - self._asleep)
        for key in fallen:
            self._pause(key, now_seconds)
        self._asleep |= set(fallen)
        woken = tuple(key for key in self._open_of((self._asleep & self._expected) - wanted) if self._wake(key))
        return tuple(key for key in fallen if key not in self.refused), woken

    def unblock(self, free: AbstractSet[ContainerKey], cards: Iterable[frozenset[ContainerKey]]) -> None:
        """Takes away the block of HAMi's monitor, which learns only every 5 s that nobody above them works.

        Args:
            cards: who of low priority shares a card. Where HAMi ranks them, by what their regions say, as HAMi does,
                the block may be between them, and stays.
        """
        ranked: set[ContainerKey] = set()
        for keys in cards:
            if len(keys) > 1 and keys & free and len({self._rank(key) for key in keys}) > 1:
                ranked |= keys
        for key in free - ranked:
            held = self._regions.held(key)
            try:
                if held is not None and held.tail()[2] == BLOCKED:
                    held.set_recent_kernel(0)
            except Refused:
                self._regions.drop(key)

    def _rank(self, key: ContainerKey) -> int | None:
        """HAMi's priority, 0 the highest; None where the region can't be read."""
        held = self._regions.held(key)
        try:
            return None if held is None else held.tail()[3]
        except Refused:
            return None

    def wake_all(self) -> tuple[ContainerKey, ...]:
        """Wakes everybody that it put to sleep; who woke."""
        self._expected = frozenset()
        return self.follow(frozenset(), 0.0)[1]

    def _open_of(self, keys: AbstractSet[ContainerKey]) -> list[ContainerKey]:
        return [key for key in sorted(keys, key=_order) if self._regions.held(key) is not None]

    def _pause(self, key: ContainerKey, now_seconds: float) -> None:
        try:
            self._regions.get(key).pause(now_seconds)
        except Refused as exc:
            self._regions.drop(key)
            self.refused[key] = str(exc)
        else:
            self.refused.pop(key, None)
        for moved in self._regions.moved(key):
            with suppress(Refused):
                moved.pause(now_seconds)

    def _wake(self, key: ContainerKey) -> bool:
        """True where it slept and is awake now; a container that is gone needs no waking."""
        for moved in self._regions.moved(key):
            with suppress(Refused):
                moved.resume()
        try:
            slept = self._regions.get(key).resume()
        except Refused:
            self._regions.drop(key)
            if key.folder(self._containers).is_dir():
                # It may be believed again at the next look: a process joined or left in the middle of this one.
                return False
            slept = 1
        self._asleep.discard(key)
        return slept > 0

    def _remember(self, listed: AbstractSet[ContainerKey]) -> None:
        content = [[key.pod_uid, key.container] for key in sorted(listed, key=_order)]
        write_durably(self._memory, json.dumps(content).encode())
        self._listed = set(listed)


def _remembered(memory: Path) -> set[ContainerKey]:
    try:
        found = json.loads(memory.read_bytes())
        return {ContainerKey(pod_uid=str(uid), container=str(container)) for uid, container in found}
    except (OSError, ValueError, TypeError, RecursionError):
        return set()


def _order(key: ContainerKey) -> tuple[str, str]:
    return key.pod_uid, key.container
