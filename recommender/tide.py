"""The tide: replicas that are not needed at some hours of the day step back, and whole machines fall free for others.

For every service whose replicas hold whole cards, the demand that all replicas together may show at an hour of the day
is foretold from the same hour of all days seen, with a margin that shrinks with their number; from that, how many
replicas carry it. One window of the day is then chosen for the whole cluster, for what is freed is used together: that
in which the most card hours fall free. Replicas leave the cards of machines that fall free whole, as far as they can.
How often a window would have been too tight is told by foretelling every day seen from the others. Called by `planner`;
pure.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
from numpy.typing import NDArray

from fleet.decisions import ScheduledReplicas
from fleet.inventory import CardId, WorkloadId
from fleet.sharing import ACTIVE_RATIO_MIN, CONTENTION_RATIO_MAX
from recommender.demand import Demand

Float64 = NDArray[np.float64]

HOURS_PER_DAY = 24
DAYS_MIN = 3
"""Days that an hour must have been seen on before anything is foretold of it."""
WINDOW_HOURS_MIN = 4
"""A shorter window is spent on stepping back and coming up again."""
WINDOW_HOURS_MAX = 16
LOAD_MAX = 0.7
"""Load that the replicas that stay are planned for, share of a card each: above it requests begin to queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A service that may step back.

    Attributes:
        workload: who.
        rows: rows of the demand of its replicas, one card each.
        free_rows: those of them that sit alone on their card, and so free it by leaving.
        replicas_min: replicas that must stay, at least 1.
    """

    workload: WorkloadId
    rows: tuple[int, ...]
    free_rows: tuple[int, ...]
    replicas_min: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ebb:
    """One service that steps back in the window.

    Attributes:
        workload: who.
        replicas: replicas that stay.
        replicas_all: replicas outside the window.
        rows: rows of the demand of those that leave.
        frees: cards that fall free in the window.
        load_max: largest demand foretold in the window, cards.
        violation_ratio: share of the active hours of all days seen in which the replicas that stay would have been
            too few, each day foretold from the others, 0-1.
    """

    workload: WorkloadId
    replicas: int
    replicas_all: int
    rows: tuple[int, ...]
    frees: tuple[CardId, ...]
    load_max: float
    violation_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tide:
    """The window of a cluster and who steps back in it.

    Attributes:
        start_hour: local hour at which it begins, 0-23.
        hours: its length.
        time_zone: IANA zone.
        ebbs: who steps back, by workload.
        nodes_freed: machines without any pod in the window.
    """

    start_hour: int
    hours: int
    time_zone: str
    ebbs: tuple[Ebb, ...]
    nodes_freed: tuple[str, ...]

    @property
    def cards_freed(self) -> int:
        """Cards that fall free in the window."""
        return sum(len(ebb.frees) for ebb in self.ebbs)

    @property
    def card_hours_per_week(self) -> float:
        """Card hours that fall free in a week."""
        return 7.0 * self.hours * self.cards_freed

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
    """A candidate hour by hour: the most it showed by day, replicas it needs, and how often they are too few."""

    candidate: Candidate
    peaks: Float64
    needed: NDArray[np.int64]


def tide_of(
    demand: Demand,
    candidates: Sequence[Candidate],
    *,
    since: datetime,
    time_zone: str,
    violation_ratio_max: float,
    held_by: Mapping[CardId, int],
    node_of: Mapping[CardId, str],
) -> Tide | None:
    """The best window, and who steps back in it.

    Args:
        demand: live slices and their series.
        candidates: services that may step back.
        since: start of the series, UTC.
        time_zone: IANA zone in which the window repeats.
        violation_ratio_max: harm that a service may be foretold by stepping back, 0-1.
        held_by: pods on each card that carries one.
        node_of: node of each such card.

    Returns:
        None where no window frees a card.
    """
    days = _local_days(since, demand.step_seconds, demand.steps, time_zone)
    forecasts = [
        forecast
        for candidate in sorted(candidates, key=lambda item: item.workload)
        if (forecast := _forecast(demand, candidate, days)) is not None
    ]
    best: tuple[float, int, int] = (0.0, 0, 0)
    for hours in range(WINDOW_HOURS_MIN, WINDOW_HOURS_MAX + 1):
        for start in range(HOURS_PER_DAY):
            freed = sum(_leaving(item, start, hours, violation_ratio_max) for item in forecasts)
            # Of equal windows the earliest and shortest holds.
            if freed * hours > best[0]:
                best = (float(freed * hours), start, hours)
    if best[0] <= 0.0:
        return None
    _, start, hours = best
    leaving = {item.candidate.workload: _leaving(item, start, hours, violation_ratio_max) for item in forecasts}
    chosen = _choose_cards(demand, [item.candidate for item in forecasts], leaving, held_by, node_of)
    ebbs = tuple(_ebb(demand, item, chosen[item.candidate.workload], start, hours) for item in forecasts)
    ebbs = tuple(ebb for ebb in ebbs if ebb.frees)
    return Tide(
        start_hour=start,
        hours=hours,
        time_zone=time_zone,
        ebbs=ebbs,
        nodes_freed=_freed_nodes({card for ebb in ebbs for card in ebb.frees}, held_by, node_of),
    )


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


def _forecast(demand: Demand, candidate: Candidate, hour_of: NDArray[np.int64]) -> _Forecast | None:
    """Replicas needed by hour of the day; None where too few days were seen."""
    if not len(hour_of):
        return None
    compute = demand.compute[list(candidate.rows)].astype(np.float64)
    seen = np.isfinite(compute).sum(axis=0)
    # A replica that was not collected counts as the mean of those that were.
    total = np.nansum(compute, axis=0) / np.maximum(1, seen) * len(candidate.rows)
    first_day = int(hour_of[0]) // HOURS_PER_DAY
    peaks = np.full((int(hour_of[-1]) // HOURS_PER_DAY - first_day + 1, HOURS_PER_DAY), -1.0)
    known = seen > 0
    np.maximum.at(peaks, (hour_of[known] // HOURS_PER_DAY - first_day, hour_of[known] % HOURS_PER_DAY), total[known])
    peaks[peaks < 0.0] = np.nan
    if np.isfinite(peaks).sum(axis=0).min() < DAYS_MIN:
        return None
    return _Forecast(candidate=candidate, peaks=peaks, needed=_needed(peaks, candidate))


def _needed(peaks: Float64, candidate: Candidate) -> NDArray[np.int64]:
    """Replicas that carry each hour of the day, (24,): the most seen, with a margin of one over the days seen."""
    days = np.isfinite(peaks).sum(axis=0)
    most = np.nanmax(peaks, axis=0) * (1.0 + 1.0 / np.maximum(1, days))
    needed = np.ceil(most / LOAD_MAX - 1e-9).astype(np.int64)
    return np.asarray(np.clip(needed, candidate.replicas_min, len(candidate.rows)), np.int64)


def _window(start: int, hours: int) -> NDArray[np.int64]:
    return (start + np.arange(hours)) % HOURS_PER_DAY


def _leaving(forecast: _Forecast, start: int, hours: int, violation_ratio_max: float) -> int:
    """Replicas that may leave in a window; 0 where the days seen say that it would be too tight."""
    stay = int(forecast.needed[_window(start, hours)].max())
    leaving = min(len(forecast.candidate.rows) - stay, len(forecast.candidate.free_rows))
    if leaving <= 0 or _violation(forecast, start, hours) > violation_ratio_max:
        return 0
    return leaving


def _violation(forecast: _Forecast, start: int, hours: int) -> float:
    """Share of the active hours seen that pass what stays in the window, each day foretold from the others."""
    peaks, candidate = forecast.peaks, forecast.candidate
    window = _window(start, hours)
    active = np.isfinite(peaks) & (peaks > ACTIVE_RATIO_MIN * len(candidate.rows))
    bad = 0
    for day in range(len(peaks)):
        others = np.delete(peaks, day, axis=0)
        if np.isfinite(others[:, window]).sum(axis=0).min() < DAYS_MIN - 1:
            continue
        stay = int(_needed(others, candidate)[window].max())
        held = np.nan_to_num(peaks[day, window])
        bad += int((held > stay * CONTENTION_RATIO_MAX).sum())
    return bad / max(1, int(active.sum()))


def _choose_cards(
    demand: Demand,
    candidates: Sequence[Candidate],
    leaving: Mapping[WorkloadId, int],
    held_by: Mapping[CardId, int],
    node_of: Mapping[CardId, str],
) -> dict[WorkloadId, list[int]]:
    """Rows that leave: those of whole machines first, the machines with the fewest cards in use before all others."""
    left = Counter(leaving)
    chosen: dict[WorkloadId, list[int]] = defaultdict(list)
    row_of = {demand.grants[row].card: (item.workload, row) for item in candidates for row in item.free_rows}
    cards_of: dict[str, list[CardId]] = defaultdict(list)
    for card in sorted(held_by):
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
        replicas=len(candidate.rows) - len(rows),
        replicas_all=len(candidate.rows),
        rows=tuple(sorted(rows)),
        frees=tuple(sorted(demand.grants[row].card for row in rows)),
        load_max=float(np.nanmax(forecast.peaks[:, window])),
        violation_ratio=_violation(forecast, start, hours),
    )


def _freed_nodes(freed: set[CardId], held_by: Mapping[CardId, int], node_of: Mapping[CardId, str]) -> tuple[str, ...]:
    busy = {node_of[card] for card in held_by if card not in freed}
    return tuple(sorted({node_of[card] for card in freed} - busy))
