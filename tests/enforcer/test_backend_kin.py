"""HAMi and its kin: every kind of advice as a golden list of changes, and what none of them may do."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enforcer.admission import admit, seats_for
from enforcer.backend import Backend, RenderedStage
from enforcer.record.fingerprint import fingerprint_of
from enforcer.snapshot import Snapshot, take_snapshot
from fleet.capabilities.register import CorePolicy, Oversubscription
from fleet.decisions import Need, Plan, RecommendationKind
from fleet.errors import Refused
from fleet.inventory import Priority
from tests.contracts.gpu_backend import BackendContract
from tests.enforcer.builders import (
    CARD_BYTES,
    HALF,
    a_plan,
    a_recommendation,
    a_slice,
    card_id,
    whole,
)
from tests.enforcer.kin_cluster import KINS, Kin, a_kin_cluster, carried_out
from tests.enforcer.plugin_cluster import StandingCluster

GOLDEN = Path(__file__).parent / "golden"
PAIR = ["Deployment/a", "Deployment/b"]
HARD = CorePolicy.HARD


def a_share(pod: str, **how: Any) -> Any:
    """Half a card with a hard limit: what every kin can grant on the nodes as they stand."""
    return a_slice(pod, **{"core_policy": HARD, "compute_ratio": 0.4, **how})


def pair_plan(kind: RecommendationKind, *slices: Any, needs: tuple[Need, ...] = ()) -> Plan:
    """Pods a-0, a-1, b-0 and b-1 in pairs on cards 0 and 1."""
    pods = ["a-0", "b-0", "a-1", "b-1"]
    return a_plan({0: slices[:2], 1: slices[2:]}, [[a_recommendation("x", kind, pods, PAIR, 2, needs)]])


def slice_() -> Plan:
    pods = ["a-0", "b-0", "a-1", "b-1"]
    return pair_plan(RecommendationKind.SLICE, *(a_share(pod) for pod in pods), needs=(Need.FRAMEBUFFER_LIMIT,))


def colocate() -> Plan:
    """Online service a beside offline service b, which gives way where the backend knows priority."""
    low = {"priority": Priority.LOW}
    parts = [a_share("a-0"), a_share("b-0", **low), a_share("a-1"), a_share("b-1", **low)]
    return pair_plan(RecommendationKind.COLOCATE, *parts)


def offpeak_pair() -> Plan:
    return pair_plan(RecommendationKind.OFFPEAK_PAIR, *(a_share(pod) for pod in ("a-0", "b-0", "a-1", "b-1")))


def oversubscribe() -> Plan:
    more = {"framebuffer_bytes": HALF + 2**30, "oversubscribed": True}
    parts = [a_share(pod, **more) for pod in ("a-0", "b-0", "a-1", "b-1")]
    return pair_plan(RecommendationKind.OVERSUBSCRIBE, *parts, needs=(Need.OVERSUBSCRIPTION,))


def oversubscribed_compute() -> Plan:
    """Framebuffer fits the card together; what is promised twice is compute."""
    return pair_plan(RecommendationKind.OVERSUBSCRIBE, *(a_share(pod) for pod in ("a-0", "b-0", "a-1", "b-1")))


def reclaim() -> Plan:
    names = {"a": "Deployment", "book": "Notebook", "train": "Job"}
    return a_plan(
        {},
        [[a_recommendation("x", RecommendationKind.RECLAIM, ["a-0", "a-1", "book-0", "train-0"],
                           [f"{kind}/{name}" for name, kind in names.items()], 4)]],
    )  # fmt: skip


def fewer_cards() -> Plan:
    return a_plan(
        {0: [whole("a-0")]},
        [[a_recommendation("x", RecommendationKind.FEWER_CARDS, ["a-1"], ["Deployment/a"], 1)]],
    )


def rehome() -> Plan:
    """Service c leaves node-1 for the cards that a leaves."""
    return a_plan(
        {0: [whole("c-0")], 1: [whole("c-1")]},
        [
            [a_recommendation("gone", RecommendationKind.RECLAIM, ["a-0", "a-1"], ["Deployment/a"], 2)],
            [a_recommendation("x", RecommendationKind.REHOME, ["c-0", "c-1"], ["Deployment/c"], 0)],
        ],
    )


PLANS: tuple[Callable[[], Plan], ...] = (
    slice_,
    colocate,
    offpeak_pair,
    oversubscribe,
    oversubscribed_compute,
    reclaim,
    fewer_cards,
    rehome,
)


def test_replica_alone_takes_no_priority_from_its_sibling_beside_low_priority() -> None:
    beside = [a_share("a-1"), a_share("b-0", priority=Priority.LOW)]
    item = a_recommendation("x", RecommendationKind.COLOCATE, ["a-0", "a-1", "b-0"], PAIR, 1)
    plan = a_plan({0: [a_share("a-0")], 1: beside, 2: [whole("b-1", priority=Priority.LOW)]}, [[item]])
    volcano = next(kin for kin in KINS if kin.name == "volcano")
    rendered = volcano.backend.render(plan, 1, seen(volcano))
    levels = {(change.name, str(change.new)) for change in rendered.changes if "CUDA_TASK_PRIORITY" in change.field}
    assert levels == {("a", "0"), ("b", "1")}
    assert {part.priority for move in rendered.moves if move.pod.startswith("a-") for part in move.new} == {"0"}


def test_replica_of_a_ranked_service_takes_no_priority_from_an_equal_beside_it() -> None:
    low = a_share("b-0", priority=Priority.LOW)
    pods = ["a-0", "a-1", "b-0", "c-0"]
    item = a_recommendation("x", RecommendationKind.COLOCATE, pods, [*PAIR, "Deployment/c"], 1)
    cards = {0: [a_share("a-0"), a_share("c-0")], 1: [a_share("a-1"), low], 2: [whole("c-1")]}
    volcano = next(kin for kin in KINS if kin.name == "volcano")
    moves = volcano.backend.render(a_plan(cards, [[item]]), 1, seen(volcano)).moves
    assert {part.priority for move in moves if move.pod == "c-0" for part in move.new} == {"0"}


def kind_of(make: Callable[[], Plan]) -> str:
    return make.__name__.rstrip("_")


CELLS = [
    pytest.param(kin, make, id=f"{kin.name}-{kind_of(make)}")
    for kin in KINS
    for make in PLANS
    if kind_of(make) not in dict(kin.backend.capabilities.refuses)
    and (make is not oversubscribe or kin.backend.capabilities.oversubscription is not Oversubscription.NONE)
]


def seen(kin: Kin, cluster: StandingCluster | None = None) -> Snapshot:
    return take_snapshot(cluster or a_kin_cluster(kin), kin.backend.dialect)


def told(plan: Plan, rendered: list[RenderedStage]) -> str:
    """Rendered stages as text, one line a field."""
    lines = []
    for stage in rendered:
        lines.append(f"stage {stage.stage}")
        lines += [f"  note: {warning}" for warning in stage.warnings]
        lines += [
            f"  {change.kind} {change.namespace}/{change.name} {change.field}: {change.old} -> {change.new}"
            for change in stage.changes
        ]
        lines += [f"  node {step.node}: restart {', '.join(name for _, name in step.restarts)}"
                  for step in stage.node_steps]  # fmt: skip
        for move in stage.moves:
            places = [f"{part.card or part.node} {part.framebuffer_mib} MiB {part.core_percent} % {part.priority or ''}"
                      for part in move.new]  # fmt: skip
            lines.append(f"  {move.pod}: {', '.join(places).strip() or 'gone'}")
    return "\n".join(lines).replace(plan.plan_id, "PLAN") + "\n"


@pytest.mark.parametrize(("kin", "make"), CELLS)
def test_rendered_fields_are_as_reviewed(kin: Kin, make: Callable[[], Plan]) -> None:
    plan, cluster = make(), a_kin_cluster(kin)
    rendered = []
    for entry in plan.stages:
        stage = kin.backend.render(plan, entry.stage, seen(kin, cluster))
        rendered.append(stage)
        carried_out(kin, cluster, stage.changes, stage.moves)
    text = told(plan, rendered)
    file = GOLDEN / kin.name / f"{kind_of(make)}.txt"
    if os.environ.get("WRITE_GOLDEN"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


@pytest.mark.parametrize(("kin", "make"), [cell for cell in CELLS if cell.values[1] in (slice_, colocate, rehome)])
def test_stage_that_is_carried_out_renders_nothing_more(kin: Kin, make: Callable[[], Plan]) -> None:
    plan, cluster = make(), a_kin_cluster(kin)
    for entry in plan.stages:
        stage = kin.backend.render(plan, entry.stage, seen(kin, cluster))
        assert stage.moves
        carried_out(kin, cluster, stage.changes, stage.moves)
    again = kin.backend.render(plan, plan.stages[-1].stage, seen(kin, cluster))
    assert (again.moves, again.changes) == ((), ())


@pytest.mark.parametrize(("kin", "make"), CELLS)
def test_every_field_can_be_taken_back(kin: Kin, make: Callable[[], Plan]) -> None:
    """The values before stand in one annotation of each owner, the oldest ones of all stages."""
    plan, cluster = make(), a_kin_cluster(kin)
    before = {change_key: dict(owner["metadata"]) for change_key, owner in _owners(cluster).items()}
    assert before
    for entry in plan.stages:
        stage = kin.backend.render(plan, entry.stage, seen(kin, cluster))
        for change in stage.changes:
            if change.kind in ("Pod", "ConfigMap", "Node") or "gputide.io/previous" in change.field:
                continue
            kept = next(
                other.new for other in stage.changes
                if other.name == change.name and other.field == "metadata.annotations[gputide.io/previous]"
            )  # fmt: skip
            assert json.loads(kept or "{}")[change.field] == change.old
        carried_out(kin, cluster, stage.changes, stage.moves)


def _owners(cluster: StandingCluster) -> dict[tuple[str, str], Any]:
    kinds = ("Deployment", "Notebook", "Job")
    return {(kind, owner["metadata"]["name"]): owner for kind in kinds for owner in cluster.list_objects(kind)}


@pytest.mark.parametrize("kin", KINS, ids=lambda kin: kin.name)
def test_cards_that_nobody_registers_are_refused(kin: Kin) -> None:
    plan = a_plan(
        {40: [a_share("a-0")], 1: [whole("a-1")]},
        [[a_recommendation("x", RecommendationKind.SLICE, ["a-0"], ["Deployment/a"], 1)]],
    )
    with pytest.raises(Refused, match=r"no node registers it any more|node node-10: it is gone"):
        kin.backend.render(plan, 1, seen(kin))


@pytest.mark.parametrize("kin", KINS, ids=lambda kin: kin.name)
def test_hard_isolation_is_kept_by_everyone(kin: Kin) -> None:
    cluster = a_kin_cluster(kin)
    owner = cluster.get("Deployment", "team", "b")
    assert owner is not None
    owner["metadata"]["annotations"] = {"gputide.io/isolation": "hard"}
    with pytest.raises(Refused, match="isolation=hard"):
        kin.backend.render(slice_(), 1, seen(kin, cluster))


@pytest.mark.parametrize("kin", KINS, ids=lambda kin: kin.name)
def test_neighbours_of_one_namespace_that_all_want_hard_isolation_may_share(kin: Kin) -> None:
    cluster = a_kin_cluster(kin)
    for name in "ab":
        owner = cluster.get("Deployment", "team", name)
        assert owner is not None
        owner["metadata"]["annotations"] = {"gputide.io/isolation": "hard"}
    assert kin.backend.render(slice_(), 1, seen(kin, cluster)).moves


@pytest.mark.parametrize("kin", KINS, ids=lambda kin: kin.name)
def test_lying_pod_stops_nobody_but_itself(kin: Kin) -> None:
    """A tenant who writes nonsense, or another node's card, on a pod of its own does not stop the others."""
    cluster = a_kin_cluster(kin)
    pod = cluster.get("Pod", "team", "c-0")
    assert pod is not None
    for key in kin.pod_annotations([]):
        pod["metadata"]["annotations"][key] = "GPU-;;;,,,"
    pod["spec"]["containers"][0]["resources"]["limits"]["vke.volcengine.com/mgpu-core"] = "lots"
    snapshot = seen(kin, cluster)
    if kin.name == "mgpu" or kin.pod_annotations([]):
        assert list(snapshot.doubts) == ["team/c-0"]
    assert kin.backend.render(slice_(), 1, snapshot).moves
    with pytest.raises(Refused, match="cannot move team/c-0"):
        kin.backend.render(rehome(), 2, snapshot)


