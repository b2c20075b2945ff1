"""A quick look at every card: against the stand-in library."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from exporter.nvml.pulse import CardPulses
from fleet.errors import Unavailable
from tests.exporter.nvml.standin import GIB, H100, StandInWorld, library_file, uuid


@pytest.fixture
def pulses(world: StandInWorld) -> Iterator[CardPulses]:
    """Yield a look at the stand-in's cards."""
    assert world is not None
    made = CardPulses(str(library_file()))
    yield made
    made.close()


def test_cards_are_told_with_framebuffer_and_duty_cycle(world: StandInWorld, pulses: CardPulses) -> None:
    world.card(**{**H100, "util": 60}).card(**{**H100, "used": 70 * GIB, "util": 0}).write()
    first, second = pulses.look(5.0)
    assert (first.card, first.framebuffer_bytes, first.duty_cycle_ratio) == (uuid(0), 80 * GIB, 0.6)
    assert (second.card, second.duty_cycle_ratio) == (uuid(1), 0.0)
    assert first.framebuffer_free_bytes - second.framebuffer_free_bytes == 60 * GIB


def test_change_is_seen_at_the_next_look(world: StandInWorld, pulses: CardPulses) -> None:
    world.card(**{**H100, "util": 60}).write()
    pulses.look(5.0)
    world.card(0, util=99).write()
    assert pulses.look(5.0)[0].duty_cycle_ratio == 0.99


def test_duty_cycle_that_is_not_told_is_absent_and_not_zero(world: StandInWorld, pulses: CardPulses) -> None:
    world.card(**H100).line("err", dev=0, fn="nvmlDeviceGetUtilizationRates", code=3).write()
    (pulse,) = pulses.look(5.0)
    assert (pulse.duty_cycle_ratio, pulse.framebuffer_bytes) == (None, 80 * GIB)


def test_card_that_fails_is_left_out_and_comes_back(world: StandInWorld, pulses: CardPulses) -> None:
    world.card(**H100).card(**H100).write()
    assert len(pulses.look(5.0)) == 2
    world.card(0, lost=1).write()
    assert [pulse.card for pulse in pulses.look(5.0)] == [uuid(1)]
    world.card(0, lost=0).write()
    assert [pulse.card for pulse in pulses.look(5.0)] == [uuid(0), uuid(1)]


def test_driver_that_hangs_keeps_nobody_beyond_the_deadline_and_is_asked_once(
    world: StandInWorld, pulses: CardPulses
) -> None:
    world.card(**H100).line("hang", dev=0, fn="nvmlDeviceGetUtilizationRates", seconds=60).write()
    for _ in range(2):
        with pytest.raises(Unavailable, match=r"has not answered within 0\.1 s"):
            pulses.look(0.1)
    world.without("hang").write()
    assert len(pulses.look(5.0)) == 1


def test_driver_that_was_restarted_is_found_again_whichever_call_notices(world: StandInWorld) -> None:
    world.card(**H100).write()
    now = [0.0]
    pulses = CardPulses(str(library_file()), clock=lambda: now[0])
    try:
        for generation, seconds in ((1, 1.0), (2, 100.0)):
            assert len(pulses.look(5.0)) == 1
            now[0] += seconds
            world.system(generation=generation).write()
            with pytest.raises(Unavailable, match="restarted"):
                pulses.look(5.0)
        assert len(pulses.look(5.0)) == 1
    finally:
        pulses.close()


def test_node_without_a_driver_is_told(tmp_path: object) -> None:
    made = CardPulses(f"{tmp_path}/libnvidia-ml.so.1")
    with pytest.raises(Unavailable, match="cannot load NVIDIA's library"):
        made.look(5.0)
    made.close()
