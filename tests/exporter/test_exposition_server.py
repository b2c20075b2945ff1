"""Whoever can reach the port can ask for anything, slowly, and often; a scraper is served nevertheless."""

import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

import numpy as np
import pytest

from exporter.collector import Collector
from exporter.reader import Reading
from exporter.server import MetricsServer
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
    "request_bytes", [b"\x00\xff\xfe\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\r\n\r\n", b""]
)
def test_what_is_no_request_ends_the_connection_alone(address: Address, request_bytes: bytes) -> None:
    with connected(address) as client:
        client.sendall(request_bytes)
        client.shutdown(socket.SHUT_WR)
        assert not answer(client).startswith(b"HTTP/1.1 200 ")
    assert scrape(address) == 200


def test_connections_that_are_only_held_open_keep_no_scraper_out(
    address: Address,
) -> None:
    with ExitStack() as held:
        for number in range(200):
            client = held.enter_context(connected(address))
            if number % 2:
                client.sendall(b"GET /metrics HTTP/1.1\r\nX-Slow: ")
        assert [scrape(address) for _ in range(5)] == [200] * 5
