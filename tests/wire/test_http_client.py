"""The one HTTP client: the deadline of a whole call, what is sent twice, where requests go, what messages show."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from fleet.errors import Misconfigured, Unavailable
from wire.http_answer import read_body
from wire.http_client import Endpoint, HttpClient, Request, endpoint_of
from wire.tls import Tls

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@contextmanager
def listening(serve: Callable[[socket.socket, int], None]) -> Iterator[int]:
    """A port whose n-th connection is served by a function; it is closed when that returns."""
    listener = socket.create_server(("127.0.0.1", 0))

    def run() -> None:
        number = 0
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            number += 1
            with connection:
                serve(connection, number)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(30)


def at(port: int, tls: Tls | None = None) -> HttpClient:
    return HttpClient(Endpoint(host="127.0.0.1", port=port, tls=tls), "test")


def asked(client: HttpClient, request: Request) -> bytes:
    with client.ask(request) as answer:
        return bytes(read_body(answer, 1000))


def test_deadline_of_a_call_covers_a_handshake_that_the_server_never_begins() -> None:
    ended = threading.Event()

    def hold(connection: socket.socket, number: int) -> None:
        ended.wait(30)

    with listening(hold) as port:
        began = time.monotonic()
        with pytest.raises(Unavailable, match="timed out"):
            asked(at(port, Tls()), Request(path="/", seconds_max=0.3))
        taken = time.monotonic() - began
        ended.set()
    assert taken < 5.0


def test_deadline_of_a_call_covers_an_answer_that_comes_byte_by_byte() -> None:
    def drip(connection: socket.socket, number: int) -> None:
        connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n")
        try:
            for _ in range(100):
                connection.sendall(b".")
                time.sleep(0.1)
        except OSError:
            return

    with listening(drip) as port:
        began = time.monotonic()
        with pytest.raises(Unavailable, match="not answered in"):
            asked(at(port), Request(path="/", seconds_max=0.5))
        assert time.monotonic() - began < 5.0


@pytest.mark.parametrize(
    ("method", "is_read", "is_answered"), [("POST", False, False), ("POST", True, True), ("GET", False, True)]
)
def test_request_that_writes_is_not_sent_again_on_a_connection_that_the_server_closed(
    method: str, is_read: bool, is_answered: bool
) -> None:
    closed = threading.Event()

    def once(connection: socket.socket, number: int) -> None:
        connection.recv(65536)
        connection.sendall(OK)
        if number == 1:
            connection.close()
            closed.set()

    with listening(once) as port:
        client = at(port)
        request = Request(
            path="/", seconds_max=5.0, method=method, is_read=is_read, body=b"x" if method == "POST" else None
        )
        assert asked(client, request) == b"ok"
        closed.wait(30)
        if is_answered:
            assert asked(client, request) == b"ok"
        else:
            with pytest.raises(Unavailable):
                asked(client, request)
        client.close()


def test_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(connection: socket.socket, number: int) -> None:
        connection.recv(65536)
        connection.sendall(OK)

    with listening(answer) as port:
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, "http://127.0.0.1:1")
        assert asked(at(port), Request(path="/", seconds_max=5.0)) == b"ok"


def test_path_that_is_a_secret_stands_in_no_message() -> None:
    with listening(lambda connection, number: None) as port, pytest.raises(Unavailable) as caught:
        asked(at(port), Request(path="/hook/T0P-SECRET", seconds_max=5.0, method="POST", body=b"", shown="the hook"))
    assert "SECRET" not in str(caught.value)
    assert "the hook" in str(caught.value)


@pytest.mark.parametrize(
    ("url", "server"),
    [
        ("http://a.example", "http://a.example:80"),
        ("https://a.example/", "https://a.example:443"),
        ("https://[::1]:9090/x/", "https://[::1]:9090/x"),
    ],
)
def test_address_names_host_port_and_path(url: str, server: str) -> None:
    assert endpoint_of(url, setting="x.url").server == server


@pytest.mark.parametrize(
    "url", ["a.example:80", "ftp://a.example", "http://", "http://a:b", "http://a/?q=1", "http://a:0"]
)
def test_address_that_is_none_is_refused_with_its_setting(url: str) -> None:
    with pytest.raises(Misconfigured, match=r"x\.url"):
        endpoint_of(url, setting="x.url")


def test_password_in_an_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(Misconfigured, match=r"x\.url") as caught:
        endpoint_of("https://me:hunter22@a.example", setting="x.url")
    assert "hunter22" not in str(caught.value)
