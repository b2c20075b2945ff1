"""Card usage of four weeks in Parquet, and the time its hour-of-week figures take: the load of `quality-speed-profile`.

One file holds a thousand cards, one row group twenty-five of them by card and minute, with 1 % of the rows missing:
duty cycle in whole points as DCGM reports it, SM active with four digits. A fleet is that file under several names.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numba import njit
from numpy.typing import NDArray

from analyzer.rhythm import WeekSummary, week_summary

DAYS = 28
STEPS = DAYS * 1440
CARDS_PER_GROUP = 25
CARDS_PER_FILE = 1000
MEASURES = ("duty_cycle_ratio", "sm_active_ratio")
SINCE_MS = 1_767_571_200_000
"""2026-01-05 00:00 UTC, a Monday."""
HOUR_OF_STEP = np.arange(STEPS) // 60 % 168
"""Hour of the week of every step, UTC."""
MISSING = 0.01
STEP_MS = 60_000


def write_fleet(folder: Path, cards: int, seed: int) -> list[Path]:
    """Write a fleet, at most `CARDS_PER_FILE` cards per file; files after the first are copies of it."""
    per_file = min(cards, CARDS_PER_FILE)
    first = folder / "cards-00.parquet"
    random = np.random.default_rng(seed)
    schema = pa.schema(
        [
            pa.field("card", pa.dictionary(pa.int32(), pa.string()), nullable=False),
            pa.field("ts", pa.timestamp("ms", tz="UTC"), nullable=False),
            *((name, pa.float32()) for name in MEASURES),
        ]
    )
    with pq.ParquetWriter(
        first,
        schema,
        compression="lz4",
        use_dictionary=["card", *MEASURES],
        column_encoding={"ts": "DELTA_BINARY_PACKED"},
    ) as writer:
        for start in range(0, per_file, CARDS_PER_GROUP):
            writer.write_table(_group(start, min(CARDS_PER_GROUP, per_file - start), random, schema))
    files = [first]
    for number in range(1, -(-cards // per_file)):
        files.append(folder / f"cards-{number:02}.parquet")
        shutil.copyfile(first, files[-1])
    return files


def _group(start: int, cards: int, random: np.random.Generator, schema: pa.Schema) -> pa.Table:
    minute = np.arange(STEPS)
    hour = minute // 60 % 24
    level = random.uniform(0.05, 0.6, (cards, 1)) * np.where((hour >= 8) & (hour < 20), 1.0, 0.2)
    sm = np.clip(level * random.lognormal(0, 0.3, (cards, STEPS)), 0, 1).round(4).astype(np.float32)
    duty = np.round(1.0 - (1.0 - sm) ** 3, 2).astype(np.float32)
    kept = (random.random((cards, STEPS)) >= MISSING).ravel()
    names = pa.array([f"GPU-{start + number:08}" for number in range(cards)])
    codes = np.repeat(np.arange(cards, dtype=np.int32), STEPS)[kept]
    ends = SINCE_MS + (np.tile(minute, cards)[kept] + 1) * 60_000
    return pa.table(
        [
            pa.DictionaryArray.from_arrays(pa.array(codes), names),
            pa.array(ends, pa.timestamp("ms", tz="UTC")),
            pa.array(duty.ravel()[kept]),
            pa.array(sm.ravel()[kept]),
        ],
        schema=schema,
    )


def profile_files(files: Sequence[Path]) -> Iterator[tuple[list[str], tuple[WeekSummary, ...]]]:
    """Hour-of-week figures of every card of some files, row group by row group, one summary per measure."""
    # One grid serves all row groups: fresh memory costs more than what is written into it.
    grids = np.empty((len(MEASURES), CARDS_PER_GROUP, STEPS), np.float32)
    for path in files:
        with pq.ParquetFile(path, read_dictionary=["card"], memory_map=True, pre_buffer=False) as file:
            for group in range(file.num_row_groups):
                yield _profile_group(file.read_row_group(group, use_threads=False), grids)


def _profile_group(table: pa.Table, grids: NDArray[np.float32]) -> tuple[list[str], tuple[WeekSummary, ...]]:
    """Lays one row group out by card and step, and sums up."""
    cards, ends, duty, sm = (column.chunk(0) for column in table.columns)
    names = cards.dictionary.to_pylist()
    grids[:] = np.nan
    _place(
        cards.indices.to_numpy(),
        ends.view(pa.int64()).to_numpy(),
        duty.to_numpy(),
        sm.to_numpy(),
        grids[0],
        grids[1],
    )
    borders = np.arange(len(names) + 1)
    return names, tuple(week_summary(grid[: len(names)], borders, HOUR_OF_STEP, 168) for grid in grids)


@njit(cache=True, nogil=True)
def _place(rows: Any, ends_ms: Any, first: Any, second: Any, of_first: Any, of_second: Any) -> None:
    """Writes samples of two measures to their card and step; a card's samples come in order of time."""
    step, end = 0, SINCE_MS
    for sample in range(len(rows)):
        # Most samples follow the one before by a step, which saves the division.
        following = ends_ms[sample] - end == STEP_MS
        end = ends_ms[sample]
        step = step + 1 if following else (end - SINCE_MS) // STEP_MS
        of_first[rows[sample], step - 1] = first[sample]
        of_second[rows[sample], step - 1] = second[sample]


def exact_query(files: Sequence[Path]) -> str:
    """The same figures with exact quantiles, as SQL for DuckDB."""
    figures = ", ".join(
        f"avg({name}), quantile_disc({name}, [0.5, 0.95, 0.99]) AS {name}_q, max({name})" for name in MEASURES
    )
    listed = ", ".join(f"'{path}'" for path in files)
    # A sample's ts ends its step, so it belongs to the hour that holds the moment before.
    hour = f"CAST(floor((epoch_ms(ts) - {SINCE_MS} - 1) / 3600000) AS BIGINT) % 168"
    return f"SELECT card, {hour} AS hour, {figures} FROM read_parquet([{listed}]) GROUP BY card, hour"
