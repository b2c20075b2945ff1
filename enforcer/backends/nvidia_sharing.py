"""NVIDIA's time-slicing and MPS in the device plugin's words: a configuration per node, and replicas that pods ask for.

All cards of a node are shared alike, into as many replicas as its fullest card of the plan has slices. A node that
changes its way is emptied first: what runs there holds its card under the old resource, of which the new one knows
nothing, so a card would be handed out twice. Pods are kept on the nodes that the plan gives them (`node_pin`).

Which of a node's cards a replica lies on is the plugin's choice, and it takes the least used one. So a slice is right
only if any pods that may come to a node fit one of its cards together; and a card that the plan frees is really free
where its node has no pod left. On a node that keeps some, the plan's freed cards are free replicas, which is said.

Sources: NVIDIA/k8s-device-plugin:README.md, NVIDIA/k8s-device-plugin:api/config/v1/sharing.go,
NVIDIA/k8s-device-plugin:cmd/config-manager/main.go, NVIDIA/k8s-device-plugin:cmd/mps-control-daemon/mps/daemon.go.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import yaml

from enforcer.backend import NodeStep, RenderedStage
from enforcer.backends.alike import with_all_replicas, with_seats_as_they_are
from enforcer.backends.card_fit import check_isolation, core_percent, is_whole
from enforcer.backends.device_plugin import (
    CARD_RESOURCE,
    CARDS_LABEL,
    NODE_DIALECT,
    PLUGIN_CONFIGS,
    SHARED_RESOURCE,
    counted_slice,
    label_number,
    offered,
    offers,
    resource_fields,
)
from enforcer.backends.node_change import by_object, config_changes, config_of, leaving_pods, yaml_map
from enforcer.backends.node_pin import check_nodes, node_of, nodes_of_workloads, pin_fields
from enforcer.backends.stage import StageDraft, Target, check_kinds, draft_stage, rendered
from enforcer.dialect import Dialect, SeatSlice
from enforcer.manifest import Manifest, field_of
from enforcer.snapshot import Snapshot
from fleet.capabilities.capability import Capabilities, CorePolicy, equal_part_bytes, equal_part_percent
from fleet.capabilities.nvidia_sharing import MPS, TIME_SLICING
from fleet.decisions import CardPlacement, PlacedSlice, Plan
from fleet.errors import Refused
from fleet.inventory import WorkloadId
from fleet.outcomes import Change
from fleet.units import GIB

CONFIG_LABEL = "nvidia.com/device-plugin.config"
"""Label of a node: which key of the plugin's ConfigMap counts for it."""

_OWN_PREFIX = "gputide-"
"""Of the configurations that are written here."""

OWN_KEY = rf"{_OWN_PREFIX}[a-z0-9-]+"
"""What their keys in the plugin's ConfigMap match."""

_WHOLE_PREFIX = f"{_OWN_PREFIX}whole-"
"""Of those that share no cards."""

