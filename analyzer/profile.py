"""From a history to a profile of every live workload and every card: the analyzer's entry point.

Runs the steps in order: survey (presence, activity, trust), facts (footprint, rhythm, kind), calibration (confidence),
state, cards. Pure: the same history, settings and `now` give the same answer. Called by `gputide workloads`, and by the
recommender for every fold of a back-test.

A history larger than memory is profiled in parts (`analyzer.parts`). What a fleet shares beyond whole workloads and
cards (hazards, companions) is learned from the figures of all parts, and how nodes report is asked of all rows first
(`analyzer.node_reports`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import numpy as np

from analyzer.cards import card_profiles
from analyzer.company import companions
from analyzer.confidence import DayRecord, breaks, calibrate, streaks, waking_scores
from analyzer.facts import Facts, gather
from analyzer.neighbours import effects_of_neighbours
from analyzer.node_reports import NodeReports
from analyzer.presence import Timeline, timeline
from analyzer.rhythm import DAY_HISTORY_SECONDS_MIN
from analyzer.state.workload_state import Streaks, Verdict, verdict
from analyzer.survey import survey
from fleet.decisions import RecommendationKind, Withheld
from fleet.inventory import CardId, Inventory, Priority, WorkloadId
from fleet.profiles import CardProfile, NeighbourEffect, Profile, Profiles, WorkloadState
from fleet.settings.settings import AnalyzerSettings
from fleet.usage import Float32, History, SliceGrid, UsageGrid

_NEEDS_RHYTHM = (RecommendationKind.OFFPEAK_PAIR, RecommendationKind.TIDE)
_NEEDS_FRAMEBUFFER = (RecommendationKind.SLICE, RecommendationKind.OVERSUBSCRIBE, RecommendationKind.MIG)
_IDLE_STATES = frozenset({WorkloadState.IDLE, WorkloadState.IDLE_HELD})
_RANK = {Priority.LOW: 0, Priority.NORMAL: 1, Priority.HIGH: 2}


def profile_fleet(history: History, *, settings: AnalyzerSettings, now: datetime) -> Profiles:
    """Describes what every live workload and every card did, and what cannot be said.

    Args:
        history: inventory and usage of one cluster; NaN marks what was not collected.
        settings: the meaning of idle, off-peak and oversized.
        now: moment of the analysis, aware UTC; steps that end later are not looked at, and time since the end of the
            history counts as unseen.

    Returns:
        Profiles of the workloads that live at `history.inventory.as_of`, sorted by id; earlier pods of the same
        workload count as evidence. "Not enough data" is an answer: state unknown with its reason, and `withheld` for
        kinds of advice that the history supports for nobody.
    """
    return profile_parts([history], settings=settings, now=now)


def profile_parts(
    parts: Iterable[History], *, settings: AnalyzerSettings, now: datetime, reports: NodeReports | None = None
) -> Profiles:
    """The same for a fleet in parts, each asked for when the one before has become a few figures.

    Args:
        parts: at least one, over the same steps, each with whole workloads and whole cards (`analyzer.profile`).
        reports: how nodes report, by the rows of all parts; None where there is one.

    Returns:
        Profiles of all parts together.
    """
    figures = [figures_of(part, settings=settings, now=now, reports=reports) for part in parts]
    return joined_profiles(figures, settings=settings)


def joined_profiles(parts: Sequence[PartFigures], *, settings: AnalyzerSettings) -> Profiles:
    """The profiles of a fleet from the figures of its parts, in whatever process each was looked at.

    Args:
        parts: of each part, in the order in which the fleet was cut; at least one.
    """
    first = parts[0]
    facts = [fact for part in parts for fact in part.facts]
    # Sorted by id over all parts; figures of each workload follow it.
    order = sorted(range(len(facts)), key=lambda number: facts[number].workload)
    facts = [facts[number] for number in order]
    days, levels = _joined([part for part in parts if part.facts] or parts[:1], order)
    calibration = calibrate(days, [fact.workload_class for fact in facts])
    verdicts = [
        verdict(fact, lasted, calibration, float(first.line.slack_seconds), settings)
        for fact, lasted in zip(facts, _streaks(days, len(facts)), strict=True)
    ]
    beside = {workload: found for part in parts for workload, found in part.beside.items()}
    windows = sum(fact.coverage_ratio * len(fact.lives) for fact in facts)
    return Profiles(
        cluster=first.cluster,
        as_of=first.as_of,
        since=first.line.since,
        until=first.line.until,
        coverage_ratio=round(windows / max(1, sum(len(fact.lives) for fact in facts)), 4),
        workloads=tuple(
            replace(
                _profile(fact, said, first, tuple(facts[other].workload for other in near)),
                beside=beside.get(fact.workload, ()),
            )
            for fact, said, near in zip(facts, verdicts, companions(levels), strict=True)
        ),
        cards=tuple(sorted((card for part in parts for card in part.cards), key=lambda card: card.card)),
        unallocated=tuple(sorted(card for part in parts for card in part.unallocated)),
        withheld=tuple(withheld(first.line, facts, settings)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFigures:
    """What is kept of one part: figures, and nothing that has a value per step."""

    cluster: str
    as_of: datetime
    time_zone: str
    unallocated: tuple[CardId, ...]
    line: Timeline
    facts: tuple[Facts, ...]
    days: DayRecord
    levels: Float32
    cards: tuple[CardProfile, ...]
    beside: Mapping[WorkloadId, tuple[NeighbourEffect, ...]]


def figures_of(
    history: History, *, settings: AnalyzerSettings, now: datetime, reports: NodeReports | None = None
) -> PartFigures:
    """What `joined_profiles` needs of one part; see `profile_fleet`.

    Args:
        reports: how nodes report, by the rows of all parts; None where this is the only one.
    """
    if timeline(history.slices, now).steps == 0:
        history = _without_usage(history, now)
    seen = survey(history, settings, now, reports)
    facts, days, levels = gather(seen, history.inventory.time_zone, settings)
    inventory = history.inventory
    return PartFigures(
        cluster=inventory.cluster,
        as_of=inventory.as_of,
        time_zone=inventory.time_zone,
        unallocated=_unallocated(inventory),
        line=seen.line,
        facts=tuple(
            replace(fact, footprint=replace(fact.footprint, need=fact.footprint.need[:, :0].copy())) for fact in facts
        ),
        days=days,
        levels=levels,
        cards=card_profiles(history, seen, settings),
        beside=effects_of_neighbours(seen),
    )


def _joined(parts: Sequence[PartFigures], order: Sequence[int]) -> tuple[DayRecord, Float32]:
    """Days and hourly levels of all parts, in the order of the workloads."""
    rows = np.array(order, np.int64)
    days = DayRecord.joined([part.days for part in parts], rows)
    place = np.empty(len(rows), np.int64)
    place[rows] = np.arange(len(rows))
    levels = np.empty((len(rows), parts[0].levels.shape[1]), np.float32)
    first = 0
    for part in parts:
        levels[place[first : first + len(part.levels)]] = part.levels
        first += len(part.levels)
    return days, levels


def withheld(line: Timeline, facts: Sequence[Facts], settings: AnalyzerSettings) -> Iterator[Withheld]:
    """Kinds of advice that this history supports for nobody, one entry per kind and reason."""
    seconds, needed = float(line.steps * line.step_seconds), settings.history_seconds_min
    if seconds < needed - line.slack_seconds:
        hours = (("seen_hours", round(seconds / 3600, 1)), ("needed_hours", round(needed / 3600, 1)))
        yield from (Withheld(kind=kind, reason="history_too_short", values=hours) for kind in RecommendationKind)
        return
    if seconds < DAY_HISTORY_SECONDS_MIN:
        days = (("seen_days", round(seconds / 86400, 1)), ("needed_days", DAY_HISTORY_SECONDS_MIN // 86400))
        yield from (Withheld(kind=kind, reason="history_too_short", values=days) for kind in _NEEDS_RHYTHM)
    if facts and all(fact.footprint.profile.used_max is None for fact in facts):
        for kind in _NEEDS_FRAMEBUFFER:
            yield Withheld(kind=kind, reason="no_framebuffer_counter", values=(("workloads", len(facts)),))


def _streaks(days: DayRecord, count: int) -> Iterator[Streaks]:
    if not days.seen.shape[1]:
        nothing = Streaks(
            idle=0,
            idle_at_risk=0,
            idle_broke=0,
            waking_score=0.0,
            small_compute=0,
            small_need=0,
            busy=0,
            promised=0,
            kept=0,
        )
        yield from (nothing for _ in range(count))
        return
    lasted = [
        streaks(holds, days.seen)[:, -1] for holds in (~days.used, ~days.compute_large, ~days.need_large, days.used)
    ]
    at_risk, broke = breaks(~days.used, days.seen)
    scores = waking_scores(days)
    for number in range(count):
        yield Streaks(
            idle=int(lasted[0][number]),
            idle_at_risk=int(at_risk[number]),
            idle_broke=int(broke[number]),
            waking_score=float(scores[number, -1]),
            small_compute=int(lasted[1][number]),
            small_need=int(lasted[2][number]),
            busy=int(lasted[3][number]),
            promised=int(days.promised[number]),
            kept=int(days.kept[number]),
        )


def _profile(fact: Facts, said: Verdict, part: PartFigures, rises_with: tuple[WorkloadId, ...]) -> Profile:
    live = [life.latest for life in fact.lives if life.is_live]
    state = said.state
    names_idle_pods = state is WorkloadState.PARTLY_IDLE or state in _IDLE_STATES
    return Profile(
        cluster=part.cluster,
        namespace=live[-1].namespace,
        workload=fact.workload,
        workload_kind=live[-1].workload_kind,
        workload_class=fact.workload_class,
        priority=max((grant.priority for grant in live), key=lambda priority: _RANK[priority]),
        pods=tuple(sorted({grant.pod for grant in live})),
        cards=tuple(sorted({grant.card for grant in live})),
        state=state,
        idle_since=fact.idle_since if state in _IDLE_STATES else None,
        idle_pods=fact.idle_pods if names_idle_pods else (),
        disbelieved_pods=fact.disbelieved_pods,
        active_weekdays=fact.weekdays.active,
        silent_weekdays=fact.weekdays.silent,
        time_zone=part.time_zone,
        off_peak_hours=() if state is WorkloadState.UNKNOWN or state in _IDLE_STATES else fact.off_peak_hours,
        period_hours=fact.period_hours,
        hour_of_week=fact.hour_of_week,
        framebuffer=fact.footprint.profile,
        compute=fact.compute,
        engines=fact.engines,
        request_rate=fact.request_rate,
        coverage_ratio=round(fact.coverage_ratio, 4),
        confidence=said.confidence,
        trust=fact.findings,
        why=said.why,
        drift=fact.drift,
        reservation=fact.reservation,
        replica_correlation=fact.replica_correlation,
        rises_with=rises_with if fact.compute.p50 is not None else (),
    )


def _without_usage(history: History, now: datetime) -> History:
    """The same inventory with one step in which nothing was collected: every answer is then "not enough data"."""
    blank: SliceGrid = UsageGrid(
        keys=(),
        since=now - timedelta(seconds=history.slices.step_seconds),
        step_seconds=history.slices.step_seconds,
        steps=1,
        mean={},
        peak={},
    )
    return History(inventory=history.inventory, slices=blank)


def _unallocated(inventory: Inventory) -> tuple[CardId, ...]:
    granted = {grant.card for grant in inventory.live_grants()}
    return tuple(sorted(card.card for card in inventory.cards if card.card not in granted))
