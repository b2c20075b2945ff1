"""MIG through the operator's mig-manager: a layout per node, a label that starts it, pods that ask for instances.

mig-manager clears no pods away. Where a card changes its mode, it clears every card that its configuration names and
resets all cards of the node, and it holds a node for cut only when all of them are as the configuration says. So that
names every card of the node, and a node is cut when all its cards are empty: pods on it of which the stage says nothing
stand against that, and the refusal names them. Cards are named by the driver's number, which neither node nor pod
says, so the plan's layouts are dealt to the node's cards in turn (they are of one model); that the node is done is
seen by the instances that it offers.

A card is really free when its node offers it whole and nobody asks for it; an instance that nobody asks for frees
nothing.

Sources: NVIDIA/mig-parted:api/spec/v1/spec.go, NVIDIA/mig-parted:cmd/nvidia-mig-parted/assert/config.go,
NVIDIA/mig-parted:cmd/nvidia-mig-parted/apply/mode.go (ClearMigConfig, ResetAllGPUs),
NVIDIA/mig-parted:pkg/mig/reconfigure/reconfigure.go, NVIDIA/k8s-device-plugin:internal/lm/mig-strategy.go.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import yaml

from enforcer.backend import NodeStep, RenderedStage
from enforcer.backends.alike import with_seats_as_they_are
from enforcer.backends.device_plugin import (
    CARD_RESOURCE,
    CARDS_LABEL,
    MIG_CONFIGS,
    NODE_DIALECT,
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
from fleet.capabilities.mig import MIG
from fleet.catalogue import MigFamily, find_model, share_media_engines
from fleet.decisions import CardPlacement, PlacedSlice, Plan
from fleet.errors import Corrupt, Refused
from fleet.grammars.mig import is_mig_profile
from fleet.outcomes import Change
from fleet.units import GIB

CONFIG_LABEL = "nvidia.com/mig.config"
STATE_LABEL = "nvidia.com/mig.config.state"
STRATEGY_LABEL = "nvidia.com/mig.strategy"

MIG_CONFIG_FIELD = "data[config.yaml]"

Layout = tuple[tuple[str, int], ...]
"""Instances of one card: how many of each profile, sorted by profile; empty where it stays whole."""


class MigBackend:
    """Cards cut by mig-manager, instances handed out by the device plugin (the port `Backend`)."""

    capabilities = MIG
    dialect: Dialect = NODE_DIALECT

    def __init__(self, now: datetime) -> None:
        self._now = now

    def render(self, plan: Plan, stage: int, snapshot: Snapshot) -> RenderedStage:
        """Turn one stage into changes; see the port."""
        plan = with_seats_as_they_are(plan, snapshot)
        nodes_of = nodes_of_workloads(plan)
        draft = draft_stage(plan, stage, snapshot, _seat_slice)
        warnings = [*draft.warnings, *check_kinds(MIG, draft.recommendations)]
        changes: list[Change] = []
        steps: list[NodeStep] = []
        named = {pod for entry in draft.recommendations for pod in entry.pods}
        for card in plan.placement:
            # Also where nobody moves: two pods with a whole card each look the same as two on one.
            if any(part.pod_id in named for part in card.slices):
                _check_card(card)
        written: str | None = None
        for name in dict.fromkeys(card.node or "" for card in draft.cards):
            cards = [card for card in plan.placement if card.node == name]
            found, step = _node_change(name, cards, draft, snapshot, written)
            written = next((change.new for change in found if change.field == MIG_CONFIG_FIELD), written)
            changes += found
            steps += [] if step is None else [step]
        check_nodes(draft, snapshot, nodes_of)

        def template_fields(owner: Manifest, kind: str, staying: Sequence[Target]) -> Mapping[str, str | None]:
            return {**resource_fields(owner, kind, staying), **pin_fields(kind, staying, plan.plan_id)}

        return rendered(
            draft, snapshot, template_fields, self._now,
            warnings=warnings, node_changes=by_object(changes), node_steps=steps,
        )  # fmt: skip


def layout_of(card: CardPlacement) -> Layout:
    """The instances that a plan wants of a card."""
    counts = Counter(part.mig_profile for part in card.slices if part.mig_profile is not None)
    return tuple(sorted(counts.items()))


def instance_resource(profile: str) -> str:
    """The resource of a profile under the strategy `mixed`: that of `1g.10gb+me` is `nvidia.com/mig-1g.10gb.me`."""
    return f"nvidia.com/mig-{profile.replace('+', '.')}"


def node_layouts(cards: int, layouts: Sequence[Layout]) -> list[dict[str, Any]]:
    """mig-parted's configuration of a node: every card of it by number, cut ones first, the others whole.

    Args:
        layouts: layouts of its cards that are cut.
    """
    of_layout: dict[Layout, list[int]] = {}
    dealt = [*sorted(layouts, key=lambda layout: (-sum(count for _, count in layout), layout))]
    for number in range(cards):
        of_layout.setdefault(dealt[number] if number < len(dealt) else (), []).append(number)
    return [
        {"devices": numbers, "mig-enabled": True, "mig-devices": dict(layout)}
        if layout
        else {"devices": numbers, "mig-enabled": False}
        for layout, numbers in of_layout.items()
    ]


def with_layouts(current: str | None, name: str, layouts: Sequence[Mapping[str, Any]]) -> str:
    """The content of mig-manager's ConfigMap with one more configuration; the others are kept, their comments are not.

    Raises:
        Corrupt: the content is not mig-parted's.
    """
    content = yaml_map(current, "mig-manager's")
    known = content.get("mig-configs", {})
    if not isinstance(known, dict) or content.get("version", "v1") != "v1":
        raise Corrupt("cannot read mig-manager's configuration: no map of version v1 with mig-configs")
    content = {"version": "v1", **content, "mig-configs": {**known, name: [dict(entry) for entry in layouts]}}
    return yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=120)


def _node_change(
    node: str, cards: Sequence[CardPlacement], draft: StageDraft, snapshot: Snapshot, written: str | None
) -> tuple[list[Change], NodeStep | None]:
    """Configuration and label of a node, and what must be over before they are written; nothing where all is cut.

    Args:
        written: as in `cut_changes`.
    """
    manifest = node_of(snapshot, node)
    promised: Counter[str] = Counter()
    for card in cards:
        promised.update({instance_resource(profile): count for profile, count in layout_of(card)})
    whole = sum(not layout_of(card) for card in cards)
    if all(offered(manifest, resource) >= count for resource, count in _needed(node, promised, draft, snapshot)) and (
        offered(manifest, CARD_RESOURCE) >= whole
    ):
        return [], None
    count = _check_node(manifest, cards)
    if not promised:
        raise Refused(
            f"cannot place {whole} whole cards on node {node}: it offers {offered(manifest, CARD_RESOURCE)}, the "
            "others are cut; undo the plan that cut them first"
        )
    config = config_of(
        snapshot, MIG_CONFIGS, f"cut cards of node {node}",
        "make one and name it in the operator's ClusterPolicy as migManager.config.name (its own default is written "
        "back by the operator)",
    )  # fmt: skip
    layouts = [layout_of(card) for card in cards if layout_of(card)]
    changes = cut_changes(draft.origin, config, manifest, count, layouts, written)
    leaving = leaving_pods(node, draft, snapshot, "cut (mig-manager resets all of them when one changes its mode)")
    step = cut_step(node, leaving, {**promised, CARD_RESOURCE: count - len(cards) + whole})
    return changes, replace(step, offered_before=offers(manifest, (CARD_RESOURCE, *sorted(promised))))


def cut_changes(
    origin: tuple[str, str],
    config: Manifest,
    node: Manifest,
    cards: int,
    layouts: Sequence[Layout],
    written: str | None = None,
) -> list[Change]:
    """A configuration by which mig-manager cuts a node's cards, and the label that starts it.

    Args:
        origin: as in `config_changes`.
        cards: how many the node has; those beyond the layouts stay whole.
        written: the configuration with what was rendered for nodes before this one; None where there was none.
    """
    entries = node_layouts(cards, layouts)
    # Of one node, so that an undo takes no other's.
    digest = hashlib.sha256(json.dumps([node["metadata"]["name"], entries], sort_keys=True).encode()).hexdigest()[:12]
    name = f"gputide-{digest}"
    text = with_layouts(written or field_of(config, MIG_CONFIG_FIELD), name, entries)
    return config_changes(origin, config, MIG_CONFIG_FIELD, text, node, {CONFIG_LABEL: name})


def cut_step(node: str, leaving: tuple[tuple[str, str], ...], offers: Mapping[str, int]) -> NodeStep:
    """What is waited for until a node is cut.

    Args:
        offers: how many devices of each resource it offers then.
    """
    return NodeStep(
        node=node,
        leaving=leaving,
        done_field=f"metadata.labels[{STATE_LABEL}]",
        done_value="success",
        failed_value="failed",
        # The state may still be that of the last cut; what the node offers is not.
        advertised=tuple(
            (f"status.allocatable[{resource}]", str(number)) for resource, number in sorted(offers.items())
        ),
    )


def _needed(node: str, promised: Mapping[str, int], draft: StageDraft, snapshot: Snapshot) -> list[tuple[str, int]]:
    """Instances that a node must offer: the plan's, and those of pods of which the plan knows nothing."""
    known = {part.pod_id for card in draft.plan.placement for part in card.slices}
    needed = Counter(promised)
    for seat in snapshot.seats.values():
        if seat.node == node and seat.pod_id not in known:
            needed.update(part.resource for part in seat.slices if part.resource is not None)
    return sorted((resource, count) for resource, count in needed.items() if resource in promised)


