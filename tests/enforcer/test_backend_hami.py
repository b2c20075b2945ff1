"""HAMi's changes as golden files, what HAMi can't enforce as refusals, and undo of any plan."""

from __future__ import annotations

import copy
import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enforcer.backend import Backend
from enforcer.backends.hami import HamiBackend
from enforcer.manifest import field_of, values_equal
from enforcer.plan_names import as_planned
from enforcer.preview import preview
from enforcer.record.journal import StageState
from enforcer.simulated.cluster import SimulatedCluster
from enforcer.snapshot import take_snapshot
from fleet.capabilities.register import CorePolicy
from fleet.decisions import Need, Plan, RecommendationKind
from fleet.errors import Refused
from fleet.inventory import Priority, WorkloadId
from tests.contracts.gpu_backend import BackendContract
from tests.enforcer.builders import (
    CARD_BYTES,
    HALF,
    NOW,
    a_cluster,
    a_grant,
    a_plan,
    a_recommendation,
    a_rollout,
    a_slice,
    an_undo,
    card_id,
    let_all_go,
    some_tools,
    standard_grants,
    standard_plan,
    where,
    whole,
)
from tests.enforcer.preview_text import preview_text

GOLDEN = Path(__file__).parent / "golden"
PAIR = ["Deployment/a", "Deployment/b"]


@pytest.fixture
def cluster(tmp_path: Path) -> SimulatedCluster:
    return a_cluster(tmp_path)


@pytest.fixture
def backend() -> HamiBackend:
    return HamiBackend(NOW)


@pytest.fixture
def plan() -> Plan:
    return standard_plan()


class TestHami(BackendContract):
    pass


def pair(*slices: Any, kind: RecommendationKind = RecommendationKind.COLOCATE, needs: tuple[Need, ...] = ()) -> Plan:
    """Pods a-0 and b-0 together on card 0, the others alone."""
    pods = [part.pod for part in slices]
    return a_plan(
        {0: slices, 1: [whole("a-1")], 3: [whole("b-1")]}, [[a_recommendation("x", kind, pods, PAIR, 1, needs)]]
    )


def one_slice_each() -> Plan:
    return pair(a_slice("a-0", core_policy=CorePolicy.HARD, compute_ratio=0.4), a_slice("b-0", priority=Priority.HIGH))


def job_beside_service() -> Plan:
    return a_plan(
        {0: [a_slice("a-0", priority=Priority.HIGH), a_slice("train-0", kind="Job", priority=Priority.LOW)],
         1: [whole("a-1")]},
        [[a_recommendation("x", RecommendationKind.COLOCATE, ["a-0", "train-0"], ["Deployment/a", "Job/train"], 1)]],
    )  # fmt: skip


def fewer_replicas() -> Plan:
    return a_plan(
        {0: [whole("a-0")]},
        [[a_recommendation("x", RecommendationKind.FEWER_CARDS, ["a-1"], ["Deployment/a"], 1)]],
    )


def stopped() -> Plan:
    names = {"a": "Deployment", "book": "Notebook", "train": "Job"}
    return a_plan(
        {},
        [
            [
                a_recommendation(
                    "x",
                    RecommendationKind.RECLAIM,
                    ["a-0", "a-1", "book-0", "train-0"],
                    [f"{kind}/{name}" for name, kind in names.items()],
                    4,
                )
            ]
        ],
    )


def oversubscribed() -> Plan:
    more = HALF + 2**30
    return pair(
        a_slice("a-0", framebuffer_bytes=more, oversubscribed=True),
        a_slice("b-0", framebuffer_bytes=more, oversubscribed=True, priority=Priority.HIGH),
        kind=RecommendationKind.OVERSUBSCRIBE,
        needs=(Need.OVERSUBSCRIPTION,),
    )


@pytest.mark.parametrize("make", [one_slice_each, job_beside_service, fewer_replicas, stopped, oversubscribed])
def test_rendered_change_is_as_reviewed(make: Callable[[], Plan], cluster: SimulatedCluster, backend: Backend) -> None:
    plan = make()
    text = preview_text(preview(plan, cluster, backend)).replace(plan.plan_id, "PLAN") + "\n"
    file = GOLDEN / f"{make.__name__}.diff"
    if os.environ.get("WRITE_GOLDEN"):
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


