"""A topic as records need it: made where it is missing, and looked at where it is not.

A topic that somebody else has made is used as it is, but never silently: settings that could lose acknowledged records
are refused or warned of, with the difference. Called by `bus_kafka` and `dead_letters_kafka`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType, NewTopic
from kafka.errors import TopicAlreadyExistsError

from fleet.errors import Misconfigured, Unavailable
from fleet.logs import logger
from fleet.settings.pipeline import KafkaSettings
from pipeline.bus.kafka_client import broker_errors, client_options, open_client

_COPIES = 3
_UNKNOWN_TOPIC = 3
"""Error code of a topic that does not exist (kafka.apache.org/protocol, error codes)."""
RECORD_OVERHEAD_BYTES = 512
"""Room for the headers of a batch and a record, which `max.message.bytes` counts too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic that is there.

    Attributes:
        record_bytes_max: largest record that it takes.
        identity: 32 hexadecimal digits that no other topic has, not even one of the same name that is made later.
        warnings: what of its settings is less than was asked for.
    """

    name: str
    partitions: int
    record_bytes_max: int
    identity: str
    warnings: tuple[str, ...] = ()

    def source(self, partition: int) -> str:
        """Name of one partition for `Chunk.source`."""
        return f"kafka-{self.identity}-{partition}"


def open_topic(settings: KafkaSettings, name: str, *, partitions: int) -> Topic:
    """Looks at a topic, and makes it where it is missing and may be made.

    Args:
        settings: how to reach the brokers, and what a topic must be like.

    Raises:
        Misconfigured: it is missing and may not be made, or its settings would lose records.
        Unavailable: brokers can't be reached, or do not know the topic's partitions yet.
    """
    with (
        broker_errors(f"open topic {name}", settings),
        closing(open_client(KafkaAdminClient, client_options(settings))) as admin,
    ):
        cluster = admin.describe_cluster()
        found = _described(admin, name)
        if found is None:
            if not settings.create_topic:
                raise Misconfigured(
                    f"cannot find topic {name}: make it with {partitions} partitions or set kafka.create_topic=true"
                )
            _create(admin, settings, name, partitions, brokers=len(cluster["brokers"]))
            found = _described(admin, name)
        resource = ConfigResource(ConfigResourceType.TOPIC, name)
        told = admin.describe_configs([resource], config_filter="all").get("topic", {}).get(name, {})
    configs = {key: entry["value"] for key, entry in told.items()}
    _refuse_loss(name, configs)
    if found is None or not found["partitions"]:
        raise Unavailable(f"cannot open topic {name}: brokers do not tell its partitions yet; was it made just now?")
    copies = min(len(partition["replica_nodes"]) for partition in found["partitions"])
    warnings = _differences(name, configs, settings, copies)
    for warning in warnings:
        _LOG.warning("a topic is less safe than asked for", topic=name, difference=warning)
    identity = f"{cluster['cluster_id']}/{found['topic_id'] or name}"
    return Topic(
        name=name,
        partitions=len(found["partitions"]),
        record_bytes_max=int(configs["max.message.bytes"]) - RECORD_OVERHEAD_BYTES,
        identity=hashlib.sha256(identity.encode()).hexdigest()[:32],
        warnings=warnings,
    )


def _described(admin: Any, name: str) -> Mapping[str, Any] | None:
    topic = admin.describe_topics([name])[0]
    return None if topic["error_code"] == _UNKNOWN_TOPIC else topic


def _create(admin: Any, settings: KafkaSettings, name: str, partitions: int, *, brokers: int) -> None:
    copies = settings.replication_factor or min(_COPIES, max(1, brokers))
    configs = {
        "cleanup.policy": "delete",
        "retention.ms": str(settings.retention_seconds * 1000),
        "retention.bytes": "-1",
        "max.message.bytes": str(settings.record_bytes_max + RECORD_OVERHEAD_BYTES),
        "min.insync.replicas": str(_in_sync(copies)),
        "unclean.leader.election.enable": "false",
        "compression.type": "producer",
    }
    with suppress(TopicAlreadyExistsError):  # another process of ours was faster
        admin.create_topics([NewTopic(name, partitions, copies, topic_configs=configs)])
    admin.wait_for_topics([name], timeout_ms=settings.request_seconds * 1000)
    _LOG.info("made a topic", topic=name, partitions=partitions, copies=copies)


def _in_sync(copies: int) -> int:
    """Copies that must have a record before it counts as durable: one copy may be down."""
    return max(1, min(2, copies - 1))


def _refuse_loss(name: str, configs: Mapping[str, str]) -> None:
    if "compact" in configs.get("cleanup.policy", ""):
        raise Misconfigured(
            f"cannot use topic {name}: its cleanup.policy={configs['cleanup.policy']} would drop records that nobody "
            "has read; it must be delete"
        )
    taken = int(configs["max.message.bytes"]) if "max.message.bytes" in configs else None
    if taken is None:
        raise Misconfigured(f"cannot use topic {name}: we may not read its settings (right DescribeConfigs)")
    if taken <= RECORD_OVERHEAD_BYTES:
        raise Misconfigured(f"cannot use topic {name}: its max.message.bytes={taken} takes no record at all")


def _differences(name: str, configs: Mapping[str, str], settings: KafkaSettings, copies: int) -> tuple[str, ...]:
    found = []
    retention_ms = int(configs.get("retention.ms", -1))
    if 0 <= retention_ms < settings.retention_seconds * 1000:
        found.append(
            f"retention.ms={retention_ms} of topic {name} is less than "
            f"kafka.retention_seconds={settings.retention_seconds}: what the rollup has not taken in by then is lost"
        )
    retention_bytes = int(configs.get("retention.bytes", -1))
    if 0 <= retention_bytes < settings.lag_bytes_max:
        found.append(
            f"retention.bytes={retention_bytes} of topic {name} is less than "
            f"kafka.lag_bytes_max={settings.lag_bytes_max}: what the rollup has not taken in by then is lost"
        )
    in_sync = int(configs.get("min.insync.replicas", 1))
    if in_sync < _in_sync(copies):
        found.append(
            f"min.insync.replicas={in_sync} of topic {name} with {copies} copies: a record counts as durable while "
            f"one broker alone has it; {_in_sync(copies)} is safe"
        )
    if configs.get("unclean.leader.election.enable") == "true":
        found.append(f"unclean.leader.election.enable=true of topic {name}: a broker that lags may drop records")
    taken = int(configs["max.message.bytes"]) - RECORD_OVERHEAD_BYTES
    if taken < settings.record_bytes_max:
        found.append(
            f"max.message.bytes={taken + RECORD_OVERHEAD_BYTES} of topic {name} takes records of {taken} bytes, less "
            f"than kafka.record_bytes_max={settings.record_bytes_max}: larger ones become several"
        )
    return tuple(found)


_LOG = logger(__name__)
