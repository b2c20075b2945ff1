"""OTLP's bodies of metrics: the same rows as remote write, and nothing that a hostile one could take."""

from __future__ import annotations

import gzip
import math
import struct
import time
import tracemalloc
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from fleet.errors import Corrupt
from fleet.schema import CARD_USAGE, POD_USAGE, SERVERS, Measure
from pipeline.otlp.decode import Otlp, OtlpDecoder
from pipeline.otlp.labels import BYTES_MAX, LabelFields
from pipeline.receiver.turns import SMALL_SAMPLES_MAX
from pipeline.records.rows import STALE_BITS, unpack
from pipeline.remote_write.claims import Claims
from pipeline.remote_write.decode import TooLarge, Version
from pipeline.remote_write.label_sets import pairs_of_region
from tests.fuzz.hostile_bodies import field
from tests.pipeline.builders import (
    START_MS,
    Sample,
    body_limits,
    encoded,
    file_bus,
    intake_of,
    labels_of,
    series_table,
    small_fleet,
)
from tests.pipeline.otlp_bodies import CUMULATIVE, DELTA, as_collector, pairs, request_of

AT = START_MS + 60_000
SCRAPED = {"job": "dcgm", "instance": "10.0.0.7:9400"}
DCGM = {"UUID": "GPU-0", "Hostname": "n1", "modelName": "NVIDIA A10", "cluster": "c1", "gpu": "0"}
CARD = {"service.name": "dcgm", "service.instance.id": "10.0.0.7:9400"}
SMALL = body_limits(1 << 20, 1000)


def sections(bus):
    chunk = bus.read(0, bytes_max=1 << 30)
    return [] if chunk is None else [section for record in chunk.records for section in unpack(record)]


def rows(bus):
    """Every row as its table, identity, time and values by measure."""
    found = []
    for section in sections(bus):
        identities = section.identities.to_pylist()
        for row, place in enumerate(section.identity):
            values = tuple(
                (measure, value)
                for measure, value in zip(section.measures, section.values[:, row].tolist(), strict=False)
                if not math.isnan(value)
            )
            found.append((section.table.name, tuple(identities[place].items()), int(section.ts_ms[row]), values))
    return sorted(found)


def taken(folder, *requests, **table):
    """What a fresh intake answers to requests, and the rows that it wrote."""
    bus = file_bus(folder)
    intake = intake_of(bus, series_table(**table))
    return [intake.take(request.SerializeToString(), Otlp.METRICS) for request in requests], bus


def named(decoded):
    """The labels of every sample of a decoded body, its time and the bits of its value."""
    data = decoded.data.tobytes()
    return [
        (dict(pairs_of_region(data[start:end])), int(decoded.ts_ms[first]), decoded.values[first : first + 1].tobytes())
        for start, end, first, _, _ in decoded.series.tolist()
    ]


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_samples_by_otlp_and_by_remote_write_make_the_same_rows(tmp_path, pack):
    samples = [
        *small_fleet(pods=4, hours=1)[:300],
        *(Sample(pod, Measure.SM_ACTIVE, START_MS + 15_000, 0.25, of_card=True) for pod in range(4)),
    ]
    labels = [{**labels_of(sample), **SCRAPED} for sample in samples]
    labels += [{"__name__": "DCGM_FI_DEV_FB_USED", **DCGM, **SCRAPED, "exported_pod": "p", "exported_namespace": "t"}]
    samples += [Sample(0, Measure.FRAMEBUFFER_USED, AT, 4321.0)]
    written, sent = file_bus(tmp_path / "written"), file_bus(tmp_path / "sent")
    assert intake_of(written).take(encoded(labels, samples, Version.V2), Version.V2).status == 204
    points = [as_collector(own, sample.ts_ms, sample.value) for own, sample in zip(labels, samples, strict=True)]
    answer = intake_of(sent).take(pack(request_of(points).SerializeToString()), Otlp.METRICS)
    assert (answer.text, answer.samples) == ("", len(samples))
    assert rows(sent) == rows(written)
    assert len(rows(sent)) > 50


