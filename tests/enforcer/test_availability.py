"""A stage that would leave fewer pods ready than their owners allow is refused before anything is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from enforcer.backend import NodeStep
from enforcer.backends.hami import HamiBackend
from enforcer.cluster import FieldChange
from enforcer.preview import preview
from enforcer.record.journal import StageRecord, StageState
from enforcer.rollout.holding import Way, holds_of, unavailable_at_once, way_of
from enforcer.rollout.run_context import RunContext
from enforcer.safety.availability import availability_breaches
from enforcer.safety.guard import GuardPolicy
from enforcer.simulated.cluster import SimulatedCluster
from enforcer.snapshot import take_snapshot
from fleet.decisions import Plan, RecommendationKind
from fleet.errors import Refused
from fleet.inventory import LATENCY_CRITICAL_LABEL
from tests.enforcer.builders import (
    HALF,
    NOW,
    OpenGuard,
    a_cluster,
    a_grant,
    a_plan,
    a_recommendation,
    a_rollout,
    a_slice,
    an_inventory,
    an_undo,
    card_id,
    let_all_go,
    some_tools,
    where,
)

ROLLING = "spec.strategy.rollingUpdate"
KUBERNETES_DEFAULT = {f"{ROLLING}.maxSurge": "25%", f"{ROLLING}.maxUnavailable": "25%"}


def a_fleet(folder: Path, kind: str = "Deployment", **replicas: int) -> SimulatedCluster:
    """Workloads whose pods have a card each."""
    pods = [(name, number) for name, count in replicas.items() for number in range(count)]
    grants = [a_grant(name, number, card, kind=kind) for card, (name, number) in enumerate(pods)]
    return a_cluster(folder, grants, cards=max(8, len(grants)))


def sliced(kind: str = "Deployment", **replicas: int) -> Plan:
    """Every pod keeps its card and gets half of it."""
    pods = [f"{name}-{number}" for name, count in replicas.items() for number in range(count)]
    return a_plan(
        {card: [a_slice(pod, kind=kind)] for card, pod in enumerate(pods)},
        [[a_recommendation("x", RecommendationKind.SLICE, pods, [f"{kind}/{name}" for name in replicas], 0)]],
        cards_before=max(8, len(pods)),
    )


def set_fields(cluster: SimulatedCluster, name: str, fields: dict[str, Any], kind: str = "Deployment") -> None:
    found = cluster.get(kind, "team", name)
    assert found is not None
    changes = [FieldChange(field=path, value=value) for path, value in fields.items()]
    cluster.patch(kind, "team", name, changes, found["metadata"]["resourceVersion"])


def a_budget(cluster: SimulatedCluster, name: str, selector: Any = None, **spec: Any) -> None:
    held = {"selector": {"matchLabels": {"app": name}} if selector is None else selector, **spec}
    metadata = {"namespace": "team", "name": name}
    cluster.create({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": metadata, "spec": held})


def refusal(cluster: SimulatedCluster, folder: Path, plan: Plan) -> str:
    """Why the plan is refused; nothing was written."""
    before = where(cluster), cluster.list_objects("Deployment"), cluster.list_objects("Pod")
    steps: list[str] = []
    tools = some_tools(cluster, folder, step=steps.append)
    with pytest.raises(Refused) as found:
        a_rollout(tools).apply(plan, by="ann")
    assert (where(cluster), cluster.list_objects("Deployment"), cluster.list_objects("Pod")) == before
    assert steps == ["begin"]
    assert not any(run.is_open for run in tools.journal.runs())
    return str(found.value)


def test_single_replica_that_surges_by_kubernetes_default_is_refused(tmp_path: Path) -> None:
    cluster = a_fleet(tmp_path, a=1)
    set_fields(cluster, "a", KUBERNETES_DEFAULT)
    said = refusal(cluster, tmp_path, sliced(a=1))
    assert (
        f"team/Deployment/a: 1 of 1 pods would be unavailable at once, and {ROLLING}.maxUnavailable=25% allows 0"
        in said
    )
    assert "gputide.io/opt-out=true" in said


@pytest.mark.parametrize(
    "strategy", [{f"{ROLLING}.maxUnavailable": "1"}, {ROLLING: None, "spec.strategy.type": "Recreate"}]
)
def test_owner_that_accepts_it_is_changed(tmp_path: Path, strategy: dict[str, Any]) -> None:
    cluster = a_fleet(tmp_path, a=1)
    set_fields(cluster, "a", KUBERNETES_DEFAULT | strategy)
    (result,) = a_rollout(some_tools(cluster, tmp_path)).apply(sliced(a=1), by="ann")
    assert (result.state, result.reason) == (StageState.PROMOTED, None)


def test_four_replicas_of_kubernetes_default_go_one_at_a_time(tmp_path: Path) -> None:
    cluster = a_fleet(tmp_path, a=4)
    set_fields(cluster, "a", KUBERNETES_DEFAULT)
    ready: list[int] = []

    def pause(seconds: float) -> None:
        for _ in range(max(1, round(seconds))):
            cluster.pause(1.0)
            found = cluster.get("Deployment", "team", "a")
            assert found is not None
            ready.append(found["status"].get("readyReplicas", 0))

    (result,) = a_rollout(some_tools(cluster, tmp_path, pause=pause)).apply(sliced(a=4), by="ann")
    assert (result.state, result.reason) == (StageState.PROMOTED, None)
    assert min(ready) == 3


def watched(cluster: SimulatedCluster, *names: str) -> tuple[Callable[[float], None], dict[str, list[int]]]:
    """A pause that notes after every second how many pods of Deployments are ready."""
    ready: dict[str, list[int]] = {name: [] for name in names}

    def pause(seconds: float) -> None:
        for _ in range(max(1, round(seconds))):
            cluster.pause(1.0)
            for name in names:
                found = cluster.get("Deployment", "team", name)
                assert found is not None
                ready[name].append(found["status"].get("readyReplicas", 0))

    return pause, ready


def shared(card: int, *pods: str, frees: int = 0) -> Plan:
    """Pods share one card, half of it each."""
    owners = sorted({f"Deployment/{pod.rsplit('-', 1)[0]}" for pod in pods})
    return a_plan(
        {card: [a_slice(pod) for pod in pods]},
        [[a_recommendation("x", RecommendationKind.SLICE, pods, owners, frees)]],
    )


def test_single_replicas_of_kubernetes_default_move_to_a_free_card_without_a_gap_there_and_back(tmp_path: Path) -> None:
    cluster = a_fleet(tmp_path, a=1, b=1)
    for name in "ab":
        set_fields(cluster, name, KUBERNETES_DEFAULT)
    pause, ready = watched(cluster, "a", "b")
    tools = some_tools(cluster, tmp_path, pause=pause)
    before = where(cluster)
    plan = shared(5, "a-0", "b-0")
    (result,) = a_rollout(tools).apply(plan, by="ann")
    assert (result.state, result.reason) == (StageState.PROMOTED, None)
    assert cards_of(cluster) == {"a": {str(card_id(5))}, "b": {str(card_id(5))}}
    assert {name: min(found) for name, found in ready.items()} == {"a": 1, "b": 1}
    for found in ready.values():
        found.clear()
    an_undo(tools).undo(plan.plan_id)
    assert sorted(where(cluster).values()) == sorted(before.values())
    assert {name: min(found) for name, found in ready.items()} == {"a": 1, "b": 1}


def test_budget_of_both_pods_of_a_pair_is_no_refusal_where_the_pair_surges(tmp_path: Path) -> None:
    cluster = a_fleet(tmp_path, a=2)
    a_budget(cluster, "a", minAvailable=2)
    pause, ready = watched(cluster, "a")
    (result,) = a_rollout(some_tools(cluster, tmp_path, pause=pause)).apply(shared(5, "a-0", "a-1"), by="ann")
    assert (result.state, result.reason) == (StageState.PROMOTED, None)
    assert min(ready["a"]) == 2


def test_card_that_an_earlier_workload_of_the_stage_leaves_is_room_for_the_next(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path, [a_grant(name, 0, card) for card, name in enumerate("abcd")], cards=5)
    for name in "abcd":
        set_fields(cluster, name, KUBERNETES_DEFAULT)
    plan = a_plan(
        {4: [a_slice("a-0"), a_slice("b-0")], 0: [a_slice("c-0"), a_slice("d-0")]},
        [[a_recommendation("x", RecommendationKind.SLICE, [f"{name}-0" for name in "abcd"],
                           [f"Deployment/{name}" for name in "abcd"], 2)]],
        cards_before=4,
    )  # fmt: skip
    pause, ready = watched(cluster, *"abcd")
    tools = some_tools(cluster, tmp_path, pause=pause)
    (result,) = a_rollout(tools).apply(plan, by="ann")
    assert (result.state, result.reason) == (StageState.PROMOTED, None)
    assert cards_of(cluster) == {name: {str(card_id(4 if name in "ab" else 0))} for name in "abcd"}
    an_undo(tools).undo(plan.plan_id)
    assert {name: min(found) for name, found in ready.items()} == dict.fromkeys("abcd", 1)


@pytest.mark.parametrize("replicas", [2, 3, 4])
def test_owners_that_exchange_all_their_cards_lose_one_pod_at_a_time_there_and_back(
    tmp_path: Path, replicas: int
) -> None:
    grants = [a_grant(name, n, n + at, framebuffer_bytes=2 * HALF) for name, at in (("a", 0), ("b", replicas))
              for n in range(replicas)]  # fmt: skip
    cluster = a_cluster(tmp_path, grants, cards=2 * replicas)
    pods = [f"{name}-{n}" for name in "ba" for n in range(replicas)]
    plan = a_plan(
        {card: [a_slice(pod, framebuffer_bytes=2 * HALF - 2**21)] for card, pod in enumerate(pods)},
        [[a_recommendation("x", RecommendationKind.SLICE, pods, ["Deployment/a", "Deployment/b"], 0)]],
        cards_before=2 * replicas,
    )
    ready: list[int] = []

    def pause(seconds: float) -> None:
        for _ in range(max(1, round(seconds))):
            cluster.pause(1.0)
            for name in "ab":
                found = cluster.get("Deployment", "team", name)
                assert found is not None
                ready.append(found["status"].get("readyReplicas", 0))

    tools = some_tools(cluster, tmp_path, pause=pause)
    before = cards_of(cluster)
    (result,) = a_rollout(tools).apply(plan, by="ann")
    assert (result.state, result.reason) == (StageState.PROMOTED, None)
    assert cards_of(cluster) == {"a": before["b"], "b": before["a"]}
    assert min(ready) == replicas - 1
    ready.clear()
    an_undo(tools).undo(plan.plan_id)
    # Their grants are what they were; on which of the cards is the scheduler's choice.
    assert {seat.framebuffer_granted_bytes for seat in cluster.seats()} == {2 * HALF}
    assert min(ready) == replicas - 1


def cards_of(cluster: SimulatedCluster) -> dict[str, set[str]]:
    """The cards that the pods of each workload run on."""
    found: dict[str, set[str]] = {}
    for seat in cluster.seats():
        found.setdefault(seat.workload.rpartition("/")[2], set()).add(str(seat.card))
    return found


@pytest.mark.parametrize(
    ("spec", "bound"),
    [
        ({"minAvailable": 2}, "minAvailable=2"),
        ({"minAvailable": "51%"}, "minAvailable=51%"),
        ({"maxUnavailable": 0}, "maxUnavailable=0"),
        ({"minAvailable": 2, "selector": {}}, "minAvailable=2"),
        (
            {"minAvailable": 2, "selector": {"matchExpressions": [{"key": "app", "operator": "In", "values": ["a"]}]}},
            "minAvailable=2",
        ),
    ],
)
def test_budget_that_a_roll_would_break_is_named(tmp_path: Path, spec: dict[str, Any], bound: str) -> None:
    cluster = a_fleet(tmp_path, a=2)
    a_budget(cluster, "a", **spec)
    said = refusal(cluster, tmp_path, sliced(a=2))
    assert f"1 of 2 pods would be unavailable at once, and PodDisruptionBudget team/a ({bound}) allows 0" in said


@pytest.mark.parametrize(
    "spec",
    [
        {"minAvailable": 1},
        {"minAvailable": "50%"},
        {"maxUnavailable": "1%"},
        {"minAvailable": 2, "selector": {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["a"]}]}},
    ],
)
def test_budget_that_leaves_room_is_no_refusal(tmp_path: Path, spec: dict[str, Any]) -> None:
    cluster = a_fleet(tmp_path, a=2)
    a_budget(cluster, "a", **spec)
    (result,) = a_rollout(some_tools(cluster, tmp_path)).apply(sliced(a=2), by="ann")
    assert (result.state, result.reason) == (StageState.PROMOTED, None)


def test_of_several_budgets_the_strictest_counts(tmp_path: Path) -> None:
    cluster = a_fleet(tmp_path, a=3)
    a_budget(cluster, "wide", {"matchLabels": {"app": "a"}}, minAvailable=1)
    a_budget(cluster, "strict", {}, maxUnavailable=0)
    said = refusal(cluster, tmp_path, sliced(a=3))
    assert "team/strict (maxUnavailable=0)" in said
    assert "team/wide" not in said


def test_recreate_does_not_override_a_budget(tmp_path: Path) -> None:
    cluster = a_fleet(tmp_path, a=2)
    set_fields(cluster, "a", {ROLLING: None, "spec.strategy.type": "Recreate"})
    a_budget(cluster, "a", minAvailable=1)
    assert "2 of 2 pods would be unavailable at once, and PodDisruptionBudget team/a" in refusal(
        cluster, tmp_path, sliced(a=2)
    )


def test_workloads_of_one_budget_that_change_together_are_counted_together(tmp_path: Path) -> None:
    cluster = a_fleet(tmp_path, a=2, b=2)
    a_budget(cluster, "all", {}, maxUnavailable=1)
    said = refusal(cluster, tmp_path, sliced(a=2, b=2))
    assert "2 of 4 pods would be unavailable at once while 2 workloads change together" in said
    assert "enforcer.parallel_workloads_max" in said
    (tmp_path / "one").mkdir()
    tools = some_tools(cluster, tmp_path / "one")
    tools.policy = tools.policy.__class__(moving=tools.policy.moving.__class__(parallel_pods_max=1))
    (result,) = a_rollout(tools).apply(sliced(a=2, b=2), by="ann")
    assert result.reason is None


def test_every_workload_is_named_up_to_a_few_and_the_rest_counted(tmp_path: Path) -> None:
    names: dict[str, Any] = {f"s{number}": 1 for number in range(7)}
    cluster = a_fleet(tmp_path, **names)
    for name in names:
        set_fields(cluster, name, KUBERNETES_DEFAULT)
    said = refusal(cluster, tmp_path, sliced(**names))
    assert [name for name in names if f"team/Deployment/{name}:" in said] == [f"s{number}" for number in range(5)]
    assert "; and 2 more." in said


def test_preview_says_it_beside_the_object_and_of_the_stage(tmp_path: Path) -> None:
    cluster = a_fleet(tmp_path, a=1, b=1)
    set_fields(cluster, "a", KUBERNETES_DEFAULT)
    plan = sliced(a=1, b=1)
    (stage,) = preview(plan, cluster, HamiBackend(NOW), wave_max=10, gaps_allowed=True)
    assert str(stage.refusal) == refusal(cluster, tmp_path, plan)
    assert {item.name: item.refusal is not None for item in stage.objects} == {"a": True, "b": False}
    (written,) = preview(plan, cluster, HamiBackend(NOW))
    assert written.refusal is None, "a stage that is written for others to roll out is theirs to roll"


def test_preview_says_which_owners_surge_and_a_refusal_what_would_let_the_others(tmp_path: Path) -> None:
    cluster = a_fleet(tmp_path, a=1, b=1)
    for name in "ab":
        set_fields(cluster, name, KUBERNETES_DEFAULT)
    plan = a_plan(
        {0: [a_slice("a-0")], 5: [a_slice("b-0")]},
        [[a_recommendation("x", RecommendationKind.SLICE, ["a-0", "b-0"], ["Deployment/a", "Deployment/b"], 0)]],
    )
    (stage,) = preview(plan, cluster, HamiBackend(NOW), wave_max=10, gaps_allowed=True)
    assert {item.name: item.way for item in stage.objects} == {"a": Way.GAP, "b": Way.SURGE}
    assert stage.refusal is not None
    assert "its planned seats have no room while its pods run; one free NVIDIA A10 card more" in str(stage.refusal)


def test_refusal_of_a_stateful_set_says_that_it_cannot_surge(tmp_path: Path) -> None:
    cluster = a_fleet(tmp_path, "StatefulSet", w=2)
    plan = a_plan(
        {0: [a_slice(pod, kind="StatefulSet") for pod in ("w-0", "w-1")]},
        [[a_recommendation("x", RecommendationKind.SLICE, ["w-0", "w-1"], ["StatefulSet/w"], 1)]],
    )
    assert "of a StatefulSet no new pod is made before an old one leaves" in refusal(cluster, tmp_path, plan)


def test_pods_that_must_wait_for_each_others_places_are_counted_as_gone_at_once(tmp_path: Path) -> None:
    cluster = a_fleet(tmp_path, "StatefulSet", w=2)
    pods = ["w-0", "w-1"]
    plan = a_plan(
        {0: [a_slice(pod, kind="StatefulSet") for pod in pods]},
        [[a_recommendation("x", RecommendationKind.SLICE, pods, ["StatefulSet/w"], 1)]],
    )
    said = refusal(cluster, tmp_path, plan)
    assert "2 of 2 pods would be unavailable at once, and spec.updateStrategy.rollingUpdate.maxUnavailable=1" in said
    (result,) = a_rollout(some_tools(let_all_go(cluster, "StatefulSet/w"), tmp_path)).apply(plan, by="ann")
    assert result.reason is None


@pytest.mark.parametrize("selector", [None, {"matchExpressions": [{"key": "app", "operator": "Exists"}]}])
def test_budget_that_never_lets_a_pod_be_evicted_is_refused(tmp_path: Path, selector: Any) -> None:
    cluster = a_fleet(tmp_path, "Job", j=2)
    a_budget(cluster, "j", selector, minAvailable=2)
    said = refusal(cluster, tmp_path, sliced("Job", j=2))
    assert "its pods must be evicted, and PodDisruptionBudget team/j (minAvailable=2) never lets one go" in said


def test_pods_of_several_budgets_cannot_be_evicted(tmp_path: Path) -> None:
    cluster = a_fleet(tmp_path, "Job", j=3)
    a_budget(cluster, "j", minAvailable=1)
    a_budget(cluster, "every", {}, minAvailable=1)
    assert "several budgets (team/every, team/j)" in refusal(cluster, tmp_path, sliced("Job", j=3))


def reclaimed(*names: str) -> Plan:
    pods = [f"{name}-0" for name in names]
    workloads = [f"Deployment/{name}" for name in names]
    return a_plan({}, [[a_recommendation("x", RecommendationKind.RECLAIM, pods, workloads, len(names))]])


def test_idle_workload_is_not_scaled_in_below_what_its_budget_never_goes_below(tmp_path: Path) -> None:
    cluster = a_fleet(tmp_path, a=1, b=1)
    a_budget(cluster, "a", minAvailable=1)
    a_budget(cluster, "b", minAvailable="50%")
    said = refusal(cluster, tmp_path, reclaimed("a", "b"))
    assert (
        "team/Deployment/a: scaling in would leave 0 pods, and PodDisruptionBudget team/a (minAvailable=1) wants 1"
        in said
    )
    assert "team/Deployment/b" not in said, "a percentage falls with the replicas"


def test_pods_of_a_node_that_is_emptied_are_counted_as_gone_at_once(tmp_path: Path) -> None:
    cluster = a_fleet(tmp_path, a=3)
    a_budget(cluster, "a", maxUnavailable=0)
    step = NodeStep(node="node-0", leaving=(("team", "a-0"), ("team", "a-2")))
    record = StageRecord(plan_id="p", stage=1, node_steps=[step])
    (why,) = availability_breaches(record, take_snapshot(cluster), cluster, 10, gaps_allowed=True).values()
    assert "2 of 3 pods would be unavailable at once" in str(why)
    assert "its pods must be evicted, and PodDisruptionBudget team/a (maxUnavailable=0) never lets one go" in str(why)


@pytest.mark.parametrize("way", list(Way))
@pytest.mark.parametrize("unavailable", ["0", "2", "25%", "100%"])
@pytest.mark.parametrize("pods", [1, 2, 4, 8])
def test_hold_lets_none_one_or_all_pods_go_whatever_the_owners_own_strategy_says(
    pods: int, unavailable: str, way: Way
) -> None:
    rolling = {"maxSurge": "25%", "maxUnavailable": unavailable}
    owner = {"kind": "Deployment", "metadata": {"name": "a"}, "spec": {"strategy": {"rollingUpdate": rolling}}}
    holds = holds_of(owner, pods, way, watch_seconds=600.0)
    assert unavailable_at_once(owner, pods, holds) == {Way.GAP: 1, Way.GAP_AT_ONCE: pods}.get(way, 0)


@pytest.mark.parametrize(("surge", "held"), [("25%", "25%"), ("3", "3"), ("0", "1"), (None, "25%")])
def test_surging_owner_keeps_its_own_surge_and_has_at_least_one(surge: str | None, held: str) -> None:
    rolling = {} if surge is None else {"maxSurge": surge}
    owner = {"kind": "Deployment", "metadata": {"name": "a"}, "spec": {"strategy": {"rollingUpdate": rolling}}}
    found = {hold.field: (hold.canary, hold.rest) for hold in holds_of(owner, 2, Way.SURGE, watch_seconds=600.0)}
    assert found[f"{ROLLING}.maxSurge"] == ("1", held)
    assert found[f"{ROLLING}.maxUnavailable"] == ("0", "0")


# --- an explicit yes ---


def careful(cluster: SimulatedCluster, folder: Path) -> RunContext:
    return some_tools(cluster, folder, guard=OpenGuard(GuardPolicy()))


def test_service_of_one_replica_loses_its_pod_only_with_an_explicit_yes(tmp_path: Path) -> None:
    cluster = a_fleet(tmp_path, a=1)
    with pytest.raises(Refused, match=r"it has one replica and would lose a pod .* \(guard.gaps_allowed=true\)"):
        a_rollout(careful(cluster, tmp_path)).apply(sliced(a=1), by="ann")
    (result,) = a_rollout(some_tools(cluster, tmp_path)).apply(sliced(a=1), by="ann")
    assert (result.state, result.reason) == (StageState.PROMOTED, None)


def test_latency_critical_service_loses_a_pod_only_with_an_explicit_yes(tmp_path: Path) -> None:
    cluster = a_fleet(tmp_path, a=2, b=2)
    set_fields(cluster, "a", {f"metadata.annotations[{LATENCY_CRITICAL_LABEL}]": "true"})
    with pytest.raises(Refused, match="team/Deployment/a: it is latency-critical") as found:
        a_rollout(careful(cluster, tmp_path)).apply(sliced(a=2, b=2), by="ann")
    assert "team/Deployment/b" not in str(found.value)


def test_service_of_one_replica_that_surges_needs_no_yes(tmp_path: Path) -> None:
    cluster = a_fleet(tmp_path, a=1)
    (result,) = a_rollout(careful(cluster, tmp_path)).apply(shared(5, "a-0"), by="ann")
    assert (result.state, result.reason) == (StageState.PROMOTED, None)


def test_undo_that_finds_no_free_card_says_what_it_lowers_and_asks_for_a_yes(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path, [a_grant("a", 0, 0)], cards=1)
    plan = sliced(a=1)
    a_rollout(some_tools(cluster, tmp_path)).apply(plan, by="ann")
    undo = an_undo(careful(cluster, tmp_path))
    record, lowered = undo.way_back(undo.preview(plan.plan_id))
    assert {way_of(item) for item in record.objects} == {Way.GAP}
    assert [why for why in lowered if "team/Deployment/a: it has one replica and would lose a pod" in str(why)]
    with pytest.raises(Refused, match=r"cannot undo plan .* team/Deployment/a: .* guard.gaps_allowed=true"):
        undo.undo(plan.plan_id)
    assert an_undo(some_tools(cluster, tmp_path)).undo(plan.plan_id).lowered == lowered
    assert where(cluster) == {"a-0": (0, 24)}


def test_undo_surges_to_a_free_card_where_the_old_one_has_no_room_and_needs_no_yes(tmp_path: Path) -> None:
    cluster = a_fleet(tmp_path, a=1)
    plan = sliced(a=1)
    a_rollout(some_tools(cluster, tmp_path)).apply(plan, by="ann")
    undone = an_undo(careful(cluster, tmp_path)).undo(plan.plan_id)
    assert undone.lowered == ()
    assert where(cluster)["a-0"] in {(card, 24) for card in range(1, 8)}
    assert [left for left in undone.kept if "on other cards than before" in str(left)]


def test_stage_that_was_begun_is_taken_back_where_a_budget_that_came_since_forbids_it(tmp_path: Path) -> None:
    cluster = a_fleet(tmp_path, a=2, b=2)
    before = where(cluster)
    seen: list[str] = []

    def stop(what: str) -> None:
        seen.append(what)
        if what.startswith("watched canary"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        a_rollout(some_tools(cluster, tmp_path, step=stop)).apply(sliced(a=2, b=2), by="ann")
    a_budget(cluster, "b", maxUnavailable=0)
    (result,) = a_rollout(some_tools(cluster, tmp_path)).apply(sliced(a=2, b=2), by="ann")
    assert result.state is StageState.RESTORED
    assert result.reason is not None
    assert "PodDisruptionBudget team/b (maxUnavailable=0) allows 0" in str(result.reason)
    assert where(cluster) == before


def test_undo_of_a_workload_that_was_scaled_to_none_lowers_nothing(tmp_path: Path) -> None:
    cluster = a_fleet(tmp_path, a=1)
    set_fields(cluster, "a", KUBERNETES_DEFAULT)
    plan = reclaimed("a")
    tools = careful(cluster, tmp_path)
    a_rollout(tools).apply(plan, by="ann")
    assert an_undo(tools).undo(plan.plan_id).lowered == ()
    assert where(cluster) == {"a-0": (0, 24)}


def test_undo_does_not_count_a_workload_that_was_taken_back_already(tmp_path: Path) -> None:
    cluster = a_fleet(tmp_path, a=1, b=1)
    parts = [a_recommendation(name, RecommendationKind.SLICE, [f"{name}-0"], [f"Deployment/{name}"], 0)
             for name in "ab"]  # fmt: skip
    plan = a_plan({5: [a_slice("a-0")], 6: [a_slice("b-0")]}, [parts])
    tools = careful(cluster, tmp_path)
    a_rollout(tools).apply(plan, by="ann")
    set_fields(cluster, "a", before_of(tools, plan, "a"))
    cluster.pause(600.0)
    assert an_undo(tools).undo(plan.plan_id).lowered == ()


def before_of(tools: RunContext, plan: Plan, name: str) -> dict[str, str | None]:
    """The fields of a Deployment as they were before a plan."""
    (run,) = tools.journal.runs(plan.plan_id)
    found = next(item for item in run.records[1].objects if item.kind == "Deployment" and item.name == name)
    return {part.field: part.old for part in found.fields}


def test_last_pods_of_an_undo_that_find_no_card_free_go_with_a_gap_where_their_owner_allows_it(tmp_path: Path) -> None:
    fleet = [a_grant("a", number, number) for number in range(2)]
    cluster = a_cluster(tmp_path, fleet, cards=3)
    plan = shared(2, "a-0", "a-1")
    steps: list[str] = []
    tools = careful(cluster, tmp_path)
    a_rollout(tools).apply(plan, by="ann")

    def step(what: str) -> None:
        steps.append(what)
        if what == "undo begin":
            # Once the way back is chosen, somebody else takes one of the two free cards.
            late = a_grant("late", 0, 0, started_at=cluster.now())
            cluster.sync(an_inventory([*fleet, late], 3, cluster.now()), cluster.now())

    tools.step = step
    undo = an_undo(tools)
    record, lowered = undo.way_back(undo.preview(plan.plan_id))
    assert lowered == ()
    assert {way_of(item) for item in record.objects if item.kind == "Deployment"} == {Way.SURGE_IN_TURN}
    undo.undo(plan.plan_id)
    assert steps.count("rest team/Deployment/a") == 1
    assert [seat.framebuffer_granted_bytes for seat in cluster.seats()] == [2 * HALF] * 3
    found = cluster.get("Deployment", "team", "a")
    assert found is not None
    assert found["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
