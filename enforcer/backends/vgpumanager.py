"""vgpu-manager's words for a plan: resources per card, a compute policy per pod, and framebuffer that really spills.

More framebuffer than a card has is granted by its node's `deviceMemoryScaling`: of every grant on that node only the
part divided by it is framebuffer, the rest is unified memory on the host. Sources: coldzerofear/vgpu-manager:README.md,
docs/how_to_use_gpu_virtual_memory.md, docs/how_to_use_deviceplugin_nodeconfig.md,
pkg/webhook/pod/mutate/pod_mutate.go (a container without cores and framebuffer gets all cores).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from enforcer.backend import NodeStep, RenderedStage
from enforcer.backends.card_fit import CORE_MODE, check_cards, check_cores, is_whole, shared_percent
from enforcer.backends.grant_backend import GrantFamily, NodeChanges, render_grants
from enforcer.backends.hami import hami_limits, registered_seat
from enforcer.backends.hami_dialect import cards_of_register
from enforcer.backends.node_config import check_standing, factor_of, plugin_pods, whole_card_warnings, with_registers
from enforcer.backends.pod_template import TemplateStyle
from enforcer.backends.stage import StageDraft, Target, field_changes
from enforcer.dialect import WHOLE_CORE_PERCENT, FixedDialect, ObjectKey, SeatSlice, StandingCard
from enforcer.manifest import Manifest, field_of
from enforcer.resource_names import Words
from enforcer.snapshot import Snapshot
from fleet.capabilities.register import VGPU_MANAGER, CorePolicy
from fleet.decisions import CardPlacement, PlacedSlice, Plan
from fleet.errors import Corrupt, Refused
from fleet.grammars.vgpumanager import (
    CARD_POLICY_ANNOTATION,
    NODE_POLICY_ANNOTATION,
    REAL_ALLOCATED_ANNOTATION,
    REGISTER_ANNOTATION,
    USE_CARD_ANNOTATION,
    parse_vgpu_allocation,
    parse_vgpu_register,
)
from fleet.json_text import json_value

NODE_CONFIG: ObjectKey = ("ConfigMap", "kube-system", "vgpu-manager-device-plugin-config")
NODE_CONFIG_FIELD = "data[nodeConfig.json]"
PLUGIN: ObjectKey = ("DaemonSet", "kube-system", "vgpu-manager-device-plugin")

_PLAIN_NAME = re.compile(r"[A-Za-z0-9.-]*", re.ASCII)
_LITERAL = re.compile(r"(?:[A-Za-z0-9-](?![*+?{]))*", re.ASCII)
"""What a regular expression begins with as it stands; a letter before a quantifier is none."""

SCHEDULER = "vgpu-scheduler"
POLICY_ANNOTATION = "nvidia.com/vgpu-compute-policy"

VGPU_MANAGER_WORDS = Words(
    count="nvidia.com/vgpu-number",
    framebuffer="nvidia.com/vgpu-memory",
    framebuffer_percent=None,
    cores="nvidia.com/vgpu-cores",
    priority=None,
    use_card=USE_CARD_ANNOTATION,
    avoid_card="nvidia.com/exclude-gpu-uuid",
    use_model="nvidia.com/include-gpu-type",
    avoid_model="nvidia.com/exclude-gpu-type",
    node_policy=NODE_POLICY_ANNOTATION,
    card_policy=CARD_POLICY_ANNOTATION,
)


class VgpuManagerDialect(FixedDialect):
    """vgpu-manager's annotations (the port `Dialect`)."""

    words = VGPU_MANAGER_WORDS
    config_objects: tuple[ObjectKey, ...] = (NODE_CONFIG,)

    def slices_of_pod(self, pod: Manifest) -> tuple[SeatSlice, ...]:
        """What `nvidia.com/real-allocated` says; see the port."""
        text = pod["metadata"].get("annotations", {}).get(REAL_ALLOCATED_ANNOTATION, "")
        return tuple(
            SeatSlice(
                container=held.container,
                card=grant.card,
                framebuffer_mib=grant.framebuffer_mib,
                core_percent=grant.core_percent,
            )
            for held in parse_vgpu_allocation(text)
            for grant in held.grants
        )

    def cards_of_node(self, node: Manifest) -> tuple[StandingCard, ...]:
        """What `nvidia.com/node-device-register` lists; see the port."""
        text = node["metadata"].get("annotations", {}).get(REGISTER_ANNOTATION, "[]")
        return cards_of_register(node, parse_vgpu_register(text))


VGPU_MANAGER_DIALECT = VgpuManagerDialect()


class VgpuManagerBackend:
    """vgpu-manager (the port `Backend`)."""

    capabilities = VGPU_MANAGER
    dialect = VGPU_MANAGER_DIALECT

    def __init__(self, now: datetime) -> None:
        self._now = now

    def render(self, plan: Plan, stage: int, snapshot: Snapshot) -> RenderedStage:
        """Turn one stage into changes; see the port."""
        bursting = {
            part.pod_id for card in plan.placement for part in card.slices if part.core_policy is CorePolicy.BURST
        }

        def annotations(example: Target) -> Mapping[str, str | None]:
            return {POLICY_ANNOTATION: "balance" if example.seat.pod_id in bursting else "fixed"}

        family = GrantFamily(
            capabilities=VGPU_MANAGER,
            seat_of=_seat,
            style=TemplateStyle(
                limits_of=hami_limits,
                annotations=annotations,
                annotation_defaults={POLICY_ANNOTATION: "fixed"},
                scheduler_name=SCHEDULER,
            ),
            check=_check,
            node_changes=_node_changes,
        )
        return render_grants(family, VGPU_MANAGER_DIALECT, plan, stage, snapshot, self._now)


