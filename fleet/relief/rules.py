"""The limits of relief, as one record: the enforcer and the simulator play by it, the settings `relief.*` change it."""

from __future__ import annotations

from dataclasses import dataclass

from fleet.units import GIB

LOAD_BYTES_PER_SECOND = 1.0 * GIB
"""How fast a pod's framebuffer is loaded where nobody has measured it: weights from a disk of the node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReliefRules:
    """When relief acts, and how far it goes. Costs are in the unit of a card that is full for all the coming hours.

    Attributes:
        full_ratio: compute in use, share of the card, from which a card is full.
        relieved_ratio: a card is relieved once pods above low priority need at most this share of it; a card that
            takes a pod needs at most this share then.
        free_ratio_min: free framebuffer / framebuffer below which a card is short.
        working_ratio: duty cycle above which a pod works.
        sustain_seconds: how long a card must need a move before one begins.
        moves_at_once_max: most moves under way.
        moves_per_day_max: most moves of one workload in 24 hours, for each of its pods.
        backoff_seconds: pause of a workload after a move that failed; doubled with every further one.
        rest_seconds: a pod that was moved is not moved again so soon, unless no other pod can be.
        restarts: whether a pod that cannot have a second replica may be stopped and started elsewhere.
        home_seconds: how long there must have been room on a moved pod's old card before it returns.
        home_ratio: compute that may be needed at most on the old card, with the pod.
        busy_ratio: demand from which a card counts as likely to be full, rising to certainty at the whole card.
        likely_full_max: a card that is likely to be full for more than this share of the time takes no pod.
        memory_seconds: how far back demand is remembered.
        recent_seconds: half-life of the recent demand, which counts for one half; the whole memory for the other.
        load_bytes_per_second: how fast a pod's framebuffer is loaded on another card.
        move_cost: of every pod that moves.
        load_cost_per_second: of every second of loading.
        spare_cost: of using an empty card.
    """

    full_ratio: float = 0.97
    relieved_ratio: float = 0.9
    free_ratio_min: float = 0.03
    working_ratio: float = 0.01
    sustain_seconds: float = 3.0
    moves_at_once_max: int = 8
    moves_per_day_max: int = 6
    backoff_seconds: int = 300
    rest_seconds: int = 1800
    restarts: bool = True
    home_seconds: int = 3600
    home_ratio: float = 0.8
    busy_ratio: float = 0.8
    likely_full_max: float = 0.3
    memory_seconds: int = 86400
    recent_seconds: int = 3 * 3600
    load_bytes_per_second: float = LOAD_BYTES_PER_SECOND
    move_cost: float = 0.02
    load_cost_per_second: float = 1 / 6000
    spare_cost: float = 0.3
