"""When a card is overloaded at run time, by what, and whether pausing low priority is enough.

Three causes. *Demand*: the card is full, and pods above low priority need nearly all of it: low priority pauses, and
one of the others has to move. *Framebuffer*: less of it is free than must stay free. *Objective*: a pod above low
priority breaks its latency objective. A card without a pod above low priority is never overloaded; a card that its
only pod fills cannot be relieved.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import StrEnum

from fleet.relief.rules import ReliefRules

CONTENDED_RATIO = 2 / 3
"""Use of a full card by pods above low priority from which they may want all of it: pods that want more than there is
get equal parts by the driver's time slices, so two of them get at least this beside one of low priority. Whether they
do is seen once that one pauses."""


class Cause(StrEnum):
    """By what a card is overloaded."""

    DEMAND = "demand"
    FRAMEBUFFER = "framebuffer"
    OBJECTIVE = "objective"


@dataclass(frozen=True, slots=True, kw_only=True)
class CardUse:
    """What is seen of one card at one moment.

    Attributes:
        pods: pods above low priority on it.
        demand_ratio: compute that these use, share of the card.
        duty_ratio: compute that all pods use, 0-1; None where it is not measured.
        low_ratio: compute that pods of low priority use.
        is_low_awake: one of these works.
        free_bytes: of it free; None where it is not measured.
        is_objective_broken: a pod above low priority breaks its latency objective.
    """

    pods: int
    demand_ratio: float
    duty_ratio: float | None
    framebuffer_bytes: float
    free_bytes: float | None
    low_ratio: float = 0.0
    low_bytes: float = 0.0
    is_low_awake: bool = False
    is_objective_broken: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """One card that is overloaded now.

    Attributes:
        needs_move: pausing low priority is not enough.
        can_move: more than one pod above low priority sits there.
        missing_bytes: framebuffer that must become free; 0 for the other causes.
    """

    card: Hashable
    cause: Cause
    at_seconds: float
    needs_move: bool
    can_move: bool
    missing_bytes: int = 0


def trouble_of(card: Hashable, use: CardUse, at_seconds: float, rules: ReliefRules) -> Trouble | None:
    """Whether a card is overloaded; None where it is not."""
    if not use.pods:
        return None
    can_move = use.pods > 1
    missing = missing_bytes(use, rules)
    if missing > 0:
        # The node's agent evicts low priority where that holds enough; the move is for where it does not.
        needs_move = can_move and use.low_bytes < missing
        return Trouble(
            card=card, cause=Cause.FRAMEBUFFER, at_seconds=at_seconds, needs_move=needs_move, can_move=can_move,
            missing_bytes=missing,
        )  # fmt: skip
    demand, duty = use.demand_ratio, use.duty_ratio
    is_full = demand >= rules.full_ratio or (duty is not None and duty >= rules.full_ratio)
    is_contended = demand >= CONTENDED_RATIO and use.low_ratio > rules.working_ratio
    if is_full and (demand > rules.relieved_ratio or is_contended):
        needs_move = can_move and demand > rules.relieved_ratio
        cause = Cause.DEMAND
    elif use.is_objective_broken:
        needs_move = can_move and not use.is_low_awake
        cause = Cause.OBJECTIVE
    else:
        return None
    return Trouble(card=card, cause=cause, at_seconds=at_seconds, needs_move=needs_move, can_move=can_move)


def missing_bytes(use: CardUse, rules: ReliefRules) -> int:
    """Framebuffer that must become free on a card, bytes; 0 or less where enough is, or where it is not measured."""
    if use.free_bytes is None:
        return 0
    return int(rules.free_ratio_min * use.framebuffer_bytes) - int(use.free_bytes)
