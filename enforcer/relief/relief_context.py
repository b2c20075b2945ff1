"""What relief works with: cluster, journal, guard, and the limits that the user sets.

Made by `gputide.container.relief`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from enforcer.cluster import ClusterReader, ClusterWriter, Lease
from enforcer.dialect import Dialect
from enforcer.relief.demand_feed import NoObjectives, Objectives
from enforcer.relief.moving import Patience
from enforcer.relief.relief_journal import ReliefJournal
from enforcer.relief.squeeze import OrdersWriter
from enforcer.safety.guard import Guard
from enforcer.safety.harm_budget import HarmBudgets
from fleet.relief.rules import ReliefRules


@dataclass(frozen=True, slots=True, kw_only=True)
class ReliefPolicy:
    """How careful relief is.

    Attributes:
        rules: when a card is overloaded, which pod leaves, and where to: what the simulator plays as well.
        calm_seconds: how long a card must be without trouble before low priority wakes.
        lease_seconds: how long the lease is held without being renewed.
    """

    rules: ReliefRules = field(default_factory=ReliefRules)
    patience: Patience = field(default_factory=Patience)
    squeeze_seconds: float = 60.0
    calm_seconds: float = 30.0
    lease_seconds: float = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReliefContext:
    """What relief works with.

    Attributes:
        harm: what services suffered since they were moved; None where nothing measures it.
    """

    reader: ClusterReader
    writer: ClusterWriter
    lease: Lease
    holder: str
    guard: Guard
    dialect: Dialect
    journal: ReliefJournal
    orders: OrdersWriter
    objectives: Objectives = field(default_factory=NoObjectives)
    harm: HarmBudgets | None = None