@pytest.mark.parametrize("make", [one_slice_each, job_beside_service, fewer_replicas, stopped, oversubscribed])
def test_what_is_previewed_is_what_happens_and_undo_takes_it_back(make: Callable[[], Plan], tmp_path: Path) -> None:
    cluster = let_all_go(a_cluster(tmp_path), "Deployment/b")
    before = where(cluster)
    plan = make()
    (shown,) = preview(plan, cluster, HamiBackend(NOW))
    tools = some_tools(cluster, tmp_path)
    (result,) = a_rollout(tools).apply(plan, by="ann")
    assert result.state is StageState.PROMOTED, result.reason
    after = where(cluster)
    for card in shown.cards:
        pods = {f"team/{pod}" for pod, seat in after.items() if seat[0] == int(card.card[-12:])}
        assert pods == set(card.after)
    assert shown.cards_freed == plan.stages[0].cards_freed
    an_undo(tools).undo(plan.plan_id)
    assert where(cluster) == before


def test_oversubscribed_slices_get_what_was_granted(tmp_path: Path) -> None:
    cluster = let_all_go(a_cluster(tmp_path), "Deployment/b")
    a_rollout(some_tools(cluster, tmp_path)).apply(oversubscribed(), by="ann")
    seats = [seat for seat in cluster.seats() if seat.pod in ("a-0", "b-0")]
    assert [seat.is_oversubscribed for seat in seats] == [True, True]
    assert {seat.framebuffer_granted_bytes for seat in seats} == {HALF + 2**30}


@pytest.mark.parametrize(
    ("plan", "fact"),
    [
        (pair(a_slice("a-0"), a_slice("b-0"), needs=(Need.SPILL,)), "spills nothing"),
        (pair(a_slice("a-0", framebuffer_bytes=HALF + 2**30), a_slice("b-0")), "not marked|no slice on it is marked"),
        (
            pair(
                a_slice("a-0", core_policy=CorePolicy.HARD, compute_ratio=0.6),
                a_slice("b-0", core_policy=CorePolicy.HARD, compute_ratio=0.6),
            ),
            "120 % of cores",
        ),
        (
            pair(a_slice("a-0", core_policy=CorePolicy.HARD, compute_ratio=1.0), a_slice("b-0")),
            "more than 99 % is the card whole",
        ),
        (pair(a_slice("a-0"), replace(a_slice("b-0"), mig_profile="1g.6gb")), "MIG"),
        (
            a_plan({}, [[a_recommendation("x", RecommendationKind.SLICE, ["a-0"], ["Deployment/a"], 1)]]),
            "no place for team/a-0",
        ),
    ],
)
def test_what_hami_cannot_hold_is_refused_naming_the_fact(
    plan: Plan, fact: str, cluster: SimulatedCluster, backend: Backend
) -> None:
    with pytest.raises(Refused, match=fact):
        backend.render(plan, 1, take_snapshot(cluster))


def test_hard_isolation_keeps_others_off_the_card(tmp_path: Path, backend: Backend) -> None:
    grants = standard_grants()
    wish = (("gputide.io/isolation", "hard"),)
    cluster = a_cluster(tmp_path, [replace(g, labels=wish) if g.workload == "b" else g for g in grants])
    with pytest.raises(Refused, match="isolation=hard"):
        backend.render(one_slice_each(), 1, take_snapshot(cluster))


CHOICES = [
    {"nodeSelector": {"pool": "b"}},
    {
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": "pool", "operator": "In", "values": ["b"]}]}]
                }
            }
        }
    },
]


@pytest.mark.parametrize("choice", CHOICES, ids=["selector", "affinity"])
def test_card_of_a_node_that_the_template_does_not_choose_is_refused_before_a_pod_moves(
    choice: dict[str, Any], cluster: SimulatedCluster, backend: Backend
) -> None:
    seen = take_snapshot(cluster)
    name, node = WorkloadId("team/Deployment/b"), dict(seen.nodes["node-0"])
    owner = copy.deepcopy(dict(seen.owners[name]))
    owner["spec"]["template"]["spec"] |= choice
    snapshot = replace(seen, owners={**seen.owners, name: owner})
    with pytest.raises(
        Refused, match=r"pods of team/Deployment/b on node node-0: their template (selects pool=b|has an affinity)"
    ):
        backend.render(one_slice_each(), 1, snapshot)
    node["metadata"] = {**node["metadata"], "labels": {"pool": "b"}}
    snapshot = replace(snapshot, nodes={**seen.nodes, "node-0": node})
    assert backend.render(one_slice_each(), 1, snapshot).moves


