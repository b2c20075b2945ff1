"""Receivers for tests, and how a test speaks to one."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pipeline.receiver.intake import Intake
from pipeline.receiver.receiver import WRITE_PATH, Receiver, ReceiverLimits, listen
from pipeline.receiver.senders import Sender

BODY_BYTES_MAX = 4096
V1 = {"Content-Type": "application/x-protobuf", "Content-Encoding": "snappy"}
V1_NAMED = {**V1, "Content-Type": "application/x-protobuf;proto=prometheus.WriteRequest"}
V2 = {**V1, "Content-Type": "application/x-protobuf;proto=io.prometheus.write.v2.Request"}


@contextmanager
def served(
    intake_of_sender: Callable[[Sender], Intake], limits: dict[str, Any] | None = None, **options: Any
) -> Iterator[Receiver]:
    """A receiver with small bounds that serves."""
    small = {"body_bytes_max": BODY_BYTES_MAX, "pending_requests_max": 4, "stop_seconds": 2.0, **(limits or {})}
    with listen("127.0.0.1", 0) as listener:
        started = Receiver(intake_of_sender, listener=listener, limits=ReceiverLimits(**small), **options)
        started.start()
        try:
            yield started
        finally:
            started.stop()


def post(connection: Any, body: Any, headers: dict[str, str], **options: Any) -> tuple[Any, str]:
    """Post a body over an `http.client` connection: the answer and its text."""
    connection.request("POST", WRITE_PATH, body=body, headers=headers, **options)
    answer = connection.getresponse()
    return answer, answer.read().decode()


def exchange(address: tuple[str, int], data: bytes, *, then_closes: bool = True, timeout_seconds: float = 10) -> bytes:
    """Send raw bytes on a connection of their own, and read until the receiver closes it."""
    with socket.create_connection(address, timeout=timeout_seconds) as opened:
        opened.sendall(data)
        if then_closes:
            opened.shutdown(socket.SHUT_WR)
        answer = b""
        while part := opened.recv(65536):
            answer += part
    return answer


def statuses(answers: bytes) -> list[int]:
    """Statuses of all answers in some bytes."""
    return [int(part[:3]) for part in answers.split(b"HTTP/1.1 ")[1:]]
