"""One broker, one Hive and one Flink environment for all engine tests of a session.

The tier runs in two workers of pytest, each a session with engines of its own. `tests/run_tiers.py engines` fetches
what they are made of and says where it lies. A test that breaks an engine on purpose need not mend it: the next test
that asks for a fresh topic or database gets a running one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

from fleet.errors import Unavailable
from gputide.operate.engine_flink import FlinkStock, prepare_flink
from pipeline.warehouse.warehouse_duckdb import DuckdbWarehouse
from tests.engines.go_peers import GoPeers, NvidiaPeers, build_go_peers, build_nvidia_peers
from tests.engines.nvidia_node import NvidiaNode, private_root_command
from tests.engines.running import Hive, Kafka
from tests.exporter.nvml.standin import DATA_VARIABLE

if TYPE_CHECKING:
    from tests.engines.flink_parts import SharedProcess, TopicBus

CACHE = os.environ.get("GPUTIDE_ENGINES_CACHE")  # read before the suite hides the developer's variables
LONGEST = "test_soak.py"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the module that takes five minutes, so that no worker is alone with it in the end."""
    items.sort(key=lambda item: item.path.name != LONGEST)


@pytest.fixture(scope="session")
def engines_cache() -> Path:
    """Return the folder with what engines are made of; skip where the tier was not prepared."""
    if CACHE is None:
        cannot_run("the engines were not prepared: `python tests/run_tiers.py engines` does it")
    return Path(CACHE)


@pytest.fixture(scope="session")
def kafka(engines_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """Start the broker that the session shares."""
    broker = Kafka(tmp_path_factory.mktemp("kafka"), engines_cache)
    broker.start()
    yield broker
    broker.end()


@pytest.fixture
def own_kafka(engines_cache: Path, tmp_path: Path) -> Iterator[Callable[[dict[str, str]], Kafka]]:
    """Return a starter of a broker for one test alone, with properties of its own; it takes some 5 s."""
    started: list[Kafka] = []

    def start(properties: dict[str, str]) -> Kafka:
        folder = tmp_path / f"own-kafka-{len(started)}"
        (folder / "kafka").mkdir(parents=True)
        lines = "".join(f"{name}={value}\n" for name, value in properties.items())
        (folder / "kafka" / "extra.properties").write_text(lines, encoding="utf-8")
        started.append(Kafka(folder, engines_cache))
        started[-1].start()
        return started[-1]

    yield start
    for broker in started:
        broker.end()


@pytest.fixture
def fresh_topic(kafka: Kafka) -> Callable[..., str]:
    """Return a maker of topics that nobody else has: `fresh_topic(partitions=2, **{"max.message.bytes": "1024"})`."""
    from kafka import KafkaAdminClient  # noqa: PLC0415 - only who runs engines has the driver
    from kafka.admin import NewTopic  # noqa: PLC0415

    kafka.resume()
    kafka.start()

    def make(partitions: int = 1, **configs: str) -> str:
        name = f"test-{next(_numbers)}"
        admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap)
        admin.create_topics([NewTopic(name, partitions, 1, topic_configs=configs)])
        admin.close()
        return name

    return make


@pytest.fixture(scope="session")
def hive(engines_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hive]:
    """Start the metastore and the HiveServer2 that the session shares."""
    running = Hive(tmp_path_factory.mktemp("hive"), engines_cache)
    running.start()
    yield running
    running.end()


@pytest.fixture
def fresh_database(hive: Hive) -> str:
    """Return the name of a Hive database that nobody else uses; it is not made yet."""
    hive.start()
    return f"test_{next(_numbers)}"


@pytest.fixture(scope="session")
def flink(engines_cache: Path) -> FlinkStock:
    """Return what a Flink job is run with: `python`, `jars`, `home` and `environ(outer)`."""
    return prepare_flink(engines_cache, tell=print)


@pytest.fixture(scope="module")
def shared(flink: FlinkStock, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedProcess]:
    """Start a Flink process that a module's jobs share; it takes some 10 s."""
    from tests.engines.flink_parts import SharedProcess, environment_of  # noqa: PLC0415 - needs the driver of Kafka

    process = SharedProcess(environment_of(flink), "shared-by-tests", tmp_path_factory.mktemp("flink") / "flink.log")
    yield process
    process.finish()


@pytest.fixture
def bus(kafka: Kafka, fresh_topic: Callable[..., str]) -> Iterator[TopicBus]:
    """Return a bus on a topic of its own."""
    from tests.engines.flink_parts import TopicBus, topic_settings  # noqa: PLC0415 - needs the driver of Kafka

    opened = TopicBus(topic_settings(kafka, fresh_topic(2)))
    yield opened
    opened.close()


@pytest.fixture
def warehouse(tmp_path: Path) -> Iterator[DuckdbWarehouse]:
    """Return the local warehouse, empty."""
    opened = DuckdbWarehouse(tmp_path / "warehouse")
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def go_peers(engines_cache: Path) -> GoPeers:
    """Return the paths of Prometheus, promtool and the remote-write 2.0 sender; skip where there is no Go."""
    try:
        return build_go_peers(engines_cache, tell=print)
    except Unavailable as absence:
        cannot_run(str(absence))


@pytest.fixture(scope="session")
def nvidia_peers(engines_cache: Path) -> NvidiaPeers:
    """Return the paths of NVIDIA's device plugin, daemon of MPS and mig-parted; skip where they can't be built."""
    try:
        return build_nvidia_peers(engines_cache, tell=print)
    except Unavailable as absence:
        cannot_run(str(absence))


@pytest.fixture
def node(nvidia_peers: NvidiaPeers, monkeypatch: pytest.MonkeyPatch) -> Iterator[NvidiaNode]:
    """Return a node without cards for NVIDIA's device plugin to run on; skip where it can't have mounts of its own."""
    try:
        made = NvidiaNode(nvidia_peers, private_root_command())
    except Unavailable as absence:
        cannot_run(str(absence))
    monkeypatch.setenv(DATA_VARIABLE, str(made.world.file))
    yield made
    made.close()


def cannot_run(reason: str) -> NoReturn:
    """Skip with the reason; fail where `CI=true`, so that a missing set-up step cannot pass for a green run."""
    if os.environ.get("CI", "").lower() == "true":
        pytest.fail(reason)
    pytest.skip(reason)


_numbers = count(1)
