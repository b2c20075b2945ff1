"""Time-slicing and MPS: configurations per node, what replicas can't hold, which nodes must be empty for a while."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml

from enforcer.backends.alike import with_seats_as_they_are
from enforcer.backends.nvidia_sharing import MpsBackend, NvidiaSharingBackend, TimeSlicingBackend, sharing_config
from enforcer.manifest import Manifest, set_field
from enforcer.snapshot import Snapshot, take_snapshot
from fleet.decisions import Need, Plan, PoolCut, RecommendationKind
from fleet.errors import Corrupt, Refused
from fleet.units import GIB
from tests.contracts.gpu_backend import BackendContract
from tests.enforcer.builders import CARD_BYTES, HALF, NOW, a_plan, a_recommendation, a_slice, whole
from tests.enforcer.plugin_cluster import (
    StandingCluster,
    a_config,
    a_node,
    a_pod,
    an_owner,
    nodes_of_seats,
    standard_objects,
)

TIME_SLICING = TimeSlicingBackend(NOW)
MPS = MpsBackend(NOW)
PODS = ["a-0", "a-1", "b-0", "b-1"]
OWNERS = ["Deployment/a", "Deployment/b"]
FITS = HALF - 2**30
CONTAINER = "spec.template.spec.containers[server].resources"


def shared_node() -> Plan:
    """a and b in halves on two of the four cards of node-0."""
    return a_plan(
        {0: [a_slice("a-0", framebuffer_bytes=FITS), a_slice("b-0", framebuffer_bytes=FITS)],
         1: [a_slice("a-1", framebuffer_bytes=FITS), a_slice("b-1", framebuffer_bytes=FITS)],
         4: [whole("c-0")], 5: [whole("c-1")], 6: [whole("book-0", kind="Notebook")],
         7: [whole("train-0", kind="Job")]},
        [[a_recommendation("slice-1", RecommendationKind.SLICE, PODS, OWNERS, 2)]],
    )  # fmt: skip


@pytest.fixture
def cluster() -> StandingCluster:
    return StandingCluster(standard_objects())


@pytest.fixture
def plan() -> Plan:
    return shared_node()


class TestTimeSlicing(BackendContract):
    @pytest.fixture
    def backend(self) -> TimeSlicingBackend:
        return TIME_SLICING


class TestMps(BackendContract):
    @pytest.fixture
    def backend(self) -> MpsBackend:
        return MPS


def seen(backend: NvidiaSharingBackend, objects: list[Manifest] | None = None) -> Snapshot:
    return take_snapshot(StandingCluster(standard_objects() if objects is None else objects), backend.dialect)


def values(backend: NvidiaSharingBackend, plan: Plan, objects: list[Manifest] | None = None) -> dict[str, str | None]:
    rendered = backend.render(plan, 1, seen(backend, objects))
    return {f"{change.kind}/{change.name} {change.field}": change.new for change in rendered.changes}


@pytest.mark.parametrize("backend", [TIME_SLICING, MPS])
def test_slices_become_replicas_of_a_configuration_that_the_node_is_labelled_with(
    backend: NvidiaSharingBackend,
) -> None:
    told = values(backend, shared_node())
    section = "mps" if backend is MPS else "timeSlicing"
    (key,) = (name.partition("data[")[2][:-1] for name in told if name.startswith("ConfigMap/device-plugin-config"))
    assert yaml.safe_load(told[f"ConfigMap/device-plugin-config data[{key}]"] or "") == {
        "version": "v1",
        "sharing": {
            section: {
                "renameByDefault": True,
                "failRequestsGreaterThanOne": True,
                "resources": [{"name": "nvidia.com/gpu", "replicas": 2}],
            }
        },
    }
    assert told["Node/node-0 metadata.labels[nvidia.com/device-plugin.config]"] == key
    for name in "ab":
        assert told[f"Deployment/{name} {CONTAINER}.limits[nvidia.com/gpu]"] is None
        assert told[f"Deployment/{name} {CONTAINER}.limits[nvidia.com/gpu.shared]"] == "1"
        assert set(nodes_of_seats(told[f"Deployment/{name} metadata.annotations[gputide.io/seats]"])) == {"node-0"}
    assert not any("node-1" in name or "/c " in name for name in told)


def test_node_is_emptied_of_its_pods_before_its_cards_are_handed_out_in_another_way() -> None:
    (step,) = TIME_SLICING.render(shared_node(), 1, seen(TIME_SLICING)).node_steps
    assert step.node == "node-0"
    assert step.leaving == tuple(("team", pod) for pod in PODS)
    assert (step.done_field, step.done_value) == ("status.allocatable[nvidia.com/gpu.shared]", "8")


def test_node_with_somebody_who_stays_is_not_shared() -> None:
    objects = [*standard_objects(), an_owner("d"), a_pod("d", 0, "node-0")]
    with pytest.raises(Refused, match=r"cannot change node node-0: .* stage 1 leaves team/d-0 there"):
        TIME_SLICING.render(shared_node(), 1, seen(TIME_SLICING, objects))


def test_cards_of_a_node_that_keeps_pods_are_not_said_to_be_free() -> None:
    _, warning = TIME_SLICING.render(shared_node(), 1, seen(TIME_SLICING)).warnings
    assert "2 of 4 cards of node node-0 are free by the plan" in warning
    assert "what is free there are 4 replicas" in warning


def test_configuration_keeps_what_counted_for_the_node_before() -> None:
    objects = [entry for entry in standard_objects() if entry["metadata"]["name"] != "node-0"]
    objects.append(a_node("node-0", labels={"nvidia.com/device-plugin.config": "mine"}))
    own = "version: v1\nflags:\n  plugin:\n    passDeviceSpecs: true\nsharing:\n  mps: {}\n"
    objects.append(a_config(data={"mine": own, "default": "version: v1\n"}))
    told = values(TIME_SLICING, shared_node(), objects)
    (text,) = (value for name, value in told.items() if " data[gputide-" in name)
    content = yaml.safe_load(text or "")
    assert content["flags"] == {"plugin": {"passDeviceSpecs": True}}
    assert set(content["sharing"]) == {"timeSlicing"}


def test_stage_that_is_applied_renders_empty_whichever_replica_sits_where() -> None:
    objects = standard_objects()
    plan = a_plan(
        {0: [a_slice("a-0", framebuffer_bytes=FITS), a_slice("b-0", framebuffer_bytes=FITS)],
         4: [a_slice("a-1", framebuffer_bytes=FITS), a_slice("b-1", framebuffer_bytes=FITS)]},
        [[a_recommendation("slice-1", RecommendationKind.SLICE, PODS, OWNERS, 2)]],
    )  # fmt: skip
    kept = [entry for entry in objects if entry["kind"] != "Pod" and entry["metadata"]["name"] not in ("c", "train")]
    homes = {"a-0": "node-0", "a-1": "node-0", "b-0": "node-0", "b-1": "node-0"}
    cluster = StandingCluster([*kept, *(a_pod(pod[0], int(pod[2]), node) for pod, node in homes.items())])
    rendered = TIME_SLICING.render(plan, 1, take_snapshot(cluster, TIME_SLICING.dialect))
    assert {move.pod for move in rendered.moves} == set(PODS)
    for change in rendered.changes:
        found = cluster.get(change.kind, change.namespace, change.name)
        assert found is not None
        set_field(found, change.field, change.new)
    for node in ("node-0", "node-1"):
        found = cluster.get("Node", "", node)
        assert found is not None
        found["status"]["allocatable"] = {"nvidia.com/gpu": "0", "nvidia.com/gpu.shared": "8"}
    # The scheduler filled the nodes the other way round.
    for pod, node in {"a-0": "node-1", "a-1": "node-0", "b-0": "node-1", "b-1": "node-0"}.items():
        cluster.put(a_pod(pod[0], int(pod[2]), node, limits={"nvidia.com/gpu.shared": "1"}))
    again = TIME_SLICING.render(plan, 1, take_snapshot(cluster, TIME_SLICING.dialect))
    assert (again.moves, again.changes, again.node_steps) == ((), (), ())


def test_names_are_swapped_within_a_workload_only() -> None:
    plan = a_plan(
        {0: [whole("a-0")], 4: [whole("a-1")], 1: [whole("b-0")]},
        [[a_recommendation("r", RecommendationKind.REHOME, ["a-0", "a-1", "b-0"], OWNERS, 0)]],
    )
    nodes = {"a-0": "node-1", "a-1": "node-0", "b-0": "node-1"}
    cluster = StandingCluster([a_pod(pod[0], int(pod[2]), node) for pod, node in nodes.items()])
    swapped = with_seats_as_they_are(plan, take_snapshot(cluster, TIME_SLICING.dialect))
    assert [[part.pod for part in card.slices] for card in swapped.placement] == [["a-1"], ["a-0"], ["b-0"]]


@pytest.mark.parametrize(
    ("backend", "change", "fact"),
    [
        (TIME_SLICING, {"framebuffer_bytes": HALF + 1}, "2 largest pods that may come to it need 24.0 GiB"),
        (MPS, {"framebuffer_bytes": HALF + 1}, "2 equal parts of 12.0 GiB"),
        (MPS, {"compute_ratio": 0.6}, "each of 2 clients 50 % of the threads"),
        (TIME_SLICING, {"mig_profile": "1g.6gb"}, "enforcer.backend=mig cuts"),
    ],
)
def test_what_replicas_cannot_hold_is_refused_naming_the_fact(
    backend: NvidiaSharingBackend, change: dict[str, Any], fact: str
) -> None:
    plan = shared_node()
    bad: dict[str, Any] = {"framebuffer_bytes": HALF, "compute_ratio": 0.5, **change}
    cards = [
        replace(card, slices=tuple(replace(part, **bad) for part in card.slices)) if len(card.slices) > 1 else card
        for card in plan.placement
    ]
    with pytest.raises(Refused, match=fact):
        backend.render(replace(plan, placement=tuple(cards)), 1, seen(backend))


def test_whole_card_on_a_node_that_shares_is_refused() -> None:
    plan = shared_node()
    more = a_plan({2: [whole("c-0")]}, [[]]).placement
    with pytest.raises(Refused, match=r"leave team/c-0 card .* alone.*shares all cards of a node alike"):
        TIME_SLICING.render(replace(plan, placement=(*plan.placement[:2], *more)), 1, seen(TIME_SLICING))


def test_more_clients_than_mps_serves_are_refused() -> None:
    pods = [f"a-{number}" for number in range(49)]
    plan = a_plan(
        {0: [a_slice(pod, framebuffer_bytes=GIB // 4, compute_ratio=0.01) for pod in pods]},
        [[a_recommendation("slice-1", RecommendationKind.SLICE, pods, OWNERS[:1], 0)]],
    )
    objects = [a_node("node-0"), a_config(), an_owner("a"), *(a_pod("a", n, "node-0") for n in range(49))]
    with pytest.raises(Refused, match="slices_per_card_max=48"):
        MPS.render(plan, 1, seen(MPS, objects))


@pytest.mark.parametrize(("backend", "count", "is_told"), [(MPS, 5, True), (MPS, 4, False), (TIME_SLICING, 5, False)])
def test_share_of_threads_at_which_results_are_in_doubt_is_told(
    backend: NvidiaSharingBackend, count: int, is_told: bool
) -> None:
    pods = [f"a-{number}" for number in range(count)]
    plan = a_plan(
        {0: [a_slice(pod, framebuffer_bytes=GIB, compute_ratio=0.1) for pod in pods]},
        [[a_recommendation("slice-1", RecommendationKind.SLICE, pods, OWNERS[:1], 0)]],
    )
    objects = [a_node("node-0"), a_config(), an_owner("a"), *(a_pod("a", n, "node-0") for n in range(count))]
    warnings = backend.render(plan, 1, seen(backend, objects)).warnings
    assert any("20 % of the threads: one study found" in warning for warning in warnings) is is_told


def test_replicas_of_a_workload_that_would_ask_for_different_things_are_refused() -> None:
    plan = a_plan(
        {0: [a_slice("a-0", framebuffer_bytes=FITS), a_slice("b-0", framebuffer_bytes=FITS)],
         4: [a_slice("a-1", framebuffer_bytes=FITS)], 5: [a_slice("b-1", framebuffer_bytes=FITS)]},
        [[a_recommendation("slice-1", RecommendationKind.SLICE, PODS, OWNERS, 1)]],
    )  # fmt: skip
    with pytest.raises(Refused, match=r"1 nvidia.com/gpu; 1 nvidia.com/gpu.shared.*they have one template"):
        TIME_SLICING.render(plan, 1, seen(TIME_SLICING))


def test_hard_isolation_keeps_a_workload_off_shared_cards() -> None:
    objects = [entry for entry in standard_objects() if entry["metadata"]["name"] != "b"]
    objects.append(an_owner("b", annotations={"gputide.io/isolation": "hard"}))
    with pytest.raises(Refused, match=r"gputide.io/isolation=hard, and framebuffer isolation of .* is none"):
        TIME_SLICING.render(shared_node(), 1, seen(TIME_SLICING, objects))


def test_without_a_config_map_of_the_plugin_it_is_said_how_to_have_one() -> None:
    objects = [entry for entry in standard_objects() if entry["kind"] != "ConfigMap"]
    with pytest.raises(Refused, match=r"none of the ConfigMaps gpu-operator/device-plugin-config, .* config\.name"):
        TIME_SLICING.render(shared_node(), 1, seen(TIME_SLICING, objects))


def test_selector_of_the_owner_that_keeps_its_pods_off_the_planned_node_is_refused() -> None:
    objects = [entry for entry in standard_objects() if entry["metadata"]["name"] != "a"]
    objects.append(an_owner("a", spec={"nodeSelector": {"zone": "west"}}))
    with pytest.raises(Refused, match="selects zone=west, the node has None"):
        TIME_SLICING.render(shared_node(), 1, seen(TIME_SLICING, objects))


@pytest.mark.parametrize("kind", [RecommendationKind.RECLAIM, RecommendationKind.FEWER_CARDS])
def test_pods_that_nobody_needs_go_by_scale(kind: RecommendationKind) -> None:
    plan = a_plan({0: [whole("a-0")]}, [[a_recommendation("x", kind, ["a-1"], OWNERS[:1], 1)]])
    told = values(TIME_SLICING, plan)
    assert told["Deployment/a spec.replicas"] == "1"
    assert told["Pod/a-1 metadata.annotations[controller.kubernetes.io/pod-deletion-cost]"] == "-1000"


def test_whole_card_on_another_node_is_a_seat_on_its_owner() -> None:
    plan = a_plan(
        {4: [whole("a-0")], 5: [whole("a-1")]},
        [[a_recommendation("x", RecommendationKind.REHOME, ["a-0", "a-1"], OWNERS[:1], 0)]],
    )
    told = values(TIME_SLICING, plan)
    assert nodes_of_seats(told["Deployment/a metadata.annotations[gputide.io/seats]"]) == ["node-1", "node-1"]
    assert not any(".resources." in name for name in told)


def test_requests_that_a_template_says_go_with_its_limits() -> None:
    objects = [entry for entry in standard_objects() if entry["metadata"]["name"] != "a"]
    owner = an_owner("a")
    owner["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"] = {"nvidia.com/gpu": "1", "cpu": "2"}
    told = values(TIME_SLICING, shared_node(), [*objects, owner])
    assert told[f"Deployment/a {CONTAINER}.requests[nvidia.com/gpu]"] is None
    assert told[f"Deployment/a {CONTAINER}.requests[nvidia.com/gpu.shared]"] == "1"
    assert f"Deployment/b {CONTAINER}.requests[nvidia.com/gpu.shared]" not in told


@pytest.mark.parametrize("count", ["1000000", "0.5", "-1", "1e9", "many"])
def test_count_that_no_node_has_is_doubted_and_stops_nobody(count: str) -> None:
    objects = [*standard_objects(), a_pod("evil", 0, "node-1", limits={"nvidia.com/gpu": count})]
    assert list(seen(TIME_SLICING, objects).doubts) == ["team/evil-0"]


@pytest.mark.parametrize("text", ["- a", "a: [", "7"])
def test_configuration_that_is_no_map_is_not_written_over(text: str) -> None:
    with pytest.raises(Corrupt, match="device plugin's configuration"):
        sharing_config(text, "mps", 2)


def test_cards_are_known_by_number_where_labels_say_so() -> None:
    snapshot = seen(TIME_SLICING)
    assert sorted(snapshot.cards) == [f"node-{node}/nvidia.com/gpu/{n}" for node in range(2) for n in range(4)]
    card = snapshot.cards["node-0/nvidia.com/gpu/0"]
    assert (card.framebuffer_mib, card.slices_max) == (CARD_BYTES // 2**20, 1)
    bare = a_node("bare")
    bare["metadata"]["labels"] = {"nvidia.com/gpu.count": "many"}
    assert TIME_SLICING.dialect.cards_of_node(bare) == ()


@pytest.mark.parametrize(
    ("backend", "word"),
    [(TIME_SLICING, "nothing keeps a replica within its framebuffer"), (MPS, "limits are those of a process")],
)
def test_what_a_slice_does_not_hold_is_told(backend: NvidiaSharingBackend, word: str) -> None:
    slicing = a_recommendation(
        "s", RecommendationKind.SLICE, PODS, OWNERS, 2, (Need.FRAMEBUFFER_LIMIT, Need.CORE_LIMIT)
    )
    plan = shared_node()
    stages = a_plan({}, [[slicing]])
    told = backend.render(
        replace(plan, recommendations=stages.recommendations, stages=stages.stages), 1, seen(backend)
    ).warnings
    assert any(word in warning for warning in told)


@pytest.mark.parametrize(
    "kind", [RecommendationKind.COLOCATE, RecommendationKind.OVERSUBSCRIBE, RecommendationKind.MIG]
)
def test_advice_that_replicas_cannot_carry_out_is_refused_by_the_record(kind: RecommendationKind) -> None:
    plan = shared_node()
    stages = a_plan({}, [[a_recommendation("x", kind, PODS, OWNERS, 2)]])
    fact = dict(TIME_SLICING.capabilities.refuses)[kind.value]
    with pytest.raises(Refused, match=fact):
        TIME_SLICING.render(
            replace(plan, recommendations=stages.recommendations, stages=stages.stages), 1, seen(TIME_SLICING)
        )


def test_arguments_of_a_server_are_lowered_once(cluster: StandingCluster) -> None:
    """A stage is rendered again while its pods are not yet made anew; what it wrote is not counted from."""
    field = "spec.template.spec.containers[server].args[1]"
    owner = an_owner("a")
    owner["spec"]["template"]["spec"]["containers"][0]["args"] = ["--model=M", "--gpu-memory-utilization=0.9"]
    cluster.put(owner)
    sees = {"seen_before_bytes": CARD_BYTES, "seen_bytes": CARD_BYTES, "taken_bytes": CARD_BYTES}
    cut = PoolCut(server="vllm", **sees, pool_bytes=GIB, cut_bytes=HALF)
    cards = tuple(
        replace(card, slices=tuple(replace(part, pool_cut=cut if part.pod[0] == "a" else None) for part in card.slices))
        for card in shared_node().placement
    )
    plan = replace(shared_node(), placement=cards)
    changes = [
        entry
        for entry in TIME_SLICING.render(plan, 1, take_snapshot(cluster, TIME_SLICING.dialect)).changes
        if (entry.kind, entry.name) == ("Deployment", "a")
    ]
    assert [entry.new for entry in changes if entry.field == field] == ["--gpu-memory-utilization=0.4"]
    for entry in changes:
        set_field(owner, entry.field, entry.new)
    again = TIME_SLICING.render(plan, 1, take_snapshot(cluster, TIME_SLICING.dialect)).changes
    assert [entry.field for entry in again if ".args" in entry.field] == []
