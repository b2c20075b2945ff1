"""What was found and realised over several plans: each card once; weeks; and harm budgets."""

from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal

import pytest

from dashboards.queries import PlanEntry
from enforcer.backend import Move
from enforcer.dialect import SeatSlice
from enforcer.record.harm import harm_budgets, leading_verdict
from enforcer.record.journal import StageRecord
from enforcer.record.savings import (
    PlanRecord,
    Step,
    planned_cards,
    realised_of,
    realised_weeks,
    savings_steps,
    stages_in_place,
    week_start,
)
from enforcer.record.verdict import Standing, verdict_of
from fleet.decisions import FreedCard, RecommendationKind, Saving
from fleet.inventory import CardId, WorkloadId
from fleet.outcomes import Outcome
from fleet.sentences import sentence
from tests.dashboards.embedded import NOW, make_past, make_plan, make_profiles
from tests.enforcer.builders import a_plan, a_recommendation, a_slice, card_id

PROFILES = make_profiles()
PLAN = make_plan(PROFILES)
PAST = [(entry, outcome) for entry, outcome, _ in make_past(PROFILES, PLAN)]
ENTRIES = (PlanEntry(plan=PLAN), *(entry for entry, _ in reversed(PAST)))
OUTCOMES = tuple(outcome for _, outcome in reversed(PAST))


def test_plan_that_nobody_approved_is_found_once_however_often_it_was_made_anew() -> None:
    stale = PlanEntry(plan=replace(PLAN, plan_id="0ld"))
    found = savings_steps((PlanEntry(plan=PLAN), stale, ENTRIES[1]), ())[0]
    assert found.plans == (PLAN.plan_id, ENTRIES[1].plan.plan_id)


def test_card_that_an_undone_plan_and_its_successor_free_is_found_once() -> None:
    undone, successor = a_record("first", "abc", undone_at=NOW), a_record("second", "bcd")
    outcomes = (an_outcome("second", "bc"), an_outcome("first", "ab"))
    steps = {step.name: step for step in savings_steps((successor, undone), outcomes)}
    assert {name: step.cards for name, step in steps.items()} == {
        Step.FOUND: 4,
        Step.ACCEPTED: 4,
        Step.APPLIED: 4,
        Step.VERIFIED: 4,
        Step.REALISED: 2,
    }
    assert steps[Step.FOUND].amortised_per_week == 4 * 100
    assert steps[Step.REALISED].plans == ("second",)
    assert sum(week.cards for week in realised_weeks(outcomes, now=NOW, weeks=3)) == pytest.approx(2 + 3)


def test_card_that_two_standing_plans_freed_is_realised_by_the_newer() -> None:
    plans = (a_record("second", "bc"), a_record("first", "ab"))
    found = realised_of(plans, (an_outcome("second", "bc"), an_outcome("first", "ab")))
    assert {plan: [card.card for card in cards] for plan, cards in found.items()} == {
        "second": ["b", "c"],
        "first": ["a"],
    }


def test_stage_and_recommendation_that_were_undone_since_realise_nothing() -> None:
    partly = replace(a_record("first", "abcd"), applied_stages=(1, 2, 3), undone_recommendations=frozenset({"item-3"}))
    assert [card.card for card in realised_of((partly,), (an_outcome("first", "abcd"),))["first"]] == ["a", "b"]


def test_spare_card_is_not_found_and_a_card_that_another_replaces_saves_money_alone() -> None:
    one = a_record("first", "abc")
    spare, replaced, counted = (item.freed[0] for item in one.plan.recommendations)
    cards = (replace(spare, is_spare=True), replace(replaced, replaced_by=CardId("z")), counted)
    advice = tuple(replace(item, freed=(card,)) for item, card in zip(one.plan.recommendations, cards, strict=True))
    (found, *_) = savings_steps((replace(one, plan=replace(one.plan, recommendations=advice)),), ())
    assert (found.cards, found.amortised_per_week) == (1, Decimal(200))


def a_record(name: str, cards: str, *, undone_at: datetime | None = None) -> PlanRecord:
    """A plan that frees one card in each stage, approved and applied as a whole."""
    advice = tuple(
        replace(PLAN.recommendations[0], id=f"item-{number}", freed=(a_card(card),))
        for number, card in enumerate(cards, start=1)
    )
    stages = tuple(
        replace(PLAN.stages[0], stage=number, recommendations=(item.id,)) for number, item in enumerate(advice, start=1)
    )
    numbers = tuple(stage.stage for stage in stages)
    return PlanRecord(
        plan=replace(PLAN, plan_id=name, recommendations=advice, stages=stages),
        approved_stages=numbers,
        applied_stages=() if undone_at is not None else numbers,
        once_applied_stages=numbers,
        undone_at=undone_at,
    )