def _check_node(manifest: Manifest, cards: Sequence[CardPlacement]) -> int:
    """How many cards a node has that can be cut by label, at least as many as the plan uses."""
    models = sorted({card.card_model for card in cards})
    if len(models) > 1:
        raise Refused(
            f"cannot cut cards of node {cards[0].node}: it has {', '.join(models)}, and nobody tells mig-parted which "
            "number is which"
        )
    return cards_to_cut(manifest, len(cards))


def cards_to_cut(manifest: Manifest, used: int) -> int:
    """How many cards a node has, all of which can be cut by label.

    Args:
        used: how many there must be.

    Raises:
        Refused: its labels say that they can't be, or that it has fewer.
    """
    name, labels = manifest["metadata"]["name"], manifest["metadata"].get("labels", {})
    if labels.get("nvidia.com/mig.capable") == "false":
        raise Refused(f"cannot cut cards of node {name}: nvidia.com/mig.capable=false")
    strategy = labels.get(STRATEGY_LABEL)
    if strategy != "mixed":
        raise Refused(
            f"cannot cut cards of node {name} by the plan: {STRATEGY_LABEL}={strategy}, and pods can ask for a profile "
            "only where the device plugin's strategy is mixed (operator: mig.strategy=mixed)"
        )
    count = label_number(manifest, CARDS_LABEL)
    if count is None or count < used:
        raise Refused(
            f"cannot cut cards of node {name}: by its label {CARDS_LABEL} it has {count} cards, the plan uses {used}"
        )
    return count


