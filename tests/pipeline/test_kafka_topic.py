"""What brokers say of a topic is believed only when it is enough to read and write by."""

from __future__ import annotations

from typing import Any

import pytest

from fleet.errors import Misconfigured, Unavailable
from fleet.settings.pipeline import KafkaSettings
from pipeline.bus import kafka_topic
from pipeline.bus.kafka_topic import open_topic

FOUND = {"error_code": 0, "topic_id": "id", "partitions": [{"replica_nodes": [1]}]}


class Brokers:
    """The driver's admin client, with answers given beforehand; the last one of the topic is repeated."""

    def __init__(self, *topics: dict[str, Any], configs: dict[str, str]) -> None:
        self._topics = list(topics)
        self._configs = configs

    def describe_cluster(self) -> dict[str, Any]:
        return {"brokers": [1], "cluster_id": "c"}

    def describe_topics(self, _names: list[str]) -> list[dict[str, Any]]:
        return [self._topics.pop(0) if len(self._topics) > 1 else self._topics[0]]

    def create_topics(self, _topics: list[Any]) -> None:
        pass

    def wait_for_topics(self, _names: list[str], *, timeout_ms: int) -> None:
        pass

    def describe_configs(self, _resources: list[Any], *, config_filter: str) -> dict[str, Any]:
        return {"topic": {"t": {name: {"value": value} for name, value in self._configs.items()}}}

    def close(self) -> None:
        pass


@pytest.fixture
def brokers(monkeypatch):
    def answer(*topics: dict[str, Any], configs: dict[str, str]) -> None:
        admin = Brokers(*topics, configs=configs)
        monkeypatch.setattr(kafka_topic, "open_client", lambda *_: admin)

    return answer


UNKNOWN: dict[str, Any] = {"error_code": 3, "topic_id": None, "partitions": []}
CONFIGS = {"max.message.bytes": "1048588"}


@pytest.mark.parametrize(
    "told", [UNKNOWN, {"error_code": 5, "topic_id": "id", "partitions": []}], ids=["unknown", "without a leader"]
)
def test_topic_whose_partitions_brokers_do_not_tell_yet_is_not_taken_for_one_without_any(brokers, told):
    brokers(UNKNOWN, told, configs=CONFIGS)
    with pytest.raises(Unavailable, match="cannot open topic t: brokers do not tell its partitions"):
        open_topic(KafkaSettings(topic="t"), "t", partitions=2)


def test_topic_that_we_may_not_look_at_is_misconfigured(brokers):
    brokers({"error_code": 29, "topic_id": None, "partitions": []}, configs={})
    with pytest.raises(Misconfigured, match="DescribeConfigs"):
        open_topic(KafkaSettings(topic="t"), "t", partitions=2)


def test_topics_of_one_name_have_identities_of_their_own(brokers):
    brokers(FOUND, configs=CONFIGS)
    first = open_topic(KafkaSettings(topic="t"), "t", partitions=1)
    brokers({**FOUND, "topic_id": "made later"}, configs=CONFIGS)
    assert open_topic(KafkaSettings(topic="t"), "t", partitions=1).identity != first.identity
