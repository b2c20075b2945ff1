"""KAI: shares of cards as annotations, whose pods it places, and what its books can't hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from enforcer.backend import RenderedStage
from enforcer.backends.kai import KaiBackend, KaiNvFractionsBackend
from enforcer.manifest import Manifest, set_field
from enforcer.snapshot import take_snapshot
from fleet.decisions import Need, PlacedSlice, Plan, RecommendationKind
from fleet.errors import Refused
from tests.contracts.gpu_backend import BackendContract
from tests.enforcer.builders import NOW, a_plan, a_recommendation, whole
from tests.enforcer.builders import a_slice as any_slice
from tests.enforcer.plugin_cluster import StandingCluster, a_node, a_pod, an_owner, nodes_of_seats

BACKEND = KaiBackend(NOW)
PODS = ["a-0", "a-1", "b-0", "b-1"]
OWNERS = ["Deployment/a", "Deployment/b"]
QUEUE = {"labels": {"kai.scheduler/queue": "team"}}
KAI: dict[str, Any] = {"schedulerName": "kai-scheduler"}
HALF_MIB = "12250"
"""Half of what KAI shares of a card of 24576 MiB: it counts 24500."""
HALF = int(HALF_MIB) * 2**20


def a_slice(pod: str, **how: Any) -> PlacedSlice:
    return any_slice(pod, **{"framebuffer_bytes": HALF, "compute_ratio": None, **how})


def kai_pod(workload: str, number: int, node: str | None, *, annotations: Mapping[str, str] | None = None) -> Manifest:
    pod = a_pod(workload, number, node, annotations=annotations, limits={} if annotations else None)
    pod["spec"]["schedulerName"] = "kai-scheduler"
    return pod


def objects() -> list[Manifest]:
    return [
        a_node("node-0"),
        a_node("node-1"),
        *(an_owner(name, template=QUEUE, spec=KAI) for name in "ab"),
        *(kai_pod(pod[0], int(pod[2]), "node-0") for pod in PODS),
    ]


def halves() -> Plan:
    return a_plan(
        {0: [a_slice("a-0"), a_slice("b-0")], 1: [a_slice("a-1"), a_slice("b-1")]},
        [[a_recommendation("slice-1", RecommendationKind.SLICE, PODS, OWNERS, 2, (Need.FRAMEBUFFER_LIMIT,))]],
    )


@pytest.fixture
def cluster() -> StandingCluster:
    return StandingCluster(objects())


@pytest.fixture
def backend() -> KaiBackend:
    return BACKEND


@pytest.fixture
def plan() -> Plan:
    return halves()


class TestKai(BackendContract):
    pass


CAPPED = KaiNvFractionsBackend(NOW)
REQUEST, LIMIT = (f"nvidia.com/container.server.gpu-memory.{bound}" for bound in ("request", "limit"))


def ready_objects(ready: str = "True", condition: str = "gpu-fractioning.nvidia.com/Ready") -> list[Manifest]:
    found = objects()
    for node in found[:2]:
        node["status"]["conditions"] = [{"type": condition, "status": ready}]
    return found


class TestKaiNvFractions(BackendContract):
    @pytest.fixture
    def cluster(self) -> StandingCluster:
        return StandingCluster(ready_objects())

    @pytest.fixture
    def backend(self) -> KaiBackend:
        return CAPPED


def rendered(plan: Plan, given: Sequence[Manifest] | None = None) -> RenderedStage:
    cluster = StandingCluster(objects() if given is None else given)
    return BACKEND.render(plan, 1, take_snapshot(cluster, BACKEND.dialect))


def told(stage: RenderedStage) -> dict[str, str | None]:
    return {f"{change.kind}/{change.name} {change.field}": change.new for change in stage.changes}


def test_slice_is_an_annotation_in_mib_in_place_of_the_card() -> None:
    stage = rendered(halves())
    fields = told(stage)
    for name in "ab":
        template = f"Deployment/{name} spec.template"
        assert fields[f"{template}.metadata.annotations[gpu-memory]"] == HALF_MIB
        assert fields[f"{template}.spec.containers[server].resources.limits[nvidia.com/gpu]"] is None
        assert set(nodes_of_seats(fields[f"Deployment/{name} metadata.annotations[gputide.io/seats]"])) == {"node-0"}
    assert not any(name.startswith("Node/") for name in fields)
    assert stage.node_steps == ()
    assert any("nothing stops a process from taking more" in warning for warning in stage.warnings)


def test_stage_that_is_applied_renders_empty(cluster: StandingCluster) -> None:
    for change in rendered(halves()).changes:
        found = cluster.get(change.kind, change.namespace, change.name)
        assert found is not None
        set_field(found, change.field, change.new)
    for pod in PODS:
        cluster.put(kai_pod(pod[0], int(pod[2]), "node-0", annotations={"gpu-memory": HALF_MIB}))
    again = BACKEND.render(halves(), 1, take_snapshot(cluster, BACKEND.dialect))
    assert (again.moves, again.changes) == ((), ())


def test_fraction_becomes_an_amount_and_an_amount_a_whole_card() -> None:
    given = [entry for entry in objects() if entry["metadata"]["name"][0] != "a"]
    template = {**QUEUE, "annotations": {"gpu-fraction": "0.5"}}
    given += [an_owner("a", template=template, spec=KAI, limits={})]
    given += [kai_pod("a", number, "node-0", annotations={"gpu-fraction": "0.5"}) for number in range(2)]
    fields = told(rendered(halves(), given))
    assert fields["Deployment/a spec.template.metadata.annotations[gpu-fraction]"] is None
    assert fields["Deployment/a spec.template.metadata.annotations[gpu-memory]"] == HALF_MIB
    assert not any(".resources." in name for name in fields if name.startswith("Deployment/a"))


@pytest.mark.parametrize("kind", [RecommendationKind.RECLAIM, RecommendationKind.FEWER_CARDS])
def test_pods_that_nobody_needs_go_by_scale(kind: RecommendationKind) -> None:
    plan = a_plan({0: [whole("a-0")]}, [[a_recommendation("x", kind, ["a-1"], OWNERS[:1], 1)]])
    fields = told(rendered(plan))
    assert fields["Deployment/a spec.replicas"] == "1"


def test_whole_cards_elsewhere_are_seats_on_their_owner() -> None:
    plan = a_plan(
        {4: [whole("a-0")], 5: [whole("a-1")]},
        [[a_recommendation("x", RecommendationKind.REHOME, ["a-0", "a-1"], OWNERS[:1], 0)]],
    )
    fields = told(rendered(plan))
    assert nodes_of_seats(fields["Deployment/a metadata.annotations[gputide.io/seats]"]) == ["node-1", "node-1"]
    assert not any(".resources." in name or "[gpu-" in name for name in fields)


@pytest.mark.parametrize(
    ("owner", "fact"),
    [
        (an_owner("a", template=QUEUE), "schedulerName=None, and KAI shares cards among pods of kai-scheduler only"),
        (an_owner("a", spec=KAI), r"has no label kai.scheduler/queue"),
    ],
)
def test_workload_that_kai_does_not_place_is_refused(owner: Manifest, fact: str) -> None:
    given = [entry for entry in objects() if (entry["kind"], entry["metadata"]["name"]) != ("Deployment", "a")]
    with pytest.raises(Refused, match=fact):
        rendered(halves(), [*given, owner])


@pytest.mark.parametrize(("registered", "shared"), [(24_000, 24_000), (24_499, 24_400), (24_576, 24_500)])
def test_more_than_kai_shares_of_a_card_is_refused(registered: int, shared: int) -> None:
    """Its scheduler floors a card's memory to hundreds of MiB, and a slice that does not fit waits for good."""
    given = [a_node("node-0", mib=registered), *objects()[1:]]
    mib = shared // 2 + 1
    plan = a_plan(
        {0: [a_slice("a-0", framebuffer_bytes=mib * 2**20), a_slice("b-0", framebuffer_bytes=mib * 2**20)]},
        [[a_recommendation("x", RecommendationKind.SLICE, ["a-0", "b-0"], OWNERS, 1)]],
    )
    fact = rf"{2 * mib} MiB on card .*of each card of node node-0 the scheduler shares {shared} MiB \(.*100 MiB\)"
    with pytest.raises(Refused, match=fact):
        rendered(plan, given)


