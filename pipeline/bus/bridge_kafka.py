"""Takes samples from the topic of a remote-write-to-Kafka adapter, as if their Prometheus sent to us.

Messages of a poll become one body for the intake; the group's offset is committed once the bus has it. What comes again
after a crash is recognised downstream like every sample that comes again. Messages that can't be read go to the
topic's dead letters before. Called by `gputide run receive --from-kafka`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from kafka import KafkaConsumer
from kafka.errors import CommitFailedError, IllegalGenerationError, RebalanceInProgressError, UnknownMemberIdError
from kafka.structs import OffsetAndMetadata

from fleet.errors import Corrupt
from fleet.settings.pipeline import KafkaSettings
from pipeline.bus.adapter_messages import AdapterDecoder
from pipeline.bus.bus import DeadLetters
from pipeline.bus.kafka_client import broker_errors, consumer_options, open_client
from pipeline.receiver.intake import RETRY_AFTER_SECONDS, Intake
from pipeline.remote_write.decode import Version

if TYPE_CHECKING:
    from wire.own_metrics import OwnMetrics

MESSAGES_MAX = 20_000
"""Messages of one poll: some 5 MB, which become a body of 1 MB."""
_FETCH_BYTES = 8 * 1024 * 1024
_POLL_MS = 500
_LOST_PLACE = (CommitFailedError, IllegalGenerationError, RebalanceInProgressError, UnknownMemberIdError)


class BridgeMetrics:
    """What a bridge counts of itself."""

    def __init__(self, own: OwnMetrics) -> None:
        self.polls = own.passes("poll", "poll of the adapter's topic")
        self._counts = {
            "messages": own.followed_counter("messages_total", "Messages that were taken."),
            "messages_unreadable": own.followed_counter(
                "messages_unreadable_total", "Messages that could not be read; they are dead letters."
            ),
            "bus_not_ready": own.followed_counter(
                "bus_not_ready_total", "Times that messages waited because the bus was full or away."
            ),
            "places_lost": own.followed_counter(
                "places_lost_total", "Times that the group gave our partitions to another member."
            ),
        }

    @contextmanager
    def following(self, counts: Counter[str]) -> Iterator[None]:
        """Shows what a bridge counts, until the end."""
        with ExitStack() as opened:
            for name, shown in self._counts.items():
                opened.enter_context(shown.following(partial(counts.__getitem__, name)))
            yield


class AdapterBridge:
    """One member of the group that reads an adapter's topic.

    Args:
        dead_letters: where messages go that can't be read.
    """

    def __init__(self, settings: KafkaSettings, topic: str, intake: Intake, dead_letters: DeadLetters) -> None:
        self._settings = settings
        self._topic = topic
        self._intake = intake
        self._dead_letters = dead_letters
        self._decoder = AdapterDecoder()
        self._consumer: Any = None
        self.counts: Counter[str] = Counter()
        """Messages taken, and those that could not be read; how often the bus was not ready, and a place was lost."""

    def step(self, wait: Callable[[float], bool]) -> int:
        """Takes what came since the last step; returns how many messages, 0 where none came or we are to stop.

        Args:
            wait: waits some seconds; True where we are to stop.

        Raises:
            Unavailable: brokers can't be reached; nothing was committed.
            Misconfigured: brokers don't let us in.
        """
        with broker_errors(f"read topic {self._topic}", self._settings):
            polled = self._opened().poll(timeout_ms=_POLL_MS, max_records=MESSAGES_MAX)
        records = [record for place in polled.values() for record in place]
        if not records:
            return 0
        batch = self._decoder.decode([record.value or b"" for record in records])
        if batch.body and not self._is_taken(batch.body, wait):
            self._rewind(polled)
            return 0
        for place, reason in batch.bad:
            record = records[place]
            self._dead_letters.put(
                record.value or b"", reason=reason, source=f"{self._topic}-{record.partition}", offset=record.offset
            )
        self._commit({place: OffsetAndMetadata(found[-1].offset + 1, "", -1) for place, found in polled.items()})
        self.counts.update(messages=len(records), messages_unreadable=len(batch.bad))
        return len(records)

    def run(self, wait: Callable[[float], bool], metrics: BridgeMetrics) -> None:
        """Takes messages until `wait` says stop."""
        with metrics.following(self.counts):
            while not wait(0.0):
                with metrics.polls.one():
                    self.step(wait)

    def close(self) -> None:
        """Leaves the group."""
        if self._consumer is not None:
            self._consumer.close(timeout_ms=self._settings.request_seconds * 1000)
            self._consumer = None

    def _opened(self) -> Any:
        if self._consumer is None:
            self._consumer = open_client(
                KafkaConsumer,
                {
                    **consumer_options(self._settings, f"{self._settings.group}-of-{self._topic}"),
                    "auto_offset_reset": "earliest",
                    "isolation_level": "read_committed",
                    "max_partition_fetch_bytes": _FETCH_BYTES,
                    "fetch_max_bytes": _FETCH_BYTES,
                },
            )
            self._consumer.subscribe([self._topic])
        return self._consumer

    def _is_taken(self, body: bytes, wait: Callable[[float], bool]) -> bool:
        while True:
            answer = self._intake.take(body, Version.V1)
            if answer.retry_after_seconds is None:
                break
            self.counts.update(bus_not_ready=1)
            if wait(RETRY_AFTER_SECONDS):
                return False
        if not answer.is_counted:
            raise Corrupt(f"cannot take messages of topic {self._topic}: {answer.text}")
        return True

    def _rewind(self, polled: dict[Any, list[Any]]) -> None:
        for place, found in polled.items():
            self._opened().seek(place, found[0].offset)

    def _commit(self, offsets: dict[Any, OffsetAndMetadata]) -> None:
        with broker_errors(f"commit topic {self._topic}", self._settings):
            try:
                self._opened().commit(offsets, timeout_ms=self._settings.request_seconds * 1000)
            except _LOST_PLACE:
                # The group has given our partitions to another member, who takes the same messages again.
                self.counts.update(places_lost=1)