def test_a_resource_says_where_the_target_is_and_points_say_what_the_exporter_claims():
    resource = {
        **CARD, "k8s.cluster.name": "c1", "k8s.node.name": "n1", "k8s.namespace.name": "gpu-operator",
        "k8s.pod.name": "dcgm-exporter-x", "k8s.container.name": "exporter", "host.name": "collector", "os.type": "x",
    }  # fmt: skip
    point = {"pod": "web-0", "namespace": "team", "job": "forged", "hostname": "n1.example", "gpu": 3, "mig": True,
             "share": 0.5, "whole": 2.0, "a.b": "c", "empty": "", "list": None}  # fmt: skip
    request = request_of([(resource, "DCGM_FI_DEV_GPU_UTIL", point, AT, 50.0)])
    ((labels, ts_ms, value),) = named(OtlpDecoder(SMALL).decode(request.SerializeToString()))
    assert labels == {
        "__name__": "DCGM_FI_DEV_GPU_UTIL", "job": "dcgm", "instance": "10.0.0.7:9400", "cluster": "c1", "node": "n1",
        "namespace": "gpu-operator", "pod": "dcgm-exporter-x", "container": "exporter", "exported_pod": "web-0",
        "exported_namespace": "team", "exported_job": "forged", "hostname": "n1.example", "gpu": "3", "mig": "true",
        "share": "0.5", "whole": "2", "a_b": "c",
    }  # fmt: skip
    assert (ts_ms, value) == (AT, struct.pack("<d", 50.0))


def test_a_service_has_its_namespace_before_its_name():
    said = {"service.namespace": "edge", "service.name": "dcgm"}
    request = request_of([(said, "DCGM_FI_DEV_GPU_UTIL", DCGM, AT, 50.0)])
    ((labels, _, _),) = named(OtlpDecoder(SMALL).decode(request.SerializeToString()))
    assert labels["job"] == "edge/dcgm"


@pytest.mark.parametrize("name", ["vllm:num_requests_running", "vllm_num_requests_running"])
def test_a_server_is_known_with_a_colon_and_with_an_underscore(tmp_path, name):
    where = {"k8s.namespace.name": "team", "k8s.pod.name": "llm-0", "k8s.cluster.name": "c1"}
    (answer,), bus = taken(tmp_path, request_of([(where, name, {"model_name": "m"}, AT, 3)]))
    assert (answer.text, answer.samples) == ("", 1)
    (section,) = sections(bus)
    assert section.table.name == SERVERS.name
    (row,) = section.identities.to_pylist()
    assert (row["namespace"], row["pod"], row["server"]) == ("team", "llm-0", "vllm")


def test_hardware_conventions_speak_of_cards_with_an_identifier_of_their_own(tmp_path):
    where = {"k8s.cluster.name": "c1", "k8s.node.name": "n1", "k8s.pod.name": "agent", "k8s.namespace.name": "team"}
    card = {"hw.id": "GPU-7", "hw.type": "gpu", "hw.name": "NVIDIA A10"}
    points = [
        (where, "hw.gpu.utilization", card, AT, 0.5),
        (where, "hw.gpu.utilization", {**card, "hw.gpu.task": "encoder"}, AT, 0.9),
        (where, "hw.gpu.memory.usage", card, AT, 1 << 30),
        (where, "hw.power", {"hw.id": "GPU-7", "hw.type": "psu"}, AT, 9.0),
        (where, "hw.gpu.utilization", {**card, "hw.id": "0"}, AT, 0.7),
    ]
    own = [point for point in points if point[1] != "hw.gpu.memory.usage"]
    trusted = {**where, "k8s.namespace.name": "gpu-operator"}
    (stranger, first, second), bus = taken(
        tmp_path, request_of(points),
        request_of([(trusted, *point[1:]) for point in own]),
        request_of([(trusted, *points[2][1:])], temporality=CUMULATIVE),
    )  # fmt: skip
    assert (stranger.text, first.text, second.text) == ("", "", "")
    found = {values for table, _, _, values in rows(bus) if table == CARD_USAGE.name}
    assert {value for values in found for _, value in values} == {0.5, float(1 << 30)}
    assert {dict(identity)["card"] for _, identity, _, _ in rows(bus)} == {"GPU-7"}
    assert not [row for row in rows(bus) if row[0] == POD_USAGE.name]


def test_sums_over_an_interval_are_refused_in_words_and_the_rest_is_taken(tmp_path):
    card = (CARD, "DCGM_FI_DEV_GPU_UTIL", DCGM, AT, 50.0)
    request = request_of([card])
    request.MergeFrom(request_of([(CARD, "DCGM_FI_DEV_FB_USED", DCGM, AT, 3.0), (CARD, "up", {}, AT, 1)], DELTA))
    (answer,), bus = taken(tmp_path, request)
    assert (answer.rejected, answer.samples) == (1, 2)
    assert "1 points of sums that are not cumulative" in answer.text
    assert len(rows(bus)) == 1


