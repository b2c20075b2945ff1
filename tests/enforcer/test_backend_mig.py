"""MIG: layouts per node, what a card can't be cut into, and who stands against a cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from enforcer.backend import RenderedStage
from enforcer.backends.device_plugin import MIG_CONFIGS
from enforcer.backends.mig import MigBackend, check_layout, instance_resource, node_layouts, with_layouts
from enforcer.manifest import Manifest, set_field
from enforcer.snapshot import take_snapshot
from fleet.decisions import PlacedSlice, Plan, RecommendationKind
from fleet.errors import Corrupt, Refused
from fleet.grammars.mig import profile_of_resource
from fleet.inventory import CardModelName, WorkloadId
from fleet.units import GIB
from tests.contracts.gpu_backend import BackendContract
from tests.enforcer.builders import NOW, a_plan, a_recommendation, a_slice, whole
from tests.enforcer.plugin_cluster import StandingCluster, a_config, a_node, a_pod, an_owner

MODEL = CardModelName("NVIDIA A100-SXM4-40GB")
BACKEND = MigBackend(NOW)
MIXED = {"nvidia.com/mig.strategy": "mixed"}
KEPT = "# layouts of ours\nversion: v1\nmig-configs:\n  all-disabled:\n  - devices: all\n    mig-enabled: false\n"
PODS = ["a-0", "a-1", "b-0", "b-1"]
OWNERS = ["Deployment/a", "Deployment/b"]


def instance(pod: str, profile: str = "3g.20gb") -> PlacedSlice:
    return replace(a_slice(pod, framebuffer_bytes=19 * GIB), mig_profile=profile)


def on_a100(placement: Mapping[int, Sequence[PlacedSlice]], pods: Sequence[str] = PODS,
            kind: RecommendationKind = RecommendationKind.MIG) -> Plan:  # fmt: skip
    plan = a_plan(placement, [[a_recommendation("mig-1", kind, pods, OWNERS, 2)]])
    cards = tuple(replace(card, card_model=MODEL, framebuffer_bytes=40 * GIB) for card in plan.placement)
    return replace(plan, placement=cards)


def two_cards() -> Plan:
    """a and b, one pod a card before, in halves of cards 0 and 1 of node-0."""
    return on_a100({0: [instance("a-0"), instance("b-0")], 1: [instance("a-1"), instance("b-1")]})


@pytest.fixture
def cluster() -> StandingCluster:
    return StandingCluster(objects())


@pytest.fixture
def backend() -> MigBackend:
    return BACKEND


@pytest.fixture
def plan() -> Plan:
    return two_cards()


class TestMig(BackendContract):
    pass


def objects(labels: Mapping[str, str] = MIXED) -> list[Manifest]:
    return [
        a_node("node-0", labels=labels),
        a_node("node-1", labels=labels),
        an_owner("a"),
        an_owner("b"),
        *(a_pod(pod[0], int(pod[2]), "node-0") for pod in PODS),
        a_config(MIG_CONFIGS[0], {"config.yaml": KEPT}),
    ]


def rendered(plan: Plan, given: Sequence[Manifest] | None = None) -> RenderedStage:
    cluster = StandingCluster(objects() if given is None else given)
    return BACKEND.render(plan, 1, take_snapshot(cluster, BACKEND.dialect))


def test_cut_is_a_configuration_a_label_and_instances_in_the_templates() -> None:
    told = {f"{change.kind}/{change.name} {change.field}": change.new for change in rendered(two_cards()).changes}
    content = yaml.safe_load(told["ConfigMap/custom-mig-config data[config.yaml]"] or "")
    name = told["Node/node-0 metadata.labels[nvidia.com/mig.config]"]
    assert content["mig-configs"] == {
        "all-disabled": [{"devices": "all", "mig-enabled": False}],
        name: [
            {"devices": [0, 1], "mig-enabled": True, "mig-devices": {"3g.20gb": 2}},
            {"devices": [2, 3], "mig-enabled": False},
        ],
    }
    for owner in "ab":
        path = f"Deployment/{owner} spec.template.spec.containers[server].resources.limits"
        assert told[f"{path}[nvidia.com/gpu]"] is None
        assert told[f"{path}[nvidia.com/mig-3g.20gb]"] == "1"


def test_nodes_that_are_cut_in_one_stage_are_all_configured() -> None:
    plan = two_cards()
    cards = tuple(replace(card, node=f"node-{number}") for number, card in enumerate(plan.placement))
    given = [one for one in objects() if one["kind"] != "Pod"]
    given += [a_pod(pod[0], int(pod[2]), f"node-{pod[2]}") for pod in PODS]
    changes = rendered(replace(plan, placement=cards), given).changes
    named = {change.new for change in changes if change.field == "metadata.labels[nvidia.com/mig.config]"}
    (config,) = (change for change in changes if change.kind == "ConfigMap")
    assert len(named) == 2
    assert yaml.safe_load(config.new or "")["mig-configs"].keys() == {"all-disabled", *named}
    assert config.old == KEPT


def test_node_is_empty_before_it_is_cut_and_done_when_it_offers_what_was_promised() -> None:
    (step,) = rendered(two_cards()).node_steps
    assert step.leaving == tuple(("team", pod) for pod in PODS)
    assert (step.done_field, step.done_value, step.failed_value) == (
        "metadata.labels[nvidia.com/mig.config.state]",
        "success",
        "failed",
    )
    assert dict(step.advertised) == {
        "status.allocatable[nvidia.com/mig-3g.20gb]": "4",
        "status.allocatable[nvidia.com/gpu]": "2",
    }


def test_stage_that_is_applied_renders_empty() -> None:
    cluster = StandingCluster(objects())
    for change in BACKEND.render(two_cards(), 1, take_snapshot(cluster, BACKEND.dialect)).changes:
        found = cluster.get(change.kind, change.namespace, change.name)
        assert found is not None
        set_field(found, change.field, change.new)
    node = cluster.get("Node", "", "node-0")
    assert node is not None
    node["status"]["allocatable"] = {"nvidia.com/gpu": "2", "nvidia.com/mig-3g.20gb": "4"}
    for pod in PODS:
        cluster.put(a_pod(pod[0], int(pod[2]), "node-0", limits={"nvidia.com/mig-3g.20gb": "1"}))
    again = BACKEND.render(two_cards(), 1, take_snapshot(cluster, BACKEND.dialect))
    assert (again.moves, again.changes, again.node_steps) == ((), (), ())


def test_instances_that_are_free_are_taken_without_a_cut() -> None:
    given = [entry for entry in objects() if entry["kind"] != "Node"]
    given.append(a_node("node-0", labels=MIXED, offers={"nvidia.com/gpu": 2, "nvidia.com/mig-3g.20gb": 4}))
    stage = rendered(two_cards(), given)
    assert stage.node_steps == ()
    assert not any("mig.config" in change.field for change in stage.changes)
    # Somebody of whom the plan knows nothing holds one of them.
    taken = [*given, a_pod("new", 0, "node-0", limits={"nvidia.com/mig-3g.20gb": "1"})]
    with pytest.raises(Refused, match="stage 1 leaves team/new-0 there"):
        rendered(two_cards(), taken)


def test_pod_that_the_stage_says_nothing_of_stands_against_a_cut() -> None:
    given = [*objects(), an_owner("c"), a_pod("c", 0, "node-0")]
    with pytest.raises(Refused, match=r"cannot change node node-0: .*resets all of them.* leaves team/c-0 there"):
        rendered(two_cards(), given)


def test_whole_card_that_the_stage_names_comes_back_beside_cut_ones() -> None:
    plan = on_a100({0: [instance("a-0"), instance("a-1")], 1: [whole("b-0")], 2: [whole("b-1")]})
    stage = rendered(plan)
    (step,) = stage.node_steps
    assert step.leaving == tuple(("team", pod) for pod in PODS)
    assert dict(step.advertised)["status.allocatable[nvidia.com/gpu]"] == "3"
    assert {move.pod for move in stage.moves} == {"a-0", "a-1"}


@pytest.mark.parametrize(
    ("placement", "fact"),
    [
        ({0: [instance("a-0", "3g.40gb"), instance("b-0")]}, "1 x 3g.40gb from card .* has .*3g.20gb x 2"),
        ({0: [instance("a-0", "7g.40gb"), instance("b-0", "1g.5gb")]}, "8 compute and 9 memory slices"),
        ({0: [instance("a-0", "4g.20gb"), instance("b-0", "4g.20gb")]}, "2 x 4g.20gb"),
        ({0: [instance("a-0"), replace(instance("b-0"), mig_profile=None)]}, "team/b-0 has no instance"),
        ({0: [a_slice("a-0"), a_slice("b-0")]}, "2 pods on card .*: no instance is planned on it"),
    ],
)
def test_layout_that_no_card_can_have_is_refused(placement: dict[int, list[PlacedSlice]], fact: str) -> None:
    pods = [part.pod for parts in placement.values() for part in parts]
    rest = {number: [whole(pod)] for number, pod in enumerate(sorted(set(PODS) - set(pods)), start=1)}
    with pytest.raises(Refused, match=fact):
        rendered(on_a100({**placement, **rest}))


def test_card_model_that_is_not_known_to_be_cut_is_refused() -> None:
    plan = two_cards()
    a10 = tuple(replace(card, card_model=CardModelName("NVIDIA A10")) for card in plan.placement)
    with pytest.raises(Refused, match="NVIDIA A10 is not known to be cut by MIG"):
        rendered(replace(plan, placement=a10))


def test_cards_of_one_name_with_more_framebuffer_and_media_engines_given_twice_are_refused() -> None:
    plan = two_cards()
    large = tuple(replace(card, framebuffer_bytes=42 * GIB) for card in plan.placement)
    with pytest.raises(Refused, match=r"it has 42.0 GiB, and which profiles a .* of more than 40 GiB"):
        rendered(replace(plan, placement=large))
    layout = (("1g.24gb+me.all", 1), ("2g.48gb", 1))
    with pytest.raises(Refused, match="media engines"):
        check_layout("GPU-1", "RTX PRO 6000", layout, None)
    check_layout("GPU-1", "RTX PRO 6000", (("1g.24gb+me.all", 1), ("2g.48gb-me", 1)), None)


@pytest.mark.parametrize(
    ("labels", "fact"),
    [
        ({}, "nvidia.com/mig.strategy=None, .* mig.strategy=mixed"),
        ({"nvidia.com/mig.strategy": "single"}, "nvidia.com/mig.strategy=single"),
        ({**MIXED, "nvidia.com/mig.capable": "false"}, "nvidia.com/mig.capable=false"),
        ({**MIXED, "nvidia.com/gpu.count": "1"}, "it has 1 cards, the plan uses 2"),
        ({**MIXED, "nvidia.com/gpu.count": "many"}, "it has None cards"),
    ],
)
def test_node_that_cannot_be_cut_by_a_label_is_refused(labels: dict[str, str], fact: str) -> None:
    with pytest.raises(Refused, match=fact):
        rendered(two_cards(), objects(labels))


def test_without_a_config_map_of_its_own_the_operators_would_be_written_back() -> None:
    given = [entry for entry in objects() if entry["kind"] != "ConfigMap"]
    default = a_config(("ConfigMap", "gpu-operator", "default-mig-parted-config"), {"config.yaml": KEPT})
    with pytest.raises(Refused, match=r"gpu-operator/custom-mig-config.*migManager\.config\.name"):
        rendered(two_cards(), [*given, default])


def test_replicas_with_instances_of_different_profiles_are_refused() -> None:
    plan = on_a100({0: [instance("a-0"), instance("b-0")], 1: [instance("a-1", "2g.10gb"), instance("b-1")]})
    with pytest.raises(Refused, match=r"1 nvidia.com/mig-2g.10gb; 1 nvidia.com/mig-3g.20gb"):
        rendered(plan)


def test_template_of_a_job_cannot_be_given_an_instance() -> None:
    given = [*objects(), an_owner("train", kind="Job"), a_pod("train", 0, "node-1", kind="Job")]
    part = replace(instance("train-0"), workload=WorkloadId("team/Job/train"))
    plan = on_a100({4: [part]}, ["train-0"])
    with pytest.raises(Refused, match=r"a Job's template can't be changed; make the Job anew with nvidia.com/mig-3g"):
        rendered(plan, given)


@pytest.mark.parametrize("text", ["- a", "version: v2\n", "a: [", "mig-configs: 3\n"])
def test_configuration_that_is_not_mig_parteds_is_not_written_over(text: str) -> None:
    with pytest.raises(Corrupt, match="mig-manager's configuration"):
        with_layouts(text, "x", [])


PROFILES = ["1g.5gb", "1g.5gb+me", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb", "1g.24gb-me"]


@pytest.mark.parametrize("profile", PROFILES)
def test_resource_of_a_profile_is_read_back_as_the_profile(profile: str) -> None:
    assert profile_of_resource(instance_resource(profile)) == profile


LAYOUTS = st.lists(
    st.dictionaries(st.sampled_from(PROFILES), st.integers(1, 7), min_size=1).map(
        lambda all_: tuple(sorted(all_.items()))
    )
)


@given(layouts=LAYOUTS, spare=st.integers(0, 4))
def test_every_card_of_a_node_is_named_once_and_every_layout_is_dealt(
    layouts: list[tuple[tuple[str, int], ...]], spare: int
) -> None:
    entries = node_layouts(len(layouts) + spare, layouts)
    numbers = [number for entry in entries for number in entry["devices"]]
    assert sorted(numbers) == list(range(len(layouts) + spare))
    dealt = [tuple(entry["mig-devices"].items()) for entry in entries for _ in entry["devices"] if entry["mig-enabled"]]
    assert sorted(dealt) == sorted(layouts)
    again = yaml.safe_load(with_layouts(KEPT, "x", entries))
    assert again["mig-configs"]["x"] == entries
