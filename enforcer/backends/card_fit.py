"""Whether cards can hold what a stage asks of them: every refusal names the fact, every half-truth is a warning.

Pure; for the backends of HAMi's kin, whose schedulers count framebuffer, cores and slices of each card. Facts:
Project-HAMi/HAMi:pkg/device/nvidia/device.go (Fit), Project-HAMi/HAMi:cmd/vGPUmonitor/feedback.go,
Project-HAMi/HAMi#1494.
"""

from __future__ import annotations

from collections.abc import Sequence

from enforcer.backends.stage import StageDraft
from enforcer.dialect import WHOLE_CORE_PERCENT
from enforcer.snapshot import Snapshot
from fleet.capabilities.capability import OPEN_BYTES_MIN, SHARED_PERCENT_MAX, Capabilities, CorePolicy, Oversubscription
from fleet.decisions import CardPlacement, PlacedSlice
from fleet.errors import Refused
from fleet.inventory import ISOLATION_LABEL, Priority
from fleet.units import MIB

CORE_MODE = "hami-core"
MIG_MODE = "mig"


def check_cards(draft: StageDraft, snapshot: Snapshot, capabilities: Capabilities, modes: Sequence[str]) -> list[str]:
    """Refuse what the cards of a stage can't hold; returns warnings: what holds only in part.

    Args:
        modes: modes of a node that the backend renders; the first shares cards by interception.

    Raises:
        Refused: with the fact that stands against it.
    """
    warnings: list[str] = []
    for card in draft.cards:
        warnings += _check_card(card, snapshot, capabilities, modes)
    return warnings


def mode_of(card: CardPlacement, snapshot: Snapshot) -> str | None:
    """The mode that a card will be in: what the plan says, else what its node registers; None where neither does."""
    if card.node_mode is not None:
        return card.node_mode
    standing = snapshot.cards.get(card.card)
    return None if standing is None else standing.mode


def core_percent(part: PlacedSlice) -> int:
    """Compute that a slice is granted, percent of the card, 1-100; 0 where nothing limits it."""
    return 0 if part.compute_ratio is None else max(1, round(part.compute_ratio * WHOLE_CORE_PERCENT))


def shared_percent(card: CardPlacement, part: PlacedSlice) -> int:
    """The same of a slice that is a part of a card, 0-99.

    Raises:
        Refused: it is the card's whole compute, by which a scheduler grants the card whole.
    """
    percent = core_percent(part)
    if percent > SHARED_PERCENT_MAX:
        raise Refused(
            f"cannot grant {percent} % of cores and {part.framebuffer_bytes // MIB} MiB on card {card.card} to "
            f"{part.pod_id}: more than {SHARED_PERCENT_MAX} % is the card whole"
        )
    return percent


def check_cores(card: CardPlacement, slices: Sequence[PlacedSlice], scheduler: str) -> None:
    """Refuse shares of compute that are more than a card together, where every pod's is counted.

    Raises:
        Refused: with their sum.
    """
    total = sum(map(core_percent, slices))
    if total > WHOLE_CORE_PERCENT and len(slices) > 1:
        raise Refused(
            f"cannot put {len(slices)} slices on card {card.card}: they have {total} % of cores together, and "
            f"{scheduler} counts every slice's up to {WHOLE_CORE_PERCENT}"
        )


