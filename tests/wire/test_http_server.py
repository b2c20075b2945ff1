"""HTTP as hostile clients speak it: framing, smuggling, slowness, bounds on memory and connections."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from contextlib import ExitStack, suppress

import pytest

from fleet.errors import Misconfigured, Unavailable
from fleet.listener_files import ListenerFiles
from tests.security.authority import Authority
from tests.waiting import until
from tests.wire.http_serving import BODY_BYTES_MAX, HEALTH, exchange, served, statuses
from wire.http_head import HEAD_BYTES_MAX
from wire.http_server import listen
from wire.listener_tls import ListenerContexts

HEAD = b"POST /bodies HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-protobuf\r\n"


def request_of(body: bytes) -> bytes:
    return HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body


def chunked(body: bytes, size: int = 3, end: bytes = b"0\r\n\r\n") -> bytes:
    pieces = (body[at : at + size] for at in range(0, len(body), size))
    return HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(
        b"%x;why=not\r\n%s\r\n" % (len(piece), piece) for piece in pieces
    ) + end  # fmt: skip


def get(address: tuple[str, int], path: str = "/healthz") -> int:
    connection = http.client.HTTPConnection(*address, timeout=10)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()


@pytest.fixture
def server():
    with served() as found:
        yield found


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
    "a bare line feed in a chunk extension": b"Transfer-Encoding: chunked\r\n\r\n3;a\nb\r\nabc\r\n0\r\n\r\n",
    "a bare carriage return in a chunk extension": b"Transfer-Encoding: chunked\r\n\r\n0;a\rb\r\n\r\n",
    "a bare line feed in a trailer": b"Transfer-Encoding: chunked\r\n\r\n0\r\na: b\nc: d\r\n\r\n",
    "a trailer without end": b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"a: b\r\n" * 4000,
}


@pytest.mark.parametrize("rest", SMUGGLING.values(), ids=SMUGGLING)
def test_what_two_readers_could_read_differently_is_400_and_the_connection_ends(server, rest):
    answers = exchange(server.address, HEAD + rest + HEALTH)
    assert statuses(answers) == [400]
    assert b"Connection: close" in answers
    assert server.bodies == []


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
def test_request_that_cannot_be_read_is_answered_once_and_the_connection_ends(server, data, status):
    answers = exchange(server.address, data)
    assert statuses(answers) == [status]
    assert b"Connection: close" in answers


def test_other_paths_and_methods_are_refused_and_the_connection_goes_on(server):
    requests = (
        b"GET /bodies HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /healthz HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc",
        b"HEAD /bodies HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /other HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc",
        HEALTH,
    )
    answers = exchange(server.address, b"".join(requests))
    assert statuses(answers) == [405, 405, 405, 404, 200]
    assert server.refused == [405, 405, 405, 404]
    assert b"Allow: POST" in answers
    assert b"Allow: GET, HEAD" in answers


def test_answer_to_head_has_the_length_of_its_body_and_no_body(server):
    answers = exchange(server.address, HEALTH.replace(b"GET", b"HEAD") + HEALTH)
    assert statuses(answers) == [200, 200]
    assert answers.count(b"Content-Length: 3") == 2
    assert answers.count(b"ok\n") == 1


def test_body_is_not_taken_for_the_next_request(server):
    head = HEALTH.removesuffix(b"\r\n") + b"Content-Length: %d\r\n\r\n" % len(HEALTH)
    assert statuses(exchange(server.address, head + HEALTH)) == [200]


def test_requests_that_come_in_one_piece_are_all_answered_in_order(server):
    data = request_of(b"one") + chunked(b"another") + b"\r\n" + request_of(b"") + HEALTH
    assert statuses(exchange(server.address, data)) == [204, 204, 204, 200]
    assert server.bodies == [b"one", b"another", b""]


def test_request_that_comes_byte_by_byte_is_taken(server):
    with socket.create_connection(server.address, timeout=10) as opened:
        for byte in chunked(b"a body", size=1, end=b"0\r\nX-Trailer: y\r\n\r\n"):
            opened.send(bytes([byte]))
        assert opened.recv(100).startswith(b"HTTP/1.1 204")
    assert server.bodies == [b"a body"]


def test_client_that_waits_for_100_continue_gets_it(server):
    body = b"a body"
    with socket.create_connection(server.address, timeout=10) as opened:
        opened.sendall(HEAD + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body))
        assert opened.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        opened.sendall(body)
        assert opened.recv(100).startswith(b"HTTP/1.1 204")


def test_client_that_waits_for_100_continue_is_refused_before_it_sends(server):
    answers = exchange(
        server.address, HEAD + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % (BODY_BYTES_MAX + 1),
        then_closes=False,
    )  # fmt: skip
    assert statuses(answers) == [413]


def test_body_that_is_too_large_is_thrown_away_and_the_connection_goes_on(server):
    size = BODY_BYTES_MAX + 1
    answers = exchange(server.address, HEAD + b"Content-Length: %d\r\n\r\n" % size + b"x" * size + HEALTH)
    assert statuses(answers) == [413, 200]


def test_answer_arrives_although_the_client_still_sends(server):
    size = 4 << 20
    answers = exchange(server.address, HEAD + b"Content-Length: %d\r\n\r\n" % size + b"x" * (size // 2))
    assert statuses(answers) == [413]


@pytest.mark.parametrize("line", ["HTTP/1.0", "HTTP/1.1\r\nConnection: close"])
def test_client_that_wants_to_close_is_closed(server, line):
    data = f"GET /healthz {line}\r\nHost: x\r\n\r\n".encode()
    assert statuses(exchange(server.address, data + HEALTH, then_closes=False)) == [200]


def test_body_that_is_shorter_than_its_length_is_400_and_nothing_of_it_is_taken(server):
    body = b"a body"
    data = HEAD + b"Content-Length: %d\r\n\r\n" % (len(body) + 7) + body
    assert statuses(exchange(server.address, data)) == [400]
    assert server.bodies == []


def test_rest_of_a_body_longer_than_its_length_is_no_request(server):
    body = b"a body"
    data = HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body + b"more of it\r\n\r\n"
    assert statuses(exchange(server.address, data)) == [204, 400]


def test_slow_client_is_cut_while_others_are_served():
    with served(request_seconds=0.3) as server, ExitStack() as stack:
        slow = [stack.enter_context(socket.create_connection(server.address, timeout=10)) for _ in range(20)]
        for number, opened in enumerate(slow):
            opened.sendall(b"POST /bod" if number % 2 else HEAD + b"Content-Length: 100\r\n\r\nabc")
        assert get(server.address) == 200
        for number, opened in enumerate(slow):
            assert statuses(opened.recv(4096)) == ([] if number % 2 else [400])
            assert opened.recv(4096) == b""


def test_head_that_comes_byte_by_byte_is_given_up():
    with served(request_seconds=0.3) as server, socket.create_connection(server.address, timeout=10) as client:
        begun = time.monotonic()
        with suppress(ConnectionError):
            while time.monotonic() - begun < 5.0:
                client.sendall(b"G")
                time.sleep(0.05)
        assert time.monotonic() - begun < 3.0


def test_answer_that_is_taken_piece_by_piece_is_given_up():
    with served(answer_seconds=0.5) as server, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        client.settimeout(10)
        client.connect(server.address)
        client.sendall(b"GET /long HTTP/1.1\r\nHost: x\r\n\r\n")
        begun, taken = time.monotonic(), 0
        with suppress(ConnectionError):
            # Each piece is taken in time, and all of them together are not.
            while (chunk := client.recv(200_000)) and time.monotonic() - begun < 8.0:
                taken += len(chunk)
                time.sleep(0.02)
        assert taken < 40_000_000
        assert time.monotonic() - begun < 6.0


def test_silent_connections_lock_nobody_out():
    with served(connections_max=5) as server, ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(socket.create_connection(server.address, timeout=10))
            assert get(server.address) == 200


def test_half_a_head_gives_way_to_a_newcomer():
    with served(connections_max=5) as server, ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(socket.create_connection(server.address, timeout=10)).sendall(b"GET /he")
            time.sleep(0.05)  # until its thread waits for the rest
            assert get(server.address) == 200


def test_half_a_body_gives_way_to_a_newcomer_after_a_second():
    with served(connections_max=5) as server, ExitStack() as stack:
        for _ in range(5):
            opened = stack.enter_context(socket.create_connection(server.address, timeout=10))
            opened.sendall(HEAD + b"Content-Length: 100\r\n\r\nabc")
        time.sleep(0.2)
        assert get(server.address) == 503
        time.sleep(1.0)
        assert [get(server.address) for _ in range(5)] == [200] * 5


def test_answer_that_nobody_takes_gives_way_to_a_newcomer():
    with served(connections_max=3, answer_seconds=60.0) as server, ExitStack() as stack:
        for _ in range(3):
            opened = stack.enter_context(socket.create_connection(server.address, timeout=10))
            opened.sendall(b"GET /long HTTP/1.1\r\nHost: x\r\n\r\n")
        time.sleep(1.2)
        assert [get(server.address) for _ in range(3)] == [200] * 3


def test_handshake_that_never_comes_gives_way_to_a_newcomer(tmp_path):
    own = Authority(tmp_path, "authority").pair("server")
    files = ListenerFiles(section="x", certificate_file=str(own.certificate), key_file=str(own.key))
    contexts = ListenerContexts(files, needs_client=False, now_seconds=time.monotonic)
    before = threading.active_count()
    with served(contexts.context, connections_max=4) as server, ExitStack() as stack:
        for _ in range(40):
            stack.enter_context(socket.create_connection(server.address, timeout=10))
        until(lambda: server.refused.count(0) >= 36)
        assert threading.active_count() <= before + 8


def test_connection_is_refused_while_all_are_at_work():
    begun, go_on = threading.Semaphore(0), threading.Event()

    def in_body():
        begun.release()
        assert go_on.wait(10)

    with served(None, in_body, connections_max=2) as server, ExitStack() as stack:
        busy = [stack.enter_context(socket.create_connection(server.address, timeout=10)) for _ in range(2)]
        for opened in busy:
            opened.sendall(request_of(b"x"))
            assert begun.acquire(timeout=10)
        answers = exchange(server.address, b"")
        go_on.set()
        assert statuses(answers) == [503]
        assert b"Retry-After" in answers
        assert b"connections_max=2" in answers
        assert [statuses(opened.recv(4096)) for opened in busy] == [[204], [204]]


def test_threads_end_with_their_connections(server):
    before = threading.active_count()
    with ExitStack() as held:
        for _ in range(20):
            held.enter_context(socket.create_connection(server.address, timeout=10))
        until(lambda: threading.active_count() >= before + 20)
    until(lambda: threading.active_count() <= before)


def test_stop_answers_what_is_under_way_and_takes_nothing_more():
    begun, go_on = threading.Event(), threading.Event()

    def in_body():
        begun.set()
        assert go_on.wait(10)

    with ExitStack() as stack:
        with served(None, in_body) as server:
            idle = stack.enter_context(socket.create_connection(server.address, timeout=10))
            busy = stack.enter_context(socket.create_connection(server.address, timeout=10))
            busy.sendall(request_of(b"x") + HEALTH)
            assert begun.wait(10)
            threading.Timer(0.2, go_on.set).start()
        answer = busy.recv(4096)
        assert statuses(answer) == [204]
        assert b"Connection: close" in answer
        assert idle.recv(10) == b""
        with pytest.raises(ConnectionError):
            socket.create_connection(server.address, timeout=10)


def test_address_of_ip_version_6_can_be_listened_on():
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as exc:
        pytest.skip(f"this machine has no IPv6: {exc}")
    with listen("::1", 0, setting="--listen") as opened:
        assert opened.getsockname()[0] == "::1"


@pytest.mark.parametrize(("host", "port"), [("192.0.2.1", 0), ("127.0.0.1", 70_000), ("no such host.invalid", 0)])
def test_address_that_is_none_of_this_machine_is_named_with_its_setting(host, port):
    with pytest.raises(Misconfigured, match=r"agent\.listen"):
        listen(host, port, setting="agent.listen")


def test_address_that_is_taken_is_unavailable_and_named_with_its_setting(server):
    with pytest.raises(Unavailable, match=r"agent\.listen"):
        listen(*server.address, setting="agent.listen")


def test_address_that_holds_most_places_gives_way_before_one_that_holds_few():
    with served(connections_max=5) as server, ExitStack() as stack:
        own = stack.enter_context(socket.create_connection(server.address, timeout=10, source_address=("127.0.0.2", 0)))
        for _ in range(10):
            stack.enter_context(socket.create_connection(server.address, timeout=10))
            time.sleep(0.02)
        own.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert own.recv(65536).startswith(b"HTTP/1.1 404")
