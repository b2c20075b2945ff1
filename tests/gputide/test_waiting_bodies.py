"""Engines are refused records that they can't read: passed over, they would be lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest

from fleet.data_folder import open_data_folder
from fleet.errors import Misconfigured
from fleet.schema import Measure
from fleet.settings.settings import load_settings
from gputide.container.bus import intakes_of, open_bus_writer
from gputide.container.rollup import open_rollup
from pipeline.remote_write.decode import Version
from tests.pipeline.builders import START_MS, Sample, body_of, encoded, labels_of, small_fleet


def test_records_of_json_are_not_passed_over_by_the_embedded_rollup(tmp_path):
    folder = open_data_folder(tmp_path / "data", create=True)
    rows = load_settings(None, {"bus.record_format": "rows"}, {})
    with open_bus_writer(folder, rows) as bus:
        assert intakes_of(bus, rows)(None).take(body_of(small_fleet(pods=1, hours=1)), Version.V2).status == 204
    with pytest.raises(Misconfigured, match=r"bus\.record_format=rows.*--engine flink"), open_rollup(folder, rows):
        pass


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


def test_rows_whose_labels_are_too_long_for_any_record_of_json_are_refused_for_now() -> None:
    settings = load_settings(None, {"bus.kind": "kafka", "bus.record_format": "rows"}, {})
    bus = Lane()
    samples = [Sample(0, Measure.DUTY_CYCLE, START_MS + 1000 * place, 0.5) for place in range(16_000)]
    labels = {**labels_of(samples[0]), **dict.fromkeys(("pod", "namespace", "container"), "x" * 2000)}
    answer = intakes_of(bus, settings)(None).take(encoded([labels] * len(samples), samples, Version.V2), Version.V2)
    assert (answer.status, bus.records) == (503, [])
    assert "receiver.label_bytes_max" in answer.text
