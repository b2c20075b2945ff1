"""A record gives back what was packed, to the last bit, and damaged records are corrupt and nothing worse."""

from __future__ import annotations

import struct
from functools import cache

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.errors import Corrupt
from fleet.schema import CARD_MEASURES, CARD_USAGE, INVENTORY_NODES, MEASURES, POD_USAGE, SLICE_MEASURES, Table
from pipeline.records.label_rows import LabelRows
from pipeline.records.rows import TS_MAX_MS, TS_MIN_MS, Section, identities_schema, pack, unpack
from tests.pipeline.builders import START_MS

DECIMAL = st.builds(lambda number, per: number / per, st.integers(-(10**6), 10**6), st.sampled_from([1, 10, 1000, 1e6]))
PERCENT = st.builds(lambda number: number / 1000 * 0.01, st.integers(0, 100_000))
VALUE = st.one_of(st.just(np.nan), DECIMAL, PERCENT, st.floats(allow_nan=False), st.sampled_from([-0.0, 0.0, 5e-324]))
TIME = st.one_of(st.integers(START_MS, START_MS + 300), st.integers(TS_MIN_MS, TS_MAX_MS))


@cache
def identities_of(table: Table, count: int) -> pa.RecordBatch:
    names = identities_schema(table).names[1:]
    labels = LabelRows(tuple(names), 7)
    numbers = [labels.number_of(tuple(f"{name}-{number}-ä" for name in names)) for number in range(count)]
    return labels.take(np.array(numbers, dtype=np.int32)).batch


@st.composite
def usage_sections(draw: st.DrawFn) -> Section:
    table, measures = draw(st.sampled_from([(POD_USAGE, SLICE_MEASURES), (CARD_USAGE, CARD_MEASURES)]))
    places = [MEASURES.index(measure) for measure in measures]
    chosen = tuple(sorted(draw(st.sets(st.sampled_from(places), min_size=1, max_size=4))))
    identities, rows = draw(st.sampled_from([1, 3, 300])), draw(st.integers(1, 10))
    values = draw(st.lists(st.lists(VALUE, min_size=rows, max_size=rows), min_size=len(chosen), max_size=len(chosen)))
    # A row says something, always.
    values[0] = [0.5 if np.isnan(value) else value for value in values[0]]
    return Section(
        table=table,
        identities=identities_of(table, identities),
        identity=np.array(draw(st.lists(st.integers(0, identities - 1), min_size=rows, max_size=rows)), dtype=np.int32),
        ts_ms=np.array(draw(st.lists(TIME, min_size=rows, max_size=rows)), dtype=np.int64),
        measures=chosen,
        values=np.array(values),
    )


def assert_same(found: tuple[Section, ...], packed: tuple[Section, ...]) -> None:
    assert len(found) == len(packed)
    for one, other in zip(found, packed, strict=True):
        assert (one.table, one.measures) == (other.table, other.measures)
        assert one.identities.equals(other.identities)
        assert one.identity.tolist() == other.identity.tolist()
        assert one.ts_ms.tolist() == other.ts_ms.tolist()
        assert np.where(np.isnan(one.values), 1, one.values.view(np.uint64)).tolist() == (
            np.where(np.isnan(other.values), 1, other.values.view(np.uint64)).tolist()
        )


@settings(max_examples=60)
@given(st.lists(usage_sections(), max_size=2))
def test_record_gives_back_what_was_packed_to_the_last_bit(sections):
    assert_same(unpack(pack(tuple(sections), bytes(16))), tuple(sections))


@given(usage_sections())
def test_section_that_repeats_the_one_before_costs_its_identities_only(section):
    once, twice = (pack((section,) * times, bytes(16)) for times in (1, 2))
    assert_same(unpack(twice), (section, section))
    (identity_bytes,) = struct.unpack_from("<I", once, 32 + 9)
    assert len(twice) - len(once) < identity_bytes + 13 + 4 * (2 + 2 * len(section.values)) + 16


def test_sightings_survive_with_and_without_an_end():
    names = INVENTORY_NODES.keys
    labels = LabelRows(names, 7)
    numbers = np.array([labels.number_of(tuple(f"{name}{row}" for name in names)) for row in range(2)], dtype=np.int32)
    section = Section(
        table=INVENTORY_NODES,
        identities=labels.take(numbers).batch,
        identity=np.arange(2, dtype=np.int32),
        ts_ms=np.array([START_MS, START_MS + 1]),
        measures=(),
        values=np.array([[START_MS + 5.0, START_MS + 6.0], [np.nan, START_MS + 6.0]]),
    )
    assert_same(unpack(pack((section,), bytes(16))), (section,))


def small_record() -> bytes:
    labels = LabelRows(POD_USAGE.keys[2:], 7)
    row = labels.number_of(tuple("abcdefg"))
    section = Section(
        table=POD_USAGE,
        identities=labels.take(np.array([row], dtype=np.int32)).batch,
        identity=np.zeros(3, dtype=np.int32),
        ts_ms=np.arange(3) + START_MS,
        measures=(0, 1),
        values=np.array([[0.5, np.nan, 0.25], [0.1, 0.2, np.pi]]),
    )
    return pack((section, section), bytes(16))


@given(st.data())
def test_record_with_changed_bytes_is_read_or_corrupt(data):
    record = bytearray(small_record())
    for _ in range(data.draw(st.integers(1, 4))):
        record[data.draw(st.integers(0, len(record) - 1))] = data.draw(st.integers(0, 255))
    try:
        sections = unpack(bytes(record))
    except Corrupt:
        return
    for section in sections:
        assert ((section.identity >= 0) & (section.identity < section.identities.num_rows)).all()


def test_every_cut_of_a_record_is_corrupt():
    record = small_record()
    for length in range(len(record)):
        with pytest.raises(Corrupt):
            unpack(record[:length])


@pytest.mark.parametrize(("at", "layout", "value"), [(24, "<Q", 1 << 40), (37, "<I", 1 << 31), (41, "<I", 1 << 31)])
def test_numbers_that_lie_take_no_memory(at, layout, value):
    record = bytearray(small_record())
    struct.pack_into(layout, record, at, value)
    with pytest.raises(Corrupt):
        unpack(bytes(record))


def test_rows_of_newer_schema_are_refused_with_both_versions():
    record = bytearray(small_record())
    struct.pack_into("<H", record, 4, 999)
    with pytest.raises(Corrupt, match="schema version 999"):
        unpack(bytes(record))
