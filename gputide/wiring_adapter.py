"""Opens the way from the topic of a remote-write-to-Kafka adapter to the bus: `wiring` for `receive --from-kafka`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from fleet.data_folder import DataFolder
from fleet.errors import Misconfigured
from fleet.settings.settings import Settings
from gputide.wiring_bus import intake_of, open_bus_writer

if TYPE_CHECKING:
    from pipeline.bus.bridge_kafka import AdapterBridge


@contextmanager
def open_bridge(folder: DataFolder, settings: Settings, topic: str) -> Iterator[AdapterBridge]:
    """What takes an adapter's messages to the bus of the settings.

    Args:
        folder: data folder, for a bus in files.
        settings: all settings; brokers and security are those of the section `kafka`.
        topic: the adapter's topic.

    Raises:
        Misconfigured: the topic is our own, or brokers don't let us in.
        Unavailable: brokers can't be reached, or another process writes to the bus.
    """
    from pipeline.bus.bridge_kafka import AdapterBridge
    from pipeline.bus.dead_letters_kafka import KafkaDeadLetters

    if topic == settings.kafka.topic:
        raise Misconfigured(f"cannot read an adapter's messages from {topic}: kafka.topic is for our own records")
    with open_bus_writer(folder, settings) as bus, closing(KafkaDeadLetters(settings.kafka, topic)) as dead_letters:
        intake = intake_of(bus, settings)
        with closing(AdapterBridge(settings.kafka, topic, intake, dead_letters)) as bridge:
            yield bridge