@pytest.mark.parametrize(
    ("kin", "kind", "fact"),
    [
        pytest.param(kin, kind, fact, id=f"{kin.name}-{kind}")
        for kin in KINS
        for kind, fact in kin.backend.capabilities.refuses
    ],
)
def test_refused_kinds_name_the_fact_of_the_record(kin: Kin, kind: str, fact: str) -> None:
    plan = slice_()
    advice = replace(plan.recommendations[0], kind=RecommendationKind(kind))
    with pytest.raises(Refused) as refused:
        kin.backend.render(replace(plan, recommendations=(advice,)), 1, seen(kin))
    assert fact in str(refused.value)
    assert kin.name in str(refused.value)


@pytest.mark.parametrize("kin", KINS, ids=lambda kin: kin.name)
@pytest.mark.parametrize("need", list(Need))
def test_needs_beyond_the_record_are_refused(kin: Kin, need: Need) -> None:
    plan = slice_()
    advice = replace(plan.recommendations[0], needs=(need,))
    asked = replace(plan, recommendations=(advice,))
    record, is_hami = kin.backend.capabilities, kin.name in ("hami", "effectivegpu", "volcano")
    holds = {
        Need.FRAMEBUFFER_LIMIT: True,
        Need.CORE_LIMIT: True,
        Need.PRIORITY: record.priority_levels == 2,
        Need.AGENT: is_hami,
        Need.STRICT_AGENT: is_hami,
        Need.GRAPH_PAUSE: is_hami,
        Need.PROBED_GATE: is_hami,
        Need.OVERSUBSCRIPTION: kin.name in ("hami", "vgpu_manager"),
        Need.SPILL: kin.name == "vgpu_manager",
    }
    if holds[need]:
        assert kin.backend.render(asked, 1, seen(kin)).moves
    else:
        with pytest.raises(Refused, match=f"with {kin.name}: it needs"):
            kin.backend.render(asked, 1, seen(kin))


