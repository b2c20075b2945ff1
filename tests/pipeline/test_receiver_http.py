"""The receiver over HTTP: its paths, and what all senders together may cost; `tests/wire` has HTTP itself."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from contextlib import ExitStack

import pytest

from fleet.schema import Measure
from pipeline.receiver.intake import Answer, Intake
from pipeline.receiver.receiver import WRITE_PATH
from pipeline.receiver.repeats import Repeats
from pipeline.receiver.turns import Turns
from tests.pipeline.builders import START_MS, Sample, body_limits, body_of, file_bus, intake_of, read_all, series_table
from tests.pipeline.receiving import V2, post, served
from tests.wire.http_serving import HEALTH, exchange, statuses

HEAD = f"POST {WRITE_PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-protobuf\r\n".encode()
HEAD_V2 = (
    f"POST {WRITE_PATH} HTTP/1.1\r\nHost: x\r\n"
    "Content-Type: application/x-protobuf;proto=io.prometheus.write.v2.Request\r\n"
).encode()


def body_at(step: int) -> bytes:
    return body_of([Sample(0, Measure.DUTY_CYCLE, START_MS + step, 0.5)])


def request_of(body: bytes) -> bytes:
    return HEAD_V2 + b"Content-Length: %d\r\n\r\n" % len(body) + body


def chunked(body: bytes, size: int = 3, end: bytes = b"0\r\n\r\n") -> bytes:
    pieces = (body[at : at + size] for at in range(0, len(body), size))
    return HEAD_V2 + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(
        b"%x;why=not\r\n%s\r\n" % (len(piece), piece) for piece in pieces
    ) + end  # fmt: skip


@pytest.fixture
def bus(tmp_path):
    return file_bus(tmp_path)


@pytest.fixture
def receiver(bus):
    with served(lambda _sender: intake_of(bus)) as started:
        yield started


def test_other_paths_and_methods_are_refused_and_the_connection_goes_on(receiver):
    requests = (
        b"GET /api/v1/write HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc",
        b"PUT /api/v1/write HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
        b"POST /api/v1/other HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc",
        HEALTH,
    )
    answers = exchange(receiver.address, b"".join(requests))
    assert statuses(answers) == [405, 405, 405, 404, 200]
    assert b"Allow: POST" in answers


def test_requests_that_come_in_one_piece_are_all_answered_in_order(receiver, bus):
    data = request_of(body_at(1)) + chunked(body_at(2)) + request_of(b"junk") + request_of(body_at(3)) + HEALTH
    assert statuses(exchange(receiver.address, data)) == [204, 204, 400, 204, 200]
    assert len(read_all(bus).records) == 3


def test_connection_is_refused_while_all_are_at_work(bus):
    class Slow(Intake):
        def __init__(self):
            super().__init__(bus, series_table(), turns=Turns(body_limits()), repeats=Repeats(1, time.monotonic))

        def take(self, body, version):
            begun.release()
            assert go_on.wait(10)
            return Answer(status=204, is_counted=True)

    begun, go_on = threading.Semaphore(0), threading.Event()
    with served(lambda _sender: Slow(), {"connections_max": 2}) as receiver, ExitStack() as stack:
        busy = [stack.enter_context(socket.create_connection(receiver.address, timeout=10)) for _ in range(2)]
        for opened in busy:
            opened.sendall(request_of(b"\x01\x00\x00"))
            assert begun.acquire(timeout=10)
        answers = exchange(receiver.address, b"")
        go_on.set()
        assert statuses(answers) == [503]
        assert b"Retry-After" in answers
        assert b"receiver.connections_max=2" in answers
        assert [statuses(opened.recv(4096)) for opened in busy] == [[204], [204]]


class StalledBus:
    """A bus of one lane that takes nothing until it is told to go on."""

    lanes = 1

    def __init__(self, bus):
        self._bus = bus
        self.begun, self.go_on = threading.Event(), threading.Event()

    def append_all(self, payloads):
        self.begun.set()
        assert self.go_on.wait(10)
        self._bus.append_all(payloads)


def test_more_requests_than_may_wait_are_429_and_come_through_later(bus):
    stalled = StalledBus(bus)
    with served(lambda _sender: intake_of(stalled), {"pending_requests_max": 1}) as receiver, ExitStack() as stack:
        first = stack.enter_context(socket.create_connection(receiver.address, timeout=10))
        first.sendall(request_of(body_at(1)))
        assert stalled.begun.wait(10)
        connection = http.client.HTTPConnection(*receiver.address, timeout=10)
        answer, text = post(connection, body_at(2), V2)
        assert (answer.status, answer.getheader("Retry-After")) == (429, "5")
        assert "receiver.pending_requests_max=1" in text
        stalled.go_on.set()
        assert statuses(first.recv(4096)) == [204]
        assert post(connection, body_at(2), V2)[0].status == 204
        connection.close()


def test_bytes_of_all_bodies_are_bounded_by_what_has_come_and_not_by_what_was_said(bus):
    limits = {"body_bytes_max": 1 << 20, "pending_bytes_max": 1 << 20, "request_seconds": 5.0}
    with served(lambda _sender: intake_of(bus), limits) as receiver, ExitStack() as stack:
        for _ in range(8):
            liar = stack.enter_context(socket.create_connection(receiver.address, timeout=10))
            liar.sendall(HEAD + b"Content-Length: %d\r\n\r\nabc" % (1 << 20))
        connection = http.client.HTTPConnection(*receiver.address, timeout=10)
        assert post(connection, body_at(1), V2)[0].status == 204
        hog = stack.enter_context(socket.create_connection(receiver.address, timeout=10))
        hog.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % (1 << 20) + b"x" * (900 << 10))
        wait_for_metric(connection, "gputide_receiver_pending_bytes", 900 << 10)
        answer, text = post(connection, b"\xff\xff\x3f" + b"x" * (200 << 10), V2)
        assert (answer.status, answer.getheader("Retry-After")) == (429, "5")
        assert "receiver.pending_bytes_max" in text
        hog.close()
        wait_for_metric(connection, "gputide_receiver_pending_bytes", 0, at_most=True)
        assert post(connection, body_at(2), V2)[0].status == 204
        connection.close()


def wait_for_metric(connection, name, value, *, at_most=False):
    deadline = time.monotonic() + 10
    while True:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        found = float(next(line for line in text.splitlines() if line.startswith(f"{name} ")).split()[1])
        # The bodies of the liars hold three bytes each.
        if (found <= value + 100) if at_most else (found >= value):
            return
        assert time.monotonic() < deadline, text
        time.sleep(0.01)


def test_stop_answers_what_is_under_way_and_takes_nothing_more(bus):
    stalled = StalledBus(bus)
    with ExitStack() as stack:
        with served(lambda _sender: intake_of(stalled)) as receiver:
            address = receiver.address
            idle = stack.enter_context(socket.create_connection(address, timeout=10))
            busy = stack.enter_context(socket.create_connection(address, timeout=10))
            busy.sendall(request_of(body_at(1)) + HEALTH)
            assert stalled.begun.wait(10)
            threading.Timer(0.2, stalled.go_on.set).start()
        answer = busy.recv(4096)
        assert statuses(answer) == [204]
        assert b"Connection: close" in answer
        assert idle.recv(10) == b""
        with pytest.raises(ConnectionError):
            socket.create_connection(address, timeout=10)
    assert len(read_all(bus).records) == 1
