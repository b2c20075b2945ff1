"""How few bins, or how little cost, any packing could do with: column generation with a bound that holds at any time.

A packing is a choice of bins, a bin a set of kinds of items; the program over all possible bins has too many columns to
write down. So it starts with the bins of a packing that is known, and asks for the bin that would improve it most: the
most dual value that fits one card, less its harm. That question is answered by branch and bound over the kinds, pruned
by Lagrange multipliers of framebuffer and slices. When no bin improves the program it is the bound; when a
search is cut short, what it may have missed is known, and Farley's scaling of the duals still gives a bound.

A bin costs the price of a card and its harm (the ramp of `greedy`). Pure arithmetic, the same on any machine. Called by
`exact`.

Source: Gilmore & Gomory, A linear programming approach to the cutting-stock problem, Operations Research 9 (1961);
Farley, A note on bounding a class of linear programming problems, Operations Research 38 (1990).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

from fleet.sharing import ACTIVE_RATIO_MIN, CONTENTION_RATIO_MAX
from recommender.packing.greedy import RAMP_RATIO
from recommender.packing.linear_program import Program, solve_fractional
from recommender.packing.packer import SLICES_MAX, ItemKinds

ROUNDS_MAX = 400
"""Rounds of asking for better bins."""
NODES_FIRST = 200_000
"""Nodes of one search for a better bin; what lies beyond is bounded, not searched."""
NODES_LAST = 12_800_000
"""Nodes that a search is given in the end, when shorter ones find nothing better and have not seen everything."""
_NODES_STEP = 8
COLUMNS_PER_ROUND = 12
"""Better bins that one search hands over at most."""
_IMPROVES = 1e-6
_NOISE_BYTES = 0.5

_ACTIVE = np.float32(ACTIVE_RATIO_MIN)
_RAMP_START = np.float32(CONTENTION_RATIO_MAX - RAMP_RATIO / 2)
_RAMP_SLOPE = np.float32(1 / RAMP_RATIO)

F = TypeVar("F", bound=Callable[..., Any])
Column = tuple[int, ...]
"""Kinds in one bin, ascending."""


def _compiled(function: F) -> F:
    compiled: Any = numba.njit(cache=True, nogil=True)(function)
    return cast(F, compiled)


@dataclass(frozen=True, slots=True, kw_only=True)
class BinLimits:
    """What one bin may hold and what it costs.

    Attributes:
        price: cost of a bin without harm, above 0.
    """

    capacity_bytes: float
    slices_max: int
    price: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """What column generation came to.

    Attributes:
        bound: no packing costs less.
        value: cost of the program in fractions over the columns that were found.
        columns: bins, each a set of kinds.
        costs: cost of each, (columns,), float64.
        rounds: how often better bins were asked for.
    """

    bound: float
    value: float
    columns: tuple[Column, ...]
    costs: NDArray[np.float64]
    rounds: int


class _Search(NamedTuple):
    """One group's kinds in the order in which they are tried, and what a bin holds, as compiled functions see it."""

    load: Any
    sizes: Any
    workloads: Any
    counted: Any
    profit: Any
    reduced: Any
    suffix: Any
    capacity: float


