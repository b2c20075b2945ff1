"""The verdict on a plan: harm leads iff a service is surely over its budget; a wide interval is judged neither way."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from dashboards.words.advice import headline_words, verdict_words
from enforcer.record.verdict import (
    Level,
    Standing,
    harm_interval,
    standing_of,
    verdict_document,
    verdict_of,
)
from fleet.decisions import Saving
from fleet.documents import OUTCOME_SCHEMA
from fleet.inventory import WorkloadId
from fleet.outcomes import Outcome, WorkloadOutcome
from fleet.words import Language

SINCE = datetime(2026, 1, 12, tzinfo=UTC)
BUDGET = 0.01


def service(name: str, ratio: float | None, windows: int = 1000, predicted: float = 0.002) -> WorkloadOutcome:
    return WorkloadOutcome(
        workload=WorkloadId(name), predicted_violation_ratio=predicted, violation_ratio=ratio, active_steps=windows,
        cause="contention" if ratio else None,
    )  # fmt: skip


def outcome(*services: WorkloadOutcome, predicted: float = 0.005) -> Outcome:
    saving = Saving(amortised=None, marginal=None)
    return Outcome(
        plan_id="7f3a", measured_at=SINCE + timedelta(days=7), since=SINCE, until=SINCE + timedelta(days=7),
        is_final=True, promised_cards_freed=40, realised_cards_freed=38, promised_saving_per_week=saving,
        realised_saving_per_week=saving, promised_violation_ratio=predicted,
        control_violation_ratio=None, coverage_ratio=1.0, given_back=2, workloads=services, harm_budget_ratio=BUDGET,
    )  # fmt: skip


def judged(measured: Outcome) -> dict:
    return verdict_document(measured, verdict_words(verdict_of(measured), Language.EN))


def test_harm_leads_where_one_service_is_over_its_budget_though_the_plan_is_within_its_prediction() -> None:
    found = verdict_of(outcome(service("ads/Deployment/a", 0.03), service("ads/Deployment/b", 0.0, 29_000)))
    assert (found.level, found.is_harmed) == (Level.HARMED, True)
    assert headline_words(found, Language.EN) == (
        "Harm above plan: 1 of 2 services exceeded its budget (0.10 % observed, 0.50 % predicted)."
    )
    assert verdict_words(found, Language.EN) == (
        "Harm above plan: 1 of 2 services exceeded its budget (0.10 % observed, 0.50 % predicted). Worst: "
        "ads/Deployment/a with 3.00 % against a harm budget of 1.00 %. 38 of 40 promised cards were freed. Measured "
        "over 7 days."
    )


def test_services_that_were_taken_back_stand_in_the_headline() -> None:
    bad = replace(outcome(service("ads/Deployment/a", 0.03)), restored=(WorkloadId("ads/Deployment/a"),))
    assert headline_words(verdict_of(bad), Language.EN).endswith("predicted). 1 restored.")


def test_saving_leads_where_no_service_is_over_its_budget() -> None:
    found = verdict_of(outcome(service("ads/Deployment/a", 0.001, 10_000)))
    assert headline_words(found, Language.EN) == (
        "38 of 40 promised cards were freed. No more harm than predicted (0.10 % observed, 0.50 % predicted)."
    )
    more = verdict_of(outcome(service("ads/Deployment/a", 0.0075, 10_000)))
    assert more.level is Level.MORE_THAN_PREDICTED
    assert not more.is_harmed


@pytest.mark.parametrize(
    ("violated", "windows", "interval"),
    [
        # Brown, Cai and DasGupta's formula, computed by hand and with statsmodels.proportion_confint(method="wilson").
        (0, 10, (0.0, 0.2775)),
        (5, 19, (0.1181, 0.4879)),
        (100, 10_000, (0.0082, 0.0121)),
        (10, 10, (0.7225, 1.0)),
    ],
)
def test_interval_is_wilsons(violated: int, windows: int, interval: tuple[float, float]) -> None:
    assert harm_interval(violated / windows, windows) == pytest.approx(interval, abs=5e-5)
    assert harm_interval(0.0, 0) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("violated", "windows", "standing"),
    [
        (12, 60, Standing.OVER_BUDGET),  # a notebook with 20 % harm
        (5, 19, Standing.OVER_BUDGET),
        (1, 50, Standing.UNDECIDED),
        (0, 100, Standing.UNDECIDED),
        (0, 400, Standing.WITHIN_BUDGET),
        (110, 10_000, Standing.UNDECIDED),
        (130, 10_000, Standing.OVER_BUDGET),
        (70, 10_000, Standing.WITHIN_BUDGET),
        (0, 0, Standing.UNDECIDED),
    ],
)
def test_service_is_judged_when_its_budget_lies_outside_the_interval_of_its_rate(
    violated: int, windows: int, standing: Standing
) -> None:
    assert standing_of(service("ads/Deployment/a", violated / max(1, windows), windows), BUDGET) is standing


def test_service_that_was_hardly_active_but_surely_harmed_leads() -> None:
    rare = verdict_of(outcome(service("ads/Notebook/rare", 12 / 60, 60), service("ads/Deployment/a", 0.0, 5000)))
    assert rare.is_harmed
    assert headline_words(rare, Language.EN).startswith(
        "Harm above plan: 1 of 2 services exceeded its budget (0.24 % observed"
    )


def test_undecided_are_said_instead_of_a_rate() -> None:
    found = verdict_of(outcome(service("ads/Deployment/rare", 1 / 21, 21)))
    assert found.observed_ratio is None
    assert headline_words(found, Language.EN).endswith(
        "Harm: not decided yet, because the 95 % interval after 21 active windows is wider than the budget."
    )
    assert "4.76" not in verdict_words(found, Language.EN)
    beside = verdict_of(outcome(service("ads/Deployment/a", 0.0), service("ads/Deployment/rare", 1 / 21, 21)))
    assert beside.level is Level.AS_PREDICTED
    assert "1 service is not decided yet: the 95 % interval of its harm includes the budget." in verdict_words(
        beside, Language.EN
    )


def test_low_priority_gives_way_by_design_and_is_no_part_of_the_plan_s_rate() -> None:
    low = replace(service("ads/Job/low", 0.0, 9000), is_low_priority=True)
    high = service("ads/Deployment/a", 0.004, 1000)
    assert verdict_of(outcome(low, high)).observed_ratio == 0.004
    assert verdict_of(outcome(low)).observed_ratio == 0.0


@pytest.mark.parametrize(
    ("over", "said"),
    [(1, "1 of 1 service exceeded its budget"), (2, "2 of 2 services exceeded their budget")],
)
def test_number_of_services_and_of_cards_agrees_with_its_words(over: int, said: str) -> None:
    one = replace(outcome(*(service(f"ads/Deployment/{n}", 0.03) for n in range(over))), spare_cards=over)
    one = replace(one, promised_cards_freed=over, realised_cards_freed=over, until=SINCE + timedelta(days=over))
    words = verdict_words(verdict_of(one), Language.EN)
    assert said in words
    freed = "1 of 1 promised card was freed. 1 spare card is free besides these."
    assert (freed in words) == (over == 1)
    assert ("over 1 day." if over == 1 else "over 2 days.") in words


def test_nothing_measured_is_no_harm_and_no_praise() -> None:
    found = verdict_of(outcome(service("ads/Deployment/a", None, 0)))
    assert found.level is Level.UNMEASURED
    assert headline_words(found, Language.EN).endswith("Harm was not measured.")


def test_without_a_budget_no_service_is_over_it() -> None:
    bad = replace(outcome(service("ads/Deployment/a", 0.5)), harm_budget_ratio=None)
    assert not verdict_of(bad).is_harmed


def test_verdict_on_a_part_of_a_plan_counts_its_services_alone_and_no_cards() -> None:
    whole = outcome(service("ads/Deployment/a", 0.05, 400, 0.0), service("web/Deployment/b", 0.0, 1200, 0.004))
    assert verdict_of(whole).is_harmed
    found = verdict_of(whole, part=lambda workload: workload.startswith("web/"))
    assert (found.is_harmed, found.services_changed, found.cards_freed) == (False, 1, None)
    assert (found.observed_ratio, found.predicted_ratio) == (0.0, 0.004)


def test_part_that_holds_every_service_is_the_whole_plan() -> None:
    whole = outcome(service("ads/Deployment/a", 0.05, 400), service("ads/Deployment/b", 0.0, 1200))
    assert verdict_of(whole, part=lambda workload: workload.startswith("ads/")) == verdict_of(whole)


def test_document_leads_with_the_verdict() -> None:
    found = judged(outcome(service("ads/Deployment/a", 0.03)))
    assert list(found)[:2] == ["schema", "verdict"]
    assert found["schema"] == OUTCOME_SCHEMA
    assert found["verdict"]["level"] == "harmed"
    assert found["verdict"]["text"].startswith("Harm above plan: 1 of 1 service exceeded its budget")
    assert [one["workload"] for one in found["verdict"]["over_budget"]] == ["ads/Deployment/a"]


def test_document_says_of_each_service_how_it_stands() -> None:
    found = judged(outcome(service("ads/Deployment/a", 0.03), service("ads/Deployment/rare", 1 / 21, 21)))
    assert found["workloads"][1]["violation_interval"] == pytest.approx([0.0085, 0.2266], abs=5e-4)
    assert [one["standing"] for one in found["workloads"]] == ["over_budget", "undecided"]