def test_distributions_are_counted_and_not_kept(tmp_path):
    request = request_of([])
    metric = request.resource_metrics.add().scope_metrics.add().metrics
    metric.add(name="vllm:e2e_request_latency_seconds").histogram.data_points.add(count=3)
    metric.add(name="DCGM_FI_DEV_GPU_UTIL").exponential_histogram.data_points.add(count=3)
    metric.add(name="go_gc_duration_seconds").summary.data_points.add(count=3)
    (answer,), bus = taken(tmp_path, request)
    assert (answer.text, answer.histograms, answer.samples) == ("", 3, 0)
    assert rows(bus) == []


def test_a_point_without_a_value_is_prometheus_stale_marker():
    request = request_of([(CARD, "DCGM_FI_DEV_GPU_UTIL", DCGM, AT, math.nan)])
    request.resource_metrics[0].scope_metrics[0].metrics[0].gauge.data_points[0].flags = 1
    ((_, _, value),) = named(OtlpDecoder(SMALL).decode(request.SerializeToString()))
    assert value == STALE_BITS.to_bytes(8, "little")


def test_a_senders_cluster_wins_over_what_its_resources_claim(tmp_path):
    claimed = {**CARD, "k8s.cluster.name": "c2"}
    bus = file_bus(tmp_path)
    intake = intake_of(bus, series_table(claims=Claims("c1")))
    request = request_of([(claimed, "DCGM_FI_DEV_GPU_UTIL", DCGM, AT, 5.0)])
    answer = intake.take(request.SerializeToString(), Otlp.METRICS)
    assert (answer.text, intake.claims_overridden) == ("", 1)
    assert {dict(identity)["cluster"] for _, identity, _, _ in rows(bus)} == {"c1"}


@pytest.mark.parametrize(
    ("resource", "point"),
    [
        # The pod of a tenant says that another tenant's pod is on a card.
        ({**CARD, "k8s.namespace.name": "team", "k8s.pod.name": "evil"},
         {"exported_namespace": "victim", "exported_pod": "web-0"}),
        # As a program that nobody scraped, which Prometheus would be believed.
        ({}, {"namespace": "victim", "pod": "web-0"}),
        ({}, {"namespace": "victim", "pod": "web-0", "job": "dcgm-exporter", "instance": "10.0.0.7:9400"}),
        ({"service.name": "evil"}, {"namespace": "victim", "pod": "web-0"}),
    ],
    ids=["exported", "bare", "forged job", "own job"],
)  # fmt: skip
def test_what_a_tenant_says_of_others_is_left_out(tmp_path, resource, point):
    bus = file_bus(tmp_path)
    intake = intake_of(bus)
    request = request_of([(resource, "DCGM_FI_DEV_GPU_UTIL", {**DCGM, **point}, AT, 5.0)])
    assert intake.take(request.SerializeToString(), Otlp.METRICS).text == ""
    assert (rows(bus), intake.untrusted) == ([], 1)


def test_a_label_that_comes_twice_is_refused_and_the_rest_is_taken(tmp_path):
    good = (CARD, "DCGM_FI_DEV_GPU_UTIL", {**DCGM, "UUID": "GPU-1"}, AT, 5.0)
    twice = request_of([(CARD, "DCGM_FI_DEV_GPU_UTIL", {**DCGM, "U.UID": "x", "U_UID": "y"}, AT, 5.0), good])
    named_again = request_of([(CARD, "DCGM_FI_DEV_GPU_UTIL", {**DCGM, "__name__": "up"}, AT, 5.0)])
    answers, bus = taken(tmp_path, twice, named_again)
    assert [(answer.rejected, "repeats label" in answer.text) for answer in answers] == [(1, True), (1, True)]
    assert {dict(identity)["card"] for _, identity, _, _ in rows(bus)} == {"GPU-1"}


def test_series_beyond_the_bound_are_rejected_and_said(tmp_path):
    points = [(CARD, "DCGM_FI_DEV_GPU_UTIL", {**DCGM, "UUID": f"GPU-{card}"}, AT, 5.0) for card in range(30)]
    (answer,), _ = taken(tmp_path, request_of(points), series_max=10)
    assert answer.rejected == 20
    assert "receiver.series_max=10" in answer.text


TEXTS = st.text("aé_.:0", max_size=6)
VALUES = st.one_of(TEXTS, st.integers(-(2**63), 2**63 - 1), st.booleans(), st.floats(allow_nan=False))


