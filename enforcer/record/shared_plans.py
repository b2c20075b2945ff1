"""A folder of plans that follows what a cluster keeps: its plans, who approved them, which stages are wanted.

A plan that was made for this cluster is stored in it, so a machine with an empty data folder lists, approves, applies
and undoes it. Approvals count where the cluster has them: the folder's file is a copy. Plans of other clusters stay in
the folder.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

from enforcer.record.fingerprint import Fingerprint, fingerprint_from_json
from enforcer.record.journal import RunRecord
from enforcer.record.plan_status import PlanStatus, plan_status
from enforcer.record.plan_store import GONE, Approval, DamagedPlan, PlanStore, Wish, WishChange, approval_of, id_meant
from fleet.decisions import Plan
from fleet.documents import plan_from_json
from fleet.errors import Corrupt, GputideError, Refused
from fleet.logs import logger

_log = logger("enforcer.record.shared_plans")


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedPlan:
    """A plan as the cluster lists it.

    Attributes:
        made_at: when it was stored there, UTC.
        wish: stages that are wanted in force.
        approvals: oldest first.
    """

    made_at: datetime
    wish: Wish
    approvals: tuple[Approval, ...]


class ClusterPlans(Protocol):
    """Keeps plans in the cluster, who approved them, which stages are wanted, and what became of them.

    Each call raises:
        Misconfigured: a right is missing.
        Refused: the cluster does not know the kind of objects that hold them, or does not take one.
        Unavailable: the cluster can't be reached.
    """

    def listed(self) -> Mapping[str, ListedPlan]:
        """Every plan by its id."""
        ...

    def approvals(self, plan_id: str) -> tuple[Approval, ...]:
        """Approvals of a plan, oldest first."""
        ...

    def content(self, plan_id: str) -> tuple[bytes, bytes | None]:
        """A plan as JSON, and the fingerprint of what it was made for where that was kept.

        Raises:
            Corrupt: a part is missing or damaged.
        """
        ...

    def add(self, plan: Plan, fingerprint: Fingerprint | None) -> None:
        """Store a plan; one that is there already stays as it is."""
        ...

    def approve(self, approval: Approval) -> Approval:
        """Store an approval, impersonating who gives it; an empty `by` is whom the cluster takes us for."""
        ...

    def wish(self, plan_id: str) -> Wish | None:
        """The stages of a plan that are wanted in force; None where there is no such plan."""
        ...

    def change_wish(self, plan_id: str, change: WishChange) -> Wish:
        """Want more stages in force, or fewer."""
        ...

    def report(self, plan_id: str, status: PlanStatus) -> None:
        """Say where a plan stands; a plan that is gone is no error."""
        ...


class SharedPlans(PlanStore):
    """A folder of plans that follows a cluster's.

    Each call that asks the cluster raises as `ClusterPlans`.

    Args:
        path: the folder; made with the first plan.
        cluster: its name; None where that is not known: then any plan may be of it.
        runs: what was changed by a plan, oldest first; asked when one is stored or approved.
    """

    def __init__(
        self, path: Path, objects: ClusterPlans, cluster: str | None, runs: Callable[[str], Sequence[RunRecord]]
    ) -> None:
        super().__init__(path)
        self._runs = runs
        self._objects = objects
        self._cluster = cluster
        self._damaged: dict[str, Corrupt | Refused] = {}
        self._is_own: dict[str, bool] = {}
        self._listed: Mapping[str, ListedPlan] = {}

    def pull(self) -> None:
        """Copy what the cluster has and the folder lacks; approvals as they are there.

        A plan that is damaged there is left out, so that the others can be read; `get` says what is wrong with it.
        """
        self._pulled()

    def get(self, plan_id: str) -> Plan:
        """See `PlanStore`.

        Raises:
            Corrupt: it is damaged in the cluster, and the folder has no copy.
        """
        meant = id_meant(plan_id, [*self._ids(), *self._damaged])
        if meant in self._damaged and meant not in self._ids():
            raise self._damaged[meant]
        return super().get(meant)

    def add(self, plan: Plan, fingerprint: Fingerprint | None = None) -> None:
        """See `PlanStore`; a plan of this cluster is stored in it too.

        Raises:
            Misconfigured: a right is missing; the folder has it.
            Refused: the cluster does not know the kinds; the folder has it.
            Unavailable: the cluster can't be reached; the folder has it.
        """
        super().add(plan, fingerprint)
        if self.signs_as_user(plan):
            self._objects.add(plan, fingerprint)
            self._say(plan)

    def approve(self, plan: Plan, stages: Sequence[int], *, by: str, at: datetime) -> Approval:
        """See `PlanStore`; of this cluster's plans in the cluster.

        Args:
            by: who, impersonated; empty for whom the cluster takes us for.

        Raises:
            Refused: the cluster does not take it: we may not impersonate that person, or that person may not approve.
        """
        if not self.signs_as_user(plan):
            return super().approve(plan, stages, by=by, at=at)
        wanted = approval_of(plan, stages, by=by, at=at)
        self._objects.add(plan, self.fingerprint(plan.plan_id))
        made = self._objects.approve(wanted)
        self._say(plan)
        return made

    def approvals(self, plan_id: str) -> tuple[Approval, ...]:
        """See `PlanStore`; those that the cluster has."""
        if plan_id not in self._is_own:
            self._is_own[plan_id] = self.signs_as_user(self.get(plan_id))
        if not self._is_own[plan_id]:
            return super().approvals(plan_id)
        approvals = self._objects.approvals(plan_id)
        self.keep_approvals(plan_id, approvals)
        return approvals

    def wish(self, plan_id: str) -> Wish:
        """See `PlanStore`; `GONE` of a plan that the cluster has no more."""
        return self._objects.wish(plan_id) or GONE

    def wishes(self) -> Mapping[str, Wish]:
        """See `PlanStore`; of this cluster's plans, which are copied to the folder.

        Raises:
            As `pull`.
        """
        found = self._pulled()
        return {plan_id: found[plan_id].wish for plan_id in self.ids() if plan_id in found}

    def damaged(self) -> Mapping[str, DamagedPlan]:
        """See `PlanStore`; those of which the folder has no copy either."""
        return {
            plan_id: DamagedPlan(wish=found.wish, approvals=found.approvals, why=str(self._damaged[plan_id]))
            for plan_id, found in self._listed.items()
            if plan_id in self._damaged
        }

    def change_wish(self, plan_id: str, change: WishChange) -> Wish:
        """See `PlanStore`."""
        if change.add:
            self._objects.add(self.get(plan_id), self.fingerprint(plan_id))
        return self._objects.change_wish(plan_id, change)

    def report(self, plan_id: str, status: PlanStatus) -> None:
        """Say where a plan stands; see `ClusterPlans`."""
        self._objects.report(plan_id, status)

    def signs_as_user(self, plan: Plan) -> bool:
        """See `PlanStore`."""
        return self._cluster in (None, plan.cluster)

    def _say(self, plan: Plan) -> None:
        """Say where a plan stands; where a right to that is missing, a controller does it later."""
        try:
            approvals = self.approvals(plan.plan_id)
            runs, wish = self._runs(plan.plan_id), self.wish(plan.plan_id)
            stages = [stage.stage for stage in plan.stages]
            status = plan_status(
                stages, approvals, runs, wish, failed_generation=wish.failed_generation, tides=plan.tide_stages
            )
            self._objects.report(plan.plan_id, status)
        except GputideError as exc:
            _log.debug("where the plan stands is not shown yet", plan=plan.plan_id, why=str(exc))

    def _pulled(self) -> Mapping[str, ListedPlan]:
        listed, known = self._objects.listed(), set(self._ids())
        damaged: dict[str, Corrupt | Refused] = {}
        for plan_id, found in listed.items():
            try:
                if plan_id not in known:
                    self._copy(plan_id, found.made_at)
            except (Corrupt, Refused) as exc:
                damaged[plan_id] = exc
                if plan_id not in self._damaged:
                    _log.warning("plan left out", plan=plan_id, error=str(exc))
                continue
            self.keep_approvals(plan_id, found.approvals)
        self._damaged, self._listed = damaged, listed
        return listed

    def _copy(self, plan_id: str, made_at: datetime) -> None:
        content, inputs = self._objects.content(plan_id)
        name = f"GpuPlan of plan {plan_id}"
        plan = plan_from_json(content, name=name)
        if plan.plan_id != plan_id:
            raise Refused(f"cannot use {name}: it holds plan {plan.plan_id}")
        super().add(plan, None if inputs is None else fingerprint_from_json(inputs, name=name))
        seconds = made_at.timestamp()
        os.utime(self._file(plan_id), (seconds, seconds))
