"""Opens the bus that the settings name, for receiver and rollup, and the intakes that put samples on it.

Also opens the bridge from the topic of a remote-write-to-Kafka adapter, for `gputide run receive --from-kafka`.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fleet.data_folder import DataFolder
from fleet.errors import Misconfigured
from fleet.settings.pipeline import BusKind
from fleet.settings.settings import Settings
from gputide.container.arrow import load_arrow
from pipeline.bus.bus import BusWriter, DeadLetters, OpenedLane
from pipeline.bus.bus_awaited import AwaitedBus
from pipeline.bus.bus_file import FileBus, FileDeadLetters
from pipeline.receiver.intake import Answer, Intake
from pipeline.receiver.record_writer import RecordWriter
from pipeline.receiver.repeats import Repeats
from pipeline.receiver.turns import Turns
from pipeline.records.rows import TS_MAX_MS
from pipeline.remote_write.claims import Claims
from pipeline.remote_write.decode import BodyLimits
from pipeline.remote_write.label_sets import LabelLimits
from pipeline.remote_write.series_table import SeriesTable

if TYPE_CHECKING:
    from pipeline.bus.bridge_kafka import AdapterBridge
    from pipeline.bus.bus_kafka import KafkaWriter

IsOpen = Callable[[], bool]

KAFKA_APPENDS_AT_ONCE = 4
"""Appends under way to brokers at once: one is packed while others wait for the network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingBus:
    """The rollup's side of a bus.

    Attributes:
        lanes: says which lanes there are now.
        lane: opens one of them.
        dead_letters: where records go that can't be read.
    """

    lanes: Callable[[], tuple[int, ...]]
    lane: Callable[[int], OpenedLane]
    dead_letters: DeadLetters


def intakes_of(
    bus: BusWriter,
    settings: Settings,
    now_seconds: Callable[[], float] = time.monotonic,
    *,
    is_lingering: bool = False,
    ts_max_ms: Callable[[], int] = lambda: TS_MAX_MS,
) -> Callable[[str | None], Intake]:
    """Makes what takes bodies to the bus with the bounds of the receiver.

    Args:
        is_lingering: whether many send at once, so that a body waits for others that go into one record with it, as
            long as the bus says.
        ts_max_ms: the latest time that a sample may have now, epoch milliseconds.

    Returns:
        Makes the intake of a sender, given the cluster of all its samples or None where labels are believed; all of
        them share the bounds on what bodies take.
    """
    limits = settings.receiver
    turns = Turns(BodyLimits(decoded_bytes=limits.decoded_bytes_max, samples=limits.body_samples_max))
    repeats: Repeats[Answer] = Repeats(settings.rollup.repeat_memory_seconds, now_seconds)
    records = RecordWriter(
        bus,
        gathers=settings.bus.kind is BusKind.KAFKA,
        linger_seconds=settings.kafka.linger_milliseconds / 1000 if is_lingering else 0.0,
        appends_at_once=KAFKA_APPENDS_AT_ONCE,
    )

    def intake(forced_cluster: str | None) -> Intake:
        table = SeriesTable(
            default_cluster=settings.cluster.name,
            series_max=limits.series_max,
            limits=LabelLimits(labels_max=limits.labels_max, label_bytes_max=limits.label_bytes_max),
            seed=secrets.randbits(63),
            claims=Claims(forced_cluster, settings.provenance.rule),
            forget_seconds=limits.forget_seconds,
            now_seconds=now_seconds,
        )
        return Intake(records, table, turns=turns, repeats=repeats, ts_max_ms=ts_max_ms)

    return intake


@contextmanager
def open_awaited_bus(folder: DataFolder, settings: Settings, *, lane: int) -> Iterator[tuple[BusWriter, IsOpen]]:
    """The bus for a receiver that others send to, and what says whether it is open: brokers may come later.

    Args:
        lane: see `open_bus_writer`.

    Raises:
        Unavailable: another process writes to the lane.
        Misconfigured: a topic is missing or would lose records.
    """
    if settings.bus.kind is BusKind.FILE:
        with open_bus_writer(folder, settings, lane=lane) as bus:
            yield bus, lambda: True
        return
    with closing(AwaitedBus(lambda: _kafka_writer(settings))) as awaited:
        yield awaited, lambda: awaited.is_open