def generate_columns(
    kinds: ItemKinds,
    limits: BinLimits,
    start: Sequence[Column],
    *,
    rounds_max: int = ROUNDS_MAX,
    work_max: float = math.inf,
) -> Columns:
    """Columns and a bound for packing these kinds.

    Args:
        limits: what a bin may hold and what it costs.
        start: bins of a packing that is known; together they hold every kind.
        rounds_max: rounds after which the bound so far is returned.
        work_max: slots that searches may look at, over all rounds: nodes × slots; then the bound so far is returned.
            Counted, not timed, so that the answer is the same on any machine.
    """
    columns = list(dict.fromkeys([*start, *((kind,) for kind in range(len(kinds.count)))]))
    costs = [bin_cost(kinds, limits, column) for column in columns]
    known = set(columns)
    groups = [np.flatnonzero(kinds.group == group) for group in np.unique(kinds.group)]
    bound = value = 0.0
    rounds, nodes = 0, NODES_FIRST
    work, points = 0.0, max(1, kinds.load.shape[1])
    while rounds < rounds_max:
        rounds += 1
        answer = solve_fractional(_covering(kinds, columns, np.array(costs)))
        value, duals = answer.cost, np.maximum(answer.duals, 0.0)
        found: list[Column] = []
        most = limits.price
        for group in groups:
            left = (work_max - work) / points
            better, reached, searched = _better_bins(kinds, limits, group, duals, int(min(nodes, max(1.0, left))))
            work += searched * points
            found += [column for column in better if column not in known]
            most = max(most, reached)
        bound = max(bound, float(duals @ kinds.count) * limits.price / most)
        if value <= bound * (1 + _IMPROVES) or work >= work_max:
            break
        if not found:
            if nodes >= NODES_LAST or most <= limits.price * (1 + _IMPROVES):
                break
            nodes = min(nodes * _NODES_STEP, NODES_LAST)
        columns += found
        costs += [bin_cost(kinds, limits, column) for column in found]
        known.update(found)
    return Columns(bound=min(bound, value), value=value, columns=tuple(columns), costs=np.array(costs), rounds=rounds)


def bin_cost(kinds: ItemKinds, limits: BinLimits, column: Column) -> float:
    """Price of a card and the harm of the kinds in it."""
    rows = kinds.load[list(column)]
    counted = (~kinds.is_low[list(column)])[:, None] & (rows > _ACTIVE)
    over = np.clip((rows.sum(axis=0) - _RAMP_START) * _RAMP_SLOPE, 0.0, 1.0)
    return limits.price + float((over * counted.sum(axis=0)).sum())


def column_rows(kinds: ItemKinds, columns: Sequence[Column]) -> NDArray[np.float64]:
    """How often each kind lies in each column, (kinds, columns)."""
    rows = np.zeros((len(kinds.count), len(columns)))
    for number, column in enumerate(columns):
        rows[list(column), number] = 1.0
    return rows


def _covering(kinds: ItemKinds, columns: Sequence[Column], costs: NDArray[np.float64]) -> Program:
    return Program(
        costs=costs,
        rows=column_rows(kinds, columns),
        row_least=kinds.count.astype(float),
        row_most=np.full(len(kinds.count), np.inf),
        most=np.full(len(columns), np.inf),
    )


def _better_bins(
    kinds: ItemKinds, limits: BinLimits, group: NDArray[np.int64], duals: NDArray[np.float64], nodes_max: int
) -> tuple[list[Column], float, int]:
    """Bins of one group worth more than the price of a card, the most that any bin can be worth, and nodes searched."""
    worth = group[duals[group] > _IMPROVES]
    if not len(worth):
        return [], limits.price, 0
    base, multipliers = _relaxed(kinds, limits, worth, duals)
    reduced = duals[worth] - multipliers
    order = np.argsort(-reduced, kind="stable")
    worth, reduced = worth[order], reduced[order]
    search = _Search(
        load=np.ascontiguousarray(kinds.load[worth]),
        sizes=kinds.size_bytes[worth],
        workloads=kinds.workload[worth],
        counted=(~kinds.is_low[worth]).astype(np.float32),
        profit=duals[worth],
        reduced=reduced,
        suffix=np.append(np.cumsum(np.maximum(reduced, 0.0)[::-1])[::-1], 0.0),
        capacity=limits.capacity_bytes + _NOISE_BYTES,
    )
    found = np.full((COLUMNS_PER_ROUND, min(limits.slices_max, SLICES_MAX)), -1, np.int64)
    count, missed, searched = _branch(search, base, limits.price + _IMPROVES, nodes_max, found)
    columns = [tuple(sorted(int(kind) for kind in worth[row[row >= 0]])) for row in found[: min(count, len(found))]]
    values = [float(duals[list(column)].sum()) - bin_cost(kinds, limits, column) + limits.price for column in columns]
    return columns, max([limits.price, missed, *values]), int(searched)


