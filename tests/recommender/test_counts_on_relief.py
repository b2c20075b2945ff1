"""Plans that count on relief: denser where pods contend, as careful with framebuffer, tried with relief on own days."""

from datetime import timedelta

import pytest

from analyzer.profile import profile_fleet
from fleet.capabilities.register import HAMI
from fleet.decisions import RiskLevel
from fleet.relief.rules import ReliefRules
from fleet.settings.settings import Settings
from gputide.answers.plan import plan_answer
from recommender.backtest import backtest, own_past
from recommender.past_outcomes import RELIEF_LEAVES, OwnPast, Trial, TriedPlan
from recommender.planner import make_plan
from tests.recommender.builders import NOW
from tests.recommender.second_fleet import second_fleet

SETTINGS = Settings.model_validate({"risk": {"preset": "low"}, "guard": {"gaps_allowed": True}})
RULES = ReliefRules(sustain_seconds=120.0)
FLEET = second_fleet(4, 32, 6, "mixed")
LIMIT = 0.001


def tried(forecast: float, *, saved: float, spares: float = 0.0, moves: float = 0.0) -> TriedPlan:
    """A plan of which relief left a twentieth of what was forecast."""
    return TriedPlan(
        forecast_ratio=forecast, violation_ratio=0.05 * forecast, saved_ratio=saved, spare_ratio=spares,
        moves_per_pod_day=moves,
    )  # fmt: skip


def past(*plans: TriedPlan, moves_max: float = 0.1) -> OwnPast:
    """So long a past that other fleets hardly count beside it."""
    trial = Trial(since=NOW, until=NOW + timedelta(days=900), plans=plans)
    return OwnPast(trials=(trial,), relief_moves_max=moves_max)


def test_relief_makes_no_more_moves_than_it_may() -> None:
    plans = tried(0.001, saved=0.3, moves=0.05), tried(0.004, saved=0.5, moves=0.2)
    free, held = (past(*plans, moves_max=most).forecast_limit(LIMIT) for most in (10.0, 0.1))
    assert held < free
    assert held == pytest.approx(0.002, rel=0.05)
    # Where even the most careful plan has too many, it is that one.
    assert past(*plans, moves_max=0.0).forecast_limit(LIMIT) < LIMIT


def test_denser_plan_that_needs_more_spares_than_it_frees_is_not_taken() -> None:
    """Saved is net of spares: what goes beyond the second plan loses again."""
    plans = tried(0.001, saved=0.3), tried(0.002, saved=0.5, spares=0.1), tried(0.004, saved=0.4, spares=0.4)
    known = past(*plans)
    assert known.forecast_limit(LIMIT) == pytest.approx(0.002, rel=0.05)
    assert known.spare_ratio(0.003) == pytest.approx(0.25)
    # Of one pod neither says anything.
    assert known.forecast_pod_limit(LIMIT) > 0.002


def test_moves_and_spares_are_asked_of_no_plan_without_relief() -> None:
    plain = OwnPast(trials=past(tried(0.004, saved=0.5, moves=5.0)).trials)
    assert plain.forecast_limit(LIMIT) == plain.forecast_pod_limit(LIMIT)
    assert (plain.contention_left, plain.moves_per_pod_day(LIMIT)) == (1.0, None)


def test_plan_is_denser_and_says_what_would_come_without_relief() -> None:
    profiles = profile_fleet(FLEET, settings=SETTINGS.analyzer, now=FLEET.inventory.as_of)
    plain, dense = (
        make_plan(
            FLEET, profiles, settings=SETTINGS, capability=HAMI, now=FLEET.inventory.as_of,
            past=OwnPast(relief_moves_max=most),
        )
        for most in (None, 0.1)
    )  # fmt: skip
    assert dense.totals.cards_after < plain.totals.cards_after
    assert plain.totals.unrelieved_violation_ratio is None
    harm, unrelieved = dense.totals.predicted_violation_ratio, dense.totals.unrelieved_violation_ratio
    assert unrelieved is not None
    assert harm <= LIMIT < unrelieved
    assert unrelieved <= harm / RELIEF_LEAVES + 1e-12
    assert dense.inputs_sha256 != plain.inputs_sha256
    assert any("without it" in line for line in plan_answer(dense).footnotes)
    assert not any("without it" in line for line in plan_answer(plain).footnotes)


def test_back_test_plays_relief_and_counts_its_spares() -> None:
    reports = [
        backtest(FLEET, train_days=4, test_days=2, settings=SETTINGS, capability=HAMI, relief=relief)
        for relief in (None, RULES)
    ]
    plain, relieved = ({score.rule: score for score in report.scores} for report in reports)
    dense, alone = relieved[RiskLevel.HIGH], plain[RiskLevel.HIGH]
    assert dense.saved_ratio > alone.saved_ratio
    assert dense.saved_ratio == pytest.approx(1 - dense.cards_after / dense.cards_before)
    assert (dense.moves > 0, dense.spare_cards > 0, alone.moves) == (True, True, 0)
    naive = [rule for rule in plain if rule not in set(RiskLevel)]
    assert [plain[rule] for rule in naive] == [relieved[rule] for rule in naive]


def test_own_past_is_tried_with_relief() -> None:
    relieved = own_past(FLEET, settings=SETTINGS, capability=HAMI, relief=RULES)
    assert relieved.relief_moves_max == SETTINGS.risk.relief_moves_max
    plans = [plan for one in relieved.trials for plan in one.plans]
    assert max(plan.moves_per_pod_day for plan in plans) > 0
    assert max(plan.spare_ratio for plan in plans) > 0
    assert all(plan.violation_ratio < 0.1 for plan in plans)
