"""The receiver over real sockets: what it answers, and when."""

from __future__ import annotations

import http.client
import socket

import pytest

from fleet.schema import Measure
from pipeline.receiver.receiver import WRITE_PATH
from pipeline.records.rows import unpack
from pipeline.remote_write.decode import Version
from tests.pipeline.builders import START_MS, Sample, body_of, encoded, file_bus, intake_of
from tests.pipeline.receiving import BODY_BYTES_MAX, V1, V1_NAMED, V2, post, served

SAMPLE = Sample(0, Measure.DUTY_CYCLE, START_MS, 0.5)


@pytest.fixture
def bus(tmp_path):
    return file_bus(tmp_path)


@pytest.fixture
def receiver(bus):
    with served(lambda _sender: intake_of(bus)) as started:
        yield started


@pytest.fixture
def connection(receiver):
    host, port = receiver.address
    opened = http.client.HTTPConnection(host, port, timeout=10)
    yield opened
    opened.close()


def records(bus):
    chunk = bus.read(0, bytes_max=1 << 20)
    return () if chunk is None else chunk.records


@pytest.mark.parametrize(("headers", "version"), [(V1, 1), (V1_NAMED, 1), (V2, 2)], ids=["plain", "named", "two"])
def test_204_means_that_the_bus_has_it(connection, bus, headers, version):
    answer, text = post(connection, body_of([SAMPLE], Version(version)), headers)
    assert (answer.status, text) == (204, "")
    (record,) = records(bus)
    assert unpack(record)[0].values.tolist() == [[0.5]]


def test_version_2_is_told_what_was_written(connection):
    answer, _ = post(connection, body_of([SAMPLE]), V2)
    found = {name: answer.getheader(f"X-Prometheus-Remote-Write-{name}-Written") for name in NAMES}
    assert found == {"Samples": "1", "Histograms": "0", "Exemplars": "0"}


NAMES = ("Samples", "Histograms", "Exemplars")


def test_partly_invalid_version_2_is_400_with_what_was_written(connection):
    labels = [{"__name__": "up"}, {"no": "name"}]
    answer, text = post(connection, encoded(labels, [SAMPLE, SAMPLE], Version.V2), V2)
    assert (answer.status, answer.getheader("X-Prometheus-Remote-Write-Samples-Written")) == (400, "1")
    assert "__name__" in text


@pytest.mark.parametrize(
    "headers",
    [
        {**V1, "Content-Type": "application/json"},
        {**V1, "Content-Type": "application/x-protobuf;proto=io.prometheus.write.v3.Request"},
        {**V1, "Content-Encoding": "gzip"},
        {"Content-Encoding": "snappy"},
    ],
    ids=["json", "version 3", "gzip", "nothing"],
)
def test_other_types_and_encodings_are_415(connection, bus, headers):
    answer, text = post(connection, body_of([SAMPLE], Version.V1), headers)
    assert answer.status == 415
    assert "expected" in text
    assert records(bus) == ()


@pytest.mark.parametrize("body", [b"", b"\x05garbage", b"not snappy at all"])
def test_garbage_is_400_with_readable_text_and_the_connection_lives_on(connection, bus, body):
    answer, text = post(connection, body, V1)
    assert (answer.status, text.startswith("cannot decode")) == (400, True)
    assert post(connection, body_of([SAMPLE], Version.V1), V1)[0].status == 204


def test_version_2_body_sent_as_version_1_is_400_and_not_a_silent_204(connection, bus):
    assert post(connection, body_of([SAMPLE], Version.V2), V1)[0].status == 400
    assert records(bus) == ()


def test_chunked_body_is_taken(connection, bus):
    body = body_of([SAMPLE])
    answer, _ = post(connection, iter([body[:7], body[7:]]), V2, encode_chunked=True)
    assert answer.status == 204
    assert len(records(bus)) == 1


def test_too_large_a_body_is_413_naming_limit_and_setting(connection):
    answer, text = post(connection, b"x" * (BODY_BYTES_MAX + 1), V1)
    assert answer.status == 413
    assert f"receiver.body_bytes_max={BODY_BYTES_MAX}" in text


def test_chunked_body_is_bounded_too(receiver):
    assert raw(receiver, b"Transfer-Encoding: chunked\r\n\r\nffffff\r\n").startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize(
    ("rest", "status"),
    [
        (b"\r\n", 411),
        (b"Content-Length: -1\r\n\r\n", 400),
        (b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"Transfer-Encoding: gzip\r\n\r\n", 400),
        (b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"Transfer-Encoding: chunked\r\n\r\n3\r\nabcdef\r\n", 400),
    ],
)
def test_broken_framing_is_refused_and_the_connection_closed(receiver, rest, status):
    answer = raw(receiver, rest)
    assert answer.startswith(b"HTTP/1.1 %d" % status)
    assert b"Connection: close" in answer


def raw(receiver, rest):
    head = f"POST {WRITE_PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-protobuf\r\n".encode()
    with socket.create_connection(receiver.address, timeout=10) as opened:
        opened.sendall(head + rest)
        opened.shutdown(socket.SHUT_WR)
        answer = b""
        while part := opened.recv(4096):
            answer += part
    return answer


def test_body_that_is_cut_on_the_wire_is_400(receiver, bus):
    assert raw(receiver, b"Content-Length: 50\r\n\r\nabc").startswith(b"HTTP/1.1 400")
    assert records(bus) == ()


def test_bus_that_cannot_take_it_is_never_acknowledged(tmp_path):
    full = file_bus(tmp_path / "full", bytes_max=10_000)
    full.append(b"x" * 9_900)
    with served(lambda _sender: intake_of(full)) as receiver:
        connection = http.client.HTTPConnection(*receiver.address, timeout=10)
        answer, text = post(connection, body_of([SAMPLE]), V2)
        connection.close()
    assert (answer.status, answer.getheader("Retry-After")) == (429, "5")
    assert "bus.bytes_max" in text


def test_own_metrics_count_requests_and_samples(connection):
    post(connection, body_of([SAMPLE]), V2)
    post(connection, b"garbage", V2)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    assert 'gputide_receiver_requests_total{code="204"} 1.0' in text
    assert 'gputide_receiver_requests_total{code="400"} 1.0' in text
    assert "gputide_receiver_samples_total 1.0\n" in text
    assert "gputide_receiver_series 1.0\n" in text


def test_health_and_unknown_paths(connection):
    for path, status in (("/healthz", 200), ("/-/ready", 200), ("/nothing", 404)):
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        assert answer.status == status