@contextmanager
def open_bus_writer(folder: DataFolder, settings: Settings, *, lane: int = 0) -> Iterator[BusWriter]:
    """The bus, for a program that puts samples on it.

    Args:
        lane: the file bus' lane that this process writes; the lanes of a topic are shared by everybody.

    Raises:
        Unavailable: brokers can't be reached, or another process writes to the lane.
        Misconfigured: a topic is missing or would lose records.
    """
    load_arrow()
    if settings.bus.kind is BusKind.FILE:
        with closing(file_bus(folder, settings, lane)) as bus:
            bus.take_writing()
            yield bus
        return
    with closing(_kafka_writer(settings)) as writer:
        yield writer


def _kafka_writer(settings: Settings) -> KafkaWriter:
    from pipeline.bus.bus_kafka import KafkaWriter

    return KafkaWriter(settings.kafka)


@contextmanager
def open_bus_reader(folder: DataFolder, settings: Settings) -> Iterator[ReadingBus]:
    """The bus, for a rollup.

    Raises:
        Unavailable: brokers can't be reached.
        Misconfigured: a topic is missing or would lose records.
    """
    load_arrow()
    if settings.bus.kind is BusKind.FILE:
        yield ReadingBus(
            lanes=lambda: folder.bus_lanes,
            lane=lambda number: file_bus(folder, settings, number),
            dead_letters=FileDeadLetters(folder.dead_letters),
        )
        return
    from pipeline.bus.bus_kafka import KafkaLane
    from pipeline.bus.dead_letters_kafka import KafkaDeadLetters
    from pipeline.bus.kafka_topic import open_topic

    topic = open_topic(settings.kafka, settings.kafka.topic, partitions=settings.kafka.partitions)
    with closing(KafkaDeadLetters(settings.kafka, topic.name)) as dead_letters:
        yield ReadingBus(
            lanes=lambda: tuple(range(topic.partitions)),
            lane=lambda number: KafkaLane(settings.kafka, topic, number),
            dead_letters=dead_letters,
        )


def file_bus(folder: DataFolder, settings: Settings, lane: int = 0) -> FileBus:
    """One lane of the file bus."""
    return FileBus(folder.bus(lane), segment_bytes=settings.bus.segment_bytes, bytes_max=settings.bus.bytes_max)


def waiting_bytes(folder: DataFolder, settings: Settings) -> int:
    """Bytes on all lanes of the file bus that the rollup has not taken in.

    Raises:
        Corrupt: it can't be read how far the rollup is.
    """
    # Opening the bus would make its folder.
    there = (lane for lane in folder.bus_lanes if folder.bus(lane).is_dir())
    return sum(file_bus(folder, settings, lane).waiting_bytes for lane in there)


@contextmanager
def open_bridge(folder: DataFolder, settings: Settings, topic: str) -> Iterator[AdapterBridge]:
    """What takes an adapter's messages to the bus of the settings.

    Args:
        settings: all settings; brokers and security are those of the section `kafka`.

    Raises:
        Misconfigured: the topic is our own, or brokers don't let us in.
        Unavailable: brokers can't be reached, or another process writes to the bus.
    """
    from pipeline.bus.bridge_kafka import AdapterBridge
    from pipeline.bus.dead_letters_kafka import KafkaDeadLetters

    if topic == settings.kafka.topic:
        raise Misconfigured(f"cannot read an adapter's messages from {topic}: kafka.topic is for our own records")
    with open_bus_writer(folder, settings) as bus, closing(KafkaDeadLetters(settings.kafka, topic)) as dead_letters:
        intake = intakes_of(bus, settings)(None)
        with closing(AdapterBridge(settings.kafka, topic, intake, dead_letters)) as bridge:
            yield bridge
