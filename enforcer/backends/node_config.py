"""HAMi's node configuration (`nodeconfig`): memory scaling, split count and operating mode of single nodes.

A node's entry overrides the chart's values; the device plugin reads it when it starts, so its pod on that node starts
anew. Running pods keep what they have, except in a change of mode, for which the node's cards must be empty. Sources:
Project-HAMi/HAMi:pkg/device/nvidia/device.go (DevicePluginConfigs), Project-HAMi/HAMi#705,
Project-HAMi/HAMi:docs/develop/dynamic-mig.md.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from enforcer.backend import ROUNDED_MIB, NodeStep
from enforcer.backends.card_fit import CORE_MODE, MIG_MODE, granted_mib, mode_of
from enforcer.backends.grant_backend import NodeChanges
from enforcer.backends.stage import StageDraft, field_changes
from enforcer.dialect import WHOLE_CORE_PERCENT, ObjectKey, StandingCard
from enforcer.manifest import field_of, workload_parts
from enforcer.snapshot import Snapshot
from fleet.decisions import CardPlacement
from fleet.errors import Corrupt, Refused
from fleet.json_text import json_value
from fleet.units import MIB

NODE_CONFIG_FIELD = "data[config.json]"

MIG_MANAGER_LABEL = "nvidia.com/mig.config"
"""On a node whose cards NVIDIA's MIG manager cuts; HAMi must not be asked to do the same there."""

Setting = float | int | str


def node_config_changes(draft: StageDraft, snapshot: Snapshot, config: ObjectKey, plugin: ObjectKey) -> NodeChanges:
    """What the nodes' configuration must say so that their cards hold what a stage puts on them.

    Args:
        snapshot: the cluster; its `configs` hold the ConfigMap where there is one.

    Returns:
        One change of the ConfigMap and the plugin pods to start anew, or nothing where all fits.

    Raises:
        Refused: a card is over-granted by slices that are not marked so, a mode can't be switched, or there is no such
            ConfigMap.
        Corrupt: the ConfigMap is not HAMi's.
    """
    wanted: dict[str, dict[str, Setting]] = {}
    lent = {card.node for card in draft.cards if card.memory_scaling is not None}
    for card in draft.cards:
        if factor_of(card, snapshot.cards[card.card]) is not None:
            check_standing(card, draft, snapshot)
        for key, value in _settings_of(card, snapshot).items():
            entry = wanted.setdefault(snapshot.cards[card.card].node, {})
            if key == "operatingmode" and entry.get(key, value) != value:
                raise Refused(
                    f"cannot share cards of node {snapshot.cards[card.card].node} in modes {entry[key]} and {value}: "
                    "operatingmode is a node's"
                )
            entry[key] = value if isinstance(value, str) else max(value, entry.get(key, value))
    if not wanted:
        return NodeChanges()
    manifest = snapshot.configs.get(config)
    if manifest is None:
        raise Refused(
            f"cannot set {_shown(wanted)}: there is no ConfigMap {config[1]}/{config[2]}; set "
            "devicePlugin.deviceMemoryScaling and devicePlugin.deviceSplitCount in the chart"
        )
    modes = {node: str(entry["operatingmode"]) for node, entry in wanted.items() if "operatingmode" in entry}
    for node, mode in modes.items():
        _check_switch(node, mode, draft, snapshot)
    recommendation = draft.recommendations[0].id if draft.recommendations else ""
    new = with_entries(field_of(manifest, NODE_CONFIG_FIELD), wanted, config)
    return NodeChanges(
        changes=tuple(field_changes(manifest, {NODE_CONFIG_FIELD: new}, recommendation)),
        steps=tuple(
            with_registers(step, draft, snapshot) if step.node in lent else step
            for step in (_step(node, modes.get(node), snapshot, plugin) for node in sorted(wanted))
        ),
    )


def plugin_pods(node: str, snapshot: Snapshot, plugin: ObjectKey) -> tuple[tuple[str, str], ...]:
    """Pods of the device plugin's DaemonSet on a node, `(namespace, name)`."""
    return tuple(
        (seat.namespace, seat.pod)
        for seat in snapshot.seats.values()
        if seat.node == node and workload_parts(seat.workload) == (plugin[1], "DaemonSet", plugin[2])
    )


def scaling_of(card: CardPlacement, standing: StandingCard) -> float:
    """The factor by which a node must scale the framebuffer of a card that is granted more than it registers.

    Raises:
        Refused: no slice on the card is marked oversubscribed.
    """
    granted = granted_mib(card)
    if not any(part.oversubscribed for part in card.slices):
        raise Refused(
            f"cannot grant {granted} MiB on card {card.card}: its node registers {standing.framebuffer_mib} MiB, "
            "and no slice on it is marked oversubscribed"
        )
    return math.ceil(granted * MIB / card.framebuffer_bytes * 100 + 1) / 100


