"""The tide: replicas that some hours of the day do not need are scaled in, and whole machines are freed for others.

For every service whose replicas hold whole cards, the demand that all replicas together may show at an hour of the day
is predicted from the same hour of all days seen, with a margin that shrinks with their number, and is at least what the
coming day asks for after how the last one went (`analyzer.reservation`); from that, how many replicas carry it. One
window of the day is then chosen for the whole cluster, for what is freed is used together: that in which the most card
hours are freed. Replicas leave the cards of machines that are freed whole, as far as they can. How often a window would
have been too tight is found by predicting every day seen from the others; for nights unlike any seen, by the rule of
succession, what a service lacks until it is home again (`enforcer.tide.early_home`). The days seen bind each service,
both together all services. Called by `planner`; pure.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import numba
import numpy as np
from numpy.typing import NDArray

from analyzer.reservation import OUTLOOK, reservation
from fleet.autoscaling import Autoscaler
from fleet.decisions import ScheduledReplicas
from fleet.errors import Misconfigured
from fleet.inventory import CardId, WorkloadId
from fleet.sharing import ACTIVE_RATIO_MIN, CONTENTION_RATIO_MAX
from recommender.demand import Demand

Float64 = NDArray[np.float64]

HOURS_PER_DAY = 24
DAYS_MIN = 3
"""Days that an hour must have been seen on before anything is predicted of it."""
WINDOW_HOURS_MIN = 4
"""A shorter window is spent on stepping back and coming up again."""
WINDOW_HOURS_MAX = 16
STAYING_RATIO = 0.25
"""Of the most that a service ever showed, what those that stay carry where no autoscaler makes more: it may come back
within minutes, at any hour, and what they can't carry waits until the others are home."""
LOAD_MAX = 0.7
"""Load that the replicas that stay are planned for, share of a card each: above it requests begin to queue."""

