"""Finds or makes the approved plan by which somebody's wish for one node is carried out.

Called by `gputide admin node mode` and `gputide admin node release`.
"""

from __future__ import annotations

from collections.abc import Callable

from enforcer.rollout.abort import open_run
from fleet.decisions import Plan
from fleet.errors import Refused
from fleet.node_changes import NodeRelease, NodeSwitch
from gputide.container.enforcer import Enforcer
from wire.kubernetes.refusals import Forbidden

_LOOKED_AT_MAX = 100
"""Newest plans among which one that waits for an approval is looked for."""


def wanted_plan(enforcer: Enforcer, asked: NodeSwitch | NodeRelease, keep: Callable[[], Plan], *, by: str) -> Plan:
    """The plan of a wish: one that waits for an approval or that a process left open, else a new one, approved.

    Args:
        keep: makes and keeps a plan against which nothing speaks now.

    Raises:
        Refused: something does, or the user of the cluster may approve nothing.
    """
    return _waiting(enforcer, asked) or _kept(enforcer, asked, keep, by)


def _waiting(enforcer: Enforcer, asked: NodeSwitch | NodeRelease) -> Plan | None:
    """The plan of the same wish that was begun and not ended, or approved and not begun; None where there is none."""
    journal, plans, now = enforcer.tools.journal, enforcer.plans, enforcer.tools.now()
    run = open_run(journal)
    names = plans.ids()[-_LOOKED_AT_MAX:] if run is None else (run.plan_id,)
    for plan in map(plans.get, reversed(names)):
        is_to_do = run is not None or (now < plan.expires_at and plans.approved_stages(plan.plan_id))
        is_same = asked in (plan.node_switch, plan.node_release)
        if is_same and is_to_do and (run is not None or not journal.runs(plan.plan_id)):
            return plan
    return None


def _kept(enforcer: Enforcer, asked: NodeSwitch | NodeRelease, keep: Callable[[], Plan], by: str) -> Plan:
    plans = enforcer.plans
    plan = keep()
    try:
        plans.approve(plan, (1,), by="" if plans.signs_as_user(plan) else by, at=enforcer.tools.now())
    except (Forbidden, Refused) as exc:
        what = "switch" if isinstance(asked, NodeSwitch) else "release"
        raise Refused(
            f"cannot {what} node {asked.node} yet: {exc}; let somebody who may approve plan {plan.short_id} "
            f"(gputide plan approve --plan {plan.short_id}), then call this again"
        ) from exc
    return plan