def _check_card(card: CardPlacement) -> None:
    """Refuse layouts that no card of the model can have."""
    layout = layout_of(card)
    if not layout:
        pods = {part.pod_id for part in card.slices}
        if len(pods) > 1:
            raise Refused(
                f"cannot put {len(pods)} pods on card {card.card}: no instance is planned on it, and a whole card has "
                "one pod"
            )
        return
    without = next((part.pod_id for part in card.slices if part.mig_profile is None), None)
    if without is not None:
        raise Refused(f"cannot leave {without} on card {card.card}: it is to be cut, and {without} has no instance")
    check_layout(card.card, card.card_model, layout, card.framebuffer_bytes)


def check_layout(card: str, card_model: str, layout: Layout, framebuffer_bytes: int | None) -> None:
    """Refuse instances that no card of a model can have together.

    Args:
        framebuffer_bytes: what the card has; None where nobody says.

    Raises:
        Refused: naming the card, and what the model has.
    """
    family = mig_family(card, card_model, framebuffer_bytes)
    profiles = {profile.name: profile for profile in family.profiles}
    memory = compute = 0
    for name, count in layout:
        profile = profiles.get(name)
        if profile is None or not is_mig_profile(name) or count > profile.count_max:
            known = ", ".join(f"{entry.name} x {entry.count_max}" for entry in family.profiles)
            raise Refused(f"cannot cut {count} x {name} from card {card}: {card_model} has {known}")
        memory += count * profile.memory_slices
        compute += count * profile.compute_slices
    if memory > family.memory_slices or compute > family.compute_slices:
        raise Refused(
            f"cannot cut {dict(layout)} from card {card}: that is {compute} compute and {memory} memory slices, "
            f"{card_model} has {family.compute_slices} and {family.memory_slices}"
        )
    if not share_media_engines(name for name, count in layout for _ in range(count)):
        raise Refused(
            f"cannot cut {dict(layout)} from card {card}: its media engines go to one instance, and beside +me.all "
            "all others have none (-me)"
        )


def mig_family(card: str, card_model: str, framebuffer_bytes: int | None = None) -> MigFamily:
    """What can be cut from cards of a model.

    Raises:
        Refused: MIG is not known to cut it.
    """
    model = find_model(card_model)
    if model is None or model.mig is None:
        raise Refused(f"cannot cut card {card}: {card_model} is not known to be cut by MIG")
    if framebuffer_bytes is not None and model.is_outgrown_by(framebuffer_bytes):
        raise Refused(
            f"cannot cut card {card}: it has {framebuffer_bytes / GIB:.1f} GiB, and which profiles a {card_model} of "
            f"more than {model.framebuffer_bytes / GIB:.0f} GiB has is not known"
        )
    return model.mig


def _seat_slice(card: CardPlacement, part: PlacedSlice) -> SeatSlice:
    resource = CARD_RESOURCE if part.mig_profile is None else instance_resource(part.mig_profile)
    return counted_slice(part.container, card.node or "", resource)
