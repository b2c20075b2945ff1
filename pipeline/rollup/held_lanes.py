"""Which lanes of a bus this process takes in, where several share one warehouse.

Each process holds its lanes by locks beside the warehouse's manifest, which say nothing once it is dead: the others
then take its lanes. Each has as many as any other, rounded up: one that has more gives lanes up between two steps.
Called by `gputide.container.rollup`.

    lanes/rollup-0.lock, lanes/rollup-1.lock, …    held by a process as long as it takes lanes
    lanes/lane-0.lock, lanes/lane-1.lock, …        held by the process that takes the lane in
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, nullcontext, suppress
from pathlib import Path

from fleet.durable import FolderLock, Held, lock_holder
from fleet.errors import Corrupt
from pipeline.bus.bus import Chunk, OpenedLane
from pipeline.records.rows import unpack

WORKERS_MAX = 64
"""Processes that take in the lanes of one bus at once."""
_FOLDER = "lanes"


class HeldLanes:
    """The lanes of this process; mutable: they change as other processes come and go.

    Args:
        warehouse: its folder.
        lanes: says which lanes there are now.
        open_lane: opens one of them anew.
    """

    def __init__(
        self, warehouse: Path, lanes: Callable[[], Sequence[int]], open_lane: Callable[[int], OpenedLane]
    ) -> None:
        self._folder = warehouse / _FOLDER
        self._lanes = lanes
        self._open_lane = open_lane
        self._presence: FolderLock | None = None
        self._held: dict[int, tuple[FolderLock, OpenedLane]] = {}

    def now(self) -> list[OpenedLane]:
        """Gives up and takes lanes until this process has its share, as far as others let go; those that it has.

        Raises:
            Unavailable: too many processes take lanes, or one that was taken can't be opened.
            Corrupt: the folder can't be written.
        """
        if self._presence is None:
            self._presence = self._first_free()
        lanes = self._lanes()
        share = -(-len(lanes) // self._workers())
        for lane in sorted(self._held)[share:]:
            self._give_up(lane)
        for lane in lanes:
            if len(self._held) >= share:
                break
            if lane not in self._held:
                with suppress(Held):
                    self._take(lane)
        return [opened for _, opened in self._held.values()]

    def is_empty(self) -> bool:
        """Whether nothing waits on any lane, of this process or another one."""
        return next(self._waiting(), None) is None

    def reached_ms(self) -> int | None:
        """How far the lane that is furthest behind was taken in: the newest sample of its next record.

        Returns:
            Epoch milliseconds; None where nothing waits. Records that can't be read, or have no use, say nothing.
        """
        reached: list[int] = []
        for chunk in self._waiting():
            with suppress(Corrupt):
                found = [section for record in chunk.records[:1] for section in unpack(record)]
                times = [int(section.ts_ms.max()) for section in found if section.measures and len(section.ts_ms)]
                reached += [max(times)] if times else []
        return min(reached, default=None)

    def _waiting(self) -> Iterator[Chunk]:
        for lane in self._lanes():
            is_held = lane in self._held
            with nullcontext(self._held[lane][1]) if is_held else closing(self._open_lane(lane)) as opened:
                chunk = opened.read(opened.committed(), bytes_max=1)
            if chunk is not None:
                yield chunk

    def close(self) -> None:
        """Lets others have all lanes."""
        for lane in list(self._held):
            self._give_up(lane)
        if self._presence is not None:
            self._presence.release()
            self._presence = None

    def _first_free(self) -> FolderLock:
        for place in range(WORKERS_MAX - 1):
            with suppress(Held):
                return FolderLock(self._folder, f"rollup-{place}")
        return FolderLock(self._folder, f"rollup-{WORKERS_MAX - 1}")

    def _workers(self) -> int:
        return sum(lock_holder(path) is not None for path in self._folder.glob("rollup-*.lock"))

    def _take(self, lane: int) -> None:
        lock = FolderLock(self._folder, f"lane-{lane}")
        try:
            self._held[lane] = lock, self._open_lane(lane)
        except BaseException:
            lock.release()
            raise

    def _give_up(self, lane: int) -> None:
        lock, opened = self._held.pop(lane)
        with lock:
            opened.close()
