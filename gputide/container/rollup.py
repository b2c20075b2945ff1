"""Opens the rollup of this process, from its lanes of the bus to the warehouse; Flink's is in `container.flink`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

from fleet.data_folder import DataFolder
from fleet.settings.settings import Settings
from gputide.container.bus import open_bus_reader
from gputide.container.warehouse import open_warehouse, tended_rollup, warehouse_folder
from pipeline.rollup.held_lanes import HeldLanes
from pipeline.rollup.rollup import Rollup
from pipeline.rollup.rollup_duckdb import EmbeddedRollup


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedRollup:
    """The rollup of this process.

    Attributes:
        rollup: takes in the lanes that this process has.
        is_drained: says whether nothing waits on any lane of the bus, whichever process has it.
    """

    rollup: Rollup
    is_drained: Callable[[], bool]


@contextmanager
def open_rollup(folder: DataFolder, settings: Settings) -> Iterator[OpenedRollup]:
    """The rollup from the bus to the warehouse; several processes share the lanes.

    Raises:
        Unavailable: brokers can't be reached.
    """
    with (
        open_warehouse(folder, settings) as target,
        open_bus_reader(folder, settings) as bus,
        closing(HeldLanes(warehouse_folder(folder, settings), bus.lanes, bus.lane)) as lanes,
    ):
        rollup = EmbeddedRollup(
            lanes.now,
            target,
            chunk_bytes=settings.rollup.chunk_bytes,
            window_seconds=settings.rollup.window_seconds,
            dead_letters=bus.dead_letters,
        )
        with tended_rollup(rollup, target, settings, lanes.reached_ms) as tended:
            yield OpenedRollup(rollup=tended, is_drained=lanes.is_empty)


def bus_reached_ms(folder: DataFolder, settings: Settings) -> int | None:
    """How far the bus was taken in, for a program that takes in nothing; see `HeldLanes`.

    Raises:
        Misconfigured: a topic is missing or would lose records.
        Unavailable: brokers can't be reached.
    """
    with open_bus_reader(folder, settings) as bus:
        return HeldLanes(warehouse_folder(folder, settings), bus.lanes, bus.lane).reached_ms()
