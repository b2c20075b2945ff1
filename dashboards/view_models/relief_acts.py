"""What relief did, as the pages show it: who sleeps, who was moved, why, how long it took, who is home again. Pure.

Called by the plan page; `gputide` reads it from the ledger of relief.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from fleet.inventory import CardId, WorkloadId
from fleet.sentences import Sentence


class MoveState(StrEnum):
    """Where a move stands."""

    UNDER_WAY = "under way"
    AWAY = "moved away"
    """It is on its new card, and goes home when there is room."""
    STAYS = "moved"
    """It is on its new card for good."""
    HOME_AGAIN = "home again"
    TAKEN_BACK = "taken back"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReliefMove:
    """One move of a pod off an overloaded card, or back home.

    Attributes:
        pod: pod that leaves, without its namespace.
        is_restart: it is stopped and started; else a second replica is ready before the first one goes.
        is_home: it goes back to where relief took it from.
        seconds: from its beginning to its end; None while it is under way.
        reason: why it was begun, message `relief.CODE`; None where the reader may not know.
        why: why it was taken back, message `relief.CODE`; None where it was not, or the reader may not know.
    """

    workload: WorkloadId
    pod: str
    from_card: CardId
    to_card: CardId
    is_restart: bool
    is_home: bool
    state: MoveState
    begun_at: datetime
    seconds: float | None
    reason: Sentence | None
    why: Sentence | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReliefSleep:
    """Low priority of a card that sleeps by an order of relief."""

    node: str
    card: CardId
    containers: int
    since: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class ReliefActs:
    """What relief did in a cluster."""

    sleeps: tuple[ReliefSleep, ...] = ()
    moves: tuple[ReliefMove, ...] = ()
