"""Nodes are emptied, their plugins made anew and waited for; whatever is interrupted can be repeated."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from enforcer.backend import NodeStep
from enforcer.backends.hami_dialect import DEVICE_CONFIG, HAMI_DIALECT
from enforcer.cluster import FieldChange
from enforcer.dialect import SeatSlice
from enforcer.manifest import Manifest, set_field
from enforcer.record.journal import FieldIntent, Journal, ObjectIntent, StageRecord
from enforcer.record.ledger import Ledger
from enforcer.rollout.intents import object_intents
from enforcer.rollout.node_steps import CLOSED_ANNOTATION, NodeStepPolicy, NodeSteps
from enforcer.rollout.restore import Stuck, steps_back, take_back
from enforcer.rollout.run_context import RunContext
from enforcer.rollout.undo import Undo
from enforcer.snapshot import take_snapshot
from fleet.errors import Refused
from fleet.grammars.hami import NODE_REGISTER_ANNOTATION, parse_node_register
from fleet.inventory import WorkloadId
from tests.enforcer.builders import NOW, card_id, patient
from tests.enforcer.kin_cluster import HAMI, a_kin_cluster
from tests.enforcer.plugin_cluster import StandingCluster
from tests.enforcer.test_backend_kin import oversubscribe

PLUGIN = ("kube-system", "hami-device-plugin-1")
STATE = "metadata.labels[nvidia.com/mig.config.state]"


class ActingCluster(StandingCluster):
    """A cluster whose DaemonSet makes evicted plugin pods anew, under another name, once some time has passed.

    Args:
        comes_back: whether it does.
        on_restart: what a new plugin pod does to its node.
    """

    def __init__(self, *, comes_back: bool = True, on_restart: Callable[[Manifest], None] = lambda node: None) -> None:
        source = a_kin_cluster(HAMI)
        super().__init__(
            copy.deepcopy(manifest)
            for kind in ("Node", "Deployment", "Notebook", "Job", "ConfigMap", "Pod")
            for manifest in source.list_objects(kind)
        )
        self.comes_back = comes_back
        self.on_restart = on_restart
        self.evicted: list[str] = []
        self.patched: list[str] = []
        self.protected: set[str] = set()
        self.slept = 0.0
        self._coming: list[Manifest] = []
        self._writes = 0

    def make(self, manifest: Manifest) -> bool:
        raise AssertionError(f"node steps make no objects: {manifest['kind']}")

    def patch(self, kind: str, namespace: str, name: str, fields: Sequence[FieldChange], resource_version: str) -> str:
        found = self.get(kind, namespace, name)
        assert found is not None
        self.patched += [f"{kind} {change.field}" for change in fields]
        if found["metadata"]["resourceVersion"] != resource_version:
            raise Refused(f"{name} has another version")
        for change in fields:
            set_field(found, change.field, change.value)
        return self._touched(found)

    def evict(self, namespace: str, pod: str) -> bool:
        if pod in self.protected:
            return False
        self.evicted.append(pod)
        found = self._objects.pop(("Pod", namespace, pod))
        if namespace == "kube-system" and self.comes_back:
            family = pod.rpartition("-")[0]
            self._coming.append(
                {**found, "metadata": {**found["metadata"], "name": f"{family}-new{len(self.evicted)}"}}
            )
        return True

    def record_event(self, kind: str, namespace: str, name: str, reason: str, message: str) -> None:
        raise AssertionError("node steps leave no events")

    def pause(self, seconds: float) -> None:
        self.slept += seconds
        for pod in self._coming:
            self.put(pod)
            node = self.get("Node", "", pod["spec"]["nodeName"])
            assert node is not None
            self.on_restart(node)
        self._coming = []

    def node(self, name: str = "node-1") -> Manifest:
        found = self.get("Node", "", name)
        assert found is not None
        return found

    def _touched(self, manifest: Manifest) -> str:
        self._writes += 1
        manifest["metadata"]["resourceVersion"] = f"w{self._writes}"
        return f"w{self._writes}"


def in_mig(node: Manifest) -> None:
    annotations = node["metadata"]["annotations"]
    devices = parse_node_register(annotations[NODE_REGISTER_ANNOTATION])
    annotations.update(HAMI.node_annotations([replace(device, mode="mig") for device in devices]))


def hands(cluster: ActingCluster, stop_at: str = "") -> NodeSteps:
    def step(what: str) -> None:
        if stop_at and what.startswith(stop_at):
            raise KeyboardInterrupt(what)

    policy = NodeStepPolicy(poll_seconds=10.0, ready_seconds_max=60.0)
    return NodeSteps(patient(cluster, step), policy, HAMI_DIALECT)


SWITCH = NodeStep(node="node-1", restarts=(PLUGIN,), done_mode="mig")
CUT = NodeStep(
    node="node-1",
    leaving=(("team", "c-0"), ("team", "c-1")),
    done_field=STATE,
    done_value="success",
    failed_value="failed",
    advertised=(("status.allocatable[nvidia.com/mig-1g.6gb]", "4"), ("status.allocatable[nvidia.com/gpu]", "0")),
)


def test_plugin_starts_anew_and_the_node_shows_its_mode() -> None:
    cluster = ActingCluster(on_restart=in_mig)
    assert hands(cluster).settle([SWITCH], "plan-1") == []
    assert cluster.evicted == ["hami-device-plugin-1"]


def test_plugin_that_started_anew_already_is_left_alone() -> None:
    cluster = ActingCluster(on_restart=in_mig)
    hands(cluster).settle([SWITCH], "plan-1")
    assert hands(cluster).settle([SWITCH], "plan-1") == []
    assert cluster.evicted == ["hami-device-plugin-1"]


def test_mode_that_never_comes_is_told() -> None:
    (why,) = hands(ActingCluster()).settle([SWITCH], "plan-1")
    assert str(why) == "node node-1 was not ready within 60 s: its cards are in mode hami-core, expected mig"


def test_plugin_that_does_not_come_back_is_told() -> None:
    (why,) = hands(ActingCluster(comes_back=False)).settle([replace(SWITCH, done_mode=None)], "plan-1")
    assert str(why).endswith("no new pod of kube-system/hami-device-plugin is ready on it")


def test_node_is_closed_while_its_pods_leave_and_opened_when_it_is_ready() -> None:
    cluster = ActingCluster()
    assert hands(cluster).empty([CUT], "plan-1") == []
    assert cluster.evicted == ["c-0", "c-1"]
    assert cluster.node()["spec"]["unschedulable"] is True
    assert cluster.node()["metadata"]["annotations"][CLOSED_ANNOTATION] == "plan-1"
    set_field(cluster.node(), STATE, "success")
    cluster.node()["status"]["allocatable"] = {"nvidia.com/mig-1g.6gb": "4"}
    assert hands(cluster).settle([CUT], "plan-1") == []
    assert "unschedulable" not in cluster.node()["spec"]
    assert CLOSED_ANNOTATION not in cluster.node()["metadata"]["annotations"]


def test_node_that_is_ready_is_not_emptied_again() -> None:
    """After a crash behind the cut, what sits there then is what the plan put there."""
    cluster = ActingCluster()
    set_field(cluster.node(), STATE, "success")
    cluster.node()["status"]["allocatable"] = {"nvidia.com/mig-1g.6gb": "4"}
    assert hands(cluster).empty([CUT], "plan-1") == []
    assert cluster.evicted == []


def test_node_that_somebody_else_closed_stays_closed() -> None:
    cluster = ActingCluster()
    cluster.node()["spec"] = {"unschedulable": True}
    hands(cluster).empty([CUT], "plan-1")
    set_field(cluster.node(), STATE, "success")
    cluster.node()["status"]["allocatable"] = {"nvidia.com/mig-1g.6gb": "4"}
    hands(cluster).settle([CUT], "plan-1")
    assert cluster.node()["spec"]["unschedulable"] is True


def test_node_that_is_closed_for_another_plan_is_left_to_it() -> None:
    cluster = ActingCluster()
    hands(cluster).empty([replace(CUT, leaving=CUT.leaving[:1])], "plan-1")
    with pytest.raises(Refused, match="node-1 is closed for plan plan-1"):
        hands(cluster).empty([CUT], "plan-2")
    assert cluster.evicted == ["c-0"]


def test_node_that_was_written_back_before_a_crash_is_waited_for_before_it_opens(tmp_path: Path) -> None:
    class Slow(ActingCluster):
        def pause(self, seconds: float) -> None:
            super().pause(seconds)
            self.node()["status"]["allocatable"]["nvidia.com/gpu"] = "4"

    cluster = Slow()
    cluster.node()["status"] = {"allocatable": {"nvidia.com/gpu": "0"}}
    cluster.node()["spec"] = {"unschedulable": True}
    cluster.node()["metadata"]["annotations"][CLOSED_ANNOTATION] = "plan-1"
    step = NodeStep(node="node-1", back=(("status.allocatable[nvidia.com/gpu]", "4"),))
    rendered = HAMI.backend.render(oversubscribe(), 1, take_snapshot(ActingCluster()))
    (config,) = [entry for entry in object_intents(rendered) if entry.kind == "ConfigMap"]
    assert take_back(tools_for(cluster, tmp_path), "plan-1", 1, [config], [], [step]) == ()
    assert cluster.slept
    assert "unschedulable" not in cluster.node()["spec"]


def test_node_that_gives_up_is_not_waited_for() -> None:
    cluster = ActingCluster()
    cluster.pause = lambda seconds: set_field(cluster.node(), STATE, "failed")  # type: ignore[method-assign]
    (why,) = hands(cluster).settle([CUT], "plan-1")
    assert str(why) == f"node node-1 gave up: {STATE} is failed"


def test_failure_of_an_earlier_cut_is_not_taken_for_this_one() -> None:
    cluster = ActingCluster()
    set_field(cluster.node(), STATE, "failed")

    def cut(seconds: float) -> None:
        cluster.slept += seconds
        if cluster.slept > 20:
            set_field(cluster.node(), STATE, "success")
            cluster.node()["status"]["allocatable"] = {"nvidia.com/mig-1g.6gb": "4"}

    cluster.pause = cut  # type: ignore[method-assign]
    assert hands(cluster).settle([CUT], "plan-1") == []


def test_pod_under_a_disruption_budget_is_waited_for_and_then_told() -> None:
    cluster = ActingCluster()
    cluster.protected = {"c-0"}
    (why,) = hands(cluster).empty([CUT], "plan-1")
    assert str(why) == "team/c-0 may not be evicted: its disruption budget left no room within 60 s"


def test_node_that_is_gone_is_refused() -> None:
    with pytest.raises(Refused, match="node node-7 shares its cards: it is gone"):
        hands(ActingCluster()).settle([replace(SWITCH, node="node-7")], "plan-1")


@pytest.mark.parametrize("stop_at", ["close", "evict team/c-0", "evict team/c-1"])
def test_what_was_interrupted_goes_on(stop_at: str) -> None:
    cluster = ActingCluster()
    with pytest.raises(KeyboardInterrupt):
        hands(cluster, stop_at).empty([CUT], "plan-1")
    assert hands(cluster).empty([CUT], "plan-1") == []
    assert sorted(cluster.evicted) == ["c-0", "c-1"]
    assert cluster.node()["metadata"]["annotations"][CLOSED_ANNOTATION] == "plan-1"


def test_taking_back_starts_plugins_anew_and_opens_nodes() -> None:
    cluster = ActingCluster(on_restart=in_mig)
    both = replace(CUT, restarts=(PLUGIN,))
    hands(cluster).empty([both], "plan-1")
    assert hands(cluster).take_back([both], "plan-1") == []
    assert cluster.evicted == ["c-0", "c-1", "hami-device-plugin-1"]
    assert "unschedulable" not in cluster.node()["spec"]


def twice(node: Manifest) -> None:
    annotations = node["metadata"]["annotations"]
    devices = parse_node_register(annotations[NODE_REGISTER_ANNOTATION])
    doubled = [replace(device, framebuffer_mib=2 * device.framebuffer_mib) for device in devices]
    annotations.update(HAMI.node_annotations(doubled))


@pytest.mark.parametrize(("on_restart", "code"), [(twice, None), (lambda node: None, "rollout.node_late")])
def test_node_is_waited_for_until_it_registers_what_is_lent(
    on_restart: Callable[[Manifest], None], code: str | None
) -> None:
    cluster = ActingCluster(on_restart=on_restart)
    step = NodeStep(node="node-1", restarts=(PLUGIN,), registers_mib=((card_id(4), 2 * 24 * 1024 - 16),))
    found = hands(cluster).settle([step], "plan-1")
    assert [item.code for item in found] == ([] if code is None else [code])
    assert not found or dict(found[0].values)["why"].code == "rollout.node_registers"  # type: ignore[union-attr]


def half(node: Manifest) -> None:
    annotations = node["metadata"]["annotations"]
    devices = parse_node_register(annotations[NODE_REGISTER_ANNOTATION])
    halved = [replace(device, framebuffer_mib=device.framebuffer_mib // 2) for device in devices]
    annotations.update(HAMI.node_annotations(halved))


LENT = NodeStep(node="node-1", restarts=(PLUGIN,), registered_mib=((card_id(4), 24 * 1024),))


@pytest.mark.parametrize("has_plugin", [True, False])
@pytest.mark.parametrize("goes_back", [True, False])
def test_taking_back_waits_until_no_more_is_registered_than_before(has_plugin: bool, goes_back: bool) -> None:
    """Also where no plugin runs just now: the node says what the last one wrote until the next one starts."""
    cluster = ActingCluster(on_restart=half if goes_back else lambda node: None)
    twice(cluster.node())
    if not has_plugin:
        cluster.evict(*PLUGIN)
    found = hands(cluster).take_back([LENT], "plan-1")
    whys = [dict(item.values)["why"].code for item in found]  # type: ignore[union-attr]
    assert whys == ([] if goes_back else ["rollout.node_registers_more"])
    assert hands(cluster).scaled([LENT]) == ([] if goes_back else ["node-1"])


def test_no_pod_comes_back_to_a_node_that_registers_more_than_before(tmp_path: Path) -> None:
    cluster = ActingCluster()
    twice(cluster.node("node-0"))
    rendered = HAMI.backend.render(oversubscribe(), 1, take_snapshot(ActingCluster()))
    intents = [entry for entry in object_intents(rendered) if entry.kind in ("ConfigMap", "Deployment")]
    for intent in intents:
        found = cluster.get(intent.kind, intent.namespace, intent.name)
        assert found is not None
        for part in intent.fields:
            set_field(found, part.field, part.new)
    before = ((card_id(0), 24 * 1024),)
    steps = [replace(step, registers_mib=before, registered_mib=before) for step in rendered.node_steps]
    with pytest.raises(Stuck, match="deviceMemoryScaling"):
        take_back(tools_for(cluster, tmp_path), "plan-1", 1, intents, rendered.moves, steps)
    assert {what.split()[0] for what in cluster.patched} == {"ConfigMap"}


def test_steps_stand_in_the_ledger_as_they_were_rendered(tmp_path: Path) -> None:
    journal = Journal(Ledger(tmp_path / "ledger.jsonl"))
    rendered = HAMI.backend.render(oversubscribe(), 1, take_snapshot(a_kin_cluster(HAMI)))
    steps = [*rendered.node_steps, CUT, replace(CUT, registers_mib=((card_id(4), 48 * 1024),)), LENT]
    record = StageRecord(
        plan_id="plan-1", stage=1, objects=object_intents(rendered), moves=list(rendered.moves), node_steps=steps
    )
    journal.write("plan-1", NOW, "begin", stages=[1], by="ann", cards_granted=[])
    journal.begin_stage(record, NOW)
    (run,) = journal.runs("plan-1")
    assert run.records[1].node_steps == steps


def test_restored_configuration_is_read_by_a_new_plugin(tmp_path: Path) -> None:
    """Only where the configuration itself goes back: a workload alone needs no plugin."""
    cluster = ActingCluster()
    rendered = HAMI.backend.render(oversubscribe(), 1, take_snapshot(cluster))
    (config,) = [entry for entry in object_intents(rendered) if entry.kind == "ConfigMap"]
    found = cluster.get(*DEVICE_CONFIG)
    assert found is not None
    for part in config.fields:
        set_field(found, part.field, part.new)
    take_back(tools_for(cluster, tmp_path), "plan-1", 1, [config], [], rendered.node_steps)
    assert json.loads(found["data"]["config.json"])["nodeconfig"] == [{"name": "node-9", "devicesplitcount": 4}]
    assert cluster.evicted == ["hami-device-plugin-0"]


def test_configuration_that_somebody_else_changed_loses_what_the_plan_wrote_alone(tmp_path: Path) -> None:
    """It is one text of a ConfigMap: kept whole, its nodes would stay as the plan left them."""
    cluster = ActingCluster()
    rendered = HAMI.backend.render(oversubscribe(), 1, take_snapshot(cluster))
    (config,) = [entry for entry in object_intents(rendered) if entry.kind == "ConfigMap"]
    found = cluster.get(*DEVICE_CONFIG)
    assert found is not None
    content = json.loads(config.fields[0].new or "")
    content["nodeconfig"].append({"name": "node-7", "devicesplitcount": 2})
    found["data"]["config.json"] = json.dumps(content)
    for _ in range(2):
        kept = take_back(tools_for(cluster, tmp_path), "plan-1", 1, [config], [], rendered.node_steps)
        assert kept == ()
        entries = json.loads(found["data"]["config.json"])["nodeconfig"]
        assert entries == [{"name": "node-9", "devicesplitcount": 4}, {"name": "node-7", "devicesplitcount": 2}]


@pytest.mark.parametrize("lends", [True, False])
def test_node_that_lends_goes_back_before_its_pods_do(tmp_path: Path, lends: bool) -> None:
    """A pod that came back first to a whole card would be granted all that the card registers."""
    cluster = ActingCluster()
    rendered = HAMI.backend.render(oversubscribe(), 1, take_snapshot(cluster))
    intents = [entry for entry in object_intents(rendered) if entry.kind in ("ConfigMap", "Deployment")]
    for intent in intents:
        found = cluster.get(intent.kind, intent.namespace, intent.name)
        assert found is not None
        for part in intent.fields:
            set_field(found, part.field, part.new)
    steps = [replace(step, registers_mib=((card_id(0), 1),) if lends else ()) for step in rendered.node_steps]
    take_back(tools_for(cluster, tmp_path), "plan-1", 1, intents, rendered.moves, steps)
    assert {what.split()[0] for what in cluster.patched} == {"ConfigMap", "Deployment"}
    assert cluster.patched[0].startswith("ConfigMap") is lends
    assert cluster.patched[-1].startswith("ConfigMap") is not lends


def test_node_that_somebody_labelled_otherwise_since_is_not_emptied(tmp_path: Path) -> None:
    cluster = ActingCluster()
    label, mark = "metadata.labels[nvidia.com/device-plugin.config]", "metadata.annotations[gputide.io/plan-id]"
    fields = tuple(FieldIntent(field=field, old=None, new="ours") for field in (label, mark))
    intent = ObjectIntent(
        kind="Node", namespace="", name="node-1", resource_version="1", recommendation="", fields=fields
    )
    step = NodeStep(node="node-1", back=(("status.allocatable[nvidia.com/gpu]", "4"),))

    def emptied() -> list[str]:
        return [one.node for one in steps_back(tools_for(cluster, tmp_path), [intent], [], [step])]

    assert emptied() == []
    for field in (label, mark):
        set_field(cluster.node(), field, "ours")
    assert emptied() == ["node-1"]
    set_field(cluster.node(), label, "theirs")
    assert emptied() == []


@pytest.mark.parametrize(
    ("resource", "offers", "owner", "why"),
    [
        ("nvidia.com/gpu", ("2", "14"), "Deployment", None),
        ("nvidia.com/mig-1g.10gb", ("2", "14"), "Deployment", "holds a share there"),
        ("nvidia.com/mig-1g.10gb", ("2", "0"), "Deployment", "holds a share there"),
        (None, ("2", "14"), "Deployment", "holds a share there"),
        ("nvidia.com/gpu", ("16", "0"), "Deployment", "holds a share there"),
        ("nvidia.com/gpu", ("2", "14"), "Pod", "nobody makes pod"),
        ("nvidia.com/gpu", ("2", "14"), "DaemonSet", "comes back to it at once"),
    ],
    ids=["whole card", "instance", "plugin away", "unreadable", "replica", "bare pod", "DaemonSet"],
)
def test_only_who_has_a_whole_card_and_may_leave_does_so_from_a_node_that_goes_back(
    tmp_path: Path, resource: str | None, offers: tuple[str, str], owner: str, why: str | None
) -> None:
    """A stage cut cards of a node; instances are not handed out any more once it is as before, whole cards are."""
    cluster = ActingCluster()
    node, field = cluster.node(), "metadata.labels[nvidia.com/mig.config]"
    set_field(node, field, "ours")
    paths = ("status.allocatable[nvidia.com/gpu]", "status.allocatable[nvidia.com/mig-1g.10gb]")
    for path, count in zip(paths, offers, strict=True):
        set_field(node, path, count)
    parts = (FieldIntent(field=field, old=None, new="ours"),)
    intent = ObjectIntent(
        kind="Node", namespace="", name="node-1", resource_version="1", recommendation="", fields=parts
    )
    step = NodeStep(
        node="node-1",
        offered_before=((paths[0], "4"), (paths[1], "0")),
        advertised=((paths[0], "2"), (paths[1], "14")),
    )
    seen = take_snapshot(cluster, HAMI_DIALECT)
    seat = next(iter(seen.seats.values()))
    held = SeatSlice(container="main", card=None, node="node-1", resource=resource)
    seen.seats.clear()
    seen.seats[seat.pod_id] = replace(
        seat, node="node-1", slices=(held,), workload=WorkloadId(f"team/{owner}/stranger")
    )

    def back() -> list[NodeStep]:
        return steps_back(tools_for(cluster, tmp_path), [intent], [], [step], seen)

    if why is None:
        assert [one.leaving for one in back()] == [((seat.namespace, seat.pod),)]
    else:
        with pytest.raises(Refused, match=why):
            back()


def test_recommendation_that_leaves_its_node_scaled_is_not_undone_by_itself(tmp_path: Path) -> None:
    """The node's configuration came with another one of the plan."""
    cluster = ActingCluster()
    rendered = HAMI.backend.render(oversubscribe(), 1, take_snapshot(cluster))
    twice(cluster.node("node-0"))
    objects = [
        replace(entry, recommendation="other" if entry.kind == "ConfigMap" else "x")
        for entry in object_intents(rendered)
    ]
    steps = [replace(step, registered_mib=((card_id(0), 24 * 1024),)) for step in rendered.node_steps]
    tools = tools_for(cluster, tmp_path)
    tools.journal.write("plan-1", NOW, "begin", stages=[1], by="ann", cards_granted=[])
    tools.journal.begin_stage(
        StageRecord(plan_id="plan-1", stage=1, objects=objects, moves=list(rendered.moves), node_steps=steps), NOW
    )
    undo = Undo(tools)
    with pytest.raises(Refused, match="back: node node-0 keeps registering more framebuffer"):
        undo.way_back(undo.preview("plan-1", recommendation="x"))
    undo.way_back(undo.preview("plan-1"))


def tools_for(cluster: ActingCluster, folder: Path) -> RunContext:
    return RunContext(
        reader=cluster,
        writer=cluster,
        lease=_Always(),
        pause=cluster.pause,
        journal=Journal(Ledger(folder / "ledger.jsonl")),
        guard=None,  # type: ignore[arg-type]
        signals=None,  # type: ignore[arg-type]
    )


class _Always:
    """A lease that nobody else wants."""

    def acquire(self, holder: str, seconds: float) -> bool:
        del holder, seconds
        return True

    def release(self, holder: str) -> None:
        del holder
