"""Exact packing and its proof, against every partition of small sets of pods."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.packing_gap import prove_gap
from fleet.errors import Refused
from recommender.packing.column_generation import BinLimits, bin_cost, generate_columns
from recommender.packing.exact import ExactPacker, columns_of
from recommender.packing.greedy import GreedyPacker
from recommender.packing.linear_program import Program, solve_fractional, solve_whole
from recommender.packing.packer import Packing, PackingProblem, kinds_of

pytestmark = pytest.mark.long

CAPACITY = 24.0 * 2**30


def problem(items: int, seed: int, *, low: bool = True) -> PackingProblem:
    random = np.random.default_rng(seed)
    types = random.integers(0, max(items - 1, 1), items).astype(np.int32)
    load = (random.uniform(0, 1, (items, 12)) ** 2 * 0.9).astype(np.float32)
    is_low = (types % 4 == 3) & low
    load[types[is_low]] = 0.0
    return PackingProblem(
        item_type=types,
        item_workload=types,
        item_group=(types % 5 == 4).astype(np.int32) - 1,
        item_bytes=random.uniform(2, 14, items)[types] * 2**30,
        load=load,
        is_low=is_low,
        capacity_bytes=CAPACITY,
        slices_max=int(random.integers(2, 5)),
    )


def partitions(items: list[int]) -> Iterator[list[list[int]]]:
    if not items:
        yield []
        return
    for rest in partitions(items[1:]):
        yield [[items[0]], *rest]
        for number, part in enumerate(rest):
            yield [*rest[:number], [items[0], *part], *rest[number + 1 :]]


def allowed(found: PackingProblem, part: list[int]) -> bool:
    return (
        len(part) <= found.slices_max
        and found.item_bytes[part].sum() <= CAPACITY
        and len(set(found.item_workload[part].tolist())) == len(part)
        and len(set(found.item_group[part].tolist())) == 1
    )


def least_cost(found: PackingProblem, price: float) -> float:
    """The cheapest of all partitions of the items."""
    kinds = kinds_of(found)
    limits = BinLimits(capacity_bytes=CAPACITY, slices_max=found.slices_max, price=price)
    costs: dict[tuple[int, ...], float] = {}

    def cost(part: list[int]) -> float:
        key = tuple(sorted(part))
        if key not in costs:
            fits = allowed(found, part)
            costs[key] = bin_cost(kinds, limits, tuple(kinds.kind_of[part].tolist())) if fits else np.inf
        return costs[key]

    return min(sum(cost(part) for part in parts) for parts in partitions(list(range(len(found.item_type)))))


@settings(max_examples=25, deadline=None)
@given(items=st.integers(1, 7), seed=st.integers(0, 10_000), price=st.floats(0.1, 20))
def test_least_harm_and_cards_are_found_and_proven(items: int, seed: int, price: float) -> None:
    found = problem(items, seed)
    (packing,) = ExactPacker().sweep(found, [price], seed=seed)
    gap = prove_gap(found, packing)
    least = least_cost(found, price)
    assert gap.bound <= least * (1 + 1e-5)
    assert least * (1 - 1e-5) <= gap.cost
    # Bins are found for the program in fractions; now and then a whole answer lacks one.
    assert gap.cost <= least * 1.05
    assert all(allowed(found, np.flatnonzero(packing.bin_of == number).tolist()) for number in range(packing.bins))


def test_exact_packing_is_never_dearer_than_the_one_it_starts_from() -> None:
    cheaper = 0
    for seed in range(6):
        found = problem(24, seed, low=False)
        prices = [12.0, 2.0]
        exact = list(ExactPacker().sweep(found, prices, seed=seed))
        greedy = list(GreedyPacker().sweep(found, prices, seed=seed))
        for ours, theirs in zip(exact, greedy, strict=True):
            ours_gap, theirs_gap = prove_gap(found, ours), prove_gap(found, theirs)
            assert ours_gap.cost <= theirs_gap.cost * (1 + 1e-9)
            assert theirs_gap.bound <= ours_gap.cost * (1 + 1e-9)
            cheaper += ours_gap.cost < theirs_gap.cost * (1 - 1e-6)
    assert cheaper > 0


def test_large_group_keeps_the_packing_that_it_came_with() -> None:
    found = problem(12, 1)
    (packing,) = ExactPacker(items_max=11).sweep(found, [3.0], seed=1)
    (start,) = GreedyPacker().sweep(found, [3.0], seed=1)
    assert packing.bin_of.tolist() == start.bin_of.tolist()


@settings(max_examples=20, deadline=None)
@given(items=st.integers(2, 7), seed=st.integers(0, 10_000), price=st.floats(0.1, 20))
def test_bound_holds_after_any_number_of_rounds(items: int, seed: int, price: float) -> None:
    found = problem(items, seed)
    (packing,) = GreedyPacker().sweep(found, [price], seed=seed)
    bounds = [prove_gap(found, packing, rounds_max=rounds).bound for rounds in (1, 2, 4, 8)]
    assert bounds == sorted(bounds)
    assert bounds[-1] <= least_cost(found, price) * (1 + 1e-5)


def test_bound_of_an_unfinished_search_is_below_that_of_a_finished_one() -> None:
    found = problem(30, 3, low=False)
    (packing,) = GreedyPacker().sweep(found, [1.0], seed=1)
    kinds = kinds_of(found)
    limits = BinLimits(capacity_bytes=CAPACITY, slices_max=found.slices_max, price=1.0)
    start = columns_of(packing.bin_of, kinds)
    short = generate_columns(kinds, limits, start, rounds_max=2)
    whole = generate_columns(kinds, limits, start)
    assert short.bound <= whole.bound + 1e-9 <= whole.value + 1e-6
    assert whole.value <= short.value + 1e-9


def test_nothing_to_pack_costs_nothing() -> None:
    empty = problem(0, 1)
    (packing,) = ExactPacker().sweep(empty, [1.0], seed=1)
    gap = prove_gap(empty, packing)
    assert (packing.bins, gap.cost, gap.bound, gap.ratio) == (0, 0.0, 0.0, 1.0)


def test_gap_without_a_price_is_refused() -> None:
    free = Packing(price=0.0, bin_of=np.zeros(3, np.int32), bins=1)
    with pytest.raises(ValueError, match="a card must cost something"):
        prove_gap(problem(3, 1), free)


def program(least: list[float], *, most: float = np.inf) -> Program:
    """Cover rows with columns {a}, {b}, {a, b} that cost 1, 1 and 1.5."""
    return Program(
        costs=np.array([1.0, 1.0, 1.5]),
        rows=np.array([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]]),
        row_least=np.array(least),
        row_most=np.full(2, np.inf),
        most=np.full(3, most),
    )


def test_fractional_answer_has_duals_that_explain_its_cost() -> None:
    answer = solve_fractional(program([2.0, 1.0]))
    assert answer.cost == pytest.approx(2.5)
    assert answer.duals @ [2.0, 1.0] == pytest.approx(answer.cost)


def test_whole_answer_is_whole() -> None:
    answer = solve_whole(program([1.5, 0.0]), nodes_max=100)
    assert answer.amounts.tolist() == [2.0, 0.0, 0.0]
    assert answer.cost == answer.bound == 2.0


def test_program_without_an_answer_is_refused() -> None:
    with pytest.raises(Refused, match="linear program"):
        solve_fractional(program([9.0, 9.0], most=1.0))
    with pytest.raises(Refused, match="integer program"):
        solve_whole(program([9.0, 9.0], most=1.0), nodes_max=100)


def test_kinds_tell_apart_what_a_packer_looks_at() -> None:
    workload = np.array([0, 0, 0, 1, 1, 2], np.int32)
    found = PackingProblem(
        item_type=np.repeat(np.arange(2), 3).astype(np.int32), item_workload=workload,
        item_group=np.full(6, -1, np.int32), item_bytes=np.ones(6), load=np.array([[0.1], [0.2]], np.float32),
        is_low=np.zeros(6, bool), capacity_bytes=CAPACITY, slices_max=10,
    )  # fmt: skip
    kinds = kinds_of(found)
    assert sorted(kinds.count.tolist()) == [1, 2, 3]
    assert kinds.count[kinds.kind_of].tolist() == [3, 3, 3, 2, 2, 1]
    assert kinds.load[kinds.kind_of][:, 0].tolist() == pytest.approx([0.1, 0.1, 0.1, 0.2, 0.2, 0.2])
