"""What earlier moves forbid: how many are under way, which workloads are held back, which pods rest or are away."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from fleet.relief.rules import ReliefRules

DAY_SECONDS = 86400.0
SETTLED_SECONDS = 2.0
"""How long after a move its card's use is still that of before: the driver's figures are means over a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastMove:
    """A move that was begun.

    Attributes:
        arrived_as: name of its replacement; the same where it keeps its name.
        ended_seconds: when it was over; None while it is under way.
        is_made: it ended with the pod on its new card.
        is_restart: the pod was stopped first, because it cannot have a second replica.
        is_home: it returns to the card that relief took it from.
    """

    pod: Hashable
    arrived_as: Hashable
    workload: Hashable
    from_card: Hashable
    to_card: Hashable
    begun_seconds: float
    ended_seconds: float | None = None
    is_made: bool = False
    is_restart: bool = False
    is_home: bool = False


def slots_free(moves: Sequence[PastMove], rules: ReliefRules) -> int:
    """How many more moves may be under way; 0 or less for none."""
    return rules.moves_at_once_max - sum(move.ended_seconds is None for move in moves)


def relieved_until(moves: Sequence[PastMove]) -> dict[Hashable, float]:
    """Until when what is seen of each card does not count, because a pod leaves or just left it."""
    found: dict[Hashable, float] = {}
    for move in moves:
        until = float("inf") if move.ended_seconds is None else move.ended_seconds + SETTLED_SECONDS
        found[move.from_card] = max(until, found.get(move.from_card, until))
    return found


def unsettled(moves: Sequence[PastMove], seen_at: float) -> frozenset[Hashable]:
    """Cards whose use was seen before the pod that moved there could show its own: they take no other yet."""
    return frozenset(
        move.to_card
        for move in moves
        if move.ended_seconds is not None and move.is_made and seen_at < move.ended_seconds + SETTLED_SECONDS
    )


def resting(moves: Sequence[PastMove], now: float, rules: ReliefRules) -> frozenset[Hashable]:
    """Pods that were moved a short while ago."""
    return frozenset(
        move.arrived_as
        for move in moves
        if move.ended_seconds is not None and now - move.ended_seconds < rules.rest_seconds
    )


def why_held(moves: Sequence[PastMove], workload: Hashable, now: float, rules: ReliefRules, *, pods: int = 1) -> str:
    """Why no pod of a workload is moved now; empty where one may be.

    Args:
        pods: how many it has.
    """
    own = [move for move in moves if move.workload == workload]
    is_failed = [move.ended_seconds is not None and not move.is_made for move in own]
    today = sum(
        not failed and move.begun_seconds >= now - DAY_SECONDS for move, failed in zip(own, is_failed, strict=True)
    )
    if today >= rules.moves_per_day_max * max(1, pods):
        most = f"relief.moves_per_day_max={rules.moves_per_day_max}"
        return f"{workload} was moved {today} times in a day, {most} for each of its pods ({pods})"
    over = [(move.ended_seconds, move.is_made) for move in own if move.ended_seconds is not None]
    in_a_row = next((number for number, (_, is_made) in enumerate(reversed(over)) if is_made), len(over))
    if in_a_row:
        until = over[-1][0] + min(DAY_SECONDS, rules.backoff_seconds * 2.0 ** min(in_a_row - 1, 20))
        if now < until:
            moment = datetime.fromtimestamp(until, UTC)
            return f"{workload} is left alone until {moment:%H:%M:%S}: its last move came to nothing"
    return ""


def away(moves: Sequence[PastMove]) -> tuple[PastMove, ...]:
    """Pods that were moved and did not return, each as one move from the card where it first was.

    A pod that was restarted does not return: that would stop it once more.
    """
    found: dict[Hashable, PastMove] = {}
    for move in moves:
        if not move.is_made or move.is_restart:
            continue
        earlier = found.pop(move.pod, None)
        if not move.is_home:
            found[move.arrived_as] = move if earlier is None else replace(move, from_card=earlier.from_card)
    return tuple(found.values())


def home_due(
    pods_away: Sequence[PastMove], moves: Sequence[PastMove], now: float, rules: ReliefRules
) -> tuple[PastMove, ...]:
    """Pods that are away, have rested, and do not move right now.

    Args:
        pods_away: `away` of the moves.
    """
    leaving = {move.pod for move in moves if move.ended_seconds is None}
    rest = min(rules.rest_seconds, rules.home_seconds)
    return tuple(
        move
        for move in pods_away
        if move.ended_seconds is not None and now - move.ended_seconds >= rest and move.arrived_as not in leaving
    )
