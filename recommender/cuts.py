"""The slice that every pod of a workload gets, and shares of compute that a card can promise. Called by `placement`."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fleet.capabilities.capability import (
    SHARED_PERCENT_MAX,
    Capabilities,
    Division,
    equal_part_bytes,
    equal_part_percent,
)
from fleet.inventory import CardId, Grant, Priority, WorkloadId
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
    """The slice that every pod of a workload gets.

    Attributes:
        framebuffer_bytes: granted, or planned with where the backend grants none in numbers.
        compute_ratio: share of a card, 0-1; None where nothing limits its compute.
        shown_bytes: most that one of its pods needed.
        is_hard: the share is all it gets.
    """

    framebuffer_bytes: int
    compute_ratio: float | None
    shown_bytes: int
    is_hard: bool


def is_new(cut: Cut, grant: Grant) -> bool:
    """Whether a slice differs from what a pod has."""
    share = 1.0 if cut.compute_ratio is None else cut.compute_ratio
    return grant.framebuffer_granted_bytes != cut.framebuffer_bytes or round(grant.compute_granted_ratio, 2) != share


def cuts_of(
    group: Group, seats: Sequence[Seat], demand: Demand, permits: Permits, *, always: frozenset[WorkloadId]
) -> dict[WorkloadId, Cut]:
    """Slices of all workloads with a pod that shares a card; replicas have one template, so one slice."""
    item_of = {int(row): item for item, row in enumerate(group.rows)}
    bin_of = np.full(len(group.rows), -1, np.int32)
    for number, seat in enumerate(seats):
        bin_of[[item_of[row] for row in seat.rows if row in item_of]] = number
    apart = bin_of < 0
    bin_of[apart] = len(seats) + np.arange(apart.sum(), dtype=np.int32)
    limited = group.limits.limited(bin_of)
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
                compute_ratio=_share(group, item, peaks[name], is_limited=bool(limited[item])),
                shown_bytes=int(group.grants.need_max_bytes[item]),
                is_hard=permits.cases[name].is_hard or bool(limited[item]),
            )
    return cuts


def _share(group: Group, item: int, peak: float, *, is_limited: bool) -> float:
    is_above = not group.limits.is_beneath[item]
    return float(group.limits.percent[item]) / 100.0 if is_limited and is_above else share_of_peak(peak)


def within_card(
    cuts: Mapping[WorkloadId, Cut], seats: Sequence[Seat], demand: Demand, capability: Capabilities
) -> dict[WorkloadId, Cut]:
    """The same as the backend grants them: in its steps, and what a card can promise together.

    Hard shares are the peaks, which fit the card, rounded up; what that is too much comes off the largest. Where all
    shares are counted, what a pod is sure of shrinks with those that it meets, and it bursts beyond that.
    """
    if capability.division is Division.EQUAL_PARTS:
        return _equal_parts(cuts, seats, demand)
    # One that shares gets at most what a share can be, before others shrink for its sake.
    percent = {
        name: min(SHARED_PERCENT_MAX, round((cut.compute_ratio or 0.0) / _SHARE_STEP)) for name, cut in cuts.items()
    }
    for seat in seats:
        names = [demand.grants[row].workload_id for row in seat.rows]
        if len(names) < 2:
            continue
        hard = [name for name in names if cuts[name].is_hard]
        # Nobody without a limit is admitted to a card of which every percent is taken.
        most = 100 if len(hard) == len(names) else SHARED_PERCENT_MAX
        # Low priority takes what the limits of others leave.
        grants = [demand.grants[row] for row in seat.rows]
        least = [one.workload_id for one in grants if one.priority is Priority.LOW and cuts[one.workload_id].is_hard]
        _shrink(least, percent, max(len(least), most - sum(percent[name] for name in hard if name not in least)))
        _shrink(hard, percent, most)
        if capability.adds_up_cores:
            for group in _counted_together(seat, demand, capability):
                _shrink(group, percent, 100)
    return {
        name: replace(
            cut, compute_ratio=_ratio(capability.compute_percent(percent[name] * _SHARE_STEP, is_hard=cut.is_hard))
        )
        for name, cut in cuts.items()
    }


def filled_up(
    cuts: Mapping[WorkloadId, Cut], seats: Sequence[Seat], cards: Sequence[CardId], demand: Demand
) -> dict[WorkloadId, Cut]:
    """Shares raised until those of some cards are all of a card together, as far as other cards of the same pods allow.

    Where all shares are counted, a scheduler lets nobody else onto such a card, whatever framebuffer it registers; pods
    that may burst have no less for it.

    Args:
        cards: the cards, those that matter most first; all their pods are cut, and may burst.
    """
    percent = {name: round((cut.compute_ratio or 0.0) / _SHARE_STEP) for name, cut in cuts.items()}
    shared = [[demand.grants[row].workload_id for row in seat.rows] for seat in seats if len(seat.rows) > 1]
    beside: dict[WorkloadId, list[list[WorkloadId]]] = defaultdict(list)
    for names in shared:
        for name in names:
            beside[name].append(names)

    def has_room(name: WorkloadId) -> bool:
        is_free = all(sum(percent.get(other, 100) for other in names) < 100 for names in beside[name])
        return is_free and percent[name] < SHARED_PERCENT_MAX

    rows_of = {seat.card: seat.rows for seat in seats}
    for card in cards:
        able = [demand.grants[row].workload_id for row in rows_of[card]]
        while able := [name for name in able if has_room(name)]:
            percent[min(able, key=lambda name: (percent[name], name))] += 1
    return {name: replace(cut, compute_ratio=_ratio(percent[name] or None)) for name, cut in cuts.items()}


def portions_of_nodes(seats: Sequence[Seat]) -> dict[str, int]:
    """Into how many equal parts the cards of each node are divided that shares any, by its fullest card."""
    most: dict[str, int] = defaultdict(int)
    for seat in seats:
        most[seat.node] = max(most[seat.node], len(seat.rows))
    return {node: parts for node, parts in most.items() if parts > 1}


def equal_part_ratio(parts: int) -> float:
    """Share of a card's compute that each of several equal parts has, 0-1."""
    return equal_part_percent(parts) / 100


