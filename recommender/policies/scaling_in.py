"""Two rules by which others scale services in: the idle culler and the fixed tide table.

- *Idle culler* (`wseaton/gpu-pruner:gpu-pruner/src/main.rs`, `query.promql.j2`): a service is scaled to nothing when
  the largest sample of the last 30 minutes is exactly zero on every card of its owner, after 300 s of grace. The tool
  never brings a service back; here the first request does, and waits until the framebuffer is loaded.
- *Fixed tide table* (Kuaishou): 22:30-23:30 release, 23:30-07:30 training, 07:30-08:30 give back, 08:30-22:30 online.
  The times and the share of replicas that stay are written down once, for all services alike; the cards that are
  freed go to training whole.

Pure; called by `gputide plan simulate`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, time, timedelta
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from fleet.usage import Float32

WINDOW_SECONDS = 1800
GRACE_SECONDS = 300


def asleep(compute: Float32, workload_of: NDArray[np.int32], step_seconds: int) -> NDArray[np.bool_]:
    """When each pod is scaled to nothing.

    Args:
        compute: demand, share of a card, (rows, steps); NaN = not collected, which is no sign of idleness.
        workload_of: workload of each row, (rows,): all pods of an owner sleep or none does.

    Returns:
        (rows, steps). A pod that sleeps wakes in the step in which its owner is asked for work again.
    """
    wait = -(-(WINDOW_SECONDS + GRACE_SECONDS) // step_seconds)
    is_quiet = np.ones((int(workload_of.max(initial=-1)) + 1, compute.shape[1]), bool)
    np.logical_and.at(is_quiet, workload_of, compute == 0.0)
    steps = np.arange(compute.shape[1])
    last_work = np.maximum.accumulate(np.where(is_quiet, -1, steps), axis=1)
    sleeps = is_quiet & (steps - last_work > wait)
    return sleeps[workload_of]


@dataclass(frozen=True, slots=True, kw_only=True)
class TideTable:
    """One table for every night.

    Attributes:
        release_from: replicas begin to leave; each in its turn until `training_from`.
        training_from: the cards of those that left belong to training from here on.
        give_back_from: training leaves; replicas come back one after another until `online_from`.
        online_from: every replica serves.
        night_replica_ratio: share of replicas that stay, rounded up, at least one.
    """

    release_from: time = time(22, 30)
    training_from: time = time(23, 30)
    give_back_from: time = time(7, 30)
    online_from: time = time(8, 30)
    night_replica_ratio: float = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Tide:
    """What the table does to a fleet.

    Attributes:
        compute: demand after scale-in: replicas that stay carry what the others did, (rows, steps); it can pass 1.
        is_away: replicas that have left, (rows, steps).
        is_training: steps in which their cards belong to training, (steps,).
    """

    compute: Float32
    is_away: NDArray[np.bool_]
    is_training: NDArray[np.bool_]


def scaled_in(
    compute: Float32,
    workload_of: NDArray[np.int32],
    table: TideTable,
    *,
    since: datetime,
    step_seconds: int,
    time_zone: str,
) -> Tide:
    """Plays the table.

    Args:
        compute: demand of each replica, share of a card, (rows, steps).
        workload_of: workload of each row, (rows,).
        since: start of the first step, UTC.
        time_zone: zone of the table's times.
    """
    rows, steps = compute.shape
    zone = ZoneInfo(time_zone)
    minute = np.array(
        [_minute((since + timedelta(seconds=step_seconds * n)).astimezone(zone).time()) for n in range(steps)]
    )
    share_away = _share_away(minute, table)
    order = np.zeros(rows)
    stays = np.zeros(rows, bool)
    for number in range(int(workload_of.max(initial=-1)) + 1):
        members = np.flatnonzero(workload_of == number)
        kept = max(1, int(np.ceil(len(members) * table.night_replica_ratio)))
        stays[members[:kept]] = True
        leaving = members[kept:]
        order[leaving] = (np.arange(len(leaving)) + 1) / max(1, len(leaving))
    is_away = ~stays[:, None] & (order[:, None] <= share_away[None, :]) & (share_away > 0)[None, :]
    carried = np.zeros((int(workload_of.max(initial=-1)) + 1, steps))
    np.add.at(carried, workload_of, np.where(is_away, np.nan_to_num(compute), 0.0))
    here = np.zeros_like(carried)
    np.add.at(here, workload_of, ~is_away)
    share = np.divide(carried, here, out=np.zeros_like(carried), where=here > 0)
    moved = np.where(is_away, 0.0, compute + share[workload_of]).astype(np.float32)
    begin, end = _minute(table.training_from), _minute(table.give_back_from)
    return Tide(compute=moved, is_away=is_away, is_training=_between(minute, begin, end))


def _minute(moment: time) -> int:
    return moment.hour * 60 + moment.minute


def _between(minute: NDArray[np.int64], begin: int, end: int) -> NDArray[np.bool_]:
    """Minutes of the day from begin to end, over midnight where end is earlier."""
    return (minute - begin) % 1440 < (end - begin) % 1440


def _share_away(minute: NDArray[np.int64], table: TideTable) -> NDArray[np.float64]:
    """Share of the leaving replicas that have left: rising while releasing, falling while giving back."""
    release, training = _minute(table.release_from), _minute(table.training_from)
    back, online = _minute(table.give_back_from), _minute(table.online_from)
    share = np.zeros(len(minute))
    for begin, end, first, last in (
        (release, training, 0.0, 1.0),
        (training, back, 1.0, 1.0),
        (back, online, 1.0, 0.0),
    ):
        here = _between(minute, begin, end)
        passed = (minute[here] - begin) % 1440 / max(1, (end - begin) % 1440)
        share[here] = first + (last - first) * passed
    return share
