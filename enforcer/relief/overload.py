"""When a card is overloaded at run time, by what, and whether putting low priority to sleep is enough. Pure.

Three causes. *Demand*: the card is full, and those above low priority need nearly all of it themselves: low priority
sleeps, and one of them has to move. A card that low priority fills up is the node agent's business. *Framebuffer*: less
of it is free than must stay free. *Objective*: somebody above low priority breaks the latency that was promised for
him. A card on which nobody above low priority sits is never overloaded; one that its only pod fills can't be relieved.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from enforcer.agent.node_view import CardView, NodeView, SliceView
from fleet.inventory import Priority

CONTENDED_RATIO = 2 / 3
"""Use of a full card by those above low priority from which they may want all of it: pods that want more than there is
get equal parts by the driver's time slices, so two of them get at least this beside one of low priority. Whether they
do is seen once it sleeps."""


class Cause(StrEnum):
    """By what a card is overloaded."""

    DEMAND = "demand"
    FRAMEBUFFER = "framebuffer"
    OBJECTIVE = "objective"


@dataclass(frozen=True, slots=True, kw_only=True)
class OverloadRules:
    """When a card is overloaded.

    Attributes:
        full_ratio: compute in use from which it is full, 0-1.
        relieved_ratio: compute that those above low priority may need at most, 0-1.
        free_ratio_min: free framebuffer / framebuffer below which it is short, 0-1.
        working_ratio: duty cycle above which somebody works, 0-1.
    """

    full_ratio: float = 0.97
    relieved_ratio: float = 0.9
    free_ratio_min: float = 0.03
    working_ratio: float = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Overload:
    """One card that is overloaded now.

    Attributes:
        node: its node.
        card: UUID.
        cause: by what.
        at_seconds: when it was seen, Unix seconds.
        reason: one sentence with value, limit and setting.
        low: slices of low priority on it.
        needs_move: putting low priority to sleep is not enough.
        can_move: more than one pod above low priority sits there.
        missing_bytes: framebuffer that must become free; 0 for the other causes.
    """

    node: str
    card: str
    cause: Cause
    at_seconds: float
    reason: str
    low: tuple[SliceView, ...]
    needs_move: bool
    can_move: bool
    missing_bytes: int = 0


def overloads(
    views: Mapping[str, NodeView], rules: OverloadRules, broken: Mapping[str, str] | None = None
) -> tuple[Overload, ...]:
    """Cards that are overloaded now, by node and card.

    Args:
        views: what nodes see, by node.
        rules: when.
        broken: pods (`namespace/pod`) whose objective is broken, and the question that says so.
    """
    found = []
    for node, view in sorted(views.items()):
        slices = _by_card(view.slices)
        for card in view.cards:
            overload = _overload(node, view.at_seconds, card, slices.get(card.card, ()), rules, broken or {})
            if overload is not None:
                found.append(overload)
    return tuple(found)


def demand_above_low(card: CardView, slices: Iterable[SliceView]) -> float:
    """Compute that those above low priority use of a card, share of it.

    Where nobody says how much one of them uses, all that low priority does not use counts as theirs: rather relieve
    than let them suffer.
    """
    known, low, is_known = 0.0, 0.0, True
    for part in slices:
        if part.priority is Priority.LOW:
            low += part.duty_cycle_ratio or 0.0
        elif part.duty_cycle_ratio is None:
            is_known = False
        else:
            known += part.duty_cycle_ratio
    if is_known or card.duty_cycle_ratio is None:
        return known
    return max(known, card.duty_cycle_ratio - low)


def _overload(
    node: str,
    at_seconds: float,
    card: CardView,
    slices: tuple[SliceView, ...],
    rules: OverloadRules,
    broken: Mapping[str, str],
) -> Overload | None:
    low = tuple(part for part in slices if part.priority is Priority.LOW)
    above = [part for part in slices if part.priority is not Priority.LOW]
    if not above:
        return None
    others = len({part.pod_id for part in above})
    demand, duty = demand_above_low(card, slices), card.duty_cycle_ratio
    missing = _missing(card, rules)
    suffering = next((part.pod_id for part in above if part.pod_id in broken), None)
    if missing > 0:
        held = sum(part.framebuffer_used_bytes or 0 for part in low)
        return Overload(
            node=node, card=card.card, cause=Cause.FRAMEBUFFER, at_seconds=at_seconds, low=low,
            reason=f"{card.framebuffer_free_bytes} bytes of framebuffer free of {card.framebuffer_bytes}, "
            f"relief.framebuffer_free_ratio_min={rules.free_ratio_min:g} wants {missing} more",
            # Low priority is evicted by the node's agent where it holds enough; the move is for where it does not.
            needs_move=held < missing and others > 1, can_move=others > 1, missing_bytes=missing,
        )  # fmt: skip
    is_full = (duty is not None and duty >= rules.full_ratio) or demand >= rules.full_ratio
    low_use = sum(part.duty_cycle_ratio or 0.0 for part in low)
    is_contended = demand >= CONTENDED_RATIO and low_use > rules.working_ratio
    if is_full and (demand > rules.relieved_ratio or is_contended):
        return Overload(
            node=node, card=card.card, cause=Cause.DEMAND, at_seconds=at_seconds, low=low,
            reason=f"{max(demand, duty or 0.0):.0%} of the card in use, relief.full_ratio={rules.full_ratio:.0%}; "
            f"those above low priority need {demand:.0%}, relief.relieved_ratio={rules.relieved_ratio:.0%}",
            needs_move=demand > rules.relieved_ratio and others > 1, can_move=others > 1,
        )  # fmt: skip
    if suffering is not None:
        awake = any((part.duty_cycle_ratio or 0.0) > rules.working_ratio for part in low)
        return Overload(
            node=node, card=card.card, cause=Cause.OBJECTIVE, at_seconds=at_seconds, low=low,
            reason=f"{suffering} breaks its latency objective: {broken[suffering]}",
            needs_move=not awake and others > 1, can_move=others > 1,
        )  # fmt: skip
    return None


def _missing(card: CardView, rules: OverloadRules) -> int:
    if card.framebuffer_free_bytes is None:
        return 0
    return int(rules.free_ratio_min * card.framebuffer_bytes) - card.framebuffer_free_bytes


def _by_card(slices: Iterable[SliceView]) -> dict[str, tuple[SliceView, ...]]:
    found: dict[str, list[SliceView]] = {}
    for part in slices:
        found.setdefault(part.card, []).append(part)
    return {card: tuple(parts) for card, parts in found.items()}
