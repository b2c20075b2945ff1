"""Whoever can reach the port can ask for anything, slowly, and often; a scraper is served nevertheless."""

import http.client
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress

import numpy as np
import pytest

from exporter import server, server_connections
from exporter.collector import Collector
from exporter.exposition.rendering import TextFormat
from exporter.reader import Reading
from exporter.server import MetricsServer
from exporter.server_connections import Admission, Connections
from fleet.inventory import CardId, CardModelName
from fleet.schema import Measure
from fleet.usage import CardKey
from tests.exporter.builders import T0

KEY = CardKey(cluster="c1", node="node-a", card=CardId("GPU-a"), card_model=CardModelName("NVIDIA A10"))
Address = tuple[str, int]


class OneReading:
    """A reader of one card."""

    def read(self, deadline_seconds: float) -> Reading | None:
        return Reading(at=T0, cards=(KEY,), card_values={Measure.DUTY_CYCLE: np.array([0.5])})

    def close(self) -> None:
        pass


@contextmanager
def serving(of: MetricsServer) -> Iterator[Address]:
    thread = threading.Thread(target=of.serve, daemon=True)
    thread.start()
    yield of.address
    of.stop()
    thread.join()


@pytest.fixture
def address() -> Iterator[Address]:
    collector = Collector(OneReading(), interval_seconds=60.0, deadline_seconds=1.0)
    collector.collect()
    with serving(MetricsServer(collector, host="127.0.0.1", port=0, age_seconds_max=60.0)) as address:
        yield address


def connected(address: Address) -> socket.socket:
    return socket.create_connection(address, timeout=10)


def answer(connection: socket.socket) -> bytes:
    """All that comes until the server hangs up."""
    received = b""
    try:
        while chunk := connection.recv(65536):
            received += chunk
    except ConnectionError:
        pass
    return received


def scrape(address: Address) -> int:
    with closing(http.client.HTTPConnection(*address, timeout=10)) as client:
        client.request("GET", "/metrics")
        response = client.getresponse()
        response.read()
        return response.status


def test_head_tells_the_length_and_sends_no_body(address: Address) -> None:
    with closing(http.client.HTTPConnection(*address, timeout=10)) as client:
        client.request("HEAD", "/metrics")
        response = client.getresponse()
        assert (response.status, response.read()) == (200, b"")
        length = int(response.headers["Content-Length"])
        # The connection goes on where it was: a body that had been sent would be taken for the next answer.
        client.request("GET", "/metrics")
        body = client.getresponse().read()
        assert abs(length - len(body)) < 40
        assert b"gputide_card_duty_cycle_ratio{" in body


def test_a_connection_serves_many_scrapes(address: Address) -> None:
    with closing(http.client.HTTPConnection(*address, timeout=10)) as client:
        for _ in range(5):
            client.request("GET", "/metrics", headers={"X-Prometheus-Scrape-Timeout-Seconds": "0.5"})
            response = client.getresponse()
            assert response.status == 200
            response.read()


@pytest.mark.parametrize("path", ["/", "/metrics/", "/metricsx", "/%6detrics", "/../etc/passwd"])
def test_other_paths_are_not_found(address: Address, path: str) -> None:
    with connected(address) as client:
        client.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        assert answer(client).startswith(b"HTTP/1.1 404 ")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "TRACE", "CONNECT"])
def test_other_methods_are_refused(address: Address, method: str) -> None:
    with connected(address) as client:
        client.sendall(f"{method} /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        assert answer(client).startswith(b"HTTP/1.1 405 ")


@pytest.mark.parametrize(
    "request_bytes",
    [
        pytest.param(b"GET /" + b"a" * 1_000_000, id="endless-path"),
        pytest.param(b"GET /metrics HTTP/1.1\r\nX: " + b"a" * 1_000_000, id="endless-header"),
        pytest.param(b"GET /metrics HTTP/1.1\r\n" + b"X: y\r\n" * 100_000, id="many-headers"),
    ],
)
def test_a_head_that_is_too_long_is_cut_off(address: Address, request_bytes: bytes) -> None:
    with connected(address) as client:
        # It may hang up before all was sent.
        with suppress(ConnectionError):
            client.sendall(request_bytes)
        assert not answer(client).startswith(b"HTTP/1.1 200 ")
    assert scrape(address) == 200


@pytest.mark.parametrize(
    "request_bytes", [b"\x00\xff\xfe\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\r\n\r\n", b""]
)
def test_what_is_no_request_ends_the_connection_alone(address: Address, request_bytes: bytes) -> None:
    with connected(address) as client:
        client.sendall(request_bytes)
        client.shutdown(socket.SHUT_WR)
        assert not answer(client).startswith(b"HTTP/1.1 200 ")
    assert scrape(address) == 200


def test_a_body_is_not_taken_for_the_next_request(address: Address) -> None:
    smuggled = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    with connected(address) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(smuggled) + smuggled)
        assert answer(client).count(b"HTTP/1.1 ") == 1


