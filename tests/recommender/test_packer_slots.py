"""Packing over slots: nobody is lost, no slot overflows, replicas stay apart, and few cards are used."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recommender.packing.packer import PackingProblem
from recommender.packing.slots import SlotPacker, kinds_of

LOAD_MAX = 1.0


def problem(
    load: list[list[float]],
    *,
    size: float = 1.0,
    copies: int = 1,
    workloads: list[int] | None = None,
    groups: list[int] | None = None,
    slices_max: int = 10,
) -> PackingProblem:
    types = np.repeat(np.arange(len(load)), copies).astype(np.int32)
    return PackingProblem(
        item_type=types,
        item_workload=types if workloads is None else np.array(workloads, np.int32),
        item_group=np.array(groups or [-1] * len(types), np.int32),
        item_bytes=np.full(len(types), size * 2**30),
        load=np.array(load, np.float32),
        is_low=np.zeros(len(types), bool),
        capacity_bytes=24.0 * 2**30,
        slices_max=slices_max,
    )


def random_problem(items: int, kinds: int, seed: int) -> PackingProblem:
    random = np.random.default_rng(seed)
    types = np.sort(random.integers(0, kinds, items)).astype(np.int32)
    return PackingProblem(
        item_type=types,
        item_workload=(types // 2).astype(np.int32),
        item_group=(types % 3 - 1).astype(np.int32),
        item_bytes=random.uniform(1, 14, kinds)[types] * 2**30,
        load=(random.uniform(0, 1, (kinds, 24)) ** 3).astype(np.float32),
        is_low=np.zeros(items, bool),
        capacity_bytes=24.0 * 2**30,
        slices_max=int(random.integers(1, 6)),
    )


@settings(max_examples=60, deadline=None)
@given(items=st.integers(0, 60), kinds=st.integers(1, 14), seed=st.integers(0, 10_000))
def test_no_card_is_overfull_in_any_slot(items: int, kinds: int, seed: int) -> None:
    found = random_problem(items, kinds, seed)
    bin_of, bins = SlotPacker(load_max=LOAD_MAX, repacks_max=10).pack(found, seed=seed)
    assert len(bin_of) == items
    assert set(bin_of.tolist()) == set(range(bins))
    for number in range(bins):
        inside = np.flatnonzero(bin_of == number)
        assert len(inside) <= found.slices_max
        assert found.item_bytes[inside].sum() <= found.capacity_bytes + 1
        assert len(set(found.item_workload[inside].tolist())) == len(inside)
        assert len(set(found.item_group[inside].tolist())) == 1
        assert found.load[found.item_type[inside]].sum(axis=0).max() <= LOAD_MAX + 1e-4


def test_pods_that_are_busy_at_different_hours_share_a_card() -> None:
    day, night = [0.9] * 12 + [0.0] * 12, [0.0] * 12 + [0.9] * 12
    assert SlotPacker().pack(problem([day, day, night, night]), seed=1)[1] == 2


def test_pods_that_are_busy_at_the_same_hour_do_not() -> None:
    spike = [0.0] * 23 + [0.6]
    assert SlotPacker().pack(problem([spike] * 3), seed=1)[1] == 3


def test_replicas_of_one_workload_have_cards_of_their_own() -> None:
    assert SlotPacker().pack(problem([[0.1], [0.1]], copies=5), seed=1)[1] == 5
    assert SlotPacker().pack(problem([[0.1], [0.1]], workloads=[7, 7]), seed=1)[1] == 2


def test_isolation_groups_do_not_mix() -> None:
    assert SlotPacker().pack(problem([[0.1]] * 4, groups=[-1, -1, 0, 0]), seed=1)[1] == 2


def test_pod_above_the_limit_is_left_alone() -> None:
    bin_of, bins = SlotPacker(load_max=0.8).pack(problem([[0.95], [0.1], [0.1]]), seed=1)
    assert bins == 2
    assert bin_of[0] not in bin_of[1:].tolist()


def test_repacking_finds_what_first_fit_does_not() -> None:
    # First fit pairs 0.5 with 0.4 and strands the rest; three cards hold 0.5 + 0.3 + 0.2 each.
    parts = [[0.5]] * 3 + [[0.4]] * 0 + [[0.3]] * 3 + [[0.2]] * 3
    hard = problem([*parts, [0.45], [0.35], [0.2]])
    assert SlotPacker(load_max=1.0).pack(hard, seed=1)[1] == 4


def test_repacking_never_needs_more_cards() -> None:
    for seed in range(5):
        found = random_problem(60, 14, seed)
        plain = SlotPacker(repacks_max=0).pack(found, seed=seed)[1]
        assert SlotPacker(repacks_max=40).pack(found, seed=seed)[1] <= plain


def test_same_problem_gives_the_same_packing_at_every_price() -> None:
    found = random_problem(50, 9, 4)
    first, second = (list(SlotPacker(repacks_max=10).sweep(found, [5.0, 1.0], seed=3)) for _ in "ab")
    assert [packing.price for packing in first] == [5.0, 1.0]
    assert first[0].bin_of.tolist() == first[1].bin_of.tolist() == second[0].bin_of.tolist()


def test_kinds_tell_apart_what_a_packer_looks_at() -> None:
    found = problem([[0.1], [0.2]], copies=3, workloads=[0, 0, 0, 1, 1, 2])
    kinds = kinds_of(found)
    assert sorted(kinds.count.tolist()) == [1, 2, 3]
    assert kinds.count[kinds.kind_of].tolist() == [3, 3, 3, 2, 2, 1]
    assert kinds.load[kinds.kind_of][:, 0].tolist() == pytest.approx([0.1, 0.1, 0.1, 0.2, 0.2, 0.2])
