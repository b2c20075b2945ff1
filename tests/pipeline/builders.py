"""Small fleets, their bodies, and what must come out of them, computed the plain way."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from fleet.schema import CARD_USAGE, MEASURES, POD_USAGE, WINDOW_SECONDS, Measure, Table
from pipeline.bus.bus import Bus, Chunk
from pipeline.bus.bus_file import FileBus
from pipeline.receiver.intake import Intake
from pipeline.receiver.record_writer import RecordWriter
from pipeline.receiver.repeats import Repeats
from pipeline.receiver.turns import Turns
from pipeline.remote_write.claims import Claims
from pipeline.remote_write.decode import BodyLimits, Version
from pipeline.remote_write.encode import LabelSets
from pipeline.remote_write.label_sets import LabelLimits
from pipeline.remote_write.series_table import FORGET_SECONDS, SeriesTable
from pipeline.rollup.rollup_duckdb import EmbeddedRollup, RollupTarget
from pipeline.warehouse.warehouse import Warehouse

DAY_MS = 86_400_000
START_MS = 1_767_571_200_000  # 2026-01-05 00:00 UTC, a Monday
LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
FAR_OFF = datetime(2100, 1, 1, tzinfo=UTC)
COLUMN = {column.measure: column for column in MEASURES}


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample of a slice's (or, with `of_card`, a card's) measure."""

    pod: int
    measure: Measure
    ts_ms: int
    value: float
    of_card: bool = False


def labels_of(sample: Sample, cluster: str = "c1") -> dict[str, str]:
    """The labels of a sample's series."""
    card = {"cluster": cluster, "node": "n1", "card": f"GPU-{sample.pod}", "card_model": "NVIDIA A10"}
    if sample.of_card:
        return {"__name__": f"gputide_card_{sample.measure.value}", **card}
    pod = {"namespace": "team", "pod": f"pod-{sample.pod}", "container": "server"}
    return {"__name__": f"gputide_slice_{sample.measure.value}", **card, **pod}


def body_of(samples: Sequence[Sample], version: Version = Version.V2, cluster: str = "c1") -> bytes:
    """One body that carries samples in the order given, one run of a series per change of series."""
    return encoded([labels_of(sample, cluster) for sample in samples], samples, version)


def encoded(labels: list[dict[str, str]], samples: Sequence[Sample], version: Version) -> bytes:
    """One body of samples with labels of their own each."""
    return LabelSets(labels).encode(
        version,
        np.arange(len(samples)),
        np.array([sample.ts_ms for sample in samples], dtype=np.int64),
        np.array([sample.value for sample in samples], dtype=np.float64),
    )


def series_table(
    series_max: int = 10_000,
    labels_max: int = 64,
    label_bytes_max: int = 2048,
    claims: Claims | None = None,
    forget_seconds: float = FORGET_SECONDS,
    now_seconds: Callable[[], float] = time.monotonic,
) -> SeriesTable:
    """A receiver's memory with small bounds."""
    return SeriesTable(
        default_cluster="home",
        series_max=series_max,
        limits=LabelLimits(labels_max=labels_max, label_bytes_max=label_bytes_max),
        seed=7,
        claims=claims,
        forget_seconds=forget_seconds,
        now_seconds=now_seconds,
    )


def body_limits(decoded_bytes: int = 1 << 24, samples: int = 50_000) -> BodyLimits:
    """What one body may cost."""
    return BodyLimits(decoded_bytes=decoded_bytes, samples=samples)


def file_bus(
    folder: Path,
    segment_bytes: int = 1 << 20,
    bytes_max: int = 1 << 24,
    crash_point: Callable[[str], None] = lambda _name: None,
) -> FileBus:
    """A small bus."""
    return FileBus(folder, segment_bytes=segment_bytes, bytes_max=bytes_max, crash_point=crash_point)


def read_all(bus: Bus, start: int = 0) -> Chunk:
    """Everything that a bus holds from an offset on; there must be something."""
    chunk = bus.read(start, bytes_max=1 << 30)
    assert chunk is not None
    return chunk