def a_card(name: str) -> FreedCard:
    return FreedCard(card=CardId(name), saving_per_week=Saving(amortised=Decimal(100), marginal=None))


def an_outcome(name: str, cards: str) -> Outcome:
    """What was measured of such a plan, over two weeks of which the second plan's are the last seven days."""
    since = week_start(NOW) - timedelta(days=14 if name == "first" else 7)
    return replace(
        OUTCOMES[0],
        plan_id=name,
        since=since,
        until=week_start(NOW),
        stages=(1, 2, 3, 4),
        realised=tuple(map(a_card, cards)),
        workloads=(),
    )


def test_funnel_never_widens_for_plans_that_came_true_at_most() -> None:
    cards = [step.cards for step in savings_steps(ENTRIES, OUTCOMES)]
    assert cards == sorted(cards, reverse=True)
    assert cards[0] == PLAN.totals.cards_freed + 120 + 65 + 80 + 95


def test_undone_plan_counts_as_applied_and_realises_nothing() -> None:
    steps = {step.name: step for step in savings_steps(ENTRIES, OUTCOMES)}
    undone = next(entry.plan.plan_id for entry in ENTRIES if entry.undone_at is not None)
    assert undone in steps[Step.APPLIED].plans
    assert undone not in steps[Step.REALISED].plans
    assert steps[Step.REALISED].cards == 112 + 41 + 93


def test_partial_approval_accepts_only_its_stages() -> None:
    steps = {s.name: s for s in savings_steps((PlanEntry(plan=PLAN, approved_stages=(1, 2)),), ())}
    assert steps[Step.ACCEPTED].cards == PLAN.stages[0].cards_freed + PLAN.stages[1].cards_freed
    assert steps[Step.APPLIED].cards == 0
    assert steps[Step.APPLIED].amortised_per_week is None


def test_yes_to_the_tide_alone_accepts_no_card() -> None:
    tide = replace(PLAN.recommendations[0], id="tide-1", kind=RecommendationKind.TIDE, cards_freed=0, freed=())
    number = len(PLAN.stages) + 1
    last = replace(PLAN.stages[0], stage=number, recommendations=("tide-1",), cards_freed=0, moves=0)
    plan = replace(PLAN, recommendations=(*PLAN.recommendations, tide), stages=(*PLAN.stages, last))
    yes = PlanEntry(plan=plan, approved_stages=(number,))
    steps = {step.name: step for step in savings_steps((yes, replace(yes, plan=replace(plan, plan_id="older"))), ())}
    assert steps[Step.FOUND].plans == (plan.plan_id,)
    assert steps[Step.ACCEPTED].plans == ()


def test_interim_outcome_is_not_verified_yet() -> None:
    interim = tuple(replace(outcome, is_final=False) for outcome in OUTCOMES)
    steps = {step.name: step for step in savings_steps(ENTRIES, interim)}
    assert steps[Step.VERIFIED].cards == 0


def test_weeks_share_a_span_by_the_time_that_falls_into_each() -> None:
    start = week_start(NOW) - timedelta(days=7)
    outcome = replace(OUTCOMES[0], since=start + timedelta(days=5), until=start + timedelta(days=12))
    earlier, later = realised_weeks([outcome], now=NOW, weeks=2)
    money = outcome.realised_saving_per_week.amortised
    assert money is not None
    assert earlier.amortised == pytest.approx(money * Decimal(2) / 7)
    assert later.amortised == pytest.approx(money * Decimal(5) / 7)
    assert earlier.cards + later.cards == pytest.approx(outcome.realised_cards_freed)


def test_week_without_measurement_has_no_money_rather_than_zero() -> None:
    (week,) = realised_weeks([], now=NOW, weeks=1)
    assert week.amortised is None
    assert week.cards == 0


def test_week_starts_on_monday() -> None:
    assert week_start(datetime.fromisoformat("2026-01-19T00:00:00+08:00")).date().isoformat() == "2026-01-12"
    assert week_start(NOW).date().isoformat() == "2026-01-19"


def test_broken_harm_budget_stands_first_and_over_one() -> None:
    budgets = harm_budgets(ENTRIES, [replace(one, harm_budget_ratio=0.002) for one in OUTCOMES])
    burns = [budget.burn_ratio or 0.0 for budget in budgets]
    assert burns == sorted(burns, reverse=True)
    assert budgets[0].standing is Standing.OVER_BUDGET
    assert burns[0] > 1


