"""The contract of packers, on any problem."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from recommender.harm.risk import contention_harm
from recommender.packing.exact import ExactPacker
from recommender.packing.greedy import GreedyPacker
from recommender.packing.packer import Packer, PackingProblem

pytestmark = pytest.mark.long

PACKERS: list[Packer] = [GreedyPacker(), ExactPacker(items_max=20)]


def unlimited(problem: PackingProblem) -> NDArray[np.float32]:
    return np.full(len(problem.is_low), np.inf, np.float32)


def problem(items: int, types: int, seed: int, *, slices_max: int = 4, groups: int = 1, busy: float = 0.4):
    random = np.random.default_rng(seed)
    item_type = np.sort(random.integers(0, types, items)).astype(np.int32)
    return PackingProblem(
        item_type=item_type,
        item_workload=item_type,
        item_group=(item_type % groups - 1).astype(np.int32),
        item_bytes=random.uniform(1, 12, types)[item_type],
        load=(random.uniform(0, 1, (types, 64)) ** 3 * 2 * busy).clip(0, 1).astype(np.float32),
        is_low=(item_type % 5 == 4),
        capacity_bytes=24.0,
        slices_max=slices_max,
    )


@pytest.mark.parametrize("packer", PACKERS)
@given(
    items=st.integers(0, 60),
    types=st.integers(1, 12),
    seed=st.integers(0, 10_000),
    slices_max=st.integers(1, 5),
    groups=st.integers(1, 3),
    prices=st.lists(st.floats(0, 100), min_size=1, max_size=3),
)
def test_packing_loses_nobody_and_passes_no_limit(packer, items, types, seed, slices_max, groups, prices) -> None:
    given_problem = problem(items, types, seed, slices_max=slices_max, groups=groups)
    for packing in packer.sweep(given_problem, sorted(prices, reverse=True), seed=seed):
        assert len(packing.bin_of) == items
        assert set(packing.bin_of.tolist()) == set(range(packing.bins))
        for b in range(packing.bins):
            inside = np.flatnonzero(packing.bin_of == b)
            assert given_problem.item_bytes[inside].sum() <= 24.0 + 1
            assert len(inside) <= slices_max
            assert len(set(given_problem.item_workload[inside].tolist())) == len(inside)
            assert len(set(given_problem.item_group[inside].tolist())) == 1


def test_same_problem_gives_the_same_packing() -> None:
    first, second = ([p.bin_of.tolist() for p in GreedyPacker().sweep(problem(80, 9, 3), [5, 1], seed=7)] for _ in "ab")
    assert first == second


def test_lower_price_buys_less_harm_with_more_cards() -> None:
    crowded = problem(120, 30, 5, busy=0.6)
    dense, careful = GreedyPacker().sweep(crowded, [1000.0, 0.1], seed=1)
    harms = [
        contention_harm(
            p.bin_of, p.bins, crowded.item_type, crowded.load, crowded.is_low, unlimited(crowded)
        ).violated.sum()
        for p in (dense, careful)
    ]
    assert dense.bins < careful.bins
    assert harms[1] < harms[0]


def test_search_finds_the_pairs_that_never_meet() -> None:
    load = np.zeros((4, 48), np.float32)
    load[:2, :24] = 0.9
    load[2:, 24:] = 0.9
    day_and_night = PackingProblem(
        item_type=np.arange(4, dtype=np.int32), item_workload=np.arange(4, dtype=np.int32),
        item_group=np.full(4, -1, np.int32), item_bytes=np.array([12.0, 12.0, 12.0, 12.0]), load=load,
        is_low=np.zeros(4, bool), capacity_bytes=24.0, slices_max=10,
    )  # fmt: skip
    (packing,) = GreedyPacker().sweep(day_and_night, [10.0], seed=1)
    assert packing.bins == 2
    assert (
        contention_harm(
            packing.bin_of, 2, day_and_night.item_type, load, day_and_night.is_low, unlimited(day_and_night)
        ).violated.sum()
        == 0
    )
