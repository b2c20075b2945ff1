"""Every part that takes samples in is killed (-9) under a sender that never gives up; what the tables have afterwards.

On each path all parts run as processes on one warehouse. A sender posts bodies of wide usage to one of the receivers
and, where it is not answered, the same body to any of them until one takes it, as a Prometheus with two addresses does;
a tenth of what was taken is sent once more. Meanwhile one part after the other is killed at a random moment and started
again; roll-ups tend the warehouse every few seconds, so upkeep is hit as well. At the end everything is drained and
every window of a minute and of an hour is compared with sums of the sender's own: samples, and of each measure count,
sum and maximum.

`files` and `kafka` have two receivers and two roll-ups, `kafka` a broker. `flink` has two receivers, a broker, a Flink
of a JobManager and a TaskManager, the roll-up that watches its job, PostgreSQL with the catalogue of the Iceberg
tables, and `admin warehouse compact` and `publish`, which are killed half way. What a reader of the tables finds by the
catalogue alone is compared as well, and each file that a table names must be there. Called by the bars that kill.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.flink_bench import print_nothing
from bench.kill_oracle import Sender, compared, in_tables, stored
from bench.measured_run import GPUTIDE, gputide
from bench.postgres import Postgres
from bench.soak.system import Part
from fleet.data_folder import open_data_folder
from gputide.operate.engine_cache import default_cache_path
from gputide.operate.engine_parts import Engine
from gputide.operate.engine_process import kill_process, read_register
from gputide.operate.engines import down, free_port, up

FLINK = "flink"
EACH = 2
"""Receivers, and roll-ups of those paths that share work among them."""
SUPERVISED_SECONDS = 1.0
WAITED_SECONDS_MAX = 240.0
SETTINGS = (
    "rollup.pause_seconds=0",
    "rollup.chunk_bytes=20000",
    "warehouse.upkeep_seconds=3",
    "warehouse.keep_replaced_seconds=30",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How fast a path is driven.

    Attributes:
        body_seconds: between two bodies.
        kill_seconds: least and most between two kills.
    """

    body_seconds: float
    kill_seconds: tuple[float, float]


