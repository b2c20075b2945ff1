"""How far a Kafka topic and the rollup's group are: offsets, rights and bytes that wait, asked of the brokers.

Nothing is changed, and nothing has to be tried out: the brokers report rights themselves (KIP-430: authorised
operations in answers about topics and groups). The bytes that wait for the rollup bound the bus, because Kafka itself
has no bound for a reader. They are an estimate: the newest acknowledged offsets against the group's committed ones,
times the mean size of the records that this process has written; the brokers are asked only when the last answer no
longer leaves room. Called by the doctor, by the Kafka bus and where Flink rolls up.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.admin import OffsetSpec
from kafka.errors import CoordinatorLoadInProgressError, CoordinatorNotAvailableError, NotCoordinatorError

from fleet.errors import Misconfigured
from fleet.settings.pipeline import KafkaSettings
from pipeline.bus.bus import BusFull, RecordTooLarge
from pipeline.bus.kafka_client import broker_errors, client_options, consumer_options, open_client
from pipeline.bus.kafka_topic import Topic

_NOBODY_KNOWS = (CoordinatorNotAvailableError, CoordinatorLoadInProgressError, NotCoordinatorError)
_UNKNOWN_TOPIC, _NOT_ALLOWED = 3, 29
"""Error codes of a topic that does not exist, or is not ours to see (kafka.apache.org/protocol, error codes)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSurvey:
    """A topic and its cluster.

    Attributes:
        partitions: how many the topic has; None where there is no such topic.
        copies: fewest replicas of a partition.
        leaderless: partitions without a leader.
        behind: partitions with replicas that are not in step.
        topic_operations: what we may do with the topic, as `WRITE`; None where brokers don't report.
        group_operations: what we may do with the group; None where brokers don't report.
        ends: end of each partition: the offset of the next record.
        begins: first offset that is still kept, by partition.
        committed: how far the group is, by partition; those that it has not begun are not among them.
    """

    brokers: int
    partitions: int | None
    copies: int
    leaderless: tuple[int, ...]
    behind: tuple[int, ...]
    topic_operations: frozenset[str] | None
    group_operations: frozenset[str] | None
    ends: Mapping[int, int]
    begins: Mapping[int, int]
    committed: Mapping[int, int]


def survey_topic(settings: KafkaSettings, name: str) -> TopicSurvey:
    """Looks at a topic, and at how far the group of `kafka.group` is in it.

    Raises:
        Misconfigured: brokers don't let us in.
        Unavailable: brokers can't be reached.
    """
    with (
        broker_errors(f"look at topic {name}", settings),
        closing(open_client(KafkaAdminClient, client_options(settings))) as admin,
    ):
        brokers = len(admin.describe_cluster()["brokers"])
        topic = admin.describe_topics([name])[0]
        if topic["error_code"] == _UNKNOWN_TOPIC:
            return _absent(brokers)
        if topic["error_code"] == _NOT_ALLOWED:
            raise Misconfigured(
                f"cannot look at topic {name} as {settings.username or 'nobody'}: we may not (right Describe)"
            )
        partitions = topic["partitions"]
        places = [TopicPartition(name, partition["partition_index"]) for partition in partitions]
        ends = admin.list_partition_offsets(dict.fromkeys(places, OffsetSpec.LATEST))
        begins = admin.list_partition_offsets(dict.fromkeys(places, OffsetSpec.EARLIEST))
        # Until somebody has used a group, and for a moment after, nobody in the cluster knows about it.
        group, committed = {}, {}
        with suppress(*_NOBODY_KNOWS):
            told = admin.describe_groups([settings.group], include_authorized_operations=True)
            group = told.get(settings.group, {})
            committed = admin.list_group_offsets({settings.group: places}).get(settings.group, {})
    return TopicSurvey(
        brokers=brokers,
        partitions=len(partitions),
        copies=min((len(partition["replica_nodes"]) for partition in partitions), default=0),
        leaderless=tuple(one["partition_index"] for one in partitions if one["leader_id"] < 0),
        behind=tuple(one["partition_index"] for one in partitions if len(one["isr_nodes"]) < len(one["replica_nodes"])),
        topic_operations=_operations(topic.get("authorized_operations")),
        group_operations=_operations(group.get("authorized_operations")),
        ends={place.partition: _offset(found) for place, found in ends.items()},
        begins={place.partition: _offset(found) for place, found in begins.items()},
        committed={place.partition: found.offset for place, found in committed.items() if found.offset >= 0},
    )


def _absent(brokers: int) -> TopicSurvey:
    return TopicSurvey(
        brokers=brokers, partitions=None, copies=0, leaderless=(), behind=(), topic_operations=None,
        group_operations=None, ends={}, begins={}, committed={},
    )  # fmt: skip


def _offset(found: Any) -> int:
    return int(getattr(found, "offset", found))


def _operations(told: Any) -> frozenset[str] | None:
    """Names of operations; None where the brokers report none, as old ones do."""
    return frozenset(map(str, told)) if isinstance(told, list) and told else None


class RollupLag:
    """What waits for the group of the rollup, of the lanes that this process writes to.

    Args:
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
            RecordTooLarge: so many may never wait.
            BusFull: the rollup lags too far.
            Unavailable: brokers don't say how far it is.
        """
        limit = self._settings.lag_bytes_max
        if more > limit:
            raise RecordTooLarge(
                f"cannot append records of {more} bytes to topic {self._topic.name} at once: more than "
                f"kafka.lag_bytes_max={limit} may ever wait"
            )
        with self._lock:
            if self._bytes_waiting() + more <= limit:
                return
            if time.monotonic() - self._asked_at >= self._refresh_seconds:
                try:
                    with broker_errors(f"ask how far group {self._settings.group} is", self._settings):
                        self._refresh()
                finally:
                    # A thread that waited meanwhile goes by this answer, or by there being none.
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
            self._consumer = open_client(KafkaConsumer, consumer_options(self._settings, self._settings.group))
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


class KafkaProgress:
    """A topic as one group sees it; made and asked alike.

    Raises:
        Unavailable: brokers can't be reached.
    """

    def __init__(self, settings: KafkaSettings, topic: str, group: str) -> None:
        self._settings = settings
        self._topic = topic
        with broker_errors(f"open topic {topic}", settings):
            self._consumer: Any = open_client(KafkaConsumer, consumer_options(settings, group))

    def ends(self) -> Mapping[int, int]:
        """The offset after the last record of each partition that has any."""
        with broker_errors(f"ask for the ends of topic {self._topic}", self._settings):
            numbers = self._consumer.partitions_for_topic(self._topic) or set()
            places = [TopicPartition(self._topic, number) for number in sorted(numbers)]
            first, ends = self._consumer.beginning_offsets(places), self._consumer.end_offsets(places)
            # Where retention has left nothing, the job never has an offset to commit.
            return {place.partition: end for place, end in ends.items() if end > first[place]}

    def committed(self) -> Mapping[int, int]:
        """The offset that the group has committed, 0 where it has not."""
        with broker_errors(f"ask for the offsets of topic {self._topic}", self._settings):
            numbers = self._consumer.partitions_for_topic(self._topic) or set()
            return {
                number: self._consumer.committed(TopicPartition(self._topic, number)) or 0 for number in sorted(numbers)
            }

    def close(self) -> None:
        """Lets go of the connections."""
        self._consumer.close()
