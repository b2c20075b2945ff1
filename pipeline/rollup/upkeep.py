"""A rollup that looks after its warehouse while the bus is empty: a running rollup lets nobody else write there.

One partition is done per step that brought nothing, so samples never wait for more than one. Under a bus that is never
empty upkeep waits for as long again as it is due, and then takes turns with the steps: files would pile up without end.
Called by `gputide.container.warehouse`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pipeline.rollup.rollup import Rollup, RollupStep


class TendingRollup:
    """A rollup, and work that is done now and then between its steps.

    Args:
        upkeep: begins a round of work; each item that it yields is one piece done.
        every_seconds: time from the start, or the end of a round, to the next round.
        now_seconds: a clock that only goes forward.
    """

    def __init__(
        self,
        rollup: Rollup,
        upkeep: Callable[[], Iterator[object]],
        *,
        every_seconds: float,
        now_seconds: Callable[[], float],
    ) -> None:
        self._rollup = rollup
        self._upkeep = upkeep
        self._every_seconds = every_seconds
        self._now_seconds = now_seconds
        self._due_seconds = now_seconds() + every_seconds
        self._round: Iterator[object] | None = None

    def step(self) -> RollupStep | None:
        """Takes in the next piece of the bus; where there is none, or never is, does a piece of upkeep if it is due.

        Raises:
            Unavailable: as `Rollup.step`, or upkeep can't reach what it needs; its round begins anew.
            Corrupt: as `Rollup.step`, or a file can't be merged.
        """
        step = self._rollup.step()
        if step is None or self._now_seconds() >= self._due_seconds + self._every_seconds:
            self._tend()
        return step

    def _tend(self) -> None:
        if self._round is None:
            if self._now_seconds() < self._due_seconds:
                return
            self._round = self._upkeep()
        round_under_way, self._round = self._round, None
        is_over = next(round_under_way, None) is None
        if is_over:
            self._due_seconds = self._now_seconds() + self._every_seconds
        else:
            self._round = round_under_way