DOUBTED_PERCENTS = frozenset({14, 20, 46})
"""Limits of threads at which a public study reports wrong results under MPS, and none on MIG of the same size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedNode:
    """One node whose cards are shared after the plan.

    Attributes:
        replicas: into how many replicas each of its cards is shared.
        visitors: slices of all pods that may come to it, its own and those of workloads that sit on it.
    """

    node: str
    replicas: int
    cards: tuple[CardPlacement, ...]
    visitors: tuple[PlacedSlice, ...]


class NvidiaSharingBackend:
    """One of the plugin's two ways to share cards (the port `Backend`).

    Attributes:
        section: what the way is called in the plugin's configuration.
    """

    capabilities: Capabilities
    dialect: Dialect = NODE_DIALECT
    section: str

    def __init__(self, now: datetime) -> None:
        self._now = now

    def render(self, plan: Plan, stage: int, snapshot: Snapshot) -> RenderedStage:
        """Turn one stage into changes; see the port."""
        plan, along = with_all_replicas(with_seats_as_they_are(plan, snapshot), stage, snapshot, stays_on_node=False)
        nodes_of = nodes_of_workloads(plan)
        shared = shared_nodes(plan, nodes_of)

        def seater(card: CardPlacement, part: PlacedSlice) -> SeatSlice:
            is_shared = card.node in shared
            return counted_slice(part.container, card.node or "", SHARED_RESOURCE if is_shared else CARD_RESOURCE)

        draft = draft_stage(plan, stage, snapshot, seater)
        warnings = [*along, *draft.warnings, *check_kinds(self.capabilities, draft.recommendations)]
        changes: list[Change] = []
        steps: list[NodeStep] = []
        for card in draft.cards:
            if card.node not in shared:
                _check_whole(card, snapshot)
        for name in dict.fromkeys(card.node for card in draft.cards if card.node in shared):
            node = shared[name or ""]
            self._check(node, snapshot)
            found, step = self._node_change(node, draft, snapshot)
            changes += found
            steps += [] if step is None else [step]
            warnings += _freed_warnings(node, cards_of(node_of(snapshot, node.node)))
            warnings += self._burst_warnings(node)
            warnings += self._portion_warnings(node)
        check_nodes(draft, snapshot, nodes_of)

        def template_fields(owner: Manifest, kind: str, staying: Sequence[Target]) -> Mapping[str, str | None]:
            resources = resource_fields(owner, kind, staying, one_per_container=True)
            return {**resources, **pin_fields(kind, staying, plan.plan_id)}

        return rendered(
            draft, snapshot, template_fields, self._now,
            warnings=warnings, node_changes=by_object(changes), node_steps=steps,
        )  # fmt: skip

    def _check(self, node: SharedNode, snapshot: Snapshot) -> None:
        """Refuse what replicas can't hold; every refusal names the fact."""
        most = self.capabilities.slices_per_card_max
        if node.replicas > most:
            raise Refused(
                f"cannot share a card of node {node.node} {node.replicas} times with {self.capabilities.backend}: "
                f"slices_per_card_max={most}"
            )
        for card in node.cards:
            check_isolation(card, snapshot, self.capabilities)
            for part in card.slices:
                if part.mig_profile is not None:
                    raise Refused(
                        f"cannot give {part.pod_id} a MIG instance on node {node.node}: its cards are shared by "
                        f"{self.capabilities.backend}, and enforcer.backend=mig cuts"
                    )
                if is_whole(card, part):
                    raise Refused(
                        f"cannot leave {part.pod_id} card {card.card} alone: others share cards of node {node.node}, "
                        "and the device plugin shares all cards of a node alike"
                    )
        if self.capabilities is MPS:
            _check_portions(node)
        else:
            _check_together(node)

    def _burst_warnings(self, node: SharedNode) -> list[str]:
        bursting = sum(part.core_policy is CorePolicy.BURST for part in node.visitors)
        if not bursting or self.capabilities is not MPS:
            return []
        text = (
            f"{bursting} pods of node {node.node} are planned to use more while others rest: MPS lends nothing beyond "
            f"{equal_part_percent(node.replicas)} % of the threads"
        )
        return [text]

    def _portion_warnings(self, node: SharedNode) -> list[str]:
        percent = equal_part_percent(node.replicas)
        if self.capabilities is not MPS or percent not in DOUBTED_PERCENTS:
            return []
        text = (
            f"each of {node.replicas} parts of a card of node {node.node} has {percent} % of the threads: one study "
            "found silently wrong results of cluster kernels (cuBLASLt on H200) at that share, which NVIDIA has not "
            "confirmed; compare the results of a pod there, or cut the cards by MIG"
        )
        return [text]

    def _node_change(
        self, node: SharedNode, draft: StageDraft, snapshot: Snapshot
    ) -> tuple[list[Change], NodeStep | None]:
        """Configuration and label of a node, and what must be over before they are written; nothing if it is done."""
        manifest = node_of(snapshot, node.node)
        config = config_of(
            snapshot, PLUGIN_CONFIGS, f"share cards of node {node.node}",
            "let the device plugin read its configurations from one (chart value config.name; in the operator's "
            "ClusterPolicy devicePlugin.config.name)",
        )  # fmt: skip
        text = sharing_config(current_config(config, manifest), self.section, node.replicas)
        key = config_key(node.node, self.section, node.replicas, text)
        cards = cards_of(manifest)
        if cards < len(node.cards):
            raise Refused(
                f"cannot share cards of node {node.node}: by its label {CARDS_LABEL} or what it offers it has {cards} "
                f"cards, and the plan uses {len(node.cards)}"
            )
        advertised = cards * node.replicas
        changes = config_changes(draft.origin, config, f"data[{key}]", text, manifest, {CONFIG_LABEL: key})
        if not changes and offered(manifest, SHARED_RESOURCE) == advertised:
            return [], None
        step = NodeStep(
            node=node.node,
            leaving=leaving_pods(node.node, draft, snapshot, "shared in another way"),
            done_field=f"status.allocatable[{SHARED_RESOURCE}]",
            done_value=str(advertised),
            offered_before=offers(manifest, (CARD_RESOURCE, SHARED_RESOURCE)),
        )
        return changes, step


class TimeSlicingBackend(NvidiaSharingBackend):
    """`sharing.timeSlicing`: replicas that take turns."""

    capabilities = TIME_SLICING
    section = "timeSlicing"


class MpsBackend(NvidiaSharingBackend):
    """`sharing.mps`: replicas with an equal part each of framebuffer and threads."""

    capabilities = MPS
    section = "mps"


def shared_nodes(plan: Plan, nodes_of: Mapping[WorkloadId, tuple[str, ...]]) -> dict[str, SharedNode]:
    """Nodes on which a card has more than one slice after the plan, by name."""
    cards: dict[str, list[CardPlacement]] = {}
    slices_of: dict[WorkloadId, list[PlacedSlice]] = {}
    for card in plan.placement:
        cards.setdefault(card.node or "", []).append(card)
        for part in card.slices:
            slices_of.setdefault(part.workload, []).append(part)
    found = {}
    for node, own in sorted(cards.items()):
        replicas = max(len(card.slices) for card in own)
        if replicas > 1:
            visitors = [part for name, nodes in nodes_of.items() if node in nodes for part in slices_of[name]]
            found[node] = SharedNode(node=node, replicas=replicas, cards=tuple(own), visitors=tuple(visitors))
    return found


