"""What bars with kills send and what must come of it: a sender that knows its own sums, and what is stored.

Called by `bench/bars/scale-kills`.
"""

from __future__ import annotations

import http.client
import logging
import math
import random
import threading
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog

from bench.receiving import HEADERS, WRITE_PATH
from fleet.data_folder import DataFolder
from fleet.schema import POD_USAGE
from pipeline.remote_write.decode import Version
from pipeline.remote_write.encode import LabelSets
from pipeline.warehouse.warehouse_duckdb import DuckdbWarehouse

MEASURES = {"duty_cycle_ratio": 10**6, "framebuffer_used_bytes": 1}
"""What the table stores is floor(value × scale) (docs/tables.md)."""
SLICES, STEP_MS, STEPS_PER_BODY = 40, 15_000, 3
LEVELS_SECONDS = (60, 3600)
CLUSTER = "killed"
_COLUMNS = ("samples", *(f"{name}_{what}" for name in MEASURES for what in ("count", "sum", "max")))

Sums = dict[tuple[int, int, str], dict[str, int]]
"""Window in seconds, its start and the pod; of each: `samples`, and count, sum and maximum of each measure."""


@dataclass(slots=True)
class Sender:
    """Posts bodies until each was taken; mutable: what was sent grows.

    Attributes:
        pause_seconds: between two bodies.
    """

    ports: list[int]
    chance: random.Random
    pause_seconds: float
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
            time.sleep(self.pause_seconds)

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


def stored(data: Path) -> Sums:
    """What the warehouse has, by window and pod."""
    found: Sums = {}
    ever = datetime(2000, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)
    with closing(DuckdbWarehouse(DataFolder(path=data).warehouse)) as warehouse:
        for level in LEVELS_SECONDS:
            rows = warehouse.windows(
                POD_USAGE, cluster=CLUSTER, level_seconds=level, since=ever[0], until=ever[1], with_histograms=False
            )
            for row in rows.to_pylist():
                found[level, row["window_start"], row["pod"]] = {name: row[name] for name in _COLUMNS}
    return found


def in_tables(database: str) -> tuple[Sums, int]:
    """What a reader of the Iceberg tables finds by their catalogue alone; and files that a table names and that lack.

    A merge of rows is the reader's own; files are those of every snapshot that a reader may still ask for.
    """
    logging.getLogger("pyiceberg").setLevel(logging.ERROR)  # each text column of each file is worth a warning to it
    catalogue = SqlCatalog("gputide", uri=database, warehouse="file:///nowhere")
    missing = 0
    for _, name in catalogue.list_tables("gputide"):
        table = catalogue.load_table(f"gputide.{name}")
        paths = {
            task.file.file_path.removeprefix("file://")
            for snapshot in table.snapshots()
            for task in table.scan(snapshot_id=snapshot.snapshot_id).plan_files()
        }
        missing += sum(not Path(path).exists() for path in paths)
    keys = ("window_seconds", "window_start", "pod")
    wanted = f"window_seconds in ({', '.join(map(str, LEVELS_SECONDS))})"
    table = catalogue.load_table(f"gputide.{POD_USAGE.name}")
    rows: pa.Table = table.scan(row_filter=wanted, selected_fields=(*keys, *_COLUMNS)).to_arrow()
    catalogue.close()
    rows = rows.set_column(rows.column_names.index("pod"), "pod", rows["pod"].cast(pa.string()))
    merged = rows.group_by(keys).aggregate([(name, "max" if name.endswith("_max") else "sum") for name in _COLUMNS])
    found: Sums = {}
    for row in merged.to_pylist():
        key = row["window_seconds"], row["window_start"], row["pod"]
        found[key] = {name: row[f"{name}_{'max' if name.endswith('_max') else 'sum'}"] for name in _COLUMNS}
    return found, missing


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