def factor_of(card: CardPlacement, standing: StandingCard) -> float | None:
    """The factor that a card's node must have; None where what it registers is enough already."""
    if card.memory_scaling is None:
        return scaling_of(card, standing) if granted_mib(card) > standing.framebuffer_mib else None
    enough = int(card.framebuffer_bytes // MIB * card.memory_scaling) - ROUNDED_MIB
    return card.memory_scaling if standing.framebuffer_mib < enough else None


def check_standing(card: CardPlacement, draft: StageDraft, snapshot: Snapshot) -> None:
    """A pod that is not made anew keeps the whole grant that it began with, so it lends nothing.

    Raises:
        Refused: such a pod stays on a card on which framebuffer is to be lent.
    """
    staying = {part.pod_id for part in card.slices} - _moving(draft)
    held = sorted(seat.pod_id for seat in snapshot.seats.values() if seat.pod_id in staying and card.card in seat.cards)
    if card.memory_scaling is not None and held:
        raise Refused(
            f"cannot lend framebuffer on card {card.card}: {held[0]} was started before its node's factor and keeps "
            "all that it was granted; restart it first"
        )


def whole_card_warnings(draft: StageDraft, snapshot: Snapshot) -> Sequence[str]:
    """Pods with a whole card on nodes that get a factor: started anew, one is granted all that its card registers."""
    moving = _moving(draft)
    nodes = {
        standing.node: card.memory_scaling
        for card in draft.cards
        if card.memory_scaling is not None and factor_of(card, standing := snapshot.cards[card.card]) is not None
    }
    whole = sorted(
        (seat.node, seat.pod_id)
        for seat in snapshot.seats.values()
        if seat.node in nodes and seat.pod_id not in moving
        if any(part.core_percent == WHOLE_CORE_PERCENT for part in seat.slices)
    )
    return tuple(
        f"{pod} has its card whole on node {node}: started anew before it moves, it sees {nodes[node]} times its "
        "card's framebuffer"
        for node, pod in whole
    )


def with_registers(step: NodeStep, draft: StageDraft, snapshot: Snapshot) -> NodeStep:
    """A step of a node whose cards get a factor, with what they register before and after it."""
    own = {name: standing for name, standing in sorted(snapshot.cards.items()) if standing.node == step.node}
    factors = {card.card: factor_of(card, own[card.card]) for card in draft.cards if card.card in own}
    sizes = {card.card: card.framebuffer_bytes // MIB for card in draft.cards}
    after = tuple((name, int(sizes[name] * factor) - ROUNDED_MIB) for name, factor in factors.items() if factor)
    before = tuple((name, standing.framebuffer_mib) for name, standing in own.items()) if after else ()
    return replace(step, registers_mib=after, registered_mib=before)


def _moving(draft: StageDraft) -> set[str]:
    return {entry.seat.pod_id for targets in draft.targets.values() for entry in targets if entry.new is not None}


def _settings_of(card: CardPlacement, snapshot: Snapshot) -> Mapping[str, Setting]:
    standing = snapshot.cards[card.card]
    found: dict[str, Setting] = {}
    if card.node_mode is not None and card.node_mode != (standing.mode or CORE_MODE):
        found["operatingmode"] = card.node_mode
    if mode_of(card, snapshot) == MIG_MODE:
        # Neither scaling nor splitting applies to instances.
        return found
    factor = factor_of(card, standing)
    if factor is not None:
        found["devicememoryscaling"] = factor
    if len(card.slices) > standing.slices_max:
        found["devicesplitcount"] = len(card.slices)
    return found


def _check_switch(node: str, mode: str, draft: StageDraft, snapshot: Snapshot) -> None:
    """A node changes its mode whole, while nobody is on it."""
    labels = snapshot.nodes.get(node, {}).get("metadata", {}).get("labels", {})
    if mode == MIG_MODE and MIG_MANAGER_LABEL in labels:
        raise Refused(
            f"cannot switch node {node} to mode mig: its label {MIG_MANAGER_LABEL} hands its cards to NVIDIA's MIG "
            "manager, and only one of the two may cut them"
        )
    own = {card.card for card in snapshot.cards.values() if card.node == node}
    for card in draft.plan.placement:
        if card.card in own and card.slices and (card.node_mode or CORE_MODE) != mode:
            raise Refused(
                f"cannot switch node {node} to mode {mode}: the plan keeps pods on its card {card.card} in mode "
                f"{card.node_mode or CORE_MODE}, and operatingmode is a node's"
            )
    sitting = sorted(seat.pod_id for seat in snapshot.seats.values() if own & set(seat.cards))
    if sitting:
        raise Refused(
            f"cannot switch node {node} to mode {mode}: {len(sitting)} pods sit on its cards, such as {sitting[0]}, "
            "and a card changes its mode only while it is empty"
        )


def _step(node: str, mode: str | None, snapshot: Snapshot, plugin: ObjectKey) -> NodeStep:
    own = tuple(sorted(card.card for card in snapshot.cards.values() if card.node == node))
    return NodeStep(
        node=node, empty_cards=() if mode is None else own, restarts=plugin_pods(node, snapshot, plugin), done_mode=mode
    )


def with_entries(text: str | None, wanted: Mapping[str, Mapping[str, Setting]], config: ObjectKey) -> str:
    """A node configuration with settings of some nodes in their entries; what else stands there is kept.

    Raises:
        Corrupt: it is not HAMi's.
    """
    try:
        content: dict[str, Any] = json_value(text or '{"nodeconfig": []}')
        entries: dict[str, dict[str, Any]] = {entry["name"]: dict(entry) for entry in content.get("nodeconfig", [])}
        if not all(isinstance(name, str) for name in entries):
            raise ValueError("a name is no text")
    except (ValueError, TypeError, KeyError, AttributeError) as exc:
        raise Corrupt(
            f"cannot read ConfigMap {config[1]}/{config[2]}: config.json is no object with a list nodeconfig"
        ) from exc
    for node, values in wanted.items():
        entries.setdefault(node, {"name": node}).update(values)
    content["nodeconfig"] = [entries[node] for node in sorted(entries)]
    return json.dumps(content)


def _shown(wanted: Mapping[str, Mapping[str, Setting]]) -> str:
    parts: Sequence[str] = [
        f"{key}={value} on {node}" for node, entry in sorted(wanted.items()) for key, value in sorted(entry.items())
    ]
    return ", ".join(parts)