def intake_of(
    bus: Any,
    table: SeriesTable | None = None,
    now_seconds: Any = lambda: 0.0,
    limits: BodyLimits | None = None,
    records: RecordWriter | None = None,
) -> Intake:
    """An intake onto a bus, through a writer of its own unless given."""
    return Intake(
        RecordWriter(bus) if records is None else records,
        series_table() if table is None else table,
        turns=Turns(limits or body_limits()),
        repeats=Repeats(3600, now_seconds),
    )


def roll_up(bus: Any, warehouse: RollupTarget, chunk_bytes: int = 1 << 24) -> None:
    """Rolls up until the bus is empty."""
    rollup = EmbeddedRollup(lambda: (bus,), warehouse, chunk_bytes=chunk_bytes)
    while rollup.step() is not None:
        pass


Rows = dict[tuple[Any, ...], dict[str, Any]]


def stored_rows(
    warehouse: Warehouse, table: Table, cluster: str = "c1", levels: Sequence[int] = WINDOW_SECONDS
) -> Rows:
    """All merged rows of some levels by (level, window start, card), without columns that say nothing."""
    rows: Rows = {}
    for level in levels:
        found = warehouse.windows(table, cluster=cluster, level_seconds=level, since=LONG_AGO, until=FAR_OFF)
        for row in found.to_pylist():
            key = (row["window_seconds"], row["window_start"], row["card"])
            assert key not in rows
            kept = {name: value for name, value in row.items() if name.split("_")[-1] in _SUFFIXES and value}
            rows[key] = {
                name: dict(value) if name.endswith("_histogram") else value for name, value in kept.items()
            } | {"samples": row["samples"]}
    return rows


_SUFFIXES = {"count", "sum", "max", "histogram"}


def expected_rows(samples: Iterable[Sample], table: Table, levels: Sequence[int] = WINDOW_SECONDS) -> Rows:
    """What `stored_rows` must give, from a dictionary of distinct samples; the largest of equal places counts."""
    distinct: dict[tuple[int, Measure, int], float] = {}
    for sample in samples:
        if sample.of_card != (table is CARD_USAGE) or math.isnan(sample.value):
            continue
        place = (sample.pod, sample.measure, sample.ts_ms)
        distinct[place] = max(sample.value, distinct.get(place, -math.inf))
    rows: Rows = {}
    counted = set()
    for (pod, measure, ts_ms), value in distinct.items():
        column = COLUMN[measure]
        stored = math.floor(value * column.scale)
        for level in levels:
            key = (level, (ts_ms - 1) // (level * 1000) * level * 1000, f"GPU-{pod}")
            row = rows.setdefault(key, {"samples": 0})
            if (key, ts_ms) not in counted:
                counted.add((key, ts_ms))
                row["samples"] += 1
            name = measure.value
            _add(row, f"{name}_count", 1)
            _add(row, f"{name}_sum", stored)
            row[f"{name}_max"] = max(row.get(f"{name}_max", stored), stored)
            if column.has_histogram:
                bins = row.setdefault(f"{name}_histogram", {})
                place_in_bins = min(100, math.floor(100 * value))
                bins[place_in_bins] = bins.get(place_in_bins, 0) + 1
    return {
        key: {name: value for name, value in row.items() if value or name == "samples"} for key, row in rows.items()
    }


def _add(row: dict[str, Any], name: str, value: int) -> None:
    row[name] = row.get(name, 0) + value


def small_fleet(pods: int = 3, hours: int = 30, seed: int = 1) -> list[Sample]:
    """Samples of a few slices and their cards over more than a day, every ten minutes, some measures missing."""
    random = np.random.default_rng(seed)
    samples = []
    for step in range(hours * 6):
        ts_ms = START_MS + (step + 1) * 600_000
        for pod in range(pods):
            for measure in (Measure.DUTY_CYCLE, Measure.SM_ACTIVE, Measure.FRAMEBUFFER_USED):
                if random.random() < 0.1:
                    continue
                value = float(random.random())
                value = float(random.integers(0, 1 << 34)) if measure is Measure.FRAMEBUFFER_USED else value
                samples.append(Sample(pod, measure, ts_ms, value))
                samples.append(Sample(pod, measure, ts_ms, value, of_card=True))
    return samples


USAGE_TABLES = (POD_USAGE, CARD_USAGE)