def test_more_slices_than_hami_splits_a_card_into_raise_its_split_count(tmp_path: Path, backend: Backend) -> None:
    pods = [f"a-{number}" for number in range(11)]
    cluster = a_cluster(tmp_path, [a_grant("a", number, number) for number in range(11)], cards=12)
    plan = a_plan(
        {0: [a_slice(pod, framebuffer_bytes=2**30, compute_ratio=None) for pod in pods]},
        [[a_recommendation("x", RecommendationKind.SLICE, pods, ["Deployment/a"], 10)]],
    )
    (change,) = (
        entry for entry in backend.render(plan, 1, take_snapshot(cluster)).changes if entry.kind == "ConfigMap"
    )
    assert json.loads(change.new or "")["nodeconfig"] == [{"name": "node-0", "devicesplitcount": 11}]


def test_stage_that_is_applied_renders_empty(tmp_path: Path, backend: Backend) -> None:
    cluster = a_cluster(tmp_path)
    plan = standard_plan()
    tools = some_tools(cluster, tmp_path)
    a_rollout(tools).apply(plan, by="ann")
    now, _ = as_planned(take_snapshot(cluster), tools.journal.runs(plan.plan_id))
    assert backend.render(plan, 2, now).moves == ()


def test_normal_pod_beside_low_ones_is_given_high_priority(cluster: SimulatedCluster, backend: Backend) -> None:
    plan = pair(a_slice("a-0"), a_slice("b-0", priority=Priority.LOW))
    moves = {move.pod: move.new[0].priority for move in backend.render(plan, 1, take_snapshot(cluster)).moves}
    assert moves == {"a-0": "0", "b-0": "1"}


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Any way to put some of the six service pods onto fewer cards, in two stages."""
    pods = draw(st.permutations(["a-0", "a-1", "b-0", "b-1", "c-0", "c-1"]))
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=6))
    placement: dict[int, list[Any]] = {}
    moved: list[str] = []
    left = list(pods)
    for number, size in enumerate(sizes):
        group, left = left[:size], left[size:]
        if not group:
            break
        each = CARD_BYTES if len(group) == 1 and draw(st.booleans()) else CARD_BYTES // len(group) - 2**20
        policy = draw(st.sampled_from(CorePolicy))
        placement[number] = [
            a_slice(pod, framebuffer_bytes=each, compute_ratio=0.2, core_policy=policy) for pod in group
        ]
        moved += group
    homes = {"a-0": 0, "a-1": 1, "b-0": 2, "b-1": 3, "c-0": 4, "c-1": 5}
    free = [card for card in range(6) if card not in placement]
    for pod in left:
        home = homes[pod] if homes[pod] in free else free[0]
        free.remove(home)
        placement[home] = [whole(pod)]
        moved += [] if home == homes[pod] else [pod]
    stages = []
    for name in "abc":
        own = [pod for pod in moved if pod.startswith(name)]
        if own:
            stages.append(a_recommendation(f"r-{name}", RecommendationKind.COLOCATE, own, [f"Deployment/{name}"], 0))
    return a_plan(placement, [stages])


@settings(max_examples=25)
@given(plan=plans())
def test_undo_restores_every_field_that_was_changed(plan: Plan) -> None:
    with tempfile.TemporaryDirectory() as name:
        cluster = let_all_go(a_cluster(Path(name)), "Deployment/a", "Deployment/b", "Deployment/c")
        tools = some_tools(cluster, Path(name))
        changes = HamiBackend(NOW).render(plan, 1, take_snapshot(cluster)).changes
        (result,) = a_rollout(tools).apply(plan, by="ann")
        assert result.state is StageState.PROMOTED, result.reason
        for card in plan.placement:
            for part in card.slices:
                assert f"GPU-00000000-0000-0000-0000-{where(cluster)[part.pod][0]:012d}" == card.card
        if changes:
            an_undo(tools).undo(plan.plan_id)
        for change in changes:
            found = cluster.get(change.kind, change.namespace, change.name)
            assert found is not None
            assert values_equal(change.field, field_of(found, change.field), change.old), change.field
        assert {pod: seat[1] for pod, seat in where(cluster).items()} == dict.fromkeys(where(cluster), 24)
        cluster.close()


def test_card_ids_of_the_builders_are_cards() -> None:
    assert card_id(3) == "GPU-00000000-0000-0000-0000-000000000003"
