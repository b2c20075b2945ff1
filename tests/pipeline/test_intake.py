"""What a sender is told, and what of its samples goes on."""

from __future__ import annotations

import math
import struct

import cramjam
import numpy as np
import pytest

from fleet.schema import ALLOCATIONS, CARD_USAGE, POD_USAGE, SERVERS, Measure
from pipeline.receiver.intake import Intake
from pipeline.receiver.record_writer import RecordWriter
from pipeline.receiver.repeats import Repeats
from pipeline.receiver.turns import Turns
from pipeline.records.rows import STALE_BITS, unpack
from pipeline.remote_write.decode import Decoder, Version
from pipeline.remote_write.encode import LabelSets
from pipeline.remote_write.named_rows import SIGHTED_VALUES_MAX
from tests.pipeline.builders import (
    START_MS,
    Sample,
    body_limits,
    body_of,
    encoded,
    file_bus,
    intake_of,
    labels_of,
    series_table,
)

STALE = float(np.array([STALE_BITS], dtype=np.uint64).view(np.float64)[0])
BOTH = pytest.mark.parametrize("version", Version)
DCGM = {"UUID": "GPU-0", "Hostname": "n1", "modelName": "NVIDIA A10", "cluster": "c1", "gpu": "0"}


def one(value: float, **labels: str) -> tuple[dict[str, str], Sample]:
    sample = Sample(0, Measure.DUTY_CYCLE, START_MS + 60_000, value)
    return {**labels_of(sample), **labels}, sample


def body(pairs: list[tuple[dict[str, str], Sample]], version: Version) -> bytes:
    return encoded([labels for labels, _ in pairs], [sample for _, sample in pairs], version)


def sections(bus):
    chunk = bus.read(0, bytes_max=1 << 30)
    return [] if chunk is None else [section for record in chunk.records for section in unpack(record)]


@BOTH
@pytest.mark.parametrize("value", [1.0, STALE, math.nan, math.inf, -math.inf])
def test_odd_values_and_odd_texts_are_accepted(tmp_path, version, value):
    intake = intake_of(file_bus(tmp_path))
    answer = intake.take(body([one(value, **{"new.line label": "a\nb", "z": ""})], version), version)
    assert (answer.status, answer.samples) == (204, 1)


@BOTH
@pytest.mark.parametrize(
    "labels",
    [{}, {"a": "b"}, {"__name__": ""}, {"__name__": "m", "": "x"}],
    ids=["none", "nameless", "empty", "unnamed"],
)
def test_series_without_name_or_labels_is_400_with_readable_text(tmp_path, version, labels):
    intake = intake_of(file_bus(tmp_path))
    answer = intake.take(body([(labels, one(1.0)[1])], version), version)
    assert answer.status == 400
    assert "a series" in answer.text
    assert answer.samples == 0


@BOTH
def test_one_invalid_of_four_is_400_and_the_other_three_are_written(tmp_path, version):
    bus = file_bus(tmp_path)
    good = [one(0.5, pod=f"pod-{number}") for number in range(3)]
    answer = intake_of(bus).take(body([*good, ({"no": "name"}, one(1.0)[1])], version), version)
    assert (answer.status, answer.samples) == (400, 3)
    (section,) = sections(bus)
    assert section.identities.column("pod").to_pylist() == ["pod-0", "pod-1", "pod-2"]


def test_unsorted_labels_are_refused_in_version_2_only(tmp_path):
    intake = intake_of(file_bus(tmp_path))
    symbols = b"".join(bytes([34, len(text)]) + text for text in (b"", b"b", b"x", b"__name__", b"m"))
    series = bytes([10, 4, 1, 2, 3, 4])
    raw = symbols + bytes([42, len(series) + 2]) + series + bytes([18, 0])
    answer = intake.take(bytes(cramjam.snappy.compress_raw(raw)), Version.V2)
    assert answer.status == 400
    assert "not sorted" in answer.text


@pytest.mark.parametrize(("refs", "words"), [([1, 9], "symbol that does not exist"), ([1], "odd number")])
def test_broken_references_are_400(tmp_path, refs, words):
    symbols = b"".join(bytes([34, len(text)]) + text for text in (b"", b"__name__", b"m"))
    series = bytes([10, len(refs), *refs, 18, 0])
    raw = symbols + bytes([42, len(series)]) + series
    answer = intake_of(file_bus(tmp_path)).take(bytes(cramjam.snappy.compress_raw(raw)), Version.V2)
    assert answer.status == 400
    assert words in answer.text


def test_series_nobody_asked_for_count_as_handled_and_cost_the_bus_nothing(tmp_path):
    bus = file_bus(tmp_path)
    intake = intake_of(bus)
    answer = intake.take(body([({"__name__": "up"}, one(1.0)[1])], Version.V2), Version.V2)
    assert (answer.status, answer.samples) == (204, 1)
    assert sections(bus) == []
    assert intake.counts["samples_unwanted"] == 1


