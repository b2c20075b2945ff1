"""Who may share a card: predicted from measured pairs, silent about what was never measured."""

from itertools import product

import numpy as np
import pytest

from fleet.errors import Misconfigured
from recommender.harm.interference import PAIRS_MIN, Interference, MeasuredPair, Prediction, Subject, learn_interference

pytestmark = pytest.mark.long

FAMILIES = 8
SENSITIVITY = np.linspace(0.05, 0.6, FAMILIES)


def subject(family: int, variant: int = 0) -> Subject:
    return Subject(
        family=f"family-{family}",
        variant=str(variant),
        duty_cycle_ratio=min(1.0, (family + 1) / FAMILIES + 0.03 * variant),
        memory_active_ratio=0.5 * (family + 1) / FAMILIES,
        framebuffer_bytes=2.0**30 * (1 + family),
    )


def speed(victim: int, aggressor: int, noise: float = 0.0) -> float:
    """What a pair of families does: who is sensitive suffers in proportion to how much the other takes."""
    return float(1.0 - SENSITIVITY[victim] * (aggressor + 1) / FAMILIES + noise)


def pairs(seed: int, variants: int = 2) -> list[MeasuredPair]:
    draw = np.random.default_rng(seed)
    return [
        MeasuredPair(
            victim=subject(v, i), aggressor=subject(a, j), speed_ratio=float(speed(v, a, draw.normal(0, 0.01)))
        )
        for v, a, i, j in product(range(FAMILIES), range(FAMILIES), range(variants), range(variants))
    ]


@pytest.fixture(scope="module")
def learned() -> Interference:
    return learn_interference(pairs(0)[::2])


def test_pairs_not_seen_are_foretold(learned: Interference) -> None:
    asked = pairs(1)[1::2]
    verdicts = learned.predict([pair.victim for pair in asked], [pair.aggressor for pair in asked])
    keeps = np.array([verdict.predicted is Prediction.KEEPS for verdict in verdicts])
    truth = np.array([pair.speed_ratio >= 0.9 for pair in asked])
    assert 0.2 < truth.mean() < 0.8
    assert truth[keeps].mean() >= 0.95
    assert keeps[truth].mean() >= 0.8


def test_a_family_never_measured_gets_a_canary(learned: Interference) -> None:
    stranger = Subject(family="stranger", duty_cycle_ratio=0.1, memory_active_ratio=0.05, framebuffer_bytes=2.0**30)
    verdicts = learned.predict([stranger, subject(0)], [subject(0), stranger])
    assert [verdict.predicted for verdict in verdicts] == [Prediction.UNMEASURED] * 2
    assert verdicts[0].chance is None
    assert "stranger" in verdicts[0].reason


def test_a_new_variant_of_a_measured_family_is_foretold(learned: Interference) -> None:
    gentle, harsh = learned.predict([subject(0, 9), subject(7, 9)], [subject(0, 9), subject(7, 9)])
    assert gentle.predicted is Prediction.KEEPS
    assert harsh.predicted is Prediction.SUFFERS


def test_a_subject_whose_counters_are_missing_is_told_by_its_family() -> None:
    bare = [
        MeasuredPair(
            victim=Subject(family=pair.victim.family),
            aggressor=Subject(family=pair.aggressor.family),
            speed_ratio=pair.speed_ratio,
        )
        for pair in pairs(2)
    ]
    learned = learn_interference(bare)
    (verdict,) = learned.predict([Subject(family="family-0")], [Subject(family="family-7")])
    assert verdict.predicted is Prediction.KEEPS
    assert verdict.speed_ratio == pytest.approx(speed(0, 7), abs=0.02)


def test_too_few_pairs_foretell_nothing() -> None:
    learned = learn_interference(pairs(0)[: PAIRS_MIN - 1])
    (verdict,) = learned.predict([subject(0)], [subject(0)])
    assert verdict.predicted is Prediction.UNMEASURED


def test_no_pairs_are_no_error() -> None:
    (verdict,) = learn_interference([]).predict([subject(0)], [subject(1)])
    assert verdict.predicted is Prediction.UNMEASURED


def test_where_nothing_can_be_told_apart_nothing_is_promised() -> None:
    draw = np.random.default_rng(5)
    noise = [
        MeasuredPair(victim=pair.victim, aggressor=pair.aggressor, speed_ratio=float(draw.uniform(0.5, 1.1)))
        for pair in pairs(0)
    ]
    learned = learn_interference(noise)
    verdicts = learned.predict([subject(k) for k in range(FAMILIES)], [subject(0)] * FAMILIES)
    assert all(verdict.predicted is Prediction.SUFFERS for verdict in verdicts)


@pytest.mark.parametrize("speed_ratio", [-0.1, 2.1, float("nan")])
def test_a_speed_that_cannot_be_is_named(speed_ratio: float) -> None:
    with pytest.raises(Misconfigured, match="speed_ratio"):
        learn_interference([MeasuredPair(victim=subject(0), aggressor=subject(1), speed_ratio=speed_ratio)])


def test_the_same_pairs_give_the_same_answer_in_any_order_of_asking(learned: Interference) -> None:
    victims, aggressors = [subject(1), subject(5), subject(3)], [subject(2), subject(4), subject(6)]
    forwards = learned.predict(victims, aggressors)
    assert forwards == learned.predict(victims[::-1], aggressors[::-1])[::-1]
