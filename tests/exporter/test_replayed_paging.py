"""Framebuffer that is lent in a replay: whose pages leave, what moves, and how long pods wait; beside the forecast."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from exporter.replay.paging import LINK_BYTES_PER_SECOND, Paging, Tenant, link_bytes_per_second
from exporter.replay.reader import ReplayReader
from exporter.replay.seats import Enforced, Seat
from exporter.trace.trace import open_trace
from fleet.inventory import Card, CardId, CardModelName
from fleet.lending import Residency
from fleet.schema import Measure
from fleet.units import GIB
from tests.exporter.builders import TraceFiles, at, card, pod, row

STEP_SECONDS = 600.0
CARD = Card(
    card=CardId("GPU-a"), card_model=CardModelName("Tesla V100-PCIE-32GB"), framebuffer_bytes=32 * GIB, node="n",
    cluster="c",
)  # fmt: skip


def played(
    turns: Sequence[tuple[bool, ...]], held_gib: tuple[float, ...], kept_gib: float
) -> tuple[Paging, list[list[float]]]:
    """What came of it, and the seconds that each pod waited in each step."""
    paging, waits = Paging(STEP_SECONDS), []
    for works in turns:
        tenants = [
            Tenant(key=number, held_bytes=held * GIB, kept_bytes=kept_gib * GIB, works=works[number])
            for number, held in enumerate(held_gib)
        ]
        found = paging.step({CARD.card: tenants}, {CARD.card: CARD})
        waits.append([found.get((CARD.card, number), 0.0) for number in range(len(held_gib))])
    return paging, waits


def test_pod_that_comes_back_waits_until_all_that_it_lends_is_there_and_as_much_has_left() -> None:
    """What of it still lay on the card came first, so the driver sends that out before what the other brought."""
    paging, waits = played([(True, False), (False, True), (True, False)], (22.0, 22.0), 8.0)
    assert waits[0] == [0.0, 0.0], "a pod that starts loads what it needs"
    assert waits[2] == [pytest.approx(2 * 14 * GIB / LINK_BYTES_PER_SECOND), 0.0]
    assert paging.lent.host_bytes == 12 * GIB, "what the card can't hold"


def test_pod_that_works_again_before_others_did_waits_for_nothing() -> None:
    paging, waits = played([(False, False), (False, True), (False, False), (False, True)], (22.0, 22.0), 8.0)
    assert waits[2:] == [[0.0, 0.0], [0.0, 0.0]]
    assert paging.lent.switches == 0, "it was loaded last"


def test_pods_that_never_fit_together_lose_the_whole_time() -> None:
    _, waits = played([(False, False), (True, True)], (22.0, 22.0), 8.0)
    assert waits[1] == [STEP_SECONDS, STEP_SECONDS]


def test_card_that_holds_all_moves_nothing() -> None:
    paging, _ = played([(True, False), (False, True), (True, True)], (15.0, 15.0), 1.0)
    assert (paging.lent.switches, paging.lent.host_bytes) == (0, 0.0)


def test_pod_whose_framebuffer_nobody_saw_holds_what_it_held() -> None:
    """Counted as nothing, it would leave the other the whole card."""
    paging = Paging(STEP_SECONDS)

    def waits(works: tuple[bool, bool], *held_gib: float | None) -> list[float]:
        tenants = [
            Tenant(key=n, held_bytes=None if held is None else held * GIB, kept_bytes=8.0 * GIB, works=works[n])
            for n, held in enumerate(held_gib)
        ]
        found = paging.step({CARD.card: tenants}, {CARD.card: CARD})
        return [found.get((CARD.card, n), 0.0) for n in range(2)]

    assert waits((True, False), 22.0, None) == [0.0, 0.0]
    assert waits((True, False), 22.0, 22.0) == [0.0, 0.0], "it is seen for the first time, which is no switch"
    waits((False, True), 22.0, None)
    assert waits((True, False), None, 22.0) == [pytest.approx(2 * 14 * GIB / LINK_BYTES_PER_SECOND), 0.0]
    assert paging.lent.host_bytes == 12 * GIB


def test_each_generation_of_the_link_is_twice_as_fast() -> None:
    assert link_bytes_per_second("NVIDIA L40S") == 2 * LINK_BYTES_PER_SECOND
    assert link_bytes_per_second("a card") == LINK_BYTES_PER_SECOND


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kept_gib", [0.5, 8.0])
def test_forecast_and_replay_agree_although_they_share_nothing(seed: int, kept_gib: float) -> None:
    random = np.random.default_rng(seed)
    held = np.array([20.0, 22.0])
    turns = [(True, False), *((bool(one), not one) for one in random.integers(0, 2, 60))]
    paging, _ = played(turns, tuple(held.tolist()), kept_gib)
    residency, switches, moved, away = Residency(2), 0, 0.0, 0.0
    for step, works in enumerate(turns):
        turn = residency.turn(
            step, np.array(works), held * GIB, np.full(2, kept_gib * GIB), np.zeros(2, np.int64), np.array([32.0 * GIB])
        )
        switches += int(turn.came_back.sum()) if step else 0
        moved += float(turn.waits_bytes.sum()) if step else 0.0
        away = max(away, float(turn.out_bytes[0]))
    # Who was loaded first is theirs to choose.
    assert abs(paging.lent.switches - switches) <= 1
    assert paging.lent.switch_seconds * LINK_BYTES_PER_SECOND == pytest.approx(moved, rel=0.1)
    assert paging.lent.host_bytes == pytest.approx(away, abs=0.2 * GIB)


class Pair:
    """A seating in which two pods lend each other framebuffer."""

    enforced = Enforced()

    def seats(self, moment: object) -> dict[str, tuple[Seat, ...]]:
        lent = Seat(
            card=CardId("GPU-a"), framebuffer_granted_bytes=20 * GIB, compute_granted_ratio=0.5, is_oversubscribed=True,
            kept_bytes=5.0 * GIB, since=at(0),
        )  # fmt: skip
        return {"team/web-1": (lent,), "team/job-1": (lent,)}


@pytest.mark.parametrize("steps_per_block", [1, 3])
@pytest.mark.parametrize("is_left_out", [True, False], ids=["no_sample", "no_activity"])
def test_pod_that_nobody_saw_works_and_holds_what_it_held(
    tmp_path: Path, steps_per_block: int, is_left_out: bool
) -> None:
    """The other one works all the time, so both lose the step in which it is not known what the first one does."""
    usage = [
        row(10 * (step + 1), "job-1", "GPU-b", sm_active_ratio=0.5, duty_cycle_ratio=0.5,
            framebuffer_used_bytes=18 * GIB)
        for step in range(3)
    ]  # fmt: skip
    for step in range(3):
        ratio = None if step == 1 else 0.0
        if step != 1 or not is_left_out:
            usage.append(
                row(10 * (step + 1), "web-1", "GPU-a", sm_active_ratio=ratio, duty_cycle_ratio=ratio,
                    framebuffer_used_bytes=18 * GIB)
            )  # fmt: skip
    files = TraceFiles(
        cards=[card("GPU-a"), card("GPU-b")], pods=[pod("web-1", "GPU-a"), pod("job-1", "GPU-b")],
        usage=sorted(usage, key=lambda one: one["ts"]),
    )  # fmt: skip
    reader = ReplayReader(open_trace(files.write(tmp_path / "trace")), seating=Pair())
    list(reader.blocks(steps_per_block))
    assert reader.lent.work_seconds == 4 * STEP_SECONDS
    assert reader.lent.switch_seconds >= 2 * STEP_SECONDS


def test_replay_serves_less_while_framebuffer_comes_back_and_shows_what_stays(tmp_path: Path) -> None:
    active = [(0.5, 0.0), (0.0, 0.5), (0.5, 0.0)]
    files = TraceFiles(
        cards=[card("GPU-a"), card("GPU-b")],
        pods=[pod("web-1", "GPU-a"), pod("job-1", "GPU-b")],
        usage=[
            row(10 * (step + 1), name, on, sm_active_ratio=sm, duty_cycle_ratio=sm, framebuffer_used_bytes=18 * GIB)
            for step, pair in enumerate(active)
            for (name, on), sm in zip((("web-1", "GPU-a"), ("job-1", "GPU-b")), pair, strict=True)
        ],
    )
    reader = ReplayReader(open_trace(files.write(tmp_path / "trace")), seating=Pair())
    blocks = [block.slice_samples.values for block in reader.blocks(1)]
    assert all((values[Measure.FRAMEBUFFER_USED] == 5 * GIB).all() for values in blocks)
    # An A10 has a link of the fourth generation.
    lost = 2 * 13 * GIB / (2 * LINK_BYTES_PER_SECOND) / STEP_SECONDS
    assert blocks[2][Measure.SM_ACTIVE].max() == pytest.approx(0.5 * (1 - lost))
    assert reader.lent.switches == 2
