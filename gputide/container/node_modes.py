"""Looks at how a node of the settings' cluster hands out its cards, and prepares a plan that switches it.

Called by `gputide admin node mode` and by the pages.
"""

from __future__ import annotations

from datetime import datetime

from enforcer.backends.node_mode import switch_plan
from enforcer.snapshot import take_snapshot
from enforcer.switch_preview import NodeStanding, SwitchPreview, leavers_of, node_standing
from fleet.capabilities.register import records_of
from fleet.data_folder import DataFolder
from fleet.decisions import Plan
from fleet.errors import Refused
from fleet.node_changes import NodeSwitch
from fleet.settings.settings import Settings
from gputide.container.cluster import backend, backend_version, moment_of_change, open_cluster, own_cluster
from gputide.container.enforcer import guard
from gputide.container.plans import keep_plan, previewed


def standing_of(folder: DataFolder, settings: Settings, now: datetime, node: str) -> NodeStanding:
    """How a node hands out its cards, and how it could.

    Raises:
        Refused: there is no such node, or no cluster.
        Unavailable: the cluster can't be reached.
    """
    with open_cluster(folder, settings) as cluster:
        snapshot = take_snapshot(cluster, backend(settings, now).dialect)
    return node_standing(node, snapshot, records_of(settings.enforcer.backend)[-1])


def switch_preview(folder: DataFolder, settings: Settings, now: datetime, switch: NodeSwitch) -> SwitchPreview:
    """What a switch would change, who would leave, and where to; changes nothing. Raises as `standing_of`."""
    with open_cluster(folder, settings) as cluster:
        snapshot = take_snapshot(cluster, backend(settings, now).dialect)
        leavers, moment = leavers_of(switch.node, cluster, snapshot), moment_of_change(cluster, now)
    cards = len(snapshot.cards_on(switch.node))
    plan = switch_plan(
        switch, records_of(settings.enforcer.backend)[-1], cards=cards, cluster=own_cluster(folder, settings) or "",
        version=backend_version(settings), now=moment, settings=settings,
    )  # fmt: skip
    (stage,) = previewed(folder, settings, now, plan, (1,), rehearses=True)
    approvals = guard(folder, settings).approvals_needed(cards)
    return SwitchPreview(plan=plan, stage=stage, leavers=leavers, approvals=approvals)


def keep_switch(folder: DataFolder, settings: Settings, now: datetime, switch: NodeSwitch) -> Plan:
    """Keep the plan of a switch against which nothing speaks now, for people to approve.

    Raises:
        Refused: something does.
    """
    found = switch_preview(folder, settings, now, switch)
    if found.stage.refusal is not None:
        raise Refused(found.stage.refusal)
    keep_plan(folder, settings, found.plan)
    return found.plan
