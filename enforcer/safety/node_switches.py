"""What a node in another mode means for plans: those from before it, those that it follows, and who must approve it.

Called by the guard and by undo; pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from enforcer.admission import PLAN_ANNOTATION
from enforcer.manifest import field_of
from enforcer.record.journal import RunRecord, UndoRecord
from enforcer.record.plan_status import STANDING
from enforcer.snapshot import Snapshot
from fleet.decisions import Plan
from fleet.errors import Refused
from fleet.inventory import WorkloadId
from fleet.sentences import sentence


def cards_emptied(plan: Plan, snapshot: Snapshot | None) -> int:
    """How many cards the node has that a plan gives another mode; 0 for other plans.

    Args:
        snapshot: the cluster; None to believe the plan.
    """
    switch = plan.node_switch
    if switch is None:
        return 0
    return plan.totals.cards_before if snapshot is None else len(snapshot.cards_on(switch.node))


def check_modes(plan: Plan, workloads: Collection[WorkloadId], runs: Iterable[RunRecord]) -> None:
    """Refuse a plan from before somebody put a node of it into another mode, of which it knows nothing.

    Args:
        workloads: that the plan is to change now.

    Raises:
        Refused: with the node and the plan that switched it.
    """
    nodes = {card.node for card in plan.placement if any(part.workload in workloads for part in card.slices)}
    for run in runs:
        steps = [step for own in run.records.values() if own.state in STANDING for step in own.node_steps if step.back]
        for step in steps if run.began_at > plan.created_at else ():
            if step.node in nodes:
                raise Refused(sentence("guard.node_switched", plan=plan.plan_id, node=step.node, other=run.plan_id))


def check_last(record: UndoRecord, others: Collection[str], snapshot: Snapshot) -> None:
    """Refuse to take away what a later plan's way back leads to: how a node handed out its cards before.

    Args:
        others: further plans that are applied.

    Raises:
        Refused: with the node and the plan that changed it last.
    """
    for name in {intent.name for intent in record.objects if intent.kind == "Node"} & snapshot.nodes.keys():
        mark = field_of(snapshot.nodes[name], f"metadata.annotations[{PLAN_ANNOTATION}]")
        if mark in others:
            raise Refused(sentence("guard.undo_later_first", plan=record.plan_id, node=name, later=str(mark)))
