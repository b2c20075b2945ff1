"""Writers that may have to wait for the rollup are answered in time also when nobody can say how far it is."""

from __future__ import annotations

import threading
import time

from fleet.errors import Unavailable
from fleet.settings.pipeline import KafkaSettings
from gputide.operate.engines import free_port
from pipeline.bus.kafka_survey import RollupLag
from pipeline.bus.kafka_topic import Topic


def test_threads_that_wait_for_the_same_answer_do_not_ask_one_after_the_other():
    settings = KafkaSettings(servers=(f"127.0.0.1:{free_port()}",), request_seconds=1)
    topic = Topic(name="t", partitions=1, record_bytes_max=1 << 20, identity="0" * 32)
    lag = RollupLag(settings, topic, refresh_seconds=0.5)
    lag.note({0: 1 << 50}, {0: b"far more than may wait"})
    refused: list[float] = []
    started = time.monotonic()

    def write() -> None:
        try:
            lag.check_room(1)
        except Unavailable:
            refused.append(time.monotonic() - started)

    threads = [threading.Thread(target=write) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lag.close()
    assert len(refused) == 6
    assert max(refused) < 4
