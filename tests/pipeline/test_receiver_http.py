"""HTTP as hostile senders speak it: framing, smuggling, slowness, bounds on memory and connections."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.schema import Measure
from pipeline.receiver.http_head import HEAD_BYTES_MAX, Refusal, RequestHead, head_of
from pipeline.receiver.intake import Answer, Intake
from pipeline.receiver.receiver import WRITE_PATH
from tests.pipeline.builders import START_MS, Sample, body_of, file_bus, intake_of, read_all, series_table
from tests.pipeline.receiving import BODY_BYTES_MAX, V2, exchange, post, served, statuses

HEAD = f"POST {WRITE_PATH} HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-protobuf\r\n".encode()
HEAD_V2 = (
    f"POST {WRITE_PATH} HTTP/1.1\r\nHost: x\r\n"
    "Content-Type: application/x-protobuf;proto=io.prometheus.write.v2.Request\r\n"
).encode()
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


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


SMUGGLING = {
    "a length beside chunks": b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks beside a length": b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "two lengths": b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    "the same length twice": b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
    "a list of lengths": b"Content-Length: 3, 3\r\n\r\nabc",
    "a signed length": b"Content-Length: +3\r\n\r\nabc",
    "a negative length": b"Content-Length: -1\r\n\r\n",
    "a hexadecimal length": b"Content-Length: 0x3\r\n\r\nabc",
    "a length with a space inside": b"Content-Length: 1 3\r\n\r\nabc",
    "other digits": b"Content-Length: \xb2\r\n\r\nab",
    "a space before the colon": b"Content-Length : 3\r\n\r\nabc",
    "a folded line": b"X-A: b\r\n Content-Length: 3\r\n\r\nabc",
    "a bare line feed": b"X-A: b\nContent-Length: 3\r\n\r\nabc",
    "a bare carriage return": b"X-A: b\rContent-Length: 3\r\n\r\nabc",
    "a NUL": b"X-A: \x00\r\nContent-Length: 3\r\n\r\nabc",
    "a line without a colon": b"Content-Length\r\n\r\n",
    "a nameless field": b": 3\r\n\r\n",
    "two codings": b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "chunked twice": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a coding in disguise": b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "a chunk size that is none": b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    "a chunk size with a sign": b"Transfer-Encoding: chunked\r\n\r\n+3\r\nabc\r\n0\r\n\r\n",
    "a chunk size with a prefix": b"Transfer-Encoding: chunked\r\n\r\n0x3\r\nabc\r\n0\r\n\r\n",
    "a chunk size without end": b"Transfer-Encoding: chunked\r\n\r\n" + b"0" * 5000,
    "a chunk size of sixteen digits": b"Transfer-Encoding: chunked\r\n\r\n0000000000000003\r\nabc\r\n0\r\n\r\n",
    "a chunk longer than its size": b"Transfer-Encoding: chunked\r\n\r\n3\r\nabcdef\r\n0\r\n\r\n",
    "a chunk that ends in a line feed": b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\n0\r\n\r\n",
    "a trailer without end": b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"a: b\r\n" * 4000,
}


@pytest.mark.parametrize("rest", SMUGGLING.values(), ids=SMUGGLING)
def test_what_two_readers_could_read_differently_is_400_and_the_connection_ends(receiver, bus, rest):
    answers = exchange(receiver.address, HEAD + rest + HEALTH)
    assert statuses(answers) == [400]
    assert b"Connection: close" in answers
    assert bus.read(0, bytes_max=1) is None


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", 400),
        (b"POST /api/v1/write\r\n\r\n", 400),
        (b"GET  /healthz HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\n\r\n", 400),
        (b"GET /healthz HTTP/2.0\r\nHost: x\r\n\r\n", 505),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\nExpect: a miracle\r\n\r\n", 417),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: " + b"y" * (HEAD_BYTES_MAX + 1) + b"\r\n\r\n", 431),
        (b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 100 + b"\r\n", 431),
        (b"x" * (HEAD_BYTES_MAX * 2), 431),
        (HEAD + b"Content-Length: 9999999999999999999999\r\n\r\n", 413),
        (HEAD + b"\r\n", 411),
    ],
    ids=[
        "TLS",
        "no version",
        "two spaces",
        "no host",
        "HTTP/2",
        "expectation",
        "long",
        "many",
        "endless",
        "huge",
        "none",
    ],
)
def test_request_that_cannot_be_read_is_answered_once_and_the_connection_ends(receiver, data, status):
    answers = exchange(receiver.address, data)
    assert statuses(answers) == [status]
    assert b"Connection: close" in answers


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


def test_request_that_comes_byte_by_byte_is_taken(receiver, bus):
    with socket.create_connection(receiver.address, timeout=10) as opened:
        for byte in chunked(body_at(1), size=1, end=b"0\r\nX-Trailer: y\r\n\r\n"):
            opened.send(bytes([byte]))
        assert opened.recv(100).startswith(b"HTTP/1.1 204")
    assert len(read_all(bus).records) == 1


def test_sender_that_waits_to_be_told_is_told_to_send_its_body(receiver):
    body = body_at(1)
    with socket.create_connection(receiver.address, timeout=10) as opened:
        opened.sendall(HEAD_V2 + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body))
        assert opened.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        opened.sendall(body)
        assert opened.recv(100).startswith(b"HTTP/1.1 204")


def test_sender_that_waits_to_be_told_is_refused_before_it_sends(receiver):
    answers = exchange(
        receiver.address, HEAD_V2 + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % (BODY_BYTES_MAX + 1),
        then_closes=False,
    )  # fmt: skip
    assert statuses(answers) == [413]


def test_body_that_is_too_large_is_thrown_away_and_the_connection_goes_on(receiver):
    size = BODY_BYTES_MAX + 1
    answers = exchange(receiver.address, HEAD + b"Content-Length: %d\r\n\r\n" % size + b"x" * size + HEALTH)
    assert statuses(answers) == [413, 200]


def test_answer_arrives_although_the_sender_still_sends(receiver):
    size = 4 << 20
    answers = exchange(receiver.address, HEAD + b"Content-Length: %d\r\n\r\n" % size + b"x" * (size // 2))
    assert statuses(answers) == [413]


@pytest.mark.parametrize("line", ["HTTP/1.0", "HTTP/1.1\r\nConnection: close"])
def test_sender_that_wants_to_close_is_closed(receiver, line):
    data = f"GET /healthz {line}\r\nHost: x\r\n\r\n".encode()
    assert statuses(exchange(receiver.address, data + HEALTH, then_closes=False)) == [200]


def test_body_that_lies_about_its_length_is_400_and_nothing_of_it_is_written(receiver, bus):
    body = body_at(1)
    data = HEAD_V2 + b"Content-Length: %d\r\n\r\n" % (len(body) + 7) + body
    assert statuses(exchange(receiver.address, data)) == [400]
    assert bus.read(0, bytes_max=1) is None


def test_rest_of_a_body_longer_than_said_is_no_request(receiver, bus):
    body = body_at(1)
    data = HEAD_V2 + b"Content-Length: %d\r\n\r\n" % len(body) + body + b"more of it\r\n\r\n"
    assert statuses(exchange(receiver.address, data)) == [204, 400]


def test_slow_sender_is_hung_up_on_while_others_are_served(bus):
    with served(lambda _sender: intake_of(bus), {"request_seconds": 0.3}) as receiver, ExitStack() as stack:
        slow = [stack.enter_context(socket.create_connection(receiver.address, timeout=10)) for _ in range(20)]
        for number, opened in enumerate(slow):
            opened.sendall(b"POST /api" if number % 2 else HEAD + b"Content-Length: 100\r\n\r\nabc")
        connection = http.client.HTTPConnection(*receiver.address, timeout=10)
        assert post(connection, body_at(1), V2)[0].status == 204
        connection.close()
        for number, opened in enumerate(slow):
            assert statuses(opened.recv(4096)) == ([] if number % 2 else [400])
            assert opened.recv(4096) == b""


def test_silent_connections_lock_nobody_out(bus):
    with served(lambda _sender: intake_of(bus), {"connections_max": 5}) as receiver, ExitStack() as stack:
        for step in range(20):
            stack.enter_context(socket.create_connection(receiver.address, timeout=10))
            connection = http.client.HTTPConnection(*receiver.address, timeout=10)
            assert post(connection, body_at(step), V2)[0].status == 204
            connection.close()


def test_connection_is_refused_while_all_are_at_work(bus):
    class Slow(Intake):
        def __init__(self):
            super().__init__(
                bus, series_table(), decoded_bytes_max=1, repeat_memory_seconds=1, now_seconds=time.monotonic
            )

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
        found = int(next(line for line in text.splitlines() if line.startswith(f"{name} ")).split()[1])
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


@given(st.binary(max_size=400))
def test_any_bytes_are_a_head_or_a_refusal(data):
    found: RequestHead | Refusal
    try:
        found = head_of(data)
    except Refusal as refusal:
        found = refusal
    if isinstance(found, Refusal):
        assert (found.status in (400, 413, 417, 431, 505), found.is_final) == (True, True)
    else:
        assert found.length is None or not found.is_chunked


FIELDS = st.lists(
    st.tuples(
        st.sampled_from(["Host", "Content-Length", "Transfer-Encoding", "Expect", "Connection", "X-A", " X", "X "]),
        st.sampled_from(["x", "3", "chunked", "close", "100-continue", "3, 3", "", "\t5\t", "identity"]),
    ),
    max_size=6,
)


@given(FIELDS, st.sampled_from(["1.0", "1.1"]))
def test_head_that_is_taken_has_one_framing_only(fields, version):
    lines = [f"POST / HTTP/{version}", *(f"{name}: {value}" for name, value in fields)]
    try:
        head = head_of("\r\n".join(lines).encode())
    except Refusal:
        return
    names = [name.lower() for name, _ in fields]
    assert names.count("content-length") + names.count("transfer-encoding") <= 1
    assert head.is_chunked == ("transfer-encoding" in names)
    assert (head.length is not None) == ("content-length" in names)
