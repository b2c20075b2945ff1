"""Fulfils the pages' `PlanDesk`: plans, their approvals, and what they would change."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import datetime

from dashboards.queries import STAGE_KIND, ObjectDiff, PlanEntry
from enforcer.preview import StagePreview
from enforcer.record.journal import StageRecord, StageState
from enforcer.record.savings import stages_in_place
from enforcer.safety.freeze import frozen_by
from enforcer.safety.guard import Guard
from fleet.data_folder import DataFolder, writing
from fleet.decisions import Plan
from fleet.errors import Corrupt, Misconfigured, Refused
from fleet.settings.settings import Settings
from gputide.guard_policy import guard_policy
from gputide.kept_plans import KeptPlans
from gputide.stages import chosen_stages, previewed
from gputide.wiring import journal, plan_store


class StoredPlanDesk:
    """`PlanDesk` over the plan store and the ledger of a data folder.

    Args:
        folder: data folder.
        settings: all settings.
        now: the clock of the data.
        plans: its plans as they were read; None for a reading of its own.
    """

    def __init__(
        self, folder: DataFolder, settings: Settings, now: Callable[[], datetime], plans: KeptPlans | None = None
    ) -> None:
        self._folder = folder
        self._plans = plans or KeptPlans(folder.plans)
        self._settings = settings
        self._now = now
        self._lock = threading.Lock()

    def plans(self, cluster: str) -> tuple[PlanEntry, ...]:
        """All plans of a cluster, newest first."""
        return tuple(self._entry(plan) for plan in reversed(self._plans.plans(cluster)))

    def plan(self, plan_id: str) -> PlanEntry | None:
        """One plan; None where there is none of this id."""
        try:
            return self._entry(self._plans.get(plan_id))
        except (Misconfigured, Refused, Corrupt):
            return None

    def approve(self, plan_id: str, stages: tuple[int, ...], by: str) -> PlanEntry:
        """Approve stages in a person's name."""
        store = plan_store(self._folder)
        plan = store.get(plan_id)
        with self._lock, writing(self._folder):
            store.approve(plan, stages, by=by, at=self._now())
        return self._entry(plan)

    def preview(self, plan_id: str, stages: tuple[int, ...]) -> tuple[ObjectDiff, ...]:
        """What the stages would change, asked of the cluster without changing anything."""
        plan = plan_store(self._folder).get(plan_id)
        chosen = chosen_stages(plan, stages)
        found = previewed(self._folder, self._settings, self._now(), plan, chosen, rehearses=False)
        return tuple(diff for stage in found for diff in _stage_diffs(stage))

    def _entry(self, plan: Plan) -> PlanEntry:
        store = plan_store(self._folder)
        approvals = store.approvals(plan.plan_id)
        approved = tuple(sorted({stage for approval in approvals for stage in approval.stages}))
        kept = journal(self._folder)
        records = [record for run in kept.runs(plan.plan_id) for record in run.records.values()]
        applied = _in_place(plan, [record for record in records if record.state is StageState.PROMOTED])
        once_applied = [record for record in records if record.applied_at is not None]
        moments = [record.applied_at for record in records if record.applied_at is not None]
        undone = [record.undone_at for record in records if record.undone_at is not None]
        return PlanEntry(
            plan=plan,
            approved_stages=approved,
            approved_by=tuple(dict.fromkeys(approval.by for approval in approvals)),
            applied_stages=applied,
            once_applied_stages=_in_place(plan, once_applied),
            undone_recommendations=kept.undone_recommendations(plan.plan_id),
            applied_at=min(moments, default=None),
            undone_at=max(undone, default=None) if not applied else None,
            apply_refusal=self._refusal(plan, approved, applied),
        )

    def _refusal(self, plan: Plan, approved: tuple[int, ...], applied: tuple[int, ...]) -> str | None:
        """Why the approved stages can't be applied now; None where they can."""
        frozen = frozen_by(self._folder.freeze)
        if frozen is not None:
            return f"frozen by {frozen}; `gputide apply --no-freeze` or the plan page lifts it"
        left = [stage for stage in approved if stage not in applied]
        if not left:
            return "every approved stage is applied" if applied else "approve at least one stage first"
        try:
            guard = Guard(guard_policy(self._settings, self._folder))
            guard.check_plan(plan, left, plan_store(self._folder).approvals(plan.plan_id), self._now())
        except Refused as exc:
            return str(exc)
        return None


def _in_place(plan: Plan, records: Sequence[StageRecord]) -> tuple[int, ...]:
    return tuple(sorted(stages_in_place(plan, records)))


def _stage_diffs(stage: StagePreview) -> list[ObjectDiff]:
    """Objects of a stage, then what becomes of nodes and cards, which belong to no namespace.

    A stage that is refused before its objects are known is one entry that says so. Where single objects keep the
    stage from being applied, the reason stands beside those alone.
    """
    if stage.refusal is not None and not stage.objects:
        name = str(stage.stage)
        return [
            ObjectDiff(
                kind=STAGE_KIND,
                namespace="",
                name=name,
                recommendation="",
                old_yaml="",
                new_yaml="",
                refusal=stage.refusal,
            )
        ]
    of_stage = None if any(item.refusal for item in stage.objects) else stage.refusal
    found = [
        ObjectDiff(
            kind=item.kind,
            namespace=item.namespace,
            name=item.name,
            recommendation=item.recommendation,
            old_yaml=item.before,
            new_yaml=item.after,
            refusal=item.refusal or of_stage,
        )
        for item in (*stage.made, *stage.objects)
    ]
    nodes: dict[str, tuple[list[str], list[str]]] = {}
    for node in stage.nodes:
        before, after = nodes.setdefault(node.node, ([], []))
        if node.cards_before is not None:
            before.append(f"cards held: {node.cards_before}")
            after.append(f"cards held: {node.cards_after}")
        after += node.steps
    for card in stage.cards:
        before, after = nodes.setdefault(card.node, ([], []))
        before.append(f"{card.card}: {', '.join(card.before) or 'free'}")
        after.append(f"{card.card}: {', '.join(card.after) or 'free'}")
    return found + [
        ObjectDiff(
            kind="Cards of node",
            namespace="",
            name=name,
            recommendation="",
            old_yaml="\n".join(before),
            new_yaml="\n".join(after),
        )
        for name, (before, after) in sorted(nodes.items())
    ]
