"""OTLP over HTTP: what exporters are answered, and OpenTelemetry's own exporter against the receiver."""

from __future__ import annotations

import gzip
import http.client
import threading
import time
from contextlib import closing

import pytest
from google.rpc.status_pb2 import Status
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.sdk.metrics import Counter, MeterProvider
from opentelemetry.sdk.metrics.export import AggregationTemporality, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource

from fleet.schema import CARD_USAGE
from pipeline.bus.bus import BusFull
from pipeline.receiver.receiver import METRICS_PATH
from pipeline.receiver.senders import Sender, Senders
from pipeline.records.rows import unpack
from tests.fuzz.hostile_bodies import field
from tests.pipeline.builders import START_MS, body_limits, file_bus, intake_of, series_table
from tests.pipeline.otlp_bodies import DELTA, request_of
from tests.pipeline.receiving import served

KIND = "application/x-protobuf"
DCGM = {"UUID": "GPU-0", "Hostname": "n1", "modelName": "NVIDIA A10"}
GOOD = request_of([({"service.name": "dcgm"}, "DCGM_FI_DEV_GPU_UTIL", DCGM, START_MS, 50.0)]).SerializeToString()
PARTLY = request_of([({"service.name": "x"}, "vllm:num_requests_running", {}, START_MS, 1)], DELTA).SerializeToString()


class FullBus:
    lanes = 1

    def append_all(self, payloads):
        raise BusFull(f"cannot append {len(payloads)} records: bus.bytes_max=1 is reached")


def asked(receiver, body, **fields):
    """The answer to a body, and its content."""
    host, port = receiver.address
    with closing(http.client.HTTPConnection(host, port, timeout=120)) as connection:
        headers = {"Content-Type": KIND, **{name.replace("_", "-"): value for name, value in fields.items()}}
        connection.request("POST", METRICS_PATH, body=body, headers=headers)
        answer = connection.getresponse()
        return answer, answer.read()


def cards(bus):
    chunk = bus.read(0, bytes_max=1 << 30)
    found = [] if chunk is None else [section for record in chunk.records for section in unpack(record)]
    return [card for section in found if section.table == CARD_USAGE for card in section.identities["card"].to_pylist()]


@pytest.fixture
def bus(tmp_path):
    return file_bus(tmp_path)


@pytest.fixture
def receiver(bus):
    with served(lambda _sender: intake_of(bus)) as started:
        yield started


@pytest.mark.parametrize("encoding", ["gzip", "identity", None])
def test_what_was_taken_is_200_with_an_empty_response(receiver, bus, encoding):
    body = gzip.compress(GOOD) if encoding == "gzip" else GOOD
    answer, content = asked(receiver, body, **({} if encoding is None else {"Content_Encoding": encoding}))
    assert (answer.status, answer.getheader("Content-Type"), content) == (200, KIND, b"")
    assert cards(bus) == ["GPU-0"]


def test_what_can_not_be_taken_is_said_in_partial_success(receiver):
    answer, content = asked(receiver, PARTLY)
    said = ExportMetricsServiceResponse.FromString(content).partial_success
    assert (answer.status, said.rejected_data_points) == (200, 1)
    assert "not cumulative" in said.error_message


@pytest.mark.parametrize(
    ("body", "fields", "status", "code", "words"),
    [
        (b"junk", {}, 400, 3, "cannot decode"),
        (b"{}", {"Content_Type": "application/json"}, 415, 3, "encoding: proto"),
        (b"x", {"Content_Type": "text/plain"}, 415, 3, "is this OTLP"),
        (b"x", {"Content_Encoding": "zstd"}, 415, 3, "compression: gzip"),
        (b"x" * 5000, {}, 413, 8, "receiver.body_bytes_max=4096"),
    ],
)
def test_what_is_refused_is_said_in_a_status_message(receiver, body, fields, status, code, words):
    answer, content = asked(receiver, body, **fields)
    said = Status.FromString(content)
    assert (answer.status, said.code, answer.getheader("Retry-After")) == (status, code, None)
    assert words in said.message


def test_a_full_bus_is_429_with_retry_after(tmp_path):
    with served(lambda _sender: intake_of(FullBus())) as receiver:
        answer, content = asked(receiver, GOOD)
    assert (answer.status, answer.getheader("Retry-After")) == (429, "5")
    assert "bus.bytes_max" in Status.FromString(content).message


