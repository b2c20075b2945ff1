"""A node is emptied, put into another mode and given back; what speaks against it is said before anything changes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
import yaml

from bench.faulty_cluster import Faults
from enforcer.backend import NodeStep, RenderedStage
from enforcer.backends.device_plugin import MIG_CONFIGS, NODE_DIALECT
from enforcer.backends.hami import HamiBackend
from enforcer.backends.hami_dialect import DEVICE_CONFIG
from enforcer.backends.kai import KaiBackend
from enforcer.backends.node_mode import modes_of, present_mode, render_switch, switch_plan
from enforcer.backends.running import RunningBackend
from enforcer.backends.volcano import VolcanoBackend
from enforcer.backends.whole_cards import WholeCardsBackend
from enforcer.cluster import FieldChange
from enforcer.manifest import Manifest, set_field
from enforcer.record.journal import StageState
from enforcer.record.plan_store import PlanStore
from enforcer.rollout.restore import StageResult
from enforcer.rollout.run_context import RunContext
from enforcer.rollout.stages import Rollout
from enforcer.safety.guard import Guard, GuardPolicy
from enforcer.seat import is_ready
from enforcer.simulated.cluster import SimulatedCluster
from enforcer.snapshot import take_snapshot
from fleet.capabilities.register import HAMI, TIME_SLICING
from fleet.decisions import Plan, RecommendationKind
from fleet.documents import plan_document, plan_from_json, plan_to_json, seal_plan
from fleet.errors import Refused
from fleet.inventory import CardModelName
from fleet.node_changes import NodeMode, NodeSwitch
from fleet.settings.settings import Settings
from tests.enforcer.builders import (
    NOW,
    OpenGuard,
    a_cluster,
    a_grant,
    a_plan,
    a_recommendation,
    a_slice,
    a_yes,
    an_inventory,
    an_undo,
    let_all_go,
    some_tools,
    standard_grants,
    standard_plan,
)
from tests.enforcer.plugin_cluster import StandingCluster, a_config, a_node, a_pod, an_owner

ROOM = 12
"""Cards of three nodes, of which the last is free."""
WHOLE = NodeSwitch(node="node-1", mode=NodeMode.WHOLE)
TO_MIG = NodeSwitch(node="node-1", mode=NodeMode.MIG)
COUNT = "nvidia.com/gpu"
SHARED = "nvidia.com/gpu.shared"


class Killed(BaseException):
    """The process ends here."""


def a_switch(switch: NodeSwitch, *, cards: int = 4) -> Plan:
    return switch_plan(switch, HAMI, cards=cards, cluster="c1", version=None, now=NOW, settings=Settings())


def a_rollout(tools: RunContext) -> Rollout:
    return Rollout(tools, RunningBackend(HamiBackend(NOW), version=None, allows_experimental=True, left_out=None))


def with_room(folder: Path) -> SimulatedCluster:
    return let_all_go(a_cluster(folder, cards=ROOM), "Deployment/c")


def switched(tools: RunContext, switch: NodeSwitch = WHOLE) -> StageResult:
    (result,) = a_rollout(tools).apply(a_switch(switch), by="ann")
    return result


def objects(cluster: SimulatedCluster) -> dict[str, object]:
    """Nodes and configuration as users see them, without the versions that every write moves."""
    found = {}
    for kind in ("ConfigMap", "Node", "Deployment", "Notebook", "Job"):
        for one in cluster.list_objects(kind):
            metadata = {key: value for key, value in one["metadata"].items() if key != "resourceVersion"}
            # When pods of an owner get ready is a matter of seconds.
            status = one.get("status", {}) if kind == "Node" else {}
            found[f"{kind} {metadata['name']}"] = {**one, "metadata": metadata, "status": status}
    copied: dict[str, object] = json.loads(json.dumps(found))
    return copied


def offers(cluster: SimulatedCluster, node: str = "node-1") -> str:
    found = cluster.get("Node", "", node)
    assert found is not None
    return str(found["status"]["allocatable"][COUNT])


def is_closed(cluster: SimulatedCluster, node: str = "node-1") -> bool:
    return any((one.get("spec") or {}).get("unschedulable") for one in cluster.list_objects("Node"))


def test_node_is_emptied_switched_and_open_again_and_undo_restores_every_byte(tmp_path: Path) -> None:
    cluster = with_room(tmp_path)
    before, tools = objects(cluster), some_tools(cluster, tmp_path)
    assert switched(tools).state is StageState.PROMOTED
    assert offers(cluster) == "4", "each of four cards is one pod's"
    assert present_mode("node-1", take_snapshot(cluster)) is NodeMode.WHOLE
    assert not is_closed(cluster)
    assert where_nodes(cluster) == {"node-0", "node-2"}
    an_undo(tools).undo(a_switch(WHOLE).plan_id)
    assert objects(cluster) == before


@pytest.mark.parametrize("slices", [0, 1, 11])
def test_number_of_parts_that_can_not_be_is_refused_and_never_replaced(tmp_path: Path, slices: int) -> None:
    tools = some_tools(with_room(tmp_path), tmp_path)
    with pytest.raises(Refused, match=f"with --slices {slices}: expected 2 to 10 of each card"):
        switched(tools, NodeSwitch(node="node-1", mode=NodeMode.VGPU, slices=slices))


def test_plan_shares_no_card_of_a_node_that_somebody_wants_whole(tmp_path: Path) -> None:
    cluster = with_room(tmp_path)
    first = a_slice("a-0", compute_ratio=0.4), a_slice("b-0", compute_ratio=0.4)
    item = a_recommendation("join", RecommendationKind.SLICE, ["a-0", "b-0"], ["Deployment/a", "Deployment/b"], 1)
    plan, running = (
        a_plan({4: list(first)}, [[item]]),
        RunningBackend(HamiBackend(NOW), version="v2.10.0", allows_experimental=False, left_out=None),
    )
    assert running.render(plan, 1, take_snapshot(cluster)).changes
    switched(some_tools(cluster, tmp_path))
    with pytest.raises(Refused, match="node node-1 was put into mode whole by hand since"):
        running.render(plan, 1, take_snapshot(cluster))


def where_nodes(cluster: SimulatedCluster) -> set[str]:
    return {str(pod["spec"]["nodeName"]) for pod in cluster.list_objects("Pod")}


def test_pods_that_came_since_leave_before_a_node_is_taken_back(tmp_path: Path) -> None:
    cluster = with_room(tmp_path)
    tools, before = some_tools(cluster, tmp_path), objects(cluster)
    switched(tools)
    late = [a_grant("late", 0, 4)]
    cluster.sync(an_inventory([*standard_grants(), *late], ROOM), NOW)
    (pod,) = [one for one in cluster.list_objects("Pod") if one["metadata"]["name"] == "late-0"]
    assert pod["spec"]["nodeName"] == "node-1"
    seen: list[bool] = []
    tools.step = lambda what: seen.append(is_closed(cluster)) if what.startswith("evict team/late-0") else None
    let_all_go(cluster, "Deployment/late")
    an_undo(tools).undo(a_switch(WHOLE).plan_id)
    assert seen == [True], "it left while its node was closed"
    after = objects(cluster)
    assert {name: one for name, one in after.items() if name in before} == before


def test_switch_whose_pods_do_not_get_ready_elsewhere_gives_the_node_back(tmp_path: Path) -> None:
    faults = Faults(never_ready=frozenset({"team/c-0"}))
    cluster = let_all_go(a_cluster(tmp_path, cards=ROOM, faults=faults), "Deployment/c")
    before = cluster.get(*DEVICE_CONFIG)
    result = switched(some_tools(cluster, tmp_path))
    assert result.state is StageState.RESTORED
    assert "1 pod of team/ReplicaSet/c-" in str(result.reason)
    assert "did not get ready elsewhere" in str(result.reason)
    assert cluster.get(*DEVICE_CONFIG) == before, "nothing of the mode was written"
    assert not is_closed(cluster)


def test_switch_is_refused_where_pods_would_find_no_room_elsewhere(tmp_path: Path) -> None:
    cluster = let_all_go(a_cluster(tmp_path), "Deployment/c")
    before = objects(cluster)
    with pytest.raises(Refused, match=r"team/Deployment/c: no other node has room for 2 of its pods"):
        switched(some_tools(cluster, tmp_path))
    assert objects(cluster) == before


def test_switch_is_refused_where_it_would_take_more_pods_than_an_owner_allows(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path, cards=ROOM)
    owner = cluster.get("Deployment", "team", "c")
    assert owner is not None
    wanted = [
        FieldChange(field=f"spec.strategy.rollingUpdate.{name}", value=value)
        for name, value in (("maxSurge", "1"), ("maxUnavailable", "0"))
    ]
    cluster.patch("Deployment", "team", "c", wanted, owner["metadata"]["resourceVersion"])
    with pytest.raises(Refused, match=r"team/Deployment/c: 1 of 2 pods would be unavailable"):
        switched(some_tools(cluster, tmp_path))


def ready_of(cluster: SimulatedCluster, name: str, away_from: str = "") -> int:
    pods = [pod for pod in cluster.list_objects("Pod") if pod["metadata"]["name"].startswith(f"{name}-")]
    return sum(is_ready(pod) and pod["spec"].get("nodeName") != away_from for pod in pods)


def test_pods_of_one_owner_leave_one_after_the_other_even_where_all_may(tmp_path: Path) -> None:
    cluster, seen = with_room(tmp_path), []
    tools = some_tools(cluster, tmp_path, step=lambda _: seen.append(ready_of(cluster, "c")))
    assert switched(tools).state is StageState.PROMOTED
    an_undo(tools).undo(a_switch(WHOLE).plan_id)
    assert min(seen) == 1


def test_pod_that_came_before_the_node_was_closed_is_left_alone(tmp_path: Path) -> None:
    services = standard_grants()[:6]
    cluster = let_all_go(a_cluster(tmp_path, services, cards=ROOM), "Deployment/c")
    steps: list[str] = []

    def come(what: str) -> None:
        steps.append(what)
        if what == "close node-1":
            cluster.sync(an_inventory([*services, a_grant("late", 0, 6, kind="Pod")], ROOM), NOW)

    result = switched(some_tools(cluster, tmp_path, step=come))
    assert result.state is StageState.RESTORED
    assert "team/late-0 came to node node-1 meanwhile" in str(result.reason)
    assert not [what for what in steps if what.startswith("evict")]
    assert not is_closed(cluster)


@pytest.mark.parametrize("kind", ["Job", "Notebook", "Forecaster"])
def test_pod_of_which_nothing_says_that_it_may_go_needs_an_explicit_yes(kind: str, tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path, [a_grant("own", 0, 4, kind=kind)], cards=ROOM)
    with pytest.raises(Refused, match="begin their work anew, and nothing says how many of them may"):
        switched(some_tools(cluster, tmp_path, guard=OpenGuard(GuardPolicy())))
    assert switched(some_tools(cluster, tmp_path)).state is StageState.PROMOTED


def with_late(cluster: SimulatedCluster, kind: str = "Deployment", others: int = 8) -> SimulatedCluster:
    """The cluster, in which one more pod has come to the node since."""
    cluster.sync(an_inventory([*standard_grants()[:others], a_grant("late", 0, 4, kind=kind)], ROOM), NOW)
    cluster.pause(600.0)
    return let_all_go(cluster, "Deployment/late") if kind == "Deployment" else cluster


@pytest.mark.parametrize(("others", "ready"), [(6, 1), (8, 0)], ids=["room", "none"])
def test_undo_waits_for_pods_that_have_room_elsewhere_though_gaps_are_allowed(
    others: int, ready: int, tmp_path: Path
) -> None:
    grants = standard_grants()[:others]
    cluster = let_all_go(a_cluster(tmp_path, grants, cards=ROOM), "Deployment/c")
    switched(some_tools(cluster, tmp_path))
    with_late(cluster, others=others)
    seen: dict[str, int] = {}
    tools = some_tools(cluster, tmp_path, step=lambda what: seen.setdefault(what, ready_of(cluster, "late", "node-1")))
    an_undo(tools).undo(a_switch(WHOLE).plan_id)
    assert seen["restore /Node/node-1"] == ready


def test_undo_that_is_gone_on_with_looks_again_at_who_must_leave(tmp_path: Path) -> None:
    cluster = with_room(tmp_path)
    switched(some_tools(cluster, tmp_path))

    def stop(what: str) -> None:
        if what == "close node-1":
            raise Killed(what)

    with pytest.raises(Killed):
        an_undo(some_tools(cluster, tmp_path, step=stop)).undo(a_switch(WHOLE).plan_id)
    with_late(cluster)
    undo = an_undo(some_tools(cluster, tmp_path, guard=OpenGuard(GuardPolicy())))
    with pytest.raises(Refused, match="no other node has room for 1 of its pods"):
        undo.resume(a_switch(WHOLE).plan_id)
    assert ready_of(cluster, "late") == 1


def test_undo_leaves_a_pod_alone_that_nobody_makes_anew(tmp_path: Path) -> None:
    cluster = with_room(tmp_path)
    tools = some_tools(cluster, tmp_path)
    switched(tools)
    with_late(cluster, "Pod")
    with pytest.raises(Refused, match="nobody makes pod team/late-0 anew"):
        an_undo(tools).undo(a_switch(WHOLE).plan_id)
    assert not is_closed(cluster)
    assert offers(cluster) == "4"


def test_switch_is_refused_where_a_budget_lets_no_pod_go(tmp_path: Path) -> None:
    cluster = with_room(tmp_path)
    cluster.create(
        {
            "kind": "PodDisruptionBudget",
            "metadata": {"namespace": "team", "name": "keep"},
            "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": "c"}}},
        }
    )
    with pytest.raises(Refused, match=r"PodDisruptionBudget team/keep \(minAvailable=2\)"):
        switched(some_tools(cluster, tmp_path))


def test_service_of_one_replica_needs_an_explicit_yes(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path, [a_grant("only", 0, 4)], cards=8)
    tools = some_tools(let_all_go(cluster, "Deployment/only"), tmp_path, guard=OpenGuard(GuardPolicy()))
    with pytest.raises(Refused, match="it has one replica"):
        switched(tools)


@pytest.mark.parametrize("claimed", [4, 0])
def test_switch_of_a_node_of_many_cards_needs_two_people_whatever_its_plan_claims(tmp_path: Path, claimed: int) -> None:
    guard = Guard(GuardPolicy(gaps_allowed=True, two_approvals_cards_min=4))
    cluster, plan = with_room(tmp_path), a_switch(WHOLE, cards=claimed)
    rollout = a_rollout(some_tools(cluster, tmp_path, guard=guard))
    with pytest.raises(Refused, match=r"4 cards are .* guard\.two_approvals_cards_min=4"):
        rollout.apply(plan, by="ann", approved=lambda: a_yes(plan, 1))
    both = [*a_yes(plan, 1), *a_yes(plan, 1, by="ben")]
    assert rollout.apply(plan, by="ann", approved=lambda: both)[0].state is StageState.PROMOTED


def test_mode_that_cards_can_not_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="NVIDIA A10 is not known to be cut by MIG"):
        switched(some_tools(with_room(tmp_path), tmp_path), TO_MIG)


def test_mode_that_a_node_has_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="node node-1 is in mode vgpu already"):
        switched(some_tools(with_room(tmp_path), tmp_path), replace(WHOLE, mode=NodeMode.VGPU))


def test_node_that_does_not_get_ready_is_given_back_as_it_was(tmp_path: Path) -> None:
    cluster = SimulatedCluster(tmp_path / "cluster.sqlite")
    inventory = an_inventory([])
    cards = tuple(replace(card, card_model=CardModelName("NVIDIA A100-SXM4-80GB")) for card in inventory.cards)
    cluster.sync(replace(inventory, cards=cards), NOW)
    before = objects(cluster)
    result = switched(some_tools(cluster, tmp_path), TO_MIG)
    assert result.state is StageState.RESTORED
    assert str(result.reason).endswith("its cards are in mode hami-core, expected mig")
    assert objects(cluster) == before


def test_pod_that_opted_out_keeps_its_node(tmp_path: Path) -> None:
    grants = [a_grant("mine", 0, 4, labels=(("gputide.io/opt-out", "true"),))]
    with pytest.raises(Refused, match=r"team/Deployment/mine says gputide\.io/opt-out=true"):
        switched(some_tools(a_cluster(tmp_path, grants), tmp_path))


def test_killed_at_any_step_a_switch_ends_whole_when_it_is_gone_on_with(tmp_path: Path) -> None:
    steps: list[str] = []
    (tmp_path / "whole").mkdir()
    cluster = with_room(tmp_path / "whole")
    switched(some_tools(cluster, tmp_path / "whole", step=steps.append))
    wanted = objects(cluster), offers(cluster)
    for number in range(len(steps)):
        folder = tmp_path / str(number)
        folder.mkdir()
        cluster = with_room(folder)
        left = iter(range(number + 1))

        def stop(what: str, left: object = left) -> None:
            if next(left, None) == number:  # type: ignore[call-overload]  # noqa: B023 - called in this turn
                raise Killed(what)

        with pytest.raises(Killed):
            switched(some_tools(cluster, folder, step=stop))
        switched(some_tools(cluster, folder))
        assert (objects(cluster), offers(cluster)) == wanted, steps[number]


def test_killed_at_any_step_an_undo_ends_whole_when_it_is_gone_on_with(tmp_path: Path) -> None:
    def begun(folder: Path) -> tuple[SimulatedCluster, dict[str, object]]:
        folder.mkdir()
        cluster = with_room(folder)
        before = objects(cluster)
        switched(some_tools(cluster, folder))
        return cluster, before

    steps: list[str] = []
    cluster, _ = begun(tmp_path / "whole")
    an_undo(some_tools(cluster, tmp_path / "whole", step=steps.append)).undo(a_switch(WHOLE).plan_id)
    for number in range(len(steps)):
        folder = tmp_path / str(number)
        cluster, before = begun(folder)
        left = iter(range(number + 1))

        def stop(what: str, left: object = left) -> None:
            if next(left, None) == number:  # type: ignore[call-overload]  # noqa: B023 - called in this turn
                raise Killed(what)

        with pytest.raises(Killed):
            an_undo(some_tools(cluster, folder, step=stop)).undo(a_switch(WHOLE).plan_id)
        offered: dict[str, str] = {}
        see = partial(_note, offered, cluster)
        undo = an_undo(some_tools(cluster, folder, step=see))
        if undo.resume(a_switch(WHOLE).plan_id) is None:
            undo.undo(a_switch(WHOLE).plan_id)
        assert objects(cluster) == before, steps[number]
        assert offered.get("open node-1", "40") == "40", steps[number]


def _note(offered: dict[str, str], cluster: SimulatedCluster, what: str) -> None:
    offered[what] = offers(cluster)


def test_of_two_switches_of_a_node_the_last_one_is_taken_back_first(tmp_path: Path) -> None:
    cluster = with_room(tmp_path)
    tools, before = some_tools(cluster, tmp_path), objects(cluster)
    switched(tools)
    back = NodeSwitch(node="node-1", mode=NodeMode.VGPU, slices=5)
    switched(tools, back)
    with pytest.raises(Refused, match=f"undo plan {a_switch(back).plan_id} first"):
        an_undo(tools).undo(a_switch(WHOLE).plan_id)
    assert offers(cluster) == "20"
    undo = an_undo(tools)
    undo.way_back(undo.preview(a_switch(WHOLE).plan_id), after=[a_switch(back).plan_id])
    an_undo(tools).undo(a_switch(back).plan_id)
    assert offers(cluster) == "4"
    an_undo(tools).undo(a_switch(WHOLE).plan_id)
    assert objects(cluster) == before


def test_plan_from_before_a_node_was_switched_is_refused(tmp_path: Path) -> None:
    cluster = let_all_go(a_cluster(tmp_path, cards=ROOM), "Deployment/c")
    tools, early = some_tools(cluster, tmp_path), replace(standard_plan(), created_at=NOW - timedelta(hours=1))
    plan = seal_plan(replace(early, stages=early.stages[1:]))
    switched(tools)
    with pytest.raises(Refused, match="put node node-1 into another mode since it was made"):
        a_rollout(tools).apply(plan, by="ann")
    an_undo(tools).undo(a_switch(WHOLE).plan_id)
    with pytest.raises(Refused, match="pods that it does not know"):
        a_rollout(tools).apply(plan, by="ann")


def test_switch_is_a_plan_that_is_sealed_and_is_never_the_newest_that_somebody_means(tmp_path: Path) -> None:
    plan = a_switch(TO_MIG)
    assert plan_from_json(plan_to_json(plan)) == plan
    assert "node_switch" not in plan_document(standard_plan()), "plans of before keep their bytes, and so their ids"
    store = PlanStore(tmp_path)
    store.add(plan)
    assert store.newest() is None
    assert store.get(plan.plan_id).node_switch == TO_MIG


# --- NVIDIA's device plugin and mig-manager ---

A100 = "NVIDIA-A100-SXM4-40GB"
MIXED = {"nvidia.com/mig.strategy": "mixed", "nvidia.com/mig.config": "all-disabled"}
KEPT = "version: v1\nmig-configs:\n  all-disabled:\n  - devices: all\n    mig-enabled: false\n"


def plugin_cluster(*nodes: Manifest, others: Sequence[Manifest] = ()) -> StandingCluster:
    default = {"default": "version: v1\nflags:\n  failOnInitError: false\n"}
    return StandingCluster([*nodes, a_config(data=default), a_config(MIG_CONFIGS[0], {"config.yaml": KEPT}), *others])


def a100(**how: object) -> Manifest:
    return a_node("node-0", labels=MIXED, product=A100, **how)  # type: ignore[arg-type]


def rendered(cluster: StandingCluster, **how: object) -> RenderedStage:
    switch = NodeSwitch(node="node-0", **how)  # type: ignore[arg-type]
    return render_switch("plan-1", switch, take_snapshot(cluster, NODE_DIALECT), TIME_SLICING)


def carried_out(cluster: StandingCluster, stage: RenderedStage, **allocatable: int) -> StandingCluster:
    for change in stage.changes:
        found = cluster.get(change.kind, change.namespace, change.name)
        assert found is not None
        set_field(found, change.field, change.new)
    node = cluster.get("Node", "", "node-0")
    assert node is not None
    node["status"]["allocatable"].update({name: str(count) for name, count in allocatable.items()})
    return cluster


def waited_for(stage: RenderedStage) -> Mapping[str, str]:
    (step,) = stage.node_steps
    return {path.removeprefix("status.allocatable[").removesuffix("]"): value for path, value in step.advertised}


def label_of(stage: RenderedStage, name: str) -> str:
    return str(next(change.new for change in stage.changes if change.field == f"metadata.labels[{name}]"))


def test_node_shares_each_card_by_a_configuration_of_its_own() -> None:
    stage = rendered(plugin_cluster(a100()), mode=NodeMode.TIME_SLICING, slices=4)
    key = label_of(stage, "nvidia.com/device-plugin.config")
    text = next(str(change.new) for change in stage.changes if change.field == f"data[{key}]")
    assert yaml.safe_load(text) == {
        "version": "v1",
        "flags": {"failOnInitError": False},
        "sharing": {
            "timeSlicing": {
                "renameByDefault": True,
                "failRequestsGreaterThanOne": True,
                "resources": [{"name": COUNT, "replicas": 4}],
            }
        },
    }
    assert waited_for(stage) == {COUNT: "0", SHARED: "16"}
    assert stage.node_steps[0].back == ((f"status.allocatable[{COUNT}]", "4"), (f"status.allocatable[{SHARED}]", "0"))


@pytest.mark.parametrize(
    "how", [{"mode": NodeMode.MPS, "slices": 2}, {"mode": NodeMode.MIG, "profiles": (("3g.20gb", 2),)}]
)
def test_nodes_in_the_same_mode_have_configurations_of_their_own(how: dict[str, object]) -> None:
    """The undo of one takes its configuration away, which the label of the other would still name."""
    cluster = plugin_cluster(a100(), a_node("node-1", labels=MIXED, product=A100))
    first = carried_out(cluster, rendered(cluster, **how))
    switch = NodeSwitch(node="node-1", **how)  # type: ignore[arg-type]
    second = render_switch("plan-2", switch, take_snapshot(first, NODE_DIALECT), TIME_SLICING)
    named = {change.new for change in second.changes if change.field.startswith("metadata.labels[nvidia.com/")}
    node = first.get("Node", "", "node-0")
    assert node is not None
    assert named.isdisjoint(node["metadata"]["labels"].values())
    assert any(change.kind == "ConfigMap" for change in second.changes)


def test_shared_node_becomes_whole_by_a_configuration_that_shares_nothing() -> None:
    cluster = plugin_cluster(a100())
    stage = rendered(cluster, mode=NodeMode.MPS, slices=2)
    carried_out(cluster, stage, **{COUNT: 0, SHARED: 8})
    assert present_mode("node-0", take_snapshot(cluster, NODE_DIALECT)) is NodeMode.MPS
    back = rendered(cluster, mode=NodeMode.WHOLE)
    key = label_of(back, "nvidia.com/device-plugin.config")
    text = next(str(change.new) for change in back.changes if change.field == f"data[{key}]")
    assert yaml.safe_load(text) == {"version": "v1", "flags": {"failOnInitError": False}}
    assert waited_for(back) == {COUNT: "4", SHARED: "0"}


def test_whole_cards_of_a_plan_may_come_to_a_node_that_was_put_into_mode_whole() -> None:
    cluster = plugin_cluster(a100())
    carried_out(cluster, rendered(cluster, mode=NodeMode.MPS, slices=2), **{COUNT: 0, SHARED: 8})
    carried_out(cluster, rendered(cluster, mode=NodeMode.WHOLE), **{COUNT: 4, SHARED: 0})
    for manifest in (an_owner("a"), a_pod("a", 0, "node-0"), a_pod("a", 1, "node-0")):
        cluster.put(manifest)
    snapshot = take_snapshot(cluster, NODE_DIALECT)
    assert present_mode("node-0", snapshot) is NodeMode.WHOLE
    assert WholeCardsBackend(NOW).dialect.cards_of_node(snapshot.nodes["node-0"])


def test_every_card_of_a_node_is_cut_alike_and_whole_again() -> None:
    cluster = plugin_cluster(a100())
    stage = rendered(cluster, mode=NodeMode.MIG, profiles=(("2g.10gb", 2), ("3g.20gb", 1)))
    name = label_of(stage, "nvidia.com/mig.config")
    text = next(str(change.new) for change in stage.changes if change.field == "data[config.yaml]")
    layouts = yaml.safe_load(text)["mig-configs"]
    assert layouts["all-disabled"] == [{"devices": "all", "mig-enabled": False}]
    assert layouts[name] == [
        {"devices": [0, 1, 2, 3], "mig-enabled": True, "mig-devices": {"2g.10gb": 2, "3g.20gb": 1}}
    ]
    cut = {"nvidia.com/mig-2g.10gb": "8", "nvidia.com/mig-3g.20gb": "4", COUNT: "0"}
    assert waited_for(stage) == cut
    carried_out(cluster, stage, **{resource: int(count) for resource, count in cut.items()})
    assert present_mode("node-0", take_snapshot(cluster, NODE_DIALECT)) is NodeMode.MIG
    back = rendered(cluster, mode=NodeMode.WHOLE)
    assert waited_for(back) == {"nvidia.com/mig-2g.10gb": "0", "nvidia.com/mig-3g.20gb": "0", COUNT: "4"}
    with pytest.raises(Refused, match="does not share cards that are cut"):
        rendered(cluster, mode=NodeMode.TIME_SLICING, slices=2)


def test_cards_with_more_framebuffer_than_their_model_are_not_cut() -> None:
    with pytest.raises(Refused, match=r"it has 42\.0 GiB"):
        rendered(plugin_cluster(a100(mib=42 * 1024)), mode=NodeMode.MIG, profiles=(("3g.20gb", 2),))


@pytest.mark.parametrize(
    ("product", "how", "why"),
    [
        ("Tesla-T4", {"mode": NodeMode.MIG, "profiles": (("1g.5gb", 7),)}, "Tesla-T4 is not known to be cut by MIG"),
        (A100, {"mode": NodeMode.MIG, "profiles": (("3g.20gb", 3),)}, "cannot cut 3 x 3g.20gb"),
        (A100, {"mode": NodeMode.MIG}, "say --profile"),
        (A100, {"mode": NodeMode.TIME_SLICING}, "expected 2 to 10 of each card"),
        (A100, {"mode": NodeMode.TIME_SLICING, "slices": 0}, "--slices 0: expected 2 to 10"),
        (A100, {"mode": NodeMode.MPS, "slices": 49}, "expected 2 to 48 of each card"),
        (A100, {"mode": NodeMode.WHOLE, "slices": 2}, "cannot share each card 2 times in mode whole"),
        (A100, {"mode": NodeMode.VGPU}, "modes with nvidia_time_slicing: whole, time-slicing, mps, mig"),
        (A100, {"mode": NodeMode.WHOLE}, "node node-0 is in mode whole already"),
    ],
)
def test_what_a_node_of_the_plugin_can_not_be_is_refused(product: str, how: dict[str, object], why: str) -> None:
    with pytest.raises(Refused, match=why):
        rendered(plugin_cluster(a_node("node-0", labels=MIXED, product=product)), **how)


@pytest.mark.parametrize(
    ("kind", "why"), [("Pod", "nobody makes pod team/a-0 anew"), ("DaemonSet", "comes back to it at once")]
)
def test_pod_that_would_be_lost_or_come_back_stands_against_a_switch(kind: str, why: str) -> None:
    pod = a_pod("a", 0, "node-0", kind=kind)
    if kind == "Pod":
        del pod["metadata"]["ownerReferences"]
    with pytest.raises(Refused, match=why):
        rendered(plugin_cluster(a100(), others=[pod]), mode=NodeMode.TIME_SLICING, slices=2)


def test_service_whose_other_pods_are_not_ready_keeps_those_that_are() -> None:
    short = a_pod("a", 1, "node-1")
    short["status"]["containerStatuses"] = [{"ready": False}]
    others = [an_owner("a"), a_pod("a", 0, "node-0"), short]
    with pytest.raises(Refused, match="1 pods of team/Deployment/a elsewhere are not ready, such as team/a-1"):
        rendered(plugin_cluster(a100(), others=others), mode=NodeMode.TIME_SLICING, slices=2)
    short["status"]["phase"] = "Succeeded"
    assert rendered(plugin_cluster(a100(), others=others), mode=NodeMode.TIME_SLICING, slices=2).node_steps


def test_pods_leave_first_and_jobs_are_said_to_begin_anew() -> None:
    stage = rendered(
        plugin_cluster(
            a100(), others=[an_owner("a"), a_pod("a", 0, "node-0"), a_pod("train", 0, "node-0", kind="Job")]
        ),
        mode=NodeMode.TIME_SLICING,
        slices=2,
    )
    (step,) = stage.node_steps
    assert isinstance(step, NodeStep)
    assert step.leaving == (("team", "a-0"), ("team", "train-0"))
    assert any("pods of Jobs begin anew: 1, such as team/train-0" in text for text in stage.warnings)


def test_modes_are_those_that_nodes_have_and_pods_do_not() -> None:
    assert modes_of(VolcanoBackend(NOW).dialect) == (NodeMode.WHOLE, NodeMode.VGPU)
    assert modes_of(KaiBackend(NOW).dialect) == ()
