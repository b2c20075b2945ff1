"""Electricity: measured first, then a straight line from rest to the power limit, else unknown."""

import numpy as np
import pytest

from fleet.money.energy import card_energy
from tests.fleet.money.builders import a_card

NOTHING = float("nan")


def test_measured_power_goes_before_the_estimate() -> None:
    found = card_energy([a_card(0)], np.array([[80.0, NOTHING]]), np.array([[1.0, 0.5]]), idle_watts_ratio=0.2)
    # An A10 has a limit of 150 W: at rest 30 W, half busy 90 W.
    assert found.kwh.tolist() == [[0.08, pytest.approx(0.09)]]
    assert found.is_measured.tolist() == [[True, False]]


@pytest.mark.parametrize(
    ("model", "activity", "ratio"),
    [("NVIDIA A10", NOTHING, 0.2), ("NVIDIA A10", 0.5, None), ("Nobody knows", 0.5, 0.2)],
)
def test_what_is_not_known_is_not_taken_for_nothing(model: str, activity: float, ratio: float | None) -> None:
    cards = [a_card(0, model=model)]
    assert np.isnan(card_energy(cards, np.array([[NOTHING]]), np.array([[activity]]), idle_watts_ratio=ratio).kwh).all()
