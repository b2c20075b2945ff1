"""A WSGI application behind our server: what it sees of a request, and what goes out of its answer."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from tests.wire.http_serving import exchange, statuses
from wire.http_connection import ServerLimits
from wire.http_server import HttpServer, Known, listen
from wire.wsgi import Application, wsgi


@contextmanager
def serving(application: Application, threads: int = 2, is_known: Known | None = None) -> Iterator[tuple[str, int]]:
    limits = ServerLimits(
        connections_max=200, parked_max=50, body_bytes_max=1 << 20, pending_bytes_max=1 << 22, idle_seconds=30.0,
        request_seconds=10.0,
    )  # fmt: skip
    listener = listen("127.0.0.1", 0, setting="--listen")
    address = listener.getsockname()[:2]
    answer = wsgi(
        application, address=address, scheme="http", threads=threads, is_known=is_known, health_path="/healthz"
    )
    server = HttpServer(listener, answer, limits=limits, is_first=is_known)
    server.start()
    try:
        yield server.address
    finally:
        server.stop(grace_seconds=2.0)


def echo(environ: dict[str, Any], start: Any) -> list[bytes]:
    """What it was given, as JSON."""
    seen = {name: value for name, value in environ.items() if isinstance(value, str)}
    text = json.dumps({**seen, "body": environ["wsgi.input"].read().decode()}).encode()
    start("200 OK", [("Content-Type", "application/json"), ("Set-Cookie", "a=1"), ("Set-Cookie", "b=2")])
    return [text[:10], text[10:]]


def test_request_is_seen_as_it_was_sent() -> None:
    with serving(echo) as address:
        client = http.client.HTTPConnection(*address, timeout=10)
        client.request("POST", "/a%20b/c?x=1&y=%20", body=b"hello", headers={"X-Name": "v", "Content-Type": "text/x"})
        answer = client.getresponse()
        seen = json.loads(answer.read())
        client.close()
    assert answer.headers.get_all("Set-Cookie") == ["a=1", "b=2"]
    assert answer.headers["Content-Type"] == "application/json"
    assert {name: seen[name] for name in ("REQUEST_METHOD", "PATH_INFO", "QUERY_STRING", "CONTENT_TYPE", "body")} == {
        "REQUEST_METHOD": "POST", "PATH_INFO": "/a b/c", "QUERY_STRING": "x=1&y=%20", "CONTENT_TYPE": "text/x",
        "body": "hello",
    }  # fmt: skip
    assert (seen["HTTP_X_NAME"], seen["CONTENT_LENGTH"], seen["REMOTE_ADDR"]) == ("v", "5", "127.0.0.1")


def test_field_with_an_underscore_is_not_taken_for_that_with_a_hyphen() -> None:
    with serving(echo) as address:
        answers = exchange(address, b"GET / HTTP/1.1\r\nHost: x\r\nX_Forwarded_User: root\r\nConnection: close\r\n\r\n")
    assert "HTTP_X_FORWARDED_USER" not in json.loads(answers.partition(b"\r\n\r\n")[2])


def test_slashes_at_the_front_of_a_path_are_one() -> None:
    with serving(echo) as address:
        answers = exchange(address, b"GET //elsewhere.example/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert json.loads(answers.partition(b"\r\n\r\n")[2])["PATH_INFO"] == "/elsewhere.example/"


@pytest.mark.parametrize(
    ("method", "status", "length"), [("HEAD", "200 OK", b"1000"), ("GET", "304 Not Modified", None)]
)
def test_answers_without_a_body_leave_the_connection_in_step(method: str, status: str, length: bytes | None) -> None:
    def application(environ: dict[str, Any], start: Any) -> list[bytes]:
        start(status, [("Content-Length", "1000")] if method == "HEAD" else [])
        return [b"x" * 1000] if method != "HEAD" else []

    request = f"{method} / HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    with serving(application) as address:
        answers = exchange(address, request * 2)
    assert len(statuses(answers)) == 2
    assert b"xx" not in answers
    assert answers.count(b"Content-Length: ") == (0 if length is None else 2)
    assert length is None or b"Content-Length: " + length in answers


def test_no_more_requests_than_threads_are_worked_on_at_once() -> None:
    now, most, lock, closed = [0], [0], threading.Lock(), []

    class Pieces:
        def __iter__(self) -> Iterator[bytes]:
            with lock:
                now[0] += 1
                most[0] = max(most[0], now[0])
            threading.Event().wait(0.05)
            with lock:
                now[0] -= 1
            yield b"ok"

        def close(self) -> None:
            closed.append(True)

    def application(environ: dict[str, Any], start: Any) -> Pieces:
        start("200 OK", [])
        return Pieces()

    with serving(application) as address:
        threads = [
            threading.Thread(target=exchange, args=(address, b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert (most[0], len(closed)) == (2, 8)


def test_requests_of_strangers_keep_nobody_out_who_is_known() -> None:
    begun, go_on = threading.Semaphore(0), threading.Event()

    def slow_for_strangers(environ: dict[str, Any], start: Any) -> list[bytes]:
        if "HTTP_AUTHORIZATION" not in environ:
            begun.release()
            go_on.wait(20)
        return echo(environ, start)

    known = {"Authorization": "Bearer x"}
    with (
        serving(slow_for_strangers, 1, lambda fields, _address: "authorization" in fields) as address,
        ExitStack() as opened,
    ):
        for _ in range(5):
            stranger = opened.enter_context(socket.create_connection(address, timeout=20))
            stranger.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert begun.acquire(timeout=10)
        client = http.client.HTTPConnection(*address, timeout=10)
        try:
            client.request("GET", "/", headers=known)
            assert client.getresponse().status == 200
        finally:
            go_on.set()
            client.close()


def test_strangers_wait_while_a_request_of_somebody_known_is_worked_on() -> None:
    order: list[str] = []
    begun = threading.Event()

    def noted(environ: dict[str, Any], start: Any) -> list[bytes]:
        is_known = "HTTP_AUTHORIZATION" in environ
        if is_known:
            begun.set()
            time.sleep(0.3)
        order.append("known" if is_known else "stranger")
        return echo(environ, start)

    with serving(noted, 8, lambda fields, _address: "authorization" in fields) as address, ExitStack() as opened:
        known = opened.enter_context(socket.create_connection(address, timeout=10))
        known.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer x\r\n\r\n")
        assert begun.wait(10)
        stranger = opened.enter_context(socket.create_connection(address, timeout=10))
        stranger.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert statuses(stranger.recv(4096)) == [200]
    assert order == ["known", "stranger"]


def test_strangers_who_wait_are_few_and_a_kubelet_waits_behind_nobody() -> None:
    go_on = threading.Event()

    def slow_but_for_kubelets(environ: dict[str, Any], start: Any) -> list[bytes]:
        if environ["PATH_INFO"] != "/healthz":
            go_on.wait(20)
        return echo(environ, start)

    before = threading.active_count()
    with serving(slow_but_for_kubelets, 2, lambda _fields, _address: False) as address, ExitStack() as opened:
        for _ in range(300):
            stranger = opened.enter_context(socket.create_connection(address, timeout=20))
            stranger.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        begun = time.monotonic()
        health = exchange(address, b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert statuses(health) == [200]
        assert time.monotonic() - begun < 5.0
        assert threading.active_count() - before < 100
        go_on.set()
