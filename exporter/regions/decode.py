"""Takes a batch of regions apart: figures per card and container, and every reason not to believe one.

Pure: bytes in, columns out. What a figure must satisfy to be believed stands in `fleet.regions.doubts`; a figure that
doesn't is NaN, never 0. The library's own accounting has habits of its own, which are known here:

- `used.total` is the sum of its parts once an update is complete; a reader that sees another sum came in between
  (`needs_another_look`). No lock is taken: the semaphore's owner is a process id of the container.
- The driver's figures (utilisation, `monitorused`) are zeroed and filled again about every 120 ms, together. A zero
  utilisation of a process that uses the card is therefore no 0 unless its `monitorused` stands there.
- They are written only for processes whose host pid the library found: without one nothing was measured.
- A process that was killed keeps its slot, and its usage in it, until another one of its container starts.
- Accounting goes by the driver's numbering of cards, the driver's figures by CUDA's; they differ where a container sets
  CUDA_VISIBLE_DEVICES, and the region doesn't say so.

Sources: Project-HAMi/HAMi-core:src/multiprocess/multiprocess_memory_limit.c (add_gpu_device_memory_usage,
init_gpu_device_utilization, try_create_shrreg), multiprocess_utilization_watcher.c (get_used_gpu_utilization);
Project-HAMi/HAMi#555, #601, #1181, #1565, #1794, #2015; Project-HAMi/HAMi-core#32, #225.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from exporter.regions.batch import RegionBatch
from fleet.regions.doubts import RegionDoubt, bit_of
from fleet.regions.fields import (
    BLOCKED,
    MAGIC,
    PROCESS_DEAD,
    PROCESS_SUSPENDED,
    PROCESSES_MAX,
    RECENT_KERNEL_MAX,
    RegionField,
)

Float64 = NDArray[np.float64]
Flags = NDArray[np.bool_]
Bits = NDArray[np.uint32]
Words = NDArray[np.uint64]

FRAMEBUFFER_BYTES_MAX = float(2**43)
"""More framebuffer than any card has (8 TiB), for cards whose size is not known."""
LIMIT_BYTES_MAX = float(2**44)
"""More than any limit, oversubscription included (16 TiB)."""
PROCESS_ID_MAX = 1 << 22
"""Largest process id of Linux (`PID_MAX_LIMIT`)."""
PRIORITY_MAX = 100
"""HAMi uses 0 and 1; users of the bare library set small numbers of their own."""
CLOCK_SLACK_SECONDS = 5.0
"""How far the last kernel may lie in the future: a clock that was set back a little is no lie."""
LIBRARY_BORN_AT_SECONDS = 1.5e9
"""No kernel was launched under the library before 2017."""

_UNMEASURED = np.uint64(2**64 - 1)
"""NVML's word for "this driver can't tell", which the library copies as it is."""
_SIGN = np.uint64(63)


class DutyDoubt(IntEnum):
    """Why a container's duty cycle on a card is, or is not, there."""

    MEASURED = 0
    NOT_RECORDED = 1
    """The region's layout has no utilisation."""
    NO_HOST_PID = 2
    """A process uses the card, but the library didn't find it on the host, so nothing was measured."""
    BETWEEN_REFILLS = 3
    """A process uses the card, and its figures were just zeroed; or nothing fills them again."""
    IMPOSSIBLE = 4
    """One process above 100 percent."""
    ZERO_WHILE_CARD_BUSY = 5
    """0 reading after reading on a card that is busy and that nobody else was granted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardColumns:
    """What a region says per card; NaN = not there.

    Attributes:
        framebuffer_used: bytes that the library counted.
        framebuffer_context: of these, contexts.
        framebuffer_module: of these, loaded code.
        framebuffer_data: of these, data.
        framebuffer_of_driver: bytes that the driver counts for the same processes.
        framebuffer_limit: bytes; NaN = none.
        compute_limit: ratio 0-1; 1 = none.
        duty_cycle: ratio 0-1.
        duty_doubt: `DutyDoubt`: why the duty cycle is not there.
    """

    framebuffer_used: Float64
    framebuffer_context: Float64
    framebuffer_module: Float64
    framebuffer_data: Float64
    framebuffer_of_driver: Float64
    framebuffer_limit: Float64
    compute_limit: Float64
    duty_cycle: Float64
    duty_doubt: NDArray[np.int8]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateColumns:
    """What a region says of its container as a whole; NaN = not there.

    Attributes:
        priority: 0 is high.
        last_kernel_at: Unix seconds of the last kernel launch or process start.
        is_blocked: 1 where no kernel may be launched, else 0.
        is_recently_active: 1 where a kernel was launched a moment ago, as far as the library gates it; else 0.
        is_compute_limited: 1 where the compute limit is switched on, else 0.
    """

    priority: Float64
    last_kernel_at: Float64
    is_blocked: Float64
    is_recently_active: Float64
    is_compute_limited: Float64


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a batch of regions says. Per row shape `(rows,)`, per card `(rows, cards)`, per slot `(rows, slots)`.

    Attributes:
        doubts: bit set of `RegionDoubt` per row.
        needs_another_look: per row: a writer was seen at work.
        has_stateless_process: per row: a process id without a state, as if this were another layout.
        process_count: slots in use per row, as the region says; 0 where that is impossible.
        table: digest of the process table per row; never 0.
        usage: digest of all usage per row.
        cards: per card.
        state: per row.
        is_live: per slot: a living process.
        is_suspended: per slot: living, and paused.
        pid: per slot, inside the container.
        host_pid: per slot; 0 = not found.
    """

    doubts: Bits
    needs_another_look: Flags
    has_stateless_process: Flags
    process_count: NDArray[np.int64]
    table: Words
    usage: Words
    cards: CardColumns
    state: StateColumns
    is_live: Flags
    is_suspended: Flags
    pid: NDArray[np.int32]
    host_pid: NDArray[np.int32]


