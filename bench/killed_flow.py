"""Receivers and roll-ups killed (-9) under a sender that never gives up, and what the tables have afterwards.

Called by the bars that kill. On a path (`files`, `kafka`) all parts run as processes on one warehouse. A sender posts
bodies of wide usage to one of the receivers and, where it is not answered, the same body to any of them until one takes
it, as a Prometheus with two addresses does; a tenth of what was taken is sent once more. Meanwhile one part after the
other is killed at a random moment and started again; roll-ups tend the warehouse every few seconds, so upkeep is hit as
well. At the end everything is drained and every window of a minute and of an hour is compared with sums of the sender's
own: samples, and of each measure count, sum and maximum.
"""

from __future__ import annotations

import http.client
import math
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from bench.flink_bench import print_nothing
from bench.measured_run import GPUTIDE, gputide
from bench.receiving import HEADERS, WRITE_PATH
from bench.soak.system import Part
from fleet.data_folder import DataFolder, open_data_folder
from fleet.schema import POD_USAGE
from gputide.operate.engine_cache import default_cache_path
from gputide.operate.engine_parts import Engine
from gputide.operate.engine_process import kill_process, read_register
from gputide.operate.engines import down, free_port, up
from pipeline.remote_write.decode import Version
from pipeline.remote_write.encode import LabelSets
from pipeline.warehouse.warehouse_duckdb import DuckdbWarehouse

MEASURES = {"duty_cycle_ratio": 10**6, "framebuffer_used_bytes": 1}
"""What the table stores is floor(value × scale) (docs/tables.md)."""
SLICES, STEP_MS, STEPS_PER_BODY = 40, 15_000, 3
LEVELS_SECONDS = (60, 3600)
EACH = 2
"""Receivers, and roll-ups."""
BODY_PAUSE_SECONDS = 0.05
KILL_PAUSE_SECONDS = (0.5, 2.5)
WAITED_SECONDS_MAX = 240.0
CLUSTER = "killed"
SETTINGS = (
    "rollup.pause_seconds=0",
    "rollup.chunk_bytes=20000",
    "warehouse.upkeep_seconds=3",
    "warehouse.keep_replaced_seconds=30",
)

