"""The bus as a Kafka topic: its partitions are the lanes.

The receiver appends through one `KafkaWriter` per process; the rollup reads each partition as a `KafkaLane`, whose
group offset is committed only after the warehouse has the rows. Kafka keeps records by age and size and knows nothing
of a reader that lags, so the bound of the bus is kept here: see `KafkaWriter`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError, OffsetOutOfRangeError
from kafka.structs import OffsetAndMetadata

from fleet.errors import Corrupt, Misconfigured, Unavailable
from fleet.logs import logger
from fleet.schema import SCHEMA_VERSION
from fleet.settings.pipeline import KafkaCompression, KafkaSettings
from pipeline.bus.bus import BusFull, Chunk, RecordTooLarge, Unreadable
from pipeline.bus.kafka_client import broker_errors, consumer_options, open_client, producer_options
from pipeline.bus.kafka_survey import RollupLag
from pipeline.bus.kafka_topic import Topic, open_topic

SCHEMA_HEADER = "schema"
"""Header of every record: the schema's version as ASCII digits."""
_HEADERS = [(SCHEMA_HEADER, str(SCHEMA_VERSION).encode())]
_BATCH_BYTES = 256 * 1024
_FETCH_BYTES = 16 * 1024 * 1024


class KafkaWriter:
    """The receiver's side of a topic: an idempotent producer that answers once all in-sync copies have a record.

    Threads may append at once; records that wait for the network go together. Two bounds: `kafka.pending_bytes_max` on
    what is under way, and `kafka.lag_bytes_max` on what waits for the rollup. The latter is an estimate: the group's
    committed offsets against the newest acknowledged ones, times the mean size of the records of this process. The
    group is asked only when what is known of it no longer leaves room.

    Args:
        refresh_seconds: the group is asked at most this often while the bus is full.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        *,
        refresh_seconds: float = 0.5,
    ) -> None:
        self._settings = settings
        self.topic = open_topic(settings, settings.topic, partitions=settings.partitions)
        self._record_bytes_max = min(settings.record_bytes_max, self.topic.record_bytes_max)
        self._lock = threading.Lock()
        self._pending_bytes = 0
        self._producer_lock = threading.Lock()
        self._producer: Any = None
        self._is_closed = False
        self._failed_at = float("-inf")
        self._lag = RollupLag(settings, self.topic, refresh_seconds)
        with broker_errors(f"write to topic {self.topic.name}", settings):
            self._sound_producer()

    @property
    def lanes(self) -> int:
        """Partitions of the topic."""
        return self.topic.partitions

    def append_all(self, payloads: Mapping[int, bytes]) -> None:
        """Takes at most one record per lane; see `BusWriter.append_all`."""
        self.send(payloads)

    def send(self, payloads: Mapping[int, bytes]) -> dict[int, int]:
        """Takes records as `append_all`, and says where they are; returns the offset after each record, by lane."""
        size = sum(map(len, payloads.values()))
        largest = max(map(len, payloads.values()), default=0)
        if largest > self._record_bytes_max:
            raise RecordTooLarge(
                f"cannot append a record of {largest} bytes to topic {self.topic.name}: larger than "
                f"{self._record_bytes_max}, the smaller of kafka.record_bytes_max={self._settings.record_bytes_max} "
                "and what the topic's max.message.bytes takes"
            )
        if size > self._settings.pending_bytes_max:
            raise RecordTooLarge(
                f"cannot append records of {size} bytes to topic {self.topic.name} at once: more than "
                f"kafka.pending_bytes_max={self._settings.pending_bytes_max} may ever be under way"
            )
        self._lag.check_room(size)
        with self._lock:
            if self._pending_bytes + size > self._settings.pending_bytes_max:
                raise BusFull(
                    f"cannot take {size} bytes: the queue to Kafka is full, {self._pending_bytes} of "
                    f"kafka.pending_bytes_max={self._settings.pending_bytes_max} bytes are under way"
                )
            self._pending_bytes += size
        try:
            with broker_errors(f"append to topic {self.topic.name}", self._settings):
                ends = self._delivered(payloads)
        except RecordTooLarge:
            self._ask_limit()
            raise
        finally:
            with self._lock:
                self._pending_bytes -= size
        self._lag.note(ends, payloads)
        return ends

    def close(self) -> None:
        """Ends the connections; what was acknowledged is durable already."""
        with self._producer_lock:
            self._is_closed = True
            if self._producer is not None:
                with suppress(KafkaError):  # what is still under way was not acknowledged
                    self._producer.close(timeout=self._settings.request_seconds)
        self._lag.close()

    def _ask_limit(self) -> None:
        """What the topic takes by now: its limit was lowered since it was opened."""
        with suppress(Unavailable, Misconfigured):
            topic = open_topic(self._settings, self.topic.name, partitions=self.topic.partitions)
            self._record_bytes_max = min(self._settings.record_bytes_max, topic.record_bytes_max)

    def _delivered(self, payloads: Mapping[int, bytes]) -> dict[int, int]:
        deadline = time.monotonic() + self._settings.delivery_seconds + self._settings.request_seconds
        producer = self._sound_producer()
        try:
            sent = self._handed_over(producer, payloads)
            # Brokers answer for all at once: a thread that waits for the last one is woken once.
            return {
                lane: sent[lane].get(timeout=max(0.0, deadline - time.monotonic())).offset + 1
                for lane in reversed(sent)
            }
        except KafkaError:
            # The driver's idempotent producer never comes back from a record that was refused for good, and not surely
            # from one that ran out of time: it would give the same error to everybody who writes after.
            self._give_up(producer)
            raise

    def _handed_over(self, producer: Any, payloads: Mapping[int, bytes]) -> dict[int, Any]:
        """Gives all records to the driver, then wakes its sender; returns the driver's future of each.

        `KafkaProducer.send` wakes the sender for each record, which looks through all partitions each time: at 64 of
        them that costs half of the driver's time, and the records leave in several requests.
        """
        name, now_ms = self.topic.name, time.time_ns() // 1_000_000
        producer.partitions_for(name)
        sent = {
            lane: producer._accumulator.append(TopicPartition(name, lane), now_ms, None, payload, _HEADERS)[0]
            for lane, payload in payloads.items()
        }
        producer._sender.wakeup()
        return sent

    def _sound_producer(self) -> Any:
        called_at = time.monotonic()
        with self._producer_lock:
            if self._is_closed:
                raise Unavailable(f"cannot append to topic {self.topic.name}: the writer is closed")
            if self._producer is None:
                # A thread that waited while another one tried in vain does not try again after it.
                if self._failed_at > called_at:
                    raise Unavailable(f"cannot append to topic {self.topic.name}: brokers can't be reached")
                try:
                    self._producer = self._new_producer()
                except KafkaError:
                    self._failed_at = time.monotonic()
                    raise
            return self._producer

    def _give_up(self, producer: Any) -> None:
        with self._producer_lock:
            if self._producer is not producer:
                return
            self._producer = None
        # Closing waits for what is under way, and fails without an end to its thread where that takes longer.
        producer._sender.force_close()
        with suppress(KafkaError):
            producer.close(timeout=0)

    def _new_producer(self) -> Any:
        settings = self._settings
        compression = settings.compression
        options = producer_options(settings)
        return open_client(
            KafkaProducer,
            {
                **options,
                "enable_idempotence": True,
                "compression_type": None if compression is KafkaCompression.OFF else compression.value,
                "linger_ms": 0,  # what waits together is one record already
                "batch_size": _BATCH_BYTES,
            },
        )


class KafkaLane:
    """One partition of a topic as a bus.

    One thread may read and commit. The consumer reads by offset and takes part in no group; the group's offset only
    keeps what was committed. The warehouse's own lock keeps two rollups of one group apart.

    Args:
        writer: for `append`; opened where it is missing.
        crash_point: called with a name at every moment at which a crash would matter; tests raise or kill there.
    """

    def __init__(
        self,
        settings: KafkaSettings,
        topic: Topic,
        partition: int,
        *,
        writer: KafkaWriter | None = None,
        crash_point: Callable[[str], None] = lambda _name: None,
    ) -> None:
        self._settings = settings
        self._topic = topic
        self._place = TopicPartition(topic.name, partition)
        self._writer = writer
        self._is_own_writer = writer is None
        self._crash_point = crash_point
        self.source = topic.source(partition)
        self._consumer: Any = None
        self._committed: int | None = None
        self._next = 0
        self._fetched: deque[Any] = deque()
        self._given: list[Any] = []

    def append(self, payload: bytes) -> int:
        """Takes a record; see `Bus.append`."""
        if self._writer is None:
            self._writer = KafkaWriter(self._settings)
        return self._writer.send({self._place.partition: payload})[self._place.partition]

    def read(self, start: int, *, bytes_max: int) -> Chunk | None:
        """The durable records from an offset on; see `Bus.read`.

        Raises:
            Unavailable: brokers can't be reached.
            Corrupt: the topic ends before the offset, so that brokers have lost records.
        """
        with broker_errors(f"read {self._name}", self._settings):
            first = self._move_to(start)
            return self._collected(first, self._end(first), bytes_max)

    def commit(self, offset: int) -> None:
        """Sets the group's offset, and waits until the brokers have it; see `Bus.commit`."""
        if offset <= self.committed():
            return
        self._crash_point("before commit")
        with broker_errors(f"commit {self._name}", self._settings):
            self._opened().commit({self._place: OffsetAndMetadata(offset, "", -1)}, timeout_ms=self._timeout_ms)
        self._committed = offset
        self._crash_point("after commit")

    def committed(self) -> int:
        """The group's offset, 0 where there is none."""
        if self._committed is None:
            with broker_errors(f"ask for the offset of {self._name}", self._settings):
                self._committed = self._opened().committed(self._place, timeout_ms=self._timeout_ms) or 0
        return self._committed

    def close(self) -> None:
        """Ends the connections."""
        if self._consumer is not None:
            self._consumer.close(timeout_ms=self._timeout_ms)
            self._consumer = None
        if self._writer is not None and self._is_own_writer:
            self._writer.close()
            self._writer = None

    @property
    def _name(self) -> str:
        return f"partition {self._place.partition} of topic {self._topic.name}"

    @property
    def _timeout_ms(self) -> int:
        return self._settings.request_seconds * 1000

    def _opened(self) -> Any:
        if self._consumer is None:
            consumer = open_client(
                KafkaConsumer,
                {
                    **consumer_options(self._settings, self._settings.group),
                    "auto_offset_reset": "none",
                    "isolation_level": "read_committed",
                    "max_partition_fetch_bytes": _FETCH_BYTES,
                    "fetch_max_bytes": _FETCH_BYTES,
                    "fetch_max_wait_ms": 100,
                    "max_poll_records": 10_000,
                    "receive_message_max_bytes": _FETCH_BYTES + 2 * self._topic.record_bytes_max,
                },
            )
            consumer.assign([self._place])
            self._consumer = consumer
        return self._consumer

    def _move_to(self, start: int) -> int:
        """Makes `start` the next record, and says where that is once retention has had its way."""
        consumer = self._opened()
        if start == self._next and self._given:
            self._given = []
            return start
        # A rollup may take less than it was given: the rest need not be fetched again.
        kept = [record for record in self._given if record.offset >= start]
        if self._given and self._given[0].offset <= start < self._next:
            self._fetched.extendleft(reversed(kept))
            self._next, self._given = start, []
            return start
        first = consumer.beginning_offsets([self._place], timeout_ms=self._timeout_ms)[self._place]
        if start < first:
            if start > 0:
                _LOG.error(
                    "retention dropped records that were not rolled up",
                    topic=self._topic.name, partition=self._place.partition, start=start, first=first,
                )  # fmt: skip
            start = first
        self._fetched.clear()
        self._given = []
        self._next = start
        consumer.seek(self._place, start)
        return start

    def _end(self, start: int) -> int:
        end: int = self._opened().end_offsets([self._place], timeout_ms=self._timeout_ms)[self._place]
        if start > end:
            raise Corrupt(
                f"cannot read {self._name} from offset {start}: it ends at {end}, so brokers have lost records that "
                "were taken in already (unclean leader election?); make a new topic and set kafka.topic"
            )
        return end

    def _collected(self, first: int, end: int, bytes_max: int) -> Chunk | None:
        records: list[bytes] = []
        ends: list[int] = []
        unreadable: list[Unreadable] = []
        at, taken = first, 0
        deadline = time.monotonic() + self._settings.request_seconds
        while at < end:
            if not self._fetched:
                at = max(at, self._fetch())
                if not self._fetched and at < end and time.monotonic() > deadline:
                    raise Unavailable(
                        f"cannot read {self._name} at offset {at}: nothing came in "
                        f"kafka.request_seconds={self._settings.request_seconds}"
                    )
                continue
            record = self._fetched[0]
            size = len(record.value or b"")
            if (records or unreadable) and taken + size > bytes_max:
                break
            self._given.append(self._fetched.popleft())
            at, taken = record.offset + 1, taken + size
            # Where the brokers go away before the end is reached, the next reader gets these records again.
            self._next = at
            deadline = time.monotonic() + self._settings.request_seconds
            reason = _fault(record)
            if reason is None:
                records.append(record.value)
                ends.append(at)
            else:
                unreadable.append(Unreadable(offset=record.offset, payload=record.value or b"", reason=reason))
        self._next = at
        if at <= first:
            return None
        return Chunk(
            source=self.source, start=first, end=at, records=tuple(records), ends=tuple(ends),
            starts=tuple(end - 1 for end in ends),
            unreadable=tuple(unreadable),
        )  # fmt: skip

    def _fetch(self) -> int:
        """Asks for more, and says how far the consumer is: beyond the last record where markers follow it."""
        consumer = self._opened()
        try:
            found = consumer.poll(timeout_ms=1000)
        except OffsetOutOfRangeError as exc:
            raise Unavailable(f"cannot read {self._name}: its records were dropped meanwhile") from exc
        self._fetched.extend(found.get(self._place, ()))
        position: int = consumer.position(self._place, timeout_ms=self._timeout_ms)
        return self._fetched[0].offset if self._fetched else position


def open_lanes(settings: KafkaSettings) -> tuple[Topic, tuple[KafkaLane, ...]]:
    """The topic and all of its lanes, for a rollup."""
    topic = open_topic(settings, settings.topic, partitions=settings.partitions)
    return topic, tuple(KafkaLane(settings, topic, partition) for partition in range(topic.partitions))


def _fault(record: Any) -> str | None:
    """Why a record can't be one of ours, by its headers alone."""
    if record.value is None:
        return "it is empty"
    version = next((value for name, value in record.headers if name == SCHEMA_HEADER), None)
    if version is None:
        return f"it has no header {SCHEMA_HEADER!r}"
    if not version.isdigit() or len(version) > 9 or not 1 <= int(version) <= SCHEMA_VERSION:
        return f"its schema version {version[:40]!r} is none that this program knows, 1 to {SCHEMA_VERSION}"
    return None


_LOG = logger(__name__)
