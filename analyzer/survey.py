"""One look over the whole fleet, before any single workload: who lived, who was seen, who worked, which counters lie.

What needs several slices at once is decided here: silence against the card or the node, counters against the card, low
priority work that gives way to a neighbour. Called by `analyzer.profile` first; everything later reads the `Survey`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from analyzer.compute_demand import DutyCurves, demand, duty_curves, owners_of
from analyzer.node_reports import NodeReports, joined_reports, nodes_seen
from analyzer.presence import (
    Bools,
    SilenceBasis,
    Surroundings,
    Tenure,
    Timeline,
    alive,
    card_rows,
    crowds,
    silent_activity,
    tenures,
    timeline,
)
from analyzer.state.idleness import Activity, activity, gives_way
from analyzer.succession import Succession, succession
from analyzer.trust import CardView, disbelieved_pods, findings, lies_on_compute, on_compute, without_compute
from fleet.inventory import CardId, Priority, WorkloadId
from fleet.profiles import Finding
from fleet.schema import Measure
from fleet.settings.settings import AnalyzerSettings
from fleet.trust_thresholds import SPIN_SM_MAX
from fleet.usage import CardGrid, Float32, History, SliceGrid


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """The fleet's slices, in the order of `lives`; masks have the shape (lives, steps).

    Attributes:
        lives: every slice that was ever granted.
        members: per live workload, the numbers of its slices in `lives`, live and earlier ones that behaved like them.
        changed_at: when a workload's pods were replaced by some that behave otherwise.
        lived: it lived through the step.
        seen: a row exists, or something else would have shown what it did.
        known: compute is known.
        used: something was used.
        spins: engines moved while the server had nobody to serve.
        gave_way: low priority work did nothing while a neighbour worked.
        stride: own step of the source of each slice's compute counters, (lives,).
        row_stride: own step of the source of its rows, (lives,).
        reports: how nodes report, by all slices of the fleet.
        inferred: what slices without a row did, (steps,) each, and what that stands on.
        distrust: findings per slice.
        disbelieved: pods whose compute is left out, see `disbelieved_pods`.
        curves: what the duty cycle says of SM active where that is missing.
        card_activity: activity of the cards as they report it; None where no source measures cards.
    """

    line: Timeline
    grid: SliceGrid
    lives: tuple[Tenure, ...]
    members: Mapping[WorkloadId, tuple[int, ...]]
    changed_at: Mapping[WorkloadId, datetime]
    lived: Bools
    seen: Bools
    known: Bools
    used: Bools
    spins: Bools
    gave_way: Bools
    stride: NDArray[np.int64]
    row_stride: NDArray[np.int64]
    reports: NodeReports
    inferred: Mapping[int, tuple[Float32, SilenceBasis]]
    distrust: Mapping[int, tuple[Finding, ...]]
    disbelieved: frozenset[str]
    curves: DutyCurves | None
    card_activity: Activity | None

    def findings_of(self, number: int) -> tuple[Finding, ...]:
        """Findings of a slice as they bear on its workload: of a disbelieved pod those on compute are remarks."""
        found = self.distrust.get(number, ())
        if self.lives[number].latest.pod_id not in self.disbelieved:
            return found
        return tuple(replace(one, distrusts=one.distrusts and not on_compute(one)) for one in found)

    def demand_of(self, numbers: NDArray[np.int64]) -> tuple[Float32, Bools]:
        """Compute that slices demand, 0-1, (len(numbers), steps), NaN unknown; and where it stands on SM active."""
        rows = np.array([_row_or_minus_one(self.lives[number]) for number in numbers], np.int64)
        wanted = np.full((len(numbers), self.line.steps), np.nan, np.float32)
        by_sm = np.zeros(len(numbers), bool)
        there = rows >= 0
        if there.any():
            wanted[there], by_sm[there] = demand(self.grid, rows[there], self.line.steps, self.curves)
        for place in np.flatnonzero(~there).tolist():
            wanted[place] = self.inferred[int(numbers[place])][0]
        # What no card can do is named by the cross-checks; here it must only not spoil the sums.
        return np.clip(wanted, 0.0, 1.0, out=wanted), by_sm


def survey(history: History, settings: AnalyzerSettings, now: datetime, reports: NodeReports | None = None) -> Survey:
    """Looks over a history up to `now`, and once more without what is not believed of it.

    Args:
        now: moment of the analysis, UTC; later steps are not looked at.
        reports: how nodes report, where the history is a part of a fleet; None where its own rows are all there are.
    """
    look = _survey(history, settings, now, reports)
    pods = disbelieved_pods(look.lives, look.members, look.distrust)
    if not pods:
        return look
    believed = _survey(without_compute(history, pods), settings, now, look.reports)
    return replace(believed, distrust=look.distrust, disbelieved=pods)


def as_believed(history: History, settings: AnalyzerSettings) -> History:
    """Days that are over, as if compute of a pod had not been collected since a check first failed on its counters.

    What was before that moment counts, and no replica speaks for another: this says what happened, not what to expect.
    """
    look = _survey(history, settings, history.slices.until, None)
    since: dict[str, datetime] = {}
    for number, found in look.distrust.items():
        pod = look.lives[number].latest.pod_id
        for one in filter(lies_on_compute, found):
            since[pod] = min(since.get(pod, history.slices.until), one.since or history.slices.since)
    return without_compute(history, since)


def _survey(history: History, settings: AnalyzerSettings, now: datetime, reports: NodeReports | None) -> Survey:
    grid, inventory = history.slices, history.inventory
    line = timeline(grid, now)
    lives = tenures(inventory, grid, now)
    lived = alive(lives, line)
    by_row = activity(grid, line.steps, settings)
    rows = np.array([_row_or_minus_one(life) for life in lives], np.int64)
    seen, known, used, spins = (
        _by_life(mask, rows, line.steps) for mask in (by_row.seen, by_row.known, by_row.used, by_row.spins)
    )
    nodes = [key.node for key in grid.keys]
    if reports is None:
        asks_alive = history.cards is None
        reports = joined_reports([nodes_seen(nodes, by_row.seen, by_row.known, asks_alive=asks_alive)])
    curves = duty_curves(grid, owners_of(lives, len(grid.keys)), line.steps)
    past = succession(lives, grid, line, curves)
    members = _members(lives, past)
    card_activity = None if history.cards is None else activity(history.cards, line.steps, settings)
    view = _card_view(history.cards, card_activity, lives, rows, lived, by_row)
    silent = [number for numbers in members.values() for number in numbers if lives[number].row is None]
    around = _surroundings(
        view, lives, lived, reports.alive_on({lives[number].latest.node for number in silent}, line.steps)
    )
    inferred = _inferred(silent, lives, lived, line, grid, around, settings.idle_ratio_max)
    for number, (levels, _) in inferred.items():
        known[number] = ~np.isnan(levels)
        seen[number] = known[number]
        used[number] = levels > settings.idle_ratio_max
    loud = spins & _card_works(history.cards, lives, grid, line.steps)
    spins, used = spins & ~loud, used | loud
    gave_way = _gave_way(lives, lived, used)
    known &= ~gave_way
    by_row_findings = findings(lives, grid, history.cards, by_row.level, view, line)
    return Survey(
        line=line,
        grid=grid,
        lives=lives,
        members=members,
        changed_at=past.changed_at,
        lived=lived,
        seen=seen,
        known=known,
        used=used,
        spins=spins,
        gave_way=gave_way,
        stride=_strides_by_life(reports.compute_stride, nodes, rows),
        row_stride=_strides_by_life(reports.row_stride, nodes, rows),
        reports=reports,
        inferred=inferred,
        distrust={n: by_row_findings.get(life.row, ()) for n, life in enumerate(lives) if life.row is not None},
        disbelieved=frozenset(),
        curves=curves,
        card_activity=card_activity,
    )


def _row_or_minus_one(life: Tenure) -> int:
    return -1 if life.row is None else life.row


def _by_life(mask: Bools, rows: NDArray[np.int64], steps: int) -> Bools:
    picked = np.zeros((len(rows), steps), bool)
    picked[rows >= 0] = mask[rows[rows >= 0]]
    return picked


def _strides_by_life(of_node: Mapping[str, int], nodes: list[str], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    of_row = np.array([*(of_node.get(node, 1) for node in nodes), 1], np.int64)
    found: NDArray[np.int64] = of_row[np.where(rows >= 0, rows, -1)]
    return found


def _members(lives: tuple[Tenure, ...], past: Succession) -> dict[WorkloadId, tuple[int, ...]]:
    """Slices of every workload that lives, sorted by id; what has ended wholly gets no profile.

    Pods that were replaced by some that behave otherwise say nothing of these, and are left out.
    """
    found: dict[WorkloadId, list[int]] = defaultdict(list)
    living = {life.workload_id for life in lives if life.is_live}
    for number, life in enumerate(lives):
        if life.workload_id not in living:
            continue
        changed_at = past.changed_at.get(life.workload_id)
        if life.is_live or changed_at is None or life.begun_at >= changed_at:
            found[life.workload_id].append(number)
    return {workload: tuple(found[workload]) for workload in sorted(found)}


def _card_view(
    cards: CardGrid | None,
    card_activity: Activity | None,
    lives: tuple[Tenure, ...],
    rows: NDArray[np.int64],
    lived: Bools,
    by_row: Activity,
) -> CardView | None:
    if cards is None or card_activity is None:
        return None
    steps = lived.shape[1]
    row_of = card_rows(cards)
    accounted = {card: np.zeros(steps, np.float32) for card in row_of}
    known = {card: np.zeros(steps, np.int16) for card in row_of}
    crowd = {card: np.zeros(steps, np.int16) for card in row_of} | crowds(lives, lived)
    for number, life in enumerate(lives):
        card = life.latest.card
        if rows[number] < 0 or card not in row_of:
            continue
        level = by_row.level[rows[number]]
        accounted[card] += np.nan_to_num(level)
        known[card] += ~np.isnan(level) & lived[number]
    return CardView(
        activity={card: card_activity.level[row] for card, row in row_of.items()},
        accounted=accounted,
        fully_known={card: (known[card] >= crowd[card]) & (crowd[card] > 0) for card in row_of},
        crowd=crowd,
        video=_video(cards, row_of, steps),
    )


def _video(cards: CardGrid, row_of: Mapping[CardId, int], steps: int) -> Mapping[CardId, Float32]:
    found = [cards.mean[measure] for measure in (Measure.ENCODER, Measure.DECODER) if measure in cards.mean]
    if not found:
        return {}
    return {card: np.fmax.reduce([values[row, :steps] for values in found]) for card, row in row_of.items()}


def _surroundings(
    view: CardView | None, lives: tuple[Tenure, ...], lived: Bools, node_alive: Mapping[str, Bools]
) -> Surroundings:
    if view is None:
        return Surroundings(crowd=crowds(lives, lived), left_over=None, node_alive=node_alive)
    left_over = {card: np.maximum(0, level - view.accounted[card]) for card, level in view.activity.items()}
    return Surroundings(crowd=view.crowd, left_over=left_over, node_alive=node_alive)


def _inferred(
    silent: list[int],
    lives: tuple[Tenure, ...],
    lived: Bools,
    line: Timeline,
    grid: SliceGrid,
    around: Surroundings,
    idle_ratio_max: float,
) -> dict[int, tuple[Float32, SilenceBasis]]:
    if not silent:
        return {}
    # A row that no grant explains may be the slice that seems silent, under another name: its pod is not inferred.
    explained = {life.row for life in lives}
    strangers = {key.pod_id for row, key in enumerate(grid.keys) if row not in explained}
    known_silent = [number for number in silent if lives[number].latest.pod_id not in strangers]
    levels, bases = silent_activity(
        [lives[number] for number in known_silent], line, around, idle_ratio_max=idle_ratio_max
    )
    nothing = np.full(line.steps, np.nan, np.float32)
    found: dict[int, tuple[Float32, SilenceBasis]] = dict.fromkeys(silent, (nothing, SilenceBasis.NOTHING))
    for place, number in enumerate(known_silent):
        found[number] = (np.where(lived[number], levels[place], np.nan).astype(np.float32), bases[place])
    return found


def _card_works(cards: CardGrid | None, lives: tuple[Tenure, ...], grid: SliceGrid, steps: int) -> Bools:
    """Where the SMs of a slice's card do more than polling explains and its own are not known, (lives, steps)."""
    works = np.zeros((len(lives), steps), bool)
    if cards is None or Measure.SM_ACTIVE not in cards.mean:
        return works
    row_of, own = card_rows(cards), grid.mean.get(Measure.SM_ACTIVE)
    for number, life in enumerate(lives):
        row = row_of.get(life.latest.card)
        if row is not None:
            works[number] = cards.peak.get(Measure.SM_ACTIVE, cards.mean[Measure.SM_ACTIVE])[row, :steps] > SPIN_SM_MAX
            if own is not None and life.row is not None:
                works[number] &= np.isnan(own[life.row, :steps])
    return works


def _gave_way(lives: tuple[Tenure, ...], lived: Bools, used: Bools) -> Bools:
    """Where low priority slices did nothing while a neighbour of higher priority used their card."""
    mask = np.zeros_like(used)
    on_card: dict[CardId, list[int]] = defaultdict(list)
    for number, life in enumerate(lives):
        on_card[life.latest.card].append(number)
    for numbers in on_card.values():
        lows = [number for number in numbers if lives[number].latest.priority is Priority.LOW]
        others = [number for number in numbers if lives[number].latest.priority is not Priority.LOW]
        if lows and others:
            working = np.asarray((used[others] & lived[others]).any(axis=0), bool)
            for number in lows:
                mask[number] = gives_way(used[number], working) & lived[number]
    return mask