class KinContract(BackendContract):
    """The claims of every backend, on a kin's cluster."""

    kin: Kin

    @pytest.fixture
    def backend(self) -> Backend:
        return self.kin.backend

    @pytest.fixture
    def cluster(self) -> StandingCluster:
        return a_kin_cluster(self.kin)

    @pytest.fixture
    def plan(self) -> Plan:
        return slice_()


class TestHami(KinContract):
    kin = KINS[0]


class TestEffectiveGpu(KinContract):
    kin = KINS[1]


class TestVolcano(KinContract):
    kin = KINS[2]


class TestMgpu(KinContract):
    kin = KINS[3]


class TestVgpuManager(KinContract):
    kin = KINS[4]


@pytest.mark.parametrize("kin", [kin for kin in KINS if kin.name != "mgpu"], ids=lambda kin: kin.name)
def test_admission_narrows_a_pod_in_the_words_of_its_backend(kin: Kin) -> None:
    """Replicas with different grants: each new pod is given its own card and its own framebuffer."""
    parts = [a_share("a-0"), a_share("b-0"), a_share("a-1", framebuffer_bytes=2**32), a_share("b-1")]
    plan, cluster = pair_plan(RecommendationKind.SLICE, *parts), a_kin_cluster(kin)
    stage = kin.backend.render(plan, 1, seen(kin, cluster))
    carried_out(kin, cluster, stage.changes, ())
    owner = _owners(cluster)["Deployment", "a"]
    template = owner["spec"]["template"]
    given = {}
    for name in ("a-0", "a-1"):
        pod = {"metadata": {**template["metadata"], "name": name, "namespace": "team"}, "spec": template["spec"]}
        admitted = admit(pod, seats_for(pod, owner), [], lambda seat: None)
        annotations = admitted["metadata"]["annotations"]
        limits = admitted["spec"]["containers"][0]["resources"]["limits"]
        given[name] = (
            next(value for key, value in annotations.items() if key.endswith(("-gpuuuid", "-gpu-uuid"))),
            next(value for key, value in limits.items() if key.endswith(("gpumem", "vgpu-memory"))),
        )
    assert given == {"a-0": (card_id(0), "12288"), "a-1": (card_id(1), "4096")}


