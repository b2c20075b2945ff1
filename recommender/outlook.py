"""What may come for the pods on one card model, whatever they are granted: scenarios, peaks, footprints.

Made once per plan and card model, for `consolidate` to grant framebuffer and to pack by; pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fleet.capabilities.capability import SHARED_PERCENT_MAX, Capabilities
from fleet.inventory import CardModelName
from fleet.priority_holds import Hold
from fleet.usage import Float32
from recommender.demand import Demand, alike
from recommender.footprint_grants import Footprints, footprints_of
from recommender.harm.pod_ceiling import active_points
from recommender.harm.scenarios import POINTS_PER_DAY, daily_blocks, draw_scenarios, type_means
from recommender.harm.surprise import learn_surprises
from recommender.latency.inflation import least_hard_percent
from recommender.lending import Lenders, lenders_of

SCENARIO_DAYS = 84
"""Days of scenarios that a packing is searched on."""
JUDGED_TIMES = 4
"""How many times as many days a packing is judged on, and framebuffer is granted by: neither costs a search, and what
few days happen to hold would decide how many cards a small fleet frees."""
JUDGED_CELLS_MAX = 2**25
"""Most numbers of such scenarios of one card model, unless a search needs more; of many pods fewer days say as much."""
DRAWS_MAX = 24
DAYS_MAX = 14
"""Latest days of the history that scenarios are made of."""
HAZARD_FACTOR = 2.3
"""Multiplies the learned hazards, for the last days of a history have no later days to learn from. Chosen so that what
is predicted straddles what was realised on cut days of a public inference fleet (too low where its services shifted,
too high where they did not) and on fleets of a second generator."""
PEAK_QUANTILE = 0.9995
"""Share of the steps in which a pod asks for no more than what counts as its peak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """What the rules allow for one row.

    Attributes:
        hold: what holds it back where it has low priority; None where it has not.
        group: isolation group, -1 for none.
        is_hard: its share of compute is all it gets, and all that it was promised.
        takes_limit: its pods can be held to a core limit at every moment.
        is_flat: True where it shares only if all peaks fit (its peak counts at every point).
        lends: its framebuffer may be lent to others of its card while it rests, and theirs to it.
    """

    row: int
    workload: int
    hold: Hold | None = None
    group: int
    is_hard: bool = False
    takes_limit: bool = True
    is_flat: bool
    lends: bool = False

    @property
    def is_low(self) -> bool:
        """Whether others come before it: low priority that nothing holds back contends like they do."""
        return self.hold not in (None, Hold.NONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What may come for the rows on one card model, whatever they are granted.

    Attributes:
        rows: rows of the demand, (items,), int64.
        members: what the rules allow, (items).
        type_of: type of each item, (items,), int32.
        is_low: True for items of low priority that something holds back, (items,).
        load: scenarios to search on, (types, points); 0 for low priority, the peak throughout for flat types.
        fresh: scenarios the search never sees, likewise.
        fresh_rising: `fresh` as drawn.
        footprints: need of framebuffer per item.
        peak: largest demand to expect of each item, 0-1, (items,).
        fast_percent: hard share under which requests of each item stay fast enough beside low priority whose gate
            needs such limits, percent, (items,); 100 where none is enough, 1 where nothing asks for one.
        low_demand: mean demand of each item of low priority, 0 for others, (items,).
        joint_points: the first points of `load` replay the history jointly.
        active: points of `fresh` in which each item is active, (items,).
        capacity_bytes: framebuffer of a card that can be shared.
        lenders: what the history shows of items that may lend framebuffer; None where none may.
    """

    card_model: CardModelName
    rows: NDArray[np.int64]
    members: tuple[Member, ...]
    type_of: NDArray[np.int32]
    is_low: NDArray[np.bool_]
    load: Float32
    fresh: Float32
    fresh_rising: Float32
    footprints: Footprints
    peak: NDArray[np.float64]
    fast_percent: NDArray[np.int64]
    low_demand: NDArray[np.float64]
    joint_points: int
    active: NDArray[np.int64]
    capacity_bytes: float
    lenders: Lenders | None


def outlook_of(
    demand: Demand,
    members: Sequence[Member],
    *,
    seed: int,
    capacity_bytes: float,
    inflation_max: float,
    capability: Capabilities,
    touches: NDArray[np.bool_] | None = None,
) -> Outlook:
    """Draws what may come for the rows of one card model.

    Args:
        members: rows that may share, all on one card model, sorted by row.
        capacity_bytes: framebuffer of a card that can be shared.
        inflation_max: most that P99 latency may grow for the sake of low priority, times that alone.
        touches: steps in which each row of the demand did anything (`demand.touched`); None where none may lend.
        capability: what is known of the backend.
    """
    rows = np.array([member.row for member in members], np.int64)
    type_of = alike(demand, rows)
    is_low = np.array([member.is_low for member in members], bool)
    blocks = daily_blocks(demand, rows)[:, -DAYS_MAX:]
    surprises = learn_surprises(type_means(blocks, type_of))
    draws = min(DRAWS_MAX, max(2, SCENARIO_DAYS // blocks.shape[1]))
    cells = len(surprises.record) * blocks.shape[1] * POINTS_PER_DAY * draws
    times = int(np.clip(JUDGED_CELLS_MAX // cells, 1, JUDGED_TIMES))
    load, fresh, rising = (
        draw_scenarios(
            blocks, type_of, surprises, draws=many * draws, replays=many, seed=number, hazard_factor=HAZARD_FACTOR
        )
        for number, many in ((seed, 1), (seed + 1, times), (seed + 2, times))
    )
    peak_of_type = np.quantile(rising, PEAK_QUANTILE, axis=1)
    peak = peak_of_type[type_of].astype(float)
    footprints = replace(footprints_of(demand, rows, type_of=type_of, load=rising), capacity_bytes=capacity_bytes)
    mean, fresh_rising = load.mean(axis=1), fresh.copy()
    flat = np.unique(type_of[[member.is_flat for member in members]])
    for matrix in (load, fresh):
        # One peak for both: a card that just holds those of some days would be too full, all the time, by another's.
        matrix[flat] = peak_of_type[flat, None]
        matrix[np.unique(type_of[is_low])] = 0.0
    card_model = demand.grants[members[0].row].card_model
    lenders = None
    if touches is not None and any(member.lends for member in members):
        may = [member.lends for member in members]
        lenders = lenders_of(demand, touches, rows, may, days=DAYS_MAX, capability=capability)
    return Outlook(
        card_model=card_model,
        rows=rows,
        members=tuple(members),
        type_of=type_of,
        is_low=is_low,
        load=load,
        fresh=fresh,
        fresh_rising=fresh_rising,
        footprints=footprints,
        peak=peak,
        fast_percent=_fast_percent(demand, members, inflation_max),
        low_demand=np.where(is_low, mean[type_of], 0.0),
        joint_points=load.shape[1] // draws,
        active=active_points(fresh)[type_of],
        capacity_bytes=capacity_bytes,
        lenders=lenders,
    )


def _fast_percent(demand: Demand, members: Sequence[Member], inflation_max: float) -> NDArray[np.int64]:
    least = np.ones(len(members), np.int64)
    if any(member.hold is Hold.CORES for member in members):
        for item, member in enumerate(members):
            if member.hold is None:
                found = least_hard_percent(demand.hourly_load([member.row]), inflation_max)
                least[item] = SHARED_PERCENT_MAX + 1 if found is None else found
    return least
