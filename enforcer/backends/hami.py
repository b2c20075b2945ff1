"""HAMi's words for a plan: resources and annotations in the owners' templates, replicas, node configuration.

Sources of every name: Project-HAMi/HAMi:pkg/device/nvidia/device.go, Project-HAMi/HAMi:charts/hami/values.yaml; an
installation's own names come from its ConfigMap (`hami_dialect`).

Where a setting asks for it, cards of emptied nodes are closed to new pods (`hami.io/device-cordon`), running pods
untouched. HAMi's scheduler does not look at the annotation at once: it reads a node anew only when its register or its
resources change, or when the handshake does not say that the scheduler is asking. So the handshake is set to what the
device plugin would answer, with which the cordon acted within 15 s (seen on v2.10). Sources:
Project-HAMi/HAMi:pkg/device/nvidia/device.go (DeviceCordonAnnotation), Project-HAMi/HAMi:docs/develop/protocol.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from enforcer.backend import RenderedStage
from enforcer.backends.card_fit import CORE_MODE, MIG_MODE, check_cards, core_percent, is_whole, shared_percent
from enforcer.backends.grant_backend import GrantFamily, NodeChanges, render_grants
from enforcer.backends.hami_dialect import CORDON_FIELD, HAMI_DIALECT, HamiDialect, cordoned_cards, nvidia_section
from enforcer.backends.node_config import node_config_changes, whole_card_warnings
from enforcer.backends.pod_template import Limits, TemplateStyle
from enforcer.backends.stage import StageDraft, Target, field_changes
from enforcer.dialect import WHOLE_CORE_PERCENT, SeatSlice
from enforcer.manifest import Manifest, workload_parts
from enforcer.resource_names import Words
from enforcer.snapshot import Snapshot
from fleet.capabilities.register import HAMI, Capabilities, CorePolicy
from fleet.decisions import CardPlacement, PlacedSlice, Plan
from fleet.errors import Refused
from fleet.grammars.hami import (
    CORE_POLICY_ENV,
    DEVICE_CORDON_ANNOTATION,
    DISABLE_CONTROL_ENV,
    NODE_HANDSHAKE_ANNOTATION,
    core_policy_of,
    disables_control,
)
from fleet.inventory import CORE_LIMIT_LABEL, Priority
from fleet.outcomes import Change
from fleet.units import MIB

_HANDSHAKE = f"metadata.annotations[{NODE_HANDSHAKE_ANNOTATION}]"


class HamiBackend:
    """HAMi (the port `Backend`): interception in its mode `hami-core`, its own dynamic MIG in its mode `mig`.

    Args:
        capabilities: its record, as far as probes confirm or extend it.
        cordons_emptied_nodes: cards of a node that a stage empties get no new pods, so that it can be given back.
    """

    def __init__(
        self,
        now: datetime,
        dialect: HamiDialect = HAMI_DIALECT,
        capabilities: Capabilities = HAMI,
        *,
        cordons_emptied_nodes: bool = False,
    ) -> None:
        self._now, self.capabilities = now, capabilities
        self.dialect = dialect
        self._cordons_emptied_nodes = cordons_emptied_nodes

    def render(self, plan: Plan, stage: int, snapshot: Snapshot) -> RenderedStage:
        """Turn one stage into changes; see the port."""
        family = hami_family(self.capabilities, self.dialect, plan, modes=(CORE_MODE, MIG_MODE))
        if self._cordons_emptied_nodes:
            family = replace(family, node_changes=self._with_cordon(family))
        return render_grants(family, self.dialect, plan, stage, snapshot, self._now)

    def _with_cordon(self, family: GrantFamily) -> Callable[[StageDraft, Snapshot], NodeChanges]:
        def node_changes(draft: StageDraft, snapshot: Snapshot) -> NodeChanges:
            found = family.node_changes(draft, snapshot)
            recommendation = draft.recommendations[0].id if draft.recommendations else ""
            emptied = _cards_of_emptied_nodes(draft, snapshot)
            cordons = cordon_changes(snapshot, self._now, recommendation, close=emptied)
            return replace(found, changes=(*found.changes, *cordons))

        return node_changes


def hami_family(capabilities: Capabilities, dialect: HamiDialect, plan: Plan, modes: Sequence[str]) -> GrantFamily:
    """What HAMi and those built on it have in common."""

    def check(draft: StageDraft, snapshot: Snapshot) -> Sequence[str]:
        _check_cordons(draft, snapshot)
        _check_core_policy(draft, nvidia_section(snapshot.configs, dialect.device_config))
        return (*check_cards(draft, snapshot, capabilities, modes), *whole_card_warnings(draft, snapshot))

    def node_changes(draft: StageDraft, snapshot: Snapshot) -> NodeChanges:
        return node_config_changes(draft, snapshot, dialect.node_config, dialect.plugin)

    return GrantFamily(
        capabilities=capabilities,
        seat_of=hami_seat,
        style=TemplateStyle(
            limits_of=hami_limits,
            container_fields=core_policy_fields(plan),
            annotations=core_limit_mark(plan),
            switch_off=_switch_off,
        ),
        check=check,
        node_changes=node_changes,
    )


def _check_cordons(draft: StageDraft, snapshot: Snapshot) -> None:
    """Cards that somebody closed to new pods get none, nor back the one that is made anew on it."""
    coming = {part.card for move in draft.moves for part in move.new}
    for card in draft.cards:
        node = snapshot.nodes.get(card.node or "")
        if card.card in coming and node is not None and card.card in cordoned_cards(node):
            raise Refused(
                f"cannot put pods on card {card.card}: {DEVICE_CORDON_ANNOTATION} of node {card.node} names it"
            )


def hami_seat(card: CardPlacement, part: PlacedSlice, snapshot: Snapshot, words: Words) -> SeatSlice:
    """A planned slice as HAMi's scheduler would grant it; raises as `registered_seat`."""
    whole = is_whole(card, part) and part.mig_profile is None
    percent = WHOLE_CORE_PERCENT if whole else 0 if part.mig_profile else shared_percent(card, part)
    seat = registered_seat(card, part, snapshot, words, whole=whole, core_percent=percent)
    return replace(seat, priority=priority_text(card, part))


