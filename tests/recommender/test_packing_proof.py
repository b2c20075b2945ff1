"""What a plan says of how few cards any packing could do with, against every partition of a few pods."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.capabilities.register import HAMI
from fleet.documents import plan_from_json, plan_to_json, seal_plan
from gputide.answers.plan import plan_answer
from recommender.consolidate import Group, group_of
from recommender.demand import demand_of
from recommender.frontier_points import PROOF_ITEMS_MAX, cards_beyond
from recommender.outlook import Member, outlook_of
from recommender.packing.column_generation import BinLimits, bin_cost
from recommender.packing.greedy import GreedyPacker
from recommender.packing.packer import kinds_of
from tests.recommender.builders import Service, cluster, plan_of
from tests.recommender.test_packer_exact import partitions


def group(levels: list[float], used: list[float], seed: int) -> Group:
    """Services of one replica each, on cards of one model, that may all share."""
    pods = enumerate(zip(levels, used, strict=True))
    services = (Service(name=f"s{n}", level=level, used_gib=gib) for n, (level, gib) in pods)
    demand = demand_of(cluster(*services, days=3, seed=seed))
    members = [
        Member(row=row, workload=int(demand.workload_of[row]), group=-1, is_flat=False)
        for row in range(len(demand.grants))
    ]
    outlook = outlook_of(
        demand,
        members,
        seed=1,
        capacity_bytes=float(demand.grants[0].framebuffer_bytes),
        inflation_max=1.5,
        capability=HAMI,
    )
    return group_of(outlook, card_price=0.1, headroom_ratio=0.1, step_bytes=1, slices_max=10)


def harm(found: Group, parts: list[list[int]]) -> float | None:
    """Harm of a partition on the days searched; None where it breaks a limit of a card."""
    problem, kinds = found.problem, kinds_of(found.problem)
    limits = BinLimits(capacity_bytes=problem.capacity_bytes, slices_max=problem.slices_max, price=1.0)
    total = 0.0
    for part in parts:
        if problem.item_bytes[part].sum() > problem.capacity_bytes or len(part) > problem.slices_max:
            return None
        total += bin_cost(kinds, limits, tuple(sorted(kinds.kind_of[part].tolist()))) - 1.0
    return total


@settings(max_examples=15, deadline=None)
@given(
    pods=st.lists(st.tuples(st.floats(0.05, 0.9), st.floats(1, 14)), min_size=1, max_size=6),
    seed=st.integers(0, 100),
    price=st.floats(0.05, 1.0),
)
def test_no_packing_as_harmless_needs_fewer_cards_than_was_proven(
    pods: list[tuple[float, float]], seed: int, price: float
) -> None:
    levels, used = zip(*pods, strict=True)
    found = group(list(levels), list(used), seed)
    (packing,) = GreedyPacker().sweep(found.problem, [price * found.points], seed=1)
    beyond = cards_beyond([found], [packing.bin_of], [price])
    assert beyond is not None
    ours = harm(found, [np.flatnonzero(packing.bin_of == number).tolist() for number in range(packing.bins)])
    assert ours is not None
    for parts in partitions(list(range(len(levels)))):
        theirs = harm(found, parts)
        if theirs is not None and theirs <= ours * (1 + 1e-6):
            assert len(parts) >= packing.bins - beyond


def test_pods_that_fill_their_cards_leave_nothing_to_prove_away() -> None:
    found = group([0.9] * 4, [20.0] * 4, 1)
    assert cards_beyond([found], [np.arange(4, dtype=np.int32)], [1.0]) == 0


def test_wasteful_packing_is_told_how_much_it_wastes() -> None:
    found = group([0.02] * 4, [2.0] * 4, 1)
    assert cards_beyond([found], [np.arange(4, dtype=np.int32)], [1.0]) == 3


def test_large_group_is_not_proven() -> None:
    count = PROOF_ITEMS_MAX + 1
    found = group([0.05] * count, [2.0] * count, 1)
    assert cards_beyond([found], [np.zeros(count, np.int32)], [1.0]) is None
    assert cards_beyond([], [], [1.0]) is None


@pytest.mark.parametrize(("level", "said"), [(0.05, "not one card"), (0.95, "not one card")])
def test_plan_of_a_small_fleet_carries_its_proof(level: float, said: str) -> None:
    plan = seal_plan(plan_of(cluster(*(Service(name=f"s{n}", level=level, used_gib=8.0) for n in range(4)))))
    (chosen,) = (point for point in plan.frontier if point.is_chosen)
    assert chosen.cards_beyond_max == 0
    assert plan_from_json(plan_to_json(plan)).frontier == plan.frontier
    assert any(said in line for line in plan_answer(plan).footnotes)