@pytest.mark.parametrize("value", [1.5, -0.1, math.inf])
def test_value_out_of_range_is_counted_and_never_stored(tmp_path, value):
    bus = file_bus(tmp_path)
    intake = intake_of(bus)
    assert intake.take(body([one(value)], Version.V1), Version.V1).status == 204
    assert sections(bus) == []
    assert intake.counts["samples_out_of_range"] == 1


@pytest.mark.parametrize("ts_ms", [0, -5, 2**62])
def test_time_out_of_this_century_is_counted_and_never_stored(tmp_path, ts_ms):
    bus = file_bus(tmp_path)
    intake = intake_of(bus)
    labels, _ = one(0.5)
    assert (
        intake.take(body([(labels, Sample(0, Measure.DUTY_CYCLE, ts_ms, 0.5))], Version.V2), Version.V2).status == 204
    )
    assert sections(bus) == []
    assert intake.counts["samples_out_of_time"] == 1


def test_samples_of_usage_and_of_sightings_far_ahead_of_the_clock_are_counted_and_never_stored(tmp_path):
    bus = file_bus(tmp_path)
    intake = Intake(
        RecordWriter(bus), series_table(), turns=Turns(body_limits()), repeats=Repeats(3600, lambda: 0.0),
        ts_max_ms=lambda: START_MS,
    )  # fmt: skip
    sighted = {"__name__": "sglang:kv_cache_memory_usage_gb", "cluster": "c1", "namespace": "team", "pod": "pod-0"}
    for labels, value in ((one(0.5)[0], 0.5), (sighted, 8.0)):
        for ts_ms in (START_MS, START_MS + 1, 3_976_214_400_000):
            sample = Sample(0, Measure.DUTY_CYCLE, ts_ms, value)
            assert intake.take(body([(labels, sample)], Version.V2), Version.V2).status == 204
    assert {int(section.ts_ms.max()) for section in sections(bus)} == {START_MS}
    assert intake.counts["samples_out_of_time"] == 4
    assert intake.counts["samples"] == 2


def test_a_server_s_size_that_never_stands_still_is_remembered_a_few_times_and_counted_from_then_on(tmp_path):
    bus = file_bus(tmp_path)
    intake = intake_of(bus)
    labels = {"__name__": "sglang:kv_cache_memory_usage_gb", "cluster": "c1", "namespace": "team", "pod": "pod-0"}
    for step in range(40):
        sample = Sample(0, Measure.DUTY_CYCLE, START_MS + step * 60_000, 8.0 + step / 8)
        assert intake.take(body([(labels, sample)], Version.V2), Version.V2).status == 204
    ending = Sample(0, Measure.DUTY_CYCLE, START_MS + 41 * 60_000, STALE)
    assert intake.take(body([(labels, ending)], Version.V2), Version.V2).status == 204
    assert {section.table for section in sections(bus)} == {SERVERS}
    sizes = [text for section in sections(bus) for text in section.identities.column("pool_bytes").to_pylist()]
    assert sizes == [str(2**33 + step * 2**27) for step in range(SIGHTED_VALUES_MAX)]
    assert intake.counts["samples_out_of_range"] == 40 - SIGHTED_VALUES_MAX


def test_series_beyond_label_limits_is_dropped_and_counted(tmp_path):
    intake = intake_of(file_bus(tmp_path), series_table(label_bytes_max=100))
    assert intake.take(body([one(0.5, extra="x" * 101)], Version.V2), Version.V2).status == 204
    assert intake.counts["samples_of_dropped_series"] == 1


def test_series_without_a_place_are_refused_alone_and_known_ones_go_on(tmp_path):
    table = series_table(series_max=2)
    intake = intake_of(file_bus(tmp_path), table)
    assert intake.take(body([one(0.5), one(0.5, pod="b")], Version.V1), Version.V1).status == 204
    answer = intake.take(body([one(0.6, pod="c"), one(0.6)], Version.V1), Version.V1)
    assert (answer.status, answer.samples, answer.retry_after_seconds) == (400, 1, None)
    assert "cannot take 1 samples of new series: receiver.series_max=2" in answer.text
    assert intake.counts["samples_beyond_series_max"] == 1
    assert table.wanted == 2
    assert intake.take(body([one(0.7)], Version.V1), Version.V1).status == 204


@BOTH
def test_repeated_body_is_answered_alike_and_carried_once_within_its_memory(tmp_path, version):
    bus = file_bus(tmp_path)
    clock = [0.0]
    intake = intake_of(bus, now_seconds=lambda: clock[0])
    once = body([one(0.5), ({"no": "name"}, one(1.0)[1])], version)
    assert intake.take(once, version) == intake.take(once, version)
    assert len(sections(bus)) == 1
    clock[0] = 3601.0
    intake.take(once, version)
    assert len(sections(bus)) == 2


def test_full_bus_is_429_and_nothing_is_remembered_of_the_body(tmp_path):
    bus = file_bus(tmp_path, bytes_max=10_000)
    bus.append(b"x" * 9_900)
    intake = intake_of(bus)
    answer = intake.take(body([one(0.5)], Version.V2), Version.V2)
    assert (answer.status, answer.retry_after_seconds is not None) == (429, True)
    assert "bus.bytes_max=10000" in answer.text
    assert intake.take(body([one(0.5)], Version.V2), Version.V2).status == 429