def test_a_head_that_comes_byte_by_byte_is_given_up(address: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_connections, "HEAD_SECONDS_MAX", 0.3)
    with connected(address) as client:
        begun = time.monotonic()
        try:
            while time.monotonic() - begun < 5.0:
                client.sendall(b"G")
                time.sleep(0.05)
        except ConnectionError:
            pass
        assert time.monotonic() - begun < 3.0
        assert answer(client) == b""


class LongAnswers(MetricsServer):
    """Answers of many pieces, more than a connection's buffers hold."""

    def metrics(self, text_format: TextFormat, *, is_packed: bool = False) -> tuple[bytes, ...]:
        return (b"x" * 2_000_000,) * 20


def test_an_answer_that_is_taken_piece_by_piece_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "SEND_SECONDS_MAX", 0.5)
    collector = Collector(OneReading(), interval_seconds=60.0, deadline_seconds=1.0)
    with serving(LongAnswers(collector, host="127.0.0.1", port=0, age_seconds_max=60.0)) as address:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
            client.settimeout(10)
            client.connect(address)
            client.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            begun, taken = time.monotonic(), 0
            with suppress(ConnectionError):
                # Each piece is taken in time, and all of them together are not.
                while (chunk := client.recv(200_000)) and time.monotonic() - begun < 8.0:
                    taken += len(chunk)
                    time.sleep(0.02)
        assert taken < 40_000_000
        assert time.monotonic() - begun < 6.0


def test_connections_that_are_only_held_open_keep_no_scraper_out(
    address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_connections, "WAITING_SECONDS_KEPT", 0.2)
    with ExitStack() as held:
        for number in range(200):
            client = held.enter_context(connected(address))
            if number % 2:
                client.sendall(b"GET /metrics HTTP/1.1\r\nX-Slow: ")
        time.sleep(0.4)
        assert [scrape(address) for _ in range(5)] == [200] * 5


def test_too_many_at_once_are_told_so(address: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_connections, "CONNECTIONS_MAX", 2)
    monkeypatch.setattr(server_connections, "WAITING_SECONDS_KEPT", 60.0)
    with ExitStack() as held:
        served = [held.enter_context(closing(http.client.HTTPConnection(*address, timeout=10))) for _ in range(2)]
        for client in served:
            client.request("GET", "/healthz")
            assert client.getresponse().read()
        refused = held.enter_context(closing(http.client.HTTPConnection(*address, timeout=10)))
        refused.request("GET", "/metrics")
        response = refused.getresponse()
        assert (response.status, response.headers["Retry-After"]) == (503, "1")
        served.pop().close()
        wait_until(lambda: scrape(address) == 200)


def wait_until(is_so) -> None:
    until = time.monotonic() + 10
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_threads_end_with_their_connections(address: Address) -> None:
    before = threading.active_count()
    with ExitStack() as held:
        for _ in range(20):
            held.enter_context(connected(address))
        wait_until(lambda: threading.active_count() >= before + 20)
    wait_until(lambda: threading.active_count() <= before)


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def test_the_connection_that_did_nothing_for_longest_gives_way() -> None:
    clock = Clock()
    connections = Connections(clock)
    with ExitStack() as opened:
        sockets = [opened.enter_context(socket.socket()) for _ in range(server_connections.CONNECTIONS_MAX + 1)]
        for one in sockets[:-1]:
            assert connections.admit(one) is Admission.SERVED
            clock.seconds += 0.001
        connections.turn(sockets[0], is_answering=True)
        clock.seconds += 2.0
        assert connections.admit(sockets[-1]) is Admission.SERVED
        # The first answers a scrape; the second has waited for longest.
        assert connections.is_served(sockets[0])
        assert not connections.is_served(sockets[1])


def test_beyond_the_refusals_a_connection_is_closed() -> None:
    connections = Connections(Clock())
    count = server_connections.CONNECTIONS_MAX + server_connections.REFUSALS_MAX + 1
    with ExitStack() as opened:
        became = [connections.admit(opened.enter_context(socket.socket())) for _ in range(count)]
    assert became.count(Admission.SERVED) == server_connections.CONNECTIONS_MAX
    assert became.count(Admission.REFUSED) == server_connections.REFUSALS_MAX
    assert became[-1] is Admission.CLOSED


def test_an_address_of_ip_version_6_can_be_listened_on() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as exc:
        pytest.skip(f"this machine has no IPv6: {exc}")
    collector = Collector(OneReading(), interval_seconds=60.0, deadline_seconds=1.0)
    with serving(MetricsServer(collector, host="::1", port=0, age_seconds_max=60.0)) as address:
        assert scrape(address) == 200
