"""An engine that is down, hangs or speaks nonsense is one that does not answer, whoever asks and however often."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from gputide.operate import engine_answers
from gputide.operate.engine_answers import flink_answers, hive_answers, kafka_answers, metastore_answers
from gputide.operate.engines import free_port


@pytest.fixture
def answering() -> Iterator[Callable[[bytes | None], int]]:
    """Return a starter of servers that answer every connection with some bytes, or never; their port."""
    opened: list[socket.socket] = []

    def start(answer: bytes | None) -> int:
        listener = socket.create_server(("127.0.0.1", 0))
        opened.append(listener)
        if answer is not None:
            threading.Thread(target=serve, args=(listener, answer), daemon=True).start()
        return int(listener.getsockname()[1])

    def serve(listener: socket.socket, answer: bytes) -> None:
        try:
            while True:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(4096)
                    connection.sendall(answer)
        except OSError:
            return  # the listener was closed

    yield start
    for listener in opened:
        listener.close()


@pytest.mark.parametrize("asks", [metastore_answers, hive_answers])
def test_a_server_that_hangs_does_not_answer(
    asks: Callable[[int], bool], answering: Callable[[bytes | None], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_answers, "_QUERY_SECONDS", 1)
    answers: list[bool] = []
    port = answering(None)
    asking = threading.Thread(target=lambda: answers.append(asks(port)), daemon=True)
    asking.start()
    asking.join(timeout=20)
    assert answers == [False]


def test_another_program_on_flinks_port_is_no_answer(answering: Callable[[bytes | None], int]) -> None:
    assert not flink_answers(answering(b"220 mail is here\r\n\r\n"), taskmanagers_min=0)
    assert not flink_answers(answering(b'HTTP/1.0 200 OK\r\n\r\n["no overview"]'), taskmanagers_min=0)


def test_flink_on_this_machine_is_not_asked_through_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    class Overview(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"taskmanagers": 1}).encode())

        def log_message(self, *_: object) -> None:
            pass

    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setattr("urllib.request._opener", None)
    with HTTPServer(("127.0.0.1", 0), Overview) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        assert flink_answers(server.server_port, taskmanagers_min=1)
        server.shutdown()


def test_a_broker_that_is_down_costs_no_thread_however_often_it_is_asked() -> None:
    port, before = free_port(), threading.active_count()
    for _ in range(2):
        assert not kafka_answers(port)
    assert threading.active_count() == before
