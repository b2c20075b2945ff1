"""Which cards of the nodes' views are overloaded, by the rules of `fleet.relief.overload`. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from enforcer.agent.node_view import CardView, NodeView, SliceView
from fleet.inventory import Priority
from fleet.relief.overload import CardUse, Cause, Trouble, missing_bytes, trouble_of
from fleet.relief.rules import ReliefRules
from fleet.sentences import Sentence, sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class Overload(Trouble):
    """One card that is overloaded now; `at_seconds` is Unix time.

    Attributes:
        reason: one sentence with value, limit and setting, message `relief.CODE`.
    """

    card: str
    node: str
    reason: Sentence
    low: tuple[SliceView, ...]


def overloads(
    views: Mapping[str, NodeView], rules: ReliefRules, broken: Mapping[str, str] | None = None
) -> tuple[Overload, ...]:
    """Cards that are overloaded now, by node and card.

    Args:
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
    rules: ReliefRules,
    broken: Mapping[str, str],
) -> Overload | None:
    low = tuple(part for part in slices if part.priority is Priority.LOW)
    above = {part.pod_id for part in slices if part.priority is not Priority.LOW}
    suffering = next((pod for pod in sorted(above) if pod in broken), None)
    use = CardUse(
        pods=len(above),
        demand_ratio=demand_above_low(card, slices),
        duty_ratio=card.duty_cycle_ratio,
        low_ratio=sum(part.duty_cycle_ratio or 0.0 for part in low),
        low_bytes=sum(part.framebuffer_used_bytes or 0 for part in low),
        is_low_awake=any((part.duty_cycle_ratio or 0.0) > rules.working_ratio for part in low),
        framebuffer_bytes=card.framebuffer_bytes,
        free_bytes=card.framebuffer_free_bytes,
        is_objective_broken=suffering is not None,
    )
    found = trouble_of(card.card, use, at_seconds, rules)
    if found is None:
        return None
    return Overload(
        node=node, card=card.card, cause=found.cause, at_seconds=at_seconds, low=low, needs_move=found.needs_move,
        can_move=found.can_move, missing_bytes=found.missing_bytes,
        reason=_reason(found, use, rules) if suffering is None or found.cause is not Cause.OBJECTIVE
        else sentence("relief.objective", pod=suffering, query=broken[suffering]),
    )  # fmt: skip


def _reason(found: Trouble, use: CardUse, rules: ReliefRules) -> Sentence:
    if found.cause is Cause.FRAMEBUFFER:
        return sentence(
            "relief.framebuffer",
            free_bytes=int(use.free_bytes or 0),
            all_bytes=int(use.framebuffer_bytes),
            ratio_min=rules.free_ratio_min,
            missing_bytes=missing_bytes(use, rules),
        )
    return sentence(
        "relief.full",
        used_ratio=round(max(use.demand_ratio, use.duty_ratio or 0.0), 4),
        full_ratio=rules.full_ratio,
        demand_ratio=round(use.demand_ratio, 4),
        relieved_ratio=rules.relieved_ratio,
    )


def _by_card(slices: Iterable[SliceView]) -> dict[str, tuple[SliceView, ...]]:
    found: dict[str, list[SliceView]] = {}
    for part in slices:
        found.setdefault(part.card, []).append(part)
    return {card: tuple(parts) for card, parts in found.items()}
