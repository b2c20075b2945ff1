"""A record with times that no receiver takes is refused as a whole, instead of ending the roll-up."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest

from fleet.errors import Corrupt
from fleet.schema import INVENTORY_NODES, POD_USAGE, Table
from pipeline.records.rows import TS_MAX_MS, TS_MIN_MS, Section, identities_schema, pack, unpack
from tests.pipeline.builders import START_MS


def record(table: Table, ts_ms: int, *values: float) -> bytes:
    """One row of one identity."""
    schema = identities_schema(table)
    texts = [pa.array(["x"]) for _ in schema.names[1:]]
    section = Section(
        table=table,
        identities=pa.RecordBatch.from_arrays([pa.array([1], pa.uint64()), *texts], schema=schema),
        identity=np.zeros(1, dtype=np.int32),
        ts_ms=np.array([ts_ms]),
        measures=(0,) if table is POD_USAGE else (),
        values=np.array([[value] for value in values]),
    )
    return pack((section,), bytes(16))


@pytest.mark.parametrize("ts_ms", [TS_MIN_MS - 1, TS_MAX_MS + 1, 0, -1])
def test_a_sample_of_another_age_is_refused(ts_ms: int) -> None:
    with pytest.raises(Corrupt, match="a time that no receiver takes"):
        unpack(record(POD_USAGE, ts_ms, 0.5))


@pytest.mark.parametrize(
    ("last", "ended"), [(math.nan, math.nan), (math.inf, math.nan), (1e18, math.nan), (START_MS, -1.0)]
)
def test_a_sighting_without_a_day_is_refused(last: float, ended: float) -> None:
    with pytest.raises(Corrupt, match="a time that no receiver takes"):
        unpack(record(INVENTORY_NODES, START_MS, last, ended))


def test_the_first_and_the_last_times_that_may_be_are_taken() -> None:
    for ts_ms in (TS_MIN_MS, TS_MAX_MS):
        assert unpack(record(POD_USAGE, ts_ms, 0.5))[0].ts_ms.tolist() == [ts_ms]
        assert unpack(record(INVENTORY_NODES, ts_ms, ts_ms, math.nan))[0].ts_ms.tolist() == [ts_ms]
