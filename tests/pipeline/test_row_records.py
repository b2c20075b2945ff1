"""Records in the rows format: plain JSON that says what the columns say."""

from __future__ import annotations

import json
import math

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from fleet.schema import INVENTORY_NODES, MEASURES, POD_USAGE, SLICE_MEASURES
from pipeline.records.json_rows import RECORD_START, pack_rows
from pipeline.records.rows import Section, identities_schema, rows_of
from pipeline.remote_write.decode import Decoder, Version
from tests.pipeline.builders import body_limits, body_of, series_table, small_fleet

HASH = bytes(range(16))
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


def usage(texts: list[str], hashes: list[int], values: list[list[float]]) -> Section:
    """Rows of slices whose texts are all the same, one per identity."""
    schema = identities_schema(POD_USAGE)
    columns = [pa.array(texts) for _ in schema.names[1:]]
    return Section(
        table=POD_USAGE,
        identities=pa.RecordBatch.from_arrays([pa.array(hashes, pa.uint64()), *columns], schema=schema),
        identity=np.arange(len(texts), dtype=np.int32),
        ts_ms=np.arange(len(texts), dtype=np.int64) + 1_767_571_200_000,
        measures=tuple(MEASURES.index(column) for column in SLICE_MEASURES[: len(values)]),
        values=np.array(values),
    )


@given(st.lists(TEXTS, min_size=1, max_size=5), st.data())
def test_any_text_hash_and_value_is_read_by_a_plain_json_parser(texts: list[str], data: st.DataObject) -> None:
    count = len(texts)
    hashes = data.draw(st.lists(st.integers(0, 2**64 - 1), min_size=count, max_size=count, unique=True))
    ratio = st.floats(0, 1) | st.just(math.nan)
    values = [data.draw(st.lists(ratio, min_size=count, max_size=count)) for _ in range(3)]
    rows = json.loads(pack_rows((usage(texts, hashes, values),), HASH))["pod_usage"]
    for place, row in enumerate(rows):
        assert row["hash"] % 2**64 == hashes[place]
        assert -(2**63) <= row["hash"] < 2**63
        assert {row[name] for name in POD_USAGE.keys[2:]} == {texts[place]}
        for column, given_values in zip(SLICE_MEASURES[:3], values, strict=True):
            value = given_values[place]
            stored = None if math.isnan(value) else math.floor(value * column.scale)
            assert row.get(column.measure.value) == stored
            is_binned = column.has_histogram and not math.isnan(value)
            assert row.get(f"{column.measure.value}_bin") == (min(100, math.floor(100 * value)) if is_binned else None)


def test_real_samples_and_sightings_survive_with_their_identities() -> None:
    sections, _ = rows_of(Decoder(body_limits(1 << 24)).decode(body_of(small_fleet()), Version.V2), series_table())
    nodes = identities_schema(INVENTORY_NODES)
    seen = Section(
        table=INVENTORY_NODES,
        identities=pa.RecordBatch.from_arrays(
            [pa.array([7], pa.uint64()), *(pa.array([f'"{name}\\\n']) for name in nodes.names[1:])], schema=nodes
        ),
        identity=np.zeros(2, dtype=np.int32),
        ts_ms=np.array([1000, 3000]),
        measures=(),
        values=np.array([[2000.0, 4000.0], [math.nan, 5000.0]]),
    )
    record = json.loads(pack_rows((*sections, seen), HASH))
    assert {row["node"] for row in record[INVENTORY_NODES.name]} == {'"node\\\n'}
    assert [[row.get("last_seen"), row.get("ended_at")] for row in record[INVENTORY_NODES.name]] == [
        [2000, None], [4000, 5000],
    ]  # fmt: skip
    for section in sections:
        rows, identities = record[section.table.name], section.identities.to_pylist()
        assert section.identities.num_rows > 1
        assert len(rows) == len(section.ts_ms)
        for row, place, ts_ms in zip(rows, section.identity, section.ts_ms, strict=True):
            wanted = dict(identities[place]) | {"ts_ms": ts_ms}
            assert {name: row[name] % 2**64 if name == "hash" else row[name] for name in wanted} == wanted


def test_record_begins_as_declared_and_names_its_request() -> None:
    assert pack_rows((), HASH).decode() == RECORD_START + HASH.hex() + '"}'
