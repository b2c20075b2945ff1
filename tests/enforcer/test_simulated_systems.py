"""Every sharing system that a simulated cluster plays: a plan is applied in its words, and undone as it was."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from enforcer.backend import Backend
from enforcer.backends.detect import detect_backends
from enforcer.backends.device_plugin import SHARED_RESOURCE
from enforcer.backends.register import BACKENDS
from enforcer.cluster import FieldChange
from enforcer.record.journal import StageState
from enforcer.rollout.run_context import RunContext
from enforcer.rollout.stages import Rollout
from enforcer.safety.guard import GuardPolicy
from enforcer.simulated.cluster import SeatState, SimulatedCluster
from enforcer.simulated.store import SimulatedStore
from enforcer.simulated.systems import PLAYABLE, system_of
from enforcer.snapshot import take_snapshot
from fleet.capabilities.register import CorePolicy, capabilities_of
from fleet.decisions import Plan, RecommendationKind
from fleet.errors import Misconfigured, Refused
from fleet.inventory import Grant, Priority
from fleet.units import MIB
from tests.enforcer.builders import (
    CARD_BYTES,
    HALF,
    NOW,
    OpenGuard,
    a_grant,
    a_plan,
    a_recommendation,
    a_slice,
    an_inventory,
    an_undo,
    card_id,
    let_all_go,
    some_tools,
    where,
    whole,
)

SHARING = [name for name in PLAYABLE if name != "whole_cards"]
CARDS = 8


def grants() -> list[Grant]:
    """Node 0: a on cards 0 and 1, and a Job on card 2; node 1: c on cards 4 and 5."""
    return [
        *(a_grant("a", number, number) for number in range(2)),
        a_grant("train", 0, 2, kind="Job"),
        *(a_grant("c", number, 4 + number) for number in range(2)),
    ]


def a_system(folder: Path, name: str, own: Sequence[Grant] | None = None) -> SimulatedCluster:
    cluster = SimulatedCluster(folder / "cluster.sqlite", backend=name)
    cluster.sync(an_inventory(grants() if own is None else own, CARDS), NOW)
    if not capabilities_of(name).admits_pods and own is None:
        # A template of such a system changes all its replicas at once.
        let_all_go(cluster, "Deployment/c")
    return cluster


def backend_of(name: str) -> Backend:
    maker: Callable[[datetime], Backend] = dict(BACKENDS)[name]
    return maker(NOW)


def tools_of(cluster: SimulatedCluster, folder: Path, name: str) -> RunContext:
    guard = OpenGuard(GuardPolicy(gaps_allowed=True))
    return some_tools(cluster, folder, guard=guard, dialect=backend_of(name).dialect)


def slicing(name: str) -> Plan:
    """Both pods of c on card 4, so that card 5 is free; the rest stays."""
    record = capabilities_of(name)
    size, ratio = HALF, 0.5 if record.core_policies else None
    if name == "kai":
        size = record.shareable_bytes(CARD_BYTES) // 2 // MIB * MIB
    policy = CorePolicy.HARD if CorePolicy.HARD in record.core_policies else CorePolicy.BURST
    shares = [
        a_slice(f"c-{number}", framebuffer_bytes=size, compute_ratio=ratio, core_policy=policy) for number in range(2)
    ]
    kept = {0: [whole("a-0")], 1: [whole("a-1")], 2: [whole("train-0", kind="Job")]}
    advice = a_recommendation("slice-1", RecommendationKind.SLICE, ["c-0", "c-1"], ["Deployment/c"], 1, freed=[5])
    return a_plan({**kept, 4: shares}, [[advice]])


def standing(cluster: SimulatedCluster) -> list[str]:
    """What users and plugins wrote, without versions."""
    found = []
    for kind in ("Deployment", "Job", "ConfigMap", "Node"):
        for entry in cluster.list_objects(kind):
            entry["metadata"].pop("resourceVersion")
            entry["metadata"].pop("generation", None)
            if kind != "Node":
                entry.pop("status", None)
            found.append(json.dumps(entry, sort_keys=True))
    return found


@pytest.mark.parametrize("name", PLAYABLE)
def test_pods_of_a_trace_begin_on_their_cards_and_can_be_read_in_the_words_of_the_system(
    tmp_path: Path, name: str
) -> None:
    cluster = a_system(tmp_path, name)
    assert where(cluster) == {
        "a-0": (0, 24), "a-1": (1, 24), "c-0": (4, 24), "c-1": (5, 24), "train-0": (2, 24)
    }  # fmt: skip
    snapshot = take_snapshot(cluster, backend_of(name).dialect)
    assert (len(snapshot.cards), snapshot.doubts) == (CARDS, {})
    assert {seat.pod for seat in snapshot.seats.values() if seat.slices} == set(where(cluster))
    seen = {entry.backend for entry in detect_backends(cluster.list_objects("Node"))}
    # KAI and sharing that is not switched on yet look like NVIDIA's plugin, EffectiveGPU like HAMi.
    alike = {"effectivegpu": "hami", "kai": "whole_cards", "nvidia_time_slicing": "whole_cards"}
    assert seen == {{"nvidia_mps": "whole_cards", **alike}.get(name, name)}


@pytest.mark.parametrize("name", SHARING)
def test_slices_are_placed_as_planned_and_undone_byte_for_byte(tmp_path: Path, name: str) -> None:
    cluster = a_system(tmp_path, name)
    before = standing(cluster)
    tools = tools_of(cluster, tmp_path, name)
    plan = slicing(name)
    (result,) = Rollout(tools, backend_of(name)).apply(plan, by="ann")
    assert (result.state, result.reason) == (StageState.PROMOTED, None)
    seats = {seat.pod: seat for seat in cluster.seats()}
    held = {seats[pod].card for pod in ("c-0", "c-1")}
    if capabilities_of(name).division.value in ("replicas", "equal parts", "equal_parts"):
        # The plugin deals replicas out over all cards of the node.
        assert len(held) == 2
    else:
        assert len(held) == 1
    assert {seats[pod].node for pod in ("c-0", "c-1")} == {"node-1"}
    record = capabilities_of(name)
    is_hard = record.core_policies and CorePolicy.HARD in record.core_policies
    assert {seats[pod].core_policy for pod in ("c-0", "c-1")} == {CorePolicy.HARD if is_hard else CorePolicy.BURST}
    an_undo(tools).undo(plan.plan_id)
    cluster.pause(600.0)
    assert standing(cluster) == before
    assert {seat.state for seat in cluster.seats()} == {SeatState.RUNNING}
    assert len({seat.card for seat in cluster.seats()}) == len(grants())


REPLICAS = ["nvidia_time_slicing", "nvidia_mps"]
ALONE = [f"s{number}" for number in range(CARDS)]
"""Services of one pod: four on each node, which has no card left."""


def gathered(name: str) -> Plan:
    """All of them on node 0, two on each card."""
    size = CARD_BYTES // 2 // MIB * MIB
    ratio = 0.5 if capabilities_of(name).core_policies else None
    policy = CorePolicy.HARD if CorePolicy.HARD in capabilities_of(name).core_policies else CorePolicy.BURST
    parts = [
        a_slice(f"{one}-0", framebuffer_bytes=size, compute_ratio=ratio, core_policy=policy) for one in ALONE
    ]  # fmt: skip
    pods, owners = [f"{one}-0" for one in ALONE], [f"Deployment/{one}" for one in ALONE]
    advice = a_recommendation("slice-1", RecommendationKind.SLICE, pods, owners, 4, freed=range(4, CARDS))
    return a_plan({card: [parts[card], parts[card + 4]] for card in range(4)}, [[advice]])


def a_shared_node(folder: Path, name: str) -> tuple[SimulatedCluster, list[str]]:
    """A cluster with that plan in force, and what stood there before."""
    folder.mkdir(exist_ok=True)
    cluster = a_system(folder, name, [a_grant(one, 0, card) for card, one in enumerate(ALONE)])
    before = standing(cluster)
    (result,) = Rollout(tools_of(cluster, folder, name), backend_of(name)).apply(gathered(name), by="ann")
    assert (result.state, result.reason) == (StageState.PROMOTED, None)
    assert {seat.node for seat in cluster.seats()} == {"node-0"}
    return cluster, before


def is_back(cluster: SimulatedCluster, before: list[str]) -> bool:
    seats = cluster.seats()
    is_running = {seat.state for seat in seats} == {SeatState.RUNNING}
    return standing(cluster) == before and is_running and len({seat.card for seat in seats}) == CARDS


@pytest.mark.parametrize("name", REPLICAS)
def test_node_goes_back_once_those_with_a_place_elsewhere_left_and_before_the_rest_return(
    tmp_path: Path, name: str
) -> None:
    cluster, before = a_shared_node(tmp_path, name)
    tools, waited = tools_of(cluster, tmp_path, name), 0.0
    steps: list[str] = []

    def pause(seconds: float) -> None:
        nonlocal waited
        waited += seconds
        cluster.pause(seconds)

    tools.pause, tools.step = pause, steps.append
    assert an_undo(tools).undo(gathered(name).plan_id).kept == ()
    assert is_back(cluster, before)
    assert waited < tools.policy.moving.placement_seconds_max, "nobody waits for whole cards of a node that shares them"
    done = [step for step in steps if step.startswith("restore ")]
    node = done.index("restore /Node/node-0")
    assert {step.rpartition("/")[2] for step in done[:4]} == set(ALONE[4:]), "their places are free"
    assert node == CARDS, "the node goes back after its pods left"


@pytest.mark.parametrize("name", REPLICAS)
def test_undo_of_a_shared_node_that_is_killed_at_any_step_ends_whole(tmp_path: Path, name: str) -> None:
    class Killed(BaseException):
        """The process ends here."""

    steps: list[str] = []
    plan_id = gathered(name).plan_id
    cluster, _ = a_shared_node(tmp_path / "whole", name)
    tools = tools_of(cluster, tmp_path / "whole", name)
    tools.step = steps.append
    an_undo(tools).undo(plan_id)
    for number in range(len(steps)):
        folder = tmp_path / str(number)
        cluster, before = a_shared_node(folder, name)
        tools, left = tools_of(cluster, folder, name), list(steps[: number + 1])

        def stop(what: str, left: list[str] = left) -> None:
            left.pop()
            if not left:
                raise Killed(what)

        tools.step = stop
        with pytest.raises(Killed):
            an_undo(tools).undo(plan_id)
        undo = an_undo(tools_of(cluster, folder, name))
        found = undo.resume(plan_id) or undo.undo(plan_id)
        assert found.kept == (), steps[number]
        assert is_back(cluster, before), steps[number]


def test_shared_node_on_which_somebody_else_stays_is_not_given_back(tmp_path: Path) -> None:
    """Its card would be handed out a second time."""
    name = REPLICAS[0]
    cluster, _ = a_shared_node(tmp_path, name)
    after = standing(cluster)
    tools = tools_of(cluster, tmp_path, name)
    objects = [
        replace(entry, recommendation="other" if entry.kind == "Deployment" and entry.name == "s0" else "slice-1")
        for entry in tools.journal.runs()[0].records[1].objects
    ]
    record = replace(tools.journal.runs()[0].records[1], objects=objects)
    tools.journal.begin_stage(record, NOW)
    tools.journal.write(record.plan_id, NOW, "promoted", stage=1)
    with pytest.raises(Refused, match=r"node node-0 hand out its cards as before: team/s0-\S+, which does not go back"):
        an_undo(tools).undo(record.plan_id, recommendation="slice-1")
    assert standing(cluster) == after


def test_whole_cards_move_to_the_planned_node_and_back(tmp_path: Path) -> None:
    cluster = a_system(tmp_path, "whole_cards")
    before = standing(cluster)
    tools = tools_of(cluster, tmp_path, "whole_cards")
    advice = a_recommendation("rehome-1", RecommendationKind.REHOME, ["c-0", "c-1"], ["Deployment/c"], 0)
    kept = {0: [whole("a-0")], 1: [whole("a-1")], 2: [whole("train-0", kind="Job")]}
    plan = a_plan({**kept, 3: [whole("c-0")], 6: [whole("c-1")]}, [[advice]])
    (result,) = Rollout(tools, backend_of("whole_cards")).apply(plan, by="ann")
    assert result.state is StageState.PROMOTED
    nodes = {seat.pod: seat.node for seat in cluster.seats()}
    assert sorted(str(nodes[pod]) for pod in ("c-0", "c-1")) == ["node-0", "node-1"]
    an_undo(tools).undo(plan.plan_id)
    assert standing(cluster) == before


def test_a_system_that_shares_none_leaves_the_second_pod_of_a_card_waiting(tmp_path: Path) -> None:
    own = [a_grant("a", number, number) for number in range(CARDS)]
    cluster = a_system(tmp_path, "whole_cards", [*own, a_grant("b", 0, 0, framebuffer_bytes=HALF)])
    assert where(cluster)["b-0"] == "pending"
    pod = cluster.get("Pod", "team", "b-0")
    assert pod is not None
    assert "card is taken" in pod["status"]["conditions"][0]["message"]


def test_replicas_go_to_the_least_used_card_and_a_node_offers_nothing_else(tmp_path: Path) -> None:
    cluster = a_system(tmp_path, "nvidia_time_slicing")
    name = "nvidia_time_slicing"
    Rollout(tools_of(cluster, tmp_path, name), backend_of(name)).apply(slicing(name), by="ann")
    node = cluster.get("Node", "", "node-1")
    assert node is not None
    assert node["status"]["allocatable"] == {"nvidia.com/gpu": "0", SHARED_RESOURCE: "8"}
    assert node["metadata"]["labels"]["nvidia.com/gpu.sharing-strategy"] == "time-slicing"


def test_a_scaling_is_registered_by_those_that_apply_it(tmp_path: Path) -> None:
    entries = {
        "hami": ("data[config.json]", {"nodeconfig": [{"name": "node-0", "devicememoryscaling": 1.5}]}),
        "volcano": ("data[config.json]", {"nodeconfig": [{"name": "node-0", "devicememoryscaling": 1.5}]}),
        "vgpu_manager": ("data[nodeConfig.json]", [{"nodeName": "node-0", "deviceMemoryScaling": 1.5}]),
    }
    registered = {}
    for name, (field, content) in entries.items():
        (tmp_path / name).mkdir()
        cluster = a_system(tmp_path / name, name)
        key = backend_of(name).dialect.config_objects[-1]
        config = cluster.get(*key)
        assert config is not None
        change = FieldChange(field=field, value=json.dumps(content))
        cluster.patch(*key, [change], config["metadata"]["resourceVersion"])
        registered[name] = take_snapshot(cluster, backend_of(name).dialect).cards[card_id(0)].framebuffer_mib
    # Volcano's plugin reads the factor and does not apply it.
    assert registered == {"hami": 36864, "volcano": 24576, "vgpu_manager": 36864}


def test_offline_work_of_mgpu_shares_a_card_with_online_work_and_gives_way(tmp_path: Path) -> None:
    own = [
        a_grant("a", 0, 0, framebuffer_bytes=HALF),
        a_grant("b", 0, 0, framebuffer_bytes=HALF, priority=Priority.LOW),
    ]
    cluster = a_system(tmp_path, "mgpu", own)
    assert where(cluster) == {"a-0": (0, 12), "b-0": (0, 12)}
    assert {seat.pod: seat.priority for seat in cluster.seats()} == {"a-0": None, "b-0": Priority.LOW}


def test_small_slice_is_denied_by_the_webhook_of_mgpu(tmp_path: Path) -> None:
    cluster = a_system(tmp_path, "mgpu")
    owner = cluster.get("Deployment", "team", "c")
    assert owner is not None
    limits = "spec.template.spec.containers[server].resources.limits"
    change = FieldChange(field=f"{limits}[vke.volcengine.com/mgpu-memory]", value="100")
    cluster.patch("Deployment", "team", "c", [change], owner["metadata"]["resourceVersion"])
    assert {event[4] for event in cluster.events() if "mgpu-memory=100" in event[5]} == {"FailedCreate"}
    assert where(cluster)["c-0"] == "stopped"


def test_low_priority_of_a_job_is_refused_where_it_is_a_variable_of_its_template(tmp_path: Path) -> None:
    cluster = a_system(tmp_path, "volcano")
    advice = a_recommendation("slice-1", RecommendationKind.COLOCATE, ["train-0"], ["Job/train"], 1, freed=[2])
    low = a_slice("train-0", kind="Job", priority=Priority.LOW)
    plan = a_plan({0: [a_slice("a-0"), low], 1: [whole("a-1")], 4: [whole("c-0")], 5: [whole("c-1")]}, [[advice]])
    with pytest.raises(Refused, match="low priority: it is CUDA_TASK_PRIORITY in the template of a Job"):
        Rollout(tools_of(cluster, tmp_path, "volcano"), backend_of("volcano")).apply(plan, by="ann")


def test_cluster_that_plays_one_system_is_not_opened_as_another(tmp_path: Path) -> None:
    a_system(tmp_path, "kai").close()
    with pytest.raises(Misconfigured, match=r"enforcer\.backend=volcano: it plays kai; set enforcer\.backend=kai"):
        SimulatedCluster.open(tmp_path / "cluster.sqlite", "volcano")
    assert SimulatedCluster.open(tmp_path / "cluster.sqlite").capabilities.backend == "kai"
    with pytest.raises(Misconfigured, match=r"cannot play enforcer\.backend=mig .*: it plays whole_cards, hami"):
        SimulatedCluster.open(tmp_path / "none.sqlite", "mig")
    assert not (tmp_path / "none.sqlite").exists()


def test_state_of_before_there_were_systems_plays_hami(tmp_path: Path) -> None:
    file = tmp_path / "cluster.sqlite"
    cluster = a_system(tmp_path, "hami")
    seats = cluster.seats()
    cluster.close()
    store = SimulatedStore(file)
    store.db.executescript(
        "DELETE FROM meta WHERE key='system'; UPDATE meta SET value=2 WHERE key='state_version';"
        "ALTER TABLE slots DROP COLUMN lent_percent; ALTER TABLE nodes DROP COLUMN slices_max;"
    )
    store.close()
    again = SimulatedCluster.open(file)
    assert (again.capabilities.backend, again.seats()) == ("hami", seats)


@pytest.mark.parametrize(
    ("backend", "kept_mib"), [("hami", None), ("vgpu_manager", 8000.0), ("effectivegpu", 300.0), ("volcano", None)]
)
def test_what_stays_of_a_grant_whose_node_has_a_factor_is_the_systems_own_rule(
    backend: str, kept_mib: float | None
) -> None:
    assert system_of(backend).kept_mib(24_000, 3.0) == kept_mib
