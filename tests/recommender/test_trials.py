"""Plans tried on earlier days of the own history set the margin of the next one, and its interval."""

import itertools
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest

from analyzer.parts import sampled_inventory
from analyzer.profile import profile_fleet
from fleet.capabilities.register import HAMI
from fleet.decisions import RiskLevel
from fleet.schema import Measure
from fleet.settings.settings import Settings
from fleet.usage import History
from gputide.answers.plan import plan_answer
from recommender.backtest import backtest, own_trials
from recommender.past_outcomes import FACTOR_MAX, RELAXED_MAX, OwnPast, Trial, TriedPlan
from recommender.planner import make_plan, make_plans
from tests.recommender.builders import NOW
from tests.recommender.second_fleet import second_fleet

SETTINGS = Settings.model_validate({"guard": {"gaps_allowed": True}})
FLEET = second_fleet(5, 40, 9, "mixed")
LIMIT = 0.005


def trials(*realised: float, days: int = 3) -> tuple[Trial, ...]:
    """Trials of which each realised some multiples of what was forecast."""
    return tuple(
        Trial(
            since=NOW + timedelta(days=days * number),
            until=NOW + timedelta(days=days * (number + 1)),
            plans=tuple(TriedPlan(forecast_ratio=at, violation_ratio=at * ratio) for at in (0.001, 0.005, 0.02)),
        )
        for number, ratio in enumerate(realised)
    )


def tried(history: History) -> tuple[Trial, ...]:
    return own_trials(history, settings=SETTINGS, capability=HAMI)


def until(history: History, days: int) -> History:
    """What was known some days after its start."""
    grid = history.slices
    steps = days * 86400 // grid.step_seconds
    moment = grid.since + timedelta(days=days)
    return History(inventory=history.inventory.known_at(moment), slices=grid.between(0, steps))


def test_without_trials_forecasts_stand() -> None:
    past = OwnPast()
    assert past.forecast_limit(LIMIT) == past.expected(LIMIT) == LIMIT
    assert past.interval(LIMIT) is None
    assert past.backtested(LIMIT, LIMIT) is None


def test_of_a_plan_that_predicts_no_harm_trials_say_nothing() -> None:
    past = OwnPast(trials=trials(1.0, 1.0))
    assert (past.interval(0.0), past.backtested(0.0, LIMIT)) == (None, None)


def test_harm_between_presets_is_in_proportion() -> None:
    (trial,) = trials(2.0)
    assert trial.realised(np.array([0.0, 0.003, 0.02, 0.04])) == pytest.approx([0.0, 0.006, 0.04, 0.08])


def test_a_past_that_harmed_more_makes_plans_more_careful() -> None:
    past = OwnPast(trials=trials(5.0, 5.0, 5.0))
    assert LIMIT / FACTOR_MAX <= past.forecast_limit(LIMIT) < 0.5 * LIMIT
    assert past.expected(past.forecast_limit(LIMIT)) <= LIMIT
    assert past.expected(LIMIT) > 2 * LIMIT


def test_a_calm_past_relaxes_once_it_holds_a_week() -> None:
    calm_week, calm_days = OwnPast(trials=trials(*[0.1] * 5)), OwnPast(trials=trials(*[0.1] * 5, days=1))
    assert LIMIT < calm_week.forecast_limit(LIMIT) <= RELAXED_MAX * LIMIT
    # Five days: nobody knows what the weekend brings.
    assert calm_days.forecast_limit(LIMIT) == LIMIT
    assert calm_days.expected(LIMIT) == LIMIT


def test_a_plan_relaxes_by_what_even_a_worse_past_would_bear() -> None:
    """The limit that is chosen leaves a standard error below the promise; what is expected is the mean."""
    past = OwnPast(trials=trials(0.1, 0.1, 0.1, 0.1, 0.1))
    chosen = past.forecast_limit(LIMIT)
    assert chosen > LIMIT
    assert past.expected(chosen) < 0.8 * LIMIT
    # A past of the same mean that is less of one mind relaxes less; longer ones relax more.
    split, even = (OwnPast(trials=trials(*ratios)) for ratios in ([0.0] * 19 + [4.0], [0.2] * 20))
    assert split.forecast_limit(LIMIT) < even.forecast_limit(LIMIT)
    assert OwnPast(trials=trials(*[0.1] * 30)).forecast_limit(LIMIT) > chosen


def test_a_day_proves_less_than_three() -> None:
    """Two trials of three days that harmed much weigh more than one of them cut to a day."""
    bad = trials(4.0, 4.0)
    cut = (replace(bad[0], since=bad[0].until - timedelta(days=1)), bad[1])
    assert OwnPast(trials=bad).expected(LIMIT) > OwnPast(trials=cut).expected(LIMIT) > LIMIT


def test_outcomes_of_applied_plans_count_beside_trials() -> None:
    past = OwnPast(trials=trials(1.0, 1.0, 1.0), calibration_ratio=2.0)
    assert past.forecast_limit(LIMIT) == pytest.approx(LIMIT / 2)
    assert past.expected(0.001) == pytest.approx(0.002)


