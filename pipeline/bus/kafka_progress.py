"""How far a topic reaches and how far a consumer group is.

Called by `rollup_flink`, which reads the topic through Flink and so has no consumer of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kafka import KafkaConsumer, TopicPartition

from fleet.settings.pipeline import KafkaSettings
from pipeline.bus.kafka_client import broker_errors, client_options, open_client


class KafkaProgress:
    """A topic as one group sees it.

    Args:
        settings: how brokers are reached.
        topic: its name.
        group: the group.

    Raises:
        Unavailable: brokers can't be reached.
    """

    def __init__(self, settings: KafkaSettings, topic: str, group: str) -> None:
        self._settings = settings
        self._topic = topic
        with broker_errors(f"open topic {topic}", settings):
            self._consumer: Any = open_client(
                KafkaConsumer, {**client_options(settings), "group_id": group, "enable_auto_commit": False}
            )

    def ends(self) -> Mapping[int, int]:
        """The offset after the last record of each partition that has any.

        Raises:
            Unavailable: brokers can't be reached.
        """
        with broker_errors(f"ask for the ends of topic {self._topic}", self._settings):
            numbers = self._consumer.partitions_for_topic(self._topic) or set()
            places = [TopicPartition(self._topic, number) for number in sorted(numbers)]
            first, ends = self._consumer.beginning_offsets(places), self._consumer.end_offsets(places)
            # Where retention has left nothing, the job never has an offset to commit.
            return {place.partition: end for place, end in ends.items() if end > first[place]}

    def committed(self) -> Mapping[int, int]:
        """The offset that the group has committed, 0 where it has not.

        Raises:
            Unavailable: brokers can't be reached.
        """
        with broker_errors(f"ask for the offsets of topic {self._topic}", self._settings):
            numbers = self._consumer.partitions_for_topic(self._topic) or set()
            return {
                number: self._consumer.committed(TopicPartition(self._topic, number)) or 0 for number in sorted(numbers)
            }

    def close(self) -> None:
        """Lets go of the connections."""
        self._consumer.close()
