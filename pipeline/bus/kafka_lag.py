"""How many bytes of a topic wait for the rollup, so that the bus has a bound: Kafka itself knows none for a reader.

An estimate: the newest acknowledged offsets against the group's committed ones, times the mean size of the records that
this process has written. The brokers are asked only when what is known no longer leaves room. Called by `bus_kafka`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import CoordinatorNotAvailableError

from fleet.settings.pipeline import KafkaSettings
from pipeline.bus.bus import BusFull
from pipeline.bus.kafka_client import broker_errors, client_options, open_client
from pipeline.bus.kafka_topic import Topic


class RollupLag:
    """What waits for the group of the rollup, of the lanes that this process writes to.

    Args:
        settings: brokers, group and bound.
        topic: the topic.
        refresh_seconds: the group is asked at most this often while the bus is full.
    """

    def __init__(self, settings: KafkaSettings, topic: Topic, refresh_seconds: float) -> None:
        self._settings = settings
        self._topic = topic
        self._refresh_seconds = refresh_seconds
        self._lock = threading.Lock()
        self._consumer: Any = None
        self._ends: dict[int, int] = {}
        self._committed: dict[int, int] = {}
        self._records = 0
        self._bytes = 0
        self._asked_at = float("-inf")

    def note(self, ends: Mapping[int, int], payloads: Mapping[int, bytes]) -> None:
        """Learns of records that are durable."""
        with self._lock:
            for lane, end in ends.items():
                self._ends[lane] = max(end, self._ends.get(lane, 0))
            self._records += len(payloads)
            self._bytes += sum(map(len, payloads.values()))

    def check_room(self, more: int) -> None:
        """Look whether so many bytes more may wait.

        Raises:
            BusFull: the rollup lags too far.
            Unavailable: brokers don't say how far it is.
        """
        limit = self._settings.lag_bytes_max
        with self._lock:
            if self._bytes_waiting() + more <= limit:
                return
            if time.monotonic() - self._asked_at >= self._refresh_seconds:
                try:
                    with broker_errors(f"ask how far group {self._settings.group} is", self._settings):
                        self._refresh()
                finally:
                    # Whoever waited meanwhile goes by this answer, or by there being none.
                    self._asked_at = time.monotonic()
            waiting = self._bytes_waiting()
        if waiting + more > limit:
            raise BusFull(
                f"cannot take {more} bytes: the bus is full, some {waiting} of kafka.lag_bytes_max={limit} bytes of "
                f"topic {self._topic.name} wait for group {self._settings.group}"
            )

    def close(self) -> None:
        """Ends the connection."""
        with self._lock:
            if self._consumer is not None:
                self._consumer.close()
                self._consumer = None

    def _bytes_waiting(self) -> int:
        if not self._records:
            return 0
        waiting = sum(max(0, end - self._committed.get(lane, 0)) for lane, end in self._ends.items())
        return waiting * self._bytes // self._records

    def _refresh(self) -> None:
        if self._consumer is None:
            self._consumer = open_client(
                KafkaConsumer,
                {
                    **client_options(self._settings),
                    "metrics_enabled": False,
                    "group_id": self._settings.group,
                    "enable_auto_commit": False,
                    "allow_auto_create_topics": False,
                },
            )
        timeout_ms = self._settings.request_seconds * 1000
        for lane in self._ends:
            place = TopicPartition(self._topic.name, lane)
            try:
                self._committed[lane] = self._consumer.committed(place, timeout_ms=timeout_ms) or 0
            except CoordinatorNotAvailableError:
                return
        # Nobody lags behind what retention has dropped.
        places = [TopicPartition(self._topic.name, lane) for lane in self._ends]
        for place, first in self._consumer.beginning_offsets(places, timeout_ms=timeout_ms).items():
            self._committed[place.partition] = max(first, self._committed[place.partition])
