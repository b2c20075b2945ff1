"""The figures of every workload, before anything is called by a name: one record per workload.

Workloads are worked off in chunks of bounded size, their slices side by side, so memory does not grow with the fleet.
Called by `analyzer.profile` between the survey and the states.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from analyzer.company import replica_correlation
from analyzer.confidence import DayRecord, day_starts, kept_promises
from analyzer.drift import TREND_DAYS_MIN, day_levels, drift
from analyzer.footprint import Footprint, day_peaks, footprint
from analyzer.kind import workload_class
from analyzer.offpeak_hours import promised_hours
from analyzer.period import periods
from analyzer.presence import Bools, SilenceBasis, Tenure, Timeline, coverage
from analyzer.reservation import hourly_reservation
from analyzer.rhythm import (
    HOURS_PER_WEEK,
    LocalHours,
    cycle_hours,
    hourly_means,
    hourly_peaks,
    is_folded,
    local_hours,
    week_summary,
    week_upper,
    whole_week,
)
from analyzer.state.idleness import DAY_SEEN_MIN, Weekdays, idleness, nearly_used, weekdays
from analyzer.survey import Survey
from analyzer.trust import of_workload, on_compute
from fleet.inventory import WorkloadId
from fleet.profiles import (
    ComputeProfile,
    DriftProfile,
    EnginesProfile,
    Finding,
    HourOfWeek,
    RequestRateProfile,
    WorkloadClass,
)
from fleet.schema import Measure
from fleet.settings.settings import AnalyzerSettings
from fleet.usage import Float32

_CELLS_PER_CHUNK = 4_000_000
_NO_HOURS = (None,) * HOURS_PER_WEEK
_LARGE_SHARE_MIN = 0.01
"""Share of a day's windows beyond a limit of p99 above which the day passed it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Figures of one workload.

    Attributes:
        findings: failed cross-checks.
        coverage_ratio: coverage over its whole history, 0-1.
        history_seconds: from its first moment in the history to now.
        changed_at: when its pods were replaced by some that behave otherwise; nothing earlier counts. None where they
            never were.
        is_idle: all its slices together were idle through the window.
        idle_since: last activity, None if not idle.
        recent_coverage_ratio: share of the idle window, up to now, in which compute of any slice is known.
        idle_pods: live pods of which every slice was idle through the window.
        disbelieved_pods: see `Profile`.
        weekdays: days of the week on which it worked, and those that passed in silence since.
        idle_slices: how many live slices were.
        gave_way: a slice of low priority did nothing, but a neighbour worked meanwhile.
        silence: weakest ground on which a silent slice was judged; None where all have rows.
        footprint: framebuffer.
        compute: quantiles of demand.
        is_sm: demand is SM active; False where it is the duty cycle, an upper bound.
        request_rate: requests per second.
        period_hours: 24, 168 or None.
        off_peak_hours: hours of the week promised to stay low.
        samples: cells of demand that were seen.
        drift: how the level of its days moves; None where compute is not trusted.
        reservation: level to reserve by local hour of the day, (24,) or empty.
        replica_correlation: mean correlation between its slices; None with fewer than two.
    """

    workload: WorkloadId
    lives: tuple[Tenure, ...]
    findings: tuple[Finding, ...]
    coverage_ratio: float
    history_seconds: float
    changed_at: datetime | None
    is_idle: bool
    idle_since: datetime | None
    idle_coverage_ratio: float
    recent_coverage_ratio: float
    idle_pods: tuple[str, ...]
    disbelieved_pods: tuple[str, ...]
    weekdays: Weekdays
    idle_slices: int
    live_slices: int
    gave_way: bool
    silence: SilenceBasis | None
    footprint: Footprint
    compute: ComputeProfile
    is_sm: bool
    engines: EnginesProfile | None
    request_rate: RequestRateProfile | None
    workload_class: WorkloadClass
    period_hours: int | None
    off_peak_hours: tuple[int, ...]
    hour_of_week: HourOfWeek
    samples: int
    drift: DriftProfile | None
    reservation: tuple[float | None, ...]
    replica_correlation: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chunk:
    """Demand of the slices of some workloads, (slices, steps), with the borders between workloads."""

    workloads: tuple[WorkloadId, ...]
    numbers: NDArray[np.int64]
    borders: NDArray[np.int64]
    demand: Float32
    by_sm: Bools

    def part(self, place: int) -> slice:
        """Rows of one workload."""
        return slice(int(self.borders[place]), int(self.borders[place + 1]))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Habits:
    """What one workload does again and again, and how that moves."""

    period: int | None
    promised: Bools
    week: HourOfWeek
    weekdays: Weekdays
    drift: DriftProfile | None
    reservation: tuple[float | None, ...]


def gather(look: Survey, time_zone: str, settings: AnalyzerSettings) -> tuple[tuple[Facts, ...], DayRecord, Float32]:
    """Figures of every live workload, what each did day by day, and its level hour by hour.

    Returns:
        One record per workload, in the survey's order; their days and their mean demand by hour, (workloads, hours),
        in the same order.
    """
    hours = local_hours(look.line, time_zone)
    facts: list[Facts] = []
    days: list[DayRecord] = []
    levels: list[Float32] = []
    for chunk in _chunks(look):
        found, record, level = _of_chunk(chunk, look, hours, settings)
        facts.extend(found)
        days.append(record)
        levels.append(level)
    if not days:
        none, count = np.zeros((0, 0), bool), np.zeros(0, np.int64)
        record = DayRecord(
            seen=none, used=none, nearly_used=none, compute_large=none, need_large=none, promised=count, kept=count
        )
        return (), record, np.zeros((0, 0), np.float32)
    return tuple(facts), DayRecord.joined(days), np.concatenate(levels)


def _chunks(look: Survey) -> Iterator[_Chunk]:
    limit = max(1, _CELLS_PER_CHUNK // max(1, look.line.steps))
    names: list[WorkloadId] = []
    numbers: list[int] = []
    borders = [0]
    for workload, members in look.members.items():
        if names and len(numbers) + len(members) > limit:
            yield _chunk(look, names, numbers, borders)
            names, numbers, borders = [], [], [0]
        names.append(workload)
        numbers.extend(members)
        borders.append(len(numbers))
    if names:
        yield _chunk(look, names, numbers, borders)


def _chunk(look: Survey, names: Sequence[WorkloadId], numbers: Sequence[int], borders: Sequence[int]) -> _Chunk:
    rows = np.array(numbers, np.int64)
    wanted, by_sm = look.demand_of(rows)
    return _Chunk(workloads=tuple(names), numbers=rows, borders=np.array(borders, np.int64), demand=wanted, by_sm=by_sm)


def _of_chunk(
    chunk: _Chunk, look: Survey, hours: LocalHours, settings: AnalyzerSettings
) -> tuple[list[Facts], DayRecord, Float32]:
    line = look.line
    firsts = chunk.borders[:-1]
    tops: Float32 = np.fmax.reduceat(chunk.demand, firsts, axis=0)
    count = np.add.reduceat(~np.isnan(chunk.demand), firsts, axis=0, dtype=np.int32)
    total = np.add.reduceat(np.nan_to_num(chunk.demand), firsts, axis=0)
    means = np.where(count > 0, total / np.maximum(1, count), np.nan).astype(np.float32)
    history_seconds = float(line.steps * line.step_seconds)
    peaks, seen = hourly_peaks(tops, hours, np.minimum.reduceat(look.stride[chunk.numbers], firsts))
    ordered = [_ordered(chunk.demand[chunk.part(place)]) for place in range(len(chunk.workloads))]
    p95 = np.array([_quantile(values, 0.95) if len(values) else np.nan for values in ordered])
    promised = promised_hours(peaks, seen, hours.hour, p95, history_seconds=history_seconds, settings=settings)
    period = periods(means, line)
    if not is_folded(history_seconds):
        # A few bursts leave hours of the week that were never busy; where nothing repeats they are no habit. In less
        # than two weeks the period is too often missed to be asked for.
        promised &= np.array([found is not None for found in period], bool)[:, None]
    cycle = cycle_hours(history_seconds)
    summary = week_summary(chunk.demand, chunk.borders, hours.of_step, cycle)
    week_of = (
        *(whole_week(figures) for figures in (summary.p50, summary.p95, summary.max)),
        week_upper(peaks, seen, hours.hour, history_seconds=history_seconds),
    )
    reserved = hourly_reservation(tops, hours, line.step_seconds)
    days_promised, days_kept = kept_promises(peaks, seen, hours.hour, p95, settings)
    facts, day_rows = [], []
    starts = day_starts(line.steps, line.step_seconds)
    levels_by_day = day_levels(means, starts, DAY_SEEN_MIN)
    for place, workload in enumerate(chunk.workloads):
        p50, p95_of_hour, top, upper = (_hours(one[place]) for one in week_of)
        week = HourOfWeek(p50=p50, p95=p95_of_hour, max=top, upper=upper)
        fact = _of_workload(
            chunk,
            place,
            workload,
            look,
            settings,
            ordered=ordered[place],
            habits=_Habits(
                period=period[place],
                promised=promised[place],
                week=week,
                weekdays=_weekdays(look, chunk.numbers[chunk.part(place)], hours),
                drift=_drift(levels_by_day[place], starts, line),
                reservation=_hours(reserved[place]),
            ),
        )
        facts.append(fact)
        day_rows.append(_days(chunk, place, look, fact, starts, settings))
    stacked = np.stack(day_rows)
    record = DayRecord(
        seen=stacked[:, 0],
        used=stacked[:, 1],
        compute_large=stacked[:, 2],
        need_large=stacked[:, 3],
        nearly_used=stacked[:, 4],
        promised=days_promised,
        kept=days_kept,
    )
    return facts, record, hourly_means(means, hours)


def _of_workload(
    chunk: _Chunk,
    place: int,
    workload: WorkloadId,
    look: Survey,
    settings: AnalyzerSettings,
    *,
    ordered: NDArray[np.float32],
    habits: _Habits,
) -> Facts:
    line = look.line
    numbers = chunk.numbers[chunk.part(place)]
    lives = tuple(look.lives[number] for number in numbers.tolist())
    live = np.array([life.is_live for life in lives], bool)
    known, used, lived, stride = look.known[numbers], look.used[numbers], look.lived[numbers], look.stride[numbers]
    whole = idleness(known, used, lived, stride, line, settings, is_live=True)
    idle_rows = [
        bool(live[row])
        and idleness(
            known[row : row + 1],
            used[row : row + 1],
            lived[row : row + 1],
            stride[row : row + 1],
            line,
            settings,
            is_live=True,
        ).is_idle
        for row in range(len(lives))
    ]
    busy_pods = {life.latest.pod for life, idle in zip(lives, idle_rows, strict=True) if life.is_live and not idle}
    window = max(1, settings.idle_seconds // line.step_seconds)
    recent = slice(max(0, line.steps - window), line.steps)
    findings = of_workload([look.findings_of(number) for number in numbers.tolist()])
    print_of = footprint(lives, look.grid, used, line, recent_steps=window)
    compute = _compute(ordered, lives, findings)
    video = _video(look, lives)
    rate = _request_rate(look, lives)
    begun = max(line.since, min(life.grants[0].started_at for life in lives))
    grounds = [
        look.inferred[number][1]
        for number in numbers.tolist()
        if number in look.inferred and look.lives[number].is_live
    ]
    return Facts(
        workload=workload,
        lives=lives,
        findings=findings,
        coverage_ratio=coverage(look.seen[numbers], lived, look.row_stride[numbers]),
        history_seconds=(line.now - begun).total_seconds(),
        changed_at=look.changed_at.get(workload),
        is_idle=whole.is_idle,
        idle_since=whole.idle_since,
        idle_coverage_ratio=whole.coverage_ratio,
        recent_coverage_ratio=_recent_coverage(look, numbers, window),
        idle_pods=tuple(
            sorted({life.latest.pod for life, idle in zip(lives, idle_rows, strict=True) if idle} - busy_pods)
        ),
        disbelieved_pods=tuple(sorted({life.latest.pod for life in lives if life.latest.pod_id in look.disbelieved})),
        weekdays=habits.weekdays,
        idle_slices=sum(idle_rows),
        live_slices=int(live.sum()),
        gave_way=bool(look.gave_way[numbers][:, recent].any() and not used[:, recent].any()),
        silence=max(grounds, key=list(SilenceBasis).index) if grounds else None,
        footprint=print_of,
        compute=compute,
        is_sm=bool(chunk.by_sm[chunk.part(place)].any()),
        engines=None if video is None else video[0],
        request_rate=rate,
        workload_class=workload_class(
            sorted((grant for life in lives for grant in life.grants), key=lambda grant: grant.started_at),
            compute_p50=compute.p50,
            compute_p95=compute.p95,
            video_p95=None if video is None else video[1],
            serves_requests=rate is not None and rate.max > 0,
            period_hours=habits.period,
        ),
        period_hours=habits.period,
        off_peak_hours=tuple(np.flatnonzero(habits.promised).tolist()),
        # Hours of a counter that lies are no hours.
        hour_of_week=habits.week
        if compute.p50 is not None
        else HourOfWeek(p50=_NO_HOURS, p95=_NO_HOURS, max=_NO_HOURS),
        samples=len(ordered),
        drift=habits.drift if compute.p50 is not None else None,
        reservation=habits.reservation if compute.p50 is not None else (),
        replica_correlation=replica_correlation(chunk.demand[chunk.part(place)]) if compute.p50 is not None else None,
    )


def _weekdays(look: Survey, numbers: NDArray[np.int64], hours: LocalHours) -> Weekdays:
    known, used, lived, stride = look.known[numbers], look.used[numbers], look.lived[numbers], look.stride[numbers]
    return weekdays(known, used, lived, stride, look.line, hours.of_step // 24)


def _drift(days: NDArray[np.float64], starts: NDArray[np.int64], line: Timeline) -> DriftProfile | None:
    if len(days) < TREND_DAYS_MIN - 1:
        return None
    found = drift(days)
    return DriftProfile(
        shifted_at=None if found.shift_day is None else line.end_of(int(starts[found.shift_day]) - 1),
        shift_ratio=found.shift_ratio,
        growth_per_week_ratio=found.growth_per_week_ratio,
    )


def _recent_coverage(look: Survey, numbers: NDArray[np.int64], window: int) -> float:
    """Share of the idle window, up to now, in which compute of any slice is known, of the time that one lived."""
    line = look.line
    recent = slice(max(0, line.steps + line.missing_steps - window), line.steps)
    known = look.known[numbers][:, recent] | look.gave_way[numbers][:, recent]
    lived = int(look.lived[numbers][:, recent].any(axis=0).sum()) + min(window, line.missing_steps)
    return min(1.0, int(known.any(axis=0).sum()) * int(look.stride[numbers].min()) / lived) if lived else 0.0


def _compute(values: NDArray[np.float32], lives: Sequence[Tenure], findings: Sequence[Finding]) -> ComputeProfile:
    granted = max((life.latest.compute_granted_ratio for life in lives if life.is_live), default=0.0)
    lies = any(item.distrusts and on_compute(item) for item in findings)
    if not len(values) or lies:
        return ComputeProfile(granted_ratio=granted, p50=None, p95=None, p99=None, max=None)
    p50, p95, p99, top = (round(_quantile(values, share), 5) for share in (0.5, 0.95, 0.99, 1.0))
    return ComputeProfile(granted_ratio=granted, p50=p50, p95=p95, p99=p99, max=top)


def _video(look: Survey, lives: Sequence[Tenure]) -> tuple[EnginesProfile, float | None] | None:
    """Video engines of a workload and the p95 of the busier one; None where neither is collected."""
    rows = np.array([life.row for life in lives if life.row is not None], np.int64)
    tops: dict[Measure, float | None] = {Measure.ENCODER: None, Measure.DECODER: None}
    p95: float | None = None
    for measure in tops:
        if measure in look.grid.mean and len(rows):
            mean = look.grid.mean[measure][rows, : look.line.steps]
            there = np.sort(mean[~np.isnan(mean)])
            if len(there):
                peak = look.grid.peak.get(measure, look.grid.mean[measure])[rows, : look.line.steps]
                tops[measure] = round(float(np.nanmax(peak)), 5)
                p95 = max(p95 or 0.0, _quantile(there, 0.95))
    if p95 is None:
        return None
    return EnginesProfile(encoder_max=tops[Measure.ENCODER], decoder_max=tops[Measure.DECODER]), p95


def _request_rate(look: Survey, lives: Sequence[Tenure]) -> RequestRateProfile | None:
    """Requests per second of all pods of a workload; a pod says its rate once, however many cards it holds."""
    rows = np.array([life.row for life in lives if life.row is not None], np.int64)
    if Measure.REQUEST_RATE not in look.grid.mean or not len(rows):
        return None
    rate = look.grid.mean[Measure.REQUEST_RATE][rows, : look.line.steps]
    seen = ~np.isnan(rate).all(axis=0)
    pods = {look.grid.keys[row].pod_id: np.zeros(rate.shape[1], np.float32) for row in rows}
    for row, values in zip(rows, rate, strict=True):
        most = pods[look.grid.keys[row].pod_id]
        np.fmax(most, values, out=most)
    total = np.sort(np.sum(list(pods.values()), axis=0)[seen])
    if not len(total):
        return None
    p50, p95, top = (_quantile(total, share) for share in (0.5, 0.95, 1.0))
    return RequestRateProfile(p50=p50, p95=p95, max=top)


def _days(
    chunk: _Chunk, place: int, look: Survey, fact: Facts, starts: NDArray[np.int64], settings: AnalyzerSettings
) -> Bools:
    """Seen, used, compute large, need large and nearly used of one workload on every day, (5, days)."""
    record = np.zeros((5, len(starts)), bool)
    if not len(starts):
        return record
    numbers = chunk.numbers[chunk.part(place)]
    wanted = chunk.demand[chunk.part(place)]
    lengths = np.diff(np.r_[starts, look.line.steps])
    stride = int(look.stride[numbers].min())
    known = np.add.reduceat(look.known[numbers].any(axis=0), starts, dtype=np.int64)
    record[0] = known * stride >= DAY_SEEN_MIN * lengths
    record[1] = np.logical_or.reduceat(look.used[numbers].any(axis=0), starts)
    rows = np.array([life.row for life in fact.lives if life.row is not None], np.int64)
    # Nobody asks how near a workload came that worked every day.
    if len(rows) and not record[1].all():
        record[4] = np.logical_or.reduceat(nearly_used(look.grid, rows, look.line.steps, settings), starts)
    there = np.add.reduceat((~np.isnan(wanted)).sum(axis=0), starts)
    limit = settings.oversized_compute_ratio * fact.compute.granted_ratio
    above = np.add.reduceat((wanted > limit).sum(axis=0), starts)
    record[2] = above > _LARGE_SHARE_MIN * there
    needed = day_peaks(fact.footprint.need, starts)
    record[3] = np.nan_to_num(needed) > settings.oversized_framebuffer_ratio * fact.footprint.profile.granted
    return record


def _ordered(demand: Float32) -> NDArray[np.float32]:
    values: NDArray[np.float32] = np.sort(demand[~np.isnan(demand)])
    return values


def _quantile(ordered: NDArray[np.float32], share: float) -> float:
    """Smallest value with at least `share` of the values at or below it."""
    return float(ordered[max(0, int(np.ceil(share * len(ordered) - 1e-9)) - 1)])


def _hours(values: NDArray[np.float64]) -> tuple[float | None, ...]:
    return tuple(None if math.isnan(value) else value for value in np.round(values, 4).tolist())
