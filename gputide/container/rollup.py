"""Opens the rollup of this process, from all lanes of the bus to the warehouse; Flink's is in `container.flink`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fleet.data_folder import DataFolder
from fleet.errors import Misconfigured
from fleet.settings.pipeline import RecordFormat
from fleet.settings.settings import Settings
from gputide.container.bus import open_bus_reader
from gputide.container.warehouse import open_warehouse, with_upkeep
from pipeline.bus.lanes import LanesRollup
from pipeline.rollup.rollup import Rollup
from pipeline.rollup.rollup_duckdb import EmbeddedRollup


@contextmanager
def open_rollup(folder: DataFolder, settings: Settings) -> Iterator[Rollup]:
    """The rollup from all lanes of the bus to the warehouse, with the right to write both.

    Raises:
        Misconfigured: the bus carries what only Flink reads.
        Unavailable: brokers can't be reached.
    """
    if settings.bus.record_format is RecordFormat.ROWS:
        # It would take every record for one that can't be read.
        raise Misconfigured(
            "cannot roll up in this process from bus.record_format=rows: it reads columns; say --engine flink, or set "
            "bus.record_format=columns"
        )
    with open_warehouse(folder, settings) as target, open_bus_reader(folder, settings) as bus:
        rollup = LanesRollup(
            bus.lanes,
            lambda lane: EmbeddedRollup(
                bus.lane(lane),
                target,
                chunk_bytes=settings.rollup.chunk_bytes,
                window_seconds=settings.rollup.window_seconds,
                dead_letters=bus.dead_letters,
            ),
        )
        yield with_upkeep(rollup, target, settings)
