"""What changes of whole nodes mean for plans: those from before them, those that they follow, and who must approve.

Called by the guard and by undo; pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from enforcer.admission import PLAN_ANNOTATION
from enforcer.backend import NodeOwner
from enforcer.manifest import field_of
from enforcer.node_release import RELEASED_ANNOTATION
from enforcer.record.journal import RunRecord, UndoRecord
from enforcer.record.plan_status import STANDING
from enforcer.snapshot import Snapshot
from fleet.decisions import Plan
from fleet.errors import Refused
from fleet.inventory import WorkloadId
from fleet.sentences import sentence

_RELEASED = f"metadata.annotations[{RELEASED_ANNOTATION}]"


def cards_emptied(plan: Plan, snapshot: Snapshot | None) -> int:
    """How many cards the node has that a plan gives another mode or releases; 0 for other plans.

    Args:
        snapshot: the cluster; None to believe the plan.
    """
    asked = plan.node_switch or plan.node_release
    if asked is None:
        return 0
    return plan.totals.cards_before if snapshot is None else len(snapshot.cards_on(asked.node))


def check_nodes(plan: Plan, workloads: Collection[WorkloadId], runs: Sequence[RunRecord], snapshot: Snapshot) -> None:
    """Refuse a plan from before somebody put a node of it into another mode, and a release while another node leaves.

    Args:
        workloads: that the plan is to change now.

    Raises:
        Refused: with the node and the plan that changed it.
    """
    if plan.node_release is not None:
        for leaving in sorted(nodes_leaving(runs) & snapshot.nodes.keys() - {plan.node_release.node}):
            if field_of(snapshot.nodes[leaving], _RELEASED) is None:
                continue  # another machine has its name by now, or somebody took it back by hand
            raise Refused(sentence("guard.node_leaves", node=plan.node_release.node, other=leaving))
    nodes = {card.node for card in plan.placement if any(part.workload in workloads for part in card.slices)}
    for run in runs:
        steps = [step for own in run.records.values() if own.state in STANDING for step in own.node_steps if step.back]
        for step in steps if run.began_at > plan.created_at else ():
            if step.node in nodes:
                raise Refused(sentence("guard.node_switched", plan=plan.plan_id, node=step.node, other=run.plan_id))


def nodes_leaving(runs: Iterable[RunRecord]) -> frozenset[str]:
    """Nodes that were released to an owner that takes them; some may be gone."""
    return frozenset(
        step.node
        for run in runs
        for own in run.records.values()
        if own.state in STANDING
        for step in own.node_steps
        if step.departure is not None and step.departure.owner is not NodeOwner.NOBODY
    )


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