def test_dcgm_percent_of_a_card_with_one_tenant_is_a_card_row_and_a_slice_row(tmp_path):
    bus = file_bus(tmp_path)
    sample = Sample(0, Measure.DUTY_CYCLE, START_MS, 50.0)
    labels = {"__name__": "DCGM_FI_DEV_GPU_UTIL", **DCGM, "namespace": "team", "pod": "p", "container": "c"}
    intake_of(bus).take(encoded([labels], [sample], Version.V2), Version.V2)
    found = {section.table.name: section for section in sections(bus)}
    assert set(found) == {POD_USAGE.name, CARD_USAGE.name}
    assert {section.values.item() for section in found.values()} == {0.5}
    assert found[CARD_USAGE.name].identities.to_pylist()[0]["node"] == "n1"


def test_measures_of_one_time_share_one_wide_row(tmp_path):
    bus = file_bus(tmp_path)
    samples = [
        Sample(0, Measure.SM_ACTIVE, START_MS, 0.25),
        Sample(0, Measure.DUTY_CYCLE, START_MS, 0.5),
        Sample(0, Measure.DUTY_CYCLE, START_MS + 1, 0.75),
    ]
    intake_of(bus).take(body_of(samples), Version.V2)
    (section,) = sections(bus)
    assert section.ts_ms.tolist() == [START_MS, START_MS + 1]
    np.testing.assert_array_equal(section.values, [[0.5, 0.75], [0.25, np.nan]])


def test_missing_cluster_label_is_the_configured_cluster(tmp_path):
    bus = file_bus(tmp_path)
    labels, sample = one(0.5)
    del labels["cluster"]
    intake_of(bus).take(encoded([labels], [sample], Version.V2), Version.V2)
    assert sections(bus)[0].identities.column("cluster").to_pylist() == ["home"]


@pytest.mark.parametrize("name", ["gputide_slice_info", "gputide:slice:info"])
def test_stale_marker_of_an_info_series_ends_its_sighting(tmp_path, name):
    bus = file_bus(tmp_path)
    labels = {
        "__name__": name, "cluster": "c1", "namespace": "n", "pod": "p", "card": "GPU-0", "framebuffer_bytes": "1",
    }  # fmt: skip
    body_ = LabelSets([labels]).encode(
        Version.V2, np.array([0, 0]), np.array([START_MS + 1, START_MS + 5]), np.array([1.0, STALE])
    )
    intake_of(bus).take(body_, Version.V2)
    (section,) = sections(bus)
    assert section.table is ALLOCATIONS
    assert (section.ts_ms.tolist(), section.values.tolist()) == ([START_MS + 1], [[START_MS + 1], [START_MS + 5]])


@pytest.mark.parametrize("value", ["", "-1", "nan", "many"])
def test_info_series_that_could_not_be_read_back_is_dropped_and_counted(tmp_path, value):
    bus = file_bus(tmp_path)
    intake = intake_of(bus)
    labels = {"__name__": "gputide_card_info", "card": "GPU-0", "framebuffer_bytes": value}
    assert intake.take(encoded([labels], [one(1.0)[1]], Version.V2), Version.V2).status == 204
    assert sections(bus) == []
    assert intake.counts["samples_of_dropped_series"] == 1


def test_both_versions_of_a_series_have_one_identity(tmp_path):
    bus = file_bus(tmp_path)
    intake = intake_of(bus)
    for version in Version:
        intake.take(body([one(0.5)], version), version)
    first, second = sections(bus)
    assert first.identities.equals(second.identities)


def test_series_table_grows_and_still_finds_every_series():
    table = series_table(series_max=50_000)
    sets = LabelSets([{"__name__": "m", "x": str(number)} for number in range(5000)])
    numbers = np.arange(5000)
    for version in Version:
        body_ = sets.encode(version, numbers, numbers, numbers.astype(float))
        decoded = Decoder(body_limits()).decode(body_, version)
        first = table.lookup(decoded)
        assert len(set(first.tolist())) == 5000
        assert table.lookup(decoded).tolist() == first.tolist()


def test_histograms_and_exemplars_are_answered_as_handled(tmp_path):
    # The sender compares: where it is told of fewer than it sent, it logs an error for every request.
    value = b"\x09" + struct.pack("<d", 1.0) + b"\x10\x05"
    symbols = b"".join(b"\x22" + bytes([len(text)]) + text for text in (b"", b"__name__", b"m"))
    with_samples = b"\x0a\x02\x01\x02" + b"\x12\x0b" + value + b"\x22\x00" * 2
    with_histograms = b"\x0a\x02\x01\x02" + b"\x1a\x00" * 3
    raw = symbols + b"".join(b"\x2a" + bytes([len(part)]) + part for part in (with_samples, with_histograms))
    answer = intake_of(file_bus(tmp_path)).take(bytes(cramjam.snappy.compress_raw(raw)), Version.V2)
    assert (answer.status, answer.samples, answer.histograms, answer.exemplars) == (204, 1, 3, 2)