def test_an_unknown_sender_is_401_and_a_known_one_speaks_for_its_cluster_alone(tmp_path, bus):
    (tmp_path / "tokens").write_text("a-token-of-edge-1-0123 edge-1\n")
    senders = Senders(
        {"edge-1": Sender(name="edge-1", cluster="edge-1")}, tokens_file=tmp_path / "tokens", takes_certificates=False,
        now_seconds=time.monotonic,
    )  # fmt: skip
    with served(lambda _sender: intake_of(bus), senders=senders) as receiver:
        answer, content = asked(receiver, GOOD)
        assert (answer.status, Status.FromString(content).code) == (401, 16)
        assert asked(receiver, GOOD, Authorization="Bearer a-token-of-edge-1-0123")[0].status == 200


@pytest.mark.long
def test_opentelemetrys_exporter_comes_again_after_429_and_its_sums_arrive(bus):
    class Once:
        """A bus that is full at first."""

        lanes = 1

        def __init__(self):
            self.tries = 0

        def append_all(self, payloads):
            self.tries += 1
            if self.tries == 1:
                raise BusFull("cannot append: bus.bytes_max=1 is reached")
            bus.append_all(payloads)

    once = Once()
    with served(lambda _sender: intake_of(once)) as receiver:
        host, port = receiver.address
        exporter = OTLPMetricExporter(f"http://{host}:{port}{METRICS_PATH}", compression=Compression.Gzip, timeout=30)
        reader = PeriodicExportingMetricReader(exporter, export_interval_millis=3_600_000)
        provider = MeterProvider([reader], Resource.create({"service.name": "dcgm", "k8s.node.name": "n1"}))
        meter = provider.get_meter("test")
        meter.create_gauge("DCGM_FI_DEV_GPU_UTIL").set(50, {"UUID": "GPU-0", "modelName": "NVIDIA A10"})
        meter.create_up_down_counter("hw.gpu.memory.usage").add(1 << 30, {"hw.id": "GPU-1", "hw.name": "NVIDIA A10"})
        assert provider.force_flush(30_000)
        tries = once.tries
        provider.shutdown()
    assert tries == 2
    assert set(cards(bus)) == {"GPU-0", "GPU-1"}


def test_opentelemetrys_exporter_of_deltas_is_refused(receiver):
    host, port = receiver.address
    exporter = OTLPMetricExporter(
        f"http://{host}:{port}{METRICS_PATH}", preferred_temporality={Counter: AggregationTemporality.DELTA}
    )
    provider = MeterProvider([PeriodicExportingMetricReader(exporter, export_interval_millis=3_600_000)])
    provider.get_meter("test").create_counter("vllm_num_requests_running").add(1)
    assert provider.force_flush(30_000)
    provider.shutdown()
    with closing(http.client.HTTPConnection(host, port, timeout=10)) as connection:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    assert "gputide_receiver_samples_delta_total 1.0" in text


@pytest.mark.long
def test_others_are_served_while_a_hostile_body_of_the_most_points_is_read(bus):
    """What it costs is measured by `bench/bars/native-otlp`: here that nobody waits for its end."""
    points = b"".join(
        field(1, field(7, field(1, b"UUID") + field(2, field(1, b"GPU-%d" % number)))) for number in range(150_000)
    )
    hostile = field(1, field(2, field(2, field(1, b"DCGM_FI_DEV_GPU_UTIL") + field(5, points))))
    limits = {"body_bytes_max": 16 << 20, "pending_bytes_max": 64 << 20, "pending_requests_max": 16}
    intake = intake_of(bus, series_table(series_max=200_000), limits=body_limits(1 << 25, 200_000))
    with served(lambda _sender: intake, limits) as receiver:
        asked(receiver, GOOD)
        sending = threading.Thread(target=asked, args=(receiver, hostile))
        sending.start()
        again = request_of([({"service.name": "dcgm"}, "DCGM_FI_DEV_GPU_UTIL", DCGM, START_MS + 1, 50.0)])
        assert asked(receiver, again.SerializeToString())[0].status == 200
        assert sending.is_alive()
        sending.join(120)
    assert intake.counts["samples"] + intake.counts["samples_out_of_time"] == 150_002