def _relaxed(
    kinds: ItemKinds, limits: BinLimits, worth: NDArray[np.int64], duals: NDArray[np.float64]
) -> tuple[float, NDArray[np.float64]]:
    """Multipliers of the limits of one bin, from the fractional answer to which kinds are worth most in it.

    Returns:
        What the limits are worth when untouched, and what each kind takes of that, (worth,). Any set of kinds that
        fits is worth at most the first plus, for each of its kinds, its dual less the second.
    """
    matrix = np.array([kinds.size_bytes[worth] / limits.capacity_bytes, np.full(len(worth), 1.0 / limits.slices_max)])
    most = np.array([1.0 + _NOISE_BYTES / limits.capacity_bytes, 1.0])
    answer = solve_fractional(
        Program(
            costs=-duals[worth],
            rows=matrix,
            row_least=np.full(len(most), -np.inf),
            row_most=most,
            most=np.ones(len(worth)),
        )
    )
    prices = np.maximum(-answer.duals, 0.0)
    return float(prices @ most), matrix.T @ prices


@_compiled
def _branch(search: Any, base: float, worth_min: float, nodes_max: int, found: Any) -> Any:
    """Depth first over the kinds: the best sets, each better than the one before, the last ones kept.

    Returns:
        How many sets are in `found` (the newest replaces the oldest), the most that a set beyond `nodes_max` could be
        worth (0 where the search came to its end), and the nodes that were searched.
    """
    kinds, points = search.load.shape
    slices = found.shape[1]
    total = np.zeros((slices + 1, points), np.float32)
    active = np.zeros((slices + 1, points), np.float32)
    chosen = np.zeros(slices + 1, np.int64)
    used = np.zeros(slices + 1)
    profit = np.zeros(slices + 1)
    reduced = np.zeros(slices + 1)
    harm = np.zeros(slices + 1)
    best, missed = worth_min, 0.0
    count, nodes, depth, at = 0, 0, 0, 0
    while True:
        went_down = False
        while at < kinds and depth < slices:
            bound = base + reduced[depth] + search.suffix[at] - harm[depth]
            if bound <= best:
                break
            if nodes >= nodes_max:
                missed = max(missed, bound)
                break
            nodes += 1
            if _fits(search, at, chosen, depth, used[depth]):
                down = depth + 1
                harm[down] = _add(search, at, total, active, depth)
                profit[down] = profit[depth] + search.profit[at]
                reduced[down] = reduced[depth] + search.reduced[at]
                used[down] = used[depth] + search.sizes[at]
                chosen[depth] = at
                depth, at, went_down = down, at + 1, True
                if profit[depth] - harm[depth] > best:
                    best = profit[depth] - harm[depth]
                    slot = count % found.shape[0]
                    found[slot, :] = -1
                    found[slot, :depth] = chosen[:depth]
                    count += 1
                break
            at += 1
        if went_down:
            continue
        if depth == 0:
            return count, missed, nodes
        depth -= 1
        at = chosen[depth] + 1


@_compiled
def _fits(search: Any, kind: int, chosen: Any, depth: int, used: float) -> bool:
    if used + search.sizes[kind] > search.capacity and depth > 0:
        return False
    for k in range(depth):  # noqa: SIM110 - compiled code has no generators
        if search.workloads[chosen[k]] == search.workloads[kind]:
            return False
    return True


@_compiled
def _add(search: Any, kind: int, total: Any, active: Any, depth: int) -> float:
    """Sums of a set with one kind more, one level down, and its harm."""
    row = search.load[kind]
    harm = np.float32(0.0)
    for t in range(row.shape[0]):
        total[depth + 1, t] = total[depth, t] + row[t]
        active[depth + 1, t] = active[depth, t] + (search.counted[kind] if row[t] > _ACTIVE else np.float32(0.0))
        over = (total[depth + 1, t] - _RAMP_START) * _RAMP_SLOPE
        harm += min(max(over, np.float32(0.0)), np.float32(1.0)) * active[depth + 1, t]
    return float(harm)
