"""The NVML reader fulfils the port's contract; lost and hung cards have no row."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from exporter.nvml.cards import NvmlCards
from exporter.nvml.reader import NvmlReader
from exporter.reader import DeviceReader, Reading
from fleet.inventory import Card, CardId, CardModelName, Node
from fleet.schema import Measure
from tests.contracts.device_reader import DEADLINE_SECONDS, DeviceReaderContract
from tests.exporter.nvml.standin import (
    A100,
    DATA_VARIABLE,
    FIELDS,
    GIB,
    GPM,
    H100,
    T4,
    StandInWorld,
    library_file,
    uuid,
)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandInWorld:
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path / "world.txt"))
    world = StandInWorld(tmp_path / "world.txt")
    return world.card(**H100, gpm=GPM, fields=FIELDS, util=90).card(**A100, mig=1).card(**T4, util=0, enc=50).write()


@pytest.fixture
def reader(world: StandInWorld) -> Iterator[NvmlReader]:
    cards = NvmlCards(library_path=str(library_file()), sample_seconds=None, answer_seconds=3.0, look_seconds=0.1)
    reader = NvmlReader(cards, cluster="prod", node="gpu-1")
    yield reader
    reader.close()


def row(reading: Reading, measure: Measure, number: int) -> float:
    keys = [key.card for key in reading.cards]
    return float(reading.card_values[measure][keys.index(CardId(uuid(number)))])


class TestNvmlReaderFulfilsTheContract(DeviceReaderContract):
    @pytest.fixture
    def reader(self, reader: NvmlReader) -> DeviceReader:
        return reader

    # NVML knows no slices and no grants, so what the contract says of them is said of cards here.

    def test_rows_are_unique_and_columns_have_one_entry_per_row(self, readings: list[Reading]) -> None:
        for reading in readings:
            assert len(set(reading.cards)) == len(reading.cards) == 3
            assert all(column.shape == (3,) for column in reading.card_values.values())
            assert (reading.slices, dict(reading.slice_values)) == ((), {})

    def test_a_later_reading_repeats_nothing_that_has_not_changed(self, readings: list[Reading]) -> None:
        assert len(readings[0].change.cards) == 3
        assert all(not reading.change.cards and not reading.change.nodes for reading in readings[1:])


def test_measures_are_those_of_the_cards_and_absent_where_unsupported(reader: NvmlReader) -> None:
    reader.read(DEADLINE_SECONDS)
    reading = reader.read(DEADLINE_SECONDS)
    assert row(reading, Measure.DUTY_CYCLE, 0) == pytest.approx(0.9)
    assert row(reading, Measure.SM_ACTIVE, 0) == pytest.approx(0.4)
    assert np.isnan(row(reading, Measure.DUTY_CYCLE, 1))
    assert np.isnan(row(reading, Measure.SM_ACTIVE, 2))
    assert row(reading, Measure.ENCODER, 2) == pytest.approx(0.5)
    assert row(reading, Measure.FRAMEBUFFER_USED, 0) == 10 * GIB
    assert row(reading, Measure.TEMPERATURE, 0) == 40.0
    assert row(reading, Measure.POWER, 1) == 100.0


def test_first_reading_names_cards_and_node(reader: NvmlReader) -> None:
    change = reader.read(DEADLINE_SECONDS).change
    assert change.nodes == (Node(node="gpu-1", cluster="prod"),)
    assert change.cards[1] == Card(
        card=CardId(uuid(1)),
        card_model=CardModelName("NVIDIA A100-SXM4-40GB"),
        framebuffer_bytes=40 * GIB,
        node="gpu-1",
        cluster="prod",
        mig_mode=True,
    )


def test_mode_that_changes_is_a_change_of_the_card(world: StandInWorld, reader: NvmlReader) -> None:
    reader.read(DEADLINE_SECONDS)
    world.card(1, mig=0).write()
    changed = reader.read(DEADLINE_SECONDS).change.cards
    assert [(card.card, card.mig_mode) for card in changed] == [(uuid(1), False)]


def test_lost_card_has_no_row_and_returns_with_one(world: StandInWorld, reader: NvmlReader) -> None:
    reader.read(DEADLINE_SECONDS)
    world.card(0, lost=1).write()
    lost = reader.read(DEADLINE_SECONDS)
    assert {key.card for key in lost.cards} == {uuid(1), uuid(2)}
    assert lost.change.cards == ()
    world.card(0, lost=0).write()
    until = time.monotonic() + 5
    while len(reading := reader.read(DEADLINE_SECONDS).cards) < 3:
        assert time.monotonic() < until, reading
        time.sleep(0.02)


def test_hung_card_has_no_row(world: StandInWorld, reader: NvmlReader) -> None:
    reader.read(DEADLINE_SECONDS)
    world.line("hang", dev=0, fn="nvmlDeviceGetPowerUsage", seconds=60).write()
    hung = reader.read(1.0)
    world.without("hang").write()
    assert {key.card for key in hung.cards} == {uuid(1), uuid(2)}


def test_value_outside_its_measures_range_is_absent(world: StandInWorld, reader: NvmlReader) -> None:
    world.card(0, power=20_000_000).write()
    reading = reader.read(DEADLINE_SECONDS)
    assert np.isnan(row(reading, Measure.POWER, 0))
    assert row(reading, Measure.POWER, 1) == 100.0


def test_readings_stay_in_order_when_the_nodes_clock_is_set_back(world: StandInWorld) -> None:
    moments = iter([datetime(2026, 7, 1, 12, tzinfo=UTC), datetime(2026, 7, 1, 11, tzinfo=UTC)])
    cards = NvmlCards(library_path=str(library_file()), sample_seconds=None)
    reader = NvmlReader(cards, cluster="prod", node="gpu-1", now=lambda: next(moments))
    first, second = (reader.read(DEADLINE_SECONDS).at for _ in range(2))
    reader.close()
    assert first < second


def test_records_behind_a_reading_can_be_had(reader: NvmlReader) -> None:
    assert reader.cards_reading is None
    reader.read(DEADLINE_SECONDS)
    assert reader.cards_reading is not None
    assert len(reader.cards_reading.cards) == 3
