"""Packing problems for benchmarks: windows of a real fleet over the hours of a week, and generated fleets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fleet.units import GIB
from recommender.packing.packer import PackingProblem

SLOTS = 168
"""Hours of a week."""
SLICES_MAX = 10
GRANT_RATIO = 1.1
"""A window's pods are granted this much more framebuffer than they ever used."""
_HOUR_SECONDS = 3600


def generated_problem(pods: int, kinds: int, seed: int, *, capacity_gib: float = 24.0) -> PackingProblem:
    """A fleet of services with a daily rhythm: log-normal peaks and framebuffer, any hour of the day as the busiest.

    Args:
        pods: pods in all.
        kinds: services that they belong to, at most `pods`; replicas of one are alike.
        seed: seed of everything.
        capacity_gib: framebuffer of a card.
    """
    random = np.random.default_rng(seed)
    replicas = 1 + random.multinomial(pods - kinds, random.dirichlet(np.full(kinds, 0.3)))
    hours = np.arange(SLOTS)
    busiest, width = random.integers(0, 24, (kinds, 1)), random.uniform(3, 12, (kinds, 1))
    distance = (hours - busiest + 12) % 24 - 12
    day = np.exp(-2 * (distance / width) ** 2)
    peak = np.clip(random.lognormal(-1.6, 0.8, (kinds, 1)), 0.01, 1.0)
    load = peak * (0.1 + 0.9 * day) * random.uniform(0.8, 1.0, (kinds, SLOTS))
    size = np.clip(random.lognormal(1.4, 0.6, kinds), 1.0, capacity_gib) * GIB
    return _problem(np.repeat(np.arange(kinds), replicas), load, size, capacity_gib * GIB)


def fleet_windows(fleet: Path, card_model: str, *, services: int, windows: int) -> list[PackingProblem]:
    """Random sets of services of one card model, as they were in the last whole week of a recorded fleet.

    A pod's demand in an hour is the largest SM active of its steps; its size is what it used at most, with a little
    more; two pods are never alike, because they are measured one by one.
    """
    pods = pq.read_table(fleet / "pods.parquet", columns=["pod", "workload", "card_model", "framebuffer_bytes"])
    pods = pods.filter(pc.equal(pods["card_model"], card_model))
    names = pods["pod"].to_pylist()
    workload = np.unique(pods["workload"].to_pylist(), return_inverse=True)[1]
    capacity = float(pods["framebuffer_bytes"][0].as_py())
    load, used = _hourly(fleet, names)
    seen = ~np.isnan(load).any(axis=1)
    problems = []
    for number in range(windows):
        random = np.random.default_rng(number)
        chosen = random.permutation(np.unique(workload[seen]))[:services]
        rows = np.flatnonzero(seen & np.isin(workload, chosen))
        size = np.minimum(used[rows] * GRANT_RATIO, capacity)
        problems.append(_problem(np.arange(len(rows)), load[rows], size, capacity, workload[rows]))
    return problems


def _hourly(fleet: Path, names: list[str]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Largest SM active of each pod in each of the last 168 whole hours, NaN where unseen, and framebuffer used."""
    usage = pq.read_table(fleet / "usage.parquet", columns=["ts", "pod", "sm_active_ratio", "framebuffer_used_bytes"])
    found = pc.index_in(usage["pod"], value_set=pa.array(names)).to_numpy()
    row = np.nan_to_num(found.astype(float), nan=-1).astype(np.int64)
    hour = usage["ts"].to_numpy().astype("datetime64[s]").astype(np.int64) // _HOUR_SECONDS
    slot = hour - (hour.max() - SLOTS)
    kept = (row >= 0) & (slot >= 0) & (slot < SLOTS)
    load = np.full((len(names), SLOTS), np.nan)
    np.fmax.at(load, (row[kept], slot[kept]), usage["sm_active_ratio"].to_numpy()[kept])
    used = np.zeros(len(names))
    np.maximum.at(used, row[row >= 0], usage["framebuffer_used_bytes"].to_numpy()[row >= 0])
    return load, used


def _problem(
    type_of: NDArray[np.int64],
    load: NDArray[np.float64],
    size: NDArray[np.float64],
    capacity: float,
    workload: NDArray[np.int64] | None = None,
) -> PackingProblem:
    return PackingProblem(
        item_type=type_of.astype(np.int32),
        item_workload=(type_of if workload is None else workload).astype(np.int32),
        item_group=np.full(len(type_of), -1, np.int32),
        item_bytes=size[type_of].astype(np.float64),
        load=load.astype(np.float32),
        is_low=np.zeros(len(type_of), bool),
        capacity_bytes=float(capacity),
        slices_max=SLICES_MAX,
    )