@pytest.mark.parametrize(
    "key", ["nvidia.com/container.server.gpu-compute.mode", "kai.scheduler/gpu-compute-sharing-mode"]
)
def test_workloads_of_different_compute_modes_share_no_card(key: str) -> None:
    def given(**modes: str) -> StandingCluster:
        cluster = StandingCluster(objects())
        for name, mode in modes.items():
            owner = cluster.get("Deployment", "team", name)
            assert owner is not None
            set_field(owner, f"spec.template.metadata.annotations[{key}]", mode)
            cluster.put(owner)
        return cluster

    apart = r"Deployment/a is of sm-sharing and .*Deployment/b is of time-slicing, and KAI keeps"
    with pytest.raises(Refused, match=apart):
        BACKEND.render(halves(), 1, take_snapshot(given(a="sm-sharing"), BACKEND.dialect))
    alike = given(a="sm-sharing", b="sm-sharing")
    assert BACKEND.render(halves(), 1, take_snapshot(alike, BACKEND.dialect)).moves


def test_node_that_does_not_say_its_framebuffer_is_refused() -> None:
    node = a_node("node-0")
    del node["metadata"]["labels"]["nvidia.com/gpu.memory"]
    with pytest.raises(Refused, match=r"no label nvidia.com/gpu.memory, by which KAI turns MiB into a fraction"):
        rendered(halves(), [node, *objects()[1:]])


