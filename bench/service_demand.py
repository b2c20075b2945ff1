"""Demand of the inference services of a fleet in the neutral trace format, as arrays: shared by the quality bars."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from analyzer.profile import profile_fleet
from fleet.profiles import Profiles
from fleet.settings.settings import AnalyzerSettings
from tests.analyzer.recorded import recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Services of one fleet; series are (services, steps), NaN where no replica was collected.

    Attributes:
        names: workloads, sorted.
        replicas: replicas of each.
        step_seconds: length of a step.
        mean: SM active, mean over replicas.
        top: SM active of the busiest replica.
        duty: duty cycle of the busiest replica.
        since: start of the first step, UTC.
    """

    names: tuple[str, ...]
    replicas: NDArray[np.int64]
    step_seconds: int
    mean: NDArray[np.float32]
    top: NDArray[np.float32]
    duty: NDArray[np.float32]
    since: datetime

    @property
    def steps_per_day(self) -> int:
        """Steps of a day."""
        return 86400 // self.step_seconds


def servegen_services(folder: Path) -> Services:
    """The 205 services of `fleet-servegen`, ten days at ten minutes."""
    fleet = folder / "fleet-servegen"
    pods = pq.read_table(fleet / "pods.parquet", columns=["pod", "workload", "workload_kind"]).to_pandas()
    pods = pods[pods.workload_kind == "Deployment"]
    columns = ["ts", "pod", "sm_active_ratio", "duty_cycle_ratio"]
    usage = pq.read_table(fleet / "usage.parquet", columns=columns).to_pandas()
    usage = usage.merge(pods[["pod", "workload"]], on="pod")
    grouped = usage.groupby(["workload", "ts"]).agg(
        mean=("sm_active_ratio", "mean"), top=("sm_active_ratio", "max"), duty=("duty_cycle_ratio", "max")
    )
    wide = grouped.unstack("ts")
    times = wide["mean"].columns
    step_seconds = int((times[1:] - times[:-1]).min().total_seconds())
    return Services(
        names=tuple(wide.index),
        replicas=pods.groupby("workload").pod.nunique().reindex(wide.index).to_numpy(np.int64),
        step_seconds=step_seconds,
        mean=_from_midnight(wide["mean"].to_numpy(np.float32)),
        top=_from_midnight(wide["top"].to_numpy(np.float32)),
        duty=_from_midnight(wide["duty"].to_numpy(np.float32)),
        since=times[0].to_pydatetime(),
    )


def _from_midnight(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """The same less its first sample, which ends the day before; the last step of the last day was not collected."""
    return np.pad(values[:, 1:], ((0, 0), (0, 1)), constant_values=np.nan)


def profiles_at(fleet: Path, now: datetime) -> Profiles:
    """What the analyzer says at a moment, from what was known by then."""
    history = recorded(fleet, now)
    return profile_fleet(history, settings=AnalyzerSettings(), now=history.inventory.as_of)
