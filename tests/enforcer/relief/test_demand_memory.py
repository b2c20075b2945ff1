"""What is remembered of use, and for how long."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from enforcer.agent.node_view import NodeView
from enforcer.relief.demand_memory import DemandMemory, SeatKey, used
from fleet.inventory import Priority
from tests.enforcer.agent.nodes import CARD, slice_of, view_of

ONE, TWO = (SeatKey(namespace="team", pod=f"pod-{number}", card=CARD) for number in (1, 2))


def seen(at: float, *duties: float) -> dict[str, NodeView]:
    slices = [
        slice_of(number, Priority.HIGH, duty_cycle_ratio=duty, framebuffer_used_bytes=int(100 * duty))
        for number, duty in enumerate(duties, start=1)
    ]
    return {"n": view_of(*slices, at=at)}


def test_largest_use_of_every_minute_is_kept_and_the_last_column_is_now() -> None:
    memory = DemandMemory(steps=10)
    for at, duty in ((0, 0.2), (20, 0.9), (40, 0.1), (80, 0.3)):
        memory.see(seen(at, duty))
    assert memory.load([ONE], {ONE: 0.25}).tolist() == [pytest.approx([0.9, 0.25])]
    assert memory.need_bytes(ONE) == 90
    assert memory.load([TWO], {}).tolist() == [[0.0, 0.0]]


def test_what_is_older_than_the_memory_is_forgotten_and_its_place_taken() -> None:
    memory = DemandMemory(steps=3)
    memory.see(seen(0, 0.9))
    for minute in range(1, 4):
        memory.see({"n": replace(seen(60 * minute)["n"], slices=(slice_of(100 + minute, Priority.HIGH),))})
    assert memory.load([ONE], {}).max() == 0.0
    memory.see(seen(240, 0.5))
    assert memory.load([ONE], {ONE: 0.4})[0].tolist() == pytest.approx([0.0, 0.0, 0.4])


def test_many_pods_find_room_and_keep_their_own_use() -> None:
    memory = DemandMemory(steps=2)
    duties = [number / 200 for number in range(200)]
    memory.see(seen(0, *duties))
    keys = [SeatKey(namespace="team", pod=f"pod-{number}", card=CARD) for number in range(1, 201)]
    found = memory.load(keys, dict(zip(keys, duties, strict=True)))[:, -1]
    assert np.allclose(found, duties)


def test_use_that_nobody_says_is_what_the_card_uses_beyond_the_others() -> None:
    slices = (
        slice_of(1, Priority.HIGH, duty_cycle_ratio=None), slice_of(2, Priority.NORMAL, duty_cycle_ratio=None),
        slice_of(3, Priority.HIGH, duty_cycle_ratio=0.2), slice_of(4, Priority.LOW, duty_cycle_ratio=0.1),
    )  # fmt: skip
    view = view_of(*slices, at=0.0)
    (card,) = view.cards

    def shares(duty: float | None) -> list[float | None]:
        seen = used(replace(view, cards=(replace(card, duty_cycle_ratio=duty),)))
        return [seen[SeatKey(namespace="team", pod=f"pod-{number}", card=CARD)] for number in (1, 2, 3, 4)]

    assert shares(0.9) == pytest.approx([0.3, 0.3, 0.2, 0.1])
    assert shares(0.1) == pytest.approx([0.0, 0.0, 0.2, 0.1])
    assert shares(None) == [None, None, 0.2, 0.1]