TOMORROW = replace(OUTLOOK, habit_reach_seconds=0, rise_reach_seconds=0)
"""Nothing is pooled across the borders of hours: windows begin and end there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A service that may scale in.

    Attributes:
        rows: rows of the demand of its replicas, one card each.
        free_rows: those of them that sit alone on their card, and so free it by leaving.
        replicas_min: replicas that must stay, at least 1.
        autoscaler: who scales it already: then its lower bound is lowered, and what it makes beyond that is its own
            business; None where nobody does.
        absences: since when and until when replicas were away by our own doing, and how many stayed.
        home_seconds: from when the replicas that stay are too few until the others serve.
    """

    workload: WorkloadId
    rows: tuple[int, ...]
    free_rows: tuple[int, ...]
    replicas_min: int
    autoscaler: Autoscaler | None = None
    absences: tuple[tuple[datetime, datetime, int], ...] = ()
    home_seconds: float = 0.0

    @property
    def replicas_kept(self) -> int:
        """Replicas that stand outside the window whatever is asked for: all, or those that its autoscaler keeps."""
        return len(self.rows) if self.autoscaler is None else min(len(self.rows), self.autoscaler.replicas_min)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ebb:
    """One service that scales in during the window.

    Attributes:
        replicas: replicas that stay.
        replicas_all: replicas outside the window, or as many as its autoscaler keeps then.
        rows: rows of the demand of those that leave.
        frees: cards that are freed in the window.
        load_max: largest demand predicted in the window, cards.
        violation_ratio: share of the active hours of all days seen in which the replicas that stay would have been
            too few, each day predicted from the others, and of a night unlike those seen until it is home, 0-1.
        autoscaler: whose lower bound is lowered; None where the replicas themselves are counted down.
    """

    workload: WorkloadId
    replicas: int
    replicas_all: int
    rows: tuple[int, ...]
    frees: tuple[CardId, ...]
    load_max: float
    violation_ratio: float
    autoscaler: Autoscaler | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tide:
    """The window of a cluster and the services that scale in during it.

    Attributes:
        start_hour: local hour at which it begins, 0-23.
        hours: its length.
        ebbs: the services that scale in, by workload.
        nodes_freed: machines without any pod in the window.
    """

    start_hour: int
    hours: int
    time_zone: str
    ebbs: tuple[Ebb, ...]
    nodes_freed: tuple[str, ...]

    @property
    def cards_freed(self) -> int:
        """Cards that are freed in the window."""
        return sum(len(ebb.frees) for ebb in self.ebbs)

    @property
    def schedule(self) -> tuple[ScheduledReplicas, ...]:
        """The replicas of each workload in the window, as a plan carries them."""
        end = (self.start_hour + self.hours) % HOURS_PER_DAY
        return tuple(
            ScheduledReplicas(
                workload=ebb.workload,
                replicas=ebb.replicas,
                start=f"{self.start_hour:02d}:00",
                end=f"{end:02d}:00",
                time_zone=self.time_zone,
                frees=ebb.frees,
            )
            for ebb in self.ebbs
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Forecast:
    """A candidate hour by hour and window by window; windows are (lengths, 24): hours more than the least, start hour.

    Attributes:
        peaks: the most that all its replicas showed by day and hour, cards, (days, 24), NaN where not collected.
        spare: replicas that each window does not need.
        active_hours: hours seen in which it worked, 1 at least.
        violation: share of them that pass what stays in each window.
        unlike: share of them that nights unlike any seen would take until the service is home; for a service that
            seldom works that is much, so it counts for all services together.
    """

    candidate: Candidate
    peaks: Float64
    spare: NDArray[np.int64]
    active_hours: int
    violation: Float64
    unlike: float

    def leaving(self, violation_ratio_max: float) -> NDArray[np.int64]:
        """Replicas that may leave in each window; 0 where the days seen say that it would be too tight."""
        able = np.minimum(self.spare, len(self.candidate.free_rows))
        return np.where(self.violation <= violation_ratio_max, np.maximum(able, 0), 0)

    def harm(self, length: int, start: int) -> float:
        """Share of its active hours that a window, by its place in the arrays, would take."""
        return float(self.violation[length, start]) + self.unlike


def tide_of(
    demand: Demand,
    candidates: Sequence[Candidate],
    *,
    since: datetime,
    time_zone: str,
    violation_ratio_max: float,
    node_of: Mapping[CardId, str],
    window: str | None = None,
) -> Tide | None:
    """The best window, and the services that scale in during it.

    Args:
        demand: live slices and their series.
        candidates: services that may scale in.
        since: start of the series, UTC.
        time_zone: IANA zone in which the window repeats.
        violation_ratio_max: harm that the days seen may predict for a service by scaling in, and that they and nights
            unlike them may for all services together, share of the active hours of all, 0-1.
        node_of: node of each card that carries a pod.
        window: first hour and the hour after the last, such as `23-08`; None for the best one.

    Returns:
        None where no window frees a card.

    Raises:
        Misconfigured: the window is shorter than `WINDOW_HOURS_MIN` or longer than `WINDOW_HOURS_MAX`.
    """
    allowed = _allowed(window)
    days = _local_days(since, demand.step_seconds, demand.steps, time_zone)
    forecasts = [
        forecast
        for candidate in sorted(candidates, key=lambda item: item.workload)
        if (forecast := _forecast(demand, candidate, days, since)) is not None
    ]
    if not forecasts:
        return None
    lengths = np.arange(WINDOW_HOURS_MIN, WINDOW_HOURS_MAX + 1)
    leaving_in = [item.leaving(violation_ratio_max) for item in forecasts]
    freed = np.sum(leaving_in, axis=0) * lengths[:, None] * allowed
    if freed.max() <= 0:
        return None
    # Of equal windows the earliest and shortest holds.
    length, start = (int(place) for place in np.unravel_index(int(freed.argmax()), freed.shape))
    hours = int(lengths[length])
    leaving = {
        item.candidate.workload: int(able[length, start]) for item, able in zip(forecasts, leaving_in, strict=True)
    }
    _keep_within(violation_ratio_max, forecasts, leaving, length, start)
    chosen = _choose_cards(demand, [item.candidate for item in forecasts], leaving, node_of)
    ebbs = tuple(_ebb(demand, item, chosen[item.candidate.workload], start, hours) for item in forecasts)
    ebbs = tuple(ebb for ebb in ebbs if ebb.frees)
    if not ebbs:
        return None
    return Tide(
        start_hour=start,
        hours=hours,
        time_zone=time_zone,
        ebbs=ebbs,
        nodes_freed=_freed_nodes({card for ebb in ebbs for card in ebb.frees}, node_of),
    )


def _keep_within(
    limit: float, forecasts: Sequence[_Forecast], leaving: dict[WorkloadId, int], length: int, start: int
) -> None:
    """Keep at home who harms most for each card that it frees, until the harm of all together is within the limit."""
    hours = {item.candidate.workload: item.harm(length, start) * item.active_hours for item in forecasts}
    over = sum(hours[name] for name, count in leaving.items() if count) - limit * sum(
        item.active_hours for item in forecasts
    )
    for name in sorted(leaving, key=lambda name: (-hours[name] / max(1, leaving[name]), name)):
        if over > 0 and leaving[name]:
            leaving[name] = 0
            over -= hours[name]


def _allowed(window: str | None) -> NDArray[np.bool_]:
    """The windows that may be chosen, (lengths, 24)."""
    allowed = np.ones((WINDOW_HOURS_MAX - WINDOW_HOURS_MIN + 1, HOURS_PER_DAY), bool)
    if window is None:
        return allowed
    start, end = map(int, window.split("-"))
    hours = (end - start) % HOURS_PER_DAY
    if not WINDOW_HOURS_MIN <= hours <= WINDOW_HOURS_MAX:
        raise Misconfigured(
            f"cannot plan a tide of {hours} h: recommender.tide_window={window}; {WINDOW_HOURS_MIN} to "
            f"{WINDOW_HOURS_MAX} h are possible"
        )
    allowed[:] = False
    allowed[hours - WINDOW_HOURS_MIN, start] = True
    return allowed


def _local_days(since: datetime, step_seconds: int, steps: int, time_zone: str) -> NDArray[np.int64]:
    """Local hour since some midnight that each step's end falls in, (steps,); day = value // 24."""
    zone = ZoneInfo(time_zone)
    ends = np.arange(1, steps + 1, dtype=np.int64) * step_seconds * 1000 - 1
    quarters = ends // 900_000
    known, place = np.unique(quarters, return_inverse=True)
    first = since.astimezone(UTC)
    hours = np.empty(len(known), np.int64)
    for number, quarter in enumerate(known.tolist()):
        local = (first + timedelta(seconds=900 * quarter)).astimezone(zone)
        hours[number] = local.toordinal() * HOURS_PER_DAY + local.hour
    return hours[place] if steps else np.zeros(0, np.int64)


def _forecast(demand: Demand, candidate: Candidate, hour_of: NDArray[np.int64], since: datetime) -> _Forecast | None:
    """Replicas needed by hour of the day; None where too few days were seen."""
    if not len(hour_of):
        return None
    compute = demand.compute[list(candidate.rows)].astype(np.float64)
    seen = np.isfinite(compute).sum(axis=0)
    # A replica that was not collected counts as the mean of those that were; one that we had scaled in has no load.
    total = np.nansum(compute, axis=0) / np.maximum(1, seen) * np.maximum(seen, _running(demand, candidate, since))
    first_day = int(hour_of[0]) // HOURS_PER_DAY
    peaks = np.full((int(hour_of[-1]) // HOURS_PER_DAY - first_day + 1, HOURS_PER_DAY), -1.0)
    known = seen > 0
    np.maximum.at(peaks, (hour_of[known] // HOURS_PER_DAY - first_day, hour_of[known] % HOURS_PER_DAY), total[known])
    peaks[peaks < 0.0] = np.nan
    if np.isfinite(peaks).sum(axis=0).min() < DAYS_MIN:
        return None
    days = np.isfinite(peaks).sum(axis=0)
    tomorrow = _foretold_tomorrow(np.where(known, total, np.nan), hour_of, demand.step_seconds)
    least = tomorrow if candidate.autoscaler else np.maximum(tomorrow, STAYING_RATIO * np.nanmax(peaks))
    needed = np.maximum(_needed(np.nanmax(peaks, axis=0), days, candidate), _carrying(least, candidate))
    spare = np.maximum(0, candidate.replicas_kept - _highest_by_window(needed))
    violation, unlike = np.zeros(spare.shape), 0.0
    active_hours = max(1, int((peaks > ACTIVE_RATIO_MIN * len(candidate.rows)).sum()))
    if spare.max() > 0:
        _count_violated(peaks, *_foretold_from_others(peaks, candidate), violation)
        violation /= active_hours
        # Of n nights, each unlike all others once in n + 2 (Laplace's rule of succession).
        unlike = len(peaks) / (len(peaks) + 2) * candidate.home_seconds / 3600.0 / active_hours
    return _Forecast(
        candidate=candidate, peaks=peaks, spare=spare, active_hours=active_hours, violation=violation, unlike=unlike
    )  # fmt: skip


def _running(demand: Demand, candidate: Candidate, since: datetime) -> NDArray[np.int64]:
    """Replicas that ran in each step as far as our own doing goes, (steps,)."""
    running = np.full(demand.steps, len(candidate.rows), np.int64)
    for begin, end, stayed in candidate.absences:
        # Replicas leave and return within a step, and its mean is that of those that stay.
        first, last = ((moment - since).total_seconds() / demand.step_seconds for moment in (begin, end))
        part = slice(max(0, math.floor(first)), max(0, math.ceil(last)))
        running[part] = np.minimum(running[part], max(1, stayed))
    return running


def _needed(most: Float64, days: NDArray[np.int64], candidate: Candidate) -> NDArray[np.int64]:
    """Replicas that carry the most seen on some days, with a margin of one over their number; arrays of one shape."""
    return _carrying(most * (1.0 + 1.0 / np.maximum(1, days)), candidate)


def _carrying(load: Float64, candidate: Candidate) -> NDArray[np.int64]:
    """Replicas that carry a load in cards, array of the same shape."""
    needed = np.ceil(load / LOAD_MAX - 1e-9).astype(np.int64)
    return np.asarray(np.clip(needed, candidate.replicas_min, len(candidate.rows)), np.int64)


def _foretold_tomorrow(total: Float64, hour_of: NDArray[np.int64], step_seconds: int) -> Float64:
    """What all replicas together pass one time in twenty in each local hour of the coming day, cards, (24,).

    Nothing is predicted, 0 everywhere, where steps are longer than an hour or don't divide it.
    """
    if 3600 % step_seconds:
        return np.zeros(HOURS_PER_DAY)
    others = np.flatnonzero(hour_of != hour_of[-1])
    begun = int(others[-1]) + 1 if len(others) else 0
    is_whole = len(hour_of) - begun >= 3600 // step_seconds
    seen = total if is_whole else total[:begun]
    first = int(hour_of[-1]) + (1 if is_whole else 0)
    levels = reservation(seen[None].astype(np.float32), step_seconds, outlook=TOMORROW)[0]
    return np.roll(np.nan_to_num(levels.astype(np.float64)), first % HOURS_PER_DAY)


def _foretold_from_others(peaks: Float64, candidate: Candidate) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Replicas that each hour of each day would have been given by the other days, and where those are enough days.

    Returns:
        Two arrays (days, 24).
    """
    rising = np.sort(np.where(np.isfinite(peaks), peaks, -np.inf), axis=0)
    top, second = rising[-1], rising[-2]
    days = np.isfinite(peaks).sum(axis=0) - np.isfinite(peaks)
    # Without the day that showed the most, the next highest stands.
    most = np.where(peaks == top, second, top)
    given = _needed(most, days, candidate)
    if not candidate.autoscaler:
        of_day = np.nanmax(np.where(np.isfinite(peaks), peaks, -np.inf), axis=1)
        highest, next_highest = np.sort(of_day)[::-1][:2]
        of_others = np.where(of_day == highest, next_highest, highest)
        given = np.maximum(given, _carrying(STAYING_RATIO * of_others, candidate)[:, None])
    return given, days >= DAYS_MIN - 1


def _highest_by_window(needed: NDArray[np.int64]) -> NDArray[np.int64]:
    """The highest of each window, (lengths, 24)."""
    return np.stack(
        [
            needed[(np.arange(HOURS_PER_DAY)[:, None] + np.arange(hours)) % HOURS_PER_DAY].max(axis=1)
            for hours in range(WINDOW_HOURS_MIN, WINDOW_HOURS_MAX + 1)
        ]
    )


@numba.njit(cache=True, nogil=True)
def _count_violated(peaks: Any, needed: Any, is_known: Any, violated: Any) -> None:
    """Hours seen that pass what would have stayed in each window, each day predicted from the others.

    A day counts in the windows of which the other days tell every hour.
    """
    for length in range(violated.shape[0]):
        for start in range(HOURS_PER_DAY):
            for day in range(peaks.shape[0]):
                stay, known = 0, True
                for hour in range(start, start + WINDOW_HOURS_MIN + length):
                    stay = max(stay, needed[day, hour % HOURS_PER_DAY])
                    known = known and is_known[day, hour % HOURS_PER_DAY]
                if not known:
                    continue
                for hour in range(start, start + WINDOW_HOURS_MIN + length):
                    # Hours that were not collected pass nothing: a comparison with NaN is False.
                    violated[length, start] += peaks[day, hour % HOURS_PER_DAY] > stay * CONTENTION_RATIO_MAX


def _window(start: int, hours: int) -> NDArray[np.int64]:
    return (start + np.arange(hours)) % HOURS_PER_DAY


def _choose_cards(
    demand: Demand,
    candidates: Sequence[Candidate],
    leaving: Mapping[WorkloadId, int],
    node_of: Mapping[CardId, str],
) -> dict[WorkloadId, list[int]]:
    """Rows that leave: those of whole machines first, the machines with the fewest cards in use before all others."""
    left = Counter(leaving)
    chosen: dict[WorkloadId, list[int]] = defaultdict(list)
    row_of = {demand.grants[row].card: (item.workload, row) for item in candidates for row in item.free_rows}
    cards_of: dict[str, list[CardId]] = defaultdict(list)
    for card in sorted(node_of):
        cards_of[node_of[card]].append(card)
    for node in sorted(cards_of, key=lambda name: (len(cards_of[name]), name)):
        cards = cards_of[node]
        wanted = Counter(row_of[card][0] for card in cards if card in row_of)
        if wanted.total() < len(cards) or any(left[name] < count for name, count in wanted.items()):
            continue
        for card in cards:
            name, row = row_of[card]
            chosen[name].append(row)
            left[name] -= 1
    for item in candidates:
        taken = set(chosen[item.workload])
        rest = [row for row in item.free_rows if row not in taken]
        # Those that leave besides come from as few machines as possible, so that these are easier to free next time.
        crowd = Counter(node_of[demand.grants[row].card] for row in rest)
        rest.sort(key=lambda row: (-crowd[node_of[demand.grants[row].card]], node_of[demand.grants[row].card], row))
        chosen[item.workload] += rest[: left[item.workload]]
    return chosen


def _ebb(demand: Demand, forecast: _Forecast, rows: Sequence[int], start: int, hours: int) -> Ebb:
    candidate = forecast.candidate
    window = _window(start, hours)
    return Ebb(
        workload=candidate.workload,
        replicas=candidate.replicas_kept - len(rows),
        replicas_all=candidate.replicas_kept,
        rows=tuple(sorted(rows)),
        frees=tuple(sorted(demand.grants[row].card for row in rows)),
        load_max=float(np.nanmax(forecast.peaks[:, window])),
        violation_ratio=forecast.harm(hours - WINDOW_HOURS_MIN, start),
        autoscaler=candidate.autoscaler,
    )


def _freed_nodes(freed: set[CardId], node_of: Mapping[CardId, str]) -> tuple[str, ...]:
    busy = {node_of[card] for card in node_of if card not in freed}
    return tuple(sorted({node_of[card] for card in freed} - busy))