Sums = dict[tuple[int, int, str], dict[str, int]]
"""Window in seconds, its start and the pod; of each: `samples`, and count, sum and maximum of each measure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Killed:
    """How one path went.

    Attributes:
        kills: of each part.
        samples: that were sent, each once or more often.
        lost: values that are missing.
        twice: values that are there too often.
        other: windows with the right number of values and another sum, maximum or number of samples.
        refused: posts that were not taken, by status or fault.
    """

    kills: Mapping[str, int]
    samples: int
    lost: int
    twice: int
    other: int
    refused: Mapping[str, int]


@dataclass(slots=True)
class Sender:
    """Posts bodies until each was taken; mutable: what was sent grows."""

    ports: list[int]
    chance: random.Random
    sums: Sums = field(default_factory=dict)
    samples: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    is_over: threading.Event = field(default_factory=threading.Event)

    def send(self) -> None:
        """Sends one body after the other until it is over; a body that was begun is taken first."""
        labels = [
            {
                "__name__": f"gputide_slice_{measure}", "card": f"GPU-{pod:04}", "card_model": "A800",
                "cluster": CLUSTER, "container": "main", "namespace": "team", "node": f"node-{pod // 8}",
                "pod": f"pod-{pod}",
            }
            for pod in range(SLICES) for measure in MEASURES
        ]  # fmt: skip
        sets, scales = LabelSets(labels), list(MEASURES.items())
        began_ms = (int(time.time()) // 3600 - 5) * 3_600_000
        step = 0
        while not self.is_over.is_set():
            series, times, values = [], [], []
            steps = range(step + 1, step + 1 + STEPS_PER_BODY)
            for place in range(len(labels)):
                for at in steps:
                    value = self.chance.random() if place % 2 == 0 else float(self.chance.randrange(1 << 36))
                    series.append(place)
                    times.append(began_ms + at * STEP_MS)
                    values.append(value)
                    self._add(f"pod-{place // 2}", times[-1], *scales[place % 2], value)
            step += STEPS_PER_BODY
            self.samples += len(series)
            body = sets.encode(Version.V2, np.array(series), np.array(times), np.array(values))
            self._post(body)
            if self.chance.random() < 0.1:
                self._post(body)
            time.sleep(BODY_PAUSE_SECONDS)

    def _add(self, pod: str, ts_ms: int, measure: str, scale: int, value: float) -> None:
        stored = math.floor(value * scale)
        for level in LEVELS_SECONDS:
            row = self.sums.setdefault((level, (ts_ms - 1) // (level * 1000) * level * 1000, pod), {"samples": 0})
            row["samples"] += measure == "duty_cycle_ratio"
            row[f"{measure}_count"] = row.get(f"{measure}_count", 0) + 1
            row[f"{measure}_sum"] = row.get(f"{measure}_sum", 0) + stored
            row[f"{measure}_max"] = max(row.get(f"{measure}_max", 0), stored)

    def _post(self, body: bytes) -> None:
        while True:
            port = self.chance.choice(self.ports)
            try:
                with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30)) as connection:
                    connection.request("POST", WRITE_PATH, body, HEADERS)
                    status = connection.getresponse().status
            except (OSError, http.client.HTTPException) as exc:
                self.refused[type(exc).__name__] += 1
            else:
                if status == http.client.NO_CONTENT:
                    return
                self.refused[str(status)] += 1
            time.sleep(0.1)


def killed(folder: Path, path: str, kills: int, chance: random.Random) -> Killed:
    """Runs one path."""
    data, engines = folder / "data", folder / "engines"
    open_data_folder(data, create=True)
    with ExitStack() as opened:
        settings = [*SETTINGS, *(opened.enter_context(broker_settings(engines)) if path == "kafka" else ())]
        # On files a receiver's processes have a lane each; on a topic receivers know nothing of each other.
        ports = [free_port() for _ in range(1 if path == "files" else EACH)]
        parts = {}
        for number, port in enumerate(ports):
            more = [f"receiver.processes={EACH // len(ports)}"]
            words = ("run", "receive", "--listen", f"127.0.0.1:{port}")
            parts[f"receiver-{number}"] = part(folder, data, f"receiver-{number}", [*settings, *more], words)
        for number in range(EACH):
            parts[f"rollup-{number}"] = part(folder, data, f"rollup-{number}", settings, ("run", "rollup"))
        for one in parts.values():
            one.start()
            opened.callback(one.end)
        sender = Sender(ports=ports, chance=random.Random(chance.random()))
        sending = threading.Thread(target=sender.send, daemon=True)
        sending.start()
        count: Counter[str] = Counter()
        for _ in range(kills):
            time.sleep(chance.uniform(*KILL_PAUSE_SECONDS))
            name = chance.choice([*parts, *(["broker"] if path == "kafka" and chance.random() < 0.4 else ())])
            count[name] += 1
            if name == "broker":
                kill_process(read_register(engines)[Engine.KAFKA].processes["broker"])
                up(engines, [Engine.KAFKA], cache=default_cache_path(), ports={}, tell=print_nothing)
                continue
            children = children_of(parts[name]) if chance.random() < 0.7 else []
            if children:
                # One of several processes of a receiver, which its parent starts again.
                os.kill(chance.choice(children), signal.SIGKILL)
                continue
            parts[name].kill()
            parts[name].start()
        sender.is_over.set()
        sending.join(WAITED_SECONDS_MAX)
        if sending.is_alive():
            sys.exit(f"{path}: nobody takes the last body: {dict(sender.refused)}")
        for one in parts.values():
            one.end()
        drained = gputide(data, *(word for text in settings for word in ("--set", text)), "run", "rollup", "--drain")
        if drained.status != 0:
            sys.exit(f"{path}: the bus could not be drained")
        lost, twice, other = compared(sender.sums, stored(data))
    return Killed(kills=count, samples=sender.samples, lost=lost, twice=twice, other=other, refused=sender.refused)


@contextmanager
def broker_settings(folder: Path) -> Iterator[list[str]]:
    """A broker and the settings that name it."""
    folder.mkdir()
    try:
        up(folder, [Engine.KAFKA], cache=default_cache_path(), ports={}, tell=print_nothing)
        port = read_register(folder)[Engine.KAFKA].ports["port"]
        yield ["bus.kind=kafka", f"kafka.servers=127.0.0.1:{port}", "kafka.partitions=4"]
    finally:
        down(folder, [Engine.KAFKA], tell=print_nothing)


def part(folder: Path, data: Path, name: str, settings: list[str], words: tuple[str, ...]) -> Part:
    """One process of ours."""
    options = [word for text in settings for word in ("--set", text)]
    command = [str(GPUTIDE), "--quiet", "--data-dir", str(data), *options, *words]
    return Part(command, os.environ, folder / f"{name}.log")


def children_of(part: Part) -> list[int]:
    """Processes that a part has started (proc(5), `children`)."""
    if part.process is None:
        return []
    with suppress(OSError):
        text = Path(f"/proc/{part.process.pid}/task/{part.process.pid}/children").read_text(encoding="ascii")
        return [int(word) for word in text.split()]
    return []


def stored(data: Path) -> Sums:
    """What the warehouse has, by window and pod."""
    found: Sums = {}
    ever = datetime(2000, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)
    columns = ["samples", *(f"{name}_{what}" for name in MEASURES for what in ("count", "sum", "max"))]
    with closing(DuckdbWarehouse(DataFolder(path=data).warehouse)) as warehouse:
        for level in LEVELS_SECONDS:
            rows = warehouse.windows(
                POD_USAGE, cluster=CLUSTER, level_seconds=level, since=ever[0], until=ever[1], with_histograms=False
            )
            for row in rows.to_pylist():
                found[level, row["window_start"], row["pod"]] = {name: row[name] for name in columns}
    return found


def compared(wanted: Sums, found: Sums) -> tuple[int, int, int]:
    """Values that are missing, that are there too often, and windows that differ in another way."""
    lost = twice = other = 0
    for key in wanted.keys() | found.keys():
        want, have = wanted.get(key, {}), found.get(key, {})
        more = [have.get(name, 0) - want.get(name, 0) for name in (f"{measure}_count" for measure in MEASURES)]
        lost += sum(-number for number in more if number < 0)
        twice += sum(number for number in more if number > 0)
        other += not any(more) and want != have
    return lost, twice, other
