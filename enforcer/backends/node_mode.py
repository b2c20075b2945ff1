"""Puts one node into another mode because somebody asks: whole cards, slices, replicas, or MIG instances.

The programs that hand out a node's cards read for single nodes how they do it: HAMi's and Volcano's plugin by the
node's entry of their node configuration, NVIDIA's by the key of its ConfigMap that the node's label
`nvidia.com/device-plugin.config` names, mig-manager by `nvidia.com/mig.config`. Pods that hold cards there leave first:
the new way knows nothing of them. What is rendered is carried out and taken back like a stage of any plan. Pure.

Sources: Project-HAMi/HAMi:pkg/device/nvidia/device.go (NodeDefaultConfig),
Project-HAMi/HAMi:docs/develop/dynamic-mig.md, NVIDIA/k8s-device-plugin:cmd/config-manager/main.go,
NVIDIA/mig-parted:cmd/nvidia-mig-manager/main.go.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from enforcer.backend import NodeStep, RenderedStage
from enforcer.backends.card_fit import CORE_MODE, MIG_MODE
from enforcer.backends.device_plugin import (
    CARD_RESOURCE,
    FRAMEBUFFER_LABEL,
    MIG_CONFIGS,
    PLUGIN_CONFIGS,
    PRODUCT_LABEL,
    REPLICAS_LABEL,
    SHARED_RESOURCE,
    STRATEGY_LABEL,
    DevicePluginDialect,
    hands_out,
    label_number,
    offered,
)
from enforcer.backends.hami_dialect import HamiDialect
from enforcer.backends.kai import KaiDialect
from enforcer.backends.mig import cards_to_cut, check_layout, cut_changes, cut_step, instance_resource, mig_family
from enforcer.backends.node_change import by_object, config_changes, config_of
from enforcer.backends.node_config import MIG_MANAGER_LABEL, NODE_CONFIG_FIELD, Setting, plugin_pods, with_entries
from enforcer.backends.node_pin import node_of
from enforcer.backends.nvidia_sharing import CONFIG_LABEL, cards_of, config_key, current_config, sharing_config
from enforcer.backends.stage import field_changes, owner_field_changes
from enforcer.backends.volcano import NODE_CONFIG, PLUGIN, VolcanoDialect
from enforcer.dialect import Dialect, StandingCard
from enforcer.manifest import Manifest, field_of, workload_parts
from enforcer.node_loss import pods_leaving
from enforcer.node_plan import PlanPlace, plan_of_node
from enforcer.snapshot import Snapshot
from fleet.capabilities.capability import Capabilities
from fleet.capabilities.nvidia_sharing import MPS, TIME_SLICING
from fleet.catalogue import find_model
from fleet.decisions import Plan, Recommendation
from fleet.errors import Refused
from fleet.grammars.mig import profile_of_resource
from fleet.inventory import NODE_MODE_LABEL
from fleet.node_changes import NodeMode, NodeSwitch
from fleet.outcomes import Change
from fleet.sentences import sentence
from fleet.settings.settings import Settings
from fleet.units import MIB
from fleet.workload_kinds import SERVICE_KINDS

_REPLICAS: Mapping[NodeMode, tuple[str, Capabilities]] = {
    NodeMode.TIME_SLICING: ("timeSlicing", TIME_SLICING),
    NodeMode.MPS: ("mps", MPS),
}
"""What each way of replicas is called in the plugin's configuration, and its record."""


def modes_of(dialect: Dialect) -> tuple[NodeMode, ...]:
    """Modes that a node can be put into where a backend of this dialect is installed; empty where none can be."""
    if isinstance(dialect, HamiDialect):
        return NodeMode.WHOLE, NodeMode.VGPU, NodeMode.MIG
    if isinstance(dialect, VolcanoDialect):
        return NodeMode.WHOLE, NodeMode.VGPU
    if isinstance(dialect, DevicePluginDialect) and not isinstance(dialect, KaiDialect):
        return NodeMode.WHOLE, *_REPLICAS, NodeMode.MIG
    return ()