@pytest.mark.parametrize("kin", KINS, ids=lambda kin: kin.name)
def test_fields_of_a_stage_are_no_change_of_the_plans_inputs(kin: Kin) -> None:
    """The guard compares templates before a later stage; what the plan itself wrote is not held against it."""
    plan, cluster = slice_(), a_kin_cluster(kin)
    before = fingerprint_of(seen(kin, cluster))
    stage = kin.backend.render(plan, 1, seen(kin, cluster))
    carried_out(kin, cluster, stage.changes, stage.moves)
    after = fingerprint_of(seen(kin, cluster))
    for workload, found in before.workloads.items():
        assert after.workloads[workload].template == found.template, workload
    owner = _owners(cluster)["Deployment", "a"]
    owner["spec"]["template"]["spec"]["containers"][0]["image"] = "another"
    assert fingerprint_of(seen(kin, cluster)).workloads != after.workloads


def notebook_beside() -> Plan:
    """The notebook and pod c-0 together on card 4."""
    low = {"priority": Priority.LOW}
    return a_plan(
        {4: [a_share("c-0"), a_share("book-0", kind="Notebook", **low)], 5: [whole("c-1")]},
        [[a_recommendation("x", RecommendationKind.COLOCATE, ["book-0"], ["Notebook/book"], 1)]],
    )