def _equal_parts(cuts: Mapping[WorkloadId, Cut], seats: Sequence[Seat], demand: Demand) -> dict[WorkloadId, Cut]:
    """What every pod of a workload has at least: the smallest part of the nodes that its pods come to."""
    portions = portions_of_nodes(seats)
    smallest: dict[WorkloadId, Cut] = dict(cuts)
    for seat in sorted(seats, key=lambda seat: portions.get(seat.node, 1)):
        if seat.node in portions:
            parts = portions[seat.node]
            for grant in (demand.grants[row] for row in seat.rows):
                smallest[grant.workload_id] = replace(
                    cuts[grant.workload_id],
                    framebuffer_bytes=equal_part_bytes(grant.framebuffer_bytes, parts),
                    compute_ratio=equal_part_ratio(parts),
                )
    return smallest


def _counted_together(seat: Seat, demand: Demand, capability: Capabilities) -> Iterator[list[WorkloadId]]:
    """Workloads of a card whose shares are counted up to 100 %: low priority apart, where the backend knows it."""
    for is_low in (False, True) if capability.priority_levels > 1 else (None,):
        grants = [demand.grants[row] for row in seat.rows]
        yield [grant.workload_id for grant in grants if is_low is None or (grant.priority is Priority.LOW) is is_low]


def _ratio(percent: int | None) -> float | None:
    return None if percent is None else percent / 100


def _shrink(names: Sequence[WorkloadId], percent: dict[WorkloadId, int], most: int) -> None:
    """Lowers the largest of some shares, percent, until they are at most so much together; nobody gets none."""
    while names and sum(percent[name] for name in names) > most:
        largest = max(names, key=lambda name: (percent[name], name))
        if percent[largest] <= 1:
            return
        percent[largest] -= 1