def test_interval_holds_the_own_past_and_narrows_with_it() -> None:
    little, much = OwnPast(trials=trials(0.8)), OwnPast(trials=trials(*[0.8] * 20))
    wide, narrow = little.interval(LIMIT), much.interval(LIMIT)
    assert wide is not None
    assert narrow is not None
    assert wide[0] <= narrow[0] <= 0.8 * LIMIT <= narrow[1] < wide[1]
    bad = OwnPast(trials=trials(0.1, 0.1, 30.0)).interval(LIMIT)
    assert bad is not None
    assert bad[1] == pytest.approx(30 * LIMIT)
    assert OwnPast(trials=trials(900.0)).interval(LIMIT)[1] == 1.0  # type: ignore[index]


def test_back_tested_counts_what_kept_the_limit() -> None:
    found = OwnPast(trials=trials(0.5, 0.9, 3.0)).backtested(LIMIT, LIMIT)
    assert found is not None
    assert (found.trials, found.within_limit) == (3, 2)
    assert (found.violation_ratio_min, found.violation_ratio_max) == pytest.approx((0.5 * LIMIT, 3 * LIMIT))
    assert found.until - found.since == timedelta(days=9)


def test_too_short_a_history_has_no_trials() -> None:
    assert tried(until(FLEET, 3)) == ()
    assert len(tried(until(FLEET, 4))) == 1


def test_every_day_is_judged_once_the_newest_in_full() -> None:
    spans = [(one.since, one.until) for one in tried(FLEET)]
    ends = [FLEET.slices.since + timedelta(days=days) for days in (3, 4, 9)]
    assert spans == list(itertools.pairwise(ends))


def test_trials_know_nothing_of_the_days_they_are_judged_on() -> None:
    """With all demand of the last five days gone, forecasts of plans made before them stay; what came changes."""
    grid = FLEET.slices
    mean = {measure: values.copy() for measure, values in grid.mean.items()}
    mean[Measure.SM_ACTIVE][:, -5 * 86400 // grid.step_seconds :] = 0.0
    before = tried(FLEET)
    after = tried(replace(FLEET, slices=replace(grid, mean=mean)))
    cut = grid.until - timedelta(days=5)
    pairs = [(one, other) for one, other in zip(before, after, strict=True) if one.since <= cut]
    assert pairs
    for one, other in pairs:
        assert [plan.forecast_ratio for plan in one.plans] == [plan.forecast_ratio for plan in other.plans]
    same_days = next((one, other) for one, other in pairs if one.since == cut)
    assert any(plan.violation_ratio > 0 for plan in same_days[0].plans)
    assert all(plan.violation_ratio == 0 for plan in same_days[1].plans)


def test_back_test_makes_the_plan_that_plan_make_would_have_made() -> None:
    report = backtest(FLEET, train_days=7, test_days=2, settings=SETTINGS, capability=HAMI)
    known = until(FLEET, 7)
    profiles = profile_fleet(known, settings=SETTINGS.analyzer, now=known.inventory.as_of)
    plan = make_plan(
        known, profiles, settings=SETTINGS, capability=HAMI, now=known.inventory.as_of,
        past=OwnPast(trials=tried(known)),
    )  # fmt: skip
    assert plan.backtested is not None
    (score,) = (one for one in report.scores if one.rule == RiskLevel.MEDIUM)
    assert score.predicted_violation_ratio == plan.totals.predicted_violation_ratio
    lines = plan_answer(plan).footnotes
    assert any(line.startswith("back-test: 1 plan as dense") for line in lines)
    headline = plan_answer(plan).headline
    assert any("nine times of ten" in line for line in headline)
    assert plan.totals.shifted_violation_ratio == score.shifted_violation_ratio
    assert (plan.totals.shifted_violation_ratio or 0.0) > plan.totals.predicted_violation_ratio
    assert any("while the whole fleet is 1.3 times as busy" in line for line in headline)


def test_plans_of_several_presets_are_those_made_one_by_one() -> None:
    known = until(FLEET, 6)
    now = known.inventory.as_of
    profiles = profile_fleet(known, settings=SETTINGS.analyzer, now=now)
    together = make_plans(known, profiles, settings=SETTINGS, capability=HAMI, now=now, levels=tuple(RiskLevel))
    for level in RiskLevel:
        risk = SETTINGS.risk.model_copy(update={"preset": level})
        alone = make_plan(
            known, profiles, settings=SETTINGS.model_copy(update={"risk": risk}), capability=HAMI, now=now
        )
        assert replace(together[level], inputs_sha256="") == replace(alone, inputs_sha256="")


def test_sample_of_a_fleet_holds_whole_workloads_and_their_cards() -> None:
    inventory = FLEET.inventory
    part = sampled_inventory(inventory, 15)
    assert 15 <= len(part.grants) < len(inventory.grants)
    chosen = {grant.workload_id for grant in part.grants}
    assert {grant.pod_id for grant in part.grants} == {
        grant.pod_id for grant in inventory.grants if grant.workload_id in chosen
    }
    assert {card.card for card in part.cards} == {grant.card for grant in part.grants}
    assert part == sampled_inventory(inventory, 15)
    assert sampled_inventory(inventory, 40) is inventory
