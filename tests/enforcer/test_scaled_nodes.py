"""A factor goes back only where nobody rests on it, and no pod comes back whole beside one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from enforcer.backend import Move, NodeStep
from enforcer.dialect import SeatSlice
from enforcer.safety.scaled_nodes import check_scaled_nodes
from enforcer.snapshot import Snapshot, take_snapshot
from fleet.errors import Refused
from tests.enforcer.builders import card_id
from tests.enforcer.kin_cluster import VGPU_MANAGER, a_kin_cluster

MIB = 24 * 1024
STEP = NodeStep(node="node-0", registered_mib=tuple((card_id(number), MIB) for number in range(4)))
LENT = ("team/a-0", "team/b-0")


def standing(*, factor: int = 3, lent: tuple[str, ...] = LENT) -> Snapshot:
    """The cluster once its first node is scaled, and these pods have 18 GiB each of its first card."""
    found = take_snapshot(a_kin_cluster(VGPU_MANAGER), VGPU_MANAGER.backend.dialect)
    cards = {
        name: replace(card, framebuffer_mib=factor * MIB) if card.node == "node-0" else card
        for name, card in found.cards.items()
    }
    part = SeatSlice(container="main", card=card_id(0), framebuffer_mib=18 * 1024, core_percent=50)
    seats = {name: replace(seat, slices=(part,)) if name in lent else seat for name, seat in found.seats.items()}
    return replace(found, cards=cards, seats=seats)


def move_of(snapshot: Snapshot, pod: str) -> Move:
    """The way of a pod that had the second card whole."""
    seat = snapshot.seats[pod]
    old = SeatSlice(container="main", card=card_id(1), framebuffer_mib=MIB, core_percent=100)
    return Move(
        namespace=seat.namespace, pod=seat.pod, workload=seat.workload, old=(old,), new=seat.slices, recommendation="x"
    )


def test_factor_goes_back_with_all_pods_that_rest_on_it() -> None:
    snapshot = standing()
    check_scaled_nodes([move_of(snapshot, pod) for pod in LENT], [STEP], [], snapshot)


def test_factor_stays_while_pods_rest_on_it_that_the_undo_does_not_take_back() -> None:
    """Another recommendation, or a later plan, put them there."""
    snapshot = standing(lent=("team/a-0", "team/b-0", "team/c-0"))
    moves = [move_of(snapshot, "team/a-0")]
    with pytest.raises(Refused, match="which holds its pods only with it"):
        check_scaled_nodes(moves, [STEP], [], snapshot)
    alone = standing(lent=("team/a-0", "team/b-0"))
    check_scaled_nodes([move_of(alone, "team/a-0")], [STEP], [], alone)


@pytest.mark.parametrize(("factor", "is_refused"), [(3, True), (1, False)])
def test_no_pod_comes_back_whole_to_a_node_that_stays_scaled(factor: int, is_refused: bool) -> None:
    snapshot = standing(factor=factor)
    moves = [move_of(snapshot, "team/a-0")]
    if is_refused:
        with pytest.raises(Refused, match="cannot bring team/a-0 back: node node-0 keeps registering more"):
            check_scaled_nodes(moves, [], [STEP], snapshot)
    else:
        check_scaled_nodes(moves, [], [STEP], snapshot)


def test_part_of_a_card_comes_back_all_the_same() -> None:
    snapshot = standing()
    move = move_of(snapshot, "team/a-0")
    part = replace(move, old=(replace(move.old[0], core_percent=40),))
    check_scaled_nodes([part], [], [STEP], snapshot)
