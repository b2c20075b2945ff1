"""Node configuration of HAMi and of vgpu-manager: scaling, split count, and the switch of a node's mode."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from enforcer.backend import NodeStep, RenderedStage
from enforcer.backends.hami import HamiBackend
from enforcer.backends.hami_dialect import DEVICE_CONFIG
from enforcer.manifest import Manifest
from enforcer.snapshot import take_snapshot
from fleet.capabilities.capability import Oversubscription, ProbedLending
from fleet.capabilities.register import HAMI as HAMI_RECORD
from fleet.capabilities.register import CorePolicy
from fleet.decisions import CardPlacement, Need, Plan, RecommendationKind
from fleet.errors import Corrupt, Refused
from fleet.grammars.hami import NODE_REGISTER_ANNOTATION, parse_node_register
from fleet.grammars.vgpumanager import REGISTER_ANNOTATION as VGPU_MANAGER_REGISTER
from tests.enforcer.builders import HALF, NOW, a_plan, a_recommendation, a_slice, card_id, whole
from tests.enforcer.kin_cluster import HAMI, VGPU_MANAGER, VOLCANO, Kin, a_kin_cluster
from tests.enforcer.plugin_cluster import StandingCluster, a_config
from tests.enforcer.test_backend_kin import a_share, oversubscribe, pair_plan, slice_

GIB = 2**30


def rendered(plan: Plan, cluster: StandingCluster, kin: Kin = HAMI, stage: int = 1) -> RenderedStage:
    return kin.backend.render(plan, stage, take_snapshot(cluster, kin.backend.dialect))


def config_of(stage: RenderedStage) -> Any:
    (text,) = (change.new for change in stage.changes if change.kind == "ConfigMap")
    return json.loads(text or "null")


def an_instance(pod: str, profile: str | None = "1g.6gb", framebuffer_bytes: int = 6 * GIB) -> Any:
    return replace(a_slice(pod, framebuffer_bytes=framebuffer_bytes), mig_profile=profile)


def in_mode(plan: Plan, modes: Mapping[str, str | None]) -> Plan:
    """The plan with modes of nodes."""

    def placed(card: CardPlacement) -> CardPlacement:
        return replace(card, node_mode=modes.get(card.node or "", card.node_mode))

    return replace(plan, placement=tuple(placed(card) for card in plan.placement))


def mig_plan() -> Plan:
    """Stage 1 stops all on node-1, stage 2 cuts its card 4 for b-0 and b-1."""
    gone = ["c-0", "c-1", "book-0", "train-0"]
    owners = ["Deployment/c", "Notebook/book", "Job/train"]
    plan = a_plan(
        {0: [whole("a-0")], 1: [whole("a-1")], 4: [an_instance("b-0"), an_instance("b-1")]},
        [
            [a_recommendation("gone", RecommendationKind.RECLAIM, gone, owners, 4)],
            [a_recommendation("x", RecommendationKind.MIG, ["b-0", "b-1"], ["Deployment/b"], 1)],
        ],
    )
    return in_mode(plan, {"node-1": "mig"})


def without_pods_on_node_1() -> StandingCluster:
    cluster = a_kin_cluster(HAMI)
    kept = [
        manifest
        for kind in ("Node", "Deployment", "Notebook", "Job", "ConfigMap", "Pod")
        for manifest in cluster.list_objects(kind)
        if kind != "Pod" or manifest["spec"]["nodeName"] != "node-1" or manifest["metadata"]["namespace"] != "team"
    ]
    return StandingCluster(kept)


def test_node_is_switched_to_mig_in_one_step() -> None:
    stage = rendered(mig_plan(), without_pods_on_node_1(), stage=2)
    assert config_of(stage)["nodeconfig"][0] == {"name": "node-1", "operatingmode": "mig"}
    assert stage.node_steps == (
        NodeStep(
            node="node-1",
            empty_cards=tuple(card_id(number) for number in range(4, 8)),
            restarts=(("kube-system", "hami-device-plugin-1"),),
            done_mode="mig",
        ),
    )
    limits = {change.field: change.new for change in stage.changes}
    assert limits["spec.template.spec.containers[server].resources.limits[nvidia.com/gpumem]"] == str(6 * 1024)
    assert card_id(4) in (limits["metadata.annotations[gputide.io/seats]"] or "")
    assert any("dynamic MIG" in warning for warning in stage.warnings)


def test_node_that_is_switched_already_is_left_alone() -> None:
    cluster = without_pods_on_node_1()
    _set_mode(cluster, "node-1", "mig")
    stage = rendered(mig_plan(), cluster, stage=2)
    assert stage.node_steps == ()
    assert not any(change.kind == "ConfigMap" for change in stage.changes)


def test_node_with_pods_on_it_is_not_switched() -> None:
    with pytest.raises(Refused, match="4 pods sit on its cards, such as team/book-0"):
        rendered(mig_plan(), a_kin_cluster(HAMI), stage=2)


def test_node_whose_other_cards_stay_shared_is_not_switched() -> None:
    plan = mig_plan()
    other = replace(plan.placement[0], card=card_id(5), node="node-1", slices=(whole("a-0"),))
    with pytest.raises(Refused, match=r"keeps pods on its card .* in mode hami-core"):
        rendered(replace(plan, placement=(*plan.placement[1:], other)), without_pods_on_node_1(), stage=2)


def test_node_of_the_mig_manager_is_not_switched() -> None:
    cluster = without_pods_on_node_1()
    _node(cluster, "node-1")["metadata"]["labels"] = {"nvidia.com/mig.config": "all-disabled"}
    with pytest.raises(Refused, match="only one of the two may cut them"):
        rendered(mig_plan(), cluster, stage=2)


def test_pod_without_a_profile_cannot_sit_on_a_mig_node() -> None:
    plan = a_plan(
        {4: [an_instance("b-0"), an_instance("b-1", None)]},
        [[a_recommendation("x", RecommendationKind.MIG, ["b-0", "b-1"], ["Deployment/b"], 1)]],
    )
    with pytest.raises(Refused, match=r"cannot put team/b-1 on card .* without a MIG profile"):
        rendered(in_mode(plan, {"node-1": "mig"}), without_pods_on_node_1())


def test_mode_that_nobody_knows_is_refused() -> None:
    with pytest.raises(Refused, match="in mode 'mps': hami shares it in mode hami-core or mig"):
        rendered(in_mode(slice_(), {"node-0": "mps"}), a_kin_cluster(HAMI))


def test_empty_mig_node_is_taken_back_into_sharing() -> None:
    cluster = without_pods_on_node_1()
    _set_mode(cluster, "node-1", "mig")
    plan = a_plan(
        {4: [a_slice("b-0"), a_slice("b-1")]},
        [[a_recommendation("x", RecommendationKind.COLOCATE, ["b-0", "b-1"], ["Deployment/b"], 1)]],
    )
    stage = rendered(in_mode(plan, {"node-1": "hami-core"}), cluster)
    assert config_of(stage)["nodeconfig"][0] == {"name": "node-1", "operatingmode": "hami-core"}


def test_other_entries_and_settings_of_the_configuration_stay() -> None:
    cluster = a_kin_cluster(HAMI)
    text = {"nodeconfig": [{"name": "node-0", "devicesplitcount": 7, "filterdevices": {"uuid": []}}], "more": 1}
    cluster.put(a_config(DEVICE_CONFIG, {"config.json": json.dumps(text)}))
    assert config_of(rendered(oversubscribe(), cluster)) == {
        "nodeconfig": [
            {"name": "node-0", "devicesplitcount": 7, "filterdevices": {"uuid": []}, "devicememoryscaling": 1.1}
        ],
        "more": 1,
    }


@pytest.mark.parametrize(
    "text", ["[]", "{", '{"nodeconfig": [{"devicesplitcount": 4}]}', '{"nodeconfig": 3}', "[" * 9000]
)
def test_configuration_that_is_not_hamis_is_not_written_over(text: str) -> None:
    cluster = a_kin_cluster(HAMI)
    cluster.put(a_config(DEVICE_CONFIG, {"config.json": text}))
    with pytest.raises(Corrupt, match="kube-system/hami-device-plugin"):
        rendered(oversubscribe(), cluster)


def test_configuration_that_is_not_there_is_named_with_the_settings_that_it_would_hold() -> None:
    cluster = StandingCluster(
        manifest
        for kind in ("Node", "Deployment", "Notebook", "Job", "Pod")
        for manifest in a_kin_cluster(HAMI).list_objects(kind)
    )
    with pytest.raises(Refused, match=r"cannot set devicememoryscaling=1.1 on node-0: there is no ConfigMap"):
        rendered(oversubscribe(), cluster)


def test_running_pods_stay_while_a_plugin_starts_anew_for_more_framebuffer() -> None:
    (step,) = rendered(oversubscribe(), a_kin_cluster(HAMI)).node_steps
    assert step == NodeStep(node="node-0", restarts=(("kube-system", "hami-device-plugin-0"),))


@pytest.mark.parametrize("kin", [HAMI, VOLCANO, VGPU_MANAGER], ids=lambda kin: kin.name)
def test_more_slices_than_a_card_is_split_into_raise_the_split_count(kin: Kin) -> None:
    cluster = a_kin_cluster(kin)
    pod = cluster.get("Pod", "team", "a-0")
    assert pod is not None
    for number in range(2, 11):
        cluster.put({**pod, "metadata": {**pod["metadata"], "name": f"a-{number}"}})
    parts = [
        a_slice(f"a-{number}", framebuffer_bytes=GIB, compute_ratio=0.05, core_policy=CorePolicy.HARD)
        for number in range(11)
    ]
    pods = [part.pod for part in parts]
    plan = a_plan({0: parts}, [[a_recommendation("x", RecommendationKind.SLICE, pods, ["Deployment/a"], 1)]])
    stage = rendered(plan, cluster, kin)
    assert '"devicesplitcount": 11' in json.dumps(config_of(stage)).lower()
    assert [step.restarts for step in stage.node_steps] == [(("kube-system", f"{kin.plugin}-0"),)]


def test_volcano_grants_no_more_than_there_is() -> None:
    plan = replace(oversubscribe(), recommendations=slice_().recommendations)
    with pytest.raises(Refused, match="volcano grants no more than that"):
        rendered(plan, a_kin_cluster(VOLCANO), VOLCANO)


def test_vgpu_manager_spills_by_the_scaling_of_one_node() -> None:
    stage = rendered(oversubscribe(), a_kin_cluster(VGPU_MANAGER), VGPU_MANAGER)
    assert config_of(stage) == [
        {"nodeName": "node-0", "deviceMemoryScaling": 1.1},
        {"nodeName": "node-9", "deviceSplitCount": 4},
    ]


def lending(factor: float = 3.2) -> Plan:
    """Two services on a card that holds one of them beside what the other keeps."""
    plan = pair_plan(
        RecommendationKind.OVERSUBSCRIBE,
        *(a_share(pod, framebuffer_bytes=18 * GIB, oversubscribed=True) for pod in ("a-0", "b-0", "a-1", "b-1")),
        needs=(Need.OVERSUBSCRIPTION, Need.SPILL),
    )
    return replace(plan, placement=tuple(replace(card, memory_scaling=factor) for card in plan.placement))


def test_vgpu_manager_lends_by_the_factor_that_the_plan_asks_for() -> None:
    """More than what is granted on the card: the smaller part that a pod keeps, the more it lends."""
    stage = rendered(lending(), a_kin_cluster(VGPU_MANAGER), VGPU_MANAGER)
    assert config_of(stage)[0] == {"nodeName": "node-0", "deviceMemoryScaling": 3.2}
    (step,) = stage.node_steps
    assert {mib for _, mib in step.registers_mib} == {int(24 * 1024 * 3.2) - 16}
    assert not any("card whole" in warning for warning in stage.warnings)
    assert len(step.registered_mib) > len(step.registers_mib), "a factor is all cards' of the node"
    assert {mib for _, mib in step.registered_mib} == {24 * 1024}


SPILLS = replace(HAMI_RECORD, oversubscription=Oversubscription.SPILL)
PROBED = replace(SPILLS, probed_lending=ProbedLending(scaling_max=3.2, kept_ratio=0.1))


def test_hami_kin_lends_by_the_same_factor_where_a_probe_saw_it_come_back() -> None:
    kin = replace(HAMI, backend=HamiBackend(NOW, capabilities=PROBED))
    stage = rendered(lending(1.52), a_kin_cluster(HAMI), kin)
    assert config_of(stage)["nodeconfig"][0] == {"name": "node-0", "devicememoryscaling": 1.52}
    (step,) = stage.node_steps
    assert {mib for _, mib in step.registers_mib} == {int(24 * 1024 * 1.52) - 16}
    for record in (HAMI_RECORD, SPILLS):
        with pytest.raises(Refused, match="spills nothing, or nobody knows that it comes back"):
            rendered(lending(), a_kin_cluster(HAMI), replace(HAMI, backend=HamiBackend(NOW, capabilities=record)))


@pytest.mark.parametrize(("factor", "registered"), [(1.52, 2.0), (1.6, 1.0)], ids=["node_has_more", "plan_asks_more"])
def test_lent_card_that_stays_open_to_newcomers_is_refused(factor: float, registered: float) -> None:
    """Its pods are granted 36 GiB of 24: whatever else its node registers anybody may be given."""
    cluster = a_kin_cluster(HAMI)
    annotations = _node(cluster, "node-0")["metadata"]["annotations"]
    text = annotations[NODE_REGISTER_ANNOTATION]
    annotations[NODE_REGISTER_ANNOTATION] = text.replace(str(24 * 1024), str(int(24 * 1024 * registered)))
    with pytest.raises(Refused, match="would put other pods there"):
        rendered(lending(factor), cluster, replace(HAMI, backend=HamiBackend(NOW, capabilities=PROBED)))


def test_vgpu_manager_names_pods_that_would_see_more_than_their_card() -> None:
    plan = lending()
    there = tuple(replace(card, card=card_id(7), node="node-1") for card in plan.placement[:1])
    stage = rendered(replace(plan, placement=(*there, plan.placement[1])), a_kin_cluster(VGPU_MANAGER), VGPU_MANAGER)
    seen = [warning for warning in stage.warnings if "card whole on node node-1" in warning]
    assert any("c-0 has its card whole on node node-1" in warning for warning in seen)
    assert all("sees 3.2 times its card's framebuffer" in warning for warning in seen)


def test_vgpu_manager_leaves_a_node_that_lends_enough_already() -> None:
    cluster = a_kin_cluster(VGPU_MANAGER)
    annotations = _node(cluster, "node-0")["metadata"]["annotations"]
    text = annotations[VGPU_MANAGER_REGISTER]
    annotations[VGPU_MANAGER_REGISTER] = text.replace(str(24 * 1024), str(4 * 24 * 1024))
    stage = rendered(lending(), cluster, VGPU_MANAGER)
    assert not [change for change in stage.changes if change.kind == "ConfigMap"]
    assert stage.node_steps == ()


def test_vgpu_manager_does_not_lend_what_a_pod_holds_that_is_not_made_anew() -> None:
    plan = lending()
    (entry,) = plan.recommendations
    held = replace(entry, workloads=("team/Deployment/b",), pods=("team/b-0", "team/b-1"))  # type: ignore[arg-type]
    with pytest.raises(Refused, match="was started before its node's factor and keeps all"):
        rendered(replace(plan, recommendations=(held,)), a_kin_cluster(VGPU_MANAGER), VGPU_MANAGER)


@pytest.mark.parametrize("pattern", ["node-.*", "^node-0.*$", "node-[0-9]+", "(a+)+$", "x|node-0", "de-[01]"])
def test_vgpu_manager_entry_for_many_nodes_is_not_guessed_at(pattern: str) -> None:
    cluster = a_kin_cluster(VGPU_MANAGER)
    content = json.dumps([{"nodeName": pattern, "deviceMemoryScaling": 2}])
    cluster.put(a_config(VGPU_MANAGER.config or DEVICE_CONFIG, {"nodeConfig.json": content}))
    with pytest.raises(Refused, match="covers it already"):
        rendered(oversubscribe(), cluster, VGPU_MANAGER)


@pytest.mark.parametrize("name", ["node-1", "node-00", "^node-1.*$"])
def test_vgpu_manager_entries_of_others_stay(name: str) -> None:
    cluster = a_kin_cluster(VGPU_MANAGER)
    content = [{"nodeName": name, "deviceMemoryScaling": 2}]
    cluster.put(a_config(VGPU_MANAGER.config or DEVICE_CONFIG, {"nodeConfig.json": json.dumps(content)}))
    stage = rendered(oversubscribe(), cluster, VGPU_MANAGER)
    assert config_of(stage) == [{"nodeName": "node-0", "deviceMemoryScaling": 1.1}, *content]


@pytest.mark.parametrize(("ratio", "is_refused"), [(0.33, False), (0.34, True)])
def test_vgpu_manager_counts_the_shares_of_bursting_pods_too(ratio: float, is_refused: bool) -> None:
    parts = [a_slice(f"{name}-0", compute_ratio=ratio, framebuffer_bytes=HALF // 2) for name in "abc"]
    plan = a_plan(
        {0: parts},
        [[a_recommendation("x", RecommendationKind.SLICE, ["a-0", "b-0", "c-0"],
                           ["Deployment/a", "Deployment/b", "Deployment/c"], 2)]],
    )  # fmt: skip
    if is_refused:
        with pytest.raises(Refused, match="102 % of cores together"):
            rendered(plan, a_kin_cluster(VGPU_MANAGER), VGPU_MANAGER)
        return
    stage = rendered(plan, a_kin_cluster(VGPU_MANAGER), VGPU_MANAGER)
    assert [part.core_percent for move in stage.moves for part in move.new] == [33, 33, 33]
    policies = {change.new for change in stage.changes if "vgpu-compute-policy" in change.field}
    assert policies == {"balance"}


def _node(cluster: StandingCluster, name: str) -> Manifest:
    node = cluster.get("Node", "", name)
    assert node is not None
    return node


def _set_mode(cluster: StandingCluster, name: str, mode: str) -> None:
    annotations = _node(cluster, name)["metadata"]["annotations"]
    devices = parse_node_register(annotations[NODE_REGISTER_ANNOTATION])
    annotations.update(HAMI.node_annotations([replace(device, mode=mode) for device in devices]))


def test_shared_slice_is_not_put_on_a_card_in_mode_mig() -> None:
    """The plan leaves the mode as it is, so what counts is the mode that the node registers."""
    cluster = without_pods_on_node_1()
    _set_mode(cluster, "node-1", "mig")
    plan = a_plan(
        {4: [a_slice("b-0"), a_slice("b-1")]},
        [[a_recommendation("x", RecommendationKind.COLOCATE, ["b-0", "b-1"], ["Deployment/b"], 1)]],
    )
    with pytest.raises(Refused, match="without a MIG profile: its node is in mode mig"):
        rendered(plan, cluster)
    volcano = a_kin_cluster(VOLCANO)
    annotations = _node(volcano, "node-1")["metadata"]["annotations"]
    annotations["volcano.sh/node-vgpu-register"] = annotations["volcano.sh/node-vgpu-register"].replace(
        "hami-core", "mig"
    )
    with pytest.raises(Refused, match="in mode 'mig': volcano shares it in mode hami-core"):
        rendered(plan, volcano, VOLCANO)


@pytest.mark.parametrize(("name", "is_refused"), [("node-0", True), ("node-.*", True), ("node-1", False)])
def test_vgpu_manager_counts_in_blocks_on_some_nodes(name: str, is_refused: bool) -> None:
    cluster = a_kin_cluster(VGPU_MANAGER)
    content = json.dumps([{"nodeName": name, "deviceMemoryFactor": 10}])
    cluster.put(a_config(VGPU_MANAGER.config or DEVICE_CONFIG, {"nodeConfig.json": content}))
    if is_refused:
        with pytest.raises(Refused, match=r"deviceMemoryFactor=10 .* blocks of 10 MiB"):
            rendered(slice_(), cluster, VGPU_MANAGER)
    else:
        assert rendered(slice_(), cluster, VGPU_MANAGER).moves


def test_vgpu_manager_configuration_of_another_form_is_not_written_beside() -> None:
    """Only one file of the ConfigMap is read, as an argument of the plugin says; a second one would change nothing."""
    cluster = a_kin_cluster(VGPU_MANAGER)
    cluster.put(a_config(VGPU_MANAGER.config or DEVICE_CONFIG, {"nodeConfig.yaml": "version: v1\nconfigs: []\n"}))
    with pytest.raises(Refused, match=r"there is no nodeConfig\.json in ConfigMap"):
        rendered(oversubscribe(), cluster, VGPU_MANAGER)
