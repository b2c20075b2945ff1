"""Whether HAMi can hold what a stage asks of its cards: every refusal names the fact, every half-truth is a warning.

Pure; one piece of `backend_hami`. Facts: Project-HAMi/HAMi:pkg/device/nvidia/device.go (Fit),
Project-HAMi/HAMi:cmd/vGPUmonitor/feedback.go, Project-HAMi/HAMi#705, Project-HAMi/HAMi#1494.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

from enforcer.manifest import field_of
from enforcer.seat import WHOLE_CORE_PERCENT
from enforcer.snapshot import DEVICE_CONFIG, DEVICE_CONFIG_FIELD, Snapshot
from fleet.capabilities import HAMI, CorePolicy
from fleet.decisions import CardPlacement, Need, Recommendation, RecommendationKind
from fleet.errors import Refused
from fleet.inventory import ISOLATION_LABEL, Priority
from fleet.outcomes import Change
from fleet.units import MIB

_NOT_RENDERED = {
    RecommendationKind.MIG: "MIG geometry is the MIG manager's",
    RecommendationKind.TIDE: "a schedule of replicas is run by the tide, not by one apply",
}


def check_stage(
    recommendations: Sequence[Recommendation], cards: Sequence[CardPlacement], snapshot: Snapshot
) -> list[str]:
    """Refuse what HAMi can't enforce.

    Args:
        recommendations: of the stage.
        cards: cards that a moved pod comes to, as they are after the plan.
        snapshot: the cluster.

    Returns:
        Warnings: what holds only in part.

    Raises:
        Refused: with the fact that stands against it.
    """
    for entry in recommendations:
        if entry.kind in _NOT_RENDERED:
            raise Refused(f"cannot apply {entry.id} with HAMi: {_NOT_RENDERED[entry.kind]}")
        if Need.SPILL in entry.needs:
            raise Refused(
                f"cannot apply {entry.id} with HAMi: it needs framebuffer to spill to host memory, and the open-source "
                "library spills nothing (deviceMemoryScaling only raises what is granted)"
            )
    warnings: list[str] = []
    for card in cards:
        warnings += _check_card(card, snapshot)
    return warnings


def scaling_change(cards: Sequence[CardPlacement], snapshot: Snapshot, recommendation: str) -> tuple[Change, ...]:
    """The node configuration that registers enough framebuffer for cards that are granted more than they have.

    Args:
        cards: cards that a moved pod comes to, as they are after the plan.
        snapshot: the cluster.
        recommendation: what for.

    Returns:
        One change of HAMi's ConfigMap, or none where everything fits.

    Raises:
        Refused: a card is over-granted by slices that are not marked so, or there is no such ConfigMap.
    """
    factors: dict[str, float] = {}
    for card in cards:
        standing = snapshot.cards[card.card]
        granted = sum(part.framebuffer_bytes // MIB for part in card.slices)
        if granted <= standing.framebuffer_mib:
            continue
        if not any(part.oversubscribed for part in card.slices):
            raise Refused(
                f"cannot grant {granted} MiB on card {card.card}: its node registers {standing.framebuffer_mib} MiB, "
                "and no slice on it is marked oversubscribed"
            )
        factor = math.ceil(granted * MIB / card.framebuffer_bytes * 100 + 1) / 100
        factors[standing.node] = max(factor, factors.get(standing.node, 1.0))
    if not factors:
        return ()
    config = snapshot.device_config
    kind, namespace, name = DEVICE_CONFIG
    if config is None:
        raise Refused(
            f"cannot register more framebuffer than the cards have on {', '.join(sorted(factors))}: there is no "
            f"ConfigMap {namespace}/{name}; set devicePlugin.deviceMemoryScaling in HAMi's chart"
        )
    old = field_of(config, DEVICE_CONFIG_FIELD)
    content = json.loads(old or '{"nodeconfig": []}')
    entries = {entry["name"]: entry for entry in content.get("nodeconfig", [])}
    for node, factor in factors.items():
        entries.setdefault(node, {"name": node})["devicememoryscaling"] = factor
    content["nodeconfig"] = [entries[node] for node in sorted(entries)]
    return (
        Change(
            kind=kind,
            namespace=namespace,
            name=name,
            field=DEVICE_CONFIG_FIELD,
            old=old,
            new=json.dumps(content),
            resource_version=config["metadata"]["resourceVersion"],
            recommendation=recommendation,
        ),
    )


def _check_card(card: CardPlacement, snapshot: Snapshot) -> list[str]:
    if card.node_mode not in (None, "hami-core"):
        raise Refused(f"cannot put card {card.card} into mode {card.node_mode!r}: HAMi shares it in mode hami-core")
    if any(part.mig_profile for part in card.slices):
        raise Refused(f"cannot cut MIG instances on card {card.card}: HAMi's hami-core mode has none")
    pods = {part.pod_id for part in card.slices}
    if len(pods) == 1:
        return []
    if len(card.slices) > HAMI.slices_per_card_max:
        raise Refused(
            f"cannot put {len(card.slices)} slices on card {card.card}: deviceSplitCount={HAMI.slices_per_card_max}"
        )
    hard = [part for part in card.slices if part.core_policy is CorePolicy.HARD]
    percent = sum(max(1, int(part.compute_ratio * 100 + 1e-6)) for part in hard)
    if percent > WHOLE_CORE_PERCENT or (percent == WHOLE_CORE_PERCENT and len(hard) < len(card.slices)):
        raise Refused(
            f"cannot grant {percent} % of cores on card {card.card} beside {len(card.slices) - len(hard)} slices "
            "without limit: HAMi admits nobody to a card whose cores are granted in full"
        )
    _check_isolation(card, snapshot)
    return _priority_warnings(card)


def _check_isolation(card: CardPlacement, snapshot: Snapshot) -> None:
    if len({part.workload for part in card.slices}) == 1:
        return
    for part in card.slices:
        owner = snapshot.owners.get(part.workload)
        template = {} if owner is None else owner["spec"].get("template", {}).get("metadata", {}).get("annotations", {})
        own = {} if owner is None else owner["metadata"].get("annotations", {})
        if "hard" in (template.get(ISOLATION_LABEL), own.get(ISOLATION_LABEL)):
            raise Refused(
                f"cannot put {part.workload} on card {card.card} beside others: it wants {ISOLATION_LABEL}=hard, and "
                f"HAMi's framebuffer isolation is {HAMI.framebuffer_isolation.value}, without fault isolation"
            )


def _priority_warnings(card: CardPlacement) -> list[str]:
    levels = {part.priority is Priority.LOW for part in card.slices}
    if len(levels) == 2 and any(part.core_policy is CorePolicy.BURST for part in card.slices):
        text = (
            "priority beside pods without a core limit: from HAMi 2.8.1 low priority is held back only where both pods "
            "have 1-99 % of cores, so check with a probe before relying on it"
        )
        return [text]
    return []