def test_replicas_with_different_shares_are_refused() -> None:
    plan = a_plan(
        {0: [a_slice("a-0"), a_slice("b-0")], 1: [a_slice("a-1", framebuffer_bytes=HALF // 2), a_slice("b-1")]},
        [[a_recommendation("slice-1", RecommendationKind.SLICE, PODS, OWNERS, 2)]],
    )
    with pytest.raises(Refused, match="2 different shares in one template"):
        rendered(plan)


def test_stage_says_what_kai_chooses_where_several_cards_of_a_node_are_shared() -> None:
    said = [warning for warning in rendered(halves()).warnings if "chooses" in warning]
    assert said == [
        "the scheduler chooses which of the 4 slices of node node-0 share a card: any 2 of them, on 2 cards"
    ]


def test_stage_says_nothing_of_a_choice_where_one_card_of_a_node_is_shared() -> None:
    plan = a_plan(
        {0: [a_slice("a-0"), a_slice("b-0")], 1: [whole("a-1")], 2: [whole("b-1")]},
        [[a_recommendation("slice-1", RecommendationKind.SLICE, ["a-0", "b-0"], OWNERS, 0)]],
    )
    pods = [entry for entry in objects() if entry["metadata"]["name"] not in ("a-1", "b-1")]
    assert not any("scheduler chooses" in warning for warning in rendered(plan, pods).warnings)


def test_stage_says_that_slices_may_need_other_cards_than_planned_where_their_sizes_leave_it_open() -> None:
    small = HALF // 2
    plan = a_plan(
        {0: [a_slice("a-0"), a_slice("b-0", framebuffer_bytes=small)],
         1: [a_slice("a-1"), a_slice("b-1", framebuffer_bytes=small)]},
        [[a_recommendation("slice-1", RecommendationKind.SLICE, PODS, OWNERS, 2)]],
    )  # fmt: skip
    assert any("may use other than the plan's 2 cards" in warning for warning in rendered(plan).warnings)


@pytest.mark.parametrize("kind", ["colocate", "oversubscribe", "mig"])
def test_advice_that_kai_cannot_carry_out_is_refused_by_its_record(kind: str) -> None:
    plan = a_plan(
        {0: [a_slice("a-0"), a_slice("b-0")], 1: [a_slice("a-1"), a_slice("b-1")]},
        [[a_recommendation("x", RecommendationKind(kind), PODS, OWNERS, 2)]],
    )
    with pytest.raises(Refused, match=dict(BACKEND.capabilities.refuses)[kind]):
        rendered(plan)


@pytest.mark.parametrize(
    "annotations",
    [{"gpu-memory": "all"}, {"gpu-fraction": "7"}, {"gpu-memory": "1", "gpu-fraction-num-devices": "100000"},
     {"gpu-memory": "1", "gpu-fraction-container-name": "$(reboot)"}],
)  # fmt: skip
def test_annotation_that_is_not_the_grammar_is_doubted_and_stops_nobody(annotations: dict[str, str]) -> None:
    given = [*objects(), kai_pod("evil", 0, "node-1", annotations=annotations)]
    snapshot = take_snapshot(StandingCluster(given), BACKEND.dialect)
    assert list(snapshot.doubts) == ["team/evil-0"]
    assert BACKEND.render(halves(), 1, snapshot).changes


def test_notebook_is_left_its_card_for_its_pods_take_no_annotations() -> None:
    given = [*objects()[:2], an_owner("book", kind="Notebook", template=QUEUE, spec=KAI)]
    pod = kai_pod("book", 0, "node-0")
    pod["metadata"]["ownerReferences"] = [{"kind": "Notebook", "name": "book"}]
    shares = {0: [a_slice("book-0", kind="Notebook")]}
    advice = a_recommendation("slice-1", RecommendationKind.SLICE, ["book-0"], ["Notebook/book"], 0)
    with pytest.raises(Refused, match="Notebook book gpu-memory: a Notebook's pods take no annotations"):
        rendered(a_plan(shares, [[advice]]), [*given, pod])


def capped(plan: Plan, given: Sequence[Manifest]) -> RenderedStage:
    return CAPPED.render(plan, 1, take_snapshot(StandingCluster(given), CAPPED.dialect))


@pytest.mark.parametrize("condition", ["gpu-fractioning.nvidia.com/Ready", "gpu-sharing.nvidia.com/Ready"])
def test_share_that_the_driver_holds_is_a_request_and_a_limit_of_the_container(condition: str) -> None:
    stage = capped(halves(), ready_objects(condition=condition))
    fields = told(stage)
    for name in "ab":
        annotations = f"Deployment/{name} spec.template.metadata.annotations"
        assert fields[f"{annotations}[{REQUEST}]"] == fields[f"{annotations}[{LIMIT}]"] == f"{HALF_MIB}Mi"
        assert f"{annotations}[gpu-memory]" not in fields
    assert any("the driver ends a container's allocations at its limit" in warning for warning in stage.warnings)


def test_share_that_was_only_counted_becomes_one_that_is_held_and_back() -> None:
    counted = {**QUEUE, "annotations": {"gpu-memory": "12250", "gpu-fraction-container-name": "server"}}
    held = {**QUEUE, "annotations": {REQUEST: f"{HALF_MIB}Mi", LIMIT: "20Gi"}}
    for template, backend, gone, written in (
        (counted, CAPPED, ["gpu-memory", "gpu-fraction-container-name"], {REQUEST: "12250Mi", LIMIT: "12250Mi"}),
        (held, BACKEND, [REQUEST, LIMIT], {"gpu-memory": HALF_MIB}),
    ):
        given = [entry for entry in ready_objects() if entry["metadata"]["name"][0] != "a"]
        given += [an_owner("a", template=template, spec=KAI, limits={})]
        given += [kai_pod("a", number, "node-0", annotations=template["annotations"]) for number in range(2)]
        stage = backend.render(halves(), 1, take_snapshot(StandingCluster(given), backend.dialect))
        fields = told(stage)
        for key, value in {**dict.fromkeys(gone), **written}.items():
            assert fields[f"Deployment/a spec.template.metadata.annotations[{key}]"] == value


def test_stage_of_held_shares_that_is_applied_renders_empty() -> None:
    cluster = StandingCluster(ready_objects())
    for change in capped(halves(), ready_objects()).changes:
        found = cluster.get(change.kind, change.namespace, change.name)
        assert found is not None
        set_field(found, change.field, change.new)
    for pod in PODS:
        cluster.put(kai_pod(pod[0], int(pod[2]), "node-0", annotations={REQUEST: f"{HALF_MIB}Mi"}))
    again = CAPPED.render(halves(), 1, take_snapshot(cluster, CAPPED.dialect))
    assert (again.moves, again.changes) == ((), ())


@pytest.mark.parametrize("given", [objects(), ready_objects("False"), ready_objects("Unknown")])
def test_node_that_does_not_hold_limits_yet_is_refused(given: list[Manifest]) -> None:
    with pytest.raises(Refused, match=r"node-0: its condition gpu-fractioning.nvidia.com/Ready is not True"):
        capped(halves(), given)
