"""What the rollup asks Flink's REST interface, against a server that answers in Flink's words."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from fleet.errors import Unavailable
from pipeline.flink.rest import FlinkRest

UNDER_WAY = {"status": {"id": "IN_PROGRESS"}, "operation": None}


class Server(ThreadingHTTPServer):
    """Gives its answers in order, the last one for ever."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: list[dict[str, Any]] = []
        self.asked: list[tuple[str, str, Any]] = []

    @property
    def rest(self) -> FlinkRest:
        return FlinkRest(f"http://127.0.0.1:{self.server_address[1]}")


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

    def log_message(self, *_arguments: object) -> None:
        """Say nothing."""

    def _answer(self, body: Any) -> None:
        self.server.asked.append((self.command, self.path, body))
        answers = self.server.answers
        text = json.dumps(answers.pop(0) if len(answers) > 1 else answers[0]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


@pytest.fixture
def server() -> Iterator[Server]:
    opened = Server()
    threading.Thread(target=opened.serve_forever, args=(0.02,), daemon=True).start()
    yield opened
    opened.shutdown()
    opened.server_close()


def test_a_checkpoint_that_was_asked_for_is_waited_for_and_gives_its_number(server: Server) -> None:
    done = {"status": {"id": "COMPLETED"}, "operation": {"checkpointId": 12, "failureCause": None}}
    server.answers = [{"request-id": "r"}, UNDER_WAY, UNDER_WAY, done]
    assert server.rest.checkpoint("j", seconds_max=10) == 12
    assert server.asked == [
        ("POST", "/jobs/j/checkpoints", {"checkpointType": "CONFIGURED"}),
        *[("GET", "/jobs/j/checkpoints/r", None)] * 3,
    ]


def test_a_checkpoint_that_fails_says_why(server: Server) -> None:
    cause = {"class": "x", "stack-trace": "CheckpointException: not all tasks run\n\tat somewhere"}
    failed = {"status": {"id": "COMPLETED"}, "operation": {"checkpointId": None, "failureCause": cause}}
    server.answers = [{"request-id": "r"}, failed]
    with pytest.raises(Unavailable, match=r"take a checkpoint: CheckpointException: not all tasks run$"):
        server.rest.checkpoint("j", seconds_max=10)


def test_a_savepoint_that_fails_says_why(server: Server) -> None:
    failed = {"status": {"id": "COMPLETED"}, "operation": {"failure-cause": {"stack-trace": "IOException: full\n"}}}
    server.answers = [{"request-id": "r"}, failed]
    with pytest.raises(Unavailable, match=r"with a savepoint: IOException: full$"):
        server.rest.stop("j", "file:///s", seconds_max=10)


def test_what_takes_too_long_is_given_up(server: Server) -> None:
    server.answers = [{"request-id": "r"}, UNDER_WAY]
    with pytest.raises(Unavailable, match=r"has none after 0 s"):
        server.rest.checkpoint("j", seconds_max=0.3)
    server.answers = [{"request-id": "r"}, UNDER_WAY]
    with pytest.raises(Unavailable, match=r"not done after 0 s"):
        server.rest.stop("j", "file:///s", seconds_max=0.3)