def _seat(card: CardPlacement, part: PlacedSlice, snapshot: Snapshot, words: Words) -> SeatSlice:
    whole = is_whole(card, part)
    percent = WHOLE_CORE_PERCENT if whole else shared_percent(card, part)
    return registered_seat(card, part, snapshot, words, whole=whole, core_percent=percent)


def _check(draft: StageDraft, snapshot: Snapshot) -> Sequence[str]:
    warnings = check_cards(draft, snapshot, VGPU_MANAGER, (CORE_MODE,))
    _check_blocks({card.node for card in draft.cards if card.node is not None}, snapshot)
    for card in draft.cards:
        check_cores(card, card.slices, "its scheduler")
    return (*warnings, *whole_card_warnings(draft, snapshot))


def _check_blocks(nodes: Iterable[str], snapshot: Snapshot) -> None:
    """A node may count framebuffer in larger units than others, while a template names one amount for all."""
    manifest = snapshot.configs.get(NODE_CONFIG)
    for entry in _entries(None if manifest is None else field_of(manifest, NODE_CONFIG_FIELD)):
        factor, name = entry.get("deviceMemoryFactor", 1), str(entry["nodeName"])
        covered = sorted(node for node in nodes if node == name or _may_cover(name, node))
        if factor not in (None, 1) and covered:
            raise Refused(
                f"cannot grant framebuffer on node {covered[0]}: deviceMemoryFactor={factor} of the entry {name!r} "
                f"lets it count in blocks of {factor} MiB, other nodes in MiB"
            )


def _node_changes(draft: StageDraft, snapshot: Snapshot) -> NodeChanges:
    """Scaling and split count of nodes whose cards are to hold more than they register."""
    wanted: dict[str, dict[str, float | int]] = {}
    for card in draft.cards:
        standing = snapshot.cards[card.card]
        entry = wanted.setdefault(standing.node, {})
        factor = factor_of(card, standing)
        if factor is not None:
            check_standing(card, draft, snapshot)
            entry["deviceMemoryScaling"] = max(factor, entry.get("deviceMemoryScaling", factor))
        if len(card.slices) > standing.slices_max:
            entry["deviceSplitCount"] = max(len(card.slices), int(entry.get("deviceSplitCount", 0)))
    wanted = {node: entry for node, entry in wanted.items() if entry}
    if not wanted:
        return NodeChanges()
    manifest = snapshot.configs.get(NODE_CONFIG)
    if manifest is None or field_of(manifest, NODE_CONFIG_FIELD) is None:
        raise Refused(
            f"cannot grant more than cards register on {', '.join(sorted(wanted))}: there is no nodeConfig.json in "
            f"ConfigMap {NODE_CONFIG[1]}/{NODE_CONFIG[2]}; start the device plugin with --node-config-path on one"
        )
    new = _merged(field_of(manifest, NODE_CONFIG_FIELD), wanted)
    recommendation = draft.recommendations[0].id if draft.recommendations else ""
    return NodeChanges(
        changes=tuple(field_changes(manifest, {NODE_CONFIG_FIELD: new}, recommendation)),
        steps=tuple(
            with_registers(NodeStep(node=node, restarts=plugin_pods(node, snapshot, PLUGIN)), draft, snapshot)
            for node in sorted(wanted)
        ),
    )


def _merged(text: str | None, wanted: Mapping[str, Mapping[str, float | int]]) -> str:
    """The configuration with entries for single nodes, in front: of those that cover a node the first counts."""
    entries = _entries(text)
    names = [str(entry["nodeName"]) for entry in entries]
    own: list[dict[str, Any]] = []
    for node, values in sorted(wanted.items()):
        patterns = [name for name in names if _may_cover(name, node)]
        if patterns:
            raise Refused(
                f"cannot configure node {node} by itself: the entry {patterns[0][:128]!r} of {NODE_CONFIG[2]} covers "
                "it already, and an entry of its own would hide what that one says"
            )
        found = next((entry for entry in entries if entry["nodeName"] == node), None)
        if found is None:
            found = {"nodeName": node}
            own.append(found)
        found.update(values)
    return json.dumps([*own, *entries])


def _entries(text: str | None) -> list[dict[str, Any]]:
    try:
        entries: list[dict[str, Any]] = [dict(entry) for entry in json_value(text or "[]")]
        if all(isinstance(entry["nodeName"], str) for entry in entries):
            return entries
    except (ValueError, TypeError, KeyError) as exc:
        raise Corrupt(f"cannot read ConfigMap {NODE_CONFIG[1]}/{NODE_CONFIG[2]}: nodeConfig.json is no list") from exc
    raise Corrupt(f"cannot read ConfigMap {NODE_CONFIG[1]}/{NODE_CONFIG[2]}: a nodeName is no text")


def _may_cover(pattern: str, node: str) -> bool:
    """Whether an entry for several nodes, whose name is a regular expression, may mean a node.

    Not run as one: who writes the ConfigMap could write one that takes for ever. Only its beginning is compared, so
    some are taken for covering a node that they do not.
    """
    if _PLAIN_NAME.fullmatch(pattern):
        return False
    if "|" in pattern:
        return True
    literal = _LITERAL.match(pattern.lstrip("^"))
    prefix = "" if literal is None else literal[0]
    return node.startswith(prefix) if pattern.startswith("^") else prefix in node