PACES = {
    "files": Pace(body_seconds=0.05, kill_seconds=(0.5, 2.5)),
    "kafka": Pace(body_seconds=0.05, kill_seconds=(0.5, 2.5)),
    # A Java machine takes seconds to start; bodies run ahead of the clock by 45 s each.
    FLINK: Pace(body_seconds=1.0, kill_seconds=(1.0, 12.0)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Killed:
    """How one path went.

    Attributes:
        kills: of each part.
        restarts: how often each part ended by itself, because of another's death, and was started again.
        samples: that were sent, each once or more often.
        meanwhile: of the values sent, those that were in the warehouse before it was drained, 0-1.
        lost: values that are missing.
        twice: values that are there too often.
        other: windows with the right number of values and another sum, maximum or number of samples.
        tables: the last three of the Iceberg tables, and files that they name and that are not there; none elsewhere.
        refused: posts that were not taken, by status or fault.
    """

    kills: Mapping[str, int]
    restarts: Mapping[str, int]
    samples: int
    meanwhile: float
    lost: int
    twice: int
    other: int
    tables: tuple[int, ...]
    refused: Mapping[str, int]

    @property
    def is_whole(self) -> bool:
        """Whether every number is right."""
        return not any((self.lost, self.twice, self.other, *self.tables))


class Stand:
    """The processes of a path; mutable: they are killed and started again.

    Args:
        data: the data folder that they share.
        logs: folder for their logs.
        settings: of all of them.

    Attributes:
        victims: what can be killed; each returns whether it was hit, started again.
        restarts: how often each part of ours ended by itself.
        catalogue: the database of the Iceberg tables; None without.
    """

    def __init__(self, data: Path, logs: Path, settings: list[str]) -> None:
        self.data = data
        self._logs = logs
        self._options = [word for text in settings for word in ("--set", text)]
        self._parts: dict[str, Part] = {}
        self._changing = threading.RLock()
        self._is_over = threading.Event()
        self._supervisor = threading.Thread(target=self._supervise, daemon=True)
        self.victims: dict[str, Callable[[], bool]] = {}
        self.restarts: Counter[str] = Counter()
        self.catalogue: Postgres | None = None

    def add(self, name: str, *words: str) -> None:
        """A process of ours that shall run."""
        self._parts[name] = self._part(name, words)
        self.victims[name] = partial(self._kill, self._parts[name])

    def add_passing(self, name: str, chance: random.Random, *words: str) -> None:
        """A verb that is called now and then, and killed before it ends."""

        def kill() -> bool:
            made = self._part(name, words)
            made.start()
            time.sleep(chance.uniform(0.8, 4.0))
            is_hit = made.process is not None and made.process.poll() is None
            made.kill()
            return is_hit

        self.victims[name] = kill

    def start(self) -> None:
        """Start all parts, and start those again that end by themselves."""
        for one in self._parts.values():
            one.start()
        self._supervisor.start()

    def end(self) -> None:
        """End them in order."""
        self._is_over.set()
        self._supervisor.join()
        for one in self._parts.values():
            one.end()

    def call(self, *words: str) -> None:
        """One verb from start to end; what goes wrong ends the bar."""
        gputide(self.data, *self._options, *words)

    def _part(self, name: str, words: tuple[str, ...]) -> Part:
        command = [str(GPUTIDE), "--quiet", "--data-dir", str(self.data), *self._options, *words]
        return Part(command, os.environ, self._logs / f"{name}.log")

    def _kill(self, one: Part) -> bool:
        with self._changing:
            one.kill()
            one.start()
        return True

    def kill_child(self, name: str, chance: random.Random) -> bool:
        """Kills one of several processes of a part, which its parent starts again; False where it has none."""
        children = children_of(self._parts[name]) if name in self._parts else []
        if children:
            with suppress(ProcessLookupError):
                os.kill(chance.choice(children), signal.SIGKILL)
        return bool(children)

    def _supervise(self) -> None:
        while not self._is_over.wait(SUPERVISED_SECONDS):
            with self._changing:
                for name, one in self._parts.items():
                    if one.is_wanted and one.process is not None and one.process.poll() is not None:
                        self.restarts[name] += 1
                        one.start()


def killed(folder: Path, path: str, kills: int, chance: random.Random) -> Killed:
    """Runs one path."""
    pace, engine = PACES[path], ("--engine", "flink") if path == FLINK else ()
    with ExitStack() as opened:
        # On files a receiver's processes have a lane each; on a topic receivers know nothing of each other.
        ports = [free_port() for _ in range(1 if path == "files" else EACH)]
        stand = opened.enter_context(stand_of(folder, path, chance))
        for number, port in enumerate(ports):
            more = ("--set", f"receiver.processes={EACH // len(ports)}")
            stand.add(f"receiver-{number}", *more, "run", "receive", "--listen", f"127.0.0.1:{port}")
        for number in range(1 if path == FLINK else EACH):
            stand.add(f"rollup-{number}", "run", "rollup", *engine)
        stand.start()
        ending = opened.enter_context(closing_once(stand.end))
        sender = Sender(ports=ports, chance=random.Random(chance.random()), pause_seconds=pace.body_seconds)
        sending = threading.Thread(target=sender.send, daemon=True)
        sending.start()
        count = killed_one_by_one(stand, kills, pace, chance)
        sender.is_over.set()
        sending.join(WAITED_SECONDS_MAX)
        if sending.is_alive():
            sys.exit(f"{path}: nobody takes the last body: {dict(sender.refused)}")
        ending()
        missing, _, _ = compared(sender.sums, stored(stand.data))
        stand.call("run", "rollup", *engine, "--drain")
        lost, twice, other = compared(sender.sums, stored(stand.data))
        tables: tuple[int, ...] = ()
        if stand.catalogue is not None:
            stand.call("admin", "warehouse", "publish")
            found, lacking = in_tables(stand.catalogue.address)
            tables = (*compared(sender.sums, found), lacking)
    of_all = sum(row[name] for row in sender.sums.values() for name in row if name.endswith("_count"))
    return Killed(
        kills=dict(count), restarts=dict(stand.restarts), samples=sender.samples,
        meanwhile=round(1 - missing / of_all, 3),
        lost=lost, twice=twice, other=other, tables=tables, refused=dict(sender.refused),
    )  # fmt: skip


def killed_one_by_one(stand: Stand, kills: int, pace: Pace, chance: random.Random) -> Counter[str]:
    """Kills parts until so many were hit."""
    count: Counter[str] = Counter()
    while count.total() < kills:
        time.sleep(chance.uniform(*pace.kill_seconds))
        name = chance.choice(list(stand.victims))
        count[name] += (chance.random() < 0.7 and stand.kill_child(name, chance)) or stand.victims[name]()
    return count


@contextmanager
def closing_once(end: Callable[[], None]) -> Iterator[Callable[[], None]]:
    """What ends something, at the end of the block at the latest."""
    is_over = False

    def once() -> None:
        nonlocal is_over
        if not is_over:
            is_over = True
            end()

    try:
        yield once
    finally:
        once()


@contextmanager
def stand_of(folder: Path, path: str, chance: random.Random) -> Iterator[Stand]:
    """The engines of a path, and what will run on them."""
    data, place = folder / "data", folder / "engines"
    open_data_folder(data, create=True)
    place.mkdir()
    engines = {"files": [], "kafka": [Engine.KAFKA], FLINK: [Engine.KAFKA, Engine.FLINK]}[path]
    settings, catalogue = list(SETTINGS), None
    with ExitStack() as opened:
        if engines:
            opened.callback(down, place, engines, tell=print_nothing)
            start_engines(place, engines)
            port = read_register(place)[Engine.KAFKA].ports["port"]
            settings += ["bus.kind=kafka", f"kafka.servers=127.0.0.1:{port}", "kafka.partitions=4"]
        if path == FLINK:
            catalogue = opened.enter_context(closing(Postgres(folder / "postgres.log")))
            catalogue.start()
            rest = read_register(place)[Engine.FLINK].ports["rest_port"]
            settings += [
                f"flink.rest=http://127.0.0.1:{rest}", "flink.checkpoint_seconds=2",
                f"iceberg.database={catalogue.address}", "iceberg.publish_seconds=3",
            ]  # fmt: skip
        stand = Stand(data, folder, settings)
        for engine in engines:
            for name in read_register(place)[engine].processes:
                stand.victims[name] = partial(kill_engine, place, engines, engine, name)
        if catalogue is not None:
            stand.catalogue = catalogue
            stand.victims["catalogue"] = partial(kill_catalogue, catalogue, chance)
            stand.add_passing("upkeep", chance, "admin", "warehouse", "compact")
            stand.add_passing("publish", chance, "admin", "warehouse", "publish")
        yield stand


def start_engines(place: Path, engines: list[Engine]) -> None:
    """Starts what of the engines does not run."""
    up(place, engines, cache=default_cache_path(), ports={}, tell=print_nothing)


def kill_engine(place: Path, engines: list[Engine], engine: Engine, name: str) -> bool:
    """Kills a process of an engine, and starts it again."""
    kill_process(read_register(place)[engine].processes[name])
    start_engines(place, engines)
    return True


def kill_catalogue(catalogue: Postgres, chance: random.Random) -> bool:
    """Kills the database, which is away for a while."""
    catalogue.kill()
    time.sleep(chance.uniform(0.0, 3.0))
    catalogue.start()
    return True


def children_of(part: Part) -> list[int]:
    """Processes that a part has started (proc(5), `children`)."""
    if part.process is None:
        return []
    with suppress(OSError):
        text = Path(f"/proc/{part.process.pid}/task/{part.process.pid}/children").read_text(encoding="ascii")
        return [int(word) for word in text.split()]
    return []