def present_mode(node: str, snapshot: Snapshot) -> NodeMode | None:
    """The mode that a node is in by what it shows of itself; None where it shows no cards.

    Raises:
        Refused: there is no such node.
    """
    manifest, cards = node_of(snapshot, node), snapshot.cards_on(node)
    if isinstance(snapshot.dialect, DevicePluginDialect):
        return _plugin_mode(manifest)
    if not cards:
        return None
    if all(card.mode == MIG_MODE for card in cards):
        return NodeMode.MIG
    return NodeMode.WHOLE if all(card.slices_max == 1 for card in cards) else NodeMode.VGPU


def offers_of(node: str, snapshot: Snapshot) -> dict[str, int]:
    """How many devices of each of the backend's resources a node has to give, taken or not.

    Raises:
        Refused: there is no such node.
    """
    manifest = node_of(snapshot, node)
    known = manifest.get("status", {}).get("allocatable") or {}
    count = getattr(getattr(snapshot.dialect, "words", None), "count", None)
    return {name: offered(manifest, name) for name in sorted(known) if hands_out(name) or name == count}


def switch_plan(
    switch: NodeSwitch,
    record: Capabilities,
    *,
    cards: int,
    cluster: str,
    version: str | None,
    now: datetime,
    settings: Settings,
) -> Plan:
    """The sealed plan of one stage that switches a node: no history speaks for it, only the person who asks.

    Args:
        record: of the backend that is installed.
        cards: of the node, all of which are emptied; the plan's totals say them before and after.
        version: tag of what runs of it; None where that is not known.
        now: of the cluster; all that the plan was made from.
    """
    title = sentence("node_switch", node=switch.node, mode=switch.mode.value)
    place = PlanPlace(cluster=cluster, backend=record.backend, version=version, cards=cards)
    return plan_of_node(switch, title, place, now, settings)


def with_defaults(switch: NodeSwitch, snapshot: Snapshot) -> NodeSwitch:
    """The switch with some parts of cards, where a mode needs them and nobody says any: to ask if it is possible."""
    if switch.mode in _REPLICAS and switch.slices is None:
        return replace(switch, slices=2)
    if switch.mode is NodeMode.MIG and not switch.profiles:
        return replace(switch, profiles=cuts_of(switch.node, snapshot)[:1])
    return switch


def cuts_of(node: str, snapshot: Snapshot) -> tuple[tuple[str, int], ...]:
    """MIG profiles that a node's cards can be cut into beforehand, and how many of each alone; empty where none can.

    Raises:
        Refused: there is no such node.
    """
    if not isinstance(snapshot.dialect, DevicePluginDialect):
        return ()
    model = find_model(_product(node_of(snapshot, node)))
    known = () if model is None or model.mig is None else model.mig.profiles
    return tuple((profile.name, profile.count_max) for profile in known)


