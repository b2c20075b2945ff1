"""Records that can't be read, on the topic `<topic>.dead`: the payload as it was, and headers that say where and why.

The embedded rollup puts them there before it commits. A record may be there twice, after a crash; source and offset
tell.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from kafka import KafkaProducer
from kafka.errors import KafkaError

from fleet.settings.pipeline import KafkaSettings
from pipeline.bus.kafka_client import broker_errors, open_client, producer_options
from pipeline.bus.kafka_topic import open_topic

DEAD = ".dead"
"""What the name of a topic of dead letters ends with."""
HEADER_BYTES_MAX = 500
"""Longest reason that is written in full."""


class KafkaDeadLetters:
    """Dead letters of one topic.

    Args:
        topic: the topic that the records come from (`kafka.topic`, or an adapter's).
    """

    def __init__(self, settings: KafkaSettings, topic: str) -> None:
        self._settings = settings
        self._of = topic
        self._name = f"{topic}{DEAD}"
        self._record_bytes_max = 0
        self._producer: Any = None
        self.count = 0
        """Records put."""
        self.cut = 0
        """Records that were larger than the topic takes, of which only the start was kept."""

    def put(self, payload: bytes, *, reason: str, source: str, offset: int) -> None:
        """Keeps one record; see `DeadLetters.put`."""
        # A record's source ends with its partition; see `Topic.source`.
        partition = source.rpartition("-")[2]
        headers = {
            "source-topic": self._of, "source": source, "source-partition": partition, "source-offset": str(offset),
            "reason": reason[:HEADER_BYTES_MAX],
        }  # fmt: skip
        with broker_errors(f"put a record on topic {self._name}", self._settings):
            if self._producer is None:
                self._open()
            if len(payload) > self._record_bytes_max:
                headers["cut-from-bytes"] = str(len(payload))
                payload = payload[: self._record_bytes_max]
                self.cut += 1
            try:
                self._producer.send(
                    self._name, payload, headers=[(name, text.encode()) for name, text in headers.items()]
                ).get(timeout=self._settings.delivery_seconds + 1)
            except KafkaError:
                # An idempotent producer that has failed once fails for ever; see `KafkaWriter`.
                self.close()
                raise
        self.count += 1

    def close(self) -> None:
        """Ends the connections."""
        if self._producer is not None:
            with suppress(KafkaError):
                self._producer.close(timeout=self._settings.request_seconds)
            self._producer = None

    def _open(self) -> None:
        topic = open_topic(self._settings, self._name, partitions=1)
        # Our own headers need room beside the payload.
        self._record_bytes_max = min(self._settings.record_bytes_max, topic.record_bytes_max) - 4096
        self._producer = open_client(KafkaProducer, producer_options(self._settings))
