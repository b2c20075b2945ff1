"""Rows on lanes: nothing lost, a card stays on its lane, and several lanes roll up to the rows of one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleet.schema import CARD_USAGE, POD_USAGE, Measure
from pipeline.bus.bus_file import FileBus
from pipeline.bus.lanes import lane_records
from pipeline.receiver.intake import Answer, Intake
from pipeline.receiver.record_writer import RecordWriter
from pipeline.receiver.repeats import Repeats
from pipeline.receiver.turns import Turns
from pipeline.records import label_rows
from pipeline.records.rows import Section, pack, rows_of, unpack
from pipeline.remote_write.decode import Decoder, Version
from pipeline.rollup.rollup_duckdb import EmbeddedRollup
from pipeline.warehouse.warehouse_duckdb import DuckdbWarehouse
from tests.pipeline.builders import (
    START_MS,
    Sample,
    body_limits,
    body_of,
    expected_rows,
    file_bus,
    intake_of,
    read_all,
    roll_up,
    series_table,
    small_fleet,
    stored_rows,
)


class Folders:
    """A bus of several lanes: a folder each."""

    def __init__(self, folder: Path, lanes: int) -> None:
        self.buses: list[FileBus] = [file_bus(folder / str(lane)) for lane in range(lanes)]

    @property
    def lanes(self) -> int:
        return len(self.buses)

    def append_all(self, payloads: Mapping[int, bytes]) -> None:
        for lane, payload in payloads.items():
            self.buses[lane].append(payload)


def sent_to(bus: Any, samples: Any, bodies: int = 4) -> None:
    intake = intake_of(bus)
    size = -(-len(samples) // bodies)
    for start in range(0, len(samples), size):
        assert intake.take(body_of(samples[start : start + size]), Version.V2).status == 204


def sections_of(samples: Any) -> tuple[Section, ...]:
    return rows_of(Decoder(body_limits(1 << 26)).decode(body_of(samples), Version.V2), series_table())[0]


def rows_in(sections: tuple[Section, ...]) -> list[tuple[Any, ...]]:
    return [
        (section.table.name, *section.identities.slice(place, 1).to_pylist()[0].values(), ts_ms, section.measures,
         repr(section.values[:, row].tolist()))
        for section in sections
        for row, (place, ts_ms) in enumerate(zip(section.identity.tolist(), section.ts_ms.tolist(), strict=True))
    ]  # fmt: skip


def test_rows_of_one_card_stay_on_one_lane_in_order_and_all_lanes_are_used(tmp_path: Path) -> None:
    bus = Folders(tmp_path, 3)
    sent_to(bus, small_fleet(pods=20, hours=1))
    lane_of: dict[str, int] = {}
    for lane, found in enumerate(bus.buses):
        newest: dict[tuple[str, str], int] = {}
        for record in read_all(found).records:
            for section in unpack(record):
                cards = section.identities.column("card").to_pylist()
                for place, ts_ms in zip(section.identity.tolist(), section.ts_ms.tolist(), strict=True):
                    assert lane_of.setdefault(cards[place], lane) == lane
                    key = (section.table.name, cards[place])
                    assert newest.get(key, 0) <= ts_ms
                    newest[key] = ts_ms
    assert len(lane_of) == 20
    assert set(lane_of.values()) == {0, 1, 2}


@pytest.mark.parametrize("lanes", [2, 5, 64])
@pytest.mark.parametrize("remembered_max", [0, 4096])
def test_lanes_packed_together_hold_the_rows_of_each_packed_alone(
    lanes: int, remembered_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(label_rows, "_REMEMBERED_IDENTITIES_MAX", remembered_max)
    sections = sections_of(small_fleet(pods=20, hours=1))
    records = lane_records(sections, lanes, bytes(16))
    assert list(records) == sorted(records)
    assert all(unpack(record) for record in records.values())
    rows = [row for record in records.values() for row in rows_in(unpack(record))]
    assert sorted(rows) == sorted(rows_in(sections))
    for record in records.values():
        alone = tuple(
            replace(part, identities=part.identities.take(list(range(part.identities.num_rows))))
            for part in unpack(record)
        )
        assert pack(alone, bytes(16)) == record


def test_a_lane_has_the_same_bytes_whether_its_identities_are_remembered_or_come_in_another_order() -> None:
    sections = sections_of(small_fleet(pods=20, hours=1))
    once = lane_records(sections, 3, bytes(16))
    assert set(once) == {0, 1, 2}
    assert set(lane_records(sections, 5, bytes(16))) == {0, 1, 2, 3, 4}
    assert lane_records(sections, 3, bytes(16)) == once
    turned = tuple(
        replace(
            section, identities=section.identities.take(list(reversed(range(section.identities.num_rows)))),
            identity=section.identities.num_rows - 1 - section.identity, identity_set=None,
        )
        for section in sections
    )  # fmt: skip
    assert lane_records(turned, 3, bytes(16)) == once


@pytest.mark.parametrize("lanes", [1, 2, 5])
def test_any_number_of_lanes_gives_the_same_rows(tmp_path: Path, lanes: int) -> None:
    samples = small_fleet(pods=4, hours=25)
    bus = Folders(tmp_path / "bus", lanes)
    sent_to(bus, samples)
    warehouse = DuckdbWarehouse(tmp_path / "warehouse")
    rollup = EmbeddedRollup(lambda: bus.buses, warehouse, chunk_bytes=2000)
    while rollup.step() is not None:
        pass
    for table in (POD_USAGE, CARD_USAGE):
        assert stored_rows(warehouse, table) == expected_rows(samples, table)


def test_lane_that_appears_later_is_taken_in(tmp_path: Path) -> None:
    samples = small_fleet(pods=6, hours=1)
    bus = Folders(tmp_path / "bus", 2)
    sent_to(bus, samples)
    warehouse = DuckdbWarehouse(tmp_path / "warehouse")
    known = bus.buses[:1]
    rollup = EmbeddedRollup(lambda: known, warehouse, chunk_bytes=1 << 20)
    while rollup.step() is not None:
        pass
    assert stored_rows(warehouse, CARD_USAGE) != expected_rows(samples, CARD_USAGE)
    known.append(bus.buses[1])
    while rollup.step() is not None:
        pass
    assert stored_rows(warehouse, CARD_USAGE) == expected_rows(samples, CARD_USAGE)


def test_one_step_takes_all_lanes_and_makes_the_files_of_one(tmp_path: Path) -> None:
    samples = small_fleet(pods=8, hours=1)
    bus = Folders(tmp_path / "bus", 5)
    sent_to(bus, samples)
    warehouse = DuckdbWarehouse(tmp_path / "warehouse")
    rollup = EmbeddedRollup(lambda: bus.buses, warehouse, chunk_bytes=1 << 20)
    assert rollup.step() is not None
    assert rollup.step() is None
    assert all(lane.waiting_bytes == 0 for lane in bus.buses)
    assert len(warehouse.files.live()) == 4  # rows and index of two tables
    assert stored_rows(warehouse, CARD_USAGE) == expected_rows(samples, CARD_USAGE)


def test_a_step_that_has_enough_begins_with_the_next_lane_the_next_time(tmp_path: Path) -> None:
    bus = Folders(tmp_path / "bus", 3)
    for pod in range(6):
        for minute in range(20):
            sample = Sample(pod, Measure.POWER, START_MS + 60_000 * minute, 1.0, of_card=True)
            sent_to(bus, [sample], bodies=1)
    warehouse = DuckdbWarehouse(tmp_path / "warehouse")
    rollup = EmbeddedRollup(lambda: bus.buses, warehouse, chunk_bytes=1 << 20, rows_per_step_max=5)
    waiting = [lane.waiting_bytes for lane in bus.buses]
    for _ in range(3):
        rollup.step()
    assert all(lane.waiting_bytes < before for lane, before in zip(bus.buses, waiting, strict=True))


def test_a_large_body_becomes_several_records_with_the_rows_of_one(tmp_path: Path) -> None:
    samples = small_fleet(pods=3, hours=2)
    bus = file_bus(tmp_path / "bus")
    repeats: Repeats[Answer] = Repeats(60, lambda: 0.0)
    records = RecordWriter(bus, rows_per_record_max=10)
    intake = Intake(records, series_table(), turns=Turns(body_limits()), repeats=repeats)
    assert intake.take(body_of(samples), Version.V2).status == 204
    rows = [sum(len(section.ts_ms) for section in unpack(record)) for record in read_all(bus).records]
    assert len(rows) > 5
    assert max(rows) == 10
    warehouse = DuckdbWarehouse(tmp_path / "warehouse")
    roll_up(bus, warehouse)
    for table in (POD_USAGE, CARD_USAGE):
        assert stored_rows(warehouse, table) == expected_rows(samples, table)
