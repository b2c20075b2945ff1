"""Messages of a remote-write-to-Kafka adapter come out as the samples that their Prometheus has sent."""

from __future__ import annotations

import json
import math
import tracemalloc
from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.bus import adapter_messages
from pipeline.bus.adapter_messages import AdapterDecoder
from pipeline.remote_write.decode import Decoder, Version
from pipeline.remote_write.kernels import LABELS_END, LABELS_START, SAMPLES_END, SAMPLES_START
from pipeline.remote_write.label_sets import pairs_of_region
from pipeline.warehouse.warehouse_duckdb import DuckdbWarehouse
from tests.pipeline.builders import (
    USAGE_TABLES,
    body_limits,
    expected_rows,
    file_bus,
    intake_of,
    labels_of,
    roll_up,
    small_fleet,
    stored_rows,
)


def message(timestamp="2026-01-05T00:00:00Z", value="0.5", name="up", **labels):
    return json.dumps(
        {"timestamp": timestamp, "value": value, "name": name, "labels": {"__name__": name, **labels}}
    ).encode()


def samples_of(*messages):
    """(labels, ts_ms, value) of each sample of a batch."""
    batch = AdapterDecoder().decode(messages)
    assert batch.bad == ()
    body = Decoder(body_limits(1 << 24)).decode(batch.body, Version.V1)
    found = []
    for series in body.series:
        labels = dict(pairs_of_region(body.data[series[LABELS_START] : series[LABELS_END]].tobytes()))
        found += [
            (labels, int(body.ts_ms[place]), float(body.values[place]))
            for place in range(series[SAMPLES_START], series[SAMPLES_END])
        ]
    assert len(found) == batch.samples
    return found


def test_message_of_the_adapter_becomes_its_sample():
    written = (
        b'{"labels":{"__name__":"DCGM_FI_DEV_GPU_UTIL","UUID":"GPU-1"},"name":"DCGM_FI_DEV_GPU_UTIL",'
        b'"timestamp":"2026-01-05T00:00:15Z","value":"87"}'
    )
    labels = {"__name__": "DCGM_FI_DEV_GPU_UTIL", "UUID": "GPU-1"}
    assert samples_of(written) == [(labels, 1_767_571_215_000, 87.0)]


@pytest.mark.parametrize(
    "timestamp",
    [
        "2026-01-05T00:00:00Z",
        "2026-01-05T02:00:00+02:00",
        "2026-01-05T00:00:00.000Z",
        "1767571200",
        1_767_571_200,
        1_767_571_200.0,
        1_767_571_200_000,
        "1767571200000",
    ],
)
def test_times_of_all_adapters_mean_the_same(timestamp):
    assert samples_of(message(timestamp))[0][1] == 1_767_571_200_000


def test_milliseconds_are_kept():
    assert samples_of(message("2026-01-05T00:00:00.123Z"))[0][1] == 1_767_571_200_123
    assert samples_of(message(1_767_571_200_123))[0][1] == 1_767_571_200_123


def test_values_as_text_and_number_nan_and_infinities_are_read():
    given = ["0.5", 0.5, 1, "-2e3", "+Inf", "-Inf"]
    assert [value for _, _, value in samples_of(*(message(value=value) for value in given))] == [
        0.5, 0.5, 1.0, -2000.0, math.inf, -math.inf,
    ]  # fmt: skip
    assert math.isnan(samples_of(message(value="NaN"))[0][2])


def test_name_stands_in_for_a_missing_name_label_and_empty_labels_are_none():
    written = b'{"labels":{"pod":"a","empty":""},"name":"up","timestamp":1767571200,"value":"1"}'
    assert samples_of(written)[0][0] == {"__name__": "up", "pod": "a"}