def sharing_config(current: str | None, section: str | None, replicas: int = 1) -> str:
    """The plugin's configuration of a node that shares its cards; what else stood in the node's own is kept.

    Replicas have a resource of their own (`renameByDefault`), and nobody gets two: two are not twice as much.

    Args:
        current: what counts for the node now, None where nothing does.
        section: `timeSlicing` or `mps`; None where it hands them out whole.
        replicas: per card.

    Raises:
        Corrupt: what counts now is no YAML map.
    """
    held = yaml_map(current, "the device plugin's")
    content: dict[str, object] = {"version": "v1"} | {str(key): one for key, one in held.items() if key != "sharing"}
    if section is None:
        return yaml.safe_dump(content, sort_keys=True)
    options: dict[str, object] = {"renameByDefault": True, "failRequestsGreaterThanOne": True}
    options["resources"] = [{"name": CARD_RESOURCE, "replicas": replicas}]
    content["sharing"] = {section: options}
    return yaml.safe_dump(content, sort_keys=True)


def config_key(node: str, section: str | None, replicas: int, text: str) -> str:
    """Under which key our configuration of a node stands: one of its own, so that an undo takes no other's."""
    how = _WHOLE_PREFIX if section is None else f"{_OWN_PREFIX}{section.lower()}-{replicas}-"
    return how + hashlib.sha256(f"{node}\n{text}".encode()).hexdigest()[:8]


def current_config(config: Manifest, node: Manifest) -> str | None:
    """The configuration that counts for a node now: its label's, else the plugin's choice of a default."""
    data = config.get("data") or {}
    chosen = node["metadata"].get("labels", {}).get(CONFIG_LABEL)
    for key in (chosen, "default"):
        if key is not None and key in data:
            return field_of(config, f"data[{key}]")
    return next(iter(data.values())) if len(data) == 1 else None


def _check_together(node: SharedNode) -> None:
    """Nothing keeps a pod within its framebuffer, and nobody knows whom it meets: the largest must fit together."""
    largest = sorted((part.framebuffer_bytes for part in node.visitors), reverse=True)[: node.replicas]
    smallest = min(card.framebuffer_bytes for card in node.cards)
    if sum(largest) > smallest:
        raise Refused(
            f"cannot share cards of node {node.node} {node.replicas} times: the {len(largest)} largest pods that may "
            f"come to it need {sum(largest) / GIB:.1f} GiB, a card has {smallest / GIB:.1f} GiB, and time-slicing says "
            "nothing of which replicas lie on one card"
        )


def _check_portions(node: SharedNode) -> None:
    """MPS gives equal parts: of framebuffer the card's over the replicas, of threads a hundred percent over them."""
    smallest = min(card.framebuffer_bytes for card in node.cards)
    part_bytes, percent = equal_part_bytes(smallest, node.replicas), equal_part_percent(node.replicas)
    for part in node.visitors:
        if part.framebuffer_bytes > part_bytes:
            raise Refused(
                f"cannot give {part.pod_id} {part.framebuffer_bytes / GIB:.1f} GiB on node {node.node}: MPS shares its "
                f"cards into {node.replicas} equal parts of {part_bytes / GIB:.1f} GiB"
            )
        if core_percent(part) > percent:
            raise Refused(
                f"cannot give {part.pod_id} {core_percent(part)} % of a card of node {node.node}: MPS gives each of "
                f"{node.replicas} clients {percent} % of the threads, and lends nothing"
            )


def _freed_warnings(node: SharedNode, cards: int) -> list[str]:
    if cards <= len(node.cards):
        return []
    taken = sum(len(card.slices) for card in node.cards)
    text = (
        f"{cards - len(node.cards)} of {cards} cards of node {node.node} are free by the plan, but the device plugin "
        f"spreads replicas over all of them: what is free there are {cards * node.replicas - taken} replicas, and no "
        "whole card for sure"
    )
    return [text]


def cards_of(node: Manifest) -> int:
    """How many cards a node has: by its labels, or by what it offers while it offers them whole."""
    counted = label_number(node, CARDS_LABEL)
    return offered(node, CARD_RESOURCE) if counted is None else counted


def _check_whole(card: CardPlacement, snapshot: Snapshot) -> None:
    """Whole cards are to be had on nodes that share none."""
    name = card.node or ""
    key = node_of(snapshot, name)["metadata"].get("labels", {}).get(CONFIG_LABEL, "")
    if key.startswith(_OWN_PREFIX) and not key.startswith(_WHOLE_PREFIX):
        raise Refused(
            f"cannot give a whole card of node {name}: its cards are shared by configuration {key} of an earlier plan; "
            "undo that plan first"
        )
