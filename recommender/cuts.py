"""The slice that every pod of a workload gets, and shares of compute that a card can promise. Called by `placement`."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fleet.inventory import Priority, WorkloadId
from recommender.advice.case import Permits
from recommender.bin_cards import Seat
from recommender.consolidate import Group
from recommender.demand import Demand

_SHARE_STEP = 0.01


def share_of_peak(peak: float) -> float:
    """Share of a card's compute that a pod is given for a peak, in whole percent, above 0 and at most 1."""
    share = math.ceil(round(peak / _SHARE_STEP, 6)) * _SHARE_STEP
    return round(min(1.0, max(_SHARE_STEP, share)), 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """The slice that every pod of a workload gets."""

    framebuffer_bytes: int
    compute_ratio: float
    shown_bytes: int
    is_hard: bool


def cuts_of(
    group: Group, seats: Sequence[Seat], demand: Demand, permits: Permits, *, always: frozenset[WorkloadId]
) -> dict[WorkloadId, Cut]:
    """Slices of all workloads with a pod that shares a card; replicas have one template, so one slice."""
    item_of = {int(row): item for item, row in enumerate(group.rows)}
    cuts: dict[WorkloadId, Cut] = {}
    sharing = {demand.grants[row].workload_id for seat in seats if len(seat.rows) > 1 for row in seat.rows} | always
    peaks: dict[WorkloadId, float] = defaultdict(float)
    for row in item_of:
        name = demand.grants[row].workload_id
        peaks[name] = max(peaks[name], float(group.peak[item_of[row]]))
    for row, item in item_of.items():
        name = demand.grants[row].workload_id
        if name in sharing and name not in cuts:
            cuts[name] = Cut(
                framebuffer_bytes=int(group.grants.granted_bytes[item]),
                compute_ratio=share_of_peak(peaks[name]),
                shown_bytes=int(group.grants.need_max_bytes[item]),
                is_hard=permits.cases[name].is_hard,
            )
    return cuts


def within_card(
    cuts: Mapping[WorkloadId, Cut], seats: Sequence[Seat], demand: Demand, *, adds_up: bool
) -> dict[WorkloadId, Cut]:
    """The same with shares of compute that a card can promise together.

    Hard shares are the peaks, which fit the card, rounded up; what that is too much comes off the largest. Where all
    shares are counted, what a pod is sure of shrinks with those that it meets, and it bursts beyond that.
    """
    percent = {name: round(cut.compute_ratio / _SHARE_STEP) for name, cut in cuts.items()}
    for seat in seats:
        names = [demand.grants[row].workload_id for row in seat.rows]
        if len(names) < 2:
            continue
        hard = [name for name in names if cuts[name].is_hard]
        # Nobody without a limit is admitted to a card of which every percent is taken.
        _shrink(hard, percent, 100 if len(hard) == len(names) else 99)
        if adds_up:
            for is_low in (False, True):
                rows = [row for row in seat.rows if (demand.grants[row].priority is Priority.LOW) == is_low]
                _shrink([demand.grants[row].workload_id for row in rows], percent, 100)
    return {name: replace(cut, compute_ratio=round(percent[name] * _SHARE_STEP, 2)) for name, cut in cuts.items()}


def _shrink(names: Sequence[WorkloadId], percent: dict[WorkloadId, int], most: int) -> None:
    """Lowers the largest of some shares, percent, until they are at most so much together; nobody gets none."""
    while names and sum(percent[name] for name in names) > most:
        largest = max(names, key=lambda name: (percent[name], name))
        if percent[largest] <= 1:
            return
        percent[largest] -= 1
