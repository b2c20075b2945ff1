"""A stage that counts on low priority being held back is refused where nothing does so now."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from enforcer.agent.presence import nodes_with_agents
from enforcer.backends.hami import HamiBackend
from enforcer.backends.running import RunningBackend
from enforcer.manifest import Manifest, field_of, set_field
from enforcer.preview import preview
from enforcer.rollout.stages import Rollout
from enforcer.safety.priority_hold import check_priority
from enforcer.snapshot import Snapshot, take_snapshot
from fleet.capabilities.register import HAMI, MGPU, VGPU_MANAGER, VOLCANO, Capabilities, CorePolicy
from fleet.decisions import Need, Plan, RecommendationKind
from fleet.errors import Refused
from fleet.inventory import Priority, WorkloadId
from fleet.priority_holds import NOBODY, Holders
from tests.enforcer.builders import NOW, a_cluster, a_plan, a_recommendation, a_slice, an_undo, some_tools, whole

NODE = frozenset({"node-0"})
NOTHING_STANDS = Snapshot(owners={}, seats={}, pods={}, cards={})


def a_promise(*needs: Need, ratio: float | None = 0.5, policy: CorePolicy = CorePolicy.HARD) -> Plan:
    item = a_recommendation("x", RecommendationKind.COLOCATE, ["a-0", "train-0"], ["Deployment/a", "Job/train"], 1)
    low = a_slice("train-0", kind="Job", priority=Priority.LOW, compute_ratio=ratio, core_policy=policy)
    high = a_slice("a-0", priority=Priority.HIGH, compute_ratio=ratio, core_policy=policy)
    return a_plan({0: [high, low], 1: [whole("a-1")]}, [[replace(item, needs=(Need.PRIORITY, *needs))]])


def checked(plan: Plan, record: Capabilities = HAMI, holders: Holders = NOBODY) -> str | None:
    try:
        check_priority(plan, plan.recommendations, record, holders, NOTHING_STANDS)
    except Refused as exc:
        return str(exc)
    return None


@pytest.mark.parametrize(
    ("plan", "record", "holders", "why"),
    [
        (a_promise(), HAMI, NOBODY, None),
        (a_promise(), VOLCANO, NOBODY, None),
        (a_promise(ratio=None), HAMI, NOBODY, "1-99 % of cores as a limit"),
        (a_promise(ratio=1.0), HAMI, NOBODY, "1-99 % of cores as a limit"),
        (a_promise(policy=CorePolicy.BURST), HAMI, NOBODY, "1-99 % of cores as a limit"),
        (a_promise(), HAMI, Holders(ungated=NODE), "pass the gate"),
        (a_promise(Need.AGENT, ratio=None), HAMI, Holders(agents=NODE), None),
        (a_promise(Need.AGENT, ratio=None), HAMI, NOBODY, "no agent .* on node node-0"),
        (a_promise(Need.AGENT, ratio=None), HAMI, Holders(agents=frozenset({"node-1"})), "no agent .* on node node-0"),
        (a_promise(Need.AGENT, Need.GRAPH_PAUSE, ratio=None), HAMI, Holders(agents=NODE, graphs_pause=NODE), None),
        (
            a_promise(Need.AGENT, Need.GRAPH_PAUSE, ratio=None),
            HAMI,
            Holders(agents=NODE),
            "stops launches of CUDA graphs",
        ),
        (a_promise(Need.AGENT, Need.GRAPH_PAUSE, ratio=None), HAMI, Holders(graphs_pause=NODE), "no agent"),
        (a_promise(Need.AGENT, Need.STRICT_AGENT, ratio=None), HAMI, Holders(agents=NODE, strict=NODE), None),
        (
            a_promise(Need.AGENT, Need.STRICT_AGENT, ratio=None),
            HAMI,
            Holders(agents=NODE),
            "set agent.give_way=strict",
        ),
        (a_promise(Need.PROBED_GATE, ratio=None), HAMI, Holders(gated=NODE), None),
        (a_promise(Need.PROBED_GATE, ratio=None), HAMI, NOBODY, "no kept result of a probe"),
        (a_promise(ratio=None), MGPU, NOBODY, None),
        (a_promise(), VGPU_MANAGER, NOBODY, "tells no levels of priority apart"),
    ],
)
def test_promise_is_refused_where_nothing_keeps_it(
    plan: Plan, record: Capabilities, holders: Holders, why: str | None
) -> None:
    found = checked(plan, record, holders)
    if why is None:
        assert found is None
    else:
        assert found is not None
        with pytest.raises(Refused, match=why):
            check_priority(plan, plan.recommendations, record, holders, NOTHING_STANDS)


def test_advice_that_promises_nothing_is_let_through() -> None:
    plan = a_promise(ratio=None)
    equal = replace(plan.recommendations[0], needs=())
    check_priority(plan, [equal], HAMI, NOBODY, NOTHING_STANDS)


def test_agent_that_stopped_since_the_plan_keeps_its_stage_from_being_rendered(tmp_path: Path) -> None:
    plan, seen = a_promise(Need.AGENT, ratio=None), [Holders(agents=NODE)]
    backend = RunningBackend(
        HamiBackend(NOW), version="v2.10.0", allows_experimental=False, left_out=None, holders=lambda: seen[0]
    )
    snapshot = take_snapshot(a_cluster(tmp_path))
    assert backend.render(plan, 1, snapshot).changes
    seen[0] = NOBODY
    with pytest.raises(Refused, match="no agent that lets low priority sleep is ready on node node-0"):
        backend.render(plan, 1, snapshot)


def test_pod_without_the_library_is_neither_held_back_nor_seen(tmp_path: Path) -> None:
    plan, snapshot = a_promise(Need.AGENT, ratio=None), take_snapshot(a_cluster(tmp_path))
    check_priority(plan, plan.recommendations, HAMI, Holders(agents=NODE), snapshot)
    workload = WorkloadId("team/Deployment/a")
    owner = copy.deepcopy(snapshot.owners[workload])
    changed = replace(snapshot, owners={**snapshot.owners, workload: owner})
    set_field(owner, "spec.template.spec.containers[server].env[CUDA_DISABLE_CONTROL]", "false")
    check_priority(plan, plan.recommendations, HAMI, Holders(agents=NODE), changed)
    with pytest.raises(Refused, match=r"team/a-0, which sits there, sets CUDA_DISABLE_CONTROL"):
        check_priority(plan, plan.recommendations, VOLCANO, Holders(agents=NODE), changed)
    set_field(owner, "spec.template.spec.containers[server].env[CUDA_DISABLE_CONTROL]", "true")
    with pytest.raises(Refused, match=r"team/a-0, which sits there, sets CUDA_DISABLE_CONTROL"):
        check_priority(plan, plan.recommendations, HAMI, Holders(agents=NODE), changed)


def in_two_stages(first_pod: str = "a-0", second_pod: str = "a-1") -> Plan:
    """Service a is limited by stage 1, and c of low priority comes to its cards by stage 2."""
    share: dict[str, Any] = {"compute_ratio": 0.4, "core_policy": CorePolicy.HARD}
    low = {**share, "priority": Priority.LOW}
    first = a_recommendation("slice", RecommendationKind.SLICE, [first_pod, second_pod], ["Deployment/a"], 0)
    item = a_recommendation("beside", RecommendationKind.COLOCATE, ["c-0", "c-1"], ["Deployment/c"], 2)
    cards = {
        0: [a_slice(first_pod, **share), a_slice("c-0", **low)],
        1: [a_slice(second_pod, **share), a_slice("c-1", **low)],
    }
    return a_plan(cards, [[first], [replace(item, needs=(Need.PRIORITY,))]])


def a_running_backend() -> RunningBackend:
    return RunningBackend(HamiBackend(NOW), version="v2.10.0", allows_experimental=False, left_out=None)


def test_stage_waits_for_the_one_that_limits_the_service_beside_it(tmp_path: Path) -> None:
    plan, cluster = in_two_stages(), a_cluster(tmp_path)
    with pytest.raises(Refused, match=r"team/a-0, which sits there, .* apply that stage first") as refused:
        a_running_backend().render(plan, 2, take_snapshot(cluster))
    assert "stage 1" in str(refused.value)
    shown = preview(plan, cluster, a_running_backend())
    assert [stage.refusal for stage in shown] == [None, None], "each stage is shown on top of the one before"


def test_service_that_lost_its_force_since_is_not_counted_on(tmp_path: Path) -> None:
    plan, cluster = in_two_stages(), a_cluster(tmp_path)
    Rollout(some_tools(cluster, tmp_path), a_running_backend()).apply(plan, stages=[1], by="ann")
    snapshot = take_snapshot(cluster)
    assert a_running_backend().render(plan, 2, snapshot).changes
    owner = copy.deepcopy(snapshot.owners[WorkloadId("team/Deployment/a")])
    set_field(owner, "spec.template.spec.containers[server].env[GPU_CORE_UTILIZATION_POLICY]", None)
    changed = replace(snapshot, owners={**snapshot.owners, WorkloadId("team/Deployment/a"): owner})
    with pytest.raises(Refused, match=r"team/a-.*, which sits there, has no 1-99 % of cores by force"):
        a_running_backend().render(plan, 2, changed)


def test_service_that_has_its_share_without_force_is_given_force(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path)
    Rollout(some_tools(cluster, tmp_path), a_running_backend()).apply(in_two_stages(), stages=[1], by="ann")
    snapshot = take_snapshot(cluster)
    seats = sorted(snapshot.pods[WorkloadId("team/Deployment/a")], key=lambda seat: seat.slices[0].card or "")
    plan = in_two_stages(*(seat.pod_id.removeprefix("team/") for seat in seats))
    assert not a_running_backend().render(plan, 1, snapshot).changes, "what is there already is not changed again"
    owner = copy.deepcopy(snapshot.owners[WorkloadId("team/Deployment/a")])
    policy = "spec.template.spec.containers[server].env[GPU_CORE_UTILIZATION_POLICY]"
    set_field(owner, policy, None)
    changed = replace(snapshot, owners={**snapshot.owners, WorkloadId("team/Deployment/a"): owner})
    made = {change.field: change.new for change in a_running_backend().render(plan, 1, changed).changes}
    assert made[policy] == "force"


def test_stage_is_not_taken_back_under_low_priority_that_counts_on_its_limits(tmp_path: Path) -> None:
    plan, cluster = in_two_stages(), a_cluster(tmp_path)
    tools = some_tools(cluster, tmp_path)
    Rollout(tools, a_running_backend()).apply(plan, by="ann")
    with pytest.raises(Refused, match="undo that stage first, or with this one"):
        an_undo(tools).undo(plan.plan_id, stages=[1])
    assert an_undo(tools).undo(plan.plan_id, stages=[2]).stages == (2,)
    assert an_undo(tools).undo(plan.plan_id, stages=[1]).stages == (1,)


MARK = "spec.template.metadata.annotations[gputide.io/core-limit]"


def lifting(snapshot: Snapshot) -> Plan:
    """Service a has its cards to itself, and bursts again where it is."""
    seats = sorted(snapshot.pods[WorkloadId("team/Deployment/a")], key=lambda seat: seat.slices[0].card or "")
    names = [seat.pod for seat in seats]
    free: dict[str, Any] = {"compute_ratio": None, "core_policy": CorePolicy.BURST}
    item = a_recommendation("lift", RecommendationKind.SLICE, names, ["Deployment/a"], 0)
    return a_plan({card: [a_slice(name, **free)] for card, name in enumerate(names)}, [[item]])


def test_limit_of_a_plan_is_marked_lifted_and_comes_back_with_its_mark(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path)
    tools, plan = some_tools(cluster, tmp_path), in_two_stages()
    workload = WorkloadId("team/Deployment/a")

    def stands() -> tuple[str | None, set[int]]:
        snapshot = take_snapshot(cluster)
        cores = {part.core_percent for seat in snapshot.pods[workload] for part in seat.slices}
        return field_of(snapshot.owners[workload], MARK), cores

    before = stands()
    Rollout(tools, a_running_backend()).apply(plan, stages=[1], by="ann")
    assert stands() == ("40", {40})
    lift = lifting(take_snapshot(cluster))
    Rollout(tools, a_running_backend()).apply(lift, by="ann")
    assert stands() == (None, {0})
    an_undo(tools).undo(lift.plan_id)
    assert stands() == ("40", {40})
    an_undo(tools).undo(plan.plan_id)
    assert stands() == before


def test_limit_is_not_lifted_beside_a_pod_that_came_since_the_plan(tmp_path: Path) -> None:
    cluster, plan = a_cluster(tmp_path), in_two_stages()
    Rollout(some_tools(cluster, tmp_path), a_running_backend()).apply(plan, by="ann")
    snapshot = take_snapshot(cluster)
    with pytest.raises(Refused, match=r"it lifts the core limit of team/a-.*, and team/c-.* came there since"):
        a_running_backend().render(lifting(snapshot), 1, snapshot)


def an_agent(**changes: Any) -> Manifest:
    pod: dict[str, Any] = {
        "metadata": {"name": "gputide-agent-x", "ownerReferences": [{"kind": "DaemonSet", "name": "gputide-agent"}]},
        "spec": {"nodeName": "node-0", "containers": [{"name": "agent", "args": ["--set", "a.b=c", "run", "agent"]}]},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }
    for part, content in changes.items():
        pod[part] = {**pod[part], **content}
    return pod


def test_ready_agent_of_a_daemon_set_counts_for_its_node() -> None:
    assert nodes_with_agents([an_agent()]) == NODE


@pytest.mark.parametrize(
    "pod",
    [
        an_agent(status={"conditions": [{"type": "Ready", "status": "False"}]}),
        an_agent(status={"conditions": []}),
        an_agent(metadata={"ownerReferences": []}),
        an_agent(metadata={"deletionTimestamp": "2026-03-04T00:00:00Z"}),
        an_agent(spec={"nodeName": None}),
        an_agent(spec={"containers": [{"name": "relief", "args": ["run", "relief"]}]}),
        an_agent(spec={"containers": [{"name": "agent", "args": ["--set", "agent.give_way=off", "run", "agent"]}]}),
        an_agent(spec={"containers": [{
            "name": "agent", "args": ["run", "agent"], "env": [{"name": "GPUTIDE_AGENT__GIVE_WAY", "value": "off"}],
        }]}),
        an_agent(spec={"containers": [{"name": "check", "args": ["run", "agent", "check"]}]}),
    ],
)  # fmt: skip
def test_pod_that_lets_nobody_sleep_counts_for_nothing(pod: Manifest) -> None:
    assert nodes_with_agents([pod]) == frozenset()


@pytest.mark.parametrize(
    ("container", "is_strict"),
    [
        ({"args": ["run", "agent"]}, False),
        ({"args": ["--set", "agent.give_way=strict", "run", "agent"]}, True),
        ({"args": ["--set", "agent.give_way=pressure", "run", "agent"]}, False),
        ({"args": ["run", "agent"], "env": [{"name": "GPUTIDE_AGENT__GIVE_WAY", "value": "strict"}]}, True),
        ({
            "args": ["--set=agent.give_way=pressure", "run", "agent"],
            "env": [{"name": "GPUTIDE_AGENT__GIVE_WAY", "value": "strict"}],
        }, False),
    ],
)  # fmt: skip
def test_agent_is_strict_only_where_its_pod_says_so(container: Manifest, is_strict: bool) -> None:
    pods = [an_agent(spec={"containers": [{"name": "agent", **container}]})]
    assert nodes_with_agents(pods) == NODE
    assert bool(nodes_with_agents(pods, strict_only=True)) is is_strict


@pytest.mark.parametrize("switch", ["disableCoreLimit: true", "gpuCorePolicy: disable"])
def test_limits_are_refused_where_the_installation_lifts_them(
    tmp_path: Path, switch: str, configured: Callable[..., Any]
) -> None:
    snapshot = configured(tmp_path, switch)
    with pytest.raises(Refused, match="lifts every limit"):
        HamiBackend(NOW).render(a_promise(), 1, snapshot)


@pytest.fixture
def configured() -> Callable[..., Any]:
    """Return a maker of snapshots in whose cluster HAMi is configured with a line more."""

    def make(folder: Path, line: str) -> Any:
        found = take_snapshot(a_cluster(folder))
        key = ("ConfigMap", "kube-system", "hami-scheduler-device")
        text = f"nvidia:\n  {line}\n"
        manifest = {
            "kind": key[0],
            "metadata": {"namespace": key[1], "name": key[2]},
            "data": {"device-config.yaml": text},
        }
        return replace(found, configs={**found.configs, key: manifest})

    return make