BAD = [
    b"",
    b"{",
    b"[]",
    b"null",
    b"\xff\xfe",
    b"[" * 100_000,
    b'{"labels":[],"name":"up","timestamp":1,"value":"1"}',
    b'{"labels":{"a":1},"name":"up","timestamp":1,"value":"1"}',
    b'{"labels":{"a":{}},"name":"up","timestamp":1,"value":"1"}',
    b'{"labels":{"a":"\\ud800"},"name":"up","timestamp":1,"value":"1"}',
    b'{"labels":{},"timestamp":1,"value":"1"}',
    b'{"labels":{},"name":7,"timestamp":1,"value":"1"}',
    b'{"labels":{"__name__":"other"},"name":"up","timestamp":1,"value":"1"}',
    b'{"labels":{},"name":"up","value":"1"}',
    b'{"labels":{},"name":"up","timestamp":true,"value":"1"}',
    b'{"labels":{},"name":"up","timestamp":NaN,"value":"1"}',
    b'{"labels":{},"name":"up","timestamp":1e300,"value":"1"}',
    b'{"labels":{},"name":"up","timestamp":1' + b"0" * 400 + b',"value":"1"}',
    b'{"labels":{},"name":"up","timestamp":"2026-01-05T00:00:00","value":"1"}',
    b'{"labels":{},"name":"up","timestamp":"yesterday","value":"1"}',
    b'{"labels":{},"name":"up","timestamp":1}',
    b'{"labels":{},"name":"up","timestamp":1,"value":null}',
    b'{"labels":{},"name":"up","timestamp":1,"value":true}',
    b'{"labels":{},"name":"up","timestamp":1,"value":""}',
    b'{"labels":{},"name":"up","timestamp":1,"value":"1_0"}',
    b'{"labels":{},"name":"up","timestamp":1,"value":"12e"}',
    b'{"labels":{},"name":"up","timestamp":1,"value":1' + b"0" * 400 + b"}",
]


@pytest.mark.parametrize("written", BAD, ids=range(len(BAD)))
def test_bad_message_is_named_with_its_place_and_its_neighbours_are_read(written):
    batch = AdapterDecoder().decode([message(), written, message(value="1")])
    assert batch.samples == 2
    ((place, reason),) = batch.bad
    assert place == 1
    assert reason.startswith(f"cannot read adapter message of {len(written)} bytes: ")


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_bytes_are_read_or_named(written):
    batch = AdapterDecoder().decode([written])
    assert batch.samples + len(batch.bad) == 1


LABELS = st.dictionaries(
    st.from_regex(r"[a-z_]{1,8}", fullmatch=True), st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
    max_size=4,
)  # fmt: skip


@given(
    st.lists(
        st.tuples(LABELS, st.integers(0, 4_102_444_800), st.floats(allow_nan=False) | st.integers(-99, 99)), max_size=12
    )
)
def test_samples_come_back_as_they_were_written(written):
    messages = [
        message(datetime.fromtimestamp(ts, UTC).isoformat().replace("+00:00", "Z"), json.dumps(value), **labels)
        for labels, ts, value in written
        if not isinstance(value, float) or math.isfinite(value)
    ]
    expected = [
        ({**labels, "__name__": "up"}, ts * 1000, float(value))
        for labels, ts, value in written
        if not isinstance(value, float) or math.isfinite(value)
    ]
    if not expected:
        assert AdapterDecoder().decode(messages).body == b""
        return
    found = samples_of(*messages)
    order = {tuple(sorted(labels.items())): place for place, (labels, _, _) in reversed(list(enumerate(expected)))}
    assert found == sorted(expected, key=lambda sample: order[tuple(sorted(sample[0].items()))])


def test_fleet_that_comes_by_messages_gives_the_rows_of_one_that_comes_by_remote_write(tmp_path):
    samples = small_fleet(pods=2, hours=6)
    messages = [message(sample.ts_ms / 1000, repr(sample.value), **_renamed(labels_of(sample))) for sample in samples]
    bus, warehouse, decoder = file_bus(tmp_path / "bus"), DuckdbWarehouse(tmp_path / "warehouse"), AdapterDecoder()
    intake = intake_of(bus)
    for places in np.array_split(np.arange(len(messages)), 5):
        batch = decoder.decode([messages[place] for place in places])
        assert intake.take(batch.body, Version.V1).status == 204
    roll_up(bus, warehouse)
    for table in USAGE_TABLES:
        assert stored_rows(warehouse, table) == expected_rows(samples, table)
    bus.close()


def _renamed(labels):
    return {"name": labels["__name__"], **{key: value for key, value in labels.items() if key != "__name__"}}


def test_what_is_remembered_of_label_sets_is_bounded_however_long_they_are(monkeypatch):
    monkeypatch.setattr(adapter_messages, "REMEMBERED_BYTES_MAX", 1 << 20)
    decoder = AdapterDecoder()
    tracemalloc.start()
    for number in range(40):
        batch = decoder.decode([message(pod=f"{number}-{place}" + "x" * 50_000) for place in range(5)])
        assert batch.samples == 5
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 4 << 20
