"""Receivers for tests, and how a test speaks to one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fleet.settings.pipeline import ReceiverSettings
from pipeline.receiver.intake import Intake
from pipeline.receiver.receiver import WRITE_PATH, Receiver
from pipeline.receiver.senders import Sender
from wire.http_server import listen

BODY_BYTES_MAX = 4096
V1 = {"Content-Type": "application/x-protobuf", "Content-Encoding": "snappy"}
V1_NAMED = {**V1, "Content-Type": "application/x-protobuf;proto=prometheus.WriteRequest"}
V2 = {**V1, "Content-Type": "application/x-protobuf;proto=io.prometheus.write.v2.Request"}


@contextmanager
def served(
    intake_of_sender: Callable[[Sender], Intake], limits: dict[str, Any] | None = None, **options: Any
) -> Iterator[Receiver]:
    """A receiver that serves, with bounds below those that a user may set."""
    small = {"body_bytes_max": BODY_BYTES_MAX, "pending_requests_max": 4, "stop_seconds": 2.0, **(limits or {})}
    with listen("127.0.0.1", 0, setting="--listen") as listener:
        bounds = ReceiverSettings.model_construct(**small)
        started = Receiver(intake_of_sender, listener=listener, limits=bounds, **options)
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
