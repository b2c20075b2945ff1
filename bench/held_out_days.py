"""Days held out of two fleets and what levels foretold for them lose: shared by the reservation bar and its study."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from bench.crane_prediction import period_hours, predict
from bench.service_demand import servegen_services

Float32 = NDArray[np.float32]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

STEP_SECONDS = 600
STEPS_PER_DAY = 86400 // STEP_SECONDS
HISTORY_DAYS = 7
SHARE = 0.95
PERCENT = 100.0
"""Crane's floors and thresholds are meant for numbers of the size of a percentage of a card."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Series of one fleet.

    Attributes:
        name: what it is called in a bar's name, empty for the first.
        demand: cards, (series, steps), NaN where not collected.
        cuts: days after which the next one is foretold.
    """

    name: str
    demand: Float32
    cuts: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """One day that is foretold, and up to seven days before it.

    Attributes:
        past: (series, steps).
        coming: (series, steps of a day).
    """

    past: Float32
    coming: Float32


def fleets(folder: Path) -> tuple[Fleet, Fleet]:
    """The services of fleet-servegen, and the virtual clusters of helios-earth-2020."""
    services = servegen_services(folder)
    in_cards = (services.mean * services.replicas[:, None]).astype(np.float32)
    return (
        Fleet(name="", demand=in_cards, cuts=(5, 6, 7, 8, 9)),
        Fleet(name="-helios", demand=_helios_cards(folder), cuts=(7, 9, 11, 13, 15, 17, 19)),
    )


def held_out(fleet: Fleet) -> Iterator[HeldOut]:
    """Its days in order."""
    for cut in fleet.cuts:
        now = cut * STEPS_PER_DAY
        yield HeldOut(
            past=np.ascontiguousarray(fleet.demand[:, max(0, now - HISTORY_DAYS * STEPS_PER_DAY) : now]),
            coming=fleet.demand[:, now : now + STEPS_PER_DAY],
        )


def crane_levels(past: Float32) -> Floats:
    """What Crane's method foretells for a daily cycle, found or not, (series, steps of a day)."""
    foretold = [predict(PERCENT * row.astype(float), STEP_SECONDS, 24) for row in past]
    return np.array([np.full(STEPS_PER_DAY, np.nan) if one is None else one / PERCENT for one in foretold])


def has_crane_day(past: Float32, random: np.random.Generator) -> Bools:
    """Series in which Crane's method finds a day; only for these, or for a week, it foretells anything of itself."""
    return np.array([period_hours(PERCENT * row.astype(float), STEP_SECONDS, random) == 24 for row in past])


def flat_levels(values: Float32) -> Float32:
    """The 0.95 quantile of each series all day long, (series, steps of a day)."""
    levels: Float32 = np.repeat(np.nanquantile(values, SHARE, axis=1)[:, None], STEPS_PER_DAY, axis=1)
    return levels


def losses(coming: Float32, levels: NDArray[np.floating], judged: Bools) -> Floats:
    """Pinball loss of levels that are to suffice `SHARE` of the time by series, steps not judged left out."""
    short = coming - levels
    lost: Floats = np.where(judged, np.where(short > 0, SHARE * short, (SHARE - 1.0) * short), 0.0).sum(axis=1)
    return lost


def _helios_cards(folder: Path) -> Float32:
    """Cards in use by virtual cluster, ten-minute means of three weeks, (clusters, steps)."""
    table = pq.read_table(
        folder / "helios-earth-2020" / "vc_sequence_2020-05-01_21.parquet", columns=["vc", "time", "running_gpu_num"]
    ).to_pandas()
    minutes = table.pivot_table(index="vc", columns="time", values="running_gpu_num").to_numpy(np.float32)
    means: Float32 = minutes.reshape(len(minutes), -1, STEP_SECONDS // 60).mean(axis=2)
    return means
