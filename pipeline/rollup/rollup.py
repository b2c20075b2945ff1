"""The port of the rollup: bus in, additive rows out; and what one that runs on counts of itself and sees to beside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

from wire.telemetry import record

if TYPE_CHECKING:
    from wire.own_metrics import OwnMetrics


@dataclass(frozen=True, slots=True, kw_only=True)
class RollupStep:
    """What one step did.

    Attributes:
        records: records that it took, of all lanes.
        corrupt: records that could not be read and were passed over.
        samples: partial rows that came in.
        repeats: partial rows that brought nothing new: merged into others or counted before.
        late: samples of days that were closed, which are not counted.
        rows: rows written, all tables and levels.
    """

    records: int
    corrupt: int
    samples: int
    repeats: int
    late: int
    rows: int


class Rollup(Protocol):
    """Turns the bus into windows.

    Contract: merged over all its rows, the result depends on the set of samples only, not on their order, on how they
    are split into records, on repeats or on restarts; late samples are merged. A sample is distinguished by
    series and time; where one (series, time) comes with several values, the largest within a step counts, and what an
    earlier step has counted stays. Samples of days that upkeep has closed are not counted, but their number is.
    """

    def step(self) -> RollupStep | None:
        """Takes in the next piece of the bus, of all lanes that this process has; None where there is none.

        Raises:
            Unavailable: this process can't write into the warehouse, or not reach the bus.
            Corrupt: the storage can't take the rows; the same piece is taken in again by the next step.
        """
        ...


class RollupMetrics:
    """What a rollup counts of itself."""

    def __init__(self, own: OwnMetrics) -> None:
        self.steps = own.passes("step", "step from the bus to the warehouse")
        self.records = own.counter("records_total", "Records that were taken from the bus.")
        self.samples = own.counter("samples_total", "Partial rows that came in.")
        self.repeats = own.counter("repeats_total", "Partial rows that brought nothing new.")
        self.late = own.counter("late_total", "Samples of closed days (rollup.late_days), which were not counted.")
        self.corrupt = own.counter("corrupt_total", "Records that could not be read.")
        self.rows = own.counter("rows_total", "Rows that were written, all tables and levels.")
        self.waiting_bytes = own.followed_gauge(
            "waiting_bytes",
            "Bytes on the file bus that were not taken in; absent with Kafka, whose brokers show the lag.",
        )


class CountedRollup:
    """A rollup whose steps are counted."""

    def __init__(self, rollup: Rollup, metrics: RollupMetrics) -> None:
        self._rollup, self._metrics = rollup, metrics

    def step(self) -> RollupStep | None:
        """Takes in the next piece of the bus; see `Rollup.step`."""
        metrics = self._metrics
        began = perf_counter()
        with metrics.steps.one():
            step = self._rollup.step()
        if step is not None:
            record("gputide.rollup.step", perf_counter() - began, samples=step.samples, rows=step.rows)
            metrics.records.inc(step.records)
            metrics.samples.inc(step.samples)
            metrics.repeats.inc(step.repeats)
            metrics.late.inc(step.late)
            metrics.corrupt.inc(step.corrupt)
            metrics.rows.inc(step.rows)
        return step


class TendingRollup:
    """A rollup that looks after its warehouse between its steps.

    One partition is done per step that brought nothing, so samples never wait for more than one. Under a bus that is
    never empty upkeep waits for as long again as it is due, and then takes turns with the steps: files would pile up
    without end.

    Args:
        upkeep: begins a round of work; each item that it yields is one piece done.
        every_seconds: time from the start, or the end of a round, to the next round.
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
