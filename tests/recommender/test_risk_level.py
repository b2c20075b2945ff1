"""The risk of advice: the worse of its predicted harm and its confidence."""

import pytest

from fleet.decisions import RecommendationKind, RiskLevel
from recommender.harm.risk import level_of
from tests.recommender.builders import ANY_CONFIDENCE, Service, cluster, plan_of


@pytest.mark.parametrize(
    ("violation_ratio", "confidence", "level"),
    [
        (0.0, 0.8, RiskLevel.LOW),
        (0.0, 0.79, RiskLevel.MEDIUM),
        (0.0, 0.49, RiskLevel.HIGH),
        (0.001, 1.0, RiskLevel.LOW),
        (0.002, 1.0, RiskLevel.MEDIUM),
        (0.006, 1.0, RiskLevel.HIGH),
        (0.002, 0.11, RiskLevel.HIGH),
    ],
)
def test_risk_is_the_worse_of_harm_and_confidence(violation_ratio: float, confidence: float, level: RiskLevel) -> None:
    assert level_of(violation_ratio, confidence) is level


def test_reclaim_that_is_likely_to_wake_is_of_high_risk_where_the_settings_allow_it() -> None:
    book = Service(name="book", kind="Notebook", level=0.0)
    plan = plan_of(cluster(book, Service(name="busy", level=0.9, used_gib=20.0)), settings=ANY_CONFIDENCE)
    (item,) = [item for item in plan.recommendations if item.kind is RecommendationKind.RECLAIM]
    assert item.confidence < 0.5
    assert item.risk_level is RiskLevel.HIGH


def test_advice_of_three_days_is_not_of_low_risk() -> None:
    plan = plan_of(cluster(*(Service(name=f"small-{n}", level=0.1) for n in range(3)), days=3))
    assert plan.recommendations
    assert {item.risk_level for item in plan.recommendations} == {RiskLevel.MEDIUM}