def render_switch(plan_id: str, switch: NodeSwitch, snapshot: Snapshot, record: Capabilities) -> RenderedStage:
    """The one stage of a plan that switches a node.

    Args:
        plan_id: of that plan.
        record: what the backend that runs enforces.

    Raises:
        Refused: the backend has no such mode, the node's cards can't be handed out so, it is in that mode already, or
            a pod there may not be made to leave.
        Corrupt: a configuration is not the backend's.
    """
    modes = modes_of(snapshot.dialect)
    if switch.mode not in modes:
        known = ", ".join(modes) or "none: its pods or the scheduler choose, not the node"
        raise Refused(f"cannot put node {switch.node} into mode {switch.mode}: modes with {record.backend}: {known}")
    if switch.slices is not None and switch.mode in (NodeMode.WHOLE, NodeMode.MIG):
        raise Refused(f"cannot share each card {switch.slices} times in mode {switch.mode}")
    if switch.profiles and switch.mode is not NodeMode.MIG:
        raise Refused(f"cannot cut MIG instances in mode {switch.mode}")
    render = _plugin_switch if isinstance(snapshot.dialect, DevicePluginDialect) else _kin_switch
    changes, step = render(_Wanted(plan_id=plan_id, switch=switch, record=record), snapshot)
    manifest = node_of(snapshot, switch.node)
    if _shows(step, manifest, snapshot):
        raise Refused(f"node {switch.node} is in mode {switch.mode} already")
    # The marks say whose mode it is: of several switches only the last one is taken back, and plans heed it.
    fields = {change.field: change.new for change in changes if change.kind == "Node" and "labels" in change.field}
    fields[f"metadata.labels[{NODE_MODE_LABEL}]"] = switch.mode.value
    others = [change for change in changes if change.kind != "Node"]
    changes = [*others, *owner_field_changes(manifest, fields, plan_id, "")]
    paths = dict.fromkeys([*map(_allocatable, offers_of(switch.node, snapshot)), *dict(step.advertised)])
    if not paths:
        raise Refused(f"cannot switch node {switch.node}: it offers no devices; see to its device plugin")
    back = tuple((path, field_of(manifest, path) or "0") for path in paths)
    leaving = pods_leaving(switch.node, snapshot)
    _check_settled(switch.node, leaving, snapshot)
    return RenderedStage(
        stage=1,
        changes=tuple(by_object(changes)),
        moves=(),
        warnings=tuple(_warnings(switch, snapshot)),
        node_steps=(replace(step, leaving=leaving, back=back),),
    )


