"""The sealed plan of one stage that somebody's wish for one node becomes: no history speaks for it, only who asks.

Called for a node's mode (`enforcer.backends.node_mode`) and for its release (`enforcer.node_release`).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime, timedelta

from fleet.decisions import HistorySpan, Plan, Stage, Totals
from fleet.documents import seal_plan
from fleet.money.saving import saved
from fleet.node_changes import NodeRelease, NodeSwitch
from fleet.sentences import Sentence
from fleet.settings.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPlace:
    """Where such a plan is carried out.

    Attributes:
        version: tag of what runs of the backend; None where that is not known.
        cards: of the node; the plan's totals say them before and after.
    """

    cluster: str
    backend: str
    version: str | None
    cards: int


def plan_of_node(
    asked: NodeSwitch | NodeRelease, title: Sentence, place: PlanPlace, now: datetime, settings: Settings
) -> Plan:
    """The plan.

    Args:
        now: of the cluster; all that the plan was made from.
    """
    nothing = Totals(
        cards_before=place.cards, cards_after=place.cards, cards_freed=0, spare_cards=0, nodes_freed=0,
        framebuffer_bytes_freed=0, low_priority_gpu_hours_per_week=0.0, saving_per_week=saved(()),
        predicted_violation_ratio=0.0, moves=0,
    )  # fmt: skip
    plan = Plan(
        plan_id="",
        created_at=now,
        expires_at=now + timedelta(seconds=settings.plan.expires_seconds),
        cluster=place.cluster,
        history=HistorySpan(since=now, until=now, coverage_ratio=1.0),
        inputs_sha256=hashlib.sha256(repr(asked).encode()).hexdigest(),
        settings=(),
        risk=settings.risk.preset,
        backend=place.backend,
        currency=settings.prices.currency,
        totals=nothing,
        recommendations=(),
        refused=(),
        withheld=(),
        placement=(),
        stages=(Stage(stage=1, title=title, recommendations=(), cards_freed=0, moves=0),),
        backend_version=place.version,
        node_switch=asked if isinstance(asked, NodeSwitch) else None,
        node_release=asked if isinstance(asked, NodeRelease) else None,
    )
    return seal_plan(plan)
