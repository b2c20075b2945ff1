"""How sure a stage is, and which stages are chosen beforehand."""

from dataclasses import replace

from fleet.confidence import confident_stages, stage_confidence
from fleet.decisions import Plan
from tests.recommender.builders import ANY_CONFIDENCE, Service, cluster, plan_of
from tests.recommender.test_rules import CASES

BOOK = Service(name="book", kind="Notebook", level=0.0)


def small_plan() -> Plan:
    """An idle notebook is given back, then one service after the other is cut and moves."""
    services = (Service(name=f"small-{number}", replicas=number + 1, level=0.1) for number in range(3))
    plan = plan_of(cluster(BOOK, *services), settings=ANY_CONFIDENCE)
    assert [stage.title.code for stage in plan.stages] == [
        "reclaim",
        "share",
        "share",
        "share",
    ]
    return plan


def doubted(plan: Plan, confidence: float, *prefixes: str) -> Plan:
    """The plan with another confidence of some recommendations."""
    return replace(
        plan,
        recommendations=tuple(
            replace(item, confidence=confidence) if item.id.startswith(prefixes) else item
            for item in plan.recommendations
        ),
    )


def test_stage_that_cuts_has_the_mean_by_pods() -> None:
    plan = doubted(doubted(small_plan(), 0.9, ""), 0.3, "slice-0001")
    cut = replace(plan.stages[1], recommendations=("slice-0001", "slice-0002", "slice-0003"))
    assert [(item.workloads[0], len(item.pods)) for item in plan.recommendations if item.id in cut.recommendations] == [
        ("team/Deployment/small-0", 1),
        ("team/Deployment/small-1", 2),
        ("team/Deployment/small-2", 3),
    ]
    assert stage_confidence(plan, cut) == round((0.3 + 5 * 0.9) / 6, 4)


def test_stage_that_gives_back_is_as_sure_as_its_least_sure_advice() -> None:
    books = (BOOK, replace(BOOK, name="other-book", replicas=20))
    plan = doubted(plan_of(cluster(*books, Service(name="busy", level=0.9)), settings=ANY_CONFIDENCE), 0.9, "reclaim")
    plan = doubted(plan, 0.05, "reclaim-0001")
    assert stage_confidence(plan, plan.stages[0]) == 0.05


def test_sure_stages_are_chosen() -> None:
    assert confident_stages(doubted(small_plan(), 0.8, "")) == (1, 2, 3, 4)


def test_tide_is_never_chosen_for_anybody() -> None:
    plan = doubted(plan_of(CASES["tide"]), 1.0, "")
    assert plan.tide_stages
    assert confident_stages(plan) == plan.rollout_stages


def test_doubtful_reclaim_is_not_chosen_and_keeps_no_other_stage_back() -> None:
    plan = doubted(doubted(small_plan(), 0.9, ""), 0.11, "reclaim")
    assert confident_stages(plan) == (2, 3, 4)


def test_stage_that_rests_on_a_doubtful_one_is_not_chosen() -> None:
    plan = doubted(doubted(small_plan(), 0.9, ""), 0.5, "slice-0001", "slice-join-0001")
    assert confident_stages(plan) == (1,)