def granted_mib(card: CardPlacement) -> int:
    """Framebuffer that is granted on a card after the plan, MiB."""
    return sum(part.framebuffer_bytes // MIB for part in card.slices)


def is_whole(card: CardPlacement, part: PlacedSlice) -> bool:
    """Whether a slice is a card of its own."""
    is_alone = len({other.pod_id for other in card.slices}) == 1
    return is_alone and part.framebuffer_bytes >= card.framebuffer_bytes - MIB


def _check_card(card: CardPlacement, snapshot: Snapshot, capabilities: Capabilities, modes: Sequence[str]) -> list[str]:
    name = capabilities.backend
    standing = snapshot.cards.get(card.card)
    if standing is not None and not standing.is_healthy:
        raise Refused(
            f"cannot put pods on card {card.card}: its node calls it unhealthy, so nothing is scheduled there"
        )
    mode = mode_of(card, snapshot)
    if mode is not None and mode not in modes:
        raise Refused(
            f"cannot put pods on card {card.card} in mode {mode!r}: {name} shares it in mode {' or '.join(modes)}"
        )
    if mode == MIG_MODE:
        loose = [part.pod_id for part in card.slices if part.mig_profile is None]
        if loose:
            raise Refused(f"cannot put {loose[0]} on card {card.card} without a MIG profile: its node is in mode mig")
        return []
    if any(part.mig_profile for part in card.slices):
        raise Refused(f"cannot cut MIG instances on card {card.card}: {name} has none in its mode {modes[0]}")
    if len(card.slices) == 1:
        return []
    room = None if standing is None else standing.framebuffer_mib
    if capabilities.oversubscription is Oversubscription.NONE and room is not None and granted_mib(card) > room:
        raise Refused(
            f"cannot grant {granted_mib(card)} MiB on card {card.card}: its node registers {room} MiB, and {name} "
            "grants no more than that"
        )
    # Where all shares are counted, low priority's are counted apart; there `check_cores` looks.
    counted = [part for part in card.slices if part.core_policy is CorePolicy.HARD or not capabilities.adds_up_cores]
    limited = [part for part in counted if core_percent(part)]
    percent = sum(core_percent(part) for part in limited)
    if percent > WHOLE_CORE_PERCENT or (percent == WHOLE_CORE_PERCENT and len(limited) < len(card.slices)):
        raise Refused(
            f"cannot grant {percent} % of cores on card {card.card} beside {len(card.slices) - len(limited)} slices "
            f"without limit: {name} admits nobody to a card whose cores are granted in full"
        )
    check_isolation(card, snapshot, capabilities)
    _check_closed(card, 0 if room is None else room, capabilities)
    return _priority_warnings(card, capabilities)


def check_isolation(card: CardPlacement, snapshot: Snapshot, capabilities: Capabilities) -> None:
    """Refuse others beside a workload that wants a card walled off.

    Those of its own namespace that want the same may be its neighbours, where the backend keeps pods within limits.

    Raises:
        Refused: the wish, and what the backend has instead.
    """
    if len({part.workload for part in card.slices}) == 1:
        return
    walled = {part.workload for part in card.slices if "hard" in snapshot.asked(ISOLATION_LABEL, part.workload)}
    is_one_tenant = len({part.namespace for part in card.slices}) == 1
    if capabilities.holds_limits and is_one_tenant and walled == {part.workload for part in card.slices}:
        return
    for part in card.slices:
        if part.workload in walled:
            raise Refused(
                f"cannot put {part.workload} on card {card.card} beside others: it wants {ISOLATION_LABEL}=hard, and "
                f"framebuffer isolation of {capabilities.backend} is {capabilities.framebuffer_isolation.value}, "
                "without fault isolation"
            )


def _check_closed(card: CardPlacement, registered_mib: int, capabilities: Capabilities) -> None:
    """Refuse a card on which framebuffer is lent while the scheduler would let newcomers in.

    No stage lowers what a node registers, and where shares of compute are not counted nothing else keeps them off.
    """
    if card.memory_scaling is None or capabilities.adds_up_cores:
        return
    registered = max(registered_mib, int(card.memory_scaling * (card.framebuffer_bytes // MIB)))
    if (registered - granted_mib(card)) * MIB >= OPEN_BYTES_MIN:
        raise Refused(
            f"cannot lend framebuffer on card {card.card}: its node registers {registered} MiB of it and the plan "
            f"grants {granted_mib(card)}, so {capabilities.backend} would put other pods there; lower the node's "
            "factor, or plan without it"
        )


def _priority_warnings(card: CardPlacement, capabilities: Capabilities) -> list[str]:
    levels, name = {part.priority for part in card.slices}, capabilities.backend
    if Priority.LOW in levels and len(levels) > 1 and capabilities.priority_levels == 1:
        return [f"low priority beside others: {name} tells no levels apart, so nobody gives way"]
    if {Priority.HIGH, Priority.NORMAL} <= levels:
        return [f"normal priority beside high: {name} has one level for both, so they contend as equals"]
    return []
