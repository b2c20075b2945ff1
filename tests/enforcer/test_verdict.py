"""The verdict on a plan: harm leads iff a service is over its budget, and few windows are judged neither way."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from dashboards.words.advice import headline_words, verdict_words
from dashboards.words.catalogue import Language
from enforcer.record.verdict import (
    ACTIVE_WINDOWS_MIN,
    Level,
    Standing,
    standing_of,
    verdict_document,
    verdict_of,
)
from fleet.decisions import Saving
from fleet.documents import OUTCOME_SCHEMA
from fleet.inventory import WorkloadId
from fleet.outcomes import Outcome, WorkloadOutcome

SINCE = datetime(2026, 1, 12, tzinfo=UTC)
BUDGET = 0.01


def service(name: str, ratio: float | None, windows: int = 1000, predicted: float = 0.002) -> WorkloadOutcome:
    return WorkloadOutcome(
        workload=WorkloadId(name), predicted_violation_ratio=predicted, violation_ratio=ratio, active_steps=windows,
        cause="contention" if ratio else None,
    )  # fmt: skip


def outcome(*services: WorkloadOutcome, observed: float | None = 0.001, predicted: float = 0.005) -> Outcome:
    saving = Saving(amortised=None, marginal=None)
    return Outcome(
        plan_id="7f3a", measured_at=SINCE + timedelta(days=7), since=SINCE, until=SINCE + timedelta(days=7),
        is_final=True, promised_cards_freed=40, realised_cards_freed=38, promised_saving_per_week=saving,
        realised_saving_per_week=saving, promised_violation_ratio=predicted, realised_violation_ratio=observed,
        control_violation_ratio=None, coverage_ratio=1.0, given_back=2, workloads=services, harm_budget_ratio=BUDGET,
    )  # fmt: skip


def judged(measured: Outcome) -> dict:
    return verdict_document(measured, verdict_words(verdict_of(measured), Language.EN))


def test_harm_leads_where_one_service_is_over_its_budget_though_the_plan_is_within_its_prediction() -> None:
    found = verdict_of(outcome(service("ads/Deployment/a", 0.03), service("ads/Deployment/b", 0.0)))
    assert (found.level, found.is_harmed) == (Level.HARMED, True)
    assert headline_words(found, Language.EN) == (
        "Harm above plan: 1 of 2 services exceeded their budget (0.10 % observed, 0.50 % predicted)."
    )
    assert verdict_words(found, Language.EN) == (
        "Harm above plan: 1 of 2 services exceeded their budget (0.10 % observed, 0.50 % predicted). Worst: "
        "ads/Deployment/a with 3.00 % against a harm budget of 1.00 %. 38 of 40 promised cards were freed. Measured "
        "over 7 days."
    )


def test_services_that_were_taken_back_stand_in_the_headline() -> None:
    bad = replace(outcome(service("ads/Deployment/a", 0.03)), restored=(WorkloadId("ads/Deployment/a"),))
    assert headline_words(verdict_of(bad), Language.EN).endswith("predicted). 1 restored.")


def test_saving_leads_where_no_service_is_over_its_budget() -> None:
    found = verdict_of(outcome(service("ads/Deployment/a", 0.01)))
    assert headline_words(found, Language.EN) == (
        "38 of 40 promised cards were freed. No more harm than predicted (0.10 % observed, 0.50 % predicted)."
    )
    more = verdict_of(outcome(service("ads/Deployment/a", 0.01), observed=0.0075))
    assert more.level is Level.MORE_THAN_PREDICTED
    assert not more.is_harmed


@pytest.mark.parametrize(
    ("windows", "standing", "level"),
    [
        (ACTIVE_WINDOWS_MIN - 1, Standing.TOO_FEW_WINDOWS, Level.TOO_FEW_WINDOWS),
        (ACTIVE_WINDOWS_MIN, Standing.OVER_BUDGET, Level.HARMED),
    ],
)
def test_rate_of_too_few_windows_is_neither_over_budget_nor_fine(
    windows: int, standing: Standing, level: Level
) -> None:
    rare = service("ads/Deployment/rare", 0.26, windows)
    assert standing_of(rare, BUDGET) is standing
    assert verdict_of(outcome(rare, observed=0.26)).level is level


def test_too_few_windows_are_said_instead_of_a_rate() -> None:
    found = verdict_of(outcome(service("ads/Deployment/rare", 0.26, 19), observed=0.26))
    assert found.observed_ratio is None
    assert headline_words(found, Language.EN).endswith("Harm: too few windows to judge (fewer than 100 active).")
    assert "26" not in verdict_words(found, Language.EN)
    beside = verdict_of(outcome(service("ads/Deployment/a", 0.0), service("ads/Deployment/rare", 0.26, 19)))
    assert beside.level is Level.AS_PREDICTED
    assert "Services with too few windows to judge: 1" in verdict_words(beside, Language.EN)


def test_nothing_measured_is_no_harm_and_no_praise() -> None:
    found = verdict_of(outcome(service("ads/Deployment/a", None, 0), observed=None))
    assert found.level is Level.UNMEASURED
    assert headline_words(found, Language.EN).endswith("Harm was not measured.")


def test_without_a_budget_no_service_is_over_it() -> None:
    bad = replace(outcome(service("ads/Deployment/a", 0.5)), harm_budget_ratio=None)
    assert not verdict_of(bad).is_harmed


def test_verdict_on_a_part_of_a_plan_counts_its_services_alone_and_no_cards() -> None:
    whole = outcome(service("ads/Deployment/a", 0.03, 100, 0.0), service("web/Deployment/b", 0.0, 300, 0.004))
    assert verdict_of(whole).is_harmed
    found = verdict_of(whole, part=lambda workload: workload.startswith("web/"))
    assert (found.is_harmed, found.services_changed, found.cards_freed) == (False, 1, None)
    assert (found.observed_ratio, found.predicted_ratio) == (0.0, 0.004)


def test_document_leads_with_the_verdict() -> None:
    found = judged(outcome(service("ads/Deployment/a", 0.03)))
    assert list(found)[:2] == ["schema", "verdict"]
    assert found["schema"] == OUTCOME_SCHEMA
    assert found["verdict"]["level"] == "harmed"
    assert found["verdict"]["text"].startswith("Harm above plan: 1 of 1 services")
    assert [one["workload"] for one in found["verdict"]["over_budget"]] == ["ads/Deployment/a"]


def test_document_says_of_each_service_how_it_stands() -> None:
    found = judged(outcome(service("ads/Deployment/a", 0.03), service("ads/Deployment/rare", 0.26, 19)))
    assert [one["standing"] for one in found["workloads"]] == ["over_budget", "too_few_windows"]
