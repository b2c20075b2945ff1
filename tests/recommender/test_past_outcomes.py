"""Earlier plans that harmed more than foretold make the next one more careful."""

from dataclasses import replace
from datetime import timedelta

import pytest

from analyzer.profile import profile_fleet
from fleet.capabilities.register import HAMI
from fleet.decisions import Saving
from fleet.inventory import WorkloadId
from fleet.outcomes import Outcome, WorkloadOutcome
from fleet.settings.settings import Settings
from gputide.answers.plan import plan_answer
from recommender.naive import NAIVE_RULES
from recommender.past_outcomes import FACTOR_MAX, OwnPast, calibration_of
from recommender.planner import make_plan
from tests.recommender.builders import NOW, Service, cluster, plan_of
from tests.recommender.second_fleet import second_fleet


def outcome(foretold: float, realised: float | None, *, steps: int = 1_000_000, **changes: object) -> Outcome:
    web = WorkloadOutcome(
        workload=WorkloadId("team/Deployment/web"), predicted_violation_ratio=foretold, violation_ratio=realised,
        active_steps=steps, cause=None,
    )  # fmt: skip
    nothing = Saving(amortised=None, marginal=None)
    found = Outcome(
        plan_id="a", measured_at=NOW, since=NOW - timedelta(days=7), until=NOW, is_final=True, promised_cards_freed=3,
        realised_cards_freed=3, promised_saving_per_week=nothing, realised_saving_per_week=nothing,
        promised_violation_ratio=foretold, control_violation_ratio=None,
        coverage_ratio=1.0, given_back=0, workloads=(web,),
    )  # fmt: skip
    return replace(found, **changes)  # type: ignore[arg-type]


def test_nothing_verified_changes_nothing() -> None:
    assert calibration_of(()) == 1.0
    assert calibration_of([outcome(0.001, 0.01, is_final=False)]) == 1.0
    assert calibration_of([outcome(0.001, None)]) == 1.0


def test_harm_beyond_the_promise_is_pooled_over_plans() -> None:
    assert calibration_of([outcome(0.01, 0.02)]) == pytest.approx(2.0, rel=0.02)
    assert calibration_of([outcome(0.01, 0.02), outcome(0.01, 0.01)]) == pytest.approx(1.5, rel=0.02)


def test_few_steps_prove_little() -> None:
    assert calibration_of([outcome(0.01, 0.04, steps=500)]) < 1.2


def test_what_untouched_workloads_suffer_is_no_plan_s_doing() -> None:
    assert calibration_of([outcome(0.01, 0.03, control_violation_ratio=0.02)]) == pytest.approx(1.0)


def test_factor_is_never_below_one_nor_without_end() -> None:
    assert calibration_of([outcome(0.02, 0.0)]) == 1.0
    assert calibration_of([outcome(0.0, 1.0)]) == FACTOR_MAX


def test_plan_after_harm_is_more_careful_and_says_so() -> None:
    history = second_fleet(5, 48, 5, "mixed")
    settings, now, limit = Settings.model_validate({"guard": {"gaps_allowed": True}}), history.inventory.as_of, 0.005
    profiles = profile_fleet(history, settings=settings.analyzer, now=now)
    plain, careful = (
        make_plan(history, profiles, settings=settings, capability=HAMI, now=now, past=OwnPast(calibration_ratio=ratio))
        for ratio in (1.0, FACTOR_MAX)
    )
    assert plain.totals.predicted_violation_ratio <= limit
    assert careful.totals.predicted_violation_ratio <= limit
    assert careful.totals.cards_after > plain.totals.cards_after
    assert careful.inputs_sha256 != plain.inputs_sha256
    assert careful.calibration_ratio == FACTOR_MAX
    assert any("earlier plans" in line for line in plan_answer(careful).footnotes)
    assert not any("earlier plans" in line for line in plan_answer(plain).footnotes)


def test_factor_multiplies_what_is_foretold() -> None:
    # Too lenient a limit to bind: the packing is the same, and its forecast is multiplied.
    history = cluster(*(Service(name=f"s{n}", level=0.45, used_gib=3.0) for n in range(6)), days=3)
    plain, careful = (plan_of(history, risk="high", past=OwnPast(calibration_ratio=ratio)) for ratio in (1.0, 1.5))
    assert 0 < plain.totals.predicted_violation_ratio < 0.02 / 1.5
    assert careful.totals.cards_after == plain.totals.cards_after
    for before, after in zip(plain.frontier, careful.frontier, strict=True):
        if before.is_chosen or before.label in NAIVE_RULES:
            assert after.violation_ratio == pytest.approx(min(1.0, 1.5 * before.violation_ratio))
    assert careful.totals.predicted_violation_ratio == pytest.approx(1.5 * plain.totals.predicted_violation_ratio)