def check_modes(plan: Plan, chosen: Iterable[Recommendation], snapshot: Snapshot) -> None:
    """Refuse a stage that shares a card of a node whose cards somebody wants to be whole.

    Raises:
        Refused: naming the node and its mark.
    """
    changing = {pod for item in chosen for pod in item.pods}
    for card in plan.placement:
        pods = {part.pod_id for part in card.slices}
        labels = snapshot.nodes.get(card.node or "", {}).get("metadata", {}).get("labels", {})
        if len(pods) > 1 and not pods.isdisjoint(changing) and labels.get(NODE_MODE_LABEL) == NodeMode.WHOLE:
            raise Refused(sentence("guard.node_whole", plan=plan.plan_id, node=card.node or "", card=str(card.card)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """A switch of a plan, and what the backend enforces."""

    plan_id: str
    switch: NodeSwitch
    record: Capabilities

    def slices(self, most: int, default: int | None) -> int:
        """Into how many parts each card may be shared.

        Raises:
            Refused: nobody says, or so many can't be.
        """
        found = default if self.switch.slices is None else self.switch.slices
        if found is None or not 2 <= found <= most:
            raise Refused(
                f"cannot put node {self.switch.node} into mode {self.switch.mode} with --slices {found}: expected 2 to "
                f"{most} of each card"
            )
        return found


def _kin_switch(wanted: _Wanted, snapshot: Snapshot) -> tuple[list[Change], NodeStep]:
    """HAMi's and Volcano's: an entry of the node configuration, which the plugin reads when it starts."""
    switch, dialect = wanted.switch, snapshot.dialect
    key, plugin = (dialect.node_config, dialect.plugin) if isinstance(dialect, HamiDialect) else (NODE_CONFIG, PLUGIN)
    cards = snapshot.cards_on(switch.node)
    if not cards:
        raise Refused(f"cannot switch node {switch.node}: it registers no cards with {wanted.record.backend}")
    settings = _entry(wanted, cards, node_of(snapshot, switch.node))
    config = config_of(
        snapshot, (key,), f"switch node {switch.node}",
        f"let the device plugin read its node configuration from {key[1]}/{key[2]}",
    )  # fmt: skip
    text = with_entries(field_of(config, NODE_CONFIG_FIELD), {switch.node: settings}, key)
    count: str = dialect.words.count  # type: ignore[attr-defined]
    parts = settings.get("devicesplitcount")
    step = NodeStep(
        node=switch.node,
        restarts=plugin_pods(switch.node, snapshot, plugin),
        done_mode=str(settings["operatingmode"]),
        # How many instances fit is known to nobody before pods ask for them.
        advertised=() if parts is None else ((_allocatable(count), str(int(parts) * len(cards))),),
    )
    return field_changes(config, {NODE_CONFIG_FIELD: text}, ""), step


def _entry(wanted: _Wanted, cards: Sequence[StandingCard], node: Manifest) -> dict[str, Setting]:
    """The settings of a node in HAMi's words."""
    match wanted.switch.mode:
        case NodeMode.MIG:
            _check_kin_mig(wanted, cards, node)
            return {"operatingmode": MIG_MODE}
        case NodeMode.WHOLE:
            # A whole card that is scaled would register more framebuffer than there is.
            return {"operatingmode": CORE_MODE, "devicesplitcount": 1, "devicememoryscaling": 1}
        case _:
            most = wanted.record.slices_per_card_max
            return {"operatingmode": CORE_MODE, "devicesplitcount": wanted.slices(most, most)}


def _check_kin_mig(wanted: _Wanted, cards: Sequence[StandingCard], node: Manifest) -> None:
    switch, fact = wanted.switch, dict(wanted.record.refuses).get("mig")
    if fact is not None:
        raise Refused(f"cannot put node {switch.node} into mode mig with {wanted.record.backend}: {fact}")
    if switch.profiles:
        raise Refused(
            f"cannot cut {switch.profiles[0][0]} on node {switch.node} beforehand: {wanted.record.backend} cuts a card "
            "when a pod asks for a part of it; leave out --profile"
        )
    if MIG_MANAGER_LABEL in node["metadata"].get("labels", {}):
        raise Refused(
            f"cannot put node {switch.node} into mode mig: its label {MIG_MANAGER_LABEL} hands its cards to NVIDIA's "
            "MIG manager, and only one of the two may cut them"
        )
    for card in cards:
        mig_family(card.card, card.device_type.removeprefix("NVIDIA-"))


def _plugin_switch(wanted: _Wanted, snapshot: Snapshot) -> tuple[list[Change], NodeStep]:
    """NVIDIA's: a configuration of the device plugin, or a layout of mig-manager, and the label that names it."""
    switch = wanted.switch
    manifest, present = node_of(snapshot, switch.node), present_mode(switch.node, snapshot)
    if switch.mode is NodeMode.MIG or present is NodeMode.MIG:
        return _cut_switch(wanted, manifest, present, snapshot)
    section, replicas = None, 1
    if switch.mode in _REPLICAS:
        section, record = _REPLICAS[switch.mode]
        replicas = wanted.slices(record.slices_per_card_max, None)
    cards = cards_of(manifest)
    if not cards:
        raise Refused(
            f"cannot switch node {switch.node}: neither its labels nor what it offers say how many cards it has"
        )
    config = config_of(
        snapshot, PLUGIN_CONFIGS, f"switch node {switch.node}",
        "let the device plugin read its configurations from one (chart value config.name; in the operator's "
        "ClusterPolicy devicePlugin.config.name)",
    )  # fmt: skip
    text = sharing_config(current_config(config, manifest), section, replicas)
    key = config_key(switch.node, section, replicas, text)
    changes = config_changes((wanted.plan_id, ""), config, f"data[{key}]", text, manifest, {CONFIG_LABEL: key})
    offers = {
        CARD_RESOURCE: cards if section is None else 0,
        SHARED_RESOURCE: 0 if section is None else cards * replicas,
    }
    advertised = tuple((_allocatable(resource), str(count)) for resource, count in offers.items())
    return changes, NodeStep(node=switch.node, advertised=advertised)


def _cut_switch(
    wanted: _Wanted, manifest: Manifest, present: NodeMode | None, snapshot: Snapshot
) -> tuple[list[Change], NodeStep]:
    """Cards of a node are cut, cut in another way, or whole again."""
    switch = wanted.switch
    if {switch.mode, present} & {*_REPLICAS}:
        raise Refused(
            f"cannot put node {switch.node} from mode {present} into mode {switch.mode}: NVIDIA's plugin does not "
            "share cards that are cut; go by mode whole"
        )
    count, model = cards_to_cut(manifest, 1), _product(manifest)
    if switch.mode is NodeMode.MIG:
        mib = label_number(manifest, FRAMEBUFFER_LABEL)
        framebuffer = None if mib is None else mib * MIB
        family = mig_family(f"of node {switch.node}", model, framebuffer)
        if not switch.profiles:
            known = ", ".join(f"{entry.name}={entry.count_max}" for entry in family.profiles)
            raise Refused(
                f"cannot cut cards of node {switch.node}: say --profile, of {model} one or several of {known}"
            )
        check_layout(f"of node {switch.node}", model, switch.profiles, framebuffer)
    config = config_of(
        snapshot, MIG_CONFIGS, f"cut cards of node {switch.node}",
        "make one and name it in the operator's ClusterPolicy as migManager.config.name (its own default is written "
        "back by the operator)",
    )  # fmt: skip
    layouts = [switch.profiles] * count if switch.profiles else []
    changes = cut_changes((wanted.plan_id, ""), config, manifest, count, layouts)
    gone = dict.fromkeys(offers_of(switch.node, snapshot), 0)
    cut = {instance_resource(profile): number * count for profile, number in switch.profiles}
    return changes, cut_step(switch.node, (), {**gone, CARD_RESOURCE: 0 if cut else count, **cut})


def _product(node: Manifest) -> str:
    found: str = node["metadata"].get("labels", {}).get(PRODUCT_LABEL, "")
    return found


def _plugin_mode(node: Manifest) -> NodeMode | None:
    known = node.get("status", {}).get("allocatable") or {}
    if any(profile_of_resource(name) is not None and offered(node, name) for name in known):
        return NodeMode.MIG
    if not cards_of(node) and not offered(node, SHARED_RESOURCE):
        return None
    labels = node["metadata"].get("labels", {})
    if not offered(node, SHARED_RESOURCE) and (label_number(node, REPLICAS_LABEL) or 1) == 1:
        return NodeMode.WHOLE
    is_mps = labels.get(STRATEGY_LABEL, labels.get(CONFIG_LABEL, "")).removeprefix("gputide-").startswith("mps")
    return NodeMode.MPS if is_mps else NodeMode.TIME_SLICING


def _shows(step: NodeStep, node: Manifest, snapshot: Snapshot) -> bool:
    """Whether a node shows already what a step waits for."""
    modes = {card.mode for card in snapshot.cards_on(step.node)}
    return (step.done_mode is None or modes == {step.done_mode}) and all(
        (field_of(node, path) or "0") == value for path, value in step.advertised
    )


def _check_settled(node: str, leaving: Sequence[tuple[str, str]], snapshot: Snapshot) -> None:
    """Refuse to take pods from a service of which others are not ready: it rolls, or is short of pods already."""
    for workload in sorted({snapshot.seats["/".join(pod)].workload for pod in leaving}):
        # One that is over has a node and no share of a card.
        short = [
            seat.pod_id
            for seat in snapshot.pods[workload]
            if not seat.is_ready and seat.node != node and (seat.slices or seat.node is None)
        ]
        if short and workload_parts(workload)[1] in SERVICE_KINDS:
            raise Refused(
                f"cannot empty node {node}: {len(short)} pods of {workload} elsewhere are not ready, such as {short[0]}"
            )


def _warnings(switch: NodeSwitch, snapshot: Snapshot) -> list[str]:
    """What holds only in part, and what leaving costs."""
    found = []
    if switch.mode in _REPLICAS:
        record = _REPLICAS[switch.mode][1]
        found += [f"mode {switch.mode}: {fact}" for kind, fact in record.partly if kind == "slice"]
    seats = (snapshot.seats[f"{namespace}/{name}"] for namespace, name in snapshot.holders(switch.node))
    jobs = [seat.pod_id for seat in seats if workload_parts(seat.workload)[1] == "Job"]
    return [*found, *([f"pods of Jobs begin anew: {len(jobs)}, such as {jobs[0]}"] if jobs else [])]


def _allocatable(resource: str) -> str:
    return f"status.allocatable[{resource}]"
