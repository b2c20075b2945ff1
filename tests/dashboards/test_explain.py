"""What a service owner is told of every kind of advice: why, with which numbers, and what would change it."""

from dataclasses import replace

import pytest

from analyzer.profile import profile_fleet
from dashboards.words.advice import change_words, reason_words
from dashboards.words.explain import Explanation, explain
from fleet.decisions import Plan, RecommendationKind
from fleet.errors import Misconfigured
from fleet.inventory import LATENCY_CRITICAL_LABEL, OPT_OUT_LABEL
from fleet.profiles import Profiles
from fleet.settings.settings import Settings
from fleet.usage import History
from fleet.words import Language, Words
from tests.recommender.builders import NOW, Service, cluster, plan_of
from tests.recommender.mig_builders import mig_plan, on_a100
from tests.recommender.test_rehome import PRICES, SMALL
from tests.recommender.test_rehome import on_a100 as on_a100_beside_l4
from tests.recommender.test_rules import CASES, OPTIONS

EN = Words(language=Language.EN)


def profiles_of(history: History) -> Profiles:
    return profile_fleet(history, settings=Settings().analyzer, now=NOW)


def told_of(plan: Plan, history: History, kind: RecommendationKind) -> list[Explanation]:
    profiles = profiles_of(history)
    return [explain(plan, profiles, item.id, EN) for item in plan.recommendations if item.kind is kind]


@pytest.mark.parametrize("kind", RecommendationKind)
def test_every_kind_is_told_why_and_what_would_change_it(kind: RecommendationKind) -> None:
    history = CASES[kind.value]
    plan = plan_of(history, **OPTIONS.get(kind.value, {}))
    found = told_of(plan, history, kind)
    assert found
    for told in found:
        item = told.recommendation
        text = " ".join(told.why)
        assert not told.headline.startswith(kind.value), "a headline is a sentence, not a code"
        assert told.headline.count(item.workloads[0]) == 1
        assert told.why[0] == reason_words(item, Language.EN)
        assert f"in {item.evidence.samples:,} samples" in text
        assert "After the plan these pods sit on" in text or kind is RecommendationKind.RECLAIM
        assert "harm" in text
        assert told.change_of_mind[0] == change_words(item, Language.EN)
        assert any(OPT_OUT_LABEL in sentence for sentence in told.change_of_mind)
        assert all(sentence.endswith(".") for sentence in (*told.why, *told.change_of_mind))
        assert (told.stage is None) is (kind is RecommendationKind.SLEEP), "done by hand"


def test_kinds_are_told_apart() -> None:
    meanings = set()
    for kind in RecommendationKind:
        plan = plan_of(CASES[kind.value], **OPTIONS.get(kind.value, {}))
        meanings.add(told_of(plan, CASES[kind.value], kind)[0].why[1])
    assert len(meanings) == len(RecommendationKind)


def test_latency_is_told_as_a_factor() -> None:
    fast = Service(name="fast", level=0.3, labels=((LATENCY_CRITICAL_LABEL, "true"),))
    history = cluster(fast, Service(name="quiet", level=0.03))
    plan = plan_of(history)
    found = [
        told for told in told_of(plan, history, RecommendationKind.SLICE) if "fast" in told.recommendation.workloads[0]
    ]
    assert found
    for told in found:
        ratio = dict(told.evidence.numbers)["latency_p99_inflation_ratio"]
        assert any(f"to take {ratio:.2f} times as long as alone" in text for text in told.why)
        assert any(f"latency p99 inflation ratio {ratio:.2f} ×" in text for text in told.why)
        assert any("risk.latency_inflation_max" in text for text in told.change_of_mind)


def test_latency_is_not_spoken_of_where_nobody_asked() -> None:
    (told, *_) = told_of(plan_of(CASES["slice"]), CASES["slice"], RecommendationKind.SLICE)
    assert "times as long" not in " ".join(told.why)


def test_a_tide_tells_its_hours_and_what_they_are_good_for() -> None:
    history = CASES["tide"]
    plan = plan_of(history)
    (told,) = told_of(plan, history, RecommendationKind.TIDE)
    (window,) = plan.schedule
    text = " ".join(told.why)
    assert f"from {window.start} to {window.end} (UTC)" in text
    assert f"leaves {len(window.frees)} cards to others" in text
    assert "GPU hours a week" in text
    assert "these hours only" in told.headline


def test_mig_tells_the_instance_and_the_neighbours() -> None:
    history = on_a100(*(Service(name=f"s{n}", level=0.08) for n in range(3)))
    told = told_of(mig_plan(history), history, RecommendationKind.MIG)[0]
    assert "(NVIDIA A100-SXM4-80GB) in instances 1g.10gb beside team/Deployment/s1" in " ".join(told.why)


def test_money_is_told_in_the_plans_currency_or_that_there_is_no_price() -> None:
    history = on_a100_beside_l4(SMALL)
    plan = plan_of(history, only=RecommendationKind.REHOME, settings=PRICES)
    (told,) = told_of(plan, history, RecommendationKind.REHOME)
    assert any("That saves 336.00 USD a week" in text for text in told.why)
    nameless = replace(
        plan,
        recommendations=tuple(
            replace(item, saving_per_week=replace(item.saving_per_week, amortised=None))
            for item in plan.recommendations
        ),
    )
    (other,) = told_of(nameless, history, RecommendationKind.REHOME)
    assert any("unknown: no price" in text and "`gputide cost prices set`" in text for text in other.why)


def test_an_unknown_id_names_some_that_are_there() -> None:
    plan = plan_of(CASES["slice"])
    with pytest.raises(Misconfigured, match="such as slice-0001"):
        explain(plan, profiles_of(CASES["slice"]), "slice-9999", EN)
