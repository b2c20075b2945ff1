"""What relief works with, and how carefully: the cluster, the ledger, the guard, and the limits that the user sets.

Put together by the front door.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from enforcer.cluster import ClusterReader, ClusterWriter, Lease
from enforcer.dialect import Dialect
from enforcer.relief.book import ReliefBook
from enforcer.relief.demand_feed import NoObjectives, Objectives
from enforcer.relief.moving import Patience
from enforcer.relief.overload import OverloadRules
from enforcer.relief.squeeze import OrdersWriter
from enforcer.safety.guard import Guard
from enforcer.safety.harm_budget import HarmBudgets
from fleet.relief import ReliefRules


@dataclass(frozen=True, slots=True, kw_only=True)
class ReliefPolicy:
    """How careful relief is.

    Attributes:
        overload: when a card is overloaded.
        rules: which pod leaves, and where to.
        patience: how long parts of a move may take.
        sustain_seconds: how long a card must need a move before one begins.
        squeeze_seconds: how long an order to sleep counts.
        calm_seconds: how long a card must be without trouble before low priority wakes.
        moves_at_once_max: most moves under way.
        moves_per_day_max: most moves of one workload in 24 hours.
        backoff: pause after a move that came to nothing.
        rest: how long a pod stays where it was moved.
        restarts: whether pods that can't have a second replica are stopped and started.
        home_seconds: how long there must have been room at home.
        home_ratio: compute that may be needed there at most, 0-1.
        lease_seconds: how long the lease is held without being renewed.
    """

    overload: OverloadRules = field(default_factory=OverloadRules)
    rules: ReliefRules = field(
        default_factory=lambda: ReliefRules(relieved_ratio=0.9, swaps=False, grows_in_place=False)
    )
    patience: Patience = field(default_factory=Patience)
    sustain_seconds: float = 3.0
    squeeze_seconds: float = 60.0
    calm_seconds: float = 30.0
    moves_at_once_max: int = 3
    moves_per_day_max: int = 6
    backoff: timedelta = timedelta(minutes=5)
    rest: timedelta = timedelta(minutes=30)
    restarts: bool = True
    home_seconds: float = 3600.0
    home_ratio: float = 0.8
    lease_seconds: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReliefTools:
    """What relief works with.

    Attributes:
        reader: the cluster.
        writer: the cluster.
        lease: the right to change it.
        holder: name under which the lease is held.
        guard: who freezes.
        dialect: the backend's words.
        book: the ledger.
        orders: writes who sleeps.
        objectives: whose latency objective is broken.
        harm: what services suffered since they were moved; None where nothing measures it.
    """

    reader: ClusterReader
    writer: ClusterWriter
    lease: Lease
    holder: str
    guard: Guard
    dialect: Dialect
    book: ReliefBook
    orders: OrdersWriter
    objectives: Objectives = field(default_factory=NoObjectives)
    harm: HarmBudgets | None = None