def take_apart(
    batch: RegionBatch,
    *,
    card_counts: NDArray[np.int64],
    framebuffer_max: Float64,
    now_seconds: float,
    gone: NDArray[np.int32],
) -> Figures:
    """The figures of a batch.

    Args:
        framebuffer_max: framebuffer of each card, bytes, shape `(rows, cards)` with the most cards of any row; NaN
            where it isn't known.
        gone: host pids of processes that live no more, whatever their slots say.
    """
    table = _ProcessTable(batch, gone)
    doubts = _doubts_of_head(batch) | table.doubts
    cards = framebuffer_max.shape[1]
    is_card = np.arange(cards) < card_counts[:, None]
    usage = _Usage(batch, table.is_live, is_card, np.fmin(framebuffer_max, FRAMEBUFFER_BYTES_MAX))
    duty_cycle, duty_doubt = _duty_cycle(batch, table, usage, cards)
    state, of_state = _state(batch, now_seconds)
    limit = _unsigned(batch, RegionField.LIMIT, cards).astype(np.float64)
    compute = _unsigned(batch, RegionField.SM_LIMIT, cards).astype(np.float64)
    of_cards = (
        (usage.is_underflowed, RegionDoubt.FRAMEBUFFER_UNDERFLOWED),
        (usage.is_above_card, RegionDoubt.FRAMEBUFFER_ABOVE_CARD),
        (usage.is_torn, RegionDoubt.FRAMEBUFFER_PARTS_DISAGREE),
        (limit > LIMIT_BYTES_MAX, RegionDoubt.FRAMEBUFFER_LIMIT_IMPOSSIBLE),
        (compute > 100, RegionDoubt.COMPUTE_LIMIT_IMPOSSIBLE),
        (duty_doubt == DutyDoubt.IMPOSSIBLE, RegionDoubt.UTILISATION_IMPOSSIBLE),
    )
    is_doubtful = (np.stack([flags for flags, _ in of_cards]) & is_card).any(axis=2)
    doubts |= np.array([bit_of(doubt) for _, doubt in of_cards], dtype=np.uint32) @ is_doubtful
    return Figures(
        doubts=doubts | of_state,
        needs_another_look=(usage.is_torn & is_card).any(axis=1) | table.is_changing,
        has_stateless_process=table.has_stateless_process,
        process_count=table.count,
        table=table.digest,
        usage=usage.digest,
        cards=CardColumns(
            framebuffer_used=usage.believed(usage.total),
            framebuffer_context=usage.believed(usage.context),
            framebuffer_module=usage.believed(usage.module),
            framebuffer_data=usage.believed(usage.data),
            framebuffer_of_driver=usage.of_driver,
            framebuffer_limit=np.where((limit == 0) | (limit > LIMIT_BYTES_MAX), np.nan, limit),
            compute_limit=np.where(compute == 0, 1.0, np.where(compute > 100, np.nan, compute / 100)),
            duty_cycle=duty_cycle,
            duty_doubt=duty_doubt,
        ),
        state=state,
        is_live=table.is_live,
        is_suspended=table.is_live & (table.status == PROCESS_SUSPENDED),
        pid=table.pid,
        host_pid=table.host_pid,
    )