def registered_seat(
    card: CardPlacement, part: PlacedSlice, snapshot: Snapshot, words: Words, *, whole: bool, core_percent: int
) -> SeatSlice:
    """A planned slice as a share of a card that its node registers, in multiples of the framebuffer resource's unit.

    Raises:
        Refused: no node registers the card.
    """
    standing, factor = snapshot.cards.get(card.card), words.framebuffer_factor
    if standing is None:
        raise Refused(f"cannot place {part.pod_id} on card {card.card}: no node registers it any more")
    mib = standing.framebuffer_mib if whole else max(1, part.framebuffer_bytes // MIB // factor) * factor
    return SeatSlice(container=part.container, card=card.card, framebuffer_mib=mib, core_percent=core_percent)


def priority_text(card: CardPlacement, part: PlacedSlice) -> str | None:
    """0 is high, 1 is low; HAMi takes a pod without one for low, so beside others that have one a normal one gets 0."""
    if part.priority is Priority.HIGH:
        return "0"
    if part.priority is Priority.LOW:
        return "1"
    return "0" if any(other.priority is not Priority.NORMAL for other in card.slices) else None


def hami_limits(slices: Sequence[SeatSlice], words: Words) -> Limits:
    """Framebuffer, cores and priority of a seat, as the template would say it; a whole card has no first two."""
    part = max(slices, key=lambda part: part.framebuffer_mib)
    amounts: Limits = (str(part.framebuffer_mib // words.framebuffer_factor), str(part.core_percent))
    if part.core_percent == WHOLE_CORE_PERCENT:
        amounts = (None, None)
    return amounts if words.priority is None else (*amounts, part.priority)


def _switch_off(container: Manifest, counts_as_it_is: bool) -> str | None:
    if disables_control(container.get("env") or (), HAMI.backend):
        return DISABLE_CONTROL_ENV
    return CORE_POLICY_ENV if counts_as_it_is and lifts_core_limit(container) else None


def lifts_core_limit(container: Manifest) -> bool:
    """Whether its launches pass limit and gate."""
    return core_policy_of(container.get("env") or ()) == "disable"


def _check_core_policy(draft: StageDraft, section: Mapping[str, Any]) -> None:
    """A limit on compute is none where the installation switches all of them off."""
    off = section.get("disableCoreLimit") is True or section.get("gpuCorePolicy") == "disable"
    limited = [part.pod_id for card in draft.cards for part in card.slices if not is_whole(card, part)
               and part.core_policy is CorePolicy.HARD and core_percent(part)]  # fmt: skip
    if off and limited:
        raise Refused(
            f"cannot limit the compute of {limited[0]}: disableCoreLimit or gpuCorePolicy=disable of the device "
            "configuration lifts every limit"
        )


def core_policy_fields(plan: Plan) -> Callable[[Target], Mapping[str, str | None]]:
    """A core limit holds at every moment only where the container asks for it; without, it is lifted for who is alone.

    Args:
        plan: whose slices say which pods may use more than their share.
    """
    bursting = {part.pod_id for card in plan.placement for part in card.slices if part.core_policy is CorePolicy.BURST}

    def fields(example: Target) -> Mapping[str, str | None]:
        if not 0 < example.after[0].core_percent < WHOLE_CORE_PERCENT:
            return {}
        return {f"env[{CORE_POLICY_ENV}]": None if example.seat.pod_id in bursting else "force"}

    return fields


def core_limit_mark(plan: Plan) -> Callable[[Target], Mapping[str, str | None]]:
    """Says on pods that their core limit is a plan's, and which: a share or a limit of anybody else has no such mark.

    A Notebook's pods take no annotations.
    """
    core_policy = core_policy_fields(plan)

    def mark(example: Target) -> Mapping[str, str | None]:
        if workload_parts(example.seat.workload)[1] == "Notebook":
            return {}
        is_forced = "force" in core_policy(example).values()
        return {CORE_LIMIT_LABEL: str(example.after[0].core_percent) if is_forced else None}

    return mark


def cordon_changes(
    snapshot: Snapshot, now: datetime, recommendation: str, *, close: Iterable[str]
) -> tuple[Change, ...]:
    """Close cards to new pods; cards that others closed stay closed.

    Returns:
        Changes of nodes, two fields each; none for a node that stands so already.
    """
    closing = set(close)
    changes: list[Change] = []
    for name in sorted(snapshot.nodes):
        node = snapshot.nodes[name]
        own = {card.card for card in snapshot.cards.values() if card.node == name}
        standing = cordoned_cards(node)
        wanted = sorted({*standing, *(closing & own)})
        if wanted == sorted(standing):
            continue
        fields: dict[str, str | None] = {
            CORDON_FIELD: ",".join(wanted) or None,
            _HANDSHAKE: f"Reported_{now:%Y-%m-%d %H:%M:%S}",
        }
        changes += field_changes(node, fields, recommendation)
    return tuple(changes)


def _cards_of_emptied_nodes(draft: StageDraft, snapshot: Snapshot) -> tuple[str, ...]:
    """Cards of nodes that a stage empties, so that they can be given back."""
    leaving = {entry.seat.pod_id for targets in draft.targets.values() for entry in targets if entry.new is not None}
    left: set[str] = set()
    kept: set[str] = set()
    for seat in snapshot.seats.values():
        nodes = {snapshot.cards[card].node for card in seat.cards if card in snapshot.cards}
        (left if seat.pod_id in leaving else kept).update(nodes)
    for targets in draft.targets.values():
        for entry in targets:
            kept |= {snapshot.cards[part.card].node for part in entry.new or () if part.card in snapshot.cards}
    planned = {card.node for card in draft.plan.placement if card.slices}
    free = left - kept - planned
    return tuple(sorted(card.card for card in snapshot.cards.values() if card.node in free))
