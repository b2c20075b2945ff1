"""Who shares a card with whom: scenarios, grants and packing put together, one group per card model.

Prices are walked down from many pods per card to few until the predicted violation meets the preset; between two
prices, the cards that harm most per card they save are dissolved. Called by `planner`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fleet.decisions import RiskLevel
from fleet.inventory import CardModelName
from fleet.sharing import CONTENTION_RATIO_MAX
from fleet.usage import Float32
from recommender.demand import Demand, alike
from recommender.footprint_grants import Grants, grant_framebuffer
from recommender.packer import Packer, PackingProblem, renumbered
from recommender.risk import Harm, contention_harm, shortage_points
from recommender.scenarios import daily_blocks, draw_scenarios, type_means
from recommender.surprise import learn_surprises

PRICES = (0.1, 0.03, 0.01, 0.005, 0.0025, 0.0012, 0.0006, 0.0003, 0.0001)
"""Harm that a card is worth: violated pods, on average over time."""
SCENARIO_DAYS = 84
"""Days of scenarios that a packing is searched on, and as many fresh ones that it is judged on."""
DRAWS_MAX = 24
DAYS_MAX = 14
"""Latest days of the history that scenarios are made of."""
HAZARD_FACTOR = 1.5
"""Multiplies the learned hazards. Chosen so that predictions straddle what was realised on cut days of one public
inference fleet: with 1 the harm was predicted 2-3 times too low where services shifted and right where they did not,
with 2 about 1.5 times too low and 1.7 times too high. The last days of a history have no later days to learn from."""
_PEAK_QUANTILE = 0.9995


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """What the rules allow for one row.

    Attributes:
        row: row of the demand.
        workload: number of its workload.
        is_low: low priority.
        group: isolation group, -1 for none.
        is_flat: True where it shares only if all peaks fit (its peak counts at every point).
    """

    row: int
    workload: int
    is_low: bool
    group: int
    is_flat: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Rows on one card model that may share, with everything the packer wants.

    Attributes:
        card_model: model.
        rows: rows of the demand, (items,), int64.
        problem: the packing problem.
        fresh: scenarios the search never sees, (types, points); 0 for low priority.
        grants: framebuffer per item.
        peak: largest demand to expect of each item, 0-1, (items,).
        low_demand: mean demand of each item of low priority, 0 for others, (items,).
        joint_points: the first points of `problem.load` replay the history jointly.
        shortage: expected item-points short of framebuffer once all are cut.
    """

    card_model: CardModelName
    rows: NDArray[np.int64]
    problem: PackingProblem
    fresh: Float32
    grants: Grants
    peak: NDArray[np.float64]
    low_demand: NDArray[np.float64]
    joint_points: int
    shortage: float

    @property
    def points(self) -> int:
        """Points of the scenarios."""
        return int(self.problem.load.shape[1])

    def harm_of(self, bin_of: NDArray[np.int32], bins: int) -> Harm:
        """Predicted harm of a packing of this group."""
        return contention_harm(bin_of, bins, self.problem.item_type, self.fresh, self.problem.is_low)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One packing of every group.

    Attributes:
        bin_of: per group, bin of each item.
        harm: per group, harm per bin.
        violation_ratio: predicted violated active time / active time, all pods counted, 0-1.
        bins: cards that carry an item.
    """

    bin_of: tuple[NDArray[np.int32], ...]
    harm: tuple[Harm, ...]
    violation_ratio: float
    bins: int


def make_group(
    demand: Demand,
    members: Sequence[Member],
    *,
    risk: RiskLevel,
    headroom_ratio: float,
    step_bytes: int,
    slices_max: int,
    seed: int,
) -> Group:
    """Prepares the rows of one card model.

    Args:
        demand: the series.
        members: rows that may share, all on one card model, sorted by row.
        risk: harm preset (chooses how careful grants are).
        headroom_ratio: see `grant_framebuffer`.
        step_bytes: the backend's step of framebuffer.
        slices_max: most slices of a card.
        seed: seed of the scenarios.
    """
    rows = np.array([member.row for member in members], np.int64)
    type_of = alike(demand, rows)
    is_low = np.array([member.is_low for member in members], bool)
    blocks = daily_blocks(demand, rows)[:, -DAYS_MAX:]
    surprises = learn_surprises(type_means(blocks, type_of))
    draws = min(DRAWS_MAX, max(2, SCENARIO_DAYS // blocks.shape[1]))
    load, fresh = (
        draw_scenarios(blocks, type_of, surprises, draws=draws, seed=number, hazard_factor=HAZARD_FACTOR)
        for number in (seed, seed + 1)
    )
    peak = np.quantile(load, _PEAK_QUANTILE, axis=1)[type_of].astype(float)
    grants = grant_framebuffer(demand, rows, risk=risk, headroom_ratio=headroom_ratio, step_bytes=step_bytes)
    low_demand = np.where(is_low, load.mean(axis=1)[type_of], 0.0)
    capacity = float(demand.grants[members[0].row].framebuffer_bytes)
    shortage = shortage_points(grants, type_of, fresh, capacity, is_low)
    for matrix in (load, fresh):
        for number in sorted({int(type_of[k]) for k, member in enumerate(members) if member.is_flat}):
            matrix[number] = np.float32(np.quantile(matrix[number], _PEAK_QUANTILE))
        matrix[np.unique(type_of[is_low])] = 0.0
    problem = PackingProblem(
        item_type=type_of,
        # Two pods of low priority would eat the same leftovers: at most one per card, as if of one workload.
        item_workload=np.array([-1 if member.is_low else member.workload for member in members], np.int32),
        item_group=np.array([member.group for member in members], np.int32),
        item_bytes=grants.granted_bytes,
        load=load,
        is_low=is_low,
        capacity_bytes=capacity,
        slices_max=slices_max,
    )
    return Group(
        card_model=demand.grants[members[0].row].card_model,
        rows=rows,
        problem=problem,
        fresh=fresh,
        grants=grants,
        peak=peak,
        low_demand=low_demand,
        joint_points=load.shape[1] // draws,
        shortage=shortage,
    )


def choose(
    groups: Sequence[Group], *, violation_ratio_max: float, resting_active: float, packer: Packer, seed: int
) -> Choice:
    """The packing with the fewest cards whose predicted violation meets the preset.

    Args:
        groups: groups, packed at one common price.
        violation_ratio_max: the preset, 0-1.
        resting_active: active pods on average of all that are in no group (they count in the ratio).
        packer: packer.
        seed: seed of the search.

    Returns:
        The choice; where even the lowest price is too harmful, cards are dissolved until it is not.
    """
    sweeps = [packer.sweep(group.problem, [price * group.points for price in PRICES], seed=seed) for group in groups]
    best: Choice | None = None
    for packings in zip(*sweeps, strict=True):
        found = judged(groups, [packing.bin_of for packing in packings], resting_active)
        settled = _dissolved(groups, found, violation_ratio_max, resting_active)
        if best is None or settled.bins < best.bins:
            best = settled
        if found.violation_ratio <= violation_ratio_max:
            break
    return best or judged(groups, [], resting_active)


def judged(groups: Sequence[Group], packings: Sequence[NDArray[np.int32]], resting_active: float) -> Choice:
    """Predicted harm of packings, one per group."""
    harms = [
        group.harm_of(bin_of, int(bin_of.max(initial=-1)) + 1) for group, bin_of in zip(groups, packings, strict=True)
    ]
    bad = sum((h.violated.sum() + g.shortage) / g.points for g, h in zip(groups, harms, strict=True))
    active = resting_active + sum(h.active.sum() / g.points for g, h in zip(groups, harms, strict=True))
    return Choice(
        bin_of=tuple(packings),
        harm=tuple(harms),
        violation_ratio=float(bad / active) if active > 0 else 0.0,
        bins=sum(len(harm.violated) for harm in harms),
    )


def _dissolved(groups: Sequence[Group], choice: Choice, limit: float, resting_active: float) -> Choice:
    """The choice with its most harmful cards given up until it is within the limit and no hard share is exceeded."""
    candidates: list[tuple[float, int, int, float]] = []
    packings = [bin_of.copy() for bin_of in choice.bin_of]
    for number, (group, harm) in enumerate(zip(groups, choice.harm, strict=True)):
        count = np.bincount(packings[number], minlength=len(harm.violated))
        for full in _over_promised(group, packings[number]):
            packings[number] = _split(packings[number], full)
            harm.violated[full] = 0.0
        for shared in np.flatnonzero((harm.violated > 0) & (count > 1)):
            share = float(harm.violated[shared]) / group.points
            candidates.append((-share / (int(count[shared]) - 1), number, int(shared), share))
    active = resting_active + sum(h.active.sum() / g.points for g, h in zip(groups, choice.harm, strict=True))
    bad = sum((h.violated.sum() + g.shortage) / g.points for g, h in zip(groups, choice.harm, strict=True))
    for _, number, b, share in sorted(candidates):
        if active <= 0 or bad / active <= limit:
            break
        packings[number] = _split(packings[number], b)
        bad -= share
    return judged(groups, [renumbered(bin_of)[0] for bin_of in packings], resting_active)


def _split(bin_of: NDArray[np.int32], b: int) -> NDArray[np.int32]:
    """The packing with one bin's items each in a bin of its own."""
    items = np.flatnonzero(bin_of == b)[1:]
    bin_of[items] = bin_of.max() + 1 + np.arange(len(items), dtype=np.int32)
    return bin_of


def _over_promised(group: Group, bin_of: NDArray[np.int32]) -> list[int]:
    """Bins whose isolated items alone were promised more compute than a card has."""
    hard = group.problem.item_group >= 0
    promised = np.bincount(bin_of[hard], weights=group.peak[hard], minlength=int(bin_of.max(initial=-1)) + 1)
    return [int(b) for b in np.flatnonzero(promised > CONTENTION_RATIO_MAX)]