class _ProcessTable:
    """Who is in the region."""

    def __init__(self, batch: RegionBatch, gone: NDArray[np.int32]) -> None:
        count = _signed(batch, RegionField.PROC_NUM)
        is_possible = (count >= 0) & (count <= PROCESSES_MAX)
        self.count = np.where(is_possible, count, 0).astype(np.int64)
        self.pid = _signed(batch, RegionField.PID).copy()
        self.host_pid = _signed(batch, RegionField.HOSTPID).copy()
        self.status = _signed(batch, RegionField.STATUS).copy()
        in_use = np.arange(batch.shape.slots) < self.count[:, None]
        has_id = in_use & (self.pid > 0)
        self.is_live = has_id & (self.status != PROCESS_DEAD)
        if len(gone):
            self.is_live &= ~np.isin(self.host_pid, gone)
        self.has_stateless_process = (has_id & (self.status == PROCESS_DEAD)).any(axis=1)
        repeated = self._repeated()
        strange = in_use & (
            (self.pid < 0)
            | (self.pid > PROCESS_ID_MAX)
            | (self.host_pid < 0)
            | (self.host_pid > PROCESS_ID_MAX)
            | (self.status < 0)
            | (self.status > PROCESS_SUSPENDED)
        )
        self.doubts = _bits(~is_possible, RegionDoubt.PROCESS_COUNT_IMPOSSIBLE)
        self.doubts |= _bits(strange.any(axis=1) | repeated, RegionDoubt.PROCESS_IMPOSSIBLE)
        self.is_changing = repeated
        if RegionField.SEQLOCK in batch.shape.layout.fields:
            odd = (_unsigned(batch, RegionField.SEQLOCK) & np.uint64(1)).astype(np.bool_)
            self.is_changing = repeated | (odd & self.is_live).any(axis=1)
        words = np.where(in_use, self.pid.astype(np.uint64) << np.uint64(32) | self.host_pid.astype(np.uint32), 0)
        words = words * np.uint64(4) + np.where(in_use, self.status, 0).astype(np.uint64)
        self.digest = _digest(words) * np.uint64(2048) + self.count.astype(np.uint64) + np.uint64(1)

    def _repeated(self) -> Flags:
        """Whether one process stands in two slots."""
        if self.pid.shape[1] == 1:
            return np.zeros(len(self.pid), dtype=np.bool_)
        # Slots without a process get a number each that no process has.
        numbers = np.where(self.is_live, self.pid.astype(np.int64), -1 - np.arange(self.pid.shape[1]))
        return np.asarray((np.diff(np.sort(numbers, axis=1), axis=1) == 0).any(axis=1))


class _Usage:
    """Framebuffer per card, summed over living processes."""

    def __init__(self, batch: RegionBatch, is_live: Flags, is_card: Flags, framebuffer_max: Float64) -> None:
        cards = framebuffer_max.shape[1]
        live = is_live[:, :, None]
        # Context, module, data, offset (which nobody writes) and total stand side by side.
        stored = _unsigned(batch, RegionField.USED_CONTEXT, cards, neighbours=5)
        used: Words = np.where(live[..., None], stored, np.uint64(0))
        used[..., 3] = 0
        parts, total = used[..., :3], used[..., 4]
        driver = np.where(live, _unsigned(batch, RegionField.MONITORUSED, cards), np.uint64(0))
        self.digest = _digest(used.reshape(len(used), -1))
        # The second half keeps three wild parts, whose sum wraps around to the total, from being believed.
        self.is_torn = ((parts.sum(axis=-1) != total) | (parts.max(axis=-1) > total)).any(axis=1)
        self.is_underflowed = (used >> _SIGN).any(axis=(1, 3))
        sums = _sum(used)
        self.context, self.module, self.data, self.total = (sums[..., part] for part in (0, 1, 2, 4))
        is_measured = driver != _UNMEASURED
        self.by_process = total
        self.driver_by_process = np.where(is_measured, driver, np.uint64(0))
        of_driver = _sum(self.driver_by_process)
        driver_is_above = of_driver > framebuffer_max
        used_is_above = (self.total > framebuffer_max) & ~self.is_underflowed
        self.is_above_card = used_is_above | driver_is_above
        self.of_driver = np.where((of_driver == 0) | driver_is_above | ~is_card, np.nan, of_driver)
        self._is_believed = is_card & ~(self.is_torn | self.is_underflowed | used_is_above)

    def believed(self, figure: Float64) -> Float64:
        return np.where(self._is_believed, figure, np.nan)


