"""Records that can't be read are kept for a person before the bus may drop them."""

from __future__ import annotations

import json

import pytest

from fleet.errors import Unavailable
from pipeline.bus.bus_file import FileDeadLetters
from pipeline.remote_write.decode import Version
from pipeline.rollup.rollup_duckdb import EmbeddedRollup
from pipeline.warehouse.warehouse_duckdb import DuckdbWarehouse
from tests.pipeline.builders import (
    USAGE_TABLES,
    body_of,
    expected_rows,
    file_bus,
    intake_of,
    read_all,
    small_fleet,
    stored_rows,
)


def test_unreadable_record_is_kept_with_its_place_and_reason_and_the_others_are_counted(tmp_path):
    samples = small_fleet(pods=1, hours=2)
    bus, warehouse = file_bus(tmp_path / "bus"), DuckdbWarehouse(tmp_path / "warehouse")
    intake_of(bus).take(body_of(samples[:20]), Version.V2)
    offset = read_all(bus).end
    bus.append(b"none of ours")
    intake_of(bus).take(body_of(samples[20:]), Version.V2)
    letters = FileDeadLetters(tmp_path / "dead")
    step = EmbeddedRollup(lambda: (bus,), warehouse, chunk_bytes=1 << 20, dead_letters=letters).step()
    assert step is not None
    assert step.corrupt == len(letters) == 1
    (record,) = (tmp_path / "dead").glob("*.record")
    assert record.read_bytes() == b"none of ours"
    told = json.loads(record.with_suffix(".json").read_text())
    assert (told["source"], told["offset"]) == (bus.source, offset)
    assert "does not begin with" in told["reason"]
    for table in USAGE_TABLES:
        assert stored_rows(warehouse, table) == expected_rows(samples, table)
    bus.close()


def test_nothing_is_committed_while_a_dead_letter_cannot_be_kept(tmp_path):
    class Unreachable:
        def put(self, payload, **_where):
            raise Unavailable("no broker")

    bus, warehouse = file_bus(tmp_path / "bus"), DuckdbWarehouse(tmp_path / "warehouse")
    bus.append(b"none of ours")
    rollup = EmbeddedRollup(lambda: (bus,), warehouse, chunk_bytes=1 << 20, dead_letters=Unreachable())
    with pytest.raises(Unavailable):
        rollup.step()
    assert bus.committed() == 0
    assert warehouse.applied_offset(bus.source) == 0
    bus.close()


def test_record_put_again_is_kept_once_and_the_folder_is_bounded(tmp_path):
    letters = FileDeadLetters(tmp_path / "dead", files_max=2)
    for offset in (1, 1, 2, 3, 4, 1):
        letters.put(b"x", reason="why", source="s", offset=offset)
    assert len(letters) == 2
    assert letters.dropped == 2
