"""Opens the plans of a data folder, what was changed by them, and what a stage of one would change now.

Called by the verbs `plan`, `apply`, `undo` and `verify`, by pages and by the demo.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from enforcer.preview import StagePreview, preview, preview_of_history
from enforcer.record.fingerprint import fingerprint_of
from enforcer.record.journal import Journal
from enforcer.record.ledger import Ledger
from enforcer.record.plan_store import PlanStore
from enforcer.snapshot import take_snapshot
from fleet.data_folder import DataFolder
from fleet.decisions import Plan
from fleet.errors import Misconfigured, NotEnoughData
from fleet.settings.settings import Settings
from gputide.container.cluster import (
    backend,
    check_own,
    is_known,
    moment_of_change,
    open_cluster,
    own_cluster,
    rehearsal,
)
from gputide.container.warehouse import warehouse


def plan_store(folder: DataFolder) -> PlanStore:
    """The plans."""
    return PlanStore(folder.plans)


def journal(folder: DataFolder, *, cluster: str | None = None) -> Journal:
    """What was changed, from the audit log; in one cluster where it is given."""
    return Journal(Ledger(folder.ledger), cluster=cluster)


def keep_plan(folder: DataFolder, settings: Settings, plan: Plan) -> None:
    """Keep a sealed plan, with the fingerprint of the cluster that it was made for where that is the enforcer's."""
    fingerprint = None
    if is_known(folder, settings) and own_cluster(folder, settings) in (None, plan.cluster):
        with open_cluster(folder, settings) as cluster:
            dialect = backend(settings, plan.created_at).dialect
            fingerprint = fingerprint_of(take_snapshot(cluster, dialect))
    plan_store(folder).add(plan, fingerprint)


def chosen_plan(folder: DataFolder, plan_id: str | None, *, cluster: str | None = None) -> Plan:
    """The plan of an id or its start; without one the newest, of `cluster` where that is given.

    Raises:
        Misconfigured: no such plan.
        Refused: it was edited.
        NotEnoughData: there is no plan at all.
    """
    if plan_id is not None:
        return plan_store(folder).get(plan_id)
    newest = plan_store(folder).newest(cluster)
    if newest is None:
        of = "" if cluster is None else f" for cluster {cluster!r}"
        raise NotEnoughData(f"there is no plan yet{of}; make one with `gputide plan make`")
    return newest


def chosen_stages(plan: Plan, stages: Sequence[int] | None) -> tuple[int, ...]:
    """The stages that are meant: those named, or all.

    Raises:
        Misconfigured: the plan has no such stage.
    """
    known = tuple(stage.stage for stage in plan.stages)
    if not stages:
        return known
    unknown = sorted(set(stages) - set(known))
    if unknown:
        raise Misconfigured(
            f"cannot use --stage {unknown[0]}: plan {plan.plan_id} has stages {', '.join(map(str, known))}"
        )
    return tuple(sorted(set(stages)))


def previewed(
    folder: DataFolder, settings: Settings, now: datetime, plan: Plan, stages: Sequence[int], *, rehearses: bool
) -> tuple[StagePreview, ...]:
    """What stages would change in the cluster as it stands; where there is none, in what the plan was made from.

    Args:
        settings: all settings.
        now: the clock of the data.
        rehearses: whether a real cluster is asked, by dry runs, if it would take the changes.

    Raises:
        Refused: the plan is of another cluster.
    """
    check_own(plan, folder, settings)
    if not is_known(folder, settings):
        inventory = warehouse(folder, settings).inventory(plan.cluster, as_of=plan.created_at)
        return preview_of_history(plan, inventory, stages)
    with open_cluster(folder, settings) as cluster:
        runs = journal(folder).runs(plan.plan_id)
        renderer = backend(settings, moment_of_change(cluster, now), cluster)
        return preview(
            plan, cluster, renderer, stages, runs, rehearse=rehearsal(cluster) if rehearses else None,
            wave_max=settings.enforcer.parallel_workloads_max,
        )  # fmt: skip


def newest_applied(kept: Journal) -> str:
    """Id of the plan that was applied last.

    Args:
        kept: what was changed, of one cluster or of all.

    Raises:
        NotEnoughData: no plan was ever applied.
    """
    runs = kept.runs()
    if not runs:
        raise NotEnoughData("no plan was ever applied; `gputide plan list` shows what there is")
    return runs[-1].plan_id
