"""What cards do."""

from datetime import timedelta

import numpy as np
import pytest

from fleet.profiles import CardState
from fleet.schema import Measure
from tests.analyzer.build import MONDAY, Slice, card_profile, history, noise, profiles, work


@pytest.mark.parametrize(
    ("level", "state"),
    [(0.0, CardState.IDLE_HELD), (noise(2, low=0.02, high=0.15), CardState.LOW_USE), (0.6, CardState.BUSY)],
)
def test_a_card_is_what_its_slice_makes_of_it(level, state: CardState) -> None:
    assert card_profile(history([Slice(usage=work(level))]), "GPU-000").state is state


def test_a_card_granted_to_nobody_is_free_and_listed() -> None:
    given = history([Slice(usage=work(0.5))], spare_cards=["GPU-spare"])
    assert card_profile(given, "GPU-spare").state is CardState.FREE
    assert profiles(given).unallocated == ("GPU-spare",)


def test_a_card_granted_to_nobody_that_works_is_not_called_free() -> None:
    given = history([Slice(usage=work(0.5))], spare_cards=["GPU-spare"], cards={"GPU-spare": work(0.7)})
    assert card_profile(given, "GPU-spare").state is CardState.UNTRUSTED


def test_slices_of_one_card_add_up() -> None:
    pair = [Slice(workload=name, usage=work(0.15), card="GPU-s", compute=0.5) for name in ("one", "two")]
    said = card_profile(history(pair), "GPU-s")
    assert said.compute_p95 == pytest.approx(0.3, abs=0.01)
    assert said.state is CardState.BUSY
    assert said.framebuffer_used_max == pytest.approx(40 * 2**30, rel=1e-6)
    assert said.workloads == ("team/Deployment/one", "team/Deployment/two")


def test_a_card_that_hardly_anybody_saw_is_untrusted() -> None:
    level = noise(2, low=0.2, high=0.8)
    level[40:] = float("nan")
    assert card_profile(history([Slice(usage=work(level))]), "GPU-000").state is CardState.UNTRUSTED


def test_the_cards_own_counters_go_before_its_slices() -> None:
    given = history([Slice(usage=work(0.1))], cards={"GPU-000": {**work(0.5), Measure.FRAMEBUFFER_USED: 5e10}})
    said = card_profile(given, "GPU-000")
    assert said.compute_p95 == pytest.approx(0.5)
    assert said.framebuffer_used_max == pytest.approx(5e10, rel=1e-6)


def test_a_card_that_was_given_back_is_free_whatever_it_did_before() -> None:
    level = np.r_[np.full(144, 0.6), np.zeros(144)]
    gone = Slice(workload="gone", usage=work(level), card="GPU-back", ended_at=MONDAY + timedelta(days=1))
    given = history([Slice(usage=work(0.5)), gone], cards={"GPU-back": work(level), "GPU-000": work(0.5)})
    said = card_profile(given, "GPU-back")
    assert said.state is CardState.FREE
    assert said.compute_p95 == pytest.approx(0.0, abs=0.01)