@pytest.mark.parametrize("kin", [kin for kin in KINS if kin.name in ("hami", "effectivegpu")], ids=lambda kin: kin.name)
def test_seat_of_a_notebook_stands_where_its_api_keeps_it(kin: Kin) -> None:
    """A Notebook's template has no annotations; its controller hands on the containers and nothing else."""
    stage = kin.backend.render(notebook_beside(), 1, seen(kin))
    told = {change.field: change.new for change in stage.changes}
    assert not any(field.startswith("spec.template.metadata") for field in told)
    seats = {"book-0": {"node": "node-1", "cards": [card_id(4)], "shares": [[12288, 40]]}}
    assert json.loads(told["metadata.annotations[gputide.io/seats]"] or "") == seats
    assert told["spec.template.spec.containers[server].resources.limits[nvidia.com/gpumem]"] == "12288"


def test_notebook_cannot_be_given_what_only_an_annotation_says() -> None:
    kins = {kin.name: kin for kin in KINS}
    with pytest.raises(Refused, match=r"scheduling.volcano.sh/queue-name: a Notebook's pods take no annotations"):
        kins["volcano"].backend.render(notebook_beside(), 1, seen(kins["volcano"]))
    with pytest.raises(Refused, match=r"katalyst.kubewharf.io/qos_level: a Notebook's pods take no annotations"):
        kins["mgpu"].backend.render(notebook_beside(), 1, seen(kins["mgpu"]))
    assert kins["vgpu_manager"].backend.render(notebook_beside(), 1, seen(kins["vgpu_manager"])).moves


@st.composite
def packings(draw: st.DrawFn) -> Plan:
    """Any way to put the six service pods in groups of up to four onto some of the six cards that they have."""
    pods = draw(st.permutations(["a-0", "a-1", "b-0", "b-1", "c-0", "c-1"]))
    placement: dict[int, list[Any]] = {}
    for card in draw(st.permutations(range(6))):
        group = pods[: draw(st.integers(1, 4))]
        each = CARD_BYTES if len(group) == 1 and draw(st.booleans()) else CARD_BYTES // len(group) - 2**20
        placement[card] = [
            a_slice(pod, framebuffer_bytes=each, compute_ratio=draw(st.sampled_from([0.05, 0.2])), core_policy=HARD)
            for pod in group
        ]
        pods = [pod for pod in pods if pod not in group]
        if not pods:
            break
    for pod in pods:
        free = next(card for card in range(6) if card not in placement)
        placement[free] = [whole(pod)]
    moved = sorted(part.pod for parts in placement.values() for part in parts)
    named = sorted({f"Deployment/{pod[0]}" for pod in moved})
    freed = 6 - len(placement)
    return a_plan(placement, [[a_recommendation("x", RecommendationKind.COLOCATE, moved, named, freed)]])


@settings(max_examples=20, deadline=None)
@given(plan=packings(), kin=st.sampled_from([kin for kin in KINS if kin.name != "mgpu"]))
def test_cards_that_seats_leave_free_are_those_of_the_plan(plan: Plan, kin: Kin) -> None:
    cluster = a_kin_cluster(kin)
    before = {card for seat in seen(kin, cluster).seats.values() for card in seat.cards}
    stage = kin.backend.render(plan, 1, seen(kin, cluster))
    carried_out(kin, cluster, stage.changes, stage.moves)
    after = seen(kin, cluster)
    seats = {part.pod: card.card for card in plan.placement for part in card.slices}
    assert {pod: after.seats[f"team/{pod}"].cards for pod in seats} == {pod: (card,) for pod, card in seats.items()}
    held = {card for seat in after.seats.values() for card in seat.cards}
    assert len(before - held) - len(held - before) == plan.recommendations[0].cards_freed
    granted: dict[str, int] = {}
    for seat in after.seats.values():
        for part in seat.slices:
            granted[part.card or ""] = granted.get(part.card or "", 0) + part.framebuffer_mib
    assert all(size <= after.cards[card].framebuffer_mib for card, size in granted.items())
    assert kin.backend.render(plan, 1, after).changes == ()