@given(
    st.lists(
        st.tuples(
            st.dictionaries(st.sampled_from(["service.name", "host.name", "k8s.pod.name", "x"]), VALUES, max_size=3),
            st.sampled_from(["DCGM_FI_DEV_GPU_UTIL", "hw.power", "up", "gputide_card_info"]),
            st.dictionaries(st.sampled_from(["pod", "hostname", "a.b", "k", "job"]), VALUES, max_size=4),
            st.integers(0, 2**43),
            st.one_of(st.floats(), st.integers(-(2**63), 2**63 - 1)),
        ),
        max_size=8,
    )
)
@settings(max_examples=150, deadline=None)
def test_points_are_read_as_opentelemetrys_own_classes_read_them(points):
    decoded = OtlpDecoder(SMALL).decode(request_of(points).SerializeToString())
    wanted = [point for point in points if point[1] != "up"]
    assert decoded.unwanted == len(points) - len(wanted)
    found = named(decoded)
    for (labels, ts_ms, value), point in zip(found, wanted, strict=True):
        assert labels["__name__"] == point[1].replace(".", "_")
        assert ts_ms == point[3]
        assert value == struct.pack("<d", float(point[4]))
        assert [labels.get("a_b", "")] == [text_of(point[2].get("a.b", ""))]
        assert labels.get("exported_job", "") == text_of(point[2].get("job", ""))


def text_of(value):
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return f"{value:.0f}"
    return str(value)


def test_every_cut_of_a_body_is_corrupt_or_a_smaller_request():
    request = request_of([(CARD, "DCGM_FI_DEV_GPU_UTIL", DCGM, AT, 50.0)]).SerializeToString()
    for end in range(len(request)):
        try:
            assert len(OtlpDecoder(SMALL).decode(request[:end]).series) == 0
        except Corrupt as exc:
            assert "cannot" in str(exc)  # noqa: PT017 - either end is right


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (gzip.compress(b"x" * 500)[:-9], "not gzip|is cut|can't hold"),
        (gzip.compress(b"")[:-4] + (5000).to_bytes(4, "little"), "not gzip"),
        (gzip.compress(b"")[:-4] + (500_000).to_bytes(4, "little"), "can't hold"),
        (gzip.compress(bytes(50_000))[:-4] + (5).to_bytes(4, "little"), "declares"),
        (gzip.compress(b"") + gzip.compress(b"x"), "something behind|declares"),
        (b"\x1f\x8b junk", "larger than"),
        (b"\x0a\x05", "cut"),
        (b"\x0a\x02\x12\x7f", "cut"),
        (b"\x0b", "wire type"),
        (b"\x00\x00", "wire type"),
        (b"\xff" * 11, "cut"),
    ],
)
def test_what_is_no_body_is_refused_in_words(body, words):
    with pytest.raises(Corrupt, match=words):
        OtlpDecoder(SMALL).decode(body)


def test_a_bomb_is_refused_before_it_is_unpacked():
    bomb = zlib.compressobj(9, zlib.DEFLATED, 31)
    body = bomb.compress(bytes(64 << 20)) + bomb.flush()
    with pytest.raises(TooLarge, match=r"67108864 bytes.*receiver\.decoded_bytes_max=1048576"):
        OtlpDecoder(SMALL).decode(body)


@pytest.mark.parametrize(
    "body",
    [
        field(1, field(2, field(2, field(1, b"up") + field(5, field(1, b"") * 1001)))),
        field(1, field(2, field(2, b"") * 1001)),
        field(1, b"") * 1001,
    ],
    ids=["points", "metrics", "resources"],
)
def test_more_parts_than_may_be_are_refused_with_the_setting(body):
    with pytest.raises(TooLarge, match=r"receiver\.body_samples_max=1000"):
        OtlpDecoder(SMALL).decode(body)


def test_a_long_resource_is_not_repeated_for_every_point_without_bound():
    request = request_of([])
    of_resource = request.resource_metrics.add()
    of_resource.resource.attributes.extend(pairs({"service.name": "x" * 100_000}))
    metric = of_resource.scope_metrics.add().metrics.add(name="DCGM_FI_DEV_GPU_UTIL")
    for card in range(500):
        metric.gauge.data_points.add(attributes=pairs({"UUID": f"GPU-{card}"}))
    with pytest.raises(TooLarge, match=r"labels take 11\d{5} bytes.*receiver\.decoded_bytes_max=1048576"):
        OtlpDecoder(SMALL).decode(request.SerializeToString())


