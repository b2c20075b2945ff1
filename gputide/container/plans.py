"""Opens the plans of a data folder, what was changed by them, and what a stage of one would change now.

Called by the verbs `plan`, `apply`, `undo` and `verify`, by pages and by the demo.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial

from enforcer.preview import StagePreview, preview, preview_of_history
from enforcer.record.fingerprint import fingerprint_of
from enforcer.record.journal import Journal
from enforcer.record.ledger import ledger_at
from enforcer.record.plan_store import PlanStore
from enforcer.record.shared_ledger import stored_runs
from enforcer.record.shared_plans import SharedPlans
from enforcer.snapshot import take_snapshot
from fleet.data_folder import DataFolder
from fleet.decisions import Plan
from fleet.errors import GputideError, Misconfigured, NotEnoughData, Refused
from fleet.logs import logger
from fleet.settings.settings import ClusterChoice, Settings
from gputide.container.cluster import (
    LiveCluster,
    backend,
    check_own,
    is_known,
    is_of_backend,
    moment_of_change,
    open_cluster,
    own_cluster,
    rehearsal,
)


def plan_store(folder: DataFolder) -> PlanStore:
    """The plans of the folder; of a real cluster's a copy."""
    return PlanStore(folder.plans)


def plans_of(folder: DataFolder, cluster: LiveCluster, own: str | None) -> PlanStore:
    """The plans for a cluster that is open: those that it keeps itself, where it does."""
    if cluster.plans is None or cluster.changes is None:
        return plan_store(folder)
    return SharedPlans(folder.plans, cluster.plans, own, partial(stored_runs, cluster.changes))


@contextmanager
def open_plans(folder: DataFolder, settings: Settings) -> Iterator[PlanStore]:
    """The plans, those of a real cluster as it keeps them, copied to the folder.

    Raises:
        Misconfigured: there is no way into the cluster, or a right is missing.
        Refused: the cluster does not know the kinds of objects that hold plans.
        Unavailable: it can't be reached.
    """
    if settings.enforcer.cluster is ClusterChoice.SIMULATED:
        yield plan_store(folder)
        return
    with open_cluster(folder, settings) as cluster:
        plans = plans_of(folder, cluster, own_cluster(folder, settings))
        if isinstance(plans, SharedPlans):
            plans.pull()
        yield plans


def copied_plans(folder: DataFolder, settings: Settings) -> PlanStore:
    """The folder's plans, after those of a real cluster were copied to it; where that can't be done, as they are."""
    try:
        with open_plans(folder, settings):
            pass
    except GputideError as exc:
        logger("gputide.plans").warning("plans of the cluster are not read; the folder's are shown", why=str(exc))
    return plan_store(folder)


def journal(folder: DataFolder, *, cluster: str | None = None) -> Journal:
    """What was changed, from the audit log; in one cluster where it is given."""
    return Journal(ledger_at(folder, folder.ledger), cluster=cluster)


def keep_plan(folder: DataFolder, settings: Settings, plan: Plan) -> None:
    """Keep a sealed plan, with the fingerprint of the cluster that it was made for where that is the enforcer's."""
    if is_of_backend(folder, settings) and own_cluster(folder, settings) in (None, plan.cluster):
        with open_cluster(folder, settings) as cluster:
            dialect = backend(settings, plan.created_at).dialect
            fingerprint = fingerprint_of(take_snapshot(cluster, dialect))
            try:
                plans_of(folder, cluster, plan.cluster).add(plan, fingerprint)
            except (Misconfigured, Refused) as exc:
                logger("gputide.plans").warning("plan is kept in the folder alone; an approval stores it", why=str(exc))
            return
    plan_store(folder).add(plan)


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
        rehearses: whether a real cluster is asked, by dry runs, if it would take the changes.

    Raises:
        Refused: the plan is of another cluster.
    """
    check_own(plan, folder, settings)
    if not is_known(folder, settings):
        from gputide.container.warehouse import warehouse  # loads Arrow and numba, which a controller does without

        inventory = warehouse(folder, settings).inventory(plan.cluster, as_of=plan.created_at)
        return preview_of_history(plan, inventory, stages)
    with open_cluster(folder, settings) as cluster:
        runs = journal(folder).runs(plan.plan_id)
        renderer = backend(settings, moment_of_change(cluster, now), cluster, folder)
        return preview(
            plan, cluster, renderer, stages, runs, rehearse=rehearsal(cluster) if rehearses else None,
            wave_max=settings.enforcer.parallel_workloads_max, gaps_allowed=settings.guard.gaps_allowed,
        )  # fmt: skip


def newest_applied(kept: Journal, plans: PlanStore | None = None) -> str:
    """Id of the plan that was applied last.

    Args:
        kept: what was changed, of one cluster or of all.
        plans: where they are given, switches of nodes are passed over, which promise nothing.

    Raises:
        NotEnoughData: no plan was ever applied.
    """
    names = dict.fromkeys(run.plan_id for run in reversed(kept.runs()))
    found = next((name for name in names if plans is None or not plans.get(name).is_of_node), None)
    if found is None:
        raise NotEnoughData("no plan was ever applied; `gputide plan list` shows what there is")
    return found