def test_unmeasured_harm_has_no_burn() -> None:
    item = replace(OUTCOMES[0].workloads[0], violation_ratio=None)
    outcome: Outcome = replace(OUTCOMES[0], workloads=(item,))
    assert harm_budgets(ENTRIES, [outcome])[0].burn_ratio is None


def test_harm_of_an_undone_plan_spends_no_budget_any_more() -> None:
    undone = next(entry.plan.plan_id for entry in ENTRIES if entry.undone_at is not None)
    assert undone not in {budget.plan_id for budget in harm_budgets(ENTRIES, OUTCOMES)}


def test_service_that_a_newer_plan_changed_counts_with_that_plan_alone() -> None:
    newer, older = (one for one in OUTCOMES if one.realised_cards_freed > 41)
    harmed = replace(older.workloads[0], violation_ratio=0.5)
    mended = replace(harmed, violation_ratio=0.0)
    outcomes = (replace(newer, workloads=(mended,)), replace(older, workloads=(harmed,)))
    verdict = leading_verdict(ENTRIES, outcomes)
    assert verdict is not None
    assert (verdict.plan_id, verdict.is_harmed) == (newer.plan_id, False)
    assert leading_verdict(ENTRIES, outcomes[1:]) == verdict_of(outcomes[1])
    assert [one.plan_id for one in harm_budgets(ENTRIES, outcomes)] == [newer.plan_id]


def test_plan_whose_conditions_are_gone_leads_before_a_newer_calm_one_and_after_harm() -> None:
    newer, older = (one for one in OUTCOMES if one.realised_cards_freed > 41)
    calm, broken = replace(newer, workloads=()), replace(older, workloads=(), broken=(sentence("guard.expired"),))
    verdict = leading_verdict(ENTRIES, (calm, broken))
    assert verdict is not None
    assert (verdict.plan_id, verdict.needs_hands) == (older.plan_id, True)
    harmed = replace(newer, workloads=(replace(newer.workloads[0], violation_ratio=0.5, active_steps=5000),))
    verdict = leading_verdict(ENTRIES, (harmed, broken))
    assert verdict is not None
    assert (verdict.plan_id, verdict.is_harmed) == (newer.plan_id, True)


def test_service_that_a_newer_plan_could_not_judge_keeps_the_harm_that_an_older_one_did() -> None:
    newer, older = (one for one in OUTCOMES if one.realised_cards_freed > 41)
    harmed = replace(older.workloads[0], violation_ratio=0.26, active_steps=5000)
    for unjudged in (
        replace(harmed, violation_ratio=0.0, active_steps=3),
        replace(harmed, violation_ratio=None, active_steps=0),
    ):
        outcomes = (replace(newer, workloads=(unjudged,)), replace(older, workloads=(harmed,)))
        verdict = leading_verdict(ENTRIES, outcomes)
        assert verdict is not None
        assert (verdict.plan_id, verdict.is_harmed) == (older.plan_id, True)
        (budget,) = harm_budgets(ENTRIES, outcomes)
        assert (budget.plan_id, budget.standing) == (older.plan_id, Standing.OVER_BUDGET)
        (alone,) = harm_budgets(ENTRIES, outcomes[:1])
        assert alone.plan_id == newer.plan_id


def test_a_stage_is_in_place_only_when_all_of_its_pods_are() -> None:
    plan = a_plan(
        {0: [a_slice("a-0"), a_slice("a-1")]},
        [
            [a_recommendation("slice-1", RecommendationKind.SLICE, ["a-0", "a-1"], ["Deployment/a"], 0)],
            [a_recommendation("join-1", RecommendationKind.SLICE, ["a-1"], ["Deployment/a"], 1)],
            # Never, though its pods sit where they are planned to.
            [a_recommendation("tide-1", RecommendationKind.TIDE, ["a-1"], ["Deployment/a"], 0)],
        ],
    )
    seat = SeatSlice(container="main", card=card_id(0), framebuffer_mib=1024, core_percent=10, priority="normal")
    move = Move(
        namespace="team",
        pod="a-1",
        workload=WorkloadId("team/Deployment/a"),
        old=(),
        new=(seat,),
        recommendation="join-1",
    )
    record = StageRecord(plan_id=plan.plan_id, stage=2, moves=[move])
    assert stages_in_place(plan, planned_cards(plan), [record]) == {2}
    both = StageRecord(plan_id=plan.plan_id, stage=2, moves=[move, replace(move, pod="a-0")])
    assert stages_in_place(plan, planned_cards(plan), [both]) == {1, 2}
