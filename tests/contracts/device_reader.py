"""The contract of `exporter.reader.DeviceReader`, as tests that every adapter inherits."""

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest

from exporter.reader import DeviceReader, Reading
from fleet.schema import MEASURES

DEADLINE_SECONDS = 5.0


class DeviceReaderContract:
    """Inherit, and give a `reader` that has not been read yet and reads at least three times."""

    @pytest.fixture
    def reader(self) -> DeviceReader:
        raise NotImplementedError

    @pytest.fixture
    def readings(self, reader: DeviceReader) -> list[Reading]:
        return list(self._read(reader, 3))

    def _read(self, reader: DeviceReader, count: int) -> Iterator[Reading]:
        for _ in range(count):
            reading = reader.read(DEADLINE_SECONDS)
            assert reading is not None
            yield reading

    def test_readings_are_in_order_of_time_and_aware(self, readings: list[Reading]) -> None:
        moments = [reading.at for reading in readings]
        assert moments == sorted(set(moments))
        assert all(moment.tzinfo is not None for moment in moments)

    def test_rows_are_unique_and_columns_have_one_entry_per_row(self, readings: list[Reading]) -> None:
        assert any(reading.slices for reading in readings)
        for reading in readings:
            assert len(set(reading.slices)) == len(reading.slices)
            assert len(set(reading.cards)) == len(reading.cards)
            assert all(column.shape == (len(reading.slices),) for column in reading.slice_values.values())
            assert all(column.shape == (len(reading.cards),) for column in reading.card_values.values())

    def test_values_lie_within_their_measures_range(self, readings: list[Reading]) -> None:
        ranges = {column.measure: column for column in MEASURES}
        for reading in readings:
            for values in (reading.slice_values, reading.card_values):
                for measure, column in values.items():
                    there = column[~np.isnan(column)]
                    assert (there >= ranges[measure].value_min).all()
                    assert (there <= ranges[measure].value_max).all()

    def test_only_measures_of_slices_and_cards_are_given(self, readings: list[Reading]) -> None:
        ranges = {column.measure: column for column in MEASURES}
        for reading in readings:
            assert all(ranges[measure].of_slice for measure in reading.slice_values)
            assert all(ranges[measure].of_card for measure in reading.card_values)

    def test_the_first_reading_names_every_card_and_node_that_rows_speak_of(self, readings: list[Reading]) -> None:
        cards = {card.card for card in readings[0].change.cards}
        nodes = {node.node for node in readings[0].change.nodes}
        for reading in readings:
            assert {key.card for key in reading.cards} | {key.card for key in reading.slices} <= cards
            assert {key.node for key in reading.cards} | {key.node for key in reading.slices} <= nodes

    def test_a_later_reading_repeats_nothing_that_has_not_changed(self, readings: list[Reading]) -> None:
        named = Counter(grant for reading in readings for grant in reading.change.grants_started)
        assert max(named.values()) == 1
        assert all(not reading.change.cards for reading in readings[1:])

    def test_no_grant_carries_an_end_that_lies_ahead(self, readings: list[Reading]) -> None:
        for reading in readings:
            assert all(grant.ended_at is None for grant in reading.change.grants_started)
            for grant in reading.change.grants_ended:
                assert grant.ended_at is not None
                assert grant.ended_at <= reading.at

    def test_closing_twice_does_no_harm(self, reader: DeviceReader) -> None:
        reader.close()
        reader.close()