def _state(batch: RegionBatch, now_seconds: float) -> tuple[StateColumns, Bits]:
    """The state, and the doubts about it."""
    # Switch, recent kernel and priority stand side by side.
    switch, recent, priority = _signed(batch, RegionField.UTILIZATION_SWITCH, neighbours=3).astype(np.float64).T
    priority_is_possible = (priority >= 0) & (priority <= PRIORITY_MAX)
    recent_is_possible = (recent >= BLOCKED) & (recent <= RECENT_KERNEL_MAX)
    switch_is_possible = (switch == 0) | (switch == 1)
    doubts = _bits(~(priority_is_possible & recent_is_possible & switch_is_possible), RegionDoubt.STATE_IMPOSSIBLE)
    last = np.full(batch.rows, np.nan)
    if RegionField.LAST_KERNEL_TIME in batch.shape.layout.fields:
        last = _unsigned(batch, RegionField.LAST_KERNEL_TIME).astype(np.float64)
        is_possible = (last >= LIBRARY_BORN_AT_SECONDS) & (last <= now_seconds + CLOCK_SLACK_SECONDS)
        doubts |= _bits(~is_possible & (last != 0), RegionDoubt.LAST_KERNEL_TIME_IMPOSSIBLE)
        last = np.where(is_possible, last, np.nan)
    state = StateColumns(
        priority=np.where(priority_is_possible, priority, np.nan),
        last_kernel_at=last,
        is_blocked=np.where(recent_is_possible, recent == BLOCKED, np.nan),
        is_recently_active=np.where(recent_is_possible, recent > 0, np.nan),
        is_compute_limited=np.where(switch_is_possible, switch, np.nan),
    )
    return state, doubts


def _duty_cycle(
    batch: RegionBatch, table: _ProcessTable, usage: _Usage, cards: int
) -> tuple[Float64, NDArray[np.int8]]:
    """Duty cycle per card and what is to be said of it; a 0 that was not measured is NaN."""
    if RegionField.SM_UTIL not in batch.shape.layout.fields:
        return (
            np.full((batch.rows, cards), np.nan),
            np.full((batch.rows, cards), DutyDoubt.NOT_RECORDED, dtype=np.int8),
        )
    percent = np.where(table.is_live[:, :, None], _unsigned(batch, RegionField.SM_UTIL, cards), np.uint64(0))
    is_measured = (percent > 0) | (usage.driver_by_process > 0)
    uses_card = is_measured | (usage.by_process > 0)
    has_no_host_pid = (uses_card & (table.host_pid == 0)[:, :, None]).any(axis=1)
    is_zero = percent.sum(axis=1) == 0
    doubt = np.zeros((batch.rows, cards), dtype=np.int8)
    doubt[uses_card.any(axis=1) & ~is_measured.any(axis=1)] = DutyDoubt.BETWEEN_REFILLS
    doubt[has_no_host_pid & is_zero] = DutyDoubt.NO_HOST_PID
    doubt[(percent > 100).any(axis=1)] = DutyDoubt.IMPOSSIBLE
    # Two processes at 60 percent of the last second each are no 120 percent of the card.
    ratio = np.minimum(percent.astype(np.float64).sum(axis=1) / 100, 1.0)
    return np.where(doubt == DutyDoubt.MEASURED, ratio, np.nan), doubt


def _doubts_of_head(batch: RegionBatch) -> Bits:
    doubts = _bits(_signed(batch, RegionField.INITIALIZED_FLAG) != MAGIC, RegionDoubt.UNINITIALISED)
    if batch.shape.layout.version is not None:
        major, minor = batch.shape.layout.version
        is_other = batch.column(RegionField.MAJOR_VERSION) != major
        is_other |= batch.column(RegionField.MINOR_VERSION) != minor
        doubts |= _bits(is_other, RegionDoubt.UNKNOWN_VERSION)
    return doubts


def _bits(flags: Flags, doubt: RegionDoubt) -> Bits:
    return np.where(flags, np.uint32(bit_of(doubt)), np.uint32(0))


def _sum(values: Words) -> Float64:
    """Sum over processes, as floats: whole numbers up to 2^53 are exact, and a wild counter can't wrap around."""
    return np.asarray(values.astype(np.float64).sum(axis=1))


def _digest(words: NDArray[np.uint64]) -> Words:
    """One word per row that changes with any word of the row, as far as a sum of odd multiples can."""
    weights = np.arange(words.shape[1], dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C16) + np.uint64(0x9E3779B97F4A7C15)
    return np.asarray((words * weights).sum(axis=1, dtype=np.uint64))


def _unsigned(batch: RegionBatch, field: RegionField, cards: int = 0, neighbours: int = 0) -> Words:
    return batch.column(field, cards, neighbours)  # type: ignore[return-value]


def _signed(batch: RegionBatch, field: RegionField, neighbours: int = 0) -> NDArray[np.int32]:
    return batch.column(field, neighbours=neighbours)  # type: ignore[return-value]
