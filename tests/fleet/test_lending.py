"""Framebuffer that pods of one card lend each other: who gives way, what moves, and how fast."""

import numpy as np
import pytest

from fleet.lending import PAGED_RATIO, PCIE_BYTES_PER_SECOND, Residency, Turn, paging_bytes_per_second
from fleet.units import GIB

HELD = np.full(3, 20.0 * GIB)
KEPT = np.full(3, 5.0 * GIB)


def turn(residency: Residency, now: int, *works: bool, capacity_gib: float = 32.0, kept: np.ndarray = KEPT) -> Turn:
    return residency.turn(
        now, np.array(works), HELD, kept, np.zeros(3, np.int64), np.array([capacity_gib * GIB])
    )  # fmt: skip


def test_pod_that_rested_longest_gives_way_and_waits_when_it_comes_back() -> None:
    residency = Residency(3)
    for now, works in enumerate([(True, False, False), (False, True, False), (False, False, True)]):
        turn(residency, now, *works)
    again = turn(residency, 3, True, False, False)
    assert again.came_back.tolist() == [True, False, False]
    assert again.waits_bytes[0] == 30.0 * GIB, "its own 15 GiB come and those of the pod that worked last go"
    assert again.out_bytes[0] == 28.0 * GIB, "as much as the card can't hold"


def test_pod_that_works_again_before_others_need_the_card_waits_for_nothing() -> None:
    residency = Residency(3)
    first = turn(residency, 0, True, False, False)
    assert not first.came_back.any()
    turn(residency, 1, False, False, False)
    again = turn(residency, 2, True, False, False)
    assert not again.came_back.any()
    assert again.waits_bytes.sum() == 0.0


def test_nothing_leaves_the_card_while_it_works_or_lends_nothing() -> None:
    residency = Residency(3)
    assert turn(residency, 0, True, True, True).out_bytes[0] == 0.0
    stays = np.array([np.inf, np.inf, 5.0 * GIB])
    left = turn(Residency(3), 0, False, False, False, kept=stays, capacity_gib=45.0)
    assert left.out_bytes[0] == 15.0 * GIB


def test_pods_move_no_byte_on_a_card_that_holds_them_all() -> None:
    residency = Residency(3)
    for now, works in enumerate([(True, False, False), (False, True, False), (True, False, True)]):
        moved = turn(residency, now, *works, capacity_gib=60.0)
        assert moved.waits_bytes.sum() == moved.out_bytes.sum() == 0.0


@pytest.mark.parametrize(
    ("model", "generation"), [("Tesla V100-PCIE-32GB", 3), ("NVIDIA L40S", 4), ("NVIDIA H20", 5), ("a card", 3)]
)
def test_paging_is_half_of_the_link_and_the_oldest_where_nobody_knows_it(model: str, generation: int) -> None:
    assert paging_bytes_per_second(model, None) == PAGED_RATIO * PCIE_BYTES_PER_SECOND[generation]
    assert paging_bytes_per_second(model, 1e9) == 1e9, "what was measured counts where it is slower"
    faster = PAGED_RATIO * PCIE_BYTES_PER_SECOND[generation]
    assert paging_bytes_per_second(model, 1e12) == faster, "a card of another model may have been measured"