def test_a_long_resource_is_read_once_for_all_its_metrics():
    request = ExportMetricsServiceRequest()
    of_resource = request.resource_metrics.add()
    of_resource.resource.attributes.extend(pairs({"process.command_line": "x" * (2 << 20)}))
    scope = of_resource.scope_metrics.add()
    for _ in range(4000):
        scope.metrics.add(name="DCGM_FI_DEV_GPU_UTIL").gauge.SetInParent()
    decoder = OtlpDecoder(body_limits(1 << 23, 5000))
    decoder.decode(b"")
    began = time.process_time()
    assert len(decoder.decode(request.SerializeToString()).ts_ms) == 0
    assert time.process_time() - began < 0.5  # 4000 times 2 MiB would take seconds


def test_names_that_mean_nothing_are_not_remembered_beyond_the_longest_that_does():
    decoder = OtlpDecoder(body_limits(1 << 23, 1000))
    decoder.decode_few(request_of([(CARD, "what.is.loaded", {}, AT, 1.0)]).SerializeToString(), SMALL_SAMPLES_MAX)
    tracemalloc.start()
    try:
        for number in range(40):
            request = request_of([(CARD, f"{number}-" + "x" * (1 << 18), {}, AT, 1.0)])
            decoded = decoder.decode_few(request.SerializeToString(), SMALL_SAMPLES_MAX)
            assert decoded is not None
            assert decoded.unwanted == 1
            del request, decoded
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 1 << 20


def test_what_is_remembered_of_labels_is_bounded():
    made = LabelFields()
    for number in range(3000):
        target = made.target(b"")
        made.make(target, b"up", bytes(pairs_field(f"{number:05d}" + "x" * 8000)))
        assert made.held_bytes <= BYTES_MAX


def pairs_field(value):
    return field(7, pairs({"k": value})[0].SerializeToString())


def test_a_body_with_many_points_in_few_bytes_takes_the_turn_of_a_large_one(tmp_path):
    request = request_of([])
    metric = request.resource_metrics.add().scope_metrics.add().metrics.add(name="DCGM_FI_DEV_GPU_UTIL")
    for _ in range(SMALL_SAMPLES_MAX + 1):
        metric.gauge.data_points.add(attributes=pairs(DCGM))
    body = request.SerializeToString()
    assert OtlpDecoder(body_limits()).decode_few(body, SMALL_SAMPLES_MAX) is None
    (answer,), _ = taken(tmp_path, request)
    assert answer.samples == SMALL_SAMPLES_MAX + 1


def test_a_small_body_that_brings_much_that_is_new_takes_the_turn_of_a_large_one_until_it_is_known():
    request = request_of(
        [
            (CARD, "DCGM_FI_DEV_GPU_UTIL", {**DCGM, "UUID": f"GPU-{card}", "x": "y" * 400}, AT, 5.0)
            for card in range(2000)
        ]
    )
    body, decoder = request.SerializeToString(), OtlpDecoder(body_limits())
    answers = [decoder.decode_few(body, SMALL_SAMPLES_MAX) for _ in range(6)]
    assert answers[0] is None
    assert answers[-1] is not None
    assert len(answers[-1].series) == 2000
    assert named(answers[-1]) == named(OtlpDecoder(body_limits()).decode(body))


def test_fields_of_any_order_are_read_and_unknown_ones_skipped():
    request = request_of([(CARD, "DCGM_FI_DEV_GPU_UTIL", DCGM, AT, 50.0)]).resource_metrics[0]
    scope = request.scope_metrics[0].SerializeToString()
    body = field(1, field(15, b"new") + field(2, scope) + field(1, request.resource.SerializeToString()))
    assert ExportMetricsServiceRequest.FromString(body).resource_metrics[0].resource == request.resource
    ((labels, _, _),) = named(OtlpDecoder(SMALL).decode(body))
    assert labels["job"] == "dcgm"


def test_parts_that_stand_apart_are_refused():
    attribute = field(7, pairs({"k": "v"})[0].SerializeToString())
    point = attribute + b"\x19" + bytes(8) + attribute
    body = field(1, field(2, field(2, field(1, b"up") + field(5, field(1, point)))))
    with pytest.raises(Corrupt, match="stand apart"):
        OtlpDecoder(SMALL).decode(body)


def test_whole_numbers_become_the_same_doubles():
    points: list = [(CARD, "hw.power", {}, AT, number) for number in (0, -1, 2**63 - 1, -(2**63))]
    decoded = OtlpDecoder(SMALL).decode(request_of(points).SerializeToString())
    assert np.array_equal(decoded.values, np.array([0, -1, 2**63 - 1, -(2**63)], dtype=np.float64))
