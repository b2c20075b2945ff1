"""One consistent plan: nobody lost, nobody twice, nothing over capacity, the same bytes again."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.profile import profile_fleet
from dashboards.words.explain import explain
from fleet.capabilities.register import HAMI
from fleet.decisions import RecommendationKind
from fleet.documents import plan_from_json, plan_to_json, seal_plan
from fleet.errors import Misconfigured, NotEnoughData
from fleet.inventory import Node, Priority
from fleet.settings.settings import Settings
from fleet.units import GIB
from fleet.usage import History
from fleet.words import Language, Words
from recommender.backtest import backtest
from tests.english import english
from tests.recommender.builders import NOW, Service, check_plan, cluster, plan_of

pytestmark = pytest.mark.long

MIXED = cluster(
    *(Service(name=f"svc-{n}", replicas=1 + n % 4, level=0.05 + 0.08 * n, used_gib=2 + n) for n in range(8)),
    Service(name="book", kind="Notebook", level=0.0, priority=Priority.NORMAL, server="jupyter"),
    Service(name="train", kind="Job", level=0.8, priority=Priority.LOW, server="pytorch"),
    Service(name="wide", cards_per_pod=2),
    spare_cards=2,
)

EN = Words(language=Language.EN)


def test_plan_places_every_live_pod_once() -> None:
    check_plan(plan_of(MIXED), MIXED)


@pytest.mark.parametrize("kind", [*RecommendationKind][:5])
def test_plan_for_one_kind_proposes_that_kind_or_the_cut_it_needs(kind: RecommendationKind) -> None:
    plan = plan_of(MIXED, only=kind)
    check_plan(plan, MIXED)
    assert {item.kind for item in plan.recommendations} <= {kind, RecommendationKind.SLICE}


def test_same_input_gives_the_same_bytes() -> None:
    first, second = (plan_to_json(seal_plan(plan_of(MIXED))) for _ in range(2))
    assert first == second
    assert plan_from_json(first).plan_id


def test_changed_usage_changes_the_digest() -> None:
    other = cluster(Service(name="a"), Service(name="b"), seed=2)
    assert plan_of(cluster(Service(name="a"), Service(name="b"))).inputs_sha256 != plan_of(other).inputs_sha256


def test_moves_stay_within_the_limit() -> None:
    plan = plan_of(MIXED, moves_max=6)
    check_plan(plan, MIXED)
    assert 0 < plan.totals.moves <= 6
    assert "moves_max" in {item.reason for item in plan.refused}


def test_other_namespaces_are_left_alone() -> None:
    history = cluster(
        *(Service(name=f"{space}-{n}", namespace=space, level=0.1) for space in ("a", "b") for n in range(3))
    )
    plan = plan_of(history, namespace="a")
    check_plan(plan, history)
    assert {name.split("/")[0] for item in plan.recommendations for name in item.workloads} == {"a"}


def test_replicas_of_one_workload_stay_on_different_cards() -> None:
    history = cluster(Service(name="web", replicas=4, level=0.05, used_gib=1), Service(name="api", level=0.05))
    for card in plan_of(history).placement:
        names = [part.workload for part in card.slices]
        assert len(names) == len(set(names))


def test_lower_risk_never_predicts_more_harm_than_its_preset() -> None:
    for risk, limit in (("low", 0.001), ("medium", 0.005), ("high", 0.02)):
        assert plan_of(MIXED, risk=risk).totals.predicted_violation_ratio <= limit


def test_node_without_memory_takes_nobody_in() -> None:
    history = cluster(*(Service(name=f"s{n}", level=0.05, changes={"memory_request_bytes": GIB}) for n in range(8)))
    full = tuple(Node(node=node.node, cluster="c", memory_bytes=4 * GIB) for node in history.inventory.nodes)
    tight = replace(history, inventory=replace(history.inventory, nodes=full))
    plan = plan_of(tight)
    check_plan(plan, tight)
    before = {grant.pod: grant.node for grant in tight.inventory.grants}
    assert all(before[part.pod] == card.node for card in plan.placement for part in card.slices)


@pytest.mark.parametrize(
    "history",
    [
        cluster(),
        cluster(spare_cards=3),
        cluster(Service(name="alone")),
        cluster(Service(name="wide", cards_per_pod=3), Service(name="other")),
        cluster(Service(name="big", changes={"framebuffer_granted_bytes": 48 * GIB}), Service(name="b"), days=2),
        cluster(Service(name="fresh", age_days=0.01), Service(name="b"), days=1),
    ],
    ids=["nothing", "only free cards", "one pod", "pod on three cards", "grant above the card", "newborn"],
)
def test_hostile_fleet_still_gets_a_consistent_plan(history: History) -> None:
    check_plan(plan_of(history), history)


def test_pods_that_share_already_are_not_lost() -> None:
    history = cluster(*(Service(name=f"s{n}", level=0.3, used_gib=20) for n in range(4)))
    first = history.inventory.grants[0]
    crowded = tuple(
        replace(grant, card=first.card, node=first.node, framebuffer_granted_bytes=6 * GIB)
        for grant in history.inventory.grants
    )
    keys = tuple(replace(key, card=first.card, node=first.node) for key in history.slices.keys)
    shared = History(inventory=replace(history.inventory, grants=crowded), slices=replace(history.slices, keys=keys))
    plan = plan_of(shared)
    check_plan(plan, shared)
    assert "shares_already" in {item.reason for item in plan.refused}


@given(
    levels=st.lists(st.tuples(st.floats(0, 1), st.integers(1, 22), st.integers(1, 3)), min_size=1, max_size=6),
    risk=st.sampled_from(["low", "high"]),
)
def test_any_fleet_gets_a_consistent_plan(levels: list[tuple[float, int, int]], risk: str) -> None:
    services = [
        Service(name=f"s{n}", level=level, used_gib=used, replicas=replicas)
        for n, (level, used, replicas) in enumerate(levels)
    ]
    history = cluster(*services, days=2)
    check_plan(plan_of(history, risk=risk), history)


def test_frontier_counts_no_card_that_pods_share_already() -> None:
    history = cluster(*(Service(name=f"s{number}", level=0.05) for number in range(6)))
    cards = [grant.card for grant in history.inventory.grants]
    together = dict(zip(cards, [cards[0]] * 3 + [cards[3]] * 3, strict=True))
    shared = replace(
        history,
        inventory=replace(
            history.inventory,
            grants=tuple(replace(grant, card=together[grant.card]) for grant in history.inventory.grants),
        ),
        slices=replace(
            history.slices, keys=tuple(replace(key, card=together[key.card]) for key in history.slices.keys)
        ),
    )
    plan = plan_of(shared)
    assert plan.totals.cards_before == 2
    assert plan.frontier
    assert max(point.cards_freed for point in plan.frontier) <= 1


def test_explanation_tells_reason_evidence_and_neighbours() -> None:
    plan = plan_of(MIXED)
    profiles = profile_fleet(MIXED, settings=Settings().analyzer, now=NOW)
    for item in plan.recommendations:
        told = explain(plan, profiles, item.id, EN)
        assert told.stage is not None
        assert english(item) in told.why
        assert any("samples" in text for text in told.why)
    with pytest.raises(Misconfigured, match="slice-9999"):
        explain(plan, profiles, "slice-9999", EN)


def test_backtest_judges_presets_and_naive_rules_on_the_same_pods() -> None:
    report = backtest(MIXED, train_days=4, test_days=2, settings=Settings(), capability=HAMI, folds=2)
    assert {score.rule for score in report.scores} == {
        "low", "medium", "high", "sum of maxima", "hour profile p95, limit 0.9",
    }  # fmt: skip
    assert {score.cards_before for score in report.scores} == {22}
    assert {score.fold for score in report.scores} == {1, 2}
    assert all(score.saved_ratio > 0 for score in report.scores)
    assert all(score.framebuffer_ratio == 0 for score in report.scores)


def test_backtest_of_a_short_history_says_what_is_missing() -> None:
    with pytest.raises(NotEnoughData, match="20"):
        backtest(MIXED, train_days=14, test_days=6, settings=Settings(), capability=HAMI)
