"""What brokers tell of a topic and of the rollup's group, for whoever looks and changes nothing. Called by the doctor.

Rights are told by the brokers themselves (KIP-430: authorised operations in answers about topics and groups), so that
nothing has to be tried out.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

from kafka import KafkaAdminClient
from kafka.admin import OffsetSpec
from kafka.errors import CoordinatorLoadInProgressError, CoordinatorNotAvailableError, NotCoordinatorError
from kafka.structs import TopicPartition

from fleet.errors import Misconfigured
from fleet.settings.pipeline import KafkaSettings
from pipeline.bus.kafka_client import broker_errors, client_options, open_client

_NOBODY_KNOWS = (CoordinatorNotAvailableError, CoordinatorLoadInProgressError, NotCoordinatorError)
_UNKNOWN_TOPIC, _NOT_ALLOWED = 3, 29
"""Error codes of a topic that does not exist, or is not ours to see (kafka.apache.org/protocol, error codes)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSurvey:
    """A topic and its cluster.

    Attributes:
        brokers: how many there are.
        partitions: how many the topic has; None where there is no such topic.
        copies: fewest replicas of a partition.
        leaderless: partitions without a leader.
        behind: partitions with replicas that are not in step.
        topic_operations: what we may do with the topic, as `WRITE`; None where brokers don't tell.
        group_operations: what we may do with the group; None where brokers don't tell.
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

    Args:
        settings: how to reach the brokers.
        name: the topic.

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
    """Names of operations; None where the brokers told none, as old ones do."""
    return frozenset(map(str, told)) if isinstance(told, list) and told else None
