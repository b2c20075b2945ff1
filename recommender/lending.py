"""Which cards may be joined although their framebuffer exceeds one card: where pods work in different hours.

The backend's rules are `fleet.lending`: of each grant a part stays on the card, the rest moves to host memory while
others work. That part follows from the node's scaling factor, by the backend's rule or as a probe saw it: it must be
small enough that those who work at a time hold all that they were granted. Harm is judged as that of any packing, on
scenarios with surges: at a point at which those who work don't fit beside what the others keep, all of them are
violated. Waiting for framebuffer that comes back counts as well, as often as the days of the history would have
switched. Called by `consolidate` on what the packer made, and by `placement` for cards that were seated.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fleet.capabilities.capability import Capabilities
from fleet.lending import Residency, paging_bytes_per_second
from fleet.sharing import ACTIVE_RATIO_MIN, CONTENTION_RATIO_MAX
from fleet.units import GIB
from fleet.usage import Float32
from recommender.demand import DAY_SECONDS, Demand
from recommender.packing.packer import Packer, PackingProblem, renumbered

SCALING_MAX = 4.0
"""Largest factor that is asked for: contexts, libraries and whatever a program allocates by other calls can't be lent,
and of a smaller part of its grant nobody has shown that a service lives."""
GRANT_BYTES_MIN = 4 * GIB
"""Least grant of a pod that lends: with any factor it keeps a GiB, where a context and its libraries take some hundred
MiB."""
TURNS_PER_DAY_MAX = 48.0
"""Pods of a card that begin or end work more often have no hours of their own."""
OVERLAP_RATIO_MAX = 0.05
"""Share of the time in which two cards may both have work, so that joining them is looked at."""
CANDIDATES_MAX = 32
"""Cards that one is tried with, those with the least overlap first."""
_SCALING_STEP = 0.01
_ROWS_AT_ONCE = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Lenders:
    """Items of one card model that may lend framebuffer, on the latest days of the history.

    Attributes:
        may: the rules allow it, (items,).
        works: the pod works, (items, steps).
        held_bytes: framebuffer that it holds at most, (items,).
        step_seconds: length of a step.
        bytes_per_second: how fast framebuffer moves to host memory and back.
        scaling_max: largest factor that may be asked for.
        kept_bytes: what of each stays on the card, at most; None where that is its grant divided by the factor.
    """

    may: NDArray[np.bool_]
    works: NDArray[np.bool_]
    held_bytes: NDArray[np.float64]
    step_seconds: int
    bytes_per_second: float
    scaling_max: float = SCALING_MAX
    kept_bytes: float | None = None

    def kept_of(self, granted_bytes: NDArray[np.float64], scaling: float) -> NDArray[np.float64]:
        """What stays of grants while their pods rest, shape as given; see `Capabilities.kept_share`."""
        return granted_bytes / scaling if self.kept_bytes is None else np.minimum(granted_bytes, self.kept_bytes)

    @property
    def days(self) -> float:
        """Days that were looked at."""
        return int(self.works.shape[1]) * self.step_seconds / DAY_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Loan:
    """What lending on one card comes to.

    Attributes:
        scaling: factor by which grants are divided.
        switches_per_day: how often framebuffer of a pod comes back.
        switch_seconds: how long one waits for that, on average.
        waits_seconds_per_day: how long each item waits, (items of the card,).
        host_bytes: most framebuffer in host memory at a time, as the pods are used.
        host_bytes_max: all that may ever lie there: what is granted beyond what is kept.
    """

    scaling: float
    switches_per_day: float
    switch_seconds: float
    waits_seconds_per_day: NDArray[np.float64]
    host_bytes: float
    host_bytes_max: float


def scaling_max(capability: Capabilities) -> float:
    """Largest factor that may be asked for of a backend."""
    probed = capability.probed_lending
    return SCALING_MAX if probed is None else min(SCALING_MAX, probed.scaling_max)


def lenders_of(
    demand: Demand,
    touches: NDArray[np.bool_],
    rows: NDArray[np.int64],
    may: Sequence[bool],
    *,
    days: int,
    capability: Capabilities,
) -> Lenders:
    """What the history shows of those who may lend.

    Args:
        touches: steps in which each row of the demand did anything at all: that is enough to pull framebuffer back.
        rows: rows of the demand, one or more, all on cards of one model.
        may: whether the rules allow it, for each of them.
        days: latest days that are looked at.
        capability: what is known of the backend.
    """
    steps = min(demand.steps, days * demand.steps_per_day)
    compute = demand.compute[rows][:, demand.steps - steps :]
    probed, first = capability.probed_lending, demand.grants[int(rows[0])]
    need = np.where(np.isfinite(demand.need_bytes[rows]), demand.need_bytes[rows], 0.0)
    return Lenders(
        may=np.array(may, bool),
        works=_works(compute, touches[rows][:, demand.steps - steps :], demand.steps_per_day),
        held_bytes=need.max(axis=1, initial=0.0).astype(float),
        step_seconds=demand.step_seconds,
        bytes_per_second=paging_bytes_per_second(first.card_model, capability.spill_bytes_per_second),
        scaling_max=scaling_max(capability),
        kept_bytes=None if probed is None else probed.kept_ratio * first.framebuffer_bytes,
    )


def _works(compute: Float32, touches: NDArray[np.bool_], per_day: int) -> NDArray[np.bool_]:
    """Whether pods work; what nobody collected is what they did at that time of another day, and work if unknown."""
    seen: NDArray[np.bool_] = np.asarray(np.isfinite(compute), bool)
    works: NDArray[np.bool_] = np.asarray((np.nan_to_num(compute) > ACTIVE_RATIO_MIN) | touches, bool)
    steps = compute.shape[1]
    for time in range(min(per_day, steps)):
        column = slice(time, steps, per_day)
        usual = np.asarray(works[:, column].any(axis=1) | ~seen[:, column].any(axis=1), bool)
        works[:, column] |= ~seen[:, column] & usual[:, None]
    return works


def any_by_hours(lenders: Lenders, granted_bytes: NDArray[np.float64], capacity_bytes: float) -> bool:
    """Whether any pod that may lend has others of other hours with which its card would be too small.

    Where none has, no card can be shared by lending that could not be shared without.

    Args:
        granted_bytes: grant of every item, (items,).
    """
    able = np.flatnonzero(lenders.may & (granted_bytes >= GRANT_BYTES_MIN))
    works, granted = lenders.works[able].astype(np.float32), granted_bytes[able]
    for place in range(0, len(able), _ROWS_AT_ONCE):
        part = slice(place, place + _ROWS_AT_ONCE)
        fits = works[part] @ works.T <= OVERLAP_RATIO_MAX * works.shape[1]
        fits[np.arange(len(fits)), np.arange(len(able))[part]] = False
        together = granted[part] + fits @ granted
        if bool((fits.any(axis=1) & (together > capacity_bytes)).any()):
            return True
    return False


def loan_of(
    lenders: Lenders,
    items: NDArray[np.int64],
    granted_bytes: NDArray[np.float64],
    capacity_bytes: float,
    *,
    scaling_min: float = 1.0,
) -> Loan | None:
    """What it comes to when items share a card that is smaller than their grants.

    Args:
        granted_bytes: grant of every item, (items of all,).
        scaling_min: least factor, such as the one of other cards of the node.

    Returns:
        None where no factor lets those who work at a time hold their grants.
    """
    works, granted = lenders.works[items], granted_bytes[items]
    scaling = _scaling(lenders, items, granted, capacity_bytes, scaling_min)
    if scaling is None:
        return None
    kept = lenders.kept_of(granted, scaling)
    begins = np.flatnonzero((works[:, 1:] != works[:, :-1]).any(axis=0)) + 1
    residency, card = Residency(len(items)), np.zeros(len(items), np.int64)
    held, capacity = np.minimum(lenders.held_bytes[items], granted), np.array([capacity_bytes])
    switches, waited, peak = 0, np.zeros(len(items)), 0.0
    for number, step in enumerate([0, *begins.tolist()]):
        turn = residency.turn(step, works[:, step], held, kept, card, capacity)
        peak = max(peak, float(turn.out_bytes[0]))
        if number:
            switches += int(turn.came_back.sum())
            waited += turn.waits_bytes / lenders.bytes_per_second
    return Loan(
        scaling=scaling,
        switches_per_day=switches / lenders.days,
        switch_seconds=float(waited.sum()) / switches if switches else 0.0,
        waits_seconds_per_day=waited / lenders.days,
        host_bytes=peak,
        host_bytes_max=float((granted - kept).sum()),
    )


def _scaling(
    lenders: Lenders, items: NDArray[np.int64], granted: NDArray[np.float64], capacity_bytes: float, least: float
) -> float | None:
    """Smallest factor with which those who work at a time hold their grants beside what the others keep."""
    # Who works at a time, as bits: few of all sets ever do.
    works = lenders.works[items]
    bits = 1 << np.arange(len(works), dtype=np.int64)
    sets = np.unique(bits @ works)
    at_work: NDArray[np.bool_] = np.asarray(sets & bits[:, None] > 0, bool)
    working, resting = granted @ at_work, lenders.kept_of(granted, 1.0) @ ~at_work
    room = capacity_bytes - working
    asked = np.where(room > 0, resting / np.maximum(room, 1.0), np.where(resting > 0, np.inf, 1.0))
    if lenders.kept_bytes is not None:
        # No factor makes less of it stay.
        asked = np.where(resting <= room, 1.0, np.inf)
    # Those that no factor helps are too many at a time: that is harm, and counted as such.
    helped = asked[(room >= 0) & (asked <= lenders.scaling_max)]
    if not len(helped):
        return None
    factor = max(float(helped.max()), float(granted.sum()) / capacity_bytes, least)
    factor = math.ceil(round(factor / _SCALING_STEP, 6)) * _SCALING_STEP
    return round(factor, 2) if factor <= lenders.scaling_max else None


def lent_violated(
    lenders: Lenders,
    items: NDArray[np.int64],
    granted_bytes: NDArray[np.float64],
    load: Float32,
    type_of: NDArray[np.int32],
    capacity_bytes: float,
    *,
    most: float = np.inf,
) -> float:
    """Violated item-points of a card on which framebuffer is lent: contended, full, or waiting for what comes back.

    Args:
        load: scenarios of demand, (types, points).
        type_of: type of every item, rows of `load`.
        most: beyond it only that it is more; then nobody asks how long pods wait.
    """
    demand, granted = load[type_of[items]], granted_bytes[items]
    active: NDArray[np.bool_] = np.asarray(demand > ACTIVE_RATIO_MIN, bool)
    running = active.sum(axis=0)
    scaling = _scaling(lenders, items, granted, capacity_bytes, 1.0)
    if scaling is None:
        return float(running.sum())
    held = granted @ active + lenders.kept_of(granted, scaling) @ ~active
    bad = (demand.sum(axis=0) > CONTENTION_RATIO_MAX) | (held > capacity_bytes * (1 + 1e-9))
    violated = float(running[bad].sum())
    if violated > most:
        return violated
    loan = loan_of(lenders, items, granted_bytes, capacity_bytes, scaling_min=scaling)
    waits = 0.0 if loan is None else float(loan.waits_seconds_per_day.sum())
    return violated + waits / DAY_SECONDS * int(load.shape[1])


def over_full(bin_of: NDArray[np.int32], item_bytes: NDArray[np.float64], capacity_bytes: float) -> NDArray[np.int64]:
    """Bins whose items were granted more than a card has."""
    return np.flatnonzero(np.bincount(bin_of, weights=item_bytes) > capacity_bytes).astype(np.int64)


def lending_sweep(
    problem: PackingProblem, lenders: Lenders, packer: Packer, prices: Sequence[float], *, seed: int
) -> Iterator[NDArray[np.int32]]:
    """Bin of each item, one packing per price; cards are joined by hours last or first, whichever costs less.

    Joined last, a card that took small pods in may fit no other; joined first, it may have fitted them instead.

    Args:
        prices: violated item-points that a card is worth, highest first.
    """
    for packing in packer.sweep(problem, prices, seed=seed):
        price = packing.price
        last = joined_by_hours(problem, packing.bin_of, lenders, price)
        apart = np.arange(len(problem.item_type), dtype=np.int32)
        first = joined_by_hours(problem, apart, lenders, price, only_lent=True)
        left = np.flatnonzero(np.bincount(first)[first] == 1)
        if len(left) == len(apart):
            yield last
            continue
        first = first + np.int32(len(apart))
        for others in packer.sweep(_part_of(problem, left), [price], seed=seed):
            first[left] = others.bin_of
        first = joined_by_hours(problem, renumbered(first)[0], lenders, price)
        yield min((last, first), key=lambda bin_of: _cost(problem, bin_of, lenders, price))


def joined_by_hours(
    problem: PackingProblem, bin_of: NDArray[np.int32], lenders: Lenders, price: float, *, only_lent: bool = False
) -> NDArray[np.int32]:
    """A packing in which cards are joined whose pods work in different hours, where that harms less than it is worth.

    Args:
        problem: what was packed, with the scenarios that the packer searched on.
        lenders: one row per item.
        price: violated item-points that a card is worth.
        only_lent: cards are joined only where that takes more than one card's framebuffer.

    Returns:
        Bin of each item, (items,); a bin that holds more than a card is one on which framebuffer is lent.
    """
    items_of = _items_of(bin_of)
    may = lenders.may & (problem.item_bytes >= GRANT_BYTES_MIN)
    able = [items for items in items_of if may[items].all() and _turns(lenders, items) <= TURNS_PER_DAY_MAX]
    if len(able) < 2:
        return bin_of
    busy = np.array([lenders.works[items].any(axis=0) for items in able])
    overlap = (busy.astype(np.float32) @ busy.T.astype(np.float32)) / max(1, busy.shape[1])
    harm = np.array([_harm(problem, lenders, items) for items in able])
    members: dict[int, list[int]] = {}
    joined = bin_of.copy()
    for number in np.lexsort((np.arange(len(able)), -busy.mean(axis=1))).tolist():
        least = {host: max(float(overlap[number, other]) for other in own) for host, own in members.items()}
        near = sorted((share, host) for host, share in least.items() if share <= OVERLAP_RATIO_MAX)
        for _, host in near[:CANDIDATES_MAX]:
            both = np.concatenate([able[other] for other in (*members[host], number)])
            if not _may_meet(problem, both):
                continue
            if only_lent and problem.item_bytes[both].sum() <= problem.capacity_bytes:
                continue
            most = price + harm[host] + harm[number]
            together = _harm(problem, lenders, both, most)
            if together <= most:
                members[host].append(number)
                harm[host] = together
                joined[able[number]] = bin_of[able[host][0]]
                break
        else:
            members[number] = [number]
    return renumbered(joined)[0]


def _part_of(problem: PackingProblem, items: NDArray[np.int64]) -> PackingProblem:
    """The same problem for some of its items."""
    return replace(
        problem,
        item_type=problem.item_type[items],
        item_workload=problem.item_workload[items],
        item_group=problem.item_group[items],
        item_bytes=problem.item_bytes[items],
        is_low=problem.is_low[items],
    )


def _cost(problem: PackingProblem, bin_of: NDArray[np.int32], lenders: Lenders, price: float) -> float:
    """Harm and cards of a packing, in violated item-points."""
    items_of = _items_of(bin_of)
    return sum((_harm(problem, lenders, items) for items in items_of), start=price * len(items_of))


def _items_of(bin_of: NDArray[np.int32]) -> list[NDArray[np.int64]]:
    order = np.argsort(bin_of, kind="stable").astype(np.int64)
    return np.split(order, np.cumsum(np.bincount(bin_of))[:-1])


def _turns(lenders: Lenders, items: NDArray[np.int64]) -> float:
    busy: NDArray[np.bool_] = np.asarray(lenders.works[items].any(axis=0), bool)
    return float((busy[1:] != busy[:-1]).sum()) / lenders.days


def _may_meet(problem: PackingProblem, items: NDArray[np.int64]) -> bool:
    """What no packing may break: slices of a card, replicas apart, and isolation groups."""
    workloads, groups = problem.item_workload[items], problem.item_group[items]
    return (
        len(items) <= problem.slices_max
        and len(np.unique(workloads)) == len(items)
        and bool((groups == groups[0]).all())
    )


def _harm(problem: PackingProblem, lenders: Lenders, items: NDArray[np.int64], most: float = np.inf) -> float:
    """Violated item-points of one bin, on the scenarios that are searched on."""
    granted, capacity = problem.item_bytes, problem.capacity_bytes
    if granted[items].sum() > capacity:
        return lent_violated(lenders, items, granted, problem.load, problem.item_type, capacity, most=most)
    demand = problem.load[problem.item_type[items]]
    contended = demand.sum(axis=0) > CONTENTION_RATIO_MAX
    return float((demand > ACTIVE_RATIO_MIN).sum(axis=0)[contended].sum())
