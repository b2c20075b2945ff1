"""Bodies of several senders wait for each other on Kafka, where many send at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest

from fleet.settings.settings import load_settings
from gputide.container.bus import intakes_of
from pipeline.remote_write.decode import Version
from tests.pipeline.builders import body_of, small_fleet

LINGER_SECONDS = 1.0


class Lane:
    """A bus that keeps what it is given."""

    lanes = 1

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.lock = threading.Lock()

    def append_all(self, payloads: Mapping[int, bytes]) -> None:
        with self.lock:
            self.records += payloads.values()


@pytest.mark.parametrize(
    ("kind", "is_lingering", "waits", "records"),
    [("kafka", True, True, 1), ("kafka", False, False, 2), ("file", True, False, 2)],
)
def test_bodies_of_two_senders_wait_for_each_other_on_kafka_where_many_send_at_once(
    kind: str, is_lingering: bool, waits: bool, records: int
) -> None:
    linger = str(int(1000 * LINGER_SECONDS))
    settings = load_settings(None, {"bus.kind": kind, "kafka.linger_milliseconds": linger}, {})
    bus = Lane()
    intake_of = intakes_of(bus, settings, is_lingering=is_lingering)
    senders = [intake_of(cluster) for cluster in ("c1", "c2")]
    for intake in senders:  # compiles what is not yet
        assert intake.take(body_of(small_fleet(pods=1, hours=1)), Version.V2).status == 204
    bus.records.clear()
    started = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        body = body_of(small_fleet(pods=2, hours=1))
        first = pool.submit(senders[0].take, body, Version.V2)
        if not waits:
            assert first.result().status == 204
            assert time.monotonic() - started < LINGER_SECONDS
        answers = [first, pool.submit(senders[1].take, body, Version.V2)]
        assert [answer.result().status for answer in answers] == [204, 204]
    assert (time.monotonic() - started >= LINGER_SECONDS) == waits
    assert len(bus.records) == records
